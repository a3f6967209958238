"""Several devices and several workers: the batch is split, the training is the same."""

import functools
import json
import os
import re
import signal
import socket
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkpoint
import eval
import prepro
import train
import translate
from conftest import SMALL, sample_pairs, slow, write_corpus
from data_load import SentencePairs, get_batch_data, plan_batches
from helpers import run_main, saved_rows, scalars
from hparams import make_hparams
from ids import RaggedIds
from model import make_model
from modules import Dropout
from optimizer import FusedAdam, GradientSum
from processes import command_line, start, start_all
from runtime.cluster import worker_rank
from runtime.errors import InputError
from runtime.workers import make_strategy
from training_step import make_train_step
from variants.muon import Muon

# Plain gradient descent is compared closely. Adam divides each gradient by its size. If the true
# gradient is zero, rounding noise becomes a full step.
CASES = {("tiny", "SGD"): 1e-5, ("tiny", "Adam"): 1e-3, ("tiny", "accumulated SGD"): 1e-5}
CASES["tiny", "Muon"] = CASES["rnn_attention", "Adam"] = 1e-3
if "SOAK" in os.environ:
    CASES["legacy", "SGD"] = 1e-5


def print_losses(num_devices):
    """Train on random ids with all devices; print the losses of each of CASES, as JSON."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * num_devices
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = make_strategy()
    workers = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [1]}}'))
    replicas = num_devices * len(workers["cluster"]["worker"])
    assert strategy.num_replicas_in_sync == replicas
    with strategy.scope():
        dropout = Dropout(0.5)
    outputs = strategy.run(lambda: dropout(tf.ones([1, 99]), training=True))
    outputs = strategy.gather(outputs, axis=0).numpy()  # (replicas, 99)
    assert len(np.unique(outputs, axis=0)) == replicas  # each drops other units
    print(json.dumps([losses_of(strategy, *case) for case in CASES]))


def losses_of(strategy, recipe, optimizer_name):
    """Train a small model for some steps, and return the losses; but with SGD, also a norm."""
    small = dict(hidden_units=16, maxlen=10, dropout_rate=0.0)
    small |= {} if "rnn" in recipe else dict(num_blocks=1, num_heads=2)
    batch = dict(batch_size=25) if recipe == "legacy" else dict(batch_tokens=150)
    hp = make_hparams(dict(recipe=recipe) | batch | small)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model(hp, 50, 50)
        lr = 0.03 if "rnn" in recipe else 0.003
        kind = dict(Adam=FusedAdam, Muon=Muon).get(optimizer_name)
        optimizer = kind(lr) if kind else keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        gradient_sum = GradientSum(model.trainable_variables, 3)
    train_step = make_train_step(strategy, model, optimizer)
    if optimizer_name == "accumulated SGD":  # each batch twice per update, a clipped gradient
        args = strategy, model, optimizer, 0.1, 0.5, 0.0, gradient_sum
        accumulate, update = make_train_step(*args, update=False), make_train_step(*args)

        def train_step(x, y):
            accumulate(x, y)
            return update(x, y)

    rng = np.random.default_rng(0)
    sides = [
        RaggedIds.from_lists([rng.integers(4, 50, n) for n in rng.integers(1, 11, 600)])
        for _ in range(2)
    ]
    data = SentencePairs(*sides, [], [], range(600))
    plan = plan_batches(data, hp, 1)
    # Not the same number on two devices
    assert any(len(plan.rows(batch)) % 2 for batch in range(len(plan)))
    batches, count = get_batch_data(data, hp, 1, strategy=strategy)
    losses = [float(train_step(x, y).mean_loss) for x, y in batches]
    assert len(losses) == count
    return losses + ([float(optimizer.gradient_norm())] if kind else [])


@functools.cache
def losses(devices=1, workers=1):
    """Compute the losses of each of CASES in other processes."""
    processes = start(functools.partial(print_losses, devices), workers)
    printed = [process.communicate() for process in processes]
    assert not any(process.returncode for process in processes), printed
    results = [json.loads(out.splitlines()[-1]) for out, _ in printed]
    assert all(other == results[0] for other in results)
    return dict(zip(CASES, results[0], strict=True))


@slow
@pytest.mark.parametrize("several", [dict(devices=2), dict(workers=2)])
@pytest.mark.parametrize("case", CASES)
def test_several_devices_or_workers_compute_the_same(case, several):
    one, more = losses()[case], losses(**several)[case]
    assert len(one) >= 24 and abs(one[23] - one[0]) > 0.02
    assert more == pytest.approx(one, abs=CASES[case])


class Worker:
    """The strategy of one worker, as far as data is concerned: a list with a value per replica."""

    def __init__(self, index, workers, replicas):
        replica_ids = range(replicas)[index * replicas // workers :][: replicas // workers]
        self.contexts = [tf.distribute.experimental.ValueContext(i, replicas) for i in replica_ids]

    def experimental_distribute_values_from_function(self, value_fn):
        return [value_fn(context) for context in self.contexts]


@pytest.mark.parametrize("workers, replicas, skip", [(1, 1, 0), (1, 3, 2), (2, 2, 3), (3, 6, 0)])
def test_each_worker_reads_only_its_own_rows(workers, replicas, skip):
    """A batch may have fewer rows than there are replicas; the others get no rows."""
    rows = RaggedIds.from_lists([[i + 4] * (1 + i % 7) for i in range(100)])
    data = SentencePairs(rows, rows, [], [], [])
    hp = make_hparams(dict(recipe="tiny", batch_tokens=25))
    plan = plan_batches(data, hp, 1)
    assert min(len(plan.rows(batch)) for batch in range(len(plan))) < 6
    read = [[] for _ in range(len(plan) - skip)]
    for index in range(workers):
        batches, count = get_batch_data(data, hp, 1, skip, Worker(index, workers, replicas))
        assert count == len(plan)
        for seen, shares in zip(read, batches, strict=True):
            assert len(shares) == replicas // workers
            seen += [row - 4 for x, _ in shares for row in x[:, 0].numpy()]
    for number, seen in enumerate(read):
        assert sorted(seen) == sorted(plan.rows(skip + number))


def wait_for_checkpoint(logdir, processes):
    while not (logdir / "checkpoint").exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)


@slow
def test_sigterm_to_all_workers_saves_a_checkpoint(tmp_path):
    flags = write_corpus(tmp_path, sample_pairs(96)) | SMALL
    run_main(prepro, flags)
    flags |= dict(num_epochs=10_000, batch_size=8, save_steps=10_000, keep_checkpoints=1000)
    processes = start(["train.py", *command_line(flags)], workers=2)
    wait_for_checkpoint(tmp_path / "logdir", processes)
    for process in processes:
        process.terminate()
    printed = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [128 + signal.SIGTERM] * 2, printed
    assert not any("Traceback" in text for text in printed)
    path = checkpoint.latest_readable(tmp_path / "logdir")
    assert path.name in printed[0] and "The same command resumes" in printed[0], printed


@slow
@pytest.mark.parametrize("killed", [0, 2])
def test_a_killed_worker_ends_the_others_and_all_can_resume(tmp_path, killed):
    flags = write_corpus(tmp_path, sample_pairs(96)) | SMALL
    run_main(prepro, flags)
    flags |= dict(batch_size=8, save_steps=10)

    def command(**more):
        return ["train.py", *command_line(flags | more)]

    processes = start(command(num_epochs=10_000), workers=3)
    wait_for_checkpoint(tmp_path / "logdir", processes)
    victim = processes.pop(killed)
    victim.kill()
    for process in processes:
        _, printed = process.communicate(timeout=120)
        assert process.returncode == 1 and "Traceback" not in printed
        assert re.search(r"train.py: a worker is gone .+\. Start all workers again", printed)
        assert "Graph execution" not in printed
    victim.communicate()

    path = checkpoint.latest_readable(tmp_path / "logdir")
    processes = start(command(num_epochs=saved_rows(path.parent)[-1].epoch + 1), workers=3)
    printed = [process.communicate() for process in processes]
    assert not any(process.returncode for process in processes), printed
    assert all(f"Resuming from {path}" in out and out.endswith("Done\n") for out, _ in printed)
    assert ["mean_loss" in out for out, _ in printed] == [True, False, False]
    steps = [*scalars(tmp_path / "logdir")["mean_loss"]]
    assert steps == sorted(steps)


WORKERS = '"cluster": {"worker": ["a:1", "b:1"]}'


@pytest.mark.parametrize(
    "config, rank, num_workers",
    [
        ("{}", 0, 1),
        (f'{{{WORKERS}, "task": {{"type": "worker", "index": 1}}}}', 1, 2),
        ('{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"type": "chief"}}', 0, 2),
        ('{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}, "task": {"index": 0}}', 1, 2),
    ],
)
def test_each_worker_knows_its_rank(monkeypatch, config, rank, num_workers):
    monkeypatch.setenv("TF_CONFIG", config)
    assert worker_rank() == (rank, num_workers)


@pytest.mark.parametrize(
    "config",
    [
        "",
        "[]",
        "{",
        f'{{{WORKERS}, "task": {{"index": 2}}}}',
        '{"cluster": {"worker": ["localhost"]}, "task": {"index": 0}}',
        '{"cluster": {"worker": ["localhost:x"]}, "task": {"index": 0}}',
        '{"cluster": {"worker": ["localhost:99999"]}, "task": {"index": 0}}',
        '{"cluster": {"worker": [1]}, "task": {"index": 0}}',
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}',
        '{"cluster": {"worker": ["a:1"], "ps": ["b:1"]}, "task": {"index": 0}}',
        '{"cluster": {"worker": []}, "task": {"index": 0}}',
        "[" * 100_000,
        f'{{{WORKERS}, "task": {{"index": 1e999}}}}',
        f"{{{WORKERS}}}",
        f'{{{WORKERS}, "task": {{"type": "worker"}}}}',
        f'{{{WORKERS}, "task": {{"index": 0.5}}}}',
        f'{{{WORKERS}, "task": {{"index": true}}}}',
        f'{{{WORKERS}, "task": {{"type": []}}}}',
        '{"cluster": {"worker": {"a:1": "b:1"}}, "task": {"index": 0}}',
        '{"cluster": {"worker": "a:1"}, "task": {"index": 0}}',
        '{"cluster": {"worker": ["a:29_999"]}, "task": {"index": 0}}',
        '{"cluster": {"worker": ["a:٣"]}, "task": {"index": 0}}',
        '{"cluster": {"worker": ["a b:1"]}, "task": {"index": 0}}',
        '{"cluster": {"worker": ["a:1", "a:1"]}, "task": {"index": 0}}',
        '{"cluster": {"chief": ["a:1", "b:1"]}, "task": {"type": "chief"}}',
    ],
    ids=lambda config: config[:60],
)
def test_an_invalid_cluster_is_an_error(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    for function in (worker_rank, make_strategy):
        with pytest.raises(InputError, match="TF_CONFIG is .* must name all workers") as raised:
            function()
        assert len(str(raised.value)) < 1000


@pytest.mark.parametrize(
    "settle", [train.find_start, eval.settle, translate.settle], ids=lambda own: own.__module__
)
def test_an_invalid_cluster_is_named_before_anything_is_read(monkeypatch, settle):
    monkeypatch.setenv("TF_CONFIG", "[")
    with pytest.raises(InputError, match="TF_CONFIG is"):
        settle({})


def test_a_host_that_is_not_known_is_named(monkeypatch, capsys):
    """TensorFlow waits for it without a message."""
    config = '{"cluster": {"worker": ["127.0.0.1:1", "unknown.invalid:2"]}, "task": {"index": 0}}'
    monkeypatch.setenv("TF_CONFIG", config)
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", lambda: "strategy")
    assert make_strategy() == "strategy"
    printed = capsys.readouterr()
    assert printed.out == "Waiting for 2 workers: 127.0.0.1:1, unknown.invalid:2\n"
    assert printed.err.startswith("unknown.invalid:2: no such host yet")
    assert printed.err.count("\n") == 1


def make_strategy_with_a_taken_port():
    """Print the error of a worker whose port another program uses."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        config = dict(cluster=dict(worker=[address, "127.0.0.1:1"]), task=dict(index=0))
        os.environ["TF_CONFIG"] = json.dumps(config)
        try:
            make_strategy()
        except InputError as error:
            print(error)


def test_a_port_that_is_taken_is_named():
    (process,) = start(make_strategy_with_a_taken_port)
    printed, _ = process.communicate()
    assert re.search(r"127.0.0.1:\d+: this worker cannot use its address .*Choose another", printed)


@slow
def test_workers_that_differ_do_not_train(tmp_path):
    flags = write_corpus(tmp_path, sample_pairs(20)) | SMALL
    run_main(prepro, flags)
    flags |= dict(batch_size=8, num_epochs=1, source_dev=flags["source_test"])
    flags |= dict(target_dev=flags["target_test"])
    run_main(train, flags)
    for side in ("source", "target"):
        text = Path(flags[f"{side}_train"]).read_text().splitlines(keepends=True)
        (tmp_path / side).write_text("".join(text[::-1]))
    other = dict(logdir=tmp_path / "other", lr=0.5, seed=2, hidden_units=32)
    other |= dict(source_train=tmp_path / "source", target_train=tmp_path / "target")
    tasks = [["train.py", *command_line(flags | dict(num_epochs=9) | f)] for f in ({}, other)]
    processes = start_all(tasks)
    printed = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [2, 2], printed
    for rank, (_, err) in enumerate(printed):
        assert "Traceback" not in err and f"differ (worker {rank} has hidden_units" in err
        for name in (" lr ", " seed ", "the training text ", "the checkpoint to resume from "):
            assert name in err
        assert "beam" not in err and "vocabularies" not in err
    assert not (tmp_path / "other").exists()
