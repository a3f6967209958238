"""Other position encodings than those of the 2017 code and the paper.

Each is a subclass of `positions.Positions`, which explains the hooks.
"""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from model.attention import map_heads
from model.positions import LearnedPositions, Positions
from modules import PositionalEncoding

# Absolute positions -------------------------------------------------


class ProductPositions(LearnedPositions):
    """x * t in place of x + t. The learned t starts at 1."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.table.initializer = "ones"

    def embed(self, tokens, positions, state):
        return tokens * self.vectors(positions), state


class HierarchicalPositions(LearnedPositions):
    """Learned positions that reach `maxlen`^2 (Su 2020).

    With n = maxlen, a learned table p and u_i = (p_i - a p_0) / (1 - a), position i n + j has the
    vector a u_i + (1 - a) u_j. For i = 0 that is p_j.
    """

    alpha = 0.4

    def vectors(self, positions):
        """(T,) int32 -> (1, T, C)."""
        first = self.table(ops.zeros_like(positions[None]))  # (1, T, C), p_0
        blocks = ops.minimum(positions // self.maxlen, self.maxlen - 1)  # (T,), i
        u_i, u_j = (
            (self.table(index[None]) - self.alpha * first) / (1 - self.alpha)  # (1, T, C)
            for index in (blocks, positions % self.maxlen)
        )
        return self.alpha * u_i + (1 - self.alpha) * u_j


class RecurrentPositions(Positions):
    """A GRU reads the tokens from left to right, in front of the first block."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.gru = keras.layers.GRU(
            self.num_units, return_sequences=True, return_state=True, dtype=self.dtype_policy
        )

    def build(self, _):
        self.gru.build((None, None, self.num_units))

    def initial_state(self, N):
        return ops.zeros((N, self.num_units), self.compute_dtype)

    def embed(self, tokens, positions, state):
        state = ops.reshape(state, (-1, self.num_units))  # (N, C), a static shape in a loop
        return self.gru(tokens, initial_state=state)  # (N, T, C), (N, C)


class ConvolutionalPositions(Positions):
    """x + a convolution over x and the tokens before it (compare Islam et al. 2020)."""

    width = 4  # tokens in the window

    def build(self, _):
        self.kernel = self.add_weight(shape=(self.width, self.num_units), name="kernel")
        self.bias = self.add_weight(shape=(self.num_units,), initializer="zeros", name="bias")

    def initial_state(self, N):
        return ops.zeros((N, self.width - 1, self.num_units), self.compute_dtype)

    def embed(self, tokens, positions, state):
        T = ops.shape(tokens)[1]
        padded = ops.concatenate([state, tokens], axis=1)  # (N, width - 1 + T, C)
        kernel = ops.cast(self.kernel, tokens.dtype)
        outputs = tokens + ops.cast(self.bias, tokens.dtype)
        for i in range(self.width):
            outputs = outputs + padded[:, i : i + T] * kernel[i]  # (N, T, C)
        return outputs, padded[:, T:]


class ComplexPositions(Positions):
    """Each token is C/2 complex waves of its position: r e^(i (w pos + p)) (Wang et al. 2020).

    The embedded token has r e^(i p): columns 2i and 2i + 1 are a real and an imaginary part. All
    tokens share the learned frequencies w. The layers after it compute with real numbers.
    """

    def build(self, _):
        frequencies = rotation_frequencies(self.num_units)
        self.frequencies = self.add_weight(
            shape=frequencies.shape,
            initializer=keras.initializers.Constant(frequencies),
            autocast=False,  # angles of late positions need all bits
            name="frequencies",
        )

    def embed(self, tokens, positions, state):
        frequencies = ops.convert_to_tensor(self.frequencies, "float32")
        return rotate_pairs(tokens, positions, frequencies), state


def rotation_frequencies(num_units):
    """Return the frequency of each pair of columns: 10000^(-2i / num_units), (num_units / 2,)."""
    return (10000.0 ** (-np.arange(0, num_units, 2) / num_units)).astype("float32")


def rotate_pairs(inputs, positions, frequencies):
    """Rotate each pair of columns of (..., T, d) by position (T,) times frequency (d/2,)."""
    angles = ops.cast(positions, "float32")[:, None] * frequencies  # (T, d/2)
    cos, sin = (ops.cast(f(angles), inputs.dtype) for f in (ops.cos, ops.sin))
    even, odd = inputs[..., 0::2], inputs[..., 1::2]  # (..., T, d/2)
    pairs = ops.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return ops.reshape(pairs, ops.shape(inputs))  # (..., T, d)


# Relative positions -------------------------------------------------


def distances(T_q, T_k):
    """Return key position - query position, (T_q, T_k) int32.

    >>> distances(2, 3).numpy().tolist()
    [[-1, 0, 1], [-2, -1, 0]]
    """
    return tf.range(T_k) - tf.range(T_k - T_q, T_k)[:, None]


def select(rows, index):
    """Select a value for each pair: (N, h, T_q, R), (T_q, T_k) -> (N, h, T_q, T_k)."""
    rows = tf.transpose(rows, [2, 3, 0, 1])  # (T_q, R, N, h)
    # tf: keras.ops.take has no batch axes.
    return tf.transpose(tf.gather(rows, index, batch_dims=1), [2, 3, 0, 1])


class ShawPositions(Positions):
    """Learned vectors of clipped distances, added to keys and values (Shaw et al. 2018)."""

    max_distance = 16

    def build(self, _):
        shape = (2 * self.max_distance + 1, self.head_units)
        self.key_table = self.add_weight(shape=shape, name="key_table")
        self.value_table = self.add_weight(shape=shape, name="value_table")

    def index(self, T_q, T_k):
        """Return the row of a table for each pair, (T_q, T_k)."""
        clipped = ops.clip(distances(T_q, T_k), -self.max_distance, self.max_distance)
        return clipped + self.max_distance

    def change_scores(self, scores, Q, K):
        by_distance = ops.matmul(Q, ops.transpose(ops.cast(self.key_table, Q.dtype)))
        index = self.index(ops.shape(Q)[2], ops.shape(K)[2])
        return scores + select(by_distance, index) / self.head_units**0.5

    def change_outputs(self, outputs, weights):
        index = self.index(ops.shape(weights)[2], ops.shape(weights)[3])  # (T_q, T_k)
        values = ops.take(ops.cast(self.value_table, weights.dtype), index, axis=0)
        return outputs + tf.einsum("nhqk,qkd->nhqd", weights, values)  # values: (T_q, T_k, d)


class T5Positions(Positions):
    """A learned number per head and bucket of distances, added to scores (Raffel et al. 2020).

    Half the buckets have one distance each, the others grow up to `max_distance`. Unlike there,
    scores are divided by sqrt(d).
    """

    shared = True
    num_buckets = 32
    max_distance = 128

    def build(self, _):
        self.table = self.add_weight(shape=(self.num_buckets, self.num_heads), name="table")

    def buckets(self, T_q, T_k):
        """Return the bucket of each pair, (T_q, T_k): in the decoder, all for the past."""
        limit = self.max_distance  # farther ones are in the same bucket
        offsets = np.arange(limit, -limit - 1, -1)  # positive: the key comes before the query
        count, first = self.num_buckets, 0
        if not self.causality:  # the second half is for keys that come after
            count //= 2
            first = count * (offsets < 0)
            offsets = abs(offsets)
        offsets = np.maximum(offsets, 0)
        exact = count // 2
        log_ratio = np.log(np.maximum(offsets, 1) / exact) / np.log(limit / exact)
        larger = exact + (log_ratio * (count - exact)).astype(int)
        table = first + np.where(offsets < exact, offsets, np.minimum(larger, count - 1))
        pairs = tf.clip_by_value(distances(T_q, T_k), -limit, limit) + limit
        return tf.gather(table.astype("int32"), pairs)

    def prepare(self, T_q, T_k):
        table = ops.cast(self.table, self.compute_dtype)
        bias = tf.gather(table, self.buckets(T_q, T_k))  # (T_q, T_k, h)
        return ScoreBias(tf.transpose(bias, (2, 0, 1)))

    def change_scores(self, scores, Q, K):
        prepared = self.prepare(tf.shape(Q)[2], tf.shape(K)[2])
        return prepared.change_scores(scores, Q, K)


class ScoreBias(NamedTuple):
    """The hooks of T5 for given lengths."""

    bias: tf.Tensor  # (h, T_q, T_k), which is added to the scores

    rotate, change_outputs = Positions.rotate, Positions.change_outputs

    def change_scores(self, scores, Q, K):
        return scores + self.bias


class XLNetPositions(Positions):
    """Sinusoids of distances, projected to keys (Dai et al. 2019, section 3.3; XLNet).

    The score is ((q + u) k + (q + v) W r) / sqrt(d), with r the sinusoids of the distance and
    learned u and v per head.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.encoding = PositionalEncoding(
            self.num_units, paired=True, zero_pad=False, scale=False, dtype=self.dtype_policy
        )

    def build(self, _):
        shape = (self.num_heads, 1, self.head_units)
        self.kernel = self.add_weight(shape=(self.num_units, self.num_units), name="kernel")
        self.u = self.add_weight(shape=shape, initializer="zeros", name="u")
        self.v = self.add_weight(shape=shape, initializer="zeros", name="v")

    def change_scores(self, scores, Q, K):
        u, v, kernel = (ops.cast(p, Q.dtype) for p in (self.u, self.v, self.kernel))
        T_q, T_k = ops.shape(Q)[2], ops.shape(K)[2]
        sinusoids = self.encoding(ops.arange(1 - T_k, T_k, dtype="int32"))  # (2 T_k - 1, C)
        r = ops.reshape(ops.matmul(sinusoids, kernel), (-1, self.num_heads, self.head_units))
        r = ops.transpose(r, (1, 2, 0))  # (h, d, 2 T_k - 1)
        position_scores = select(map_heads(Q + v, r), distances(T_q, T_k) + T_k - 1)
        content_bias = map_heads(K, ops.transpose(u, (0, 2, 1)))  # (N, h, T_k, 1)
        content_bias = ops.swapaxes(content_bias, 2, 3)  # (N, h, 1, T_k)
        return scores + (content_bias + position_scores) / self.head_units**0.5


class DebertaPositions(Positions):
    """Scores of content and of distance apart (He et al. 2021, section 3.1).

    The score is (q k + q k_r + k q_r) / sqrt(3 d), where k_r and q_r are learned vectors of the
    clipped distance. The paper projects one table to both; here each block has two tables.
    """

    max_distance = 16

    def build(self, _):
        shape = (self.num_heads, 2 * self.max_distance, self.head_units)
        self.key_table = self.add_weight(shape=shape, name="key_table")
        self.query_table = self.add_weight(shape=shape, name="query_table")

    def change_scores(self, scores, Q, K):
        offsets = -distances(ops.shape(Q)[2], ops.shape(K)[2])  # (T_q, T_k)
        limit = self.max_distance
        to_key, to_query = (  # delta(i, j) and delta(j, i), from 0 to 2 * limit - 1
            ops.clip(side, -limit, limit - 1) + limit for side in (offsets, -offsets)
        )
        tables = ops.cast(self.key_table, Q.dtype), ops.cast(self.query_table, Q.dtype)
        key_table, query_table = (ops.swapaxes(t, 1, 2) for t in tables)  # (h, d, 2 * limit)
        content_to_position = select(map_heads(Q, key_table), to_key)
        by_key = map_heads(K, query_table)  # (N, h, T_k, 2 * limit)
        position_to_content = select(by_key, ops.transpose(to_query))  # (N, h, T_k, T_q)
        position_scores = content_to_position + ops.swapaxes(position_to_content, 2, 3)
        return (scores + position_scores / self.head_units**0.5) / 3**0.5


class RotaryPositions(Positions):
    """Q and K are rotated by angles that grow with the position (Su et al. 2021, equation 34).

    Columns 2i and 2i + 1 are a plane, with the angle pos / 10000^(2i / d). The product of a query
    and a key then depends on the difference of their positions.
    """

    def rotate(self, Q, K):
        T_q, T_k = ops.shape(Q)[2], ops.shape(K)[2]
        frequencies = rotation_frequencies(self.head_units)  # (d/2,)
        positions = ops.arange(T_k, dtype="int32")
        Q = rotate_pairs(Q, positions[T_k - T_q :], frequencies)  # (N, h, T_q, d)
        return Q, rotate_pairs(K, positions, frequencies)
