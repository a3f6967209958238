"""Workers: the processes that TF_CONFIG names, which train or translate together.

docs/workers.md shows how to start them. Each has a rank, counted from 0; the worker with
rank 0 is the chief, the only one that writes checkpoints and results.
"""

import contextlib
import hashlib
import json
import os
import socket
import sys
import time

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from runtime.cluster import MAX_SHOWN_CHARACTERS, read_tf_config, worker_rank
from runtime.errors import MALFORMED_JSON, InputError
from runtime.files import atomic_write, read_file

MAX_SHARD_BYTES = 2**31  # of the translations of a worker


def make_strategy():
    """The `tf.distribute.Strategy` for this machine: one device, all its devices, or workers."""
    if "TF_CONFIG" in os.environ:
        rank, addresses, config = read_tf_config()
        os.environ["TF_CONFIG"] = json.dumps(config)
        note_unknown_hosts(addresses)
        try:
            return tf.distribute.MultiWorkerMirroredStrategy()
        except tf.errors.OpError as error:
            raise InputError(
                f"{addresses[rank]}: this worker cannot use its address ({error.message}). Another"
                " program may use the port. Choose another one in the TF_CONFIG of all workers"
            ) from None
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


def note_unknown_hosts(addresses):
    """Print a note for each worker whose host has no address yet, since TensorFlow waits for it."""
    if len(addresses) > 1:
        print(f"Waiting for {len(addresses)} workers: {', '.join(addresses)}", flush=True)
    for address in addresses:
        host, _, port = address.rpartition(":")
        try:
            socket.getaddrinfo(host.strip("[]"), port)
        except (OSError, UnicodeError) as error:
            print(
                f"{address}: no such host yet ({error}). If TF_CONFIG is wrong, stop all workers",
                file=sys.stderr,
                flush=True,
            )


def check_same_settings(strategy, settings):
    """Check that all workers have the same settings, before they compute together.

    Args:
      strategy: the `tf.distribute.Strategy` of the workers.
      settings: dict of values that JSON has, by names that are the same at all workers.
    """
    rank, num_workers = worker_rank()
    if num_workers == 1:
        return
    texts = [json.dumps(value) for value in settings.values()]
    digests = [hashlib.sha256(text.encode()).digest()[:8] for text in texts]
    row = tf.constant(np.frombuffer(b"".join(digests), np.int64)[None])  # (1, settings)
    row_of_each = strategy.run(lambda: tf.identity(row))
    rows = strategy.gather(row_of_each, axis=0).numpy()  # (replicas, settings)
    differ = (rows != rows[0]).any(axis=0)
    names = [name for name, differs in zip(settings, differ, strict=True) if differs]
    if names:
        values = (f"{name} {settings[name]}"[:MAX_SHOWN_CHARACTERS] for name in names)
        raise InputError(
            f"the workers of TF_CONFIG differ (worker {rank} has {', '.join(values)}). Start all"
            " of them with the same flags and files"
        )


# Translating together ----------------------------------------------------------


def translate_distributed(translate, X, results, settings):
    """Translate a share of the sentences, and collect the others' shares at rank 0.

    The workers exchange files in the folder of `results`.

    Args:
      translate: function from RaggedIds to a list with an item per sentence, of types that JSON
        has.
      X: RaggedIds, the source ids.
      results: Path, the file that rank 0 writes afterwards.
      settings: str, everything else that the translations depend on, the model included.

    Returns:
      list of the items in the order of X at rank 0. At the other ranks, the items of the other
      workers are empty lists.

    Raises:
      OSError: another worker does not write its share.
    """
    rank, num_workers = worker_rank()
    if num_workers == 1:
        return translate(X)
    start_time = time.monotonic()
    rows = range(rank, len(X), num_workers)
    got = translate(X.select(rows)) if rows else []
    translations = [[]] * len(X)
    translations[rank::num_workers] = got
    key = hashlib.sha256(X.digest() + settings.encode()).hexdigest()
    names = [f"{results.name}.part-{i}-of-{num_workers}" for i in range(num_workers)]
    shards = [results.with_name(name) for name in names]
    if rank:
        atomic_write(shards[rank], json.dumps(dict(key=key, got=got)), follow_links=False)
        return translations
    deadline = time.monotonic() + 60 + 10 * (time.monotonic() - start_time)
    for i in range(1, num_workers):
        translations[i::num_workers] = wait_for_shard(shards[i], key, deadline)
    for shard in shards[1:]:
        shard.unlink(missing_ok=True)
    return translations


def wait_for_shard(path, key, deadline):
    """Wait for the file of another worker; returns its translations.

    Args:
      key: identifies the model, the settings and the sentences.
      deadline: in seconds of `time.monotonic`.
    """
    with tqdm(desc=f"waiting for {path.name}", leave=False, delay=1) as bar:
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, InputError, *MALFORMED_JSON):
                shard = json.loads(read_file(path, MAX_SHARD_BYTES))
                if shard["key"] == key:  # else it is of an earlier run
                    return shard["got"]
            time.sleep(0.2)
            bar.update()
    raise OSError(f"{path}: another worker has not written this file. Start all workers again")
