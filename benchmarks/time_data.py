"""Time `prepro.py`, and `train.py` up to its first step, on corpora of many sizes.

    python benchmarks/time_data.py 1e4 1e5 1e6 1e7
    python benchmarks/time_data.py 1e8 --recipes legacy

The arguments are numbers of sentence pairs. `corpora/sample.py` writes the corpora; one of 10^8
pairs is that of 10^7 pairs, named ten times. The baseline for words is the method of the 2017 code:
it holds the entire text in memory, and cleans and counts it at once; it is left out for large
corpora. CPU time is that of all threads, and does not depend on other work on the machine. Memory
is the peak of the process and of the processes that it starts, without files that are mapped into
them. Waiting is the share of the time after the first step in which training waits for its next
batch. The measurements are added to benchmarks/data.json, and docs/data_size.png shows all of them.
"""

import argparse
import contextlib
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from harness import ROOT, WORK, describe_machine, load_rows, save_rows

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

LANGS = dict(source="de", target="en")
RESULTS = ROOT / "benchmarks" / "data.json"
VOCAB_SIZES = dict(legacy=32000, tiny=600)
MAX_BASELINE_PAIRS = 10**6
MIN_CORPUS_PAIRS = 10**4
MAX_CORPUS_PAIRS = 10**7
STEPS = 100
MEMORY_POLL_SECONDS = 0.02


def count_words(*paths):
    """Count and sort words as the 2017 code does."""
    import regex

    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = regex.sub(r"[^\s\p{Latin}']", "", file.read())
        word2cnt = Counter(text.split())
        "".join(f"{word}\t{count}\n" for word, count in word2cnt.most_common(len(word2cnt)))


def first_step(*flags):
    """Train as `train.py` does for a step, and then for some more.

    Prints the time and the CPU time at which the first step is done, and the share of waiting in
    the others.

    Args:
      flags: strings NAME=VALUE.
    """
    sys.path.insert(0, str(ROOT))
    from data_load import get_batch_data, load_train_data
    from hparams import make_hparams
    from trainer import Trainer
    from vocab import load_vocabs

    pairs = (flag.split("=") for flag in flags)
    hp = make_hparams({name: int(value) if value.isdigit() else value for name, value in pairs})
    vocabs = load_vocabs(hp)
    data = load_train_data(hp, vocabs)
    step = Trainer(hp, vocabs).step
    batches = iter(get_batch_data(data, hp, epoch=1)[0])
    float(step(*next(batches)).mean_loss)
    print("first step", time.time(), sum(os.times()[:4]), flush=True)  # with its processes
    waiting, start = 0.0, time.perf_counter()
    for _ in range(STEPS):
        before = time.perf_counter()
        batch = next(batches)
        waiting += time.perf_counter() - before
        float(step(*batch).mean_loss)
    print("waiting", waiting / (time.perf_counter() - start))


def children_cpu_seconds() -> float:
    """Return the CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(command) -> dict:
    """Run a command.

    Returns:
      dict: seconds and CPU seconds up to its first step, or to its end if it does not train; the
      peak of its memory in MiB; the share of waiting if it trains.
    """
    start, cpu_start, memory = time.time(), children_cpu_seconds(), 0.0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([*map(str, command)], stdout=output)
        while process.poll() is None:
            memory = max(memory, sum(map(anonymous_mib, process_tree(process.pid))))
            time.sleep(MEMORY_POLL_SECONDS)
        seconds, cpu_seconds = time.time() - start, children_cpu_seconds() - cpu_start
        output.seek(0)
        lines = output.read().splitlines()
    if process.returncode:
        sys.exit(f"{command}: ended with code {process.returncode}")
    waiting = None
    for line in lines:
        match line.split():
            case "first", "step", end, cpu_seconds:
                seconds, cpu_seconds = float(end) - start, float(cpu_seconds)
            case "waiting", share:
                waiting = float(share)
    return dict(seconds=seconds, cpu_seconds=cpu_seconds, mib=memory, waiting=waiting)


def process_tree(pid) -> list:
    """Return the numbers of a process and of all processes that it started."""
    children = []
    with contextlib.suppress(OSError):  # it has just ended
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(descendant for child in children for descendant in process_tree(child))]


def anonymous_mib(pid) -> float:
    """Return the memory of a process in MiB, without files that are mapped into it."""
    with contextlib.suppress(OSError):  # it has just ended
        status = Path(f"/proc/{pid}/status").read_text()
        if match := re.search(r"RssAnon:\s+(\d+) kB", status):
            return int(match[1]) / 1024
    return 0.0


def write_corpus(pairs):
    """Return the folder of a corpus of this many pairs, written if it is missing."""
    folder = WORK / f"corpus_{pairs}"
    if not folder.exists():
        script = ROOT / "corpora" / "sample.py"
        command = [sys.executable, script, "--output", folder, "--train", str(pairs)]
        subprocess.run(command, check=True)
    return folder


def commands_for(pairs, recipes) -> dict:
    """Return the commands to time on this many pairs, by their names."""
    folder, times = write_corpus(min(pairs, MAX_CORPUS_PAIRS)), max(1, pairs // MAX_CORPUS_PAIRS)
    name = folder / "train.tags.de-en"
    paths = {f"{side}_train": ",".join([f"{name}.{lang}"] * times) for side, lang in LANGS.items()}
    commands = {}
    if pairs <= MAX_BASELINE_PAIRS:
        commands["counting as in 2017"] = [__file__, "count_words", *paths.values()]
    for recipe in recipes:
        flags = paths | dict(recipe=recipe, vocab_size=VOCAB_SIZES[recipe])
        flags |= dict(preprocessed=folder / recipe, num_epochs=1, warmup_steps=0)
        shutil.rmtree(folder / recipe / "train_ids", ignore_errors=True)
        options = [f"--{name}={value}" for name, value in flags.items()]
        assignments = [f"{name}={value}" for name, value in flags.items()]
        train = [__file__, "first_step", *assignments]
        commands[f"prepro.py, {recipe}"] = [ROOT / "prepro.py", *options]
        commands[f"to the first step, {recipe}"] = train
        commands[f"to the first step, {recipe}, again"] = train
    return commands


def add_result(measured):
    """Add a measurement to those in the file, in place of an older one of the same kind."""
    key = measured["pairs"], measured["program"]
    kept = [row for row in load_rows(RESULTS) if (row["pairs"], row["program"]) != key]
    save_rows(RESULTS, [*kept, measured])


def draw(results):
    """Draw CPU time and memory of each program by the number of pairs."""
    from matplotlib.figure import Figure

    figure = Figure((9, 3.6), layout="constrained")
    labels = dict(cpu_seconds="CPU time, seconds", mib="memory, MiB")
    for ax, (field, label) in zip(figure.subplots(1, 2), labels.items(), strict=True):
        for program in dict.fromkeys(row["program"] for row in results):
            rows = [row for row in results if row["program"] == program]
            points = sorted((row["pairs"], row[field]) for row in rows)
            ax.plot(*zip(*points, strict=True), marker="o", markersize=4, label=program)
        ax.set(xscale="log", yscale="log", xlabel="sentence pairs", ylabel=label)
    ax.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.savefig(ROOT / "docs" / "data_size.png", dpi=110)


def main():
    """Print a table with the time of each program on each number of pairs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="+", type=float, help="numbers of sentence pairs")
    parser.add_argument("--recipes", nargs="+", choices=VOCAB_SIZES, default=[*VOCAB_SIZES])
    args = parser.parse_args()
    if min(args.sizes) < MIN_CORPUS_PAIRS:
        parser.error(f"{MIN_CORPUS_PAIRS} pairs are the fewest that have {STEPS} steps.")
    machine = describe_machine()
    print(machine)
    columns = ["pairs", "program", "seconds", "CPU seconds", "MiB", "waiting"]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for pairs in map(int, args.sizes):
        for program, command in commands_for(pairs, args.recipes).items():
            row = measure([sys.executable, *command])
            waiting = "-" if row["waiting"] is None else f"{row['waiting']:.2%}"
            times = f"{row['seconds']:.1f} | {row['cpu_seconds']:.1f}"
            print(f"| {pairs:,} | {program} | {times} | {row['mib']:.0f} | {waiting} |", flush=True)
            row = {name: value if value is None else round(value, 4) for name, value in row.items()}
            add_result(dict(pairs=pairs, program=program, machine=machine) | row)
    draw(load_rows(RESULTS))


if __name__ == "__main__":
    if sys.argv[1:2] in (["count_words"], ["first_step"]):
        dict(count_words=count_words, first_step=first_step)[sys.argv[1]](*sys.argv[2:])
    else:
        main()
