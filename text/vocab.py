"""Vocabularies: the words of the 2017 code, and the subwords of sentencepiece."""

import concurrent.futures
import functools
import itertools
from pathlib import Path

import numpy as np
import sentencepiece

from support.errors import InputError
from support.files import atomic_write
from text.ids import EOS, SPECIALS, UNK
from text.lines import clean, normalize

REMEDY = (
    "Run `python prepro.py` with the flags of this command (--recipe, --source_lang, ...), or copy"
    " the file again from the folder in which the model was trained"
)


class Vocab:
    """The tokens of one language or of both, numbered from 0.

    A tokenizer is a subclass and a row in `TOKENIZERS`, and prepro.py writes its files. It has

      token_name: the plural of a token, for messages;
      paths(folder, hp): the files in a folder: one, or that of source and that of target;
      encode(sentences): for each prepared sentence the ids of its tokens, and of `</S>`;
      decode(ids): the sentence of the tokens before the first `</S>`;
      id_to_token(i), display(i): the token with id `i`, and as it looks, with its space.
    """

    empty_ids = [EOS]  # ids of the tokens that have no text

    def __init__(self, path, content=None):
        self.path = path
        try:
            self.content = content or path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror.lower()}. {REMEDY}") from None

    def check_flags(self, hp, given):
        """Raise InputError if prepro.py had other flags than `given` when it wrote the file."""

    def clean(self, sentences) -> list[str]:
        """Remove from normalized sentences what has no token."""
        return sentences

    def prepare(self, sentences) -> list[str]:
        """Normalize sentences, and remove what has no token."""
        return self.clean([*map(normalize, sentences)])

    def tokens(self) -> list[str]:
        """List all tokens by their ids."""
        return [*map(self.id_to_token, range(len(self)))]

    def starts_word(self, i) -> bool:
        """Whether the token with id `i` is the first one of a word."""
        return self.display(i).startswith(" ")


def truncate_at_eos(ids):
    """Truncate ids (T,) before the first `</S>`."""
    (ends,) = np.nonzero(np.asarray(ids) == EOS)
    return ids[: ends[0]] if len(ends) else ids


class WordVocab(Vocab):
    """The word vocabulary of one language, as in the 2017 code.

    `word2cnt` has all words of the file, `word2idx` and `idx2word` those that are no `<UNK>`.
    """

    token_name = "words"

    @staticmethod
    def paths(folder, hp) -> list[Path]:
        return [Path(folder) / f"{lang}.vocab.tsv" for lang in (hp.source_lang, hp.target_lang)]

    def __init__(self, path, min_cnt):
        super().__init__(path)
        try:
            lines = self.content.decode().removesuffix("\n").split("\n")
            self.word2cnt = {word: int(count) for word, count in (x.split("\t") for x in lines)}
        except ValueError:
            lines, self.word2cnt = [], {}
        if tuple(self.word2cnt)[:4] != SPECIALS or len(self.word2cnt) < len(lines):
            raise InputError(
                f"{path}: not a vocabulary, which has a word, a tab and a count on each line, and"
                f" first {' '.join(SPECIALS)}. {REMEDY}"
            )
        words = [word for word, count in self.word2cnt.items() if count >= min_cnt]
        self.word2idx = {word: i for i, word in enumerate(words)}
        self.idx2word = dict(enumerate(words))

    def __len__(self):
        return len(self.word2idx)

    def clean(self, sentences) -> list[str]:
        """Remove from normalized sentences what is in no word, as `text.clean`."""
        return [clean(sentence).strip() for sentence in sentences]

    def encode(self, sentences) -> list[list[int]]:
        ids_of = self.word2idx.get
        return [[*(ids_of(word, UNK) for word in line.split()), EOS] for line in sentences]

    def id_to_token(self, i) -> str:
        return self.idx2word[int(i)]

    def display(self, i) -> str:
        return f" {self.id_to_token(i)}"

    def decode(self, ids) -> str:
        return normalize(" ".join(map(self.id_to_token, truncate_at_eos(ids))))


class SubwordVocab(Vocab):
    """The subwords of a sentencepiece model, of one language or of both."""

    token_name = "subwords"

    def __init__(self, path, content=None):
        super().__init__(path, content)
        self.processor = sentencepiece.SentencePieceProcessor()
        try:
            self.processor.LoadFromSerializedProto(self.content)
            first = self.processor.id_to_piece([*range(len(SPECIALS))])
        except (RuntimeError, IndexError):
            first = []
        if tuple(first) != SPECIALS:
            raise InputError(
                f"{path}: not a sentencepiece model that begins with {' '.join(SPECIALS)}. {REMEDY}"
            )
        self.empty_ids = [*{EOS, self.processor.piece_to_id("▁")} - {UNK}]

    @staticmethod
    def paths(folder, hp) -> list[Path]:
        """The files of source and target, or one of both; or two that read text differently."""
        if not hp.joint_vocab:
            return [Path(folder) / f"bpe.{side}.model" for side in (hp.source_lang, hp.target_lang)]
        of_source, joint = Path(folder) / "bpe.source.model", Path(folder) / "bpe.model"
        return [of_source, joint] if hp.fold_case or of_source.exists() else [joint]

    def check_flags(self, hp, given):
        """A recipe's size is for prepro.py only."""
        processor, is_source = self.processor, self.path == self.paths(self.path.parent, hp)[0]
        unknown = (processor.is_unknown(processor.piece_to_id(word)) for word in hp.symbol_list)
        folds_case = processor.normalize("B") == processor.normalize("b")
        wrong = dict(
            vocab_size=given.get("vocab_size", 0) not in (0, len(self)),
            symbols=any(unknown),
            fold_case=is_source and hp.fold_case != folds_case,
            byte_fallback=hp.byte_fallback and not any(map(processor.is_byte, range(len(self)))),
        )
        for name in filter(wrong.get, wrong):
            raise InputError(
                f"{self.path}: its {len(self)} subwords do not fit {name}"
                f" {getattr(hp, name)}. Write the file again with `python prepro.py` and this"
                " flag, or leave the flag out"
            )

    def __len__(self):
        return self.processor.get_piece_size()

    def encode(self, sentences, dropout=0.0, seed=0) -> list[list[int]]:
        """`dropout` is the share of merges to skip (BPE-dropout, Provilkov et al. 2020)."""
        if not dropout:  # in threads, one per core
            return self.processor.encode([*sentences], add_eos=True)
        # sentencepiece has one generator per thread and seeds it at the first draw. Only in a
        # new thread does the result depend on nothing but the seed and the sentences.
        sentencepiece.set_random_generator_seed(seed)
        sampling = dict(enable_sampling=True, alpha=dropout, nbest_size=-1, num_threads=1)
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            encode = functools.partial(self.processor.encode, [*sentences], add_eos=True)
            return thread.submit(encode, **sampling).result()

    def id_to_token(self, i) -> str:
        return self.processor.id_to_piece(int(i))

    def display(self, i) -> str:
        return self.id_to_token(i).replace("▁", " ")

    def decode(self, ids) -> str:
        # Two normalized subwords may together be text that is not. `--byte_fallback` makes subwords
        # of all bytes, also of those that end a line.
        text = self.processor.decode([int(i) for i in truncate_at_eos(ids)])
        return normalize(text.replace("\n", " ").replace("\r", " "))

    @functools.cached_property
    def characters(self) -> set[str]:
        """The characters that have a subword."""
        ids = itertools.filterfalse(self.processor.is_unused, range(len(SPECIALS), len(self)))
        return {*"".join(map(self.id_to_token, ids))}

    def lacks_part_of(self, text) -> bool:
        """Whether a text has characters without a subword."""
        return bool({*self.processor.normalize(normalize(text))} - self.characters)


TOKENIZERS = dict(words=WordVocab, bpe=SubwordVocab)


def load_vocabs(folder, hp):
    """Load the `Vocab`s of source and target; a joint one is one object."""
    kind = TOKENIZERS[hp.tokenizer]
    more = [hp.min_cnt] if kind is WordVocab else []
    vocabs = [kind(path, *more) for path in kind.paths(folder, hp)]
    return tuple(vocabs * 2 if len(vocabs) == 1 else vocabs)


def save_vocabs(vocabs, folder):
    """Write the vocabularies into a folder, with the bytes that were loaded."""
    for vocab in vocabs:
        atomic_write(Path(folder) / vocab.path.name, vocab.content)
    if vocabs[0].path == vocabs[1].path:  # that of another recipe would be read
        (Path(folder) / "bpe.source.model").unlink(missing_ok=True)
