"""Load a trained model, and translate sentences with it."""

import functools
import itertools
import math
import sys
from collections import Counter
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

import checkpoint
from data_load import encode_lines
from ensemble import Ensemble
from hparams import Hyperparams, load_hparams
from ids import RaggedIds
from interop import original
from model import make_model
from runtime.errors import InputError
from runtime.files import split_paths
from search import (
    PENALTIES,
    beam_search,
    greedy,
    no_repeat_step,
    prefix_step,
    sampling_step,
    suppress,
)
from text import normalize
from vocab import BOS, EOS, PAD, UNK, fingerprints, load_vocabs, truncate_at_eos

# The limits of a batch bound the memory. Larger batches are faster.
MAX_BATCH_SOURCE_TOKENS = 4096  # padding included
MAX_BATCH_HYPOTHESES = 1024
NOT_FINITE = "this model gives logits that are NaN or infinite"

# Loading a model ---------------------------------------------------------------


def load_model(flags):
    """Load the model in `logdir`, and print from which checkpoints.

    Args:
      flags: dict, those of the command line. `logdir` may name several folders, with commas
        between them: their models become an `Ensemble`.

    Returns:
      (list of Path, Hyperparams, model, tuple): the checkpoints whose average the
      model is, oldest first, mostly one; the hyperparameters; the model; its two vocabularies.
    """
    logdirs = split_paths(flags.get("logdir", Hyperparams.logdir))
    loaded = load_ensemble(flags, logdirs) if len(logdirs) > 1 else load_single(flags)
    paths, hp, *_ = loaded
    print(f"Loaded {describe_checkpoints(paths)}", file=sys.stderr)
    for folder, count in Counter(path.parent for path in paths).items():
        if count < hp.average_checkpoints and not hp.best:
            print(
                f"{folder}: average_checkpoints is {hp.average_checkpoints}, but the last quarter"
                f" of this training has no more than {count}",
                file=sys.stderr,
            )
    return loaded


def load_single(flags):
    """Load the model in one folder; returns as `load_model`."""
    logdir = flags.get("logdir", Hyperparams.logdir)
    path = checkpoint.require_latest(logdir)
    if original.is_original(path):
        return [path], *original.load_original(path, flags)
    # After training in bfloat16, too: the parameters are float32 and decode best in float32.
    hp, trained_with = load_hparams({"precision": "float32"} | flags, model_exists=True)
    vocabs = load_vocabs(hp, trained_with)
    paths = choose_checkpoints(path, hp)
    try:
        checkpoint.check_sizes(hp, [*map(len, vocabs)], path)
        model = make_model(hp, *map(len, vocabs))
        checkpoint.restore_average(model, paths)
    except InputError:
        if all(map(checkpoint.index_exists, [path, *paths])):
            raise
        return load_single(flags)  # a training run has deleted one of them in the meantime
    return paths, hp, model, vocabs


def load_ensemble(flags, logdirs):
    """Load several models; returns as `load_model`, with the hyperparameters of the first."""
    loaded = [load_single(flags | dict(logdir=logdir)) for logdir in logdirs]
    paths, hps, models, vocabs = zip(*loaded, strict=True)
    for logdir, hp, own_vocabs in zip(logdirs, hps, vocabs, strict=True):
        if (hp.source_lang, hp.target_lang) != (hps[0].source_lang, hps[0].target_lang):
            raise InputError(
                f"{logdir}: translates from {hp.source_lang} to {hp.target_lang}, and {logdirs[0]}"
                f" from {hps[0].source_lang} to {hps[0].target_lang}. Choose models of one"
                " direction"
            )
        if fingerprints(own_vocabs) != fingerprints(vocabs[0]):
            raise InputError(
                f"{logdir}: has another vocabulary than {logdirs[0]}. Train both models with the"
                " same --preprocessed"
            )
        for name in ("pad_to", "masks_from_ids", "unbounded_length", "max_input_tokens"):
            if getattr(hp, name) != getattr(hps[0], name):
                raise InputError(
                    f"{logdir}: reads sentences in another way than {logdirs[0]} (maxlen,"
                    " position encodings or masks differ). Choose models of similar recipes"
                )
    return [*itertools.chain(*paths)], hps[0], Ensemble(models), vocabs[0]


def choose_checkpoints(newest, hp):
    """List the checkpoints whose mean is the model: the best one, or the newest ones.

    Args:
      newest: Path.
      hp: Hyperparams of the model.
    """
    if hp.best:
        return [checkpoint.require_best(newest.parent)]
    return checkpoint.checkpoints_to_average(newest, hp.average_checkpoints)


def describe_decoding(hp, paths) -> str:
    """Describe how translations are made: the search, the checkpoints, the compute type."""
    search = "greedy search"
    if hp.temperature:
        among = f" from the {hp.top_k} most likely tokens" if hp.top_k else ""
        search = f"samples{among}, temperature {hp.temperature}, seed {hp.seed}"
    if hp.beam > 1:
        search = f"beam {hp.beam}, length penalty {hp.length_penalty} {hp.alpha}"
    search += ", no <UNK>" if hp.suppress_unknown else ""
    search += f", no {hp.no_repeat_ngram} tokens twice" if hp.no_repeat_ngram else ""
    precision = "" if hp.precision == Hyperparams.precision else f", {hp.precision}"
    return f"{search}, {describe_checkpoints(paths)}{precision}"


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
      nbest: translations per sentence, `beam` at most.
      scored: whether greedy search also computes scores; else they are 0.
      prefixed: whether the function also takes the first ids of the translations, (N, P) int32,
        with zeros after them.

    Returns:
      function from source ids (N, T) int32 to ids (N, nbest, T) int32, with zeros after
      `</S>`, and scores (N, nbest) float32.
    """
    penalty = PENALTIES[hp.length_penalty](hp.alpha)
    # As in the 2017 code, greedy search may choose <PAD> if the masks come from activations:
    # the model then treats it as padding.
    suppress_ids = [PAD] if hp.masks_from_ids or beam > 1 else []
    suppress_ids += [UNK] if hp.suppress_unknown else []
    # CTranslate2 stops when `beam` hypotheses have ended. Without a length penalty it stops when
    # the best one is certain, which is the rule of `beam_search` anyway.
    early_stopping = hp.length_penalty == "ctranslate2" and hp.alpha > 0

    ids = tf.TensorSpec([None, None], tf.int32)

    @tf.function(input_signature=[ids, ids] if prefixed else [ids], autograph=False)
    def search(x, prefixes=None):
        N = tf.shape(x)[0]
        source_lengths = tf.math.count_nonzero(x != PAD, axis=1, dtype=tf.int32)  # (N,)
        max_lengths = hp.max_output_tokens(source_lengths)  # (N,)
        memory = model.encode_memory(x)
        start = tf.fill([N], BOS)

        step, state = finite_step(model.decode_step), model.initial_cache(memory, beam)
        if hp.no_repeat_ngram:
            step = no_repeat_step(step, hp.no_repeat_ngram)
            state = state, tf.zeros([N * beam, 0], tf.int32)
        if prefixed:
            step, state = prefix_step(step), (state, tf.repeat(prefixes, beam, axis=0))
        if beam > 1:
            return beam_search(
                step,
                state,
                memory,
                start=start,
                max_lengths=max_lengths,
                eos=EOS,
                beam=beam,
                penalty=penalty,
                nbest=nbest,
                suppress_ids=suppress_ids,
                early_stopping=early_stopping,
            )
        if hp.temperature:
            step = sampling_step(step, hp.temperature, hp.top_k, suppress_ids)
            state = state, sentence_seeds(x) + hp.seed, tf.zeros([N], tf.int32)
        preds = greedy(
            step,
            state,
            memory,
            start=start,
            max_lengths=max_lengths,
            eos=EOS,
            suppress_ids=suppress_ids,
        )  # (N, T)
        scores = tf.zeros([N])
        if scored:
            scores = sequence_scores(model, x, preds, max_lengths, penalty, suppress_ids)
        return preds[:, None], scores[:, None]  # (N, 1, T), (N, 1)

    return search


def finite_step(step):
    """Make a step function that raises InvalidArgumentError if a logit is NaN or too large.

    Finite parameters that are too large give such logits. A search would continue with them.
    """

    def checked_step(ids, state, memory):
        logits, state = step(ids, state, memory)  # (N * K, V)
        finite = tf.reduce_all(tf.reduce_max(logits, axis=-1) < np.inf)  # false for NaN, too
        with tf.control_dependencies([tf.debugging.Assert(finite, [NOT_FINITE])]):
            return tf.identity(logits), state

    return checked_step


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
    logp = tf.nn.log_softmax(suppress(model(x, preds), suppress_ids))  # (N, T, V)
    return tf.gather(logp, preds, batch_dims=2)


class LineScore(NamedTuple):
    """How likely a model finds a given translation of a line."""

    logp: float  # natural logarithm of its probability, `</S>` included
    num_tokens: int  # `</S>` included

    @property
    def perplexity(self) -> float:
        """The inverse of the mean probability of a token (geometric mean)."""
        return float(np.exp(-self.logp / self.num_tokens)) if self.num_tokens else math.nan


class Scorer:
    """Scores given translations.

    Args:
      hp, model, vocabs: as `load_model` returns them.

    Attributes:
      truncated: how many pairs so far had a side of more than `hp.max_input_tokens`.
    """

    def __init__(self, hp, model, vocabs):
        self.hp, self.vocabs = hp, vocabs
        self.truncated = 0

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2, autograph=False)
        def log_probability(x, y):
            any_length = tf.fill([tf.shape(y)[0]], tf.shape(y)[1])
            # Without <PAD>, as in beam search.
            return sequence_scores(model, x, y, any_length, tf.ones_like, suppress_ids=[PAD])

        self.log_probability = log_probability

    def __call__(self, lines, translations) -> list[LineScore]:
        """Score the translations of lines, both lists of str.

        The score is NaN if one of the two sides is empty, or too long for the model.
        """
        pad_to = self.hp.pad_to
        scores = [LineScore(math.nan, 0)] * len(lines)
        X, Y, rows, truncated = encode_both(self.hp, self.vocabs, lines, translations)
        self.truncated += len(truncated)
        for batch in decoding_batches(np.maximum(X.lengths, Y.lengths), width=pad_to):
            logp = self.log_probability(X.pad(batch, pad_to), Y.pad(batch, pad_to)).numpy()
            if np.isnan(logp).any():
                raise not_finite_error(self.hp)
            for i, value in zip(batch, logp, strict=True):
                if rows[i] not in truncated:
                    scores[rows[i]] = LineScore(float(value), int(Y.lengths[i]))
        return scores


def encode_both(hp, vocabs, lines, translations):
    """Encode lines and their translations, without those that are empty on a side.

    Returns:
      (RaggedIds, RaggedIds, list of int, set of int): the ids; the indices of the lines; and of
      those that were truncated on a side.
    """
    X, source_rows, long_sources = encode_lines(lines, vocabs[0], hp)
    Y, target_rows, long_targets = encode_lines(translations, vocabs[1], hp)
    rows = np.intersect1d(source_rows, target_rows)
    X = X.select(np.searchsorted(source_rows, rows))
    Y = Y.select(np.searchsorted(target_rows, rows))
    rows = rows.astype(int).tolist()
    return X, Y, rows, {*long_sources, *long_targets}.intersection(rows)


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


# Translating -------------------------------------------------------------------


def decode_all(search, X, hp, quiet=False, prefixes=None):
    """Search for the translations of all sentences, in batches of similar length.

    Args:
      search: function that `make_search` returned.
      X: RaggedIds, the source ids.
      quiet: whether to hide the progress bar.
      prefixes: RaggedIds, the first ids of the translations, if `search` takes them.

    Returns:
      list: for each sentence, in the order of X, its translations, best first: pairs of
      ids (T,) and score.
    """
    translations = [None] * len(X)
    bar = tqdm(desc="translating", total=len(X), leave=False, mininterval=1, disable=quiet)
    with bar:
        for rows in decoding_batches(X.lengths, hp.beam, hp.pad_to):
            more = [] if prefixes is None else [prefixes.pad(rows)]
            try:
                preds, scores = search(X.pad(rows, hp.pad_to), *more)
            except tf.errors.InvalidArgumentError as error:
                if NOT_FINITE in error.message:
                    raise not_finite_error(hp) from None
                raise
            preds, scores = preds.numpy(), scores.numpy()  # (N, nbest, T), (N, nbest)
            max_lengths = hp.max_output_tokens(X.lengths[rows])  # (N,)
            for i, row in enumerate(rows):
                # Longer sentences of the batch may have more tokens.
                translations[row] = [*zip(preds[i, :, : max_lengths[i]], scores[i], strict=True)]
            bar.update(len(rows))
    return translations


def decoding_batches(lengths, beam=1, width=None):
    """Yield the row indices of each batch: sentences of similar length, the longest first.

    Args:
      width: the length to which all rows are padded, or None for the longest row of a batch.
    """
    order = np.argsort(lengths, kind="stable")[::-1]
    while len(order):
        size = decoding_batch_size(width or lengths[order[0]], beam)
        rows, order = np.split(order, [size])
        yield rows


def decoding_batch_size(longest, beam) -> int:
    """Return the number of sentences in a batch whose longest sentence has `longest` tokens."""
    return max(1, min(MAX_BATCH_SOURCE_TOKENS // longest, MAX_BATCH_HYPOTHESES // beam))


def find_at_limit(translations, X, hp) -> list[bool]:
    """Find out which translations have as many tokens as they may have: their end may be missing.

    Args:
      translations: list that `decode_all` returned for the source ids X, RaggedIds.
    """
    lengths = [len(truncate_at_eos(best[0])) for best, *_ in translations]
    return (np.array(lengths, int) >= hp.max_output_tokens(X.lengths)).tolist()


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


def detokenize_best(translations, vocab) -> list[str]:
    """Return the text of the best translation of each sentence.

    Args:
      translations: list that `decode_all` returned.
    """
    return [vocab.decode(best[0]) for best, *_ in translations]


class Translator:
    """Translate lines of text with a trained model.

    Args:
      hp, model, vocabs: as `load_model` returns them.
      nbest: translations per line, `hp.beam` at most.
      decode: function from source ids, RaggedIds, to translations as `decode_all` returns
        them; None to search with the model.

    Attributes:
      truncated: how many of all lines so far were truncated to `hp.max_input_tokens`.
      at_limit: how many of their translations ended at the limit of their length.
      translated: how many lines were translated.
      with_unknown: in how many lines there is `<UNK>`.
    """

    def __init__(self, hp, model, vocabs, nbest=1, decode=None):
        self.hp, self.model, self.vocabs, self.nbest = hp, model, vocabs, nbest
        self.truncated = self.at_limit = self.translated = self.with_unknown = 0
        if decode is None:
            search = make_search(model, hp, hp.beam, nbest)
            decode = functools.partial(decode_all, search, hp=hp, quiet=True)
        self.decode = decode

    @functools.cached_property
    def prefix_search(self):
        """The search that continues given beginnings of translations."""
        return make_search(self.model, self.hp, self.hp.beam, self.nbest, prefixed=True)

    def __call__(self, lines, translate_fn=None, prefixes=None):
        """Translate lines.

        Args:
          lines: list of str.
          translate_fn: function to call in place of `translate_ids`.
          prefixes: list of str, the first words of each translation; None for none.

        Returns:
          list: for each line its translations, best first: pairs of text and score. None if
          `translate_fn` returns None.
        """
        X, rows, truncated = encode_lines(lines, self.vocabs[0], self.hp)
        self.truncated += len(truncated)
        self.with_unknown += sum(UNK in ids for ids in X)
        if prefixes is not None:
            prefixes = [prefixes[row] for row in rows]
            translate_fn = functools.partial(self.continue_prefixes, prefixes)
        translations = (translate_fn or self.translate_ids)(X)
        if translations is None:
            return None
        results = [[("", 0.0)]] * len(lines)  # empty lines stay empty
        for row, hypotheses in zip(rows, translations, strict=True):
            results[row] = hypotheses
        return results

    def encode_prefixes(self, prefixes):
        """Encode the first words of translations, a list of str -> RaggedIds."""
        ids = self.vocabs[1].encode(self.vocabs[1].prepare(prefixes))
        return RaggedIds.from_lists([sentence[:-1] for sentence in ids])  # without </S>

    def translate_ids(self, X, prefixes=None):
        """Translate source ids: for each sentence a list of pairs of text and score.

        Args:
          X: RaggedIds.
          prefixes: what `encode_prefixes` returned, or None.
        """
        detokenize = self.vocabs[1].decode
        return [
            [(detokenize(ids), float(score)) for ids, score in hypotheses]
            for hypotheses in self.decode_ids(X, prefixes)
        ]

    def continue_prefixes(self, prefixes, X):
        """Translate source ids: as `translate_ids`, with given first words.

        These words are returned as they were given, also where the vocabulary lacks a character.
        """
        encoded, detokenize = self.encode_prefixes(prefixes), self.vocabs[1].decode
        translations = self.translate_ids(X, encoded)
        return [
            [(restore_prefix(text, prefix, detokenize(ids)), score) for text, score in hypotheses]
            for prefix, ids, hypotheses in zip(prefixes, encoded, translations, strict=True)
        ]

    def decode_ids(self, X, prefixes=None):
        """Translate source ids: as `translate_ids`, but pairs of ids and score."""
        if not len(X):
            return []
        if prefixes is None:
            translations = self.decode(X)
        else:
            translations = decode_all(self.prefix_search, X, self.hp, quiet=True, prefixes=prefixes)
        self.at_limit += sum(find_at_limit(translations, X, self.hp))
        self.translated += len(X)
        # Beam search may find fewer than `nbest`; the others have the score -inf.
        return [[pair for pair in pairs if pair[1] > -np.inf] for pairs in translations]


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
