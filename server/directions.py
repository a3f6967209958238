"""From which languages into which ones the models of a server translate."""

from pathlib import Path
from typing import NamedTuple

import regex
from babel import Locale
from babel.core import get_global

from server.inside import InsideView
from support.errors import InputError
from support.flags import split_paths
from text.lines import language_code, read_lines
from translation.paragraphs import TARGET_SYMBOL
from translation.translator import Translator

NAMES = {code.lower(): name for code, name in Locale("en").languages.items()}
# Writing systems that are no script of `regex`.
LETTERS = dict(Jpan=r"[\p{Han}\p{Hiragana}\p{Katakana}]", Kore=r"\p{Hangul}")
LETTERS |= dict.fromkeys(("Hans", "Hant"), r"\p{Han}")


class Direction(NamedTuple):
    """A language, one into which it is translated, and the model that does it."""

    source: str
    target: str
    symbol: str  # which each sentence begins with if the model has several targets, as `>>de<<`
    translator: Translator
    inside: InsideView
    translate_batch: object  # the `Batcher` of the model

    def read(self, text, split=None):
        """Return a text as a `Paragraph` whose sentences have the symbol."""
        paragraph = (split or self.translator.split)(text)
        return paragraph._replace(symbol=paragraph.symbol or self.symbol)

    def describe(self) -> dict:
        """Return the languages, for the page, and the examples in the model's folder."""
        path = Path(split_paths(self.translator.loaded.hp.logdir)[0], "examples.txt")
        examples = [*read_lines(path)] if path.exists() and not self.symbol else []
        source, target = (dict(code=c, name=language_name(c)) for c in (self.source, self.target))
        return dict(source=source, target=target, examples=examples)


def directions_of(translator, *more) -> list[Direction]:
    """Return the directions of a model; `more` are the last fields of each.

    A model whose vocabulary has the symbols of languages has these targets. If its source language
    is one of them, all of them are sources, too.
    """
    hp, vocab = translator.loaded.hp, translator.loaded.vocabs[0]
    symbols = filter(TARGET_SYMBOL.fullmatch, map(vocab.id_to_token, range(len(vocab))))
    targets = {own[2:-2]: own for own in symbols if language_name(own[2:-2]) != own[2:-2]}
    targets = targets or {hp.target_lang: ""}
    sources = dict.fromkeys([hp.source_lang, *(targets if hp.source_lang in targets else ())])
    return [
        Direction(source, target, targets[target], translator, *more)
        for source in sources
        for target in sorted(targets, key=lambda code: code != hp.target_lang)
        if source != target or len(targets) == 1
    ]


def choose_direction(directions, source, target) -> Direction:
    """Return the first direction between two languages; an empty one is any.

    If there is none, the country or the script of a language does not matter, as in de-DE.
    """
    for form in (full_code, language_code):
        for own in directions:
            pairs = (source, own.source), (target, own.target)
            if all(form(given) in ("", form(code)) for given, code in pairs):
                return own
    known = ", ".join(f"{own.source} to {own.target}" for own in directions)
    raise InputError(f"No model translates from {source!r} to {target!r}. Choose one of: {known}.")


def detect(text, directions) -> dict:
    """Return the source language by the script of a text, in the form of LibreTranslate.

    If several have it, it is the first of them, without confidence.
    """
    counts = {}
    for code in dict.fromkeys(code for own in directions for code in (own.source, own.target)):
        script = get_global("likely_subtags").get(language_code(code), "_Latn").split("_")[1]
        letters = regex.findall(LETTERS.get(script, rf"\p{{{script}}}"), text)
        # A text of Han characters alone is rather Chinese than Japanese.
        counts[code] = len(letters) - 0.5 * (script == "Jpan")
    best = max((own.source for own in directions), key=counts.get)
    return dict(language=best, confidence=100 * ([*counts.values()].count(counts[best]) == 1))


def full_code(code) -> str:
    """Return the code of a language in small letters, and as Babel writes it: pt_br."""
    return code.lower().replace("-", "_")


def language_name(code) -> str:
    """Return the English name of a language, or its code if it has none.

    >>> language_name("de"), language_name("pt-BR"), language_name("x1")
    ('German', 'Brazilian Portuguese', 'x1')
    """
    return NAMES.get(full_code(code), code)
