"""Sides that are shifted: found where they are, and in no other text."""

import numpy as np
import pytest

from conftest import sample_pairs
from text import shifts
from text.lines import read_sentences
from text.shifts import find_shift, shift_notes


@pytest.fixture(scope="module")
def text():
    """600 different pairs of the built-in corpus."""
    pairs = [*dict(sample_pairs(1500)).items()][:600]
    return [list(side) for side in zip(*pairs, strict=True)]


def shifted(sides, start, lag):
    """The text without `lag` sources from a row on, or without -lag targets."""
    source, target = sides if lag > 0 else sides[::-1]
    count = abs(lag)
    changed = source[:start] + source[start + count :], target[: len(target) - count]
    return changed if lag > 0 else changed[::-1]


@pytest.mark.parametrize("lag", [1, -1, 2, -7])
@pytest.mark.parametrize("start, window", [(0, 0), (190, 200), (400, 400)])
def test_a_lasting_shift_is_found(text, lag, start, window, monkeypatch):
    monkeypatch.setattr(shifts, "WINDOW", 200)
    assert find_shift(shifted(text, start, lag)) == (window, lag)


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
        assert find_shift(sides) is None, sides[0][:3]


def test_the_note_has_the_number_of_the_sentence(tmp_path, text, monkeypatch):
    """Counted over the blocks in which the text is read."""
    monkeypatch.setattr(shifts, "BLOCK_LINES", 300)
    monkeypatch.setattr(shifts, "read_pairs", lambda files, _: cut_blocks)
    source, target = shifted(text, 300, -1)
    cut_blocks = [(source[row : row + 300], target[row : row + 300]) for row in (0, 300)]
    paths = [tmp_path / "my.de", tmp_path / "my.en"]
    assert [*shift_notes([paths])] == [
        f"{paths[0]} and {paths[1]}: from about sentence 301 on, the sides seem to be shifted by 1"
        f" line: {paths[1]} lacks 1 line there or before, or {paths[0]} has 1 line too many."
        " Correct them"
    ]


@pytest.mark.parametrize(
    "names",
    [
        *("multi30k/train.de multi30k/train.en", "multi30k_fr_cs/train.fr multi30k_fr_cs/train.cs"),
        "iwslt16/train.tags.de-en.de iwslt16/train.tags.de-en.en",
        "loresmt2021_en_ga/train.en loresmt2021_en_ga/train.ga",
        "small_parallel_enja/train.ja small_parallel_enja/train.en",
        "tatoeba_en_zh/train.en tatoeba_en_zh/train.zh",
        "wordshk_en_yue/train.yue wordshk_en_yue/train.en",
    ],
)
def test_real_text(real_text, names):
    """No false alarm in its own order, in another one, and by length; shifts in the first two."""
    sides = [[*read_sentences(real_text / name)][:8000] for name in names.split()]
    random = np.random.default_rng(0).permutation(len(sides[0]))
    for order in (range(len(random)), random, sorted(random, key=lambda row: len(sides[0][row]))):
        ordered = [[side[row] for row in order] for side in sides]
        assert find_shift(ordered) is None
        for start, lag in () if isinstance(order, list) else ((0, 1), (0, -2), (4000, -1)):
            assert find_shift(shifted(ordered, start, lag)) == (start, lag)
