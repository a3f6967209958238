"""Models and text from someone else: they run no code, and choose no path to write to."""

import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

import checkpoint
from helpers import read_test_sentences, skip_search
from hparams import hparams_path
from ids import SPECIALS
from processes import forked
from runtime.errors import InputError
from vocab import SubwordVocab, WordVocab, save_vocabs


@pytest.fixture
def stranger(trained, tmp_path):
    """The folder of a model from someone else, with its text, next to the home of the user."""
    flags = trained("tiny")
    home, work = tmp_path / "home", tmp_path / "work"
    home.mkdir()
    (home / ".bashrc").write_text("mine\n")
    shutil.copytree(flags["logdir"], work / "st")
    for side in ("source", "target"):
        shutil.copy(flags[f"{side}_test"], work / "st" / side)
    change(work / "st", source_test="st/source", target_test="st/target")
    return work / "st"


def change(logdir, /, **fields):
    """Change fields of hparams.json."""
    path = hparams_path(logdir)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def evaluate(stranger, script="eval.py"):
    """Run a script in the parent of the model's folder, and return its `CompletedProcess`."""
    words = [script, "--logdir", "st", "--beam", "1"]
    done = forked(words, cwd=stranger.parent, prepare=skip_search)
    assert "Traceback" not in done.stderr
    assert [path.name for path in (stranger.parent.parent / "home").iterdir()] == [".bashrc"]
    return done


def test_saved_folders_are_ignored(stranger):
    """Results are written to the folder that a flag names, or to results/."""
    change(stranger, logdir="../home", results="../home", preprocessed="../home")
    done = evaluate(stranger)
    assert done.returncode == 0, done.stderr
    assert len([*(stranger.parent / "results").iterdir()]) == 1


@pytest.mark.parametrize(
    "fields", [dict(source_lang="../de"), dict(best=3), dict(lr=float("nan")), dict(more=1)]
)
def test_an_invalid_field_is_refused(stranger, fields):
    change(stranger, **fields)
    done = evaluate(stranger)
    assert done.returncode == 2 and "st/hparams.json: not hyperparameters" in done.stderr


ROW = dict(epoch=1, step=9)


@pytest.mark.parametrize(
    "content",
    [
        *("{", "[]", "3", "{}", '{"checkpoints": [[]]}', '{"checkpoints": [{"epoch": 1}]}'),
        *(
            json.dumps(dict(checkpoints=[ROW | fields]))
            for fields in (dict(epoch="../.bashrc"), dict(step=9.5), dict(more=1))
        ),
    ],
)
def test_a_list_of_checkpoints_that_no_training_wrote(tmp_path, content):
    """The name of a file follows from two numbers."""
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match="run.json: does not list the checkpoints of a training"):
        checkpoint.read_rows(tmp_path)


def test_a_pickle_in_a_checkpoint_runs_no_code(tmp_path):
    class Code:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "made"),)

    np.savez(tmp_path / "model.npz", weights=np.array([Code()], object))
    with pytest.raises(InputError, match="model.npz: cannot be read"):
        checkpoint.load(tmp_path / "model.npz")
    assert not (tmp_path / "made").exists()


# Vocabularies ------------------------------------------------------------------------------


def test_a_damaged_vocabulary_of_a_model(stranger):
    (stranger / "bpe.model").write_bytes(b"damaged")
    error = evaluate(stranger, script="translate.py").stderr
    assert "bpe.model: not a sentencepiece model" in error and "copy the file again" in error


def test_the_vocabulary_that_was_loaded_is_saved(tmp_path, trained):
    """prepro.py may write another one while train.py encodes its text."""
    words = "".join(f"{word}\t9\n" for word in (*SPECIALS, "ein"))
    model = (Path(trained("tiny")["logdir"]) / "bpe.model").read_bytes()
    contents = {"bpe.model": model, "de.vocab.tsv": words.encode()}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    vocabs = [SubwordVocab(tmp_path / "bpe.model"), WordVocab(tmp_path / "de.vocab.tsv", 0)]
    for name in contents:
        (tmp_path / name).write_text("another")
    (tmp_path / "logdir").mkdir()
    save_vocabs(vocabs, tmp_path / "logdir")
    for name, content in contents.items():
        assert (tmp_path / "logdir" / name).read_bytes() == content


# Text from someone else -----------------------------------------------------------------


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("<seg>a&#10;b&#13;&#10; c</seg>", ["a b  c"]),
        ("<seg>&amp;lt;</seg>", ["&lt;"]),
        ("<seg>a</seg><!-- <seg>b</seg>\n --><seg>c</seg>", ["a", "c"]),
        ("<seg><![CDATA[a < b && <c>]]></seg>", ["a < b && <c>"]),
        ('<DOC><SEG ID="1">a</SEG></DOC>', ["a"]),
        ("<seg>a <b>c</b></seg>", ["a c"]),
        ("<seg><b>a</b> c</seg>", ["a c"]),
    ],
)
def test_segments_are_one_line_each(tmp_path, text, sentences):
    path = tmp_path / "test.xml"
    path.write_text(text)
    assert read_test_sentences(path)[1] == sentences


def test_quotation_marks_in_cdata_are_cleaned_as_elsewhere(tmp_path):
    path = tmp_path / "test.xml"
    text = """I don't say "no" at all"""
    path.write_text(f"<seg><![CDATA[{text}]]></seg><seg>{text}</seg>")
    assert read_test_sentences(path)[0] == ["I don't say no at all"] * 2


def test_a_message_has_the_line_number_after_comments_and_cdata(tmp_path):
    path = tmp_path / "test.xml"
    path.write_text("<seg><![CDATA[a\nb]]></seg>\n<!-- c\n -->\n<seg>d\n")
    with pytest.raises(InputError, match=f"{path}:5: this <seg> is not closed"):
        read_test_sentences(path)


@pytest.mark.parametrize("unit", ["<", "<seg ", "<!--", "<![CDATA[", "<a> "])
def test_no_markup_takes_more_than_linear_time(tmp_path, unit):
    """A million of these units once took an hour."""
    path = tmp_path / "test.xml"
    path.write_text(f"<seg>a</seg><seg>{unit * 200_000}</seg>")
    start = time.process_time()  # of this process: other programs do not count
    try:
        assert len(read_test_sentences(path)[1]) == 2
    except InputError as error:
        assert f"{path}:1: " in str(error)
    assert time.process_time() - start < 6  # about 0.3 s; quadratic time would be minutes
