"""The attention functions: equal to the printed formulas, alone and within the model."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from helpers import RNG, random
from hparams import ATTENTION_SCORES
from model.attention import (
    additive,
    attention_scores,
    cosine,
    map_heads,
    prepare_keys,
    scores_to_weights,
)
from modules import MultiheadAttention

pytestmark = pytest.mark.usefixtures("seed")
Q, K, V = random(2, 3, 4, 5), random(2, 3, 6, 5), random(2, 3, 6, 5)  # (N, h, T, d)
W_q, W_k, W = (random(3, 5, 5) for _ in range(3))
OMEGA = random(3, 5)
PARAMETERS = dict(query_kernel=W_q, key_kernel=W_k, omega=OMEGA, kernel=W)


def norm(vector):
    return sum(unit**2 for unit in vector) ** 0.5


# The printed formulas, for a query q and a key k of head h.
FORMULAS = dict(
    dot=lambda q, k, h: q @ k,
    scaled_dot=lambda q, k, h: q @ k / 5**0.5,
    additive=lambda q, k, h: (
        OMEGA[h] @ np.tanh(np.concatenate([W_q[h], W_k[h]]).T @ np.concatenate([q, k]))
    ),
    bilinear=lambda q, k, h: q @ W[h] @ k,
    cosine=lambda q, k, h: q @ k / (norm(q) * norm(k)),
)
FORMULAS["cosine_softmax"] = FORMULAS["cosine"]


@pytest.mark.parametrize("name", ATTENTION_SCORES)
def test_scores_are_those_of_the_printed_formula(name):
    choice = ATTENTION_SCORES[name]
    parameters = {p: PARAMETERS[p] for p in choice.parameters}
    scores = attention_scores(choice, Q, prepare_keys(K, parameters), parameters)
    assert scores.shape == (2, 3, 4, 6)
    for n, h, i, j in np.ndindex(*scores.shape):
        expected = FORMULAS[name](Q[n, h, i], K[n, h, j], h)
        assert float(scores[n, h, i, j]) == pytest.approx(expected, abs=1e-5)


def test_weights_are_a_softmax_over_the_keys_that_are_not_hidden():
    scores = random(2, 3, 4, 6)
    mask = RNG.random((2, 1, 4, 6)) < 0.7
    mask[..., 0] = True
    exp = np.where(mask, np.exp(scores), 0)
    expected = exp / exp.sum(-1, keepdims=True)
    np.testing.assert_allclose(scores_to_weights(scores, mask), expected, atol=1e-6)
    query_mask = np.array([True, False, True, True])[:, None]  # (T_q, 1)
    weights = scores_to_weights(scores, mask, query_mask)
    np.testing.assert_allclose(weights, expected * query_mask, atol=1e-6)
    weights = scores_to_weights(scores, mask, query_mask, softmax=False)
    np.testing.assert_allclose(weights, scores * mask * query_mask)


def test_the_cosine_of_a_zero_vector_is_zero():
    """Its gradient is finite: queries of padding are zero in the 2017 code."""
    zeros = tf.zeros_like(Q)
    with tf.GradientTape() as tape:
        tape.watch(zeros)
        scores = cosine(zeros, K)
    assert not np.any(scores)
    np.testing.assert_allclose(cosine(Q / 1000, K), cosine(Q, K), atol=1e-4)
    assert np.isfinite(tape.gradient(scores, zeros)).all()


def test_the_gradient_of_additive_scores_is_that_of_the_formula_at_once():
    """It is computed query by query, and the tanh twice."""
    inputs = [tf.constant(array) for array in (Q, K, W_q, W_k, OMEGA)]
    upstream = random(2, 3, 4, 6)

    def at_once(Q, K, W_q, W_k, omega):
        units = tf.tanh((Q @ W_q)[:, :, :, None] + (K @ W_k)[:, :, None])  # (N, h, T_q, T_k, d)
        return tf.reduce_sum(units * omega[:, None, None], axis=-1)

    gradients = []

    def by_query(Q, K, W_q, W_k, omega):
        return additive(Q, map_heads(K, W_k), W_q, omega)

    for function in (tf.function(by_query), at_once):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            scores = function(*inputs)
        gradients.append(tape.gradient(scores, inputs, upstream))
    for ours, theirs in zip(*gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_additive_scores_store_no_tanh_of_all_pairs():
    """No loop in the graph of a gradient keeps it."""
    inputs = [tf.Variable(random(2, 3, 7, 5)) for _ in range(2)]

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            scores = additive(*inputs, W_q, OMEGA)
        return tape.gradient(scores, inputs)

    graph = step.get_concrete_function().graph.as_graph_def()
    nodes = [node for function in graph.library.function for node in function.node_def]
    assert any(node.op == "Tanh" for node in nodes)
    stored = [node.input[1] for node in nodes if node.op == "TensorListPushBack"]
    assert not [name for name in stored if "tanh" in name.lower()]


def test_each_head_starts_with_the_spread_of_one_matrix():
    keras.utils.set_random_seed(0)
    layer = MultiheadAttention(64, 4, attention_score="additive")
    layer.build((2, 4, 64), (2, 4, 64))
    *kernels, omega = (variable.numpy() for variable in layer.score_parameters.values())
    assert omega.shape == (4, 16) and {kernel.shape for kernel in kernels} == {(4, 16, 16)}
    assert np.abs(kernels).max() == pytest.approx((6 / 32) ** 0.5, rel=0.02)
    assert np.abs(omega).max() == pytest.approx((6 / 20) ** 0.5, rel=0.05)
