"""Encode sentence pairs as ids, and make the batches of an epoch."""

import concurrent.futures
import functools
import hashlib
import itertools
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from support.errors import InputError
from support.files import atomic_open, atomic_write
from text.forms import without_final_mark
from text.ids import EOS, UNK, RaggedIds
from text.lines import normalize_lines, read_eval_set, read_pairs, training_files

MARK_STREAM = 1  # its random numbers are not those of the order of the batches
MAX_UNKNOWN_SHARE = 0.9  # with more <UNK>, the vocabulary belongs to another text
SCANNED_IDS = 2**22  # of a text in which <UNK> are counted
ARRAYS = [f"train.{side}.{name}.npy" for side in ("source", "target") for name in ("ids", "splits")]


class SentencePairs(NamedTuple):
    """Encoded sentence pairs."""

    X: RaggedIds  # source ids, each row ends with </S>
    Y: RaggedIds  # target ids, each row ends with </S>
    Sources: list[str]  # the source sentences of X, as they were encoded
    Targets: list[str]  # the target sentences of Y, as they were encoded
    rows: list[int]  # index of each pair in the text
    total: int = 0  # pairs in the text
    num_empty: int = 0  # those with an empty side


class EvalSet(NamedTuple):
    """A test or development set."""

    data: SentencePairs  # the pairs that the model can read
    references: list[list[str]]  # one or several, each the targets of all pairs, as in the file

    def digest(self) -> str:
        """Return the SHA-256 of the text. It does not depend on the path of the file."""
        text = hashlib.sha256()
        for line in itertools.chain(self.data.Sources, *self.references):
            text.update(line.encode("utf-8", "surrogateescape") + b"\n")
        return text.hexdigest()


# Encoding ----------------------------------------------------------------------


def create_data(source_sents, target_sents, source_vocab, target_vocab, maxlen) -> SentencePairs:
    """Encode the pairs that have text on both sides, and at most `maxlen` tokens.

    A pair with an empty side is left out as a pair. The 2017 code dropped empty lines from each
    side alone, and paired every later sentence with the wrong translation.

    Args:
      source_sents, target_sents: normalized sentences, lists of the same length.
      source_vocab, target_vocab: `Vocab`.
      maxlen: T, tokens in a sentence, `</S>` included.
    """
    sources, targets = source_vocab.clean(source_sents), target_vocab.clean(target_sents)
    xs, ys = source_vocab.encode(sources), target_vocab.encode(targets)
    sides = enumerate(zip(source_sents, target_sents, strict=True))
    nonempty = [row for row, (source, target) in sides if source.strip() and target.strip()]
    rows = [row for row in nonempty if max(len(xs[row]), len(ys[row])) <= maxlen]
    return SentencePairs(
        RaggedIds.from_lists([xs[row] for row in rows]),
        RaggedIds.from_lists([ys[row] for row in rows]),
        [sources[row] for row in rows],
        [targets[row] for row in rows],
        rows,
        len(xs),
        len(xs) - len(nonempty),
    )


def load_train_data(hp, vocabs) -> SentencePairs:
    """Load and encode the training text. Print how many pairs are left out, and why.

    If prepro.py has written the ids of this text, they are mapped into memory. The text itself is
    kept only if each epoch encodes it again.
    """
    paths = hp.source_train, hp.target_train
    data = map_ids(hp, vocabs) or encode_train_text(hp, vocabs)
    shares = check_encoded(data, paths, vocabs, hp.maxlen)
    print(
        f"Training on {len(data.X)} of {data.total} pairs:"
        f" {data.total - data.num_empty - len(data.X)} are longer than maxlen {hp.maxlen},"
        f" {data.num_empty} have an empty line on a side"
    )
    token_name = vocabs[0].token_name
    print(f"Unknown {token_name}: {shares[0]:.0%} of the source, {shares[1]:.0%} of the target")
    return data


def encode_train_text(hp, vocabs) -> SentencePairs:
    """Encode the training text in blocks, since strings take far more memory than ids."""
    blocks = []
    for paths in training_files(hp):
        for sides in read_pairs(paths, "reading"):
            block = create_data(*map(normalize_lines, sides), *vocabs, hp.maxlen)
            if not hp.changes_text:
                block = block._replace(Sources=[], Targets=[])
            blocks.append(block)
    return SentencePairs(
        RaggedIds.concatenate([block.X for block in blocks]),
        RaggedIds.concatenate([block.Y for block in blocks]),
        [*itertools.chain.from_iterable(block.Sources for block in blocks)],
        [*itertools.chain.from_iterable(block.Targets for block in blocks)],
        [],  # nothing needs them
        sum(block.total for block in blocks),
        sum(block.num_empty for block in blocks),
    )


def load_test_data(hp, vocabs, part="test") -> EvalSet:
    """Load and encode the test set, or the development set if `part` is "dev".

    The first reference of a pair is its target.
    """
    sources, references = read_eval_set(hp, part)
    paths = getattr(hp, f"source_{part}"), getattr(hp, f"target_{part}")
    data = create_data(sources, references[0], *vocabs, hp.max_input_tokens)
    check_encoded(data, paths, vocabs, hp.max_input_tokens)
    return EvalSet(data, references)


def check_encoded(data, paths, vocabs, maxlen) -> list[float]:
    """Return the share of `<UNK>` on each side.

    Raises:
      InputError: no pair is left, or nearly all tokens are `<UNK>`.
    """
    token_name, shares = vocabs[0].token_name, []
    if not len(data.X):
        raise InputError(
            f"{paths[0]} and {paths[1]}: none of {data.total} pairs has text on both sides and is"
            f" at most {maxlen} {token_name} long, </S> included. Check that the files belong"
            " together, or train with a larger --maxlen"
        )
    for path, ragged, vocab in zip(paths, (data.X, data.Y), vocabs, strict=True):
        counts = np.bincount(ragged.ids[:SCANNED_IDS], minlength=len(vocab))
        counts[vocab.empty_ids] = 0  # an unknown subword may be a space and <UNK>
        shares.append(counts[UNK] / counts.sum() if counts.any() else 1.0)
        if shares[-1] > MAX_UNKNOWN_SHARE:
            raise InputError(
                f"{path}: {shares[-1]:.0%} of its {token_name} are not in {vocab.path}. Check"
                " --source_lang, --target_lang, --min_cnt and --preprocessed, or run prepro.py with"
                " this text"
            )
    return shares


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


# Files of ids, next to the vocabularies ----------------------------------------


def digest_of_text(hp, vocabs) -> str:
    """Return a digest of all that the ids of the training text depend on."""
    digest = hashlib.sha256(f"{hp.maxlen} {hp.min_cnt}".encode())
    for vocab in vocabs:
        digest.update(vocab.content)
    for path in itertools.chain.from_iterable(training_files(hp)):
        with open(path, "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def write_ids(hp, vocabs):
    """Encode the training text for `map_ids`."""
    folder = Path(hp.preprocessed)
    info = folder / "train.json"
    info.unlink(missing_ok=True)  # first, and written last: it says that the arrays are complete
    digest, data = digest_of_text(hp, vocabs), encode_train_text(hp, vocabs)
    arrays = data.X.ids, data.X.splits, data.Y.ids, data.Y.splits
    for name, array in zip(ARRAYS, arrays, strict=True):
        with atomic_open(folder / name) as file:  # a training that has mapped the old file keeps it
            np.save(file, array)
    atomic_write(info, json.dumps([digest, data.total, data.num_empty]))


def map_ids(hp, vocabs) -> SentencePairs | None:
    """Map the files of `write_ids` into memory, if they are those of this text."""
    folder = Path(hp.preprocessed)
    try:
        digest, *counts = json.loads((folder / "train.json").read_bytes())
        if hp.changes_text or digest != digest_of_text(hp, vocabs):
            return None
        arrays = [np.load(folder / name, mmap_mode="r") for name in ARRAYS]
    except (OSError, ValueError):  # they are missing, or were not written to their ends
        return None
    return SentencePairs(RaggedIds(*arrays[:2]), RaggedIds(*arrays[2:]), [], [], [], *counts)


# Batches -----------------------------------------------------------------------


def get_batch_data(data, hp, epoch, skip=0, strategy=None):
    """Make the batches of one epoch. Only `hp.seed` and `epoch` decide their order.

    Args:
      data: SentencePairs.
      epoch: counted from 1.
      skip: number of batches to leave out, since the model was trained on them before.
      strategy: tf.distribute.Strategy, which divides each batch among its replicas. Each worker
        reads only the rows of its own replicas.

    Returns:
      (iterator, int): batches (x, y) of (N, T) int32, and the number of batches in the epoch.
      T is `hp.pad_to`, or the length of the longest row.
    """
    import tensorflow as tf  # prepro.py does not need it

    plan = plan_batches(data, hp, epoch)
    divide = (strategy or tf.distribute.get_strategy()).experimental_distribute_values_from_function

    def read_share(rows, context):
        """Return the share of a replica in a batch, x and y."""
        rows = rows[context.replica_id_in_sync_group :: context.num_replicas_in_sync]
        width = hp.pad_to if len(rows) else 1  # a small batch has no rows for some replicas
        return tuple(tf.constant(side.pad(rows, width)) for side in (data.X, data.Y))

    batches = (divide(functools.partial(read_share, rows)) for rows in plan[skip:])
    return prefetch(batches), len(plan)


def prefetch(items):
    """Yield the items of an iterator. A thread computes the next one in the meantime."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, items, None)
            yield item


def plan_batches(data, hp, epoch) -> list[np.ndarray]:
    """Divide the rows of an epoch into batches: the row indices of each, uint32.

    Only `hp.seed` and `epoch`, counted from 1, decide the order. With `hp.batch_size`, an epoch has
    as many batches as in the 2017 code: rows that do not fill one are left out, other ones in each
    epoch. A corpus smaller than one batch is one batch.
    """
    rng = np.random.default_rng([hp.seed, epoch])
    order = np.arange(len(data.X), dtype=np.uint32)  # (N,)
    rng.shuffle(order)
    if hp.batch_tokens:
        return batch_by_tokens(data, order, hp.batch_tokens, rng)
    size = min(hp.batch_size, len(order))
    return [order[i : i + size] for i in range(0, len(order) - size + 1, size)]


def batch_by_tokens(data, order, batch_tokens, rng) -> list[np.ndarray]:
    """Split rows in random order into batches of rows of similar length.

    The longer side of a batch, with its padding, has at most `batch_tokens` tokens, unless a
    single pair is longer.
    """
    lengths = data.X.lengths, data.Y.lengths  # (N,) each
    # Sort by target length, then by source length in steps of 3, so that each epoch has
    # other batches.
    for side, step in zip(lengths, (3, 1), strict=True):
        keys = (side[order] // step).astype(np.uint16)  # (N,)
        order = order[np.argsort(keys, kind="stable")]
    longer = np.maximum(*lengths)[order]  # (N,)
    batches, first = [], 0
    while first < len(order):
        most = 1 + batch_tokens // longer[first]  # rows that could fit, and one more
        widths = np.maximum.accumulate(longer[first : first + most])
        padded = widths * np.arange(1, len(widths) + 1)
        size = max(1, int(np.searchsorted(padded, batch_tokens, side="right")))
        batches.append(order[first : first + size])
        first += size
    return [batches[i] for i in rng.permutation(len(batches))]
