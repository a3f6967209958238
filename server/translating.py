"""Translate the sentences of concurrent requests in batches, and inspect the translations."""

import asyncio
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ids import RaggedIds
from inference import SearchDecoder, Translator, decoding_batches, token_log_probs
from monitor.attention_maps import append_eos, cross_weights

MAX_TOKENS = 200  # of a sentence, </S> included: an answer grows with their square
MAX_BATCH_SENTENCES = 32
BATCH_WAIT_SECONDS = 0.01  # the first sentence of a batch waits so long for others
MAX_QUEUED_SENTENCES = 256


class Sentence(NamedTuple):
    """A sentence to translate."""

    text: str
    prefix: str = ""  # the first words of its translation
    inspect: bool = True  # whether the answer has the attention and the probability of each token


class InspectedTranslator:
    """Translate sentences, and compute what each token of a translation attends to.

    Args:
      loaded: LoadedModel.
      nbest: translations per sentence, `hp.beam` at most.
    """

    def __init__(self, loaded, nbest=1):
        self.loaded = loaded
        max_tokens = min(MAX_TOKENS, loaded.hp.max_input_tokens)
        self.translator = Translator(loaded, SearchDecoder(loaded, nbest), max_tokens)
        ids = tf.TensorSpec([None, None], tf.int32)

        @tf.function(input_signature=[ids, ids], autograph=False)
        def inspect_batch(x, y):
            return cross_weights(loaded.model, x, y), tf.exp(token_log_probs(loaded.model, x, y))

        self.inspect_batch = inspect_batch

    def __call__(self, sentences):
        """Translate a list of `Sentence`.

        Returns:
          list of dict: the answer of the server to each one, in types that JSON has.
        """
        # With prefixes, also empty ones, there is one graph for all requests.
        texts, prefixes, _ = map(list, zip(*sentences, strict=True))
        translations = self.translator(texts, prefixes)
        answers = [self.answer(translation) for translation in translations]
        self.inspect(
            [
                (translation.ids, hypothesis.ids, inspected)
                for sentence, translation, answer in zip(
                    sentences, translations, answers, strict=True
                )
                if sentence.inspect
                for hypothesis, inspected in zip(
                    translation.hypotheses, answer["translations"], strict=False
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


class Batcher:
    """Collect items of concurrent tasks, and call a function on batches of them.

    Args:
      function: from a list to a list of the same length. It is called in another thread.
      max_queued: items that may wait; None for MAX_QUEUED_SENTENCES.
      max_batch: items in a batch.
    """

    def __init__(self, function, max_queued=None, max_batch=MAX_BATCH_SENTENCES):
        self.function, self.max_batch = function, max_batch
        self.queue = asyncio.Queue(max_queued or MAX_QUEUED_SENTENCES)

    async def __call__(self, items):
        """Return the results of `function` for items, or raise the exception of one.

        Raises:
          asyncio.QueueFull: too many items wait already. None of these is queued.
        """
        if self.queue.qsize() + len(items) > self.queue.maxsize:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        for pair in zip(items, futures, strict=True):
            self.queue.put_nowait(pair)
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()

    async def run(self):
        """Process batches until this task is cancelled."""
        while True:
            batch = [await self.queue.get()]
            await asyncio.sleep(BATCH_WAIT_SECONDS)
            while len(batch) < self.max_batch and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            batch = [(item, future) for item, future in batch if not future.done()]
            results = await asyncio.to_thread(self.results, [item for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():  # the client has closed its connection
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def results(self, items):
        """Call `function`: a list of results, or of the exceptions that single items raise."""
        try:
            return self.function(items)
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self.results([item])]
