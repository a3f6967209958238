"""Take parts out of a sentence that stay as they are, and put them into its translation.

They are addresses, placeholders, tags, emoji, unknown characters, and sometimes numbers.
"""

import unicodedata
from typing import NamedTuple

import numpy as np
import regex

from translation.spans import NUMBER, SPACED_LETTER, SPAN, UNSPACED

# The part that stays if one of its characters is unknown: the number or the word around it. Where
# words have no spaces between them, the character alone.
UNKNOWN_PARTS = regex.compile(rf"{NUMBER.pattern}|{SPACED_LETTER.pattern}++|\X", regex.V1)
UNSPACED_LETTER = regex.compile(rf"[{UNSPACED}]")
WORD_CHARACTER = regex.compile(r"[\p{L}\p{M}\p{N}]")
MAX_PLACED_PARTS = 100  # parts of a line; a sentence has fewer
CLOSING = regex.compile(r"[\s\p{Pe}\p{Pf}.,:;!?]|$")

# Parts --------------------------------------------------------------------------


class Part(NamedTuple):
    """A part of a sentence that must stay as it is."""

    text: str
    start: int  # position of its first character
    end: int  # position after its last character


def find_parts(line, vocab=None, pattern=SPAN) -> list[Part]:
    """Find the parts of a sentence that must stay as they are.

    >>> [part.text for part in find_parts("Hallo {name}, siehe www.example.de.")]
    ['{name}', 'www.example.de']

    Args:
      vocab: SubwordVocab, which may lack characters; None for one that has all.
      pattern: what must stay.
    """
    spans = [match.span() for match in pattern.finditer(line)]
    if vocab and vocab.lacks_part_of(line):
        spans += [
            match.span() for match in UNKNOWN_PARTS.finditer(line) if vocab.lacks_part_of(match[0])
        ]
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return [Part(line[start:end], start, end) for start, end in merged]


class Taken(NamedTuple):
    """A sentence, and what is left of it without its parts."""

    line: str
    text: str  # for the model; "" if no word is left
    parts: list[Part] = []
    befores: list[str] = []  # what is left before each of the first `MAX_PLACED_PARTS` parts


def take_out(line, vocab=None, pattern=SPAN) -> Taken:
    """Take the parts out of a sentence that `find_parts` finds.

    >>> take_out("Hallo {name}, siehe www.example.de!")[1:4:2]
    ('Hallo, siehe!', ['Hallo', 'Hallo, siehe'])
    """
    parts = find_parts(line, vocab, pattern)
    if not parts:
        return Taken(line, line)
    pieces, befores = [line[: parts[0].start]], []
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        gap = line[part.end : following.start if following else None]
        if CLOSING.match(gap):
            pieces[-1] = pieces[-1].rstrip()
        if len(befores) < MAX_PLACED_PARTS:
            befores.append("".join(pieces).rstrip())
        if gap:
            pieces.append(gap if pieces[-1].strip() or len(pieces) > 1 else gap.lstrip())
    text = "".join(pieces)
    return Taken(line, text if WORD_CHARACTER.search(text) else "", parts, befores)


# Placing ------------------------------------------------------------------------


def put_in(taken, x, y, weights, vocabs) -> str:
    """Return the text of a translation with the parts that were taken out of its source.

    The first `MAX_PLACED_PARTS` parts are placed. The place of the others is the end.

    Args:
      taken: Taken.
      x: the ids that the model has read, `</S>` included.
      y: the ids of the translation, without `</S>`.
      weights: (T_y, T_x), what each token of the translation attends to.
      vocabs: of source and target.
    """
    (source, target), (line, _, parts, befores) = vocabs, taken
    positions = [len(ids) - 1 for ids in source.encode(source.prepare(befores))]
    found = [
        (find_place(min(position, len(x) - 1), line, part, x, y, weights, vocabs), part)
        for position, part in zip(positions, parts, strict=False)
    ]
    found += [(len(y), part) for part in parts[len(positions) :]]
    text, start, previous = "", 0, None
    for place, part in [*sorted(found, key=lambda pair: pair[0]), (len(y), None)]:
        if between := target.decode(y[start:place]):
            if previous:
                closes = CLOSING.match(between) or sticks(line[previous.end :][:1], between[0])
                text += "" if closes else " "
            text += between
        if part:
            before = line[part.start - 1 : part.start]
            text += "" if not text or sticks(before, text[-1]) else " "
            text += part.text
        start, previous = place, part
    return text


def find_place(position, line, part, x, y, weights, vocabs) -> int:
    """Return the position in a translation where a part belongs.

    A part at the end or at the beginning of a source is there in the translation, too. Other parts
    come after the translation of the nearest word before them, or, if they touch only the word
    after them, before the translation of that word.

    Args:
      position: of the token in `x` that follows the part. The other arguments are as in `put_in`.
    """
    source, target = vocabs
    aligned = weights[: len(y)].argmax(axis=1)  # (T_y,) positions in x
    before, after = aligned[aligned < position], aligned[aligned >= position]
    if not any(is_word(source, i) for i in x[position:-1]):
        ends_with_mark = len(y) and position < len(x) - 1 and not is_word(target, y[-1])
        return len(y) - bool(ends_with_mark)
    if not len(before) or not any(is_word(source, i) for i in x[:position]):
        return 0
    follows_word = SPACED_LETTER.match(line[part.start - 1 : part.start])
    if not follows_word and SPACED_LETTER.match(line[part.end : part.end + 1]) and len(after):
        place = int(np.flatnonzero(aligned == after.min())[0])
        while place > 0 and is_inside_word(target, y[place]):
            place -= 1
        return place
    place = int(np.flatnonzero(aligned == before.max())[-1]) + 1
    while place < len(y) and is_inside_word(target, y[place]):
        place += 1
    return place


def is_word(vocab, i) -> bool:
    """Whether the token with id `i` has letters or digits."""
    return bool(WORD_CHARACTER.search(vocab.display(i)))


def is_inside_word(vocab, i) -> bool:
    """Whether the token with id `i` continues the word of the token before it."""
    return is_word(vocab, i) and not vocab.starts_word(i)


def sticks(source_char, char) -> bool:
    """Whether no space is between a part and the character next to it in a translation.

    There is none in scripts without spaces between words, and none where the part touches a
    character of the same kind in the source, a letter or another one.

    Args:
      source_char: the character next to the part in the source; "" for none.
    """
    if UNSPACED_LETTER.match(char):
        return True
    same_kind = bool(SPACED_LETTER.match(source_char)) == bool(SPACED_LETTER.match(char))
    return bool(source_char.strip()) and same_kind


def has_numbers(source, translation) -> bool:
    """Whether a translation has the digits of all numbers of its source, perhaps separated.

    >>> has_numbers("am 3.5. 1.000 Euro", "1,000 euros on 5/3"), has_numbers("2 Hunde", "dogs")
    (True, False)
    """
    wanted, found = (
        [regex.findall(r"\p{Nd}+", match[0]) for match in NUMBER.finditer(text)]
        for text in (source, translation)
    )
    for groups in map(plain_digits, wanted):
        numbers = [*map(plain_digits, found)]
        joined = ["".join(number) for number in numbers]
        if "".join(groups) in joined:
            del found[joined.index("".join(groups))]
            continue
        rest = [group for number in numbers for group in number]
        for group in groups:
            if group not in rest:
                return False
            rest.remove(group)
        found = [[group] for group in rest]
    return True


def plain_digits(groups) -> list[str]:
    """Return groups of digits of any script as ASCII, without zeros before them."""
    return ["".join(str(unicodedata.digit(d)) for d in group).lstrip("0") for group in groups]
