"""Time decoding against the method of the 2017 code, and against CTranslate2.

    python benchmarks/time_decode.py uncached
    REAL_TEXT=DIR python benchmarks/time_decode.py ctranslate2 --logdir LOGDIR [--busy]

`uncached` runs the complete model on each prefix, in batches of 32, as the 2017 code does. The
parameters are random and the same on both sides. All `maxlen` steps are taken, which is the least
favourable case for the KV cache. `ctranslate2` translates `test_2016_flickr` by a trained model, as
eval.py does, and by its export, without a length penalty, which differs. With `--busy`, another
process keeps one core busy.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import harness
import numpy as np
from quality import corpus_flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from support.parallel import num_cores, one_thread_per_operation

NUM_TOKENS, VOCAB_SIZE = 4096, 8000  # of an untrained model
OURS = [sys.executable, __file__, "worker"]

# Our decoder, in a process of its own ------------------------------------------


def untrained_decoder(kind, flags):
    """Make a function that decodes with random parameters; no sentence ends before `maxlen`.

    Args:
      kind: "cached", or "uncached" to run the complete model on each prefix.

    Returns:
      function without arguments, which returns (N, maxlen) int32.
    """
    import keras
    import tensorflow as tf

    from hparams import make_hparams
    from model.transformer import make_model
    from text.ids import BOS
    from translation.inference import decoding_batch_size
    from translation.search import greedy

    hp = make_hparams(flags)
    keras.utils.set_random_seed(0)
    model = make_model(hp, VOCAB_SIZE, VOCAB_SIZE)
    rng = np.random.default_rng(0)
    x = rng.integers(4, VOCAB_SIZE, (NUM_TOKENS // hp.maxlen, hp.maxlen), np.int32)
    size = hp.batch_size if kind == "uncached" else decoding_batch_size(hp.maxlen, beam=1)
    batches = [tf.constant(x[row : row + size]) for row in range(0, len(x), size)]

    @tf.function
    def cached(x):
        N, memory = len(x), model.encode_memory(x)
        start, max_lengths = tf.fill([N], BOS), tf.fill([N], hp.maxlen)
        cache = model.initial_cache(memory)
        return greedy(model.decode_step, cache, memory, start, max_lengths)

    @tf.function
    def predict(x, preds):
        return tf.argmax(model(x, preds), axis=-1, output_type=tf.int32)  # (N, T)

    def uncached(x):
        preds = np.zeros(x.shape, np.int32)
        for j in range(hp.maxlen):
            preds[:, j] = predict(x, tf.constant(preds)).numpy()[:, j]
        return preds

    search = uncached if kind == "uncached" else cached
    return lambda: np.concatenate([search(x) for x in batches])


def trained_decoder(flags, output):
    """Make a function that translates the test set of a trained model into a file."""

    from data_load import load_test_data
    from translation.inference import SearchDecoder, load_model

    loaded = load_model(flags)
    test = load_test_data(loaded.hp, loaded.vocabs)
    decode = SearchDecoder(loaded)

    def timed_fn():
        texts = [best.text for best, *_ in decode(test.data.X)]
        output.write_text("".join(f"{text}\n" for text in texts), "utf-8")

    return timed_fn


def exported_decoder(flags, output):
    """Make a function that translates the test set by CTranslate2 into a file."""
    import ctranslate2
    import sentencepiece

    folder, lines = flags["folder"], Path(flags["source_test"]).read_text("utf-8").splitlines()
    source, target = (
        sentencepiece.SentencePieceProcessor(f"{folder}/{name}.model")
        for name in ("bpe.source", "bpe")
    )
    translator = ctranslate2.Translator(folder, **flags["translator"])
    search = dict(beam_size=flags["beam"], patience=2, length_penalty=0)

    def timed_fn():
        tokens = source.encode(lines, out_type=str)
        found = translator.translate_batch(
            tokens, max_batch_size=4096, batch_type="tokens", **search
        )
        texts = target.decode([result.hypotheses[0] for result in found])
        output.write_text("".join(f"{text}\n" for text in texts), "utf-8")

    return timed_fn


def run_worker(kind, flags, output):
    """Run a worker, and write its translations to the file `output`."""
    flags = json.loads(flags)
    if kind in ("trained", "exported"):
        one_thread_per_operation()  # as eval.py, before TensorFlow is loaded
        decoder = trained_decoder if kind == "trained" else exported_decoder
        timed_fn = decoder(flags, Path(output))
        timed_fn()  # traces the graph
    else:
        timed_fn = untrained_decoder(kind, flags)
        np.save(output, timed_fn())
    harness.worker_loop(timed_fn)


# The comparisons ---------------------------------------------------------------


def compare_uncached(rounds):
    """Time decoding with and without a KV cache."""
    for maxlen in (10, 50):
        flags = json.dumps(dict(recipe="legacy", maxlen=maxlen))
        outputs = {name: harness.WORK / f"decode_{name}.npy" for name in ("cached", "uncached")}
        commands = {name: [*OURS, name, flags, path] for name, path in outputs.items()}
        workers = {name: harness.Worker(command) for name, command in commands.items()}
        seconds = harness.time_interleaved(workers, rounds)
        for worker in workers.values():
            worker.stop()
        ours, theirs = (np.load(path) for path in outputs.values())
        same = (ours == theirs).all(axis=1).mean()
        speeds = [len(ours) / statistics.median(seconds[name]) for name in outputs]
        times = harness.speedup(seconds, "cached", "uncached")
        print(f"legacy, greedy, maxlen {maxlen}: {speeds[0]:.1f} sentences/s, uncached", end=" ")
        print(f"{speeds[1]:.1f}: {times:.1f} times as fast, {same:.1%} with the same tokens")


def compare_ctranslate2(logdir, rounds):
    """Time our decoding and CTranslate2's, with one thread per translator and with all in one."""
    import sacrebleu

    folder, flags = harness.WORK / "time_decode", corpus_flags("multi30k", "de-en")
    folder.mkdir(parents=True, exist_ok=True)
    exported = dict(folder=str(folder / "ctranslate2"), source_test=flags["source_test"])
    harness.run_script(
        "export.py", dict(logdir=logdir, output=exported["folder"], format="ctranslate2")
    )
    test_set = {name: flags[name] for name in ("source_test", "target_test")}
    references = Path(flags["target_test"]).read_text("utf-8").splitlines()
    print("| beam | | sentences/s | ours is as fast, times | equal sentences | BLEU |")
    print("|---|---|---|---|---|---|")
    for beam in (1, 5):
        choices = {"ours": ("trained", test_set | dict(logdir=logdir, beam=beam, alpha=0.0))}
        for kind in ("float32", "int8"):
            for translators, threads in ((num_cores(), 1), (1, num_cores())):
                settings = dict(compute_type=kind, inter_threads=translators, intra_threads=threads)
                name = f"CTranslate2, {kind}, {translators} x {threads} threads"
                choices[name] = "exported", exported | dict(beam=beam, translator=settings)
        paths = {name: folder / f"{index}.txt" for index, name in enumerate(choices)}
        workers = {
            name: harness.Worker([*OURS, kind, json.dumps(given), paths[name]])
            for name, (kind, given) in choices.items()
        }
        seconds = harness.time_interleaved(workers, rounds)
        texts = {name: path.read_text("utf-8").splitlines() for name, path in paths.items()}
        for name, worker in workers.items():
            worker.stop()
            speed = len(references) / statistics.median(seconds[name])
            times = harness.speedup(seconds, "ours", name)
            same = sum(map(str.__eq__, texts["ours"], texts[name])) / len(references)
            bleu = sacrebleu.corpus_bleu(texts[name], [references]).score
            print(f"| {beam} | {name} | {speed:.0f} | {times:.2f} | {same:.1%} | {bleu:.2f} |")


def main():
    """Time against the baseline that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("baseline", choices=("uncached", "ctranslate2"))
    parser.add_argument("--logdir", help="a trained model, from German to English")
    parser.add_argument("--busy", action="store_true", help="keep one core busy")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    harness.WORK.mkdir(exist_ok=True)
    print(harness.describe_machine(), flush=True)
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if args.busy else None
    try:
        if args.baseline == "uncached":
            compare_uncached(args.rounds)
        elif args.logdir:
            compare_ctranslate2(args.logdir, args.rounds)
        else:
            parser.error("ctranslate2 needs --logdir.")
    finally:
        if neighbour:
            neighbour.kill()


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:  # in the process that is timed
        run_worker(*sys.argv[2:])
    else:
        main()
