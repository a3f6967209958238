"""Workers: the processes that TF_CONFIG names, which train or translate together.

docs/workers.md shows how to start them. Each has a rank, counted from 0; the worker with
rank 0 is the chief, the only one that writes checkpoints and results.
"""

import contextlib
import hashlib
import json
import os
import time

import tensorflow as tf
from tqdm import tqdm

from runtime.errors import InputError
from runtime.files import atomic_write


def worker_rank():
    """The rank of this worker, and the number of workers, from TF_CONFIG.

    Returns:
      (int, int): (0, 1) without TF_CONFIG.

    Raises:
      InputError: TF_CONFIG is invalid.
    """
    try:
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        cluster, task = config.get("cluster", {}), config.get("task", {})
        # A chief has rank 0, as in TensorFlow.
        jobs = [(job, i) for job in ("chief", "worker") for i in range(len(cluster.get(job, [])))]
        this_job = task.get("type", "worker"), int(task.get("index", 0))
        for job, _ in jobs:
            for address in cluster[job]:
                host, colon, port = str(address).rpartition(":")
                if not (host and colon and 0 < int(port) < 2**16):
                    raise ValueError(address)
        if cluster.keys() - {"chief", "worker"} or ("cluster" in config and not jobs):
            raise ValueError("jobs of other kinds")
        return (jobs.index(this_job), len(jobs)) if jobs else (0, 1)
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            f"TF_CONFIG is {os.environ['TF_CONFIG']}: it must name all workers as host:port, with"
            " no other jobs than worker and chief, and say which of them this is, as in"
            " docs/workers.md. To train on one machine alone, unset it"
        ) from None


def make_strategy():
    """The `tf.distribute.Strategy` for this machine: one device, all its devices, or workers."""
    if "TF_CONFIG" in os.environ:
        worker_rank()  # which also raises the InputError of a TF_CONFIG that TensorFlow rejects
        return tf.distribute.MultiWorkerMirroredStrategy()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


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
      list of the items in the order of X at rank 0; None at the other ranks.

    Raises:
      OSError: another worker does not write its share.
    """
    rank, num_workers = worker_rank()
    if num_workers == 1:
        return translate(X)
    start_time = time.monotonic()
    rows = range(rank, len(X), num_workers)
    got = translate(X.select(rows)) if rows else []
    key = hashlib.sha256(X.digest() + settings.encode()).hexdigest()
    names = [f"{results.name}.part-{i}-of-{num_workers}" for i in range(num_workers)]
    shards = [results.with_name(name) for name in names]
    if rank:
        atomic_write(shards[rank], json.dumps(dict(key=key, got=got)), follow_links=False)
        return None
    deadline = time.monotonic() + 60 + 10 * (time.monotonic() - start_time)
    translations = [None] * len(X)
    translations[::num_workers] = got
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
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                shard = json.loads(path.read_text("utf-8"))
                if shard["key"] == key:  # else it is of an earlier run
                    return shard["got"]
            time.sleep(0.2)
            bar.update()
    raise OSError(f"{path}: another worker has not written this file. Start all workers again")
