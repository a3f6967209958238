"""From a trained model and sentences to their translations."""

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import checkpoint
from hparams import Hyperparams, load_hparams, refuse_contradiction, with_recipe
from model import make_model
from search import PENALTIES, beam_search, greedy
from text import END, PAD, START, find_min_cnt, load_vocabs

# The model ---------------------------------------------------------------------


def load(flags):
    """The model in `logdir`, its hyperparameters, and its vocabularies.

    Returns:
      (list of Path, Hyperparams, Transformer, tuple): the checkpoints whose mean it is,
      mostly one, first; what `load_vocabs` gives last.
    """
    logdir = flags.get("logdir", Hyperparams.logdir)
    path = checkpoint.require_newest(logdir)
    if checkpoint.is_original(path):
        return [path], *load_original(path, flags)
    hp, trained_with = load_hparams(flags, trained=True)
    vocabs = load_vocabs(hp, trained_with)
    model = make_model(hp, *map(len, vocabs))
    if hp.best:
        paths = [checkpoint.require_best(logdir)]
    else:
        paths = checkpoint.last(path, hp.average)
    checkpoint.restore_mean(model, paths)
    return paths, hp, model, vocabs


def load_original(path, flags):
    """The same for a checkpoint of the original, whose arrays tell its shape."""
    arrays = checkpoint.read_original(path)
    shape, sizes = checkpoint.original_shape(arrays)
    for name, value in shape.items():
        refuse_contradiction(path, name, value, flags)
    hp = with_recipe(flags | shape)
    paths = [hp.vocab_path(lang) for lang in (hp.source_lang, hp.target_lang)]
    min_cnt = find_min_cnt(paths, sizes, flags.get("min_cnt"))
    hp = with_recipe(flags | shape | {"min_cnt": min_cnt})
    if "num_heads" not in flags:
        print(f"{path}: taken to have num_heads {hp.num_heads}, which its arrays do not tell")
    model = make_model(hp, *sizes)
    checkpoint.assign_original(model, arrays, path)
    return hp, model, load_vocabs(hp)


# Translating -------------------------------------------------------------------


def make_search(model, hp, beam, nbest=1):
    """The function from source ids (N, T) to ids (N, nbest, T) and scores (N, nbest).

    A sentence has at most `maxlen` words, or where there is no such limit twice as
    many as its source and ten.
    """
    penalty = PENALTIES[hp.length_penalty](hp.alpha)
    # The 2017 code may choose <PAD>, which its masks then take for nothing.
    never = [PAD] if hp.masks == "ids" or beam > 1 else []

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)])
    def search(x):
        N = tf.shape(x)[0]
        lengths = tf.reduce_sum(tf.cast(x != PAD, tf.int32), axis=1)  # (N,)
        limits = 2 * lengths + 10 if hp.unlimited else tf.fill([N], hp.maxlen)
        memories = model.remember(x)
        task = dict(start=tf.fill([N], START), limits=limits, end=END, never=never)

        def step(ids, state):
            return model.step(ids, state, memories)

        if beam == 1:
            preds = greedy(step, model.nothing(N), **task)  # (N, T)
            return preds[:, None], tf.zeros([N, 1])
        state = model.nothing(N * beam)
        return beam_search(step, state, **task, beam=beam, penalty=penalty, nbest=nbest)

    return search


def translate(search, X, hp):
    """Translate the sources X, a Ragged: [[(ids, score), ...], ...], best first.

    Long sentences first, so that a batch holds sentences of like lengths.
    """
    order = np.argsort(-X.lengths, kind="stable")
    width = None if hp.masks == "ids" else hp.maxlen
    translations = [None] * len(X)
    starts = range(0, len(X), hp.batch_size)
    for first in tqdm(starts, "translating", leave=False, mininterval=1, unit="b"):
        rows = order[first : first + hp.batch_size]
        preds, scores = (part.numpy() for part in search(X.pad(rows, width)))
        for row, *found in zip(rows, preds, scores, strict=True):
            translations[row] = list(zip(*found, strict=True))
    return translations


def to_text(translations, vocab):
    """The best of each of `translate`'s, as text."""
    return [vocab.decode(found[0][0]) for found in translations]
