"""Find the sentences of development and test sets that are in the training text."""

import itertools

import regex

from support.flags import NONE
from text.lines import normalize, read_eval_set, read_pairs, training_files

# Punctuation, spaces, accents that stand alone, and control characters.
IGNORED = regex.compile(r"[[\p{P}\p{Z}\p{Sk}\p{C}]--[\n]]+", regex.VERSION1)


def plain_forms(lines) -> list[str]:
    """Return each line without case, punctuation and spaces, or only stripped if that is all."""
    if not lines:
        return []
    forms = IGNORED.sub("", normalize("\n".join(lines)).casefold()).split("\n")
    return [form or line.strip() for form, line in zip(forms, lines, strict=True)]


def overlap_notes(hp, given):
    """Yield a line for each development and test set that the flags name."""
    for part in ("dev", "test"):
        names = f"source_{part}", f"target_{part}"
        paths = [getattr(hp, name) for name in names]
        if NONE in paths or not given.keys() & {*names}:
            continue
        source, references = read_eval_set(hp, part)
        sides = [plain_forms(side) for side in (source, references[0])]
        found = [set(), set()]  # the forms of each side that are in the training text
        for block in itertools.chain.from_iterable(map(read_pairs, training_files(hp))):
            for known, wanted, lines in zip(found, sides, block, strict=True):
                known |= {*wanted} & {*plain_forms(lines)} - {""}
        counts = [sum(form in known for form in s) for s, known in zip(sides, found, strict=True)]
        yield (
            f"{', '.join(paths)}: {counts[0]} of {len(source)} sources and {counts[1]} targets are"
            " in the training text, but for case and punctuation"
            + (". `corpora/clean.py --against` removes them" if any(counts) else "")
        )
