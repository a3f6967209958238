"""Evaluations within an epoch, with --dev_steps, and an end within it, with --max_steps."""

import dataclasses
import functools
import os
import signal
import time
from pathlib import Path

import manifest
import numpy as np
import pytest

import checkpoint
import prepro
import train
import trainer
from conftest import SMALL, sample_pairs, slow, write_corpus
from data_load import SentencePairs, plan_batches
from helpers import dev_scores, load, parameters, run_main, saved_rows, scalars
from hparams import NO_EPOCH_LIMIT, choose_schedule, make_hparams, override, read_hparams
from ids import RaggedIds
from optimizer import LinearSchedule
from processes import Forked
from runtime.errors import InputError

# 12 steps per epoch, of which steps 5 and 10, 15 and 20 are evaluated, and 12 and 24.
STEPS = [5, 10, 12, 15, 20, 24]
NAMES = [f"model_epoch_{1 + (step > 12):02d}_gs_{step}" for step in STEPS]
NAMES = [name if int(name[-2:].strip("_")) % 12 == 0 else f"{name}_partial" for name in NAMES]


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    flags = write_corpus(folder, sample_pairs(100), sample_pairs(10, seed=1)) | SMALL
    flags |= {f"{side}_dev": flags[f"{side}_test"] for side in ("source", "target")}
    flags |= dict(batch_size=8, num_epochs=2, save_steps=7, dev_steps=5, deterministic=True)
    run_main(prepro, flags)
    return flags


def run_training(flags):
    run_main(train, flags)


def run(task, flags, code=0):
    """Call a function with the flags in another process; returns its output and its errors."""
    with Forked(functools.partial(task, flags)) as process:
        printed, errors = process.communicate()
    assert process.returncode == code, errors
    return printed, errors


@pytest.fixture(scope="module")
def uninterrupted(flags, tmp_path_factory):
    """The folder of a run without interruption, and its output."""
    logdir = tmp_path_factory.mktemp("uninterrupted")
    return logdir, run(run_training, flags | dict(logdir=str(logdir)))[0]


def names(logdir):
    return [row.name for row in saved_rows(logdir)]


@slow
def test_it_is_evaluated_within_and_at_the_end_of_each_epoch(uninterrupted):
    logdir, printed = uninterrupted
    assert [*scalars(logdir)["dev_bleu"]] == [*scalars(logdir)["dev_loss"]] == STEPS
    assert [*dev_scores(logdir)] == NAMES
    lines = [line for line in printed.splitlines() if "dev loss" in line]
    assert [Path(line.partition(":")[0]).name for line in lines] == NAMES
    # The five newest of those that were evaluated, and the best one; not those of save_steps.
    best = manifest.require_best(logdir).name
    assert names(logdir) == [name for name in NAMES if name in {*NAMES[1:], best}]


@slow
def test_the_mean_is_that_of_the_evaluated_checkpoints(uninterrupted):
    logdir, _ = uninterrupted
    paths, *_ = load(dict(logdir=str(logdir), average_checkpoints=4))
    assert [path.name for path in paths] == NAMES[4:]  # of the last quarter of 24 steps
    paths = manifest.checkpoints_to_average(logdir / NAMES[3], 2)
    assert [path.name for path in paths] == NAMES[2:4]


def interrupted_evaluation(flags):
    """Train, and press Ctrl-C in the second evaluation."""
    evaluate, calls = trainer.evaluate_dev, []

    def interrupting(*args, **kwargs):
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return evaluate(*args, **kwargs)

    trainer.evaluate_dev = interrupting
    run_main(train, flags)


@slow
def test_a_signal_during_an_evaluation_loses_no_score(flags, uninterrupted, tmp_path):
    flags = flags | dict(logdir=str(tmp_path))
    run(interrupted_evaluation, flags, code=1)
    assert checkpoint.latest_readable(tmp_path).name == NAMES[1]
    assert [*dev_scores(tmp_path)] == NAMES[:1]
    run(run_training, flags)
    logdir, _ = uninterrupted
    assert dev_scores(tmp_path) == dev_scores(logdir)
    assert names(tmp_path) == names(logdir)
    for tag in ("dev_bleu", "dev_loss", "mean_loss"):
        assert scalars(tmp_path)[tag] == scalars(logdir)[tag]
    np.testing.assert_equal(parameters(tmp_path), parameters(logdir))


@slow
@pytest.mark.parametrize("accumulate, evaluated", [(5, [2, 3]), (6, [1, 2])])
def test_a_signal_in_the_last_evaluation_of_an_epoch(flags, tmp_path, accumulate, evaluated):
    """12 batches are steps of 5, of 5 and of 2, or two of 6; all are done when it resumes."""
    first, last = evaluated
    more = dict(logdir=str(tmp_path), accumulate=accumulate, dev_steps=first, num_epochs=1)
    run(interrupted_evaluation, flags | more, code=1)
    assert checkpoint.latest_readable(tmp_path).name == f"model_epoch_01_gs_{last}_partial"
    run(run_training, flags | more)
    assert checkpoint.latest_readable(tmp_path).name == f"model_epoch_01_gs_{last}"
    assert [*scalars(tmp_path)["dev_bleu"]] == evaluated
    assert len(dev_scores(tmp_path)) == 2


@slow
def test_patience_counts_evaluations(flags, tmp_path, capsys):
    flags = flags | dict(logdir=str(tmp_path), lr=1e-30, patience=3, deterministic=False)
    for _ in range(2):  # the second time, it stops at once
        run_main(train, flags)
        printed = capsys.readouterr().out
        assert "No better dev BLEU than" in printed and "in 3 evaluations: stopping" in printed
        assert checkpoint.latest_readable(tmp_path).name == NAMES[3]
    assert "dev loss" not in printed


@slow
def test_max_steps_ends_the_training_and_without_it_it_goes_on(flags, uninterrupted, tmp_path):
    flags = flags | dict(logdir=str(tmp_path))
    printed, _ = run(run_training, flags | dict(max_steps=7))
    assert "All 7 steps are done" in printed
    assert checkpoint.latest_readable(tmp_path).name == "model_epoch_01_gs_7_partial"
    assert [*scalars(tmp_path)["dev_bleu"]] == [5, 7]
    again, _ = run(run_training, flags | dict(max_steps=7))
    assert "All 7 steps are done" in again and "dev loss" not in again
    run(run_training, flags | dict(max_steps=0))
    assert [*scalars(tmp_path)["dev_bleu"]] == [5, 7, *STEPS[1:]]
    np.testing.assert_equal(parameters(tmp_path), parameters(uninterrupted[0]))


@slow
def test_the_last_evaluation_of_max_steps_is_made_up_for_after_a_signal(flags, tmp_path):
    flags = flags | dict(logdir=str(tmp_path), max_steps=9)
    run(interrupted_evaluation, flags, code=1)
    assert [*scalars(tmp_path)["dev_bleu"]] == [5]
    run(run_training, flags)
    assert [*scalars(tmp_path)["dev_bleu"]] == [5, 9]
    assert checkpoint.latest_readable(tmp_path).name == "model_epoch_01_gs_9_partial"


@slow
def test_a_training_of_some_minutes_plans_its_end(flags, tmp_path, monkeypatch):
    flags = flags | dict(logdir=str(tmp_path), minutes=0.1, dev_steps=0, decay_steps="auto")
    del flags["num_epochs"]
    monkeypatch.setattr(train, "START_SECONDS", time.monotonic())
    run_main(train, flags)
    last, hp = manifest.read_rows(tmp_path)[-1], read_hparams(tmp_path)
    assert 0 < last.step == hp.max_steps == hp.decay_steps and last.score is not None
    assert hp.num_epochs == NO_EPOCH_LIMIT
    monkeypatch.setattr(train, "START_SECONDS", time.monotonic())
    run_main(train, flags)  # the same command: the training is done
    assert manifest.read_rows(tmp_path)[-1] == last
    monkeypatch.setattr(train, "START_SECONDS", time.monotonic())
    run_main(train, flags | dict(minutes=0.05))  # other minutes: they begin anew
    last = manifest.read_rows(tmp_path)[-1]
    assert last.step > hp.max_steps
    with pytest.raises(InputError, match="minutes and max_steps both set the end"):
        run_main(train, flags | dict(max_steps=3))

    del flags["minutes"]
    run_main(train, flags)  # the end that was planned stays
    assert manifest.read_rows(tmp_path)[-1] == last
    more_steps = last.step + 3
    run_main(train, flags | dict(max_steps=more_steps))  # in place of the time
    hp = read_hparams(tmp_path)
    assert (hp.minutes, hp.max_steps, hp.decay_steps) == (0, more_steps, more_steps)
    more_steps += 40  # several epochs
    run_main(train, flags | dict(max_steps=more_steps))
    assert manifest.read_rows(tmp_path)[-1].step == more_steps
    monkeypatch.setattr(train, "START_SECONDS", time.monotonic())
    run_main(train, flags | dict(minutes=0.05))  # the minutes of the training before
    last, hp = manifest.read_rows(tmp_path)[-1], read_hparams(tmp_path)
    assert last.step == hp.max_steps > more_steps
    run_main(train, flags | dict(num_epochs=last.epoch + 1))  # in place of the time
    hp = read_hparams(tmp_path)
    assert (hp.minutes, hp.max_steps) == (0, 0)
    assert manifest.read_rows(tmp_path)[-1].epochs_done == last.epoch + 1


@slow
def test_minutes_that_have_no_plan_yet_are_kept(flags, tmp_path, monkeypatch):
    flags = flags | dict(logdir=str(tmp_path), minutes=0.05, dev_steps=0, decay_steps="auto")
    del flags["num_epochs"]

    def interrupt(clock):
        os.kill(os.getpid(), signal.SIGINT)
        return False

    with monkeypatch.context() as context:
        context.setattr(train, "START_SECONDS", time.monotonic())
        context.setattr(trainer.Clock, "plan_is_due", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run_main(train, flags)
    assert read_hparams(tmp_path).max_steps == 0
    del flags["minutes"]
    monkeypatch.setattr(train, "START_SECONDS", time.monotonic())
    run_main(train, flags)
    last, hp = manifest.read_rows(tmp_path)[-1], read_hparams(tmp_path)
    assert 1 < last.step == hp.max_steps and hp.minutes == 0.05


@pytest.mark.parametrize(
    "recipe, given, num_epochs, max_steps",
    [
        ("tiny", dict(max_steps=9), NO_EPOCH_LIMIT, 9),
        ("paper", dict(max_steps=9), NO_EPOCH_LIMIT, 9),
        ("tiny", dict(num_epochs=3), 3, 0),
        ("paper", dict(minutes=0.0), 20, 0),
        ("tiny", dict(minutes=0.0), NO_EPOCH_LIMIT, 0),  # adapt_schedule chooses
        ("paper", dict(num_epochs="auto"), NO_EPOCH_LIMIT, 0),
        ("small", dict(max_steps=0), 20, 0),
        ("small", dict(num_epochs=4, max_steps=9), 4, 9),
    ],
)
def test_a_flag_takes_the_place_of_the_minutes(recipe, given, num_epochs, max_steps):
    saved = make_hparams(dict(recipe=recipe))
    saved = dataclasses.replace(saved, num_epochs=NO_EPOCH_LIMIT, max_steps=70, minutes=6.0)
    hp = train.replace_minutes(override(saved, given))
    assert (hp.num_epochs, hp.max_steps, hp.minutes) == (num_epochs, max_steps, 0)
    same = override(saved, dict(lr=0.1))
    assert train.replace_minutes(same) == same


def test_without_minutes_the_recipe_chooses_the_epochs_again():
    rows = RaggedIds.from_lists([[4, 3]] * 100)
    data = SentencePairs(rows, rows, [], [], [])
    saved = make_hparams(dict(recipe="tiny", batch_size=10))
    timed = dict(warmup_steps=250, decay_steps=2500, num_epochs=NO_EPOCH_LIMIT, minutes=6.0)
    saved = dataclasses.replace(saved, **timed)
    start = train.Start(train.replace_minutes(override(saved, dict(minutes=0.0))), saved=saved)
    row = manifest.make_row(1, 3, epoch_done=False)
    expected = choose_schedule(make_hparams(dict(recipe="tiny")), steps_per_epoch=10)
    expected = {name: expected[name] for name in ("num_epochs", "decay_steps")}
    assert train.adapt_schedule(start, row, data, None) == expected


@slow
def test_minutes_with_longer_epochs_than_before(flags, tmp_path, monkeypatch):
    flags = flags | dict(logdir=str(tmp_path), num_epochs=2, dev_steps=0, decay_steps="auto")
    run_main(train, flags | dict(batch_size=50))  # 2 steps per epoch, and then 25
    del flags["num_epochs"]
    monkeypatch.setattr(train, "START_SECONDS", time.monotonic())
    run_main(train, flags | dict(minutes=0.05, batch_size=4))
    last, hp = manifest.read_rows(tmp_path)[-1], read_hparams(tmp_path)
    assert last.step == hp.max_steps > 4


def test_the_warm_up_is_at_most_half_of_the_planned_steps():
    schedule = LinearSchedule(peak=1.0, warmup_steps=250, decay_steps=2500)
    assert float(schedule(49)) == pytest.approx(50 / 250)
    schedule.plan(warmup_steps=40, decay_steps=80)
    rates = [float(schedule(step)) for step in range(80)]
    assert np.argmax(rates) == 39 and rates[39] == 1 and rates[79] == pytest.approx(0.01)
    assert schedule.get_config() == dict(peak=1.0, warmup_steps=40, decay_steps=80)


def test_the_end_is_planned_from_the_speed(monkeypatch):
    now = 100.0
    monkeypatch.setattr(trainer.time, "monotonic", lambda: now)
    clock = trainer.Clock(deadline=640.0)
    clock.start_epoch(0, 500)
    planned = []
    for step in range(1, 103):
        now += 20 if step == 1 else 1 if step < 100 else 450  # the first step is not measured
        clock.step(step)
        if clock.plan_is_due():
            planned.append(step)
            clock.note_plan()
        if step == 51:
            assert clock.seconds_per_step() == 1
    assert planned == [51, 100, 101, 102]  # and when the time is over
    assert clock.steps_per_epoch == 500
    now, clock = 100.0, trainer.Clock(deadline=600.0)
    for step in range(1, 22):
        now += 5  # slow steps: the first plan comes after a tenth of the time
        clock.step(step)
        if clock.plan_is_due():
            break
    assert step == 11
    clock.note_plan()
    assert not clock.plan_is_due()


@slow
def test_max_steps_without_a_development_set(flags, tmp_path):
    more = dict(logdir=str(tmp_path), max_steps=3, dev_steps=0)
    more |= dict(source_dev="none", target_dev="none")
    for _ in range(2):
        printed, _ = run(run_training, flags | more)
        assert "All 3 steps are done. To train longer, raise --max_steps" in printed
        assert names(tmp_path) == ["model_epoch_01_gs_3_partial"]


@slow
def test_max_steps_at_the_end_of_an_epoch(flags, tmp_path):
    run(run_training, flags | dict(logdir=str(tmp_path), max_steps=12))
    assert checkpoint.latest_readable(tmp_path).name == NAMES[2]


@slow
def test_a_larger_max_steps_trains_longer(flags, tmp_path):
    flags = flags | dict(logdir=str(tmp_path), num_epochs="auto", dev_steps=0)
    for max_steps in (12, 30):
        printed, _ = run(run_training, flags | dict(max_steps=max_steps))
        assert f"All {max_steps} steps are done" in printed
    assert checkpoint.latest_readable(tmp_path).name == "model_epoch_03_gs_30_partial"


def test_the_schedule_is_that_of_max_steps():
    hp = make_hparams(dict(recipe="tiny", max_steps=1000))
    chosen = dict(num_epochs=4, warmup_steps=100, decay_steps=1000)
    assert choose_schedule(hp, steps_per_epoch=300) == chosen


@pytest.mark.parametrize(
    "before, flags, steps",
    [
        ("auto", dict(), 20),
        ("auto", dict(num_epochs=5), 50),
        ("auto", dict(max_steps=15), 15),
        ("auto", dict(num_epochs=5, decay_steps=30), 30),
        (0, dict(decay_steps="auto"), 20),
        (0, dict(num_epochs=5, decay_steps="auto"), 50),
        (0, dict(num_epochs=5), 0),
        (30, dict(decay_steps="auto"), 30),
    ],
)
def test_the_learning_rate_falls_up_to_the_new_end_of_a_training_that_resumes(before, flags, steps):
    first = dict(recipe="tiny", num_epochs=2, batch_size=10, decay_steps=before)
    rows = RaggedIds.from_lists([[4, 3]] * 100)
    data = SentencePairs(rows, rows, [], [], [])
    saved = make_hparams(first)
    saved = dataclasses.replace(saved, **choose_schedule(saved, steps_per_epoch=10))
    assert saved.decay_steps == (20 if before == "auto" else before)
    start = train.Start(override(saved, first | flags), saved=saved)
    chosen = train.adapt_schedule(start, manifest.make_row(1, 10), data, None)
    assert dataclasses.replace(start.hp, **chosen).decay_steps == steps


@pytest.mark.parametrize("max_steps", [508, 1016])
def test_the_epochs_hold_max_steps_although_their_lengths_differ(max_steps):
    lengths = np.random.default_rng(0).integers(3, 30, (2, 1000))
    X, Y = (RaggedIds.from_lists([[4] * length for length in side]) for side in lengths)
    data = SentencePairs(X, Y, [], [], [])
    hp = make_hparams(dict(recipe="tiny", batch_tokens=200, max_steps=max_steps))
    first = train.count_steps_per_epoch(hp, data, None)
    epochs = choose_schedule(hp, first)["num_epochs"]
    batches = [len(plan_batches(data, hp, epoch + 1)) for epoch in range(epochs)]
    assert sum(batches) >= max_steps
    assert sum(batches[: max_steps // first]) < max_steps  # epochs of the first one's length


@slow
def test_checkpoints_that_were_evaluated_with_another_metric_stay(flags, tmp_path):
    flags = flags | dict(logdir=str(tmp_path), num_epochs=1, keep_checkpoints=9, save_steps=0)
    run(run_training, flags | dict(max_steps=10))
    assert names(tmp_path) == NAMES[:2]
    flags |= dict(metric="chrf", max_steps=0)
    run(run_training, flags)
    assert names(tmp_path) == NAMES[:3]
    metrics = [row.metric for row in manifest.read_rows(tmp_path)]
    assert metrics == ["bleu", "chrf", "chrf"]  # 10 is made up for
    run(run_training, flags | dict(num_epochs=2))
    assert names(tmp_path) == NAMES
    assert [*dev_scores(tmp_path)] == NAMES


def test_it_needs_a_development_set():
    with pytest.raises(InputError, match="dev_steps 5 needs a development set, --source_dev"):
        make_hparams(dict(dev_steps=5))
