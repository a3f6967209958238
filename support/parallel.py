"""Compute on all cores, in threads."""

import os
from concurrent.futures import ThreadPoolExecutor


def num_cores() -> int:
    """Return how many cores this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()


def one_thread_per_operation():
    """Make TensorFlow compute each operation on one core: many batches at once are faster.

    It must not have computed yet. The setting of a user stays.
    """
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")


def map_in_threads(function, items, threads):
    """Yield function(item) for each item, in their order, computed in threads."""
    if threads == 1 or len(items) == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(function, items)
