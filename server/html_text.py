"""Translate the text of HTML. Its tags are parts of sentences that stay as they are.

In a text to translate, each tag is a mark: U+E000, a name that the two tags of an element share,
after a slash in the end tag, and U+E001.
"""

import html
from itertools import chain, takewhile, zip_longest
from typing import NamedTuple

import regex

from translation.spans import HTML_TAG

INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label mark"
    " math meter noscript object output q ruby rb rp rt s samp small span strike strong sub sup svg"
    " time tt u var wbr".split()
)  # elements within a sentence; others end it
VOID = "br img input wbr".split()  # elements without an end tag
# Possessive quantifiers keep the time linear.
TOKEN = regex.compile(
    r"""(?isx) <!--.*?(?:-->|\Z) | <[!?][^<>]*+> | [\ue000-\uf8ff]
    | <(?P<kept>script|style|textarea|xmp|iframe|pre|code|svg|math)(?=[\s>])[^>]*+(?<!/)>
      .*?(?:</(?P=kept)\s*+>|\Z)
    | (?<!\w)\w++(?:<sub>[^<\s]{1,9}+</sub>\w*+)++ | (?<=[\w>])<sup>[^<\s]{1,9}+</sup>
    | <(?P<end>/?)(?P<name>[a-z][^\s/<>]*+)(?:(?:[^<>"']++|"[^"]*+"|'[^']*+')*+|[^<>]*+)>"""
)
STAYS = regex.compile(r"""(?i)\s(?:translate=["']?no|class=["']?[^"'>]*\bnotranslate)\b""")
SPACE = r"(?:\s|&nbsp;)"
SPACES_WITHIN = (  # an element, after its start tags and before its end tags
    regex.compile(rf"(?r)((?:\ue000[a-j]++\ue001)++)({SPACE}++)(?!{SPACE})"),
    regex.compile(rf"(?<!{SPACE})({SPACE}++)((?:\ue000/\w++\ue001)++)"),
)
SPACED_JOINT = regex.compile(rf"{SPACE}\ue000|\ue000{SPACE}")
MAX_OPEN = 100  # elements among which the start of one is looked for
DIGITS_AS_LETTERS = str.maketrans("0123456789", "abcdefghij")  # no number of a text


class Token(NamedTuple):
    """A part of HTML: text, a tag, or something else that stays as it is."""

    raw: str
    kind: str  # "text", "start", "end" or "other"
    name: str = ""  # of the element, in lower case
    number: int = 0  # of the element: that of its start tag, or its own


def tokenize(text):
    """Split HTML: its tokens, and the indices of the end tags by the numbers of their elements.

    >>> [token.raw for token in tokenize("a<br><!--<b>--><b>c < d</b><code><i></code>.")[0]]
    ['a', '<br>', '<!--<b>-->', '<b>', 'c < d', '</b>', '<code><i></code>', '.']
    """
    tokens, ends, opened, position = [], {}, [], 0
    for match in TOKEN.finditer(text):
        if position < match.start():
            tokens.append(Token(text[position : match.start()], "text"))
        position, name = match.end(), (match["name"] or "").lower()
        kind = "end" if match["end"] else "start" if name and name not in VOID else "other"
        token = Token(match[0], kind, name, len(tokens))
        names = [own.name for own in opened[-MAX_OPEN:]]
        if kind == "start":
            opened.append(token)
        elif name in names:
            while (start := opened.pop()).name != name:
                pass
            ends[start.number] = len(tokens)
            token = token._replace(number=start.number)
        tokens.append(token)
    return [*tokens, Token(text[position:], "text")], ends


class HtmlText:
    """HTML to translate. `texts` are its blocks of text, with marks for tags."""

    def __init__(self, text):
        self.gaps, self.texts = [""], []  # the HTML before each text, and after the last one
        self.tags = {}  # of each mark
        (tokens, ends), block, i = tokenize(text), [], 0
        while i < len(tokens):
            token = tokens[i]
            if token.kind == "start" and STAYS.search(token.raw):
                within = [] if is_inline(token) else [*takewhile(is_inline, tokens[i + 1 :])]
                within = tokens[i + 1 : ends.get(i, i + len(within)) + 1]
                raw = token.raw + "".join(own.raw for own in within)
                token = token._replace(raw=raw, kind="other")
                i += len(within)
            # Two buttons are two blocks, but not the parts of <b>a </b><i>b</i>.
            touches = (
                block
                and block[-1].kind == "end"
                and (token.kind == "start" or token.name in VOID)
                and not SPACED_JOINT.search(f"{block[-2:][0].raw}\ue000{tokens[i + 1].raw}")
            )
            if touches or not is_inline(token):
                self.add(block)
                block = []
            if is_inline(token):
                block.append(token)
            else:
                self.gaps[-1] += token.raw
            i += 1
        self.add(block)

    def add(self, block):
        """Add a block of text and tags, which may have no words."""
        text = ""
        for token in block:
            if token.kind == "text":
                text += token.raw
            else:
                name = str(token.number).translate(DIGITS_AS_LETTERS)
                prefix = dict(start="", end="/", other="x")[token.kind]
                mark = f"\ue000{prefix}{name}\ue001"
                self.tags[mark] = token.raw
                text += mark
        for pattern in SPACES_WITHIN:  # they are moved outside
            text = pattern.sub(r"\2\1", text)
        text = html.unescape(text)
        if any(map(str.isalpha, HTML_TAG.sub("", text))):
            before, text, after = regex.fullmatch(r"(?s)(\s*+)(.*\S)(\s*+)", text).groups()
            self.texts.append(regex.sub(r"[\t\n\r\f]", " ", text))
            self.gaps[-1] += before
            self.gaps.append(after)
        else:
            self.gaps[-1] += "".join(token.raw for token in block)

    def join(self, translations) -> str:
        """Return the HTML with the translations of its texts."""
        texts = [html.escape(t, quote=False).replace("\xa0", "&nbsp;") for t in translations]
        texts = [HTML_TAG.sub(lambda mark: self.tags.get(mark[0], mark[0]), own) for own in texts]
        return "".join(chain(*zip_longest(self.gaps, texts, fillvalue="")))


def is_inline(token) -> bool:
    """Whether a token does not end a block of text."""
    return not token.name or token.name in INLINE
