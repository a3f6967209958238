"""The pictures of the documents: which script draws each of them, and that it still does."""

import functools
import importlib
import re

import matplotlib as mpl
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

import mini
from conftest import slow
from hparams import make_hparams
from model.transformer import make_model
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


@functools.cache
def table():
    """The rows of the table in docs/development.md: [(script or "", names of pictures)]."""
    text = (DOCS / "development.md").read_text("utf-8")
    rows = re.findall(r"^\| (.*?) \| (.*?\.(?:png|gif)`) \|", text, re.MULTILINE)
    return [
        ("".join(re.findall(r"`(.*?\.py)`", script)), re.findall(r"`(.*?)`", names))
        for script, names in rows
    ]


def test_every_picture_has_a_script_and_is_a_small_file():
    listed = [name for _, names in table() for name in names]
    pictures = [*DOCS.glob("*.png"), *DOCS.glob("*.gif")]
    assert sorted(listed) == sorted(path.name for path in pictures)
    assert all(path.stat().st_size < MAX_BYTES[path.suffix[1:]] for path in pictures)
    for script, names in table():
        assert not script or all(name in (ROOT / script).read_text("utf-8") for name in names)


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
    for draw in (sentence.draw_bpe, sentence.draw_cross_heads):
        assert draw(example)
    assert sentence.draw_beam(example)  # which compares its path with that of beam search


def test_the_numbers_of_one_head_are_those_of_the_model(figures, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mini, "hp", type("hp", (mini.hp,), {}))
    head = figures("mini_head")
    words, X, Q, K, V, weights, Z = head.head_numbers()
    assert words == [*mini.clean(mini.EXAMPLE).split(), "</S>"]
    scores = np.exp(Q @ K.T / Q.shape[1] ** 0.5)
    np.testing.assert_allclose(scores / scores.sum(-1, keepdims=True), weights, atol=1e-4)
    assert head.draw_one_head()


def test_the_merges_of_a_word(figures):
    scores = {"er": 0.0, "ab": -1.0, "aber": -2.0, "be": -3.0}
    steps = [
        (" ".join(parts), place) for parts, place in figures("sentence").merges("aber", scores)
    ]
    assert steps == [("a b e r", None), ("a b er", 2), ("ab er", 0), ("aber", 0)]


def test_an_animation(figures, tmp_path):
    images = [Image.new("RGB", (8, 8), colour) for colour in ("red", "green", "blue", "white")]
    figures("style").save(images, tmp_path / "a.gif")
    assert Image.open(tmp_path / "a.gif").n_frames == 4


def test_the_curves_of_trainings(figures, tmp_path):
    curves, logdir = figures("curves"), tmp_path / "logdir"
    with tf.summary.create_file_writer(str(logdir)).as_default():
        for step in (1, 2, 3):
            tf.summary.scalar("mean_loss", 1.0 / step, step)
            tf.summary.scalar("dev_bleu", 10.0 * step, step)
    assert curves.draw_curve(logdir)
    assert curves.epoch_means([1, 2, 3, 4], [1.0, 3.0, 5.0, 5.0], [2, 4]) == [2.0, 5.0]
    mean = curves.moving_mean([0, 100, 1000], [1.0, 2.0, 9.0])
    np.testing.assert_allclose(mean, [1.5, 1.5, 9.0])
    assert curves.read_scalars(logdir)["dev_bleu"] == ([1, 2, 3], [10.0, 20.0, 30.0])


def test_what_positions_learn(figures):
    trained = figures("trained")
    flags = dict(recipe="tiny", vocab_size=20, maxlen=9, num_blocks=1)
    learned, t5 = (
        make_model(make_hparams(flags | dict(positions=name)), 20, 20) for name in ("learned", "t5")
    )
    numbers = trained.numbers_by_distance(t5)
    middle = trained.MAX_DISTANCE  # the query itself
    biases = t5.enc_positions[0].table.numpy()  # (buckets, h)
    np.testing.assert_array_equal(numbers[:, middle], biases[0])
    np.testing.assert_array_equal(numbers[:, middle - 1], biases[1])  # the key before the query
    np.testing.assert_array_equal(numbers[:, middle + 1], biases[16 + 1])
    assert trained.draw_learned(learned, t5)


def test_a_model_that_is_not_trained_is_named(figures, monkeypatch, tmp_path):
    train_models = figures("train_models")
    monkeypatch.setattr(train_models, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match="no such model. Run: python docs/figures/train_models.py"):
        train_models.trained_logdir("t5")
