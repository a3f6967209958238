"""Write the vocabularies of the training text: a list of words a language, or joint pieces."""

import contextlib
import hashlib
import io
import re
import sys
import tempfile
import unicodedata
from collections import Counter

import sentencepiece

from hparams import InputError, parse_flags, refuse_folder, run, with_recipe, write_whole
from text import END, PAD, SPECIALS, START, UNK, clean, in_blocks, read_corpus, read_lines

SPECIAL_COUNT = 1_000_000_000  # above every `min_cnt`


def make_vocab(source):
    """The vocabulary file of the text file `source`, the most frequent word first, a str.

    A line is a word, a tab and its count. As documented the lines that open with
    a tag are counted too.

    Raises:
      InputError: `source` cannot be read, or it holds no word of Latin letters.
    """
    word2cnt = count_words(read_lines(source), clean)
    if not word2cnt:
        raise InputError(
            f"{source}: holds no word of Latin letters, the only ones that words are made of: text"
            " in another script needs pieces, as with --recipe tiny"
        )
    entries = [(word, SPECIAL_COUNT) for word in SPECIALS] + word2cnt.most_common()
    return "".join(f"{word}\t{count}\n" for word, count in entries)


def count_words(lines, change=str):
    """How often each word is in the lines, in the order in which they come, a Counter.

    The lines are taken, changed and forgotten some thousands at a time.
    """
    word2cnt = Counter()
    for block in in_blocks(lines):
        word2cnt.update(change("\n".join(block)).split())
    return word2cnt


def make_pieces(sources, vocab_size):
    """A sentencepiece model of both text files: joint BPE (Sennrich et al. 2016), bytes.

    Every character of the text is a piece, so that none is unknown in training. BPE does
    not look beyond a word, and so the words and their counts say all: sentencepiece itself
    would hold the text in memory.

    Raises:
      InputError: a file cannot be read or holds no text, or the text has not room for
        `vocab_size` pieces, or not enough in them.
    """
    word2cnt = Counter()
    for source in sources:
        counts = count_words(read_corpus(source))
        if not counts:
            raise InputError(f"{source}: holds no text beside lines that open with <")
        word2cnt.update(counts)
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
        why = why_no_pieces(str(error), vocab_size)
        raise InputError(f"{' and '.join(sources)}: {why}") from None
    return model.getvalue()


@contextlib.contextmanager
def normalization_rules():
    """The path of a file that says what text is normalised to: Unicode's NFC, plain blanks.

    Sentencepiece's own rules would change text for good, as full-width characters and
    fractions. A line has two strings as hexadecimal code points, from and to.
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
    with tempfile.NamedTemporaryFile("w", suffix=".tsv") as file:
        for pair in pairs:
            points = [" ".join(f"{ord(char):x}" for char in text) for text in pair]
            file.write("\t".join(points) + "\n")
        file.flush()
        yield file.name


def why_no_pieces(error, vocab_size):
    """What sentencepiece's message means, and the way out."""
    if found := re.search(r"<= (\d+)", error):
        problem, size, bound = "little text", found[1], "less"
    elif found := re.search(r"required_chars\. \d+ vs (\d+)", error):
        problem, size, bound = "many different characters", found[1], "more"
    else:
        return f"no pieces can be made of this text ({error})"
    return f"too {problem} for vocab_size {vocab_size}: say --vocab_size {size} or {bound}"


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
    sides = [(hp.source_train, hp.source_lang), (hp.target_train, hp.target_lang)]
    if hp.tokens == "pieces":
        model = make_pieces([source for source, _ in sides], hp.vocab_size)
        replace(hp.pieces_path, model)
        print(f"{hp.pieces_path}: {hp.vocab_size} pieces")
    else:
        # Both are counted before either is written, so that they always belong together.
        paths = [hp.vocab_path(lang) for _, lang in sides]
        for path in paths:
            refuse_folder(path)
        texts = [make_vocab(source) for source, _ in sides]
        for path, text in zip(paths, texts, strict=True):
            replace(path, text.encode())
            print(f"{path}: {len(text.splitlines())} words")
    print("Done")


if __name__ == "__main__":
    run(main, parse_flags(__doc__))
