"""Several devices: the batch is split, the training is the same."""

import json
import subprocess
import sys

import pytest

from conftest import ROOT

# Trained by plain gradient descent. Adam divides each gradient by its own size, so that
# one that is zero but for rounding becomes a whole step in the direction of the rounding.
LOSSES = """
import json, sys
import keras, numpy as np, tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
devices = [tf.config.LogicalDeviceConfiguration()] * int(sys.argv[1])
tf.config.set_logical_device_configuration(cpu, devices)

from model import Transformer
from train import make_step, make_strategy

strategy = make_strategy()
assert strategy.num_replicas_in_sync == len(devices)
keras.utils.set_random_seed(0)
with strategy.scope():
    model = Transformer(50, 50, 10, 16, 1, 2)
    model(np.zeros((1, 10), np.int32), np.zeros((1, 10), np.int32))
    optimizer = keras.optimizers.SGD(0.5)
    optimizer.build(model.trainable_variables)
step = make_step(strategy, model, optimizer)

rng = np.random.default_rng(0)
X = rng.integers(4, 50, (25 * 20, 10), np.int32)  # 20 batches of 13 and 12 on two devices
X[np.arange(10) >= rng.integers(1, 10, (25 * 20, 1))] = 0  # of sentences of unlike lengths
batches = tf.data.Dataset.from_tensor_slices((X, X)).batch(25, drop_remainder=True)
batches = strategy.experimental_distribute_dataset(batches)
print(json.dumps([float(step(x, y)[0]) for x, y in batches]))
"""


def losses(count):
    command = [sys.executable, "-c", LOSSES, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_two_devices_compute_what_one_does():
    one, two = losses(1), losses(2)
    assert len(one) == 20 and one[-1] != one[0]
    assert two == pytest.approx(one, abs=1e-5)
