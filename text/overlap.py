"""Find the sentences of development and test sets that are in the training text.

A score on sentences that a model was trained on says little about other sentences.
"""

import itertools

import regex

from support.flags import NONE
from text.lines import normalize, read_eval_set, read_pairs, training_files

# Punctuation, spaces, accents that stand alone, and control characters.
IGNORED = regex.compile(r"[[\p{P}\p{Z}\p{Sk}\p{C}]--[\n]]+", regex.VERSION1)


def plain_forms(lines) -> list[str]:
    """Return each line without case, punctuation and spaces.

    A line that has nothing else stays as it is, without the spaces around it.

    >>> plain_forms(["It's  8.15.", "its 815", " ... "])
    ['its815', 'its815', '...']
    """
    if not lines:
        return []
    forms = IGNORED.sub("", normalize("\n".join(lines)).casefold()).split("\n")
    return [form or line.strip() for form, line in zip(forms, lines, strict=True)]


def overlap_notes(hp, given):
    """Yield a line for each development and test set that the flags, a dict, name."""
    sets = {}  # the plain forms of both sides, by the names of the files
    for part in ("dev", "test"):
        names = f"source_{part}", f"target_{part}"
        paths = [getattr(hp, name) for name in names]
        if NONE not in paths and given.keys() & {*names}:
            source, references = read_eval_set(hp, part)
            sets[", ".join(paths)] = plain_forms(source), plain_forms(references[0])
    wanted = [{*itertools.chain(*side)} - {""} for side in zip(*sets.values(), strict=True)]
    found = [set() for _ in wanted]
    for paths in training_files(hp) if sets else ():
        for block in read_pairs(paths, "comparing"):
            for known, forms, lines in zip(found, wanted, block, strict=True):
                known |= forms.intersection(plain_forms(lines))
    for name, sides in sets.items():
        source, target = (
            sum(line in known for line in side) for known, side in zip(found, sides, strict=True)
        )
        yield (
            f"{name}: {source} of {len(sides[0])} sources and {target} targets are in the training"
            " text, but for case and punctuation"
            + (". `corpora/clean.py --against` removes them" if source or target else "")
        )
