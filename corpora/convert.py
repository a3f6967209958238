"""Write the text of a file as lines: a file for each side, with a sentence on each line.

    python corpora/convert.py my.tsv my.de my.en --sides 1,3
    python corpora/convert.py my.csv my.de my.en
    python corpora/convert.py my.tmx my.de my.en --sides de,en
    python corpora/convert.py newstest.xml test.de test.en other.en --sides src,ref,ref
    python corpora/convert.py latin.txt utf8.txt --encoding latin-1

The name of the file tells its format, also before .gz: a table (.tsv, .csv), a translation memory
(.tmx), the segments of WMT and IWSLT (.xml, .sgm, .sgml), else lines. Sides are columns, languages,
or src, ref and hyp. If a side is named twice, the second file gets its second reference or variant
in a unit, or the first one again. Units that lack a side are left out, and counted.
"""

import contextlib
import csv
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
from support.files import new_file
from support.flags import Parser, expand_path
from text.lines import open_unpacked

SIDES = dict(srcset="src", refset="ref", tstset="hyp", src="src", ref="ref", hyp="hyp")
CODES = ("bpt", "ept", "it", "ph", "ut")  # elements of TMX that hold the codes of another format
LANG = "{http://www.w3.org/XML/1998/namespace}lang"
BARE_AMPERSAND = regex.compile(r"&(?!(?:amp|lt|gt|quot|apos|#[0-9]+|#x[0-9a-fA-F]+);)")

# Each yields the units: lists of pairs, the name of a side and its text.


def read_table(rows):
    """The sides are the numbers of the columns."""
    for row in rows:
        yield [(str(number), cell) for number, cell in enumerate(row, 1)]


def read_tmx(file):
    """The sides are the languages."""
    body = None
    for event, element in ElementTree.iterparse(file, ["start", "end"]):
        if event == "start" and element.tag in ("tmx", "body"):
            body = element
        elif event == "end" and element.tag == "tu":
            for part in element.iter():
                part.text = None if part.tag in CODES else part.text
            yield [
                ((own.get(LANG) or own.get("lang", "")).lower(), "".join(own.itertext()))
                for own in element.iter("tuv")
            ]
            body.clear()  # few units are in memory at a time


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


def read_segments(text):
    """The sides are src, ref and hyp."""
    parser = Segments()
    parser.feed(BARE_AMPERSAND.sub("&amp;", text))
    parser.close()
    for unit in parser.units.values():
        yield [(side, "".join(parts)) for side, parts in unit]


def read_units(path, encoding):
    """Yield the units in the format that the name tells."""
    suffix = Path(path.removesuffix(".gz")).suffix.lower()
    try:
        with open_unpacked(path) as file:
            lines = io.TextIOWrapper(file, encoding, newline="\n")
            if suffix == ".tmx":
                yield from read_tmx(file)
            elif suffix in (".xml", ".sgm", ".sgml"):
                yield from read_segments(lines.read())
            elif suffix == ".csv":
                yield from read_table(csv.reader(lines))
            else:
                is_table = suffix == ".tsv"
                yield from read_table(line.split("\t") if is_table else [line] for line in lines)
    except (ElementTree.ParseError, csv.Error, UnicodeError, LookupError) as error:
        raise InputError(
            f"{path}: cannot be read ({error}). Correct it, or name its --encoding"
        ) from None


def pick(unit, sides) -> list[str]:
    """Return the texts of the sides in a unit, or an empty list if it lacks one."""
    texts = []
    for i, side in enumerate(sides):
        found = [text for name, text in unit if f"{name}-".startswith(f"{side}-")]
        texts += (found[sides[:i].count(side) :] or found)[:1]
    return texts if len(texts) == len(sides) else []


def main(args):
    """Write the sides of a file to new files."""
    sides = args.sides.lower().split(",")[: len(args.outputs)]
    unit, counts = [], Counter()
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(new_file(path)) for path in args.outputs]
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
