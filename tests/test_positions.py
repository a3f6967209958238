"""Position encodings: equal to their formulas, and each one's own law."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from conftest import model_args, needs_bfloat16, slow_unless, transformer
from helpers import RNG, SIZES, gru_step, random
from hparams import POSITIONS, make_hparams

pytestmark = pytest.mark.usefixtures("seed")
N, h, T, d = 2, 4, 6, 4
C = h * d
RELATIVE = [name for name, row in POSITIONS.items() if row.relative]


def make(name, causality=False, maxlen=T, heads=h, dtype=None):
    """Return an encoding whose parameters are random."""
    layer = POSITIONS[name].load()(maxlen, heads * d, heads, causality=causality, dtype=dtype)
    layer.build(None)
    for variable in layer.trainable_variables:
        variable.assign(random(*variable.shape))
    return layer


def weights_of(layer):
    """The parameters of a layer as arrays, by name."""
    return {variable.name: variable.numpy() for variable in layer.weights}


# Formulas, position by position -------------------------------------


def sinusoid(position, column, paired):
    exponent = (column - column % 2 if paired else 2 * column) / C
    return [np.sin, np.cos][column % 2](position / 10000**exponent)


def gru(weights, tokens):
    """The recurrence of a GRU as Cho et al. (2014) have it, with the biases of cuDNN."""
    states = [[np.zeros(C)]]
    for token in tokens:
        states.append(gru_step(weights, token, states[-1]))
    return np.concatenate(states[1:])


def convolution(weights, tokens):
    padded = np.concatenate([np.zeros((4 - 1, C)), tokens])
    windows = [sum(padded[t + i] * weights["kernel"][i] for i in range(4)) for t in range(T)]
    return tokens + windows + weights["bias"]


def hierarchical(weights, tokens, n=3):
    def u(i):
        return (weights["lookup_table"][i] - 0.4 * weights["lookup_table"][0]) / 0.6

    return tokens + [0.4 * u(t // n) + 0.6 * u(t % n) for t in range(T)]


def complex_waves(weights, tokens):
    waves = tokens[:, 0::2] + 1j * tokens[:, 1::2]  # (T, C/2)
    waves = waves * np.exp(1j * np.outer(np.arange(T), weights["frequencies"]))
    return np.stack([waves.real, waves.imag], axis=-1).reshape(T, C)


def plus_sinusoids(paired):
    table = [[sinusoid(t, i, paired) for i in range(C)] for t in range(T)]
    return lambda weights, tokens: tokens + table


ABSOLUTE = dict(
    learned=lambda weights, tokens: tokens + weights["lookup_table"],
    product=lambda weights, tokens: tokens * weights["lookup_table"],
    sinusoid=plus_sinusoids(paired=False),
    paired_sinusoid=plus_sinusoids(paired=True),
    hierarchical=hierarchical,
    recurrent=gru,
    convolutional=convolution,
    complex=complex_waves,
    none=lambda _, tokens: tokens,
)


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_positions_are_their_formula(name):
    layer, tokens = make(name, maxlen=3 if name == "hierarchical" else T), random(N, T, C)
    outputs, _ = layer.embed(tf.constant(tokens), tf.range(T), layer.initial_state(N))
    for ours, row in zip(outputs, tokens, strict=True):
        np.testing.assert_allclose(ours, ABSOLUTE[name](weights_of(layer), row), atol=1e-5)


def test_hierarchical_positions_after_the_last_have_the_vectors_of_the_last_block():
    vectors = make("hierarchical", maxlen=2).vectors(np.arange(8))[0]  # 4 different ones
    np.testing.assert_array_equal(vectors[4:6], vectors[2:4])
    np.testing.assert_array_equal(vectors[6:8], vectors[2:4])
    assert np.abs(vectors[2:4] - vectors[:2]).max() > 0.1
    hp = make_hparams(dict(recipe="tiny", positions="hierarchical", maxlen=2))
    assert hp.max_input_tokens == 4


def shaw(weights, q, k, i, j, _):
    return q @ (k + weights["key_table"][np.clip(j - i, -16, 16) + 16]) / d**0.5


def t5_bucket(distance, causality):
    """Raffel et al. 2020: 32 buckets, of which half are for keys after the query."""
    buckets, first = (32, 0) if causality else (16, 16 * (distance > 0))
    past = max(-distance, 0) if causality else abs(distance)
    if past < buckets // 2:
        return first + past
    growth = np.log(past / (buckets // 2)) / np.log(128 / (buckets // 2))
    return first + min(buckets // 2 + int(growth * (buckets - buckets // 2)), buckets - 1)


def t5(causality):
    def score(weights, q, k, i, j, head):
        return q @ k / d**0.5 + weights["table"][t5_bucket(j - i, causality), head]

    return score


def xlnet(weights, q, k, i, j, head):
    r = np.array([sinusoid(j - i, column, paired=True) for column in range(C)])
    r = (r @ weights["kernel"])[head * d : (head + 1) * d]
    u, v = weights["u"][head, 0], weights["v"][head, 0]
    return ((q + u) @ k + (q + v) @ r) / d**0.5


def deberta(weights, q, k, i, j, head):
    def delta(i, j):
        return 0 if i - j <= -16 else 31 if i - j >= 16 else i - j + 16

    position_key = weights["key_table"][head, delta(i, j)]
    position_query = weights["query_table"][head, delta(j, i)]
    return (q @ k + q @ position_key + k @ position_query) / (3 * d) ** 0.5


def rotary(weights, q, k, i, j, head):
    def turned(vector, position):
        pairs = vector[0::2] + 1j * vector[1::2]
        angles = position / 10000 ** (np.arange(0, d, 2) / d)
        return pairs * np.exp(1j * angles)

    return (turned(q, i) * turned(k, j).conj()).real.sum() / d**0.5


RELATIVE_FORMULAS = dict(shaw=shaw, xlnet=xlnet, deberta=deberta, rotary=rotary)


def scores_of(layer, Q, K):
    """Return the scores as `MultiheadAttention` computes them."""
    Q, K = layer.rotate(tf.constant(Q), tf.constant(K))
    return layer.change_scores(tf.matmul(Q, K, transpose_b=True) / d**0.5, Q, K).numpy()


@pytest.mark.parametrize("causality", [False, True])
@pytest.mark.parametrize("name", RELATIVE)
@pytest.mark.parametrize("T_q", [1, 40])
def test_relative_positions_are_their_formula(name, causality, T_q):
    """Also far beyond the distances that are clipped, and for the newest query alone."""
    layer, T_k = make(name, causality), 40
    Q, K = random(N, h, T_q, d), random(N, h, T_k, d)
    ours = scores_of(layer, Q, K)
    formula = RELATIVE_FORMULAS.get(name) or t5(causality)
    weights = weights_of(layer)
    for n, head, i, j in np.ndindex(*ours.shape):
        if (i + j) % 7 == n:  # a part of the pairs
            expected = formula(weights, Q[n, head, i], K[n, head, j], T_k - T_q + i, j, head)
            assert ours[n, head, i, j] == pytest.approx(expected, abs=2e-5), (i, j)


def scores_of_one_head(layer):
    """TensorFlow has computed garbage here, in a product that broadcasts one head over N."""
    Q, K = (ops.cast(random(3, 1, T, d), layer.compute_dtype) for _ in range(2))
    return scores_of(layer, Q, K)


def late_tokens(layer):
    """The angles of late positions need more bits than bfloat16 has."""
    tokens = ops.cast(random(N, 400, C), layer.compute_dtype)
    return layer.embed(tokens, tf.range(400), layer.initial_state(N))[0]


@needs_bfloat16
@pytest.mark.parametrize(
    "compute, name, heads",
    [(scores_of_one_head, name, 1) for name in RELATIVE]
    + [
        pytest.param(late_tokens, name, h, marks=[pytest.mark.slow] * (name == "recurrent"))
        for name in ABSOLUTE
    ],
)
def test_bfloat16_is_near_float32(compute, name, heads):
    results = []
    for dtype in ("float32", "mixed_bfloat16"):
        RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state
        layer = make(name, maxlen=400, heads=heads, dtype=dtype)
        for variable in layer.trainable_variables:
            variable.assign(variable * 0.3)  # as a model has
        results.append(np.array(ops.cast(compute(layer), "float32")))
    np.testing.assert_allclose(*results, atol=0.1)


def test_the_buckets_of_t5_grow():
    """Values of the published implementation (Hugging Face transformers)."""
    both, past = make("t5"), make("t5", causality=True)
    distances = [0, 1, 7, 8, 15, 16, 40, 127, 500]
    row = both.buckets(1, 501).numpy()[0, ::-1]  # keys before the query
    assert [row[i] for i in distances] == [0, 1, 7, 8, 9, 10, 12, 15, 15]
    row = past.buckets(1, 501).numpy()[0, ::-1]
    assert [row[i] for i in distances] == [0, 1, 7, 8, 15, 16, 23, 31, 31]
    assert both.buckets(2, 2).numpy()[0, 1] == 17  # the key after the query


def test_shaws_values_have_vectors_of_the_distance():
    """z_i = sum of alpha_ij (x_j W_V + a_ij)."""
    layer, alpha, outputs = make("shaw"), random(N, h, T, T), random(N, h, T, d)
    vectors = weights_of(layer)["value_table"][np.arange(T) - np.arange(T)[:, None] + 16]
    expected = outputs + np.einsum("nhij,ijd->nhid", alpha, vectors)
    np.testing.assert_allclose(layer.change_outputs(outputs, alpha), expected, atol=1e-4)


# Laws ---------------------------------------------------------------


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_scores_depend_on_the_difference_of_positions(name):
    """With the same query and the same key everywhere, all diagonals are constant."""
    Q, K = (np.tile(random(1, h, 1, d), (1, 1, 30, 1)) for _ in range(2))
    scores = scores_of(make(name), Q, K)
    np.testing.assert_allclose(scores[:, :, 1:, 1:], scores[:, :, :-1, :-1], atol=2e-5)
    assert np.abs(scores[0, :, 0, 1] - scores[0, :, 1, 0]).max() > 1e-3  # but not symmetric


def test_complex_positions_start_with_the_frequencies_of_the_sinusoids():
    """A token of ones and zeros becomes the cosines and sines of its position."""
    layer = POSITIONS["complex"].load()(maxlen=T, hidden_units=C, num_heads=h)
    layer.build(None)
    tokens = tf.constant([[[1.0, 0.0] * (C // 2)] * T])
    waves = layer.embed(tokens, tf.range(T), ())[0][0]
    expected = [[sinusoid(t, i ^ 1, paired=True) for i in range(C)] for t in range(T)]
    np.testing.assert_allclose(waves, expected, atol=1e-5)


def small_model(name):
    keras.utils.set_random_seed(1)
    model = transformer(13, 13, **model_args("tiny") | SIZES | dict(maxlen=9, positions=name))
    for variable in model.trainable_variables:  # as after training: no bias is zero
        variable.assign_add(np.random.normal(scale=0.1, size=variable.shape))
    return model


@pytest.mark.parametrize("name", ["t5", "shaw"])
def test_only_the_blocks_of_t5_share_their_numbers_and_only_the_decoder_is_causal(name):
    """T5 then has all its buckets for keys that come before."""
    model = small_model(name)
    for layers, causality in ((model.enc_positions, False), (model.dec_positions, True)):
        assert len(layers) == 2 and (layers[0] is layers[1]) == (name == "t5")
        assert {layer.causality for layer in layers} == {causality}
    assert model.enc_positions[0] is not model.dec_positions[0]


@pytest.mark.parametrize("name", slow_unless(["none", "paired_sinusoid", "t5"], POSITIONS))
def test_only_without_positions_the_encoder_does_not_see_the_order(name):
    """Tigers love rabbits, or rabbits love tigers."""
    model = small_model(name)
    order = [2, 1, 0, 3]
    sentence = np.array([[5, 6, 7, 3]], np.int32)
    one, other = model.encode(sentence).numpy(), model.encode(sentence[:, order]).numpy()
    difference = np.abs(one[:, order] - other).max()
    assert (difference < 1e-5) == (name == "none") and (difference < 1e-5 or difference > 1e-3)
