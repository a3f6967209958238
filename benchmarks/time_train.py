"""Time the training step.

    REAL_TEXT=DIR python benchmarks/time_train.py tiny
    REAL_TEXT=DIR python benchmarks/time_train.py base --precision bfloat16

`legacy` is the model of the 2017 code on IWSLT; `tiny` has the size of the recipe, with Adam, and
`base` is the paper's model with 8,000 subwords and batches of 4,096 tokens, both on Multi30k.
"""

import argparse
import itertools
import os
import statistics
import timeit

import harness
from quality import corpus_flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

# The corpus, the number of batches to time, and flags.
SIZES = dict(
    legacy=("iwslt16", 20, {"recipe": "legacy"}),
    tiny=("multi30k", 40, harness.SMALL_PAPER | {"warmup_steps": 1000}),
    base=("multi30k", 5, {"recipe": "paper", "vocab_size": 8000, "batch_tokens": 4096}),
)


def make_steps(flags, count):
    """Return a function that runs a training step on each of the first batches, and their size.

    The size is the number of target tokens that are not padding.
    """
    from data_load import get_batch_data, load_train_data
    from hparams import make_hparams
    from text.vocab import load_vocabs
    from train import Training

    hp = make_hparams(flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    data = load_train_data(hp, vocabs)
    trainer = Training(hp, vocabs, data)
    batches = [*itertools.islice(get_batch_data(data, hp, epoch=1)[0], count)]

    def timed_fn():
        for x, y in batches:
            trainer.optimizer.learning_rate.assign(0.001)
            metrics = trainer.train_step(x, y)
        float(metrics.mean_loss)  # waits for the steps

    return timed_fn, sum(int((y.numpy() != 0).sum()) for _, y in batches)


def main():
    """Time the size that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    corpus, count, flags = SIZES[args.size]
    folder = harness.WORK / f"time_{args.size}" / "preprocessed"
    flags = corpus_flags(corpus, "de-en") | flags
    flags |= dict(precision=args.precision, preprocessed=str(folder))
    if not folder.exists():
        harness.run_script("prepro.py", flags)
    timed_fn, num_targets = make_steps(flags, count)
    timed_fn()  # traces the graph, and allocates memory
    seconds = statistics.median(timeit.repeat(timed_fn, number=1, repeat=args.rounds))
    print(f"{args.size}, {args.precision}, {harness.describe_machine()}, {count} batches")
    print(f"{1000 * seconds / count:.1f} ms per step, {num_targets / seconds:.0f} tokens/s")


if __name__ == "__main__":
    main()
