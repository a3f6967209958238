"""Time decoding against the method of the 2017 code, and against CTranslate2.

    python benchmarks/time_decode.py uncached
    REAL_TEXT=DIR python benchmarks/time_decode.py ctranslate2 --logdir LOGDIR

`uncached` runs the complete model on each prefix, in batches of 32, as the 2017 code does. The
parameters are random and the same on both sides. All `maxlen` steps are taken, which is the least
favourable case for the KV cache. `ctranslate2` exports a model, and both programs translate
`test_2016_flickr`; "2 x 1 threads" are 2 translators with a thread each. The table says which share
of the translations equals ours, and how many times as fast ours is (median over the rounds).
"""

import argparse
import itertools
import json
import operator
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import numpy as np
import sacrebleu
from quality import corpus_flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from support.parallel import num_cores, one_thread_per_operation

NUM_TOKENS, VOCAB_SIZE = 4096, 8000  # of an untrained model
BATCH_TOKENS = 2048  # of CTranslate2: larger batches are not faster
# Keeps a core busy until this process ends.
NEIGHBOUR = f"import os\nwhile os.getppid() == {os.getpid()}: pass"

# Decoders: functions that return a list of translations -------------


def untrained_decoder(kind, flags):
    """Decode random ids with random parameters; `kind` is "cached" or "uncached"."""
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
    return lambda: np.concatenate([search(x) for x in batches]).tolist()


def trained_decoder(flags):
    """Translate the test set with a model, and the length penalty of CTranslate2."""
    one_thread_per_operation()  # as eval.py

    from data_load import load_test_data
    from translation import inference

    inference.paper_penalty = lambda alpha: lambda length: length**alpha
    loaded = inference.load_model(flags)
    X = load_test_data(loaded.hp, loaded.vocabs).data.X
    decode = inference.SearchDecoder(loaded)
    return lambda: [best.text for best, *_ in decode(X)]


def ctranslate2_decoder(flags, folder, options):
    """Translate the test set with an exported model. `options` are those of `Translator`."""
    import ctranslate2

    from data_load import load_test_data
    from hparams import load_hparams
    from text.vocab import load_vocabs

    hp = load_hparams(flags)
    source, target = load_vocabs(hp.logdir, hp)
    X = load_test_data(hp, (source, target)).data.X
    tokens = [[*map(source.id_to_token, X[row][:-1])] for row in range(len(X))]  # without </S>
    translator = ctranslate2.Translator(folder, **options)
    limit = int(hp.max_output_tokens(X.lengths.max()))
    search = dict(beam_size=hp.beam, length_penalty=hp.alpha, max_decoding_length=limit)
    search["patience"] = 2  # else it stops earlier than our beam search
    batches = dict(max_batch_size=BATCH_TOKENS, batch_type="tokens")

    def decode():
        results = translator.translate_batch(tokens, **search, **batches)
        return [target.processor.decode(result.hypotheses[0]) for result in results]

    return decode


DECODERS = dict(
    untrained=untrained_decoder, trained=trained_decoder, ctranslate2=ctranslate2_decoder
)


def run_worker(decoder, arguments, output):
    """Run a worker, and write its translations to the file `output`."""
    decode = DECODERS[decoder](*json.loads(arguments))
    Path(output).write_text(json.dumps(decode()))  # the first run, which also traces the graph
    harness.worker_loop(decode)


# The comparisons ----------------------------------------------------


def compare(decoders, references, args):
    """Time {name: (key of `DECODERS`, its arguments)}, ours first; returns rows of the table."""
    workers, found, output = {}, {}, harness.WORK / "decoded.json"
    for name, (decoder, *arguments) in decoders.items():
        words = decoder, json.dumps(arguments), output
        workers[name] = harness.Worker([sys.executable, __file__, "worker", *words])
        found[name] = json.loads(output.read_text())
    timings = [harness.time_interleaved(workers, args.rounds)]
    if args.busy:
        neighbour = subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
        timings.append(harness.time_interleaved(workers, args.rounds))
        neighbour.kill()
    for worker in workers.values():
        worker.stop()
    ours, rows = next(iter(decoders)), []
    for name, lines in found.items():
        bleu = f"{sacrebleu.corpus_bleu(lines, [references]).score:.2f}" if references else "-"
        cells = [name, bleu, f"{np.mean([*map(operator.eq, found[ours], lines)]):.1%}"]
        for seconds in timings:
            cells.append(f"{len(lines) / statistics.median(seconds[name]):.1f}")
            cells.append(f"{harness.speedup(seconds, ours, name):.2f}")
        rows.append(cells)
    return rows


def compare_uncached(args):
    """Time decoding with and without a KV cache."""
    rows = []
    for maxlen in (10, 50):
        flags, kinds = dict(recipe="legacy", maxlen=maxlen), ("cached", "uncached")
        decoders = {f"maxlen {maxlen}, {kind}": ("untrained", kind, flags) for kind in kinds}
        rows += compare(decoders, None, args)
    return rows


def compare_ctranslate2(args):
    """Time decoding by this project and by CTranslate2 with the same parameters."""
    corpus, cores, rows = corpus_flags("multi30k", "de-en"), num_cores(), []
    references = Path(corpus["target_test"]).read_text("utf-8").splitlines()
    with tempfile.TemporaryDirectory() as folder:
        model, flags = f"{folder}/model", dict(logdir=args.logdir)
        harness.run_script("export.py", flags | dict(output=model, format="ctranslate2"))
        flags |= {name: corpus[name] for name in ("source_test", "target_test")}
        for beam in (1, 5):
            flags |= dict(beam=beam, alpha=1.0)
            decoders = {f"beam {beam}, ours": ("trained", flags)}
            threads = (cores, 1), (1, cores)
            for kind, (inter, intra) in itertools.product(("float32", "int8"), threads):
                options = dict(compute_type=kind, inter_threads=inter, intra_threads=intra)
                name = f"beam {beam}, CTranslate2, {kind}, {inter} x {intra} threads"
                decoders[name] = "ctranslate2", flags, model, options
            rows += compare(decoders, references, args)
    return rows


def main():
    """Print the table of the baseline that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("baseline", choices=("uncached", "ctranslate2"))
    parser.add_argument("--logdir", help="a model of the recipe tiny, from German to English")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--busy", action="store_true", help="also time beside a busy process")
    args = parser.parse_args()
    if args.baseline == "ctranslate2" and not args.logdir:
        parser.error("ctranslate2 needs --logdir.")
    harness.WORK.mkdir(exist_ok=True)
    rows = (compare_uncached if args.baseline == "uncached" else compare_ctranslate2)(args)
    columns = ["", "BLEU", "equal", "sentences/s", "ours / this"]
    columns += ["sentences/s, busy", "ours / this"] * args.busy
    print(harness.describe_machine(), end="\n\n")
    for cells in (columns, ["---"] * len(columns), *rows):
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:  # in the process that is timed
        run_worker(*sys.argv[2:])
    else:
        main()
