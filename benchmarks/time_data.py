"""Time `prepro.py` and the loading of training text on corpora of 10^4 to 10^7 pairs.

    python benchmarks/time_data.py 4 5 6

The numbers are exponents of 10; the corpora are written by `corpora/sample.py`. The
reference for words is the documented way: all of the text in memory, cleaned and
counted at once. Memory is the largest that the process held.
"""

import os
import subprocess
import sys
import time
from collections import Counter

from beside import ROOT, WORK, machine

LANGS = dict(source="de", target="en")


def documented(*paths):
    """Count words as documented, and sort them."""
    import regex

    for path in paths:
        with open(path, encoding="utf-8") as file:
            text = regex.sub(r"[^\s\p{Latin}']", "", file.read())
        word2cnt = Counter(text.split())
        "".join(f"{word}\t{count}\n" for word, count in word2cnt.most_common(len(word2cnt)))


def load(*flags):
    """Load the training text as `train.py` does."""
    sys.path.insert(0, str(ROOT))
    from data_load import load_train_data
    from hparams import with_recipe
    from text import load_vocabs

    pairs = (flag.split("=") for flag in flags)
    hp = with_recipe({name: int(value) if value.isdigit() else value for name, value in pairs})
    load_train_data(hp, load_vocabs(hp))


def measure(command):
    """Run a command; its seconds and the largest memory that it held, in MiB."""
    began = time.perf_counter()
    process = subprocess.Popen([*map(str, command)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{command}: ended with status {status}")
    return time.perf_counter() - began, usage.ru_maxrss / 1024


def write_corpus(pairs):
    """The folder of a corpus of so many pairs, written if it is not there."""
    folder = WORK / f"corpus_{pairs}"
    if not folder.exists():
        script = ROOT / "corpora" / "sample.py"
        command = [sys.executable, script, "--output", folder, "--train", str(pairs)]
        subprocess.run(command, check=True)
    return folder


def main(exponents):
    print(machine())
    print("| pairs | what | seconds | MiB |\n|---|---|---|---|")
    for pairs in (10**exponent for exponent in exponents):
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
            rows[f"loading, {recipe}"] = [__file__, "load", *given]
            rows[f"loading again, {recipe}"] = rows[f"loading, {recipe}"]
        for name, command in rows.items():
            seconds, memory = measure([sys.executable, *command])
            print(f"| {pairs:,} | {name} | {seconds:.1f} | {memory:.0f} |", flush=True)


if __name__ == "__main__":
    if sys.argv[1] in ("documented", "load"):
        dict(documented=documented, load=load)[sys.argv[1]](*sys.argv[2:])
    else:
        main([*map(int, sys.argv[1:])])
