"""train.py --alpha auto: the length penalty with the best dev score."""

import json
import os
import shutil
import signal

import pytest

import checkpoint
import train
from conftest import slow
from helpers import load, refused, run_main
from hparams import hparams_path, load_hparams, make_hparams
from inference import Hypothesis
from processes import forked_script


@pytest.fixture
def flags(trained, tmp_path):
    """The flags of a copy of a trained model, with its test set as the development set."""
    flags = trained("tiny")
    logdir = tmp_path / "logdir"
    shutil.copytree(flags["logdir"], logdir)
    dev = {f"{side}_dev": flags[f"{side}_test"] for side in ("source", "target")}
    return flags | dev | dict(logdir=str(logdir), beam=2)


def change_saved(flags, **values):
    """Change values in hparams.json."""
    path = hparams_path(flags["logdir"])
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def translate_nothing(X):
    """Take the place of a `Decoder`."""
    return [[Hypothesis("", [], 0.0, at_limit=False)] for _ in X]


def test_the_exponent_with_the_best_score_is_saved(flags, monkeypatch, capsys):
    scores, tried = iter([40.0, 42.5, 41.0, 39.0, 42.5]), []

    def record(loaded, show_progress):
        tried.append(loaded.hp.alpha)
        return translate_nothing

    monkeypatch.setattr(train, "SearchDecoder", record)
    monkeypatch.setattr(train, "corpus_score", lambda *_: (next(scores), ""))
    before = json.loads(hparams_path(flags["logdir"]).read_text())
    change_saved(flags, alpha=1.3)
    run_main(train, flags | dict(alpha="auto", average_checkpoints=2))  # all epochs are done
    assert tried == [0.6, 1.0, 1.3, 1.4, 1.8]
    assert "Chosen: alpha 1.0 (BLEU of the development set: 0.6: 40.00" in capsys.readouterr().out
    saved = json.loads(hparams_path(flags["logdir"]).read_text())
    assert saved == before | dict(alpha=1.0, beam=2, average_checkpoints=2)
    for alpha, expected in (({}, 1.0), (dict(alpha="auto"), 1.0), (dict(alpha=0.2), 0.2)):
        _, hp, *_ = load(dict(logdir=flags["logdir"]) | alpha)
        assert hp.alpha == expected


def test_search_and_metric_are_those_of_the_flags(flags, monkeypatch):
    searches, scores = set(), set()

    def record(loaded, show_progress):
        hp = loaded.hp
        searches.add((hp.beam, hp.length_penalty, hp.average_checkpoints))
        return translate_nothing

    def corpus_score(name, dev, got, lang):
        scores.add((name, lang))
        return 0.0, ""

    monkeypatch.setattr(train, "SearchDecoder", record)
    monkeypatch.setattr(train, "corpus_score", corpus_score)
    own = dict(beam=3, length_penalty="ctranslate2", average_checkpoints=2)
    run_main(train, flags | dict(alpha="auto", metric="chrf") | own)
    assert searches == {tuple(own.values())} and scores == {("chrf", "en")}
    saved = json.loads(hparams_path(flags["logdir"]).read_text())
    assert own.items() <= saved.items()


def test_equal_scores_keep_the_exponent(flags, monkeypatch):
    monkeypatch.setattr(train, "SearchDecoder", lambda *_, **__: translate_nothing)
    monkeypatch.setattr(train, "corpus_score", lambda *_: (0.0, ""))
    run_main(train, flags | dict(alpha="auto"))
    assert json.loads(hparams_path(flags["logdir"]).read_text())["alpha"] == 1.2


def test_a_signal_changes_nothing(flags, monkeypatch):
    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)
        return 50.0, ""

    monkeypatch.setattr(train, "corpus_score", interrupt)
    before = hparams_path(flags["logdir"]).read_bytes()
    with pytest.raises(KeyboardInterrupt, match="stopped before alpha was chosen"):
        run_main(train, flags | dict(alpha="auto"))
    assert hparams_path(flags["logdir"]).read_bytes() == before


@slow
def test_a_signal_after_the_last_epoch(flags, monkeypatch):
    def interrupt(*_):
        os.kill(os.getpid(), signal.SIGINT)
        return 50.0, ""

    monkeypatch.setattr(train, "corpus_score", interrupt)
    with pytest.raises(KeyboardInterrupt, match="stopped before alpha was chosen"):
        run_main(train, flags | dict(num_epochs=13, alpha="auto"))


@slow
def test_another_training_in_the_folder(flags):
    with checkpoint.lock(flags["logdir"]):
        refused("train.py", "another training run writes here", **flags | dict(alpha="auto"))


@slow
def test_it_is_chosen_after_the_last_epoch(flags):
    done = forked_script("train.py", **flags | dict(num_epochs=13, alpha="auto"))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2].startswith("Chosen: alpha ") and lines[-1] == "Done"
    hp = load_hparams(dict(logdir=flags["logdir"]))
    assert f"Chosen: alpha {hp.alpha} (BLEU" in lines[-2] and hp.alpha in train.ALPHAS


def test_until_then_it_is_that_of_the_recipe():
    assert make_hparams(dict(recipe="tiny", alpha="auto")) == make_hparams(dict(recipe="tiny"))


@pytest.mark.parametrize(
    "more, needles",
    [
        (dict(source_dev="none", target_dev="none"), ("alpha auto needs a development set", "Add")),
        (dict(beam=1), ("alpha auto is for beam search, and beam is 1", "Add --beam")),
        (dict(alpha="best"), ("best is neither a number nor auto",)),
    ],
)
def test_bad_input(flags, more, needles):
    before = hparams_path(flags["logdir"]).read_bytes()
    refused("train.py", *needles, **flags | dict(alpha="auto") | more)
    assert hparams_path(flags["logdir"]).read_bytes() == before
