"""Write the vocabularies of the training text: the words of each language, or joint subwords."""

import contextlib
import functools
import io
import os
import re
import sys
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path

from hparams import MIN_COVERAGE, Hyperparams, choose_vocab_size, make_hparams
from runtime.cli import run_script
from runtime.errors import InputError
from runtime.files import atomic_write
from runtime.flags import parse_flags
from runtime.parallel import map_on_cores

if __name__ == "__main__":  # before the packages are imported
    given = parse_flags(__doc__, hparams=Hyperparams, check=make_hparams)

import numpy as np
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from forms import fold
from ids import BOS, EOS, PAD, SPECIALS, UNK
from overlap import overlap_notes
from shifts import shift_notes
from text import blocks, clean, normalize, read_lines, read_pairs, read_sentences, training_files
from vocab import SubwordVocab, WordVocab

SPECIAL_COUNT = 1_000_000_000  # count written for the special tokens, above every `min_cnt`
RARE_COUNT = 10  # a merged subword seen less often is rare
MAX_RARE_SHARE = 1 / 3  # of the merged subwords; real text with choose_vocab_size has about 0.2
ALPHABET_SIZE = 128  # characters that choose_vocab_size counts among the subwords
FEW_MERGES = 1 / 20  # of the subwords; with so few merges, a note says so
SPELLED_COUNT = 2  # a character seen so often or less is spelled, if there are bytes for it
RESERVED = "\u2585"  # sentencepiece leaves out a word with this character, its own mark of <UNK>


def count_words(lines, transform=str) -> Counter:
    """Count the words of the lines, in the order of their first occurrence.

    Args:
      transform: function of the normalized text of some thousand lines, applied before it is
        split.
    """
    word2cnt = Counter()
    for counts in map_on_cores(functools.partial(count_block, transform), blocks(lines)):
        word2cnt.update(counts)
    return word2cnt


def count_block(transform, lines) -> Counter:
    """Count the words of some thousand lines."""
    return Counter(transform(normalize("\n".join(lines))).split())


# Words -------------------------------------------------------------------------


def make_vocab(paths) -> str:
    """Make the content of a vocabulary file: a word, a tab and its count per line.

    The most frequent word comes first. Lines of tags count too, as in the 2017 code.
    """
    word2cnt = Counter()
    for path in paths:
        counts = count_words(read_lines(path), clean)
        word2cnt.update(counts)
        if not counts:
            raise InputError(
                f"{path}: holds no word of Latin letters, and the word vocabulary has no other"
                " words. For text in another script, choose a recipe with subwords, for example"
                " --recipe tiny"
            )
    entries = [(word, SPECIAL_COUNT) for word in SPECIALS] + word2cnt.most_common()
    return "".join(f"{word}\t{count}\n" for word, count in entries)


# Subwords ----------------------------------------------------------------------


def check_symbols(symbols):
    """Raise InputError unless `symbols`, a list of str, can be subwords."""
    for symbol in symbols:
        is_word = symbol.split() == [symbol] and symbol == normalize(symbol) and "▁" not in symbol
        is_taken = symbol in SPECIALS or re.fullmatch("<0x[0-9A-F]{2}>", symbol)
        if not is_word or is_taken or symbols.count(symbol) > 1:
            raise InputError(
                f"symbols {','.join(symbols)}: {symbol!r} cannot be a subword, or is there twice."
                " Write words with commas between them, for example '>>de<<,>>fr<<'"
            )


def fold_words(word2cnt, lang) -> Counter:
    """Count words without their case."""
    counts = Counter()
    for word, count in word2cnt.items():
        counts[fold(word, lang)] += count
    return counts


def fold_case(proto, lang) -> bytes:
    """Return a sentencepiece model that has the same subwords, but reads text without its case.

    Args:
      proto: the model, bytes.
      lang: language of the text.
    """
    rules = train_sentencepiece(Counter(a=1), len(SPECIALS) + 2, [], fold_lang=lang)
    model = ModelProto.FromString(proto)
    model.normalizer_spec.CopyFrom(ModelProto.FromString(rules).normalizer_spec)
    return model.SerializeToString(deterministic=True)


def make_subwords(
    word2cnt, sources, vocab_size, symbols=(), byte_fallback=False, character_coverage=1.0
) -> bytes:
    """Make the sentencepiece model of a text: BPE (Sennrich et al. 2016), joint if of both sides.

    BPE never merges across a space, so the words and their counts are enough, while sentencepiece
    would hold all of the text in memory. The same words in the same order give the same bytes.

    Args:
      word2cnt: the words of the text with their counts.
      sources: the files of the text, for messages.
      vocab_size: number of subwords. 0: that of `choose_merges` and the characters, and
        fewer merges while too many of them are rare.
      symbols: words that are always one subword.
      byte_fallback: whether characters without a subword become their UTF-8 bytes, each of which
        is a subword, in place of `<UNK>`.
      character_coverage: share of the characters of the text, counted with repetitions, that are
        subwords. 1: all, or with `byte_fallback` all that occur more than `SPELLED_COUNT` times.
    """
    word2cnt = split_reserved(word2cnt)
    counts = count_characters(word2cnt)
    if byte_fallback and character_coverage == 1:
        character_coverage = coverage_without_rare(counts)
    more = dict(
        user_defined_symbols=list(symbols),
        byte_fallback=byte_fallback,
        character_coverage=character_coverage,
    )
    if vocab_size:
        return train_sentencepiece(word2cnt, vocab_size, sources, **more)
    alphabet_size = len(SPECIALS) + count_covered(counts, character_coverage)
    obligatory = alphabet_size + len(symbols) + (256 if byte_fallback else 0)
    # A space before each word is among the counts.
    merges = choose_merges(counts.total() - word2cnt.total(), alphabet_size)
    while True:
        try:
            proto = train_sentencepiece(word2cnt, obligatory + merges, sources, **more)
        except SizeError as error:  # there are fewer different pairs to merge
            merges = error.possible_size - obligatory
            continue
        if merges <= 1 or rare_share(proto, word2cnt, symbols) <= MAX_RARE_SHARE:
            return proto
        merges = int(0.8 * merges)


def split_reserved(word2cnt) -> Counter:
    """Split words at the character that sentencepiece reserves, so that it counts the rest."""
    pieces = Counter()
    for word, count in word2cnt.items():
        for piece in word.replace(RESERVED, " ").split() if RESERVED in word else [word]:
            pieces[piece] += count
    return pieces


def count_characters(word2cnt) -> Counter:
    """Count the characters of words, and the space before each word as sentencepiece writes it."""
    counts = Counter()
    for word, count in word2cnt.items():
        for char in f"▁{word}":
            counts[char] += count
    return counts


def coverage_without_rare(counts) -> float:
    """Return the share of the characters that occur more than `SPELLED_COUNT` times."""
    covered = sum(count for count in counts.values() if count > SPELLED_COUNT)
    # A little less, since sentencepiece takes the next character below this share.
    return max(MIN_COVERAGE, (covered - 0.5) / counts.total())


def count_covered(counts, character_coverage) -> int:
    """Count the most frequent characters that together have a share of all of them."""
    frequencies = sorted(counts.values(), reverse=True)
    covered_before = np.cumsum([0, *frequencies[:-1]])  # by the characters before each one
    return int(np.sum(covered_before < character_coverage * counts.total()))


def choose_merges(num_characters, alphabet_size) -> int:
    """The number of merges for a text, if `vocab_size` is 0.

    A subword is a character of the text or a merge of two subwords. In a text of few different
    characters, both together are as many as `choose_vocab_size` says. Chinese or Japanese text may
    have thousands of them. They do not take the place of merges, without which each word of the
    other language would be spelled in letters.

    Args:
      num_characters: of both sides of the training text together, without spaces.
      alphabet_size: how many different ones there are, with the special tokens.

    >>> [choose_merges(500_000, size) for size in (84, 2004)]
    [2543, 2499]
    """
    size = choose_vocab_size(num_characters)
    return size - min(alphabet_size, ALPHABET_SIZE, size // 2)


def rare_share(proto, word2cnt, symbols=()) -> float:
    """The share of the merged subwords that occur less than `RARE_COUNT` times in a text.

    A text that repeats its phrases, in a script without spaces, has subwords that are complete
    phrases. A model meets each of them too seldom to learn it. Merges that the text has only
    within larger ones do not count.

    Args:
      proto: sentencepiece model, bytes.
      word2cnt: the words of the text with their counts.
      symbols: subwords that are no merges, as in `make_subwords`.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    counts = np.zeros(processor.get_piece_size(), np.int64)
    tokenized = processor.encode([*word2cnt])
    for ids, count in zip(tokenized, word2cnt.values(), strict=True):
        np.add.at(counts, ids, count)
    special = {processor.piece_to_id(symbol) for symbol in symbols}
    merged = [i for i in range(len(counts)) if is_merged(processor, i) and i not in special]
    counts = counts[merged][counts[merged] > 0]
    return float(np.mean(counts < RARE_COUNT)) if len(counts) else 0.0


def is_merged(processor, i) -> bool:
    """Whether a subword is longer than a character, and no special token or byte."""
    special = processor.is_control(i) or processor.is_unknown(i) or processor.is_byte(i)
    return not special and len(processor.id_to_piece(i)) > 1


def train_sentencepiece(word2cnt, vocab_size, sources, fold_lang=None, **more) -> bytes:
    """Train a sentencepiece model of `vocab_size` subwords; see `make_subwords`.

    Args:
      fold_lang: as in `normalization_rules`.
      more: further options of sentencepiece's trainer.
    """
    model = io.BytesIO()
    names = [f"{kind}_piece" for kind in ("pad", "unk", "bos", "eos")]
    try:
        with normalization_file(fold_lang) as rules:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(f"{word}\t{count}" for word, count in word2cnt.items()),
                input_format="tsv",
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                max_sentence_length=2**30,  # bytes, so that no word is left out
                normalization_rule_tsv=rules,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=BOS,
                eos_id=EOS,
                minloglevel=2,  # errors only
                **dict(zip(names, SPECIALS, strict=True)) | more,
            )
    except RuntimeError as error:
        size = re.search(r"(?:<=|\d vs) (\d+)", str(error))
        if not size:
            raise
        raise SizeError(
            f"{' and '.join(sources)}: this text does not allow {vocab_size} subwords. Use"
            f" --vocab_size {size[1]}, the nearest number, or --vocab_size 0",
            int(size[1]),
        ) from None
    return model.getvalue()


@contextlib.contextmanager
def normalization_file(fold_lang):
    """Write `normalization_rules` to a temporary file, and yield its name.

    The model stores the name of the file, and the same text must give the same bytes. The file
    therefore always has the same name, in a temporary folder that is the current folder while
    the context lasts.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("rules.tsv").write_text(normalization_rules(fold_lang))
        yield "rules.tsv"


@functools.cache  # it looks at all 1,114,112 code points
def normalization_rules(fold_lang=None) -> str:
    """Make the rules by which sentencepiece normalizes text.

    They are `text.normalize` for each character, and make plain spaces of all spaces: programs
    that use the model without this project normalize most text as it does. Sentencepiece's own
    rules would also replace full-width characters and fractions, which decoding cannot restore.
    Each line holds two strings, from and to, as hexadecimal code points.

    Args:
      fold_lang: the language of text that is to be read without its case; None to keep the case.
    """

    def fold_or_keep(text):
        return text if fold_lang is None else fold(text, fold_lang)

    pairs = []
    for char in map(chr, range(1, sys.maxunicode + 1)):  # sentencepiece cannot replace U+0000
        if char > "\uffff" and unicodedata.category(char) in ("Cn", "Co"):
            continue  # no character (yet)
        decomposed, normalized = unicodedata.normalize("NFD", char), normalize(char)
        folded = fold_or_keep(normalized)
        if char in "\u200c\u200d":  # joiners; the characters next to them decide
            continue
        if char.isspace() and char != " ":
            pairs.append((char, " "))
            continue
        if char != folded:
            pairs.append((char, folded))
        if char == normalized != decomposed:
            pairs.append((decomposed, folded))
    lines = ["\t".join(" ".join(f"{ord(c):x}" for c in text) for text in pair) for pair in pairs]
    return "".join(f"{line}\n" for line in lines)


class SizeError(InputError):
    """The text does not allow a vocabulary of the wanted size.

    Args:
      possible_size: the nearest size that it allows.
    """

    def __init__(self, message, possible_size):
        super().__init__(message)
        self.possible_size = possible_size


# Files -------------------------------------------------------------------------


def main(given):
    """Write the vocabularies.

    Args:
      given: dict, the flags of the command line.
    """
    hp = make_hparams(given)
    if os.path.exists("hyperparams.py"):  # that of the 2017 code, which users edit
        print("hyperparams.py: is not read. Give its values as flags", file=sys.stderr)
    paths = training_files(hp)
    WRITERS[hp.tokenizer](hp, paths)
    for source, target in paths:
        if os.path.samefile(source, target):
            print(
                f"{source}: this file is both sides of the text. A model will learn to copy",
                file=sys.stderr,
            )
    if all(os.path.isfile(path) for pair in paths for path in pair):  # a pipe is read only once
        for note in overlap_notes(hp, given):
            print(note)
        for note in shift_notes(paths):
            print(note, file=sys.stderr)
    print("Done")


def write_subwords(hp, paths):
    """Write the sentencepiece model of both sides, or one for each, and print their sizes.

    Args:
      paths: list of pairs of files, source and target.
    """
    check_symbols(hp.symbol_list)
    check_sides(paths)
    counts = [
        sum((count_words(read_sentences(path)) for path in side), Counter())
        for side in zip(*paths, strict=True)
    ]
    if hp.fold_case:
        counts[0] = fold_words(counts[0], hp.source_lang)
    names = [[hp.source_train], [hp.target_train]]
    if hp.joint_vocab:
        counts, names = [counts[0] + counts[1]], [names[0] + names[1]]
    # Both are made before one is written, so that the two files always belong together.
    models = [
        make_subwords(*side, hp.vocab_size, hp.symbol_list, hp.byte_fallback, hp.character_coverage)
        for side in zip(counts, names, strict=True)
    ]
    if hp.fold_case:
        models = [fold_case(models[0], hp.source_lang), models[-1]]
    for path, model in zip(SubwordVocab.paths(hp.preprocessed, hp), models, strict=True):
        atomic_write(path, model)
        vocab = SubwordVocab(path)
        merges = sum(is_merged(vocab.processor, i) for i in range(len(vocab)))
        size = f"{len(vocab)} subwords, {merges} of them merges"
        if not hp.vocab_size:
            size += " (chosen from the size of the text; --vocab_size sets the number)"
        print(f"{path}: {size}")
        if hp.vocab_size and merges < FEW_MERGES * len(vocab):
            print(
                f"{path}: nearly all subwords are characters, which spell each word. Raise"
                f" --vocab_size, or use --vocab_size 0",
                file=sys.stderr,
            )


def check_sides(paths):
    """Raise InputError unless the sides of each pair of files are equally long."""
    for pair in paths:
        for _ in read_pairs(pair, "reading"):
            pass


def write_words(hp, paths):
    """Write the word vocabulary of each language, and print their sizes.

    Args:
      paths: list of pairs of files, source and target.
    """
    check_sides(paths)
    # Count both sides before writing, so that the two files always belong together.
    contents = [make_vocab(side) for side in zip(*paths, strict=True)]
    for path, content in zip(WordVocab.paths(hp.preprocessed, hp), contents, strict=True):
        atomic_write(path, content)
        print(f"{path}: {len(content.splitlines())} words")


WRITERS = dict(words=write_words, bpe=write_subwords)


if __name__ == "__main__":
    run_script(main, given)
