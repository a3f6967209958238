"""The workers that TF_CONFIG names, before TensorFlow is loaded."""

import json
import os
import re
from typing import NamedTuple

from runtime.errors import MALFORMED_JSON, InputError

MAX_SHOWN_CHARACTERS = 200  # of a setting, in a message


def worker_rank():
    """The rank of this worker, and the number of workers, from TF_CONFIG.

    Returns:
      (int, int): (0, 1) without TF_CONFIG.
    """
    cluster = read_tf_config()
    return cluster.rank, max(1, len(cluster.addresses))


class Cluster(NamedTuple):
    """The workers that TF_CONFIG names."""

    rank: int  # of this worker
    addresses: list[str]  # of all, host:port, in the order of their ranks
    config: dict  # TF_CONFIG with the defaults of this project, since TensorFlow has none


def read_tf_config() -> Cluster:
    """Read TF_CONFIG; without it there is no address."""
    text = os.environ.get("TF_CONFIG", "{}")
    try:
        config = json.loads(text)
        cluster, task = config.get("cluster", {}), config.get("task", {})
        jobs = {job: cluster.get(job, []) for job in ("chief", "worker")}
        if cluster.keys() - jobs.keys() or not all(isinstance(job, list) for job in jobs.values()):
            raise ValueError("other jobs, or not lists of addresses")
        addresses = jobs["chief"] + jobs["worker"]  # a chief has rank 0, as in TensorFlow
        if "cluster" in config and not addresses or len(jobs["chief"]) > 1:
            raise ValueError("no worker, or several chiefs")
        if not all(map(is_address, addresses)) or len({*addresses}) < len(addresses):
            raise ValueError("an address that is none, or occurs twice")
        if not addresses:
            return Cluster(0, [], {})
        job = task.get("type", "worker")
        index = str(task.get("index", None if len(jobs[job]) > 1 else 0))
        if not re.fullmatch(r"[0-9]{1,9}", index):
            raise ValueError("no index")
        tasks = [(name, i) for name in jobs for i in range(len(jobs[name]))]
        config |= dict(task=dict(type=job, index=int(index)))
        return Cluster(tasks.index((job, int(index))), addresses, config)
    except MALFORMED_JSON:
        shown = text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}..."
        raise InputError(
            f"TF_CONFIG is {shown}: it must name all workers as host:port, with"
            " no other jobs than worker and chief, and say which of them this is, as in"
            " docs/workers.md. To train on one machine alone, unset it"
        ) from None


def is_address(address) -> bool:
    """Whether an address is host:port."""
    match = re.fullmatch(r"[!-9;-~]+:([0-9]{1,5})|\[[0-9a-fA-F:.]+\]:([0-9]{1,5})", address)
    return bool(match) and 0 < int(match[1] or match[2]) < 2**16
