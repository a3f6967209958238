"""Muon, next to the optimizer of that name in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import needs_bfloat16
from hparams import make_hparams
from model.transformer import make_model
from training.muon import Muon, is_block_matrix, orthogonalize
from training.optimizer import FusedAdam, make_optimizer

TINY = dict(recipe="tiny", hidden_units=16, ffn_units=32, num_heads=2, num_blocks=2)


def small_model(**more):
    keras.utils.set_random_seed(0)
    return make_model(make_hparams(TINY | more), 30, 30)


def parameters_after(optimizer):
    """The parameters of the small model after three steps, the same for any optimizer."""
    model, rng = small_model(), np.random.default_rng(0)
    variables = model.trainable_variables
    optimizer.build(variables)
    for _ in range(3):
        optimizer.apply([tf.constant(rng.normal(size=v.shape), "float32") for v in variables])
    return [v.numpy() for v in variables]


@pytest.mark.parametrize("shape", [(16, 16), (16, 40), (40, 16)])
@pytest.mark.parametrize(
    "precision, error", [("float32", 1e-3), pytest.param("bfloat16", 0.1, marks=needs_bfloat16)]
)
def test_singular_values_end_near_1_and_singular_vectors_stay(shape, precision, error):
    rng = np.random.default_rng(0)
    left, _, right = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    singular = np.geomspace(1, 0.05, 16)
    matrix = tf.constant(left * singular @ right, "float32")
    for scaled in (matrix, matrix * 1e6, matrix * 1e-4):
        result = left.T @ orthogonalize(scaled, precision).numpy() @ right.T
        assert np.all((np.diag(result) > 0.5) & (np.diag(result) < 1.3))
        assert np.abs(result - np.diag(np.diag(result))).max() < error


def test_a_gradient_of_zeros_gives_an_update_of_zeros():
    assert not orthogonalize(tf.zeros((4, 8))).numpy().any()


@pytest.mark.parametrize(
    "changes, matrices, others",
    [
        (dict(), 2 * (4 + 2) + 2 * (8 + 2), "lookup_table table bias beta gamma"),
        (dict(decoder_blocks=1), 22, "lookup_table table bias beta gamma"),
        # Two convolutions, and the logits
        (dict(tied_embeddings=False, positions="convolutional"), 32, "kernel"),
    ],
)
def test_which_parameters_have_muon(changes, matrices, others):
    variables = small_model(**changes).trainable_variables
    chosen = [v for v in variables if is_block_matrix(v)]
    assert len(chosen) == matrices and all(len(v.shape) == 2 for v in chosen)
    found = [v.path.split("/")[-1] for v in variables if not is_block_matrix(v)]
    assert {*found} >= {*others.split()} and found.count("kernel") == 3 * (others == "kernel")


def test_three_updates_are_those_of_keras_and_of_adam():
    """Adam updates the parameters outside of the blocks."""
    muon, adam = (kind(0.01, beta_2=0.98, epsilon=1e-9) for kind in (Muon, FusedAdam))
    ours, theirs = parameters_after(muon), parameters_after(adam)
    chosen = [is_block_matrix(v) for v in small_model().trainable_variables]
    assert [not np.array_equal(*pair) for pair in zip(ours, theirs, strict=True)] == chosen
    assert muon.gradient_norm().numpy() == pytest.approx(adam.gradient_norm().numpy(), rel=1e-6)
    assert muon.gradient_norm().numpy() > 1
    args = dict(weight_decay=None, adam_weight_decay=None, adam_beta_2=0.98, epsilon=1e-9)
    args |= dict(exclude_layers=["t5_positions", "lookup_table"])
    before = small_model().trainable_variables
    for one, other, start in zip(
        ours, parameters_after(keras.optimizers.Muon(0.01, **args)), before, strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-4)
        assert np.abs(one - start).max() > 0.01  # 100 times the tolerance


def test_the_recipe_and_the_flag_choose_the_optimizer():
    adam, tiny = dict(optimizer="adam"), dict(recipe="tiny")
    others = [tiny | adam, *(dict(recipe=name) for name in ("legacy", "updated", "paper", "rnn"))]
    assert all(type(make_optimizer(make_hparams(given))) is FusedAdam for given in others)
    assert type(make_optimizer(make_hparams(tiny))) is Muon
