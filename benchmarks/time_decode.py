"""Time decoding beside the documented way, beside JoeyNMT, and beside CTranslate2.

    python benchmarks/time_decode.py documented
    REAL_TEXT=DIR python benchmarks/time_decode.py joeynmt --logdir LOGDIR
    REAL_TEXT=DIR python benchmarks/time_decode.py ctranslate2 --logdir LOGDIR

`documented` runs each prefix through the whole model again, in batches of 32, as the 2017 code
did, on the same weights; these are drawn at random, and all `maxlen` steps are taken, which is
the least that the cache can gain. `joeynmt` gives JoeyNMT the weights of a model that was
trained with the recipe `tiny`, and both translate `test_2016_flickr`. So does `ctranslate2`, with
matrices in float32 and in int8, and tells the BLEU of each.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from beside import ROOT, WORK, Worker, alternate, machine, ratio, rivals_python
from joey import joey_config, joey_says
from quality import corpus_flags

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

ALPHA = 0.6  # the exponent of both length penalties
OURS = [sys.executable, ROOT / "benchmarks" / "decode_tensorflow.py"]


def beside_documented(rounds):
    """Keys and values kept, beside every prefix computed again."""
    import numpy as np

    for maxlen in (10, 50):
        flags = json.dumps(dict(recipe="legacy", maxlen=maxlen))
        outputs = {name: WORK / f"decode_{name}.npy" for name in ("cached", "documented")}
        workers = {name: Worker([*OURS, name, flags, path]) for name, path in outputs.items()}
        seconds = alternate(workers, rounds)
        for worker in workers.values():
            worker.stop()
        ours, theirs = (np.load(path) for path in outputs.values())
        same = (ours == theirs).all(axis=1).mean()
        title = f"legacy, greedy, maxlen {maxlen}"
        report(title, seconds, "cached", "documented", len(ours), ours.size)
        print(f"    the same words in {same:.1%} of the sentences")


def report(title, seconds, name, reference, sentences, words):
    """Two lines: how many sentences and words of ours a second, and how many times the other's."""
    own, other = (sentences / statistics.median(seconds[key]) for key in (name, reference))
    times = ratio(seconds, name, reference)
    print(f"{title}: {own:.1f} sentences a second, {reference} {other:.1f}: {times:.1f} times")
    print(f"    {own * words / sentences:.0f} words a second")


# JoeyNMT -----------------------------------------------------------------------


def joey_weights(model):
    """The weights of ours by JoeyNMT's names, {name: array}."""
    import numpy as np

    arrays = {}

    def dense(name, layer):
        arrays[f"{name}.weight"] = layer.kernel.numpy().T
        arrays[f"{name}.bias"] = layer.bias.numpy()

    def normalize(name, layer):
        arrays[f"{name}.weight"], arrays[f"{name}.bias"] = layer.gamma.numpy(), layer.beta.numpy()

    def attention(name, layer):
        for theirs, ours in dict(q="query", k="key", v="value", output="output_projection").items():
            dense(f"{name}.{theirs}_layer", getattr(layer, ours))

    def feedforward(name, layer):
        dense(f"{name}.pwff_layer.0", layer.inner)
        dense(f"{name}.pwff_layer.3", layer.outer)

    table = model.enc_words.embed.table().numpy()
    for name in ("src_embed.lut", "trg_embed.lut", "decoder.output_layer"):
        arrays[f"{name}.weight"] = table[[1, 0, *range(2, len(table))]]  # there <UNK> is first
    positions = model.enc_words.pe(np.arange(5000)[None]).numpy()  # (1, 5000, C)
    arrays |= {f"{side}.pe.pe": positions for side in ("encoder", "decoder")}
    for i, block in enumerate(model.enc_blocks):
        name = f"encoder.layers.{i}"
        attention(f"{name}.src_src_att", block.self_attention)
        normalize(f"{name}.layer_norm", block.self_attention.normalize)
        feedforward(f"{name}.feed_forward", block.feedforward)
        normalize(f"{name}.feed_forward.layer_norm", block.feedforward.normalize)
    for i, block in enumerate(model.dec_blocks):
        name = f"decoder.layers.{i}"
        attention(f"{name}.trg_trg_att", block.self_attention)
        attention(f"{name}.src_trg_att", block.vanilla_attention)
        normalize(f"{name}.x_layer_norm", block.self_attention.normalize)
        normalize(f"{name}.dec_layer_norm", block.vanilla_attention.normalize)
        feedforward(f"{name}.feed_forward", block.feedforward)
        normalize(f"{name}.feed_forward.layer_norm", block.feedforward.normalize)
    return arrays


def joey_seconds(folder, beam):
    """What JoeyNMT's log says that translating the test set took; it writes `joey.test`."""
    config = json.loads((folder / "joey.yaml").read_text())
    config["testing"] |= dict(beam_size=beam, beam_alpha=ALPHA)
    path = folder / f"joey_{beam}.yaml"
    path.write_text(json.dumps(config))
    return joey_says(path, r"Generation took ([\d.]+)", "test", "-o", folder / "joey")[-1]


def prepare_joey(logdir, flags, folder):
    """Write JoeyNMT's configuration and its checkpoint with our weights."""
    import numpy as np

    from decoding import load

    _, hp, model, _ = load(dict(logdir=logdir))
    (folder / "joey").mkdir(parents=True, exist_ok=True)
    config = joey_config(hp, flags, folder)
    config["data"]["test"] = flags["source_test"].removesuffix(f".{hp.source_lang}")
    config["testing"]["load_model"] = str(folder / "joey" / "ours.ckpt")
    config["testing"]["max_output_length"] = 2 * hp.maxlen
    (folder / "joey.yaml").write_text(json.dumps(config))
    np.savez(folder / "weights.npz", **joey_weights(model))
    script = ROOT / "benchmarks" / "joey_checkpoint.py"
    target = folder / "joey" / "ours.ckpt"
    subprocess.run([rivals_python(), script, folder / "weights.npz", target], check=True)


def beside_joey(logdir, rounds):
    """This project beside JoeyNMT with the same weights."""
    folder = WORK / "time_decode"
    flags = corpus_flags("multi30k", "de-en", Path(os.environ["REAL_TEXT"]).resolve())
    prepare_joey(logdir, flags, folder)
    for beam in (1, 4, 5):
        given = dict(logdir=logdir, beam=beam, alpha=ALPHA)
        given |= {name: flags[name] for name in ("source_test", "target_test")}
        worker = Worker([*OURS, "trained", json.dumps(given), folder / "ours.test"])
        seconds = dict(ours=[], JoeyNMT=[])
        for _ in range(rounds):
            seconds["ours"].append(worker.seconds())
            seconds["JoeyNMT"].append(joey_seconds(folder, beam))
        worker.stop()
        ours, theirs = (
            (folder / f"{name}.test").read_text().splitlines() for name in ("ours", "joey")
        )
        words = sum(len(line.split()) for line in ours)
        report(f"tiny, beam {beam}", seconds, "ours", "JoeyNMT", len(ours), words)
        same = sum(map(str.__eq__, ours, theirs)) / len(ours)
        print(f"    the same text in {same:.1%} of the sentences", flush=True)


# CTranslate2 -------------------------------------------------------------------


def beside_ctranslate2(logdir, rounds):
    """This project beside CTranslate2 with the same weights."""
    import sacrebleu

    folder = WORK / "time_decode"
    folder.mkdir(parents=True, exist_ok=True)
    flags = corpus_flags("multi30k", "de-en", Path(os.environ["REAL_TEXT"]).resolve())
    references = Path(flags["target_test"]).read_text("utf-8").splitlines()
    for more in (dict(beam=1), dict(beam=5, length_penalty="ctranslate2", alpha=1.0)):
        given = dict(logdir=logdir) | more
        given |= {name: flags[name] for name in ("source_test", "target_test")}
        outputs = {name: folder / f"{name}.test" for name in ("trained", "float32", "int8")}
        workers = {
            name: Worker([*OURS, name, json.dumps(given), path]) for name, path in outputs.items()
        }
        seconds = alternate(workers, rounds)
        for worker in workers.values():
            worker.stop()
        texts = {name: path.read_text("utf-8").splitlines() for name, path in outputs.items()}
        words = sum(len(line.split()) for line in texts["trained"])
        for name in ("float32", "int8"):
            title = f"beam {given['beam']}, CTranslate2 in {name}"
            report(title, seconds, "trained", name, len(references), words)
            same = sum(map(str.__eq__, texts["trained"], texts[name])) / len(references)
            print(f"    the same text in {same:.1%} of the sentences", flush=True)
        for name, text in texts.items():
            print(f"    BLEU, {name}: {sacrebleu.corpus_bleu(text, [references]).score:.2f}")


def main():
    """Compare as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reference", choices=("documented", "joeynmt", "ctranslate2"))
    parser.add_argument("--logdir", help="a model of the recipe tiny")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    WORK.mkdir(exist_ok=True)
    print(machine(), flush=True)
    if args.reference == "documented":
        beside_documented(args.rounds)
    elif not args.logdir or "REAL_TEXT" not in os.environ:
        parser.error(f"{args.reference} needs --logdir, and REAL_TEXT: the folder of multi30k/")
    elif args.reference == "joeynmt":
        beside_joey(args.logdir, args.rounds)
    else:
        beside_ctranslate2(args.logdir, args.rounds)


if __name__ == "__main__":
    main()
