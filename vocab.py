"""Vocabularies: the words of the 2017 code, and the subwords of sentencepiece."""

import concurrent.futures
import functools
import hashlib
import io
import math
import re
from pathlib import Path

import numpy as np
import sentencepiece
from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from ids import EOS, SPECIALS, UNK
from runtime.errors import InputError
from runtime.files import atomic_write, check_exists, read_file
from runtime.flags import AUTO, as_flag
from text import clean, decode_utf8, is_tag_line, normalize, normalize_lines, starts_with_tag

MAX_COUNT_DIGITS = 18  # digits of a word's count, so that it fits into an int64
MAX_WORDS_BYTES = 2**28  # of a file of words
MAX_SENTENCEPIECE_BYTES = 2**24
MAX_REPLACEMENT_BYTES = 256  # of what sentencepiece writes in place of a character
RUN_PREPRO_HINT = (
    "Run `python prepro.py` first, with the same --recipe, --preprocessed, --source_lang and"
    " --target_lang"
)
REWRITE_HINT = "Write the file again with `python prepro.py`"
RESTORE_HINT = "Copy the file again from the folder in which the model was trained"


# What all tokenizers have ------------------------------------------------------


class Vocab:
    """The tokens of one language or of both, numbered from 0. A tokenizer is a subclass.

    A subclass is a row in `TOKENIZERS`, and one in `prepro.WRITERS`, which writes its files. It
    defines `__len__` and

      load(path, hp, remedy): a vocabulary; `remedy` is what to do if its file is damaged;
      identity(): bytes that decide the ids and the text of every sentence;
      encode(sentences): for each prepared sentence the ids of its tokens, and of `</S>`;
      decode(ids): the sentence of the tokens before the first `</S>`;
      id_to_token(i): the token with id `i`;
      display(i): the same as it looks in a sentence, after a space if it has one.

    Args:
      path: the vocabulary file.
      max_bytes: size of the largest file that is read.

    Attributes:
      content: the bytes of the file.
    """

    token_name: str  # plural of a token, for messages
    suffix: str  # end of the name of a vocabulary file
    is_markup: callable  # whether a line of training text is markup
    sized_by_flag = False  # whether --vocab_size is the number of tokens
    tokens_suffice = True  # whether a program can tokenize that knows only the list of tokens
    lacks = None  # what a vocabulary lacks if a line has <UNK>; None if <UNK> is common
    more_tokens = ""  # a remedy, for messages, if most of a text is <UNK>
    space_id = None  # id of a space alone, which has no meaning

    def __init__(self, path, max_bytes):
        self.path = path
        try:
            self.content = read_file(path, max_bytes)
        except OSError as error:
            missing = isinstance(error, FileNotFoundError)
            hint = RUN_PREPRO_HINT if missing else "Check its permissions"
            raise InputError(f"{path}: {error.strerror.lower()}. {hint}") from None

    @classmethod
    def paths(cls, hp) -> list[Path]:
        """The files that prepro.py writes: one vocabulary, or that of source and that of target."""
        langs = hp.source_lang, hp.target_lang
        return [Path(hp.preprocessed) / f"{lang}{cls.suffix}" for lang in langs]

    def check_flags(self, hp):
        """Raise InputError if prepro.py had other flags when it wrote the file.

        Without a trained model, all flags are compared.
        """

    @property
    def name(self) -> str:
        """The name of the file without its suffix."""
        return self.path.name.removesuffix(self.suffix)

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the `identity`, in hexadecimal."""
        return hashlib.sha256(self.identity()).hexdigest()

    def clean(self, sentences) -> list[str]:
        """Remove from normalized sentences what has no token."""
        return sentences

    def prepare(self, sentences) -> list[str]:
        """Normalize sentences, and remove what has no token."""
        return self.clean(normalize_lines(sentences))

    def of_test(self, side) -> list[str]:
        """Return the sentences of an `EvalSentences`, prepared."""
        return side.raw

    def tokens(self) -> list[str]:
        """List all tokens by their ids."""
        return [*map(self.id_to_token, range(len(self)))]

    def starts_word(self, i) -> bool:
        """Whether the token with id `i` is the first one of a word."""
        return self.display(i).startswith(" ")


def truncate_at_eos(ids):
    """Truncate ids (T,) before the first `</S>`.

    >>> truncate_at_eos(np.array([4, 5, 3, 0])).tolist()
    [4, 5]
    """
    (ends,) = np.nonzero(np.asarray(ids) == EOS)
    return ids[: ends[0]] if len(ends) else ids


# Words -------------------------------------------------------------------------


class WordVocab(Vocab):
    """The word vocabulary of one language, as in the 2017 code.

    Args:
      path: the vocabulary file.
      min_cnt: words seen less often become `<UNK>`.
      remedy: what to do if the file is damaged, for the message.

    Attributes:
      word2cnt: all words of the file and their counts.
      word2idx, idx2word: those with a count of at least `min_cnt`, in the order of the file.
    """

    token_name = "words"
    suffix = ".vocab.tsv"
    is_markup = staticmethod(starts_with_tag)
    more_tokens = " or lower --min_cnt"

    def __init__(self, path, min_cnt, remedy=REWRITE_HINT):
        super().__init__(path, MAX_WORDS_BYTES)
        self.word2cnt = parse_counts(path, self.content, remedy)
        words = [word for word, count in self.word2cnt.items() if count >= min_cnt]
        if len(words) == len(SPECIALS):
            raise InputError(f"{path}: no word occurs {min_cnt} times or more. Lower --min_cnt")
        self.word2idx = {word: i for i, word in enumerate(words)}
        self.idx2word = dict(enumerate(words))

    @classmethod
    def load(cls, path, hp, remedy):
        """Load a vocabulary."""
        return cls(path, hp.min_cnt, remedy)

    def __len__(self):
        return len(self.word2idx)

    def identity(self) -> bytes:
        """Return the words that have an id, in their order."""
        return "\n".join(self.word2idx).encode()

    def clean(self, sentences) -> list[str]:
        """Remove from normalized sentences what is in no word, as `text.clean`."""
        return clean("\n".join(sentences)).split("\n") if sentences else []

    def of_test(self, side) -> list[str]:
        """Return the sentences of an `EvalSentences` as the 2017 code cleaned them."""
        return side.cleaned

    def encode(self, sentences) -> list[list[int]]:
        """Encode cleaned sentences: the ids of the words of each, and of `</S>`."""
        ids_of = self.word2idx.get
        return [[*(ids_of(word, UNK) for word in line.split()), EOS] for line in sentences]

    def id_to_token(self, i) -> str:
        """Return the word with id `i`."""
        return self.idx2word[int(i)]

    def display(self, i) -> str:
        """Return the word with id `i` after a space."""
        return f" {self.id_to_token(i)}"

    def decode(self, ids) -> str:
        """Join the words before the first `</S>` with spaces."""
        return normalize(" ".join(map(self.id_to_token, truncate_at_eos(ids))))


def parse_counts(path, content, remedy) -> dict[str, int]:
    """Parse the bytes of a word vocabulary: its words and their counts, in the order of the file.

    Args:
      path, remedy: the file, and what to do if it is damaged, for messages.
    """
    counts, previous = {}, None
    for number, line in enumerate(decode_utf8(path, io.BytesIO(content)), 1):
        word, tab, count = line.partition("\t")
        is_word = word.split() == [word] and not re.search(r"[\x00-\x1f\x7f-\x9f]", word)
        if not is_word or not tab or not count.isascii():
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
        raise InputError(f"{path}:{number}: this line {problem}. {remedy}")
    if tuple(counts)[:4] != SPECIALS:
        raise InputError(f"{path}:1: the first four words are not {' '.join(SPECIALS)}. {remedy}")
    return counts


# Subwords ----------------------------------------------------------------------


class SubwordVocab(Vocab):
    """The subwords of a sentencepiece model, of one language or of both.

    Args:
      path: the sentencepiece model.
      remedy: what to do if the file is damaged, for the message.

    Attributes:
      options: `sentencepiece_options`.
    """

    token_name = "subwords"
    suffix = ".model"
    sized_by_flag = True
    is_markup = staticmethod(is_tag_line)
    tokens_suffice = False
    lacks = "characters"

    def __init__(self, path, remedy=REWRITE_HINT):
        super().__init__(path, MAX_SENTENCEPIECE_BYTES)
        try:
            self.options = sentencepiece_options(parse_sentencepiece(self.content))
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=self.content)
        except (ValueError, RuntimeError) as error:
            reason = str(error).partition("\n")[0]
            raise InputError(
                f"{path}: not a sentencepiece model that begins with {' '.join(SPECIALS)}"
                f" ({reason}). {remedy}"
            ) from None

    @classmethod
    def load(cls, path, hp, remedy):
        """Load a vocabulary."""
        return cls(path, remedy)

    @classmethod
    def paths(cls, hp) -> list[Path]:
        """The sentencepiece model of both languages, or that of source and that of target."""
        # Two files with the same ids, which read text in different ways.
        names = ["bpe.source", "bpe"] if hp.reads_source_apart else ["bpe"]
        if not hp.joint_vocab:
            names = [f"bpe.{lang}" for lang in (hp.source_lang, hp.target_lang)]
        return [Path(hp.preprocessed) / f"{name}{cls.suffix}" for name in names]

    def check_flags(self, hp):
        """Raise InputError if prepro.py had other flags when it wrote the file."""
        if hp.bpe_dropout and self.options[0][0] != TrainerSpec.BPE:
            raise InputError(
                f"{self.path}: its subwords are not those of BPE, and bpe_dropout skips merges of"
                " BPE. Leave --bpe_dropout out"
            )
        remedy = "Write the file again with `python prepro.py` and this flag, or leave the flag out"
        new = not hp.vocab_sha256
        is_set = not new or "vocab_size" in hp.given
        if is_set and hp.vocab_size not in (AUTO, len(self)):
            raise InputError(
                f"{self.path}: holds {len(self)} subwords, but --vocab_size is {hp.vocab_size}."
                f" {remedy}"
            )
        processor = self.processor
        for symbol in hp.symbol_list if new else ():
            if processor.is_unknown(processor.piece_to_id(symbol)):
                raise InputError(f"{self.path}: lacks {symbol}, which --symbols names. {remedy}")
        is_source = self.path.name == self.paths(hp)[0].name
        if new and is_source and hp.fold_case != self.folds_case:
            flag = as_flag("fold_case", self.folds_case)
            raise InputError(f"{self.path}: was written with {flag}. {remedy}")
        if new and hp.byte_fallback and not any(map(processor.is_byte, range(len(self)))):
            raise InputError(f"{self.path}: was written without --byte_fallback. {remedy}")

    @property
    def folds_case(self) -> bool:
        """Whether the vocabulary reads text without its case."""
        return self.processor.normalize("B") == self.processor.normalize("b")

    def __len__(self):
        return self.processor.get_piece_size()

    @property
    def space_id(self):
        """The id of ▁, a space alone, or None if the vocabulary lacks it."""
        space = self.processor.piece_to_id("▁")
        return None if space == UNK else space

    def identity(self) -> bytes:
        """Return the subwords, their scores and types, and `options`.

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
        rows = [*zip(*columns, strict=True), *self.options]
        return "\n".join(map(str, rows)).encode()

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

    def display(self, i) -> str:
        """Return the subword with id `i`, with a space where it has one."""
        return self.id_to_token(i).replace("▁", " ")

    def decode(self, ids) -> str:
        """Join the subwords before the first `</S>` to normalized text, which has no line feed.

        Two normalized subwords may together be text that is not. `--byte_fallback` makes subwords
        of all bytes, also of those that end a line.
        """
        text = self.processor.decode([int(i) for i in truncate_at_eos(ids)])
        return normalize(text.replace("\n", " ").replace("\r", " "))

    @functools.cached_property
    def characters(self) -> set[str]:
        """The characters that have a subword."""
        is_unused = self.processor.is_unused
        tokens = [token for i, token in enumerate(self.tokens()) if not is_unused(i)]
        return {*"".join(tokens[len(SPECIALS) :])}

    def lacks_part_of(self, text) -> bool:
        """Whether a text has characters without a subword."""
        return bool({*self.processor.normalize(normalize(text))} - self.characters)


# Sentencepiece's library crashes on some files, so that they are checked before it reads them.


def parse_sentencepiece(content) -> ModelProto:
    """Check the bytes of a sentencepiece model, and parse them.

    Raises:
      ValueError: prepro.py has not written them.
    """
    try:
        model = ModelProto.FromString(content)
    except DecodeError:
        raise ValueError("the file is damaged") from None
    pieces = [piece.piece for piece in model.pieces]
    if not all(isinstance(piece, str) for piece in pieces):  # else they are bytes
        raise ValueError("a subword is not UTF-8")
    if tuple(pieces[: len(SPECIALS)]) != SPECIALS:
        raise ValueError("the first subwords are others")
    if len({*pieces}) < len(pieces) or any(not piece or "\0" in piece for piece in pieces):
        raise ValueError("a subword is empty, has a zero byte, or occurs twice")
    if not all(math.isfinite(piece.score) for piece in model.pieces):
        raise ValueError("a score is not finite")
    kinds = ModelProto.SentencePiece
    types = [piece.type for piece in model.pieces]
    if types[: len(SPECIALS)] != [kinds.CONTROL, kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL]:
        raise ValueError(f"{' '.join(SPECIALS)} have other types")
    usual = {kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE, kinds.UNUSED}
    if not {*types[len(SPECIALS) :]} <= usual:
        raise ValueError("a subword has another type")
    trainer = model.trainer_spec
    names = trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece
    if names != SPECIALS or len(trainer.unk_surface) > MAX_REPLACEMENT_BYTES:
        raise ValueError("the special subwords are others")
    if model.self_test_data.samples:
        raise ValueError("the file has tests, which could take long")
    for rules in (model.normalizer_spec, model.denormalizer_spec):
        check_charsmap(rules.precompiled_charsmap)
    return model


def sentencepiece_options(model) -> list[tuple]:
    """Return the options of a `ModelProto` that decide how it tokenizes, without its subwords."""
    trainer = model.trainer_spec
    options = [(trainer.model_type, trainer.treat_whitespace_as_suffix, trainer.unk_surface)]
    options += [tuple(piece.type == piece.USER_DEFINED for piece in model.pieces)]
    for rules in (model.normalizer_spec, model.denormalizer_spec):
        spaces = rules.add_dummy_prefix, rules.remove_extra_whitespaces, rules.escape_whitespaces
        options += [(*spaces, rules.precompiled_charsmap)]
    return options


def check_charsmap(charsmap):
    """Check the rules by which sentencepiece replaces characters. It follows them unchecked.

    They are the size of a trie, 4 bytes; the trie; and strings that end in a zero byte. The trie
    is a double array of 4 bytes per node (Darts-clone): the child of a node for a byte is at its
    own index XOR its offset XOR the byte, and the value of a node without child, at index XOR
    offset, is where the replacement starts among the strings.

    Raises:
      ValueError: an index leads out of the trie or of the strings.
    """
    if not charsmap:
        return
    size = int.from_bytes(charsmap[:4], "little")
    trie, strings = charsmap[4 : 4 + size], charsmap[4 + size :]
    # 256 nodes, so that XOR with a byte does not leave the trie.
    if not size or size % 1024 or not strings.endswith(b"\0"):
        raise ValueError("the rules of normalization are damaged")
    nodes = np.frombuffer(trie, "<u4")
    offsets = (nodes >> 10) << ((nodes & 2**9) >> 6)
    children = np.arange(len(nodes)) ^ offsets
    inner, has_value = nodes < 2**31, nodes >> 8 & 1 == 1
    inner[0] = True  # the search starts there in any case
    if (children[inner] >= len(nodes)).any():
        raise ValueError("the rules of normalization lead out of their trie")
    if (nodes[children[inner & has_value]] & (2**31 - 1) >= len(strings)).any():
        raise ValueError("the rules of normalization lead out of their strings")
    if max(map(len, strings.split(b"\0"))) > MAX_REPLACEMENT_BYTES:
        raise ValueError("the rules of normalization have a long replacement")


# Loading -----------------------------------------------------------------------

TOKENIZERS = dict(words=WordVocab, bpe=SubwordVocab)


def load_vocabs(hp):
    """Load the vocabularies of source and target. A joint one is one object for both.

    A trained model has a copy of its vocabularies in `logdir`, since prepro.py may have written
    other ones to `preprocessed` in the meantime. The copy is preferred.

    Returns:
      (Vocab, Vocab)
    """
    kind, vocabs, trained_with = TOKENIZERS[hp.tokenizer], [], hp.vocab_sha256
    if not trained_with:
        check_vocabs_exist(hp)
    for written_path in kind.paths(hp):
        path = Path(hp.logdir) / written_path.name
        if not (trained_with and path.exists()):
            path = written_path
        if trained_with and not path.exists():
            raise InputError(
                f"{path}: no such file, nor a copy in {hp.logdir}. The model there needs the"
                " vocabulary that it was trained with. Copy the file to one of the two folders"
            )
        # prepro.py cannot write a file in `logdir`, nor the same one after a change of the text.
        vocab = kind.load(path, hp, RESTORE_HINT if trained_with else REWRITE_HINT)
        if trained_with:
            check_same_vocab(vocab, trained_with, hp.logdir)
        vocab.check_flags(hp)
        vocabs.append(vocab)
    return tuple(vocabs * 2 if len(vocabs) == 1 else vocabs)


def check_vocabs_exist(hp):
    """Raise InputError if a vocabulary is missing; the message names others that exist."""
    for path in TOKENIZERS[hp.tokenizer].paths(hp):
        hint = RUN_PREPRO_HINT
        suffixes = [kind.suffix for kind in TOKENIZERS.values()]
        if others := [other for suffix in suffixes for other in path.parent.glob(f"*{suffix}")]:
            hint = (
                f"{min(others)} exists, but this is the recipe {hp.recipe}, from {hp.source_lang}"
                f" to {hp.target_lang}. Give --recipe, --source_lang and --target_lang as to"
                " prepro.py, or run it again"
            )
        check_exists(path, hint)


def check_same_vocab(vocab, trained_with, logdir):
    """Check that a vocabulary is the one that a model was trained with.

    Args:
      trained_with: the model's `fingerprints`.
    """
    if trained_with.get(vocab.name) != vocab.fingerprint:
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
    """Write the vocabularies into `logdir`, where `load_vocabs` finds them first.

    The bytes are those that were loaded: prepro.py may have written others since.
    """
    for vocab in vocabs:
        copy = Path(logdir) / vocab.path.name
        if not (copy.is_file() and copy.read_bytes() == vocab.content):
            atomic_write(copy, vocab.content)


def fingerprints(vocabs) -> dict[str, str]:
    """Return the fingerprint of each vocabulary by its name."""
    return {vocab.name: vocab.fingerprint for vocab in vocabs}
