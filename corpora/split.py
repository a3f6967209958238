"""Split a parallel text into training, development and test files.

    python corpora/split.py my.de my.en --output split

The command writes split/train.de, split/train.en and the same for dev and test. Pairs that share a
source or a target, but for case and punctuation, go to the same part: else a model would be tested
on sentences that it was trained on. Only the pairs and --seed decide where a pair goes. Within a
part, the order is that of the text, which is in memory, with about 500 bytes more per pair.
"""

import itertools
import sys
from collections import Counter
from hashlib import blake2b
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.cli import run_script
from support.errors import InputError
from support.files import new_files
from support.flags import Parser, expand_path
from text.checks import plain_forms
from text.lines import read_pairs

PARTS = ("train", "dev", "test")
SEED_BYTES = 8


def digest(text, seed=b"") -> int:
    """Return a number below 2**64 that identifies a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8, key=seed).digest(), "little")


def connect(pairs) -> list[int]:
    """Return a number for each pair, equal for pairs that share a source or a target.

    Others between them may connect them, too. Source and target are numbers of 0 or more.
    """
    parents = {}

    def root(node):
        while parents.setdefault(node, node) != node:
            parents[node] = node = parents[parents[node]]
        return node

    for source, target in pairs:
        parents[root(source)] = root(~target)  # below 0: a target is no source
    return [root(source) for source, _ in pairs]


def assign(groups, order, sizes) -> dict:
    """Return the part of each group: groups come in the order of their smallest number.

    `groups` and `order` are the group and a random number of each pair, `sizes` the pairs by part.
    """
    counts, left = Counter(groups), {**sizes}
    parts = {group: "train" for _, group in sorted(zip(order, groups, strict=True))}
    for group in parts:
        for part in ("test", "dev"):
            if counts[group] <= left[part]:
                parts[group] = part
                left[part] -= counts[group]
                break
    for part, size in sizes.items():
        if left[part]:
            raise InputError(
                f"only {size - left[part]:,} of {size:,} pairs could be put into {part}: pairs that"
                f" share a source or a target stay together, and {max(counts.values()):,} of"
                f" {len(groups):,} are one group. Lower --{part}, or remove repeated sentences"
            )
    return parts


def main(args):
    """Split the text that the flags name, and print where its pairs went."""
    paths = args.source, args.target
    suffixes = [Path(path.removesuffix(".gz")).suffix for path in paths]
    if suffixes[0] == suffixes[1]:
        raise InputError(
            f"{paths[0]} and {paths[1]}: the names end alike. Rename them, as my.de and my.en"
        )
    outputs = {part: [Path(args.output) / f"{part}{end}" for end in suffixes] for part in PARTS}
    seed = (args.seed % 2 ** (8 * SEED_BYTES)).to_bytes(SEED_BYTES, "little")
    pairs = [pair for block in read_pairs(paths) for pair in zip(*block, strict=True)]
    pairs = [pair for pair in pairs if all(map(str.strip, pair))]
    wanted = args.dev + args.test
    if len(pairs) < 2 * wanted:
        raise InputError(
            f"{args.source}: has {len(pairs):,} pairs with text on both sides, too few for"
            f" {wanted:,} pairs of development and test, and as many for training. Lower --dev and"
            " --test"
        )
    # Pairs share a side if its plain form is the same.
    sides = [map(digest, plain_forms(side)) for side in zip(*pairs, strict=True)]
    groups = connect([*zip(*sides, strict=True)])
    order = [digest("\n".join(pair), seed) for pair in pairs]
    parts = assign(groups, order, dict(dev=args.dev, test=args.test))
    with new_files(itertools.chain(*outputs.values())) as files:
        files = dict(zip(outputs, zip(files[::2], files[1::2], strict=True), strict=True))
        for pair, group in zip(pairs, groups, strict=True):
            for file, sentence in zip(files[parts[group]], pair, strict=True):
                file.write(f"{sentence}\n")
    counts = Counter(map(parts.get, groups))
    for part, (source, target) in outputs.items():
        print(f"{source} and {target}: {counts[part]:,} pairs")


def parse_args():
    """Parse the command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("source", type=expand_path, help="one sentence per line; .gz is unpacked")
    parser.add_argument("target", type=expand_path, help="the translation of each line")
    parser.add_argument("--output", type=expand_path, required=True, help="folder for new files")
    parser.add_argument("--dev", type=int, default=1000, help="pairs; default: %(default)s")
    parser.add_argument("--test", type=int, default=1000, help="pairs; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    run_script(main, parse_args())
