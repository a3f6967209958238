"""Train the small model of docs/break_it.md, and the same without one of its parts.

    python benchmarks/break_it.py --results own.json
    python benchmarks/break_it.py --rows "complete model" --seed 3
    python benchmarks/break_it.py --table

The first command trains each experiment that the file of results does not have, one after the
other, and adds its losses, its BLEU and its translations to it. Interrupted, the same
command resumes. It needs no other text than the built-in corpus, which it writes. --table prints
all results.
"""

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from harness import ROOT, describe_machine, load_rows, save_rows

RESULTS = ROOT / "benchmarks" / "break_it.json"
FLAGS = "docs/break_it.flags"
CORPUS = "corpora/sample"
LINES = (
    "Die Frau hat den Brief nicht gelesen.",
    "Der Hund schläft.",
    "Er hat mit dem traurigen Jungen getanzt, weil der Nachbar immer kocht.",
)
COMPLETE = "complete model"
EXPERIMENTS = {
    COMPLETE: "",
    "complete model, higher rate": "--lr 0.01",
    "no residual connections": "--no-residual",
    "no normalization": "--normalization none",
    "no normalization, higher rate": "--normalization none --lr 0.01",
    "no division by sqrt(d_k)": "--attention_score dot",
    "no positions": "--positions none",
    "no padding mask": "--no-mask_padding",
    "one head": "--num_heads 1",
    "no label smoothing": "--label_smoothing 0",
    "learning rate too high": "--lr 0.05",
    "no dropout": "--dropout_rate 0",
    "no causal mask": "--no-causality",
}
REPORT = re.compile(r": mean_loss (\S+) acc (\S+), dev loss (\S+) BLEU (\S+) ")


def run(script, *words, text=None) -> subprocess.CompletedProcess:
    """Run a script of the project, with `text` as its standard input."""
    command = [sys.executable, str(ROOT / script), *words]
    return subprocess.run(command, cwd=ROOT, input=text, capture_output=True, text=True)


def checked(done) -> str:
    """Return what a script printed; ends the program if the script failed."""
    if done.returncode:
        sys.exit(f"{' '.join(done.args)}: {done.stderr}")
    return done.stdout


def measure(name, seed, more_flags=(), folder="logdir/break_it") -> dict:
    """Train an experiment and translate `LINES`.

    Args:
      more_flags: words that follow the flags of the experiment.
      folder: where the folder of the model is.

    Returns:
      dict: losses and BLEU of the last epoch, without them if the training stopped before its end;
      the translations; and the seconds of processor time.
    """
    logdir = ["--logdir", f"{folder}/{re.sub('[^a-z]+', '_', name)}_{seed}"]
    before = os.times()
    words = [f"@{FLAGS}", *shlex.split(EXPERIMENTS[name]), "--seed", str(seed), *logdir]
    done = run("train.py", *words, *more_flags)
    seconds = sum(os.times()[2:4]) - sum(before[2:4])  # of child processes
    row = dict(name=name, seed=seed, processor_seconds=round(seconds))
    if done.returncode == 2 and "a lower --lr" in done.stderr:
        return row | dict(stopped=done.stderr.strip().splitlines()[-1])
    reports = REPORT.findall(checked(done))
    names = ("mean_loss", "acc", "dev_loss", "bleu")
    row |= dict(zip(names, map(float, reports[-1]), strict=True))
    text = "".join(f"{line}\n" for line in LINES)
    translations = checked(run("translate.py", *logdir, text=text)).splitlines()
    return row | dict(bleu_of_epochs=[float(report[-1]) for report in reports], got=translations)


def write_corpus():
    """Write the built-in corpus and its vocabulary unless they exist."""
    if not (ROOT / CORPUS / "train.tags.de-en.de").exists():
        checked(run("corpora/sample.py", "--output", CORPUS))
    if not (ROOT / "preprocessed" / "break_it" / "bpe.model").exists():
        checked(run("prepro.py", f"@{FLAGS}"))


def print_table(rows):
    """Print all results, and the translations of `LINES`."""
    columns = ["experiment", "flags", "training loss", "development loss"]
    print(f"| {' | '.join(columns)} | BLEU, epoch 1 | epoch 2 | epoch 3 |")
    print("|---" * 7 + "|")
    rows = sorted(rows, key=lambda row: ([*EXPERIMENTS].index(row["name"]), row["seed"]))
    for row in rows:
        flags = EXPERIMENTS[row["name"]]
        name = row["name"] + f", seed {row['seed']}" * (row["seed"] > 0)
        cells = [name, f"`{flags}`" if flags else ""]
        if "bleu" in row:
            cells += [f"{row['mean_loss']:.2f}", f"{row['dev_loss']:.2f}"]
            cells += [f"{bleu:.1f}" for bleu in row["bleu_of_epochs"]]
        else:
            cells += ["training stops", *4 * ["-"]]
        print(f"| {' | '.join(cells)} |")
    for row in rows:
        print(f"\n{row['name']}, {row['processor_seconds']} s of processor time")
        print("\n".join(row.get("got", [row.get("stopped")])))


def main():
    """Train the experiments that are asked for, or print those that have been trained."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", nargs="+", choices=[*EXPERIMENTS], default=[*EXPERIMENTS], metavar="ROW"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="file of the results")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        return print_table(load_rows(args.results))
    write_corpus()
    print(describe_machine(), flush=True)
    for name in args.rows:
        rows = load_rows(args.results)
        if (name, args.seed) not in [(row["name"], row["seed"]) for row in rows]:
            row = measure(name, args.seed)
            save_rows(args.results, [*rows, row])
            print(row, flush=True)


if __name__ == "__main__":
    main()
