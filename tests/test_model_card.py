"""The card of a model has all known facts, and trusts no file of a stranger."""

import json
import re
import shutil
from pathlib import Path

import pytest

import model_card
from conftest import slow_unless
from helpers import load
from hparams import make_hparams
from processes import forked_script


@pytest.fixture
def copied(trained, tmp_path):
    """The flags of a model that a test may change."""
    flags = trained("tiny")
    logdir = shutil.copytree(flags["logdir"], tmp_path / "model")
    for name in (model_card.CARD, model_card.EVALUATIONS):
        (logdir / name).unlink(missing_ok=True)
    return flags | dict(logdir=str(logdir))


def evaluate(flags, tmp_path, **more):
    """Run eval.py; returns the card, and the lines of the results file."""
    results = tmp_path / "results"
    done = forked_script("eval.py", logdir=flags["logdir"], results=results, **more)
    assert done.returncode == 0, done.stderr
    (path,) = results.iterdir()
    card = Path(flags["logdir"]) / model_card.CARD
    return card.read_text("utf-8"), path.read_text("utf-8").splitlines()


def test_the_card_of_an_evaluated_model(copied, tmp_path):
    card, results = evaluate(copied, tmp_path)
    (score,) = [line for line in results if line.startswith("sacreBLEU = ")]
    assert f"    {score}" in card.splitlines()  # with its signature
    assert f"{{type: bleu, value: {score.split()[2]}}}" in card
    assert "95% intervals = " in card
    assert "- Text: 400 sentence pairs of train.source (de) and train.target (en)" in card
    minutes = json.loads((Path(copied["logdir"]) / model_card.TRAINING).read_text())["minutes"]
    assert re.search(rf"12 complete epochs, \d+ steps, {minutes:.0f} minutes on \d+ CPU core", card)
    assert "--recipe tiny" in card and "--hidden_units" in card
    assert card.startswith('---\nlanguage:\n- "de"\n- "en"\n') and "license" in card
    assert str(tmp_path) not in card and str(Path.home()) not in card
    again, _ = evaluate(copied, tmp_path)
    assert again == card  # one evaluation is listed once


@pytest.mark.parametrize("format", slow_unless(["logdir"], ["logdir", "ctranslate2"]))
def test_the_card_of_an_export(copied, tmp_path, format):
    evaluate(copied, tmp_path)
    output = tmp_path / "exported"
    done = forked_script("export.py", logdir=copied["logdir"], format=format, output=output)
    assert done.returncode == 0, done.stderr
    card = (output / model_card.CARD).read_text("utf-8")
    assert "sacreBLEU = " in card and "## Limits" in card and "400 sentence pairs" in card
    if format == "logdir":  # a card that is written there has the same facts
        same = model_card.make_card(load(dict(logdir=str(output))))
        assert "sacreBLEU = " in same and "400 sentence pairs" in same


def test_the_card_of_an_ensemble_has_the_scores_of_no_model(copied, tmp_path):
    evaluate(copied, tmp_path)
    other = shutil.copytree(copied["logdir"], tmp_path / "other")
    card = model_card.make_card(load(dict(logdir=f"{copied['logdir']},{other}")))
    assert card.count("- Text: 400 sentence pairs") == 2
    assert "sacreBLEU" not in card and "has not been evaluated yet" in card


def test_a_readme_of_the_user_stays(copied, tmp_path):
    path = Path(copied["logdir"]) / model_card.CARD
    path.write_text("mine")
    loaded = load(dict(logdir=copied["logdir"]))
    model_card.write_card(loaded, copied["logdir"])
    assert path.read_text() == "mine"
    path.write_text(f"old {model_card.MARK}")
    model_card.write_card(loaded, copied["logdir"])
    assert "has not been evaluated yet" in path.read_text("utf-8")


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[" * 10_000,
        '{"a": 1}',
        '["a", 1]',
        '[{"test": "a", "decoding": "b", "lines": "c"}]',
        '[{"test": "a\\n# b", "decoding": "c", "lines": []}]',
        json.dumps([dict(test="a" * 10_000, decoding="b", lines=[])]),
        json.dumps([dict(test="a", decoding="b", lines=[dict(c=[None])])]),
    ],
)
def test_facts_of_a_stranger_are_ignored_if_they_are_damaged(copied, content):
    logdir = Path(copied["logdir"])
    for name in (model_card.TRAINING, model_card.EVALUATIONS):
        (logdir / name).write_text(content)
    card = model_card.make_card(load(dict(logdir=copied["logdir"])))
    assert "has not been evaluated yet" in card and "sentence pairs" not in card


def test_minutes_add_up_and_a_training_without_checkpoint_leaves_no_file(tmp_path):
    hp = make_hparams(dict(logdir=str(tmp_path), source_train="x/a.de", target_train="x/a.en"))
    path = tmp_path / model_card.TRAINING
    with model_card.recording_training(hp, 7, []):
        pass
    assert not path.exists()
    (tmp_path / "run.json").touch()
    with pytest.raises(KeyboardInterrupt), model_card.recording_training(hp, 7, ["/x/a.de: 3"]):
        raise KeyboardInterrupt
    facts = json.loads(path.read_text())
    assert (facts["source"], facts["pairs"], facts["notes"]) == ("a.de", 7, ["a.de: 3"])
    path.write_text(json.dumps(facts | dict(minutes=30.0)))
    with model_card.recording_training(hp, 7, []):
        pass
    assert json.loads(path.read_text())["minutes"] == pytest.approx(30.0, abs=0.5)
