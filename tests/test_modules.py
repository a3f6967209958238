"""Each layer, the loss and the optimizer alone: parameters, shapes and formulas."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import BFLOAT16
from helpers import random
from model.positions import LearnedPositions
from model.transformer import DecoderBlock, EncoderBlock, InputEmbedding
from modules import (
    AddAndNorm,
    Dropout,
    Embedding,
    Feedforward,
    Linear,
    MultiheadAttention,
    Normalize,
    PositionalEncoding,
    divergence_of_halves,
    smoothed_cross_entropy,
)

IDS = np.array([[5, 1, 7, 0], [2, 3, 0, 0]], np.int32)  # (N, T)
C = 8

pytestmark = pytest.mark.usefixtures("seed")


def assign(variables, others):
    for variable, other in zip(variables, others, strict=True):
        variable.assign(other)


def input_embedding(**kwargs):
    positions = LearnedPositions(maxlen=4, hidden_units=C, num_heads=1, **kwargs)
    return InputEmbedding(Embedding(9, C, **kwargs), positions, 0.1, **kwargs)


BLOCK_ARGS = dict(
    attention=dict(num_units=C, num_heads=2), feedforward=dict(inner_units=4 * C, num_units=C)
)
# (function that makes a layer, shapes of its inputs (None: ids), number of its parameters)
LAYERS = [
    (partial(Embedding, 9, C), [None], 1),
    (partial(PositionalEncoding, C), [None], 0),
    (partial(Linear, C, activation="relu"), [(2, 4, C)], 2),
    (Normalize, [(2, 4, C)], 2),
    (partial(Dropout, 0.5), [(2, 4, C)], 0),
    (AddAndNorm, [(2, 4, C)] * 2, 2),
    (partial(AddAndNorm, residual=False, normalization="none"), [(2, 4, C)] * 2, 0),
    (partial(Feedforward, 4 * C, C), [(2, 4, C)], 6),
    (partial(MultiheadAttention, C, 2), [(2, 4, C), (2, 5, C)], 8),
    (partial(MultiheadAttention, C, 2, output_projection=True), [(2, 4, C)] * 2, 10),
    (input_embedding, [None], 2),
    (partial(EncoderBlock, **BLOCK_ARGS), [(2, 4, C)], 14),
    (partial(DecoderBlock, **BLOCK_ARGS), [(2, 4, C), (2, 5, C)], 22),
]


@pytest.mark.parametrize("make, shapes, parameters", LAYERS)
def test_layer(make, shapes, parameters):
    """A graph computes what eager execution does, and every parameter gets a gradient.

    In mixed precision only the parameters are float32.
    """
    inputs = [IDS if shape is None else random(*shape) for shape in shapes]
    layer = make()
    with tf.GradientTape() as tape:
        eager = layer(*inputs)
        loss = tf.reduce_sum(eager * random(2, 4, C))
    variables = layer.trainable_variables
    assert len(variables) == parameters
    assert eager.shape == (2, 4, C) and np.isfinite(eager).all()
    np.testing.assert_allclose(tf.function(layer)(*inputs), eager, atol=1e-5)
    for gradient in tape.gradient(loss, [v.value for v in variables]):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 0

    for dtype, atol in [("float32", 0), *[("mixed_bfloat16", 0.15)] * BFLOAT16]:
        copy = make(dtype=dtype)
        copy(*inputs)
        assert all(v.dtype == "float32" for v in copy.trainable_variables)
        assign(copy.trainable_variables, variables)
        outputs = copy(*inputs)
        assert outputs.dtype == dtype.removeprefix("mixed_")
        np.testing.assert_allclose(tf.cast(outputs, tf.float32), eager, atol=atol)


@pytest.mark.parametrize("shape", [(3, C), (2, 0, C), (2, 3, C)])
def test_a_linear_map_equals_that_of_keras(shape):
    x = random(*shape)
    linear, dense = Linear(5, activation="relu"), keras.layers.Dense(5, activation="relu")
    expected = dense(x)
    linear.build(shape)
    assign(linear.variables, dense.variables)
    np.testing.assert_array_equal(linear(x), expected)
    any_length = tf.TensorSpec([None] * (len(shape) - 1) + [C])
    graph = tf.function(linear).get_concrete_function(any_length)
    assert graph.structured_outputs.shape.as_list() == [*any_length.shape[:-1], 5]


def test_embedding_looks_up_scaled_vectors():
    layer = Embedding(9, C)
    outputs = layer(IDS).numpy()
    table = layer.lookup_table.numpy()
    np.testing.assert_allclose(outputs[0, 0], table[5] * C**0.5, rtol=1e-6)
    assert not outputs[IDS == 0].any()

    plain = Embedding(9, C, zero_pad=False, scale=False)
    np.testing.assert_array_equal(plain(IDS), plain.lookup_table.numpy()[IDS])


def test_logits_are_products_with_the_rows_of_the_table():
    inputs = random(2, 4, C)
    for pad_logit in (True, False):
        layer = Embedding(9, C, pad_logit=pad_logit)
        layer(IDS)
        table = layer.lookup_table.numpy()
        np.testing.assert_array_equal(layer.padded_table(), table * (np.arange(9) > 0)[:, None])
        expected = inputs @ table.T
        if not pad_logit:
            expected[..., 0] = 0
        np.testing.assert_allclose(layer.to_logits(inputs), expected, atol=1e-5)


NORMAL = keras.initializers.RandomNormal(stddev=0.3)


@pytest.mark.parametrize("given, expected", [({}, 0.0577), (dict(initializer=NORMAL), 0.3)])
def test_the_initial_table_has_the_standard_deviation_asked_for(given, expected):
    layer = Embedding(500, 100, **given)
    layer(IDS)
    assert np.std(layer.lookup_table) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("paired", [False, True])
def test_positional_encoding_is_the_formula(paired):
    """That of 2017, and that of the paper, where columns come in pairs of one frequency."""
    positions = np.array([[0, 1, 2, 500, 3000]])  # (1, T)
    outputs = np.array(PositionalEncoding(C, paired, zero_pad=False, scale=False)(positions))
    for t, pos in enumerate(positions[0]):
        for i in range(C):
            angle = pos / 10000 ** ((i - i % 2 if paired else 2 * i) / C)
            expected = np.cos(angle) if i % 2 else np.sin(angle)
            assert outputs[0, t, i] == pytest.approx(expected, abs=3e-4 if pos > 9 else 1e-6)
    scaled = np.array(PositionalEncoding(C, paired)(positions))
    assert not scaled[0, 0].any()
    np.testing.assert_allclose(scaled[0, 1:], outputs[0, 1:] * C**0.5, rtol=1e-6)


def test_normalize_is_layer_normalization():
    inputs = 3 + 5 * random(2, 4, C)
    expected = keras.layers.LayerNormalization(epsilon=1e-8)(inputs)
    np.testing.assert_allclose(Normalize()(inputs), expected, atol=1e-5)


def test_q_k_and_v_start_as_different_matrices_in_their_range():
    """Linear projections start as parts of one matrix (C, 3C), those with a ReLU alone."""
    for relu, bound in ((dict(), (6 / 128) ** 0.5), (dict(relu=False), (6 / 256) ** 0.5)):
        layer = MultiheadAttention(64, 4, **relu)
        layer.build((2, 4, 64), (2, 4, 64))
        kernels = [dense.kernel.numpy().ravel() for dense in (layer.query, layer.key, layer.value)]
        np.testing.assert_allclose(np.abs(kernels).max(axis=1), bound, rtol=0.01)
        assert np.abs(np.corrcoef(kernels) - np.eye(3)).max() < 0.5


def test_attention_is_a_distribution_over_the_keys_that_are_not_padding():
    layer = MultiheadAttention(C, 2)
    queries, keys = random(2, 4, C), random(2, 4, C)
    queries[0, 3] = keys[0, 2] = keys[1, 0] = 0
    layer(queries, keys)
    weights = np.array(layer.attention_weights(queries, keys))  # (N, h, T_q, T_k)
    assert not weights[0, :, :, 2].any() and not weights[1, :, :, 0].any()
    assert not weights[0, :, 3].any()  # a query that is padding attends to nothing
    sums = np.ones((2, 2, 4))
    sums[0, :, 3] = 0
    np.testing.assert_allclose(weights.sum(-1), sums, atol=1e-6)

    causal = np.array(layer.attention_weights(queries, keys, causality=True))
    assert not causal[0][:, ~np.tri(4, dtype=bool)].any()
    assert causal[0, :, 1, 0].all()


def test_heads_are_joined_as_they_were_split():
    layer = MultiheadAttention(C, 4)
    inputs = random(2, 3, C)
    split = layer.split_heads(inputs)
    assert split.shape == (2, 4, 3, 2)
    np.testing.assert_array_equal(split[:, 1], inputs[:, :, 2:4])
    np.testing.assert_array_equal(layer.join_heads(split), inputs)


@pytest.mark.parametrize(
    "rate, dtype", [(0.1, "float32"), (0.75, "mixed_bfloat16"), (0.999999, "float32")]
)
def test_dropout_zeroes_its_share_and_keeps_the_mean(rate, dtype):
    keras.utils.set_random_seed(0)
    layer, inputs = Dropout(rate, dtype=dtype), tf.ones([999, 1001])
    first, second = (layer(inputs, training=True).numpy().astype("f") for _ in range(2))
    assert first.shape == inputs.shape and (first != second).any()
    deviation = (rate * (1 - rate) / first.size) ** 0.5
    assert np.mean(first == 0) == pytest.approx(rate, abs=5 * deviation + 2**-15)
    np.testing.assert_allclose(first[first > 0], 1 / (1 - layer.threshold / 2**16), rtol=0.01)
    # A unit is independent of its neighbours in its row and in its column.
    for axis in range(2):
        pairs = (first * np.roll(first, 1, axis) > 0).mean()
        assert pairs == pytest.approx((1 - rate) ** 2, abs=0.002)


def test_the_end_of_a_sublayer_is_that_of_the_paper():
    x, outputs = random(2, 4, C), random(2, 4, C)
    for residual in (True, False):
        expected = outputs + x if residual else outputs
        plain = AddAndNorm(residual=residual, normalization="none")
        np.testing.assert_allclose(plain(x, outputs), expected, atol=1e-6)
        layer = AddAndNorm(residual=residual)
        np.testing.assert_allclose(layer(x, outputs), Normalize()(expected), atol=1e-6)
        np.testing.assert_array_equal(layer.prepare(x), x)
        before = AddAndNorm(residual=residual, normalization="pre")
        before.build(x.shape)
        np.testing.assert_allclose(before(x, outputs), expected, atol=1e-6)
        np.testing.assert_allclose(before.prepare(x), Normalize()(x), atol=1e-6)


def keras_loss(logits):
    """What `smoothed_cross_entropy` equals."""
    loss = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.1, reduction=None
    )
    return loss(tf.one_hot(IDS, logits.shape[-1]), logits)


def plain_divergence(logits):
    """The formula that `divergence_of_halves` equals."""
    p, q = tf.split(tf.nn.softmax(logits), 2)
    return tf.reduce_sum(p * tf.math.log(p / q) + q * tf.math.log(q / p), axis=-1) / 2


@pytest.mark.parametrize(
    "ours, plain, shape, rtol",
    [
        (partial(smoothed_cross_entropy, IDS), keras_loss, (2, 4), 1e-5),
        (divergence_of_halves, plain_divergence, (4,), 1e-4),
    ],
)
def test_a_loss_and_its_gradient_are_those_of_the_plain_formula(ours, plain, shape, rtol):
    logits = tf.constant(3 * random(*(shape if len(shape) > 1 else (8,)), 9))
    upstream = tf.constant(random(*shape))
    losses, gradients = [], []
    for loss in (ours, plain):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            losses.append(loss(logits))
            total = tf.reduce_sum(upstream * losses[-1])
        gradients.append(tape.gradient(total, logits))
    np.testing.assert_allclose(*losses, rtol=rtol)
    np.testing.assert_allclose(*gradients, atol=rtol / 10)
    assert (losses[0].numpy() > 0.1).all()


def test_the_loss_of_an_impossible_token_is_finite():
    loss = smoothed_cross_entropy(np.array([1]), tf.constant([[500.0, 0.0]]), epsilon=0.0)
    np.testing.assert_allclose(loss, [500.0])
    assert divergence_of_halves(tf.constant([[0.0, 1e3], [1e3, 0.0]])).numpy() == [1e3]
