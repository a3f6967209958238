"""Train every kind of model for the same time on the same text, and compare their BLEU.

    REAL_TEXT=DIR python benchmarks/ladder.py
    REAL_TEXT=DIR python benchmarks/ladder.py --rows gru "gru, additive" --seed 2
    python benchmarks/ladder.py --table

The first command trains the rows that benchmarks/ladder.json does not have, one after the other,
and adds them to it. Interrupted, the same command resumes. The second one trains two rows with
other initial parameters. With --again, rows are trained once more with the same number of steps,
and printed only. --table prints all rows of benchmarks/ladder.json with the mean of their seeds.

The row "transformer" has 1,600 steps. Any other row has as many steps as fit into the same time:
before its first training, its steps are timed in turn with those of "transformer". So other work
on the machine does not change the result. The rows without masks from ids are timed without the
padding that they need. All rows but "three matrices" have about as many parameters; all have one
vocabulary. Scores are sacreBLEU of greedy search with the newest checkpoint. A training that
diverges has the score 0.
"""

import argparse
import functools
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from harness import (
    ROOT,
    SMALL_PAPER,
    WORK,
    Worker,
    describe_machine,
    load_rows,
    save_rows,
    script_command,
    speedup,
    time_interleaved,
)
from quality import corpus_flags
from time_train import write_batches

sys.path.insert(0, str(ROOT))

LADDER = WORK / "ladder"
RESULTS = ROOT / "benchmarks" / "ladder.json"
REFERENCE = "transformer"
REFERENCE_STEPS = 1600
TIMED_BATCHES, TIMED_ROUNDS = 10, 3
SHARED_FLAGS = dict(batch_tokens=1024, warmup_steps=500, decay_steps=0)  # fitting for few steps
# Without masks from ids, all rows are padded to `maxlen`, where learned positions end.
PADDED = dict(positions="learned", maxlen=40)
RNN_LR = 0.003  # after 1,261 steps, "gru, additive" has mean_loss 4.12; 4.97 with 0.001
WORDS = (8, 12, 16)  # upper limits of the source lengths of the table, in words

SCORES = ("scaled_dot", "dot", "additive", "bilinear", "cosine", "cosine_softmax")
POSITIONS = (
    *("none", "learned", "sinusoid", "product", "hierarchical", "recurrent", "convolutional"),
    *("complex", "shaw", "t5", "xlnet", "deberta", "rotary"),
)
# Units at which the recurrent models have the parameters of the Transformer, with 8,000 subwords.
UNITS = dict(tanh=256, gru=216, lstm=202)


def rows() -> dict:
    """The flags of each row by its name."""
    recurrent = {
        cell: dict(recipe="rnn", lr=RNN_LR, cell=cell, hidden_units=units)
        for cell, units in UNITS.items()
    }
    attending = {
        f"gru, {score}": dict(
            recipe="rnn_attention", lr=RNN_LR, attention_score=score, hidden_units=UNITS["gru"]
        )
        for score in SCORES
    }
    transformers = {"transformer": {}}
    transformers |= {f"positions {name}": dict(positions=name) for name in POSITIONS}
    transformers |= {f"attention {name}": dict(attention_score=name) for name in SCORES[1:]}
    heads = {"1 head": 1, "2 heads": 2, "8 heads": 8}
    transformers |= {name: dict(num_heads=count) for name, count in heads.items()}
    transformers |= {
        "ReLU in attention": dict(relu_projections=True),
        "without W_O": dict(output_projection=False),
        "without residuals": dict(residual=False),
        "without normalization": dict(normalization="none"),
        "normalization first": dict(normalization="pre"),
        "without label smoothing": dict(label_smoothing=0.0),
        "without warm-up": dict(warmup_steps=0, lr=0.0005),
        "masks from activations": PADDED | dict(mask_from="activations"),
        "without padding masks": PADDED | dict(mask_from="none"),
        "three matrices": dict(tied_embeddings=False),
    }
    transformers = {name: SMALL_PAPER | flags for name, flags in transformers.items()}
    return {
        name: SHARED_FLAGS | flags for name, flags in (recurrent | attending | transformers).items()
    }


def row_folder(name, seed, again=False) -> Path:
    """The folder of a row."""
    return LADDER / f"{re.sub(r'[^a-zA-Z0-9]+', '_', name)}_{seed}{'_again' if again else ''}"


@functools.cache
def reference_worker(text) -> tuple[Path, Worker]:
    """Write batches for timing to a file, and start the worker of the row "transformer"."""
    flags = rows()[REFERENCE] | dict(text)
    path, *_ = write_batches(flags, TIMED_BATCHES, LADDER)
    return path, steps_worker(flags, path)


def steps_worker(flags, path) -> Worker:
    """Start a worker that runs training steps on the batches in a file."""
    script = ROOT / "benchmarks" / "step_tensorflow.py"
    return Worker([sys.executable, script, "step", path, json.dumps(flags)])


def known_speed(name, text) -> float:
    """Return the speed of a row, measured once for all its trainings."""
    path = LADDER / "speeds.json"
    speeds = json.loads(path.read_text()) if path.exists() else {}
    speeds |= {row["name"]: row["speed"] for row in load_results()}
    if name not in speeds:
        speeds[name] = measure_speed(name, text)
        path.write_text(json.dumps(speeds))
    return speeds[name]


def measure_speed(name, text) -> float:
    """Return how many times as fast as those of "transformer" the steps of a row are."""
    if name == REFERENCE:
        return 1.0
    path, reference = reference_worker(tuple(text.items()))
    row = steps_worker(rows()[name] | text, path)
    seconds = time_interleaved({REFERENCE: reference, name: row}, TIMED_ROUNDS)
    row.stop()
    return speedup(seconds, name, REFERENCE)


def measure(name, seed, text, again=False) -> dict:
    """Train and evaluate a row; returns what `--table` shows of it."""
    folder, speed = row_folder(name, seed, again), known_speed(name, text)
    folder.mkdir(parents=True, exist_ok=True)
    steps = round(REFERENCE_STEPS * speed)
    logdir = dict(logdir=str(folder / "logdir"))
    more = logdir | dict(num_epochs="auto", max_steps=steps, seed=seed, keep_checkpoints=1)
    log = folder / "train.log"
    with log.open("a") as file:
        command = script_command("train.py", rows()[name] | text | more)
        code = subprocess.run(command, stdout=file, stderr=file).returncode
    printed = log.read_text()
    diverged = code == 2 and "Restart with a lower --lr" in printed
    if code and not diverged:
        sys.exit(f"{log}: training has failed with code {code}")
    parameters = int(re.search(r"([\d,]+) parameters", printed)[1].replace(",", ""))
    row = dict(name=name, seed=seed, steps=steps, speed=round(speed, 3), parameters=parameters)
    if diverged:
        return row | dict(bleu=0.0, by_length=[0.0] * (len(WORDS) + 1))
    decoding = dict(beam=1, average_checkpoints=1, results=folder / "results")
    done = subprocess.run(
        script_command("eval.py", logdir | decoding), capture_output=True, text=True, check=True
    )
    results = Path(re.search(r"Full results: (.+)", done.stdout)[1]).read_text("utf-8")
    bleu = float(re.search(r"sacreBLEU = ([\d.]+)", done.stdout)[1])
    return row | dict(bleu=round(bleu, 2), by_length=bleu_by_length(results))


def add_result(row):
    """Add the measurements of a row to the results."""
    save_rows(RESULTS, [*load_results(), row])


def load_results() -> list[dict]:
    """Load the measurements of all rows."""
    return load_rows(RESULTS)


def bleu_by_length(results) -> list[float]:
    """Compute sacreBLEU for sentences of similar source length: one score per range of WORDS."""
    import sacrebleu

    records = re.findall(r"- source: (.*)\n- expected: (.*)\n- got: (.*)\n", results)
    scores = []
    for low, high in zip((0, *WORDS), (*WORDS, 10**9), strict=True):
        pairs = [(e, g) for s, e, g in records if low < len(s.split()) <= high]
        expected, got = zip(*pairs, strict=True) if pairs else ((""), (""))
        score = sacrebleu.corpus_bleu(list(got), [list(expected)]).score if pairs else 0.0
        scores.append(round(score, 2))
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
                by_length=[*map(statistics.mean, by_length)],
                spread=f" ({min(scores):.1f} to {max(scores):.1f})" if len(same) > 1 else "",
            )
            means.append(same[0] | mean)
    return means


def print_table(measured):
    """Print the rows."""
    measured = mean_of_seeds(measured)
    ranges = [f"{low + 1} to {high}" for low, high in zip((0, *WORDS), WORDS, strict=False)]
    columns = ["row", "parameters", "speed", "steps", "BLEU", *ranges, "more words"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|")
    for row in measured:
        lengths = " | ".join(f"{score:.1f}" for score in row["by_length"])
        start = f"| {row['name']} | {row['parameters']:,} | {row['speed']:.2f} | {row['steps']:,} |"
        print(f"{start} {row['bleu']:.1f}{row['spread']} | {lengths} |")


def main():
    """Measure the rows that are asked for, or print those that have been measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", nargs="+", choices=[*rows()], default=[*rows()], metavar="ROW")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        return print_table(load_results())
    flags = corpus_flags("multi30k", "de-en")
    text = {f"{side}_train": flags[f"{side}_train"] for side in ("source", "target")}
    text |= {f"{side}_test": flags[f"{side}_dev"] for side in ("source", "target")}
    text |= dict(preprocessed=str(LADDER / "vocabulary"), fold_case=False)
    LADDER.mkdir(parents=True, exist_ok=True)
    if not (LADDER / "vocabulary").exists():
        subprocess.run(script_command("prepro.py", dict(recipe="tiny") | text), check=True)
    print(describe_machine(), flush=True)
    for name in args.rows:
        known = [row for row in load_results() if (row["name"], row["seed"]) == (name, args.seed)]
        if args.again or not known:
            row = measure(name, args.seed, text, args.again)
            print(f"{name}: BLEU {row['bleu']:.1f} after {row['steps']} steps", flush=True)
            if not args.again:
                add_result(row)
        for row in known:
            print(f"{name}: BLEU {row['bleu']:.1f} in {RESULTS.name}", flush=True)


if __name__ == "__main__":
    main()
