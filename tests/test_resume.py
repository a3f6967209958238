"""Training that is stopped or killed and then resumed gives the same as without interruption."""

import functools
import os
import random
import re
import resource
import shutil
import signal
import termios
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import checkpoint
import prepro
import train
import trainer
from conftest import sample_pairs, slow, write_corpus
from helpers import dev_scores, event_values, run_main, saved_rows, scalars
from hparams import make_hparams
from processes import Forked, command_line
from runtime.signals import SignalGuard

KILLS = int(os.environ.get("KILLS", "3"))  # in the slow test
RECIPE = dict(recipe="tiny", vocab_size=300, hidden_units=32, num_blocks=1, num_heads=2)
TRAINING = RECIPE | dict(batch_tokens=60, num_epochs=3, save_steps=20, deterministic=True)
TRAINING |= dict(missing_mark=0.4)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """A corpus with its vocabulary. The development set is the test set."""
    folder = tmp_path_factory.mktemp("corpus")
    flags = write_corpus(folder, sample_pairs(200), sample_pairs(20, seed=1))
    dev = dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    flags |= dev | TRAINING
    run_main(prepro, flags)
    return flags


@pytest.fixture(scope="module")
def uninterrupted(flags, tmp_path_factory):
    """The folder of a run without interruption."""
    logdir = tmp_path_factory.mktemp("uninterrupted")
    with start(flags, logdir) as process:
        assert process.wait() == 0, process.stderr.read()
    return logdir


@pytest.fixture
def one_epoch(one_epoch_once, tmp_path):
    """A copy of the folder of a run of one epoch."""
    return shutil.copytree(one_epoch_once, tmp_path / "one_epoch")


@pytest.fixture(scope="module")
def one_epoch_once(flags, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("one_epoch")
    with start(flags, logdir, num_epochs=1) as process:
        assert process.wait() == 0, process.stderr.read()
    return logdir


def start(flags, logdir, prepare=None, **more):
    """Start train.py with the threads of a real training run."""
    words = ["train.py", *command_line(flags | more | dict(logdir=logdir))]
    return Forked(words, env=dict(TF_NUM_INTRAOP_THREADS=None), prepare=prepare)


def content(logdir):
    """Read the latest checkpoint: bytes by the keys of its variables."""
    path = checkpoint.latest_readable(logdir)
    assert saved_rows(logdir)[-1].epochs_done == 3
    reader = tf.train.load_checkpoint(str(path))
    names = reader.get_variable_to_shape_map()
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}


def curves(logdir):
    """Read TensorBoard's curves; of the speed, which always differs, only the steps."""
    points = scalars(logdir)
    speed = points.pop("tokens_per_second")
    return points, [*speed], [(name, step) for name, step, _ in event_values(logdir)]


def names(logdir):
    return [row.name for row in saved_rows(logdir)]


def assert_equal(logdir, uninterrupted):
    assert content(logdir) == content(uninterrupted)
    assert curves(logdir) == curves(uninterrupted)
    assert names(logdir) == names(uninterrupted)
    assert dev_scores(logdir) == dev_scores(uninterrupted)


def wait_for(process, logdir, pattern, before=()):
    """Wait for a file that is not among `before`, or until the process ends."""
    while process.poll() is None and not {*Path(logdir).glob(pattern)} - {*before}:
        time.sleep(0.0005)


def kill(flags, logdir, in_save, rng, saves):
    """Train, and send SIGKILL at a random moment after some checkpoints, or during a save.

    Args:
      saves: how many checkpoints to wait for.

    Returns:
      int or None: the step of the latest checkpoint, or None if training had ended before.
    """
    before = [*logdir.glob("events*")]
    with start(flags, logdir) as process:
        wait_for(process, logdir, "events*", before)
        for _ in range(saves):  # counted, not timed: machines differ in speed
            wait_for(process, logdir, "model*.index", [*logdir.glob("model*.index")])
        time.sleep(rng.uniform(0.0, 0.3))
        if in_save:
            wait_for(process, logdir, "unfinished*")
        process.kill()
    rows = saved_rows(logdir)
    if not rows:  # the next run starts anew, and leaves the curves of this one
        for path in logdir.glob("events*"):
            path.unlink()
    if process.returncode == -signal.SIGKILL:
        return rows[-1].step if rows else 0
    return None


@slow
def test_killed_several_times_it_gives_the_same(flags, uninterrupted, tmp_path):
    rng, steps = random.Random(0), []
    for logdir in map(tmp_path.joinpath, map(str, range(KILLS))):
        killed_at = [kill(flags, logdir, turn % 2 == 1, rng, saves=turn) for turn in range(3)]
        steps += [step for step in killed_at if step is not None]
        with start(flags, logdir) as process:
            assert process.wait() == 0, process.stderr.read()
        assert_equal(logdir, uninterrupted)
        if len(steps) >= KILLS:
            break
    assert len(steps) >= KILLS and any(steps)  # some were killed after a checkpoint


@slow
def test_sigterm_saves_at_once_and_a_run_locks_its_folder(flags, uninterrupted, tmp_path):
    with start(flags, tmp_path, save_steps=0) as process:
        wait_for(process, tmp_path, "events*")
        with start(flags, tmp_path) as other:
            printed = other.stderr.read()
        assert other.returncode == 2 and "another training run writes here" in printed
        assert "Traceback" not in printed
        printed = ""
        while "epoch 1/3" not in printed:
            printed += process.stderr.read(1)
        process.send_signal(signal.SIGTERM)
        printed += process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM and "The same command resumes" in printed
    assert not saved_rows(tmp_path)[-1].epoch_done
    with start(flags, tmp_path) as process:
        assert process.wait() == 0, process.stderr.read()
    assert_equal(tmp_path, uninterrupted)


def print_to_terminal(path):
    """Make a terminal the output of this process, which does not ignore that it is closed."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run with nohup
    terminal = os.open(path, os.O_RDWR | os.O_NOCTTY)
    os.dup2(terminal, 1)
    os.dup2(terminal, 2)


@slow
def test_a_closed_terminal_saves_and_nohup_trains_on(flags, uninterrupted, tmp_path):
    """SIGHUP comes twice, and what is written to the terminal after it is an error."""
    display, terminal = os.openpty()
    termios.tcsetwinsize(terminal, (24, 80))  # a progress bar needs some width
    prepare = functools.partial(print_to_terminal, os.ttyname(terminal))
    with start(flags, tmp_path, save_steps=0, prepare=prepare) as process:
        printed = b""
        while b"epoch 1/3" not in printed:
            printed += os.read(display, 1000)
        process.send_signal(signal.SIGHUP)
        os.close(terminal)
        os.close(display)
        process.send_signal(signal.SIGHUP)
    assert process.returncode == 128 + signal.SIGHUP
    assert not saved_rows(tmp_path)[-1].epoch_done
    prepare = functools.partial(signal.signal, signal.SIGHUP, signal.SIG_IGN)
    with start(flags, tmp_path, prepare=prepare) as process:
        printed = ""
        while "epoch 1/3" not in printed:
            printed += process.stderr.read(1)
        process.send_signal(signal.SIGHUP)
        process.stderr.read()
    assert process.returncode == 0
    assert_equal(tmp_path, uninterrupted)


@slow
def test_a_full_disk_leaves_the_last_checkpoint(flags, one_epoch):
    """The limit of 100 kB per file is less than a checkpoint has."""
    before = checkpoint.latest_readable(one_epoch)
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    with start(flags, one_epoch, prepare=limit) as process:
        printed = process.stderr.read()
    assert process.returncode == 1, printed
    assert "no checkpoint can be written" in printed and "Traceback" not in printed
    assert checkpoint.latest_readable(one_epoch) == before
    assert not [*one_epoch.glob("unfinished*")]


@slow
@pytest.mark.parametrize("stop", [False, True])
def test_training_continues_when_nobody_reads_what_it_prints(flags, tmp_path, stop):
    """Both streams are pipes, as with `2>&1 | tee log`, and tee ends."""
    number = 1 if stop else 2
    with start(flags, tmp_path, num_epochs=2) as process:
        process.stdout.close()
        process.stderr.close()
        wait_for(process, tmp_path, "model_epoch_01*")
        if stop:
            process.send_signal(signal.SIGINT)
        assert process.wait() == (130 if stop else 0)
    assert checkpoint.latest_readable(tmp_path)
    assert saved_rows(tmp_path)[-1].epoch >= number


@pytest.mark.parametrize(
    "message, expected",
    [
        ("logdir/x; No space left on device", "the disk is full"),
        ("logdir/x; Disk quota exceeded", "the disk is full"),
        ("logdir/x; Too many open files", "Too many open files. Run the command again"),
        ("OOM when allocating tensor with shape[9,9]", "a batch is too large for the memory"),
    ],
)
def test_an_exhausted_resource_has_the_message_of_its_cause(message, expected):
    error = tf.errors.ResourceExhaustedError(None, None, message)
    assert expected in str(train.explain_tf_error(error, make_hparams({})))


@slow
@pytest.mark.parametrize("lr", [1e20, 3e38] if "SOAK" in os.environ else [1e20])
def test_training_that_diverges_ends_with_a_message(flags, one_epoch, lr):
    before = saved_rows(one_epoch)[-1]
    with start(flags, one_epoch, lr=lr, save_steps=0) as process:
        printed = process.stderr.read()
    assert process.returncode == 2
    message = re.search(r"(?:at|up to|after) step (\d+).*?\. (.*)", printed)
    assert before.name in message[2] and "Traceback" not in printed
    assert "Restart with a lower --lr or more --warmup_steps" in message[2]
    assert before.step < int(message[1])
    path = checkpoint.latest_readable(one_epoch)
    reader = tf.train.load_checkpoint(str(path))
    for name in reader.get_variable_to_shape_map():
        if name.startswith("weights"):
            assert np.isfinite(reader.get_tensor(name)).all()


@slow
def test_ctrl_c_while_the_development_set_is_translated(flags, tmp_path, monkeypatch):
    """All steps of the epoch are done and saved. Only the BLEU is missing."""
    flags = flags | dict(logdir=str(tmp_path), num_epochs=1, save_steps=0, deterministic=False)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(trainer, "evaluate_dev", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        run_main(train, flags)
    (row,) = saved_rows(tmp_path)
    assert not row.epoch_done and "dev_bleu" not in scalars(tmp_path)
    run_main(train, flags)
    (end,) = saved_rows(tmp_path)
    assert end[1:4] == (row.epoch, row.step, True) and len(scalars(tmp_path)["dev_bleu"]) == 1


def test_a_second_sighup_is_not_a_request_to_end_at_once(monkeypatch):
    monkeypatch.setattr(signal, "getsignal", lambda _: signal.SIG_DFL)  # as without nohup
    with SignalGuard() as guard:
        guard.terminals = []  # those of the tests stay
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert guard.signal == signal.SIGHUP
        with pytest.raises(KeyboardInterrupt), guard.interruptible():
            pass


def test_a_second_ctrl_c_does_not_wait():
    with SignalGuard() as guard:
        os.kill(os.getpid(), signal.SIGINT)
        assert guard.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
