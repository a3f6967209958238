"""Exported models translate as translate.py does, in a process without this project."""

import sys
from pathlib import Path

import numpy as np
import pytest

import export
import train
from conftest import slow
from helpers import (
    ODD_LINES,
    load,
    parameters,
    read_test_sentences,
    refused,
    run_main,
    run_saved_models,
)
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


@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_without_tensorflow_text(trained, tmp_path, monkeypatch, recipe):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)
    output = tmp_path / "model"
    given = dict(logdir=trained(recipe)["logdir"], output=str(output))
    with pytest.raises(InputError, match="tensorflow_text is not installed. .* `pip install"):
        run_main(export, given)
    assert not output.exists()


@slow
def test_a_folder_to_give_away(trained, tmp_path):
    """It has the mean of the parameters alone, and starts another training."""
    flags, path = trained("tiny"), tmp_path / "shared"
    mean = dict(logdir=flags["logdir"], average_checkpoints=3)
    run_main(export, mean | dict(format="logdir", output=str(path)))
    sizes = [
        sum(file.stat().st_size for file in Path(folder).iterdir() if "tfevents" not in file.name)
        for folder in (flags["logdir"], path)
    ]
    assert sizes[1] < sizes[0] / 3
    lines = read_test_sentences(flags["source_test"]).raw
    texts = [
        [translation.text for translation in Translator(load(given))(lines)]
        for given in (mean, dict(logdir=str(path)))
    ]
    assert texts[0] == texts[1]
    shared = parameters(path)
    more = dict(start_from=str(path), logdir=str(tmp_path / "more"), num_epochs=1, lr=1e-30)
    run_main(train, flags | more)
    for name, array in parameters(tmp_path / "more").items():
        np.testing.assert_allclose(array, shared[name], atol=1e-6)


@slow
def test_a_model_of_the_2017_code_is_given_away(original_run, tmp_path):
    flags = dict(logdir=original_run / "logdir", preprocessed=original_run / "preprocessed")
    flags = {name: str(value) for name, value in flags.items()} | dict(num_heads=4)
    run_main(export, flags | dict(format="logdir", output=str(tmp_path / "shared")))
    lines = ["Ein Mann schläft .", "Zwei Hunde spielen im Schnee ."]
    texts = [
        [translation.text for translation in Translator(load(given))(lines)]
        for given in (flags, dict(logdir=str(tmp_path / "shared")))
    ]
    assert texts[0] == texts[1]


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
