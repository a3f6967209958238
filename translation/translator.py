"""Translate text: split it into sentences, keep parts of them as they are, join the translations.

The model translates a sentence without the parts that stay as they are. Then each part is put into
the translation: attention finds the translation of the word next to the part, and the part is put
next to that. Numbers are translated like words. If one is lost, all are such parts, and the
sentence is translated again.
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
from translation.protected import add_tags, find_parts, lost_numbers, put_in, take_out


class Translation(NamedTuple):
    """A sentence and its translations."""

    line: str
    ids: np.ndarray  # of the line, (T,) int32 with `</S>`; none if it has no tokens
    hypotheses: list[Hypothesis]  # best first, at least one
    truncated: bool  # whether the line has more tokens than the ids


class TranslatedText(NamedTuple):
    """A text and its translations."""

    paragraph: Paragraph
    sentences: list[Translation]

    @property
    def text(self) -> str:
        """The best translation."""
        return self.best(1)[0]

    @property
    def truncated(self) -> bool:
        """Whether the model has not read all of the text."""
        return any(own.truncated for own in self.sentences)

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
      nbest: translations per sentence, `hp.beam` at most.
      split: function from a text to a `Paragraph`.
      protect: whether to keep parts of a sentence; a model of words has no subwords for them.
      max_tokens: tokens of a sentence that are read, if fewer than `hp.max_input_tokens`.
    """

    def __init__(self, loaded, nbest=1, split=as_one_sentence, protect=False, max_tokens=None):
        self.loaded, self.split = loaded, split
        self.decode = SearchDecoder(loaded, nbest)
        self.protects = protect and loaded.hp.tokenizer == "bpe"
        self.max_tokens = max_tokens or loaded.hp.max_input_tokens

    def __call__(self, texts, prefixes=()) -> list[TranslatedText]:
        """Translate texts, lists of str; `prefixes` are the first words of each translation."""
        pairs = itertools.zip_longest(texts, prefixes, fillvalue="")
        return self.translate([self.split(text)._replace(prefix=own) for text, own in pairs])

    def translate(self, paragraphs) -> list[TranslatedText]:
        """Translate texts that are split. A sentence with a prefix keeps no parts as they are."""
        sentences, prefixes = [], []
        for paragraph in paragraphs:
            own = paragraph.inputs
            sentences += own
            prefixes += [paragraph.prefix, *[""] * len(own)][: len(own)]
        translations, again = self.translate_around(sentences, prefixes), []
        for row, (own, prefix) in enumerate(zip(translations, prefixes, strict=True)):
            if self.protects and not prefix:
                text, language = own.hypotheses[0].text, self.loaded.hp.target_lang
                again += [row] if lost_numbers(own.line, text, language) else []
        lines = [sentences[row] for row in again]
        found = self.translate_around(lines, [""] * len(again), keep_numbers=True)
        for row, translation in zip(again, found, strict=True):
            translations[row] = translation
        rest = iter(translations)
        return [TranslatedText(own, [next(rest) for _ in own.sentences]) for own in paragraphs]

    def translate_around(self, sentences, prefixes, keep_numbers=False) -> list[Translation]:
        """Translate sentences without their parts, and put these back."""
        vocab, taken = self.loaded.vocabs[0], []
        for sentence, prefix in zip(sentences, prefixes, strict=True):
            parts = add_tags(sentence)
            if self.protects:
                parts = find_parts(sentence, vocab, keep_numbers)
            taken.append(take_out(sentence, [] if prefix else parts))
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
        """Find the hypotheses of source ids, which begin with the prefixes as they were given."""
        if not any(prefixes):
            return self.decode(X)
        vocab = self.loaded.vocabs[1]
        ids = [own[:-1] for own in vocab.encode(vocab.prepare(prefixes))]  # without </S>
        found = self.decode(X, RaggedIds.from_lists(ids))
        for row, (prefix, read) in enumerate(zip(prefixes, map(vocab.decode, ids), strict=True)):
            # The vocabulary may lack a character of the prefix.
            begun = normalize(prefix).strip().replace("\n", " ")
            found[row] = [own._replace(text=begun + own.text[len(read) :]) for own in found[row]]
        return found

    def put_back(self, taken, translations) -> list[Translation]:
        """Put parts back into the translations of the sentences from which they were `Taken`."""
        loaded, (source, target) = self.loaded, self.loaded.vocabs
        pairs = [
            (translation.ids, best.ids)
            for own, translation in zip(taken, translations, strict=True)
            if own.parts and len(translation.ids)
            for best in translation.hypotheses
        ]
        X, Y = (RaggedIds.from_lists([pair[side] for pair in pairs]) for side in (0, 1))
        weights = iter(alignments(loaded, X, Y))
        for row, (own, translation) in enumerate(zip(taken, translations, strict=True)):
            if not own.parts:
                continue
            x, texts = translation.ids, [normalize(own.line).strip()]
            if len(x):  # without words, a sentence stays as it is
                texts = [
                    put_in(own, x, best.ids, next(weights), loaded.vocabs)
                    for best in translation.hypotheses
                ]
            ids = target.encode(target.prepare(texts))
            rows = zip(translation.hypotheses, texts, ids, strict=True)
            hypotheses = [best._replace(text=text, ids=y[:-1]) for best, text, y in rows]
            X, _, _ = encode_lines([own.line], source, loaded.hp, self.max_tokens)
            x = X[0] if len(X) else x
            translations[row] = Translation(own.line, x, hypotheses, translation.truncated)
        return translations
