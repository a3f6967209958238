"""Time decoding against the method of the 2017 code, and against JoeyNMT.

    python benchmarks/time_decode.py uncached
    REAL_TEXT=DIR python benchmarks/time_decode.py joeynmt --logdir LOGDIR

`uncached` runs the complete model on each prefix, in batches of 32, as the 2017 code does. The
parameters are random and the same on both sides. All `maxlen` steps are taken, which is the least
favourable case for the KV cache. `joeynmt` gives JoeyNMT the parameters of a model of the recipe
`tiny`, and both translate `test_2016_flickr`.
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
from joey import joey_config, run_joey
from quality import corpus_flags

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from support.parallel import one_thread_per_operation

ALPHA = 0.6  # the exponent of both length penalties
NUM_TOKENS, VOCAB_SIZE = 4096, 8000  # of an untrained model
OURS = [sys.executable, __file__, "worker"]
# Runs in the environment of JoeyNMT: the parameters as its checkpoint.
TO_CHECKPOINT = """
import sys, numpy, torch
arrays = numpy.load(sys.argv[1])
state = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
torch.save(dict(model_state=state), sys.argv[2])
"""

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


def run_worker(kind, flags, output):
    """Run a worker, and write its translations to the file `output`."""
    flags = json.loads(flags)
    if kind == "trained":
        one_thread_per_operation()  # as eval.py, before TensorFlow is loaded
        timed_fn = trained_decoder(flags, Path(output))
        timed_fn()  # traces the graph
    else:
        timed_fn = untrained_decoder(kind, flags)
        np.save(output, timed_fn())
    harness.worker_loop(timed_fn)


# The comparisons ---------------------------------------------------------------


def print_speed(title, seconds, name, baseline, sentences, tokens):
    """Print how many sentences and tokens per second `name` translates, and the baseline.

    Args:
      seconds: {name: seconds of each round}.
      sentences, tokens: the size of the translations.
    """
    ours, theirs = (sentences / statistics.median(seconds[key]) for key in (name, baseline))
    times = harness.speedup(seconds, name, baseline)
    print(f"{title}: {ours:.1f} sentences/s, {baseline} {theirs:.1f}: {times:.1f} times as fast")
    print(f"    {ours * tokens / sentences:.0f} tokens/s")


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
        title = f"legacy, greedy, maxlen {maxlen}"
        print_speed(title, seconds, "cached", "uncached", len(ours), ours.size)
        print(f"    the same tokens in {same:.1%} of the sentences")


def joey_parameters(model) -> dict:
    """Return the parameters of our model under JoeyNMT's names: {name: array}."""
    arrays = {}

    def dense(name, layer):
        arrays[f"{name}.weight"] = layer.kernel.numpy().T
        arrays[f"{name}.bias"] = layer.bias.numpy()

    def normalize(name, layer):
        arrays[f"{name}.weight"], arrays[f"{name}.bias"] = layer.gamma.numpy(), layer.beta.numpy()

    def attention(name, layer):
        dense(f"{name}.q_layer", layer.query)
        dense(f"{name}.k_layer", layer.key)
        dense(f"{name}.v_layer", layer.value)
        dense(f"{name}.output_layer", layer.output_projection)

    def feedforward(name, layer):
        dense(f"{name}.pwff_layer.0", layer.inner)
        dense(f"{name}.pwff_layer.3", layer.outer)

    table = model.enc_input.tokens.padded_table().numpy()
    for name in ("src_embed.lut", "trg_embed.lut", "decoder.output_layer"):
        # In JoeyNMT, <UNK> has the id 0 and <PAD> the id 1.
        arrays[f"{name}.weight"] = table[[1, 0, *range(2, len(table))]]
    positions = model.enc_input.positions.encoding(np.arange(5000)[None]).numpy()  # (1, 5000, C)
    arrays |= {f"{side}.pe.pe": positions for side in ("encoder", "decoder")}
    for i, block in enumerate(model.enc_blocks):
        name = f"encoder.layers.{i}"
        attention(f"{name}.src_src_att", block.self_attention)
        normalize(f"{name}.layer_norm", block.self_attention.add_norm.normalize)
        feedforward(f"{name}.feed_forward", block.feedforward)
        normalize(f"{name}.feed_forward.layer_norm", block.feedforward.add_norm.normalize)
    for i, block in enumerate(model.dec_blocks):
        name = f"decoder.layers.{i}"
        attention(f"{name}.trg_trg_att", block.self_attention)
        attention(f"{name}.src_trg_att", block.vanilla_attention)
        normalize(f"{name}.x_layer_norm", block.self_attention.add_norm.normalize)
        normalize(f"{name}.dec_layer_norm", block.vanilla_attention.add_norm.normalize)
        feedforward(f"{name}.feed_forward", block.feedforward)
        normalize(f"{name}.feed_forward.layer_norm", block.feedforward.add_norm.normalize)
    return arrays


def joey_seconds(folder, beam) -> float:
    """Translate the test set with JoeyNMT into `joey.test`; returns the seconds in its log."""
    config = json.loads((folder / "joey.yaml").read_text())
    config["testing"] |= dict(beam_size=beam, beam_alpha=ALPHA)
    path = folder / f"joey_{beam}.yaml"
    path.write_text(json.dumps(config))
    return run_joey(path, r"Generation took ([\d.]+)", "test", "-o", folder / "joey")[-1]


def prepare_joey(logdir, flags, folder):
    """Write JoeyNMT's configuration, and its checkpoint with our parameters."""

    from translation.inference import load_model

    _, hp, model, vocabs = load_model(dict(logdir=logdir))
    (folder / "joey").mkdir(parents=True, exist_ok=True)
    config = joey_config(hp, vocabs[0], flags, folder)
    config["data"]["test"] = flags["source_test"].removesuffix(f".{hp.source_lang}")
    config["testing"]["load_model"] = str(folder / "joey" / "ours.ckpt")
    config["testing"]["max_output_length"] = 2 * hp.maxlen
    (folder / "joey.yaml").write_text(json.dumps(config))
    parameters = folder / "parameters.npz"
    np.savez(parameters, **joey_parameters(model))
    program = [harness.BASELINE_PYTHON, "-c", TO_CHECKPOINT]
    subprocess.run([*program, parameters, folder / "joey" / "ours.ckpt"], check=True)


def compare_joey(logdir, rounds):
    """Time decoding by this project and by JoeyNMT with the same parameters."""
    folder = harness.WORK / "time_decode"
    flags = corpus_flags("multi30k", "de-en")
    prepare_joey(logdir, flags, folder)
    for beam in (1, 4, 5):
        our_flags = dict(logdir=logdir, beam=beam, alpha=ALPHA)
        our_flags |= {name: flags[name] for name in ("source_test", "target_test")}
        worker = harness.Worker([*OURS, "trained", json.dumps(our_flags), folder / "ours.test"])
        seconds = dict(ours=[], JoeyNMT=[])
        for _ in range(rounds):
            seconds["ours"].append(worker.seconds())
            seconds["JoeyNMT"].append(joey_seconds(folder, beam))
        worker.stop()
        ours, theirs = (
            (folder / f"{name}.test").read_text().splitlines() for name in ("ours", "joey")
        )
        words = sum(len(line.split()) for line in ours)
        print_speed(f"tiny, beam {beam}", seconds, "ours", "JoeyNMT", len(ours), words)
        same = sum(map(str.__eq__, ours, theirs)) / len(ours)
        print(f"    the same text in {same:.1%} of the sentences", flush=True)


def main():
    """Time against the baseline that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("baseline", choices=("uncached", "joeynmt"))
    parser.add_argument(
        "--logdir", help="a model of the recipe tiny, with the flags of harness.SMALL_PAPER"
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    harness.WORK.mkdir(exist_ok=True)
    print(harness.describe_machine(), flush=True)
    if args.baseline == "uncached":
        compare_uncached(args.rounds)
    elif args.logdir:
        compare_joey(args.logdir, args.rounds)
    else:
        parser.error("joeynmt needs --logdir.")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:  # in the process that is timed
        run_worker(*sys.argv[2:])
    else:
        main()
