"""Other forms of a sentence: without its case, and without the mark at its end."""

import unicodedata

import regex

from text.lines import language_code

TURKISH = ("tr", "az", "tur", "aze", "crh")  # have a dotted and a dotless i
# The end of a sentence: marks, and quotes or brackets after them. Read from the right (?r).
FINAL_MARK = regex.compile(r"(?r)\s*[\p{STerm}…]+([\p{Pe}\p{Pf}\p{Pi}\"'\s]*)")


def fold(text, lang="") -> str:
    """Remove the case of a normalized text, character by character."""
    if language_code(lang) in TURKISH:
        text = text.replace("İ", "i").replace("I", "ı")
    return unicodedata.normalize("NFC", text.replace("İ", "i").casefold())


def without_final_mark(text) -> str:
    """Remove the punctuation that ends a sentence.

    >>> without_final_mark("Hallo!"), without_final_mark("„Wer?“")
    ('Hallo', '„Wer“')
    """
    found = FINAL_MARK.match(text)
    return text[: found.start()] + found[1] if found else text
