"""The layers of the Transformer, its loss, its optimizer and its learning rate.

The layers are named after the functions that the documents describe.

The axes of tensors are those of `hparams.py`; of T there are in an attention

    T_q  positions that ask (queries)        T_k  positions that answer (keys)
"""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from keras import ops

MASKED = -(2.0**32) + 1  # the score of what may not be attended to


class Composite(keras.layers.Layer):
    """A layer made of layers, each of which makes its weights at its own first call."""

    def build(self, *_):
        """Nothing. Without it Keras first traces the whole layer, a second for four blocks."""


class Embedding(keras.layers.Layer):
    """Look up a vector for each id: (N, T) int32 -> (N, T, C).

    Args:
      vocab_size: V, rows of the table.
      num_units: C, columns of the table.
      zero_pad: whether id 0 is the zero vector, whatever its row in the table.
      scale: whether to multiply by sqrt(C) (paper, section 3.4).
      pad_logit: whether `score` has a vector for id 0; else the logit of id 0 is 0.
      initializer: what the table is drawn from.
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
        """Make the table."""
        self.lookup_table = self.add_weight(
            shape=(self.vocab_size, self.num_units),
            initializer=self.initializer,
            name="lookup_table",
        )

    def table(self):
        """The vectors of all ids, (V, C), zeros for id 0 where it is padding."""
        table = ops.convert_to_tensor(self.lookup_table)
        if not self.zero_pad:
            return table
        return ops.concatenate([ops.zeros_like(table[:1]), table[1:]], axis=0)

    def call(self, inputs):
        """Ids (N, T) -> (N, T, C)."""
        outputs = ops.take(self.lookup_table, inputs, axis=0)  # (N, T, C)
        if self.zero_pad:
            outputs = outputs * ops.cast(inputs != 0, outputs.dtype)[..., None]
        return outputs * self.num_units**0.5 if self.scale else outputs

    def score(self, outputs):
        """How well each vector of the table fits: (..., C) -> (..., V) (paper, section 3.4)."""
        table = self.lookup_table if self.pad_logit else self.table()
        return ops.matmul(outputs, ops.transpose(ops.cast(table, outputs.dtype)))


class PositionalEncoding(keras.layers.Layer):
    """Sines and cosines of each position: (N, T) int32 -> (N, T, C).

    The angle of column i is pos / 10000^(2i / C), a sine where i is even and a cosine
    where it is odd: this is the documents' formula. `paired` has the exponent
    (i - i % 2) / C, so that the columns go in pairs of one frequency (paper,
    section 3.5). There is no last position.

    Args:
      num_units: C.
      paired: whether it is the paper's formula, or the documents'.
      zero_pad: whether position 0 is the zero vector.
      scale: whether to multiply by sqrt(C).
    """

    def __init__(self, num_units, paired=False, zero_pad=True, scale=True, **kwargs):
        super().__init__(**kwargs)
        i = np.arange(num_units)
        exponents = (i - i % 2 if paired else 2 * i) / num_units
        self.rates = (10000.0**-exponents).astype(np.float32)  # (C,)
        # A cosine is a sine a quarter of a turn ahead.
        self.phases = (np.pi / 2 * (i % 2)).astype(np.float32)  # (C,)
        self.zero_pad = zero_pad
        self.scale = num_units**0.5 if scale else 1.0

    def call(self, inputs):
        """Positions (N, T) -> (N, T, C)."""
        positions = ops.cast(inputs, "float32")[..., None]  # (N, T, 1)
        outputs = self.scale * ops.sin(positions * self.rates + self.phases)  # (N, T, C)
        if self.zero_pad:
            outputs = outputs * ops.cast(positions > 0, "float32")
        return ops.cast(outputs, self.compute_dtype)


class Normalize(keras.layers.Layer):
    """Layer normalisation over the last axis: (..., C) -> (..., C).

    Args:
      epsilon: added to the variance, inside the root.
    """

    def __init__(self, epsilon=1e-8, **kwargs):
        super().__init__(**kwargs)
        self.epsilon = epsilon

    def build(self, input_shape):
        """Make beta and gamma, (C,) each."""
        self.beta = self.add_weight(shape=input_shape[-1:], initializer="zeros", name="beta")
        self.gamma = self.add_weight(shape=input_shape[-1:], initializer="ones", name="gamma")

    def call(self, inputs):
        """(..., C) -> (..., C)."""
        wide = widen(inputs)
        centered = wide - ops.mean(wide, axis=-1, keepdims=True)  # (..., C)
        variance = ops.mean(ops.square(centered), axis=-1, keepdims=True)  # (..., 1)
        normalized = centered * ops.rsqrt(variance + self.epsilon)
        return self.gamma * ops.cast(normalized, inputs.dtype) + self.beta


class Dropout(keras.layers.Layer):
    """Zero a share of the units in training, and scale the others up to the same mean.

    (...) -> (...). What `keras.layers.Dropout` does takes half its time for random
    numbers of 32 bits, one a unit; here a unit takes 16.

    Args:
      rate: share that is zeroed, to within 2^-17.
    """

    def __init__(self, rate, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        # Of the numbers of 16 bits, those that zero.
        self.dropped = min(round(rate * 2**16), 2**16 - 1)
        self.seed_generator = keras.random.SeedGenerator() if self.dropped else None

    def call(self, inputs, training=None):
        """(...) -> (...)."""
        if not training or not self.dropped:
            return inputs
        units = tf.size(inputs)
        seed = tf.cast(self.seed_generator.next() % (2**31 - 1), tf.int32)  # (2,)
        # Each device has the same generator, and drops other units.
        seed += [tf.distribute.get_replica_context().replica_id_in_sync_group, 0]
        four = tf.random.stateless_uniform([units // 4 + 1], seed, None, None, tf.uint64)
        numbers = tf.reshape(tf.bitcast(four, tf.uint16), [-1])[:units]  # (units,), four of each
        kept = tf.reshape(numbers, tf.shape(inputs)) >= self.dropped  # (...)
        scale = tf.cast(2**16 / (2**16 - self.dropped), inputs.dtype)
        return inputs * tf.where(kept, scale, tf.zeros_like(scale))


class Projected(NamedTuple):
    """The side of an attention that is attended to."""

    K: keras.KerasTensor  # (N, h, T_k, C/h)
    V: keras.KerasTensor  # (N, h, T_k, C/h)
    key_masks: keras.KerasTensor  # (N, T_k) bool, True where there is something

    def then(self, other):
        """The positions of this one and behind them those of another."""
        return Projected(
            ops.concatenate([self.K, other.K], axis=2),
            ops.concatenate([self.V, other.V], axis=2),
            ops.concatenate([self.key_masks, other.key_masks], axis=1),
        )


class MultiheadAttention(Composite):
    """Attention of queries to keys, residual and normalisation (paper, section 3.2).

    (N, T_q, C), (N, T_k, C) -> (N, T_q, C). The defaults are as documented, and
    unlike the paper: the projections to Q, K and V pass through a ReLU, the joined
    heads are not projected again, and where no masks are given a position counts
    as padding whose vector is all zeros.

    `project` and `attend` are the two halves of a call: a decoder that goes word
    by word keeps what `project` returned for the words before.

    Args:
      num_units: C.
      num_heads: h, a divisor of C.
      dropout_rate: share of attention weights dropped in training.
      residual_dropout_rate: share of the outputs dropped in training, before they are
        added to the queries (paper, section 5.4).
      relu: whether Q, K and V pass through a ReLU.
      output_projection: whether the joined heads are projected by W_O.
      mask_queries: whether a query that is all zeros takes nothing.
    """

    def __init__(
        self,
        num_units,
        num_heads=8,
        dropout_rate=0.0,
        residual_dropout_rate=0.0,
        relu=True,
        output_projection=False,
        mask_queries=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_units = num_units
        self.num_heads = num_heads
        self.head_units = num_units // num_heads  # C/h
        self.query, self.key, self.value = (
            keras.layers.Dense(
                num_units, "relu" if relu else None, kernel_initializer=xavier_of(1 if relu else 3)
            )
            for _ in range(3)
        )
        self.output_projection = keras.layers.Dense(num_units) if output_projection else None
        self.mask_queries = mask_queries
        self.dropout = Dropout(dropout_rate)
        self.residual_dropout = Dropout(residual_dropout_rate)
        self.normalize = Normalize()

    def call(self, queries, keys, key_masks=None, causality=False, training=None):
        """Queries (N, T_q, C), keys (N, T_k, C), which count (N, T_k) bool -> (N, T_q, C)."""
        return self.attend(queries, self.project(keys, key_masks), causality, training)

    def project(self, keys, key_masks=None):
        """Keys (N, T_k, C), and which count (N, T_k) bool -> Projected.

        Without masks those count that are not all zeros, as documented.
        """
        K = self.split_heads(self.key(keys))  # (N, h, T_k, C/h)
        V = self.split_heads(self.value(keys))  # (N, h, T_k, C/h)
        return Projected(K, V, active(keys) if key_masks is None else key_masks)

    def nothing(self, N):
        """The `Projected` of no position."""
        zeros = ops.zeros((N, self.num_heads, 0, self.head_units), self.compute_dtype)
        return Projected(zeros, zeros, ops.zeros((N, 0), "bool"))

    def attend(self, queries, projected, causality=False, training=None):
        """Queries (N, T_q, C), Projected -> (N, T_q, C)."""
        weights = self.weigh(queries, projected, causality)  # (N, h, T_q, T_k)
        weights = self.dropout(weights, training=training)
        outputs = self.join_heads(ops.matmul(weights, projected.V))  # (N, T_q, C)
        if self.output_projection:
            outputs = self.output_projection(outputs)
        outputs = self.residual_dropout(outputs, training=training)
        return self.normalize(outputs + queries)

    def weigh(self, queries, projected, causality=False):
        """How much of each key a query takes: (N, h, T_q, T_k), summing to 1 over T_k."""
        Q = self.split_heads(self.query(queries))  # (N, h, T_q, C/h)
        scores = tf.matmul(Q, projected.K, transpose_b=True)  # (N, h, T_q, T_k)
        scores = scores / self.head_units**0.5

        masks = projected.key_masks[:, None, None, :]  # (N, 1, 1, T_k)
        if causality:
            T_q, T_k = ops.shape(scores)[-2:]
            masks = masks & (ops.arange(T_k) <= ops.arange(T_q)[:, None])  # (N, 1, T_q, T_k)
        weights = ops.softmax(ops.where(masks, widen(scores), MASKED))
        weights = ops.cast(weights, Q.dtype)

        if not self.mask_queries:
            return weights
        query_masks = active(queries)[:, None, :, None]  # (N, 1, T_q, 1)
        return weights * ops.cast(query_masks, weights.dtype)

    def split_heads(self, inputs):
        """(N, T, C) -> (N, h, T, C/h)"""
        N, T, _ = ops.shape(inputs)
        outputs = ops.reshape(inputs, (N, T, self.num_heads, self.head_units))
        return ops.swapaxes(outputs, 1, 2)

    def join_heads(self, inputs):
        """(N, h, T, C/h) -> (N, T, C)"""
        N, _, T, _ = ops.shape(inputs)
        return ops.reshape(ops.swapaxes(inputs, 1, 2), (N, T, self.num_units))


class Feedforward(Composite):
    """Two linear maps with a ReLU between, residual and normalisation (paper, section 3.3).

    (N, T, C) -> (N, T, C).

    Args:
      inner_units: width between the two maps, 4 * C in the paper.
      num_units: C.
      residual_dropout_rate: share of the outputs dropped in training, before they are
        added to the inputs (paper, section 5.4).
    """

    def __init__(self, inner_units, num_units, residual_dropout_rate=0.0, **kwargs):
        super().__init__(**kwargs)
        self.inner = keras.layers.Dense(inner_units, activation="relu")
        self.outer = keras.layers.Dense(num_units)
        self.residual_dropout = Dropout(residual_dropout_rate)
        self.normalize = Normalize()

    def call(self, inputs, training=None):
        """(N, T, C) -> (N, T, C)."""
        outputs = self.inner(inputs)  # (N, T, inner_units)
        outputs = self.outer(outputs)  # (N, T, C)
        outputs = self.residual_dropout(outputs, training=training)
        return self.normalize(outputs + inputs)


def xavier_of(parts):
    """Xavier initialisation of equal matrices as if they were `parts` of one, side by side."""
    return keras.initializers.VarianceScaling(2 / (1 + parts), "fan_avg", "uniform")


def widen(inputs):
    """The same in float32 at least: sums of many numbers go wrong in bfloat16."""
    return ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))


def active(inputs):
    """Which positions are not all zeros: (N, T, C) -> (N, T) bool."""
    return ops.sum(ops.abs(inputs), axis=-1) > 0


def label_smoothing(inputs, epsilon=0.1):
    """Take `epsilon` of the probability from the target and share it among all V classes.

    (..., V) -> (..., V) (paper, section 5.4). Written out to be read: `cross_entropy` is
    that of these labels, and does without them.

    >>> np.round(label_smoothing(np.eye(3)[1]), 3).tolist()
    [0.033, 0.933, 0.033]
    """
    return (1 - epsilon) * inputs + epsilon / inputs.shape[-1]


def cross_entropy(y, logits, epsilon=0.1):
    """Cross entropy of the smoothed labels: (...) int32, (..., V) -> (...).

    With L = log(sum(exp(logits))) it is

        sum(label_smoothing(one_hot(y)) * (L - logits))
            = L - logits[y] + epsilon * (logits[y] - mean(logits))

    and so the labels, which are as large as the logits, are never made.
    """

    @tf.custom_gradient
    def smoothed(logits):
        probs = tf.nn.softmax(logits)  # (M, V)
        # Of the likeliest word, whose probability cannot be 0.
        L = tf.reduce_max(logits, axis=-1) - tf.math.log(tf.reduce_max(probs, axis=-1))  # (M,)
        chosen = tf.gather(logits, words, batch_dims=1)  # (M,)
        loss = L - chosen + epsilon * (chosen - tf.reduce_mean(logits, axis=-1))  # (M,)

        def backward(upstream):
            spread = probs - epsilon / logits.shape[-1]  # (M, V)
            places = tf.stack([tf.range(tf.size(words)), words], axis=1)  # (M, 2)
            less = tf.fill(tf.shape(words), tf.cast(1 - epsilon, logits.dtype))  # (M,)
            return tf.tensor_scatter_nd_sub(spread, places, less) * upstream[:, None]

        return loss, backward

    words = tf.reshape(y, [-1])  # (M,)
    flat = tf.reshape(logits, [-1, logits.shape[-1]])  # (M, V)
    return tf.reshape(smoothed(flat), tf.shape(y))


class WarmUp(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises in a line and then falls with the root of the step.

    peak * warmup**0.5 * min(step * warmup**-1.5, step**-0.5), where the first step is
    1 (paper, section 5.3, whose peak is (C * warmup)**-0.5). Without warm-up it is the
    peak throughout.

    Args:
      peak: the highest learning rate.
      warmup_steps: the step that has it.
    """

    def __init__(self, peak, warmup_steps):
        self.peak = peak
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1  # that many steps are done
        if not self.warmup_steps:
            return self.peak * ops.ones_like(step)
        rise = step * self.warmup_steps**-1.5
        return self.peak * self.warmup_steps**0.5 * ops.minimum(rise, step**-0.5)

    def get_config(self):
        """Its arguments, as Keras wants them."""
        return dict(peak=self.peak, warmup_steps=self.warmup_steps)


class Adam(keras.optimizers.Adam):
    """Adam (Kingma and Ba 2015) as Keras has it, but in one pass over memory.

    Keras' own is a chain of operations, each of which reads and writes all of the weights.
    """

    def build(self, variables):
        """Make what is kept of each variable."""
        super().build(variables)
        # Where there are several devices, the sum of their gradients is seen here alone.
        self.halves = [tf.Variable(0.0, trainable=False) for _ in variables]

    def gradient_norm(self):
        """The norm of the last gradient, of all weights together: () float32."""
        return tf.sqrt(2 * tf.add_n([half.read_value() for half in self.halves]))

    def update_step(self, gradient, variable, learning_rate):
        """Change a variable by its gradient, both of one shape; Keras calls it for each."""
        index = self._get_variable_index(variable)
        self.halves[index].assign(tf.cast(tf.nn.l2_loss(gradient), tf.float32))
        dtype = self._momentums[index].dtype
        beta_1, beta_2 = (tf.cast(beta, dtype) for beta in (self.beta_1, self.beta_2))
        step = ops.cast(self.iterations + 1, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=handle(variable),
            m=handle(self._momentums[index]),
            v=handle(self._velocities[index]),
            beta1_power=beta_1**step,
            beta2_power=beta_2**step,
            lr=ops.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.cast(self.epsilon, dtype),
            grad=tf.convert_to_tensor(gradient),
        )


def handle(variable):
    """What TensorFlow's operations know a variable by."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle
