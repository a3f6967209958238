"""Translate the sentences of concurrent requests in batches, and inspect the translations."""

import asyncio
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ids import RaggedIds
from inference import SearchDecoder, decoding_batches, token_log_probs
from monitor.attention_maps import append_eos, cross_weights
from protected import make_translator

MAX_TOKENS = 200  # of a sentence, </S> included: an answer grows with their square
MAX_BATCH_SENTENCES = 32


class Sentence(NamedTuple):
    """A sentence to translate."""

    text: str
    prefix: str = ""  # the first words of its translation
    inspect: int | None = None  # of how many translations the answer has attention; None: of all


class InspectedTranslator:
    """Translate sentences, and compute what each token of a translation attends to.

    Args:
      loaded: LoadedModel.
      nbest: translations per sentence, `hp.beam` at most.
      protect: whether to keep addresses, placeholders, numbers and the like.
    """

    def __init__(self, loaded, nbest=1, protect=False):
        self.loaded = loaded
        max_tokens = min(MAX_TOKENS, loaded.hp.max_input_tokens)
        decode = SearchDecoder(loaded, nbest)
        self.translator = make_translator(loaded, protect, decode, max_tokens)
        ids = tf.TensorSpec([None, None], tf.int32)

        @tf.function(input_signature=[ids, ids], autograph=False)
        def inspect_batch(x, y):
            return cross_weights(loaded.model, x, y), tf.exp(token_log_probs(loaded.model, x, y))

        self.inspect_batch = inspect_batch

    def __call__(self, sentences):
        """Translate a list of `Sentence`.

        Returns:
          list of dict: the answer of the server to each one. Attention has T_y rows of T_x weights.
        """
        # With prefixes, also empty ones, there is one graph for all requests.
        texts, prefixes, counts = map(list, zip(*sentences, strict=True))
        translations = self.translator(texts, prefixes)
        answers = [self.answer(translation) for translation in translations]
        rows = zip(translations, counts, answers, strict=True)
        self.inspect(
            [
                (translation.ids, hypothesis.ids, inspected)
                for translation, count, answer in rows
                for hypothesis, inspected in zip(
                    translation.hypotheses[:count], answer["translations"], strict=False
                )
            ]
        )
        return answers

    def answer(self, translation) -> dict:
        """Return the answer for a `Translation`, without what `inspect` adds."""
        hypotheses = translation.hypotheses if len(translation.ids) else []
        return dict(
            source=[*map(self.loaded.vocabs[0].display, translation.ids[:-1])],
            translations=[
                dict(text=own.text, score=round(own.score, 4), truncated=own.at_limit)
                for own in hypotheses
            ],
            truncated=translation.truncated,
        )

    def inspect(self, hypotheses):
        """Add the tokens, their probabilities and their attention to the answers.

        Args:
          hypotheses: list of (source ids, ids of a translation, its dict in the answer).
        """
        hp, (_, vocab) = self.loaded.hp, self.loaded.vocabs
        X = RaggedIds.from_lists([x for x, _, _ in hypotheses])
        Y = RaggedIds.from_lists([append_eos(ids, hp) for _, ids, _ in hypotheses])
        for rows in decoding_batches(np.maximum(X.lengths, Y.lengths), width=hp.pad_to):
            batch = self.inspect_batch(X.pad(rows, hp.pad_to), Y.pad(rows, hp.pad_to))
            for row, weights, probabilities in zip(rows, *map(np.asarray, batch), strict=True):
                _, ids, answer = hypotheses[row]
                T_y, T_x = len(ids), X.lengths[row] - 1  # without </S>
                answer["tokens"] = [*map(vocab.display, ids)]
                answer["probabilities"] = probabilities[:T_y].astype(float).round(3).tolist()
                answer["attention"] = weights[:T_y, :T_x].astype(float).round(3).tolist()


def nth_text(answer, index) -> str:
    """Return a translation of a sentence: the one at `index`, or the last if there are fewer.

    Args:
      answer: that of the translator. An empty sentence has no translation.
    """
    texts = [translation["text"] for translation in answer["translations"]] or [""]
    return texts[min(index, len(texts) - 1)]


class Batcher:
    """Translate the sentences of concurrent requests in batches.

    Args:
      translate: function from a list of `Sentence` to a list of answers. It runs in a thread.
    """

    def __init__(self, translate):
        self.translate, self.queue = translate, asyncio.Queue()

    async def __call__(self, sentences):
        """Return the answers to sentences, or raise an exception of `translate`."""
        futures = [asyncio.Future() for _ in sentences]
        for pair in zip(sentences, futures, strict=True):
            self.queue.put_nowait(pair)
        return await asyncio.gather(*futures)

    async def start(self, _):
        """Start to translate what is in the queue, as long as the server runs."""
        self.task = asyncio.create_task(self.run())

    async def run(self):
        """Translate batches: the first sentence of the queue, and those that wait behind it."""
        while True:
            batch = [await self.queue.get()]
            while len(batch) < MAX_BATCH_SENTENCES and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            sentences, futures = zip(*batch, strict=True)
            try:
                answers = await asyncio.to_thread(self.translate, sentences)
            except Exception as error:
                for future in futures:
                    future.set_exception(error)
            else:
                for future, answer in zip(futures, answers, strict=True):
                    future.set_result(answer)
