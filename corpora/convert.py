"""Write the text of a file as lines: a file for each side, with a sentence on each line.

    python corpora/convert.py my.tsv my.de my.en --sides 1,3
    python corpora/convert.py my.csv my.de my.en
    python corpora/convert.py my.tmx my.de my.en --sides de,en
    python corpora/convert.py newstest.xml test.de test.en other.en --sides src,ref,ref
    python corpora/convert.py windows.txt utf8.txt --encoding cp1252

The name of the file tells its format, also before .gz: a table (.tsv, .csv), a translation memory
(.tmx), the segments of WMT and IWSLT (.xml, .sgm, .sgml), else lines. Sides are columns, languages,
or src, ref and hyp. If a side is named twice, the second file gets its second reference or variant
in a unit, or the first one again. Units that lack a side are left out, and counted; a cell of a
table without text is no side.
"""

import contextlib
import csv
import functools
import io
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import regex

from support.cli import run_script
from support.errors import InputError
from support.files import new_files
from support.flags import Parser, expand_path
from text.lines import open_unpacked

SIDES = dict(srcset="src", refset="ref", tstset="hyp", src="src", ref="ref", hyp="hyp")
# Elements of TMX that hold no text of the unit.
NO_TEXT = ("bpt", "ept", "it", "ph", "ut", "prop", "note")
LANG = "{http://www.w3.org/XML/1998/namespace}lang"
MAX_UNIT_BYTES = 2**20  # of a translation memory
CHUNK_BYTES = 2**14
BARE_AMPERSAND = regex.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]+|#x[0-9a-fA-F]+);)")


def decoded_lines(path, encoding):
    """Yield the lines of a file."""
    with open_unpacked(path) as file:
        yield from io.TextIOWrapper(file, encoding, newline="\n")


def read_rows(path, encoding, dialect):
    """Yield the rows of a table."""
    lines = (line.strip("\r\n").replace("\r", " ") + "\n" for line in decoded_lines(path, encoding))
    yield from csv.reader(lines, strict=True, **dialect)


# Each reader yields the units: lists of pairs, the name of a side and its text.


def read_table(path, encoding, delimiters):
    """The sides are the numbers of the columns.

    The delimiter, and whether cells have quotation marks, are chosen such that most rows have the
    same number of cells.
    """

    def num_alike(dialect) -> int:
        widths = Counter()
        with contextlib.suppress(csv.Error):
            widths.update(map(len, read_rows(path, encoding, dialect)))
        return max([0, *(count for width, count in widths.items() if width > 1)])

    quotings = dict(), dict(skipinitialspace=True)
    dialects = [dict(delimiter=own) | quoting for quoting in quotings for own in delimiters]
    # Text has commas.
    dialects += [dict(delimiter=own, quoting=csv.QUOTE_NONE) for own in delimiters if own != ","]
    for row in read_rows(path, encoding, max(dialects, key=num_alike)):
        yield [(str(number), cell) for number, cell in enumerate(row, 1) if cell.strip()]


def read_tmx(path, _):
    """The sides are the languages."""
    parser, body, size = ElementTree.XMLPullParser(["start", "end"]), None, 0
    with open_unpacked(path) as file:
        while chunk := file.read(CHUNK_BYTES):
            parser.feed(chunk)
            size += len(chunk)
            for event, element in parser.read_events():
                if event == "start" and element.tag in ("tmx", "body"):
                    body = element
                elif event == "end" and element.tag == "tu":
                    for part in element.iter():
                        part.text = None if part.tag in NO_TEXT else part.text
                    yield [
                        ((own.get(LANG) or own.get("lang", "")).lower(), "".join(own.itertext()))
                        for own in element.iter("tuv")
                    ]
                    body.clear()  # few units are in memory at a time
                    size = 0
            if size > MAX_UNIT_BYTES:
                raise ElementTree.ParseError(f"no unit ends within {MAX_UNIT_BYTES:,} bytes")
    parser.close()


class Segments(HTMLParser):
    """Collects the <seg> of WMT and IWSLT, which may be no well-formed XML."""

    def __init__(self):
        super().__init__()
        # By document and segment: sides in another order fit together. A text is a list of parts.
        self.units = {}
        self.side, self.document, self.text = "", "", []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        if tag in SIDES:
            self.side = SIDES[tag]
        elif tag == "doc":
            self.document = attributes.get("docid") or attributes.get("id")
        elif tag == "seg":
            key, self.text = (self.document, attributes.get("id") or self.getpos()), []
            self.units.setdefault(key, []).append((self.side, self.text))

    def handle_endtag(self, tag):
        if tag == "seg":  # what follows is no text of it
            self.text = []

    def handle_data(self, data):
        self.text.append(data)


def read_segments(path, encoding):
    """The sides are src, ref and hyp."""
    parser = Segments()
    parser.feed(BARE_AMPERSAND.sub("&amp;", "".join(decoded_lines(path, encoding))))
    parser.close()
    for unit in parser.units.values():
        yield [(side, "".join(parts)) for side, parts in unit]


def read_units(path, encoding):
    """Yield the units in the format that the name tells."""
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    try:
        if suffix in READERS:
            yield from READERS[suffix](path, encoding)
        else:
            yield from ([("1", line)] for line in decoded_lines(path, encoding))
    except (ElementTree.ParseError, csv.Error, UnicodeError, LookupError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}). Correct it, or name its --encoding"
        ) from None


READERS = {
    ".tsv": functools.partial(read_table, delimiters="\t"),
    ".csv": functools.partial(read_table, delimiters=",;\t"),
    ".tmx": read_tmx,
    **dict.fromkeys((".xml", ".sgm", ".sgml"), read_segments),
}


def pick(unit, sides) -> list[str]:
    """Return the texts of the sides in a unit, or an empty list if it lacks one."""
    texts = []
    for i, side in enumerate(sides):
        found = [text for name, text in unit if name == side]
        texts += (found[sides[:i].count(side) :] or found)[:1]
    return texts if len(texts) == len(sides) else []


def main(args):
    """Write the sides of a file to new files."""
    sides = args.sides.lower().split(",")[: len(args.outputs)]
    unit, counts = [], Counter()
    with new_files(args.outputs) as files:
        for unit in read_units(args.input, args.encoding):
            texts = pick(unit, sides)
            counts[bool(texts)] += 1
            for file, text in zip(files, texts, strict=bool(texts)):
                file.write(f"{' '.join(text.split())}\n")
        if not counts[True]:
            raise InputError(
                f"{args.input}: no unit has the sides {', '.join(sides)}. The last one has"
                f" {', '.join(side for side, _ in unit) or 'none'}. Choose others with --sides"
            )
    print(f"{', '.join(args.outputs)}: {counts[True]:,} lines. Left out: {counts[False]:,} units")


def parse_args():
    """Parse the command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("input", type=expand_path, help="the file to read")
    parser.add_argument("outputs", nargs="+", type=expand_path, help="new files, one for each side")
    parser.add_argument("--sides", default="1,2,3,4", help="default: %(default)s, the columns")
    help_text = "of all formats but TMX, which names its own; default: %(default)s"
    parser.add_argument("--encoding", default="utf-8-sig", help=help_text)
    args = parser.parse_args()
    if len(args.sides.split(",")) < len(args.outputs):
        parser.error(f"--sides {args.sides}: {len(args.outputs)} files need as many sides")
    return args


if __name__ == "__main__":
    run_script(main, parse_args())
