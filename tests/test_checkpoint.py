"""Saving and restoring checkpoints, and reading those of the 2017 code."""

import io
import json

import numpy as np
import pytest
import tensorflow as tf

import eval
from checkpoints import checkpoint
from checkpoints.checkpoint import (
    Row,
    assign,
    load,
    load_model_weights,
    load_newest,
    path_of,
    read_rows,
)
from helpers import write_lines
from support.errors import InputError
from support.files import lock_logdir
from text.bleu import bleu_score
from text.ids import SPECIALS
from translation.inference import load_model

# The checkpoints of a training --------------------------------------


def save_all(folder, rows, keep=5):
    """Save checkpoints one after the other; each has its step as its only parameter."""
    listed = []
    for row in rows:
        arrays = {"weights/a": np.full(2, row.step, np.float32), "optimizer/0": np.ones(3)}
        listed = checkpoint.save(folder, [*listed, row], arrays, keep)
    return listed


def steps_on_disk(folder):
    return sorted(int(path.stem.rpartition("_")[2]) for path in folder.glob("*.npz"))


def scored(epoch, step, score, done=True, metric="bleu", dev="d"):
    return Row(epoch, step, done, metric=metric, dev=dev, score=score)


PARTIAL, BY_TIME = dict(epoch_done=False), dict(epoch_done=False, by_time=True)


@pytest.mark.parametrize(
    "rows, keep, kept",
    [
        ([Row(i, 10 * i) for i in range(1, 8)], 5, [30, 40, 50, 60, 70]),
        ([Row(1, 10), *(Row(2, step, **PARTIAL) for step in (12, 14, 16))], 5, [10, 14, 16]),
        ([Row(1, 10), Row(2, 12, **PARTIAL), Row(2, 20)], 5, [10, 20]),
        ([Row(1, step, **PARTIAL) for step in (1, 2, 3, 4)], 5, [3, 4]),
        ([Row(1, step, **BY_TIME) for step in (1, 2, 3)], 5, [3]),
        ([Row(1, 10), Row(2, 12, **BY_TIME), Row(2, 14, **PARTIAL)], 1, [10, 14]),
        ([Row(1, 10, **PARTIAL), Row(1, 11, **PARTIAL), Row(1, 12, **BY_TIME)], 1, [10, 11, 12]),
        ([scored(i, 10 * i, score) for i, score in enumerate([1, 9, 2, 3], 1)], 2, [20, 30, 40]),
        ([scored(1, 10, 9.0, dev="other"), scored(2, 20, 1.0), scored(3, 30, 2.0)], 1, [30]),
        ([scored(1, 10, 9.0, metric="chrf"), scored(2, 20, 1.0), scored(3, 30, 0.5)], 1, [20, 30]),
        ([scored(1, step, 9.0 - step, done=False) for step in (2, 4, 6)], 2, [2, 4, 6]),
        ([scored(1, step, 1.0, done=False) for step in (2, 4, 6)], 2, [4, 6]),
    ],
)
def test_old_checkpoints_are_deleted(tmp_path, rows, keep, kept):
    """Their scores stay in the list."""
    save_all(tmp_path, rows, keep)
    assert steps_on_disk(tmp_path) == kept
    listed = [row for row in rows if row.step in kept or row.score is not None]
    assert read_rows(tmp_path) == listed


def test_files_of_others_stay(tmp_path):
    (tmp_path / "model_epoch_01_gs_9.npz").write_text("mine")
    save_all(tmp_path, [Row(i, 10 * i) for i in range(1, 4)], keep=1)
    assert (tmp_path / "model_epoch_01_gs_9.npz").read_text() == "mine"


@pytest.mark.parametrize(
    "rows, flags, used",
    [
        ([Row(1, 10), Row(2, 20), Row(2, 25, **PARTIAL)], {}, [25]),
        ([scored(1, 10, 9.0), scored(2, 20, 5.0), Row(3, 25, **PARTIAL, dev="d")], {}, [20]),
        ([scored(1, 10, 9.0), Row(2, 20)], {}, [20]),  # trained on without a development set
        ([Row(1, 5, **PARTIAL, dev="d")], {}, [5]),
        ([scored(1, 10, 9.0), scored(2, 20, 5.0)], dict(best=True), [10]),
        ([scored(1, 10, 9.0), scored(2, 20, 9.0), scored(3, 30, 5.0)], dict(best=True), [20]),
        ([Row(i, i) for i in range(96, 101)], dict(count=3), [98, 99, 100]),
        ([Row(i, i) for i in range(96, 101)], dict(count=9), [96, 97, 98, 99, 100]),
        ([Row(1, 74), Row(2, 75), Row(3, 76), Row(4, 100)], dict(count=9), [76, 100]),
        ([Row(1, 90, **PARTIAL), Row(2, 100)], dict(count=9), [100]),
    ],
)
def test_which_checkpoints_make_a_model(tmp_path, rows, flags, used):
    save_all(tmp_path, rows, keep=9)
    paths, weights = load_model_weights(tmp_path, **flags)
    assert [int(path.stem.rpartition("_")[2]) for path in paths] == used
    assert [*weights] == ["a"] and weights["a"] == pytest.approx([np.mean(used)] * 2)


@pytest.mark.parametrize("best", [False, True])
def test_a_folder_without_such_a_checkpoint(tmp_path, best):
    if best:
        save_all(tmp_path, [Row(1, 1)])
    with pytest.raises(InputError, match="holds no checkpoint"):
        load_model_weights(tmp_path, best=best)


# Damage -------------------------------------------------------------


def flip(content):
    return content[:150] + bytes([content[150] ^ 1]) + content[151:]


def npz_of(array):
    file = io.BytesIO()
    np.savez(file, a=array)
    return file.getvalue()


DAMAGE = {
    "bit": flip,
    "half": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "text": lambda _: b"hello\n",
    "pickle": lambda _: b"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00\x8c\x01a\x94.",
    "objects": lambda _: npz_of(np.array([dict(b=1)], object)),
    "missing": None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(tmp_path, capsys, damage):
    rows = save_all(tmp_path, [Row(1, 10), Row(2, 20)])
    path = path_of(tmp_path, rows[-1])
    if DAMAGE[damage]:
        path.write_bytes(DAMAGE[damage](path.read_bytes()))
        with pytest.raises(InputError, match=f"{path}: cannot be read"):
            load(path)
    else:
        path.unlink()
    left, arrays = load_newest(tmp_path, rows)
    assert left == rows[:1] and arrays["weights/a"][0] == 10
    assert (str(path) in capsys.readouterr().err) == bool(DAMAGE[damage])
    path_of(tmp_path, rows[0]).unlink()
    with pytest.raises(InputError, match=f"{tmp_path}: holds no checkpoint that can be read"):
        load_newest(tmp_path, rows)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"checkpoints": [1]}', '{"checkpoints": [{"epoch": 1}]}']
    + [f'{{"checkpoints": [{{"epoch": 1, "step": {step}}}]}}' for step in ('"../x"', 1.5, "null")],
)
def test_a_list_that_no_training_wrote_names_no_path(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InputError, match="run.json: does not list the checkpoints"):
        read_rows(tmp_path)


def test_run_json_is_read_as_it_was_written(tmp_path):
    """A field of an earlier version is left out."""
    row = Row(3, 7, False, 1 / 3, [7, 0.1, 2 / 3], "text", "dev", "chrf", 12.25)
    rows = [row._asdict() | dict(fingerprint="")]
    (tmp_path / "run.json").write_text(json.dumps(dict(checkpoints=rows)))
    (found,) = read_rows(tmp_path)
    assert found == row and found.name == "model_epoch_03_gs_7"


@pytest.mark.parametrize("change", ["none", "missing", "more", "shape", "nan", "inf"])
def test_variables_that_do_not_fit_are_named(change):
    variables = {name: tf.Variable([0.0, 0.0]) for name in ("a", "b")}
    arrays = {name: np.array([1, 2], np.float32) for name in variables}
    if change == "none":
        assign(variables, arrays, "x.npz")
        assert all(np.array_equal(variables[name], array) for name, array in arrays.items())
        return
    changes = dict(more=dict(c=np.zeros(2)), shape=dict(b=np.zeros(1)), missing={})
    changes |= dict(nan=dict(b=np.array([1, np.nan])), inf=dict(b=np.array([np.inf, 0])))
    if change == "missing":
        del arrays["b"]
    with pytest.raises(InputError, match="x.npz: (b|c) is "):
        assign(variables, arrays | changes[change], "x.npz")
    assert not np.any(variables["a"])  # none is set


# Locks --------------------------------------------------------------


def test_one_training_at_a_time_which_deletes_what_a_killed_one_left(tmp_path):
    left = tmp_path / "model_epoch_01_gs_1.npz.1234abcd.tmp"
    left.write_text("half")
    with lock_logdir(tmp_path):
        assert not left.exists()
        with pytest.raises(InputError, match="another training writes here"):
            with lock_logdir(tmp_path):
                pass
    with lock_logdir(tmp_path):
        pass


# Checkpoints of the 2017 code ---------------------------------------


def write_original(golden, folder):
    """Write a checkpoint like TensorFlow 1, with Adam's slots."""
    arrays = golden.group("w")
    arrays |= {f"{name}/Adam": np.zeros_like(v) for name, v in arrays.items()}
    arrays |= {"beta1_power": np.float32(0.9), "beta2_power": np.float32(0.98)}
    arrays["global_step"] = np.int32(430)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, array in arrays.items():
            tf.compat.v1.get_variable(name, initializer=array, use_resource=False)
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        saver.save(session, str(folder / "model_epoch_01_gs_430"), write_meta_graph=False)
    return folder / "model_epoch_01_gs_430"


def test_a_folder_of_2017_gives_the_original_logits(golden, tmp_path, capsys):
    """The sizes and `min_cnt` are inferred from the arrays and the vocabularies."""
    flags = dict(logdir=str(tmp_path), preprocessed=str(tmp_path))
    path = write_original(golden, tmp_path)
    (tmp_path / "model_epoch_01_gs_99.index").write_text("an older one")
    (tmp_path / "mine.index").write_text("of no training")
    for lang, size in zip(("de", "en"), golden.vocab_sizes, strict=True):
        words = [f"{special}\t9" for special in SPECIALS]
        words += [f"word{i}\t{3 if i < size else 2}" for i in range(4, size + 5)]
        write_lines(tmp_path / f"{lang}.vocab.tsv", words)
    paths, hp, model, vocabs = load_model(flags | dict(num_heads=golden.hparams["num_heads"]))
    assert paths == [path] and hp.min_cnt == 3 and [*map(len, vocabs)] == golden.vocab_sizes
    assert not golden.hparams["sinusoid"] and "assuming" not in capsys.readouterr().err
    for name in golden.hparams.keys() - {"lr", "sinusoid"}:
        assert getattr(hp, name) == golden.hparams[name]
    difference = np.abs(model(golden["x"], golden["y"]) - golden["logits"]).max()
    assert difference < 1e-5

    assert load_model(flags).hp.num_heads == 8
    assert f"{path}: assuming --num_heads 8, because the checkpoint" in capsys.readouterr().err
    for more, problem in (
        (dict(min_cnt=2), "this model has other vocabularies, of .* or give the right --min_cnt"),
        (dict(hidden_units=8), "trained with --hidden_units .*, not 8"),
    ):
        with pytest.raises(InputError, match=problem):
            load_model(flags | more)


def results_of(path):
    """Read the records of a results file and its Bleu Score."""
    records, closing = [], None
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("- source: "):
            records.append(block.split("\n"))
        else:
            closing = block
    return records, closing


def test_eval_gives_the_translations_of_the_2017_code(original_run, real_text, tmp_path):
    """All 896 translations of a training run with that code, and the Bleu Score of these."""
    text = real_text / "multi30k" / "test_2016_flickr"
    flags = {n: str(original_run / n) for n in ("logdir", "preprocessed")} | dict(num_heads=4)
    test = dict(source_test=f"{text}.de", target_test=f"{text}.en", results=str(tmp_path))
    eval.main(flags | test)
    expected, score = results_of(original_run / "results" / "model_epoch_15_gs_6450")
    got, _ = results_of(tmp_path / "model_epoch_15_gs_6450")
    assert len(expected) == 896 and len(got) == 952
    assert got[:896] == expected
    columns = [[record[i].partition(": ")[2] for record in got[:896]] for i in (1, 2)]
    bleu, _ = bleu_score(*columns)
    assert score.strip() == f"Bleu Score = {bleu}"
