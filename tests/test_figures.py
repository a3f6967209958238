"""The pictures of the documents: which script draws each of them, and that it still does."""

import importlib
import re

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

import mini
from conftest import slow
from processes import ROOT

DOCS = ROOT / "docs"
FIGURES = DOCS / "figures"
MAX_BYTES = dict(png=135_000, gif=1_000_000)  # about 120 kB, and some more on other machines


@pytest.fixture
def figures(monkeypatch):
    """A function that imports a script of docs/figures. It leaves the settings of matplotlib."""
    monkeypatch.syspath_prepend(str(FIGURES))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    with mpl.rc_context():
        importlib.import_module("style")
        yield importlib.import_module


def test_every_picture_has_a_script_and_is_a_small_file():
    text, listed = (DOCS / "development.md").read_text("utf-8"), []
    for script, cell in re.findall(r"^\| (.*?) \| (.*?\.(?:png|gif)`) \|", text, re.MULTILINE):
        names, scripts = re.findall(r"`(.*?)`", cell), re.findall(r"`(.*?\.py)`", script)
        listed += names
        assert all(name in (ROOT / path).read_text("utf-8") for path in scripts for name in names)
    pictures = [*DOCS.glob("*.png"), *DOCS.glob("*.gif")]
    assert sorted(listed) == sorted(path.name for path in pictures)
    assert all(path.stat().st_size < MAX_BYTES[path.suffix[1:]] for path in pictures)


def test_every_script_can_be_imported(figures):
    for path in FIGURES.glob("*.py"):
        figures(path.stem)


@slow
@pytest.mark.parametrize("script", ["diagrams", "architecture"])
def test_pictures_without_a_model(figures, script, tmp_path):
    style, pictures = figures("style"), figures(script).PICTURES
    for name, draw in pictures.items():
        style.save(draw(), tmp_path / name)
        assert Image.open(tmp_path / name).width == 1600


@slow
def test_the_pictures_of_one_sentence(figures):
    sentence = figures("sentence")
    example = sentence.Example(str(DOCS / "sample_model"))
    assert example.text == "The woman did not read the letter."
    assert sentence.draw_bpe(example) and sentence.draw_cross_heads(example)
    assert sentence.draw_beam(example)  # which compares its path with that of beam search


@slow
def test_the_numbers_of_one_head_are_those_of_the_model(figures, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mini, "hp", type("hp", (mini.hp,), {}))
    head = figures("mini_head")
    words, X, Q, K, V, weights, Z = head.head_numbers()
    assert words == [*mini.clean(mini.EXAMPLE).split(), "</S>"]
    scores = np.exp(Q @ K.T / Q.shape[1] ** 0.5)
    np.testing.assert_allclose(scores / scores.sum(-1, keepdims=True), weights, atol=1e-4)
    assert head.draw_one_head()
