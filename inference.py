"""Load a trained model, and translate sentences with it."""

import dataclasses
import functools
import itertools
import math
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import checkpoint
import manifest
from data_load import encode_lines
from hparams import Hyperparams, read_hparams
from ids import BOS, EOS, PAD, UNK, RaggedIds
from interop import original
from model import make_model
from runtime.errors import InputError
from runtime.parallel import map_in_threads, num_cores
from runtime.workers import translate_distributed
from search import (
    NOT_FINITE,
    PENALTIES,
    StepModel,
    beam_search,
    greedy,
    no_repeat_step,
    prefix_step,
    sampling_step,
    suppress,
)
from text import normalize
from trained_models import check_ensemble
from variants.ensemble import Ensemble
from vocab import load_vocabs, truncate_at_eos

# The limits of a batch bound the memory. Larger batches are faster.
MAX_BATCH_SOURCE_TOKENS = 4096  # padding included
MAX_BATCH_HYPOTHESES = 1024
MAX_THREADS = 8  # threads that translate batches at the same time
MAX_SHARES = 4  # the limits of a batch are divided by the number of threads, up to this one

# Loading a model ---------------------------------------------------------------


def start_quickly():
    """Switch off the optimizer of graphs: the first translation then takes half a second less.

    All others take 2% longer with beam search, and 8% with greedy search.
    """
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
        """Return the same model with other hyperparameters, for example of the search."""
        return self._replace(hp=dataclasses.replace(self.hp, **changes))


def load_model(models) -> LoadedModel:
    """Load a model, and print from which checkpoints.

    Args:
      models: list of `Trained`, as `find_trained` returns it; several become an `Ensemble`.
    """
    all_loaded = [load_single(trained) for trained in models]
    loaded = make_ensemble(all_loaded) if len(models) > 1 else all_loaded[0]
    hp = loaded.hp
    print(f"Loaded {describe_checkpoints(loaded.paths)}", file=sys.stderr)
    for folder, count in Counter(path.parent for path in loaded.paths).items():
        if count < hp.average_checkpoints and not hp.best:
            print(
                f"{folder}: average_checkpoints is {hp.average_checkpoints}, but the last quarter"
                f" of this training has no more than {count}",
                file=sys.stderr,
            )
    return loaded


def load_single(trained) -> LoadedModel:
    """Load the model of a `Trained`."""
    path = checkpoint.latest_readable(trained.logdir)
    if original.is_original(path):
        return LoadedModel([path], *original.load_original(path, trained.given))
    hp = trained.hp or read_hparams(trained.logdir)  # raises the error of the missing file
    vocabs = trained.vocabs or load_vocabs(hp)
    paths = choose_checkpoints(path, hp)
    try:
        checkpoint.check_sizes(hp, [*map(len, vocabs)], path)
        model = make_model(hp, *map(len, vocabs))
        checkpoint.restore_average(model, paths)
    except InputError:
        if all(map(manifest.index_exists, [path, *paths])):
            raise
        return load_single(trained)  # a training run has deleted one of them in the meantime
    return LoadedModel(paths, hp, model, vocabs)


def make_ensemble(all_loaded) -> LoadedModel:
    """Make an `Ensemble` of several `LoadedModel`, with the hyperparameters of the first."""
    paths, hps, models, vocabs = zip(*all_loaded, strict=True)
    check_ensemble(hps)  # here for models of the 2017 code
    return LoadedModel([*itertools.chain(*paths)], hps[0], Ensemble(models), vocabs[0])


def choose_checkpoints(newest, hp):
    """List the checkpoints whose mean is the model: the best one, or the newest ones.

    Args:
      newest: Path.
      hp: Hyperparams of the model.
    """
    if hp.best:
        return [manifest.require_best(newest.parent)]
    return manifest.checkpoints_to_average(newest, hp.average_checkpoints)


def describe_decoding(loaded) -> str:
    """Describe how translations are made: the search, the checkpoints, the compute type."""
    hp = loaded.hp
    search = "greedy search"
    if hp.temperature:
        among = f" from the {hp.top_k} most likely tokens" if hp.top_k else ""
        search = f"samples{among}, temperature {hp.temperature}, seed {hp.seed}"
    if hp.beam > 1:
        search = f"beam {hp.beam}, length penalty {hp.length_penalty} {hp.alpha}"
    search += ", no <UNK>" if hp.suppress_unknown else ""
    search += f", no {hp.no_repeat_ngram} tokens twice" if hp.no_repeat_ngram else ""
    precision = "" if hp.precision == Hyperparams.precision else f", {hp.precision}"
    return f"{search}, {describe_checkpoints(loaded.paths)}{precision}"


def describe_checkpoints(paths) -> str:
    """Describe which checkpoints the parameters come from, and in an ensemble which models."""
    models = {}
    for path in paths:
        models.setdefault(path.parent, []).append(path.name)
    texts = [
        f"mean of {len(names)} checkpoints to {names[-1]}" if len(names) > 1 else names[0]
        for names in models.values()
    ]
    if len(models) == 1:
        return texts[0]
    each = (f"{folder.name}: {text}" for folder, text in zip(models, texts, strict=True))
    return f"{len(models)} models ({'; '.join(each)})"


# Searching ---------------------------------------------------------------------


def make_search(model, hp, beam, nbest=1, scored=False, prefixed=False):
    """Make the function that translates a batch.

    A translation has at most `hp.max_output_tokens` tokens.

    Args:
      model: StepModel.
      nbest: translations per sentence, `beam` at most.
      scored: whether greedy search also computes scores; else they are 0.
      prefixed: whether the function also takes the first ids of the translations, (N, P) int32,
        with zeros after them.

    Returns:
      function from source ids (N, T) int32 to ids (N, nbest, T) int32, with zeros after
      `</S>`, and scores (N, nbest) float32.
    """
    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[ids, ids] if prefixed else [ids], autograph=False)
    def search(x, prefixes=None):
        args = search_arguments(model, hp, x, beam, prefixes)
        if beam > 1:
            return beam_search(**args, **beam_arguments(hp, beam, nbest))
        suppress_ids = args["suppress_ids"]
        if hp.temperature:
            args["step"] = sampling_step(args["step"], hp.temperature, hp.top_k, suppress_ids)
            steps = tf.zeros_like(args["start"])  # (N,)
            args["state"] = args["state"], sentence_seeds(x) + hp.seed, steps
        preds = greedy(**args)  # (N, T)
        scores = tf.zeros([tf.shape(x)[0]])
        if scored:
            penalty = PENALTIES[hp.length_penalty](hp.alpha)
            scores = sequence_scores(model, x, preds, args["max_lengths"], penalty, suppress_ids)
        return preds[:, None], scores[:, None]  # (N, 1, T), (N, 1)

    return search


def search_arguments(model, hp, x, beam, prefixes=None) -> dict:
    """Return the arguments that `greedy` and `beam_search` share: the step function and its start.

    Args:
      x: source ids (N, T) int32.
      prefixes: the first ids of the translations, (N, P) int32, with zeros after them, or None.
    """
    N = tf.shape(x)[0]
    source_lengths = tf.math.count_nonzero(x != PAD, axis=1, dtype=tf.int32)  # (N,)
    memory = model.encode_memory(x)
    step, state = model.decode_step, model.initial_cache(memory, beam)
    if hp.no_repeat_ngram:
        step = no_repeat_step(step, hp.no_repeat_ngram)
        state = state, tf.zeros([N * beam, 0], tf.int32)
    if prefixes is not None:
        step, state = prefix_step(step), (state, tf.repeat(prefixes, beam, axis=0))
    return dict(
        step=step,
        state=state,
        memory=memory,
        start=tf.fill([N], BOS),
        max_lengths=hp.max_output_tokens(source_lengths),  # (N,)
        eos=EOS,
        suppress_ids=suppressed_ids(hp, beam),
    )


def suppressed_ids(hp, beam) -> list[int]:
    """Return the ids that a search never chooses.

    As in the 2017 code, greedy search may choose <PAD> if the masks come from activations: the
    model then treats it as padding.
    """
    suppress_ids = [PAD] if hp.masks_from_ids or beam > 1 else []
    return suppress_ids + ([UNK] if hp.suppress_unknown else [])


def beam_arguments(hp, beam, nbest) -> dict:
    """Return the arguments that only `beam_search` has."""
    return dict(
        beam=beam,
        penalty=PENALTIES[hp.length_penalty](hp.alpha),
        nbest=nbest,
        # CTranslate2 stops when `beam` hypotheses have ended. Without a length penalty it stops
        # when the best one is certain, which is the rule of `beam_search` anyway.
        early_stopping=hp.length_penalty == "ctranslate2" and hp.alpha > 0,
    )


def not_finite_error(hp) -> InputError:
    """Return the error for a model whose logits are not finite."""
    return InputError(
        f"{hp.logdir}: {NOT_FINITE}, since its parameters are too large. Copy the model again, or"
        " train it again with a lower --lr"
    )


def sentence_seeds(ids):
    """Compute a seed from each sentence, without its padding: (N, T) int32 -> (N,) int32.

    >>> first, second, same = sentence_seeds(tf.constant([[4, 5, 3], [5, 4, 3], [4, 5, 3]])).numpy()
    >>> bool(first == same), bool(first == second)
    (True, False)
    """
    powers = tf.math.cumprod(tf.fill([tf.shape(ids)[1]], 1_000_003))  # modulo 2**32
    return tf.reduce_sum(ids * powers, axis=1)


def sequence_scores(model, x, preds, max_lengths, penalty, suppress_ids=()):
    """Score translations as beam search does: log-probability / length penalty.

    Args:
      x, preds: ids of the sources and of their translations, (N, T) int32.
      max_lengths: (N,) int32, the most tokens that each translation could have.
      penalty: function of lengths, one of `search.PENALTIES`.
      suppress_ids: ids that the search could not choose.

    Returns:
      (N,) float32
    """
    lengths = truncate_at_eos_tf(preds, max_lengths).row_lengths()  # (N,), without </S>
    lengths = tf.minimum(tf.cast(lengths, tf.int32) + 1, max_lengths)  # (N,), with </S>
    istarget = tf.sequence_mask(lengths, tf.shape(preds)[1])  # (N, T)
    logp = tf.where(istarget, token_log_probs(model, x, preds, suppress_ids), 0.0)  # (N, T)
    return tf.reduce_sum(logp, axis=1) / penalty(tf.cast(lengths, tf.float32))


def token_log_probs(model, x, preds, suppress_ids=()):
    """Compute the log-probability of each token, given the source and the tokens before it.

    Args:
      x, preds: ids of the sources and of their translations, (N, T) int32.
      suppress_ids: ids that have the probability 0.

    Returns:
      (N, T) float32
    """
    logp = tf.nn.log_softmax(suppress(model(x, preds), suppress_ids))  # (N, T, vocab)
    return tf.gather(logp, preds, batch_dims=2)


def truncate_at_eos_tf(ids, max_lengths):
    """Truncate each row before its first `</S>`, and to its maximum length.

    Args:
      ids: (N, T) int32.
      max_lengths: (N,) int32.

    Returns:
      (N, T) tf.RaggedTensor

    >>> ids = tf.constant([[4, 3, 5, 3], [4, 5, 6, 0]])
    >>> truncate_at_eos_tf(ids, tf.constant([4, 3])).to_list()
    [[4], [4, 5, 6]]
    """
    is_eos = tf.pad(ids == EOS, [[0, 0], [0, 1]], constant_values=True)  # (N, T + 1)
    lengths = tf.argmax(tf.cast(is_eos, tf.int32), axis=1, output_type=tf.int32)  # (N,)
    return tf.RaggedTensor.from_tensor(ids, tf.minimum(lengths, max_lengths))


# Decoding ----------------------------------------------------------------------


class Hypothesis(NamedTuple):
    """A translation of a sentence. Its types are those of JSON."""

    text: str
    ids: list[int]  # without `</S>`
    score: float  # log-probability / length penalty; greedy search does not compute it: 0
    at_limit: bool  # whether it has as many tokens as it may have: its end may be missing

    @classmethod
    def from_ids(cls, ids, score, vocab, max_tokens):
        """Make a hypothesis from the ids (T,) that a search found.

        Args:
          ids: those after `</S>`, or after `max_tokens`, are padding.
          vocab: that of the target.
          max_tokens: tokens that the translation may have, `</S>` included.
        """
        ids = truncate_at_eos(ids[:max_tokens]).tolist()
        return cls(vocab.decode(ids), ids, float(score), at_limit=len(ids) >= max_tokens)


class Decoder(Protocol):
    """A class that finds translations: `SearchDecoder`, `CTranslate2Decoder`, `SharedDecoder`."""

    def __call__(self, X, prefixes=None) -> list[list[Hypothesis]]:
        """Translate sentences: for each one its hypotheses, best first, at least one.

        Args:
          X: RaggedIds, the source ids.
          prefixes: RaggedIds, the first ids of each translation; None for none. Only a
            `SearchDecoder` takes them.
        """


class SearchDecoder:
    """The `Decoder` that searches with the model, in batches of similar length.

    On a CPU, each core translates batches of its own: most operations are too small to be divided
    among cores (`runtime.parallel.one_thread_per_operation`).

    Args:
      loaded: LoadedModel.
      nbest: hypotheses per sentence, `hp.beam` at most.
      show_progress: whether to show a progress bar.
    """

    def __init__(self, loaded, nbest=1, show_progress=False):
        self.loaded, self.nbest, self.show_progress = loaded, nbest, show_progress
        self.search = make_search(loaded.model, loaded.hp, loaded.hp.beam, nbest)

    @functools.cached_property
    def prefix_search(self):
        """The search that continues given beginnings of translations."""
        loaded = self.loaded
        return make_search(loaded.model, loaded.hp, loaded.hp.beam, self.nbest, prefixed=True)

    def __call__(self, X, prefixes=None):
        """Translate sentences, as `Decoder`."""
        hp, vocab, lengths = self.loaded.hp, self.loaded.vocabs[1], X.lengths
        threads = 1 if tf.config.list_logical_devices("GPU") else min(num_cores(), MAX_THREADS)
        batches = [*decoding_batches(lengths, hp.beam, hp.pad_to, threads)]

        def decode_rows(rows):
            first_ids = None if prefixes is None else prefixes.pad(rows)
            return self.decode_batch(X.pad(rows, hp.pad_to), first_ids)

        found = [None] * len(X)
        with tqdm(
            desc="translating",
            total=len(X),
            leave=False,
            mininterval=1,
            disable=not self.show_progress,
        ) as bar:
            results = map_in_threads(decode_rows, batches, threads)
            for rows, (preds, scores) in zip(batches, results, strict=True):
                limits = hp.max_output_tokens(lengths[rows]).tolist()  # N
                for row, *pairs, limit in zip(rows, preds, scores, limits, strict=True):
                    # Beam search may find fewer than `nbest`; the others have the score -inf.
                    found[row] = [
                        Hypothesis.from_ids(ids, score, vocab, limit)
                        for ids, score in zip(*pairs, strict=True)
                        if score > -np.inf
                    ]
                bar.update(len(rows))
        return found

    def decode_batch(self, x, first_ids=None):
        """Translate a batch of source ids (N, T_x): ids (N, nbest, T) and scores (N, nbest).

        Args:
          first_ids: (N, P), those of the translations, with zeros after them; None for none.
        """
        try:
            found = self.search(x) if first_ids is None else self.prefix_search(x, first_ids)
        except tf.errors.InvalidArgumentError as error:
            if NOT_FINITE in error.message:
                raise not_finite_error(self.loaded.hp) from None
            raise
        return [tensor.numpy() for tensor in found]


class SharedDecoder:
    """The `Decoder` that translates a share of the sentences, as one of several workers.

    The worker with rank 0 returns the hypotheses of all sentences, the others only their own: the
    lists of the other sentences are empty. Without TF_CONFIG there is one worker.

    Args:
      decode: Decoder.
      results, settings: as in `translate_distributed`.
    """

    def __init__(self, decode, results, settings):
        self.decode, self.results, self.settings = decode, results, settings

    def __call__(self, X):
        """Translate sentences, as `Decoder`."""
        found = translate_distributed(self.decode, X, self.results, self.settings)
        return [[Hypothesis(*fields) for fields in hypotheses] for hypotheses in found]


def decoding_batches(lengths, beam=1, width=None, threads=1):
    """Yield the row indices of each batch: sentences of similar length, the longest first.

    Args:
      width: the length to which all rows are padded, or None for the longest row of a batch.
      threads: how many batches are in memory at the same time. Each gets one.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    share = math.ceil(len(order) / threads)
    while len(order):
        size = min(share, decoding_batch_size(width or lengths[order[0]], beam, threads))
        rows, order = np.split(order, [size])
        yield rows


def decoding_batch_size(longest, beam, threads=1) -> int:
    """Return the number of sentences in a batch whose longest sentence has `longest` tokens."""
    size = min(MAX_BATCH_SOURCE_TOKENS // longest, MAX_BATCH_HYPOTHESES // beam)
    return max(1, size // min(threads, MAX_SHARES))


def limit_note(count, total, hp) -> str:
    """Return a note if translations ended at the limit of their length, else an empty string."""
    if not count:
        return ""
    return (
        f"{count} of {total} translations ended at their limit of {hp.describe_output_limit()}, and"
        " may be incomplete"
    )


def limit_hint(hp) -> str:
    """Return the remedy for `limit_note`."""
    if not hp.unbounded_length:
        return "Train with a larger --maxlen"
    return "If they do not just repeat words, raise --max_output_ratio or --max_output_extra"


# Translating -------------------------------------------------------------------


class Translation(NamedTuple):
    """A line and its translations."""

    line: str
    ids: np.ndarray  # of the line, (T,) int32 with `</S>`; none if it has no tokens
    hypotheses: list[Hypothesis]  # best first, at least one
    truncated: bool  # whether the line has more tokens than the ids

    @property
    def text(self) -> str:
        """The best translation."""
        return self.hypotheses[0].text


class Translator:
    """Translate lines of text: encode them, decode, and return the results in their order.

    Args:
      loaded: LoadedModel.
      decode: Decoder; None for a `SearchDecoder`.
      max_tokens: tokens of a line that are read, `</S>` included; None for
        `hp.max_input_tokens`.
      unit: what a line is, for `notes`: a line, or a sentence of one.

    Attributes:
      num_lines: how many lines there were so far.
      truncated: how many of them were truncated to `max_tokens`.
      first_truncated: the number of the first of these, counted from 1; 0 if there is none.
      at_limit: how many of their best translations ended at the limit of their length.
      translated: how many lines were translated.
      with_unknown: in how many lines there is `<UNK>`.
    """

    def __init__(self, loaded, decode=None, max_tokens=None, unit="line"):
        self.loaded, self.decode, self.unit = loaded, decode or SearchDecoder(loaded), unit
        self.max_tokens = max_tokens or loaded.hp.max_input_tokens
        self.num_lines = self.first_truncated = 0
        self.truncated = self.at_limit = self.translated = self.with_unknown = 0

    def __call__(self, lines, prefixes=None) -> list[Translation]:
        """Translate lines, a list of str. An empty line has an empty translation.

        Args:
          prefixes: list of str, the first words of each translation; None for none.
        """
        hp, (vocab, _) = self.loaded.hp, self.loaded.vocabs
        X, rows, truncated = encode_lines(lines, vocab, hp, self.max_tokens)
        if prefixes is None:
            found = self.decode(X)
        else:
            found = self.continue_prefixes(X, [prefixes[row] for row in rows])
        self.translated += len(X)
        self.truncated += len(truncated)
        if truncated and not self.first_truncated:
            self.first_truncated = self.num_lines + truncated[0] + 1
        self.num_lines += len(lines)
        self.with_unknown += sum(UNK in ids for ids in X)
        self.at_limit += sum(best.at_limit for hypotheses in found for best in hypotheses[:1])
        truncated = {*truncated}
        no_ids, empty = np.zeros(0, np.int32), Hypothesis("", [], 0.0, at_limit=False)
        translations = [Translation(line, no_ids, [empty], truncated=False) for line in lines]
        for row, ids, hypotheses in zip(rows, X, found, strict=True):
            translations[row] = Translation(lines[row], ids, hypotheses, row in truncated)
        return translations

    def continue_prefixes(self, X, prefixes):
        """Decode source ids, given the first words of each translation.

        These words are returned as they were given, also where the vocabulary lacks a character.
        """
        vocab = self.loaded.vocabs[1]
        ids = vocab.encode(vocab.prepare(prefixes))
        ids = [sentence[:-1] for sentence in ids]  # without </S>
        found = self.decode(X, RaggedIds.from_lists(ids))
        return [
            [best._replace(text=restore_prefix(best.text, prefix, decoded)) for best in hypotheses]
            for prefix, decoded, hypotheses in zip(
                prefixes, map(vocab.decode, ids), found, strict=True
            )
        ]

    def notes(self) -> list[str]:
        """Describe what the translations of all lines so far may lack."""
        hp, notes = self.loaded.hp, []
        if count := self.truncated:
            lines = f"1 {self.unit} was" if count == 1 else f"{count} {self.unit}s were"
            first = f"(first: {self.unit} {self.first_truncated})"
            notes.append(f"{lines} truncated to {self.max_tokens - 1} tokens {first}")
        if (count := self.with_unknown) and hp.tokenizer == "bpe":
            lines = f"1 {self.unit} has" if count == 1 else f"{count} {self.unit}s have"
            notes.append(f"{lines} characters that the vocabulary lacks")
        if note := limit_note(self.at_limit, self.translated, hp):
            notes.append(f"{note}. {limit_hint(hp)}")
        return notes


def restore_prefix(text, prefix, decoded) -> str:
    """Return a translation with its first words as they were given, but normalized.

    Args:
      decoded: the first words as the vocabulary writes them.

    >>> restore_prefix("Mr. <UNK> runs .", "Mr. Ō", "Mr. <UNK>")
    'Mr. Ō runs .'
    """
    if not text.startswith(decoded):  # the longest possible translation ends within it
        return text
    return normalize(prefix).strip() + text[len(decoded) :]
