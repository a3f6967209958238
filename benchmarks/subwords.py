"""Show how long sentences are in subwords of the automatic vocabulary, for parts of a text.

    python benchmarks/subwords.py my.de my.en 300 1000 3000 10000

Each number is that of the training pairs, drawn at random from the text; 0 stands for all. A row
of the table has the size of the vocabulary, and for each side the subwords per word and per
character and the share of `<UNK>` in 500 other pairs, or in the text itself if no others are left.
"""

import argparse
import os
import random
import sys
from collections import Counter

from harness import ROOT

sys.path.insert(0, str(ROOT))

import sentencepiece

import prepro
from ids import UNK
from text import normalize_lines, read_lines

HELD_OUT_PAIRS = 500
HEADER = (
    "| text | pairs | subwords | of them merges | per word | per character | unknown |"
    " pairs longer than 100 |\n|---|---|---|---|---|---|---|---|"
)


def read_pairs(paths) -> list[tuple[str, str]]:
    """Read the pairs of a text in random order, without those that have an empty side."""
    sides = [normalize_lines(list(read_lines(path))) for path in paths]
    pairs = [pair for pair in zip(*sides, strict=True) if all(side.strip() for side in pair)]
    random.Random(0).shuffle(pairs)
    return pairs


def make_row(name, pairs, held_out) -> str:
    """Make a vocabulary of some pairs, and a row of the table."""
    sides = [*zip(*pairs, strict=True)]
    word2cnt = sum(map(prepro.count_words, sides), Counter())
    proto = prepro.make_subwords(word2cnt, [name], prepro.AUTO)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    lengths = [map(len, processor.encode([*side])) for side in sides]
    too_long = sum(max(pair) >= 100 for pair in zip(*lengths, strict=True))  # without </S>
    columns = []
    for side in zip(*held_out, strict=True):
        ids = [i for row in processor.encode([*side]) for i in row]
        words, chars = (sum(map(len, texts)) for texts in (map(str.split, side), side))
        columns.append((len(ids) / words, len(ids) / chars, ids.count(UNK) / len(ids)))
    per_word, per_char, unknown = zip(*columns, strict=True)
    merges = sum(prepro.is_merged(processor, i) for i in range(len(processor)))
    cells = [name, f"{len(pairs):,}", f"{len(processor):,}", f"{merges:,}"]
    cells += ["{:.1f}, {:.1f}".format(*per_word), "{:.2f}, {:.2f}".format(*per_char)]
    cells += ["{:.2%}, {:.2%}".format(*unknown), f"{too_long / len(pairs):.1%}"]
    return f"| {' | '.join(cells)} |"


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("pairs", type=int, nargs="+")
    args = parser.parse_args()
    pairs = read_pairs((args.source, args.target))
    name = os.path.basename(args.source).rpartition(".")[2]
    print(HEADER)
    for count in args.pairs:
        some = pairs[: count or None]
        print(make_row(name, some, pairs[len(some) :][:HELD_OUT_PAIRS] or some), flush=True)


if __name__ == "__main__":
    main()
