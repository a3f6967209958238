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
import re
import statistics
import subprocess
import sys
from pathlib import Path

from beside import ROOT, WORK, Worker, alternate, machine, ratio, rivals_python
from quality import corpus_flags, run_script

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

SIZES = dict(
    legacy=("iwslt16", 20, {"recipe": "legacy"}),
    tiny=("multi30k", 40, {"recipe": "tiny"}),
    base=("multi30k", 5, {"recipe": "paper", "vocab_size": 8000, "batch_tokens": 4096}),
)
JOEY_STEPS = 60
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


# JoeyNMT -----------------------------------------------------------------------


def joey_config(hp, flags, folder):
    """What JoeyNMT must read to train the same model, on the same pieces and sizes of batches."""
    from text import SPECIALS, Pieces

    pieces = Pieces(hp.pieces_path, hp.vocab_size)
    words = folder / "joey.vocab"
    listed = [pieces.token(i) for i in range(len(SPECIALS), len(pieces))]
    words.write_text("\n".join(listed) + "\n", encoding="utf-8")

    def side(lang):
        return dict(
            lang=lang,
            level="bpe",
            max_length=hp.maxlen,
            voc_file=str(words),
            tokenizer_type="sentencepiece",
            tokenizer_cfg=dict(model_file=str(hp.pieces_path)),
        )

    half = dict(
        type="transformer",
        num_layers=hp.num_blocks,
        num_heads=hp.num_heads,
        hidden_size=hp.hidden_units,
        ff_size=hp.ffn_units,
        dropout=hp.dropout_rate,
        layer_norm="post",
        embeddings=dict(embedding_dim=hp.hidden_units, scale=True, dropout=hp.dropout_rate),
    )
    names = {f"{name}_token": SPECIALS[i] for name, i in dict(pad=0, unk=1, bos=2, eos=3).items()}
    return dict(
        name="beside",
        joeynmt_version="2.3.0",
        model_dir=str(folder / "joey"),
        use_cuda=False,
        data=dict(
            train=flags["source_train"].removesuffix(f".{hp.source_lang}"),
            dev=flags["source_dev"].removesuffix(f".{hp.source_lang}"),
            dataset_type="plain",
            src=side(hp.source_lang),
            trg=side(hp.target_lang),
            special_symbols=names | dict(unk_id=0, pad_id=1, bos_id=2, eos_id=3),
        ),
        training=dict(
            optimizer="adam",
            adam_betas=[0.9, hp.beta_2],
            scheduling="warmupinversesquareroot",
            learning_rate=hp.peak_lr,
            learning_rate_warmup=hp.warmup_steps,
            batch_size=hp.batch_tokens,
            batch_type="token",
            normalization="tokens",
            label_smoothing=0.1,
            epochs=1,
            updates=JOEY_STEPS,
            logging_freq=JOEY_STEPS // 3,
            validation_freq=1000 * (JOEY_STEPS // 3),
            overwrite=True,
        ),
        testing=dict(beam_size=5, batch_size=hp.batch_size, batch_type="sentence"),
        model=dict(
            initializer="xavier_uniform",
            tied_embeddings=True,
            tied_softmax=True,
            encoder=half,
            decoder=half,
        ),
    )


class Joey:
    """JoeyNMT's own training, asked like a `Worker` for the seconds of so many target tokens."""

    def __init__(self, flags, folder, tokens):
        from hparams import with_recipe

        config = joey_config(with_recipe(flags), flags, folder)
        (folder / "joey.yaml").write_text(json.dumps(config))  # which is YAML too
        self.command = [rivals_python(), "-m", "joeynmt", "train", folder / "joey.yaml"]
        self.tokens = tokens

    def seconds(self):
        command = [*map(str, self.command), "--skip-test"]
        done = subprocess.run(command, capture_output=True, text=True)
        told = re.findall(r"Tokens per Sec: *(\d+)", done.stdout + done.stderr)
        if len(told) < 3:
            sys.exit(f"JoeyNMT failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return self.tokens / statistics.mean(map(int, told[1:]))  # its first third warms up

    def stop(self):
        pass


def main():
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
