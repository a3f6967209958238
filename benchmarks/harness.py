"""Time programs against each other, each in a process of its own.

A worker prints "ready". For each line that it then receives, it does its work once and prints
the seconds that this took. Workers are timed in turn (interleaved), so that background load
affects all of them equally.
"""

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.parallel import num_cores

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "benchmarks" / "work"
# The recipe tiny with the parts that the paper has.
SMALL_PAPER = dict(
    recipe="tiny",
    positions="paired_sinusoid",
    normalization="post",
    optimizer="adam",
    lr=0.0025,
    schedule="paper",
    fold_case=False,
)


def corpus_folder(corpus) -> Path:
    """Return the folder of a corpus in that of REAL_TEXT; ends the program if there is none."""
    where = f"the folder that holds {corpus}/. benchmarks/README.md explains how to get it"
    if not os.environ.get("REAL_TEXT"):
        sys.exit(f"REAL_TEXT is not set. Set it to {where}")
    folder = Path(os.environ["REAL_TEXT"]).resolve() / corpus
    if not folder.is_dir():
        sys.exit(f"{folder}: no such folder. Set REAL_TEXT to {where}")
    return folder


def worker_loop(timed_fn):
    """Run `timed_fn()` for each line of stdin, and print its seconds."""
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        timed_fn()
        print(time.perf_counter() - start, flush=True)


class Worker:
    """A process that runs `worker_loop`."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        while (line := self.process.stdout.readline()) != "ready\n":
            if not line:
                sys.exit(f"{command[1]} ended with code {self.process.wait()}")

    def seconds(self) -> float:
        """Time its work once."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self):
        """End the process."""
        self.process.communicate()


def time_interleaved(workers, rounds) -> dict:
    """Time each of {name: Worker} once per round; returns {name: seconds of each round}."""
    seconds = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            seconds[name].append(worker.seconds())
    return seconds


def speedup(seconds, name, baseline) -> float:
    """Return how many times as fast as the baseline `name` is, the median over the rounds."""
    pairs = zip(seconds[baseline], seconds[name], strict=True)
    return statistics.median(other / own for other, own in pairs)


def run_script(script, flags, more_flags=(), **options) -> subprocess.CompletedProcess:
    """Run a script of the project; the flags are a dict, and more of them words.

    `options` are those of `subprocess.run`.
    """
    words = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, ROOT / script, *words, *more_flags]
    return subprocess.run(command, check=True, **options)


def load_rows(path) -> list[dict]:
    """Load the measurements in a file; none if it does not exist."""
    return json.loads(path.read_text()) if path.exists() else []


def save_rows(path, rows):
    """Write measurements, a list of dict, to a file, one per line."""
    path.write_text("[" + ",\n ".join(map(json.dumps, rows)) + "]\n")


def draw_curves(curves, path, x_label, y_label, scale="linear"):
    """Draw curves (name, xs, ys); those of one name have one color."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    colors = {name: f"C{i}" for i, name in enumerate(dict.fromkeys(name for name, *_ in curves))}
    for name, xs, ys in curves:
        axes.plot(xs, ys, color=colors[name], marker=".")
    for name, color in colors.items():
        axes.plot([], [], color=color, marker=".", label=name)
    axes.set(xlabel=x_label, ylabel=y_label, xscale=scale, yscale=scale)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def describe_machine() -> str:
    """Return the cores and the name of the processor."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{num_cores()} cores of {names[0] if names else platform.processor()}"
