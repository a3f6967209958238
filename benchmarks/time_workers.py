"""Time training that several processes on one machine share, and count the bytes they exchange.

    REAL_TEXT=DIR python benchmarks/time_workers.py tiny

The batches are those of `time_train.py`, and are the same for any number of processes. Each process
is bound to its share of the cores, so several do not have more of the machine than one. The bytes
are those that the loopback device has sent, per step and per process (Linux only).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from harness import ROOT, describe_machine
from time_train import SIZES, prepare_size

sys.path.insert(0, str(ROOT / "tests"))
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

PROCESSES = (1, 2, 4)
WARM_UP_STEPS, TIMED_STEPS = 5, 30


def loopback_bytes() -> int:
    """Return the bytes that the loopback device has sent since the machine started."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[8])
    return 0


def train(flags):
    """Train as a worker of `TF_CONFIG`; print the seconds per step, the bytes and the tokens."""
    from data_load import get_batch_data, load_train_data
    from hparams import make_hparams
    from trainer import Trainer
    from vocab import load_vocabs

    hp = make_hparams(json.loads(flags))
    vocabs = load_vocabs(hp)
    trainer = Trainer(hp, vocabs)
    data = load_train_data(hp, vocabs)
    batches = iter(get_batch_data(data, hp, epoch=1, strategy=trainer.strategy)[0])
    for _ in range(WARM_UP_STEPS):
        float(trainer.step(*next(batches)).mean_loss)
    tokens, sent, start = 0, loopback_bytes(), time.perf_counter()
    for _ in range(TIMED_STEPS):
        metrics = trainer.step(*next(batches))
        tokens += float(metrics.num_targets)
    seconds = time.perf_counter() - start
    print(json.dumps(dict(seconds=seconds, sent=loopback_bytes() - sent, tokens=tokens)))


def measure(processes, flags, cores) -> dict:
    """Run this script as so many workers; returns what rank 0 prints."""
    from processes import free_ports

    cluster = dict(worker=[f"127.0.0.1:{port}" for port in free_ports(processes)])
    workers = []
    for rank in range(processes):
        mine = cores[rank * len(cores) // processes :][: max(1, len(cores) // processes)]
        config = dict(cluster=cluster, task=dict(type="worker", index=rank))
        env = os.environ | (dict(TF_CONFIG=json.dumps(config)) if processes > 1 else {})
        command = [sys.executable, __file__, "train", json.dumps(flags)]
        workers.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                env=env,
                preexec_fn=lambda mine=mine: os.sched_setaffinity(0, mine),
            )
        )
    printed = [worker.communicate()[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        sys.exit(f"a worker of {processes} has failed")
    return json.loads(printed[0].splitlines()[-1])


def main():
    """Print a table with a row per number of processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", choices=SIZES)
    args = parser.parse_args()
    flags, *_ = prepare_size(args.size)
    cores = sorted(os.sched_getaffinity(0))
    print(f"{args.size}, {describe_machine()}, {TIMED_STEPS} steps")
    print(
        "| processes | ms per step | tokens/s | MB sent per step and process |\n|---|---|---|---|"
    )
    runs = [(1, cores[:1]), *((count, cores) for count in PROCESSES)]
    for count, bound in runs:
        row = measure(count, flags, bound)
        step, sent = row["seconds"] / TIMED_STEPS, row["sent"] / TIMED_STEPS / count
        name = f"{count}, {len(bound)} cores" if count == 1 else count
        print(f"| {name} | {1000 * step:.0f} | {row['tokens'] / row['seconds']:.0f}", end="")
        print(f" | {sent / 1e6:.1f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(sys.argv[2])
    else:
        main()
