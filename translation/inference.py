"""Load a trained model, and search for translations of ids with it."""

import dataclasses
import itertools
import math
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from checkpoints.checkpoint import assign, load_model_weights
from checkpoints.names_2017 import variables_by_2017_name
from checkpoints.original import load_original
from hparams import Hyperparams, hparams_path, load_hparams
from model.transformer import make_model
from support.errors import InputError
from support.flags import split_paths
from support.parallel import map_in_threads, num_cores
from text.ids import BOS, EOS, PAD, UNK
from text.vocab import load_vocabs, truncate_at_eos
from translation.search import (
    Ensemble,
    StepModel,
    beam_search,
    greedy,
    no_repeat_step,
    paper_penalty,
    prefix_step,
    sampling_step,
    suppress,
    suppressing_step,
)

# The limits of a batch bound the memory. Larger batches are faster.
MAX_BATCH_SOURCE_TOKENS = 4096  # padding included
MAX_BATCH_HYPOTHESES = 1024
MAX_THREADS = 8  # threads that translate batches at the same time
MAX_SHARES = 4  # the limits of a batch are divided by the number of threads, up to this one

# Loading a model ----------------------------------------------------


def start_quickly():
    """Make the first translation half a second faster, and all others 2% to 8% slower."""
    tf.config.optimizer.set_experimental_options(dict(disable_meta_optimizer=True))


class LoadedModel(NamedTuple):
    """A model, and what is needed to translate text with it."""

    paths: list[Path]  # the checkpoints whose mean it is, oldest first, mostly one
    hp: Hyperparams
    model: StepModel
    vocabs: tuple  # of source and target, as `load_vocabs` returns them

    @property
    def folders(self) -> list[Path]:
        """The folders of the checkpoints; several if it is an `Ensemble`."""
        return [*dict.fromkeys(path.parent for path in self.paths)]

    def with_hp(self, **changes):
        """Change hyperparameters, for example of the search."""
        return self._replace(hp=dataclasses.replace(self.hp, **changes))


def load_model(given) -> LoadedModel:
    """Load the model that the flags name; several folders in `logdir` are an `Ensemble`."""
    folders = dict.fromkeys(split_paths(given.get("logdir", Hyperparams.logdir)))
    loaded, *others = (load_single(given | dict(logdir=folder)) for folder in folders)
    for other in others:
        if how_it_reads(other) != how_it_reads(loaded):
            raise InputError(
                f"{other.hp.logdir}: has other languages, another vocabulary, or reads sentences in"
                f" another way than {loaded.hp.logdir}. Choose models of similar recipes that were"
                " trained with the same --preprocessed"
            )
    if others:
        paths = sum((own.paths for own in others), loaded.paths)
        ensemble = Ensemble([loaded.model, *(own.model for own in others)])
        loaded = loaded._replace(paths=paths, model=ensemble).with_hp(logdir=given["logdir"])
    print(f"Loaded {describe_checkpoints(loaded.paths)}", file=sys.stderr)
    return loaded


def load_single(given) -> LoadedModel:
    """Load the model in one folder. Without hparams.json, it is one of the 2017 code."""
    logdir = given["logdir"]
    if not hparams_path(logdir).exists():
        return LoadedModel(*load_original(given))
    # After training in bfloat16, too: the parameters are float32 and decode best in it.
    hp = load_hparams(dict(precision="float32") | given)
    vocabs = load_vocabs(logdir, hp)
    paths, weights = load_model_weights(logdir, hp.best, hp.average_checkpoints)
    model = make_model(hp, *map(len, vocabs))
    assign(variables_by_2017_name(model), weights, paths[-1])
    return LoadedModel(paths, hp, model, vocabs)


def how_it_reads(loaded):
    """Return what the models of an ensemble must share."""
    hp, contents = loaded.hp, [vocab.content for vocab in loaded.vocabs]
    names = "source_lang target_lang pad_to unbounded_length max_input_tokens"
    return [getattr(hp, name) for name in names.split()] + contents


def describe_decoding(loaded) -> str:
    """Name the search, the checkpoints, and the compute type."""
    hp = loaded.hp
    search = f"beam {hp.beam}, length penalty {hp.alpha}" if hp.beam > 1 else "greedy search"
    if hp.temperature:
        search = f"samples, temperature {hp.temperature}, seed {hp.seed}"
    search += f", no {hp.no_repeat_ngram} tokens twice" if hp.no_repeat_ngram else ""
    precision = "" if hp.precision == Hyperparams.precision else f", {hp.precision}"
    return f"{search}, {describe_checkpoints(loaded.paths)}{precision}"


def describe_checkpoints(paths) -> str:
    """Name the checkpoints of the parameters, and in an ensemble the models."""
    names, texts = [], []
    for folder, own in itertools.groupby(paths, lambda path: path.parent):
        *others, newest = (path.stem for path in own)
        names.append(folder.name)
        texts.append(f"mean of {len(others) + 1} checkpoints to {newest}" if others else newest)
    each = "; ".join(f"{name}: {text}" for name, text in zip(names, texts, strict=True))
    return f"{len(texts)} models ({each})" if len(texts) > 1 else texts[0]


# Searching ----------------------------------------------------------


def make_search(model, hp, beam, nbest=1, scored=False, prefixed=False):
    """Make the function that translates a batch; `hp.max_output_tokens` limits a translation.

    From source ids (N, T) int32 it computes ids (N, nbest, T) int32, with zeros after `</S>`, and
    scores (N, nbest) float32.

    Args:
      nbest: translations per sentence, `beam` at most.
      scored: whether greedy search also computes scores; else they are 0.
      prefixed: whether it also takes the first ids of the translations, (N, P) int32, with zeros
        after them.
    """
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[ids, ids] if prefixed else [ids], autograph=False)
    def search(x, prefixes=None):
        args = search_arguments(model, hp, x, beam, prefixes)
        penalty = paper_penalty(hp.alpha)
        if beam > 1:
            return beam_search(**args, beam=beam, penalty=penalty, nbest=nbest)
        if hp.temperature:
            args["step"] = sampling_step(args["step"], hp.temperature)
            # Of the sentence, without its padding: the batch makes no difference.
            seeds = hp.seed + tf.reduce_sum(x * tf.range(1, tf.shape(x)[1] + 1), axis=1)  # (N,)
            args["state"] = args["state"], seeds, tf.zeros_like(seeds)
        preds = greedy(**args)  # (N, T)
        scores = tf.zeros(tf.shape(x)[:1])  # (N,)
        if scored:
            limits, suppressed = args["max_lengths"], suppressed_ids(hp, beam)
            scores = sequence_scores(model, x, preds, limits, penalty, suppressed)
        return preds[:, None], scores[:, None]  # (N, 1, T), (N, 1)

    return search


def search_arguments(model, hp, x, beam, prefixes=None) -> dict:
    """Return the arguments that `greedy` and `beam_search` share."""
    N = tf.shape(x)[0]
    source_lengths = tf.math.count_nonzero(x != PAD, axis=1, dtype=tf.int32)  # (N,)
    memory = model.encode_memory(x)
    step, state = model.decode_step, model.initial_cache(memory, beam)
    step = suppressing_step(step, suppressed_ids(hp, beam))
    if hp.no_repeat_ngram:
        step = no_repeat_step(step, hp.no_repeat_ngram)
        state = state, tf.zeros([N * beam, 0], tf.int32)
    if prefixes is not None:  # last: they may have tokens that are suppressed
        step, state = prefix_step(step), (state, tf.repeat(prefixes, beam, axis=0))
    return dict(
        step=step,
        state=state,
        memory=memory,
        first_ids=tf.fill([N], BOS),
        max_lengths=hp.max_output_tokens(source_lengths),  # (N,)
        eos=EOS,
    )


def suppressed_ids(hp, beam) -> list[int]:
    """Return the ids that a search never chooses: <PAD>, and in a model of subwords <UNK>.

    In a model that pads as the 2017 code, greedy search may choose <PAD>, as there.
    """
    suppress_ids = [PAD] if hp.pad_to is None or beam > 1 else []
    return suppress_ids + ([UNK] if hp.tokenizer == "bpe" else [])


def sequence_scores(model, x, preds, max_lengths, penalty, suppress_ids=()):
    """Score translations as beam search does: log-probability / length penalty, (N,) float32.

    `x` and `preds` are ids, (N, T) int32, `max_lengths`, (N,) int32, the most tokens that each
    translation could have, and `suppress_ids` those that the search could not choose.
    """
    lengths = truncate_at_eos_tf(preds, max_lengths).row_lengths()  # (N,), without </S>
    lengths = tf.minimum(tf.cast(lengths, tf.int32) + 1, max_lengths)  # (N,), with </S>
    istarget = tf.sequence_mask(lengths, tf.shape(preds)[1])  # (N, T)
    logp = tf.where(istarget, token_log_probs(model, x, preds, suppress_ids), 0.0)  # (N, T)
    return tf.reduce_sum(logp, axis=1) / penalty(tf.cast(lengths, tf.float32))


def token_log_probs(model, x, preds, suppress_ids=()):
    """Compute the log-probability of each token, (N, T); the arguments as in `sequence_scores`."""
    logp = tf.nn.log_softmax(suppress(model(x, preds), suppress_ids))  # (N, T, vocab)
    return tf.gather(logp, preds, batch_dims=2)


def truncate_at_eos_tf(ids, max_lengths):
    """Truncate each row (N, T) before its first `</S>`, and to its maximum length (N,).

    >>> ids = tf.constant([[4, 3, 5, 3], [4, 5, 6, 0]])
    >>> truncate_at_eos_tf(ids, tf.constant([4, 3])).to_list()
    [[4], [4, 5, 6]]
    """
    is_eos = tf.pad(ids == EOS, [[0, 0], [0, 1]], constant_values=True)  # (N, T + 1)
    lengths = tf.argmax(tf.cast(is_eos, tf.int32), axis=1, output_type=tf.int32)  # (N,)
    return tf.RaggedTensor.from_tensor(ids, tf.minimum(lengths, max_lengths))


# Decoding -----------------------------------------------------------


class Hypothesis(NamedTuple):
    """A translation of a sentence. Its types are those of JSON."""

    text: str
    ids: list[int]  # without `</S>`
    score: float  # log-probability / length penalty; greedy search does not compute it: 0
    at_limit: bool  # whether it has as many tokens as it may have: its end may be missing


class SearchDecoder:
    """Searches with a `LoadedModel`, in batches of similar length; `nbest` is `hp.beam` at most.

    On a CPU, each core translates batches of its own: most operations are too small to be divided
    among cores (`support.parallel.one_thread_per_operation`).
    """

    def __init__(self, loaded, nbest=1, show_progress=False):
        self.loaded, self.nbest, self.show_progress = loaded, nbest, show_progress
        self.search, self.prefix_search = (
            make_search(loaded.model, loaded.hp, loaded.hp.beam, nbest, prefixed=is_prefixed)
            for is_prefixed in (False, True)
        )

    def __call__(self, X, prefixes=None):
        """Return the hypotheses of each sentence, best first, at least one.

        X and `prefixes`, the first ids of each translation, are RaggedIds.
        """
        hp, vocab, lengths = self.loaded.hp, self.loaded.vocabs[1], X.lengths
        threads = 1 if tf.config.list_logical_devices("GPU") else min(num_cores(), MAX_THREADS)
        batches = [*decoding_batches(lengths, hp.beam, hp.pad_to, threads)]

        def decode_rows(rows):
            x = X.pad(rows, hp.pad_to)
            found = self.prefix_search(x, prefixes.pad(rows)) if prefixes else self.search(x)
            return [tensor.numpy() for tensor in found]  # (N, nbest, T), (N, nbest)

        hypotheses = [[] for _ in range(len(X))]
        no_bar = None if self.show_progress else True  # None: if there is no terminal
        with tqdm(desc="translating", total=len(X), leave=False, disable=no_bar) as bar:
            results = map_in_threads(decode_rows, batches, threads)
            for rows, (preds, scores) in zip(batches, results, strict=True):
                limits = hp.max_output_tokens(lengths[rows]).tolist()  # N
                for row, *found, limit in zip(rows, preds, scores, limits, strict=True):
                    for ids, score in zip(*found, strict=True):
                        if score > -np.inf:  # beam search may find fewer than `nbest`
                            ids = truncate_at_eos(ids[:limit]).tolist()
                            own = vocab.decode(ids), ids, float(score), len(ids) >= limit
                            hypotheses[row].append(Hypothesis(*own))
                bar.update(len(rows))
        return hypotheses


def decoding_batches(lengths, beam=1, width=None, threads=1):
    """Yield the row indices of each batch: sentences of similar length, the longest first.

    All rows are padded to `width`, or if it is None to the longest row of their batch. As many
    batches as `threads` are in memory at the same time. Each thread gets one.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    share = math.ceil(len(order) / threads)
    while len(order):
        size = min(share, decoding_batch_size(width or lengths[order[0]], beam, threads))
        rows, order = np.split(order, [size])
        yield rows


def decoding_batch_size(longest, beam, threads=1) -> int:
    """How many sentences fit if the longest has `longest` tokens."""
    size = min(MAX_BATCH_SOURCE_TOKENS // longest, MAX_BATCH_HYPOTHESES // beam)
    return max(1, size // min(threads, MAX_SHARES))


def limit_note(count, total, hp) -> str:
    """Return a note if translations ended at the limit of their length, else an empty string."""
    limit = "--max_output_ratio" if hp.unbounded_length else "--maxlen"
    note = f"{count} of {total} translations ended at their limit, {limit}, and may be incomplete"
    return note if count else ""
