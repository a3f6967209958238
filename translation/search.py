"""Decoding: search for sentences with a step function, independent of the model.

A step function takes the newest token of each hypothesis, a state, and the memory. It returns
the logits of the next tokens and the new state:

    (ids (N * K,) int32, state, memory) -> (logits (N * K, V), state)

State and memory are nests of tensors (lists, tuples, dicts), none of them a scalar. The first
axis of a state is N * K. An axis that is empty at first may grow; the others keep their size.
The KV cache of the model is such a state. The memory is the encoder's output; its first axis is
N. A step does not change it.

    N  sentences                      K  hypotheses per sentence, in consecutive rows
    T  tokens so far                  vocab  tokens in the vocabulary

The ids in a hypothesis grow by one token per step, so each step copies them and XLA cannot
compile the loop.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import tensorflow as tf

INF = float("inf")
REPEAT_COST = 1e9  # the logit of a token that would repeat n tokens is at most minus this
# If at most this share of a batch is unfinished, the finished sentences leave it.
MAX_UNFINISHED_SHARE = 0.75
GROUP_TOKENS = 64  # tokens in a group of `top_tokens`


class StepModel(Protocol):
    """A model that can decode: `Transformer`, `RecurrentModel`, or an `Ensemble` of them.

    `decode_step` is a step function. Token by token it computes the same logits as `__call__`
    does at once.
    """

    variables: list

    def __call__(self, x, y):
        """Source ids (N, T_x), target ids (N, T_y) -> logits of y (N, T_y, vocab)."""

    def encode_memory(self, x):
        """Encode x, once for all steps of a search; returns the memory."""

    def initial_cache(self, memory, beam=1):
        """Return the state of N * beam hypotheses before their first token."""

    def decode_step(self, ids, cache, memory):
        """Read the newest tokens (N * beam,); returns the logits of the next, and the cache."""


class Ensemble:
    """Models whose log-probabilities are averaged.

    It is a `StepModel` itself, so that a search needs no change. The models may differ in size and
    kind, but not in their vocabularies.
    """

    def __init__(self, models):
        self.models = models

    @property
    def variables(self):
        return [variable for model in self.models for variable in model.variables]

    def __call__(self, x, y):
        """Return mean log-probabilities, in place of logits."""
        return mean_log_probs([model(x, y) for model in self.models])

    def encode_memory(self, x):
        return [model.encode_memory(x) for model in self.models]

    def initial_cache(self, memory, beam=1):
        pairs = zip(self.models, memory, strict=True)
        return [model.initial_cache(own, beam) for model, own in pairs]

    def decode_step(self, ids, cache, memory):
        """Return mean log-probabilities, and the cache of each model."""
        steps = zip(self.models, cache, memory, strict=True)
        logits, cache = zip(
            *(model.decode_step(ids, own, memory) for model, own, memory in steps), strict=True
        )
        return mean_log_probs(logits), [*cache]


def mean_log_probs(logits):
    """Average over models whose logits are (..., vocab)."""
    log_probs = [tf.nn.log_softmax(tf.cast(own, tf.float32)) for own in logits]
    return tf.add_n(log_probs) / len(log_probs)


def greedy(step, state, memory, first_ids, max_lengths, eos=-1):
    """Choose the most likely next token until every sentence has ended: (N, T) int32.

    Args:
      step, state, memory: a step function with K = 1, its first state, and its memory.
      first_ids: (N,) int32, the tokens before the first ones.
      max_lengths: (N,) int32 or an int, tokens per sentence, `eos` included.
      eos: the id that ends a sentence; all later ids are 0. -1 to continue until `max_lengths`,
        as in the 2017 code.
    """

    def extend(greedy_state):
        ids, newest_ids, state, memory, max_lengths, unfinished = greedy_state
        logits, state = step(newest_ids, state, memory)  # (N, vocab)
        newest_ids = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (N,)
        newest_ids = tf.where(unfinished, newest_ids, 0)
        ids = tf.concat([ids, newest_ids[:, None]], axis=1)  # (N, T + 1)
        unfinished &= (tf.shape(ids)[1] < max_lengths) & (newest_ids != eos)
        return ids, newest_ids, state, memory, max_lengths, unfinished

    max_lengths = tf.zeros_like(first_ids) + max_lengths  # (N,)
    no_ids = tf.zeros([tf.size(first_ids), 0], tf.int32)
    return search_loop(
        extend,
        (no_ids, first_ids, state, memory, max_lengths, max_lengths > 0),
        is_unfinished=lambda greedy_state: greedy_state[-1],
        take_sentences=take_rows,
        results=lambda greedy_state: greedy_state[0],
    )


def search_loop(extend, search_state, is_unfinished, take_sentences, results):
    """Extend the sentences of a batch until all are finished. Return the padded results of all.

    A finished sentence costs as much per step as any other. So when a quarter of them is finished,
    these leave the batch, and the loop continues with the others.

    Args:
      extend: search state -> the search state one step later.
      search_state: nest of tensors, the state before the first step.
      is_unfinished: search state -> (N,) bool.
      take_sentences: search state and indices (M,) -> the state of these M sentences.
      results: search state -> nest of tensors whose first axis is N, to be padded with zeros.
    """

    def extend_and_compact(search_state, sentences, all_results):
        search_state = extend(search_state)
        unfinished = is_unfinished(search_state)  # (N,)

        def compact():
            indices = tf.cast(tf.where(unfinished)[:, 0], tf.int32)  # (M,)
            return (
                take_sentences(search_state, indices),
                tf.gather(sentences, indices),
                put_rows(all_results, sentences, results(search_state)),
            )

        share = tf.reduce_mean(tf.cast(unfinished, tf.float32))
        unchanged = search_state, sentences, all_results
        return tf.cond(share <= MAX_UNFINISHED_SHARE, compact, lambda: unchanged)

    all_results = results(search_state)
    # (N,), the indices of the sentences in the batch
    sentences = tf.range(tf.shape(tf.nest.flatten(all_results)[0])[0])
    loop_vars = search_state, sentences, all_results
    # None stands for axes that vary: the first one, and those that are 0 at first.
    shapes = tf.nest.map_structure(
        lambda tensor: tf.TensorShape([None, *(size or None for size in tensor.shape[1:])]),
        loop_vars,
    )
    search_state, sentences, all_results = tf.while_loop(
        lambda search_state, *_: tf.reduce_any(is_unfinished(search_state)),
        extend_and_compact,
        loop_vars,
        shape_invariants=shapes,
    )
    return put_rows(all_results, sentences, results(search_state))


def take_rows(nest, indices, K=1):
    """Take the rows of some sentences, K each, from a nest of tensors."""
    rows = tf.reshape(K * indices[:, None] + tf.range(K), [-1])  # (M * K,)
    return tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), nest)


def put_rows(nest, rows, newer):
    """Replace some rows of the tensors of a nest by newer ones, which may be longer."""

    def put(old, new):
        growth = tf.concat([[0], tf.shape(new)[1:] - tf.shape(old)[1:]], axis=0)
        padded = tf.pad(old, tf.stack([tf.zeros_like(growth), growth], axis=1))
        padded.set_shape([None, *new.shape[1:]])
        return tf.tensor_scatter_nd_update(padded, rows[:, None], new)

    return tf.nest.map_structure(put, nest, newer)


def suppressing_step(step, ids):
    """Make a step function with which a search never chooses the tokens `ids`."""

    def selective_step(newest_ids, state, memory):
        logits, state = step(newest_ids, state, memory)
        return suppress(logits, ids), state

    return selective_step


def sampling_step(step, temperature):
    """Make a step function with which greedy search draws random sentences.

    It adds Gumbel noise to the logits. The token with the largest sum is a sample from their
    softmax (Maddison et al. 2014). A seed always draws the same noise, in any batch. With a
    temperature below 1, likely tokens become more likely.

    Its state is the state of `step`, the seeds, (N,) int32, and the number of steps, (N,) int32,
    0 at first.
    """

    def noisy_step(ids, state, memory):
        inner_state, seeds, t = state
        logits, inner_state = step(ids, inner_state, memory)  # (N, vocab)
        vocab_size = tf.shape(logits)[1]
        tiny = np.finfo("float32").tiny  # log(0) would let a token of probability 0 win
        uniform = tf.map_fn(
            lambda seed: tf.random.stateless_uniform([vocab_size], seed, minval=tiny),
            tf.stack([seeds, t], axis=1),
            fn_output_signature=tf.float32,
        )  # (N, vocab)
        gumbel = -tf.math.log(-tf.math.log(uniform))
        return logits / temperature + gumbel, (inner_state, seeds, t + 1)

    return noisy_step


def prefix_step(step):
    """Make a step function with which a search continues given beginnings of sentences.

    Its state is the state of `step`, and the rest of the prefixes, (N * K, P) int32: at first the
    ids of the beginning of each hypothesis, then zeros. The tokens of a prefix have the
    log-probability 0.
    """

    def forced_step(ids, state, memory):
        inner_state, prefixes = state
        logits, inner_state = step(ids, inner_state, memory)  # (N * K, V)
        prefixes = tf.pad(prefixes, [[0, 0], [0, 1]])  # so that there is a first id
        forced = prefixes[:, :1]  # (N * K, 1), 0 after the prefix
        # `==` would lose the static shape.
        is_forced = tf.equal(tf.range(tf.shape(logits)[1]), forced)  # (N * K, V)
        only_forced = tf.math.log(tf.cast(is_forced, tf.float32))
        logits = tf.where(tf.equal(forced, 0), logits, only_forced)
        return logits, (inner_state, prefixes[:, 1:])

    return forced_step


def no_repeat_step(step, n):
    """Make a step function with which a search never repeats n tokens in sequence.

    Its state is the state of `step`, and the tokens of each hypothesis so far, (N * K, T) int32,
    T = 0 at first.
    """

    def varied_step(ids, state, memory):
        inner_state, history = state
        logits, inner_state = step(ids, inner_state, memory)  # (N * K, V)
        history = tf.concat([history, ids[:, None]], axis=1)  # (N * K, T)
        T = tf.shape(history)[1]
        padded = tf.pad(history, [[0, 0], [n - 1, 0]])
        ngrams = tf.stack([padded[:, i : i + T] for i in range(n)], axis=2)  # (N * K, T, n)
        newest = padded[:, T:]  # (N * K, n - 1)
        repeats = tf.reduce_all(ngrams[:, :, :-1] == newest[:, None], axis=2)  # (N * K, T)
        found = tf.cast(tf.where(repeats), tf.int32)  # (M, 2)
        tokens = tf.gather_nd(ngrams[:, :, -1], found)  # (M,), each would repeat n tokens
        indices = tf.stack([found[:, 0], tokens], axis=1)
        # Finite, since a given beginning may have a repetition.
        low = tf.fill(tf.shape(tokens), -REPEAT_COST)
        logits = tf.tensor_scatter_nd_min(tf.cast(logits, tf.float32), indices, low)
        return logits, (inner_state, history)

    return varied_step


class Hypotheses(NamedTuple):
    """K sentences, or beginnings of sentences, for each of N sources; the best first."""

    ids: tf.Tensor  # (N, K, T) int32
    scores: tf.Tensor  # (N, K) float32


class BeamState(NamedTuple):
    """What beam search knows between two steps."""

    live: Hypotheses  # (N, K, T), not ended; scores are log-probabilities
    finished: Hypotheses  # (N, K, T), ended; log-probabilities / penalty, -inf in free slots
    newest_ids: tf.Tensor  # (N * K,) int32, the last token of each live hypothesis
    state: Any  # the state of the step function for the live hypotheses
    memory: Any
    max_lengths: tf.Tensor  # (N,) int32

    def take_sentences(self, indices):
        """Return the state of some sentences; `indices` (M,)."""
        K = tf.shape(self.live.scores)[1]
        newest_ids, state = take_rows((self.newest_ids, self.state), indices, K)
        others = take_rows(self._replace(newest_ids=(), state=()), indices)
        return others._replace(newest_ids=newest_ids, state=state)


class Continuations(NamedTuple):
    """The 2K most likely hypotheses that are one token longer than the live ones."""

    best: Hypotheses  # (N, 2K, T), the best first; scores are log-probabilities
    parents: tf.Tensor  # (N, 2K) int32, which of the K live hypotheses each one extends
    ended: tf.Tensor  # (N, 2K) bool
    state: Any  # what the step function returned, for the N * K live hypotheses


@dataclasses.dataclass(frozen=True)
class Beam:
    """Beam search for the best sentences with K = `beam` hypotheses per sentence.

    The score of a hypothesis is its log-probability divided by the penalty of its length. It
    ends with `eos` or at its maximum length. Each step extends the live hypotheses and takes the
    best 2K. Those that end and rank in the top K compete for the K finished slots; the best K
    others stay live. A sentence is done when no live hypothesis can still get into its `nbest`
    best ones.
    """

    step: Callable  # step function
    state: Any  # the first state of `step`, for N * K hypotheses
    memory: Any  # the memory of `step`
    first_ids: tf.Tensor  # (N,) int32, the tokens before the first ones
    max_lengths: Any  # (N,) int32 or an int, tokens per sentence, `eos` included
    eos: int  # the id that ends a sentence
    beam: int  # K
    penalty: Callable  # of lengths, `eos` included, as `paper_penalty`; it does not decrease
    nbest: int  # sentences to return per source, at most `beam`

    def start(self) -> BeamState:
        """Return the state before the first step."""
        N, K = tf.size(self.first_ids), self.beam
        no_ids = tf.zeros([N, K, 0], tf.int32)
        # All K hypotheses start out equal, so only the first one is given a finite score.
        first_only = tf.tile([[0.0] + [-INF] * (K - 1)], [N, 1])  # (N, K)
        return BeamState(
            live=Hypotheses(no_ids, first_only),
            finished=Hypotheses(no_ids, tf.fill([N, K], -INF)),
            newest_ids=tf.repeat(self.first_ids, K),
            state=self.state,
            memory=self.memory,
            max_lengths=tf.zeros_like(self.first_ids) + self.max_lengths,
        )

    def is_unfinished(self, beam_state):
        """Return which sentences a further step may improve, (N,) bool."""
        live, finished, max_lengths = beam_state.live, beam_state.finished, beam_state.max_lengths
        # Log-probabilities only fall, and no penalty is larger than that of the longest sentence.
        bound = live.scores[:, 0] / self.penalty(tf.cast(max_lengths, tf.float32))  # (N,)
        can_improve = bound > finished.scores[:, self.nbest - 1]  # (N,)
        return can_improve & (tf.shape(live.ids)[2] < max_lengths)

    def extend(self, beam_state) -> BeamState:
        return self.choose(beam_state, self.continue_live(beam_state))

    def continue_live(self, beam_state) -> Continuations:
        """Find the best continuations of the live hypotheses.

        They are 2K, because each live hypothesis has one continuation that ends: at most K of the
        best 2K end, and at least K can stay live.
        """
        logits, state = self.step(beam_state.newest_ids, beam_state.state, beam_state.memory)
        best, parents = top_continuations(beam_state.live, logits, 2 * self.beam)  # (N, 2K, T)
        at_limit = tf.shape(best.ids)[2] >= beam_state.max_lengths  # (N,)
        ended = (best.ids[:, :, -1] == self.eos) | at_limit[:, None]  # (N, 2K)
        return Continuations(best, parents, ended, state)

    def choose(self, beam_state, found) -> BeamState:
        """Put `Continuations` that end into the finished slots, and keep the best others live."""
        (best, parents, ended, state), K = found, self.beam
        N, T = tf.shape(parents)[0], tf.shape(best.ids)[2]
        # Only the top K may finish: one hypothesis without a penalty is then greedy search.
        may_finish = ended & (tf.range(2 * K) < K)  # (N, 2K)
        length_penalty = self.penalty(tf.cast(T, tf.float32))
        scores = tf.where(may_finish, best.scores / length_penalty, -INF)  # (N, 2K)
        before = tf.pad(beam_state.finished.ids, [[0, 0], [0, 0], [0, 1]])  # (N, K, T)
        finished = Hypotheses(
            ids=tf.concat([before, best.ids], axis=1),  # (N, 3K, T)
            scores=tf.concat([beam_state.finished.scores, scores], axis=1),
        )
        finished, _ = top_k(finished, K)  # (N, K, T)

        scores = tf.where(ended, -INF, best.scores)  # (N, 2K)
        live, indices = top_k(best._replace(scores=scores), K)  # (N, K, T)
        parents = tf.gather(parents, indices, batch_dims=1)  # (N, K)
        rows = tf.reshape(parents + K * tf.range(N)[:, None], [-1])  # (N * K,)
        newest_ids, state = tf.reshape(live.ids[:, :, -1], [-1]), take_rows(state, rows)
        return beam_state._replace(live=live, finished=finished, newest_ids=newest_ids, state=state)


def beam_search(*arguments, **more) -> Hypotheses:
    """Search with a `Beam` of these arguments: Hypotheses (N, nbest, T).

    Ids after `eos` are 0. The scores of sentences not found are -inf.
    """
    beam = Beam(*arguments, **more)
    ids, scores = search_loop(
        beam.extend,
        beam.start(),
        is_unfinished=beam.is_unfinished,
        take_sentences=BeamState.take_sentences,
        results=lambda beam_state: beam_state.finished,
    )
    return Hypotheses(ids[:, : beam.nbest], scores[:, : beam.nbest])


def top_continuations(live, logits, count):
    """Find the `count` most likely hypotheses that are one token longer than `live`.

    `logits`, (N * K, V), are those of their next tokens. Returns Hypotheses (N, count, T + 1), and
    which of the K each one extends, (N, count) int32.
    """
    N, K = tf.unstack(tf.shape(live.scores))
    # (N * K, count): no others can be best
    log_probs, next_ids = top_tokens(tf.cast(logits, tf.float32), count)
    scores = tf.reshape(log_probs, [N, K, -1]) + live.scores[:, :, None]  # (N, K, count)
    scores, indices = tf.math.top_k(tf.reshape(scores, [N, -1]), count)  # (N, count)
    parents = indices // tf.shape(log_probs)[1]  # (N, count)
    newest_ids = tf.gather(tf.reshape(next_ids, [N, -1]), indices, batch_dims=1)  # (N, count)
    ids = tf.gather(live.ids, parents, batch_dims=1)  # (N, count, T)
    return Hypotheses(tf.concat([ids, newest_ids[:, :, None]], axis=2), scores), parents


def top_tokens(logits, count):
    """Find the `count` most likely tokens of each row, or all if there are fewer.

        top_k(log_softmax(logits), count)

    Optimized: equals this formula, but reads the logits only three times. `tf.nn.softmax` is
    faster than `tf.nn.log_softmax`, and `tf.math.top_k` faster for short rows. So it first finds
    the groups of tokens with the highest maxima, which hold the most likely tokens.

    (R, vocab) float32 -> (R, count), (R, count) int32: log-probabilities, the highest first, and
    the ids. vocab is known when the graph is built.
    """
    vocab_size, size = logits.shape[-1], GROUP_TOKENS
    last = vocab_size - vocab_size % size  # the tokens after it are no complete group
    if count * size >= last:
        best, ids = tf.math.top_k(logits, min(count, vocab_size))  # (R, count)
    else:
        grouped = tf.reshape(logits[:, :last], [-1, last // size, size])  # (R, last / size, size)
        _, groups = tf.math.top_k(tf.reduce_max(grouped, axis=2), count, sorted=False)
        groups = tf.sort(groups)  # (R, count); of equal logits, the first is best
        candidates = tf.gather(grouped, groups, batch_dims=1)  # (R, count, size)
        candidates = tf.reshape(candidates, [-1, count * size])
        candidates = tf.concat([candidates, logits[:, last:]], axis=1)  # (R, count * size + rest)
        best, indices = tf.math.top_k(candidates, count)  # (R, count)
        of_groups = tf.gather(groups, tf.minimum(indices // size, count - 1), batch_dims=1)
        ids = tf.where(
            indices < count * size,
            of_groups * size + indices % size,
            last + indices - count * size,
        )
    highest = tf.gather(tf.nn.softmax(logits), ids[:, :1], batch_dims=1)  # (R, 1)
    return tf.math.log(highest) + (best - best[:, :1]), ids


def top_k(hypotheses, count):
    """Return the `count` best hypotheses, and their indices, (N, count) int32."""
    scores, indices = tf.math.top_k(hypotheses.scores, count)  # (N, count)
    return Hypotheses(tf.gather(hypotheses.ids, indices, batch_dims=1), scores), indices


def suppress(logits, ids):
    """Return logits (..., vocab) in float32, with -inf for the tokens `ids`."""
    logits = tf.cast(logits, tf.float32)
    if not ids:
        return logits
    tokens = tf.range(tf.shape(logits)[-1])[:, None]  # (vocab, 1)
    bias = tf.where(tf.reduce_any(tokens == list(ids), axis=-1), -INF, 0.0)  # (vocab,)
    return tf.nn.bias_add(logits, bias)  # in one pass with the product before it


def paper_penalty(alpha):
    """Return the length penalty of the paper (section 6.1; Wu et al. 2016, equation 14)."""
    return lambda length: ((5 + length) / 6) ** alpha
