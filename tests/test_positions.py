"""Position encodings: equal to their formulas, and each one's own law."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from choices import POSITIONS
from conftest import (
    beam_and_model_scores,
    model_args,
    needs_bfloat16,
    slow_unless,
    token_by_token,
    transformer,
)
from helpers import SIZES, X, Y, random
from hparams import make_hparams
from model import InputEmbedding
from modules import Embedding, MultiheadAttention
from runtime.errors import InputError
from variable_names import variables_by_2017_name

pytestmark = pytest.mark.usefixtures("seed")
N, h, T, d = 2, 4, 6, 4
C = h * d
RELATIVE = [name for name, row in POSITIONS.items() if row.relative]


def make(name, causality=False, maxlen=T):
    """Return an encoding whose parameters are random."""
    layer = POSITIONS[name].load()(maxlen=maxlen, hidden_units=C, num_heads=h, causality=causality)
    layer.build(None)
    layer.built = True
    for variable in layer.trainable_variables:
        variable.assign(random(*variable.shape))
    return layer


def weights_of(layer):
    """Return the parameters of a layer as arrays, by name."""
    return {variable.name: variable.numpy() for variable in layer.weights}


# Formulas, position by position ------------------------------------------------------


def sinusoid(position, column, paired):
    exponent = (column - column % 2 if paired else 2 * column) / C
    return [np.sin, np.cos][column % 2](position / 10000**exponent)


def gru(weights, tokens):
    """The recurrence of a GRU as Cho et al. (2014) have it, with the biases of cuDNN."""

    def sigmoid(x):
        return 1 / (1 + np.exp(-x))

    state, states = np.zeros(C), []
    input_bias, state_bias = weights["bias"]
    for token in tokens:
        from_input = np.split(token @ weights["kernel"] + input_bias, 3)
        from_state = np.split(state @ weights["recurrent_kernel"] + state_bias, 3)
        update, reset = (sigmoid(from_input[i] + from_state[i]) for i in (0, 1))
        candidate = np.tanh(from_input[2] + reset * from_state[2])
        state = update * state + (1 - update) * candidate
        states.append(state)
    return np.stack(states)


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


ABSOLUTE = dict(
    learned=lambda weights, tokens: tokens + weights["lookup_table"],
    product=lambda weights, tokens: tokens * weights["lookup_table"],
    sinusoid=lambda _, tokens: (
        tokens + [[sinusoid(t, i, paired=False) for i in range(C)] for t in range(T)]
    ),
    paired_sinusoid=lambda _, tokens: (
        tokens + [[sinusoid(t, i, paired=True) for i in range(C)] for t in range(T)]
    ),
    hierarchical=hierarchical,
    recurrent=gru,
    convolutional=convolution,
    complex=complex_waves,
    none=lambda _, tokens: tokens,
)


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_positions_are_their_formula(name):
    layer, tokens = make(name, maxlen=3 if name == "hierarchical" else T), random(N, T, C)
    outputs, _ = layer.embed(tf.constant(tokens), 0, layer.initial_state(N))
    for ours, row in zip(outputs, tokens, strict=True):
        np.testing.assert_allclose(ours, ABSOLUTE[name](weights_of(layer), row), atol=1e-5)


def test_hierarchical_positions_after_the_last_have_the_vectors_of_the_last_block():
    vectors = make("hierarchical", maxlen=2).vectors(np.arange(8))[0]  # 4 different ones
    np.testing.assert_array_equal(vectors[4:6], vectors[2:4])
    np.testing.assert_array_equal(vectors[6:8], vectors[2:4])
    assert np.abs(vectors[2:4] - vectors[:2]).max() > 0.1


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


@needs_bfloat16
@pytest.mark.parametrize("name", RELATIVE)
def test_a_single_head_in_bfloat16_is_near_float32(name):
    """TensorFlow has computed garbage here, in a product that broadcasts one head over N."""
    inputs = [random(3, 1, T, d) for _ in range(2)]
    sizes = dict(maxlen=T, hidden_units=d, num_heads=1)
    scores = []
    for dtype in ("float32", "mixed_bfloat16"):
        keras.utils.set_random_seed(0)
        layer = POSITIONS[name].load()(**sizes, dtype=dtype)
        layer.build(None)
        layer.built = True
        scores.append(scores_of(layer, *(ops.cast(i, layer.compute_dtype) for i in inputs)))
    np.testing.assert_allclose(scores[1].astype("float32"), scores[0], atol=0.2)


@needs_bfloat16
@pytest.mark.parametrize("name", slow_unless({*ABSOLUTE} - {"recurrent"}, ABSOLUTE))
def test_positions_in_bfloat16_are_near_float32(name):
    """Late ones, too: their angles need more bits than bfloat16 has."""
    tokens, outputs = random(N, 400, C), []
    for dtype in ("float32", "mixed_bfloat16"):
        keras.utils.set_random_seed(0)
        layer = InputEmbedding(
            Embedding(400, C, scale=False, dtype=dtype),
            POSITIONS[name].load()(maxlen=400, hidden_units=C, num_heads=h, dtype=dtype),
            dropout_rate=0.0,
            dtype=dtype,
        )
        layer.build((None, None))
        layer.tokens.lookup_table.assign(tokens[0])
        outputs.append(np.array(ops.cast(layer(np.arange(1, 400)[None]), "float32")))
    assert np.abs(outputs[1] - outputs[0]).max() < 0.1


def test_the_buckets_of_t5_grow():
    """Values of the published implementation (Hugging Face transformers)."""
    both, past = make("t5"), make("t5", causality=True)
    distances = [0, 1, 7, 8, 15, 16, 40, 127, 500]
    row = both.buckets(1, 501).numpy()[0, ::-1]  # keys before the query
    assert [row[i] for i in distances] == [0, 1, 7, 8, 9, 10, 12, 15, 15]
    row = past.buckets(1, 501).numpy()[0, ::-1]
    assert [row[i] for i in distances] == [0, 1, 7, 8, 15, 16, 23, 31, 31]
    assert both.buckets(2, 2).numpy()[0, 1] == 17  # the key after the query


def test_shaws_vectors_are_added_to_the_values():
    layer, weights = make("shaw"), random(N, h, T, T)
    values = random(N, h, T, d)
    ours = layer.change_outputs(tf.constant(weights @ values), tf.constant(weights)).numpy()
    table = weights_of(layer)["value_table"]
    for i in range(T):
        terms = [
            weights[:, :, i, j, None] * (values[:, :, j] + table[j - i + 16]) for j in range(T)
        ]
        np.testing.assert_allclose(ours[:, :, i], sum(terms), atol=1e-4)


def test_attention_with_shaws_vectors_is_the_formula_of_the_paper():
    """z_i = sum of alpha_ij (x_j W_V + a_ij), with a key vector in each score, too."""
    keras.utils.set_random_seed(0)
    attention = MultiheadAttention(C, h, relu=False, add_norm=dict(residual=False))
    layer, inputs = make("shaw"), random(N, T, C)
    attention.build(inputs.shape, inputs.shape)
    outputs, _ = attention.attend_heads(
        inputs, attention.project_keys_values(inputs), positions=layer
    )
    Q, K, V = (
        attention.split_heads(linear(inputs)).numpy()
        for linear in (attention.query, attention.key, attention.value)
    )
    weights = weights_of(layer)
    for n, head, i in np.ndindex(N, h, T):
        scores = np.array([shaw(weights, Q[n, head, i], K[n, head, j], i, j, 0) for j in range(T)])
        alpha = np.exp(scores) / np.exp(scores).sum()
        z = sum(alpha[j] * (V[n, head, j] + weights["value_table"][j - i + 16]) for j in range(T))
        np.testing.assert_allclose(outputs[n, head, i], z, atol=1e-4)


# Laws ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RELATIVE)
def test_relative_scores_depend_on_the_difference_of_positions(name):
    """With the same query and the same key everywhere, all diagonals are constant."""
    Q, K = (np.tile(random(1, h, 1, d), (1, 1, 30, 1)) for _ in range(2))
    scores = scores_of(make(name), Q, K)
    np.testing.assert_allclose(scores[:, :, 1:, 1:], scores[:, :, :-1, :-1], atol=2e-5)
    assert np.abs(scores[0, :, 0, 1] - scores[0, :, 1, 0]).max() > 1e-3  # but not symmetric


def test_a_rotation_preserves_norms():
    Q = random(N, h, 50, d)
    rotated, _ = make("rotary").rotate(tf.constant(Q), tf.constant(Q))
    np.testing.assert_allclose(np.linalg.norm(rotated, axis=-1), np.linalg.norm(Q, axis=-1), 1e-5)
    assert np.abs(rotated - Q).max() > 0.5


def test_complex_positions_start_with_the_frequencies_of_the_sinusoids():
    """A token of ones and zeros becomes the cosines and sines of its position."""
    layer = POSITIONS["complex"].load()(maxlen=T, hidden_units=C, num_heads=h)
    layer.build(None)
    waves = layer.embed(tf.constant([[[1.0, 0.0] * (C // 2)] * T]), 0, ())[0][0]
    expected = [[sinusoid(t, i ^ 1, paired=True) for i in range(C)] for t in range(T)]
    np.testing.assert_allclose(waves, expected, atol=1e-5)


def test_sinusoids_of_a_later_position_are_a_linear_map_of_those_before():
    """The same rotation of each pair of columns everywhere (paper, section 3.5)."""
    layer, k = make("paired_sinusoid"), 7
    encodings = layer.embed(tf.zeros([1, 60, C]), 0, ())[0][0].numpy()
    for i in range(0, C, 2):
        cos, sin = np.cos(k / 10000 ** (i / C)), np.sin(k / 10000 ** (i / C))
        rotation = np.array([[cos, -sin], [sin, cos]])
        pairs = encodings[:, i : i + 2]
        np.testing.assert_allclose(pairs[:-k] @ rotation, pairs[k:], atol=1e-4)


def small_model(name, recipe="tiny", **sizes):
    keras.utils.set_random_seed(1)
    fields = model_args(recipe) | SIZES | dict(maxlen=9, positions=name) | sizes
    model = transformer(13, 13, **fields)
    for variable in model.trainable_variables:  # as after training: no bias is zero
        variable.assign_add(np.random.normal(scale=0.1, size=variable.shape))
    return model


def test_only_the_blocks_of_t5_share_their_numbers():
    for name in RELATIVE:
        model = small_model(name)
        for layers in (model.enc_positions, model.dec_positions):
            assert len(layers) == 2 and (layers[0] is layers[1]) == (name == "t5")
        assert model.enc_positions[0] is not model.dec_positions[0]


def test_only_positions_of_the_decoder_are_causal():
    """T5 then has all its buckets for keys that come before."""
    model = small_model("t5")
    for layers, causality in ((model.enc_positions, False), (model.dec_positions, True)):
        assert {layer.causality for layer in layers} == {causality}


@pytest.mark.parametrize("name", slow_unless(["none", "paired_sinusoid", "t5"], POSITIONS))
def test_only_without_positions_the_encoder_does_not_see_the_order(name):
    """Tigers love rabbits, or rabbits love tigers."""
    model = small_model(name)
    order = [2, 1, 0, 3]
    sentence = np.array([[5, 6, 7, 3]], np.int32)
    one, other = model.encode(sentence).numpy(), model.encode(sentence[:, order]).numpy()
    difference = np.abs(one[:, order] - other).max()
    assert (difference < 1e-5) == (name == "none") and (difference < 1e-5 or difference > 1e-3)


@pytest.mark.parametrize(
    "recipe, name",
    [("tiny", name) for name in POSITIONS]
    + [("legacy", name) for name in ("recurrent", "shaw", "rotary", "none")],
)
def test_a_model_with_each_encoding(name, recipe):
    """All its parameters get a gradient. It is causal, and the same token by token, and with more
    padding where masks are from ids.
    """
    model = small_model(name, recipe, num_blocks=1)
    layers = [model.enc_input.positions, model.dec_input.positions]
    layers += [*filter(None, model.enc_positions + model.dec_positions)]
    variables = [variable for layer in layers for variable in layer.trainable_variables]
    with tf.GradientTape() as tape:
        logits = model(X, Y)
        loss = tf.reduce_sum(logits**2)
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        assert np.abs(tf.convert_to_tensor(gradient)).max() > 1e-6, variable.path
    logits = logits.numpy()
    np.testing.assert_allclose(token_by_token(model, X, Y), logits, atol=2e-5)
    changed = Y.copy()
    changed[:, 3] = 4
    other = model(X, changed).numpy()
    np.testing.assert_allclose(other[:, :4], logits[:, :4], atol=1e-6)
    assert np.abs(other[:, 4:] - logits[:, 4:]).max() > 1e-4
    if recipe == "tiny":
        padded = [np.pad(ids, [(0, 0), (0, 3)]) for ids in (X, Y)]
        np.testing.assert_allclose(model(*padded)[:, :6], logits, atol=2e-5)
    named = variables_by_2017_name(model)
    assert {id(v) for v in named.values()} == {id(v) for v in model.trainable_variables}
    assert len(named) == len(model.trainable_variables)


@pytest.mark.parametrize(
    "name", slow_unless(["recurrent"], ["recurrent", "convolutional", "xlnet"])
)
def test_beam_search_keeps_the_state_of_each_hypothesis(name):
    """The best hypothesis has the score that the model gives to it at once."""
    scores, expected = beam_and_model_scores(dict(recipe="tiny", positions=name) | SIZES)
    np.testing.assert_allclose(scores, expected, rtol=1e-4)


@pytest.mark.parametrize("name", slow_unless(["t5"], ["hierarchical", "recurrent", "shaw", "t5"]))
def test_a_keras_file_holds_the_encoding(name, tmp_path):
    model = small_model(name)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(X, Y), model(X, Y))


def test_flags_that_do_not_fit_the_positions():
    odd = dict(hidden_units=15, num_heads=3)
    for name, message in (
        ("rotary", "head_units is 5, and positions rotary must divide it by two"),
        ("complex", "hidden_units is 15, and positions complex must divide it by two"),
    ):
        with pytest.raises(InputError, match=message):
            make_hparams(dict(positions=name) | odd)
    with pytest.raises(InputError, match="bpe_dropout 0.1 needs positions without an end"):
        make_hparams(dict(recipe="tiny", positions="learned", bpe_dropout=0.1))
    hp = make_hparams(dict(recipe="tiny", positions="hierarchical", maxlen=3))
    assert hp.max_input_tokens == 9  # later positions have no vectors of their own
