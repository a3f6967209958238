"""What `time_decode.py` times of ours.

decode_tensorflow.py cached|documented FLAGS OUTPUT   weights as drawn, all steps taken
decode_tensorflow.py trained FLAGS OUTPUT             a trained model, its test set
decode_tensorflow.py float32|int8 FLAGS OUTPUT        the same by CTranslate2
"""

import functools
import json
import os
import sys

from beside import ROOT, serve

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import ctranslate
from data_load import load_test_data
from decoding import load, make_search, sentences_at_once, to_text, translate
from hparams import with_recipe
from model import make_model
from search import greedy
from text import START

TOKENS, VOCAB = 4096, 8000


def fresh(flags):
    """A model with the weights it begins with, and sources (N, maxlen) without padding."""
    hp = with_recipe(flags)
    keras.utils.set_random_seed(0)
    model = make_model(hp, VOCAB, VOCAB)
    rng = np.random.default_rng(0)
    x = rng.integers(4, VOCAB, (TOKENS // hp.maxlen, hp.maxlen), np.int32)
    return hp, model, x


def batches_of(x, size):
    """The rows of x in tensors of at most `size`."""
    return [tf.constant(x[row : row + size]) for row in range(0, len(x), size)]


def documented(hp, model, x):
    """Each prefix runs through encoder and decoder again, as the documents do it."""
    batches = batches_of(x, hp.batch_size)

    @tf.function
    def predict(x, preds):
        return tf.argmax(model(x, preds), axis=-1, output_type=tf.int32)  # (N, T)

    def work():
        found = []
        for x in batches:
            preds = np.zeros(x.shape, np.int32)
            for j in range(hp.maxlen):
                preds[:, j] = predict(x, tf.constant(preds)).numpy()[:, j]
            found.append(preds)
        return np.concatenate(found)

    return work


def cached(hp, model, x):
    """Word by word, as eval.py does it, but that no sentence ends before its last step."""
    batches = batches_of(x, sentences_at_once(hp.maxlen, beam=1))

    @tf.function
    def search(x):
        memories = model.remember(x)
        start, limits = tf.fill([len(x)], START), tf.fill([len(x)], hp.maxlen)
        step = lambda ids, pasts: model.step(ids, pasts, memories)  # noqa: E731
        return greedy(step, model.nothing(len(x)), start, limits)

    return lambda: np.concatenate([search(x).numpy() for x in batches])


def trained(what, flags, output):
    """The test set of a trained model; writes what it says."""
    _, hp, model, vocabs = load(flags)
    test = load_test_data(hp, vocabs)
    if what == "trained":
        search = functools.partial(translate, make_search(model, hp, hp.beam), hp=hp)
    else:
        search = ctranslate.Search(hp, model, vocabs, 1, quantization=what)

    def work():
        lines = to_text(search(test.data.X), vocabs[1])
        with open(output, "w", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    return work


def main(what, flags, output):
    """Serve translations of `what`, and write what was found to `output`."""
    flags = json.loads(flags)
    if what in ("trained", "float32", "int8"):
        work = trained(what, flags, output)
        work()  # traces
    else:
        work = dict(cached=cached, documented=documented)[what](*fresh(flags))
        np.save(output, work())
    serve(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
