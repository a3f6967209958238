"""Count the bad pairs of a training text, and write the text without them.

    python corpora/clean.py my.de my.en
    python corpora/clean.py my.de my.en --output cleaned

The first command only prints a table: how many pairs each rule removes, and the first three of
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
punctuation, as those of development and test sets.
duplicate: the same pair was there before.

A warning says where the sides seem to be shifted against each other.

The files are read three times. About 100 bytes per pair are in memory.
"""

import argparse
import contextlib
import functools
import sys
from collections import Counter
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import regex

from support.cli import run_script
from support.files import new_file
from support.flags import Parser, expand_path, split_paths
from text.lines import read_pairs, read_sentences
from text.overlap import plain_forms
from text.shifts import shift_notes

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


class Profile(NamedTuple):
    """What the rules must know of the entire text."""

    ratio: float  # characters of the target per character of the source
    scripts: list  # the most frequent script of each side


def make_profile(paths) -> Profile:
    """Read a text for the first time."""
    lengths, scripts = [0, 0], [Counter(), Counter()]
    for block in read_pairs(paths, "first pass"):
        for i, text in enumerate(map("".join, block)):
            lengths[i] += len(text)
            scripts[i] += count_scripts(text)
    most_frequent = [max(counts, key=counts.get, default=None) for counts in scripts]
    return Profile(lengths[1] / lengths[0], most_frequent)


# Rules -------------------------------------------------------------------------


class Limits(NamedTuple):
    """What the flags say about the rules."""

    max_chars: int
    max_ratio: float
    languages: tuple = ()  # of source and target, or empty
    against: frozenset = frozenset()  # the `plain_forms` of sentences to remove


def broken_rule(pair, forms, profile, limits, seen) -> str | None:
    """Return the name of the first rule that a pair breaks.

    Args:
      forms: the `plain_forms` of both sides.
      seen: set of the digests of the pairs before that break no rule; that of this pair is added.
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
    if not limits.against.isdisjoint(forms):
        return "overlap"
    digest = blake2b("\n".join(pair).encode(), digest_size=8).digest()
    if digest in seen:
        return "duplicate"
    seen.add(digest)
    return None


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


# The script --------------------------------------------------------------------


def clean_text(paths, profile, limits, files):
    """Read a text for the second time, and write the pairs that break no rule.

    Args:
      files: two text files, or an empty list to only count.

    Returns:
      (Counter, dict): how many pairs break each rule, None for no rule; and for each rule the
      number of the first pairs, counted from 1, with their text.
    """
    counts, examples, seen = Counter(), {rule: [] for rule in RULES}, set()
    for block in read_pairs(paths, "second pass"):
        forms = zip(*map(plain_forms, block), strict=True) if limits.against else block[0]
        for pair, plain in zip(zip(*block, strict=True), forms, strict=True):
            rule = broken_rule(pair, plain, profile, limits, seen)
            counts[rule] += 1
            if not rule:
                for file, sentence in zip(files, pair, strict=bool(files)):
                    file.write(f"{sentence}\n")
            elif len(examples[rule]) < NUM_EXAMPLES:
                examples[rule].append((counts.total(), *pair))
    return counts, examples


def print_table(counts, examples, rules):
    """Print how many pairs each rule has removed, with examples, as `clean_text` returns them."""
    print("| rule | pairs | share | examples: number of the pair, source, target |")
    print("|---|---|---|---|")
    for rule in rules:
        shown = [
            f"{number}: {shorten(source)} ||| {shorten(target)}"
            for number, source, target in examples[rule]
        ]
        share = f"{counts[rule] / counts.total():.2%}"
        print(f"| {rule} | {counts[rule]:,} | {share} | {'<br>'.join(shown)} |")
    print(f"{counts[None]:,} of {counts.total():,} pairs are kept")


def shorten(sentence) -> str:
    """Return the beginning of a sentence as text that a terminal shows and a table can hold.

    >>> shorten("a | b\\x1b[31m")
    'a / b?[31m'
    """
    text = "".join(char if char.isprintable() else "?" for char in sentence.replace("|", "/"))
    return f"{text[:EXAMPLE_CHARS]}..." if len(text) > EXAMPLE_CHARS else text


def read_against(paths) -> frozenset:
    """Return the `plain_forms` of all sentences in some files."""
    return frozenset(form for path in paths for form in plain_forms([*read_sentences(path)]))


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
    against = read_against(split_paths(args.against)) if args.against else frozenset()
    limits = Limits(args.max_chars, args.max_ratio, args.languages, against)
    with contextlib.ExitStack() as stack:
        files = []
        for path in paths if args.output else ():
            output = Path(args.output) / Path(path).name.removesuffix(".gz")
            files.append(stack.enter_context(new_file(output)))
        profile = make_profile(paths)
        for note in shift_notes([paths]):
            print(note, file=sys.stderr)
        counts, examples = clean_text(paths, profile, limits, files)
    unused = ["language"] * (not limits.languages) + ["overlap"] * (not args.against)
    print_table(counts, examples, [rule for rule in RULES if rule not in unused])


def parse_args():
    """Parse the command line."""
    parser = Parser(description=__doc__)
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
    run_script(main, parse_args())
