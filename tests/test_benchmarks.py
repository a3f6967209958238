"""The benchmarks still run: what they call of the project is as they take it to be."""

import sys

import numpy as np
import pytest

from conftest import ROOT, SMALL
from hparams import with_recipe
from text import load_vocabs


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", [])


def test_the_first_step(benchmarks, corpus, monkeypatch, capsys):
    import time_data

    monkeypatch.setattr(time_data, "STEPS", 1)

    time_data.first_step(*(f"{name}={value}" for name, value in (corpus | SMALL).items()))
    assert "first step" in capsys.readouterr().out


def test_steps(benchmarks, corpus):
    import step_tensorflow

    hp = with_recipe(corpus | SMALL)
    batch = np.full([2, hp.maxlen], 5, np.int32)
    step_tensorflow.make_steps([(batch, batch)], hp, load_vocabs(hp))()
