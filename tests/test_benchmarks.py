"""The benchmarks still fit the project's code."""

import argparse
import importlib
import re
import sys

import numpy as np
import pytest

from conftest import INSTALL_EXTRAS, SMALL, slow
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

    timed_fn, num_targets = time_train.make_steps(corpus | SMALL, 2)
    timed_fn()
    assert num_targets > 0


@slow
def test_decoding_with_and_without_a_cache_gives_the_same_tokens(benchmarks, monkeypatch):
    import time_decode

    monkeypatch.setattr(time_decode, "NUM_TOKENS", 64)
    monkeypatch.setattr(time_decode, "VOCAB_SIZE", 50)
    flags = SMALL | dict(recipe="legacy", maxlen=8)
    found = [time_decode.untrained_decoder(kind, flags)() for kind in ("cached", "uncached")]
    assert np.shape(found[0]) == (8, 8)
    np.testing.assert_array_equal(*found)


@slow
def test_the_table_of_decoding_with_ctranslate2(benchmarks, trained, tmp_path, monkeypatch):
    import harness
    import time_decode

    from translation import inference

    pytest.importorskip("ctranslate2", reason=INSTALL_EXTRAS)

    class Worker:
        def __init__(self, command):
            time_decode.run_worker(*command[-3:])
            self.seconds, self.stop = lambda: 1 if "trained" in command else 2, dict

    flags = trained("tiny")
    for module, name, value in (
        (harness, "Worker", Worker),
        (harness, "WORK", tmp_path),
        (harness, "worker_loop", callable),
        (time_decode, "corpus_flags", lambda *_: flags),
        (inference, "paper_penalty", None),  # the decoder replaces it
    ):
        monkeypatch.setattr(module, name, value)
    args = argparse.Namespace(logdir=flags["logdir"], rounds=3, busy=True)
    for name, _, equal, *times in time_decode.compare_ctranslate2(args):
        assert times == 2 * (["30.0", "1.00"] if "ours" in name else ["15.0", "2.00"])
        assert "int8" in name or float(equal.rstrip("%")) > 70  # others repeat words endlessly


@slow
def test_the_time_from_the_command(benchmarks, trained):
    import time_start

    for kind, count in (("training", 5), ("translation", 4)):
        seconds = [*time_start.run_once(kind, ["--logdir", trained("tiny")["logdir"]]).values()]
        assert len(seconds) == count and sorted(seconds) == seconds and seconds[0] > 0


@slow
def test_scores_of_greedy_search_and_of_the_recipe(benchmarks, trained, monkeypatch):
    import quality

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
    assert re.search(race.REPORT, line).groups() == ("9", "13.03")
