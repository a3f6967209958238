"""Count the bad pairs of a training text, and write the text without them.

    python corpora/clean.py my.de my.en
    python corpora/clean.py my.de my.en --output cleaned

The first command only prints how many pairs each rule removes, and the first three of them. The
second one also writes cleaned/my.de and cleaned/my.en. A pair is removed by the first of these
rules that it breaks:

empty: a side has no text.
equal: both sides are the same text, but for case and spaces.
long: a side has more than --max_chars characters.
ratio: a side is more than --max_ratio times as long as the other one, in characters, after
the mean ratio of the text.
script: a side has 12 letters or more, and none of its script, the most frequent one of that side.
language (with --languages de,en): a side is in another language than its own.
overlap (with --against test.de,test.en): a side is in one of these files, but for case and
punctuation.
duplicate: the same pair was there before.

A warning says where the sides seem to be shifted against each other. The files are read three
times. About 100 bytes per pair are in memory.
"""

import functools
import sys
import unicodedata
from collections import Counter
from hashlib import blake2b
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.cli import run_script
from support.errors import InputError
from support.files import new_files
from support.flags import Parser, expand_path, split_paths
from support.optional import import_optional
from text.checks import plain_forms, shift_notes
from text.lines import read_pairs, read_sentences

RULES = ("empty", "equal", "long", "ratio", "script", "language", "overlap", "duplicate")
NUM_EXAMPLES = 3
EXAMPLE_CHARS = 50  # of each side that are shown
RATIO_SLACK_CHARS = 10  # added to both lengths: short sentences have other ratios
MIN_LETTERS = 12  # with fewer, a side may be a name or a loanword in another script
LANGUAGE_MARGIN = 10  # a language must be so many times as probable as the one that was named
JAPANESE = ("HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC")  # among characters of CJK


@functools.cache
def script_of(char) -> str:
    """Return the script of a letter, the first word of its name, or "" for other characters."""
    script = unicodedata.name(char, "").partition(" ")[0] if char.isalpha() else ""
    return "CJK" if script in JAPANESE else script


def count_scripts(text) -> Counter:
    """Count the letters of a text by their script."""
    counts = Counter()
    for char, count in Counter(text).items():
        counts[script_of(char)] += count
    del counts[""]
    return counts


def make_profile(paths, max_chars):
    """Return the characters of the target per character of the source, and each side's script."""
    lengths, scripts = [1, 1], [Counter(), Counter()]
    for block in read_pairs(paths):
        usable = [pair for pair in zip(*block, strict=True) if not unusable_rule(pair, max_chars)]
        for i, text in enumerate(map("".join, zip(*usable, strict=True))):
            lengths[i] += len(text)
            scripts[i] += count_scripts(text)
    return lengths[1] / lengths[0], [max(own, key=own.get, default="") for own in scripts]


# Rules --------------------------------------------------------------


def unusable_rule(pair, max_chars) -> str | None:
    """Return the rule that a pair breaks by itself. The profile leaves such pairs out."""
    sides = [side.strip() for side in pair]
    if not all(sides):
        return "empty"
    if len({" ".join(side.casefold().split()) for side in sides}) == 1:
        return "equal"
    return "long" if max(map(len, sides)) > max_chars else None


def broken_rule(pair, profile, args, seen) -> str | None:
    """Return the name of the first rule that a pair breaks.

    `profile` is that of `make_profile`, `args.against` a set of `plain_forms`, and `seen` has the
    digests of the pairs before that break no rule; that of this pair is added.
    """
    if rule := unusable_rule(pair, args.max_chars):
        return rule
    ratio, scripts = profile
    sides = [side.strip() for side in pair]
    expected = len(sides[0]) * ratio + RATIO_SLACK_CHARS
    actual = len(sides[1]) + RATIO_SLACK_CHARS
    if max(expected, actual) > args.max_ratio * min(expected, actual):
        return "ratio"
    if not all(map(is_in_script, sides, scripts)):
        return "script"
    if args.languages and not all(map(is_in_language, pair, args.languages)):
        return "language"
    if args.against and not args.against.isdisjoint(plain_forms(pair)):
        return "overlap"
    digest = blake2b("\n".join(pair).encode(), digest_size=8).digest()
    if digest in seen:
        return "duplicate"
    seen.add(digest)
    return None


def is_in_script(sentence, script) -> bool:
    """Whether a letter of a sentence is in a script, or it has few letters."""
    counts = count_scripts(sentence)
    return script in counts or counts.total() < MIN_LETTERS


@functools.cache
def language_identifier():
    """Load the model of py3langid."""
    langid = import_optional("py3langid.langid")
    return langid.LanguageIdentifier.from_model_file(langid.MODEL_FILE, norm_probs=True)


def is_in_language(sentence, language) -> bool:
    """Whether no language is clearly more probable than the one that was named."""
    ranked = language_identifier().rank(sentence)
    return ranked[0][1] < LANGUAGE_MARGIN * dict(ranked)[language]


def main(args):
    """Clean the text that the flags name, and print what each rule removes."""
    paths, languages = (args.source, args.target), args.languages
    if languages and (len(languages) != 2 or {*languages} - {*language_identifier().labels}):
        known = ", ".join(language_identifier().labels)
        raise InputError(f"--languages {','.join(languages)}: give two of {known}")
    against = split_paths(args.against) if args.against else []
    args.against = {form for path in against for form in plain_forms([*read_sentences(path)])}
    counts, examples, seen = Counter(), {rule: [] for rule in RULES}, set()
    names = [Path(path).name.removesuffix(".gz") for path in paths if args.output]
    with new_files(Path(args.output) / name for name in names) as files:
        profile = make_profile(paths, args.max_chars)
        for note in shift_notes([paths]):
            print(note, file=sys.stderr)
        for block in read_pairs(paths):
            for pair in zip(*block, strict=True):
                rule = broken_rule(pair, profile, args, seen)
                counts[rule] += 1  # None: it stays
                if not rule:
                    for file, sentence in zip(files, pair, strict=bool(files)):
                        file.write(f"{sentence}\n")
                elif len(examples[rule]) < NUM_EXAMPLES:
                    examples[rule].append((counts.total(), *pair))
    unused = ["language"] * (not languages) + ["overlap"] * (not args.against)
    for rule in [rule for rule in RULES if rule not in unused]:
        print(f"{rule}: {counts[rule]:,} pairs ({counts[rule] / counts.total():.2%})")
        for number, source, target in examples[rule]:
            print(f"  {number}: {source[:EXAMPLE_CHARS]!r} ||| {target[:EXAMPLE_CHARS]!r}")
    print(f"{counts[None]:,} of {counts.total():,} pairs are kept")


def parse_args():
    """Parse the command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("source", type=expand_path, help="one sentence per line; .gz is unpacked")
    parser.add_argument("target", type=expand_path, help="the translation of each line")
    parser.add_argument("--output", type=expand_path, help="folder for the cleaned files")
    parser.add_argument("--against", type=expand_path, metavar="FILE,FILE,...", help="test sets")
    languages = dict(type=lambda word: word.split(","), metavar="SOURCE,TARGET")
    parser.add_argument("--languages", **languages, help="their codes, for example de,en")
    parser.add_argument("--max_chars", type=int, default=1000, help="default: %(default)s")
    parser.add_argument("--max_ratio", type=float, default=3.0, help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    run_script(main, parse_args())
