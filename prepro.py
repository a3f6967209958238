"""Count the words of the training text and write one vocabulary file a language."""

from collections import Counter

from data_load import SPECIALS, clean, read_lines
from hparams import Hyperparams, InputError, parse_flags, run, write_whole

SPECIAL_COUNT = 1_000_000_000  # above every `min_cnt`


def make_vocab(source, path):
    """Write the words of the file `source`, the most frequent first, to `path`.

    A line is a word, a tab and its count. As documented the lines that open with
    a tag are counted too.

    Raises:
      InputError: `source` cannot be read, or cleaning leaves no word of it.
    """
    word2cnt = Counter()
    for line in read_lines(source):
        word2cnt.update(clean(line).split())
    if not word2cnt:
        raise InputError(
            f"{source}: cleaning leaves no word, since the recipe legacy keeps Latin letters and"
            " apostrophes only"
        )
    entries = [(word, SPECIAL_COUNT) for word in SPECIALS] + word2cnt.most_common()
    write_whole(path, "".join(f"{word}\t{count}\n" for word, count in entries))
    print(f"{path}: {len(entries)} words")


def main(flags):
    hp = Hyperparams(**flags)
    make_vocab(hp.source_train, hp.vocab_path(hp.source_lang))
    make_vocab(hp.target_train, hp.vocab_path(hp.target_lang))
    print("Done")


if __name__ == "__main__":
    run(main, parse_flags(__doc__))
