"""Hyperparameters: the defaults of the 2017 code, the flags, and hparams.json."""

import dataclasses
import importlib
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

import choices
from hparams import RECIPES as ALL_RECIPES
from hparams import (
    Hyperparams,
    check_same_batches,
    hparams_path,
    load_hparams,
    make_hparams,
    read_hparams,
    save_hparams,
)
from processes import ROOT, run_script
from runtime.cli import parse_flags
from runtime.errors import InputError
from runtime.flags import NONE, Choice, Condition, Flags

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
    warmup_steps=0,
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


def test_average_checkpoints_replaces_the_best_one_of_the_model(tmp_path):
    save_hparams(Hyperparams(logdir=str(tmp_path), best=True, vocab_sha256={"en": "digest"}))
    logdir = dict(logdir=str(tmp_path))
    for flags, best in (({}, True), (dict(average_checkpoints=2), False)):
        hp = load_hparams(logdir | flags)
        assert (hp.best, hp.average_checkpoints) == (best, flags.get("average_checkpoints", 1))


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
    assert hp.peak_lr == (64 * hp.warmup_steps) ** -0.5


@pytest.mark.parametrize("script", ["prepro.py", "train.py", "eval.py", "translate.py"])
def test_help_names_every_field_and_does_not_wait_for_tensorflow(script):
    command = [sys.executable, "-X", "importtime", script, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for field in Hyperparams.declared():
        assert f"--{field.name} " in done.stdout
    assert "argparse" in done.stderr  # importtime has worked
    assert "tensorflow" not in done.stderr and "keras" not in done.stderr


def help_of(*words):
    command = [sys.executable, *words, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split())


def test_help_shows_the_defaults_that_apply(tmp_path):
    assert "1: greedy search (default: the model's)" in help_of("eval.py", f"--logdir={tmp_path}")
    hp = make_hparams(dict(recipe="tiny", logdir=str(tmp_path), beam=7, vocab_size=300))
    fields = dict(num_epochs=40, warmup_steps=100, decay_steps=0, vocab_sha256={"bpe": "1"})
    save_hparams(dataclasses.replace(hp, **fields))
    assert "1: greedy search (default: 7)" in help_of("eval.py", f"--logdir={tmp_path}")
    assert "1: greedy search (default: 1)" in help_of("train.py")


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_a_flag_without_its_value_is_one_line(script):
    command = [sys.executable, script, "--logdir"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith(f"{script}: argument --logdir: expected one argument. ")
    assert done.stderr.count("\n") == 1


def test_help_groups_the_flags():
    text = help_of("translate.py")
    titles = ["this script:", "data:", "model:", "training:", "decoding:"]
    assert all(title in text for title in titles)
    assert text.index("decoding:") < text.index("--beam ") < text.index("--best ")


def test_a_boolean_flag_has_a_negation(monkeypatch):
    for word, value in (("--no-sinusoid", False), ("--sinusoid", True)):
        monkeypatch.setattr(sys, "argv", ["train.py", word])
        assert parse_flags("", dict, Hyperparams) == dict(sinusoid=value)
    monkeypatch.setattr(sys, "argv", ["train.py", "--sinusoid", "False"])
    assert parse_flags("", dict, Hyperparams) == dict(sinusoid=False)


@pytest.mark.parametrize(
    "values, message",
    [
        (dict(hidden_units=10, num_heads=4), "hidden_units 10 is not a multiple of num_heads 4"),
        (dict(maxlen=0), "maxlen is 0"),
        (dict(batch_size=-1), "batch_size is -1"),
        (dict(dropout_rate=1.0), "dropout_rate is 1.0"),
        (dict(lr=float("nan")), "lr is nan"),
        (dict(source_lang="en"), "source_lang and target_lang are both en"),
        (dict(source_lang="../de"), "source_lang ../de needs a name without a slash"),
        (dict(recipe="lavish"), "Choose one of legacy, updated, paper, tiny, small"),
        (dict(logdir=""), "logdir is empty"),
        (dict(source_dev="val.de"), "Give both, or none"),
        (dict(patience=3), "patience 3 needs a development set"),
        (dict(metric="chrf"), "metric chrf needs a development set"),
        (dict(vocab_size=4), "vocab_size is 4"),
        (dict(tied_embeddings=True), "tied_embeddings needs --tokenizer bpe"),
        (dict(temperature=1e-39), "needs at least 0.001. .* or search for the best one with 0"),
        (dict(length_penalty="google"), "Choose one of paper, ctranslate2"),
        (dict(attention_dropout=0.1), "attention_dropout 0.1 needs --dropout_on sublayers"),
        (dict(normalization="pre"), "normalization pre needs --mask_from ids"),
    ],
)
def test_values_out_of_range_are_named(values, message):
    with pytest.raises(InputError, match=message):
        Hyperparams(**values)


NUMBERS = [field for field in Hyperparams.declared() if field.type in (int, float)]


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


def test_flags_are_read_from_files(tmp_path, monkeypatch):
    path = tmp_path / "my.flags"
    path.write_text("--recipe tiny  # isn't large\n--results 'my results#1'\n\n--maxlen=25")
    monkeypatch.setattr(sys, "argv", ["train.py", "--seed", "3", f"@{path}", "--maxlen", "30"])
    expected = dict(seed=3, recipe="tiny", results="my results#1", maxlen=30)
    assert parse_flags("", dict, Hyperparams) == expected


@pytest.mark.parametrize(
    "content, problem",
    [
        (None, "no such file"),
        (b"--results 'my results", "No closing quotation"),
        (b"--results \xff", "invalid start byte"),
        (b"--max_len 25", "did you mean --maxlen"),
        (b"@{path}", "follows no flag"),
    ],
)
def test_a_bad_file_of_flags_is_refused_in_one_line(
    tmp_path, monkeypatch, capsys, content, problem
):
    path = tmp_path / "my.flags"
    if content:
        path.write_bytes(content)
    monkeypatch.setattr(sys, "argv", ["train.py", f"@{path}"])
    with pytest.raises(SystemExit, match="2"):
        parse_flags("", dict, Hyperparams)
    (line,) = capsys.readouterr().err.splitlines()
    assert problem in line


def test_saved_hyperparameters_are_loaded(tmp_path):
    hp = Hyperparams(logdir=str(tmp_path), maxlen=25, lr=0.5, positions="t5")
    hp = dataclasses.replace(hp, vocab_sha256={"de": "1", "en": "2"})
    save_hparams(hp)
    loaded = load_hparams({"logdir": str(tmp_path)})
    assert loaded == hp and loaded.vocab_sha256 == hp.vocab_sha256

    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    loaded = load_hparams({"logdir": str(moved), "num_epochs": 3})
    assert loaded == dataclasses.replace(hp, logdir=str(moved), num_epochs=3)


def test_a_flag_cannot_contradict_the_model(tmp_path):
    save_hparams(Hyperparams(logdir=str(tmp_path), maxlen=25, vocab_sha256={"de": "1"}))
    assert load_hparams({"logdir": str(tmp_path), "maxlen": 25}).maxlen == 25
    with pytest.raises(InputError, match="trained with --maxlen 25, not 10"):
        load_hparams({"logdir": str(tmp_path), "maxlen": 10})


@pytest.mark.parametrize(
    "name", ["source_train", "target_train", "batch_size", "batch_tokens", "accumulate", "seed"]
)
def test_an_epoch_in_progress_keeps_its_batches(tmp_path, name):
    save_hparams(Hyperparams(logdir=str(tmp_path), vocab_sha256={"de": "1"}))
    flags = {"logdir": str(tmp_path), name: "x" if name.endswith("_train") else 64}
    hp = load_hparams(flags)
    assert getattr(hp, name) == flags[name]
    with pytest.raises(InputError, match=f"--{name} .*. Leave the flag out until the epoch is"):
        check_same_batches(hp, read_hparams(tmp_path))


def test_what_a_model_or_an_epoch_depends_on_is_fixed():
    fixed = {field.name: field.metadata["fixed"] for field in Hyperparams.declared()}
    groups = {field.name: field.metadata["group"] for field in Hyperparams.declared()}
    assert {fixed[name] for name, group in groups.items() if group == "model"} == {"model"}
    assert {name for name in fixed if fixed[name] == "epoch"} == {
        *("source_train", "target_train", "bpe_dropout", "augment"),
        *("batch_size", "batch_tokens", "accumulate", "seed"),
    }
    assert {name for name in fixed if fixed[name] == "model" and groups[name] == "data"} == {
        *("source_lang", "target_lang", "tokenizer", "min_cnt", "vocab_size", "joint_vocab"),
        "fold_case",
    }


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
    save_hparams(Hyperparams(logdir=str(tmp_path), vocab_sha256={"de": "1"}))
    path = hparams_path(tmp_path)
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(InputError, match="hparams.json: not hyperparameters of this project"):
        load_hparams({"logdir": str(tmp_path)})


# Rules ---------------------------------------------------------------------------


SCRIPTS = ("train", "eval", "translate", "rerank", "export", "serve")
TABLES = [
    table
    for table in vars(choices).values()
    if isinstance(table, dict) and all(isinstance(row, Choice) for row in table.values())
]


def is_flags(kind):
    return isinstance(kind, type) and issubclass(kind, Flags) and dataclasses.is_dataclass(kind)


def flags_classes():
    """List all classes of flags."""
    scripts = map(importlib.import_module, SCRIPTS)
    kinds = [kind for script in scripts for kind in vars(script).values() if is_flags(kind)]
    return [*dict.fromkeys([Hyperparams, *kinds])]


def test_each_choice_can_be_loaded():
    assert len(TABLES) > 5
    for table in TABLES:
        for row in table.values():
            assert not row.target or callable(row.load())


def test_rules_name_fields_that_exist():
    """A rule whose name is misspelled would not be checked."""
    known = {*dir(Hyperparams)}
    known |= {field.name for kind in flags_classes() for field in kind.declared()}
    fields = [field for kind in flags_classes() for field in kind.declared()]
    rules = [field.metadata[kind] for field in fields for kind in ("needs", "only_with")]
    rules += [row.needs for table in TABLES for row in table.values()]
    assert sum(map(len, rules)) > 50
    assert {name for rule in rules for name in rule} <= known


def broken(wanted, default):
    """A value that breaks a condition, of the type of the default."""
    if isinstance(wanted, Condition):
        values = (NONE, "-", "/") if isinstance(default, str) else (0, False)
        return next(value for value in values if not wanted.holds(value))
    return not wanted if isinstance(wanted, bool) else "another"


RULES = [
    (owner, field, kind, other)
    for owner in flags_classes()
    for field in owner.declared()
    for kind in ("needs", "only_with")
    for other in field.metadata[kind]
]


@pytest.mark.parametrize(
    "owner, field, kind, other", RULES, ids=lambda v: getattr(v, "name", v) if v else v
)
def test_each_rule_is_checked_and_named(owner, field, kind, other):
    """Against an object on which it does not hold."""
    flags = object.__new__(owner)  # without its checks
    for each in owner.declared():
        object.__setattr__(flags, each.name, each.default)
    object.__setattr__(flags, field.name, not field.default if field.type is bool else "x")
    name, wanted = field.name, field.metadata[kind][other]
    default = next((getattr(kind, other) for kind in flags_classes() if hasattr(kind, other)), 0)
    values = SimpleNamespace(**{other: broken(wanted, default)})
    with pytest.raises(InputError, match=f"^{name} .*(needs|only with) .*. [A-Z].*[a-z0-9]$"):
        flags.check_needs(values) if kind == "needs" else flags.check_effects([name], values)


@pytest.mark.parametrize(
    "flags, message",
    [
        (dict(cell="lstm"), "cell has an effect only with --model rnn, and it is transformer"),
        (
            dict(recipe="rnn", causality=False),
            "causality has an effect only with --model transformer, and it is rnn",
        ),
        (dict(recipe="rnn", positions="t5"), "positions .* only with --model transformer"),
        (dict(recipe="rnn", attention_score="dot"), "only with a model with attention"),
        (dict(sinusoid=True, positions="t5"), "sinusoid needs --positions sinusoid"),
        (
            dict(positions="rotary", attention_score="dot"),
            "rotary needs --attention_score scaled_dot",
        ),
        (dict(recipe="tiny", temperature=1.0), "needs --beam 1, and it is 5. Draw"),
        (dict(top_k=5), "top_k 5 needs --temperature above 0, and it is 0.0"),
        (dict(bpe_dropout=0.1, tokenizer="bpe"), "needs positions without an end"),
        (dict(recipe="tiny", joint_vocab=False), "tied_embeddings needs --joint_vocab"),
        (dict(joint_vocab=False), "joint_vocab False needs --tokenizer bpe, and it is words"),
    ],
)
def test_contradictions_and_flags_without_effect_are_named(flags, message):
    with pytest.raises(InputError, match=message):
        make_hparams(flags)


def test_the_name_of_2017_for_sinusoids():
    assert make_hparams(dict(sinusoid=True)).positions == "sinusoid"
    assert make_hparams(dict(recipe="tiny", sinusoid=True)).positions == "sinusoid"


# Paths ---------------------------------------------------------------------------


def test_home_is_expanded_in_paths_that_no_shell_has_read(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "my.flags").write_text(
        "--results ~/results --source_train $HOME/a,~/b --target_lang ~"
    )
    monkeypatch.setattr(sys, "argv", ["train.py", "--logdir=~/run,x~", "@~/my.flags"])
    home = str(tmp_path)
    assert parse_flags("", dict, Hyperparams) == dict(
        logdir=f"{home}/run,x~",
        results=f"{home}/results",
        source_train=f"{home}/a,{home}/b",
        target_lang="~",
    )


def path_flags(script):
    """List the flags of a script whose help says that they name a file or folder."""
    kinds = [Hyperparams, *(kind for kind in vars(script).values() if is_flags(kind))]
    words = ("folder", "file", "side of the")
    return [
        field.name
        for kind in dict.fromkeys(kinds)
        for field in kind.declared()
        if field.type is str and not field.metadata["choices"]
        if any(word in field.metadata["help"] for word in words)
        if field.name not in ("source_lang", "target_lang")
    ]


@pytest.mark.parametrize("name", ["train", "eval", "translate", "rerank", "export"])
def test_a_url_is_refused_in_every_path_flag(name, monkeypatch, capsys):
    script = importlib.import_module(name)
    extra = [kind for kind in vars(script).values() if is_flags(kind) and kind is not Hyperparams]
    extra = [kind for kind in extra if kind is not Flags]
    names = path_flags(script)
    assert len(names) >= 10
    for flag in names:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", f"--{flag}", "a,s3://bucket/run"])
        with pytest.raises(SystemExit, match="2"):
            parse_flags("", dict, Hyperparams, *extra)
        (line,) = capsys.readouterr().err.splitlines()
        assert "s3://bucket/run: is a URL. Name a file or folder" in line
    with pytest.raises(InputError, match="file:///x: is a URL"):
        Hyperparams(logdir="file:///x")


@pytest.mark.parametrize("words", [["a", "b", "--output", "gs://x"], ["hdfs://a", "b"]])
def test_corpora_have_no_urls(words):
    done = subprocess.run(
        [sys.executable, "corpora/clean.py", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 2 and "is a URL" in done.stderr
    assert "`python corpora/clean.py --help` lists" in done.stderr and "\n" not in done.stderr[:-1]


def test_one_language_on_both_sides_needs_a_joint_vocabulary():
    same = dict(source_lang="en", target_lang="en")
    assert make_hparams(same | dict(recipe="tiny")).target_lang == "en"
    separate = dict(recipe="tiny", joint_vocab=False, tied_embeddings=False)
    for flags in (same, same | separate):
        with pytest.raises(InputError, match="are both en"):
            make_hparams(flags)
