"""Count the bad pairs of a training text, and write the text without them.

    python corpora/clean.py my.de my.en
    python corpora/clean.py my.de my.en --output cleaned

The first command only prints a table: how many pairs each rule removes, and three examples of
them. The second one also writes cleaned/my.de and cleaned/my.en. A pair is removed by the first
of these rules that it breaks:

empty: a side has no text.
equal: both sides are the same text, but for case and spaces.
long: a side has more than --max_chars characters.
ratio: a side is more than --max_ratio times as long as the other one. The lengths are
characters, and the mean ratio of the text counts as 1.
script: less than half of the letters of a side are in its script, the most frequent one there.
duplicate: the same pair was there before.

The files are read twice and may have any size. 8 bytes per pair are in memory, and after the first
pass 9 bytes per pair that occurs more than once.
"""

import argparse
import contextlib
import functools
import itertools
import os
import random
import sys
from array import array
from collections import Counter
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.cli import Parser, check_environment, parse_path, run_script
from runtime.errors import InputError
from runtime.files import atomic_open, check_regular_file, make_folder

if __name__ == "__main__":
    check_environment()  # before the packages are imported

import numpy as np
import regex

from text import SentenceFile, empty_text_error, read_pairs, skipped_note

RULES = ("empty", "equal", "long", "ratio", "script", "duplicate")
NUM_EXAMPLES = 3
EXAMPLE_CHARS = 50  # of each side that are shown
RATIO_SLACK_CHARS = 10  # added to both lengths: short sentences have other ratios
MIN_LETTERS = 4  # with fewer, a side may be a number or a name in another script
MIN_SCRIPT_SHARE = 0.5
# Scripts that one text mixes have one name.
SCRIPTS = {
    r"\p{Latin}": "Latin",
    r"\p{Cyrillic}": "Cyrillic",
    r"[\p{Han}\p{Hiragana}\p{Katakana}]": "Han or Kana",
    r"\p{Arabic}": "Arabic",
    r"\p{Hangul}": "Hangul",
    r"\p{Devanagari}": "Devanagari",
    r"\p{Greek}": "Greek",
    r"\p{Hebrew}": "Hebrew",
    r"\p{Thai}": "Thai",
}

# Properties of pairs -----------------------------------------------------------


@functools.cache
def script_of(char) -> str | None:
    """Return the name of a letter's script, or None for other characters.

    >>> script_of("ä"), script_of("я"), script_of("ト"), script_of("7")
    ('Latin', 'Cyrillic', 'Han or Kana', None)
    """
    if not regex.match(r"\p{L}", char):
        return None
    names = (name for pattern, name in SCRIPTS.items() if regex.match(pattern, char))
    return next(names, "another script")


def count_scripts(text) -> Counter:
    """Count the letters of a text by their script."""
    counts = Counter()
    for char, count in Counter(text).items():
        if script := script_of(char):
            counts[script] += count
    return counts


def digest_of(source, target) -> int:
    """Return a number below 2**64 that identifies a pair."""
    text = f"{source}\n{target}".encode("utf-8", "surrogateescape")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little")


class Profile(NamedTuple):
    """The results of the first pass over a text."""

    num_pairs: int
    ratio: float  # characters of the target per character of the source
    scripts: tuple  # the most frequent script of each side
    repeated: np.ndarray  # the digests of the pairs that occur more than once, in order
    skipped: list  # of each file, for `skipped_note`


def make_profile(paths) -> Profile:
    """Read a text for the first time."""
    digests, lengths, scripts = array("Q"), [0, 0], [Counter(), Counter()]
    files = [SentenceFile(path) for path in paths]
    for sides in read_pairs(files, "first pass"):
        digests.extend(map(digest_of, *sides))
        for i, sentences in enumerate(sides):
            text = "".join(sentences)
            lengths[i] += len(text)
            scripts[i] += count_scripts(text)
    for file, length in zip(files, lengths, strict=True):
        if not length:
            raise empty_text_error(file.path, file.num_sentences)
    ordered = np.frombuffer(digests, np.uint64)
    ordered.sort()
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    most_frequent = tuple(max(counts, key=counts.get, default=None) for counts in scripts)
    skipped = [file.skipped for file in files]
    return Profile(len(digests), lengths[1] / lengths[0], most_frequent, repeated, skipped)


# Rules -------------------------------------------------------------------------


class Cleaner:
    """Finds the rule that a pair breaks.

    Args:
      profile: Profile.
      max_chars, max_ratio: the values of the flags.
    """

    def __init__(self, profile, max_chars, max_ratio):
        self.profile, self.max_chars, self.max_ratio = profile, max_chars, max_ratio
        self.seen = np.zeros(len(profile.repeated), bool)  # which repeated pairs came already

    def broken_rule(self, source, target) -> str | None:
        """Return the name of the first rule that the next pair of the text breaks, or None."""
        sides = [side.strip() for side in (source, target)]
        if not all(sides):
            return "empty"
        if len({" ".join(side.casefold().split()) for side in sides}) == 1:
            return "equal"
        if max(map(len, sides)) > self.max_chars:
            return "long"
        expected = len(sides[0]) * self.profile.ratio + RATIO_SLACK_CHARS
        actual = len(sides[1]) + RATIO_SLACK_CHARS
        if max(expected, actual) > self.max_ratio * min(expected, actual):
            return "ratio"
        if not all(map(self.is_in_script, sides, self.profile.scripts)):
            return "script"
        digest, repeated = digest_of(source, target), self.profile.repeated
        index = np.searchsorted(repeated, np.uint64(digest))
        if index < len(repeated) and repeated[index] == digest:
            if self.seen[index]:
                return "duplicate"
            self.seen[index] = True
        return None

    @staticmethod
    def is_in_script(sentence, script) -> bool:
        """Whether enough letters of a sentence are in a script, or it has few letters."""
        counts = count_scripts(sentence)
        total = counts.total()
        return total < MIN_LETTERS or counts[script] >= MIN_SCRIPT_SHARE * total


class Removed:
    """The pairs that a rule removes: their number, and some of them, drawn at random."""

    def __init__(self):
        self.count = 0
        self.examples = []
        self.rng = random.Random(0)

    def add(self, number, pair):
        """Count a pair; `number` is its place in the text, counted from 1."""
        self.count += 1
        if len(self.examples) < NUM_EXAMPLES:
            self.examples.append((number, *pair))
        elif (index := self.rng.randrange(self.count)) < NUM_EXAMPLES:
            self.examples[index] = (number, *pair)


def clean_text(paths, outputs, profile, max_chars, max_ratio) -> dict:
    """Read a text for the second time, and write the pairs that break no rule.

    Args:
      outputs: two files of bytes, or an empty list to only count.

    Returns:
      dict: a `Removed` for each rule.
    """
    cleaner = Cleaner(profile, max_chars, max_ratio)
    removed = {rule: Removed() for rule in RULES}
    blocks = read_pairs([SentenceFile(path) for path in paths], "second pass")
    pairs = itertools.chain.from_iterable(zip(*sides, strict=True) for sides in blocks)
    for number, pair in enumerate(pairs, 1):
        if rule := cleaner.broken_rule(*pair):
            removed[rule].add(number, pair)
        elif outputs:
            for file, sentence in zip(outputs, pair, strict=True):
                file.write(f"{sentence}\n".encode())
    return removed


def print_table(num_pairs, removed):
    """Print how many pairs each rule has removed, with examples."""
    print("| rule | pairs | share | examples: number of the pair, source, target |")
    print("|---|---|---|---|")
    for rule, pairs in removed.items():
        examples = [
            f"{number}: {shorten(source)} ||| {shorten(target)}"
            for number, source, target in sorted(pairs.examples)
        ]
        share = f"{pairs.count / num_pairs:.2%}"
        print(f"| {rule} | {pairs.count:,} | {share} | {'<br>'.join(examples)} |")
    kept = num_pairs - sum(pairs.count for pairs in removed.values())
    print(f"{kept:,} of {num_pairs:,} pairs are kept")


def shorten(sentence) -> str:
    """Return the beginning of a sentence as text that a terminal shows and a table can hold.

    >>> shorten("a | b\\x1b[31m")
    'a / b?[31m'
    """
    text = "".join(char if char.isprintable() else "?" for char in sentence.replace("|", "/"))
    return f"{text[:EXAMPLE_CHARS]}..." if len(text) > EXAMPLE_CHARS else text


# The script --------------------------------------------------------------------


def output_paths(paths, folder) -> list[Path]:
    """Return the paths of the cleaned files."""
    outputs = [Path(folder) / Path(path).name.removesuffix(".gz") for path in paths]
    if outputs[0] == outputs[1]:
        raise InputError(f"{outputs[0]}: both sides have this name. Rename one of the files")
    for output in outputs:
        if os.path.lexists(output):
            raise InputError(f"{output}: exists already. Choose another --output, or delete it")
    return outputs


def main(args):
    """Clean the text that the flags name."""
    paths = args.source, args.target
    for path in paths:
        check_regular_file(path, "it is read twice. Write the text to a file")
    outputs = output_paths(paths, args.output) if args.output else []
    profile = make_profile(paths)
    if outputs:
        make_folder(args.output)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(atomic_open(output)) for output in outputs]
        removed = clean_text(paths, files, profile, args.max_chars, args.max_ratio)
    print_table(profile.num_pairs, removed)
    if note := skipped_note(paths, profile.skipped):
        print(note)
    if outputs:
        print(f"Written to {outputs[0]} and {outputs[1]}", file=sys.stderr)


def parse_args():
    """Parse the command line."""
    parser = Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("source", type=parse_path, help="one sentence per line; .gz is unpacked")
    parser.add_argument("target", type=parse_path, help="the translation of each line")
    parser.add_argument(
        "--output",
        type=parse_path,
        help="folder for the cleaned files; none are written without",
    )
    parser.add_argument("--max_chars", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--max_ratio", type=float, default=3.0, help="default: %(default)s")
    args = parser.parse_args()
    for name, low in (("max_chars", 1), ("max_ratio", 1.0)):
        if not getattr(args, name) >= low:
            parser.error(f"{name} is {getattr(args, name)}. It must be at least {low}")
    return args


if __name__ == "__main__":
    run_script(main, parse_args())
