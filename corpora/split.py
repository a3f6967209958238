"""Split a parallel text into training, development and test files.

    python corpora/split.py my.de my.en --output split
    python corpora/split.py my.tsv --output split --source_lang de --target_lang en
    python corpora/split.py my.tmx --output split --source_lang de --target_lang en

The text is two files with one sentence per line, one file with columns and tabs between them
(TSV), or a translation memory (TMX). The commands write split/train.de, split/train.en and the
same for dev and test. Pairs that share a source or a target, but for case and punctuation, go to
the same part: else a model would be tested on sentences that it was trained on. Only the pairs
and --seed decide where a pair goes, not their order. Within a part, the order is that of the text.

The text is read twice and may have any size. 33 bytes per pair are in memory, some more for pairs
that share a side, and twice as much for a moment.
"""

import contextlib
import functools
import itertools
import os
import sys
from array import array
from collections import Counter
from hashlib import blake2b
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from eval_sets import same_language
from overlap import plain_forms
from runtime.cli import run_script
from runtime.errors import InputError
from runtime.files import atomic_open
from runtime.flags import Parser, expand_path
from runtime.parallel import map_on_cores
from segments import TmxUnits
from text import (
    SentenceFile,
    blocks,
    is_tag_line,
    open_unpacked,
    read_lines,
    read_pairs,
    skipped_note,
)

PARTS = ("train", "dev", "test")
SEED_BYTES = 8
HEAD_BYTES = 2**12  # of a file, that show whether it is TMX

# Reading -----------------------------------------------------------------------


class TwoFiles:
    """Two files with one sentence per line.

    Args:
      paths: of source and target.
    """

    def __init__(self, paths):
        self.paths, self.files = paths, []

    def languages(self):
        """Return the last suffixes of the names of the files."""
        names = [Path(path).name.removesuffix(".gz") for path in self.paths]
        return [Path(name).suffix.removeprefix(".") for name in names]

    def blocks(self, languages):
        """Yield blocks of pairs, two lists of sentences each."""
        self.files = [SentenceFile(path) for path in self.paths]
        return read_pairs(self.files, "reading")

    def notes(self) -> list[str]:
        """Return notes on what the last reading has left out."""
        note = skipped_note(self.files)
        return [note] if note else []


class Table:
    """A file with columns and tabs between them.

    Args:
      paths: its path, a list.
      columns: the numbers of the columns of source and target, counted from 1.
    """

    left_out = {}  # nothing

    def __init__(self, paths, columns=(1, 2)):
        (self.path,) = self.paths = paths
        self.columns = columns

    def languages(self):
        """Return no names: the file does not say them."""
        return ["", ""]

    def blocks(self, languages):
        """Yield blocks of pairs, two lists of sentences each."""
        for rows in blocks(self.rows(languages)):
            yield [*map(list, zip(*rows, strict=True))]

    def rows(self, languages):
        """Yield the source and the target of each line."""
        for number, line in enumerate(read_lines(self.path), 1):
            cells = line.split("\t")
            if len(cells) < max(self.columns):
                raise InputError(
                    f"{self.path}:{number}: this line has {len(cells)} columns, and column"
                    f" {max(self.columns)} is needed. Correct the line, or choose others with"
                    " --columns. A file with one language needs a second one"
                )
            yield [cells[column - 1].strip() for column in self.columns]

    def notes(self) -> list[str]:
        """Return notes on what the last reading has left out."""
        return [f"Left out: {count:,} {what}" for what, count in self.left_out.items() if count]


class Memory(Table):
    """A translation memory (TMX). If a language has several variants, the first one counts."""

    def languages(self):
        """Return the two languages of the file. It is an error if it has others."""
        found = dict.fromkeys(language for unit in self.units() for language in unit)
        if len(found) == 2 and all(found):
            return [*found]
        names = ", ".join(map(str, found))
        raise InputError(
            f"{self.path}: has the languages {names or 'of no unit'}, and two are needed. Name them"
            " with --source_lang and --target_lang"
        )

    def units(self):
        """Yield the units of the file."""
        with open_unpacked(self.path) as file:
            yield from TmxUnits(self.path).read(file)

    def rows(self, languages):
        """Yield the source and the target of each unit that has both."""
        self.left_out = Counter()
        for unit in self.units():
            row = []
            for language in languages:
                variants = texts_in(unit, language)
                self.left_out["further variants of a unit in one language"] += len(variants[1:])
                row += variants[:1]
            if len(row) == 2:
                yield row
            else:
                self.left_out[f"units without {' or '.join(languages)}"] += 1


def texts_in(unit, language) -> list[str]:
    """Return the texts of a unit in a language, those with its very name first.

    >>> texts_in({"en-us": ["color"], "en-gb": ["colour"], "de": ["Farbe"]}, "en-GB")
    ['colour', 'color']
    """
    tag = language.lower().replace("_", "-")
    names = [name for name in unit if same_language(name, language)]
    names.sort(key=lambda name: name != tag)
    return [text for name in names for text in unit[name]]


def open_text(paths, columns):
    """Return the reader of a text: `TwoFiles`, `Table` or `Memory`."""
    if len(paths) == 2:
        return TwoFiles(paths)
    with open_unpacked(paths[0]) as file:
        head = file.read(HEAD_BYTES).replace(b"\0", b"").lstrip(b"\xef\xbb\xbf\xff\xfe \r\n")
    return Memory(paths) if head[:1] == b"<" and b"<tmx" in head else Table(paths, columns)


# Splitting ---------------------------------------------------------------------


def digest(text, seed=b"") -> int:
    """Return a number below 2**64 that identifies a text."""
    content = text.encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(content, digest_size=8, key=seed).digest(), "little")


def digest_block(seed, sides):
    """Return three digests of each pair of a block, and which pairs can be used.

    Args:
      seed: bytes.

    Returns:
      (list of array, array): the digests of the sources, of the targets, and a random one of the
      pairs; and for each pair 0 if a side is empty, 1 if a side is a tag, else 2.
    """
    pairs, kinds = [*zip(*sides, strict=True)], array("B")
    digests = [array("Q", map(digest, plain_forms(side))) for side in sides]
    digests.append(array("Q", (digest("\n".join(pair), seed) for pair in pairs)))
    for pair in pairs:
        kinds.append(
            0 if not all(map(str.strip, pair)) else 1 if any(map(is_tag_line, pair)) else 2
        )
    return digests, kinds


def connect(sources, targets) -> np.ndarray:
    """Return a number for each pair, (N,), equal for pairs that share a source or a target.

    Pairs that share none directly are also connected by others between them.

    Args:
      sources, targets: the digests of the sides, (N,).

    >>> connect(np.array([7, 7, 8, 9]), np.array([1, 2, 2, 3])).tolist()
    [0, 0, 0, 3]
    """
    ids, shared = [], np.zeros(len(sources), bool)
    for side in (sources, targets):
        _, inverse, counts = np.unique(side, return_inverse=True, return_counts=True)
        shared |= counts[inverse] > 1
        ids.append(inverse + (ids[0].max(initial=0) + 1 if ids else 0))
    parents = {}

    def root(node):
        while parents.setdefault(node, node) != node:
            parents[node] = node = parents[parents[node]]
        return node

    rows = np.flatnonzero(shared).tolist()
    for source, target in zip(*(side[rows].tolist() for side in ids), strict=True):
        parents[root(source)] = root(target)
    numbers, first = np.arange(len(sources)), {}
    for row, source in zip(rows, ids[0][rows].tolist(), strict=True):
        numbers[row] = first.setdefault(root(source), row)
    return numbers


def assign(numbers, order, sizes) -> np.ndarray:
    """Return the index in `PARTS` of each pair, (N,) uint8.

    Args:
      numbers: as `connect` returns them.
      order: a random number for each pair, which depends on nothing else, (N,).
      sizes: the pairs of the development and the test set.
    """
    groups, inverse, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    smallest = np.full(len(groups), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(smallest, inverse, order)
    parts, left = np.zeros(len(groups), np.uint8), [0, *sizes]
    for group in np.argsort(smallest, kind="stable").tolist():
        for part in (2, 1):
            if counts[group] <= left[part]:
                parts[group] = part
                left[part] -= int(counts[group])
                break
        if not any(left):
            break
    return parts[inverse]


def split(text, languages, sizes, seed, outputs):
    """Split a text, and print where its pairs went.

    Args:
      text: what `open_text` returns.
      languages: of source and target.
      sizes: as in `assign`.
      outputs: for each of `PARTS` the paths of both sides, or nothing.
    """
    columns, kinds = [array("Q") for _ in range(3)], array("B")
    seed = (seed % 2 ** (8 * SEED_BYTES)).to_bytes(SEED_BYTES, "little")
    read = text.blocks(languages)
    for digests, block_kinds in map_on_cores(functools.partial(digest_block, seed), read):
        for column, values in zip(columns, digests, strict=True):
            column.extend(values)
        kinds.extend(block_kinds)
    kinds = np.array(kinds, np.uint8)
    usable = kinds == 2
    name, total = " and ".join(map(str, text.paths)), int(usable.sum())
    if total < 2 * sum(sizes):
        raise InputError(
            f"{name}: has {total:,} pairs with text on both sides, too few for {sum(sizes):,} pairs"
            " of development and test, and at least as many for training. Use smaller sizes, for"
            f" example --dev {total // 20} --test {total // 20}"
        )
    sources, targets, order = (np.array(column, np.uint64)[usable] for column in columns)
    numbers = connect(sources, targets)
    parts = assign(numbers, order, sizes)
    counts, groups = np.bincount(parts, minlength=3), np.bincount(numbers, minlength=total)
    for part, size, count in zip(PARTS[1:], sizes, counts[1:].tolist(), strict=True):
        if count < size:
            raise InputError(
                f"{name}: only {count:,} of {size:,} pairs could be put into {part}, since pairs"
                f" that share a source or a target stay together: {groups.max():,} of {total:,} are"
                f" one group. Lower --{part}, or remove repeated sentences first"
            )
    all_parts = np.full(len(kinds), len(PARTS), np.uint8)  # of pairs that are left out
    all_parts[usable] = parts
    write_parts(text, languages, all_parts, outputs)
    for paths, count in zip(outputs, counts.tolist(), strict=True):
        if paths:
            print(f"{' and '.join(map(str, paths))}: {count:,} pairs")
    print(f"Kept together: {int(groups[groups > 1].sum()):,} pairs that share a source or a target")
    for kind, what in enumerate(("an empty side", "a side that is only a tag")):
        if count := int((kinds == kind).sum()):
            print(f"Left out: {count:,} pairs with {what}")
    for note in text.notes():
        print(note)


def write_parts(text, languages, parts, outputs):
    """Write each pair of a text to the files of its part.

    Args:
      parts: the index in `outputs` of each pair, (N,), or `len(outputs)` to leave it out.
      outputs: as in `split`.
    """
    parts = iter(parts.tolist())
    with contextlib.ExitStack() as stack:
        files = [[stack.enter_context(atomic_open(path)) for path in paths] for paths in outputs]
        for sides in text.blocks(languages):
            for *pair, part in zip(*sides, parts, strict=False):
                if part < len(files):
                    for file, sentence in zip(files[part], pair, strict=True):
                        file.write(f"{sentence}\n".encode())


# The script --------------------------------------------------------------------


def output_paths(folder, languages, sizes) -> list:
    """Return the paths of both sides for each of `PARTS`, none for a part without pairs."""
    outputs = [
        [Path(folder) / f"{part}.{language}" for language in languages] if size else []
        for part, size in zip(PARTS, (1, *sizes), strict=True)
    ]
    for path in filter(os.path.lexists, itertools.chain(*outputs)):
        raise InputError(f"{path}: exists already. Choose another --output, or delete it")
    return outputs


def main(args):
    """Split the text that the flags name."""
    text, languages = open_text(args.files, args.columns), [args.source_lang, args.target_lang]
    if not all(languages):
        found = text.languages()
        languages = [given or name for given, name in zip(languages, found, strict=True)]
    if not all(languages) or languages[0] == languages[1]:
        raise InputError(
            f"{text.paths[0]}: needs two languages. Name them with --source_lang and --target_lang"
        )
    sizes = args.dev, args.test
    split(text, languages, sizes, args.seed, output_paths(args.output, languages, sizes))


def parse_columns(word) -> tuple:
    """Return the two columns of --columns.

    >>> parse_columns("1,3")
    (1, 3)
    """
    source, target = map(int, word.split(","))
    return source, target


def parse_args():
    """Parse the command line."""
    parser = Parser(
        description=__doc__,
    )
    parser.add_argument(
        "files", nargs="+", type=expand_path, help="source and target, or one TSV or TMX; or .gz"
    )
    parser.add_argument("--output", type=expand_path, required=True, help="folder for the files")
    parser.add_argument("--dev", type=int, default=1000, help="pairs; default: %(default)s")
    parser.add_argument("--test", type=int, default=1000, help="pairs; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--source_lang", help="default: the suffix of its file, or as in TMX")
    parser.add_argument("--target_lang", help="default: the same")
    help_text = "of source and target in TSV; default: 1,2"
    parser.add_argument("--columns", type=parse_columns, default=(1, 2), help=help_text)
    args = parser.parse_args()
    if len(args.files) > 2:
        parser.error(f"{len(args.files)} files are named. Name two, or one TSV or TMX")
    return args


if __name__ == "__main__":
    import split  # by its name, under which the other processes find its functions, too

    run_script(split.main, split.parse_args())
