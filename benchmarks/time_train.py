"""Time the training step beside PyTorch's nn.Transformer, the machine's limit, and JoeyNMT.

    REAL_TEXT=DIR python benchmarks/time_train.py tiny
    REAL_TEXT=DIR python benchmarks/time_train.py base --precision bfloat16

`legacy` is the documented model on IWSLT, `tiny` the recipe on Multi30k, `base` the
paper's on Multi30k with 8,000 pieces and batches of 4,096 tokens. All see the same
batches. A target token is useful where it is no padding.
"""

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

from beside import ROOT, WORK, Worker, alternate, machine, ratio, rivals_python
from joey import joey_config, joey_says
from quality import corpus_flags, run_script

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

SIZES = dict(
    legacy=("iwslt16", 20, {"recipe": "legacy"}),
    tiny=("multi30k", 40, {"recipe": "tiny"}),
    base=("multi30k", 5, {"recipe": "paper", "vocab_size": 8000, "batch_tokens": 4096}),
)
SWITCHES = "hidden_units num_blocks num_heads dropout_rate shared precision".split()


def write_batches(flags, count, folder):
    """The first batches of an epoch in a file; its path, what PyTorch must know, useful tokens."""
    import numpy as np

    from data_load import get_batch_data, load_train_data
    from hparams import with_recipe
    from text import PAD, load_vocabs

    hp = with_recipe(flags)
    vocabs = load_vocabs(hp)
    dataset, _ = get_batch_data(load_train_data(hp, vocabs), hp, epoch=1)
    pairs = [tuple(side.numpy() for side in pair) for pair in dataset.take(count)]
    path = folder / "batches.npz"
    arrays = {f"{side}{i}": pair[n] for i, pair in enumerate(pairs) for n, side in enumerate("xy")}
    np.savez(path, **arrays)
    size = {name: getattr(hp, name) for name in SWITCHES}
    size |= dict(ffn_units=hp.ffn_units or 4 * hp.hidden_units)
    size |= dict(source_vocab=len(vocabs[0]), target_vocab=len(vocabs[1]))
    return path, size, sum(int((y != PAD).sum()) for _, y in pairs), len(pairs)


class Joey:
    """JoeyNMT's own training, asked like a `Worker` for the seconds of so many target tokens."""

    def __init__(self, flags, folder, tokens):
        from hparams import with_recipe

        config = joey_config(with_recipe(flags), flags, folder)
        self.config = folder / "joey.yaml"
        self.config.write_text(json.dumps(config))  # which is YAML too
        self.tokens = tokens

    def seconds(self):
        """How long as many tokens take it."""
        told = joey_says(self.config, r"Tokens per Sec: *(\d+)", "train", "--skip-test")
        return self.tokens / statistics.mean(told[1:])  # its first third warms up

    def stop(self):
        """Nothing: each measurement ends by itself."""
        pass


def main():
    """Compare as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if "REAL_TEXT" not in os.environ:
        parser.error("REAL_TEXT is not set: it names the folder of multi30k/ and iwslt16/")

    corpus, count, given = SIZES[args.size]
    folder = WORK / f"time_{args.size}"
    flags = corpus_flags(corpus, "de-en", Path(os.environ["REAL_TEXT"]).resolve()) | given
    flags |= dict(preprocessed=str(folder / "preprocessed"), precision=args.precision)
    if not folder.exists():
        run_script("prepro.py", flags, [])
    path, size, tokens, count = write_batches(flags, count, folder)

    ours = [sys.executable, ROOT / "benchmarks" / "step_tensorflow.py"]
    torch = [rivals_python(), ROOT / "benchmarks" / "step_torch.py"]
    workers = {
        "ours": Worker([*ours, "step", path, json.dumps(flags)]),
        "limit": Worker([*ours, "limit", path, json.dumps(flags)]),
        "PyTorch": Worker([*torch, path, json.dumps(size)]),
    }
    if args.size == "tiny" and args.precision == "float32":
        workers["JoeyNMT"] = Joey(flags, folder, tokens)
    seconds = alternate(workers, args.rounds)
    for worker in workers.values():
        worker.stop()

    print(f"{args.size}, {args.precision}, {machine()}, {count} batches, {args.rounds} rounds")
    for name, times in seconds.items():
        median = statistics.median(times)
        per_step, speed = 1000 * median / count, tokens / median
        print(f"{name:8} {per_step:8.1f} ms a step {speed:8.0f} tokens a second", end="")
        print(f"   ours is {ratio(seconds, 'ours', name):.2f} times as fast")


if __name__ == "__main__":
    main()
