"""Several devices and several workers: the batch is split, the training is the same."""

import functools
import json
import os
import re
import signal
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import SMALL, slow
from data_load import SentencePairs, get_batch_data, plan_batches
from helpers import latest, saved_rows, scalars
from hparams import Hyperparams, make_hparams
from model.transformer import make_model
from modules import Dropout
from processes import Forked, command_line, free_ports, start
from support.errors import InputError
from text.ids import RaggedIds
from training.muon import Muon
from training.optimizer import FusedAdam, GradientSum
from training.step import make_train_step
from training.workers import check_same_settings, make_strategy, mean_of_workers

# Plain gradient descent is compared closely. Adam divides each gradient by its size. If the true
# gradient is zero, rounding noise becomes a full step.
CASES = {("tiny", "SGD"): 1e-5, ("tiny", "Adam"): 1e-3, ("tiny", "accumulated SGD"): 1e-5}
CASES["tiny", "Muon"] = CASES["rnn_attention", "Adam"] = 1e-3


def print_losses(num_devices):
    """Train on random ids with all devices; print the losses of each of CASES, as JSON."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    devices = [tf.config.LogicalDeviceConfiguration()] * num_devices
    tf.config.set_logical_device_configuration(cpu, devices)
    strategy = make_strategy()
    config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [1]}, "task": {}}'))
    workers = len(config["cluster"]["worker"])
    replicas = num_devices * workers
    assert strategy.num_replicas_in_sync == replicas
    rank = config["task"].get("index", 0)
    assert strategy.extended.should_checkpoint == (rank == 0)
    assert mean_of_workers(strategy, rank + 0.5) == workers / 2
    check_same_settings(strategy, (0.5, "ab"))
    if workers > 1:
        with pytest.raises(InputError, match="the workers have other flags or texts"):
            check_same_settings(strategy, (0.5, rank))
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
    hp = make_hparams(dict(recipe=recipe, batch_tokens=150) | small)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model(hp, 50, 50)
        lr = 0.03 if "rnn" in recipe else 0.003
        kind = dict(Adam=FusedAdam, Muon=Muon).get(optimizer_name)
        optimizer = kind(lr) if kind else keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)
        gradient_sum = GradientSum(model.trainable_variables)
    train_step = make_train_step(strategy, model, optimizer)
    if optimizer_name == "accumulated SGD":  # each batch twice per update, a clipped gradient
        clipped = Hyperparams(clip_norm=0.5)
        accumulate = make_train_step(strategy, model, None, clipped, gradient_sum)
        update = make_train_step(strategy, model, optimizer, clipped, gradient_sum)

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
    assert any(len(rows) % 2 for rows in plan)  # not the same number on two devices
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
    assert min(map(len, plan)) < 6
    read = [[] for _ in range(len(plan) - skip)]
    for index in range(workers):
        batches, count = get_batch_data(data, hp, 1, skip, Worker(index, workers, replicas))
        assert count == len(plan)
        for seen, shares in zip(read, batches, strict=True):
            assert len(shares) == replicas // workers
            seen += [row - 4 for x, _ in shares for row in x[:, 0].numpy()]
    for number, seen in enumerate(read):
        assert sorted(seen) == sorted(plan[skip + number])


@slow
@pytest.mark.parametrize(
    "number, signalled, message",
    [(signal.SIGKILL, [i], "a worker is gone. Start all of them again") for i in range(2)]
    + [(signal.SIGTERM, [0, 1], "the same command resumes")],
)
def test_workers_end_together_and_can_resume(corpus, number, signalled, message):
    def start_both(**more):
        flags = corpus | SMALL | dict(batch_size=8, save_steps=10) | more
        return start(["train.py", *command_line(flags)], workers=2)

    logdir = Path(corpus["logdir"])
    processes = start_both(num_epochs=10_000)
    while not (logdir / "run.json").exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
    for index in signalled:
        processes[index].send_signal(number)
    printed = [process.communicate(timeout=120)[1] for process in processes]
    codes = [128 + number] * 2
    if number == signal.SIGKILL:
        codes = [-number if index in signalled else 1 for index in range(2)]
    assert [process.returncode for process in processes] == codes, printed
    assert message in "".join(printed) and "Traceback" not in "".join(printed), printed

    path = latest(logdir)
    processes = start_both(num_epochs=saved_rows(logdir)[-1].epoch + 1)
    printed = [process.communicate() for process in processes]
    assert not any(process.returncode for process in processes), printed
    assert all(f"Resuming from {path}" in out and out.endswith("Done\n") for out, _ in printed)
    assert ["mean_loss" in out for out, _ in printed] == [True, False]
    steps = [*scalars(logdir)["mean_loss"]]
    assert steps == sorted(steps)


def test_a_cluster_may_have_one_worker(corpus):
    worker = dict(type="worker", index=0)
    cluster = dict(worker=[f"127.0.0.1:{port}" for port in free_ports(1)])
    words = ["train.py", *command_line(corpus | SMALL | dict(max_steps=2))]
    config = json.dumps(dict(cluster=cluster, task=worker))
    with Forked(words, env=dict(TF_CONFIG=config)) as process:
        printed = process.communicate()
    assert process.returncode == 0 and printed[0].endswith("Done\n"), printed


@pytest.mark.parametrize(
    "config, problem",
    [
        ("{", "Expecting property name"),
        ('{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 0}}', "port"),
    ],
)
def test_a_wrong_cluster_is_one_line(config, problem):
    with Forked(["train.py"], env=dict(TF_CONFIG=config)) as process:
        _, printed = process.communicate()
    assert process.returncode == 2 and "Traceback" not in printed
    line = printed.splitlines()[-1]  # TensorFlow may print lines about CUDA
    assert re.fullmatch(f"train.py: TF_CONFIG: .*{problem}.*workers.md", line)
