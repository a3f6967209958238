"""The devices that share a batch: those of this machine, or of all workers in TF_CONFIG.

docs/workers.md shows how to start workers. TensorFlow reads TF_CONFIG. The first worker writes
checkpoints and events: in it, `strategy.extended.should_checkpoint` is True.
"""

import functools
import hashlib
import os

import numpy as np
import tensorflow as tf

from support.errors import InputError


def make_strategy():
    """The `tf.distribute.Strategy` for one device, all devices of this machine, or all workers."""
    if "TF_CONFIG" in os.environ:
        print("Waiting for all workers of TF_CONFIG", flush=True)
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except (TypeError, ValueError, tf.errors.OpError) as error:
            problem = str(error).partition("\n")[0].rstrip(".")
            raise InputError(f"TF_CONFIG: {problem}. Write it as in docs/workers.md") from None
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


def check_same_settings(strategy, settings):
    """Check that all workers have the same settings, a dict by name; raises InputError."""
    digests = [hashlib.sha256(repr(value).encode()).digest()[:8] for value in settings.values()]
    rows = gather(strategy, np.frombuffer(b"".join(digests), np.int64))  # (replicas, settings)
    for name, column in zip(settings, rows.T, strict=True):
        if len({*column}) > 1:
            raise InputError(
                f"the workers differ in {name}, which is {settings[name]} here. Start all of them"
                " with the same flags and files"
            )


def first_workers(strategy, value):
    """Return the number that the first worker has, in all workers."""
    return float(gather(strategy, np.array([value], np.float64))[0, 0])


def gather(strategy, values):
    """Collect the values of all replicas: (n,) in each -> (replicas, n)."""
    if strategy.num_replicas_in_sync == 1:
        return values[None]
    rows = make_gather(strategy)(tf.constant(values))
    return strategy.experimental_local_results(rows)[0].numpy()


@functools.cache
def make_gather(strategy):
    """Make the function for `gather`, once: its graph takes longer than a step."""

    def gather(values):
        return tf.distribute.get_replica_context().all_gather(values[None], axis=0)

    return tf.function(lambda values: strategy.run(gather, args=(values,)))
