"""Training that is stopped or killed ends as one that was left alone."""

import functools
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import checkpoint
import prepro
import train
from conftest import ROOT, sample_pairs, write_corpus
from test_scripts import scalars
from test_tensorboard import values

KILLS = int(os.environ.get("KILLS", "3"))
RECIPE = dict(recipe="tiny", vocab_size=300, hidden_units=32, num_blocks=1, num_heads=2)
TRAINING = RECIPE | dict(batch_tokens=60, num_epochs=3, save_steps=7, deterministic=True)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """A corpus with its pieces, whose test set is the development set too."""
    folder = tmp_path_factory.mktemp("corpus")
    flags = write_corpus(folder, sample_pairs(400), sample_pairs(20, seed=1))
    dev = dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    flags |= dev | TRAINING
    prepro.main(flags)
    return flags


@pytest.fixture(scope="module")
def whole(flags, tmp_path_factory):
    """The folder of a training that was left alone."""
    logdir = tmp_path_factory.mktemp("whole")
    with start(flags, logdir) as process:
        assert process.wait() == 0, process.stderr.read()
    return logdir


@pytest.fixture
def begun(begun_once, tmp_path):
    """A copy of the folder of a training of one epoch."""
    return shutil.copytree(begun_once, tmp_path / "begun")


@pytest.fixture(scope="module")
def begun_once(flags, tmp_path_factory):
    logdir = tmp_path_factory.mktemp("begun")
    with start(flags, logdir, num_epochs=1) as process:
        assert process.wait() == 0, process.stderr.read()
    return logdir


def start(flags, logdir, preexec_fn=None, **more):
    flags = flags | more | dict(logdir=str(logdir))
    options = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, str(ROOT / "train.py"), *options]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    env = {name: value for name, value in os.environ.items() if name != "TF_NUM_INTRAOP_THREADS"}
    return subprocess.Popen(command, preexec_fn=preexec_fn, env=env, **pipes)


def content(logdir):
    """What the newest checkpoint holds, bytes by the names of its variables."""
    path = checkpoint.newest(logdir)
    assert path.name.startswith("model_epoch_03") and not checkpoint.is_partial(path)
    reader = tf.train.load_checkpoint(str(path))
    names = reader.get_variable_to_shape_map()
    return {name: np.asarray(reader.get_tensor(name)).tobytes() for name in names}


def curves(logdir):
    """All but speed, of which the steps alone."""
    points = scalars(logdir)
    speed = points.pop("tokens_per_second")
    return points, [*speed], [(name, step) for name, step, _ in values(logdir)]


def assert_equal(logdir, whole):
    assert content(logdir) == content(whole)
    assert curves(logdir) == curves(whole)
    names = [[path.name for path in checkpoint.named(folder)] for folder in (logdir, whole)]
    assert names[0] == names[1]
    assert checkpoint.read_scores(logdir) == checkpoint.read_scores(whole)


def wait_for(process, logdir, pattern, before=()):
    """Until a file is there that was not before, or the process has ended."""
    while process.poll() is None and not {*Path(logdir).glob(pattern)} - {*before}:
        time.sleep(0.0005)


def kill(flags, logdir, in_save, rng, saves):
    """Train, up to SIGKILL at a random moment after some checkpoints, or in a save.

    Args:
      saves: how many checkpoints are waited for.

    Returns:
      int or None: the step that the newest checkpoint is of, if training was still at work.
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
    newest = checkpoint.newest(logdir)
    if process.returncode == -signal.SIGKILL:
        return checkpoint.epoch_and_step(newest)[1] if newest else 0
    return None


def test_killed_again_and_again_it_ends_as_if_left_alone(flags, whole, tmp_path):
    rng, steps = random.Random(0), []
    for logdir in map(tmp_path.joinpath, map(str, range(KILLS))):
        found = [kill(flags, logdir, turn % 2 == 1, rng, saves=turn) for turn in range(3)]
        steps += [step for step in found if step is not None]
        with start(flags, logdir) as process:
            assert process.wait() == 0, process.stderr.read()
        assert_equal(logdir, whole)
        if len(steps) >= KILLS:
            break
    assert len(steps) >= KILLS and any(steps)  # some were killed after a checkpoint


def test_sigterm_saves_at_once_and_one_training_keeps_others_out(flags, whole, tmp_path):
    with start(flags, tmp_path, save_steps=0) as process:
        wait_for(process, tmp_path, "events*")
        with start(flags, tmp_path) as other:
            printed = other.stderr.read()
        assert other.returncode == 2 and "another training writes here" in printed
        assert "Traceback" not in printed
        process.send_signal(signal.SIGTERM)
        printed = process.stderr.read()
    assert process.returncode == 128 + signal.SIGTERM and "The same command resumes" in printed
    assert checkpoint.is_partial(checkpoint.newest(tmp_path))
    with start(flags, tmp_path) as process:
        assert process.wait() == 0, process.stderr.read()
    assert_equal(tmp_path, whole)


def test_a_full_disk_leaves_the_last_checkpoint(flags, begun):
    """A file may have 100 kB, which is less than a checkpoint has."""
    before = checkpoint.newest(begun)
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, 100_000))
    with start(flags, begun, preexec_fn=limit) as process:
        printed = process.stderr.read()
    assert process.returncode == 1, printed
    assert "no checkpoint can be written" in printed and "Traceback" not in printed
    assert checkpoint.newest_whole(begun) == before
    assert not [*begun.glob("unfinished*")]


@pytest.mark.parametrize("rate", [1e20] + [3e38] * ("SOAK" in os.environ))
def test_a_loss_that_is_no_number_ends_training(flags, begun, rate):
    before = checkpoint.newest(begun)
    with start(flags, begun, lr=rate, save_steps=0) as process:
        printed = process.stderr.read()
    assert process.returncode == 2
    named = re.search(r"(?:at|up to|after) step (\d+).*?\. (.*)", printed)
    assert before.name in named[2] and "Traceback" not in printed
    assert checkpoint.epoch_and_step(before)[1] < int(named[1])
    path = checkpoint.newest_whole(begun)
    reader = tf.train.load_checkpoint(str(path))
    for name in reader.get_variable_to_shape_map():
        if name.startswith("weights"):
            assert np.isfinite(reader.get_tensor(name)).all()


def test_ctrl_c_while_the_development_set_is_translated(flags, tmp_path, monkeypatch):
    """All steps of the epoch are done and saved; what is left of it is the BLEU."""
    flags = flags | dict(logdir=str(tmp_path), num_epochs=1, save_steps=0, deterministic=False)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(train, "translate", lambda *_: os.kill(os.getpid(), signal.SIGINT))
        train.main(flags)
    path = checkpoint.newest(tmp_path)
    assert checkpoint.is_partial(path) and "dev_bleu" not in scalars(tmp_path)
    train.main(flags)
    end = checkpoint.newest(tmp_path)
    assert checkpoint.epoch_and_step(end) == checkpoint.epoch_and_step(path)
    assert checkpoint.named(tmp_path) == [end] and len(scalars(tmp_path)["dev_bleu"]) == 1


def test_a_second_ctrl_c_does_not_wait():
    with train.Stop() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
