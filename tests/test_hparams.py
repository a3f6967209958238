"""Hyperparameters: the defaults of the 2017 code, the flags, and hparams.json."""

import dataclasses
import json
import re
import subprocess
import sys

import pytest
import tensorflow as tf

import hparams
from hparams import FIELDS, Hyperparams, hparams_path, load_hparams, make_hparams, save_hparams
from processes import ROOT
from support.errors import InputError
from support.flags import VERSION, parse_flags
from training.optimizer import learning_rate
from translate import TranslateFlags

# The fields of each recipe that were published; legacy is the 2017 code.
RECIPES = dict(
    legacy=dict(batch_size=32, lr=0.0001, maxlen=10, min_cnt=20, hidden_units=512, num_blocks=6)
    | dict(num_epochs=20, num_heads=8, dropout_rate=0.1, sinusoid=False, beta_2=0.98, epsilon=1e-8)
    | dict(label_smoothing=0.1, schedule="constant", architecture="2017", tied_embeddings=False)
    | dict(residual=True, causality=True, normalization="post", attention_score="scaled_dot")
    | dict(logdir="logdir", source_train="corpora/train.tags.de-en.de", beam=1),
    updated=dict(vocab_size=32000, maxlen=100, batch_size=128, lr=0.0003, beta_2=0.999)
    | dict(epsilon=1e-8, dropout_rate=0.3, ffn_units=2048, warmup_steps=4000, beam=1)
    | dict(architecture="2019", label_smoothing=0.1, positions="paired_sinusoid"),
    paper=dict(vocab_size=32000, beta_2=0.98, epsilon=1e-9, dropout_rate=0.1, ffn_units=2048)
    | dict(architecture="paper", beam=4, alpha=0.6, average_checkpoints=5, tokenizer="bpe"),
    tiny=dict(hidden_units=128, ffn_units=256, num_blocks=4, positions="t5", normalization="pre")
    | dict(architecture="modern", tokenizer="bpe", tied_embeddings=True),
    small=dict(hidden_units=256, ffn_units=1024, num_blocks=6, decoder_blocks=3, positions="t5"),
    low_resource=dict(positions="t5", normalization="pre", consistency=5.0, hidden_units=128),
    rnn=dict(model="rnn", hidden_units=256, cell="gru"),
    rnn_attention=dict(model="rnn_attention", hidden_units=256),
)


@pytest.mark.parametrize("recipe", hparams.RECIPES)
def test_recipes_are_the_published_ones(recipe):
    hp = make_hparams(dict(recipe=recipe))
    fields = dataclasses.asdict(hp)
    assert {name: fields[name] for name in RECIPES[recipe]} == RECIPES[recipe]
    assert hp.keep_checkpoints >= hp.average_checkpoints
    assert hp.has_one_vocab == hp.tied_embeddings == (recipe != "legacy")
    assert hp.pad_to == (10 if recipe == "legacy" else None)


def test_a_flag_overrides_its_recipe():
    hp = make_hparams(dict(recipe="tiny", hidden_units=64, lr=0.0, warmup_steps=1000))
    assert hp.hidden_units == 64 and hp.num_blocks == 4
    assert learning_rate(hp, 1000, 0.1, 10000) == (64 * 1000) ** -0.5


@pytest.mark.parametrize(
    "flags, steps, total, expected",
    [
        (dict(), (1, 500), 1000, [1.0, 1.0]),
        (dict(schedule="paper", warmup_steps=100), (1, 50, 100, 400), 9, [0.01, 0.5, 1.0, 0.5]),
        (dict(schedule="linear"), (10, 100, 550, 990, 1000), 1000, [0.1, 1.0, 0.5, 1 / 90, 0.01]),
        (dict(schedule="linear"), (550,), 2000, [1450 / 1800]),  # a later end raises it
        (dict(schedule="linear"), (1000, 20_000), 20_000, [1.0, 0.01]),  # 1000 steps at most
        (dict(schedule="linear", warmup_steps=4), (1, 2, 4, 6), 4, [0.25, 0.5, 0.01, 0.01]),
        (dict(schedule="linear"), (1,), 1, [0.01]),
    ],
)
def test_the_learning_rate_is_that_of_the_schedule(flags, steps, total, expected):
    hp = make_hparams(dict(lr=1.0) | flags)
    rates = [learning_rate(hp, step, step / total, total) for step in steps]
    assert rates == pytest.approx(expected)


def test_more_steps_than_planned_do_not_raise_the_peak():
    """On a fast machine, `--minutes` has many steps in little time."""
    hp = make_hparams(dict(lr=1.0, schedule="linear", minutes=1.0))
    assert learning_rate(hp, 5000, 0.01, 2500) == 1.0


# Flags --------------------------------------------------------------


@pytest.mark.parametrize("script", ["prepro", "train", "eval", "translate", "serve", "export"])
def test_help_names_the_flags_and_does_not_wait_for_tensorflow(script):
    command = [sys.executable, "-X", "importtime", f"{script}.py", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "argparse" in done.stderr  # importtime has worked
    assert "tensorflow" not in done.stderr and "keras" not in done.stderr
    text, names, default = " ".join(done.stdout.split()), hparams.READER_FLAGS, "the model's"
    if script in ("prepro", "train"):
        names, default = [name for name, field in FIELDS.items() if field.metadata["group"]], 1
    shown = {name for name in FIELDS if re.search(rf"--{name}[ ,]", text)}
    assert shown >= {*names} and ("num_blocks" in shown) == (default == 1)
    assert not shown & {"beta_2", "epsilon"}
    assert f"1: greedy search (default: {default})" in text


def parse(monkeypatch, *words, names=None):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    return parse_flags("", TranslateFlags, hparams=Hyperparams, names=names)


def test_flags_are_read_from_files(tmp_path, monkeypatch):
    path = tmp_path / "my.flags"
    path.write_text("\ufeff--recipe tiny  # isn't large\n--results 'my results#1'\n\n--maxlen=25")
    given = parse(monkeypatch, "--seed", "3", f"@{path}", "--maxlen", "30", "--no-sinusoid")
    assert given == dict(seed=3, recipe="tiny", results="my results#1", maxlen=30, sinusoid=False)


def test_dashes_are_underscores(tmp_path, monkeypatch):
    """And the file to translate needs no flag."""
    (tmp_path / "my-flags").write_text("--vocab-size=5 --logdir a-b=c-d --no-fold_case")
    path = f"{tmp_path}/my-flags"
    words = f"--no_tied_embeddings --min-cnt -0 @{path} --fold-case {path}".split()
    given = dict(tied_embeddings=False, min_cnt=0, vocab_size=5, logdir="a-b=c-d", fold_case=True)
    assert parse(monkeypatch, *words) == given | dict(source=path)


def test_the_version(monkeypatch, capsys):
    with pytest.raises(SystemExit, match="0"):
        parse(monkeypatch, "--maxlen", "none", "--version")
    printed = capsys.readouterr().out
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert f"Transformer {VERSION}, keras 3." in printed and f"\n## {VERSION} (" in changes
    assert re.search(rf"tensorflow(_cpu)? {tf.__version__}, Python 3\..* bfloat16$", printed)


def test_home_is_expanded_in_paths_that_no_shell_has_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my.flags").write_text("--results ~/results --preprocessed $HOME/a,~/b")
    given = parse(monkeypatch, "--logdir=~/run", f"@{tmp_path}/my.flags")
    paths = dict(logdir="{}/run", results="{}/results", preprocessed="{0}/a,{0}/b")
    assert given == {name: path.format(tmp_path) for name, path in paths.items()}


@pytest.mark.parametrize(
    "words, problem",
    [
        (["--logdir"], "argument --logdir: expected one argument"),
        (["--beams", "5"], "there is no flag --beams (did you mean --beam?)"),
        (["--learning-rate=1"], "there is no flag --learning-rate (did you mean --lr?)"),
        (["--save-dir", "x"], "there is no flag --save-dir (did you mean --logdir?)"),
        (["--src", "x"], "there is no flag --src (did you mean --source or --source_train?)"),
        (["--epochs", "5"], "there is no flag --epochs (did you mean --num_epochs?)"),
        (["no.txt"], "no.txt: no such file or directory. Check --source"),
        (["--sinusoid", "my.flags", "maybe"], "there is no flag maybe. `python train.py --help`"),
        (["--maxlen", "ten"], "invalid int value: 'ten'"),
        (["--maxlen", "0"], "maxlen is 0. It must be at least 1 and below 4097"),
        (["--lr", "nan"], "lr is nan"),
        (["--recipe", "lavish"], "Choose one of legacy, updated, paper, tiny, small"),
        (["--score", "train.py,no.de"], "no.de: no such file or directory. Check --score"),
        (["@missing.flags"], "No such file or directory: 'missing.flags'"),
        (["@my.flags"], "No closing quotation"),
    ],
)
def test_wrong_flags_are_refused_in_one_line(tmp_path, monkeypatch, capsys, words, problem):
    (tmp_path / "my.flags").write_text("--results 'my results")
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        parse(monkeypatch, *words)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train.py: ") and problem in line


def test_each_number_has_its_bounds():
    for field in FIELDS.values():
        if field.type in (int, float):
            low, kind = field.metadata["low"], field.type
            for value in [-1, low - 1, 10**40] + ["1e300", "inf", "nan"] * (kind is float):
                with pytest.raises(InputError, match=f"^{field.name} is "):
                    Hyperparams(**{field.name: kind(value)})
            assert low <= field.default < field.metadata["high"]


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(hidden_units=10, num_heads=4), "num_heads must be a divisor of hidden_units"),
        (dict(hidden_units=9, num_heads=1, positions="complex"), "hidden_units must be even for"),
        (dict(hidden_units=6, num_heads=2, positions="rotary"), "head_units must be even for"),
        (dict(recipe="rnn", hidden_units=7), "hidden_units must be even, for two directions"),
        (dict(recipe="rnn", optimizer="muon"), "optimizer muon is for the Transformer"),
        (dict(positions="rotary", attention_score="dot"), "needs --attention_score scaled_dot"),
        (dict(normalization="pre"), "normalization pre needs masks from ids"),
        (dict(joint_vocab=False), "joint_vocab needs --tokenizer bpe"),
        (dict(fold_case=True), "fold_case needs --tokenizer bpe"),
        (dict(symbols=">>de<<"), "symbols needs --tokenizer bpe"),
        (dict(tied_embeddings=True), "tied_embeddings needs one vocabulary of subwords"),
        (dict(bpe_dropout=0.1, tokenizer="bpe"), "bpe_dropout needs positions without an end"),
        (dict(source_train="a", target_train="a"), "and target_train have the same file"),
        (dict(source_dev="val.de"), "give both source_dev and target_dev, or neither"),
        (dict(patience=3), "patience and dev_steps need --source_dev"),
        (dict(dev_steps=3), "patience and dev_steps need --source_dev"),
        (dict(recipe="tiny", temperature=1.0), "temperature draws translations with --beam 1"),
        (dict(temperature=1e-39), "is 0 or at least 0.001"),
        (dict(minutes=1.0, max_steps=3), "give minutes or max_steps"),
        (dict(best=True, average_checkpoints=2), "best needs --average_checkpoints 1"),
        (dict(source_lang="../de"), "are names of files, without a slash"),
        (dict(source_lang="en"), "source_lang and target_lang must differ"),
        (dict(logdir=""), "logdir is ''"),
        (dict(logdir="a\x1b"), "without control characters"),
    ],
)
def test_contradictions_are_named(flags, message):
    with pytest.raises(InputError, match=message):
        make_hparams(flags)


# Saved hyperparameters ----------------------------------------------


def save(folder, **fields):
    hp = dataclasses.replace(Hyperparams(logdir=str(folder)), **fields)
    save_hparams(hp)
    return hp


def test_saved_hyperparameters_are_loaded(tmp_path):
    hp = save(tmp_path, maxlen=25, lr=0.5, positions="t5", results="elsewhere", preprocessed="p")
    hp = dataclasses.replace(hp, results="results", preprocessed="preprocessed")  # not saved
    assert load_hparams({"logdir": str(tmp_path)}) == hp
    path = hparams_path(tmp_path)  # from someone else: it names no folder to write to
    folders = dict(logdir="/x", results="/x", preprocessed="/x")
    path.write_text(json.dumps(json.loads(path.read_text()) | folders))
    assert load_hparams({"logdir": str(tmp_path)}) == hp
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    loaded = load_hparams({"logdir": str(moved), "num_epochs": 3})
    assert loaded == dataclasses.replace(hp, logdir=str(moved), num_epochs=3)


@pytest.mark.parametrize(
    "saved, given, expected",
    [
        (dict(best=True), dict(average_checkpoints=2), dict(best=False, average_checkpoints=2)),
        (dict(average_checkpoints=5), dict(best=True), dict(best=True, average_checkpoints=1)),
        (dict(minutes=5.0), dict(num_epochs=3), dict(minutes=0.0, num_epochs=3)),
        (dict(minutes=5.0), dict(max_steps=3), dict(minutes=0.0, max_steps=3)),
        (dict(max_steps=3), dict(num_epochs=3), dict(max_steps=0, num_epochs=3)),
        (dict(max_steps=3), dict(minutes=5.0), dict(minutes=5.0, max_steps=0)),
        (dict(batch_tokens=9), dict(batch_size=3), dict(batch_tokens=0, batch_size=3)),
        (None, dict(sinusoid=True), dict(positions="sinusoid")),
        (None, dict(recipe="tiny", sinusoid=True), dict(positions="sinusoid")),
        (None, dict(recipe="tiny", batch_size=9), dict(batch_tokens=0)),
        (None, dict(recipe="tiny", source_lang="en"), dict(source_lang="en", target_lang="en")),
    ],
)
def test_a_flag_replaces_one_of_the_model_or_recipe(tmp_path, saved, given, expected):
    if saved:
        save(tmp_path, **saved)
    hp = load_hparams(dict(logdir=str(tmp_path)) | given) if saved else make_hparams(given)
    assert {name: getattr(hp, name) for name in expected} == expected


def test_the_languages_of_a_model_that_a_training_starts_from():
    given, words = dict(source_lang="en", target_lang="de"), make_hparams({})
    assert make_hparams(given, make_hparams(dict(recipe="tiny"))).source_lang == "en"
    with pytest.raises(InputError, match="was trained with --source_lang de, not en"):
        make_hparams(given, words)


def test_a_flag_cannot_contradict_the_model(tmp_path):
    save(tmp_path, maxlen=25)
    assert load_hparams({"logdir": str(tmp_path), "maxlen": 25}).maxlen == 25
    with pytest.raises(InputError, match="trained with --maxlen 25, not 10"):
        load_hparams({"logdir": str(tmp_path), "maxlen": 10})


def test_what_a_model_depends_on_is_fixed():
    fixed = {name for name, field in FIELDS.items() if field.metadata["fixed"]}
    assert {name for name, field in FIELDS.items() if field.metadata["group"] == "model"} <= fixed
    assert {"source_lang", "tokenizer", "min_cnt", "vocab_size", "fold_case", "optimizer"} <= fixed
    assert not {"source_train", "batch_size", "lr", "logdir", "beam"} & fixed


@pytest.mark.parametrize(
    "change",
    ["{", "[]", {"maxlen": "ten"}, {"maxlen": 15.0}, {"maxlen": 0}, {"heads": 8}]
    + [{"sinusoid": "false"}, {"source_lang": "../x"}, {"source_lang": "de\x1b[2J"}]
    + [{"\x1b[2J": 1}, {"recipe": "\x9b2J"}],
)
def test_a_damaged_file_is_named(tmp_path, change):
    save(tmp_path)
    path = hparams_path(tmp_path)
    saved = json.loads(path.read_text())
    path.write_text(change if isinstance(change, str) else json.dumps(saved | change))
    problem = "hparams.json: not hyperparameters of this project"
    with pytest.raises(InputError, match=problem) as raised:
        load_hparams({"logdir": str(tmp_path)})
    assert str(raised.value).isprintable()
