"""Time `prepro.py`, and `train.py` up to its first step, on corpora of many sizes.

    python benchmarks/time_data.py 1e4 1e5 1e6

The arguments are numbers of sentence pairs. `corpora/sample.py` writes the corpora. The baseline
for words is the method of the 2017 code: it holds the entire text in memory, and cleans and counts
it at once. Memory is the peak of the process, without files that are mapped into it. Waiting is the
share of the time after the first step in which training waits for its next batch.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from harness import ROOT, WORK, describe_machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

LANGS = dict(source="de", target="en")
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

    Prints the time at which the first step is done, and the share of waiting in the others.

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
    print("first step", time.time(), flush=True)
    waiting, start = 0.0, time.perf_counter()
    for _ in range(STEPS):
        before = time.perf_counter()
        batch = next(batches)
        waiting += time.perf_counter() - before
        float(step(*batch).mean_loss)
    print("waiting", waiting / (time.perf_counter() - start))


def measure(command):
    """Run a command.

    Returns:
      (float, float, float or None): seconds up to its first step, or to its end if it does not
      train; the peak of its memory in MiB; the share of waiting if it trains.
    """
    start, memory = time.time(), 0.0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([*map(str, command)], stdout=output)
        while process.poll() is None:
            memory = max(memory, anonymous_mib(process.pid))
            time.sleep(MEMORY_POLL_SECONDS)
        end = time.time()
        output.seek(0)
        lines = output.read().splitlines()
    if process.returncode:
        sys.exit(f"{command}: ended with code {process.returncode}")
    printed = dict(line.rsplit(" ", 1) for line in lines if line.startswith(("first", "waiting")))
    printed = {name: float(number) for name, number in printed.items()}
    seconds = printed.get("first step", end) - start
    return seconds, memory, printed.get("waiting")


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


def main(sizes):
    """Print a table with the time of each program on each number of pairs."""
    print(describe_machine())
    print("| pairs | program | seconds | MiB | waiting |\n|---|---|---|---|---|")
    for pairs in sizes:
        folder = write_corpus(pairs)
        name = "train.tags.de-en"
        paths = {f"{side}_train": folder / f"{name}.{lang}" for side, lang in LANGS.items()}
        commands = {"counting as in 2017": [__file__, "count_words", *paths.values()]}
        for recipe, size in (("legacy", 32000), ("tiny", 600)):
            flags = paths | dict(recipe=recipe, vocab_size=size, preprocessed=folder / recipe)
            flags |= dict(num_epochs=1, warmup_steps=0)
            shutil.rmtree(folder / recipe / "train_ids", ignore_errors=True)
            options = [f"--{name}={value}" for name, value in flags.items()]
            assignments = [f"{name}={value}" for name, value in flags.items()]
            train = [__file__, "first_step", *assignments]
            commands[f"prepro.py, {recipe}"] = [ROOT / "prepro.py", *options]
            commands[f"to the first step, {recipe}"] = train
            commands[f"to the first step, {recipe}, again"] = train
        for name, command in commands.items():
            seconds, memory, waiting = measure([sys.executable, *command])
            waiting = "-" if waiting is None else f"{waiting:.2%}"
            print(f"| {pairs:,} | {name} | {seconds:.1f} | {memory:.0f} | {waiting} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] in ("count_words", "first_step"):
        dict(count_words=count_words, first_step=first_step)[sys.argv[1]](*sys.argv[2:])
    else:
        main([int(float(size)) for size in sys.argv[1:]])
