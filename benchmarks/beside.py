"""Programs that are timed side by side, each in a process of its own.

A worker says "ready", and then for each line that it is sent does its work once and
answers with the seconds that it took. Whoever measures asks all workers in turn, so
that whatever else the machine does meets all of them alike.
"""

import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "benchmarks" / "work"


def serve(work):
    """Be a worker: do `work()` each time one is asked."""
    print("ready", flush=True)
    for _ in sys.stdin:
        began = time.perf_counter()
        work()
        print(time.perf_counter() - began, flush=True)


class Worker:
    """A process that serves."""

    def __init__(self, command):
        self.process = subprocess.Popen(
            [*map(str, command)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        while (line := self.process.stdout.readline()) != "ready\n":
            if not line:
                sys.exit(f"{command[1]} ended with code {self.process.wait()}")

    def seconds(self):
        """How long its work takes once."""
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def stop(self):
        """End the process."""
        self.process.communicate()


def alternate(workers, rounds):
    """Ask each of {name: Worker} once a round; {name: its seconds of each round}."""
    seconds = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            seconds[name].append(worker.seconds())
    return seconds


def ratio(seconds, name, reference):
    """How many times as fast as the reference, the median over the rounds."""
    pairs = zip(seconds[reference], seconds[name], strict=True)
    return statistics.median(other / own for other, own in pairs)


def rivals_python():
    """The Python of an environment that holds PyTorch and JoeyNMT; made if it is not there."""
    python = WORK / "rivals" / "bin" / "python"
    if not (WORK / "rivals" / "installed").exists():
        print("Installing PyTorch and JoeyNMT into benchmarks/work/rivals", flush=True)
        subprocess.run([sys.executable, "-m", "venv", WORK / "rivals"], check=True)
        for name in ("torch", "rivals"):  # PyTorch first: whatever needs it takes what is there
            file = ROOT / "benchmarks" / f"requirements-{name}.txt"
            subprocess.run([python, "-m", "pip", "install", "-q", "-r", file], check=True)
        (WORK / "rivals" / "installed").touch()
    return python


def cores():
    """The processor's cores that this run may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def machine():
    """The processor, in words."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{cores()} cores of {names[0] if names else platform.processor()}"
