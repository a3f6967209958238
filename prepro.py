"""Write the vocabularies of the training text: the words of each language, or joint subwords.

The ids of the text are written next to them, for train.py."""

import contextlib
import functools
import io
import itertools
import os
import re
import sys
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path

from hparams import Hyperparams, make_hparams
from support.cli import run_script
from support.errors import InputError
from support.files import atomic_write
from support.flags import parse_flags

if __name__ == "__main__":  # before the packages are imported
    given = parse_flags(__doc__, hparams=Hyperparams, check=make_hparams)

import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from data_load import write_ids
from text.checks import overlap_notes, shift_notes
from text.ids import BOS, EOS, PAD, SPECIALS, UNK
from text.lines import blocks, clean, fold, normalize, read_lines, read_pairs, training_files
from text.vocab import TOKENIZERS, load_vocabs

SPECIAL_COUNT = 1_000_000_000  # count written for the special tokens, above every `min_cnt`
MAX_SUBWORDS = 8000  # if their number is chosen
ALPHABET_SIZE = 128  # characters among the subwords whose number is chosen
SPELLED_COUNT = 2  # a character seen so often or less is spelled, if there are bytes for it
RESERVED = "\u2585"  # sentencepiece leaves out a word with this character, its own mark of <UNK>


def count_words(lines, transform=str) -> Counter:
    """Count the words of normalized and transformed lines, in their order."""
    word2cnt = Counter()
    for block in blocks(lines):
        word2cnt.update(transform(normalize("\n".join(block))).split())
    return word2cnt


def make_vocab(paths) -> str:
    """Make the content of a vocabulary file: a word, a tab and its count per line.

    The most frequent word comes first. Lines of tags count too, as in the 2017 code.
    """
    word2cnt = count_words(itertools.chain.from_iterable(map(read_lines, paths)), clean)
    if not word2cnt:
        raise InputError(
            f"{', '.join(map(str, paths))}: holds no word of Latin letters. For another script,"
            " choose a recipe with subwords, for example --recipe tiny"
        )
    entries = [(word, SPECIAL_COUNT) for word in SPECIALS] + word2cnt.most_common()
    return "".join(f"{word}\t{count}\n" for word, count in entries)


def make_models(hp, pairs) -> list[bytes]:
    """Make the sentencepiece models of pairs of files, for `SubwordVocab.paths`."""
    check_symbols(hp.symbol_list)
    fold_source = functools.partial(fold, lang=hp.source_lang) if hp.fold_case else str
    counts = [Counter(), Counter()]
    for source, target in itertools.chain.from_iterable(map(read_pairs, pairs)):
        counts[0].update(count_words(source, fold_source))
        counts[1].update(count_words(target))
    sides = [counts[0] + counts[1]] if hp.joint_vocab else counts
    models = [make_subwords(side, hp) for side in sides]
    return [fold_case(models[0], hp.source_lang), models[-1]] if hp.fold_case else models


def check_symbols(symbols):
    """Raise InputError unless `symbols` can be subwords."""
    for symbol in symbols:
        is_word = symbol.split() == [symbol] and symbol == normalize(symbol) and "▁" not in symbol
        is_taken = symbol in SPECIALS or re.fullmatch("<0x[0-9A-F]{2}>", symbol)
        if not is_word or is_taken or symbols.count(symbol) > 1:
            raise InputError(
                f"symbols {','.join(symbols)}: {symbol!r} cannot be a subword, or is there twice."
                " Write words with commas between them, for example '>>de<<,>>fr<<'"
            )


def fold_case(proto, lang) -> bytes:
    """Return the same sentencepiece model, but that it reads text without case."""
    rules = train_sentencepiece(Counter(a=1), len(SPECIALS) + 2, fold_lang=lang)
    model = ModelProto.FromString(proto)
    model.normalizer_spec.CopyFrom(ModelProto.FromString(rules).normalizer_spec)
    return model.SerializeToString(deterministic=True)


def make_subwords(word2cnt, hp) -> bytes:
    """Make the sentencepiece model of a text: BPE (Sennrich et al. 2016), joint if of both sides.

    BPE never merges across a space, so the words and their counts are enough, while sentencepiece
    would hold all of the text in memory. The same words in the same order give the same bytes.

    If `hp.vocab_size` is 0, the length of the text decides on the number. Characters beyond
    `ALPHABET_SIZE`, as of Chinese, do not take the place of merges.
    """
    counts = Counter()  # of the characters
    for word, count in word2cnt.items():
        for char in word:
            counts[char] += count
    rare = SPELLED_COUNT if hp.byte_fallback else 0
    omitted = {RESERVED, *(char for char, count in counts.items() if count <= rare)}
    pieces, separator = Counter(), re.compile(f"[{re.escape(''.join(omitted))}]")
    for word, count in word2cnt.items():
        for piece in separator.sub(" ", word).split():
            pieces[piece[: 2**16 - 1]] += count  # sentencepiece fails at more
    alphabet = {"▁", *SPECIALS, *counts} - omitted  # ▁ is the space before a word
    size = min(MAX_SUBWORDS, round(sum(counts[char] for char in alphabet) ** 0.6))
    num_merges = size - min(len(alphabet), ALPHABET_SIZE, size // 2)
    size = len(alphabet) + num_merges + len(hp.symbol_list) + 256 * hp.byte_fallback
    more = dict(user_defined_symbols=hp.symbol_list, byte_fallback=hp.byte_fallback)
    try:
        return train_sentencepiece(pieces, hp.vocab_size or size, **more)
    except RuntimeError as error:
        possible = re.search(r"(?:<=|\d vs) (\d+)", str(error))
        if not possible:
            raise
        if not hp.vocab_size:  # there are fewer different pairs to merge
            return train_sentencepiece(pieces, int(possible[1]), **more)
        raise InputError(
            f"vocab_size: the text does not allow {hp.vocab_size} subwords. Use --vocab_size"
            f" {possible[1]}, the nearest number, or 0"
        ) from None


def train_sentencepiece(word2cnt, vocab_size, fold_lang=None, **more) -> bytes:
    """Train a sentencepiece model; a size that the text does not allow is a RuntimeError."""
    model = io.BytesIO()
    names = [f"{kind}_piece" for kind in ("pad", "unk", "bos", "eos")]
    # The model stores this name of a file, and the same text must give the same bytes. So the
    # temporary folder is the current one.
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("rules.tsv").write_text(normalization_rules(fold_lang))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=(f"{word}\t{count}" for word, count in word2cnt.items()),
            input_format="tsv",
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            max_sentence_length=2**30,  # bytes, so that no word is left out
            normalization_rule_tsv="rules.tsv",
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            character_coverage=1.0,
            minloglevel=2,  # errors only
            **dict(zip(names, SPECIALS, strict=True)) | more,
        )
    return model.getvalue()


@functools.cache  # it looks at all 1,114,112 code points
def normalization_rules(fold_lang=None) -> str:
    """Make the rules by which sentencepiece normalizes text.

    They are `text.normalize` for each character, and make plain spaces of all spaces. Those of
    sentencepiece also replace full-width characters and fractions, which decoding cannot restore.
    Each line holds two strings, from and to, as hexadecimal code points. Text in `fold_lang` is
    read without its case.
    """
    pairs = []
    for char in map(chr, range(1, sys.maxunicode + 1)):  # it cannot replace U+0000
        no_character = char > "\uffff" and unicodedata.category(char) in ("Cn", "Co")
        if no_character or char in "\u200c\u200d":  # joiners; the characters next to them decide
            continue
        if char.isspace() and char != " ":
            pairs.append((char, " "))
            continue
        decomposed, normalized = unicodedata.normalize("NFD", char), normalize(char)
        wanted = normalized if fold_lang is None else fold(normalized, fold_lang)
        if char != wanted:
            pairs.append((char, wanted))
        if char == normalized != decomposed:
            pairs.append((decomposed, wanted))
    lines = ["\t".join(" ".join(f"{ord(c):x}" for c in text) for text in pair) for pair in pairs]
    return "".join(f"{line}\n" for line in lines)


def main(given):
    """Write the vocabularies and the ids."""
    hp = make_hparams(given)
    if os.path.exists("hyperparams.py"):  # that of the 2017 code, which users edit
        print("hyperparams.py: is not read. Give its values as flags", file=sys.stderr)
    pairs = training_files(hp)
    if hp.tokenizer == "words":
        contents = [make_vocab(paths) for paths in zip(*pairs, strict=True)]
    else:
        contents = make_models(hp, pairs)
    # All are made before one is written, so that the files always belong together.
    paths = TOKENIZERS[hp.tokenizer].paths(hp.preprocessed, hp)
    for path in paths[: -len(contents)]:  # of another recipe
        path.unlink()
    for path, content in zip(paths[-len(contents) :], contents, strict=True):
        atomic_write(path, content)
    vocabs = load_vocabs(hp.preprocessed, hp)
    for vocab in dict.fromkeys(vocabs):
        print(f"{vocab.path}: {len(vocab)} {vocab.token_name}")
    if not hp.changes_text:
        write_ids(hp, vocabs)
    for note in overlap_notes(hp, given):
        print(note)
    for note in shift_notes(pairs):
        print(note, file=sys.stderr)
    print("Done")


if __name__ == "__main__":
    run_script(main, given)
