"""Decoding: from a step function to sentences. It knows nothing of the model.

A step function takes the newest word of each hypothesis and a state, and gives the
logits of the next word and the state that goes with it:

    (ids (N * K,) int32, state) -> (logits (N * K, V), state)

The state is any nest of tensors whose first axis is the hypotheses; the axes behind
it may grow from step to step.

    N  sentences                      K  hypotheses of a sentence, one after the other
    T  words so far                   V  words in the vocabulary
"""

from typing import NamedTuple

import tensorflow as tf

INF = float("inf")


def greedy(step, state, start, limits, end=None, never=()):
    """Take the likeliest next word until every sentence has ended.

    Args:
      step: step function; K is 1.
      state: what `step` starts from.
      start: (N,) int32, the word before the first.
      limits: (N,) int32, or one for all: words in a sentence at most.
      end: the id after which a sentence holds zeros only; None to go on to
        the limit whatever comes, as the original did.
      never: ids that are not chosen.

    Returns:
      (N, T) int32.
    """

    def unfinished(preds, ids, state, finished):
        return ~tf.reduce_all(finished)

    def next_word(preds, ids, state, finished):
        logits, state = step(ids, state)  # (N, V)
        logits = without(never, logits)
        ids = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (N,)
        ids = tf.where(finished, 0, ids)
        preds = tf.concat([preds, ids[:, None]], axis=1)  # (N, T + 1)
        finished |= tf.shape(preds)[1] >= limits
        if end is not None:
            finished |= ids == end
        return preds, ids, state, finished

    finished = tf.zeros_like(start) >= limits  # (N,)
    begin = tf.zeros([tf.size(start), 0], tf.int32), start, state, finished
    preds, *_ = tf.while_loop(unfinished, next_word, begin, shape_invariants=growing(begin))
    return preds


class Hypotheses(NamedTuple):
    """Sentences, or beginnings of them, the best first."""

    words: tf.Tensor  # (N, K, T) int32
    scores: tf.Tensor  # (N, K) float32


def beam_search(step, state, start, limits, end, beam, penalty, nbest=1, never=(), eager=False):
    """The likeliest sentences that are found with `beam` hypotheses at a time.

    A hypothesis scores its log-probability divided by the penalty of its length. Of
    the K likeliest continuations at each step those that end compete for the K best
    finished ones; the K likeliest that do not end go on. A sentence is done when no open
    hypothesis can come among its `nbest` any more, however it goes on.

    Args:
      step: step function.
      state: what `step` starts from, of N * K hypotheses.
      start: (N,) int32, the word before the first.
      limits: (N,) int32, words in a sentence at most.
      end: the id that ends a sentence.
      beam: K.
      penalty: function of lengths (...) float32, `end` included, rising.
      nbest: how many sentences are wanted, `beam` at most.
      never: ids that are not chosen.
      eager: whether a sentence is done once K hypotheses have ended, whatever the open ones
        might still become, as in CTranslate2.

    Returns:
      Hypotheses, nbest of each sentence: zeros behind `end`, and scores -inf where
      there are not so many.
    """
    N, K = tf.size(start), beam

    def unfinished(alive, done, ids, state):
        room = tf.shape(alive.words)[2] < limits  # (N,)
        return tf.reduce_any(room & can_win(alive, done))

    def can_win(alive, done):
        if eager:
            return done.scores[:, K - 1] == -INF  # (N,)
        best = alive.scores[:, 0] / penalty(tf.cast(limits, tf.float32))  # (N,)
        return best > done.scores[:, nbest - 1]

    def next_words(alive, done, ids, state):
        logits, state = step(ids, state)  # (N * K, V)
        logp = tf.nn.log_softmax(without(never, logits))  # (N * K, V)
        found, parents = likeliest(alive, tf.reshape(logp, [N, K, -1]), 2 * K)  # (N, 2K, T)
        T = tf.shape(found.words)[2]
        ended = (found.words[:, :, -1] == end) | (T >= limits)[:, None]  # (N, 2K)

        # To end, it must be among the K likeliest: one hypothesis without a penalty is greedy.
        scores = found.scores / penalty(tf.cast(T, tf.float32))  # (N, 2K)
        counts = ended & (tf.range(2 * K) < K)
        if eager:
            counts &= can_win(alive, done)[:, None]
        scores = tf.where(counts, scores, -INF)
        done, _ = best_of(join(done, found._replace(scores=scores)), K)

        scores = tf.where(ended, -INF, found.scores)
        alive, places = best_of(found._replace(scores=scores), K)
        parents = tf.gather(parents, places, batch_dims=1)  # (N, K)
        rows = tf.reshape(parents + K * tf.range(N)[:, None], [-1])  # (N * K,)
        state = tf.nest.map_structure(lambda part: tf.gather(part, rows), state)
        ids = tf.reshape(alive.words[:, :, -1], [-1])  # (N * K,)
        return alive, done, ids, state

    nothing = tf.zeros([N, K, 0], tf.int32)
    # Of equal beginnings one is enough: the others come in as its continuations.
    alive = Hypotheses(nothing, tf.tile([[0.0] + [-INF] * (K - 1)], [N, 1]))
    done = Hypotheses(nothing, tf.fill([N, K], -INF))
    begin = alive, done, tf.repeat(start, K), state
    _, done, *_ = tf.while_loop(unfinished, next_words, begin, shape_invariants=growing(begin))
    return Hypotheses(done.words[:, :nbest], done.scores[:, :nbest])


def likeliest(alive, logp, count):
    """The likeliest sentences that are one word longer, `count` of each.

    Args:
      alive: Hypotheses, (N, K, T).
      logp: (N, K, V), the log-probabilities of their next words.

    Returns:
      (Hypotheses, (N, count) int32): them, (N, count, T + 1), and which of the K each goes on.
    """
    N, K, V = tf.unstack(tf.shape(logp))
    logp += alive.scores[:, :, None]  # (N, K, V)
    scores, places = tf.math.top_k(tf.reshape(logp, [N, K * V]), count)  # (N, count)
    parents, words = places // V, places % V  # (N, count)
    before = tf.gather(alive.words, parents, batch_dims=1)  # (N, count, T)
    return Hypotheses(tf.concat([before, words[:, :, None]], axis=2), scores), parents


def best_of(hypotheses, count):
    """The `count` that score best, and their places, (N, count) int32."""
    scores, places = tf.math.top_k(hypotheses.scores, count)  # (N, count)
    return Hypotheses(tf.gather(hypotheses.words, places, batch_dims=1), scores), places


def join(done, found):
    """Hypotheses (N, K, T) and others that are one word longer, together."""
    words = tf.pad(done.words, [[0, 0], [0, 0], [0, 1]])  # (N, K, T + 1)
    return Hypotheses(
        tf.concat([words, found.words], axis=1), tf.concat([done.scores, found.scores], axis=1)
    )


def without(never, logits):
    """The logits (..., V), in float32, where these ids cannot be chosen."""
    logits = tf.cast(logits, tf.float32)
    ids = tf.range(tf.shape(logits)[-1])[:, None]  # (V, 1)
    return tf.where(tf.reduce_any(ids == list(never), axis=-1), -INF, logits) if never else logits


def growing(parts):
    """The shapes of tensors in a loop, all of whose axes may grow."""
    return tf.nest.map_structure(lambda part: tf.TensorShape([None] * part.shape.rank), parts)


def paper_penalty(alpha):
    """((5 + len) / 6)**alpha (Wu et al. 2016, equation 14; paper, section 6.1)."""
    return lambda length: ((5 + length) / 6) ** alpha


def ctranslate2_penalty(alpha):
    """len**alpha."""
    return lambda length: length**alpha


PENALTIES = dict(paper=paper_penalty, ctranslate2=ctranslate2_penalty)
