"""How a training stops, and that a resumed one gives the same as one without interruption."""

import dataclasses
import functools
import itertools
import os
import random
import shutil
import signal
import termios
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import prepro
import train
from checkpoints import checkpoint
from checkpoints.checkpoint import load_model_weights, read_rows
from conftest import SMALL, sample_pairs, slow, write_corpus
from data_load import load_train_data
from helpers import event_values, latest, saved_rows, scalars, skip_graphs
from hparams import make_hparams
from processes import Forked, command_line
from support.cli import SignalGuard
from support.errors import InputError
from text.ids import RaggedIds
from text.vocab import load_vocabs

KILLS = int(os.environ.get("KILLS", "3"))  # in the slow test
COMMON = dict(batch_size=8, num_epochs=2, save_steps=7)  # 12 batches in an epoch
WORDS = COMMON | SMALL
SUBWORDS = COMMON | dict(recipe="tiny", vocab_size=200, maxlen=80, hidden_units=16, ffn_units=16)
SUBWORDS |= dict(num_blocks=1, num_heads=2, missing_mark=0.4, bpe_dropout=0.1)
TRAININGS = dict(
    words=WORDS,
    subwords=SUBWORDS | dict(dev_steps=5),
    accumulate=SUBWORDS | dict(accumulate=5, clip_norm=0.5, dev_steps=2),  # 3 steps in an epoch
    each_second=WORDS,
    plain=SUBWORDS | dict(source_dev="none", target_dev="none", num_epochs=1),
)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """A text with its vocabularies. The development set is the test set."""
    folder = tmp_path_factory.mktemp("corpus")
    flags = write_corpus(folder, sample_pairs(100), sample_pairs(10, seed=1))
    flags |= {f"{side}_dev": flags[f"{side}_test"] for side in ("source", "target")}
    for training in (WORDS, SUBWORDS):
        prepro.main(flags | training)
    return flags


@pytest.fixture
def no_graphs(monkeypatch):
    skip_graphs(monkeypatch)


@pytest.fixture(scope="module")
def uninterrupted(flags, tmp_path_factory):
    """A function from a name in TRAININGS to the folder of a training without interruption."""

    @functools.cache
    def run(name, graphs):
        logdir = tmp_path_factory.mktemp(name)
        with pytest.MonkeyPatch.context() as patch:
            if not graphs:
                skip_graphs(patch)
            train.main(flags | TRAININGS[name] | dict(logdir=str(logdir)))
        return logdir

    return run


# Interrupted = uninterrupted ----------------------------------------


class Killed(BaseException):
    """What ends a training without saving anything, as SIGKILL does."""


def interrupt(patch, module, function, count, action):
    """Let the call number `count` of a function end the training, by a signal or `Killed`."""
    original, calls = getattr(module, function), itertools.count(1)

    def call(*args, **kwargs):
        if next(calls) == count:
            if action is Killed:
                raise Killed
            os.kill(os.getpid(), action)
        return original(*args, **kwargs)

    patch.setattr(module, function, call)


def assert_equal(logdir, expected):
    """Compare all tensors, run.json but for seconds and what was saved by time, and the curves."""
    arrays, others = (checkpoint.load(latest(folder)).items() for folder in (logdir, expected))
    assert [(k, v.tobytes()) for k, v in arrays] == [(k, v.tobytes()) for k, v in others]
    for read in (read_rows, saved_rows):
        rows, other_rows = (
            [row._replace(seconds=0) for row in read(folder) if not row.by_time]
            for folder in (logdir, expected)
        )
        assert rows == other_rows
    curves, other_curves = scalars(logdir), scalars(expected)  # which have no step twice
    assert curves.keys() == other_curves.keys()
    for name in curves.keys() - {"tokens_per_second"}:
        assert curves[name].items() >= other_curves[name].items()
        assert "dev" not in name or curves[name] == other_curves[name]
    tags, other_tags = ({v[:2] for v in event_values(folder)} for folder in (logdir, expected))
    assert tags == other_tags


STEP, EVALUATION = (train, "learning_rate"), (train, "mean_loss")
LIST = checkpoint, "atomic_write"  # of run.json, after the checkpoint was written

# A training, whether its graphs are built, and where one run after the other ends: at which call of
# which function, by what, and the last step that it has saved.
INTERRUPTIONS = dict(
    subwords=[
        (STEP, 1, signal.SIGTERM, 1),
        (STEP, 7, signal.SIGINT, 8),
        (LIST, 1, Killed, 8),
        (EVALUATION, 1, Killed, 8),
        (EVALUATION, 1, signal.SIGHUP, 11),  # it is finished first
        (STEP, 1, Killed, 11),
        (EVALUATION, 1, signal.SIGINT, 13),
        (STEP, 2, Killed, 14),
    ],
    accumulate=[(STEP, 2, signal.SIGINT, 2), (STEP, 1, signal.SIGINT, 3)],
    words=[(STEP, 15, Killed, 14)],
    each_second=[(STEP, 5, Killed, 4), (STEP, 6, Killed, 9)],  # saved by time
)

# The steps of an epoch, and those after which the training is evaluated.
EVALUATED = dict(subwords=(12, [5, 10, 12, 15, 20, 24]), accumulate=(3, [2, 3, 4, 6]))


@pytest.mark.parametrize(
    "training, graphs, ends",
    [(training, False, ends) for training, ends in INTERRUPTIONS.items()]
    + [pytest.param(training, True, ends, marks=slow) for training, ends in INTERRUPTIONS.items()]
    + [("plain", True, [(STEP, 8, signal.SIGINT, 8)])],
)
def test_interrupted_it_gives_the_same(
    flags, uninterrupted, tmp_path, monkeypatch, training, graphs, ends
):
    if not graphs:
        skip_graphs(monkeypatch)
    if training == "each_second":
        monkeypatch.setattr(train, "SAVE_SECONDS", 1e-9)
    flags = flags | TRAININGS[training] | dict(logdir=str(tmp_path))
    for where, count, action, saved in ends:
        with monkeypatch.context() as patch, pytest.raises((Killed, KeyboardInterrupt)) as raised:
            patch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)  # as without nohup
            interrupt(patch, *where, count, action)
            train.main(flags)
        if action is not Killed:
            number, message = raised.value.args
            assert number == action
            assert message.startswith(f"stopped after step {saved}. {tmp_path}/")
        rows = saved_rows(tmp_path)
        assert rows[-1].step == saved
        (used,), _ = load_model_weights(tmp_path)  # the newest that was evaluated, if one was
        evaluated = [row for row in rows if row.score is not None] or rows
        assert used == checkpoint.path_of(tmp_path, evaluated[-1])
    train.main(flags)
    assert_equal(tmp_path, uninterrupted(training, graphs))
    if training in EVALUATED:  # within and at the end of each epoch
        curves, (in_epoch, steps) = scalars(tmp_path), EVALUATED[training]
        assert [*curves["dev_bleu"]] == [*curves["dev_loss"]] == steps
        rows = [row[:3] for row in read_rows(tmp_path) if row.score is not None]
        assert rows == [(1 + (step > in_epoch), step, step % in_epoch == 0) for step in steps]
        assert 0 < curves["lr"][steps[-1]] < curves["lr"][steps[-2]]


def test_in_mid_epoch_the_batches_may_not_change(flags, uninterrupted, tmp_path, no_graphs):
    """The newest checkpoint becomes one in mid-epoch: the last one of the training is lost."""
    logdir = shutil.copytree(uninterrupted("subwords", graphs=False), tmp_path / "logdir")
    flags = flags | TRAININGS["subwords"] | dict(logdir=str(logdir))
    path = checkpoint.path_of(logdir, saved_rows(logdir)[-1])
    path.rename(tmp_path / path.name)
    with pytest.raises(InputError, match=r"gs_20.npz: the text, or a flag .* has changed since"):
        train.main(flags | dict(batch_size=9))
    (tmp_path / path.name).rename(path)
    train.main(flags | dict(batch_size=9, num_epochs=3, lr=0.5))  # at its end they may
    assert read_rows(logdir)[-1].epoch == 3 and max(scalars(logdir)["lr"].values()) > 0.01


def test_what_the_batches_depend_on(flags):
    hp = make_hparams(flags | SUBWORDS)
    data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
    other = RaggedIds.from_lists([[*data.X[i]] for i in range(len(data.X) - 1)] + [[7, 3]])
    changes = [dict(batch_size=9), dict(batch_tokens=99), dict(accumulate=2), dict(seed=1)]
    changes += [dict(missing_mark=0.5), dict(bpe_dropout=0.2), {}]
    digests = {train.digest_of_batches(data, dataclasses.replace(hp, **c)) for c in changes}
    digests |= {train.digest_of_batches(data._replace(**{s: other}), hp) for s in "XY"}
    assert len(digests) == len(changes) + 2


# The end of a training ----------------------------------------------


@pytest.mark.parametrize(
    "of_all, runs",
    [
        (WORDS | dict(dev_steps=5, patience=1), [(dict(), 10), (dict(patience=3), 15)]),
        (WORDS | dict(dev_steps=5), [(dict(patience=3), 15), ({}, 15), (dict(patience=4), 20)]),
        (
            WORDS | dict(source_dev="none", target_dev="none"),
            [(dict(max_steps=3), 3), ({}, 3), (dict(max_steps=0), 24), ({}, 24)],
        ),
        (
            SUBWORDS | dict(dev_steps=10),
            [(dict(max_steps=7), 7), (dict(max_steps=12), 12), (dict(max_steps=0), 24), ({}, 24)],
        ),
    ],
)
def test_a_training_ends_and_a_later_end_continues_it(
    flags, tmp_path, monkeypatch, no_graphs, capsys, of_all, runs
):
    """All scores are equal, so that patience runs out. Its evaluations are those of all runs."""
    monkeypatch.setattr(train, "corpus_score", lambda *_: (1.0, ""))
    flags, last = flags | of_all | dict(logdir=str(tmp_path)), 0
    for more, step in runs:
        flags |= more
        train.main(flags)
        row = read_rows(tmp_path)[-1]
        assert row.step == step and (row.score is None) == (flags["source_dev"] == "none")
        printed = capsys.readouterr().out
        is_done = f"{row.name}.npz: this training is done" in printed
        assert is_done == (step == last)
        assert is_done or ("No better dev score in" in printed) == ("patience" in flags)
        rates, last = scalars(tmp_path)["lr"], step
        assert rates[step] == pytest.approx(1e-4)  # of words always, of subwords at the end
    if of_all.get("recipe"):
        assert min(rates[10], rates[14], rates[20]) > rates[7]


@pytest.mark.parametrize(
    "scores, often, is_tired",
    [
        ([], 1, False),
        ([0, 0, 0, 0], 1, False),  # two of 8 epochs do not count
        ([0, 0, 0, 0, 0], 1, True),
        ([0] * 10, 4, False),  # two of them are of epoch 3
        ([0] * 11, 4, True),
        ([0.004, 0, 1, 0, 0], 1, True),
        ([0, 0, 1, 2, 1], 1, False),
        ([3, 0, 0], 1, True),
        ([1, 1, 1], 1, True),
        ([1, 0, 2, 1, 2], 1, True),
    ],
)
def test_patience(scores, often, is_tired):
    """There are `often` evaluations in an epoch."""
    rows = [checkpoint.Row(i // often + 1, i, score=score) for i, score in enumerate(scores)]
    training = SimpleNamespace(rows=rows, hp=SimpleNamespace(patience=2), num_epochs=8)
    assert train.Training.is_tired.fget(training) == is_tired
    training.hp.patience = 0
    assert not train.Training.is_tired.fget(training)


def test_a_training_of_some_minutes(flags, tmp_path, monkeypatch, no_graphs):
    """The clock goes on by a second whenever it is read."""
    clock = itertools.count().__next__
    monkeypatch.setattr(train, "time", SimpleNamespace(monotonic=clock))
    flags = flags | SUBWORDS | dict(logdir=str(tmp_path))
    del flags["num_epochs"]

    saved, save = [], checkpoint.save

    def note_and_save(logdir, rows, *more):
        saved.append(rows[-1])
        return save(logdir, rows, *more)

    monkeypatch.setattr(checkpoint, "save", note_and_save)

    def run(late=0, **more):
        monkeypatch.setattr(train, "START_SECONDS", clock() - late)
        train.main(flags | more)
        return read_rows(tmp_path)[-1]

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupt(patch, *STEP, 6, signal.SIGTERM)
        run(minutes=0.5)
    first = read_rows(tmp_path)[-1]
    assert 6 < first.seconds < 25
    assert saved[0].by_time and 6 < saved[0].seconds < 10  # after a fifth of the minutes
    last = run(minutes=0.5)
    assert 30 <= last.seconds < 50 and last.score is not None
    assert last.step < 30 * first.step / first.seconds + 3  # the minutes of both runs count
    rates = scalars(tmp_path)["lr"]
    assert rates[last.step] == pytest.approx(0.01 * 0.01)
    assert rates[min(rates)] == pytest.approx(0.01 * min(rates) / 250)  # the warm-up has 250 steps
    assert run() == last  # the training is done
    one_step = run(late=1000, minutes=2.0)  # it takes long to load the text
    assert one_step.step == last.step + 1 and one_step.score is not None
    of_epochs = run(num_epochs=one_step.epoch + 1)
    assert (of_epochs.epoch, of_epochs.epoch_done) == (one_step.epoch + 1, True)


# Processes ----------------------------------------------------------


def start(flags, logdir, prepare=None, **more):
    """Start train.py with the threads of a real training run."""
    more = dict(deterministic=True, logdir=logdir, num_epochs=3, save_steps=0, dev_steps=3) | more
    words = ["train.py", *command_line(flags | SUBWORDS | more)]
    return Forked(words, env=dict(TF_NUM_INTRAOP_THREADS=None), prepare=prepare)


@pytest.fixture(scope="module")
def process_uninterrupted(flags, tmp_path_factory):
    """The folder of a training in a process of its own."""
    logdir = tmp_path_factory.mktemp("process")
    with start(flags, logdir) as process:
        assert process.wait() == 0, process.stderr.read()
    return logdir


def wait_for(process, logdir, pattern, before=()):
    """Wait for a file that is not among `before`, or until the process ends."""
    while process.poll() is None and not {*Path(logdir).glob(pattern)} - {*before}:
        time.sleep(0.0005)


def wait_for_text(read, text):
    """Read until a text has been printed."""
    printed = read()
    while text not in printed:
        printed += read()


@slow
def test_killed_several_times_it_gives_the_same(flags, process_uninterrupted, tmp_path):
    """At a random moment after some checkpoints, or while one is saved."""
    rng, kills = random.Random(0), 0
    for logdir in map(tmp_path.joinpath, map(str, range(KILLS))):
        for turn in range(3):
            with start(flags, logdir) as process:
                for _ in range(turn + 1):  # counted, not timed: machines differ in speed
                    wait_for(process, logdir, "model*.npz", [*logdir.glob("model*.npz")])
                if turn % 2:
                    wait_for(process, logdir, "model*.tmp")
                else:
                    time.sleep(rng.uniform(0.0, 0.3))
                process.kill()
            kills += process.returncode == -signal.SIGKILL
        with start(flags, logdir) as process:
            assert process.wait() == 0, process.stderr.read()
        assert_equal(logdir, process_uninterrupted)
        if kills >= KILLS:
            break
    assert kills >= KILLS


def print_to_terminal(path):
    """Make a terminal the output of this process, which does not ignore that it is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run with nohup
    terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
    os.dup2(terminal, 1)
    os.dup2(terminal, 2)


@slow
def test_a_closed_terminal_saves_and_nohup_trains_on(flags, process_uninterrupted, tmp_path):
    """SIGHUP comes twice, and what is written to the terminal after it is an error."""
    display, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))  # a progress bar needs some width
    prepare = functools.partial(print_to_terminal, os.ttyname(terminal))
    with start(flags, tmp_path, prepare=prepare) as process:
        wait_for_text(functools.partial(os.read, display, 1000), b"epoch 1/3")
        process.send_signal(signal.SIGHUP)
        os.close(terminal)
        os.close(display)
        process.send_signal(signal.SIGHUP)
    assert process.returncode == 128 + signal.SIGHUP
    assert not saved_rows(tmp_path)[-1].is_milestone
    prepare = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with start(flags, tmp_path, prepare=prepare) as process:
        wait_for_text(functools.partial(process.stdout.read, 1), "Resuming from")
        process.send_signal(signal.SIGHUP)
        process.stdout.read()
    assert process.returncode == 0
    assert_equal(tmp_path, process_uninterrupted)


def test_a_second_sighup_does_not_end_the_program_but_a_second_ctrl_c_does(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)  # as without nohup
    monkeypatch.setattr(os, "isatty", lambda _: False)  # the terminal of the tests stays
    with SignalGuard() as guard:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert guard.signal == signal.SIGHUP
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
