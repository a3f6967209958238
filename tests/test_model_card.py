"""The card of an export has all known facts."""

import json
import shutil
from pathlib import Path

import pytest

import eval
import export
import model_card
from helpers import load, run_main


@pytest.fixture
def copied(trained, tmp_path):
    """The flags of a model that a test may change."""
    flags = trained("tiny")
    logdir = shutil.copytree(flags["logdir"], tmp_path / "model")
    (logdir / model_card.EVALUATIONS).unlink(missing_ok=True)
    return flags | dict(logdir=str(logdir))


def evaluate(flags, tmp_path):
    """Run eval.py; returns the lines of the results file."""
    run_main(eval, dict(logdir=flags["logdir"], results=str(tmp_path / "results")))
    (path,) = (tmp_path / "results").iterdir()
    return path.read_text("utf-8").splitlines()


def test_the_card_of_an_export(copied, tmp_path):
    for _ in range(2):  # one evaluation is listed once
        results = evaluate(copied, tmp_path)
    path = Path(copied["logdir"]) / "hparams.json"
    saved = json.loads(path.read_text()) | dict(precision="bfloat16", minutes=7.5)
    path.write_text(json.dumps(saved))
    output = tmp_path / "exported"
    run_main(export, dict(logdir=copied["logdir"], format="logdir", output=str(output)))
    card = (output / "README.md").read_text("utf-8")
    (score,) = [line for line in results if line.startswith("sacreBLEU = ")]
    assert card.splitlines().count(f"    {score}") == 1  # with its signature
    assert card.startswith('---\nlanguage:\n- "de"\n- "en"\n') and "license" in card
    assert "- Text: train.source, train.target" in card and "- 12 complete epochs, " in card
    for flag in ("--recipe tiny", "--hidden_units", "--precision bfloat16", "--minutes 7.5"):
        assert flag in card
    assert str(tmp_path) not in card and str(Path.home()) not in card


def test_the_card_of_an_ensemble_has_the_scores_of_no_model(copied, tmp_path):
    evaluate(copied, tmp_path)
    other = shutil.copytree(copied["logdir"], tmp_path / "other")
    card = model_card.make_card(load(dict(logdir=f"{copied['logdir']},{other}")))
    assert card.count("- Text: train.source") == 2
    assert "sacreBLEU" not in card and "has not been evaluated" in card
