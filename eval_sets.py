"""Read test and development sets: lines, or the segments of XML and SGML; one file or several."""

import os
import sys
from typing import NamedTuple

from runtime.errors import InputError
from runtime.flags import split_paths
from segments import (
    REFERENCE,
    ROLES,
    SOURCE,
    SYSTEM,
    Segment,
    Side,
    opens_segment,
    parse_segments,
    parse_xml,
)
from text import (
    check_same_length,
    clean,
    empty_text_error,
    is_tag_line,
    language_code,
    normalize_lines,
    read_lines,
    skipped_note,
)


class EvalSentences(NamedTuple):
    """The sentences of a test or development file, or of one side of a file with several."""

    cleaned: list[str]  # as the 2017 code cleans them
    raw: list[str]  # as a person reads them
    segments: list[Segment]  # one per sentence if the file is XML, else empty
    num_skipped: int  # lines without a sentence
    path: str
    role: str | None = None  # a value of ROLES, if the file says it
    lang: str | None = None  # as the file names it
    num_normalized: int = 0  # sentences that `normalize` has changed

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return len(self.raw)


def read_eval_set(hp, part="test"):
    """Read the test set, or the development set if `part` is "dev"; see `read_test_set`."""
    source_path, target_paths = (getattr(hp, f"{side}_{part}") for side in ("source", "target"))
    return read_test_set(source_path, split_paths(target_paths), hp.source_lang, hp.target_lang)


def read_test_set(source_path, target_paths, source_lang, target_lang):
    """Read a test set. Print how many lines and segments are left out, and why.

    A file with both languages, as TMX or WMT's XML, may be the path of both sides.

    Args:
      target_paths: list of the files of the reference translations.

    Returns:
      (EvalSentences, list of EvalSentences): the source, and the references, which have the same
      length. A sentence with fewer references than others repeats its first one, which changes no
      score.
    """
    source_sides = read_test_file(source_path)
    source_file = os.path.realpath(source_path)
    has_both = source_file in map(os.path.realpath, target_paths)
    (source,) = choose_sides(source_sides, SOURCE, source_lang, target_lang, has_both)
    if not any(source.raw):
        raise empty_text_error(source_path, len(source.raw))
    targets, columns = [], []  # the references, and for each one the row of each source sentence
    files = [source]
    for path in target_paths:
        same_file = os.path.realpath(path) == source_file
        sides = source_sides if same_file else read_test_file(path)
        files += [] if same_file else sides[:1]
        for target in choose_sides(sides, REFERENCE, target_lang, source_lang, same_file):
            check_not_source(source, target)
            if target.num_normalized:
                print(
                    f"{path}: {target.num_normalized} of {target.num_sentences} sentences were"
                    " normalized (docs/training.md), as translations are. A program that scores"
                    " against the file as it is gives another score"
                )
            targets.append(target)
            columns.append(align(source, target, same_file))
    if note := skipped_note(files):
        print(note)
    rows = [
        [(target, row) for target, row in zip(targets, aligned, strict=True) if row is not None]
        for aligned in zip(*columns, strict=True)
    ]
    kept = [row for row, references in enumerate(rows) if references]
    if not kept:
        raise InputError(f"{source_path}: no segment has a reference. Name another test set")
    unpaired = len(rows) - len(kept)
    unpaired += max(
        target.num_sentences - sum(row is not None for row in column)
        for target, column in zip(targets, columns, strict=True)
    )
    if unpaired:
        print(f"Left out: {unpaired} segments of {source_path} that only one side has")
    references = [
        take_rows([rows[row][number if number < len(rows[row]) else 0] for row in kept], path)
        for number in range(max(map(len, rows)))
    ]
    return take_rows([(source, row) for row in kept], source_path), references


def take_rows(found, path) -> EvalSentences:
    """Build from a list of pairs: an EvalSentences, and the index of a sentence in it."""
    cleaned = [side.cleaned[row] for side, row in found]
    raw = [side.raw[row] for side, row in found]
    return EvalSentences(cleaned, raw, [], 0, path)


# A file -------------------------------------------------------------------------


def read_test_file(path) -> list[EvalSentences]:
    """Read a test file: its sides, of which most files have one.

    In XML, a sentence is the text of a `<seg>`. Otherwise it is a line.
    """
    lines = list(read_lines(path))
    if not any(map(opens_segment, lines)):
        raw = [line for line in lines if not is_tag_line(line)]
        sides, num_skipped = [Side(None, None, raw, raw, [])], len(lines) - len(raw)
    elif any(opens_segment(line, "tuv|src|ref|hyp") for line in lines):
        sides, num_skipped = parse_xml(path, "\n".join(lines)), 0
    else:
        sides, num_skipped = parse_segments(path, lines)
    return [normalize_side(side, num_skipped, path) for side in sides]


def normalize_side(side, num_skipped, path) -> EvalSentences:
    """Normalize the sentences of a `Side`, since translations are normalized."""
    cleaned = [clean(content).strip() for content in normalize_lines(side.contents)]
    raw = normalize_lines(side.raw)
    changed = sum(before != after for before, after in zip(side.raw, raw, strict=True))
    return EvalSentences(
        cleaned, raw, side.segments, num_skipped, path, side.role, side.lang, changed
    )


# The sides of a test set --------------------------------------------------------


def choose_sides(sides, role, lang, other_lang, has_both) -> list[EvalSentences]:
    """Choose the sides of a file that are the source, or the references.

    Args:
      sides: what `read_test_file` returned.
      role: SOURCE or REFERENCE.
      lang, other_lang: the language of this side of the model, and of its other side.
      has_both: whether both sides come from this file. If not, a file of sources may hold the
        references, for a model of the other direction.

    Returns:
      One for the source, and one or several for the references.
    """
    path = sides[0].path
    roles = {side.role for side in sides}
    if len(roles) > 1 or has_both:
        sides = [side for side in sides if side.role in (role, None)]
    if not sides or roles == {SYSTEM}:
        names = " and ".join(name for name, value in ROLES.items() if value == role)
        raise InputError(f"{path}: holds no {role} ({names}). Name another file for this side")
    langs = {side.lang for side in sides}
    if len(langs) > 1:
        langs = {name for name in langs if same_language(name, lang)}
        tag = lang.lower().replace("_", "-")
        langs = {name for name in langs if name.lower().replace("_", "-") == tag} or langs
        if len(langs) != 1:
            found = ", ".join(sorted({str(side.lang) for side in sides}))
            raise InputError(
                f"{path}: holds the languages {found}, and {'several of them' if langs else 'none'}"
                f" match {lang}, the {role} language of the model. Write the text of each side to"
                " a file of its own (docs/training.md#formats shows how)"
            )
        sides = [side for side in sides if side.lang in langs]
    (name,) = langs
    if same_language(name, other_lang) and not same_language(name, lang):
        raise InputError(
            f"{path}: its {role} is in the language {name}, but that of the model is {lang}. Name"
            " a test set of the other direction"
        )
    if role == SOURCE and len(sides) > 1:
        raise InputError(
            f"{path}: holds {len(sides)} versions of a document as the source, and one is needed."
            " Delete the others"
        )
    return sides


def same_language(name, other) -> bool:
    """Whether two names of languages are equal without the region.

    >>> same_language("de-DE", "de"), same_language("german", "de"), same_language(None, "de")
    (True, False, False)
    """
    return language_code(name) == language_code(other)


def check_not_source(source, target):
    """Check that the references are not the source itself."""
    if source.raw != target.raw:
        return
    if source.segments and source.segments == target.segments:
        raise InputError(
            f"{source.path}: holds one side of a test set, and both sides name it. Name the other"
            " side, too"
        )
    print(
        f"{source.path} and {target.path}: the source and the reference are the same text",
        file=sys.stderr,
    )


def align(source, target, same_file) -> list[int | None]:
    """Return the index of the target sentence of each source sentence.

    Segments with unique ids are paired by the ids of document and segment, others by position.

    Args:
      source, target: EvalSentences.
      same_file: whether they come from one file, in which a segment may lack a side. Its index is
        None then.
    """
    keys = [[(segment.doc, segment.id) for segment in side.segments] for side in (source, target)]
    unique = all(len({*side}) == len(side) and all(key[1] for key in side) for side in keys)
    if unique and keys[0] and keys[1] and (same_file or {*keys[0]} == {*keys[1]}):
        index = {key: row for row, key in enumerate(keys[1])}
        return [index.get(key) for key in keys[0]]
    check_same_segments(source, target)
    check_same_length(source, target)
    return [*range(source.num_sentences)]


def check_same_segments(source, target):
    """Check that segments at the same position in two XML files have the same ids.

    Ids of documents count if the files have one in common.

    Args:
      source, target: `EvalSentences`.
    """
    docs = [{segment.doc for segment in side.segments} - {None} for side in (source, target)]
    for one, other in zip(source.segments, target.segments, strict=False):
        same_doc = not (one.doc and other.doc and docs[0] & docs[1]) or one.doc == other.doc
        if one.id and other.id and (one.id != other.id or not same_doc):
            raise InputError(
                f"{source.path}:{one.line}: {one} is paired with {other} in"
                f" {target.path}:{other.line}. Put the same segments in the same order in both"
                " files, each of them once"
            )
    shorter, longer = sorted((source, target), key=lambda side: side.num_sentences)
    for extra in longer.segments[shorter.num_sentences :] if shorter.segments else []:
        raise InputError(
            f"{longer.path}:{extra.line}: {extra} has no counterpart in {shorter.path}, which has"
            f" {shorter.num_sentences} segments. Put the same segments in both files"
        )
