"""Several devices and several workers: the batch is split, the training is the same."""

import functools
import json
import os
import re
import subprocess
import sys
import time

import pytest

import checkpoint
import eval
import prepro
import train
from conftest import ROOT, SMALL, free_ports, sample_pairs, slow, write_corpus
from runtime.errors import InputError
from runtime.workers import make_strategy, worker_rank
from test_scripts import scalars

# Plain gradient descent is compared closely. Adam divides each gradient by its size. If the true
# gradient is zero, rounding noise becomes a full step.
LOSSES = """
import json, os, sys
import keras, numpy as np, tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
devices = [tf.config.LogicalDeviceConfiguration()] * int(sys.argv[1])
tf.config.set_logical_device_configuration(cpu, devices)

from data_load import RaggedIds, SentencePairs, get_batch_data
from hparams import make_hparams
from model import make_model
from modules import Dropout
from optimizer import FusedAdam
from runtime.workers import make_strategy
from trainer import make_train_step

small = dict(hidden_units=16, num_blocks=1, num_heads=2, maxlen=10, dropout_rate=0.0)
strategy = make_strategy()
workers = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [1]}}'))
replicas = len(devices) * len(workers["cluster"]["worker"])
assert strategy.num_replicas_in_sync == replicas
rng = np.random.default_rng(0)

def random_ids():
    return RaggedIds.from_lists([rng.integers(4, 50, n) for n in rng.integers(1, 11, 1250)])

sides = random_ids(), random_ids()

with strategy.scope():
    dropout = Dropout(0.5)
outputs = strategy.run(lambda: dropout(tf.ones([1, 99]), training=True))
outputs = strategy.gather(outputs, axis=0).numpy()  # (replicas, 99)
assert len(np.unique(outputs, axis=0)) == replicas  # each drops other units

def losses(recipe, name):
    batch = dict(batch_size=25) if recipe == "legacy" else dict(batch_tokens=150)
    hp = make_hparams(dict(recipe=recipe) | batch | small)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = make_model(hp, 50, 50)
        optimizer = dict(SGD=keras.optimizers.SGD(0.1), Adam=FusedAdam(0.003))[name]
        optimizer.build(model.trainable_variables)
    train_step = make_train_step(strategy, model, optimizer)
    batches, count = get_batch_data(SentencePairs(*sides, [], [], range(1250)), hp, 1)
    sizes = {len(x) for x, y in batches}
    assert any(size % 2 for size in sizes)  # not the same number on two devices
    batches = strategy.experimental_distribute_dataset(batches)
    losses = [float(train_step(x, y).mean_loss) for x, y in batches]
    assert len(losses) == count
    return losses + ([float(optimizer.gradient_norm())] if name == "Adam" else [])

print(json.dumps([losses(*case) for case in json.loads(sys.argv[2])]))
"""
CASES = {("tiny", "SGD"): 1e-5, ("tiny", "Adam"): 1e-3}
if "SOAK" in os.environ:
    CASES["legacy", "SGD"] = 1e-5


def start(command, workers=1):
    """Start a process, or several that are workers of one cluster."""
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    if workers == 1:
        return [subprocess.Popen(command, **pipes)]
    cluster = dict(worker=[f"127.0.0.1:{port}" for port in free_ports(workers)])
    processes = []
    for index in range(workers):
        config = json.dumps(dict(cluster=cluster, task=dict(type="worker", index=index)))
        processes.append(
            subprocess.Popen(command, env=os.environ | dict(TF_CONFIG=config), **pipes)
        )
    return processes


@functools.cache
def losses(devices=1, workers=1):
    """Compute the losses of each of CASES in other processes."""
    command = [sys.executable, "-c", LOSSES, str(devices), json.dumps([*CASES])]
    processes = start(command, workers)
    printed = [process.communicate() for process in processes]
    assert not any(process.returncode for process in processes), printed
    results = [json.loads(out.splitlines()[-1]) for out, _ in printed]
    assert all(other == results[0] for other in results)
    return dict(zip(CASES, results[0], strict=True))


@pytest.mark.parametrize("several", [dict(devices=2), dict(workers=2)])
@pytest.mark.parametrize("case", CASES)
def test_several_devices_or_workers_compute_the_same(case, several):
    one, more = losses()[case], losses(**several)[case]
    assert len(one) >= 50 and abs(one[49] - one[0]) > 0.05
    assert more == pytest.approx(one, abs=CASES[case])


@slow
@pytest.mark.parametrize("killed", [0, 2])
def test_a_killed_worker_ends_the_others_and_all_can_resume(tmp_path, killed):
    flags = write_corpus(tmp_path, sample_pairs(96)) | SMALL
    prepro.main(flags)
    flags |= dict(batch_size=8, save_steps=10)

    def command(**more):
        options = [f"--{name}={value}" for name, value in (flags | more).items()]
        return [sys.executable, str(ROOT / "train.py"), *options]

    processes = start(command(num_epochs=10_000), workers=3)
    while not (tmp_path / "logdir" / "checkpoint").exists():
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
    victim = processes.pop(killed)
    victim.kill()
    for process in processes:
        _, printed = process.communicate(timeout=120)
        assert process.returncode == 1 and "Traceback" not in printed
        assert re.search(r"train.py: a worker is gone .+\. Start all workers again", printed)
        assert "Graph execution" not in printed
    victim.communicate()

    path = checkpoint.latest(tmp_path / "logdir")
    processes = start(command(num_epochs=checkpoint.epoch_and_step(path)[0] + 1), workers=3)
    printed = [process.communicate() for process in processes]
    assert not any(process.returncode for process in processes), printed
    assert all(f"Resuming from {path}" in out and out.endswith("Done\n") for out, _ in printed)
    assert ["mean_loss" in out for out, _ in printed] == [True, False, False]
    steps = [*scalars(tmp_path / "logdir")["mean_loss"]]
    assert steps == sorted(steps)


def test_workers_share_a_test_set(tmp_path):
    flags = write_corpus(tmp_path, sample_pairs(40), sample_pairs(23, seed=1)) | SMALL
    prepro.main(flags)
    train.main(flags | dict(num_epochs=2))
    folder = tmp_path / "results"
    command = [sys.executable, str(ROOT / "eval.py"), f"--logdir={flags['logdir']}"]
    command += [f"--results={folder}"]
    eval.main(dict(logdir=flags["logdir"], results=flags["results"]))
    (path,) = folder.iterdir()
    expected = path.read_text("utf-8")
    path.unlink()
    for process in start(command, workers=3):
        _, printed = process.communicate()
        assert process.returncode == 0, printed
    assert [*folder.iterdir()] == [path]  # the shards are deleted
    assert path.read_text("utf-8") == expected and expected.count("- got: ") == 23


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
    ],
)
def test_an_invalid_cluster_is_an_error(monkeypatch, config):
    monkeypatch.setenv("TF_CONFIG", config)
    for function in (worker_rank, make_strategy):
        with pytest.raises(InputError, match="TF_CONFIG is .* must name all workers"):
            function()
