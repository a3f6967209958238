"""The benchmarks still fit the project's code."""

import importlib
import re
import sys

import numpy as np
import pytest

from conftest import SMALL, slow
from processes import ROOT


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", [])


def test_every_module_can_be_imported(benchmarks):
    for path in (ROOT / "benchmarks").glob("*.py"):
        importlib.import_module(path.stem)


@slow
def test_training_steps(benchmarks, corpus):
    import time_train

    time_train.make_steps(corpus | SMALL, 2)()


@slow
def test_decoding_with_and_without_a_cache_gives_the_same_tokens(benchmarks, monkeypatch):
    import time_decode

    monkeypatch.setattr(time_decode, "NUM_TOKENS", 64)
    monkeypatch.setattr(time_decode, "VOCAB_SIZE", 50)
    flags = SMALL | dict(recipe="legacy", maxlen=8)
    found = [time_decode.untrained_decoder(kind, flags)() for kind in ("cached", "uncached")]
    assert found[0].shape == (8, 8)
    np.testing.assert_array_equal(*found)


@slow
def test_the_time_from_the_command(benchmarks, trained):
    import time_start

    for kind, count in (("training", 5), ("translation", 4)):
        seconds = [*time_start.run_once(kind, ["--logdir", trained("tiny")["logdir"]]).values()]
        assert len(seconds) == count and sorted(seconds) == seconds and seconds[0] > 0


@slow
def test_scores_of_greedy_search_and_of_the_recipe(benchmarks, trained, tmp_path, monkeypatch):
    import quality
    import time_decode

    time_decode.trained_decoder({"logdir": trained("tiny")["logdir"]}, tmp_path / "output")()
    assert len((tmp_path / "output").read_text("utf-8").splitlines()) == 30
    lower = lambda lines, lang: [*map(str.lower, lines)]  # noqa: E731
    monkeypatch.setitem(quality.PUBLISHED_TOKENS, "en", lower)  # spaCy is an extra
    rows = quality.score_set({"logdir": trained("tiny")["logdir"]}, "test")
    greedy, recipe = rows
    assert greedy.startswith("greedy search") and recipe.startswith("beam 5")
    assert all(re.fullmatch(r"\d+\.\d\d", score) for row in rows.values() for score in row)


def test_the_table_and_the_curves_of_the_race(benchmarks, tmp_path):
    import race

    points = [[1.0, 1.5, 250, 28.0], [2.0, 3.04, 500, 31.0], [3.0, 4.5, 750, 30.5]]
    row = dict(date="2026-11-25", name="tiny", flags="--seed 0", machine="a PC", points=points)
    last = race.table([row, row]).splitlines()[-1]
    assert last.split(" | ")[4:] == ["2.0 (3.0)", "", "", "", "30.5", "3.0 (4.5) |"]
    race.draw([row], tmp_path / "race.png")
    assert (tmp_path / "race.png").stat().st_size > 1000
    line = "model_epoch_01_gs_9.npz: mean_loss 5.491 acc 0.302, dev loss 4.227 BLEU 13.03 chrF"
    assert race.REPORT.search(line).groups() == ("9", "13.03")
