"""From text to batches: read, clean, encode, pad, batch.

Text is read a line at a time and a line ends at its line feed alone, so that no
other character that counts as a line break somewhere (U+2028, U+0085, a lone
carriage return) can shift one side of a parallel corpus against the other.
"""

import hashlib
import html
from typing import NamedTuple

import numpy as np
import regex

from hparams import InputError

PAD, UNK, START, END = range(4)  # ids of the four words that open each vocabulary
SPECIALS = ("<PAD>", "<UNK>", "<S>", "</S>")

WHERE_TO_GET_TEXT = (
    "put your text there, or name it with --source_train, --target_train, --source_test and"
    " --target_test; the documented corpus is IWSLT 2016 German-English,"
    " https://wit3.fbk.eu/2016-01 (see README.md); `make demo` writes a corpus of its own and"
    " trains on it"
)
PREPRO_FIRST = (
    "run `python prepro.py` first, with the same --preprocessed, --source_lang and --target_lang"
)


class Data(NamedTuple):
    """Encoded sentence pairs."""

    X: np.ndarray  # (N, T) int32, source ids, </S> at the end, then <PAD>
    Y: np.ndarray  # (N, T) int32, target ids, the same
    Sources: list[str]  # the cleaned source sentences of X
    Targets: list[str]  # the cleaned target sentences of Y
    rows: list[int]  # which of the given pairs each row is, counted from 0


class EvalData(NamedTuple):
    """A test set: what the model sees, and all that there is to score against."""

    data: Data
    references: list[str]  # every pair's target as it stands in the file
    empty: list[int]  # pairs with nothing on a side, which cannot be translated or scored


# Reading -----------------------------------------------------------------------


def read_lines(path, hint=WHERE_TO_GET_TEXT):
    """Yield the lines of a UTF-8 file, without line ends and byte-order mark.

    Raises:
      InputError: no such file, or bytes that are not UTF-8 (names the line).
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror.lower()}: {hint}") from None
    with file:
        for number, line in enumerate(file, 1):
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InputError(
                    f"{path}:{number}: byte {error.start + 1} of this line is not UTF-8:"
                    " convert the file (for example: iconv -f latin1 -t utf-8)"
                ) from None
            yield text.removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")


def clean(line):
    """Drop what is neither white space, a Latin letter nor an apostrophe.

    >>> clean("She isn't 26 -- she's naïve.")
    "She isn't   she's naïve"
    """
    return regex.sub(r"[^\s\p{Latin}']", "", line)


def drop_tags(lines):
    """The lines that do not open with a tag."""
    return [line for line in lines if not line.startswith("<")]


def read_corpus(path):
    """The sentences of a training file: its lines, without those that open with a tag."""
    return drop_tags(read_lines(path))


def read_test(path):
    """The sentences of a test file.

    Those between `<seg>` tags where the file has any, as in IWSLT's XML; else the
    lines, as of a training file.

    Returns:
      (list, list): the sentences as the documents clean them, and as a person
      would read them.
    """
    lines = list(read_lines(path))
    segments = [line for line in lines if line.lstrip().startswith("<seg")]
    if not segments:
        raw = drop_tags(lines)
        return [clean(line).strip() for line in raw], raw
    inner = [regex.sub("<[^>]+>", "", line).strip() for line in segments]
    return [clean(line).strip() for line in inner], [html.unescape(line) for line in inner]


# Vocabularies ------------------------------------------------------------------


def read_counts(path):
    """The words of a vocabulary file and how often each was seen, a dict in its order.

    Raises:
      InputError: no such file, or not one that prepro.py writes (names the line).
    """
    counts, last = {}, None
    for number, line in enumerate(read_lines(path, PREPRO_FIRST), 1):
        word, tab, count = line.partition("\t")
        if not word or not tab or word.split() != [word] or not count.isascii():
            problem = "is not a word, a tab and a count"
        elif not count.isdigit():
            problem = f"has {count!r} for a count"
        elif word in counts:
            problem = f"names {word} a second time"
        elif counts and int(count) > last:
            problem = "is counted higher than the line before it"
        else:
            counts[word] = last = int(count)
            continue
        raise bad_vocab(path, number, f"this line {problem}")
    if tuple(counts)[:4] != SPECIALS:
        raise bad_vocab(path, 1, f"the first four words are not {' '.join(SPECIALS)}")
    return counts


def bad_vocab(path, number, problem):
    return InputError(f"{path}:{number}: {problem}: write the file anew with `python prepro.py`")


def load_vocab(path, min_cnt):
    """Words seen at least `min_cnt` times, numbered in the order of the file.

    Returns:
      (dict, dict): word to id, and id to word.

    Raises:
      InputError: see `read_counts`; or no word was seen so often.
    """
    words = [word for word, count in read_counts(path).items() if count >= min_cnt]
    if len(words) == len(SPECIALS):
        raise InputError(f"{path}: no word was seen {min_cnt} times: lower --min_cnt")
    return {word: i for i, word in enumerate(words)}, dict(enumerate(words))


def load_vocabs(hp, trained_with=None):
    """Both vocabularies of `hp`.

    Args:
      trained_with: the `fingerprints` of a model's vocabularies, if there is a model.

    Returns:
      (dict, dict, dict, dict): de2idx, idx2de, en2idx, idx2en.

    Raises:
      InputError: see `read_counts`; or they are not those the model was trained with.
    """
    de, en = (
        load_vocab(hp.vocab_path(lang), hp.min_cnt) for lang in (hp.source_lang, hp.target_lang)
    )
    found = fingerprints(hp, de[0], en[0])
    for lang, sha256 in (trained_with or {}).items():
        if found[lang] != sha256:
            raise InputError(
                f"{hp.vocab_path(lang)}: not the vocabulary that the model in {hp.logdir} was"
                " trained with: put that one back (--preprocessed names its folder), or train"
                " a new model with a new --logdir"
            )
    return *de, *en


def fingerprints(hp, de2idx, en2idx):
    """SHA-256 of the words of each vocabulary in their order, a dict by language."""
    vocabs = {hp.source_lang: de2idx, hp.target_lang: en2idx}
    return {
        lang: hashlib.sha256("\n".join(word2idx).encode()).hexdigest()
        for lang, word2idx in vocabs.items()
    }


def find_min_cnt(paths, sizes, wanted=None):
    """The largest `min_cnt` that gives two vocabulary files these sizes.

    Args:
      wanted: the only one to try, where a flag says it.

    Raises:
      InputError: none does, so these are not the vocabularies that were used.
    """
    sides = [np.array(list(read_counts(path).values())) for path in paths]
    tried = np.unique(np.concatenate(sides))[::-1] if wanted is None else [wanted]
    for min_cnt in tried:
        if [(side >= min_cnt).sum() for side in sides] == list(sizes):
            return int(min_cnt)
    raise InputError(
        f"{paths[0]} and {paths[1]} are not the vocabularies of this model: it knows {sizes[0]}"
        f" and {sizes[1]} words, and {'no --min_cnt' if wanted is None else f'--min_cnt {wanted}'}"
        f" leaves that many of the {len(sides[0])} and {len(sides[1])} here: put the model's own"
        " files there, or name their folder with --preprocessed"
    )


# Encoding ----------------------------------------------------------------------


def encode(sentence, word2idx):
    """The ids of a cleaned sentence's words, and of `</S>`.

    >>> encode("ein Hund", {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "ein": 4})
    [4, 1, 3]
    """
    return [word2idx.get(word, UNK) for word in sentence.split()] + [END]


def create_data(source_sents, target_sents, de2idx, en2idx, maxlen):
    """Encode the pairs that are at most `maxlen` long on both sides, and pad them to it.

    Args:
      source_sents, target_sents: cleaned sentences, equally many.
      de2idx, en2idx: vocabularies, word to id.
      maxlen: T, words in a sentence, `</S>` included.

    Returns:
      Data.
    """
    xs, ys, rows = [], [], []
    for row, (source, target) in enumerate(zip(source_sents, target_sents, strict=True)):
        x, y = encode(source, de2idx), encode(target, en2idx)
        if max(len(x), len(y)) <= maxlen:
            xs.append(x)
            ys.append(y)
            rows.append(row)
    return Data(
        pad(xs, maxlen),
        pad(ys, maxlen),
        [source_sents[row] for row in rows],
        [target_sents[row] for row in rows],
        rows,
    )


def pad(sequences, maxlen):
    """Lists of ids as one array, `<PAD>` behind each.

    >>> pad([[5, 3], [3]], 3).tolist()
    [[5, 3, 0], [3, 0, 0]]
    """
    padded = np.full([len(sequences), maxlen], PAD, np.int32)  # (N, T)
    for row, ids in zip(padded, sequences, strict=True):
        row[: len(ids)] = ids
    return padded


def load_train_data(hp, de2idx, en2idx):
    """The training text as `Data`; prints how much of it was kept, and why.

    Raises:
      InputError: a file cannot be read, the sides differ in length, or no pair is left.
    """
    paths = hp.source_train, hp.target_train
    sides = [read_corpus(path) for path in paths]
    cleaned = [[clean(line) for line in side] for side in sides]
    data, empty = keep_pairs(paths, sides, cleaned, de2idx, en2idx, hp.maxlen)
    total = len(sides[0])
    print(
        f"Training on {len(data.rows)} of {total} pairs:"
        f" {total - len(empty) - len(data.rows)} are longer than maxlen {hp.maxlen},"
        f" {len(empty)} have an empty line on a side"
    )
    unknown = [
        f"{(ids == UNK).sum() / max(1, np.isin(ids, (PAD, END), invert=True).sum()):.0%}"
        for ids in (data.X, data.Y)
    ]
    print(f"<UNK> stands for {unknown[0]} of the source words and {unknown[1]} of the target's")
    return data


def load_test_data(hp, de2idx, en2idx):
    """The test set as `EvalData`.

    Raises:
      InputError: a file cannot be read, the sides differ in length, or no pair is left.
    """
    paths = hp.source_test, hp.target_test
    (source, sources), (target, targets) = map(read_test, paths)
    sides, cleaned = (sources, targets), (source, target)
    data, empty = keep_pairs(paths, sides, cleaned, de2idx, en2idx, hp.maxlen)
    return EvalData(data, targets, empty)


def keep_pairs(paths, sides, cleaned, de2idx, en2idx, maxlen):
    """Encode the pairs that have text on both sides and are not too long.

    A pair goes as a pair. The original dropped empty lines on each side by
    itself, and matched every pair behind one with the wrong translation.

    Args:
      paths: the two files, for messages.
      sides: their sentences as they stand there.
      cleaned: the same, cleaned.

    Returns:
      (Data, list of int): the pairs, and the numbers of those with nothing on a side.

    Raises:
      InputError: the sides differ in length, or no pair is left.
    """
    same_length(paths, sides)
    filled, empty = split_empty(sides)
    cleaned = [[side[row] for row in filled] for side in cleaned]
    data = create_data(*cleaned, de2idx, en2idx, maxlen)
    refuse_nothing_left(paths, sides, cleaned, data, maxlen)
    return data._replace(rows=[filled[row] for row in data.rows]), empty


def split_empty(sides):
    """The numbers of the pairs with text on both sides, and of the others.

    >>> split_empty([["eins", "", "drei"], ["one", "two", "three"]])
    ([0, 2], [1])
    """
    filled, empty = [], []
    for row, pair in enumerate(zip(*sides, strict=True)):
        (filled if all(line.strip() for line in pair) else empty).append(row)
    return filled, empty


def same_length(paths, sides):
    """Raise InputError unless both sides have equally many sentences."""
    if len(sides[0]) != len(sides[1]):
        raise InputError(
            f"{paths[0]} holds {len(sides[0])} sentences and {paths[1]} {len(sides[1])} (lines"
            " that open with < not counted): the two must be translations of each other, line"
            " by line"
        )


def refuse_nothing_left(paths, sides, cleaned, data, maxlen):
    """Raise InputError where empty lines, cleaning or `maxlen` leave no pair; say which."""
    if not sides[0]:
        raise InputError(f"{paths[0]}: holds no sentence beside lines that open with <")
    if not cleaned[0]:
        raise InputError(f"{paths[0]} and {paths[1]}: every pair has an empty line on a side")
    for path, sentences in zip(paths, cleaned, strict=True):
        if not any(sentence.strip() for sentence in sentences):
            raise InputError(
                f"{path}: cleaning leaves nothing of its {len(sentences)} sentences, since the"
                " recipe legacy keeps Latin letters and apostrophes only: text in another script"
                " cannot be used with it"
            )
    if not data.rows:
        raise InputError(
            f"{paths[0]} and {paths[1]}: none of {len(cleaned[0])} pairs is at most maxlen"
            f" {maxlen} words long on both sides, </S> counted: raise --maxlen"
        )


# Batches -----------------------------------------------------------------------


def get_batch_data(data, batch_size, seed, epoch):
    """The batches of one epoch, in an order that only `seed` and `epoch` decide.

    As documented the last batch is left out where it would be smaller than the
    others, each epoch another one; a corpus smaller than one batch is one batch.

    Args:
      data: Data.
      batch_size: N, sentence pairs.

    Returns:
      (tf.data.Dataset, int): batches (x, y) of (N, T) int32, and how many.
    """
    import tensorflow as tf  # here, since prepro.py uses this file and has no need of it

    batch_size = min(batch_size, len(data.X))
    num_batch = len(data.X) // batch_size
    order = np.random.default_rng([seed, epoch]).permutation(len(data.X))
    order = order[: num_batch * batch_size]
    batches = tf.data.Dataset.from_tensor_slices((data.X[order], data.Y[order]))
    batches = batches.batch(batch_size, drop_remainder=True).prefetch(2)
    options = tf.data.Options()
    # Several workers share the batches, not files of them.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # Autotuning sleeps for twice as long each time it has looked, and an epoch that is
    # over waits for it to wake: of 41 seconds, 11.
    options.autotune.enabled = False
    return batches.with_options(options), num_batch
