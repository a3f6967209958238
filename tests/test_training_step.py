"""Gradient accumulation and clipping, in one step and in a training."""

import contextlib
import dataclasses
import math
import re
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import prepro
import train
from checkpoints.checkpoint import load_model_weights
from conftest import SMALL, sample_pairs, write_corpus
from data_load import load_test_data, load_train_data
from hparams import Hyperparams, make_hparams
from model.transformer import make_model
from modules import divergence_of_halves
from support.errors import InputError
from text.vocab import load_vocabs
from training import step as training_step
from training.optimizer import GradientSum
from training.step import StepMetrics, make_train_step
from translation import inference

STRATEGY = tf.distribute.get_strategy()
LR = 1.0  # with a small one, a change of a parameter would be rounded more


@pytest.fixture(params=["tiny", "legacy"])
def model(request):
    keras.utils.set_random_seed(0)
    flags = dict(recipe=request.param, maxlen=9, hidden_units=16, num_blocks=1, num_heads=2)
    return make_model(make_hparams(flags | dict(dropout_rate=0.0)), 30, 30)


@pytest.fixture
def batches():
    """Three batches of several sizes. Padded to one width, they are also one batch."""
    rng = np.random.default_rng(0)
    sides = rng.integers(4, 30, (2, 9, 9), np.int32)
    for side in sides:
        for row, length in zip(side, rng.integers(2, 10, 9), strict=True):
            row[length:] = 0
    return [[tf.constant(side[rows]) for side in sides] for rows in np.split(np.arange(9), [2, 3])]


def flat(arrays):
    """Join arrays, variables or sparse tensors: (n,)."""
    return np.concatenate([np.ravel(tf.convert_to_tensor(array)) for array in arrays])


def make_update(model, count, clip_norm=0.0, consistency=0.0):
    """Make the function that updates the parameters once, with `count` batches.

    It returns the metrics and the changes of all parameters / LR, as one array. The parameters then
    have their values from before again.
    """
    sgd = keras.optimizers.SGD(LR)
    gradient_sum = GradientSum(model.trainable_variables) if count > 1 else None
    hp = Hyperparams(clip_norm=float(clip_norm), consistency=consistency)
    step = make_train_step(STRATEGY, model, sgd, hp, gradient_sum)
    accumulate = make_train_step(STRATEGY, model, None, hp, gradient_sum)

    def update(batches):
        before = [variable.numpy() for variable in model.trainable_variables]
        for batch in batches[:-1]:
            accumulate(*batch)
        metrics = step(*batches[-1])
        changes = flat(before) - flat(model.trainable_variables)
        for variable, value in zip(model.trainable_variables, before, strict=True):
            variable.assign(value)
        return metrics, changes / LR

    return update


def update(model, batches, **more):
    """Update the parameters once, as the function of `make_update`."""
    return make_update(model, len(batches), **more)(batches)


def joined(batches):
    return [[tf.concat(side, axis=0) for side in zip(*batches, strict=True)]]


@pytest.mark.parametrize("consistency", [0.0, 4.0])
def test_accumulated_batches_are_one_large_batch(model, batches, eager, monkeypatch, consistency):
    """Also those of the next update: the sums begin at zero again.

    Without dropout the divergence is zero, so another function of the logits takes its place.
    """

    def mean_squares(logits):
        return tf.reduce_mean(logits[: tf.shape(logits)[0] // 2] ** 2, axis=-1)  # (M,)

    monkeypatch.setattr(training_step, "divergence_of_halves", mean_squares)
    accumulated = make_update(model, len(batches), consistency=consistency)
    expected_metrics, expected = update(model, joined(batches), consistency=consistency)
    for _ in range(2):
        metrics, changes = accumulated(batches)
        np.testing.assert_allclose(metrics, expected_metrics, rtol=1e-6)
        np.testing.assert_allclose(changes, expected, atol=1e-5)
    assert np.abs(changes).max() > 0.01


@pytest.mark.parametrize(("count", "limit", "scale"), [(1, 4, 1), (3, 1 / 4, 1 / 4)])
def test_the_norm_of_all_gradients_together_is_limited(model, batches, eager, count, limit, scale):
    _, changes = update(model, joined(batches))
    batches, clip_norm = batches if count == 3 else joined(batches), limit * np.linalg.norm(changes)
    _, clipped = update(model, batches, clip_norm=clip_norm)
    np.testing.assert_allclose(clipped, scale * changes, atol=1e-5)


def reset_dropout(model):
    for variable in model.non_trainable_variables:
        variable.assign(tf.ones_like(variable))


def gradients_of(model, batch, consistency):
    """Compute the gradients with the same dropout in each call."""
    reset_dropout(model)
    hp = Hyperparams(consistency=consistency)
    gradients, metrics = training_step.replica_gradients(model, *batch, hp, mean=True)
    return flat(gradients), metrics


def test_consistency_adds_the_divergence_of_two_passes(batches):
    """It is half the weight times the mean over the target tokens (R-Drop)."""
    args = dict(recipe="tiny", hidden_units=16, num_blocks=1, num_heads=2, dropout_rate=0.2)
    model = make_model(make_hparams(args), 30, 30)
    (x, y), *_ = joined(batches)
    (one, metrics), (two, _) = (gradients_of(model, (x, y), weight) for weight in (1.0, 3.0))
    count = np.count_nonzero(y)
    assert metrics.num_targets == count
    reset_dropout(model)
    with tf.GradientTape() as tape:
        x, y = (tf.concat([side, side], axis=0) for side in (x, y))
        divergence = divergence_of_halves(model(x, y, training=True, istarget=y != 0))
        total = tf.reduce_sum(divergence) / count
    expected = flat(tape.gradient(total, model.trainable_variables))
    np.testing.assert_allclose(two - one, expected, atol=1e-5)
    assert total > 0.001


def test_consistency_without_dropout_changes_nothing(model, batches):
    (batch,) = joined(batches)
    (plain, metrics), (other, two_passes) = (gradients_of(model, batch, w) for w in (0.0, 5.0))
    np.testing.assert_allclose(metrics, two_passes, rtol=1e-5)
    np.testing.assert_allclose(other, plain, atol=1e-5)


# In a training ------------------------------------------------------


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The flags of a text with its vocabularies, which is also the development set."""
    flags = write_corpus(tmp_path_factory.mktemp("text"), sample_pairs(20)) | SMALL
    flags |= {f"{side}_dev": flags[f"{side}_test"] for side in ("source", "target")}
    prepro.main(flags)
    return flags | dict(batch_size=8)


def make_training(flags):
    hp = make_hparams(flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    dev = load_test_data(hp, vocabs, "dev")
    return train.Training(hp, vocabs, load_train_data(hp, vocabs), dev)


@pytest.fixture(scope="module")
def made_once(text):
    return make_training(text)


class Bar:
    """A progress bar that shows nothing until its next step."""

    def set_postfix_str(self, text, refresh=True):
        assert not refresh
        self.text = text


@pytest.fixture
def run(made_once, tmp_path):
    """A `Training` at its first step, of which all tests here have the model."""
    values = made_once.model.get_weights()
    made_once.hp = dataclasses.replace(made_once.hp, logdir=str(tmp_path / "logdir"))
    made_once.step, made_once.rows, made_once.sums = 1, [], np.zeros(3)
    made_once.bar = Bar()
    yield made_once
    made_once.model.set_weights(values)


@pytest.mark.parametrize("seed, same", [(0, True), (1, False)])
def test_the_seed_decides_the_initial_parameters(text, made_once, seed, same):
    own = make_training(text | dict(seed=seed))
    pairs = zip(own.model.get_weights(), made_once.model.get_weights(), strict=True)
    assert all(np.all(a == b) for a, b in pairs) == same


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_steps_and_the_search_have_the_values_of_the_flags(text, monkeypatch, accumulate):
    for name in ("make_train_step", "make_loss_fn"):
        monkeypatch.setattr(train, name, lambda *args: args)
    flags = dict(label_smoothing=0.3, beta_2=0.97, epsilon=1e-7, temperature=2.0)
    run = make_training(text | flags | dict(accumulate=accumulate))
    config = run.optimizer.get_config()
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.97, 1e-7)
    assert len(run.optimizer.variables) > 2 * len(run.model.trainable_variables)
    *given, sums = run.train_step
    assert given == [run.strategy, run.model, run.optimizer, run.hp]
    assert run.accumulate_step == (run.strategy, run.model, None, run.hp, sums)
    assert (sums is None) == (accumulate == 1)
    assert run.loss_fn == (run.model, 0.3)  # of the development set
    search = run.decode.loaded.hp
    assert (search.temperature, search.beam) == (0.0, 1)  # the dev set is translated greedily


def log(run, losses):
    pending = [StepMetrics(*map(tf.constant, (loss, 0.5, 9.0))) for loss in losses]
    run.log(pending, rate=0.1)
    assert not pending


def test_the_losses_of_the_epoch_are_added_and_the_last_one_is_shown(run):
    log(run, [5.0, 4.0])
    log(run, [3.0])
    assert run.sums.tolist() == [3, 12, 1.5]
    assert "mean_loss 3.000 acc 0.500" in run.bar.text


@pytest.mark.parametrize("loss, diverged", [(-0.1, False), (0.1, True), (math.nan, True)])
def test_the_loss_from_which_training_has_diverged(run, loss, diverged):
    loss += 10 + 3 * math.log(len(run.vocabs[1]))
    problem = pytest.raises(InputError, match=r"mean_loss is .* at step 1. No checkpoint is saved")
    with problem if diverged else contextlib.nullcontext():
        log(run, [loss])


def test_bad_parameters_are_not_saved(run):
    log(run, [5.0])
    run.model.trainable_variables[3].assign(run.model.trainable_variables[3] * math.nan)
    with pytest.raises(InputError, match="is not finite after step 1. No checkpoint"):
        run.save(evaluates=False)
    assert not Path(run.hp.logdir).exists()


def test_the_dev_loss_is_the_mean_over_all_tokens(run, monkeypatch):
    """It is near that of equal probabilities before training, and not an integer."""
    monkeypatch.setattr(inference, "MAX_BATCH_SOURCE_TOKENS", 45)  # three sentences
    data = run.dev.data
    loss = train.mean_loss(run.loss_fn, data, run.hp.pad_to)
    total, count = run.loss_fn(data.X.pad(width=15), data.Y.pad(width=15))
    assert loss == pytest.approx(float(total / tf.cast(count, tf.float32)), rel=1e-5)
    assert abs(loss - round(loss)) > 1e-3


def test_the_best_checkpoint_follows_the_metric(run, monkeypatch, capsys):
    """The scores of another metric are not compared with its scores."""
    monkeypatch.setattr(train.summaries, "write_attention", lambda *_: None)
    scores = {}
    monkeypatch.setattr(train, "corpus_score", lambda name, *_: (scores[name], ""))
    monkeypatch.setattr(run, "decode", lambda X: [[SimpleNamespace(text="a")]] * len(X))
    for step, (metric, bleu, chrf, best) in enumerate(
        [("chrf", 10, 50, 1), ("chrf", 20, 60, 2), ("bleu", 5, 70, 3), ("chrf", 30, 55, 2)], 1
    ):
        scores.update(bleu=bleu, chrf=chrf)
        run.hp = dataclasses.replace(run.hp, metric=metric)
        run.step, run.sums = step, np.array([2, 9.0, 1.0])
        run.save(evaluates=True)
        assert run.rows[-1].score == scores[metric]
        (path,), _ = load_model_weights(run.hp.logdir, best=True)
        assert path.stem == f"model_epoch_01_gs_{best}"
        report = f"mean_loss 4.500 acc 0.500, dev loss .* BLEU {bleu:.2f} chrF {chrf:.2f}, "
        assert re.search(report, capsys.readouterr().out)
