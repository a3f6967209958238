"""Gradient accumulation and clipping, in one step and in a training."""

import copy
import dataclasses
import functools
import inspect
import math
import os
import signal
import types
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkpoint
import inference
import prepro
import train
import trainer
import training_step
from conftest import SMALL, sample_pairs, slow, write_corpus
from data_load import load_test_data, load_train_data
from helpers import dev_scores, latest, parameters, run_main, saved_rows, scalars
from hparams import make_hparams
from ids import RaggedIds
from model import make_model
from modules import divergence_of_halves
from optimizer import GradientSum
from processes import Forked
from runtime.errors import InputError
from training_step import StepMetrics, make_train_step
from vocab import load_vocabs

STRATEGY = tf.distribute.get_strategy()
LR = 1.0  # with a small one, a change of a parameter would be rounded more


def run_training(flags):
    run_main(train, flags)


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


def make_update(model, count, clip_norm=0.0, consistency=0.0):
    """Make the function that updates the parameters once, with `count` batches.

    It returns the metrics and the change of each parameter / LR. The parameters then have their
    values from before again.
    """
    sgd = keras.optimizers.SGD(LR)
    gradient_sum = GradientSum(model.trainable_variables, 3) if count > 1 else None
    args = STRATEGY, model, sgd, 0.1, clip_norm, consistency, gradient_sum
    step, accumulate = make_train_step(*args), make_train_step(*args, update=False)

    def update(batches):
        before = [variable.numpy() for variable in model.trainable_variables]
        for batch in batches[:-1]:
            accumulate(*batch)
        metrics = step(*batches[-1])
        after = [variable.numpy() for variable in model.trainable_variables]
        for variable, value in zip(model.trainable_variables, before, strict=True):
            variable.assign(value)
        return metrics, [(old - new) / LR for old, new in zip(before, after, strict=True)]

    return update


def update(model, batches, **more):
    """Update the parameters once, as the function of `make_update`."""
    return make_update(model, len(batches), **more)(batches)


def joined(batches):
    return [[tf.concat(side, axis=0) for side in zip(*batches, strict=True)]]


@pytest.mark.parametrize("model", ["tiny", pytest.param("legacy", marks=slow)], indirect=True)
def test_accumulated_batches_are_one_large_batch(model, batches):
    """Also those of the next update: the sums begin at zero again."""
    accumulated = make_update(model, len(batches))
    expected_metrics, expected = update(model, joined(batches))
    for metrics, changes in (accumulated(batches), accumulated(batches)):
        np.testing.assert_allclose(metrics, expected_metrics, rtol=1e-6)
        for change, other in zip(changes, expected, strict=True):
            np.testing.assert_allclose(change, other, atol=1e-6)
        assert max(np.abs(change).max() for change in changes) > 0.01


def test_accumulated_batches_with_consistency_are_one_large_batch(
    model, batches, eager, monkeypatch
):
    """Without dropout the divergence is zero, so another function of the logits takes its place."""

    def mean_squares(logits):
        return tf.reduce_mean(logits[: tf.shape(logits)[0] // 2] ** 2, axis=-1)  # (M,)

    monkeypatch.setattr(training_step, "divergence_of_halves", mean_squares)
    _, changes = update(model, batches, consistency=4.0)
    _, expected = update(model, joined(batches), consistency=4.0)
    _, without = update(model, joined(batches))
    for change, other in zip(changes, expected, strict=True):
        np.testing.assert_allclose(change, other, atol=1e-5)
    differences = (a - b for a, b in zip(changes, without, strict=True))
    assert max(np.abs(difference).max() for difference in differences) > 0.01


@pytest.mark.parametrize(("count", "limit", "scale"), [(1, 4, 1), (3, 1 / 4, 1 / 4)])
def test_the_norm_of_all_gradients_together_is_limited(model, batches, eager, count, limit, scale):
    _, changes = update(model, joined(batches))
    norm = np.sqrt(sum((change**2).sum() for change in changes))
    _, clipped = update(model, batches if count == 3 else joined(batches), clip_norm=limit * norm)
    for change, other in zip(clipped, changes, strict=True):
        np.testing.assert_allclose(change, scale * other, atol=1e-5)


def gradients_of(model, batch, consistency):
    """Compute the gradients with the same dropout in each call."""
    reset_dropout(model)
    gradients, metrics = training_step.replica_gradients(model, *batch, 0.1, consistency, mean=True)
    return [tf.convert_to_tensor(gradient).numpy() for gradient in gradients], metrics


def reset_dropout(model):
    for variable in model.non_trainable_variables:
        variable.assign(tf.ones_like(variable))


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
    expected = tape.gradient(total, model.trainable_variables)
    for first, second, gradient in zip(one, two, expected, strict=True):
        np.testing.assert_allclose(second - first, tf.convert_to_tensor(gradient), atol=1e-5)
    assert total > 0.001


def test_consistency_without_dropout_changes_nothing(model, batches):
    (batch,) = joined(batches)
    (plain, metrics), (other, two_passes) = (gradients_of(model, batch, w) for w in (0.0, 5.0))
    np.testing.assert_allclose(metrics, two_passes, rtol=1e-5)
    for gradient, expected in zip(other, plain, strict=True):
        np.testing.assert_allclose(gradient, expected, atol=1e-5)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """The flags of a text with its vocabularies."""
    flags = write_corpus(tmp_path_factory.mktemp("text"), sample_pairs(100)) | SMALL
    flags |= dict(batch_size=8, num_epochs=2, save_steps=0, deterministic=True)
    run_main(prepro, flags)
    return flags


@pytest.fixture
def flags(text, tmp_path):
    return text | dict(logdir=str(tmp_path / "logdir"))


def train_interrupted(flags):
    """Train, and press Ctrl-C in the first batch of the second step."""
    make_function, calls = training_step.batch_function, []

    def interrupting(*args):
        step = make_function(*args)

        def call(x, y):
            calls.append(x)
            if len(calls) == 6:
                os.kill(os.getpid(), signal.SIGINT)
            return step(x, y)

        call.get_concrete_function = step.get_concrete_function
        return call

    training_step.batch_function = interrupting
    run_main(train, flags)


@slow
def test_a_run_that_accumulates_is_resumed_at_an_update(flags, tmp_path):
    """12 batches per epoch are 3 steps: of 5 batches, of 5, and of the last 2."""
    flags |= dict(accumulate=5, clip_norm=0.5)
    uninterrupted, resumed = (
        flags | dict(logdir=str(tmp_path / name)) for name in ("uninterrupted", "resumed")
    )
    with Forked(functools.partial(run_training, uninterrupted)) as process:
        assert process.wait() == 0, process.stderr.read()
    assert latest(uninterrupted["logdir"]).name == "model_epoch_02_gs_6.npz"
    with Forked(functools.partial(train_interrupted, resumed)) as process:
        assert process.wait() != 0
    assert latest(resumed["logdir"]).name == "model_epoch_01_gs_2.npz"
    with Forked(functools.partial(run_training, resumed)) as process:
        assert process.wait() == 0, process.stderr.read()
    np.testing.assert_equal(*(parameters(run["logdir"]) for run in (uninterrupted, resumed)))
    curves = [scalars(run["logdir"])["mean_loss"].items() for run in (uninterrupted, resumed)]
    assert curves[0] <= curves[1]  # with a point at the interruption


def new_trainer(flags):
    hp = make_hparams(flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    return trainer.Trainer(hp, vocabs, load_train_data(hp, vocabs))


@pytest.fixture(scope="module")
def made_once(text):
    return new_trainer(text | dict(beta_2=0.97, epsilon=1e-7))


@pytest.fixture
def run(made_once, flags):
    """A `Trainer` before its first step, of which all tests here have the model."""
    run, values = copy.copy(made_once), made_once.model.get_weights()
    run.hp = dataclasses.replace(run.hp, logdir=flags["logdir"])
    run.log_seconds, run.bar = 0.0, types.SimpleNamespace()
    Path(flags["logdir"]).mkdir()
    yield run
    run.model.set_weights(values)


def test_adam_has_the_values_of_the_flags(run):
    config = run.optimizer.get_config()
    assert (config["beta_1"], config["beta_2"], config["epsilon"]) == (0.9, 0.97, 1e-7)
    assert len(run.optimizer.variables) > 2 * len(run.model.trainable_variables)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_training_step_has_the_values_of_the_flags(flags, monkeypatch, accumulate):
    """So has the function that adds up the other batches of --accumulate."""
    signature = inspect.signature(make_train_step)

    def bind(*args, **kwargs):
        return dict(update=True) | signature.bind(*args, **kwargs).arguments

    monkeypatch.setattr(trainer, "make_train_step", bind)
    monkeypatch.setattr(trainer, "make_loss_fn", lambda *args: args)
    more = dict(label_smoothing=0.3, clip_norm=0.7, consistency=2.0, accumulate=accumulate)
    run = new_trainer(flags | more | dict(temperature=2.0))
    step = run.train_step
    assert run.loss_fn == (run.model, 0.3)  # of the development set
    assert step["model"] is run.model and step["optimizer"] is run.optimizer
    for name, value in dict(smoothing=0.3, consistency=2.0, clip_norm=0.7, update=True).items():
        assert step[name] == value
    assert (step["gradient_sum"] is None) == (accumulate == 1)
    assert run.accumulate_step == (step | dict(update=False) if accumulate > 1 else None)
    search = run.decode.loaded.hp
    assert (search.temperature, search.beam) == (0.0, 1)  # the dev set is translated greedily


def test_in_mid_epoch_neither_side_of_the_text_may_change(run):
    run.step = 1
    run.save()
    run.resume(run.rows)
    for side in ("X", "Y"):
        changed = run.data._replace(**{side: RaggedIds.from_lists([[4, 3]])})
        run.digests = trainer.digest_of_batches(changed, run.hp), ""
        with pytest.raises(InputError, match="the text, or a flag .* has changed since"):
            run.resume(run.rows)


def steps_with(*losses):
    return [StepMetrics(*map(tf.constant, (loss, 0.1, 9.0))) for loss in losses]


@pytest.mark.parametrize("difference", [-0.1, 0.1, math.nan, math.inf])
def test_the_loss_from_which_training_has_diverged(run, difference):
    run.bar.set_postfix_str = lambda text, refresh: shown.append(text)
    shown, limit = [], 10 + 3 * math.log(len(run.vocabs[1]))
    pending = steps_with(limit, limit + 2 * difference)
    if difference == -0.1:
        run.log(pending, rate=0.1, progress=0.5)
        assert shown[0].startswith(f"mean_loss {limit - 0.2:.3f} acc 0.100, ") and not pending
        np.testing.assert_allclose(run.sums, [2, 2 * limit - 0.2, 0.2], rtol=1e-6)
    else:
        with pytest.raises(InputError, match="mean_loss is .* at step 0. The last good check"):
            run.log(pending, rate=0.1, progress=0.5)


def test_bad_parameters_are_not_saved(run):
    """The loss of the last step was computed before its update."""
    run.model.trainable_variables[3].assign(run.model.trainable_variables[3] * math.nan)
    with pytest.raises(InputError, match="is not finite after step 0"):
        run.save()
    assert not [*Path(run.hp.logdir).iterdir()]


def test_the_dev_loss_is_the_mean_over_all_tokens(run, monkeypatch):
    """It is near that of equal probabilities before training, and not an integer."""
    monkeypatch.setattr(inference, "MAX_BATCH_SOURCE_TOKENS", 45)  # three sentences
    dev = load_test_data(run.hp, run.vocabs)
    loss = trainer.mean_loss(run.loss_fn, dev.data, run.hp.pad_to)
    total, count = run.loss_fn(dev.data.X.pad(width=15), dev.data.Y.pad(width=15))
    assert loss == pytest.approx(float(total / tf.cast(count, tf.float32)), rel=1e-5)
    assert abs(loss - round(loss)) > 1e-3


@slow
def test_the_best_checkpoint_follows_the_metric(flags, monkeypatch):
    """The scores of another metric are not compared with its scores."""
    sides = {f"{side}_dev": flags[f"{side}_test"] for side in ("source", "target")}
    flags = flags | sides | dict(keep_checkpoints=9)
    scores = dict(bleu=iter([10.0] * 3), chrf=iter([50.0, 60.0, 40.0]))

    def corpus_score(name, dev, got, lang):
        assert lang == "en" and len(got) == len(dev.data.X)
        return next(scores[name]), ""

    monkeypatch.setattr(trainer, "corpus_score", corpus_score)
    monkeypatch.setattr(trainer, "SearchDecoder", lambda loaded, **_: fake_decode(loaded))
    run_main(train, flags | dict(num_epochs=2, metric="chrf"))
    first, second = saved_rows(flags["logdir"])
    assert checkpoint.best_row([first, second]) == second
    assert (first.score, second.score) == (50.0, 60.0)
    run_main(train, flags | dict(num_epochs=3, metric="bleu"))
    *others, last = saved_rows(flags["logdir"])
    assert [*dev_scores(flags["logdir"]).values()] == [50.0, 60.0, 10.0]
    assert checkpoint.best_row([*others, last]) == last


def fake_decode(loaded):
    assert loaded.vocabs[1].path.name == "en.vocab.tsv"  # that of the target
    best = types.SimpleNamespace(text="a")
    return lambda X: [[best]] * len(X)
