"""Each layer alone: weights, shapes, and the documented formulas."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from modules import (
    Adam,
    Dropout,
    Embedding,
    Feedforward,
    MultiheadAttention,
    Normalize,
    PositionalEncoding,
    WarmUp,
    cross_entropy,
    label_smoothing,
)

IDS = np.array([[5, 1, 7, 0], [2, 3, 0, 0]], np.int32)  # (N, T)
C = 8


RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def seed():
    """Every test draws the same numbers, whichever ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def units(*shape):
    return RNG.normal(size=shape).astype(np.float32)


def check_layer(layer, *inputs, weights, shape):
    """Weight count, shape, eager equal to graph, and a gradient for every weight."""
    with tf.GradientTape() as tape:
        eager = layer(*inputs)
        loss = tf.reduce_sum(eager * units(*shape))
    assert len(layer.trainable_variables) == weights
    assert eager.shape == shape and np.isfinite(eager).all()
    np.testing.assert_allclose(tf.function(layer)(*inputs), eager, atol=1e-5)
    for gradient in tape.gradient(loss, [v.value for v in layer.trainable_variables]):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 0
    return eager.numpy()


def test_embedding():
    layer = Embedding(9, C)
    outputs = check_layer(layer, IDS, weights=1, shape=(2, 4, C))
    table = layer.lookup_table.numpy()
    np.testing.assert_allclose(outputs[0, 0], table[5] * C**0.5, rtol=1e-6)
    assert not outputs[IDS == 0].any()

    plain = Embedding(9, C, zero_pad=False, scale=False)
    outputs = check_layer(plain, IDS, weights=1, shape=(2, 4, C))
    np.testing.assert_array_equal(outputs, plain.lookup_table.numpy()[IDS])


def test_positional_encoding_is_the_documented_formula():
    positions = np.arange(10)[None]  # (1, T)
    outputs = np.array(PositionalEncoding(C, zero_pad=False, scale=False)(positions))
    for pos in range(10):
        for i in range(C):
            angle = pos / np.power(10000, 2.0 * i / C)
            expected = np.cos(angle) if i % 2 else np.sin(angle)
            assert outputs[0, pos, i] == pytest.approx(expected, abs=1e-6)
    scaled = np.array(PositionalEncoding(C)(positions))
    assert not scaled[0, 0].any()
    np.testing.assert_allclose(scaled[0, 1:], outputs[0, 1:] * C**0.5, rtol=1e-6)


def test_paired_positional_encoding_is_the_papers_formula():
    positions = np.array([[0, 1, 2, 500, 3000]])  # (1, T)
    outputs = np.array(PositionalEncoding(C, paired=True, zero_pad=False, scale=False)(positions))
    for t, pos in enumerate(positions[0]):
        for i in range(C // 2):
            angle = pos / 10000 ** (2 * i / C)
            pair = outputs[0, t, 2 * i : 2 * i + 2]
            np.testing.assert_allclose(pair, [np.sin(angle), np.cos(angle)], atol=3e-4)


def test_normalize_gives_mean_0_and_variance_1():
    inputs = 3 + 5 * units(2, 4, C)
    outputs = check_layer(Normalize(), inputs, weights=2, shape=(2, 4, C))
    np.testing.assert_allclose(outputs.mean(-1), 0, atol=1e-5)
    np.testing.assert_allclose(outputs.var(-1), 1, atol=1e-4)


def test_feedforward():
    check_layer(Feedforward(4 * C, C), units(2, 4, C), weights=6, shape=(2, 4, C))


def test_multihead_attention():
    layer = MultiheadAttention(C, 2)
    check_layer(layer, units(2, 3, C), units(2, 5, C), weights=8, shape=(2, 3, C))


def test_attention_is_a_distribution_over_the_keys_that_count():
    layer = MultiheadAttention(C, 2)
    queries, keys = units(2, 4, C), units(2, 4, C)
    queries[0, 3] = keys[0, 2] = keys[1, 0] = 0
    layer(queries, keys)
    weights = np.array(layer.weigh(queries, layer.project(keys)))  # (N, h, T_q, T_k)
    assert not weights[0, :, :, 2].any() and not weights[1, :, :, 0].any()
    assert not weights[0, :, 3].any()  # a query that is padding takes nothing
    sums = np.ones((2, 2, 4))
    sums[0, :, 3] = 0
    np.testing.assert_allclose(weights.sum(-1), sums, atol=1e-6)

    causal = np.array(layer.weigh(queries, layer.project(keys), causality=True))
    assert not causal[0][:, ~np.tri(4, dtype=bool)].any()
    assert causal[0, :, 1, 0].all()


def test_a_row_that_is_all_padding_is_finite():
    layer = MultiheadAttention(C, 2)
    assert np.isfinite(layer(np.zeros((1, 4, C)), np.zeros((1, 4, C)))).all()


def test_heads_are_joined_as_they_were_split():
    layer = MultiheadAttention(C, 4)
    inputs = units(2, 3, C)
    split = layer.split_heads(inputs)
    assert split.shape == (2, 4, 3, 2)
    np.testing.assert_array_equal(split[:, 1], inputs[:, :, 2:4])
    np.testing.assert_array_equal(layer.join_heads(split), inputs)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("rate", [0.1, 0.75, 0.999999])
def test_dropout_zeroes_its_share_and_keeps_the_mean(rate, dtype):
    keras.utils.set_random_seed(0)
    layer, inputs = Dropout(rate, dtype=dtype), tf.ones([999, 1001])
    first, second = (np.array(layer(inputs, training=True), "f") for _ in range(2))
    assert first.shape == inputs.shape and (first != second).any()
    spread = (rate * (1 - rate) / first.size) ** 0.5
    assert np.mean(first == 0) == pytest.approx(rate, abs=5 * spread + 2**-15)
    np.testing.assert_allclose(first[first > 0], 1 / (1 - layer.dropped / 2**16), rtol=0.01)
    # A unit's neighbours say nothing of it, in its row or its column.
    for axis in range(2):
        pairs = (first * np.roll(first, 1, axis) > 0).mean()
        assert pairs == pytest.approx((1 - rate) ** 2, abs=0.002)


def test_dropout_acts_in_training_only():
    layer = MultiheadAttention(C, 2, dropout_rate=0.9)
    inputs = units(2, 4, C)
    np.testing.assert_array_equal(layer(inputs, inputs), layer(inputs, inputs))
    trained = layer(inputs, inputs, training=True)
    assert np.abs(trained - layer(inputs, inputs)).max() > 0.01


@pytest.mark.parametrize(
    "layer, count",
    [
        (MultiheadAttention(C, 2, residual_dropout_rate=0.9), 2),
        (Feedforward(4 * C, C, residual_dropout_rate=0.9), 1),
    ],
)
def test_residual_dropout_acts_in_training_only(layer, count):
    inputs = [units(2, 4, C)] * count
    np.testing.assert_array_equal(layer(*inputs), layer(*inputs))
    assert np.abs(layer(*inputs, training=True) - layer(*inputs)).max() > 0.01


def test_warm_up_rises_to_its_peak_and_falls():
    rates = [float(WarmUp(0.5, 10)(step)) for step in range(40)]
    np.testing.assert_allclose(rates[:10], 0.05 * np.arange(1, 11), rtol=1e-6)
    assert max(rates) == rates[9] and rates[39] == pytest.approx(0.25)
    assert float(WarmUp(0.5, 0)(123)) == 0.5


def test_loss_is_keras_cross_entropy_with_label_smoothing():
    y, logits = IDS, units(2, 4, 9)
    expected = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.1, reduction=None
    )(np.eye(9)[y], logits)
    np.testing.assert_allclose(cross_entropy(y, logits), expected, rtol=1e-5)
    np.testing.assert_allclose(label_smoothing(np.eye(9)[y]).sum(-1), 1)


def test_the_loss_of_an_impossible_word_is_finite():
    loss = cross_entropy(np.array([1]), tf.constant([[500.0, 0.0]]), epsilon=0.0)
    np.testing.assert_allclose(loss, [500.0])


def test_the_gradient_of_the_loss_is_that_of_keras():
    y, logits = IDS, tf.constant(units(2, 4, 9))
    weights = tf.constant(units(2, 4))
    reference = keras.losses.CategoricalCrossentropy(
        from_logits=True, label_smoothing=0.1, reduction=None
    )
    gradients = []
    for loss in (cross_entropy, lambda y, logits: reference(np.eye(9, dtype="f")[y], logits)):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            total = tf.reduce_sum(weights * loss(y, logits))
        gradients.append(tape.gradient(total, logits))
    np.testing.assert_allclose(*gradients, atol=1e-6)


def test_adam_is_that_of_keras():
    start, found = [units(3, 4), units(5)], []
    for optimizer in (Adam, keras.optimizers.Adam):
        weights = [keras.Variable(values) for values in start]
        optimizer = optimizer(WarmUp(0.01, 3), 0.9, 0.98, 1e-9)
        optimizer.build(weights)
        for step in range(6):
            optimizer.apply_gradients([(np.sin(step + w) * 0.1**step, w) for w in weights])
        found.append([w.numpy() for w in weights])
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert np.abs(found[0][0] - start[0]).min() > 0.001
