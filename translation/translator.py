"""Translate text: split it into sentences, keep parts of them as they are, join the translations.

The model translates a sentence without the parts that stay as they are. Then each part is put into
the translation: attention finds the translation of the word next to the part, and the part is put
next to that. So each part is in each translation exactly once, and the other words of the
translation do not change.

Numbers are translated like words. Only if one is missing in a translation, the sentence is
translated again, and its numbers are such parts.
"""

import itertools
from typing import NamedTuple

import numpy as np

from data_load import encode_lines
from text.ids import RaggedIds
from text.lines import normalize
from translation.attention_maps import alignments
from translation.inference import Hypothesis, SearchDecoder
from translation.paragraphs import Paragraph, as_one_sentence
from translation.protected import Taken, has_numbers, put_in, take_out
from translation.spans import SPAN, SPAN_OR_NUMBER


class Translation(NamedTuple):
    """A sentence and its translations."""

    line: str
    ids: np.ndarray  # of the line, (T,) int32 with `</S>`; none if it has no tokens
    hypotheses: list[Hypothesis]  # best first, at least one
    truncated: bool  # whether the line has more tokens than the ids

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text

    @property
    def at_limit(self) -> bool:
        """Whether the best translation has as many tokens as it may have."""
        return self.hypotheses[0].at_limit


class TranslatedText(NamedTuple):
    """A text and its translations."""

    paragraph: Paragraph
    sentences: list[Translation]

    @property
    def text(self) -> str:
        """The best translation."""
        return self.best(1)[0]

    def best(self, count) -> list[str]:
        """Return the best translations, one to `count` of them.

        Of a sentence that has fewer than others, the last one is repeated.
        """
        found = max([1, *(len(own.hypotheses) for own in self.sentences)])
        return [
            self.paragraph.join([own.hypotheses[: i + 1][-1].text for own in self.sentences])
            for i in range(min(count, found))
        ]


class Translator:
    """Translates texts.

    Args:
      loaded: LoadedModel.
      nbest: translations per sentence, `hp.beam` at most.
      split: function from a text to a `Paragraph`.
      protect: whether to keep addresses, placeholders, numbers and the like as they are. A model
        of words has no subwords for them, and never does.
      max_tokens: tokens of a sentence that are read, `</S>` included; None for
        `hp.max_input_tokens`.
    """

    def __init__(self, loaded, nbest=1, split=as_one_sentence, protect=False, max_tokens=None):
        self.loaded, self.split = loaded, split
        self.decode = SearchDecoder(loaded, nbest)
        self.protects = protect and loaded.hp.tokenizer == "bpe"
        self.max_tokens = max_tokens or loaded.hp.max_input_tokens

    def __call__(self, texts, prefixes=()) -> list[TranslatedText]:
        """Translate texts, a list of str.

        Args:
          prefixes: the first words of each translation, or ""; none for no text. A sentence that
            has a prefix keeps no parts as they are.
        """
        return self.translate([*map(self.split, texts)], prefixes)

    def translate(self, paragraphs, prefixes=()) -> list[TranslatedText]:
        """Translate texts that are split, a list of `Paragraph`."""
        sentences, begun = [], []
        for paragraph, prefix in itertools.zip_longest(paragraphs, prefixes, fillvalue=""):
            sentences += paragraph.inputs
            begun += [prefix, *[""] * len(paragraph.inputs)][: len(paragraph.inputs)]
        translations = self.translate_around(SPAN, sentences, begun)
        lost = [
            row
            for row, (own, prefix) in enumerate(zip(translations, begun, strict=True))
            if self.protects and not prefix and len(own.ids) and not has_numbers(own.line, own.text)
        ]
        again = [sentences[row] for row in lost]
        found = self.translate_around(SPAN_OR_NUMBER, again, [""] * len(lost))
        for row, translation in zip(lost, found, strict=True):
            translations[row] = translation
        rest = iter(translations)
        return [
            TranslatedText(paragraph, [next(rest) for _ in paragraph.sentences])
            for paragraph in paragraphs
        ]

    def translate_around(self, pattern, sentences, prefixes) -> list[Translation]:
        """Translate sentences without their parts that match a pattern, and put these back."""
        taken = [
            take_out(sentence, self.loaded.vocabs[0], pattern)
            if self.protects and not prefix
            else Taken(sentence, sentence)
            for sentence, prefix in zip(sentences, prefixes, strict=True)
        ]
        translations = self.search([own.text for own in taken], prefixes)
        return self.put_back(taken, translations)

    def search(self, sentences, prefixes) -> list[Translation]:
        """Translate sentences as they are. An empty one has an empty translation."""
        X, rows, truncated = encode_lines(
            sentences, self.loaded.vocabs[0], self.loaded.hp, self.max_tokens
        )
        found = self.decode_from(X, [prefixes[row] for row in rows])
        truncated = {*truncated}
        no_ids, empty = np.zeros(0, np.int32), Hypothesis("", [], 0.0, at_limit=False)
        translations = [Translation(line, no_ids, [empty], truncated=False) for line in sentences]
        for row, ids, hypotheses in zip(rows, X, found, strict=True):
            translations[row] = Translation(sentences[row], ids, hypotheses, row in truncated)
        return translations

    def decode_from(self, X, prefixes):
        """Find the hypotheses of source ids, given the first words of each.

        These words are returned as they were given, also where the vocabulary lacks a character.
        """
        if not any(prefixes):
            return self.decode(X)
        vocab = self.loaded.vocabs[1]
        ids = [own[:-1] for own in vocab.encode(vocab.prepare(prefixes))]  # without </S>
        found = self.decode(X, RaggedIds.from_lists(ids))
        return [
            [own._replace(text=restore_prefix(own.text, prefix, decoded)) for own in hypotheses]
            for prefix, decoded, hypotheses in zip(
                prefixes, map(vocab.decode, ids), found, strict=True
            )
        ]

    def put_back(self, taken, translations) -> list[Translation]:
        """Put parts back into the translations of the sentences from which they were taken.

        Args:
          taken: list of `Taken`, one for each translation.
        """
        loaded, (source, target) = self.loaded, self.loaded.vocabs
        rows = [row for row, own in enumerate(taken) if own.parts]
        # Without words, a sentence stays as it is.
        texts = {row: [normalize(taken[row].line).strip()] for row in rows}
        texts |= {row: [] for row in rows if len(translations[row].ids)}
        pairs = [
            (row, own) for row in rows if not texts[row] for own in translations[row].hypotheses
        ]
        X = RaggedIds.from_lists([translations[row].ids for row, _ in pairs])
        Y = [own.ids for _, own in pairs]
        for (row, _), x, y, weights in zip(pairs, X, Y, alignments(loaded, X, Y), strict=True):
            texts[row].append(put_in(taken[row], x, y, weights, loaded.vocabs))

        lines = [taken[row].line for row in rows]
        X, nonempty, _ = encode_lines(lines, source, loaded.hp, self.max_tokens)
        ids_of = {rows[k]: ids for k, ids in zip(nonempty, X, strict=True)}
        for row in rows:
            own, ids = translations[row], target.encode(target.prepare(texts[row]))
            hypotheses = [
                hypothesis._replace(text=text, ids=with_eos[:-1])
                for hypothesis, text, with_eos in zip(own.hypotheses, texts[row], ids, strict=True)
            ]
            translations[row] = own._replace(
                line=taken[row].line, ids=ids_of.get(row, own.ids), hypotheses=hypotheses
            )
        return translations


def restore_prefix(text, prefix, decoded) -> str:
    """Return a translation with its first words as they were given, but normalized.

    Args:
      decoded: the first words as the vocabulary writes them.

    >>> restore_prefix("Mr. <UNK> runs .", "Mr. Ō", "Mr. <UNK>")
    'Mr. Ō runs .'
    """
    if not text.startswith(decoded):  # the longest possible translation ends within it
        return text
    return normalize(prefix).strip() + text[len(decoded) :]
