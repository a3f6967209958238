"""Find the sentences of development and test sets that are in the training text.

A score on sentences that a model was trained on says little about other sentences.
"""

import contextlib
import functools
import hashlib
import io
import json
from typing import NamedTuple

import regex

from eval_sets import read_eval_set
from runtime.errors import MALFORMED_JSON, InputError
from runtime.files import atomic_write, read_json
from runtime.flags import NONE
from runtime.parallel import map_on_cores
from text import SentenceFile, normalize, read_pairs, training_files
from vocab import TOKENIZERS

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


class NamedSet(NamedTuple):
    """The sentences of a development or test set."""

    name: str  # its files
    sides: tuple  # (source, target): lists of versions, each a list of sentences


def named_sets(hp, dev_text=None) -> list[NamedSet]:
    """Read the development set, and the test set if this command names it.

    Args:
      dev_text: what `read_eval_set` returned for the development set, if it was read.
    """
    sets = []
    for part in ("dev", "test"):
        flags = f"source_{part}", f"target_{part}"
        paths = [getattr(hp, flag) for flag in flags]
        if NONE in paths or (part == "test" and not hp.given.keys() & {*flags}):
            continue
        notes = io.StringIO()  # eval.py prints them
        with contextlib.redirect_stdout(notes), contextlib.redirect_stderr(notes):
            known = dev_text if part == "dev" else None
            source, references = known or read_eval_set(hp, part)
        sides = [source.raw], [side.raw for side in references]
        sets.append(NamedSet(", ".join(paths), sides))
    return sets


# Counting ----------------------------------------------------------------------

FORMS = (list, plain_forms)  # functions of lines: exactly, and but for case and punctuation


def find_in_block(wanted, sides) -> list:
    """Return which sentences are in a block of the training text, in the order of `wanted`.

    Args:
      wanted: for each of `FORMS`, a set of sentences for each side.
      sides: two lists of sentences.
    """
    return [
        [found.intersection(form(lines)) for found, lines in zip(of_form, sides, strict=True)]
        for form, of_form in zip(FORMS, wanted, strict=True)
    ]


def count_overlap(sets, blocks) -> list:
    """Count the sentences of each set that are in a training text.

    Args:
      sets: list of `NamedSet`.
      blocks: those of `read_pairs`.

    Returns:
      For each set, and each of `FORMS`, the number of sources and of targets; a target is there if
      one of its versions is.
    """
    wanted = [
        [
            {line for of in sets for lines in of.sides[side] for line in form(lines)} - {""}
            for side in (0, 1)
        ]
        for form in FORMS
    ]
    found = [[set(), set()] for _ in FORMS]
    for in_block in map_on_cores(functools.partial(find_in_block, wanted), blocks):
        for all_found, new in zip(found, in_block, strict=True):
            for side in (0, 1):
                all_found[side] |= new[side]
    return [
        [count_sides(of.sides, form, found_in) for form, found_in in zip(FORMS, found, strict=True)]
        for of in sets
    ]


def count_sides(sides, form, found) -> list[int]:
    """Count the sentences of each side of a set, one of whose versions is among those found."""
    counts = []
    for versions, of_side in zip(sides, found, strict=True):
        rows = zip(*map(form, versions), strict=True)
        counts.append(sum(not of_side.isdisjoint(row) for row in rows))
    return counts


def describe_overlap(of, counts) -> str:
    """Describe the counts of a set in a line."""
    total = len(of.sides[0][0])
    (source, target), plain = counts
    if not any(plain):
        return f"{of.name}: none of {total} sources and targets are in the training text"
    return (
        f"{of.name}: {source} of {total} sources and {target} of {total} targets are in the"
        f" training text ({plain[0]} and {plain[1]} but for case and punctuation)."
        " `corpora/clean.py --against` removes them"
    )


def overlap_notes(hp, folder=None, dev_text=None):
    """Yield a line for each development and test set that the flags name.

    Args:
      folder: of the token ids of the training text, where the counts are saved; or None.
      dev_text: as in `named_sets`.
    """
    sets = named_sets(hp, dev_text)
    if not sets:
        return
    counts = folder and read_counts(folder, sets)
    if not counts:
        is_markup = TOKENIZERS[hp.tokenizer].is_markup
        pairs = [[SentenceFile(path, is_markup) for path in pair] for pair in training_files(hp)]
        blocks = (block for files in pairs for block in read_pairs(files, "comparing"))
        counts = count_overlap(sets, blocks)
        if folder:
            with contextlib.suppress(OSError):
                content = dict(key=counts_key(folder, sets), counts=counts)
                atomic_write(folder / COUNTS_FILE, json.dumps(content), follow_links=False)
    yield from map(describe_overlap, sets, counts)


# Saved counts ------------------------------------------------------------------

COUNTS_FILE = "overlap.json"


def counts_key(folder, sets) -> str:
    """Return the SHA-256 of the sets and of the key of the training text."""
    key = hashlib.sha256((folder / "info.json").read_bytes())
    key.update(json.dumps(sets).encode())
    return key.hexdigest()


def read_counts(folder, sets) -> list | None:
    """Return the counts that an earlier training has saved, or None."""
    try:
        saved = read_json(folder / COUNTS_FILE)
        if saved["key"] != counts_key(folder, sets):
            return None
        counts = [[(int(source), int(target)) for source, target in of] for of in saved["counts"]]
    except (OSError, InputError, *MALFORMED_JSON):
        return None
    return counts if [*map(len, counts)] == [len(FORMS)] * len(sets) else None
