"""Vocabularies: the words of the 2017 code, and the subwords of sentencepiece."""

import concurrent.futures
import functools
import hashlib
from pathlib import Path

import numpy as np
import sentencepiece

from runtime.errors import InputError
from runtime.files import atomic_write, check_exists
from runtime.flags import AUTO
from text import read_lines

PAD, UNK, BOS, EOS = range(4)  # ids of the first four tokens of every vocabulary
SPECIALS = ("<PAD>", "<UNK>", "<S>", "</S>")
MAX_COUNT_DIGITS = 18  # digits of a word's count, so that it fits into an int64
RUN_PREPRO_HINT = (
    "Run `python prepro.py` first, with the same --recipe, --preprocessed, --source_lang and"
    " --target_lang"
)


# Loading -----------------------------------------------------------------------


def load_vocabs(hp, trained_with=None):
    """Load the vocabularies of source and target. A joint one is one object for both.

    A trained model has a copy of its vocabularies in `logdir`, since prepro.py may have written
    other ones to `preprocessed` in the meantime. The copy is preferred.

    Args:
      trained_with: the `fingerprints` of a model's vocabularies, if there is a model.

    Returns:
      (WordVocab, WordVocab), or (SubwordVocab, SubwordVocab).

    Raises:
      InputError: a file is missing or malformed, or not the one the model was trained with.
    """
    vocabs = []
    if not trained_with:
        check_vocabs_exist(hp)
    for written_path in written_paths(hp):
        path = Path(hp.logdir) / written_path.name
        if not (trained_with and path.exists()):
            path = written_path
        if trained_with and not path.exists():
            raise InputError(
                f"{path}: no such file, nor a copy in {hp.logdir}. The model there needs the"
                " vocabulary that it was trained with. Copy the file to one of the two folders"
            )
        vocab = SubwordVocab(path) if hp.tokenizer == "bpe" else WordVocab(path, hp.min_cnt)
        if trained_with:
            check_same_vocab(vocab, trained_with, hp.logdir)
        if hp.tokenizer == "bpe":
            check_prepared_with(vocab, hp, new=not trained_with)
        vocabs.append(vocab)
    return tuple(vocabs * 2 if len(vocabs) == 1 else vocabs)


def written_paths(hp) -> list[Path]:
    """The files that prepro.py writes: one vocabulary, or that of source and that of target."""
    if hp.tokenizer == "bpe":
        return hp.sentencepiece_paths
    return [hp.vocab_path(lang) for lang in (hp.source_lang, hp.target_lang)]


def check_vocabs_exist(hp):
    """Raise InputError if a vocabulary is missing; the message names others that exist."""
    for path in written_paths(hp):
        hint = RUN_PREPRO_HINT
        if others := [*path.parent.glob("bpe*.model"), *path.parent.glob("*.vocab.tsv")]:
            hint = (
                f"{min(others)} exists, but this is the recipe {hp.recipe}, from {hp.source_lang}"
                f" to {hp.target_lang}. Give --recipe, --source_lang and --target_lang as to"
                " prepro.py, or run it again"
            )
        check_exists(path, hint)


def check_prepared_with(vocab, hp, new):
    """Raise InputError if prepro.py had other flags when it wrote a `SubwordVocab`.

    Args:
      new: whether no model has been trained with it. Only then are all flags compared.
    """
    remedy = "Write the file again with `python prepro.py` and this flag, or leave the flag out"
    if hp.vocab_size not in (AUTO, len(vocab)):
        raise InputError(
            f"{vocab.path}: holds {len(vocab)} subwords, but --vocab_size is {hp.vocab_size}."
            f" {remedy}"
        )
    processor = vocab.processor
    for symbol in hp.symbol_list if new else ():
        if processor.is_unknown(processor.piece_to_id(symbol)):
            raise InputError(f"{vocab.path}: lacks {symbol}, which --symbols names. {remedy}")
    if new and hp.byte_fallback and not any(map(processor.is_byte, range(len(vocab)))):
        raise InputError(f"{vocab.path}: was written without --byte_fallback. {remedy}")


def check_same_vocab(vocab, trained_with, logdir):
    """Check that a vocabulary is the one that a model was trained with.

    Args:
      trained_with: the model's `fingerprints`.

    Raises:
      InputError: it is another one.
    """
    if trained_with.get(vocab_name(vocab)) != fingerprints([vocab])[vocab_name(vocab)]:
        remedy = "Restore the file, or name its folder with --preprocessed"
        if vocab.path.parent == Path(logdir):
            remedy = (
                "Restore the file. Or, if the right one is in the folder that --preprocessed"
                " names, delete this one"
            )
        raise InputError(
            f"{vocab.path}: not the vocabulary that the model in {logdir} was trained with."
            f" {remedy}"
        )


def save_vocabs(vocabs, logdir):
    """Copy the vocabularies into `logdir`, where `load_vocabs` finds them first."""
    for vocab in vocabs:
        copy = Path(logdir) / vocab.path.name
        content = vocab.path.read_bytes()
        if not (copy.is_file() and copy.read_bytes() == content):
            atomic_write(copy, content)


def fingerprints(vocabs) -> dict[str, str]:
    """Return the SHA-256 of each vocabulary by its `vocab_name`."""
    return {
        vocab_name(vocab): hashlib.sha256(vocab.fingerprint_bytes()).hexdigest() for vocab in vocabs
    }


def vocab_name(vocab) -> str:
    """Return "de" for de.vocab.tsv, "bpe" for bpe.model, and "bpe.de" for bpe.de.model."""
    return vocab.path.name.removesuffix(".vocab.tsv").removesuffix(".model")


def truncate_at_eos(ids):
    """Truncate ids (T,) before the first `</S>`.

    >>> truncate_at_eos(np.array([4, 5, 3, 0])).tolist()
    [4, 5]
    """
    (ends,) = np.nonzero(np.asarray(ids) == EOS)
    return ids[: ends[0]] if len(ends) else ids


# Words -------------------------------------------------------------------------


class WordVocab:
    """The word vocabulary of one language, as in the 2017 code.

    Args:
      path: the vocabulary file.
      min_cnt: words seen less often become `<UNK>`.

    Raises:
      InputError: as `load_vocab`.
    """

    token_name = "words"  # for messages
    space_id = None  # no word is a space

    def __init__(self, path, min_cnt):
        self.path = path
        self.word2idx, self.idx2word = load_vocab(path, min_cnt)

    def __len__(self):
        return len(self.word2idx)

    def fingerprint_bytes(self) -> bytes:
        """Return the bytes that identify the vocabulary."""
        return "\n".join(self.word2idx).encode()

    def encode(self, sentences) -> list[list[int]]:
        """Encode cleaned sentences: the ids of the words of each, and of `</S>`."""
        return [encode_words(sentence, self.word2idx) for sentence in sentences]

    def id_to_token(self, i) -> str:
        """Return the word with id `i`."""
        return self.idx2word[int(i)]

    def decode(self, ids) -> str:
        """Join the words before the first `</S>` with spaces."""
        return " ".join(map(self.id_to_token, truncate_at_eos(ids)))


def load_vocab(path, min_cnt):
    """Load the words with a count of at least `min_cnt`, numbered in the order of the file.

    Returns:
      (dict, dict): word to id, and id to word.

    Raises:
      InputError: as `read_counts`, or no word has such a count.
    """
    words = [word for word, count in read_counts(path).items() if count >= min_cnt]
    if len(words) == len(SPECIALS):
        raise InputError(f"{path}: no word occurs {min_cnt} times or more. Lower --min_cnt")
    return {word: i for i, word in enumerate(words)}, dict(enumerate(words))


def read_counts(path) -> dict[str, int]:
    """Read the words of a vocabulary file and their counts, in the order of the file.

    Raises:
      InputError: the file cannot be read, or prepro.py did not write it (names the line).
    """
    counts, previous = {}, None
    for number, line in enumerate(read_lines(path, RUN_PREPRO_HINT), 1):
        word, tab, count = line.partition("\t")
        if not word or not tab or word.split() != [word] or not count.isascii():
            problem = "is not a word, a tab and a count"
        elif not count.isdigit() or len(count) > MAX_COUNT_DIGITS:
            problem = f"has {count!r} instead of a count"
        elif word in counts:
            problem = f"repeats the word {word}"
        elif counts and int(count) > previous:
            problem = "has a higher count than the line before it"
        else:
            counts[word] = previous = int(count)
            continue
        raise vocab_error(path, number, f"this line {problem}")
    if tuple(counts)[:4] != SPECIALS:
        raise vocab_error(path, 1, f"the first four words are not {' '.join(SPECIALS)}")
    return counts


def vocab_error(path, number, problem) -> InputError:
    """Return the error for a line of a vocabulary file."""
    return InputError(f"{path}:{number}: {problem}. Write the file again with `python prepro.py`")


def encode_words(sentence, word2idx) -> list[int]:
    """Return the ids of a cleaned sentence's words, and of `</S>`.

    >>> encode_words("ein Hund", {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "ein": 4})
    [4, 1, 3]
    """
    return [word2idx.get(word, UNK) for word in sentence.split()] + [EOS]


# Subwords ----------------------------------------------------------------------


class SubwordVocab:
    """The subwords of a sentencepiece model, of one language or of both.

    Args:
      path: the sentencepiece model.

    Raises:
      InputError: the file cannot be read, or prepro.py did not write it.
    """

    token_name = "subwords"  # for messages

    def __init__(self, path):
        self.path = path
        try:
            self.proto = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror.lower()}. {RUN_PREPRO_HINT}") from None
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=self.proto)
            specials = [self.processor.id_to_piece(i) for i in range(len(SPECIALS))]
        except (RuntimeError, IndexError):
            specials = None
        if specials != list(SPECIALS):
            raise InputError(
                f"{path}: not a sentencepiece model that begins with {' '.join(SPECIALS)}."
                " Write the file again with `python prepro.py`"
            )

    def __len__(self):
        return self.processor.get_piece_size()

    @property
    def space_id(self):
        """The id of ▁, a space alone, or None if the vocabulary lacks it."""
        space = self.processor.piece_to_id("▁")
        return None if space == UNK else space

    def fingerprint_bytes(self) -> bytes:
        """Return the bytes that identify the vocabulary: subwords, their scores and types.

        The rest of the file, how the model was trained, differs between versions of
        sentencepiece.
        """
        ids, processor = list(range(len(self))), self.processor
        columns = [
            processor.id_to_piece(ids),
            processor.get_score(ids),
            processor.is_control(ids),
            processor.is_unknown(ids),
            processor.is_unused(ids),
            processor.is_byte(ids),
        ]
        return "\n".join(map(str, zip(*columns, strict=True))).encode()

    def encode(self, sentences, dropout=0.0, seed=0) -> list[list[int]]:
        """Encode sentences: the ids of the subwords of each, and of `</S>`.

        Args:
          dropout: BPE-dropout (Provilkov et al. 2020), the probability of skipping a merge.
          seed: with the sentences, it decides which merges are skipped.
        """
        encode = functools.partial(
            self.processor.encode, list(sentences), add_eos=True, num_threads=1
        )
        if not dropout:
            return encode()
        # sentencepiece has one generator per thread and seeds it at the first draw. Only in a
        # new thread does the result depend on nothing but the seed and the sentences.
        sentencepiece.set_random_generator_seed(seed)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            sampling = dict(enable_sampling=True, alpha=dropout, nbest_size=-1)
            return thread.submit(encode, **sampling).result()

    def id_to_token(self, i) -> str:
        """Return the subword with id `i`. In it, ▁ stands for a space."""
        return self.processor.id_to_piece(int(i))

    def decode(self, ids) -> str:
        """Join the subwords before the first `</S>` to text, which has no line feed.

        `--byte_fallback` makes subwords of all bytes, also of those that end a line.
        """
        text = self.processor.decode([int(i) for i in truncate_at_eos(ids)])
        return text.replace("\n", " ").replace("\r", " ")
