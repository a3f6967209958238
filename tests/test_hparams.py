"""Hyperparameters: the documented defaults, the flags, and what logdir remembers."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from conftest import ROOT, run_script
from hparams import (
    Hyperparams,
    InputError,
    hparams_path,
    load_hparams,
    save_hparams,
    whole_file,
    with_recipe,
    write_whole,
)

DOCUMENTED = dict(
    source_train="corpora/train.tags.de-en.de",
    target_train="corpora/train.tags.de-en.en",
    source_test="corpora/IWSLT16.TED.tst2014.de-en.de.xml",
    target_test="corpora/IWSLT16.TED.tst2014.de-en.en.xml",
    batch_size=32,
    lr=0.0001,
    logdir="logdir",
    maxlen=10,
    min_cnt=20,
    hidden_units=512,
    num_blocks=6,
    num_epochs=20,
    num_heads=8,
    dropout_rate=0.1,
    sinusoid=False,
)


def test_defaults_are_the_documented_ones():
    hp = dataclasses.asdict(Hyperparams())
    assert {name: hp[name] for name in DOCUMENTED} == DOCUMENTED


RECIPES = dict(
    updated=dict(vocab_size=32000, maxlen=100, batch_size=128, lr=0.0003, beta_2=0.999)
    | dict(epsilon=1e-8, dropout_rate=0.3, ffn_units=2048, output_projection=False, beam=1),
    paper=dict(vocab_size=32000, beta_2=0.98, epsilon=1e-9, dropout_rate=0.1, ffn_units=2048)
    | dict(output_projection=True, dropout_on="both", beam=4, alpha=0.6, average=5),
    tiny=dict(hidden_units=128, ffn_units=256, num_blocks=4, num_heads=4),
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_are_the_published_ones(recipe):
    hp = dataclasses.asdict(with_recipe(dict(recipe=recipe)))
    assert {name: hp[name] for name in RECIPES[recipe]} == RECIPES[recipe]
    common = dict(tokens="pieces", shared=True, masks="ids", sinusoid=True, paired=True)
    assert {name: hp[name] for name in common} == common
    assert not hp["relu_projections"]


def test_a_flag_goes_over_its_recipe():
    hp = with_recipe(dict(recipe="tiny", hidden_units=64, lr=0.0, warmup_steps=1000))
    assert hp.hidden_units == 64 and hp.num_blocks == 4
    assert hp.peak_lr == (64 * hp.warmup_steps) ** -0.5


@pytest.mark.parametrize("script", ["prepro.py", "train.py", "eval.py", "translate.py"])
def test_help_names_every_field_and_does_not_wait_for_tensorflow(script):
    command = [sys.executable, "-X", "importtime", script, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for field in dataclasses.fields(Hyperparams):
        assert f"--{field.name} " in done.stdout
    assert "argparse" in done.stderr  # the list of imports is there
    assert "tensorflow" not in done.stderr and "keras" not in done.stderr


@pytest.mark.parametrize(
    "values, message",
    [
        (dict(hidden_units=10, num_heads=4), "hidden_units 10 is not a multiple of num_heads 4"),
        (dict(maxlen=0), "maxlen is 0"),
        (dict(batch_size=-1), "batch_size is -1"),
        (dict(dropout_rate=1.0), "dropout_rate is 1.0"),
        (dict(lr=float("nan")), "lr is nan"),
        (dict(source_lang="en"), "source_lang and target_lang are both en"),
        (dict(source_lang="../de"), "../de is the name of a language"),
        (dict(recipe="lavish"), "choose one of legacy, updated, paper, tiny"),
        (dict(logdir=""), "logdir is empty"),
        (dict(source_dev="val.de"), "give both sides, or none"),
        (dict(patience=3), "patience needs a dev BLEU"),
        (dict(vocab_size=4), "vocab_size is 4"),
        (dict(shared=True), "shared is for pieces"),
        (dict(length_penalty="google"), "choose one of paper, ctranslate2"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(InputError, match=message):
        Hyperparams(**values)


NUMBERS = [field for field in dataclasses.fields(Hyperparams) if field.type in (int, float)]


@pytest.mark.parametrize("field", NUMBERS, ids=lambda field: field.name)
def test_each_number_has_its_bounds(field):
    low, kind = field.metadata["at_least"], field.type
    absurd = [-1, low - 1, -(10**30), 10**40] + ["1e300", "inf", "nan"] * (kind is float)
    for value in map(kind, absurd):
        with pytest.raises(InputError, match=f"^{field.name} is "):
            Hyperparams(**{field.name: value})
    assert low <= field.default < field.metadata["below"]


def test_a_boolean_is_true_or_false():
    done = run_script("train.py", sinusoid="maybe")
    assert done.returncode == 2 and "maybe is neither True nor False" in done.stderr


def test_what_is_saved_is_loaded(tmp_path):
    hp = Hyperparams(logdir=str(tmp_path), maxlen=25, lr=0.5, sinusoid=True)
    save_hparams(dataclasses.replace(hp, profile=3), {"de": "1", "en": "2"})  # of that run alone
    assert load_hparams({"logdir": str(tmp_path)}, trained=True) == (hp, {"de": "1", "en": "2"})

    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    loaded, _ = load_hparams({"logdir": str(moved), "num_epochs": 3}, trained=True)
    assert loaded == dataclasses.replace(hp, logdir=str(moved), num_epochs=3)


def test_a_flag_cannot_contradict_the_model(tmp_path):
    save_hparams(Hyperparams(logdir=str(tmp_path), maxlen=25), {"de": "1"})
    assert load_hparams({"logdir": str(tmp_path), "maxlen": 25}, trained=True)[0].maxlen == 25
    with pytest.raises(InputError, match="trained with --maxlen 25, not 10"):
        load_hparams({"logdir": str(tmp_path), "maxlen": 10}, trained=True)


@pytest.mark.parametrize("name", ["source_train", "batch_size", "batch_tokens", "seed"])
def test_an_epoch_that_has_begun_keeps_its_batches(tmp_path, name):
    save_hparams(Hyperparams(logdir=str(tmp_path)), {"de": "1"})
    flags = {"logdir": str(tmp_path), name: "x" if name == "source_train" else 64}
    with pytest.raises(InputError, match=f"--{name} .*: leave the flag out until its epoch is"):
        load_hparams(flags, trained=True, within_epoch=True)
    hp, _ = load_hparams(flags, trained=True)
    assert getattr(hp, name) == flags[name]


def test_what_is_left_of_a_model_that_is_gone_binds_nobody(tmp_path):
    save_hparams(Hyperparams(logdir=str(tmp_path), maxlen=25), {"de": "1"})
    hp, trained_with = load_hparams({"logdir": str(tmp_path)}, trained=False)
    assert hp.maxlen == 10 and trained_with == {}


@pytest.mark.parametrize(
    "damage",
    [
        lambda saved: "{",
        lambda saved: "[]",
        lambda saved: json.dumps(saved | {"maxlen": "ten"}),
        lambda saved: json.dumps(saved | {"maxlen": 15.0}),
        lambda saved: json.dumps(saved | {"maxlen": 0}),
        lambda saved: json.dumps(saved | {"num_epochs": "auto"}),
        lambda saved: json.dumps(saved | {"warmup_steps": "auto"}),
        lambda saved: json.dumps(saved | {"sinusoid": "false"}),
        lambda saved: json.dumps(saved | {"heads": 8}),
        lambda saved: json.dumps({k: v for k, v in saved.items() if k != "vocab_sha256"}),
        lambda saved: json.dumps(saved | {"vocab_sha256": {}}),
        lambda saved: json.dumps(saved | {"vocab_sha256": [1]}),
        lambda saved: "[" * 100_000,
    ],
)
def test_a_damaged_file_is_named(tmp_path, damage):
    save_hparams(Hyperparams(logdir=str(tmp_path)), {"de": "1"})
    path = hparams_path(tmp_path)
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(InputError, match="hparams.json: not hyperparameters of this project"):
        load_hparams({"logdir": str(tmp_path)}, trained=True)


# Files ---------------------------------------------------------------------------


def test_a_file_is_written_whole_or_not_at_all(tmp_path):
    path, other = tmp_path / "out", tmp_path / "out.tmp"
    path.write_text("old")
    other.write_text("somebody's own")
    with pytest.raises(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with whole_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new" and other.read_text() == "somebody's own"
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_what_a_name_leads_to_is_written(tmp_path):
    target, link, folder = (tmp_path / name for name in ("target", "link", "folder"))
    link.symlink_to(target)
    folder.mkdir()
    write_whole(link, "text")
    assert link.is_symlink() and target.read_text() == "text"
    with pytest.raises(InputError, match="folder: a folder is there"):
        write_whole(folder, "text")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, "text")
    assert os.read(reader, 9) == b"text" and pipe.is_fifo()
    os.close(reader)


def test_standard_output_by_its_name(tmp_path):
    script = "from hparams import write_whole; write_whole('/dev/stdout', 'text')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "text" and not done.stderr
