"""Encode sentence pairs as ids, and make the batches of an epoch."""

import dataclasses
import hashlib
import itertools
import json
import os
import sys
import zipfile
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tqdm import tqdm

from runtime.errors import InputError
from runtime.files import atomic_open, split_paths
from text import (
    SentenceFile,
    blocks,
    check_same_length,
    check_same_segments,
    check_text_files,
    clean,
    empty_text_error,
    read_test_sentences,
    training_files,
)
from vocab import EOS, PAD, UNK, fingerprints

ID_CACHE_MIN_PAIRS = 200_000  # pairs of the smallest corpus whose ids are cached in a file
MAX_UNKNOWN_SHARE = 0.9  # with more <UNK>, the vocabulary belongs to another text


@dataclasses.dataclass(frozen=True)
class RaggedIds:
    """Sequences of token ids of any length: the NumPy twin of tf.RaggedTensor.

    Has the same layout (flat values and row splits), but reads and hashes single rows without
    the cost of a TensorFlow op, and takes two bytes per id while the vocabulary allows it.
    """

    ids: np.ndarray  # (sum of all lengths,) uint16, or int32 if an id does not fit
    splits: np.ndarray  # (N + 1,) int64, row i is ids[splits[i]:splits[i + 1]]

    @classmethod
    def from_lists(cls, sequences):
        """Build from a list of lists of ids."""
        splits = np.cumsum([0, *map(len, sequences)])
        ids = np.fromiter((i for ids in sequences for i in ids), np.int32, splits[-1])
        return cls(ids if ids.max(initial=0) >= 2**16 else ids.astype(np.uint16), splits)

    @classmethod
    def concatenate(cls, raggeds):
        """Build from the rows of several `RaggedIds`."""
        lengths = np.concatenate([ragged.lengths for ragged in raggeds])
        return cls(np.concatenate([ragged.ids for ragged in raggeds]), np.cumsum([0, *lengths]))

    def __len__(self):
        return len(self.splits) - 1

    def __getitem__(self, row):
        return self.ids[self.splits[row] : self.splits[row + 1]].astype(np.int32)

    def select(self, rows):
        """Return the rows with these indices, as `RaggedIds`."""
        return RaggedIds.from_lists([self[row] for row in rows])

    @property
    def lengths(self):
        """(N,) int64"""
        return np.diff(self.splits)

    def digest(self) -> bytes:
        """Return the SHA-256 of the ids and of their splits."""
        return hashlib.sha256(self.ids.tobytes() + self.splits.tobytes()).digest()

    def pad(self, rows=None, width=None):
        """Pad rows with `<PAD>` -> (N, T) int32.

        Args:
          rows: indices of the rows; None for all.
          width: T; None for the length of the longest of these rows.

        >>> RaggedIds.from_lists([[5, 3], [3]]).pad().tolist()
        [[5, 3], [3, 0]]
        """
        rows = np.arange(len(self)) if rows is None else rows
        lengths = self.lengths[rows]
        columns = np.arange(width or lengths.max())
        indices = self.splits[rows][:, None] + columns  # (N, T)
        padded = self.ids[np.minimum(indices, len(self.ids) - 1)]  # (N, T)
        return np.where(columns < lengths[:, None], padded, PAD).astype(np.int32)


class SentencePairs(NamedTuple):
    """Encoded sentence pairs."""

    X: RaggedIds  # source ids, each row ends with </S>
    Y: RaggedIds  # target ids, each row ends with </S>
    Sources: list[str]  # the source sentences of X, as they were encoded
    Targets: list[str]  # the target sentences of Y, as they were encoded
    rows: list[int]  # index of each pair in the text

    @classmethod
    def concatenate(cls, pairs):
        """Build from several `SentencePairs`."""
        X, Y, *lists = zip(*pairs, strict=True)
        lists = (list(itertools.chain(*column)) for column in lists)
        return cls(RaggedIds.concatenate(X), RaggedIds.concatenate(Y), *lists)


class EncodedText(NamedTuple):
    """The pairs of a text, or of a block of it, and a count of those left out."""

    data: SentencePairs
    total: int  # pairs in the text
    empty_pairs: list[int]  # indices of the pairs with an empty side
    has_words: tuple[bool, bool]  # whether cleaning left any text on each side

    def shifted(self, start):
        """Return this block with indices that count from `start`."""
        data = self.data._replace(rows=[start + row for row in self.data.rows])
        return self._replace(data=data, empty_pairs=[start + row for row in self.empty_pairs])

    @classmethod
    def concatenate(cls, blocks):
        """Build from the blocks of a text, in their order. Indices then count from its start."""
        starts = itertools.accumulate((block.total for block in blocks), initial=0)
        blocks = [block.shifted(start) for block, start in zip(blocks, starts, strict=False)]
        data, totals, empty_pairs, has_words = zip(*blocks, strict=True)
        return cls(
            SentencePairs.concatenate(data),
            sum(totals),
            list(itertools.chain(*empty_pairs)),
            tuple(map(any, zip(*has_words, strict=True))),
        )


class EvalSet(NamedTuple):
    """A test or development set."""

    data: SentencePairs  # the pairs that the model can read
    references: list[str]  # the target of every pair, as it is in the file
    empty_pairs: list[int]  # indices of the pairs with an empty side, which are left out

    def digest(self) -> str:
        """Return the SHA-256 of the text. It does not depend on the path of the file."""
        text = hashlib.sha256()
        for line in [*self.data.Sources, *self.references]:
            text.update(line.encode("utf-8", "surrogateescape") + b"\n")
        return text.hexdigest()


# Encoding ----------------------------------------------------------------------


def create_data(source_sents, target_sents, source_vocab, target_vocab, maxlen=None):
    """Encode the pairs that have at most `maxlen` tokens on both sides.

    Args:
      source_sents, target_sents: lists of sentences of the same length; cleaned ones for words.
      source_vocab, target_vocab: `WordVocab` or `SubwordVocab`.
      maxlen: T, tokens in a sentence, `</S>` included; None for any number.

    Returns:
      SentencePairs.
    """
    xs, ys = source_vocab.encode(source_sents), target_vocab.encode(target_sents)
    lengths = [max(len(x), len(y)) for x, y in zip(xs, ys, strict=True)]
    rows = [row for row, length in enumerate(lengths) if maxlen is None or length <= maxlen]
    return SentencePairs(
        RaggedIds.from_lists([xs[row] for row in rows]),
        RaggedIds.from_lists([ys[row] for row in rows]),
        [source_sents[row] for row in rows],
        [target_sents[row] for row in rows],
        rows,
    )


def apply_bpe_dropout(data, vocabs, dropout, seed, epoch) -> SentencePairs:
    """Tokenize the same pairs again, differently in each epoch (BPE-dropout).

    Args:
      data: SentencePairs, with their text.
      vocabs: two `SubwordVocab`.
      dropout: probability of skipping a merge.
    """
    seeds = np.random.SeedSequence([seed, epoch]).generate_state(2).tolist()
    sides = zip(vocabs, (data.Sources, data.Targets), seeds, strict=True)
    X, Y = (RaggedIds.from_lists(vocab.encode(side, dropout, seed)) for vocab, side, seed in sides)
    return data._replace(X=X, Y=Y)


def load_train_data(hp, vocabs, cache_ids=True) -> SentencePairs:
    """Load and encode the training text. Print how many pairs are left out, and why.

    The text itself is kept only for BPE-dropout, which tokenizes it again. The ids of a large
    corpus are cached in a file next to the vocabularies.

    Args:
      cache_ids: whether that file may be written.

    Raises:
      InputError: a file cannot be read, the sides differ in length, or no pair is left.
    """
    check_text_files(hp, "train")
    paths = hp.source_train, hp.target_train
    encoded = None if hp.bpe_dropout else read_id_cache(hp, vocabs)
    if not encoded:
        pair_blocks = itertools.chain(
            *(read_pair_blocks(hp, files) for files in training_files(hp))
        )
        encoded = encode_pairs(paths, pair_blocks, vocabs, hp.maxlen, hp.bpe_dropout > 0)
        if encoded.total >= ID_CACHE_MIN_PAIRS and cache_ids and not hp.bpe_dropout:
            try:
                write_id_cache(hp, vocabs, encoded)
            except (InputError, OSError) as error:  # training does not need the cache
                print(f"The token ids are not cached: {error}", file=sys.stderr)
    data, num_empty = encoded.data, len(encoded.empty_pairs)
    print(
        f"Training on {len(data.X)} of {encoded.total} pairs:"
        f" {encoded.total - num_empty - len(data.X)} are longer than maxlen {hp.maxlen},"
        f" {num_empty} have an empty line on a side"
    )
    shares = [unknown_share(side) for side in (data.X, data.Y)]
    token_name = vocabs[0].token_name
    print(f"Unknown {token_name}: {shares[0]:.0%} of the source, {shares[1]:.0%} of the target")
    for path, vocab, share in zip(paths, vocabs, shares, strict=True):
        if share > MAX_UNKNOWN_SHARE:
            remedy = " or lower --min_cnt" if hp.tokenizer == "words" else ""
            raise InputError(
                f"{path}: {share:.0%} of its {token_name} are not in {vocab.path}, so the model"
                " could not learn anything. Check --source_lang, --target_lang and --preprocessed,"
                f" run prepro.py with this text{remedy}"
            )
    return data


def unknown_share(ids) -> float:
    """Return the share of `<UNK>` among the ids other than `</S>`.

    Args:
      ids: RaggedIds.
    """
    return (ids.ids == UNK).sum() / max(1, (ids.ids != EOS).sum())


def warn_unknown(ids, path, vocab):
    """Print a warning if most of a text to translate is `<UNK>`.

    Args:
      ids: RaggedIds, the source.
      path: file of the source.
    """
    share = unknown_share(ids)
    if share > MAX_UNKNOWN_SHARE:
        print(
            f"{path}: {share:.0%} of its {vocab.token_name} are not in {vocab.path}. Check that the"
            " text is in the language that the model translates from",
            file=sys.stderr,
        )


def load_test_data(hp, vocabs, part="test") -> EvalSet:
    """Load and encode the test set, or the development set if `part` is "dev".

    Raises:
      InputError: a file cannot be read, the sides differ in length, or no pair is left.
    """
    check_text_files(hp, part)
    paths = getattr(hp, f"source_{part}"), getattr(hp, f"target_{part}")
    source, target = map(read_test_sentences, paths)
    check_same_segments(source, target)
    check_same_length(source, target)
    sides = source.raw, target.raw
    prepared = (source.cleaned, target.cleaned) if hp.tokenizer == "words" else sides
    encoded = encode_pairs(paths, [(sides, prepared)], vocabs, hp.max_input_tokens)
    warn_unknown(encoded.data.X, paths[0], vocabs[0])
    return EvalSet(encoded.data, target.raw, encoded.empty_pairs)


def encode_lines(lines, vocab, hp, max_tokens=None):
    """Encode lines to translate, one sentence per line. Truncate long ones, skip empty ones.

    Args:
      max_tokens: tokens to keep, `</S>` included; `hp.max_input_tokens` by default.

    Returns:
      (RaggedIds, list, list): the ids of the lines that are not empty; the indices of these
      lines; and the indices of the truncated lines.
    """
    ids = vocab.encode(prepare_sentences(hp, lines))
    nonempty = [row for row, sentence in enumerate(ids) if len(sentence) > 1]  # not only </S>
    max_tokens = max_tokens or hp.max_input_tokens
    truncated = [row for row in nonempty if len(ids[row]) > max_tokens]
    for row in truncated:
        ids[row] = [*ids[row][: max_tokens - 1], EOS]
    return RaggedIds.from_lists([ids[row] for row in nonempty]), nonempty, truncated


def read_pair_blocks(hp, paths):
    """Yield the training pairs in blocks: (both sides, both sides as they are to be encoded).

    Raises:
      InputError: a file cannot be read, or the sides differ in length.
    """
    files = [SentenceFile(path) for path in paths]
    sides = [blocks(file.sentences()) for file in files]
    with tqdm(desc="reading", unit=" pairs", leave=False, mininterval=1, delay=1) as bar:
        for block in itertools.zip_longest(*sides, fillvalue=[]):
            if len(block[0]) != len(block[1]):
                break
            yield block, [prepare_sentences(hp, side) for side in block]
            bar.update(len(block[0]))
    for _ in itertools.chain(*sides):  # count the rest of the longer file
        pass
    check_same_length(*files)


def prepare_sentences(hp, sentences):
    """Clean sentences for the word vocabulary. Subwords need no cleaning."""
    if hp.tokenizer == "bpe" or not sentences:
        return sentences
    return clean("\n".join(sentences)).split("\n")


def encode_pairs(paths, pair_blocks, vocabs, maxlen, with_text=True) -> EncodedText:
    """Encode the pairs that have text on both sides and are not too long.

    A pair with an empty side is left out as a pair. The 2017 code dropped empty lines from each
    side alone, and paired every later sentence with the wrong translation.

    Args:
      paths: the two files, for messages.
      pair_blocks: as `read_pair_blocks` yields them.
      vocabs: the two vocabularies.
      maxlen: as in `create_data`.
      with_text: whether to keep `Sources`, `Targets` and `rows`, next to X and Y.

    Raises:
      InputError: no pair is left.
    """
    encoded = [encode_block(*block, vocabs, maxlen, with_text) for block in pair_blocks]
    if not any(block.total for block in encoded):
        raise empty_text_error(split_paths(paths[0])[0], num_sentences=0)
    encoded = EncodedText.concatenate(encoded)
    check_pairs_left(paths, vocabs, maxlen, encoded)
    return encoded


def encode_block(sides, prepared, vocabs, maxlen, with_text) -> EncodedText:
    """Encode one block of pairs; `encode_pairs` describes the arguments."""
    nonempty, empty_pairs = split_empty(sides)
    prepared = [[side[row] for row in nonempty] for side in prepared]
    data = create_data(*prepared, *vocabs, maxlen)
    if with_text:
        data = data._replace(rows=[nonempty[row] for row in data.rows])
    else:
        data = SentencePairs(data.X, data.Y, [], [], [])
    has_words = tuple(any(line.strip() for line in side) for side in prepared)
    return EncodedText(data, len(sides[0]), empty_pairs, has_words)


def split_empty(sides):
    """Return the indices of the pairs with text on both sides, and of the others.

    >>> split_empty([["eins", "", "drei"], ["one", "two", "three"]])
    ([0, 2], [1])
    """
    nonempty, empty = [], []
    for row, pair in enumerate(zip(*sides, strict=True)):
        (nonempty if all(line.strip() for line in pair) else empty).append(row)
    return nonempty, empty


def check_pairs_left(paths, vocabs, maxlen, encoded):
    """Check that empty lines, cleaning and `maxlen` leave at least one pair.

    Args:
      paths, vocabs, maxlen: as in `encode_pairs`.
      encoded: EncodedText.

    Raises:
      InputError: no pair is left. The message says why.
    """
    num_sentences = encoded.total - len(encoded.empty_pairs)
    if not num_sentences:
        raise InputError(
            f"{paths[0]} and {paths[1]}: every pair has an empty line on a side. Check that the"
            " files belong together"
        )
    for path, has_words in zip(paths, encoded.has_words, strict=True):
        if not has_words:
            raise InputError(
                f"{path}: cleaning leaves nothing of its {num_sentences} sentences, since words"
                " consist of Latin letters and apostrophes. For text in another script, choose a"
                " recipe with subwords, for example --recipe tiny"
            )
    if not len(encoded.data.X):
        raise InputError(
            f"{paths[0]} and {paths[1]}: none of {num_sentences} pairs is at most {maxlen}"
            f" {vocabs[0].token_name} long on both sides, </S> included. Train with a larger"
            " --maxlen"
        )


# Cache of ids ------------------------------------------------------------------


def id_cache_key(hp, vocabs) -> str:
    """Return everything that the ids of the training text depend on."""
    paths = [path for pair in training_files(hp) for path in pair]
    files = [os.stat(path) for path in paths]
    files = [(file.st_size, file.st_mtime_ns) for file in files]
    paths = [*map(os.path.abspath, paths)]
    return json.dumps([paths, files, fingerprints(vocabs), hp.min_cnt, hp.maxlen])


def read_id_cache(hp, vocabs) -> EncodedText | None:
    """Read the file of `write_id_cache`, or return None if it is not of this very text."""
    try:
        with np.load(hp.id_cache_path) as arrays:
            if str(arrays["key"]) != id_cache_key(hp, vocabs):
                return None
            sides = [RaggedIds(arrays[f"{side}_ids"], arrays[f"{side}_splits"]) for side in "XY"]
            data = SentencePairs(*sides, [], [], [])
            return EncodedText(data, int(arrays["total"]), arrays["empty"], (True, True))
    except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        return None  # the cache is missing or damaged, or the text is missing


def write_id_cache(hp, vocabs, encoded):
    """Write the ids of the training text to a file, without compression.

    Args:
      encoded: EncodedText.
    """
    arrays = dict(key=id_cache_key(hp, vocabs), total=encoded.total)
    arrays["empty"] = np.array(encoded.empty_pairs, np.int64)
    for side, ragged in zip("XY", (encoded.data.X, encoded.data.Y), strict=True):
        arrays |= {f"{side}_ids": ragged.ids, f"{side}_splits": ragged.splits}
    with atomic_open(hp.id_cache_path) as file:
        np.savez(file, **arrays)


# Batches -----------------------------------------------------------------------


def get_batch_data(data, hp, epoch, skip=0):
    """Make the batches of one epoch. Only `hp.seed` and `epoch` decide their order.

    Args:
      data: SentencePairs.
      hp: Hyperparams.
      epoch: counted from 1.
      skip: number of batches to leave out, since the model was trained on them before.

    Returns:
      (tf.data.Dataset, int): batches (x, y) of (N, T) int32, and the number of batches in the
      epoch. T is `hp.pad_to`, or the length of the batch's longest row.
    """
    batches = plan_batches(data, hp, epoch)
    X, Y = (
        tf.RaggedTensor.from_row_splits(side.ids, side.splits, validate=False)
        for side in (data.X, data.Y)
    )

    def gather(rows):
        padded = (tf.gather(side, rows).to_tensor(shape=[None, hp.pad_to]) for side in (X, Y))
        return tuple(tf.cast(side, tf.int32) for side in padded)

    rows = tf.RaggedTensor.from_row_lengths(np.concatenate(batches), [*map(len, batches)])
    dataset = tf.data.Dataset.from_tensor_slices(rows).skip(skip).map(gather).prefetch(2)
    options = tf.data.Options()
    # Workers share the batches of an epoch; they do not read different files.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # The autotuner's thread sleeps twice as long each time, and the end of an epoch waits until
    # it wakes up: 11 of 41 seconds.
    options.autotune.enabled = False
    return dataset.with_options(options), len(batches)


def plan_batches(data, hp, epoch):
    """Return the row indices of each batch of an epoch, a list of arrays.

    Only `hp.seed` and `epoch`, counted from 1, decide the order.
    """
    rng = np.random.default_rng([hp.seed, epoch])
    if hp.batch_tokens:
        return batch_by_tokens(data, hp.batch_tokens, rng)
    return batch_by_sentences(len(data.X), hp.batch_size, rng)


def batch_by_sentences(count, batch_size, rng):
    """Split the row indices 0 to `count` at random into arrays of `batch_size`.

    As in the 2017 code, rows that do not fill a batch are left out, other ones in each epoch. A
    corpus smaller than one batch is one batch.
    """
    batch_size = min(batch_size, count)
    order = rng.permutation(count)
    return np.split(order[: count - count % batch_size], count // batch_size)


def batch_by_tokens(data, batch_tokens, rng):
    """Split all row indices of `data` into arrays of rows of similar length.

    The longer side of a batch, with its padding, has at most `batch_tokens` tokens, unless a
    single pair is longer.
    """
    source, target = data.X.lengths, data.Y.lengths
    # Sort by target length, then by source length in steps of 3, so that each epoch has
    # other batches. 16-bit keys sort fastest, and suffice: sentences of 2**16 tokens and more are
    # rare enough to share a key.
    order = rng.permutation(len(target))
    for lengths in (source // 3, target):
        keys = np.minimum(lengths, 2**16 - 1).astype(np.uint16)[order]
        order = order[np.argsort(keys, kind="stable")]
    longer = np.maximum(source, target)[order]
    batches, first = [], 0
    while first < len(order):
        widths = np.maximum.accumulate(longer[first : first + batch_tokens])
        padded = widths * np.arange(1, len(widths) + 1)
        end = first + max(1, int(np.searchsorted(padded, batch_tokens, side="right")))
        batches.append(order[first:end])
        first = end
    return [batches[i] for i in rng.permutation(len(batches))]
