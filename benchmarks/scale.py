"""Measure how the cost of a training grows with its text, and draw it.

    REAL_TEXT=DIR python benchmarks/scale.py 10000 100000 1000000 10000000 --draw docs/scale.png

A pair is as long as one of Multi30k, German to English, and its words are drawn from all of that
text, so that hardly a line occurs twice. The recipe is `tiny`, in bfloat16. Each size gets a row in
scale.json, in this folder. The time of an epoch is that of 200 steps, times their number.
"""

import argparse
import re
import resource
import shutil
import subprocess
import time

import harness
import numpy as np

RESULTS = harness.ROOT / "benchmarks" / "scale.json"
STEPS = 200
MEASURES = dict(
    prepro="prepro.py, seconds",
    first="from train.py to the first step, seconds",
    epoch="an epoch, minutes",
    memory="largest memory of both, GB",
)


def write_text(folder, pairs) -> dict:
    """Write so many pairs, and return the flags that name the files."""
    rng, flags = np.random.default_rng(0), dict(recipe="tiny", precision="bfloat16")
    rows = rng.integers(29000, size=pairs)  # both sides have the lengths of one pair
    for side, lang in dict(source="de", target="en").items():
        text = (harness.corpus_folder("multi30k") / f"train.{lang}").read_text("utf-8")
        lengths = np.array([len(line.split()) for line in text.splitlines()])[rows]
        words, path = np.array(text.split()), folder / f"train.{lang}"
        with path.open("w", encoding="utf-8") as file:
            for length in lengths:
                file.write(" ".join(rng.choice(words, length)) + "\n")
        flags[f"{side}_train"] = str(path)
    return flags | dict(preprocessed=str(folder / "preprocessed"), logdir=str(folder / "logdir"))


def time_script(script, flags) -> tuple[float, str]:
    """Run a script of the project; returns its seconds and its output."""
    start = time.monotonic()
    output = harness.run_script(script, flags, stdout=subprocess.PIPE, text=True).stdout
    return time.monotonic() - start, output


def measure(pairs) -> dict:
    """Prepare so many pairs, and train on them; returns a row of scale.json."""
    folder = harness.WORK / "scale"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    flags = write_text(folder, pairs)
    row = dict(pairs=pairs, machine=harness.describe_machine())
    row["prepro"], _ = time_script("prepro.py", flags)
    row["first"], output = time_script("train.py", flags | dict(max_steps=1))
    shutil.rmtree(flags["logdir"])
    seconds, _ = time_script("train.py", flags | dict(max_steps=1 + STEPS))
    per_epoch = int(re.search(r"([\d,]+) per epoch", output)[1].replace(",", ""))
    row["epoch"] = (seconds - row["first"]) / STEPS * per_epoch / 60
    row["memory"] = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024 / 1e9
    shutil.rmtree(folder)
    return row


def main():
    """Measure each size that is named, and print and draw all rows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pairs", nargs="*", type=int, help="in rising order, because of the memory")
    parser.add_argument("--draw", metavar="PNG")
    args = parser.parse_args()
    for pairs in args.pairs:
        others = [row for row in harness.load_rows(RESULTS) if row["pairs"] != pairs]
        harness.save_rows(RESULTS, [*others, measure(pairs)])
    rows = harness.load_rows(RESULTS)
    print(f"| pairs | {' | '.join(MEASURES.values())} |\n{'|---' * (1 + len(MEASURES))}|")
    for row in rows:
        print(f"| {row['pairs']:,} | {' | '.join(f'{row[name]:.3g}' for name in MEASURES)} |")
    if args.draw:
        pairs = [row["pairs"] for row in rows]
        curves = [(MEASURES[name], pairs, [row[name] for row in rows]) for name in MEASURES]
        harness.draw_curves(curves, args.draw, "pairs", "", scale="log")


if __name__ == "__main__":
    main()
