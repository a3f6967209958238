"""Time `prepro.py`, and `train.py` up to its first step, on corpora of many sizes.

    python benchmarks/time_data.py 1e4 1e5 1e6

The numbers are those of the pairs; the corpora are written by `corpora/sample.py`. The
reference for words is the documented way: all of the text in memory, cleaned and
counted at once. Memory is the largest that the process held. Waiting is the share of the
steps behind the first one in which training waits for its next batch.
"""

import os
import subprocess
import sys
import time
from collections import Counter

from beside import ROOT, WORK, machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

LANGS = dict(source="de", target="en")
STEPS = 100


def documented(*paths):
    """Count words as documented, and sort them."""
    import regex

    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = regex.sub(r"[^\s\p{Latin}']", "", file.read())
        word2cnt = Counter(text.split())
        "".join(f"{word}\t{count}\n" for word, count in word2cnt.most_common(len(word2cnt)))


def first_step(*flags):
    """Train as `train.py` does: a step, and then some more; prints the share that is waiting."""
    sys.path.insert(0, str(ROOT))
    import train
    from hparams import with_recipe
    from text import load_vocabs

    pairs = (flag.split("=") for flag in flags)
    hp = with_recipe({name: int(value) if value.isdigit() else value for name, value in pairs})
    vocabs = load_vocabs(hp)
    data = train.load_train_data(hp, vocabs)
    training = train.Training(hp, vocabs)
    batches = iter(train.get_batch_data(data, hp, epoch=1)[0])
    mean_loss, *_ = training.step(*next(batches))
    float(mean_loss)
    print("first step", time.time(), flush=True)
    waiting, began = 0.0, time.perf_counter()
    for _ in range(STEPS):
        asked = time.perf_counter()
        batch = next(batches)
        waiting += time.perf_counter() - asked
        float(training.step(*batch)[0])
    print("waiting", waiting / (time.perf_counter() - began))


def measure(command):
    """Run a command.

    Returns:
      (float, float, dict): its seconds, the largest memory that it held in MiB, and the
      numbers that it printed by their names.
    """
    began = time.time()
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
    lines = process.stdout.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.time() - began
    if status:
        sys.exit(f"{command}: ended with status {status}")
    told = dict(line.rsplit(" ", 1) for line in lines if line.startswith(("first", "waiting")))
    told = {name: float(number) for name, number in told.items()}
    return told.get("first step", began + seconds) - began, usage.ru_maxrss / 1024, told


def write_corpus(pairs):
    """The folder of a corpus of so many pairs, written if it is not there."""
    folder = WORK / f"corpus_{pairs}"
    if not folder.exists():
        script = ROOT / "corpora" / "sample.py"
        command = [sys.executable, script, "--output", folder, "--train", str(pairs)]
        subprocess.run(command, check=True)
    return folder


def main(sizes):
    """Print a table of what each step on so many pairs takes."""
    print(machine())
    print("| pairs | what | seconds | MiB | waiting |\n|---|---|---|---|---|")
    for pairs in sizes:
        folder = write_corpus(pairs)
        name = "train.tags.de-en"
        paths = {f"{side}_train": folder / f"{name}.{lang}" for side, lang in LANGS.items()}
        rows = {"documented counting": [__file__, "documented", *paths.values()]}
        for recipe, size in (("legacy", 32000), ("tiny", 600)):
            flags = paths | dict(recipe=recipe, vocab_size=size, preprocessed=folder / recipe)
            (folder / recipe / "train.ids.npz").unlink(missing_ok=True)
            options = [f"--{name}={value}" for name, value in flags.items()]
            given = [f"{name}={value}" for name, value in flags.items()]
            rows[f"prepro.py, {recipe}"] = [ROOT / "prepro.py", *options]
            rows[f"to the first step, {recipe}"] = [__file__, "first_step", *given]
            rows[f"again, {recipe}"] = rows[f"to the first step, {recipe}"]
        for name, command in rows.items():
            seconds, memory, told = measure([sys.executable, *command])
            waiting = f"{told['waiting']:.2%}" if told else "-"
            print(f"| {pairs:,} | {name} | {seconds:.1f} | {memory:.0f} | {waiting} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] in ("documented", "first_step"):
        dict(documented=documented, first_step=first_step)[sys.argv[1]](*sys.argv[2:])
    else:
        main([int(float(size)) for size in sys.argv[1:]])
