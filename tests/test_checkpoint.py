"""Saving and restoring; the original's checkpoints."""

import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkpoint
import eval
from conftest import decoder, forked_script, write_corpus
from eval import bleu_score
from hparams import InputError
from model import Transformer
from modules import Adam, WarmUp
from search import greedy
from text import END, SPECIALS, START
from train import make_step

BATCH = tf.constant([[4, 5, 3, 0]])


def small(seed):
    keras.utils.set_random_seed(seed)
    model = Transformer(7, 8, 4, 16, 2, 4, dropout_rate=0.3)
    model(BATCH, BATCH)
    optimizer = Adam(WarmUp(0.01, 0))
    optimizer.build(model.trainable_variables)
    return model, optimizer


def trained(seed, steps):
    model, optimizer = small(seed)
    step = make_step(tf.distribute.get_strategy(), model, optimizer)
    for _ in range(steps):
        step(BATCH, BATCH)
    return model, optimizer


def test_names_cover_every_weight_once():
    model, _ = small(0)
    named = checkpoint.named_variables(model)
    assert {id(v) for v in named.values()} == {id(v) for v in model.trainable_variables}
    assert len(named) == len(model.trainable_variables)


def test_weights_optimizer_and_dropout_come_back(tmp_path):
    model, optimizer = trained(seed=1, steps=3)
    path = checkpoint.save(checkpoint.trackable(model, optimizer), tmp_path, 1, 3)
    assert path.name == "model_epoch_01_gs_3" and checkpoint.newest(tmp_path) == path

    again, again_optimizer = small(seed=2)
    checkpoint.restore(checkpoint.trackable(again, again_optimizer), path)
    ours = [*model.variables, *optimizer.variables]
    theirs = [*again.variables, *again_optimizer.variables]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=one.path)

    alone, _ = small(seed=3)
    checkpoint.restore(checkpoint.trackable(alone), path)
    np.testing.assert_array_equal(alone(BATCH, BATCH), model(BATCH, BATCH))


def test_the_newest_is_found_where_the_folder_now_stands(tmp_path):
    model, _ = small(0)
    parts = checkpoint.trackable(model)
    checkpoint.save(parts, tmp_path, 9, 90)
    path = checkpoint.save(parts, tmp_path, 10, 100)
    state = tmp_path / "checkpoint"
    assert checkpoint.newest(tmp_path) == path
    assert tf.train.latest_checkpoint(tmp_path) == str(path)
    state.write_text('model_checkpoint_path: "/elsewhere/logdir/model_epoch_09_gs_90"\n')
    assert checkpoint.newest(tmp_path).name == "model_epoch_09_gs_90"
    state.write_text('model_checkpoint_path: "model_epoch_11_gs_110"\n')
    with pytest.raises(InputError, match="there is no .*model_epoch_11_gs_110.index"):
        checkpoint.newest(tmp_path)
    state.write_text("")
    with pytest.raises(InputError, match="names no checkpoint"):
        checkpoint.newest(tmp_path)
    state.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="names no checkpoint"):
        checkpoint.newest(tmp_path)
    state.unlink()
    assert checkpoint.newest(tmp_path) == path


def test_going_back_loses_nothing(tmp_path):
    model, _ = small(0)
    parts = checkpoint.trackable(model)
    for epoch in range(1, 8):
        checkpoint.save(parts, tmp_path, epoch, 10 * epoch)
    assert [path.name[12:14] for path in checkpoint.named(tmp_path)] == "03 04 05 06 07".split()
    path = checkpoint.save(parts, tmp_path, 4, 40)
    assert checkpoint.newest(tmp_path) == path
    assert [path.name[12:14] for path in checkpoint.named(tmp_path)] == "03 04 05 06 07".split()


def test_files_with_other_names_are_let_be(tmp_path):
    model, _ = small(0)
    for name in ("model_epoch_01_gs_1_best.index", "writing.index"):
        (tmp_path / name).write_text("mine")
    path = checkpoint.save(checkpoint.trackable(model), tmp_path, 1, 1)
    assert checkpoint.named(tmp_path) == [path]
    assert (tmp_path / "model_epoch_01_gs_1_best.index").read_text() == "mine"


def write_files(folder, *names):
    for name in names:
        for ending in checkpoint.ENDINGS:
            (folder / f"{name}{ending}").write_text("")


def test_the_last_ones_are_those_of_the_epochs_just_before(tmp_path):
    names = [f"model_epoch_{epoch:02d}_gs_{epoch}0" for epoch in (2, 5, 6, 7)]
    write_files(tmp_path, *names, "model_epoch_07_gs_71_mine", "final")

    def last(name, count):
        return [path.name for path in checkpoint.last(tmp_path / name, count)]

    assert last(names[3], 1) == names[3:]
    assert last(names[3], 2) == names[2:]
    assert last(names[3], 10) == names[1:]  # 3 and 4 are gone
    assert last(names[2], 10) == names[1:3]
    assert last("final", 10) == ["final"]


def test_the_best_is_remembered_with_the_set_it_was_best_on(tmp_path):
    names = [f"model_epoch_0{epoch}_gs_{epoch}0" for epoch in (1, 2, 3)]
    assert checkpoint.best(tmp_path) is None and checkpoint.read_scores(tmp_path) == {}
    write_files(tmp_path, *names)
    scores = dict(zip(names, (11.0, 12.5, 12.0), strict=True))
    checkpoint.write_scores(tmp_path, scores, "dev.de")
    assert checkpoint.best(tmp_path).name == names[1]
    assert checkpoint.read_scores(tmp_path) == checkpoint.read_scores(tmp_path, "dev.de") == scores
    assert checkpoint.read_scores(tmp_path, "other.de") == {}
    (tmp_path / f"{names[1]}.index").unlink()
    assert checkpoint.best(tmp_path).name == names[2]


@pytest.mark.parametrize("text", ['{"bleu": 3', '{"bleu": 3, "dev": "d"}', '{"bleu": {"a": 1}}'])
def test_scores_that_cannot_be_read_are_named(tmp_path, text):
    (tmp_path / checkpoint.SCORES).write_text(text)
    with pytest.raises(InputError, match="dev_bleu.json: holds no BLEU"):
        checkpoint.read_scores(tmp_path)


def test_checkpoints_within_an_epoch_stay_until_its_end(tmp_path):
    model, _ = small(0)
    parts = checkpoint.trackable(model)

    def left():
        return [path.name[12:] for path in checkpoint.named(tmp_path)]

    for step in (10, 20, 30):
        path = checkpoint.save(parts, tmp_path, 1, step, partial=True)
    assert left() == ["01_gs_20_partial", "01_gs_30_partial"]
    assert checkpoint.newest(tmp_path) == path and checkpoint.epochs_done(path) == 0
    checkpoint.save(parts, tmp_path, 1, 30)
    assert left() == ["01_gs_30"]
    path = checkpoint.save(parts, tmp_path, 2, 40, partial=True)
    assert left() == ["01_gs_30", "02_gs_40_partial"]
    assert [other.name[12:] for other in checkpoint.last(path, 5)] == left()
    checkpoint.save(parts, tmp_path, 2, 50, keep=1)
    assert left() == ["02_gs_50"]


def damage(path, ending, way):
    """Cut a file of a checkpoint in half, or turn one bit of it."""
    file = Path(f"{path}{ending}")
    content = bytearray(file.read_bytes())
    if way == "cut":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 3] ^= 16
    file.write_bytes(content)


@pytest.mark.parametrize("way", ["cut", "bit"])
@pytest.mark.parametrize("ending", checkpoint.ENDINGS)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(tmp_path, capsys, ending, way):
    model, optimizer = trained(seed=1, steps=1)
    parts = checkpoint.trackable(model, optimizer)
    before = checkpoint.save(parts, tmp_path, 1, 1)
    path = checkpoint.save(parts, tmp_path, 2, 2)
    assert checkpoint.newest_whole(tmp_path) == path
    damage(path, ending, way)
    assert checkpoint.newest_whole(tmp_path) == before
    assert "model_epoch_02_gs_2: this checkpoint is damaged" in capsys.readouterr().err
    with pytest.raises(InputError, match="model_epoch_02_gs_2: this checkpoint is damaged"):
        checkpoint.restore(parts, path)
    damage(before, ending, way)
    with pytest.raises(InputError, match="model_epoch_01_gs_1: this checkpoint is damaged"):
        checkpoint.newest_whole(tmp_path)


@pytest.fixture(scope="module")
def parts():
    """A model and its optimizer as they are saved, for tests of files alone."""
    return checkpoint.trackable(*trained(seed=1, steps=1))


def test_the_newest_of_three_before_a_damaged_one_is_used(parts, tmp_path):
    paths = [checkpoint.save(parts, tmp_path, epoch, epoch) for epoch in (1, 2, 3, 4)]
    damage(paths[3], checkpoint.ENDINGS[0], "bit")
    assert checkpoint.newest_whole(tmp_path) == paths[2]
    damage(paths[2], checkpoint.ENDINGS[0], "bit")
    assert checkpoint.newest_whole(tmp_path) == paths[1]


def test_a_folder_may_have_any_name(parts, tmp_path):
    """TensorFlow's reader takes a path for a pattern of names."""
    for name in ("run[1]", "a\\b", "{a,b}", "a*?", "ü ü", "x\ny"):
        logdir = tmp_path / name
        logdir.mkdir()
        path = checkpoint.save(parts, logdir, 1, 1)
        assert checkpoint.newest_whole(logdir) == path and not checkpoint.is_original(path)
        checkpoint.restore(parts, path)


def test_a_checkpoint_that_is_deleted_while_it_is_read_gives_way_to_the_newer_one(
    parts, tmp_path, monkeypatch, capsys
):
    """Training ends an epoch: it writes the checkpoint of its end and deletes those within."""
    checkpoint.save(parts, tmp_path, 1, 10)
    checkpoint.save(parts, tmp_path, 2, 15, partial=True)
    read_error, calls = checkpoint.unreadable, []

    def end_the_epoch_first(path):
        calls.append(path.name)
        if len(calls) == 1:
            checkpoint.save(parts, tmp_path, 2, 20)
        return read_error(path)

    monkeypatch.setattr(checkpoint, "unreadable", end_the_epoch_first)
    assert checkpoint.newest_whole(tmp_path).name == "model_epoch_02_gs_20"
    assert calls == ["model_epoch_02_gs_15_partial", "model_epoch_02_gs_20"]
    assert "damaged" not in capsys.readouterr().err


def test_what_is_not_proven_damaged_is_not_to_be_deleted(parts, tmp_path, monkeypatch):
    for epoch in (1, 2):
        path = checkpoint.save(parts, tmp_path, epoch, epoch)
    denied = tf.errors.PermissionDeniedError(None, None, "denied")
    monkeypatch.setattr(checkpoint, "unreadable", lambda path: denied)
    with pytest.raises(InputError, match="cannot be read .denied.. Copy its two files") as raised:
        checkpoint.newest_whole(tmp_path)
    assert "delete" not in str(raised.value) and path.name in str(raised.value)


def test_data_without_an_index_is_deleted_once_there_is_a_newer_checkpoint(parts, tmp_path):
    """A kill between two renames, or between two deletions, leaves half a gigabyte."""
    paths = [checkpoint.save(parts, tmp_path, epoch, epoch) for epoch in (1, 2)]
    Path(f"{paths[0]}.index").unlink()
    newer = tmp_path / f"model_epoch_09_gs_9{checkpoint.ENDINGS[0]}"
    other = tmp_path / f"mine{checkpoint.ENDINGS[0]}"
    for path in (newer, other):
        path.write_text("copied just now")
    checkpoint.save(parts, tmp_path, 3, 3)
    left = {path.name for path in tmp_path.glob(f"*{checkpoint.ENDINGS[0]}")}
    names = {f"model_epoch_0{epoch}_gs_{epoch}{checkpoint.ENDINGS[0]}" for epoch in (2, 3, 9)}
    assert left == names | {other.name}


def test_an_unfinished_checkpoint_of_a_killed_training_is_deleted(tmp_path):
    left = tmp_path / f"{checkpoint.WRITING}{checkpoint.ENDINGS[0]}"
    left.write_text("half")
    with checkpoint.lock(tmp_path):
        assert not left.exists()


def test_one_training_at_a_time(tmp_path):
    with checkpoint.lock(tmp_path):
        with pytest.raises(
            InputError, match=f"another training writes here .process {os.getpid()}"
        ):
            with checkpoint.lock(tmp_path):
                pass
    with checkpoint.lock(tmp_path):
        pass


# The original's ------------------------------------------------------------------


def write_original(golden, folder, adam):
    """A checkpoint as TensorFlow 1 wrote it, with or without Adam's slots."""
    arrays = golden.group("w")
    if adam:
        arrays |= {f"{name}/Adam": np.zeros_like(v) for name, v in arrays.items()}
        arrays |= {"beta1_power": np.float32(0.9), "beta2_power": np.float32(0.98)}
    arrays["global_step"] = np.int32(430)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, array in arrays.items():
            tf.compat.v1.get_variable(name, initializer=array, use_resource=False)
        session.run(tf.compat.v1.global_variables_initializer())
        saver = tf.compat.v1.train.Saver()
        saver.save(session, str(folder / "model_epoch_01_gs_430"), write_meta_graph=False)
    return checkpoint.newest(folder)


@pytest.mark.parametrize("adam", [False, True])
def test_the_originals_checkpoint_gives_the_originals_logits(golden, tmp_path, adam):
    path = write_original(golden, tmp_path, adam)
    assert checkpoint.is_original(path)
    arrays = checkpoint.read_original(path)
    shape, sizes = checkpoint.original_shape(arrays)
    assert list(sizes) == golden.vocab_sizes
    expected = {k: v for k, v in golden.hparams.items() if k not in ("lr", "num_heads")}
    assert shape == expected

    model = Transformer(*sizes, num_heads=golden.hparams["num_heads"], **shape)
    model(golden["x"], golden["y"])
    checkpoint.assign_original(model, arrays)
    difference = np.abs(model(golden["x"], golden["y"]) - golden["logits"]).max()
    assert difference < 1e-5


def test_our_checkpoint_is_not_taken_for_the_originals(tmp_path):
    model, _ = small(0)
    path = checkpoint.save(checkpoint.trackable(model), tmp_path, 1, 1)
    assert not checkpoint.is_original(path)


@pytest.mark.parametrize("name, array", [("decoder/dec_pe/lookup_table", None), ("dense/bias", 3)])
def test_an_array_that_is_missing_or_of_another_shape_is_named(golden, name, array):
    arrays = golden.group("w")
    arrays.pop(name)
    if array:
        arrays[name] = np.zeros(array, np.float32)
    with pytest.raises(InputError, match=name):
        checkpoint.assign_original(golden.model(), arrays)


def test_eval_reads_shape_and_min_cnt_from_the_originals_checkpoint(golden, tmp_path, capsys):
    logdir, flags = tmp_path / "logdir", write_corpus(tmp_path, [("wda wf", "wca wg")])
    logdir.mkdir()
    path = write_original(golden, logdir, adam=True)
    (tmp_path / "preprocessed").mkdir()
    for lang, size in zip(("de", "en"), golden.vocab_sizes, strict=True):
        words = [f"{word}\t9" for word in SPECIALS]
        words += [f"{word(i)}\t{3 if i < size else 2}" for i in range(4, size + 5)]
        vocab = tmp_path / "preprocessed" / f"{lang}.vocab.tsv"
        vocab.write_text("".join(f"{line}\n" for line in words))
    eval.main(flags | {"num_heads": golden.hparams["num_heads"]})
    assert "taken to have num_heads" not in capsys.readouterr().out

    model = golden.model()
    x = np.zeros((1, golden.hparams["maxlen"]), np.int32)
    x[0, :3] = 30, 5, 3
    preds = greedy(*decoder(model, x), tf.constant([START]), golden.hparams["maxlen"], END)
    got = " ".join(word(i) for i in preds.numpy()[0]).split("</S>")[0].strip()
    records, _ = results_of(tmp_path / "results" / path.name)
    assert records == [["- source: wda wf", "- expected: wca wg", f"- got: {got}"]]


def word(i):
    """The word with id `i`: w and its digits as letters, since cleaning drops digits."""
    return SPECIALS[i] if i < 4 else "w" + "".join("abcdefghij"[int(digit)] for digit in str(i))


def results_of(path):
    """The records of a results file and its Bleu Score."""
    records, closing = [], None
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        if block.startswith("- source: "):
            records.append(block.split("\n"))
        else:
            closing = block
    return records, closing


def test_eval_gives_the_translations_that_the_original_gave(original_run, real_text, tmp_path):
    """All 896 that it wrote, of its own training run, and its own Bleu Score of them."""
    text = real_text / "multi30k" / "test_2016_flickr"
    done = forked_script(
        "eval.py",
        logdir=original_run / "logdir",
        preprocessed=original_run / "preprocessed",
        results=tmp_path,
        num_heads=4,
        source_test=f"{text}.de",
        target_test=f"{text}.en",
    )
    assert done.returncode == 0, done.stderr
    theirs, score = results_of(original_run / "results" / "model_epoch_15_gs_6450")
    ours, _ = results_of(tmp_path / "model_epoch_15_gs_6450")
    assert len(theirs) == 896 and len(ours) == 952
    assert ours[:896] == theirs
    columns = [[record[i].partition(": ")[2] for record in ours[:896]] for i in (1, 2)]
    bleu, _ = bleu_score(*columns)
    assert score.strip() == f"Bleu Score = {bleu}"
