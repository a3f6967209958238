"""Files from someone else: they run no code, name no path to write to, and send no escape codes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import eval
import train
from checkpoints import checkpoint
from helpers import latest, load, skip_graphs
from hparams import hparams_path
from support.errors import InputError
from text.vocab import load_vocabs, save_vocabs


@pytest.fixture
def stranger(trained, tmp_path, monkeypatch):
    """The folder of a model from someone else, with its text, in the current folder."""
    flags = trained("tiny")
    shutil.copytree(flags["logdir"], tmp_path / "work" / "st")
    monkeypatch.chdir(tmp_path / "work")
    for side in ("source", "target"):
        shutil.copy(flags[f"{side}_test"], f"st/{side}")
    change(source_test="st/source", target_test="st/target")
    return Path("st")


def change(**fields):
    """Change fields of hparams.json."""
    path = hparams_path("st")
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def test_results_are_written_where_the_user_says(stranger, trained, monkeypatch):
    """A model that names other folders can be used, and nothing is written there."""
    skip_graphs(monkeypatch)
    change(results="../home", logdir="../home", preprocessed="../home")
    eval.main(dict(logdir="st", beam=1))
    assert [path.name for path in Path("results").iterdir()] == [f"{latest('st').stem}.st"]
    text = {name: trained("tiny")[name] for name in ("source_train", "target_train")}
    train.main(text | dict(logdir="st", recipe="tiny", preprocessed="p", num_epochs=13))
    assert {path.name for path in Path("..").iterdir()} == {"work"}
    assert {path.name for path in Path().iterdir()} == {"st", "results"}


class Harm:
    """An object whose pickle writes a file."""

    def __reduce__(self):
        return Path.touch, (Path("harm"),)


def test_a_pickle_in_a_checkpoint_runs_no_code(stranger):
    for row in checkpoint.read_rows(stranger):
        np.savez(checkpoint.path_of(stranger, row), **{"weights/a": np.array([Harm()], object)})
    with pytest.raises(InputError, match="holds no checkpoint that can be read"):
        load(dict(logdir="st"))
    assert not Path("harm").exists()


def test_the_vocabulary_that_was_loaded_is_saved(stranger):
    """prepro.py may write another one while train.py encodes its text."""
    hp = load(dict(logdir="st")).hp
    vocabs, before = load_vocabs("st", hp), (stranger / "bpe.model").read_bytes()
    (stranger / "bpe.model").write_text("another")
    save_vocabs(vocabs, "st")
    assert (stranger / "bpe.model").read_bytes() == before
