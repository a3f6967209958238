"""A worker for `time_train.py`: training steps of this project, or a lower bound on their time.

step_tensorflow.py step|lower_bound BATCHES FLAGS
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

from harness import ROOT, num_cores, worker_loop

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from hparams import make_hparams
from ids import PAD
from trainer import Trainer
from vocab import load_vocabs


def load_batches(path, flags):
    """Load the batches in a file, and what `make_steps` needs.

    Returns:
      (list, Hyperparams, tuple): pairs of (N, T) int32; the hyperparameters; the vocabularies.
    """
    arrays = np.load(path)
    count = len(arrays.files) // 2
    hp = make_hparams(json.loads(flags))
    return [(arrays[f"x{i}"], arrays[f"y{i}"]) for i in range(count)], hp, load_vocabs(hp)


def make_steps(batches, hp, vocabs):
    """Make a function that runs a training step on each batch."""
    pairs = [tuple(map(tf.constant, pair)) for pair in batches]
    step = Trainer(hp, vocabs).step

    def timed_fn():
        for x, y in pairs:
            metrics = step(x, y)
        float(metrics.mean_loss)  # waits for the steps

    return timed_fn


# The lower bound ---------------------------------------------------------------


def count_products(x, y, hp, V) -> dict:
    """Count the matrix products of a forward pass: {((..., m, k), (..., k, n)): count}."""
    (N, S), T, C, h = x.shape, y.shape[1], hp.hidden_units, hp.num_heads
    F, B, d = hp.ffn_units or 4 * C, hp.num_blocks, C // h
    output_projections = int(hp.output_projection)
    source_rows, target_rows, num_targets = N * S, N * T, int((y != PAD).sum())
    counts = {}

    def add(count, m, k, n, *batch):
        key = (*batch, m, k), (*batch, k, n)
        counts[key] = counts.get(key, 0) + count

    # Q, K, V and W_O of the encoder; K and V of the decoder's attention to the encoder
    add(B * (3 + output_projections + 2), source_rows, C, C)
    # Q, K, V and W_O of the decoder's self-attention; Q and W_O of its other attention
    add(B * (3 + output_projections + 1 + output_projections), target_rows, C, C)
    for rows in (source_rows, target_rows):
        add(B, rows, C, F)
        add(B, rows, F, C)
    for queries, keys in ((S, S), (T, T), (T, S)):
        add(B, queries, d, keys, N, h)
        add(B, queries, keys, d, N, h)
    add(1, num_targets, C, V)
    return counts


def make_lower_bound(batches, hp, vocabs):
    """Make a function that computes only what no implementation of the steps can avoid.

    These are the matrix products, each alone, and a copy of as many bytes as Adam needs.
    """
    dtype = tf.as_dtype(hp.precision)
    V, C = len(vocabs[1]), hp.hidden_units
    rng = np.random.default_rng(0)
    products = []
    for x, y in batches:
        for (left, right), count in count_products(x, y, hp, V).items():
            shapes = left, right, (*left[:-1], right[-1])
            tensors = [tf.cast(rng.random(shape, np.float32), dtype) for shape in shapes]
            products.append((count, *tensors))
    num_params = Trainer(hp, vocabs).model.count_params()
    print(f"lower bound: C {C}, V {V}, {num_params:,} parameters", file=sys.stderr)
    # Adam reads a parameter, its gradient and its two moments, and writes all but the gradient.
    source = np.ones(num_params * 7 // 2, np.float32)
    shards = np.array_split(np.arange(len(source)), num_cores())
    slices = [slice(shard[0], shard[-1] + 1) for shard in shards]
    target = np.zeros_like(source)
    threads = ThreadPoolExecutor(num_cores())

    def copy(part):
        target[part] = source[part]

    def timed_fn():
        for count, a, b, c in products:
            for _ in range(count):
                out = tf.matmul(a, b)
                tf.matmul(c, b, transpose_b=True)  # the gradients of a and b
                tf.matmul(a, c, transpose_a=True)
        out.numpy()
        for _ in batches:
            list(threads.map(copy, slices))

    return timed_fn


def main(what, batches, flags):
    """Run a worker for training steps, or for their lower bound."""
    make_timed_fn = dict(step=make_steps, lower_bound=make_lower_bound)[what]
    timed_fn = make_timed_fn(*load_batches(batches, flags))
    timed_fn()  # traces the graph, and allocates memory
    worker_loop(timed_fn)


if __name__ == "__main__":
    main(*sys.argv[1:])
