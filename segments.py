"""Read the segments of test sets in XML and SGML.

IWSLT and WMT write one side of a test set to a file, in XML or in SGML that may not be well-formed.
Files of WMT since 2021, and of TMX, hold both languages.
"""

import html
import sys
from collections import Counter
from typing import NamedTuple
from xml.parsers import expat

import regex

from runtime.errors import InputError

SOURCE, REFERENCE, SYSTEM = "source", "reference", "system"
# Elements around segments that say which side they are: in SGML, and in WMT's XML since 2021.
ROLES = dict(srcset=SOURCE, refset=REFERENCE, tstset=SYSTEM, src=SOURCE, ref=REFERENCE, hyp=SYSTEM)


class Segment(NamedTuple):
    """Where a sentence of an XML file comes from."""

    line: int  # line number of its <seg>, counted from 1
    id: str | None  # attribute of its <seg>; in TMX, the number of its <tu>
    doc: str | None = None  # id of its document

    def __str__(self):
        return f"segment {self.id}" + (f" of document {self.doc}" if self.doc else "")


class Side(NamedTuple):
    """One language of a test set, or one of several translations."""

    role: str | None  # a value of ROLES, if the file says it
    lang: str | None  # as the file names it
    contents: list[str]  # the text of each segment on one line, without tags
    raw: list[str]  # the same without entities, as a person reads it
    segments: list[Segment]


# SGML, and XML that may not be well-formed ---------------------------------------


def opens_segment(line, names="seg") -> bool:
    """Whether a `<seg>` is on the line, with only tags before it.

    Args:
      names: the names of other elements to look for, with | between them.

    >>> opens_segment('<doc> <seg id="1">a'), opens_segment("a <seg> is a tag")
    (True, False)
    """
    match = regex.search(rf"<(?:{names})\b", line, regex.IGNORECASE)
    return bool(match and regex.fullmatch(r"(?:[\s\ufeff]|<[^>]*+>)*+", line[: match.start()]))


def replace_spans(text, opening, closing, change) -> str:
    """Replace the text between two marks, and the marks. Line numbers do not change.

    Args:
      change: function that maps the text between the marks to its replacement.

    >>> replace_spans("a<!-- b -->c<!-- d", "<!--", "-->", lambda comment: "")
    'ac<!-- d'
    """

    def replace(match):
        span = change(match[1])
        return span + "\n" * (match[0].count("\n") - span.count("\n"))

    pattern = f"{regex.escape(opening)}(.*?){regex.escape(closing)}"
    end = text.rfind(closing) + len(closing)  # after it, each opening mark would be a search
    return regex.sub(pattern, replace, text[:end], flags=regex.DOTALL) + text[end:]


def one_line(text) -> str:
    """Join the lines of a text, each without the white space around it, with spaces."""
    return " ".join(line.strip() for line in regex.split(r"[\r\n]", text.strip()))


def drop_markup(text) -> str:
    """Remove all tags from a text, as the 2017 code does.

    >>> drop_markup("a <b>c</b> <> d < e")
    'a c <> d < e'
    """
    end = text.rfind(">") + 1  # after it, each < would be a search to the end
    return regex.sub("<[^>]+>", "", text[:end]) + text[end:]


def unescape(text) -> str:
    """Replace the entities of XML. Others, and an & without a semicolon, stay as they are.

    >>> unescape("R&D &amp; &lt;b> &#228; &#xe4; ?x=1&copy=2 &eacute; &amp;lt;")
    'R&D & <b> ä ä ?x=1&copy=2 &eacute; &lt;'
    """
    pattern = r"&(?:(amp|lt|gt|quot|apos)|#0*+([0-9]{1,7})|#x0*+([0-9a-fA-F]{1,6}));"
    return regex.sub(pattern, entity, text)


def entity(match) -> str:
    """Return the character of an entity that `unescape` has matched."""
    name, decimal, hexadecimal = match.groups()
    if name:
        return dict(amp="&", lt="<", gt=">", quot='"', apos="'")[name]
    code = int(decimal or hexadecimal, 10 if decimal else 16)
    if code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xDFFF < code <= sys.maxunicode:
        return chr(code)
    return match[0]  # no character of XML


def attributes(tag) -> dict:
    """Return the attributes in the text of a tag, by their names in lower case.

    >>> attributes('<doc docid="a b" SysID=ref>')
    {'docid': 'a b', 'sysid': 'ref'}
    """
    pairs = regex.findall(r"""([\w:]+)\s*+=\s*+(?:"([^"]*)"|'([^']*)'|([^"'\s>]+))""", tag)
    return {name.lower(): "".join(values) for name, *values in pairs}


def parse_segments(path, lines):
    """Read the text between each `<seg>` and its `</seg>`.

    A line may hold several segments, and a segment may span several lines. The file need not be
    well-formed XML. A document that is there twice has two translations.

    Returns:
      (list of Side, int): the sides, and the number of lines without a segment.
    """
    text = replace_spans("\n".join(lines), "<!--", "-->", lambda comment: "")
    text = replace_spans(text, "<![CDATA[", "]]>", lambda data: html.escape(data, quote=False))
    sides, skipped = {}, {number for number, line in enumerate(lines, 1) if line.strip()}
    documents = Counter()  # how often a document was there
    role, lang, doc = None, None, None
    line, counted = 1, 0  # the line number, and the position up to which lines are counted
    start, segment = None, None  # the position of the open segment's content
    for tag in regex.finditer(
        r"<(/?)(seg|doc|srcset|refset|tstset)\b([^<>]*)>", text, regex.IGNORECASE
    ):
        closes, name = tag[1] == "/", tag[2].lower()
        line += text.count("\n", counted, tag.start())
        counted = tag.start()
        if name == "seg":
            if closes and start is None:
                raise InputError(
                    f"{path}:{line}: </seg> without a <seg> before it. Delete the </seg>"
                )
            if not closes and start is not None:
                raise unclosed_segment_error(path, segment)
            if closes:
                content = one_line(drop_markup(text[start : tag.start()]))
                raw = one_line(unescape(content))
                side = sides.setdefault((role, lang, documents[role, doc]), ([], [], []))
                for values, value in zip(side, (content, raw, segment), strict=True):
                    values.append(value)
                skipped -= {*range(segment.line, line + 1)}
                start = None
            else:
                segment = Segment(line, attributes(tag[3]).get("id"), doc)
                start = tag.end()
        elif start is None and name == "doc":
            found = attributes(tag[3])
            doc = None if closes else found.get("docid") or found.get("id")
            documents[role, doc] += doc is not None
        elif start is None:
            found = attributes(tag[3])
            role = None if closes else ROLES[name]
            lang = found.get("srclang" if name == "srcset" else "trglang")
    if start is not None:
        raise unclosed_segment_error(path, segment)
    found = [Side(role, lang, *lists) for (role, lang, _), lists in sides.items()]
    return found, len(skipped)


def unclosed_segment_error(path, segment) -> InputError:
    """Return the error for a segment without an end."""
    return InputError(
        f"{path}:{segment.line}: this <seg> is not closed. Write </seg> after its text"
    )


# Well-formed XML with both languages ---------------------------------------------


def parse_xml(path, text) -> list[Side]:
    """Read the sides of a file of WMT since 2021, or of TMX."""
    return XmlSegments(path).parse(text)


class XmlSegments:
    """Collects the segments of each side of an XML file, as its parser reads it.

    Args:
      path: that of the file.
    """

    # Elements in a <seg> of TMX that hold the codes of a document format, and no text.
    CODES = ("bpt", "ept", "it", "ph", "ut")

    def __init__(self, path):
        self.path = path
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler = self.start
        parser.EndElementHandler = self.end
        parser.CharacterDataHandler = self.data
        parser.EntityDeclHandler = self.refuse_entity
        parser.SkippedEntityHandler = self.refuse_entity
        self.sides = {}  # (role, language, translator): (sentences, segments)
        self.side = None, None, None
        self.doc, self.unit = None, 0
        self.variants = Counter()  # how often the open <tu> had each language
        self.segment, self.text = None, []
        self.codes = 0  # how many elements of CODES are open

    def feed(self, content, is_last):
        """Read a part of the file, text or bytes."""
        try:
            self.parser.Parse(content, is_last)
        except expat.ExpatError as error:
            reason = expat.errors.messages[error.code]
            raise InputError(
                f"{self.path}:{error.lineno}: this line is not valid XML ({reason}). Correct"
                " it, for example by writing & as &amp;, or download the file again"
            ) from None

    def parse(self, text) -> list[Side]:
        """Read the text of the file."""
        self.feed(text, True)
        return [
            Side(role, lang, raw, raw, segments)
            for (role, lang, _), (raw, segments) in self.sides.items()
        ]

    def refuse_entity(self, name, *_):
        """Raise InputError: the file declares an entity, or uses one that it does not declare."""
        raise InputError(
            f"{self.path}:{self.parser.CurrentLineNumber}: the entity {name} is not one of XML's"
            " own. Replace it by its text, and delete its declaration"
        )

    def start(self, name, attrs):
        """Read the beginning of an element."""
        if name in ROLES:
            lang = attrs.get("lang") or attrs.get("language")
            self.side = ROLES[name], lang, attrs.get("translator") or attrs.get("system")
        elif name == "doc":
            self.doc = attrs.get("id")
        elif name == "tu":
            self.unit += 1
            self.variants.clear()
        elif name == "tuv":
            lang = attrs.get("xml:lang") or attrs.get("lang")
            lang = lang and lang.lower().replace("_", "-")  # a memory may have both en-US and EN_us
            self.variants[lang] += 1
            self.side = None, lang, self.variants[lang]
        elif name == "seg":
            segment_id = str(self.unit) if self.unit else attrs.get("id")
            self.segment = Segment(self.parser.CurrentLineNumber, segment_id, self.doc)
            self.text = []
        elif name in self.CODES:
            self.codes += 1

    def end(self, name):
        """Read the end of an element."""
        if name == "seg":
            raw, segments = self.sides.setdefault(self.side, ([], []))
            raw.append(one_line("".join(self.text)))
            segments.append(self.segment)
            self.segment = None
        elif name in self.CODES:
            self.codes -= 1

    def data(self, text):
        """Read text."""
        if self.segment and not self.codes:
            self.text.append(text)


class TmxUnits(XmlSegments):
    """The translation units of a TMX file. Few of them are in memory at a time."""

    CHUNK_BYTES = 2**20

    def __init__(self, path):
        super().__init__(path)
        self.units = []  # those that were read, and are not used yet

    def read(self, file):
        """Yield each unit: its texts by their language, a list of variants each.

        Args:
          file: binary file.
        """
        while content := file.read(self.CHUNK_BYTES):
            yield from self.take(content, False)
        yield from self.take(b"", True)

    def take(self, content, is_last) -> list:
        """Read a part of the file, and return the units that it completes."""
        try:
            self.feed(content, is_last)
        except (LookupError, ValueError) as error:  # the name of an encoding
            raise InputError(
                f"{self.path}: its encoding cannot be read ({error}). Convert the file to UTF-8,"
                " and correct its first line"
            ) from None
        units, self.units = self.units, []
        return units

    def end(self, name):
        """Read the end of an element."""
        super().end(name)
        if name != "tu":
            return
        unit = {}
        for (_, lang, _), (texts, _) in self.sides.items():
            unit.setdefault(lang, []).extend(texts)
        self.units.append(unit)
        self.sides.clear()
