"""Decoding: from a step function to sentences. It knows nothing of the model."""

import tensorflow as tf


def greedy(step, state, start, maxlen, end=None):
    """Take the likeliest next word until every sentence has ended.

    Args:
      step: function (ids (N,) int32, state) -> (logits (N, V), state).
      state: what `step` starts from, any nest of tensors.
      start: (N,) int32, the word before the first.
      maxlen: T, words in a sentence at most.
      end: the id after which a sentence holds zeros only; None to go on to
        `maxlen` whatever comes, as the original did.

    Returns:
      (N, T) int32.
    """

    def unfinished(t, ids, state, finished, preds):
        return ~tf.reduce_all(finished)

    def next_word(t, ids, state, finished, preds):
        logits, state = step(ids, state)  # (N, V)
        ids = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (N,)
        ids = tf.where(finished, 0, ids)
        preds += ids[:, None] * tf.one_hot(t, maxlen, dtype=tf.int32)  # (N, T)
        if end is not None:
            finished |= ids == end
        return t + 1, ids, state, finished, preds

    finished = tf.zeros_like(start, tf.bool)
    preds = tf.zeros([tf.size(start), maxlen], tf.int32)
    *_, preds = tf.while_loop(
        unfinished, next_word, (0, start, state, finished, preds), maximum_iterations=maxlen
    )
    return preds
