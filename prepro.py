"""Write the vocabularies of the training text: the words of each language, or joint pieces."""

import contextlib
import hashlib
import io
import os
import re
import sys
import tempfile
import unicodedata
from collections import Counter
from pathlib import Path

import sentencepiece

from hparams import (
    AUTO,
    InputError,
    choose_vocab_size,
    parse_flags,
    refuse_folder,
    run,
    with_recipe,
    write_whole,
)
from text import (
    END,
    PAD,
    SPECIALS,
    START,
    UNK,
    Pieces,
    check_same_length,
    check_text_files,
    clean,
    empty_text_error,
    in_blocks,
    read_lines,
)

SPECIAL_COUNT = 1_000_000_000  # above every `min_cnt`


class SentenceCounter:
    """Counts the sentences of a training file while its lines are read."""

    def __init__(self):
        self.sentences = 0
        self.tags = []  # numbers of the lines that open with <, counted from 1

    def __call__(self, lines, with_tags=False):
        """Yield the sentences among the lines, or all lines if `with_tags`."""
        for number, line in enumerate(lines, 1):
            is_tag = line.startswith("<")
            if is_tag:
                self.tags.append(number)
            else:
                self.sentences += 1
            if with_tags or not is_tag:
                yield line


def make_vocab(source, counter):
    """The vocabulary file of the text file `source`, the most frequent word first.

    Each line holds a word, a tab and its count. The 2017 code counts the lines that open
    with a tag too, and so does this.

    Args:
      counter: `SentenceCounter` of this file.

    Raises:
      InputError: `source` cannot be read, or it holds no word of Latin letters.
    """
    word2cnt = count_words(counter(read_lines(source), with_tags=True), clean)
    if not word2cnt:
        if not counter.sentences:
            raise empty_text_error(source, counter.sentences, len(counter.tags))
        raise InputError(
            f"{source}: holds no word of Latin letters, the only ones that words are made of: text"
            " in another script needs pieces, as with --recipe tiny"
        )
    entries = [(word, SPECIAL_COUNT) for word in SPECIALS] + word2cnt.most_common()
    return "".join(f"{word}\t{count}\n" for word, count in entries)


def count_words(lines, change=str):
    """How often each word is in the lines, in the order in which they come, a Counter.

    The lines are processed some thousands at a time, to save memory.
    """
    word2cnt = Counter()
    for block in in_blocks(lines):
        word2cnt.update(change("\n".join(block)).split())
    return word2cnt


def count_both_sides(sources, counters):
    """The words of both text files with their counts, a Counter.

    Raises:
      InputError: a file cannot be read or holds no text.
    """
    word2cnt = Counter()
    for source, counter in zip(sources, counters, strict=True):
        counts = count_words(counter(read_lines(source)))
        if not counts:
            raise empty_text_error(source, counter.sentences, len(counter.tags))
        word2cnt.update(counts)
    return word2cnt


def make_pieces(word2cnt, vocab_size, sources):
    """A sentencepiece model of both sides: joint BPE (Sennrich et al. 2016), bytes.

    Every character of the text is a piece, so that none is unknown in training. BPE does
    not look beyond a word, and so the words and their counts are enough: sentencepiece
    itself would hold the text in memory. The same words in the same order give the same bytes.

    Args:
      word2cnt: the words of both sides with their counts.
      vocab_size: number of pieces. `AUTO`: what `choose_vocab_size` says, or as near as
        the text allows.
      sources: the two files, for messages.

    Raises:
      InputError: the text has too few words for `vocab_size` pieces, or too many characters.
    """
    if vocab_size != AUTO:
        return train_sentencepiece(word2cnt, vocab_size, sources)
    characters = sum(len(word) * count for word, count in word2cnt.items())
    try:
        return train_sentencepiece(word2cnt, choose_vocab_size(characters), sources)
    except SizeError as error:
        return train_sentencepiece(word2cnt, error.possible_size, sources)


def train_sentencepiece(word2cnt, vocab_size, sources):
    """A sentencepiece model of `vocab_size` pieces; `make_pieces` describes the arguments."""
    model = io.BytesIO()
    names = [f"{kind}_piece" for kind in ("pad", "unk", "bos", "eos")]
    try:
        with normalization_rules() as rules:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(f"{word}\t{count}" for word, count in word2cnt.items()),
                input_format="tsv",
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                character_coverage=1.0,
                max_sentence_length=2**30,  # bytes: none is left out
                normalization_rule_tsv=rules,
                pad_id=PAD,
                unk_id=UNK,
                bos_id=START,
                eos_id=END,
                minloglevel=2,  # errors only
                **dict(zip(names, SPECIALS, strict=True)),
            )
    except RuntimeError as error:
        raise explain_trainer_error(str(error), vocab_size, sources) from None
    return model.getvalue()


@contextlib.contextmanager
def normalization_rules():
    """The name of a file that says what text is normalized to: Unicode's NFC, plain spaces.

    Sentencepiece's own rules would change text for good, as full-width characters and
    fractions. A line has two strings as hexadecimal code points, from and to.

    The file has the same name each time, in a temporary folder that is the current one
    meanwhile: the model stores the name, and the same text is to give the same bytes.
    """
    pairs = []
    for char in map(chr, range(sys.maxunicode + 1)):
        parts, whole = (unicodedata.normalize(form, char) for form in ("NFD", "NFC"))
        if char.isspace() and char != " ":
            pairs.append((char, " "))
        elif char != whole:
            pairs.append((char, whole))
        elif char != parts:
            pairs.append((parts, char))
    lines = ["\t".join(" ".join(f"{ord(c):x}" for c in text) for text in pair) for pair in pairs]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("rules.tsv").write_text("".join(f"{line}\n" for line in lines))
        yield "rules.tsv"


class SizeError(InputError):
    """The text cannot fill a vocabulary of the wanted size.

    Args:
      possible_size: the nearest size that it can fill.
    """

    def __init__(self, message, possible_size):
        super().__init__(message)
        self.possible_size = possible_size


def explain_trainer_error(error, vocab_size, sources):
    """The InputError that says what sentencepiece's message means, and the remedy."""
    paths = " and ".join(sources)
    if match := re.search(r"<= (\d+)", error):
        problem, bound = "little text", "less"
    elif match := re.search(r"required_chars\. \d+ vs (\d+)", error):
        problem, bound = "many different characters", "more"
    else:
        return InputError(f"{paths}: no pieces can be made of this text ({error})")
    return SizeError(
        f"{paths}: too {problem} for vocab_size {vocab_size}. Use --vocab_size {match[1]} or"
        f" {bound}, or --vocab_size {AUTO}",
        int(match[1]),
    )


def replace(path, content):
    """Write a vocabulary. Another one that is there, which a model may need, gets a new name."""
    before = path.read_bytes() if path.is_file() else content
    if before != content:
        kept = path.with_name(f"{path.name}.{hashlib.sha256(before).hexdigest()[:8]}")
        write_whole(kept, before)
        print(f"{path}: the one that was there is {kept} now", file=sys.stderr)
    write_whole(path, content)


def main(flags):
    """Write the vocabularies; `flags` as `parse_flags` returns them.

    Raises:
      InputError: a text cannot be read, or too little is in it.
    """
    hp = with_recipe(flags)
    check_text_files(hp, "train")
    sources, counters = (hp.source_train, hp.target_train), (SentenceCounter(), SentenceCounter())
    if os.path.samefile(*sources):
        print(f"{sources[0]}: is both sides of the text: a model learns to copy", file=sys.stderr)
    if hp.tokens == "pieces":
        word2cnt = count_both_sides(sources, counters)
        check_equal_sides(sources, counters)
        model = make_pieces(word2cnt, hp.vocab_size, sources)
        replace(hp.pieces_path, model)
        print(f"{hp.pieces_path}: {len(Pieces(hp.pieces_path))} pieces{auto_note(hp.vocab_size)}")
    else:
        # Both are counted before either is written, so that they always belong together.
        paths = [hp.vocab_path(lang) for lang in (hp.source_lang, hp.target_lang)]
        for path in paths:
            refuse_folder(path)
        texts = [make_vocab(*pair) for pair in zip(sources, counters, strict=True)]
        check_equal_sides(sources, counters)
        for path, text in zip(paths, texts, strict=True):
            replace(path, text.encode())
            print(f"{path}: {len(text.splitlines())} words")
    print("Done")


def check_equal_sides(sources, counters):
    """Raise InputError unless both files have equally many sentences."""
    counts, tags = zip(*((each.sentences, each.tags) for each in counters), strict=True)
    check_same_length(sources, counts, tags)


def auto_note(vocab_size):
    """A remark for the terminal where the size of the text decided."""
    return " (as many as suit this much text; --vocab_size sets the number)" * (vocab_size == AUTO)


if __name__ == "__main__":
    run(main, parse_flags(__doc__))
