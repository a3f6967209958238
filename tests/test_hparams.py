"""Hyperparameters: the defaults of the 2017 code, the flags, and hparams.json."""

import dataclasses
import json
import subprocess
import sys

import pytest

import choices
from hparams import (
    FIELDS,
    READER_FLAGS,
    Hyperparams,
    hparams_path,
    load_hparams,
    make_hparams,
    save_hparams,
)
from hparams import RECIPES as ALL_RECIPES
from optimizer import learning_rate
from processes import ROOT
from runtime.errors import InputError
from runtime.flags import parse_flags
from translate import TranslateFlags

DEFAULTS_2017 = dict(
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
    beta_2=0.98,
    epsilon=1e-8,
    label_smoothing=0.1,
    schedule="constant",
    dropout_on="attention",
    mask_from="activations",
    relu_projections=True,
    output_projection=False,
    tied_embeddings=False,
    residual=True,
    causality=True,
    normalization="post",
    attention_score="scaled_dot",
    beam=1,
    average_checkpoints=1,
    keep_checkpoints=5,
)


def test_defaults_are_those_of_2017():
    hp = dataclasses.asdict(Hyperparams())
    assert {name: hp[name] for name in DEFAULTS_2017} == DEFAULTS_2017


@pytest.mark.parametrize("recipe", ALL_RECIPES)
def test_a_recipe_keeps_the_checkpoints_that_it_averages(recipe):
    hp = make_hparams(dict(recipe=recipe))
    assert hp.keep_checkpoints >= hp.average_checkpoints


RECIPES = dict(
    updated=dict(vocab_size=32000, maxlen=100, batch_size=128, lr=0.0003, beta_2=0.999)
    | dict(epsilon=1e-8, dropout_rate=0.3, ffn_units=2048, output_projection=False, beam=1)
    | dict(warmup_steps=4000, dropout_on="attention", pad_logit=False, label_smoothing=0.1),
    paper=dict(vocab_size=32000, beta_2=0.98, epsilon=1e-9, dropout_rate=0.1, ffn_units=2048)
    | dict(output_projection=True, dropout_on="both", beam=4, alpha=0.6, average_checkpoints=5),
    tiny=dict(hidden_units=128, ffn_units=256, num_blocks=4, positions="t5", normalization="pre"),
    small=dict(hidden_units=256, ffn_units=1024, num_blocks=6, decoder_blocks=3, positions="t5"),
    low_resource=dict(positions="t5", normalization="pre", consistency=5.0, hidden_units=128),
)


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipes_are_the_published_ones(recipe):
    hp = dataclasses.asdict(make_hparams(dict(recipe=recipe)))
    assert {name: hp[name] for name in RECIPES[recipe]} == RECIPES[recipe]
    common = dict(tokenizer="bpe", tied_embeddings=True, mask_from="ids")
    common |= dict(positions=RECIPES[recipe].get("positions", "paired_sinusoid"))
    assert {name: hp[name] for name in common} == common
    assert not hp["relu_projections"]


def test_a_flag_overrides_its_recipe():
    hp = make_hparams(dict(recipe="tiny", hidden_units=64, lr=0.0, warmup_steps=1000))
    assert hp.hidden_units == 64 and hp.num_blocks == 4
    assert learning_rate(hp, 1000, 0.1, 10000) == (64 * 1000) ** -0.5


def rates(steps, total, **flags):
    hp = make_hparams(dict(lr=1.0) | flags)
    return [learning_rate(hp, step, step / total, total) for step in steps]


@pytest.mark.parametrize(
    "flags, steps, total, expected",
    [
        (dict(), (1, 500), 1000, [1.0, 1.0]),
        (dict(schedule="paper", warmup_steps=100), (1, 50, 100, 400), 9, [0.01, 0.5, 1.0, 0.5]),
        (dict(schedule="linear"), (10, 100, 550, 990, 1000), 1000, [0.1, 1.0, 0.5, 1 / 90, 0.01]),
        (dict(schedule="linear"), (1000, 20_000), 20_000, [1.0, 0.01]),  # 1000 steps at most
        (dict(schedule="linear", warmup_steps=4), (1, 2, 4, 6), 4, [0.25, 0.5, 0.01, 0.01]),
        (dict(schedule="linear"), (1,), 1, [0.01]),
    ],
)
def test_the_learning_rate_is_that_of_the_schedule(flags, steps, total, expected):
    assert rates(steps, total, **flags) == pytest.approx(expected)


def test_a_later_end_raises_the_learning_rate():
    assert rates([800], 1000, schedule="linear") < rates([800], 2000, schedule="linear")


# Flags ---------------------------------------------------------------------------


def help_of(script, *words):
    command = [sys.executable, "-X", "importtime", script, *words, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and "argparse" in done.stderr  # importtime has worked
    assert "tensorflow" not in done.stderr and "keras" not in done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("script", ["prepro.py", "train.py"])
def test_help_names_every_field_and_does_not_wait_for_tensorflow(script):
    text = help_of(script)
    for name, field in FIELDS.items():
        assert (f"--{name} " in text or f"--{name}," in text) == bool(field.metadata["group"])
    assert "1: greedy search (default: 1)" in text
    titles = ["model:", "data:", "training:", "decoding:", "checkpoints:"]
    assert [text.index(title) for title in titles] == sorted(map(text.index, titles))


@pytest.mark.parametrize("script", ["eval.py", "translate.py", "serve.py", "export.py"])
def test_a_script_that_reads_a_model_has_the_flags_of_a_model(script):
    text = help_of(script)
    assert all(f"--{name}" in text for name in READER_FLAGS) and "--num_blocks" not in text
    assert "1: greedy search (default: the model's)" in text


def parse(monkeypatch, *words, names=None):
    monkeypatch.setattr(sys, "argv", ["train.py", *words])
    return parse_flags("", TranslateFlags, hparams=Hyperparams, names=names)


def test_flags_are_read_from_files(tmp_path, monkeypatch):
    path = tmp_path / "my.flags"
    path.write_text("--recipe tiny  # isn't large\n--results 'my results#1'\n\n--maxlen=25")
    given = parse(monkeypatch, "--seed", "3", f"@{path}", "--maxlen", "30", "--no-sinusoid")
    assert given == dict(seed=3, recipe="tiny", results="my results#1", maxlen=30, sinusoid=False)


def test_home_is_expanded_in_paths_that_no_shell_has_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my.flags").write_text("--results ~/results --preprocessed $HOME/a")
    given = parse(monkeypatch, "--logdir=~/run", f"@{tmp_path}/my.flags")
    paths = dict(logdir="run", results="results", preprocessed="a")
    assert given == {name: f"{tmp_path}/{end}" for name, end in paths.items()}


@pytest.mark.parametrize(
    "words, problem",
    [
        (["--logdir"], "argument --logdir: expected one argument"),
        (["--max_len=25"], "there is no flag --max_len (did you mean --maxlen?)"),
        (["--learning-rate=1"], "there is no flag --learning-rate (did you mean --lr?)"),
        (["--beam_size", "5"], "there is no flag --beam_size (did you mean --beam?)"),
        (["--sinusoid", "maybe"], "'maybe' follows no flag"),
        (["--maxlen", "ten"], "invalid int value: 'ten'"),
        (["--maxlen", "0"], "maxlen is 0. It must be at least 1 and below 4097"),
        (["--lr", "nan"], "lr is nan"),
        (["--recipe", "lavish"], "Choose one of legacy, updated, paper, tiny, small"),
        (["--source_train", "missing.de"], "missing.de: no such file or directory"),
        (["--source_train", "train.py,missing.de"], "missing.de: no such file or directory"),
        (["--score", "missing.de"], "missing.de: no such file or directory. Check --score"),
        (["--nbest", "2", "--split"], "split is for paragraphs"),
        (["--prefix", "train.py"], "score and prefix need a file. Give --source"),
        (["--attention", "a.jpg"], "attention a.jpg: choose a name that ends in .png"),
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


NUMBERS = [field for field in FIELDS.values() if field.type in (int, float)]


@pytest.mark.parametrize("field", NUMBERS, ids=lambda field: field.name)
def test_each_number_has_its_bounds(field):
    low, kind = field.metadata["low"], field.type
    absurd = [-1, low - 1, -(10**30), 10**40] + ["1e300", "inf", "nan"] * (kind is float)
    for value in map(kind, absurd):
        with pytest.raises(InputError, match=f"^{field.name} is "):
            Hyperparams(**{field.name: value})
    assert low <= field.default < field.metadata["high"]


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(hidden_units=10, num_heads=4), "hidden_units 10 is not a multiple of num_heads 4"),
        (dict(hidden_units=9, num_heads=1, positions="complex"), "hidden_units must be even for"),
        (dict(hidden_units=6, num_heads=2, positions="rotary"), "head_units must be even for"),
        (dict(recipe="rnn", hidden_units=7), "hidden_units must be even for two directions"),
        (dict(recipe="rnn", causality=False), "causality has an effect only with"),
        (dict(recipe="rnn", mask_from="none"), "model rnn needs --mask_from ids"),
        (dict(recipe="rnn", optimizer="muon"), "optimizer muon is for the Transformer"),
        (dict(positions="rotary", attention_score="dot"), "needs --attention_score scaled_dot"),
        (dict(normalization="pre"), "normalization pre needs --mask_from ids"),
        (dict(attention_dropout=0.1), "attention_dropout needs --dropout_on sublayers"),
        (dict(output_bias=True), "output_bias needs --tied_embeddings"),
        (dict(sinusoid=True, positions="t5"), "sinusoid contradicts positions"),
        (dict(joint_vocab=False), "joint_vocab needs --tokenizer bpe"),
        (dict(fold_case=True), "fold_case needs --tokenizer bpe"),
        (dict(symbols=">>de<<"), "symbols needs --tokenizer bpe"),
        (dict(vocab_size=0), "vocab_size 0 needs --tokenizer bpe"),
        (dict(tied_embeddings=True), "tied_embeddings needs one vocabulary of subwords"),
        (dict(recipe="tiny", joint_vocab=False), "tied_embeddings needs one vocabulary"),
        (dict(bpe_dropout=0.1, tokenizer="bpe"), "bpe_dropout needs positions without an end"),
        (dict(source_dev="val.de"), "give source_dev and target_dev, or neither"),
        (dict(patience=3), "patience and dev_steps need --source_dev"),
        (dict(dev_steps=3), "patience and dev_steps need --source_dev"),
        (dict(recipe="tiny", temperature=1.0), "temperature draws translations with --beam 1"),
        (dict(temperature=1e-39), "is 0 or at least 0.001"),
        (dict(minutes=1.0, max_steps=3), "give minutes or max_steps"),
        (dict(best=True, average_checkpoints=2), "best uses one checkpoint"),
        (dict(source_lang="../de"), "are names of files, without a slash"),
        (dict(source_lang="en"), "source_lang and target_lang must differ"),
        (dict(logdir=""), "logdir is ''"),
        (dict(logdir="a\x1b"), "without control characters"),
    ],
)
def test_contradictions_are_named(flags, message):
    with pytest.raises(InputError, match=message):
        make_hparams(flags)


def test_what_flags_imply():
    assert make_hparams(dict(sinusoid=True)).positions == "sinusoid"
    assert make_hparams(dict(recipe="tiny", sinusoid=True)).positions == "sinusoid"
    assert make_hparams(dict(recipe="tiny", batch_size=9)).batch_tokens == 0
    assert make_hparams(dict(recipe="tiny", source_lang="en")).target_lang == "en"


def test_each_choice_can_be_loaded():
    for table in (choices.POSITIONS, choices.ATTENTION_SCORES, choices.MODELS, choices.OPTIMIZERS):
        assert all(callable(row.load()) for row in table.values())


# Saved hyperparameters -----------------------------------------------------------


def save(folder, **fields):
    hp = dataclasses.replace(Hyperparams(logdir=str(folder)), **fields)
    save_hparams(hp)
    return hp


def test_saved_hyperparameters_are_loaded(tmp_path):
    hp = save(tmp_path, maxlen=25, lr=0.5, positions="t5", results="elsewhere", preprocessed="p")
    hp = dataclasses.replace(hp, results="results", preprocessed="preprocessed")  # not saved
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
        (dict(max_steps=3), dict(minutes=5.0), dict(minutes=5.0, max_steps=0)),
        (dict(batch_tokens=9), dict(batch_size=3), dict(batch_tokens=0, batch_size=3)),
    ],
)
def test_a_flag_replaces_one_of_the_model_that_it_excludes(tmp_path, saved, given, expected):
    save(tmp_path, **saved)
    hp = load_hparams(dict(logdir=str(tmp_path)) | given)
    assert {name: getattr(hp, name) for name in expected} == expected


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
    + [{"sinusoid": "false"}, {"source_lang": "../x"}],
)
def test_a_damaged_file_is_named(tmp_path, change):
    save(tmp_path)
    path = hparams_path(tmp_path)
    saved = json.loads(path.read_text())
    path.write_text(change if isinstance(change, str) else json.dumps(saved | change))
    with pytest.raises(InputError, match="hparams.json: not hyperparameters of this project"):
        load_hparams({"logdir": str(tmp_path)})


def test_the_file_of_a_stranger_names_no_folder_to_write_to(tmp_path):
    save(tmp_path)
    path = hparams_path(tmp_path)
    folders = dict(logdir="/x", results="/x", preprocessed="/x")
    path.write_text(json.dumps(json.loads(path.read_text()) | folders))
    hp = load_hparams({"logdir": str(tmp_path)})
    assert (hp.logdir, hp.results, hp.preprocessed) == (str(tmp_path), "results", "preprocessed")
