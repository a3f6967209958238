"""The layers of the Transformer, named after the functions that the documents describe.

The axes of tensors:

    N  sentences in a batch           T_q  positions that ask (queries)
    T  positions in a sentence        T_k  positions that answer (keys)
    C  hidden units                   h    heads of an attention
    V  words in a vocabulary
"""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

MASKED = -(2.0**32) + 1  # the score of what may not be attended to


class Embedding(keras.layers.Layer):
    """Look up a vector for each id: (N, T) int32 -> (N, T, C).

    Args:
      vocab_size: V, rows of the table.
      num_units: C, columns of the table.
      zero_pad: whether id 0 is the zero vector, whatever its row in the table.
      scale: whether to multiply by sqrt(C) (paper, section 3.4).
    """

    def __init__(self, vocab_size, num_units, zero_pad=True, scale=True, **kwargs):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.num_units = num_units
        self.zero_pad = zero_pad
        self.scale = scale

    def build(self, _):
        self.lookup_table = self.add_weight(
            shape=(self.vocab_size, self.num_units),
            initializer="glorot_uniform",
            name="lookup_table",
        )

    def call(self, inputs):
        table = self.lookup_table
        if self.zero_pad:
            zeros = ops.zeros((1, self.num_units), table.dtype)
            table = ops.concatenate([zeros, table[1:]], axis=0)
        outputs = ops.take(table, inputs, axis=0)  # (N, T, C)
        return outputs * self.num_units**0.5 if self.scale else outputs


class PositionalEncoding(keras.layers.Layer):
    """Sines and cosines of each position: (N, T) int32 -> (N, T, C).

    This is the documents' formula: the angle of column i is
    pos / 10000^(2i / C), a sine where i is even and a cosine where it is odd. The
    paper (section 3.5) has the exponent (i - i % 2) / C, so that the columns
    go in pairs of one frequency.

    Args:
      maxlen: how many positions there are.
      num_units: C.
      zero_pad: whether position 0 is the zero vector.
      scale: whether to multiply by sqrt(C).
    """

    def __init__(self, maxlen, num_units, zero_pad=True, scale=True, **kwargs):
        super().__init__(**kwargs)
        pos, i = np.ogrid[:maxlen, :num_units]
        table = pos / 10000.0 ** (2 * i / num_units)  # (maxlen, C)
        table[:, 0::2] = np.sin(table[:, 0::2])
        table[:, 1::2] = np.cos(table[:, 1::2])
        if zero_pad:
            table[0] = 0
        if scale:
            table *= num_units**0.5
        self.table = table.astype(np.float32)

    def call(self, inputs):
        return ops.take(ops.cast(self.table, self.compute_dtype), inputs, axis=0)  # (N, T, C)


class Normalize(keras.layers.Layer):
    """Layer normalisation over the last axis: (..., C) -> (..., C).

    Args:
      epsilon: added to the variance, inside the root.
    """

    def __init__(self, epsilon=1e-8, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        self.beta = self.add_weight(shape=input_shape[-1:], initializer="zeros", name="beta")
        self.gamma = self.add_weight(shape=input_shape[-1:], initializer="ones", name="gamma")

    def call(self, inputs):
        mean, variance = ops.moments(inputs, axes=[-1], keepdims=True)  # (..., 1)
        normalized = (inputs - mean) / (variance + self.epsilon) ** 0.5
        return self.gamma * normalized + self.beta


class Projected(NamedTuple):
    """The side of an attention that is attended to."""

    K: keras.KerasTensor  # (N, h, T_k, C/h)
    V: keras.KerasTensor  # (N, h, T_k, C/h)
    key_masks: keras.KerasTensor  # (N, T_k) bool, True where there is something

    def put(self, t, one):
        """The same with `one`, the `Projected` of a single position, at position `t`."""
        here = ops.arange(ops.shape(self.K)[2]) == t  # (T_k,)
        return Projected(
            ops.where(here[:, None], one.K, self.K),
            ops.where(here[:, None], one.V, self.V),
            ops.where(here, one.key_masks, self.key_masks),
        )


class MultiheadAttention(keras.layers.Layer):
    """Attention of queries to keys, residual and normalisation (paper, section 3.2).

    (N, T_q, C), (N, T_k, C) -> (N, T_q, C). As documented, and unlike the paper,
    the projections to Q, K and V pass through a ReLU, the joined heads are not
    projected again, and a position counts as padding where its vector is all zeros.

    `project` and `attend` are the two halves of a call: a decoder that goes word
    by word keeps what `project` returned for the words before.

    Args:
      num_units: C.
      num_heads: h, a divisor of C.
      dropout_rate: share of attention weights dropped in training.
    """

    def __init__(self, num_units, num_heads=8, dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_units = num_units // num_heads  # C/h
        self.query = keras.layers.Dense(num_units, activation="relu")
        self.key = keras.layers.Dense(num_units, activation="relu")
        self.value = keras.layers.Dense(num_units, activation="relu")
        self.dropout = keras.layers.Dropout(dropout_rate)
        self.normalize = Normalize()

    def call(self, queries, keys, causality=False, training=None):
        return self.attend(queries, self.project(keys), causality, training)

    def project(self, keys):
        """Keys (N, T_k, C) -> Projected."""
        K, V = self.split_heads(self.key(keys)), self.split_heads(self.value(keys))
        return Projected(K, V, active(keys))

    def nothing(self, N, T_k):
        """A `Projected` with room for `T_k` positions and none of them there yet."""
        zeros = ops.zeros((N, self.num_heads, T_k, self.head_units), self.compute_dtype)
        return Projected(zeros, zeros, ops.zeros((N, T_k), "bool"))

    def attend(self, queries, projected, causality=False, training=None):
        """Queries (N, T_q, C), Projected -> (N, T_q, C)."""
        weights = self.weigh(queries, projected, causality)  # (N, h, T_q, T_k)
        weights = self.dropout(weights, training=training)
        outputs = self.join_heads(ops.matmul(weights, projected.V))  # (N, T_q, C)
        return self.normalize(outputs + queries)

    def weigh(self, queries, projected, causality=False):
        """How much of each key a query takes: (N, h, T_q, T_k), summing to 1 over T_k."""
        Q = self.split_heads(self.query(queries))  # (N, h, T_q, C/h)
        scores = ops.matmul(Q, ops.swapaxes(projected.K, -1, -2))  # (N, h, T_q, T_k)
        scores = scores / self.head_units**0.5

        masks = projected.key_masks[:, None, None, :]  # (N, 1, 1, T_k)
        if causality:
            T_q, T_k = ops.shape(scores)[-2:]
            masks = masks & (ops.arange(T_k) <= ops.arange(T_q)[:, None])  # (N, 1, T_q, T_k)
        weights = ops.softmax(ops.where(masks, scores, MASKED))

        query_masks = active(queries)[:, None, :, None]  # (N, 1, T_q, 1)
        return weights * ops.cast(query_masks, weights.dtype)

    def split_heads(self, inputs):
        """(N, T, C) -> (N, h, T, C/h)"""
        N, T, _ = ops.shape(inputs)
        outputs = ops.reshape(inputs, (N, T, self.num_heads, self.head_units))
        return ops.swapaxes(outputs, 1, 2)

    def join_heads(self, inputs):
        """(N, h, T, C/h) -> (N, T, C)"""
        N, h, T, head_units = ops.shape(inputs)
        return ops.reshape(ops.swapaxes(inputs, 1, 2), (N, T, h * head_units))


class Feedforward(keras.layers.Layer):
    """Two linear maps with a ReLU between, residual and normalisation (paper, section 3.3).

    (N, T, C) -> (N, T, C).

    Args:
      inner_units: width between the two maps, 4 * C.
      num_units: C.
    """

    def __init__(self, inner_units, num_units, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(inner_units, activation="relu")
        self.outer = keras.layers.Dense(num_units)
        self.normalize = Normalize()

    def call(self, inputs):
        return self.normalize(self.outer(self.inner(inputs)) + inputs)


def active(inputs):
    """Which positions are not all zeros: (N, T, C) -> (N, T) bool."""
    return ops.sum(ops.abs(inputs), axis=-1) > 0


def label_smoothing(inputs, epsilon=0.1):
    """Take `epsilon` of the probability from the target and share it among all V classes.

    (..., V) -> (..., V) (paper, section 5.4).

    >>> np.round(label_smoothing(np.eye(3)[1]), 3).tolist()
    [0.033, 0.933, 0.033]
    """
    return (1 - epsilon) * inputs + epsilon / inputs.shape[-1]


def cross_entropy(y, logits):
    """Cross entropy of the smoothed labels: (N, T) int32, (N, T, V) -> (N, T)."""
    labels = label_smoothing(ops.one_hot(y, logits.shape[-1], dtype=logits.dtype))  # (N, T, V)
    return ops.categorical_crossentropy(labels, logits, from_logits=True)
