"""What `time_train.py` times of ours: the training step, or the least that it could take.

step_tensorflow.py step|limit BATCHES FLAGS
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from beside import ROOT, cores, serve

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import train
from hparams import with_recipe
from text import PAD, load_vocabs


def load(batches, flags):
    """The batches, pairs of (N, T) int32, the hyperparameters and the sizes of the vocabularies."""
    arrays = np.load(batches)
    count = len(arrays.files) // 2
    hp = with_recipe(json.loads(flags))
    vocabs = load_vocabs(hp)
    return [(arrays[f"x{i}"], arrays[f"y{i}"]) for i in range(count)], hp, vocabs


def make_steps(batches, hp, vocabs):
    """All training steps of the batches, as a function."""
    pairs = [tuple(map(tf.constant, pair)) for pair in batches]
    step = train.Training(hp, vocabs).step

    def work():
        for x, y in pairs:
            mean_loss, *_ = step(x, y)
        float(mean_loss)

    return work


# The limit ---------------------------------------------------------------------


def products(x, y, hp, V):
    """The matrix products of a forward pass: {((..., m, k), (..., k, n)): how many}."""
    (N, S), T, C, h = x.shape, y.shape[1], hp.hidden_units, hp.num_heads
    F, B, d = hp.ffn_units or 4 * C, hp.num_blocks, C // h
    joined = int(hp.output_projection)
    source, target, words = N * S, N * T, int((y != PAD).sum())
    counts = {}

    def add(count, m, k, n, *batch):
        key = (*batch, m, k), (*batch, k, n)
        counts[key] = counts.get(key, 0) + count

    add(B * (3 + joined + 2), source, C, C)  # Q, K, V, W_O; K and V of the decoder's attention
    add(B * (3 + joined + 1 + joined), target, C, C)
    for rows in (source, target):
        add(B, rows, C, F)
        add(B, rows, F, C)
    for asking, answering in ((S, S), (T, T), (T, S)):
        add(B, asking, d, answering, N, h)
        add(B, asking, answering, d, N, h)
    add(1, words, C, V)
    return counts


def make_limit(batches, hp, vocabs):
    """The products of all steps, each alone, and the bytes of the optimizer, as a function."""
    dtype = tf.as_dtype(hp.precision)
    V, C = len(vocabs[1]), hp.hidden_units
    rng = np.random.default_rng(0)
    work_list = []
    for x, y in batches:
        for (left, right), count in products(x, y, hp, V).items():
            shapes = left, right, (*left[:-1], right[-1])
            tensors = [tf.cast(rng.random(shape, np.float32), dtype) for shape in shapes]
            work_list.append((count, *tensors))
    model = train.Training(hp, vocabs).model
    weights = model.count_params()
    print(f"limit: C {C}, V {V}, {weights:,} weights", file=sys.stderr)
    # Adam reads a weight, its gradient and its two means, and writes all but the gradient.
    source = np.ones(weights * 7 // 2, np.float32)
    parts = np.array_split(np.arange(len(source)), cores())
    ends = [slice(part[0], part[-1] + 1) for part in parts]
    target = np.zeros_like(source)
    threads = ThreadPoolExecutor(cores())

    def copy(part):
        target[part] = source[part]

    def work():
        for count, a, b, c in work_list:
            for _ in range(count):
                out = tf.matmul(a, b)
                tf.matmul(c, b, transpose_b=True)
                tf.matmul(a, c, transpose_a=True)
        out.numpy()
        for _ in batches:
            list(threads.map(copy, ends))

    return work


def main(what, batches, flags):
    """Serve training steps, or the least that they could take."""
    work = dict(step=make_steps, limit=make_limit)[what](*load(batches, flags))
    work()  # traces, and allocates
    serve(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
