"""Several models that translate together: --logdir a,b."""

import contextlib
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import eval
import export
from conftest import slow, token_by_token
from helpers import load, read_test_sentences, saved_rows, tensorflow_text, translated
from hparams import make_hparams
from model.transformer import make_model
from support.errors import InputError
from translation import inference
from translation.inference import LoadedModel
from translation.score import Scorer
from translation.search import Ensemble
from translation.translator import Translator

V = 40
TRANSFORMER = dict(recipe="tiny", hidden_units=16, num_blocks=1, num_heads=2)
OTHERS = (
    dict(recipe="tiny", hidden_units=24, num_blocks=2, num_heads=3, positions="rotary"),
    dict(recipe="rnn_attention", hidden_units=16),
)


def small_models(*flags):
    """Models of different kinds and sizes with one vocabulary."""
    keras.utils.set_random_seed(0)
    return [make_model(make_hparams(dict(vocab_size=V) | own), V, V) for own in flags]


def random_ids(rows, width):
    ids = np.random.default_rng(0).integers(4, V, (rows, width), np.int32)
    ids[:, -1] = 3
    return tf.constant(ids)


def log_softmax(logits):
    logits = np.array(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_models_of_different_kinds_decode_token_by_token_as_at_once():
    models = small_models(TRANSFORMER, *OTHERS)
    ensemble = Ensemble(models)
    x, y = random_ids(3, 6), random_ids(3, 5)
    together = np.array(ensemble(x, y))
    np.testing.assert_allclose(
        together, np.mean([log_softmax(model(x, y)) for model in models], axis=0), atol=1e-4
    )
    np.testing.assert_allclose(token_by_token(ensemble, x, y), together, atol=1e-4)
    assert len(ensemble.variables) == sum(len(model.variables) for model in models)


@pytest.fixture(scope="module")
def two(trained, tmp_path_factory):
    """Flags of two models with one vocabulary: of one text, which gives the same."""
    folder = tmp_path_factory.mktemp("two")
    models = dict(first=trained("tiny"), second=trained("tiny", seed=1))
    for name, flags in models.items():
        shutil.copytree(flags["logdir"], folder / name)
    return models["first"] | dict(logdir=",".join(str(folder / name) for name in models))


@slow
def test_the_scripts_use_several_models(two, tmp_path, capsys):
    decoding = dict(logdir=two["logdir"], beam=1, average_checkpoints=3)
    eval.main(decoding | dict(results=str(tmp_path / "results")))
    (newest,) = {saved_rows(logdir)[-1].name for logdir in two["logdir"].split(",")}
    mean = f"mean of 3 checkpoints to {newest}"
    assert f", 2 models (first: {mean}; second: {mean})\n" in capsys.readouterr().out
    (path,) = (tmp_path / "results").iterdir()
    got = re.findall(r"^- got: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    lines, loaded = read_test_sentences(two["source_test"]), load(decoding)
    assert translated(decoding, tmp_path, lines, **decoding) == got
    assert len(Scorer(loaded)(lines, got)) == len(lines)


@slow
def test_an_ensemble_is_exported(two, tmp_path):
    """As a SavedModel. Other programs run one model: tests/test_refusals.py."""
    tensorflow_text()  # registers the operations that tokenize
    path, lines = tmp_path / "exported", read_test_sentences(two["source_test"])
    export.main(dict(logdir=two["logdir"], output=str(path)))
    signature = tf.saved_model.load(str(path)).signatures["serving_default"]
    texts = signature(text=tf.constant(lines))["translation"].numpy()
    expected = [own.text for own in Translator(load(dict(logdir=two["logdir"])))(lines)]
    assert [text.decode() for text in texts] == expected


@pytest.mark.parametrize(
    "base, other, fit",
    [
        ({}, dict(maxlen=12), False),  # lengths, masks or positions differ: no batch suits both
        ({}, dict(architecture="2019"), False),
        ({}, dict(positions="sinusoid"), True),
        (dict(recipe="tiny"), dict(maxlen=60), True),
        (dict(recipe="tiny", positions="learned", maxlen=50), dict(maxlen=60), False),
        ({}, dict(source_lang="en", target_lang="de"), False),
        ({}, dict(target_lang="fr"), False),
    ],
)
def test_models_that_read_sentences_in_the_same_way(monkeypatch, base, other, fit):
    """They translate together if they have one vocabulary, too."""

    def load_single(given):
        hp = make_hparams(base | given | (other if given["logdir"] == "b" else {}))
        vocab = SimpleNamespace(content=b"1" if given["logdir"] == "c" else b"0")
        return LoadedModel([Path(hp.logdir) / "model.npz"], hp, given["logdir"], (vocab, vocab))

    monkeypatch.setattr(inference, "load_single", load_single)
    monkeypatch.setattr(inference, "Ensemble", lambda models: models)
    with contextlib.nullcontext() if fit else pytest.raises(InputError, match="^b: has other "):
        loaded = inference.load_model(dict(logdir="a,b"))
        assert loaded.model == ["a", "b"] and loaded.folders == [Path("a"), Path("b")]
    with pytest.raises(InputError, match="^c: has other languages, another vocabulary, or reads"):
        inference.load_model(dict(logdir="a,c"))
