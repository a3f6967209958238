"""Compute on all cores, in other processes or in threads."""

import collections
import functools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

MAX_PROCESSES = 8  # more of them would wait for the text, which one process reads
PARENT_POLL_SECONDS = 1.0
ALONE_SECONDS = 1.0  # this process computes alone at first: starting others takes as long


def num_cores() -> int:
    """Return how many cores this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count()


def num_processes() -> int:
    """Return how many processes compute at once: one per core, but not too many."""
    return min(num_cores(), MAX_PROCESSES)


def one_thread_per_operation():
    """Make TensorFlow compute each operation on one core, if it is not loaded yet.

    Many batches at once, each on a core, are faster. The setting of a user stays.
    """
    os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")


def map_in_threads(function, items, threads):
    """Yield function(item) for each item of a list, in their order, computed in threads."""
    if threads == 1 or len(items) == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        yield from pool.map(function, items)


def map_on_cores(function, items):
    """Yield function(item) for each item, in their order, computed on all cores.

    The processes are new ones that import the module of `function`. Copies of this process (fork)
    would lose its threads and devices. They start after `ALONE_SECONDS`, so not for few
    items. Few items and results are in memory at a time.

    Args:
      function: a function of a module, or a `functools.partial` of one.
      items: iterator, which may wait for a file.

    Raises:
      ChildProcessError: a process was killed.
    """
    items, count = iter(items), num_processes()
    if count == 1:
        yield from map(function, items)
        return
    start = time.monotonic()
    for item in items:
        yield function(item)
        if time.monotonic() - start > ALONE_SECONDS:
            break
    else:
        return
    import loky  # few texts need it

    prepare = functools.partial(prepare_process, function, os.getpid())
    one_thread = dict(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")  # each process has a core
    pool = loky.ProcessPoolExecutor(count, initializer=prepare, env=one_thread)
    try:
        pending = collections.deque()
        for item in items:
            pending.append(pool.submit(compute, item))
            if len(pending) == 2 * count:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except loky.process_executor.TerminatedWorkerError:
        raise ChildProcessError(
            "a process that reads the text was killed, perhaps since the memory is full. Close"
            " other programs, and run the command again"
        ) from None
    finally:
        pool.shutdown(kill_workers=True)


def prepare_process(function, parent):
    """Prepare a new process. It gets the function once, and not with each item."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=end_with, args=[parent], daemon=True).start()
    compute.function = function


def end_with(parent):
    """End this process when its parent has been killed."""
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_SECONDS)
    os._exit(1)


def compute(item):
    """Call the function of `prepare_process`."""
    return compute.function(item)
