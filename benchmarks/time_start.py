"""Time how long it takes from the command to the first training step and the first translation.

    python benchmarks/time_start.py --logdir LOGDIR --preprocessed DIR

Each run is a new process; the output has the medians. LOGDIR holds a model that translates from
German, and DIR what prepro.py wrote for it.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import time

from harness import describe_machine

from support.flags import load_tensorflow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROUNDS = 5


def timestamps(*names):
    """Make a function that prints the next of these names and the time at each call."""
    remaining = iter(names)
    return lambda: print("timestamp", next(remaining), time.time(), flush=True)


def training(logdir, preprocessed):
    """Run two training steps."""
    stamp = timestamps("import", "read the text", "make the model", "first step", "second step")
    load_tensorflow()
    from data_load import get_batch_data, load_train_data
    from hparams import load_hparams
    from support.cli import run_script
    from text.vocab import load_vocabs
    from train import Training

    def run():
        stamp()
        hp = load_hparams(dict(logdir=logdir, preprocessed=preprocessed))
        vocabs = load_vocabs(logdir, hp)
        data = load_train_data(hp, vocabs)
        stamp()
        step = Training(hp, vocabs, data).train_step
        stamp()
        batches, _ = get_batch_data(data, hp, epoch=1)
        for x, y in itertools.islice(batches, 2):
            float(step(x, y).mean_loss)
            stamp()

    run_script(run)


def translation(logdir, _):
    """Translate two sentences, as translate.py does from standard input."""
    stamp = timestamps("import", "read the model", "first sentence", "second sentence")
    load_tensorflow()
    from support.cli import run_script
    from text.ids import RaggedIds
    from translation.inference import SearchDecoder, load_model, start_quickly

    def run():
        start_quickly()
        stamp()
        loaded = load_model(dict(logdir=logdir))
        stamp()
        decode = SearchDecoder(loaded)
        for sentence in ("Ein Hund läuft.", "Zwei Frauen sitzen auf einer Bank."):
            decode(RaggedIds.from_lists(loaded.vocabs[0].encode([sentence])))
            stamp()

    run_script(run)


def run_once(kind, folders) -> dict:
    """Time a new process; returns {name: seconds from its start} for each timestamp."""
    start = time.time()
    command = [sys.executable, __file__, kind, *folders]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = {}
    for line in done.stdout.splitlines():
        if line.startswith("timestamp "):
            name, now = line.removeprefix("timestamp ").rsplit(" ", 1)
            seconds[name] = float(now) - start
    return seconds


def main():
    """Print the medians of several processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", nargs="?", help=argparse.SUPPRESS)  # in the timed processes
    parser.add_argument("--logdir", required=True)
    parser.add_argument("--preprocessed", default="preprocessed")
    args = parser.parse_args()
    functions = dict(training=training, translation=translation)
    if args.kind:
        return functions[args.kind](args.logdir, args.preprocessed)
    folders = f"--logdir={args.logdir}", f"--preprocessed={args.preprocessed}"
    runs = {kind: [] for kind in functions}
    for _ in range(ROUNDS):
        for kind in functions:
            runs[kind].append(run_once(kind, folders))
    print(f"{describe_machine()}, medians of {ROUNDS}, seconds")
    for kind, rounds in runs.items():
        before = 0.0
        for name in rounds[0]:
            now = statistics.median(seconds[name] for seconds in rounds)
            print(f"{kind:12} {name:28} {now - before:6.2f}   {now:6.2f} from the start")
            before = now


if __name__ == "__main__":
    main()
