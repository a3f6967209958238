"""Train every kind of model for the same time on the same text, and compare their BLEU.

    pip install -r benchmarks/requirements.txt
    python benchmarks/ladder.py TRAIN.de TRAIN.en VAL.de VAL.en --cpu_minutes 20
    python benchmarks/ladder.py TRAIN.de TRAIN.en VAL.de VAL.en --rows gru "gru, additive" --seed 2
    python benchmarks/ladder.py --table

The second command trains all rows, one after the other, and takes hours. Interrupted, the same
command resumes. The time is processor time, so other work on the machine does not count: 20
minutes are 10 minutes of two busy cores. Each row is stored in benchmarks/work/ladder; --table
prints them all, with the mean of all seeds, and draws ladder_length.png and ladder_speed.png
there. Scores are sacreBLEU of greedy search with the newest checkpoint. All rows but "three
matrices" have about as many parameters; all have one vocabulary. A training that diverges has the
score 0.
"""

import argparse
import contextlib
import json
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

from harness import WORK, script_command

LADDER = WORK / "ladder"
CPU_TIME_POLL_SECONDS = 0.5
WORDS = (8, 12, 16)  # upper limits of the source lengths of the plot, in words

SCORES = ("scaled_dot", "dot", "additive", "bilinear", "cosine", "cosine_softmax")
POSITIONS = (
    *("none", "learned", "sinusoid", "product", "hierarchical", "recurrent", "convolutional"),
    *("complex", "shaw", "t5", "xlnet", "deberta", "rotary"),
)
# The rows of the plot by source length.
DRAWN_BY_LENGTH = ("tanh", "gru", "lstm", "gru, additive", "transformer", "positions none")
# Units at which the recurrent models have the parameters of `tiny`, with 8,000 subwords.
UNITS = dict(tanh=256, gru=216, lstm=202)


def rows() -> dict:
    """The flags of each row by its name."""
    recurrent = {
        cell: dict(recipe="rnn", cell=cell, hidden_units=units) for cell, units in UNITS.items()
    }
    attending = {
        f"gru, {score}": dict(
            recipe="rnn_attention", attention_score=score, hidden_units=UNITS["gru"]
        )
        for score in SCORES
    }
    transformers = {"transformer": {}}
    transformers |= {f"positions {name}": dict(positions=name) for name in POSITIONS}
    transformers |= {f"attention {name}": dict(attention_score=name) for name in SCORES[1:]}
    transformers |= {f"{count} heads": dict(num_heads=count) for count in (1, 2, 8)}
    transformers |= {
        "ReLU in attention": dict(relu_projections=True),
        "without W_O": dict(output_projection=False),
        "without residuals": dict(residual=False),
        "without normalization": dict(normalization="none"),
        "normalization first": dict(normalization="pre"),
        "without label smoothing": dict(label_smoothing=0.0),
        "without warm-up": dict(warmup_steps=0, lr=0.0005),
        "masks from activations": dict(mask_from="activations", positions="learned"),
        "three matrices": dict(tied_embeddings=False),
    }
    return (
        recurrent | attending | {name: dict(recipe="tiny") | f for name, f in transformers.items()}
    )


def train_for(seconds, flags, folder) -> bool:
    """Train until all runs together have used `seconds` of processor time; save a checkpoint.

    Returns:
      bool: whether the training has gone well. If not, it diverged.

    Raises:
      KeyboardInterrupt: Ctrl-C. The checkpoint is saved, and the seconds are recorded.
    """
    import psutil

    clock = folder / "seconds"
    done = float(clock.read_text()) if clock.exists() else 0.0
    if done >= seconds:
        return True
    used = 0.0
    with (folder / "train.log").open("a") as log:
        process = subprocess.Popen(script_command("train.py", flags), stdout=log, stderr=log)
        try:
            while process.poll() is None and done + used < seconds:
                time.sleep(CPU_TIME_POLL_SECONDS)
                with contextlib.suppress(psutil.NoSuchProcess):
                    used = sum(psutil.Process(process.pid).cpu_times()[:2])  # user and system
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait()
            clock.write_text(str(done + used))
    if code == 2 and "Restart with a lower --lr" in (folder / "train.log").read_text():
        return False
    if code not in (0, 128 + signal.SIGTERM):
        sys.exit(f"{folder}/train.log: training has failed with code {code}")
    return True


def row_folder(name, seed) -> Path:
    """The folder of a row."""
    return LADDER / f"{re.sub(r'[^a-zA-Z0-9]+', '_', name)}_{seed}"


def measure(name, flags, seed, text, cpu_minutes) -> dict:
    """Train and evaluate a row; returns what `--table` shows of it."""
    folder = row_folder(name, seed)
    folder.mkdir(parents=True, exist_ok=True)
    logdir = dict(logdir=folder / "logdir")
    more = logdir | dict(num_epochs=100_000, seed=seed)
    good = train_for(60 * cpu_minutes, flags | text | more, folder)
    log = (folder / "train.log").read_text()
    row = dict(name=name, flags=flags, seed=seed, cpu_minutes=cpu_minutes)
    row |= dict(parameters=int(re.search(r"([\d,]+) parameters", log)[1].replace(",", "")))
    if not good:
        return row | dict(bleu=0.0, steps=0, by_length=[0.0] * (len(WORDS) + 1))
    decoding = dict(beam=1, average_checkpoints=1, results=folder / "results")
    done = subprocess.run(
        script_command("eval.py", logdir | decoding), capture_output=True, text=True, check=True
    )
    path = Path(re.search(r"Full results: (.+)", done.stdout)[1])
    return row | dict(
        bleu=float(re.search(r"sacreBLEU = ([\d.]+)", done.stdout)[1]),
        by_length=bleu_by_length(path.read_text("utf-8")),
        steps=int(re.search(r"_gs_(\d+)", path.name)[1]),
    )


def bleu_by_length(results) -> list[float]:
    """Compute sacreBLEU for sentences of similar source length: one score per range of WORDS."""
    import sacrebleu

    records = re.findall(r"- source: (.*)\n- expected: (.*)\n- got: (.*)\n", results)
    scores = []
    for low, high in zip((0, *WORDS), (*WORDS, 10**9), strict=True):
        pairs = [(e, g) for s, e, g in records if low < len(s.split()) <= high]
        expected, got = zip(*pairs, strict=True) if pairs else ((""), (""))
        scores.append(sacrebleu.corpus_bleu(list(got), [list(expected)]).score if pairs else 0.0)
    return scores


def mean_of_seeds(measured) -> list[dict]:
    """Average the measurements of each row, in the order of `rows`."""
    means = []
    for name in rows():
        same = [row for row in measured if row["name"] == name]
        if same:
            scores = [row["bleu"] for row in same]
            by_length = zip(*(row["by_length"] for row in same), strict=True)
            mean = dict(
                bleu=statistics.mean(scores),
                steps=round(statistics.mean(row["steps"] for row in same)),
                by_length=[*map(statistics.mean, by_length)],
                spread=f" ({min(scores):.1f} to {max(scores):.1f})" if len(same) > 1 else "",
            )
            means.append(same[0] | mean)
    return means


def print_table(measured):
    """Print the rows, and draw BLEU by source length, and BLEU by steps per minute."""
    measured = mean_of_seeds(measured)
    ranges = [f"{low + 1} to {high}" for low, high in zip((0, *WORDS), WORDS, strict=False)]
    print(f"| row | parameters | steps | BLEU | {' | '.join(ranges)} | more words |")
    print("|---" * (5 + len(ranges)) + "|")
    for row in measured:
        lengths = " | ".join(f"{score:.1f}" for score in row["by_length"])
        start = f"| {row['name']} | {row['parameters']:,} | {row['steps']:,} |"
        print(f"{start} {row['bleu']:.1f}{row['spread']} | {lengths} |")

    from matplotlib.figure import Figure

    figure = Figure((7, 4), layout="constrained")
    ax = figure.subplots()
    for row in (row for row in measured if row["name"] in DRAWN_BY_LENGTH):
        ax.plot([*ranges, "more"], row["by_length"], marker="o", label=row["name"])
    ax.set_xlabel("words in the source")
    ax.set_ylabel("sacreBLEU")
    ax.legend()
    figure.savefig(LADDER / "ladder_length.png", dpi=150)
    figure = Figure((7, 4), layout="constrained")
    ax = figure.subplots()
    for row in measured:
        speed = row["steps"] / row["cpu_minutes"]
        ax.plot(speed, row["bleu"], "o")
        ax.annotate(row["name"], (speed, row["bleu"]), fontsize=6)
    ax.set_xlabel("steps per minute of processor time")
    ax.set_ylabel("sacreBLEU")
    figure.savefig(LADDER / "ladder_speed.png", dpi=150)


def main():
    """Measure the rows that are asked for, or print those that have been measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("text", nargs="*", help="training text and val: source, target, each")
    parser.add_argument("--cpu_minutes", type=float, default=20)
    parser.add_argument("--rows", nargs="+", choices=[*rows()], default=[*rows()], metavar="ROW")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        return print_table([json.loads(path.read_text()) for path in LADDER.glob("*/row.json")])
    if len(args.text) != 4:
        parser.error("name four files: the training text and val, source and target of each")
    names = ("source_train", "target_train", "source_test", "target_test")
    text = dict(zip(names, args.text, strict=True)) | dict(preprocessed=LADDER / "vocabulary")
    LADDER.mkdir(parents=True, exist_ok=True)
    if not (LADDER / "vocabulary").exists():
        subprocess.run(script_command("prepro.py", dict(recipe="tiny") | text), check=True)
    for name in args.rows:
        path = row_folder(name, args.seed) / "row.json"
        if not path.exists():
            row = measure(name, rows()[name], args.seed, text, args.cpu_minutes)
            path.write_text(json.dumps(row))
        row = json.loads(path.read_text())
        print(f"{name}: BLEU {row['bleu']:.1f} after {row['steps']} steps", flush=True)


if __name__ == "__main__":
    main()
