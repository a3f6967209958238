"""The layers of the Transformer and its loss, named after the functions of the 2017 code.

`hparams.py` explains the letters in shapes.

keras.ops or TensorFlow: the layers use keras.ops, except where a TensorFlow operation is
measurably faster or has no equal in keras.ops. A comment `# tf:` marks each such place.

Masks are explicit boolean arguments (True: may be attended to): a mask of Keras would change its
losses and metrics. The names are plural, because Keras fills an argument `keys_mask` by itself.

Why these layers and not those of Keras: its MultiHeadAttention has no KV cache, and its Embedding
no product with its table that gives logits. Its Dropout takes twice the time. The graphs of its
Dense and its LayerNormalization take longer to build.
"""

from functools import partial
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from hparams import ATTENTION_SCORES, ModelHparams
from model.attention import (
    add_parameters,
    attention_scores,
    prepare_keys,
    scores_to_weights,
    upcast,
)
from text.ids import BOS


class Embedding(keras.layers.Layer):
    """Look up a vector for each id: (N, T) int32 -> (N, T, C).

    With `zero_pad`, id 0 gives the zero vector instead of its row in the table. `scale` multiplies
    by sqrt(C) (paper, section 3.4). Without `pad_logit`, `to_logits` gives id 0 the logit 0.
    """

    def __init__(
        self,
        vocab_size,
        num_units,
        zero_pad=True,
        scale=True,
        pad_logit=True,
        initializer="glorot_uniform",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocab_size = vocab_size
        self.num_units = num_units
        self.zero_pad = zero_pad
        self.scale = scale
        self.pad_logit = pad_logit
        self.initializer = initializer

    def build(self, _):
        self.lookup_table = self.add_weight(
            shape=(self.vocab_size, self.num_units),
            initializer=self.initializer,
            name="lookup_table",
        )

    def call(self, inputs):
        outputs = ops.take(self.lookup_table, inputs, axis=0)  # (N, T, C)
        if self.zero_pad:
            outputs = outputs * ops.cast(inputs != 0, outputs.dtype)[..., None]
        return outputs * self.num_units**0.5 if self.scale else outputs

    def to_logits(self, outputs):
        """Multiply by the transposed table: (..., C) -> (..., vocab) (paper, section 3.4)."""
        table = self.lookup_table if self.pad_logit else self.padded_table()
        return ops.matmul(outputs, ops.transpose(ops.cast(table, outputs.dtype)))

    def padded_table(self):
        """Return the table (vocab, C), with zeros in row 0."""
        table = ops.convert_to_tensor(self.lookup_table, self.lookup_table.dtype)
        return ops.concatenate([ops.zeros_like(table[:1]), table[1:]], axis=0)


class PositionalEncoding(keras.layers.Layer):
    """Encode positions by sines and cosines: (N, T) int32 -> (N, T, C).

    The angle of column i is pos / 10000^(2i / C), as in the 2017 code. Even columns are sines, odd
    ones cosines. With `paired`, the exponent is (i - i % 2) / C, so that columns come in pairs of
    one frequency (paper, section 3.5). `zero_pad` and `scale` are as in `Embedding`.
    """

    def __init__(self, num_units, paired=False, zero_pad=True, scale=True, **kwargs):
        super().__init__(**kwargs)
        i = np.arange(num_units)
        exponents = (i - i % 2 if paired else 2 * i) / num_units
        self.frequencies = (10000.0**-exponents).astype(np.float32)  # (C,)
        # cos(x) = sin(x + pi / 2), so one call of sin computes both.
        self.phases = (np.pi / 2 * (i % 2)).astype(np.float32)  # (C,)
        self.zero_pad = zero_pad
        self.scale = num_units**0.5 if scale else 1.0
        self.built = True  # it has no parameters

    def call(self, inputs):
        positions = ops.cast(inputs, "float32")[..., None]  # (N, T, 1)
        outputs = self.scale * ops.sin(positions * self.frequencies + self.phases)  # (N, T, C)
        if self.zero_pad:
            outputs = outputs * ops.cast(positions > 0, "float32")
        return ops.cast(outputs, self.compute_dtype)


class Linear(keras.layers.Dense):
    """A linear map of the last axis: (..., C) -> (..., units). Equals `keras.layers.Dense`."""

    def call(self, inputs, training=None):
        # tf: `Dense` adds operations for the shapes, also to the gradient.
        axes = "nt"[: len(inputs.shape) - 1]
        outputs = tf.einsum(f"{axes}c,cd->{axes}d", inputs, tf.convert_to_tensor(self.kernel))
        if self.use_bias:
            outputs = tf.nn.bias_add(outputs, self.bias)
        return self.activation(outputs)


mean = partial(tf.reduce_mean, axis=-1, keepdims=True)  # (..., C) -> (..., 1)


class Normalize(keras.layers.Layer):
    """Normalize the last axis to mean 0 and variance 1: (..., C) -> (..., C).

        gamma * (x - mean(x)) / sqrt(variance(x) + epsilon) + beta

    Optimized: equals this formula, with a gradient that is written out: a smaller graph.
    """

    epsilon = 1e-8

    def build(self, input_shape):
        shape = input_shape[-1:]
        self.beta = self.add_weight(shape, initializer="zeros", autocast=False, name="beta")
        self.gamma = self.add_weight(shape, initializer="ones", autocast=False, name="gamma")

    def call(self, inputs):
        gamma, beta = tf.convert_to_tensor(self.gamma), tf.convert_to_tensor(self.beta)
        outputs = self.normalize(upcast(inputs), gamma)
        return tf.cast(tf.nn.bias_add(outputs, beta), inputs.dtype)

    @tf.custom_gradient
    def normalize(self, inputs, gamma):
        """Return gamma * (x - mean(x)) / sqrt(variance(x) + epsilon), (..., C)."""
        centered = inputs - mean(inputs)  # (..., C)
        scale = tf.math.rsqrt(mean(tf.square(centered)) + self.epsilon)  # (..., 1)
        normalized = centered * scale

        def backward(upstream):
            gradient = upstream * gamma  # of `normalized`
            along = normalized * mean(gradient * normalized)
            inputs_gradient = scale * (gradient - mean(gradient) - along)
            all_but_last = list(range(len(inputs.shape) - 1))
            return inputs_gradient, tf.reduce_sum(upstream * normalized, all_but_last)

        return gamma * normalized, backward


class Dropout(keras.layers.Layer):
    """Zero random units in training and scale up the others: (...) -> (...).

        inputs * (random.uniform(inputs.shape) >= rate) / (1 - rate)

    The mean stays the same. Optimized: equals this formula, but draws 16 random bits per unit. So
    the rate is rounded to a multiple of 2^-16.
    """

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        # A unit is zeroed if its random number in [0, 2^16) is below the threshold.
        self.threshold = min(round(rate * 2**16), 2**16 - 1)
        self.seed_generator = keras.random.SeedGenerator() if self.threshold else None
        self.built = True  # it has no parameters

    def call(self, inputs, training=None):
        if not training or not self.threshold:
            return inputs
        size = tf.size(inputs)
        # All replicas hold the same seed. The replica's id makes each drop other units.
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        seed = self.seed_generator.next() + tf.cast(replica, tf.int64)  # (2,)
        # tf: keras.ops cannot reinterpret 64 random bits as four numbers of 16 bits.
        bits64 = tf.random.stateless_uniform([size // 4 + 1], seed, None, None, tf.uint64)
        bits16 = tf.slice(tf.reshape(tf.bitcast(bits64, tf.uint16), [-1]), [0], [size])
        keep = tf.reshape(bits16, tf.shape(inputs)) >= self.threshold  # (...)
        scale = tf.constant(2**16 / (2**16 - self.threshold), inputs.dtype)
        return inputs * tf.where(keep, scale, tf.constant(0, inputs.dtype))


class AddAndNorm(keras.layers.Layer):
    """The frame of a sublayer: LayerNorm(x + Dropout(sublayer(x))) (paper, sections 3.1 and 5.4).

    (N, T, C), (N, T, C) -> (N, T, C). With normalization "pre" it is
    x + Dropout(sublayer(LayerNorm(x))) (Xiong et al. 2020). Without `residual`, x is not added.
    """

    def __init__(self, dropout_rate=0.0, residual=True, normalization="post", **kwargs):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.residual = residual
        self.dropout = Dropout(dropout_rate, dtype=dtype)
        self.normalization = normalization
        self.normalize = None if normalization == "none" else Normalize(dtype=dtype)

    def build(self, input_shape):
        if self.normalize:
            self.normalize.build(input_shape)

    def prepare(self, inputs):
        """Return the input of the sublayer: x, or LayerNorm(x) with normalization "pre"."""
        return self.normalize(inputs) if self.normalization == "pre" else inputs

    def call(self, inputs, outputs, training=None):
        """Combine x = `inputs` and the `outputs` of the sublayer, (N, T, C) each."""
        outputs = self.dropout(outputs, training=training)
        if self.residual:
            outputs = outputs + inputs
        return self.normalize(outputs) if self.normalization == "post" else outputs


class KeysValues(NamedTuple):
    """Projected keys and values of an attention, and which key positions are valid."""

    K: tf.Tensor  # (N, h, T_k, C/h)
    V: tf.Tensor  # (N, h, T_k, C/h)
    key_masks: tf.Tensor  # (N, T_k) bool, True: may be attended to

    def append(self, other):
        """Return the key positions of this one, followed by those of `other`."""
        return KeysValues(
            K=ops.concatenate([self.K, other.K], axis=2),
            V=ops.concatenate([self.V, other.V], axis=2),
            key_masks=ops.concatenate([self.key_masks, other.key_masks], axis=1),
        )


class MultiheadAttention(keras.layers.Layer):
    """Attention of queries to keys, residual and normalization (paper, section 3.2).

    (N, T_q, C), (N, T_k, C) -> (N, T_q, C). The defaults are those of the 2017 code, which differs
    from the paper: Q, K and V pass through a ReLU; the joined heads are not projected again;
    without masks, a position is padding if its vector is all zeros.

    A call has two halves, `project_keys_values` and `attend`. A decoder that decodes token by
    token keeps the `KeysValues` of earlier tokens and appends those of the newest one.

    `dropout_rate` is the share of attention weights dropped in training, and `add_norm` a dict, the
    arguments of `AddAndNorm`. With `output_projection`, the joined heads are projected by W_O. With
    `mask_queries`, all-zero queries get all-zero attention weights.
    """

    def __init__(
        self,
        num_units,
        num_heads=8,
        dropout_rate=0.0,
        add_norm=None,
        relu=True,
        output_projection=False,
        mask_queries=True,
        attention_score="scaled_dot",
        **kwargs,
    ):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.num_units = num_units
        self.num_heads = num_heads
        self.head_units = num_units // num_heads  # C/h, d_k in the paper
        # With a ReLU, Q, K and V start as three matrices, as in the 2017 code; without one they
        # start as parts of one (C, 3C) matrix, as in PyTorch: within sqrt(6 / (C + 3C)).
        scale = 1.0 if relu else 0.5
        self.query, self.key, self.value = (
            Linear(
                num_units,
                activation="relu" if relu else None,
                # One per layer: it keeps its seed.
                kernel_initializer=keras.initializers.VarianceScaling(scale, "fan_avg", "uniform"),
                dtype=dtype,
            )
            for _ in range(3)
        )
        self.output_projection = Linear(num_units, dtype=dtype) if output_projection else None
        self.mask_queries = mask_queries
        self.choice = ATTENTION_SCORES[attention_score]
        self.dropout = Dropout(dropout_rate, dtype=dtype)
        self.add_norm = AddAndNorm(**(add_norm or {}), dtype=dtype)

    def build(self, queries_shape, keys_shape):
        self.query.build(queries_shape)
        self.key.build(keys_shape)
        self.value.build(keys_shape)
        if self.output_projection:
            self.output_projection.build(queries_shape)
        self.score_parameters = add_parameters(self, self.choice, self.num_heads, self.head_units)
        self.add_norm.build(queries_shape)

    def call(
        self, queries, keys=None, key_masks=None, causality=False, positions=None, training=None
    ):
        """Attend to `keys`, or to `queries`; arguments as in `project_keys_values` and `attend`."""
        inputs = self.add_norm.prepare(queries)
        keys_values = self.project_keys_values(inputs if keys is None else keys, key_masks)
        return self.attend(queries, keys_values, causality, positions, training, inputs)

    def project_keys_values(self, keys, key_masks=None):
        """Project `keys`, (N, T_k, C), to `KeysValues`.

        In self-attention, they are what `add_norm.prepare` returns for the queries. `key_masks` are
        (N, T_k) bool, True: may be attended to. None for the rule of the 2017 code: every position
        whose vector is not all zeros.
        """
        K = self.split_heads(self.key(keys))  # (N, h, T_k, C/h)
        V = self.split_heads(self.value(keys))  # (N, h, T_k, C/h)
        return KeysValues(K, V, nonzero_positions(keys) if key_masks is None else key_masks)

    def empty_keys_values(self, N):
        """Return `KeysValues` of N rows without any key position."""
        zeros = ops.zeros((N, self.num_heads, 0, self.head_units), self.compute_dtype)
        return KeysValues(zeros, zeros, ops.zeros((N, 0), "bool"))

    def attend(
        self, queries, keys_values, causality=False, positions=None, training=None, inputs=None
    ):
        """Attend to projected keys, add the queries, and normalize: (N, T_q, C) -> (N, T_q, C).

        Args:
          keys_values: KeysValues, (N, h, T_k, C/h).
          causality: whether query i may attend to the keys 0 to i only.
          positions: in self-attention, a `positions.Positions`, or None.
          inputs: what `add_norm.prepare` returned for the queries, if it was called before.
        """
        inputs = self.add_norm.prepare(queries) if inputs is None else inputs
        outputs, _ = self.attend_heads(inputs, keys_values, causality, positions, training)
        outputs = self.join_heads(outputs)  # (N, T_q, C)
        if self.output_projection:
            outputs = self.output_projection(outputs)
        return self.add_norm(queries, outputs, training=training)

    def attention_weights(
        self, queries, keys=None, key_masks=None, causality=False, positions=None
    ):
        """Return the attention weights that `call` computes, (N, h, T_q, T_k)."""
        inputs = self.add_norm.prepare(queries)
        keys_values = self.project_keys_values(inputs if keys is None else keys, key_masks)
        _, weights = self.attend_heads(inputs, keys_values, causality, positions)
        return weights

    def attend_heads(self, queries, keys_values, causality=False, positions=None, training=None):
        """Compute the outputs of all heads, (N, h, T_q, C/h), and their weights.

        By default: softmax(Q K^T / sqrt(d_k)) V (paper, section 3.2.1, equation 1). The queries
        are those that `add_norm.prepare` returns.
        """
        Q = self.split_heads(self.query(queries))  # (N, h, T_q, C/h)
        K, V, key_masks = keys_values
        # Relative positions have hooks here and below (model/positions.py); absolute ones are None.
        if positions is not None:
            Q, K = positions.rotate(Q, K)
        keys = prepare_keys(K, self.score_parameters)  # (N, h, T_k, C/h)
        scores = attention_scores(self.choice, Q, keys, self.score_parameters)  # (N, h, T_q, T_k)
        if positions is not None:
            scores = positions.change_scores(scores, Q, K)  # (N, h, T_q, T_k)

        mask = key_masks[:, None, None, :]  # (N, 1, 1, T_k)
        if causality:
            q, k = (tf.range(tf.shape(vectors)[2]) for vectors in (Q, K))
            mask = mask & (k <= q[:, None])  # (N, 1, T_q, T_k)
        query_mask = nonzero_positions(queries)[:, None, :, None] if self.mask_queries else None
        weights = scores_to_weights(scores, mask, query_mask, self.choice.softmax)
        dropped = self.dropout(weights, training=training)
        outputs = tf.einsum("nhqk,nhkd->nhqd", dropped, V)  # (N, h, T_q, C/h)
        if positions is not None:
            outputs = positions.change_outputs(outputs, dropped)
        return outputs, weights

    def split_heads(self, inputs):
        """(N, T, C) -> (N, h, T, C/h)"""
        return tf.stack(tf.split(inputs, self.num_heads, axis=-1), axis=1)

    def join_heads(self, inputs):
        """(N, h, T, C/h) -> (N, T, C)"""
        shape = tf.shape(inputs)
        return tf.reshape(tf.transpose(inputs, [0, 2, 1, 3]), [shape[0], -1, self.num_units])


class Feedforward(keras.layers.Layer):
    """Two linear maps with an activation between, residual, normalization (paper, section 3.3).

    (N, T, C) -> (N, T, C). `add_norm` is a dict, the arguments of `AddAndNorm`.
    """

    def __init__(self, inner_units, num_units, add_norm=None, activation="relu", **kwargs):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.inner = Linear(inner_units, activation=activation, dtype=dtype)
        self.outer = Linear(num_units, dtype=dtype)
        self.add_norm = AddAndNorm(**(add_norm or {}), dtype=dtype)

    def build(self, input_shape):
        self.inner.build(input_shape)
        self.outer.build((*input_shape[:-1], self.inner.units))
        self.add_norm.build(input_shape)

    def call(self, inputs, training=None):
        inner = self.inner(self.add_norm.prepare(inputs))  # (N, T, inner_units)
        return self.add_norm(inputs, self.outer(inner), training=training)


def nonzero_positions(inputs):
    """Return which positions are not all zeros: (N, T, C) -> (N, T) bool."""
    return ops.sum(ops.abs(inputs), axis=-1) > 0


# The loss -----------------------------------------------------------


def label_smoothing(inputs, epsilon=0.1):
    """Move `epsilon` of the probability to all V classes, in equal shares (paper, section 5.4).

    (..., vocab) -> (..., vocab). The loss of the model is the cross entropy of these labels.

    >>> np.round(label_smoothing(np.eye(3)[1]), 3).tolist()
    [0.033, 0.933, 0.033]
    """
    return (1 - epsilon) * inputs + epsilon / inputs.shape[-1]


def softmax_and_log_sum_exp(logits):
    """Compute softmax(logits) and log(sum(exp(logits))): (M, vocab) -> (M, vocab), (M,)."""
    probs = tf.nn.softmax(logits)
    # From the most likely class: its probability cannot round to 0.
    log_sum_exp = tf.reduce_max(logits, axis=1) - tf.math.log(tf.reduce_max(probs, axis=1))
    return probs, log_sum_exp


def smoothed_cross_entropy(y, logits, epsilon=0.1):
    """Compute the cross entropy of smoothed labels: ids (...) int32, logits (..., vocab) -> (...).

        -sum(label_smoothing(one_hot(y)) * log_softmax(logits))

    Optimized: equals this formula. With L = log(sum(exp(logits))) it is

        L - logits[y] + epsilon * (logits[y] - mean(logits))

    which needs no labels of shape (..., vocab). The gradient is written out for the same reason:

        softmax(logits) - label_smoothing(one_hot(y))
    """
    # tf: keras.ops has no equal of tensor_scatter_nd_sub.
    targets = tf.reshape(y, [-1])  # (M,)

    @tf.custom_gradient
    def loss_of(logits):
        probs, log_sum_exp = softmax_and_log_sum_exp(logits)  # (M, vocab), (M,)
        target_logits = tf.gather(logits, targets, batch_dims=1)  # (M,)
        mean_logits = tf.reduce_mean(logits, axis=1)  # (M,)
        loss = log_sum_exp - target_logits + epsilon * (target_logits - mean_logits)  # (M,)

        def backward(upstream):
            gradient = probs - epsilon / logits.shape[-1]  # (M, vocab)
            indices = tf.stack([tf.range(tf.size(targets)), targets], axis=1)  # (M, 2)
            target_mass = tf.fill(tf.shape(targets), tf.cast(1 - epsilon, logits.dtype))  # (M,)
            gradient = tf.tensor_scatter_nd_sub(gradient, indices, target_mass)  # (M, vocab)
            return gradient * upstream[:, None]

        return loss, backward

    losses = loss_of(tf.reshape(logits, [-1, logits.shape[-1]]))  # (M,)
    return tf.reshape(losses, tf.shape(y))


def divergence_of_halves(logits):
    """Compute how far the probabilities of two passes are apart: (2 * M, vocab) -> (M,).

    It is the mean of both Kullback-Leibler divergences. For probabilities p and q,

        KL(p, q) + KL(q, p) = sum((p - q) * (log(p) - log(q)))

    Optimized: equals this formula, with a gradient that reads the probabilities fewer times.
    """

    @tf.custom_gradient
    def divergence_of(logits):
        probs, log_sum_exp = softmax_and_log_sum_exp(logits)  # (2 * M, vocab), (2 * M,)
        M = tf.shape(logits)[0] // 2
        p, q = probs[:M], probs[M:]
        log_ratio = logits[:M] - logits[M:] - (log_sum_exp[:M] - log_sum_exp[M:])[:, None]
        mean_p = tf.reduce_sum(p * log_ratio, axis=1)  # (M,)
        mean_q = tf.reduce_sum(q * log_ratio, axis=1)

        def backward(upstream):
            scale = upstream[:, None] / 2
            gradient_p = p * (log_ratio + (1 - mean_p)[:, None]) - q
            gradient_q = q * ((1 + mean_q)[:, None] - log_ratio) - p
            return tf.concat([gradient_p * scale, gradient_q * scale], axis=0)

        return (mean_p - mean_q) / 2, backward

    return divergence_of(logits)


# Models -------------------------------------------------------------


def shift_right(y):
    """Return the decoder inputs for teacher forcing: `<S>`, then `y` without its last column.

    >>> import numpy as np
    >>> shift_right(np.array([[5, 6, 3, 0]])).numpy().tolist()
    [[2, 5, 6, 3]]
    """
    return ops.concatenate([ops.full_like(y[:, :1], BOS), y[:, :-1]], axis=1)  # (N, T)


class TranslationModel(keras.Model):
    """The base class of `Transformer` and `RecurrentModel`; `hp` may be only `ModelHparams`."""

    def __init__(self, hp, source_vocab, target_vocab, **kwargs):
        super().__init__(**kwargs)
        self.hp, self.source_vocab, self.target_vocab = hp, source_vocab, target_vocab

    def get_config(self):
        """Return the arguments of the constructor; Keras does not record those of a model."""
        sizes = dict(source_vocab=self.source_vocab, target_vocab=self.target_vocab)
        return super().get_config() | sizes | dict(hp=self.hp.model_fields())

    @classmethod
    def from_config(cls, config):
        return cls(**config | dict(hp=ModelHparams(**config["hp"])))
