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
language (with --languages de,en): a side is in another language than its own.
overlap (with --against test.de,test.en): a side is in one of these files, but for case and
punctuation. They are those of development and test sets, in any format that train.py reads.
duplicate: the same pair was there before.

A warning says where the sides seem to be shifted against each other.

The files are read three times and may have any size. 8 bytes per pair are in memory, and after the
first pass 9 bytes per pair that occurs more than once.
"""

import argparse
import contextlib
import functools
import os
import random
import sys
from array import array
from collections import Counter
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import regex

from eval_sets import read_test_file
from overlap import plain_forms
from runtime.cli import run_script
from runtime.errors import InputError
from runtime.files import atomic_open
from runtime.flags import Parser, expand_path, split_paths
from runtime.parallel import map_on_cores
from shifts import shift_notes
from text import SentenceFile, empty_text_error, read_pairs, skipped_note

RULES = ("empty", "equal", "long", "ratio", "script", "language", "overlap", "duplicate")
NUM_EXAMPLES = 3
EXAMPLE_CHARS = 50  # of each side that are shown
RATIO_SLACK_CHARS = 10  # added to both lengths: short sentences have other ratios
MIN_LETTERS = 4  # with fewer, a side may be a number or a name in another script
MIN_SCRIPT_SHARE = 0.5
LANGUAGE_MARGIN = 10  # a language must be so many times as probable as the one that was named
# Scripts that one text mixes have one name.
NAMES = "Latin Cyrillic Arabic Hangul Devanagari Greek Hebrew Thai".split()
SCRIPTS = {r"[\p{Han}\p{Hiragana}\p{Katakana}]": "Han or Kana"}
SCRIPTS |= {rf"\p{{{name}}}": name for name in NAMES}

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
        counts[script_of(char)] += count
    del counts[None]
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
    skipped: str  # `skipped_note`


def make_profile(paths) -> Profile:
    """Read a text for the first time."""
    digests, lengths, scripts = array("Q"), [0, 0], [Counter(), Counter()]
    files = [SentenceFile(path) for path in paths]
    for block_digests, texts in map_on_cores(profile_block, read_pairs(files, "first pass")):
        digests.extend(block_digests)
        for i, (length, counts) in enumerate(texts):
            lengths[i] += length
            scripts[i] += counts
    for file, length in zip(files, lengths, strict=True):
        if not length:
            raise empty_text_error(file.path, file.num_sentences)
    ordered = np.frombuffer(digests, np.uint64)
    ordered.sort()
    repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    most_frequent = tuple(max(counts, key=counts.get, default=None) for counts in scripts)
    ratio = lengths[1] / lengths[0]
    return Profile(len(digests), ratio, most_frequent, repeated, skipped_note(files))


def profile_block(sides):
    """Return the digests of the pairs of a block, and of each side its length and its letters."""
    texts = ["".join(sentences) for sentences in sides]
    return array("Q", map(digest_of, *sides)), [(len(text), count_scripts(text)) for text in texts]


# Rules -------------------------------------------------------------------------


class Limits(NamedTuple):
    """What the flags say about the rules."""

    max_chars: int
    max_ratio: float
    languages: tuple = ()  # of source and target, or empty
    against: frozenset = frozenset()  # the `plain_forms` of sentences to remove


def check_block(profile, limits, sides):
    """Return a block, the broken rule of each of its pairs, or None, and the digest of each."""
    forms = [plain_forms(side) if limits.against else side for side in sides]
    pairs, plain = (zip(*both, strict=True) for both in (sides, forms))
    rules = [broken_rule(profile, limits, *both) for both in zip(pairs, plain, strict=True)]
    return sides, rules, np.fromiter(map(digest_of, *sides), np.uint64, len(rules))


def broken_rule(profile, limits, pair, forms) -> str | None:
    """Return the name of the first rule that a pair breaks, but for duplicates.

    Args:
      forms: the `plain_forms` of both sides, if there is text to compare with.
    """
    sides = [side.strip() for side in pair]
    if not all(sides):
        return "empty"
    if len({" ".join(side.casefold().split()) for side in sides}) == 1:
        return "equal"
    if max(map(len, sides)) > limits.max_chars:
        return "long"
    expected = len(sides[0]) * profile.ratio + RATIO_SLACK_CHARS
    actual = len(sides[1]) + RATIO_SLACK_CHARS
    if max(expected, actual) > limits.max_ratio * min(expected, actual):
        return "ratio"
    if not all(map(is_in_script, sides, profile.scripts)):
        return "script"
    if limits.languages and not all(map(is_in_language, pair, limits.languages)):
        return "language"
    return "overlap" if not limits.against.isdisjoint(forms) else None


def is_in_script(sentence, script) -> bool:
    """Whether enough letters of a sentence are in a script, or it has few letters."""
    counts = count_scripts(sentence)
    total = counts.total()
    return total < MIN_LETTERS or counts[script] >= MIN_SCRIPT_SHARE * total


@functools.cache
def language_identifier():
    """Load the model of py3langid, which is 97 languages and more in some megabytes."""
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def is_in_language(sentence, language) -> bool:
    """Whether no language is `LANGUAGE_MARGIN` times as probable as the one that was named.

    Short sentences, and languages that are close to each other, are uncertain, and stay.
    """
    ranked = language_identifier().rank(sentence)
    return ranked[0][1] < LANGUAGE_MARGIN * dict(ranked)[language]


def mark_duplicates(rules, digests, repeated, seen):
    """Write "duplicate" to the rules of a block for the pairs that were there before.

    Args:
      rules: list of the rules that the pairs break, or None.
      digests: of the pairs, (N,).
      repeated: the digests of the pairs that occur more than once, in order.
      seen: for each of them, whether a pair that stays had it.
    """
    indices = np.searchsorted(repeated, digests)
    for row in np.flatnonzero(np.isin(digests, repeated)):
        if rules[row] is None and seen[indices[row]]:
            rules[row] = "duplicate"
        seen[indices[row]] |= rules[row] is None


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


def clean_text(paths, outputs, profile, limits) -> dict:
    """Read a text for the second time, and write the pairs that break no rule.

    Args:
      outputs: two files of bytes, or an empty list to only count.

    Returns:
      dict: a `Removed` for each rule.
    """
    unused = ["language"] * (not limits.languages) + ["overlap"] * (not limits.against)
    removed = {rule: Removed() for rule in RULES if rule not in unused}
    seen, total = np.zeros(len(profile.repeated), bool), 0
    blocks = read_pairs([SentenceFile(path) for path in paths], "second pass")
    check = functools.partial(check_block, profile, limits)
    for sides, rules, digests in map_on_cores(check, blocks):
        mark_duplicates(rules, digests, profile.repeated, seen)
        for number, (rule, *pair) in enumerate(zip(rules, *sides, strict=True), total + 1):
            if rule:
                removed[rule].add(number, pair)
        total += len(rules)
        for file, sentences in zip(outputs, sides, strict=bool(outputs)):
            kept = (line for line, rule in zip(sentences, rules, strict=True) if not rule)
            file.write("".join(f"{line}\n" for line in kept).encode())
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
    for output in filter(os.path.lexists, outputs):
        raise InputError(f"{output}: exists already. Choose another --output, or delete it")
    return outputs


def read_against(value) -> frozenset:
    """Return the `plain_forms` of all sentences in the files that --against names."""
    sides = [side for path in split_paths(value) for side in read_test_file(path)] if value else []
    return frozenset(form for side in sides for form in plain_forms(side.raw) if form)


def parse_languages(word) -> tuple:
    """Return the two languages of --languages."""
    if not find_spec("py3langid"):
        raise argparse.ArgumentTypeError("py3langid is missing. Run `pip install py3langid`")
    languages, known = tuple(word.split(",")), language_identifier().labels
    if len(languages) != 2 or not {*languages} <= {*known}:
        raise argparse.ArgumentTypeError(f"{word} is not two languages of {', '.join(known)}")
    return languages


def main(args):
    """Clean the text that the flags name."""
    paths = args.source, args.target
    outputs = output_paths(paths, args.output) if args.output else []
    limits = Limits(args.max_chars, args.max_ratio, args.languages, read_against(args.against))
    profile = make_profile(paths)
    for note in shift_notes([paths]):
        print(note, file=sys.stderr)
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(atomic_open(output)) for output in outputs]
        removed = clean_text(paths, files, profile, limits)
    print_table(profile.num_pairs, removed)
    if profile.skipped:
        print(profile.skipped)
    if outputs:
        print(f"Written to {outputs[0]} and {outputs[1]}", file=sys.stderr)


def parse_args():
    """Parse the command line."""
    parser = Parser(
        description=__doc__,
    )
    parser.add_argument("source", type=expand_path, help="one sentence per line; .gz is unpacked")
    parser.add_argument("target", type=expand_path, help="the translation of each line")
    parser.add_argument("--output", type=expand_path, help="folder for the cleaned files")
    parser.add_argument(
        "--against",
        type=expand_path,
        metavar="FILE,FILE,...",
        help="development and test sets: pairs with a side that is in them are removed",
    )
    parser.add_argument(
        "--languages",
        type=parse_languages,
        default=(),
        metavar="SOURCE,TARGET",
        help="codes of the languages, for example de,en: pairs in other ones are removed",
    )
    parser.add_argument("--max_chars", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--max_ratio", type=float, default=3.0, help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    import clean  # by its name, under which the other processes find its functions, too

    run_script(clean.main, clean.parse_args())
