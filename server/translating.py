"""Translate the sentences of concurrent requests in batches, and inspect the translations."""

import asyncio
from collections import deque
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ids import RaggedIds
from inference import SearchDecoder, decoding_batches, token_log_probs
from monitor.attention_maps import append_eos, cross_weights
from protected import make_translator

MAX_TOKENS = 200  # of a sentence, </S> included: an answer grows with their square
MAX_BATCH_SENTENCES = 32
BATCH_WAIT_SECONDS = 0.01  # the first sentence of a batch waits so long for others
MAX_QUEUED_SENTENCES = 1000


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
          list of dict: the answer of the server to each one. Attention is an array, (T_y, T_x).
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
                for hypothesis, inspected in zip(
                    translation.hypotheses[: sentence.inspect],
                    answer["translations"],
                    strict=False,
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
                answer["attention"] = weights[:T_y, :T_x]


def nth_text(answer, index) -> str:
    """Return a translation of a sentence: the one at `index`, or the last if there are fewer.

    Args:
      answer: that of the translator. An empty sentence has no translation.
    """
    texts = [translation["text"] for translation in answer["translations"]] or [""]
    return texts[min(index, len(texts) - 1)]


class Batcher:
    """Collect items of concurrent tasks, and call a function on batches of them.

    Tasks take turns: a batch has one item of each task, then the next one of each, as long as there
    is room. So a task with many items hardly delays others.

    Args:
      function: from a list to a list of the same length. It is called in another thread.
      max_queued: items that may wait; None for MAX_QUEUED_SENTENCES. A quarter of them is for tasks
        with a single item.
      max_batch: items in a batch.
    """

    def __init__(self, function, max_queued=None, max_batch=MAX_BATCH_SENTENCES):
        self.function, self.max_batch = function, max_batch
        self.max_queued = max_queued or MAX_QUEUED_SENTENCES
        self.queued = 0  # items that wait
        self.tasks = deque()  # for each task, a deque of its items and their futures
        self.not_empty = asyncio.Event()

    async def __call__(self, items):
        """Return the results of `function` for items, or raise the exception of one.

        Raises:
          asyncio.QueueFull: too many items wait already. None of these is queued.
        """
        if not items:
            return []
        room = self.max_queued if len(items) <= 1 else self.max_queued * 3 // 4
        if self.queued + len(items) > room:
            raise asyncio.QueueFull
        loop = asyncio.get_running_loop()
        futures = [loop.create_future() for _ in items]
        task = deque(zip(items, futures, strict=True))
        self.tasks.append(task)
        self.queued += len(items)
        self.not_empty.set()
        try:
            return await asyncio.gather(*futures)
        finally:
            for future in futures:
                future.cancel()
            self.queued -= len(task)
            task.clear()

    def next_batch(self) -> list:
        """Take the items of the next batch, and their futures, from the queue."""
        batch = []
        while self.tasks and len(batch) < self.max_batch:
            task = self.tasks.popleft()
            if task:
                batch.append(task.popleft())
                self.queued -= 1
                self.tasks.append(task)
        return batch

    async def run(self):
        """Process batches until this task is cancelled."""
        while True:
            await self.not_empty.wait()
            await asyncio.sleep(BATCH_WAIT_SECONDS)
            batch = self.next_batch()
            if not self.tasks:
                self.not_empty.clear()
            if not batch:  # the clients have closed their connections
                continue
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
