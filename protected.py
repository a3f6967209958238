"""Keep parts of sentences as they are: addresses, placeholders, tags, emoji, unknown characters.

If a model was trained with `--augment stand_ins`, `<UNK>` replaces each of these parts before a
sentence is translated. The translation then has `<UNK>` where the part belongs; if there are
several, attention decides which is which. With other models the parts are left out. A part without
`<UNK>` in the translation is inserted next to the translation of the word next to it. So each part
is in each translation once.

Numbers are translated like words. Only if one is missing in a translation, the sentence is
translated again, and its numbers are such parts.
"""

import unicodedata
from typing import NamedTuple

import numpy as np
import regex

from ids import UNK, RaggedIds
from inference import Translation
from monitor.attention_maps import alignments
from spans import NUMBER, SPAN, SPAN_OR_NUMBER, STAND_IN, UNSPACED
from text import normalize

# Where words have no spaces between them, an unknown character is a part of its own.
SPACED = regex.compile(rf"[^\s{UNSPACED}]")
SPACED_LETTER = regex.compile(rf"[[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}]]", regex.V1)
# A part that leaves no space when it is taken out.
LOOSE_STAND_IN = regex.compile(
    rf"(?:\s*+{STAND_IN})++(?=[\s\p{{Pe}}\p{{Pf}}.,:;!?]|$)|^{STAND_IN}\s++"
)
UNKNOWN_PARTS = regex.compile(
    rf"{NUMBER.pattern}|[[\p{{L}}\p{{M}}\p{{N}}]--[{UNSPACED}]]++|\X", regex.V1
)


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
        if merged and start <= merged[-1][1]:  # the tokenizer would make one <UNK> of both
            merged[-1][1] = max(end, merged[-1][1])
        else:
            merged.append([start, end])
    return [Part(line[start:end], start, end) for start, end in merged]


def replace_parts(line, parts, new) -> str:
    """Replace the parts of a line by other text.

    >>> replace_parts("Hallo {name}!", find_parts("Hallo {name}!"), "X")
    'Hallo X!'
    """
    edges = [0, *(edge for part in parts for edge in (part.start, part.end)), len(line)]
    return new.join(line[a:b] for a, b in zip(edges[::2], edges[1::2], strict=True))


def touched(line, part, pattern) -> tuple[bool, bool]:
    """Whether a part touches, before it and after it, a character of a pattern.

    >>> line = "<b>ein</b> Hund"
    >>> [touched(line, part, SPACED_LETTER) for part in find_parts(line)]
    [(False, True), (True, False)]
    """
    before, after = line[part.start - 1 : part.start], line[part.end : part.end + 1]
    return bool(pattern.match(before)), bool(pattern.match(after))


class ProtectingTranslator:
    """Translate lines with a `Translator`, and keep parts of them as they are.

    Args:
      translator: Translator, whose vocabularies are subwords.
    """

    def __init__(self, translator):
        self.translator, self.loaded = translator, translator.loaded
        self.vocab = self.loaded.vocabs[0]
        self.copies = "stand_ins" in self.loaded.hp.form_shares  # whether the model copies <UNK>

    def __call__(self, lines, prefixes=None) -> list[Translation]:
        """Translate lines; the arguments are those of `Translator`.

        A line with a prefix is translated as it is.
        """
        prefixes = prefixes or [""] * len(lines)
        parts = [
            [] if prefix else find_parts(line, self.vocab)
            for line, prefix in zip(lines, prefixes, strict=True)
        ]
        translations = self.translate(lines, parts, prefixes)
        again = [
            row
            for row, own in enumerate(translations)
            if not prefixes[row] and len(own.ids) and not has_numbers(own.line, own.text)
        ]
        if again:
            some_lines = [lines[row] for row in again]
            parts = [find_parts(line, self.vocab, SPAN_OR_NUMBER) for line in some_lines]
            found = self.translate(some_lines, parts, [""] * len(again))
            for row, translation in zip(again, found, strict=True):
                translations[row] = translation
        return translations

    def translate(self, lines, all_parts, prefixes) -> list[Translation]:
        """Translate lines, and put their parts into the translations.

        Args:
          all_parts: the list of `Part` of each line.
        """
        texts = [
            self.without_parts(line, parts) for line, parts in zip(lines, all_parts, strict=True)
        ]
        found = self.translator(texts, prefixes if any(prefixes) else None)
        translations = []
        for line, parts, own in zip(lines, all_parts, found, strict=True):
            if parts and not len(own.ids):  # nothing else is in the line
                kept = own.hypotheses[0]._replace(text=normalize(line).strip())
                own = own._replace(hypotheses=[kept])
            translations.append(own._replace(line=line, hypotheses=[*own.hypotheses]))
        places = [
            (row, i)
            for row, own in enumerate(translations)
            for i, _ in enumerate(own.hypotheses)
            if all_parts[row] and len(own.ids)
        ]
        X = RaggedIds.from_lists([translations[row].ids for row, _ in places])
        Y = [translations[row].hypotheses[i].ids for row, i in places]
        for (row, i), x, y, weights in zip(
            places, X, Y, alignments(self.loaded, X, Y), strict=True
        ):
            hypotheses = translations[row].hypotheses
            text = self.put_in(lines[row], all_parts[row], x, y, weights)
            hypotheses[i] = hypotheses[i]._replace(text=text)
        return translations

    def without_parts(self, line, parts) -> str:
        """Return a line as the model is to read it."""
        text = replace_parts(line, parts, STAND_IN)
        if not self.copies:
            text = LOOSE_STAND_IN.sub("", text).replace(STAND_IN, "")
        if parts and not regex.search(r"[\p{L}\p{N}]", text.replace(STAND_IN, "")):
            return ""
        return text

    def put_in(self, line, parts, x, y, weights) -> str:
        """Return the text of a translation with the parts of its source.

        Args:
          line, parts: the source, and its parts.
          x: the ids of what the model has read, `</S>` included.
          y: the ids of the translation, without `</S>`.
          weights: (T_y, T_x), what each token of the translation attends to.
        """
        vocabs = self.loaded.vocabs
        glued = [touched(line, part, SPACED_LETTER) for part in parts]
        if self.copies:
            positions = np.flatnonzero(x == UNK)
        else:
            befores = [replace_parts(line[: p.start], parts[:k], "") for k, p in enumerate(parts)]
            encoded = self.vocab.encode(self.vocab.prepare(befores))
            positions = np.array([len(ids) - 1 for ids in encoded])
        parts, glued = parts[: len(positions)], glued[: len(positions)]  # the rest was truncated
        ids, order = insert_unknown(positions, glued, x, y, weights, vocabs)
        pieces = vocabs[1].decode_stand_ins(ids).split(STAND_IN)
        text = pieces[0]
        for k, piece in zip(order, pieces[1:], strict=True):
            before, after = touched(line, parts[k], SPACED)
            text = (text.rstrip() if before else text) + parts[k].text
            text += piece.lstrip() if after else piece
        return text

    def notes(self) -> list[str]:
        """Describe what the translations of all lines so far may lack."""
        self.translator.with_unknown = 0  # unknown characters are kept
        return self.translator.notes()


def insert_unknown(positions, glued, x, y, weights, vocabs):
    """Make the ids of a translation that has `<UNK>` for each part once.

    Args:
      positions: of the parts in `x`, or of what follows them if `x` is without them.
      glued: for each part which sides of it touch a letter: (before it, after it).
      x: the ids of the source, `</S>` included.
      y: the ids of the translation, without `</S>`.
      weights: (T_y, T_x), what each token of the translation attends to.
      vocabs: of source and target.

    Returns:
      (list of int, list of int): the ids; and for each `<UNK>` in them the index of its part.
    """
    targets = [j for j, token in enumerate(y[: len(weights)]) if token == UNK]
    in_source = [k for k, position in enumerate(positions) if x[position] == UNK]
    pairs = assign(weights[np.ix_(targets, positions[in_source])]) if targets else {}
    part_of = {targets[j]: in_source[k] for j, k in pairs.items()}
    missing = {}  # parts to insert before each position of the translation
    for k in sorted({*range(len(positions))} - {*part_of.values()}):
        place = find_place(positions[k], glued[k], x, y, weights, vocabs)
        missing.setdefault(place, []).append(k)
    ids, order = [], []
    for j, token in enumerate([*y, None]):
        for k in missing.get(j, []):
            ids += [vocabs[1].space_id, UNK] if ids and vocabs[1].space_id else [UNK]
            order.append(k)
        if token is not None and (token != UNK or j in part_of):
            ids.append(token)
            order += [part_of[j]] if j in part_of else []
    return ids, order


def assign(weights) -> dict[int, int]:
    """Assign columns to rows, each to one at most, the largest weight first.

    >>> assign(np.array([[0.2, 0.7], [0.1, 0.8]]))
    {1: 1, 0: 0}
    """
    assigned = {}
    for flat in np.argsort(-weights, axis=None, kind="stable").tolist():
        row, column = divmod(flat, weights.shape[1])
        if row not in assigned and column not in assigned.values():
            assigned[row] = column
    return assigned


def find_place(position, glued, x, y, weights, vocabs) -> int:
    """Return the position in a translation where a part belongs that it lacks.

    At the end or at the beginning of a source it is so in the translation, too. Else it comes
    after the translation of the nearest word before it, or, if it touches only the word after it,
    before the translation of that one. The arguments are those of `insert_unknown`.
    """
    source, target = vocabs
    following = position + (x[position] == UNK)
    aligned = weights[: len(y)].argmax(axis=1)  # (T_y,)
    before, after = aligned[aligned < position], aligned[aligned >= following]
    if not any(is_word(source, i) for i in x[following:-1]):
        ends_with_mark = len(y) and following < len(x) - 1 and not is_word(target, y[-1])
        return len(y) - bool(ends_with_mark)
    if not any(is_word(source, i) for i in x[:position]):
        return 0
    if glued == (False, True) and len(after):
        place = int(np.flatnonzero(aligned == after.min())[0])
        while place > 0 and is_word(target, y[place]) and not target.starts_word(y[place]):
            place -= 1
        return place
    if not len(before):
        return 0
    place = int(np.flatnonzero(aligned == before.max())[-1]) + 1
    while place < len(y) and is_word(target, y[place]) and not target.starts_word(y[place]):
        place += 1
    return place


def is_word(vocab, i) -> bool:
    """Whether the token with id `i` has letters or digits."""
    return i != UNK and bool(regex.search(r"[\p{L}\p{M}\p{N}]", vocab.display(i)))


def has_numbers(source, translation) -> bool:
    """Whether a translation has the digits of all numbers of its source, perhaps separated.

    >>> has_numbers("am 3.5. 1.000 Euro", "1,000 euros on 5/3"), has_numbers("2 Hunde", "dogs")
    (True, False)
    """
    wanted, found = (
        [regex.findall(r"\p{Nd}+", match[0]) for match in NUMBER.finditer(text)]
        for text in (source, translation)
    )
    for groups in (plain_digits(number) for number in wanted):
        numbers = [plain_digits(number) for number in found]
        joined = ["".join(number) for number in numbers]
        if "".join(groups) in joined:
            del found[joined.index("".join(groups))]
            continue
        parts = [group for number in numbers for group in number]
        for group in groups:
            if group not in parts:
                return False
            parts.remove(group)
        found = [parts]
    return True


def plain_digits(groups) -> list[str]:
    """Return groups of digits of any script as ASCII, without zeros before them."""
    return ["".join(str(unicodedata.digit(d)) for d in group).lstrip("0") for group in groups]
