"""Muon, next to the optimizer of that name in Keras."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from hparams import make_hparams
from model.transformer import make_model
from training.muon import Muon, is_block_matrix, orthogonalize
from training.optimizer import FusedAdam, make_optimizer

TINY = dict(recipe="tiny", hidden_units=16, ffn_units=32, num_heads=2, num_blocks=2)


def small_model(**more):
    keras.utils.set_random_seed(0)
    return make_model(make_hparams(TINY | more), 30, 30)


def gradients_of(model, seed):
    rng = np.random.default_rng(seed)
    return [tf.constant(rng.normal(size=v.shape), "float32") for v in model.trainable_variables]


def parameters_after(model, optimizer, steps=3):
    """Apply the same gradients with any optimizer; returns the parameters by path."""
    optimizer.build(model.trainable_variables)
    for step in range(steps):
        optimizer.apply(gradients_of(model, step), model.trainable_variables)
    return {v.path: v.numpy() for v in model.trainable_variables}


@pytest.mark.parametrize("shape", [(16, 16), (16, 40), (40, 16)])
def test_singular_values_end_near_1_and_singular_vectors_stay(shape):
    rng = np.random.default_rng(0)
    left, _, right = np.linalg.svd(rng.normal(size=shape), full_matrices=False)
    singular = np.geomspace(1, 0.05, 16)
    matrix = tf.constant(left * singular @ right, "float32")
    for scaled in (matrix, matrix * 1e6, matrix * 1e-4):
        result = left.T @ orthogonalize(scaled).numpy() @ right.T
        assert np.all((np.diag(result) > 0.5) & (np.diag(result) < 1.3))
        assert np.abs(result - np.diag(np.diag(result))).max() < 1e-3


def test_a_gradient_of_zeros_gives_an_update_of_zeros():
    assert not orthogonalize(tf.zeros((4, 8))).numpy().any()


@pytest.mark.parametrize("decoder_blocks, matrices", [(0, 2 * (4 + 2) + 2 * (8 + 2)), (1, 22)])
def test_which_parameters_have_muon(decoder_blocks, matrices):
    model = small_model(decoder_blocks=decoder_blocks)
    chosen = [v for v in model.trainable_variables if is_block_matrix(v)]
    assert len(chosen) == matrices and all(len(v.shape) == 2 for v in chosen)
    others = {v.path.split("/")[-1] for v in model.trainable_variables if not is_block_matrix(v)}
    assert others == {"lookup_table", "table", "bias", "beta", "gamma"}


def test_the_output_layer_and_the_inputs_have_adam():
    model = small_model(tied_embeddings=False, positions="convolutional", num_blocks=1)
    others = [v.path for v in model.trainable_variables if not is_block_matrix(v)]
    assert sum(path.endswith("kernel") for path in others) == 3  # two convolutions, the logits


def test_three_updates_are_those_of_keras():
    ours = parameters_after(small_model(), Muon(0.01, beta_1=0.9, beta_2=0.98, epsilon=1e-9))
    model = small_model()
    keras_muon = keras.optimizers.Muon(
        0.01,
        adam_beta_2=0.98,
        epsilon=1e-9,
        weight_decay=None,
        adam_weight_decay=None,
        exclude_layers=["t5_positions", "lookup_table"],
    )
    theirs = parameters_after(model, keras_muon)
    for (path, one), other in zip(ours.items(), theirs.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4, err_msg=path)
    before = [v.numpy() for v in small_model().trainable_variables]
    pairs = zip(ours.values(), before, strict=True)
    changes = [np.abs(after - value).max() for after, value in pairs]
    assert min(changes) > 0.01  # 100 times the tolerance


def test_all_other_parameters_have_the_updates_of_adam():
    args = dict(learning_rate=0.01, beta_2=0.98)
    model = small_model()
    chosen = [is_block_matrix(v) for v in model.trainable_variables]
    muon, adam = Muon(**args), FusedAdam(**args)
    with_muon = parameters_after(model, muon).values()
    with_adam = parameters_after(small_model(), adam).values()
    for in_block, one, other in zip(chosen, with_muon, with_adam, strict=True):
        assert np.array_equal(one, other) == (not in_block)
    assert muon.gradient_norm().numpy() == pytest.approx(adam.gradient_norm().numpy(), rel=1e-6)
    assert muon.gradient_norm().numpy() > 1


def test_the_recipe_and_the_flag_choose_the_optimizer():
    """A new training from a model may change it; a training keeps it (tests/test_hparams.py)."""
    adam, tiny = dict(optimizer="adam"), dict(recipe="tiny")
    of_tiny = make_hparams(tiny)
    others = [make_hparams(tiny | adam), make_hparams(adam, of_tiny)]
    others += [make_hparams(dict(recipe=name)) for name in ("legacy", "updated", "paper", "rnn")]
    assert all(type(make_optimizer(hp)) is FusedAdam for hp in others)
    assert all(type(make_optimizer(hp)) is Muon for hp in (of_tiny, make_hparams({}, of_tiny)))
