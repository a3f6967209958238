"""Time the training step against PyTorch's nn.Transformer, JoeyNMT, and a lower bound.

    REAL_TEXT=DIR python benchmarks/time_train.py tiny
    REAL_TEXT=DIR python benchmarks/time_train.py base --precision bfloat16

`legacy` is the model of the 2017 code on IWSLT; `tiny` is the recipe on Multi30k; `base` is the
paper's model on Multi30k, with 8,000 subwords and batches of 4,096 tokens. All programs see the
same batches. Only target tokens that are not padding are counted.
"""

import argparse
import itertools
import json
import os
import statistics
import sys

from harness import (
    ROOT,
    SMALL_PAPER,
    WORK,
    Worker,
    baseline_python,
    describe_machine,
    speedup,
    time_interleaved,
)
from joey import joey_config, run_joey
from quality import corpus_flags, run_script

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

SIZES = dict(
    legacy=("iwslt16", 20, {"recipe": "legacy"}),
    tiny=("multi30k", 40, SMALL_PAPER | {"warmup_steps": 1000}),
    base=("multi30k", 5, {"recipe": "paper", "vocab_size": 8000, "batch_tokens": 4096}),
)
TORCH_ARGS = "hidden_units num_blocks num_heads dropout_rate tied_embeddings precision".split()


def prepare_size(size, **more):
    """Write the vocabulary of one of SIZES, unless that was done before.

    Args:
      more: further flags.

    Returns:
      (dict, Path, int): the flags, the folder for files, and the number of batches to time.
    """
    corpus, count, flags = SIZES[size]
    folder = WORK / f"time_{size}"
    flags = corpus_flags(corpus, "de-en") | flags | more
    flags |= dict(preprocessed=str(folder / "preprocessed"))
    if not folder.exists():
        run_script("prepro.py", flags, [])
    return flags, folder, count


def write_batches(flags, count, folder):
    """Write the first batches of an epoch to a file.

    Returns:
      (Path, dict, int, int): the file; the arguments of step_torch.py; the number of target
      tokens that are not padding; the number of batches.
    """
    import numpy as np

    from data_load import get_batch_data, load_train_data
    from hparams import make_hparams
    from ids import PAD
    from vocab import load_vocabs

    hp = make_hparams(flags)
    vocabs = load_vocabs(hp)
    dataset, _ = get_batch_data(load_train_data(hp, vocabs), hp, epoch=1)
    pairs = [tuple(side.numpy() for side in pair) for pair in itertools.islice(dataset, count)]
    path = folder / "batches.npz"
    arrays = {f"{side}{i}": pair[n] for i, pair in enumerate(pairs) for n, side in enumerate("xy")}
    np.savez(path, **arrays)
    size = {name: getattr(hp, name) for name in TORCH_ARGS}
    size |= dict(ffn_units=hp.ffn_units or 4 * hp.hidden_units)
    size |= dict(source_vocab=len(vocabs[0]), target_vocab=len(vocabs[1]))
    return path, size, sum(int((y != PAD).sum()) for _, y in pairs), len(pairs)


class JoeyWorker:
    """JoeyNMT's own training, with the methods of a `Worker`.

    Args:
      num_targets: target tokens of the batches.
    """

    def __init__(self, flags, folder, num_targets):
        from hparams import make_hparams

        config = joey_config(make_hparams(flags), flags, folder)
        self.config = folder / "joey.yaml"
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
    path, size, num_targets, count = write_batches(flags, count, folder)

    ours = [sys.executable, ROOT / "benchmarks" / "step_tensorflow.py"]
    torch = [baseline_python(), ROOT / "benchmarks" / "step_torch.py"]
    workers = {
        "ours": Worker([*ours, "step", path, json.dumps(flags)]),
        "lower bound": Worker([*ours, "lower_bound", path, json.dumps(flags)]),
        "PyTorch": Worker([*torch, path, json.dumps(size)]),
    }
    if args.size == "tiny" and args.precision == "float32":
        workers["JoeyNMT"] = JoeyWorker(flags, folder, num_targets)
    seconds = time_interleaved(workers, args.rounds)
    for worker in workers.values():
        worker.stop()

    machine = describe_machine()
    print(f"{args.size}, {args.precision}, {machine}, {count} batches, {args.rounds} rounds")
    for name, times in seconds.items():
        median = statistics.median(times)
        ms_per_step, tokens_per_second = 1000 * median / count, num_targets / median
        print(f"{name:11} {ms_per_step:8.1f} ms per step {tokens_per_second:8.0f} tokens/s", end="")
        print(f"   ours is {speedup(seconds, 'ours', name):.2f} times as fast")


if __name__ == "__main__":
    main()
