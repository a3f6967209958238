"""Time the training step, for `tiny` also against JoeyNMT.

    REAL_TEXT=DIR python benchmarks/time_train.py tiny
    REAL_TEXT=DIR python benchmarks/time_train.py base --precision bfloat16

`legacy` is the model of the 2017 code on IWSLT; `tiny` is the recipe on Multi30k; `base` is the
paper's model on Multi30k, with 8,000 subwords and batches of 4,096 tokens. Only target tokens that
are not padding are counted.
"""

import argparse
import itertools
import json
import os
import statistics
import sys

import harness
from joey import joey_config, run_joey
from quality import corpus_flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# The corpus, the number of batches to time, and flags.
SIZES = dict(
    legacy=("iwslt16", 20, {"recipe": "legacy"}),
    tiny=("multi30k", 40, harness.SMALL_PAPER | {"warmup_steps": 1000}),
    base=("multi30k", 5, {"recipe": "paper", "vocab_size": 8000, "batch_tokens": 4096}),
)


def prepare_size(size, **more):
    """Write the vocabulary of one of SIZES, unless that was done before.

    Args:
      more: further flags.

    Returns:
      (dict, Path, int): the flags, the folder for files, and the number of batches to time.
    """
    corpus, count, flags = SIZES[size]
    folder = harness.WORK / f"time_{size}"
    flags = corpus_flags(corpus, "de-en") | flags | more
    flags |= dict(preprocessed=str(folder / "preprocessed"))
    if not folder.exists():
        harness.run_script("prepro.py", flags)
    return flags, folder, count


def first_batches(flags, count):
    """Return the Training of a model, and the first batches of an epoch."""
    from data_load import get_batch_data, load_train_data
    from hparams import make_hparams
    from text.vocab import load_vocabs
    from train import Training

    hp = make_hparams(flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    data = load_train_data(hp, vocabs)
    batches, _ = get_batch_data(data, hp, epoch=1)
    return Training(hp, vocabs, data), [*itertools.islice(batches, count)]


def make_steps(flags, count):
    """Make a function that runs a training step on each of the first batches."""
    trainer, batches = first_batches(flags, count)

    def timed_fn():
        for x, y in batches:
            trainer.optimizer.learning_rate.assign(0.001)
            metrics = trainer.train_step(x, y)
        float(metrics.mean_loss)  # waits for the steps

    return timed_fn


class JoeyWorker:
    """JoeyNMT's own training, with the methods of a `Worker`.

    Args:
      num_targets: target tokens of the batches.
    """

    def __init__(self, trainer, flags, folder, num_targets):
        self.config = folder / "joey.yaml"
        config = joey_config(trainer.hp, trainer.vocabs[0], flags, folder)
        self.config.write_text(json.dumps(config))  # JSON is also YAML
        self.num_targets = num_targets

    def seconds(self) -> float:
        """Return how long JoeyNMT takes for as many tokens."""
        speeds = run_joey(self.config, r"Tokens per Sec: *(\d+)", "train", "--skip-test")
        return self.num_targets / statistics.mean(speeds[1:])  # the first one is a warm-up

    def stop(self):
        """Do nothing: each run ends by itself."""


def main():
    """Time the size that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    flags, folder, count = prepare_size(args.size, precision=args.precision)
    trainer, batches = first_batches(flags, count)
    num_targets = sum(int((y.numpy() != 0).sum()) for _, y in batches)

    command = [sys.executable, __file__, "step", json.dumps(flags), len(batches)]
    workers = {"ours": harness.Worker(command)}
    if args.size == "tiny" and args.precision == "float32":
        workers["JoeyNMT"] = JoeyWorker(trainer, flags, folder, num_targets)
    seconds = harness.time_interleaved(workers, args.rounds)
    for worker in workers.values():
        worker.stop()

    print(f"{args.size}, {args.precision}, {harness.describe_machine()}, {len(batches)} batches")
    for name, times in seconds.items():
        median = statistics.median(times)
        ms_per_step, tokens_per_second = 1000 * median / len(batches), num_targets / median
        print(f"{name:11} {ms_per_step:8.1f} ms per step {tokens_per_second:8.0f} tokens/s", end="")
        print(f"   ours is {harness.speedup(seconds, 'ours', name):.2f} times as fast")


if __name__ == "__main__":
    if sys.argv[1:2] == ["step"]:  # in the process that is timed
        timed_fn = make_steps(json.loads(sys.argv[2]), int(sys.argv[3]))
        timed_fn()  # traces the graph, and allocates memory
        harness.worker_loop(timed_fn)
    else:
        main()
