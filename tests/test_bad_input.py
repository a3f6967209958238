"""Invalid input: one message, exit code 2, and no incomplete file."""

import ctypes
import dataclasses
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tensorflow as tf

import prepro
import train
from conftest import SMALL, sample_pairs, slow, write_corpus
from helpers import refused, run_main, skip_search
from hparams import (
    Hyperparams,
    check_same_batches,
    load_hparams,
    make_hparams,
    read_hparams,
    save_hparams,
)
from processes import ROOT, forked, forked_script, run_script
from runtime.errors import InputError
from text import clean

PAIRS = sample_pairs(40)


@pytest.fixture
def flags(tmp_path):
    flags = write_corpus(tmp_path, PAIRS)
    run_main(prepro, flags)
    return flags | SMALL


@pytest.fixture(scope="module")
def trained_folder(tmp_path_factory):
    """The folder of a model, of its vocabularies and its text."""
    flags = write_corpus(tmp_path_factory.mktemp("trained"), PAIRS)
    run_main(prepro, flags)
    run_main(train, flags | SMALL | dict(num_epochs=1))
    return Path(flags["logdir"]).parent


@pytest.fixture
def model(trained_folder, tmp_path):
    """The flags of a copy of `trained_folder`."""
    shutil.copytree(trained_folder, tmp_path / "copy")
    folder = tmp_path / "copy"
    flags = {name: str(folder / name) for name in ("preprocessed", "logdir", "results")}
    for name in ("source_train", "target_train", "source_test", "target_test"):
        part, side = name.split("_")[::-1]
        flags[name] = str(folder / f"{part}.{side}")
    return flags


def vocab(flags, lang="en"):
    """Return the path of a vocabulary."""
    return Path(flags["preprocessed"]) / f"{lang}.vocab.tsv"


# The corpus ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script, side", [("prepro.py", "target_train"), ("train.py", "source_train")]
)
def test_a_missing_corpus(flags, script, side):
    before = vocab(flags, "de").read_bytes()
    Path(flags[side]).unlink()
    refused(script, f"{flags[side]}: no such file or directory. Check", **flags)
    assert vocab(flags, "de").read_bytes() == before  # no mixture of new and old


@pytest.mark.parametrize("script", ["prepro.py", "train.py"])
def test_the_default_corpus_is_missing(tmp_path, flags, script):
    """The hint is printed only if no flag names the corpus."""
    hint = ["corpora/train.tags.de-en.de: no such file", "IWSLT 2016", "corpora/sample.py"]
    hint += ["`python corpora/download.py multi30k`", "--source_train", "--target_train"]
    folders = ["--preprocessed", flags["preprocessed"], "--logdir", str(tmp_path / "new")]
    folders += ["--min_cnt", "1"]
    done = forked([script, *folders], cwd=tmp_path)
    assert done.returncode == 2 and all(needle in done.stderr for needle in hint)


def test_a_missing_test_set(model):
    missing = model | dict(source_test="nowhere.de")
    refused("eval.py", "nowhere.de: no such file or directory. Check the path", **missing)


@pytest.mark.parametrize("side", ["source_test", "target_test"])
def test_a_missing_test_set_is_noticed_before_training(flags, side):
    wrong = flags | {side: "nowhere"}
    refused("train.py", f"nowhere: no such file or directory. Check --{side}", **wrong)
    assert not Path(flags["logdir"]).exists()


def test_no_test_set_was_named(model, tmp_path):
    """The default test set would not help with a model of another text."""
    path = Path(model["logdir"]) / "hparams.json"
    names = ("source_test", "target_test", "results")
    default = {name: getattr(Hyperparams, name) for name in names}
    path.write_text(json.dumps(json.loads(path.read_text()) | default))
    done = forked(["eval.py", "--logdir", model["logdir"]], cwd=tmp_path)
    assert done.returncode == 2 and "IWSLT 2016" not in done.stderr
    assert "Name a test set with --source_test and --target_test" in done.stderr


def test_sides_of_different_lengths(flags, model):
    scripts = dict(prepro=("train", flags), train=("train", flags), eval=("test", model))
    count = len(PAIRS)
    for name, given in dict(scripts.values()).items():
        with open(given[f"source_{name}"], "a", encoding="utf-8") as file:
            file.write("Noch ein Satz.\n")
    before = [vocab(flags, lang).read_bytes() for lang in ("de", "en")]
    for script, (name, given) in scripts.items():
        paths = given[f"source_{name}"], given[f"target_{name}"]
        refused(f"{script}.py", *paths, f"{count + 1} sentences", f" {count} (", **given)
    refused("prepro.py", f"{count + 1} sentences", **flags, recipe="tiny")
    assert [vocab(flags, lang).read_bytes() for lang in ("de", "en")] == before
    assert not (Path(flags["preprocessed"]) / "bpe.model").exists()


def test_one_file_for_both_sides(flags):
    done = forked_script("prepro.py", **flags | dict(target_train=flags["source_train"]))
    assert done.returncode == 0
    assert f"{flags['source_train']}: this file is both sides of the text" in done.stderr


def test_a_vocabulary_of_another_language(flags):
    """train.py without its language flags: nearly all words are unknown."""
    swapped = flags | dict(source_train=flags["target_train"], target_train=flags["source_train"])
    refused("train.py", "of its words are not in", "--source_lang", "prepro.py", **swapped)


def test_a_test_set_of_another_language(model):
    swapped = dict(source_test=model["target_test"], target_test=model["source_test"])
    done = forked_script("eval.py", prepare=skip_search, **model | swapped)
    assert done.returncode == 0
    assert f"{model['target_test']}: 9" in done.stderr and "translates from" in done.stderr


@pytest.mark.parametrize("script", ["prepro.py", "train.py"])
def test_a_file_that_is_not_utf_8(flags, script):
    path = Path(flags["target_train"])
    lines = path.read_bytes().split(b"\n")
    lines[6] = "Bäume".encode("latin1")
    path.write_bytes(b"\n".join(lines))
    refused(script, f"{path}:7: byte 2", "not text in UTF-8", "iconv", **flags)


def test_a_file_with_both_languages(model, tmp_path):
    path = tmp_path / "both"
    path.write_text('<tmx><tu><tuv lang="de"><seg>Hund</seg></tuv></tu></tmx>')
    test = {side: path for side in ("source_test", "target_test")}
    refused("eval.py", f"{path}: ", **model | test)
    sides = [
        "".join(f'<seg id="{n}">{text}</seg>' for n, text in enumerate(side))
        for side in zip(*PAIRS, strict=True)
    ]
    path.write_text(
        f'<dataset><doc id="1"><src lang="de">{sides[0]}</src><ref lang="en">{sides[1]}</ref>'
        f'<ref lang="en" translator="B">{sides[1]}</ref></doc></dataset>',
        "utf-8",
    )
    done = forked_script("eval.py", prepare=skip_search, **model | test)
    assert f"Translating {len(PAIRS)} sentences" in done.stdout and "nrefs:2" in done.stdout
    assert f"- source: {clean(PAIRS[0][0])}\n" in done.stdout


def test_a_folder_given_as_a_file(flags, tmp_path):
    refused("prepro.py", tmp_path, "is a directory", **flags | dict(source_train=tmp_path))


@pytest.mark.parametrize("damage", ["cut", "header", "data", "checksum"])
@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_a_damaged_gzip_file(tmp_path, recipe, damage):
    flags = write_corpus(tmp_path, PAIRS)
    packed = bytearray(gzip.compress(random.Random(0).randbytes(99).hex().encode() * 40))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[dict(header=2, data=40, checksum=-6)[damage]] ^= 0xFF
    Path(flags["source_train"]).write_bytes(packed)
    refused("prepro.py", flags["source_train"], "damaged gzip file", **flags, recipe=recipe)


def test_a_broken_test_set(model):
    path, other = Path(model["source_test"]), Path(model["target_test"])
    path.write_text('<seg id="1">Ein Hund</seg>\n<seg id="2">Zwei\n')
    refused("eval.py", f"{path}:2: this <seg> is not closed", **model)
    path.write_text('<seg id="1">Ein Hund &amp; Co</seg>\n<seg id="2">Zwei</seg>\n')
    other.write_text('<seg id="1">A dog</seg><seg id="3">Two</seg>\n')
    refused("eval.py", f"{path}:2: segment 2", f"segment 3 in {other}:1", **model)
    assert not Path(model["results"]).exists()


@slow
def test_a_batch_too_large_for_the_memory(flags):
    """Its attention weights would take 336 TB, more than an address of 48 bits can name."""
    for name in ("source_train", "target_train"):  # 5,000 pairs
        flags[name] = ",".join([str(flags[name])] * 125)
    long = dict(maxlen=4096, hidden_units=1, num_heads=1, num_blocks=1, batch_size=5000)
    done = run_script("train.py", **flags | long)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "train.py: a batch is too large for the memory. Lower --batch_size (5000)" in done.stderr


def test_a_full_disk_is_not_taken_for_a_full_memory():
    """TensorBoard's writer reports both with the same class."""
    error = tf.errors.ResourceExhaustedError(None, None, "logdir/x; No space left on device")
    explained = train.explain_tf_error(error, make_hparams({}))
    assert isinstance(explained, OSError) and "logdir: the disk is full" in str(explained)


@slow
def test_unusual_text(model, tmp_path):
    """Lines of a million characters, a word of a hundred thousand: no crash."""
    odd = ["a b" * 333_333, "x" * 100_000, "ab", " \t ", "\u00a0", "u\u0308ber\u2028den\u0085\r"]
    for flag in ("source_train", "target_train"):
        path = Path(model[flag])
        text = "\ufeff" + path.read_text() + "".join(f"{line}\n" for line in odd)
        path.write_text(text, encoding="utf-8", newline="")
    more = dict(logdir=tmp_path / "logdir", num_epochs=1)
    for script in ("prepro.py", "train.py"):
        done = forked_script(script, **model | SMALL | more)
        assert done.returncode == 0, done.stderr
    assert "Training on 43 of 46 pairs: 1 are longer than maxlen 15, 2 have an empty" in done.stdout


def test_no_sentence_under_maxlen(flags):
    refused("train.py", "none of 40 pairs is at most 2 words", "--maxlen", **flags | dict(maxlen=2))


def test_no_test_sentence_that_the_model_can_read(model):
    for side in ("source_test", "target_test"):
        Path(model[side]).write_text("dog " * 15)
    refused("eval.py", "none of 1 pairs is at most 15 words", "a larger --maxlen", **model)


def test_no_sentence_left_after_cleaning(flags):
    Path(flags["source_train"]).write_text("我爱你\n" * len(PAIRS), encoding="utf-8")
    refused("train.py", flags["source_train"], "cleaning leaves nothing", "Latin", **flags)
    before = vocab(flags, "de").read_bytes()
    refused("prepro.py", flags["source_train"], "holds no word of Latin letters", **flags)
    assert vocab(flags, "de").read_bytes() == before


def test_no_pair_with_text_on_both_sides(flags):
    Path(flags["target_train"]).write_text("\n" * len(PAIRS))
    refused("train.py", flags["target_train"], "every pair has an empty line", **flags)


def test_a_file_in_place_of_a_folder(flags, model, tmp_path):
    file = tmp_path / "file"
    file.write_text("mine")
    refused(
        "prepro.py",
        file,
        "is a file, and a folder is needed",
        **flags | dict(preprocessed=file),
    )
    refused("train.py", file, "is a file, and a folder is needed", **flags | dict(logdir=file))
    refused("eval.py", file, "is a file, and a folder is needed", **model | dict(results=file))
    assert file.read_text() == "mine"


def test_a_file_with_only_markup(flags):
    for side in ("source_train", "target_train"):
        Path(flags[side]).write_text("<url>x</url>\n")
    refused("train.py", flags["source_train"], "every line is markup", **flags)


@pytest.mark.parametrize("script", ["prepro.py", "train.py"])
@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_an_empty_file(flags, script, recipe):
    if script == "train.py":
        run_main(prepro, flags | dict(recipe=recipe, vocab_size=0) if recipe == "tiny" else flags)
    for side in ("source_train", "target_train"):
        Path(flags[side]).write_text("")
    refused(script, f"{flags['source_train']}: the file is empty", **flags | dict(recipe=recipe))


def test_subwords_of_bad_text(flags, tmp_path):
    """sentencepiece trains on the text, but the messages are those of prepro.py."""
    more = flags | dict(recipe="tiny", preprocessed=tmp_path / "subwords")
    refused("prepro.py", "nowhere.de: no such file", **more | dict(source_train="nowhere.de"))
    latin1, empty = tmp_path / "latin1", tmp_path / "empty"
    latin1.write_bytes("Ein Hund\nBäume\n".encode("latin1"))
    empty.write_text("\n" * len(PAIRS))
    refused(
        "prepro.py", f"{latin1}:2: byte 2", "not text in UTF-8", **more | dict(target_train=latin1)
    )
    refused("prepro.py", empty, "every line is empty", **more | dict(target_train=empty))
    large = more | dict(vocab_size=8000)
    needles = "does not allow 8000 subwords", "--vocab_size 0"
    refused("prepro.py", *needles, **large)
    refused("train.py", "bpe.source.model", "`python prepro.py`", "--recipe", **more)
    assert not (tmp_path / "subwords").exists()


# Vocabularies ------------------------------------------------------------------------


def test_a_missing_vocabulary(flags):
    vocab(flags).unlink()
    refused("train.py", vocab(flags), "prepro.py", **flags)


def test_a_malformed_vocabulary(flags):
    vocab(flags).write_text("dog 1\n")
    refused("train.py", f"{vocab(flags)}: not a vocabulary", "prepro.py", **flags)


def test_a_logdir_with_no_checkpoint(tmp_path):
    refused("eval.py", tmp_path, "no checkpoint", "train.py", "--logdir", logdir=tmp_path)
    refused("eval.py", "nowhere", "no checkpoint", logdir="nowhere")


@pytest.mark.parametrize(
    "script, name", [("train.py", ""), ("eval.py", ".index"), ("eval.py", ".data-00000-of-00001")]
)
def test_a_file_of_a_checkpoint_in_place_of_its_folder(model, script, name):
    logdir = Path(model["logdir"])
    file = next(logdir.glob("*.index")).with_suffix(name)
    refused(script, file, f"Name the folder of a model, as {logdir}", **model | dict(logdir=file))


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_a_truncated_checkpoint(model, script):
    path = next(Path(model["logdir"]).glob("*.data-00000-of-00001"))
    path.write_bytes(path.read_bytes()[:1000])
    refused(script, path.name.partition(".")[0], "damaged", **model | dict(num_epochs=2))


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
@pytest.mark.parametrize(
    "other",
    [dict(hidden_units=32), dict(num_blocks=2), dict(recipe="updated", positions="sinusoid")],
)
def test_a_checkpoint_of_another_model(model, script, other):
    """The sizes or the recipe differ, since hparams.json is changed here."""
    path = Path(model["logdir"]) / "hparams.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | other))
    more = model | dict(num_epochs=2, recipe=other.get("recipe", "legacy"))
    refused(script, "model_epoch_01_gs_1: ", "variables do not match", path, **more)


def test_a_model_without_its_hyperparameters(model):
    (Path(model["logdir"]) / "hparams.json").unlink()
    for script in ("train.py", "eval.py"):
        refused(script, "hparams.json", "Copy it", **model)


@pytest.mark.parametrize("script", ["train.py", "eval.py"])
def test_a_flag_that_contradicts_the_model(model, script):
    refused(script, "trained with --hidden_units 16, not 32", **model | dict(hidden_units=32))


def test_another_recipe_in_the_logdir(model, tmp_path):
    """`train.py` without --recipe means legacy, and does not resume a model of another recipe."""
    flags = write_corpus(tmp_path / "other", PAIRS) | SMALL | dict(recipe="tiny", num_epochs=1)
    run_main(prepro, flags)
    run_main(train, flags | dict(maxlen=40, batch_size=40))
    del flags["recipe"], flags["maxlen"]
    remedy = "add --recipe tiny. To train legacy, use a new --logdir"
    refused("train.py", f"{flags['logdir']}: holds a model of the recipe tiny", remedy, **flags)
    refused("train.py", "trained with --recipe legacy, not tiny", **model | dict(recipe="tiny"))


# Flags -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words, message",
    [
        (["train.py", "--max_len=25"], "there is no flag --max_len: did you mean --maxlen? `py"),
        (["train.py", "--batch-size", "4"], "did you mean --batch_size?"),
        (["prepro.py", "--xyzzy"], "there is no flag --xyzzy. `python prepro.py --help` lists"),
        (["translate.py", "Hallo Welt"], "'Hallo Welt' follows no flag."),
        (["train.py", "--num_epochs", "many"], "many is neither a number nor auto"),
        (["train.py", "--lr", "fast"], "argument --lr: invalid float value: 'fast'"),
        (["eval.py", "--beam", "0"], "beam is 0. It must be at least 1"),
        (["translate.py", "--nbest", "0"], "nbest is 0"),
        (["train.py", "--hidden_units", "10", "--num_heads", "4"], "is not a multiple of"),
        (["train.py", "--recipe", "tiny", "--batch_size", "4", "--batch_tokens", "9"], "both set"),
        (["export.py", "--quantization", "int8"], "quantization is for the formats ctranslate2"),
        (["train.py", "--recipe", "rnn", "--num_heads", "2"], "num_heads has an effect only with"),
        (
            ["train.py", "--positions", "rotary", "--attention_score", "dot"],
            "positions rotary needs --attention_score scaled_dot, and it is dot",
        ),
        (["train.py", "--positions", "t5", "--sinusoid"], "sinusoid needs --positions sinusoid"),
        (["train.py", "--best", "--average_checkpoints", "5"], "best uses one checkpoint"),
        (["train.py", "--logdir", "x" * 300], f"{'x' * 300}: file name too long. Check the path"),
        (["translate.py", "--output", "x" * 300], "file name too long"),
        (["translate.py", "--output", "a", "--alignments", "./a"], "./a: --output names this fil"),
        (["translate.py", "--source", "s", "--score", "t", "--output", "t"], "--score names thi"),
        (["translate.py", "--source", "s", "--output", "s"], "--source names this file, too. Cho"),
    ],
    ids=lambda value: value[1] if isinstance(value, list) else "",
)
def test_wrong_flags_are_refused_before_tensorflow_is_loaded(tmp_path, words, message):
    command = [sys.executable, "-X", "importtime", str(ROOT / words[0]), *words[1:]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    *imports, last = done.stderr.splitlines()
    assert done.returncode == 2 and last.startswith(f"{words[0]}: ") and message in last
    assert any("argparse" in line for line in imports)
    assert not any("tensorflow" in line for line in imports)


def test_batch_size_switches_batch_tokens_off(tmp_path):
    hp = make_hparams(dict(recipe="tiny", batch_size=4))
    assert (hp.batch_size, hp.batch_tokens) == (4, 0)
    assert make_hparams(dict(recipe="tiny")).batch_tokens == 2048
    fields = dict(batch_tokens=2048, vocab_size=300, num_epochs=40, warmup_steps=100, decay_steps=0)
    fields |= dict(logdir=str(tmp_path), vocab_sha256={"bpe": "1"})
    save_hparams(dataclasses.replace(hp, **fields))
    given = dict(logdir=str(tmp_path), batch_size=4)
    hp = load_hparams(given)
    assert (hp.batch_size, hp.batch_tokens) == (4, 0)
    with pytest.raises(InputError, match="with --batch_tokens 2048, not with --batch_size. Leave"):
        check_same_batches(hp, read_hparams(tmp_path))


def test_the_help_shows_a_saved_path_with_a_percent_sign(model):
    path = Path(model["logdir"]) / "hparams.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(source_train="100%_(x)s.de")))
    done = forked(["translate.py", "--logdir", model["logdir"], "--help"])
    assert done.returncode == 0 and "100%_(x)s.de)" in done.stdout


# Checkpoints of the 2017 code --------------------------------------------------------


def test_flags_that_contradict_a_checkpoint_of_the_2017_code(original_run, tmp_path):
    folders = dict(logdir=original_run / "logdir", preprocessed=original_run / "preprocessed")
    refused("eval.py", "trained with --maxlen 20, not 25", **folders, maxlen=25)
    refused("eval.py", "5463 and 4740 words", "--min_cnt 5", **folders, min_cnt=5)
    refused("eval.py", "hidden_units 128 is not a multiple of num_heads 3", **folders, num_heads=3)
    refused("eval.py", "trained with --mask_from activations, not ids", **folders, mask_from="ids")
    refused("eval.py", "trained with --recipe legacy, not tiny", **folders, recipe="tiny")
    refused("eval.py", "trained with --positions learned, not t5", **folders, positions="t5")
    message = "trained with --attention_score scaled_dot, not additive"
    refused("eval.py", message, **folders, attention_score="additive")
    refused("train.py", "can be evaluated, but not trained", **folders | SMALL)
    other = write_corpus(tmp_path, PAIRS)
    run_main(prepro, other)
    folders["preprocessed"] = other["preprocessed"]
    refused("eval.py", "not the vocabularies of this model", "--preprocessed", **folders)


NUMBERS = [f.name for f in Hyperparams.declared() if f.type in (int, float)]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_number_out_of_range(name, tmp_path):
    refused("train.py", f"{name} is -1", **{name: -1}, logdir=tmp_path)


@pytest.mark.parametrize("script", ["prepro.py", "train.py", "translate.py"])
def test_windows_is_named_as_unsupported(script):
    # On Windows, shutil imports a module that other systems lack, and there is no fcntl.
    code = "import runpy, shutil, sys; sys.platform = 'win32'; sys.argv = sys.argv[1:]"
    code += "; sys.modules['fcntl'] = None"
    code += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(ROOT / script)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"{script}: Windows is not supported. Run it within WSL2 " + (
        "(https://aka.ms/wsl), as on Linux\n"
    )


@pytest.mark.parametrize("script", ["prepro.py", "train.py", "eval.py"])
def test_a_forgotten_environment_is_named(script):
    code = "import runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv[1])"
    code += "; runpy.run_path(sys.argv[0], run_name='__main__')"
    # -I and -S: without the installed packages.
    command = [sys.executable, "-I", "-S", "-c", code, str(ROOT / script), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{sys.executable} has no TensorFlow. Run `make install`" in done.stderr
    assert done.stderr.startswith(Path(script).name) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["logdir", "source_train"])
def test_an_extra_comma_is_named(name, flags):
    refused("train.py", f"{name},: a name is missing next to a comma", **flags | {name: f"{name},"})


# The environment ----------------------------------------------------------------------


def fill_standard_output():
    os.dup2(os.open("/dev/full", os.O_WRONLY), 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full: a test for Linux")
@pytest.mark.parametrize("script", ["prepro.py", "translate.py"])
def test_a_full_standard_output(model, script):
    more = dict(source=model["source_test"], beam=1) if script == "translate.py" else {}
    done = forked_script(script, fill_standard_output, **model, **more)
    assert done.returncode == 1 and "Traceback" not in done.stderr and "ignored" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"{script}: ") and "space" in done.stderr


@slow
def test_a_locale_without_umlauts_and_a_folder_with_them(tmp_path):
    folder = tmp_path / "ein Ordner mit Ümläuten"
    flags = {
        name: os.path.relpath(path, folder) for name, path in write_corpus(folder, PAIRS).items()
    }
    locale = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    for script in ("prepro.py", "train.py", "eval.py"):
        done = run_script(script, cwd=folder, env=locale, **flags, **SMALL, num_epochs=1)
        assert done.returncode == 0, done.stderr
    assert "- source: " in done.stdout and [*(folder / "results").iterdir()]


def give_up_writing_anywhere():
    """Drop the privilege of root (Linux's CAP_DAC_OVERRIDE) that permissions do not apply."""
    libc = ctypes.CDLL(None)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    sets = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable: bits 0 to 31; then 32 to 63
    assert libc.capget(header, sets) == 0
    for i in range(3):
        sets[i] &= ~0b10
    assert libc.capset(header, sets) == 0


@pytest.mark.skipif(
    os.geteuid() == 0 and sys.platform != "linux",
    reason="root may write anywhere. To run them: as another user",
)
@pytest.mark.parametrize(
    "script, flag",
    [
        ("prepro.py", "preprocessed"),
        ("train.py", "logdir"),
        ("eval.py", "results"),
        ("translate.py", "output"),
        ("export.py", "output"),
    ],
)
def test_a_read_only_folder(model, tmp_path, script, flag):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    path = folder / "out" if flag == "output" else folder
    more = {"source": model["source_test"]} if script == "translate.py" else {}
    flags = model | SMALL | more | {flag: path}
    prepare = give_up_writing_anywhere if os.geteuid() == 0 else None
    refused(script, folder, "cannot be written to", prepare=prepare, **flags)
