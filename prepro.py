"""Count the words of the training text and write one vocabulary file a language."""

from collections import Counter

from data_load import SPECIALS, clean, read_lines
from hparams import Hyperparams, InputError, parse_flags, run, write_whole

SPECIAL_COUNT = 1_000_000_000  # above every `min_cnt`


def make_vocab(source):
    """The vocabulary file of the text file `source`, the most frequent word first, a str.

    A line is a word, a tab and its count. As documented the lines that open with
    a tag are counted too.

    Raises:
      InputError: `source` cannot be read, or it holds no word of Latin letters.
    """
    word2cnt = Counter()
    for line in read_lines(source):
        word2cnt.update(clean(line).split())
    if not word2cnt:
        raise InputError(
            f"{source}: holds no word of Latin letters, the only ones that the recipe legacy keeps"
        )
    entries = [(word, SPECIAL_COUNT) for word in SPECIALS] + word2cnt.most_common()
    return "".join(f"{word}\t{count}\n" for word, count in entries)


def main(flags):
    hp = Hyperparams(**flags)
    sides = [(hp.source_train, hp.source_lang), (hp.target_train, hp.target_lang)]
    # Both are counted before either is written, so that they always belong together.
    vocabs = [(hp.vocab_path(lang), make_vocab(source)) for source, lang in sides]
    for path, text in vocabs:
        write_whole(path, text)
        print(f"{path}: {len(text.splitlines())} words")
    print("Done")


if __name__ == "__main__":
    run(main, parse_flags(__doc__))
