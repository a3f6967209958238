"""Sides that are shifted: found where they are, and in no other text."""

import os
from pathlib import Path

import numpy as np
import pytest

import shifts
from conftest import sample_pairs
from shifts import Shift, find_shifts, shift_notes
from text import SentenceFile, is_tag_line

REAL_TEXT = Path(os.environ.get("REAL_TEXT", "/nonexistent"))


@pytest.fixture(scope="module")
def text():
    """600 different pairs of the built-in corpus."""
    pairs = [*dict(sample_pairs(1500)).items()][:600]
    return [list(side) for side in zip(*pairs, strict=True)]


def find(sides):
    return shifts.check_window((0, sides))[1]


def shifted(sides, start, lag):
    """The text without `lag` sources from a row on, or without -lag targets."""
    source, target = sides if lag > 0 else sides[::-1]
    count = abs(lag)
    changed = source[:start] + source[start + count :], target[: len(target) - count]
    return changed if lag > 0 else changed[::-1]


@pytest.mark.parametrize("lag", [1, -1, 2, -7])
@pytest.mark.parametrize("start", [0, 10, 300, 500, 560])
def test_a_shift_is_found(text, start, lag):
    (found,) = find(shifted(text, start, lag))
    assert found.lag == lag and found.end is None and abs(found.start - start) <= 3


def test_a_repaired_shift_is_found(text):
    source, target = text
    (found,) = find([source, target[:200] + target[201:301] + ["One more line."] + target[301:]])
    assert found.lag == -1 and abs(found.start - 200) <= 3 and abs(found.end - 301) <= 3


def test_two_shifts_are_found(text):
    source, target = text
    more = ["Ein Satz mehr."]
    source = source[:150] + more + source[150:249] + source[250:]
    target = target[:350] + ["One more."] + target[350:449] + target[450:]
    first, second = find([source, target])
    assert (first.lag, second.lag) == (-1, 1)
    assert abs(first.start - 150) <= 3 and abs(second.start - 350) <= 3


def variants(text):
    """The same pairs in other orders and forms, none of which is shifted."""
    source, target = text
    rng = np.random.default_rng(0)
    for key in (None, len, str):
        order = rng.permutation(len(source)) if key is None else None
        order = sorted(range(len(source)), key=lambda row: key(source[row])) if key else order
        yield [source[row] for row in order], [target[row] for row in order]
    yield source, source
    yield source, [target[row] for row in rng.permutation(len(target))]  # no translations
    yield [line[:3] for line in source], [line[:3] for line in target]
    yield source[:30] * 20, target[:30] * 20
    yield [""] * 300 + source, [""] * 300 + target
    yield ["Ja."] * 500, ["Yes."] * 500
    yield [f"{i}" for i in range(500)], [f"{i}" for i in range(500)]
    yield source[:20], target[1:21]  # too short
    yield ["x" * 10_000] * 70, ["\0"] * 70
    yield [], []


def test_no_shift_is_found_in_other_text(text):
    for sides in variants(text):
        assert find(sides) == [], sides[0][:3]


def test_windows_cover_a_long_text(text, monkeypatch):
    monkeypatch.setattr(shifts, "OVERLAP_PAIRS", 100)
    source, target = shifted(text, 260, 1)
    blocks = [(source[row : row + 200], target[row : row + 200]) for row in range(0, 600, 200)]
    windows = [*shifts.windows(blocks)]
    assert [(start, len(sides[0])) for start, sides in windows] == [
        (0, 200),
        (100, 300),
        (300, 299),
    ]
    found = [shifts.check_window(window)[1] for window in windows]
    assert found[0] == [] and abs(found[1][0].start - 260) <= 3


def test_the_note_has_the_numbers_of_the_lines(tmp_path, text):
    source, target = shifted(text, 100, -1)
    paths = [tmp_path / "my.de", tmp_path / "my.en"]
    markup = ["<doc id='1'>", "<p>"]
    for path, lines in zip(
        paths, (markup + source, target[:50] + markup + target[50:]), strict=True
    ):
        path.write_text("\n".join(lines) + "\n", "utf-8")
    (note,) = shift_notes([paths], is_tag_line)
    assert note == (
        f"{paths[0]}:103 and {paths[1]}:103: from here on, the sides seem to be shifted by 1 line:"
        f" {paths[1]} lacks 1 line there or before, or {paths[0]} has 1 line too many. Correct them"
    )


def test_the_number_of_a_line(tmp_path):
    path = tmp_path / "text"
    path.write_text("<p>\na\n<p>\n<p>\nb\nc\n<p>\n")
    file = SentenceFile(path)
    assert [*file.sentences()] == ["a", "b", "c"]
    assert [file.line_number(index) for index in range(3)] == [2, 5, 6]


def test_shifts_that_windows_share_are_reported_once(monkeypatch):
    found = [[Shift(5, 9, 1)], [Shift(5, 9, 1), Shift(20, None, 2)], [Shift(20, None, 2)]]
    monkeypatch.setattr(shifts, "map_on_cores", lambda *_: iter([(0, own) for own in found]))
    assert [*find_shifts([])] == [Shift(5, 9, 1), Shift(20, None, 2)]


@pytest.mark.parametrize("start, place", [(0, 0), (450, 450), (760, 760), (1390, 1390)])
def test_a_shift_between_the_tested_windows_of_a_large_text_is_found(
    tmp_path, text, monkeypatch, start, place
):
    """The second window is tested, then each fifth one."""
    monkeypatch.setattr(shifts, "OVERLAP_PAIRS", 50)
    monkeypatch.setattr(shifts, "BLOCK_LINES", 100)
    monkeypatch.setattr(shifts, "ALL_WINDOWS", 2)
    monkeypatch.setattr(shifts, "SAMPLED_WINDOWS", 5)
    sides = shifted([side * 3 for side in text], start, 1)
    found = [(side[i : i + 100]) for side in sides for i in range(0, 1799, 100)]
    monkeypatch.setattr(shifts, "read_pairs", lambda *_: zip(found[:18], found[18:], strict=True))
    ((begin, end, lag),) = find_shifts([])
    assert abs(begin - place) <= 10 and (end, lag) == (None, 1)


@pytest.mark.skipif(not (REAL_TEXT / "multi30k").exists(), reason="needs REAL_TEXT")
@pytest.mark.parametrize(
    "source, target",
    [
        ("multi30k/val.de", "multi30k/val.en"),
        ("small_parallel_enja/dev.ja", "small_parallel_enja/dev.en"),
        ("wordshk_en_yue/dev.yue", "wordshk_en_yue/dev.en"),
    ],
)
def test_real_text(source, target):
    sides = [(REAL_TEXT / name).read_text("utf-8").splitlines()[:500] for name in (source, target)]
    assert find(sides) == []
    for start in (0, 250):
        (found,) = find(shifted(sides, start, 1))
        assert found.lag == 1 and abs(found.start - start) <= 5
