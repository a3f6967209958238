"""Mistakes that people make: one line with the path and what to do, and nothing is lost."""

import contextlib
import gc
import gzip
import io
import json
import os
import resource
import runpy
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest
import tensorflow as tf

import prepro
import train
from conftest import SMALL, sample_pairs, write_corpus
from helpers import skip_graphs
from processes import ROOT, command_line
from support.files import lock_logdir

TRAIN = dict(source_train="train.source", target_train="train.target", min_cnt=1)
# The flags of a valid run of each script in the folder `here`.
VALID = dict(
    prepro=TRAIN,
    train=TRAIN | SMALL | dict(num_epochs=3),
    eval=dict(source_test="test.source", target_test="test.target"),
    translate=dict(source="test.source", output="out"),
    serve=dict(port=0),
    export={},
)
NEW, TINY = dict(logdir="new"), dict(logdir="tiny")
SUBWORDS = TINY | dict(recipe="tiny", positions="paired_sinusoid", normalization="post")
SUBWORDS |= dict(vocab_size=200, hidden_units=16, num_blocks=1, num_heads=2)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with text, a model of words in logdir, and one of subwords in tiny."""
    folder = tmp_path_factory.mktemp("made")
    write_corpus(folder, sample_pairs(40))
    (folder / "empty").mkdir()
    (folder / "two").write_text("Ein Hund\nEin Hund\n")
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        skip_graphs(patch)
        for own in (SMALL, SUBWORDS):
            prepro.main(TRAIN | own)
            train.main(TRAIN | own | dict(num_epochs=2))
    return folder


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A copy of this folder, the current one."""
    shutil.copytree(made, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")


@pytest.fixture
def refused(here, monkeypatch, capsys):
    """A function that checks that a script refuses a run, with a line that has some parts.

    The script runs as its command does, but in this process. It returns whether TensorFlow would
    have been loaded.
    """

    def refused(script, flags, parts, code=2):
        loads, before = [], files()
        capsys.readouterr()
        with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
            patched.setattr("support.flags.load_tensorflow", lambda: loads.append(True))
            patched.setattr(os, "dup2", lambda handle, _: os.close(handle))
            patched.setattr(gc, "freeze", lambda: None)
            patched.setattr(signal, "signal", lambda *_: None)
            patched.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
            patched.setattr(sys, "argv", [f"{script}.py", *command_line(VALID[script] | flags)])
            runpy.run_path(str(ROOT / f"{script}.py"), run_name="__main__")
        after = files()
        assert before.items() <= after.items()
        assert code == 1 or before == after  # a fault of the system may come late
        check_message(script, ended.value.code, capsys.readouterr().err, parts, code)
        return bool(loads)

    return refused


def check_message(script, got_code, stderr, parts, code=2):
    """Check the exit code, and that the last line, and no other one, is the message."""
    *others, line = stderr.splitlines()
    assert got_code == code and line.startswith(f"{script}.py: "), stderr
    assert not any(other.startswith((f"{script}.py: ", "Traceback")) for other in others)
    assert all(part in line for part in parts.split(" ... ")), line


def files():
    """The content of all files by their paths, but for what a run that is refused may write."""
    paths = {path for path in Path().rglob("*") if path.is_file() and path.name != "lock"}
    return {path: path.read_bytes() for path in paths - {*Path("preprocessed").iterdir()}}


# Before TensorFlow is loaded ----------------------------------------


def damage(edits):
    """Change files of the current folder: a dict from patterns to content, or functions of it."""
    for pattern, content in edits.items():
        for path in [*Path().glob(pattern)] or [Path(pattern)]:
            if content is None:
                path.unlink()
                continue
            made = content(path.read_bytes()) if callable(content) else content
            path.write_bytes(made.encode() if isinstance(made, str) else made)


def fields(**changes):
    return lambda content: json.dumps(json.loads(content) | changes)


HPARAMS, RUN = "logdir/hparams.json", "logdir/run.json"
NO_HPARAMS = "logdir/hparams.json: not hyperparameters of this project ... Copy the file again"


@pytest.mark.parametrize(
    "script, edits, flags, parts",
    [
        ("prepro", {}, dict(source_train="no"), "no: no such file ... Check --source_train"),
        ("train", {}, NEW | dict(start_from="no"), "no: no such file ... Check --start_from"),
        ("translate", {}, dict(logdir="no"), "no: no such file or directory. Check --logdir"),
        ("translate", {}, dict(logdir="logdir,"), "logdir,: no such file ... Check --logdir"),
        ("eval", {}, dict(compare="no"), "no: no such file or directory. Check --compare"),
        ("train", {}, dict(logdir="x" * 300), "File name too long"),
        ("train", {}, dict(hidden_units=32), "trained with --hidden_units 16, not 32. Leave the"),
        ("train", {}, NEW | dict(start_from="logdir", num_blocks=2), "with --num_blocks 1, not 2"),
        ("train", {}, dict(start_from="./logdir"), "start_from and logdir are the same folder"),
        ("prepro", {}, dict(target_train="train.source"), "source_train and target_train have"),
        ("eval", {}, dict(target_test="test.source"), "source_test and target_test have the same"),
        ("translate", {}, dict(output="./test.source"), "output would replace the source. Choose"),
        ("translate", {HPARAMS: "{"}, {}, NO_HPARAMS),
        ("train", {HPARAMS: None}, {}, NO_HPARAMS),
        ("train", {RUN: "{"}, {}, "run.json: does not list the checkpoints of a training. Copy"),
        ("export", {}, dict(output="two"), "two: already exists. Delete it, or choose another"),
    ],
)
def test_what_flags_and_names_show_is_refused_at_once(refused, script, edits, flags, parts):
    damage(edits)
    assert not refused(script, flags, parts)


def test_no_package_is_needed_to_refuse_a_run(here):
    code = "import runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, sys.argv.pop())"
    code += "; runpy.run_path(f'{sys.path[0]}/translate.py', run_name='__main__')"
    # -I and -S: without the installed packages.
    command = [sys.executable, "-I", "-S", "-c", code, "translate.py", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    parts = f"{sys.executable} has no TensorFlow. Run `make install`"
    check_message("translate", done.returncode, done.stderr, parts)


# When a file is read or written -------------------------------------


def other(_):
    return Path("tiny/model_epoch_02_gs_2.npz").read_bytes()


def cut_gzip(content):
    return gzip.compress(content)[:-99]


def add_line(content):
    return content + b"Noch ein Satz.\n"


BOTH, TESTS, MODELS = "train.*", "test.*", "logdir/*.npz"
VOCAB, NEW_VOCAB = "logdir/en.vocab.tsv", "preprocessed/en.vocab.tsv"
FROM = dict(start_from="logdir") | NEW
SWAPPED = dict(source_train="train.target", target_train="train.source")
SWAPPED_TEST = dict(source_test="test.target", target_test="test.source")
LATIN1 = "{}.source:2: byte {} of this line is not text in UTF-8 ... corpora/convert.py`"
EMPTY = "holds no text. Put one sentence on each line"
UNEQUAL = "train.source: 41 sentences, but train.target has 40 ... Make line n of one file"
CLEANED = "Latin letters ... choose a recipe with subwords, for example --recipe tiny"
NO_MODEL = "not a sentencepiece model ... or copy the file again from the folder in which the model"
UNFIT = "Use the hparams.json, vocabulary and checkpoint of one training"
UNREAD = "logdir: holds no checkpoint that can be read. Train a model, or copy its folder again"
CHINESE = "我爱你\n" * 40


@pytest.mark.parametrize(
    "script, edits, flags, parts",
    [
        # Text.
        ("prepro", {}, dict(source_train="tiny"), "tiny: is a directory. Check the path"),
        ("prepro", {"train.source": "Hund\nÄ".encode("latin1")}, {}, LATIN1.format("train", 1)),
        ("prepro", {"train.source": cut_gzip}, {}, "train.source: a damaged gzip file. Down"),
        ("prepro", {BOTH: ""}, {}, f"train.source: holds no word of {CLEANED}"),
        ("prepro", {BOTH: ""}, dict(recipe="tiny"), f"train.source: {EMPTY}"),
        ("train", {"train.source": CHINESE}, NEW, "source: 100% of its words are not in ... Check"),
        ("train", {}, NEW | dict(maxlen=2), "none of 40 pairs has ... at most 2 words ... --maxl"),
        ("eval", {TESTS: "dog " * 15}, {}, "none of 1 pairs has ... at most 15 words ... --maxlen"),
        ("prepro", {"train.source": add_line}, {}, UNEQUAL),
        ("eval", {"test.source": add_line}, {}, UNEQUAL.replace("train", "test")),
        ("translate", {"test.source": b"Hund\nB\xe4ume\n"}, {}, LATIN1.format("test", 2)),
        ("translate", {}, dict(score="two"), "two: 2 lines, but test.source has 40. Make line n"),
        ("prepro", {}, dict(source_train="two,two"), "names 2 files, but target_train names 1"),
        ("eval", {"test.source": '\n<seg id="2">Zwei\n'}, {}, "test.source:2: this line is XML"),
        ("eval", {}, dict(compare="two"), "two: is not a results file of this test set"),
        # Vocabularies.
        ("prepro", {}, dict(recipe="tiny", vocab_size=8000), "not allow 8000 ... Use --vocab_size"),
        ("prepro", {}, dict(recipe="tiny", symbols="a b"), "symbols a b: ... Write words with com"),
        ("train", {NEW_VOCAB: None}, NEW, f"{NEW_VOCAB}: no such file ... Run `python prepro.py`"),
        ("train", {}, NEW | SWAPPED, "96% of its words are not in ... Check --source_lang"),
        ("train", {}, SUBWORDS | NEW | dict(vocab_size=300), "do not fit vocab_size 300. Write"),
        (
            "train",
            {},
            SUBWORDS | NEW | dict(start_from="tiny", symbols=">>x<<", maxlen=100),
            "fit symbols >>x<<.",
        ),
        ("translate", {VOCAB: lambda b: b + b"more\t7\n"}, {}, f"(191, 16) ... {UNFIT}"),
        ("translate", {"tiny/bpe.model": "cut"}, TINY, f"tiny/bpe.model: {NO_MODEL}"),
        # Models.
        ("translate", {}, dict(logdir="two"), "two: holds no checkpoint ... Train a model, or"),
        ("translate", {HPARAMS: None}, {}, "logdir: holds ... no hparams.json ... Train a model"),
        ("export", {RUN: None}, {}, UNREAD),
        ("translate", {MODELS: "PK"}, {}, UNREAD),
        ("train", {MODELS: None}, {}, UNREAD),
        ("translate", {MODELS: other}, {}, f"model_epoch_02_gs_2.npz: ... {UNFIT}"),
        ("train", {HPARAMS: fields(num_blocks=2)}, dict(num_blocks=2), UNFIT),
        ("train", {}, FROM | dict(best=True), "logdir: ... no checkpoint with a dev score. Train"),
        ("train", {MODELS: other}, FROM, f"logdir: ... {UNFIT}"),
        ("train", {}, NEW | dict(start_from="empty"), "empty/model.safetensors: no such file."),
        ("eval", {}, SWAPPED_TEST, "96% of its words are not in ... Check --source_lang"),
        ("translate", {}, dict(logdir="logdir,tiny"), "tiny: has other languages ... Choose mod"),
        ("translate", {}, dict(nbest=9, beam=2), "nbest is 9, but beam is 2 ... Use --beam 9"),
        # Output.
        ("prepro", {}, dict(preprocessed="two"), "two: file exists. Check the path"),
        ("translate", {}, dict(alignments="tiny"), "tiny: is a directory. Check the path"),
        ("export", {}, dict(output="two/a"), "two: file exists. Check the path"),
        ("export", {}, dict(format="huggingface"), "Marian has no such model. Export with"),
    ],
)
def test_what_a_file_shows_is_refused_when_it_is_opened(refused, script, edits, flags, parts):
    damage(edits)
    assert refused(script, flags, parts)


def test_an_export_has_one_model(refused):
    shutil.copytree("tiny", "other")
    refused("export", dict(logdir="tiny,other", format="logdir"), "logdir names several models")


def test_a_missing_package_is_named(refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "tf2onnx", None)
    message = "tf2onnx is not installed. Install it with `pip install tf2onnx`"
    refused("export", TINY | dict(format="onnx", beam=1), message)


def test_a_port_that_is_taken(refused, monkeypatch):
    skip_graphs(monkeypatch)
    monkeypatch.setattr("server.inside.InsideView.describe", lambda *_: None)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        refused("serve", dict(port=port), f"127.0.0.1:{port}: address already in use. Choose")


def test_a_second_training_in_a_logdir(refused):
    with lock_logdir("logdir"):
        refused("train", {}, "logdir: another training writes here. Wait for it, or use a new")


# The system ---------------------------------------------------------


def test_a_full_memory_or_a_full_disk_of_tensorboards_writer(refused, monkeypatch):
    """TensorFlow has one class for both."""
    error = tf.errors.ResourceExhaustedError(None, None, "logdir/x; No space left on device\nx")
    monkeypatch.setattr("data_load.load_train_data", Mock(side_effect=error))
    refused("train", NEW, "the memory or the disk is full. Lower --batch_tokens", code=1)


def test_a_checkpoint_too_large_for_the_disk(here, monkeypatch):
    """A limit of the size of a file acts as a full disk. Then the same command resumes."""
    skip_graphs(monkeypatch)
    before, (_, hard) = files(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match="File too large: '.*/model_epoch_03_gs_3.npz'"):
            train.main(VALID["train"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    changed = {path.name for path, content in before.items() if path.read_bytes() != content}
    assert changed == {"hparams.json"} and not [*Path("logdir").glob("*.tmp")]
    train.main(VALID["train"])
    assert Path("logdir/model_epoch_03_gs_3.npz").exists()
