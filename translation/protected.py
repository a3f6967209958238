"""Take parts out of a sentence that stay as they are, and put them into its translation.

They are code, addresses, unknown characters, the numbers if one was lost, and HTML's tags.
"""

import unicodedata
from bisect import bisect_left, bisect_right
from typing import NamedTuple

import num2words
import numpy as np
import regex

from translation.spans import HTML_TAG, LETTER, NUMBER, SPACED_LETTER, UNSPACED, WORD, find_code

# The part that stays if one of its characters is unknown: the number or the word around it. Where
# words have no spaces between them, the character alone.
UNKNOWN_PARTS = regex.compile(rf"{NUMBER.pattern}|{SPACED_LETTER.pattern}++|\X", regex.V1)
UNSPACED_LETTER = regex.compile(rf"[{UNSPACED}]")
CLOSING = regex.compile(r"[\s\p{Pe}\p{Pf}.,:;!?]|$")
LAST_TAG = regex.compile(rf"(?r){HTML_TAG.pattern}\Z")
LIST_GAP = regex.compile(r"[\s,;:/&+–-]*")
DIGITS = regex.compile(r"\p{Nd}+")
MAX_PLACED_PARTS = 100  # parts of a line; a sentence has fewer
# As >>fr<< or >>cmn_Hans<<: no word of the text.
LANGUAGE_SYMBOL = regex.compile(r"^>>[a-z]{2,3}(?:[-_]\w+)*<<(?!\S)")
# In no word, as 80er or 13-year-old.
WHOLE_NUMBER = regex.compile(rf"(?<!{LETTER}-?|\d){NUMBER.pattern}(?!-?{LETTER})", regex.V1)


class Part(NamedTuple):
    """A part of a sentence that must stay as it is."""

    line: str
    start: int  # position of its first character
    end: int  # position after its last character

    @property
    def text(self) -> str:
        return self.line[self.start : self.end]

    @property
    def neighbours(self) -> tuple[str, str]:
        """The characters before and after it, "" at the ends of the sentence."""
        return self.line[self.start - 1 : self.start], self.line[self.end : self.end + 1]


def find_parts(line, vocab=None, keep_numbers=False) -> list[Part]:
    """Find the parts of a sentence that must stay as they are. Those of a list are one.

    >>> [part.text for part in find_parts("Hallo {name}, siehe www.example.de.")]
    ['{name}', 'www.example.de']

    `vocab` is a SubwordVocab, which may lack characters. `keep_numbers` is for a sentence that has
    `lost_numbers`. If only these stayed, others could be lost.
    """
    text = HTML_TAG.sub(lambda tag: " " * len(tag[0]), line)
    if not any(map(str.isalpha, LANGUAGE_SYMBOL.sub("", text))):
        return [Part(line, 0, len(line))]
    spans = find_code(text)
    numbers = WHOLE_NUMBER.finditer(text) if keep_numbers else ()
    spans += [match.span() for match in numbers if len(match[0]) > 1]
    if vocab and vocab.lacks_part_of(text):
        spans += [own.span() for own in UNKNOWN_PARTS.finditer(text) if vocab.lacks_part_of(own[0])]
    merged = []
    for start, end in sorted(spans):
        if merged and (start <= merged[-1][1] or LIST_GAP.fullmatch(line, merged[-1][1], start)):
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return add_tags(line, merged)


def add_tags(line, spans=()) -> list[Part]:
    """Return the parts with these starts and ends, and tags. Tags around a part belong to it."""
    parts, position = [], 0
    for start, end in [*spans, (len(line), len(line))]:
        while tag := LAST_TAG.search(line, position, start):
            partner = f"\ue000/{tag[2]}\ue001"
            if not line.startswith(partner, end):
                break
            start, end = tag.start(), end + len(partner)
        tags = [tag.span() for tag in HTML_TAG.finditer(line, position, start)]
        parts += [Part(line, *span) for span in [*tags, (start, end)] if span[0] < span[1]]
        position = end
    return parts


class Taken(NamedTuple):
    """A sentence, and what is left of it without its parts."""

    line: str
    text: str  # for the model; "" if no word is left
    parts: list[Part] = []
    befores: list[str] = []  # what is left before each of the first `MAX_PLACED_PARTS` parts


def take_out(line, parts) -> Taken:
    """Take parts out of a sentence.

    >>> line = "Hallo {name}, siehe www.example.de!"
    >>> take_out(line, find_parts(line))[1:4:2]
    ('Hallo, siehe!', ['Hallo', 'Hallo, siehe'])
    """
    if not parts:
        return Taken(line, line)
    pieces, befores = [line[: parts[0].start]], []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        gap = line[part.end : following.start if following else None]
        if CLOSING.match(line, part.end):
            pieces[-1] = pieces[-1].rstrip()
        if len(befores) < MAX_PLACED_PARTS:
            befores.append("".join(pieces).rstrip())
        if gap:
            pieces.append(gap if pieces[-1].strip() or len(pieces) > 1 else gap.lstrip())
    text = "".join(pieces)
    if any(map(str.isalpha, LANGUAGE_SYMBOL.sub("", text))):
        return Taken(line, text, parts, befores)
    return Taken(LANGUAGE_SYMBOL.sub("", line), "", parts, befores)


def put_in(taken, x, y, weights, vocabs) -> str:
    """Return the text of a translation with the parts that were taken out of its source.

    The first `MAX_PLACED_PARTS` parts are placed. The place of the others is the end. `x` are the
    ids that the model has read, with `</S>`, `y` those of the translation, without, and `weights`,
    (T_y, T_x), what each token of the translation attends to.
    """
    (source, target), (_, _, parts, befores) = vocabs, taken
    aligned = weights[: len(y)].argmax(axis=1)  # (T_y,) positions in x
    # Where words begin: no part divides a word.
    starts = (k for k, i in enumerate(y) if target.starts_word(i) or not is_word(target, i))
    begins = [0, *starts, len(y)]
    positions = [min(len(ids), len(x)) - 1 for ids in source.encode(source.prepare(befores))]
    rows = zip(positions, parts, strict=False)
    places = [find_place(position, part, x, y, aligned, begins, vocabs) for position, part in rows]
    elements = find_elements(parts[: len(places)])
    for first, last in elements:
        within = np.flatnonzero((positions[first] <= aligned) & (aligned < positions[last]))
        if len(within):
            places[first] = begins[bisect_right(begins, within[0]) - 1]
            places[last] = begins[bisect_left(begins, within[-1] + 1)]
    places += [len(y)] * (len(parts) - len(places))
    starts, ends = ({parts[pair[side]] for pair in elements} for side in (0, 1))
    text, begin, previous = "", 0, None
    for place, part in [*in_order([*zip(places, parts, strict=True)]), (len(y), None)]:
        touches = previous in starts
        if between := target.decode(y[begin:place]):
            if previous and not touches and not CLOSING.match(between):
                text += "" if sticks(previous.neighbours[1], between[0]) else " "
            text, touches = text + between, False
        if part:
            if text and not touches and part not in ends:
                text += "" if sticks(part.neighbours[0], text[-1]) else " "
            text += part.text
        begin, previous = place, part
    return text


def find_place(position, part, x, y, aligned, begins, vocabs) -> int:
    """Return the position in a translation where a part belongs.

    A part at the end or at the beginning of a source is there in the translation, too. Other parts
    come after the translation of the nearest word before them, or, if they touch only the word
    after them, before the translation of that word.

    `position` is that of the token in `x` that follows the part, `aligned`, (T_y,), that to which
    each token of `y` attends most, and `begins` has the positions in `y` where words begin.
    """
    source, target = vocabs
    before, after = aligned[aligned < position], aligned[aligned >= position]
    if not any(is_word(source, i) for i in x[position:-1]):
        ends_with_mark = len(y) and position < len(x) - 1 and not is_word(target, y[-1])
        return len(y) - bool(ends_with_mark)
    if not len(before) or not any(is_word(source, i) for i in x[:position]):
        return 0
    touches = [bool(SPACED_LETTER.match(own)) for own in part.neighbours]
    if touches == [False, True] and len(after):
        return begins[bisect_right(begins, np.flatnonzero(aligned == after.min())[0]) - 1]
    return begins[bisect_left(begins, np.flatnonzero(aligned == before.max())[-1] + 1)]


def is_word(vocab, i) -> bool:
    """Whether the token with id `i` has letters or digits."""
    return bool(WORD.search(vocab.display(i)))


def sticks(source_char, char) -> bool:
    """Whether no space is between a part and the character next to it in a translation.

    There is none in scripts without spaces between words, and none where the part touches a
    character of the same kind in the source, a letter or another one.
    """
    if UNSPACED_LETTER.match(char):
        return True
    same_kind = bool(SPACED_LETTER.match(source_char)) == bool(SPACED_LETTER.match(char))
    return bool(source_char.strip()) and same_kind


def find_elements(parts) -> list[tuple[int, int]]:
    """Find the elements of HTML among parts: the indices of their start and end tags."""
    tags = {part.text: row for row, part in enumerate(parts) if HTML_TAG.fullmatch(part.text)}
    pairs = ((row, tags.get(text.replace("\ue000", "\ue000/"))) for text, row in tags.items())
    return [pair for pair in pairs if pair[1] is not None]


def in_order(found) -> list:
    """Sort pairs of a place and a part. Directives, and tags that would cross, keep their order."""
    found = in_source_order(found, lambda text: "%" in text and "$" not in text)  # as %s
    moved = sorted(found, key=lambda own: (own[0], not own[1].text.startswith("\ue000/")))
    if unpaired_tags(moved) != unpaired_tags(found):
        found = in_source_order(found, lambda text: text.startswith("\ue000"))
        moved = sorted(found, key=lambda own: own[0])
    return moved


def in_source_order(found, keeps_order) -> list:
    """Exchange the places of some parts, so that these are in the order of the source."""
    places = iter(sorted(place for place, part in found if keeps_order(part.text)))
    return [(next(places) if keeps_order(part.text) else place, part) for place, part in found]


def unpaired_tags(found) -> list:
    """Return the tags without a partner in this order of parts."""
    unpaired = []
    for slash, name in HTML_TAG.findall("".join(part.text for _, part in found)):
        if slash and unpaired[-1:] == [("", name)]:
            unpaired.pop()
        else:
            unpaired.append((slash, name))
    return unpaired


def lost_numbers(source, translation, language) -> set[str]:
    """Return the numbers of two digits and more that a translation neither has nor spells out.

    >>> lost_numbers("am 23.5. 1.000 von 17 und 18 Euro, 3 Hunde", "1,000 (5/23), seventeen", "en")
    {'18'}
    """
    found = set()
    for match in NUMBER.finditer(translation):
        found |= {plain_digits(match[0]), *map(plain_digits, DIGITS.findall(match[0]))}
    lost = set()
    for match in WHOLE_NUMBER.finditer(source):
        groups, digits = map(plain_digits, DIGITS.findall(match[0])), plain_digits(match[0])
        if len(match[0]) == 1 or not digits or digits in found or found.issuperset(groups):
            continue
        if not is_spelled(digits, translation, language):
            lost.add(match[0])
    return lost


def plain_digits(number) -> str:
    """Return the digits of a number in ASCII, without zeros before them."""
    digits = (str(unicodedata.digit(character, "")) for character in number)
    return "".join(digits).lstrip("0")


def is_spelled(digits, text, language) -> bool:
    """Whether a text has a number in words, as far as num2words knows the language."""
    is_short = len(digits) < 10 and len(digits.rstrip("0")) < 7  # it may hang at others
    for kind in ("cardinal", "ordinal") if is_short else ():
        try:
            words = num2words.num2words(int(digits), lang=language, to=kind)
        except Exception:  # it lacks the language, or fails
            break
        pattern = r"[\W_]*".join(regex.findall(r"\w+", words))
        if regex.search(rf"\b{pattern}\b", text, regex.IGNORECASE):
            return True
    return False
