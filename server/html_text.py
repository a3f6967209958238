"""Translate the text of HTML, and put the tags back around the words to which they belong.

The tags are found with regular expressions, in linear time, since a server reads HTML of anyone.
html.parser of Python 3.11.7 takes 11 seconds for 20,000 characters of `<a <a <a`. What it reads
need not be valid: each character that is no tag and no comment is text.
"""

import html
import itertools
import math
from collections import Counter
from typing import NamedTuple

import numpy as np
import regex

from translation.spans import SPACED_LETTER

VOID = frozenset(
    "area base br col embed hr img input link meta param source track wbr".split()
)  # elements without content
RAW = ("script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes")  # no tags
UNTRANSLATED = frozenset(("script", "style", "textarea", "xmp", "iframe", "pre", "code"))
INLINE = frozenset(
    "a abbr acronym b bdi bdo big button cite code data del dfn em font i img iframe ins kbd label"
    " mark math meter noscript object output picture q ruby rb rp rt s samp script small span"
    " strike strong style sub sup svg time tt u var wbr".split()
)  # elements within a sentence; others end it
ENDS_ITSELF = frozenset("p li dt dd tr td th option thead tbody tfoot".split())

COMMENT = r"<!--(?:-?>|.*?(?:--!?>|\Z))"
NAME = r"[a-zA-Z][^\s/>]*+"
TAG = rf"<(/?)({NAME})"
QUOTED = r"""(?:[^>=]++|=\s*+(?:"[^"]*+"|'[^']*+')?+)*+>"""
MARKUP = {
    True: regex.compile(rf"{COMMENT}|<[!?][^>]*+>|{TAG}{QUOTED}", regex.DOTALL),
    # After an attribute whose quotation marks are not closed.
    False: regex.compile(rf"{COMMENT}|<[!?][^>]*+>|{TAG}[^>]*+>", regex.DOTALL),
}
ATTRIBUTE = regex.compile(r"""([^\s"'<>/=]++)\s*+=\s*+(?:"([^"]*+)"|'([^']*+)'|([^\s"'>]++))""")
# No character has such a number, and Python reads numbers in quadratic time.
LARGE_NUMBER = regex.compile(r"&#(?:0*+[0-9]{8,}+|[xX]0*+[0-9a-fA-F]{8,}+);?")


# Reading -----------------------------------------------------------------------


class Token(NamedTuple):
    """A part of HTML. The `raw` of all tokens is the HTML."""

    kind: str  # "text", "start", "end", or "single": a comment or an element without content
    raw: str
    name: str = ""  # of the element, in lower case

    @property
    def is_untranslated(self) -> bool:
        """Whether the text of the element that starts here stays as it is."""
        if self.name in UNTRANSLATED:
            return True
        found = {name.lower(): "".join(values) for name, *values in ATTRIBUTE.findall(self.raw)}
        return found.get("translate", "").lower() == "no" or (
            "notranslate" in found.get("class", "").lower().split()
        )


def tokenize(text) -> list[Token]:
    """Split HTML into tokens. The text of elements such as `<script>` has no tags.

    >>> [(token.kind, token.raw) for token in tokenize("a<br><!--<b>--><b>c < d</b>")]
    [('text', 'a'), ('single', '<br>'), ('single', '<!--<b>-->'), ('start', '<b>'), \
('text', 'c < d'), ('end', '</b>')]
    """
    tokens, begin, position = [], 0, 0  # of the text before the next tag; of the search for it
    quotes, last = True, text.rfind(">")
    while (position := text.find("<", position)) >= 0:
        is_comment = text.startswith("<!--", position)
        match = None
        if position < last or is_comment:
            match = MARKUP[quotes].match(text, position)
            if not match and quotes and regex.match(TAG, text[position : position + 3]):
                quotes = False
                continue
        if not match:
            position += 1
            continue
        if begin < position:
            tokens.append(Token("text", text[begin:position]))
        closes, name = match[1], (match[2] or "").lower()
        kind = "end" if closes else "start" if name and name not in VOID else "single"
        tokens.append(Token(kind, match[0], name))
        begin = position = match.end()
        if kind == "start" and name in RAW:
            end = regex.compile(rf"</{name}(?=[\s/>])", regex.IGNORECASE).search(text, begin)
            position = end.start() if end else len(text)
            if begin < position:
                tokens.append(Token("text", text[begin:position]))
            begin = position
    if begin < len(text):
        tokens.append(Token("text", text[begin:]))
    return tokens


class OpenElements:
    """The names of the elements that are open, the outermost first."""

    def __init__(self):
        self.names, self.counts = [], Counter()

    def push(self, name):
        """Open an element."""
        self.names.append(name)
        self.counts[name] += 1

    def pop(self, name=None):
        """Close the innermost element, or all up to one with this name, which is open."""
        while True:
            last = self.names.pop()
            self.counts[last] -= 1
            if name in (None, last):
                return

    def read(self, token) -> int:
        """Open and close elements as a tag says. Returns how many stayed open."""
        if token.kind == "end" and self.counts[token.name]:
            self.pop(token.name)
        elif token.kind == "start":
            last = self.names[-1] if self.names else ""
            if last in ENDS_ITSELF and last == token.name:
                self.pop()
            elif last == "p" and token.name not in INLINE:
                self.pop()
            self.push(token.name)
            return len(self.names) - 1
        return len(self.names)


def join_untranslated(tokens) -> list[Token]:
    """Make a single token of each element whose text stays as it is, with all that is in it."""
    joined, elements = [], OpenElements()
    kept, name, level = [], "", 0  # such an element: its tokens, its name, how many are around it
    for token in tokens:
        stayed_open = elements.read(token)
        if kept and stayed_open <= level:
            is_own = token.kind == "end" and token.name == name and stayed_open == level
            kept += [token.raw] if is_own else []
            joined.append(Token("single", "".join(kept), name))
            kept = []
            if is_own:
                continue
        if not kept and token.kind == "start" and token.is_untranslated:
            kept, name, level = [token.raw], token.name, stayed_open
        elif kept:
            kept.append(token.raw)
        else:
            joined.append(token)
    return [*joined, Token("single", "".join(kept), name)] if kept else joined


# Placing tags --------------------------------------------------------------------


class Tag(NamedTuple):
    """A tag, or an element that is not translated, within a block of text."""

    place: int  # of the character of the block that follows
    kind: str  # as that of a `Token`
    raw: str
    partner: int | None  # the index of the tag that closes or opens the same element
    last: str  # the character before it, "" at the beginning of the block
    following: str  # the character after it


def match_tags(tags, text) -> list[Tag]:
    """Make the tags of a block of text.

    Args:
      tags: list of (place, Token).
    """
    partners, names, counts = {}, [], Counter()  # names: those of open elements, and their index
    for i, (_, token) in enumerate(tags):
        if token.kind == "start":
            names.append((token.name, i))
            counts[token.name] += 1
        elif token.kind == "end" and counts[token.name]:
            name = None
            while name != token.name:
                name, start = names.pop()
                counts[name] -= 1
            partners |= {start: i, i: start}
    return [
        Tag(
            place,
            token.kind,
            token.raw,
            partners.get(i),
            text[max(0, place - 1) : place],
            text[place : place + 1],
        )
        for i, (place, token) in enumerate(tags)
    ]


def distribute_tags(tags, spans):
    """Distribute the tags of a block to its sentences, and to what is between them.

    A tag belongs to a sentence if it is within it, or opens or closes a part of it. An element
    around a complete sentence is outside of it.

    Args:
      tags: list of `Tag`.
      spans: start and end of each sentence.

    Returns:
      (list, list): the range of indices of each sentence; and those before each sentence and after
      the last one.
    """
    inner, outer, i = [], [], 0
    next_starts = [*(start for start, _ in spans[1:]), math.inf]
    for (start, end), next_start in zip(spans, next_starts, strict=False):
        first = i
        while i < len(tags) and tags[i].place <= start and not opens_part(tags, i, start, end):
            i += 1
        outer.append(range(first, i))
        first = i
        while i < len(tags) and (
            tags[i].place <= end or (tags[i].place <= next_start and closes_part(tags, i, first))
        ):
            i += 1
        while i > first and tags[i - 1].place >= end and not closes_part(tags, i - 1, first):
            i -= 1
        inner.append(range(first, i))
    return inner, [*outer, range(i, len(tags))]


def opens_part(tags, i, start, end) -> bool:
    """Whether a tag opens an element that closes within a sentence."""
    tag = tags[i]
    return tag.kind == "start" and tag.partner is not None and start < tags[tag.partner].place < end


def closes_part(tags, i, first) -> bool:
    """Whether a tag closes an element that an earlier one of the same sentence has opened."""
    return tags[i].kind == "end" and tags[i].partner is not None and tags[i].partner >= first


def token_spans(text, tokens) -> list[tuple[int, int]]:
    """Return where in a text its tokens are. Within a word this is an estimate.

    Args:
      tokens: as `Vocab.display` shows them, those that begin a word with a space.

    >>> token_spans("Ein  Haus.", [" Ein", " Ha", "us", "."])
    [(0, 3), (5, 7), (7, 9), (9, 10)]
    """
    words = [match.span() for match in regex.finditer(r"\S+", text)]
    begins = [i for i, token in enumerate(tokens) if i == 0 or token.startswith(" ")]
    if len(begins) != len(words):
        words, begins = [(0, len(text))], [0]
    spans = []
    for (start, end), first, last in zip(words, begins, [*begins[1:], None], strict=True):
        lengths = [len(token.strip()) for token in tokens[first:last]]
        scale = (end - start) / max(1, sum(lengths))
        ends = [start + round(scale * length) for length in itertools.accumulate(lengths)]
        spans += zip([start, *ends], ends, strict=False)
    return spans


class WordAligner:
    """Find the part of a translation that belongs to a part of its sentence.

    Args:
      sentence: str.
      tokens: those of the sentence.
      translation: dict of an answer of `InsideView.describe`.
    """

    def __init__(self, sentence, tokens, translation):
        self.text = translation["text"]
        self.source = token_spans(sentence, tokens)
        self.target = token_spans(self.text, translation["tokens"])
        weights = np.asarray(translation["attention"])  # (T_y, T_x)
        if not weights.any():  # a model without attention
            places = np.linspace(0, 1, len(self.target))[:, None]
            weights = -abs(places - np.linspace(0, 1, len(self.source)))
        self.weights, self.found = weights, {}

    def part(self, start, end) -> tuple[int, int]:
        """Return start and end of the part that belongs to the sentence from `start` to `end`."""
        columns = [i for i, (a, b) in enumerate(self.source) if a < end and start < b]
        if not columns or not self.target:
            return len(self.text), len(self.text)
        key = columns[0], columns[-1]
        if key not in self.found:
            self.found[key] = self.find(*key)
        return self.found[key]

    def place(self, start) -> int:
        """Return where the part begins that belongs to the token after a place of the sentence."""
        next_ends = (b for _, b in self.source if start < b)
        return self.part(start, next(next_ends, start))[0]

    def find(self, first, last):
        """Return the part that attends most to the tokens from `first` to `last`.

        It is the part in which most tokens do so.
        """
        best = self.weights.argmax(axis=1)  # (T_y,)
        hits = (first <= best) & (best <= last)
        if not hits.any():
            hits[self.weights[:, first : last + 1].sum(axis=1).argmax()] = True
        # The part with the largest sum (Kadane): a token counts 1, or nearly -1.
        total, begin, largest, rows = 0.0, 0, 0.0, (0, 0)
        for row, hit in enumerate(hits):
            if total <= 0:
                total, begin = 0.0, row
            total += 1 if hit else -0.9
            if total > largest:
                largest, rows = total, (begin, row)
        start, end = self.target[rows[0]][0], self.target[rows[1]][1]
        text = self.text
        while (
            0 < start < len(text)
            and SPACED_LETTER.match(text[start - 1])
            and SPACED_LETTER.match(text[start])
        ):
            start -= 1
        while (
            0 < end < len(text)
            and SPACED_LETTER.match(text[end - 1])
            and SPACED_LETTER.match(text[end])
        ):
            end += 1
        return start, end


def place_tags(tags, indices, span, aligner) -> list[tuple[int, str]]:
    """Place the tags of a sentence in its translation: pairs of a place and a tag, in order.

    A pair of tags encloses the translation of the words that it encloses in the sentence. Two pairs
    are nested or apart, so that no nesting is wrong. A tag without a partner in the sentence
    divides the sentence: the tags on one side of it stay there.

    Args:
      tags: those of the block.
      indices: range, those of the sentence.
      span: start and end of the sentence in the block.
      aligner: WordAligner.
    """
    start, end = span
    placed, work = [], [(indices.start, indices.stop, 0, len(aligner.text))]

    def part(first, last):
        """The part of the translation between two tags; of one tag, where it belongs."""
        begin, stop = (min(max(tags[i].place, start), end) - start for i in (first, last))
        if begin < stop:
            return aligner.part(begin, stop)
        if tags[first].kind == "end":
            return (aligner.part(0, begin)[1],) * 2
        return (aligner.place(begin),) * 2

    def lay_out(items, left, right):
        """Yield work: items, ranges of tags, from left to right in a part of the translation."""
        parts = sorted((part(*item), item) for item in items)
        for (begin, stop), (first, last) in parts:
            begin = min(max(begin, left), right)
            stop = min(max(stop, begin), right)
            if first < last:
                yield begin, tags[first].raw
                yield first + 1, last, begin, stop
                yield stop, tags[last].raw
            else:
                yield begin, with_spaces(tags[first], aligner.text, begin)
            left = stop

    while work:
        item = work.pop()
        if len(item) == 2:
            placed.append(item)
            continue
        first, last, left, right = item
        found, items = [], []
        while first < last:
            tag, closing = tags[first], tags[first].partner
            if tag.kind == "start" and closing is not None and closing < last:
                items.append((first, closing))
                first = closing
            elif tag.kind == "single":
                items.append((first, first))
            else:
                place = min(max(part(first, first)[0], left), right)
                found += [*lay_out(items, left, place), (place, tag.raw)]
                items, left = [], place
            first += 1
        found += lay_out(items, left, right)
        work += reversed(found)
    return placed


def with_spaces(tag, text, place) -> str:
    """Return an element that is put into a text, with spaces between it and the words there.

    It touches a word only where it did so in the source.
    """
    last, following = text[max(0, place - 1) : place], text[place : place + 1]
    begins_word = last.strip() and (tag.last.isspace() or SPACED_LETTER.match(last))
    before = " " if begins_word and not SPACED_LETTER.match(tag.last) else ""
    after = " " if SPACED_LETTER.match(following) and not SPACED_LETTER.match(tag.following) else ""
    return f"{before}{tag.raw}{after}"


def escape(text) -> str:
    """Write text as HTML.

    >>> escape("a < b & c\\u00a0d")
    'a &lt; b &amp; c&nbsp;d'
    """
    return html.escape(text, quote=False).replace("\u00a0", "&nbsp;")


def insert_tags(text, placed) -> str:
    """Write text as HTML with tags at their places, which ascend."""
    parts, position = [], 0
    for place, raw in placed:
        parts += escape(text[position:place]), raw
        position = max(position, place)
    return "".join([*parts, escape(text[position:])])


# Translating ---------------------------------------------------------------------


class Block:
    """Text between tags that end a sentence, as `<p>`, with the tags within it.

    Args:
      tokens: list of `Token`.
      split: function from a text to a `Paragraph`.
    """

    def __init__(self, tokens, split):
        parts, tags, length = [], [], 0
        for is_text, group in itertools.groupby(tokens, lambda token: token.kind == "text"):
            if is_text:
                raw = "".join(token.raw for token in group)
                parts.append(html.unescape(LARGE_NUMBER.sub("\ufffd", raw)))
                length += len(parts[-1])
            else:
                tags += [(length, token) for token in group]
        self.text = "".join(parts)
        self.tags = match_tags(tags, self.text)
        # In HTML, a line break is a space.
        self.paragraph = split(regex.sub(r"[\s\x1c-\x1f]", " ", self.text))
        self.spans, position = [], 0
        for gap, sentence in zip(self.paragraph.gaps, self.paragraph.sentences, strict=False):
            start = position + len(gap)
            position = start + len(sentence)
            self.spans.append((start, position))
        self.inner, self.outer = distribute_tags(self.tags, self.spans)

    @property
    def sentences(self) -> list[str]:
        """The sentences to translate."""
        return [" ".join(sentence.split()) for sentence in self.paragraph.inputs]

    def join(self, answers, index) -> str:
        """Return the HTML of the translations at `index`; of a sentence with fewer, of its last.

        Args:
          answers: those of `InsideView.describe` about the translations of `sentences`.
        """
        chosen = [
            (answer["translations"][: index + 1] or [dict(text="")])[-1] for answer in answers
        ]
        texts = [translation["text"] for translation in chosen]
        joints = [self.paragraph.gaps[0], *self.paragraph.joints(texts)]
        ends = [0, *(end for _, end in self.spans)]
        starts = [*(start for start, _ in self.spans), len(self.text)]
        gaps = [*map(self.gap, ends, starts, self.outer, joints)]
        parts = [gaps[0]]
        rows = zip(answers, texts, self.paragraph.inputs, self.spans, strict=True)
        for i, (answer, text, sentence, (_, end)) in enumerate(rows):
            placed = []
            if self.inner[i] and answer["translations"]:
                aligner = WordAligner(sentence, answer["source"], chosen[i])
                span = end - len(sentence), end  # with a symbol, it begins before the sentence
                placed = place_tags(self.tags, self.inner[i], span, aligner)
            elif self.inner[i]:
                placed = [(0, self.tags[j].raw) for j in self.inner[i]]
            parts += insert_tags(text, placed), gaps[i + 1]
        return "".join(parts)

    def gap(self, start, end, indices, joint) -> str:
        """Return what is between two sentences: white space and tags.

        Args:
          start, end: where it is in the block.
          indices: range, those of the tags.
          joint: the white space in the translation.
        """
        tags = [self.tags[i] for i in indices]
        text = self.text[start:end]
        if len(joint) != len(text):  # a space after the tags that close an element
            closing = [*itertools.takewhile(lambda tag: tag.kind == "end", tags)]
            raw = [tag.raw for tag in tags]
            return "".join([*raw[: len(closing)], joint, *raw[len(closing) :]])
        return insert_tags(
            text, [(min(max(tag.place - start, 0), len(text)), tag.raw) for tag in tags]
        )


class HtmlText:
    """HTML to translate.

    Args:
      text: the HTML.
      split: function from a text to a `Paragraph`.
    """

    def __init__(self, text, split):
        self.parts = []  # str that stay as they are, and `Block`
        within = []
        for token in [*join_untranslated(tokenize(text)), None]:
            if token and (token.kind == "text" or token.name in INLINE or not token.name):
                within.append(token)
                continue
            if any(own.kind == "text" and own.raw.strip() for own in within):
                self.parts.append(Block(within, split))
            else:
                self.parts += [own.raw for own in within]
            within = []
            self.parts += [token.raw] if token else []
        blocks = [part for part in self.parts if isinstance(part, Block)]
        self.sentences = [own for block in blocks for own in block.sentences]

    def join(self, answers, index) -> str:
        """Return the HTML with the translations at `index`; see `Block.join`."""
        rest = iter(answers)
        return "".join(
            part.join([next(rest) for _ in part.spans], index) if isinstance(part, Block) else part
            for part in self.parts
        )
