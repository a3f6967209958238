"""Forms in which people write a sentence: capitals, title case, lower case, with typing errors.

`train.py --augment` trains on them, and `eval.py --robustness` translates them.
"""

import unicodedata

import regex

from spans import change_between
from text import language_code

FIRST_LETTER = regex.compile(r"(?<![\p{L}\p{M}'’])\p{Ll}")
DUTCH_IJ = regex.compile(r"(?<![\p{L}\p{M}'’])ij")
WORD = regex.compile(r"\p{L}[\p{L}\p{M}'’]*+")
GREEK = regex.compile(r"[\p{Greek}\p{M}]++")
# The end of a sentence: marks, and quotes or brackets after them.
FINAL_MARK = regex.compile(r"(?<!\s)\s*+[\p{STerm}…]++(?=[\p{Pe}\p{Pf}\p{Pi}\"'\s]*+$)")
FULL_STOPS = {
    r"[\p{Han}\p{Hiragana}\p{Katakana}]": "。",
    r"\p{Devanagari}": "।",
    r"[\p{Thai}\p{Lao}]": "",  # the end of a sentence has no mark
    r"\p{Ethiopic}": "።",
    r"\p{Armenian}": "։",
    r"\p{Myanmar}": "။",
    r"\p{Khmer}": "។",
}
TURKISH = ("tr", "az", "tur", "aze", "crh")  # have a dotted and a dotless i
TYPO_SHARE = 0.1  # of the words of at least MIN_TYPO_LETTERS that get a typing error
MIN_TYPO_LETTERS = 4
# A letter of these scripts is not a key: their typing errors are of another kind.
COMPOSED = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")

# Case --------------------------------------------------------------------------


def upper(text, lang="") -> str:
    """Write a text in capitals. Addresses and placeholders stay as they are.

    >>> upper("die Straße {name}"), upper("Αθήνα", "el"), upper("iki", "tr"), upper("你好 ok")
    ('DIE STRASSE {name}', 'ΑΘΗΝΑ', 'İKİ', '你好 OK')
    """
    return change_between(text, lambda part: capitals(part, lang))


def capitals(text, lang) -> str:
    """Write a text without addresses or placeholders in capitals."""
    if is_turkish(lang):
        text = text.replace("i", "İ")
    text = text.upper()
    if language_code(lang) == "el":  # capitals have no accent
        text = GREEK.sub(lambda match: drop_accents(match[0]), text)
    return text


def drop_accents(text) -> str:
    """Remove the acute accents of a text."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", text).replace("\u0301", ""))


def lower(text, lang="") -> str:
    """Write a text in lower case. Addresses and placeholders stay as they are.

    >>> lower("Der HUND"), lower("ΟΔΟΣ"), lower("IŞIK İKİ", "tr")
    ('der hund', 'οδος', 'ışık iki')
    """

    def change(part):
        if is_turkish(lang):
            part = part.replace("İ", "i").replace("I", "ı")
        return part.lower().replace("i\u0307", "i")

    return change_between(text, change)


def fold(text, lang="") -> str:
    """Remove the case of a text, character by character.

    >>> fold("STRASSE") == fold("Straße"), fold("ΟΔΟΣ") == fold("οδός".replace("ό", "ο"))
    (True, True)
    """
    if text == text.casefold():
        return text
    if is_turkish(lang):
        text = text.replace("İ", "i").replace("I", "ı")
    folded = "".join(char.casefold() for char in text.replace("İ", "i"))
    return unicodedata.normalize("NFC", folded)


def title(text, lang="") -> str:
    """Begin each word of a text with a capital. Addresses and placeholders stay as they are.

    >>> title("ein Mann's hund"), title("ijs", "nl"), title("iki", "tr")
    ("Ein Mann's Hund", 'IJs', 'İki')
    """

    turkish = is_turkish(lang)

    def change(part):
        if language_code(lang) == "nl":
            part = DUTCH_IJ.sub("IJ", part)
        return FIRST_LETTER.sub(lambda m: "İ" if turkish and m[0] == "i" else m[0].title(), part)

    return change_between(text, change)


def is_turkish(lang) -> bool:
    """Whether a language has a dotted and a dotless i."""
    return language_code(lang) in TURKISH


# Punctuation -------------------------------------------------------------------


def without_final_mark(text) -> str:
    """Remove the punctuation that ends a sentence.

    >>> without_final_mark("Hallo!"), without_final_mark("„Wer?“"), without_final_mark("你好。")
    ('Hallo', '„Wer“', '你好')
    """
    return FINAL_MARK.sub("", text, 1)


def with_final_mark(text) -> str:
    """Add the full stop of the script, unless the sentence ends with a mark.

    >>> with_final_mark("Ein Hund"), with_final_mark("你好"), with_final_mark("Wer?")
    ('Ein Hund.', '你好。', 'Wer?')
    """
    if FINAL_MARK.search(text) or not text.strip():
        return text
    letters = regex.findall(r"\p{L}", text)
    last = letters[-1] if letters else ""
    marks = (mark for script, mark in FULL_STOPS.items() if regex.match(script, last))
    return text.rstrip() + next(marks, ".")


# Typing errors -----------------------------------------------------------------


def with_typos(text, rng) -> str:
    """Add typing errors: letters swapped, left out, doubled, or replaced by another one.

    A share of the long words gets one each, never in the first letter, by `rng`, a random.Random.

    >>> import random
    >>> with_typos("Zwei kleine Hunde rennen über eine grüne Wiese {name}", random.Random(4))
    'Zwei kleine Hunde rennen übeer eine grüne Wiese {name}'
    """
    letters = sorted({*regex.findall(r"\p{Ll}", text)})

    def change(match):
        word = regex.findall(r"\X", match[0])
        is_long = len(word) >= MIN_TYPO_LETTERS and not COMPOSED.search(match[0])
        if not is_long or rng.random() >= TYPO_SHARE:
            return match[0]
        i = rng.randrange(1, len(word) - 1)
        kind = rng.choice(("swap", "omit", "double", "replace"))
        if kind == "swap":
            word[i : i + 2] = word[i + 1], word[i]
        elif kind == "omit":
            del word[i]
        elif kind == "double":
            word.insert(i, word[i])
        else:
            word[i] = rng.choice(letters or word)
        return "".join(word)

    return change_between(text, lambda part: WORD.sub(change, part))


# The table of forms -----------------------------------------------------------------


class Form:
    """A form of sentences. A subclass is a row in `choices.FORMS`."""

    def change(self, text, lang, rng) -> str:
        """Return a sentence in this form.

        Args:
          lang: code of its language.
          rng: random.Random.
        """
        raise NotImplementedError

    def change_pair(self, pair, langs, rng) -> list[str]:
        """Return a training pair in this form; the arguments are as in `change`, for both sides."""
        return [self.change(side, lang, rng) for side, lang in zip(pair, langs, strict=True)]


class Upper(Form):
    """In capitals."""

    def change(self, text, lang, rng):
        """Return a sentence in capitals."""
        return upper(text, lang)


class Title(Form):
    """Each word begins with a capital."""

    def change(self, text, lang, rng):
        """Return a sentence in title case."""
        return title(text, lang)


class Lower(Form):
    """In lower case."""

    def change(self, text, lang, rng):
        """Return a sentence in lower case."""
        return lower(text, lang)


class Punctuation(Form):
    """Without final punctuation."""

    def change(self, text, lang, rng):
        """Return a sentence without the punctuation that ends it."""
        return without_final_mark(text)

    def change_pair(self, pair, langs, rng):
        """Remove the final punctuation of both sides, or add it where both lack it."""
        has_mark = [bool(FINAL_MARK.search(side)) for side in pair]
        if any(has_mark) != all(has_mark):
            return pair
        return [*map(without_final_mark if all(has_mark) else with_final_mark, pair)]


class MissingMark(Punctuation):
    """Without final punctuation, which the translation has nevertheless."""

    def change_pair(self, pair, langs, rng):
        """Change the source only: the translation is a complete sentence, as most targets are."""
        return [without_final_mark(pair[0]), pair[1]]


class Typos(Form):
    """With typing errors."""

    def change(self, text, lang, rng):
        """Return a sentence with typing errors."""
        return with_typos(text, rng)

    def change_pair(self, pair, langs, rng):
        """Change the source only: a model should translate errors, not learn to make them."""
        return [with_typos(pair[0], rng), pair[1]]
