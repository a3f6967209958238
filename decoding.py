"""From a trained model and sentences to their translations."""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import checkpoint
from data_load import Ragged, encode_lines
from hparams import (
    Hyperparams,
    InputError,
    load_hparams,
    refuse_contradiction,
    with_recipe,
    write_whole,
)
from model import SWITCHES, make_model
from search import PENALTIES, beam_search, greedy, without
from text import END, PAD, START, find_min_cnt, load_vocabs

# What a batch has at most, which bounds memory; the more, the faster.
DECODED_TOKENS = 4096  # of the sources, padding included
DECODED_HYPOTHESES = 1024

# The model ---------------------------------------------------------------------


def load(flags):
    """The model in `logdir`, its hyperparameters, and its vocabularies.

    Returns:
      (list of Path, Hyperparams, Transformer, tuple): the checkpoints whose mean it is,
      mostly one, first; what `load_vocabs` gives last.

    Raises:
      InputError: there is no model, it is damaged, or a flag contradicts it.
    """
    logdir = flags.get("logdir", Hyperparams.logdir)
    path = checkpoint.require_newest(logdir)
    if checkpoint.is_original(path):
        return [path], *load_original(path, flags)
    # Training in bfloat16 keeps the weights in float32, and they decode best in that.
    hp, trained_with = load_hparams({"precision": "float32"} | flags, trained=True)
    vocabs = load_vocabs(hp, trained_with)
    paths = [checkpoint.require_best(logdir)] if hp.best else checkpoint.last(path, hp.average)
    try:
        checkpoint.check_sizes(hp, [*map(len, vocabs)], path)
        model = make_model(hp, *map(len, vocabs))
        checkpoint.restore_mean(model, paths)
    except InputError:
        if all(map(checkpoint.index_exists, [path, *paths])):
            raise
        return load(flags)  # a training has deleted one since
    return paths, hp, model, vocabs


def load_original(path, flags):
    """The same for a checkpoint of the original, whose arrays tell its shape."""
    arrays = checkpoint.read_original(path)
    shape, sizes = checkpoint.original_shape(arrays)
    for name, value in original_switches(shape).items():
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


def original_switches(shape):
    """What the original's checkpoint has for each switch, where its arrays or its code say it."""
    default = dataclasses.asdict(Hyperparams())
    unknown = {"num_heads", "maxlen", "dropout_rate"}
    fixed = ["recipe", "tokens", "best", "average", *SWITCHES]
    return {name: default[name] for name in fixed if name not in unknown} | shape


def describe(hp, paths):
    """How translations are made, in words: what was searched, and with which weights."""
    search = "greedy search"
    if hp.beam > 1:
        search = f"beam {hp.beam}, length penalty {hp.length_penalty} {hp.alpha}"
    return f"{search}, {weights_of(paths)}"


def weights_of(paths):
    """Which weights those are, in words."""
    mean = f"mean of {len(paths)} checkpoints to " if len(paths) > 1 else ""
    return f"{mean}{paths[-1].name}"


# Translating -------------------------------------------------------------------


def make_search(model, hp, beam, nbest=1, scored=False):
    """The function from source ids (N, T) to ids (N, nbest, T) and scores (N, nbest).

    A sentence has at most `maxlen` words, or where there is no such limit twice as
    many as its source and ten. What greedy search finds has the score 0, unless `scored`.
    """
    penalty = PENALTIES[hp.length_penalty](hp.alpha)
    # The 2017 code may choose <PAD>, which its masks then take for nothing.
    never = [PAD] if hp.masks == "ids" or beam > 1 else []

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)], autograph=False)
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
            scores = score(model, x, preds, limits, penalty, never) if scored else tf.zeros([N])
            return preds[:, None], scores[:, None]  # (N, 1, T), (N, 1)
        state = model.nothing(N * beam)
        # Its way to end, too; without a penalty the best one is found at the same time.
        eager = hp.length_penalty == "ctranslate2" and hp.alpha > 0
        return beam_search(
            step, state, **task, beam=beam, penalty=penalty, nbest=nbest, eager=eager
        )

    return search


def score(model, x, preds, limits, penalty, never=()):
    """Log-probabilities of translations by the penalty of their lengths, as beam search has them.

    Args:
      x, preds: ids of sources and translations, (N, T).
      limits: (N,) int32, how long each translation could be.
      penalty: function of lengths.
      never: ids that were not to be chosen.

    Returns:
      (N,) float32
    """
    going = tf.cast(preds != END, tf.int32)  # (N, T)
    words = tf.math.cumprod(going, axis=1, exclusive=True) > 0  # (N, T), up to and with </S>
    words &= tf.range(tf.shape(preds)[1]) < limits[:, None]
    logp = tf.nn.log_softmax(without(never, model(x, preds)))  # (N, T, V)
    logp = tf.where(words, tf.gather(logp, preds, batch_dims=2), 0.0)  # (N, T)
    return tf.reduce_sum(logp, axis=1) / penalty(tf.math.count_nonzero(words, 1, dtype=tf.float32))


def translate(search, X, hp, quiet=False):
    """Translate sentences, those of like lengths together.

    Args:
      search: what `make_search` returned.
      X: Ragged, source ids.
      quiet: without a progress bar.

    Returns:
      list: for each sentence, in the order of X, its translations, best first, as
      pairs of ids (T,) and score.
    """
    translations = [None] * len(X)
    with tqdm(None, "translating", len(X), leave=False, mininterval=1, disable=quiet) as bar:
        for rows in rows_at_once(X.lengths, hp.beam):
            preds, scores = (part.numpy() for part in search(X.pad(rows, hp.width)))
            if hp.masks == "ids":  # else <PAD> may have been chosen, as in the 2017 code
                preds = [[np.trim_zeros(ids, "b") for ids in found] for found in preds]
            for row, *found in zip(rows, preds, scores, strict=True):
                translations[row] = list(zip(*found, strict=True))
            bar.update(len(rows))
    return translations


def rows_at_once(lengths, beam=1):
    """Yield the numbers of the sentences of each batch: like lengths together, long ones first."""
    order = np.argsort(lengths, kind="stable")[::-1]
    while len(order):
        rows, order = np.split(order, [sentences_at_once(lengths[order[0]], beam)])
        yield rows


def sentences_at_once(longest, beam):
    """How many sentences make a batch, the longest of which has so many tokens."""
    return max(1, min(DECODED_TOKENS // longest, DECODED_HYPOTHESES // beam))


def to_text(translations, vocab):
    """The best of each of `translate`'s, as text."""
    return [vocab.decode(found[0][0]) for found in translations]


class Translator:
    """Lines of text to their translations, by a trained model.

    Args:
      hp, model, vocabs: what `load` gave.
      nbest: how many translations of a line, `hp.beam` at most.
      search: what stands in place of `translate` with the model: a function of source ids, a
        Ragged.
    """

    def __init__(self, hp, model, vocabs, nbest=1, search=None):
        self.hp, self.vocabs = hp, vocabs
        self.cut = 0  # lines so far whose end was left out, longer than `hp.longest`
        if search is None:
            step = make_search(model, hp, hp.beam, nbest)
            search = functools.partial(translate, step, hp=hp, quiet=True)
        self.search = search

    def __call__(self, lines, work=None):
        """The translations of each line, best first, as pairs of text and score.

        Args:
          lines: list of str.
          work: what to do in place of `translate`; where it gives None, so does this.
        """
        X, rows, cut = encode_lines(lines, self.vocabs[0], self.hp)
        self.cut += len(cut)
        translations = (work or self.translate)(X)
        if translations is None:
            return None
        found = [[("", 0.0)]] * len(lines)  # of nothing, nothing
        for row, best in zip(rows, translations, strict=True):
            found[row] = best
        return found

    def translate(self, X):
        """The same of source ids, a Ragged."""
        decode = self.vocabs[1].decode
        return [[(decode(ids), float(score)) for ids, score in best] for best in self.find(X)]

    def find(self, X):
        """The same, but for ids in place of text."""
        found = self.search(X) if len(X) else []
        # A beam may end before it has found as many.
        return [[pair for pair in best if pair[1] > -np.inf] for best in found]


# Sharing -------------------------------------------------------------------------


def share():
    """Which of how many processes this is, by TensorFlow's variable TF_CONFIG.

    Returns:
      (int, int): (0, 1) where it is alone.

    Raises:
      InputError: TF_CONFIG does not say it.
    """
    try:
        config = json.loads(os.environ.get("TF_CONFIG", "{}"))
        cluster, task = config.get("cluster", {}), config.get("task", {})
        # The chief, where there is one, is the first, as it is in training.
        jobs = [(job, i) for job in ("chief", "worker") for i in range(len(cluster.get(job, [])))]
        here = task.get("type", "worker"), int(task.get("index", 0))
        for job, _ in jobs:
            for address in cluster[job]:
                host, colon, port = str(address).rpartition(":")
                if not (host and colon and 0 < int(port) < 2**16):
                    raise ValueError(address)
        if cluster.keys() - {"chief", "worker"} or ("cluster" in config and not jobs):
            raise ValueError("jobs of other kinds")
        return (jobs.index(here), len(jobs)) if jobs else (0, 1)
    except (ValueError, TypeError, AttributeError):
        raise InputError(
            f"TF_CONFIG is {os.environ['TF_CONFIG']}: it must name all workers as host:port, with"
            " no other jobs than worker and chief, and say which of them this is, as in"
            " docs/workers.md. To train on one machine alone, unset it"
        ) from None


def translate_shared(work, X, results, how, paths):
    """Translate sentences together with the other processes, by files beside `results`.

    Args:
      work: the function from a Ragged to a list of translations, str.
      X: Ragged, source ids.
      results: Path, the file that the first process will write.
      how: in words, what the translations depend on besides.
      paths: the checkpoints of the model.

    Returns:
      list of str in the order of X; None from all processes but the first.

    Raises:
      OSError: another process does not give its part.
    """
    index, count = share()
    if count == 1:
        return work(X)
    began = time.monotonic()
    rows = range(index, len(X), count)
    got = work(Ragged.of([X[row] for row in rows])) if rows else []
    key = hashlib.sha256(X.digest() + how.encode())
    for path in paths:
        key.update(Path(f"{path}.index").read_bytes())  # which holds checksums of the weights
    parts = [results.with_name(f"{results.name}.part-{i}-of-{count}") for i in range(count)]
    if index:
        write_whole(parts[index], json.dumps(dict(key=key.hexdigest(), got=got)))
        return None
    limit = time.monotonic() + 60 + 10 * (time.monotonic() - began)
    joined = [None] * len(X)
    joined[::count] = got
    for i in range(1, count):
        joined[i::count] = wait_for_part(parts[i], key.hexdigest(), limit)
    for part in parts[1:]:
        part.unlink(missing_ok=True)
    return joined


def wait_for_part(path, key, limit):
    """What another process has translated, once its file is there."""
    with tqdm(desc=f"waiting for {path.name}", leave=False, delay=1) as bar:
        while time.monotonic() < limit:
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                part = json.loads(path.read_text("utf-8"))
                if part["key"] == key:  # else it is of something else
                    return part["got"]
            time.sleep(0.2)
            bar.update()
    raise OSError(f"{path}: another process has not written its part: start all of them again")
