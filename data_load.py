"""Encode sentence pairs as ids, and make the batches of an epoch."""

import concurrent.futures
import functools
import hashlib
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import regex

from support.errors import InputError
from support.files import atomic_open, file_digest
from text.ids import EOS, UNK, RaggedIds
from text.lines import normalize, read_eval_set, read_pairs, training_files

MARK_STREAM = 1  # its random numbers are not those of the order of the batches
# The end of a sentence: marks, and quotes or brackets after them. Read from the right (?r).
FINAL_MARK = regex.compile(r"(?r)\s*[\p{STerm}…]+([\p{Pe}\p{Pf}\p{Pi}\"'\s]*)")
MAX_UNKNOWN_SHARE = 0.9  # with more <UNK>, the vocabulary belongs to another text
SCANNED_IDS = 2**22  # of a text in which <UNK> are counted
ARRAYS = ("source.ids", "source.splits", "target.ids", "target.splits", "counts")  # on disk


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
        """Return the SHA-256 of the text, whatever the path of its file."""
        lines = itertools.chain(self.data.Sources, *self.references)
        return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


# Encoding -----------------------------------------------------------


def create_data(source_sents, target_sents, source_vocab, target_vocab, maxlen) -> SentencePairs:
    """Encode pairs of normalized sentences with text and at most `maxlen` tokens on both sides.

    A pair with an empty side is left out as a pair. The 2017 code dropped the empty line alone,
    which shifted the rest.
    """
    sources, targets = source_vocab.clean(source_sents), target_vocab.clean(target_sents)
    xs, ys = source_vocab.encode(sources), target_vocab.encode(targets)
    pairs = enumerate(zip(source_sents, target_sents, strict=True))
    nonempty = [row for row, pair in pairs if all(map(str.strip, pair))]
    rows = [row for row in nonempty if max(len(xs[row]), len(ys[row])) <= maxlen]
    *ids, sources, targets = ([side[row] for row in rows] for side in (xs, ys, sources, targets))
    X, Y = map(RaggedIds.from_lists, ids)
    return SentencePairs(X, Y, sources, targets, rows, len(xs), len(xs) - len(nonempty))


def load_train_data(hp, vocabs) -> SentencePairs:
    """Load the training text, and print how many pairs are left out."""
    data = map_ids(hp, vocabs) or encode_train_text(hp, vocabs)
    shares = check_encoded(data, (hp.source_train, hp.target_train), vocabs, hp.maxlen)
    print(
        f"Training on {len(data.X)} of {data.total} pairs:"
        f" {data.total - data.num_empty - len(data.X)} are longer than maxlen {hp.maxlen},"
        f" {data.num_empty} have an empty line on a side"
    )
    shares = f"{shares[0]:.0%} of the source, {shares[1]:.0%} of the target"
    print(f"Unknown {vocabs[0].token_name}: {shares}")
    return data


def encode_train_text(hp, vocabs) -> SentencePairs:
    """Encode the training text in blocks. It is kept only if each epoch encodes it again."""
    blocks = []
    for sides in itertools.chain.from_iterable(map(read_pairs, training_files(hp))):
        block = create_data(*([*map(normalize, side)] for side in sides), *vocabs, hp.maxlen)
        blocks.append(block if hp.changes_text else block._replace(Sources=[], Targets=[]))
    Xs, Ys, sources, targets, _, totals, empty = zip(*blocks, strict=True)
    ids, chain = map(RaggedIds.concatenate, (Xs, Ys)), itertools.chain.from_iterable
    return SentencePairs(*ids, [*chain(sources)], [*chain(targets)], [], sum(totals), sum(empty))


def load_test_data(hp, vocabs, part="test") -> EvalSet:
    """Load and encode the test set, or with "dev" the development set."""
    sources, references = read_eval_set(hp, part)  # the first reference is the target
    paths = getattr(hp, f"source_{part}"), getattr(hp, f"target_{part}")
    data = create_data(sources, references[0], *vocabs, hp.max_input_tokens)
    check_encoded(data, paths, vocabs, hp.max_input_tokens)
    return EvalSet(data, references)


def check_encoded(data, paths, vocabs, maxlen) -> list[float]:
    """Return the share of `<UNK>` on each side; InputError if it is high, or there is no pair."""
    token_name, shares = vocabs[0].token_name, []
    if not len(data.X):
        raise InputError(
            f"{paths[0]} and {paths[1]}: none of {data.total} pairs has text on both sides and at"
            f" most {maxlen} {token_name}. Check the files, or train with a larger --maxlen"
        )
    for path, ragged, vocab in zip(paths, (data.X, data.Y), vocabs, strict=True):
        counts = np.bincount(ragged.ids[:SCANNED_IDS], minlength=len(vocab))
        counts[vocab.empty_ids] = 0  # an unknown subword may be a space and <UNK>
        shares.append(counts[UNK] / counts.sum() if counts.any() else 1.0)
        if shares[-1] > MAX_UNKNOWN_SHARE:
            raise InputError(
                f"{path}: {shares[-1]:.0%} of its {token_name} are not in {vocab.path}. Check"
                " --source_lang, --target_lang and --preprocessed, or run prepro.py with this text"
            )
    return shares


def encode_lines(lines, vocab, hp, max_tokens=None):
    """Encode lines to translate: the ids, the rows that are not empty, and the truncated ones.

    Of each line, `max_tokens` are kept; `hp.max_input_tokens` by default.
    """
    ids = vocab.encode(vocab.prepare(lines))
    nonempty = [row for row, sentence in enumerate(ids) if len(sentence) > 1]  # not only </S>
    max_tokens = max_tokens or hp.max_input_tokens
    truncated = [row for row in nonempty if len(ids[row]) > max_tokens]
    for row in truncated:
        ids[row] = [*ids[row][: max_tokens - 1], EOS]
    return RaggedIds.from_lists([ids[row] for row in nonempty]), nonempty, truncated


def pairs_of_epoch(data, vocabs, hp, epoch) -> SentencePairs:
    """Return the pairs as an epoch, from 1, trains on them, with BPE-dropout and missing marks."""
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


def without_final_mark(text) -> str:
    """Remove the punctuation that ends a sentence.

    >>> without_final_mark("Hallo!"), without_final_mark("„Wer?“")
    ('Hallo', '„Wer“')
    """
    found = FINAL_MARK.match(text)
    return text[: found.start()] + found[1] if found else text


# Files of ids, next to the vocabularies -----------------------------


def ids_paths(hp, vocabs) -> list[Path]:
    """The files of the ids: their names have a digest of all that the ids depend on."""
    digest = hashlib.sha256(f"{hp.maxlen} {hp.min_cnt}".encode())
    for vocab in vocabs:
        digest.update(vocab.content)
    for path in itertools.chain.from_iterable(training_files(hp)):
        digest.update(file_digest(path).digest())
    return [Path(hp.preprocessed) / f"train.{digest.hexdigest()}.{name}.npy" for name in ARRAYS]


def write_ids(hp, vocabs):
    """Encode the training text for `map_ids`."""
    paths, data = ids_paths(hp, vocabs), encode_train_text(hp, vocabs)
    for path in Path(hp.preprocessed).glob("train.*.npy"):
        path.unlink()  # a training that has mapped it keeps it
    counts = np.array([data.total, data.num_empty])
    arrays = data.X.ids, data.X.splits, data.Y.ids, data.Y.splits, counts
    for path, array in zip(paths, arrays, strict=True):
        with atomic_open(path) as file:
            np.save(file, array)


def map_ids(hp, vocabs) -> SentencePairs | None:
    """Map the files of `write_ids` into memory, if they are those of this text."""
    if hp.changes_text:
        return None
    try:
        *arrays, counts = [np.load(path, mmap_mode="r") for path in ids_paths(hp, vocabs)]
    except (OSError, ValueError):  # they are missing, or were not written to their ends
        return None
    return SentencePairs(RaggedIds(*arrays[:2]), RaggedIds(*arrays[2:]), [], [], [], *counts)


# Batches ------------------------------------------------------------


def get_batch_data(data, hp, epoch, skip=0, strategy=None):
    """Make the batches (x, y) of an epoch, (N, T) int32 each, and return also their number.

    T is `hp.pad_to`, or the length of the longest row. The first `skip` batches are left out.
    `strategy` divides each batch among its replicas; a worker reads only the rows of its own ones.
    """
    import tensorflow as tf  # prepro.py does not need it

    plan = plan_batches(data, hp, epoch)
    divide = (strategy or tf.distribute.get_strategy()).experimental_distribute_values_from_function

    def read_share(rows, context):
        rows = rows[context.replica_id_in_sync_group :: context.num_replicas_in_sync]
        width = hp.pad_to if len(rows) else 1  # a small batch has no rows for some replicas
        return tuple(tf.constant(side.pad(rows, width)) for side in (data.X, data.Y))

    batches = (divide(functools.partial(read_share, rows)) for rows in plan[skip:])
    return prefetch(batches), len(plan)


def prefetch(items):
    """Yield the items of an iterator, while a thread computes the next one."""
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        upcoming = thread.submit(next, items, None)
        while (item := upcoming.result()) is not None:
            upcoming = thread.submit(next, items, None)
            yield item


def plan_batches(data, hp, epoch) -> list[np.ndarray]:
    """Divide the rows of an epoch into batches: the row indices of each, uint32.

    With `hp.batch_size`, as in 2017, rows that do not fill one are left out, others in each epoch.
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

    The longer side has at most `batch_tokens` tokens, padding included, or is a single pair.
    """
    lengths = data.X.lengths, data.Y.lengths  # (N,) each
    # By target length, then by source length in steps of 3, so that each epoch has other batches.
    order = order[np.lexsort([lengths[0][order] // 3, lengths[1][order]])]
    longer = np.maximum(*lengths)[order]  # (N,)
    batches, first = [], 0
    while first < len(order):
        most = 1 + batch_tokens // longer[first]  # rows that could fit, and one more
        widths = np.maximum.accumulate(longer[first : first + most])
        padded = widths * np.arange(1, len(widths) + 1)  # tokens of so many rows
        last = first + 1 + int(np.searchsorted(padded[1:], batch_tokens, side="right"))
        batches.append(order[first:last])
        first = last
    return [batches[i] for i in rng.permutation(len(batches))]
