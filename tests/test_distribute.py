"""Several devices: the batch is split, the training is the same."""

import json
import subprocess
import sys

import pytest

from conftest import ROOT

# Plain gradient descent is compared closely. Adam divides each gradient by its own size, so
# that one that is zero but for rounding becomes a whole step in the direction of the rounding.
LOSSES = """
import json, sys
import keras, numpy as np, tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
devices = [tf.config.LogicalDeviceConfiguration()] * int(sys.argv[1])
tf.config.set_logical_device_configuration(cpu, devices)

from data_load import Data, Ragged, get_batch_data
from hparams import with_recipe
from model import make_model
from modules import Adam
from train import make_step, make_strategy

small = dict(hidden_units=16, num_blocks=1, num_heads=2, maxlen=10, dropout_rate=0.0)
hp = with_recipe(dict(recipe=sys.argv[2], batch_size=25) | small)
if hp.batch_tokens:
    hp = with_recipe(dict(recipe=sys.argv[2], batch_tokens=150) | small)
strategy = make_strategy()
assert strategy.num_replicas_in_sync == len(devices)
keras.utils.set_random_seed(0)
with strategy.scope():
    model = make_model(hp, 50, 50)
    optimizer = dict(SGD=keras.optimizers.SGD(0.5), Adam=Adam(0.003))[sys.argv[3]]
    optimizer.build(model.trainable_variables)
step = make_step(strategy, model, optimizer)

rng = np.random.default_rng(0)
sides = [Ragged.of([rng.integers(4, 50, n) for n in rng.integers(1, 11, 500)]) for _ in "XY"]
batches, count = get_batch_data(Data(*sides, [], [], range(500)), hp, 1)
sizes = {len(x) for x, y in batches}
assert any(size % 2 for size in sizes)  # unlike shares on two devices
losses = [float(step(x, y)[0]) for x, y in strategy.experimental_distribute_dataset(batches)]
assert len(losses) == count
print(json.dumps(losses))
"""


def losses(count, recipe, optimizer):
    command = [sys.executable, "-c", LOSSES, str(count), recipe, optimizer]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "recipe, optimizer, within",
    [("legacy", "SGD", 1e-5), ("tiny", "SGD", 1e-5), ("tiny", "Adam", 1e-3)],
)
def test_two_devices_compute_what_one_does(recipe, optimizer, within):
    one, two = (losses(count, recipe, optimizer) for count in (1, 2))
    assert len(one) >= 20 and abs(one[-1] - one[0]) > 0.05
    assert two == pytest.approx(one, abs=within)
