"""From text to batches: sentence pairs as ids, and the batches of an epoch."""

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

from hparams import InputError, whole_file
from text import (
    END,
    PAD,
    UNK,
    check_same_length,
    check_text_files,
    clean,
    empty_text_error,
    fingerprints,
    in_blocks,
    read_corpus,
    read_test,
)

LARGE = 200_000  # pairs of a corpus whose ids are kept in a file
MAX_UNKNOWN_SHARE = 0.9  # more <UNK> than that, and the vocabulary is not of this text


@dataclasses.dataclass(frozen=True)
class Ragged:
    """Sequences of ids of any length, one behind the other."""

    ids: np.ndarray  # (sum of their lengths,) uint16, or int32 where that is too small
    splits: np.ndarray  # (N + 1,) int64, where each begins and the last one ends

    @classmethod
    def of(cls, sequences):
        """A list of lists of ids as one `Ragged`."""
        splits = np.cumsum([0, *map(len, sequences)])
        ids = np.fromiter((i for ids in sequences for i in ids), np.int32, splits[-1])
        return cls(ids if ids.max(initial=0) >= 2**16 else ids.astype(np.uint16), splits)

    @classmethod
    def joined(cls, parts):
        """Several, one behind the other, as one."""
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(np.concatenate([part.ids for part in parts]), np.cumsum([0, *lengths]))

    def __len__(self):
        return len(self.splits) - 1

    def __getitem__(self, row):
        return self.ids[self.splits[row] : self.splits[row + 1]].astype(np.int32)

    @property
    def lengths(self):
        """(N,) int64"""
        return np.diff(self.splits)

    def digest(self):
        """SHA-256 of the ids and of where they are split, bytes."""
        return hashlib.sha256(self.ids.tobytes() + self.splits.tobytes()).digest()

    def pad(self, rows=None, width=None):
        """Some rows, or all, with `<PAD>` behind each up to `width`, or to the longest.

        >>> Ragged.of([[5, 3], [3]]).pad().tolist()
        [[5, 3], [3, 0]]
        """
        rows = np.arange(len(self)) if rows is None else rows
        lengths = self.lengths[rows]
        columns = np.arange(width or lengths.max())
        indices = self.splits[rows][:, None] + columns  # (N, T)
        padded = self.ids[np.minimum(indices, len(self.ids) - 1)]  # (N, T)
        return np.where(columns < lengths[:, None], padded, PAD).astype(np.int32)


class Data(NamedTuple):
    """Encoded sentence pairs."""

    X: Ragged  # source ids, </S> at the end of each
    Y: Ragged  # target ids, the same
    Sources: list[str]  # the source sentences of X, as they were encoded
    Targets: list[str]  # the target sentences of Y, as they were encoded
    rows: list[int]  # which of the given pairs each row is, counted from 0

    @classmethod
    def joined(cls, parts):
        """Several, one behind the other, as one."""
        X, Y, *lists = zip(*parts, strict=True)
        lists = (list(itertools.chain(*part)) for part in lists)
        return cls(Ragged.joined(X), Ragged.joined(Y), *lists)


class EvalData(NamedTuple):
    """A test set: what the model sees, and all that there is to score against."""

    data: Data
    references: list[str]  # every pair's target as it stands in the file
    empty: list[int]  # pairs with nothing on a side, which cannot be translated or scored

    def digest(self):
        """SHA-256 of the text, in hexadecimal digits: the same set under any path."""
        text = hashlib.sha256()
        for line in [*self.data.Sources, *self.references]:
            text.update(line.encode("utf-8", "surrogateescape") + b"\n")
        return text.hexdigest()


# Encoding ----------------------------------------------------------------------


def create_data(source_sents, target_sents, source_vocab, target_vocab, maxlen=None):
    """Encode the pairs that are at most `maxlen` long on both sides.

    Args:
      source_sents, target_sents: sentences, equally many; of words, cleaned ones.
      source_vocab, target_vocab: `Words` or `Pieces`.
      maxlen: T, tokens in a sentence, `</S>` included; None for any number.

    Returns:
      Data.
    """
    xs, ys = source_vocab.encode(source_sents), target_vocab.encode(target_sents)
    lengths = [max(len(x), len(y)) for x, y in zip(xs, ys, strict=True)]
    rows = [row for row, length in enumerate(lengths) if maxlen is None or length <= maxlen]
    return Data(
        Ragged.of([xs[row] for row in rows]),
        Ragged.of([ys[row] for row in rows]),
        [source_sents[row] for row in rows],
        [target_sents[row] for row in rows],
        rows,
    )


def cut_anew(data, vocabs, dropout, seed, epoch):
    """The same pairs, cut into other pieces than in any other epoch (BPE-dropout).

    Args:
      data: Data.
      vocabs: two `Pieces`.
      dropout: share of merges left out.
    """
    seeds = np.random.SeedSequence([seed, epoch]).generate_state(2).tolist()
    sides = zip(vocabs, (data.Sources, data.Targets), seeds, strict=True)
    X, Y = (Ragged.of(vocab.encode(side, dropout, seed)) for vocab, side, seed in sides)
    return data._replace(X=X, Y=Y)


def load_train_data(hp, vocabs, cache_ids=True):
    """The training text as `Data`; prints how much of it was kept, and why.

    The sentences themselves stay only for BPE-dropout, which cuts them anew. The ids of
    a large corpus are kept in a file next to the vocabularies, for the next time.

    Args:
      cache_ids: whether that file may be written.

    Raises:
      InputError: a file cannot be read, the sides differ in length, or no pair is left.
    """
    check_text_files(hp, "train")
    paths = hp.source_train, hp.target_train
    kept = None if hp.bpe_dropout else read_ids(hp, vocabs)
    if kept:
        data, total, empty = kept
    else:
        blocks = train_blocks(hp, paths)
        data, total, empty = encode_pairs(hp, paths, blocks, vocabs, hp.maxlen, hp.bpe_dropout > 0)
        if total >= LARGE and cache_ids and not hp.bpe_dropout:
            try:
                write_ids(hp, vocabs, data, total, empty)
            except (InputError, OSError) as error:  # they can be made again
                print(f"The ids are not kept: {error}", file=sys.stderr)
    print(
        f"Training on {len(data.X)} of {total} pairs:"
        f" {total - len(empty) - len(data.X)} are longer than maxlen {hp.maxlen},"
        f" {len(empty)} have an empty line on a side"
    )
    shares = [unknown_share(side) for side in (data.X, data.Y)]
    print(
        f"<UNK> stands for {shares[0]:.0%} of the source {hp.tokens} and {shares[1]:.0%} of the"
        " target's"
    )
    for path, vocab, share in zip(paths, vocabs, shares, strict=True):
        if share > MAX_UNKNOWN_SHARE:
            remedy = " or lower --min_cnt" if hp.tokens == "words" else ""
            raise InputError(
                f"{path}: {share:.0%} of its {hp.tokens} are not in {vocab.path}, so that nothing"
                " can be learned. Check --source_lang, --target_lang and --preprocessed, run"
                f" prepro.py with this text{remedy}"
            )
    return data


def unknown_share(side):
    """The share of a side's ids that are `<UNK>`, `</S>` not counted.

    Args:
      side: Ragged.
    """
    return (side.ids == UNK).sum() / max(1, (side.ids != END).sum())


def warn_unknown(side, path, vocab):
    """Print a warning where most of a text to translate is `<UNK>`.

    Args:
      side: Ragged, the source ids.
      path: where they come from.
    """
    share = unknown_share(side)
    if share > MAX_UNKNOWN_SHARE:
        print(
            f"{path}: {share:.0%} of it is not in {vocab.path}. Is it in the language that the"
            " model translates from?",
            file=sys.stderr,
        )


def load_test_data(hp, vocabs, part="test"):
    """The test set as `EvalData`, or the development set where `part` is "dev".

    Raises:
      InputError: a file cannot be read, the sides differ in length, or no pair is left.
    """
    check_text_files(hp, part)
    paths = getattr(hp, f"source_{part}"), getattr(hp, f"target_{part}")
    tags = [], []
    (source, sources, left), (target, targets, right) = map(read_test, paths, tags)
    same_segments(paths, left, right)
    check_same_length(paths, [len(sources), len(targets)], tags)
    sides = sources, targets
    cleaned = (source, target) if hp.tokens == "words" else sides
    data, _, empty = encode_pairs(hp, paths, [(sides, cleaned)], vocabs, hp.longest)
    warn_unknown(data.X, paths[0], vocabs[0])
    return EvalData(data, targets, empty)


def encode_lines(lines, vocab, hp, longest=None):
    """Encode what is to be translated, a sentence a line.

    Args:
      longest: tokens that can be read, `</S>` included; `hp.longest` if not given.

    Returns:
      (Ragged, list, list): the ids of the lines in which there is something; the numbers of
      those lines, counted from 0; and of those whose end is left out, since they are longer.
    """
    ids = vocab.encode(clean_all(hp, lines))
    filled = [row for row, sentence in enumerate(ids) if len(sentence) > 1]  # not </S> alone
    longest = longest or hp.longest
    cut = [row for row in filled if len(ids[row]) > longest]
    for row in cut:
        ids[row] = [*ids[row][: longest - 1], END]
    return Ragged.of([ids[row] for row in filled]), filled, cut


def train_blocks(hp, paths):
    """Yield the training pairs in blocks: both sides, and both sides cleaned.

    Raises:
      InputError: a file cannot be read, or the sides differ in length.
    """
    tags = [], []
    sides = [in_blocks(lines) for lines in map(read_corpus, paths, tags)]
    with tqdm(desc="reading", unit=" pairs", leave=False, mininterval=1, delay=1) as bar:
        for block in itertools.zip_longest(*sides, fillvalue=[]):
            if len(block[0]) != len(block[1]):
                left = [sum(map(len, side)) for side in sides]
                check_same_length(paths, [bar.n + len(block[i]) + left[i] for i in range(2)], tags)
            yield block, [clean_all(hp, part) for part in block]
            bar.update(len(block[0]))
        check_same_length(paths, [bar.n] * 2, tags)


def clean_all(hp, sentences):
    """The sentences as they are to be cut into words or pieces."""
    if hp.tokens == "pieces" or not sentences:
        return sentences
    return clean("\n".join(sentences)).split("\n")


def encode_pairs(hp, paths, blocks, vocabs, maxlen, with_text=True):
    """Encode the pairs that have text on both sides and are not too long.

    A pair goes as a pair. The original dropped empty lines on each side by
    itself, and matched every pair behind one with the wrong translation.

    Args:
      paths: the two files, for messages.
      blocks: both sides, and both sides cleaned, of some pairs and of those behind them.
      vocabs: what they are encoded with.
      maxlen: as in `create_data`.
      with_text: whether `Sources`, `Targets` and `rows` are wanted, or X and Y alone.

    Returns:
      (Data, int, list of int): the pairs, how many there were, and the numbers of
      those with nothing on a side.

    Raises:
      InputError: no pair is left.
    """
    parts, total, empty, words = [], 0, [], [False, False]
    for sides, cleaned in blocks:
        filled, blank = split_empty(sides)
        cleaned = [[side[row] for row in filled] for side in cleaned]
        data = create_data(*cleaned, *vocabs, maxlen)
        if with_text:
            parts.append(data._replace(rows=[total + filled[row] for row in data.rows]))
        else:
            parts.append(Data(data.X, data.Y, [], [], []))
        empty += [total + row for row in blank]
        total += len(sides[0])
        for side in range(2):
            words[side] = words[side] or any(map(str.strip, cleaned[side]))
    left = any(len(part.X) for part in parts)
    refuse_nothing_left(hp, paths, maxlen, total, len(empty), words, left)
    return Data.joined(parts), total, empty


def split_empty(sides):
    """The numbers of the pairs with text on both sides, and of the others.

    >>> split_empty([["eins", "", "drei"], ["one", "two", "three"]])
    ([0, 2], [1])
    """
    filled, empty = [], []
    for row, pair in enumerate(zip(*sides, strict=True)):
        (filled if all(line.strip() for line in pair) else empty).append(row)
    return filled, empty


def same_segments(paths, *places):
    """Raise InputError where two XML files have segments of different ids in one place.

    Args:
      places: of both files, what `read_segments` tells of its segments.
    """
    for (one, one_id), (other, other_id) in zip(*places, strict=False):
        if one_id and other_id and one_id != other_id:
            raise InputError(
                f"{paths[0]}:{one}: segment {one_id} stands where {paths[1]}:{other} has segment"
                f" {other_id}: the two must have the same segments in the same order"
            )


def refuse_nothing_left(hp, paths, maxlen, total, empty, words, left):
    """Raise InputError where empty lines, cleaning or `maxlen` leave no pair; say which.

    Args:
      maxlen: as in `create_data`.
      total, empty: how many pairs there were, and how many with nothing on a side.
      words: for each side, whether cleaning left any word of it.
      left: whether a pair is left.
    """
    if not total:
        raise empty_text_error(paths[0], 0, os.path.getsize(paths[0]))
    if empty == total:
        raise InputError(f"{paths[0]} and {paths[1]}: every pair has an empty line on a side")
    for path, found in zip(paths, words, strict=True):
        if not found:
            raise InputError(
                f"{path}: cleaning leaves nothing of its {total - empty} sentences, since words"
                " are of Latin letters and apostrophes only: text in another script needs pieces,"
                " as with --recipe tiny"
            )
    if not left:
        raise InputError(
            f"{paths[0]} and {paths[1]}: none of {total - empty} pairs is at most {maxlen}"
            f" {hp.tokens} long on both sides, </S> counted: train with a larger --maxlen"
        )


# Ids on disk -------------------------------------------------------------------


def ids_key(hp, vocabs):
    """What the ids of the training text depend on, a str."""
    files = [os.stat(path) for path in (hp.source_train, hp.target_train)]
    files = [(file.st_size, file.st_mtime_ns) for file in files]
    paths = [os.path.abspath(path) for path in (hp.source_train, hp.target_train)]
    return json.dumps([paths, files, fingerprints(vocabs), hp.min_cnt, hp.maxlen])


def read_ids(hp, vocabs):
    """What `write_ids` has written of this very text, as `encode_pairs` gives it; or None."""
    try:
        with np.load(hp.ids_path) as arrays:
            if str(arrays["key"]) != ids_key(hp, vocabs):
                return None
            sides = [Ragged(arrays[f"{side}_ids"], arrays[f"{side}_splits"]) for side in "XY"]
            return Data(*sides, [], [], []), int(arrays["total"]), arrays["empty"]
    except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile):
        return None  # not there, or not whole, or the text is not there


def write_ids(hp, vocabs, data, total, empty):
    """Keep the ids of the training text in a file, without compression."""
    arrays = dict(key=ids_key(hp, vocabs), total=total, empty=np.array(empty, np.int64))
    for side, ragged in zip("XY", (data.X, data.Y), strict=True):
        arrays |= {f"{side}_ids": ragged.ids, f"{side}_splits": ragged.splits}
    with whole_file(hp.ids_path) as file:
        np.savez(file, **arrays)


# Batches -----------------------------------------------------------------------


def get_batch_data(data, hp, epoch, done=0):
    """The batches of one epoch, in an order that only `hp.seed` and `epoch` decide.

    Args:
      data: Data.
      hp: Hyperparams.
      epoch: counted from 1.
      done: batches of it that are left out, since they were trained on before.

    Returns:
      (tf.data.Dataset, int): batches (x, y) of (N, T) int32, and how many the epoch has.
      T is `maxlen` where padding is read from the activations, else that of the longest.
    """
    batches = plan_batches(data, hp, epoch)
    X, Y = (
        tf.RaggedTensor.from_row_splits(side.ids, side.splits, validate=False)
        for side in (data.X, data.Y)
    )

    def gather(rows):
        padded = (tf.gather(side, rows).to_tensor(shape=[None, hp.width]) for side in (X, Y))
        return tuple(tf.cast(side, tf.int32) for side in padded)

    rows = tf.RaggedTensor.from_row_lengths(np.concatenate(batches), [*map(len, batches)])
    dataset = tf.data.Dataset.from_tensor_slices(rows).skip(done).map(gather).prefetch(2)
    options = tf.data.Options()
    # Several workers share the batches, not files of them.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # Autotuning sleeps for twice as long each time it has looked, and an epoch that is
    # over waits for it to wake: of 41 seconds, 11.
    options.autotune.enabled = False
    return dataset.with_options(options), len(batches)


def plan_batches(data, hp, epoch):
    """The row numbers of each batch of an epoch, a list of arrays.

    Only `hp.seed` and `epoch`, counted from 1, decide the order.
    """
    rng = np.random.default_rng([hp.seed, epoch])
    if hp.batch_tokens:
        return batches_of_tokens(data, hp.batch_tokens, rng)
    return batches_of_pairs(len(data.X), hp.batch_size, rng)


def batches_of_pairs(count, batch_size, rng):
    """Row numbers 0 to `count`, a list of arrays of `batch_size`.

    As documented the last batch is left out where it would be smaller than the
    others, each epoch another one; a corpus smaller than one batch is one batch.
    """
    batch_size = min(batch_size, count)
    order = rng.permutation(count)
    return np.split(order[: count - count % batch_size], count // batch_size)


def batches_of_tokens(data, batch_tokens, rng):
    """Row numbers of `data`, a list of arrays; all of them, and like lengths together.

    A batch holds as many pairs as keep its padded longer side at `batch_tokens` at
    most, and at least one.
    """
    source, target = data.X.lengths, data.Y.lengths
    # By target first; by source in steps of 3, so that each epoch mixes pairs anew. Numbers of
    # 16 bits are sorted in no time, and longer sentences than that need not be told apart.
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
