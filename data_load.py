"""Encode sentence pairs as ids, and make the batches of an epoch."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from forms import without_final_mark
from ids import EOS, UNK, RaggedIds, RaggedWriter, smallest_dtype
from runtime.errors import InputError
from runtime.files import lock_file
from runtime.parallel import map_on_cores
from text import normalize_lines, open_unpacked, read_eval_set, read_pairs, training_files

MARK_STREAM = 1  # its random numbers are not those of the order of the batches
MAX_UNKNOWN_SHARE = 0.9  # with more <UNK>, the vocabulary belongs to another text


class SentencePairs(NamedTuple):
    """Encoded sentence pairs."""

    X: RaggedIds  # source ids, each row ends with </S>
    Y: RaggedIds  # target ids, each row ends with </S>
    Sources: list[str]  # the source sentences of X, as they were encoded
    Targets: list[str]  # the target sentences of Y, as they were encoded
    rows: list[int]  # index of each pair in the text


class EncodedText(NamedTuple):
    """The pairs of a text, or of a block of it, and a count of those left out."""

    data: SentencePairs
    total: int  # pairs in the text
    num_empty: int  # pairs with an empty side
    empty_pairs: list[int]  # their indices, if the text is kept
    has_words: tuple[bool, bool]  # whether cleaning left any text on each side


class EvalSet(NamedTuple):
    """A test or development set."""

    data: SentencePairs  # the pairs that the model can read
    references: list[list[str]]  # one or several, each the targets of all pairs, as in the file
    empty_pairs: list[int]  # indices of the pairs with an empty side, which are left out

    def digest(self) -> str:
        """Return the SHA-256 of the text. It does not depend on the path of the file."""
        text = hashlib.sha256()
        for line in itertools.chain(self.data.Sources, *self.references):
            text.update(line.encode("utf-8", "surrogateescape") + b"\n")
        return text.hexdigest()


# Encoding ----------------------------------------------------------------------


def create_data(source_sents, target_sents, source_vocab, target_vocab, maxlen):
    """Encode the pairs that have at most `maxlen` tokens on both sides.

    Args:
      source_sents, target_sents: prepared sentences, lists of the same length.
      source_vocab, target_vocab: `Vocab`.
      maxlen: T, tokens in a sentence, `</S>` included.

    Returns:
      SentencePairs.
    """
    xs, ys = source_vocab.encode(source_sents), target_vocab.encode(target_sents)
    pairs = enumerate(zip(xs, ys, strict=True))
    rows = [row for row, (x, y) in pairs if max(len(x), len(y)) <= maxlen]
    return SentencePairs(
        RaggedIds.from_lists([xs[row] for row in rows]),
        RaggedIds.from_lists([ys[row] for row in rows]),
        [source_sents[row] for row in rows],
        [target_sents[row] for row in rows],
        rows,
    )


def pairs_of_epoch(data, vocabs, hp, epoch) -> SentencePairs:
    """Return the same pairs as an epoch trains on them.

    With BPE-dropout (Provilkov et al. 2020) they have other subwords in each epoch, with
    `hp.missing_mark` some sources lack their final mark. `hp.seed` and `epoch`, counted from 1,
    decide which.

    Args:
      data: SentencePairs, with their text.
    """
    if not hp.changes_text:
        return data
    draws = np.random.default_rng([hp.seed, epoch, MARK_STREAM]).random(len(data.Sources))
    sources = [
        without_final_mark(source) if draw < hp.missing_mark else source
        for source, draw in zip(data.Sources, draws, strict=True)
    ]
    seeds = np.random.SeedSequence([hp.seed, epoch]).generate_state(2).tolist()
    X, Y = (
        RaggedIds.from_lists(vocab.encode(side, hp.bpe_dropout, seed))
        for vocab, side, seed in zip(vocabs, (sources, data.Targets), seeds, strict=True)
    )
    return data._replace(X=X, Y=Y)


def load_train_data(hp, vocabs) -> SentencePairs:
    """Load and encode the training text. Print how many pairs are left out, and why.

    The ids are in files next to the vocabularies, which are mapped into memory. If
    `hp.changes_text`, each epoch encodes the text again, and both are in memory.
    """
    paths = hp.source_train, hp.target_train
    encoded = encode_training_text(hp, vocabs)
    check_pairs_left(paths, vocabs, hp.maxlen, encoded)
    data, num_empty = encoded.data, encoded.num_empty
    print(
        f"Training on {len(data.X)} of {encoded.total} pairs:"
        f" {encoded.total - num_empty - len(data.X)} are longer than maxlen {hp.maxlen},"
        f" {num_empty} have an empty line on a side"
    )
    sides = [*zip(paths, (data.X, data.Y), vocabs, strict=True)]
    shares = [unknown_share(ids, vocab) for _, ids, vocab in sides]
    token_name = vocabs[0].token_name
    print(f"Unknown {token_name}: {shares[0]:.0%} of the source, {shares[1]:.0%} of the target")
    for (path, _, vocab), share in zip(sides, shares, strict=True):
        if share > MAX_UNKNOWN_SHARE:
            raise InputError(
                f"{path}: {share:.0%} of its {token_name} are not in {vocab.path}, so the model"
                " could not learn anything. Check --source_lang, --target_lang and --preprocessed,"
                " or run prepro.py with this text"
            )
    return data


def encode_training_text(hp, vocabs) -> EncodedText:
    """Encode the training text into files, unless there are files of this text already."""
    if hp.changes_text:
        sides = [], []
        for block in read_training_pairs(hp):
            for side, sentences in zip(sides, block, strict=True):
                side += sentences
        return encode_training_block(hp, vocabs, sides)
    key = key_of_ids(hp, vocabs)
    folder = Path(hp.preprocessed) / "train_ids" / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    with lock_file(folder.parent / "lock"):  # several workers start at the same time
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
                write_id_files(Path(temporary), hp, vocabs)
                if key_of_ids(hp, vocabs) != key:
                    raise InputError(
                        f"{hp.source_train} and {hp.target_train}: a file has changed while it was"
                        " read. Run the command again when the files are complete"
                    )
                for other in folder.parent.glob("ids-*"):  # a training that reads them keeps them
                    shutil.rmtree(other, ignore_errors=True)
                os.replace(temporary, folder)
        return read_id_files(folder, vocabs)


def unknown_share(ids, vocab) -> float:
    """Return the share of `<UNK>` in a RaggedIds, in which `</S>` and single spaces do not count.

    Sentencepiece makes two subwords of an unknown word: a space, and `<UNK>`.
    """
    counts = ids.counts(len(vocab))
    not_counted = [i for i in (EOS, vocab.space_id) if i is not None]
    return counts[UNK] / max(1, counts.sum() - counts[not_counted].sum())


def warn_unknown(ids, path, vocab):
    """Print a warning if most of a text to translate is `<UNK>`.

    Args:
      ids: RaggedIds, the source.
      path: file of the source.
    """
    share = unknown_share(ids, vocab)
    if share > MAX_UNKNOWN_SHARE:
        print(
            f"{path}: {share:.0%} of its {vocab.token_name} are not in {vocab.path}. Check that the"
            " text is in the language that the model translates from",
            file=sys.stderr,
        )


def load_test_data(hp, vocabs, part="test") -> EvalSet:
    """Load and encode the test set, or the development set if `part` is "dev".

    The first reference of a pair is its target.
    """
    source, references = read_eval_set(hp, part)
    paths = getattr(hp, f"source_{part}"), getattr(hp, f"target_{part}")
    sides = source, references[0]
    prepared = [vocab.clean(side) for vocab, side in zip(vocabs, sides, strict=True)]
    encoded = encode_block(sides, prepared, vocabs, hp.max_input_tokens)
    check_pairs_left(paths, vocabs, hp.max_input_tokens, encoded)
    warn_unknown(encoded.data.X, paths[0], vocabs[0])
    return EvalSet(encoded.data, references, encoded.empty_pairs)


def encode_lines(lines, vocab, hp, max_tokens=None):
    """Encode lines to translate, one sentence per line. Truncate long ones, skip empty ones.

    Args:
      max_tokens: tokens to keep, `</S>` included; `hp.max_input_tokens` by default.

    Returns:
      (RaggedIds, list, list): the ids of the lines that are not empty; the indices of these
      lines; and the indices of the truncated lines.
    """
    ids = vocab.encode(vocab.prepare(lines))
    nonempty = [row for row, sentence in enumerate(ids) if len(sentence) > 1]  # not only </S>
    max_tokens = max_tokens or hp.max_input_tokens
    truncated = [row for row in nonempty if len(ids[row]) > max_tokens]
    for row in truncated:
        ids[row] = [*ids[row][: max_tokens - 1], EOS]
    return RaggedIds.from_lists([ids[row] for row in nonempty]), nonempty, truncated


def encode_training_block(hp, vocabs, sides) -> EncodedText:
    """Encode a block that `read_pairs` yields. Its text is kept if `hp.changes_text`."""
    sides = [*map(normalize_lines, sides)]
    prepared = [vocab.clean(side) for vocab, side in zip(vocabs, sides, strict=True)]
    return encode_block(sides, prepared, vocabs, hp.maxlen, with_text=hp.changes_text)


def encode_block(sides, prepared, vocabs, maxlen, with_text=True) -> EncodedText:
    """Encode the pairs of a block that have text on both sides and are not too long.

    A pair with an empty side is left out as a pair. The 2017 code dropped empty lines from each
    side alone, and paired every later sentence with the wrong translation.

    Args:
      sides, prepared: two lists of sentences, and the same as they are to be encoded.
      vocabs: the two vocabularies.
      maxlen: as in `create_data`.
      with_text: whether to keep the text and the indices of pairs, next to X and Y.
    """
    nonempty, empty_pairs = split_empty(sides)
    prepared = [[side[row] for row in nonempty] for side in prepared]
    data, num_empty = create_data(*prepared, *vocabs, maxlen), len(empty_pairs)
    if with_text:
        data = data._replace(rows=[nonempty[row] for row in data.rows])
    else:
        data, empty_pairs = SentencePairs(data.X, data.Y, [], [], []), []
    has_words = tuple(any(line.strip() for line in side) for side in prepared)
    return EncodedText(data, len(sides[0]), num_empty, empty_pairs, has_words)


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
      paths: the files of source and target, for messages.
      vocabs, maxlen: as in `encode_block`.
      encoded: EncodedText.
    """
    num_sentences = encoded.total - encoded.num_empty
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


# Files of ids ------------------------------------------------------------------


def key_of_ids(hp, vocabs) -> str:
    """Return the name of the folder of ids, a digest of what they depend on."""
    digest = hashlib.sha256(f"{hp.source_train} {hp.min_cnt} {hp.maxlen}".encode())
    for vocab in vocabs:
        digest.update(vocab.content)
    for path in [path for pair in training_files(hp) for path in pair]:
        with open_unpacked(path) as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"ids-{digest.hexdigest()[:16]}"


def read_id_files(folder, vocabs) -> EncodedText:
    """Map the files of `write_id_files` into memory."""
    info = json.loads((folder / "info.json").read_bytes())
    sides = [RaggedIds.open(folder / side, id_dtype(vocabs)) for side in "XY"]
    return EncodedText(SentencePairs(*sides, [], [], []), **info, empty_pairs=[])


def id_dtype(vocabs):
    """Return the smallest type of ids for both vocabularies."""
    return smallest_dtype(max(map(len, vocabs)) - 1)


def read_training_pairs(hp):
    """Yield the pairs of the training text in blocks; see `read_pairs`."""
    for paths in training_files(hp):
        yield from read_pairs(paths, "reading")


def write_id_files(folder, hp, vocabs):
    """Encode the training text, and write it to files block by block, to save memory."""
    sides = read_training_pairs(hp)
    dtype = id_dtype(vocabs)
    total = num_empty = 0
    has_words = np.zeros(2, bool)
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(RaggedWriter(folder / side, dtype)) for side in "XY"]
        for block in map_on_cores(functools.partial(encode_training_block, hp, vocabs), sides):
            data, total, num_empty = block.data, total + block.total, num_empty + block.num_empty
            has_words |= block.has_words
            for writer, ragged in zip(writers, (data.X, data.Y), strict=True):
                writer.add(ragged)
    info = dict(total=total, num_empty=num_empty, has_words=has_words.tolist())
    (folder / "info.json").write_text(json.dumps(info))


# Batches -----------------------------------------------------------------------


def get_batch_data(data, hp, epoch, skip=0, strategy=None):
    """Make the batches of one epoch. Only `hp.seed` and `epoch` decide their order.

    Args:
      data: SentencePairs.
      hp: Hyperparams.
      epoch: counted from 1.
      skip: number of batches to leave out, since the model was trained on them before.
      strategy: tf.distribute.Strategy, which divides each batch among its replicas. Each worker
        reads only the rows of its own replicas.

    Returns:
      (iterator, int): batches (x, y) of (N, T) int32, and the number of batches in the epoch.
      T is `hp.pad_to`, or the length of the longest row.
    """
    plan = plan_batches(data, hp, epoch)
    return prefetch(read_batches(data, plan, hp.pad_to, skip, strategy)), len(plan)


def read_batches(data, plan, pad_to, skip, strategy):
    """Yield the batches of an `EpochPlan`; the arguments are those of `get_batch_data`."""
    import tensorflow as tf  # the processes of `map_on_cores` do not need it

    def read_share(rows, context):
        """Return the share of a replica in a batch, x and y."""
        rows = rows[context.replica_id_in_sync_group :: context.num_replicas_in_sync]
        width = pad_to if len(rows) else 1  # a small batch has no rows for some replicas
        return tuple(tf.constant(side.pad(rows, width)) for side in (data.X, data.Y))

    strategy = strategy or tf.distribute.get_strategy()
    for batch in range(skip, len(plan)):
        share_of = functools.partial(read_share, plan.rows(batch))
        yield strategy.experimental_distribute_values_from_function(share_of)


def prefetch(items):
    """Yield the items of an iterator. A thread computes the next one in the meantime."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, items, None)
            yield item


@dataclasses.dataclass(frozen=True)
class EpochPlan:
    """The rows of each batch of an epoch."""

    order: np.ndarray  # row indices, the rows of a batch side by side, uint32
    starts: np.ndarray  # (batches,), where each batch starts in `order`
    ends: np.ndarray  # (batches,), where it ends

    def __len__(self):
        return len(self.starts)

    def rows(self, batch):
        """Return the row indices of a batch."""
        return self.order[self.starts[batch] : self.ends[batch]]


def plan_batches(data, hp, epoch) -> EpochPlan:
    """Divide the rows of an epoch into batches.

    Only `hp.seed` and `epoch`, counted from 1, decide the order.
    """
    rng = np.random.default_rng([hp.seed, epoch])
    order = np.arange(len(data.X), dtype=np.uint32)  # (N,)
    rng.shuffle(order)
    if hp.batch_tokens:
        return batch_by_tokens(data, order, hp.batch_tokens, rng)
    return batch_by_sentences(order, hp.batch_size)


def batch_by_sentences(order, batch_size) -> EpochPlan:
    """Split rows in random order into batches of `batch_size`.

    An epoch has as many batches as in the 2017 code. Rows that do not fill a batch are left out,
    other ones in each epoch. A corpus smaller than one batch is one batch.
    """
    batch_size = min(batch_size, len(order))
    starts = np.arange(0, len(order) - batch_size + 1, batch_size)
    return EpochPlan(order, starts, starts + batch_size)


def batch_by_tokens(data, order, batch_tokens, rng) -> EpochPlan:
    """Split rows in random order into batches of rows of similar length.

    The longer side of a batch, with its padding, has at most `batch_tokens` tokens, unless a
    single pair is longer.
    """
    X, Y = data.X, data.Y
    # Sort by target length, then by source length in steps of 3, so that each epoch has
    # other batches.
    for side, step in ((X, 3), (Y, 1)):
        keys = (side.lengths_of(order) // step).astype(np.uint16)  # (N,)
        order = order[np.argsort(keys, kind="stable")]
    longer = np.maximum(X.lengths_of(order), Y.lengths_of(order))  # (N,)
    ends, first = [], 0
    while first < len(order):
        most = 1 + batch_tokens // longer[first]  # rows that could fit, and one more
        widths = np.maximum.accumulate(longer[first : first + most])
        padded = widths * np.arange(1, len(widths) + 1)
        first += max(1, int(np.searchsorted(padded, batch_tokens, side="right")))
        ends.append(first)
    batches = rng.permutation(len(ends))
    ends = np.array([0, *ends])
    return EpochPlan(order, ends[:-1][batches], ends[1:][batches])
