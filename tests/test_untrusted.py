"""Models from someone else: they cannot choose where files are written, or run code."""

import hashlib
import json
import os
import shutil
import time
from pathlib import Path

import pytest

import checkpoint
import inference
from hparams import Hyperparams, hparams_path, make_hparams
from model import make_model
from processes import forked
from runtime.errors import InputError
from runtime.files import announce_inputs, check_folder
from text import read_test_sentences


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
    change(work / "st", results="results", source_test="st/source", target_test="st/target")
    return work / "st"


def change(logdir, /, **fields):
    """Change fields of hparams.json."""
    path = hparams_path(logdir)
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def evaluate(stranger, *words, script="eval.py"):
    """Run a script in the parent of the model's folder, and return its `CompletedProcess`."""
    done = forked([script, "--logdir", "st", "--beam", "1", *words], cwd=stranger.parent)
    assert "Traceback" not in done.stderr
    return done


def rename_checkpoint(stranger, name):
    """Rename the newest checkpoint, also in the file `checkpoint`."""
    path = checkpoint.latest(stranger)
    for suffix in checkpoint.SUFFIXES:
        os.rename(f"{path}{suffix}", f"{stranger / name}{suffix}")
    (stranger / "checkpoint").write_text(f'model_checkpoint_path: "{name}"\n')


def test_a_foreign_model_can_be_used(stranger):
    done = evaluate(stranger)
    assert done.returncode == 0, done.stderr
    assert len([*(stranger.parent / "results").iterdir()]) == 1


@pytest.mark.parametrize("name", [".bashrc", "model_epoch_1_gs_2x", "model.ckpt-1\x1b[2J", "a b"])
@pytest.mark.parametrize("script", ["eval.py", "train.py"])
def test_a_checkpoint_with_another_name_is_refused(stranger, name, script):
    rename_checkpoint(stranger, name)
    more = ["--recipe", "tiny"] if script == "train.py" else []
    done = evaluate(stranger, *more, script=script)
    assert done.returncode == 2 and "the name of a checkpoint is like" in done.stderr
    assert "\x1b" not in done.stderr


def test_results_are_written_where_the_user_says(stranger):
    home = stranger.parent.parent / "home"
    change(stranger, results=str(home))
    done = evaluate(stranger)
    assert done.returncode == 2 and f"add --results {home}" in done.stderr
    assert [path.name for path in home.iterdir()] == [".bashrc"]
    done = evaluate(stranger, "--results", str(home))
    assert done.returncode == 0 and len([*home.iterdir()]) == 2
    change(stranger, results="../home")
    assert evaluate(stranger).returncode == 2


def test_results_follow_no_link_out_of_the_folder(stranger):
    home = stranger.parent.parent / "home"
    name = checkpoint.latest(stranger).name
    change(stranger, results="st/results", beam=1)
    (stranger / "results").mkdir()
    (stranger / "results" / name).symlink_to(home / ".bashrc")
    done = evaluate(stranger)
    assert done.returncode == 2 and "outside the current folder" in done.stderr
    (stranger / "results" / name).unlink()
    (stranger / "results").rmdir()
    (stranger / "results").symlink_to(home)
    done = evaluate(stranger)
    assert done.returncode == 2 and "outside the current folder" in done.stderr
    assert (home / ".bashrc").read_text() == "mine\n" and len([*home.iterdir()]) == 1


def test_the_copy_of_other_results_follows_no_link(stranger):
    """The author of the results knows its name: it ends in their digest."""
    bashrc = stranger.parent.parent / "home" / ".bashrc"
    change(stranger, results="st/results", beam=1)
    path = stranger / "results" / checkpoint.latest(stranger).name
    path.parent.mkdir()
    path.write_text("echo theirs\n")
    copy = path.with_name(f"{path.name}.{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}")
    copy.symlink_to(bashrc)
    done = evaluate(stranger)
    assert done.returncode == 0 and "holds another evaluation. Copied it to" in done.stderr
    assert bashrc.read_text() == "mine\n"
    assert copy.read_text() == "echo theirs\n" and not copy.is_symlink()


@pytest.mark.parametrize("name", ["lock", "hparams.json", "dev_scores.json", "bpe.metadata.tsv"])
@pytest.mark.parametrize("choose_alpha", [False, True])
def test_training_follows_no_link_out_of_the_folder(stranger, name, choose_alpha):
    bashrc = stranger.parent.parent / "home" / ".bashrc"
    path = stranger / name
    if path.exists():
        bashrc.write_bytes(path.read_bytes())
        path.unlink()
    elif name == "dev_scores.json":  # valid, so that only the link is wrong
        bashrc.write_text('{"dev": "d", "metric": "bleu", "scores": {}}')
    before = bashrc.read_bytes()
    path.symlink_to(bashrc)
    more = ["--recipe", "tiny", "--source_train", "st/source", "--target_train", "st/target"]
    more += ["--num_epochs", "99"]
    if choose_alpha:  # all epochs are done
        more += ["--source_dev", "st/source", "--target_dev", "st/target"]
        more += ["--num_epochs", "1", "--alpha", "auto", "--beam", "2"]
    done = evaluate(stranger, *more, script="train.py")
    assert done.returncode == 2 and bashrc.read_bytes() == before
    assert f"st/{name}: is a link out of this folder" in done.stderr


def test_files_outside_the_folder_are_named_before_they_are_read(stranger):
    elsewhere = stranger.parent.parent / "home" / "secret"
    shutil.copy(stranger / "source", elsewhere)
    change(stranger, source_test=str(elsewhere))
    done = evaluate(stranger)
    assert f"Reading {elsewhere}, which st/hparams.json names as source_test" in done.stderr
    done = evaluate(stranger, "--source_test", str(elsewhere))
    assert done.returncode == 0 and "Reading" not in done.stderr


def test_each_of_several_files_outside_the_folder_is_named(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hp = Hyperparams(source_train="inside,/outside/a,../b")
    announce_inputs(hp, {}, "source_train")
    read = [line.split(",")[0] for line in capsys.readouterr().err.splitlines()]
    assert read == ["Reading /outside/a", "Reading ../b"]


@pytest.mark.parametrize(
    "fields",
    [
        dict(preprocessed="\0"),
        dict(results="a\x1b[31m"),
        dict(source_lang="de\n"),
        dict(source_lang="../de"),
        dict(logdir=3),
        dict(lr=float("nan")),
        dict(maxlen=2**31 - 1),  # a batch may be padded to this length
    ],
)
def test_an_invalid_field_is_refused(stranger, fields):
    change(stranger, **fields)
    done = evaluate(stranger)
    assert done.returncode == 2 and "st/hparams.json: not hyperparameters" in done.stderr
    assert "\x1b" not in done.stderr and "\0" not in done.stderr


def test_the_saved_logdir_is_ignored(stranger):
    change(stranger, logdir="../home")
    assert evaluate(stranger).returncode == 0


@pytest.mark.parametrize(
    "fields",
    [
        dict(hidden_units=65536),
        dict(num_blocks=1000),
        dict(ffn_units=65536),
        dict(tied_embeddings=False),
        dict(positions="product", maxlen=4000),
        dict(positions="hierarchical", maxlen=4000),
    ],
    ids=str,
)
def test_sizes_are_compared_before_a_model_is_built(stranger, fields, monkeypatch):
    change(stranger, **fields)
    monkeypatch.setattr(inference, "make_model", lambda *_: pytest.fail("was built"))
    with pytest.raises(InputError, match="variables do not match"):
        inference.load_model(dict(logdir=str(stranger)))


def test_sizes_are_compared_in_every_block(monkeypatch):
    """A kernel that the file lacks, or has in a small size, would be made of the size C."""
    fields = dict(hidden_units=16, ffn_units=24, num_blocks=3, num_heads=2)
    hp = make_hparams(dict(recipe="tiny") | fields)
    model = make_model(hp, 30, 30)
    weights = checkpoint.make_checkpoint(model).weights
    shapes = {checkpoint.checkpoint_key(name): [*v.shape] for name, v in weights.items()}
    monkeypatch.setattr(checkpoint, "saved_shapes", lambda _: shapes)
    checkpoint.check_sizes(hp, (30, 30), Path("model"))
    checked = 0
    for key, shape in shapes.items():
        for saved in (shapes | {key: [1, 1]}, {k: s for k, s in shapes.items() if k != key}):
            monkeypatch.setattr(checkpoint, "saved_shapes", lambda _, saved=saved: saved)
            try:
                checkpoint.check_sizes(hp, (30, 30), Path("model"))
            except InputError:
                checked += 1
                assert len(shape) == 2
    # The embedding; three attentions and two feed-forward layers in each of three blocks
    assert checked == 2 * (1 + 3 * 5)


@pytest.mark.parametrize("score", ["[" * 200_000, "1" + "0" * 400], ids=["deep", "large"])
def test_dev_scores_that_python_cannot_hold(tmp_path, score):
    content = f'{{"dev": "d", "metric": "bleu", "scores": {{"model_epoch_01_gs_1": {score}}}}}'
    (tmp_path / "dev_scores.json").write_text(content)
    with pytest.raises(InputError, match="dev_scores.json: holds no dev scores"):
        checkpoint.read_dev_scores(tmp_path)


def test_a_link_in_a_folder_of_the_model(tmp_path):
    (tmp_path / "model" / "plugins").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    check_folder(tmp_path / "model")
    link = tmp_path / "model" / "plugins" / "profile"
    link.symlink_to(tmp_path / "model")  # leads into the folder
    check_folder(tmp_path / "model")
    link.unlink()
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(InputError, match="profile: is a link out of this folder"):
        check_folder(tmp_path / "model")


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_score_that_is_not_finite(tmp_path, value):
    scores = f'{{"dev": "d", "metric": "bleu", "scores": {{"model_epoch_01_gs_1": {value}}}}}'
    (tmp_path / "dev_scores.json").write_text(scores)
    with pytest.raises(InputError, match="dev_scores.json: holds no dev scores"):
        checkpoint.read_dev_scores(tmp_path)


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
    path.write_text(f"<seg>a</seg><seg>{unit * 1_000_000}</seg>")
    start = time.process_time()  # of this process: other programs do not count
    try:
        assert len(read_test_sentences(path)[1]) == 2
    except InputError as error:
        assert f"{path}:1: " in str(error)
    assert time.process_time() - start < 60  # about 1 s; quadratic time would be 10 min
