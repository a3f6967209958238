"""A worker for `time_decode.py`: decoding by this project.

decode_tensorflow.py cached|uncached FLAGS OUTPUT     untrained parameters, all steps
decode_tensorflow.py trained FLAGS OUTPUT             a trained model, its test set
"""

import json
import os
import sys

from harness import ROOT, worker_loop

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from runtime.parallel import one_thread_per_operation

if sys.argv[1:2] == ["trained"]:  # as eval.py, before TensorFlow is loaded
    one_thread_per_operation()

import keras
import numpy as np
import tensorflow as tf

from data_load import load_test_data
from hparams import make_hparams
from ids import BOS
from inference import SearchDecoder, decoding_batch_size, load_model
from model import make_model
from search import greedy
from trained_models import find_trained

NUM_TOKENS, VOCAB_SIZE = 4096, 8000


def untrained_model(flags):
    """Make a model with its initial parameters, and sources without padding.

    Returns:
      (Hyperparams, Transformer, array (N, maxlen) int32)
    """
    hp = make_hparams(flags)
    keras.utils.set_random_seed(0)
    model = make_model(hp, VOCAB_SIZE, VOCAB_SIZE)
    rng = np.random.default_rng(0)
    x = rng.integers(4, VOCAB_SIZE, (NUM_TOKENS // hp.maxlen, hp.maxlen), np.int32)
    return hp, model, x


def split_batches(x, size) -> list:
    """Split the rows of x into tensors of at most `size` rows."""
    return [tf.constant(x[row : row + size]) for row in range(0, len(x), size)]


def uncached(hp, model, x):
    """Make a function that runs the complete model on each prefix, as the 2017 code does."""
    batches = split_batches(x, hp.batch_size)

    @tf.function
    def predict(x, preds):
        return tf.argmax(model(x, preds), axis=-1, output_type=tf.int32)  # (N, T)

    def timed_fn():
        results = []
        for x in batches:
            preds = np.zeros(x.shape, np.int32)
            for j in range(hp.maxlen):
                preds[:, j] = predict(x, tf.constant(preds)).numpy()[:, j]
            results.append(preds)
        return np.concatenate(results)

    return timed_fn


def cached(hp, model, x):
    """Make a function that decodes with a KV cache, as eval.py does.

    In contrast to eval.py, no sentence ends before its last step.
    """
    batches = split_batches(x, decoding_batch_size(hp.maxlen, beam=1))

    @tf.function
    def search(x):
        N, memory = len(x), model.encode_memory(x)
        start, max_lengths = tf.fill([N], BOS), tf.fill([N], hp.maxlen)
        cache = model.initial_cache(memory)
        return greedy(model.decode_step, cache, memory, start, max_lengths)

    return lambda: np.concatenate([search(x).numpy() for x in batches])


def trained(flags, output):
    """Make a function that translates the test set of a trained model into a file."""
    loaded = load_model(find_trained(flags))
    test = load_test_data(loaded.hp, loaded.vocabs)
    decode = SearchDecoder(loaded)

    def timed_fn():
        found = decode(test.data.X)
        with open(output, "w", encoding="utf-8") as file:
            file.writelines(f"{best.text}\n" for best, *_ in found)

    return timed_fn


def main(decoder, flags, output):
    """Run a worker, and write its translations to the file `output`."""
    flags = json.loads(flags)
    if decoder == "trained":
        timed_fn = trained(flags, output)
        timed_fn()  # traces the graph
    else:
        timed_fn = dict(cached=cached, uncached=uncached)[decoder](*untrained_model(flags))
        np.save(output, timed_fn())
    worker_loop(timed_fn)


if __name__ == "__main__":
    main(*sys.argv[1:])
