"""Decoding: from a step function to sentences. It knows nothing of the model.

A step function takes the newest word of each hypothesis and a state, and gives the
logits of the next word and the state that goes with it:

    (ids (N * K,) int32, state) -> (logits (N * K, V), state)

The state is any nest of tensors whose first axis is the hypotheses; the axes behind
it may grow from step to step.

    N  sentences                      K  hypotheses of a sentence, one after the other
    T  words so far                   V  words in the vocabulary
"""

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

    begin = tf.zeros([tf.size(start), 0], tf.int32), start, state, limits + 0 * start < 1
    preds, *_ = tf.while_loop(unfinished, next_word, begin, shape_invariants=growing(begin))
    return preds


def beam_search(step, state, start, limits, end, beam, penalty, nbest=1, never=()):
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

    Returns:
      ((N, nbest, T) int32, (N, nbest) float32): the sentences, the best first, zeros
      behind `end`, and their scores; -inf where there are not so many.
    """
    N, K = tf.size(start), beam

    def can_win(alive, alive_logp, done, done_scores, ids, state):
        T = tf.shape(alive)[2]
        best = alive_logp[:, 0] / penalty(tf.cast(limits, tf.float32))  # (N,)
        return tf.reduce_any((best > done_scores[:, nbest - 1]) & (T < limits))

    def next_words(alive, alive_logp, done, done_scores, ids, state):
        logits, state = step(ids, state)  # (N * K, V)
        V = tf.shape(logits)[-1]
        logp = tf.nn.log_softmax(without(never, logits))  # (N * K, V)
        logp = tf.reshape(logp, [N, K, V]) + alive_logp[:, :, None]  # (N, K, V)
        logp, places = tf.math.top_k(tf.reshape(logp, [N, K * V]), 2 * K)  # (N, 2K)
        parents, words = places // V, places % V  # (N, 2K)
        sentences = tf.gather(alive, parents, batch_dims=1)  # (N, 2K, T)
        sentences = tf.concat([sentences, words[:, :, None]], axis=2)  # (N, 2K, T + 1)
        T = tf.shape(sentences)[2]
        ended = (words == end) | (T >= limits)[:, None]  # (N, 2K)

        # To end, it must be among the K likeliest: so that one hypothesis is greedy search.
        scores = tf.where(ended, logp / penalty(tf.cast(T, tf.float32)), -INF)
        scores = tf.where(tf.range(2 * K) < K, scores, -INF)  # (N, 2K)
        done_scores, best = tf.math.top_k(tf.concat([done_scores, scores], axis=1), K)  # (N, K)
        done = tf.pad(done, [[0, 0], [0, 0], [0, 1]])  # (N, K, T + 1)
        done = tf.gather(tf.concat([done, sentences], axis=1), best, batch_dims=1)

        alive_logp, best = tf.math.top_k(tf.where(ended, -INF, logp), K)  # (N, K)
        alive = tf.gather(sentences, best, batch_dims=1)  # (N, K, T + 1)
        parents = tf.gather(parents, best, batch_dims=1) + K * tf.range(N)[:, None]  # (N, K)
        parents = tf.reshape(parents, [-1])  # (N * K,)
        state = tf.nest.map_structure(lambda part: tf.gather(part, parents), state)
        return alive, alive_logp, done, done_scores, tf.reshape(alive[:, :, -1], [-1]), state

    nothing = tf.zeros([N, K, 0], tf.int32)
    # Of equal beginnings one is enough: the others come in as its continuations.
    alive_logp = tf.tile([[0.0] + [-INF] * (K - 1)], [N, 1])  # (N, K)
    done_scores = tf.fill([N, K], -INF)
    begin = nothing, alive_logp, nothing, done_scores, tf.repeat(start, K), state
    _, _, done, done_scores, _, _ = tf.while_loop(
        can_win, next_words, begin, shape_invariants=growing(begin)
    )
    return done[:, :nbest], done_scores[:, :nbest]


def without(never, logits):
    """The logits (..., V) where these ids cannot be chosen."""
    ids = tf.range(tf.shape(logits)[-1])[:, None]  # (V, 1)
    return tf.where(tf.reduce_any(ids == list(never), axis=-1), -INF, logits) if never else logits


def growing(parts):
    """The shapes of tensors in a loop, all of whose axes may grow."""
    return tf.nest.map_structure(lambda part: tf.TensorShape([None] * part.shape.rank), parts)


def paper_penalty(alpha):
    """((5 + len) / 6)**alpha (Wu et al. 2016, equation 14; paper, section 6.1)."""
    return lambda length: ((5 + length) / 6) ** alpha


def ctranslate2_penalty(alpha):
    """(len - 1)**alpha: the end of the sentence is not counted."""
    return lambda length: tf.maximum(length - 1, 1) ** alpha


PENALTIES = dict(paper=paper_penalty, ctranslate2=ctranslate2_penalty)
