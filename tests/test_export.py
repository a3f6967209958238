"""Exported models translate as translate.py does, in a process without this project."""

import sys

import pytest

import export
from conftest import slow
from helpers import ODD_LINES, load, read_test_sentences, refused, run_main, run_saved_models
from inference import Translator
from processes import forked_script
from runtime.errors import InputError


@slow
def test_saved_models_translate_as_translate_does(trained, tmp_path):
    models = {trained("legacy")["logdir"]: 1, trained("tiny")["logdir"]: 4}
    paths = [tmp_path / "models" / str(beam) for beam in models.values()]
    for (logdir, beam), path in zip(models.items(), paths, strict=True):
        done = forked_script("export.py", logdir=logdir, beam=beam, output=path)
        assert done.returncode == 0 and f"{path}: " in done.stdout, done.stderr
    refused("export.py", path, "already exists", logdir=logdir, output=path)
    lines = [line.strip("\ufeff\r") for line in ODD_LINES]
    lines += read_test_sentences(trained("tiny")["source_test"]).raw
    answers = run_saved_models(paths, lines, tmp_path)

    for (logdir, beam), (texts, scores) in zip(models.items(), answers, strict=True):
        translations = Translator(load(dict(logdir=logdir, beam=beam)))(lines)
        assert texts == [translation.text for translation in translations]
        assert len(set(texts)) > 5
        if beam > 1:
            assert scores == pytest.approx(
                [own.hypotheses[0].score for own in translations], abs=1e-4
            )
        assert all((score < 0) == (line != "") for line, score in zip(texts, scores, strict=True))


def test_search_flags_for_ctranslate2_are_refused_except_temperature(tmp_path):
    flags = dict(format="ctranslate2", logdir=str(tmp_path), output=str(tmp_path / "out"))
    with pytest.raises(InputError, match="beam is given to the program that loads the model"):
        run_main(export, flags | dict(beam=2))
    with pytest.raises(InputError, match="holds no checkpoint"):
        run_main(export, flags | dict(temperature=0.0))


@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_without_tensorflow_text(trained, tmp_path, monkeypatch, recipe):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    output = tmp_path / "model"
    given = dict(logdir=trained(recipe)["logdir"], output=str(output))
    with pytest.raises(InputError, match="tensorflow-text cannot be imported .* `pip install"):
        run_main(export, given)
    assert not output.exists()


@slow
def test_a_model_of_the_2017_code_translates_a_real_test_set(original_run, real_text, tmp_path):
    flags = dict(logdir=original_run / "logdir", preprocessed=original_run / "preprocessed")
    flags = {name: str(value) for name, value in flags.items()} | dict(num_heads=4)
    path = tmp_path / "model"
    done = forked_script("export.py", **flags, output=path)
    assert done.returncode == 0, done.stderr
    lines = (real_text / "multi30k" / "test_2016_flickr.de").read_text("utf-8").splitlines()
    [(texts, _)] = run_saved_models([path], lines, tmp_path)
    loaded = load(flags)
    assert texts == [translation.text for translation in Translator(loaded)(lines)]
    assert len(set(texts)) > 900
