"""Decoding: search for sentences with a step function, independent of the model.

A step function takes the newest token of each hypothesis and a state. It returns the logits
of the next tokens and the new state:

    (ids (N * K,) int32, state) -> (logits (N * K, V), state)

The state is a nest of tensors (lists, tuples, dicts). Their first axis is N * K; the other axes
may grow from step to step. The KV cache of the model is such a state.

    N  sentences                      K  hypotheses per sentence, in consecutive rows
    T  tokens so far                  V  tokens in the vocabulary

The ids in a hypothesis grow by one token per step, so each step copies them and XLA cannot
compile the loop. On a CPU this costs little compared with a step of the model.
"""

from typing import Any, NamedTuple

import tensorflow as tf

INF = float("inf")


def greedy(step, state, start, max_lengths, eos=None, suppress_ids=()):
    """Choose the most likely next token until every sentence has ended.

    Args:
      step: step function; K is 1.
      state: the first state of `step`.
      start: (N,) int32, the tokens before the first ones.
      max_lengths: (N,) int32 or an int, tokens per sentence, `eos` included.
      eos: the id that ends a sentence; all later ids are 0. None to continue until
        `max_lengths`, as in the 2017 code.
      suppress_ids: ids that are never chosen.

    Returns:
      (N, T) int32.
    """

    def unfinished(preds, ids, state, finished):
        return ~tf.reduce_all(finished)

    def extend(preds, ids, state, finished):
        logits, state = step(ids, state)  # (N, V)
        logits = suppress(logits, suppress_ids)
        ids = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (N,)
        ids = tf.where(finished, 0, ids)
        preds = tf.concat([preds, ids[:, None]], axis=1)  # (N, T + 1)
        finished |= tf.shape(preds)[1] >= max_lengths
        if eos is not None:
            finished |= ids == eos
        return preds, ids, state, finished

    no_ids = tf.zeros([tf.size(start), 0], tf.int32)  # (N, 0)
    finished = tf.zeros_like(start) >= max_lengths  # (N,)
    loop_vars = no_ids, start, state, finished
    preds, *_ = tf.while_loop(
        unfinished, extend, loop_vars, shape_invariants=growing_shapes(loop_vars)
    )
    return preds


def sampling_step(step, seeds, temperature, top_k=0, suppress_ids=()):
    """Make a step function with which greedy search draws random sentences.

    It adds Gumbel noise to the logits. The token with the largest sum is a sample from their
    softmax (Maddison et al. 2014). A seed always draws the same noise, in any batch.

    Args:
      step: step function; K is 1.
      seeds: (N,) int32.
      temperature: divisor of the logits. Below 1, likely tokens become more likely.
      top_k: sample only from this many most likely tokens; 0: from all.
      suppress_ids: ids that are never chosen.

    Returns:
      step function. Its state is the state of `step` and the number of steps, 0 at first.
    """

    def noisy_step(ids, state):
        inner_state, t = state
        logits, inner_state = step(ids, inner_state)  # (N, V)
        logits = suppress(logits, suppress_ids) / temperature
        V = tf.shape(logits)[1]
        if top_k:
            best, _ = tf.math.top_k(logits, tf.minimum(top_k, V))  # (N, top_k)
            logits = tf.where(logits < best[:, -1:], -INF, logits)
        uniform = tf.map_fn(
            lambda seed: tf.random.stateless_uniform([V], [seed, t]),
            seeds,
            fn_output_signature=tf.float32,
        )  # (N, V)
        return logits - tf.math.log(-tf.math.log(uniform)), (inner_state, t + 1)

    return noisy_step


def prefix_step(step, prefixes):
    """Make a step function with which a search continues given beginnings of sentences.

    Args:
      step: step function.
      prefixes: (N * K, P) int32, the first ids of each hypothesis, then zeros. The K hypotheses
        of a sentence have the same.

    Returns:
      step function. Its state is the state of `step` and the number of steps of each hypothesis,
      (N * K,) int32, 0 at first. The tokens of a prefix have the log-probability 0.
    """
    prefixes = tf.pad(prefixes, [[0, 0], [0, 1]])  # (N * K, P + 1)

    def forced_step(ids, state):
        inner_state, t = state
        logits, inner_state = step(ids, inner_state)  # (N * K, V)
        forced = tf.gather(prefixes, tf.minimum(t, tf.shape(prefixes)[1] - 1), batch_dims=1)
        forced = forced[:, None]  # (N * K, 1), 0 after the prefix
        allowed = (forced == 0) | (tf.range(tf.shape(logits)[1]) == forced)  # (N * K, V)
        return tf.where(allowed, tf.cast(logits, tf.float32), -INF), (inner_state, t + 1)

    return forced_step


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


def beam_search(
    step,
    state,
    start,
    max_lengths,
    eos,
    beam,
    penalty,
    nbest=1,
    suppress_ids=(),
    early_stopping=False,
):
    """Search for the best sentences with K = `beam` hypotheses per sentence.

    The score of a hypothesis is its log-probability divided by the penalty of its length. It
    ends with `eos` or at its maximum length. Each step extends the live hypotheses and takes the
    best 2K. Those that end and rank in the top K compete for the K finished slots; the best K
    others stay live. A sentence is done when no live hypothesis can still get into its `nbest`
    best ones.

    Args:
      step: step function.
      state: the first state of `step`, for N * K hypotheses.
      start: (N,) int32, the tokens before the first ones.
      max_lengths: (N,) int32, tokens per sentence, `eos` included.
      eos: the id that ends a sentence.
      beam: K.
      penalty: function of lengths, (...) float32 -> (...) float32, that does not decrease. A length
        includes `eos`.
      nbest: sentences to return per source, at most `beam`.
      suppress_ids: ids that are never chosen.
      early_stopping: whether a sentence is done as soon as K hypotheses have ended, even if a
        live one could still be better; as in CTranslate2.

    Returns:
      Hypotheses (N, nbest, T). Ids after `eos` are 0. Where fewer sentences were found, the
      remaining scores are -inf.
    """
    N, K = tf.size(start), beam

    def can_improve(beam_state):
        """Which sentences may still get a better hypothesis, (N,) bool."""
        live, finished = beam_state.live, beam_state.finished
        if early_stopping:
            return finished.scores[:, K - 1] == -INF
        # Log-probabilities only fall, and no penalty is larger than that of the longest sentence.
        bound = live.scores[:, 0] / penalty(tf.cast(max_lengths, tf.float32))  # (N,)
        return bound > finished.scores[:, nbest - 1]

    def unfinished(beam_state):
        below_limit = tf.shape(beam_state.live.ids)[2] < max_lengths  # (N,)
        return tf.reduce_any(below_limit & can_improve(beam_state))

    def extend(beam_state):
        logits, state = step(beam_state.newest_ids, beam_state.state)  # (N * K, V)
        log_probs = tf.nn.log_softmax(suppress(logits, suppress_ids))  # (N * K, V)
        log_probs = tf.reshape(log_probs, [N, K, -1])
        # 2K, because each live hypothesis has one continuation that ends: at most K of the best
        # 2K end, and at least K can stay live.
        candidates, parents = top_continuations(beam_state.live, log_probs, 2 * K)  # (N, 2K, T)
        T = tf.shape(candidates.ids)[2]
        ended = (candidates.ids[:, :, -1] == eos) | (T >= max_lengths)[:, None]  # (N, 2K)

        # Only the top K may finish: one hypothesis without a penalty is then greedy search.
        may_finish = ended & (tf.range(2 * K) < K)  # (N, 2K)
        if early_stopping:
            may_finish &= can_improve(beam_state)[:, None]
        length_penalty = penalty(tf.cast(T, tf.float32))
        finished = update_finished(beam_state.finished, candidates, may_finish, length_penalty, K)
        live, state = update_live(candidates, parents, ended, state, K)
        newest_ids = tf.reshape(live.ids[:, :, -1], [-1])  # (N * K,)
        return (BeamState(live, finished, newest_ids, state),)

    no_ids = tf.zeros([N, K, 0], tf.int32)
    # All K hypotheses start out equal, so only the first one is given a finite score.
    first_only = tf.tile([[0.0] + [-INF] * (K - 1)], [N, 1])  # (N, K)
    beam_state = BeamState(
        live=Hypotheses(no_ids, first_only),
        finished=Hypotheses(no_ids, tf.fill([N, K], -INF)),
        newest_ids=tf.repeat(start, K),
        state=state,
    )
    loop_vars = (beam_state,)
    (beam_state,) = tf.while_loop(
        unfinished, extend, loop_vars, shape_invariants=growing_shapes(loop_vars)
    )
    ids, scores = beam_state.finished
    return Hypotheses(ids[:, :nbest], scores[:, :nbest])


def update_finished(finished, candidates, may_finish, length_penalty, K):
    """Put the candidates that end into the K finished slots, if they are better.

    Args:
      finished: Hypotheses (N, K, T - 1).
      candidates: Hypotheses (N, 2K, T); scores are log-probabilities.
      may_finish: (N, 2K) bool.
      length_penalty: () float32, the penalty of length T.

    Returns:
      Hypotheses (N, K, T).
    """
    scores = tf.where(may_finish, candidates.scores / length_penalty, -INF)  # (N, 2K)
    finished, _ = top_k(merge(finished, candidates._replace(scores=scores)), K)
    return finished


def update_live(candidates, parents, ended, state, K):
    """Keep the best K candidates that have not ended, and the rows of the state they need.

    Args:
      candidates: Hypotheses (N, 2K, T).
      parents: (N, 2K) int32, which of the K live hypotheses each candidate extends.
      ended: (N, 2K) bool.
      state: what the step function returned, for N * K hypotheses.

    Returns:
      (Hypotheses, state): (N, K, T), and the state in their order.
    """
    scores = tf.where(ended, -INF, candidates.scores)  # (N, 2K)
    live, indices = top_k(candidates._replace(scores=scores), K)
    parents = tf.gather(parents, indices, batch_dims=1)  # (N, K)
    N = tf.shape(parents)[0]
    rows = tf.reshape(parents + K * tf.range(N)[:, None], [-1])  # (N * K,)
    return live, tf.nest.map_structure(lambda tensor: tf.gather(tensor, rows), state)


def top_continuations(live, log_probs, count):
    """Find the `count` most likely hypotheses that are one token longer.

    Args:
      live: Hypotheses (N, K, T).
      log_probs: (N, K, V), of their next tokens.

    Returns:
      (Hypotheses, (N, count) int32): (N, count, T + 1), and which of the K each one extends.
    """
    N, K, V = tf.unstack(tf.shape(log_probs))
    log_probs += live.scores[:, :, None]  # (N, K, V)
    scores, indices = tf.math.top_k(tf.reshape(log_probs, [N, K * V]), count)  # (N, count)
    parents, newest_ids = indices // V, indices % V  # (N, count)
    ids = tf.gather(live.ids, parents, batch_dims=1)  # (N, count, T)
    return Hypotheses(tf.concat([ids, newest_ids[:, :, None]], axis=2), scores), parents


def top_k(hypotheses, count):
    """Return the `count` hypotheses with the best scores, and their indices, (N, count) int32."""
    scores, indices = tf.math.top_k(hypotheses.scores, count)  # (N, count)
    return Hypotheses(tf.gather(hypotheses.ids, indices, batch_dims=1), scores), indices


def merge(finished, candidates):
    """Join hypotheses (N, K, T) with others that are one token longer, (N, 2K, T + 1)."""
    ids = tf.pad(finished.ids, [[0, 0], [0, 0], [0, 1]])  # (N, K, T + 1)
    return Hypotheses(
        ids=tf.concat([ids, candidates.ids], axis=1),
        scores=tf.concat([finished.scores, candidates.scores], axis=1),
    )


def suppress(logits, ids):
    """Return logits (..., V) in float32, with -inf for the tokens `ids`."""
    logits = tf.cast(logits, tf.float32)
    if not ids:
        return logits
    tokens = tf.range(tf.shape(logits)[-1])[:, None]  # (V, 1)
    return tf.where(tf.reduce_any(tokens == list(ids), axis=-1), -INF, logits)


def growing_shapes(loop_vars):
    """Return a shape per tensor of a nest, each axis None: `tf.while_loop` lets it grow then."""
    return tf.nest.map_structure(
        lambda tensor: tf.TensorShape([None] * tensor.shape.rank), loop_vars
    )


def paper_penalty(alpha):
    """Return the function length -> ((5 + length) / 6)**alpha.

    This is the length penalty of the paper (section 6.1; Wu et al. 2016, equation 14).
    """
    return lambda length: ((5 + length) / 6) ** alpha


def ctranslate2_penalty(alpha):
    """Return the function length -> length**alpha, the length penalty of CTranslate2."""
    return lambda length: length**alpha


PENALTIES = dict(paper=paper_penalty, ctranslate2=ctranslate2_penalty)
