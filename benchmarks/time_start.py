"""Time what passes from the command to the first training step, and to the first translation.

    python benchmarks/time_start.py --logdir LOGDIR

Each in a new process, medians of some runs; LOGDIR holds a model from German. The
reference is importing TensorFlow and Keras, which no script here can do without.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

from beside import ROOT, machine

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROUNDS = 5


def stamps(*names):
    """A function that prints what time each of its calls came at, by these names."""
    left = iter(names)
    return lambda: print("stamp", next(left), time.time(), flush=True)


def reference(_):
    """TensorFlow and Keras alone."""
    stamp = stamps("import TensorFlow and Keras")
    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    stamp()


def training(logdir):
    """From nothing to the second training step."""
    stamp = stamps("import", "read the text", "make the model", "first step", "second step")
    import train
    from hparams import load_hparams
    from text import load_vocabs

    stamp()
    hp, _ = load_hparams(dict(logdir=logdir), trained=True)
    vocabs = load_vocabs(hp)
    data = train.load_train_data(hp, vocabs)
    stamp()
    step = train.Training(hp, vocabs).step
    stamp()
    batches, _ = train.get_batch_data(data, hp, 1)
    for x, y in batches.take(2):
        float(step(x, y)[0])
        stamp()


def translation(logdir):
    """From nothing to the second translation."""
    stamp = stamps("import", "read the model", "first sentence", "second sentence")
    from data_load import Ragged
    from decoding import load, make_search, translate

    stamp()
    _, hp, model, vocabs = load(dict(logdir=logdir))
    stamp()
    search = make_search(model, hp, hp.beam)
    for sentence in ("Ein Hund läuft.", "Zwei Frauen sitzen auf einer Bank."):
        translate(search, Ragged.of(vocabs[0].encode([sentence])), hp)
        stamp()


def run_once(what, logdir):
    """Seconds from the start of a new process to each of its stamps, {name: seconds}."""
    began = time.time()
    command = [sys.executable, __file__, what, "--logdir", logdir]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    lines = [line.split(" ", 1)[1] for line in done.stdout.splitlines() if line[:6] == "stamp "]
    return {name: float(at) - began for name, at in (line.rsplit(" ", 1) for line in lines)}


def main():
    """Print the medians of several processes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", help=argparse.SUPPRESS)
    parser.add_argument("--logdir", required=True)
    args = parser.parse_args()
    kinds = dict(reference=reference, training=training, translation=translation)
    if args.what:
        sys.path.insert(0, str(ROOT))
        return kinds[args.what](args.logdir)
    runs = {what: [] for what in kinds}
    for _ in range(ROUNDS):
        for what in kinds:
            runs[what].append(run_once(what, args.logdir))
    print(f"{machine()}, medians of {ROUNDS}, seconds")
    for what, found in runs.items():
        before = 0.0
        for name in found[0]:
            at = statistics.median(times[name] for times in found)
            print(f"{what:12} {name:28} {at - before:6.2f}   {at:6.2f} from the start")
            before = at


if __name__ == "__main__":
    main()
