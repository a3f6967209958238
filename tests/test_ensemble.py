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

import export
from conftest import slow
from helpers import load, read_test_sentences, run_main, saved_rows, tensorflow_text
from hparams import make_hparams
from model.transformer import make_model
from processes import forked_script
from support.errors import InputError
from text.ids import BOS
from translation import inference
from translation.ensemble import Ensemble, mean_log_probs
from translation.inference import LoadedModel, make_search
from translation.score import Scorer
from translation.translator import Translator

V = 40


def small_models(*flags):
    """Models of different kinds and sizes with one vocabulary, and the hyperparameters of each."""
    keras.utils.set_random_seed(0)
    hps = [make_hparams(dict(vocab_size=V) | own) for own in flags]
    return hps, [make_model(hp, V, V) for hp in hps]


TRANSFORMER = dict(recipe="tiny", hidden_units=16, num_blocks=1, num_heads=2)
MIXED = (
    TRANSFORMER,
    dict(recipe="tiny", hidden_units=24, num_blocks=2, num_heads=3, positions="rotary"),
    dict(recipe="rnn_attention", hidden_units=16),
)


def random_ids(rows, width):
    ids = np.random.default_rng(0).integers(4, V, (rows, width), np.int32)
    ids[:, -1] = 3
    return ids


def log_softmax(logits):
    logits = np.array(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_log_probabilities_are_averaged():
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(2, 3, V)).astype("float32") for _ in range(3)]
    expected = np.mean([log_softmax(own) for own in logits], axis=0)
    np.testing.assert_allclose(mean_log_probs(logits), expected, atol=1e-5)


def test_models_of_different_kinds_decode_token_by_token_as_at_once():
    _, models = small_models(*MIXED)
    ensemble = Ensemble(models)
    x, y = random_ids(3, 6), random_ids(3, 5)
    together = np.array(ensemble(x, y))
    np.testing.assert_allclose(
        together, np.mean([log_softmax(model(x, y)) for model in models], axis=0), atol=1e-4
    )
    memory = ensemble.encode_memory(x)
    cache = ensemble.initial_cache(memory)
    previous = tf.fill([3], BOS)
    for t in range(5):
        log_probs, cache = ensemble.decode_step(previous, cache, memory)
        np.testing.assert_allclose(log_probs, together[:, t], atol=1e-4)
        previous = tf.constant(y[:, t])
    assert len(ensemble.variables) == sum(len(model.variables) for model in models)


@slow
@pytest.mark.parametrize("beam", [1, 4])
def test_an_ensemble_of_one_model_is_the_model(beam):
    (hp,), (model,) = small_models(TRANSFORMER)
    x = random_ids(5, 6)
    expected = make_search(model, hp, beam, nbest=beam)(x)
    got = make_search(Ensemble([model, model]), hp, beam, nbest=beam)(x)
    np.testing.assert_array_equal(got[0], expected[0])
    np.testing.assert_allclose(got[1], expected[1], atol=1e-5)


@slow
def test_beam_search_finds_better_translations_than_each_model_alone():
    """By the log-probability of both together."""
    keras.utils.set_random_seed(0)
    _, models = small_models(*MIXED[:2])
    ensemble, x = Ensemble(models), random_ids(9, 6)
    for variable in ensemble.variables:
        if variable.trainable:
            variable.assign(3 * variable)  # untrained models find all tokens equally likely
    hp = make_hparams(TRANSFORMER | dict(alpha=0.0))

    def score(translator):
        preds, _ = make_search(translator, hp, 8)(x)
        preds = preds[:, 0].numpy()
        logp = np.take_along_axis(np.array(ensemble(x, preds)), preds[..., None], axis=2)[..., 0]
        return np.where(preds > 0, logp, 0.0).sum()

    assert score(ensemble) > max(map(score, models)) + 5


@pytest.fixture(scope="module")
def two(trained, tmp_path_factory):
    """Flags of two models with one vocabulary: of one text, which gives the same."""
    folder = tmp_path_factory.mktemp("two")
    models = dict(first=trained("tiny"), second=trained("tiny", seed=1))
    for name, flags in models.items():
        shutil.copytree(flags["logdir"], folder / name)
    return models["first"] | dict(logdir=",".join(str(folder / name) for name in models))


def newest_name(flags):
    """Return the name of the newest checkpoint, which is the same for both models."""
    (name,) = {saved_rows(logdir)[-1].name for logdir in flags["logdir"].split(",")}
    return name


@slow
def test_the_scripts_use_several_models(two, tmp_path):
    logdir, results = two["logdir"], tmp_path / "results"
    decoding = dict(logdir=logdir, beam=1, average_checkpoints=3)
    done = forked_script("eval.py", results=results, **decoding)
    assert done.returncode == 0, done.stderr
    mean = f"mean of 3 checkpoints to {newest_name(two)}"
    assert f", 2 models (first: {mean}; second: {mean})\n" in done.stdout
    source = tmp_path / "in"
    lines = read_test_sentences(two["source_test"])
    source.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    done = forked_script("translate.py", source=source, **decoding)
    assert done.returncode == 0, done.stderr
    (path,) = results.iterdir()
    got = re.findall(r"^- got: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert done.stdout.splitlines() == got
    loaded = load(decoding)
    assert [translation.text for translation in Translator(loaded)(lines)] == got
    assert len(Scorer(loaded)(lines, got)) == len(lines)


@slow
def test_an_ensemble_is_exported(two, tmp_path):
    done = forked_script("export.py", logdir=two["logdir"], output=tmp_path / "exported")
    assert done.returncode == 0, done.stderr
    tensorflow_text()  # registers the operations that tokenize

    loaded = load(dict(logdir=two["logdir"]))
    lines = read_test_sentences(two["source_test"])
    signature = tf.saved_model.load(str(tmp_path / "exported")).signatures["serving_default"]
    texts = signature(text=tf.constant(lines))["translation"].numpy()
    expected = [translation.text for translation in Translator(loaded)(lines)]
    assert [text.decode() for text in texts] == expected


@slow
@pytest.mark.parametrize("format", ["ctranslate2", "huggingface"])
def test_other_programs_run_one_model(trained, tmp_path, format):
    own = dict(positions="paired_sinusoid", normalization="post")  # what both programs have
    logdir, output = trained("tiny", **own)["logdir"], tmp_path / "exported"
    twice = f"{logdir},{shutil.copytree(logdir, tmp_path / 'other')}"
    with pytest.raises(InputError, match="logdir names several models, and"):
        run_main(export, dict(logdir=twice, output=str(output), format=format))
    assert not output.exists()


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
        assert inference.load_model(dict(logdir="a,b")).model == ["a", "b"]
    with pytest.raises(InputError, match="^c: has other languages, another vocabulary, or reads"):
        inference.load_model(dict(logdir="a,c"))
