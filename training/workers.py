"""The devices that share a batch: those of this machine, or of all workers in TF_CONFIG.

docs/workers.md shows how to start workers. TensorFlow reads TF_CONFIG. The first worker writes
checkpoints and events: in it, `strategy.extended.should_checkpoint` is True.
"""

import os
import zlib

import tensorflow as tf

from support.errors import InputError


def make_strategy():
    """Make the strategy for one device, those of this machine, or all workers."""
    if "TF_CONFIG" in os.environ:
        print("Waiting for all workers of TF_CONFIG", flush=True)
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy()
            return strategy if strategy.num_replicas_in_sync > 1 else tf.distribute.get_strategy()
        except (TypeError, ValueError, tf.errors.OpError) as error:
            problem = str(error).partition("\n")[0].rstrip(".")
            raise InputError(f"TF_CONFIG: {problem}. Write it as in docs/workers.md") from None
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


def mean_of_workers(strategy, number) -> float:
    """Return the mean of the numbers that all workers have."""
    return float(strategy.reduce("MEAN", tf.constant(number, tf.float64), axis=None))


def check_same_settings(strategy, settings):
    """Raise InputError unless all workers have the same settings."""
    number = zlib.crc32(repr(settings).encode())
    if mean_of_workers(strategy, number) != number:
        raise InputError("the workers have other flags or texts. Start all with the same ones")
