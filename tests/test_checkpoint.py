"""Saving and restoring checkpoints, and reading those of the 2017 code."""

import json
import os
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import checkpoint
import eval
import manifest
import train
from conftest import decoder, slow, transformer, write_corpus
from eval import bleu_score
from helpers import run_main, save, saved_rows
from ids import BOS, EOS, SPECIALS
from interop import original
from optimizer import FusedAdam, InverseSqrtSchedule
from processes import forked_script
from runtime.errors import InputError
from search import greedy
from training_step import make_train_step
from variable_names import variables_by_2017_name

BATCH = tf.constant([[4, 5, 3, 0]])


def small_model(seed):
    keras.utils.set_random_seed(seed)
    sizes = dict(maxlen=4, hidden_units=16, num_blocks=2, num_heads=4)
    model = transformer(7, 8, **sizes, dropout_rate=0.3)
    model(BATCH, BATCH)
    optimizer = FusedAdam(InverseSqrtSchedule(0.01, 0))
    optimizer.build(model.trainable_variables)
    return model, optimizer


def trained_model(seed, steps):
    model, optimizer = small_model(seed)
    train_step = make_train_step(tf.distribute.get_strategy(), model, optimizer)
    for _ in range(steps):
        train_step(BATCH, BATCH)
    return model, optimizer


@pytest.fixture(scope="module")
def saved_objects():
    """A model and its optimizer, to be saved by tests that look at files only."""
    return checkpoint.make_checkpoint(*trained_model(seed=1, steps=1))


def test_names_cover_every_variable_once():
    model, _ = small_model(0)
    variables = variables_by_2017_name(model)
    assert {id(v) for v in variables.values()} == {id(v) for v in model.trainable_variables}
    assert len(variables) == len(model.trainable_variables)


def test_parameters_optimizer_and_dropout_are_restored(tmp_path):
    model, optimizer = trained_model(seed=1, steps=3)
    path = save(checkpoint.make_checkpoint(model, optimizer), tmp_path, 1, 3)
    assert path.name == "model_epoch_01_gs_3" and checkpoint.latest_readable(tmp_path) == path

    restored, restored_optimizer = small_model(seed=2)
    checkpoint.restore(checkpoint.make_checkpoint(restored, restored_optimizer), path)
    before = [*model.variables, *optimizer.variables]
    after = [*restored.variables, *restored_optimizer.variables]
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=one.path)

    model_only, _ = small_model(seed=3)
    checkpoint.restore(checkpoint.make_checkpoint(model_only), path)
    np.testing.assert_array_equal(model_only(BATCH, BATCH), model(BATCH, BATCH))


def test_tensorflow_finds_the_latest(saved_objects, tmp_path):
    save(saved_objects, tmp_path, 9, 90)
    path = save(saved_objects, tmp_path, 10, 100)
    assert checkpoint.latest_readable(tmp_path) == path
    assert tf.train.latest_checkpoint(tmp_path) == str(path)


def test_a_folder_without_a_list_of_its_checkpoints(saved_objects, tmp_path):
    """They were copied, and their names say where they belong."""
    before = save(saved_objects, tmp_path, 9, 90)
    path = save(saved_objects, tmp_path, 10, 100, False)
    expected = manifest.read_rows(tmp_path)
    (tmp_path / "run.json").unlink()
    assert manifest.read_rows(tmp_path) == expected
    state = tmp_path / "checkpoint"
    state.write_text('model_checkpoint_path: "/elsewhere/logdir/model_epoch_09_gs_90"\n')
    assert manifest.read_rows(tmp_path) == expected[:1]
    assert checkpoint.latest_readable(tmp_path) == before
    state.write_text('model_checkpoint_path: "model_epoch_11_gs_110"\n')
    with pytest.raises(InputError, match="there is no .*model_epoch_11_gs_110.index"):
        manifest.read_rows(tmp_path)
    for content in (b"", b"\xff\xfe"):
        state.write_bytes(content)
        with pytest.raises(InputError, match="names no checkpoint"):
            manifest.read_rows(tmp_path)
    state.unlink()
    assert checkpoint.latest_readable(tmp_path) == path


def test_a_newest_checkpoint_that_was_not_copied_is_named(saved_objects, tmp_path, capsys):
    before = save(saved_objects, tmp_path, 1, 10)
    path = save(saved_objects, tmp_path, 2, 20)
    for suffix in checkpoint.SUFFIXES:
        Path(f"{path}{suffix}").unlink()
    assert checkpoint.latest_readable(tmp_path) == before
    assert f"{path}: this checkpoint is damaged" in capsys.readouterr().err


def test_resuming_from_an_earlier_checkpoint_deletes_no_later_one(saved_objects, tmp_path):
    def epochs():
        return sorted(int(path.name[12:14]) for path in tmp_path.glob("*.index"))

    for epoch in range(1, 8):
        save(saved_objects, tmp_path, epoch, 10 * epoch)
    assert epochs() == [3, 4, 5, 6, 7]
    path = save(saved_objects, tmp_path, 4, 40)
    assert checkpoint.latest_readable(tmp_path) == path
    assert epochs() == [3, 4, 5, 6, 7]


def test_files_with_other_names_are_ignored(saved_objects, tmp_path):
    for name in ("model_epoch_01_gs_1_best.index", "writing.index"):
        (tmp_path / name).write_text("mine")
    path = save(saved_objects, tmp_path, 1, 1)
    (tmp_path / "run.json").unlink()
    assert [row.name for row in manifest.read_rows(tmp_path)] == [path.name]
    assert (tmp_path / "model_epoch_01_gs_1_best.index").read_text() == "mine"


def write_rows(folder, rows):
    content = dict(checkpoints=[row._asdict() for row in rows])
    (folder / manifest.RUN_FILE).write_text(json.dumps(content))


def write_files(folder, *names):
    for name in names:
        for suffix in checkpoint.SUFFIXES:
            (folder / f"{name}{suffix}").write_text("")


@pytest.fixture
def averaged(tmp_path):
    """Function of the name of a checkpoint and a count: the names of those to average."""
    return lambda name, count: [
        path.name for path in manifest.checkpoints_to_average(tmp_path / name, count)
    ]


def test_only_the_last_quarter_of_the_training_is_averaged(averaged, tmp_path):
    names = [f"model_epoch_{epoch:02d}_gs_{epoch}0" for epoch in range(1, 10)]
    write_files(tmp_path, *names, "model_epoch_09_gs_91_mine", "final")

    assert averaged(names[8], 1) == names[8:]
    assert averaged(names[8], 2) == names[7:]
    assert averaged(names[8], 10) == names[6:]  # after step 67.5 of 90
    assert averaged(names[5], 10) == names[4:6]
    assert averaged(names[3], 10) == names[3:4]  # step 30 is at three quarters
    assert averaged(names[0], 10) == names[:1]
    assert averaged("final", 10) == ["final"]


def test_evaluated_checkpoints_within_an_epoch_are_averaged(averaged, tmp_path):
    clocks = [(3, 25, False), (3, 30), (4, 35, False), (4, 40), (5, 44, False), (5, 46, False)]
    rows = [manifest.make_row(*clock) for clock in clocks]
    rows[:4] = [row._replace(score=1.0, metric="bleu", dev="digest") for row in rows[:4]]
    names = [row.name for row in rows]
    write_files(tmp_path, *names)
    write_rows(tmp_path, rows)

    assert averaged(names[3], 10) == names[2:4]  # step 30 is at three quarters of 40
    assert averaged(names[4], 10) == names[2:4]  # less than half an epoch after the last one
    assert averaged(names[5], 10) == [*names[2:4], names[5]]
    last = "model_epoch_999999999_gs_1"  # of someone else: the memory must not hold every epoch
    write_files(tmp_path, last)
    (tmp_path / "run.json").unlink()
    assert averaged(last, 2**31 - 1)[-1] == last


def test_checkpoints_of_a_rolled_back_training_are_not_averaged(saved_objects, averaged, tmp_path):
    first, *_ = [save(saved_objects, tmp_path, epoch, 22 * epoch) for epoch in (1, 2, 3, 4)]
    write_rows(tmp_path, manifest.rows_to(first))
    assert checkpoint.latest_readable(tmp_path) == first
    second = save(saved_objects, tmp_path, 2, 41)
    third = save(saved_objects, tmp_path, 3, 50)
    assert averaged(third.name, 10) == [second.name, third.name]
    assert (tmp_path / "model_epoch_02_gs_44.index").exists()  # it is not deleted


def test_the_best_is_one_of_those_with_the_last_metric_and_set(tmp_path):
    rows = [manifest.make_row(epoch, 10 * epoch) for epoch in (1, 2, 3, 4)]
    write_rows(tmp_path, rows)
    with pytest.raises(InputError, match="holds no checkpoint with a dev score"):
        manifest.require_best(tmp_path)
    names = [row.name for row in rows]
    write_files(tmp_path, *names)
    for i, (score, metric, dev) in enumerate(
        [(99.0, "bleu", "digest"), (12.5, "chrf", "digest"), (12.0, "chrf", "digest")]
    ):
        rows[i] = rows[i]._replace(score=score, metric=metric, dev=dev)
    write_rows(tmp_path, rows)
    assert manifest.require_best(tmp_path).name == names[1]
    (tmp_path / f"{names[1]}.index").unlink()
    assert manifest.require_best(tmp_path).name == names[2]
    write_rows(tmp_path, [row._replace(dev=row.dev and row.name) for row in rows])
    (tmp_path / f"{names[1]}.index").touch()
    assert manifest.require_best(tmp_path).name == names[2]


def test_an_evaluated_mid_epoch_checkpoint_is_listed_once(saved_objects, tmp_path):
    paths = [save(saved_objects, tmp_path, 1, step, False, score=1.0) for step in (10, 20)]
    state = tf.train.get_checkpoint_state(str(tmp_path))
    assert [*state.all_model_checkpoint_paths] == [*map(str, paths)]


def test_mid_epoch_checkpoints_stay_until_the_epoch_ends(saved_objects, tmp_path):
    def names():
        rows = saved_rows(tmp_path)
        assert {row.name for row in rows} == {path.stem for path in tmp_path.glob("*.index")}
        return [row.name[12:] for row in rows]

    for step in (10, 20, 30):
        path = save(saved_objects, tmp_path, 1, step, False)
    assert names() == ["01_gs_20_partial", "01_gs_30_partial"]
    assert checkpoint.latest_readable(tmp_path) == path
    assert saved_rows(tmp_path)[-1].epochs_done == 0
    save(saved_objects, tmp_path, 1, 30)
    assert names() == ["01_gs_30"]
    path = save(saved_objects, tmp_path, 2, 35, False)
    assert names() == ["01_gs_30", "02_gs_35_partial"]
    averaged = manifest.checkpoints_to_average(path, 5)  # less than half an epoch since step 30
    assert [other.name[12:] for other in averaged] == names()[:1]
    save(saved_objects, tmp_path, 2, 50, keep=1)
    assert names() == ["02_gs_50"]


def damage(path, suffix, how):
    """Cut a file of a checkpoint in half, or flip one bit of it."""
    file = Path(f"{path}{suffix}")
    content = bytearray(file.read_bytes())
    if how == "half":
        del content[len(content) // 2 :]
    else:
        content[len(content) // 3] ^= 16
    file.write_bytes(content)


@pytest.mark.parametrize("how", ["half", "bit"])
@pytest.mark.parametrize("suffix", checkpoint.SUFFIXES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    saved_objects, tmp_path, capsys, suffix, how
):
    before = save(saved_objects, tmp_path, 1, 1)
    path = save(saved_objects, tmp_path, 2, 2)
    assert checkpoint.latest_readable(tmp_path) == path
    damage(path, suffix, how)
    assert checkpoint.latest_readable(tmp_path) == before
    assert "model_epoch_02_gs_2: this checkpoint is damaged" in capsys.readouterr().err
    with pytest.raises(InputError, match="model_epoch_02_gs_2: this checkpoint is damaged"):
        checkpoint.restore(saved_objects, path)
    damage(before, suffix, how)
    with pytest.raises(InputError, match="model_epoch_01_gs_1: this checkpoint is damaged"):
        checkpoint.latest_readable(tmp_path)


def test_the_latest_of_three_before_a_damaged_one_is_used(saved_objects, tmp_path):
    paths = [save(saved_objects, tmp_path, epoch, epoch) for epoch in (1, 2, 3, 4)]
    damage(paths[3], checkpoint.SUFFIXES[0], "bit")
    assert checkpoint.latest_readable(tmp_path) == paths[2]
    damage(paths[2], checkpoint.SUFFIXES[0], "bit")
    assert checkpoint.latest_readable(tmp_path) == paths[1]


def test_a_folder_may_have_any_name(saved_objects, tmp_path):
    """TensorFlow's reader treats a path as a pattern."""
    for name in ("run[1]", "a\\b", "{a,b}", "a*?", "ü ü", "x\ny"):
        logdir = tmp_path / name
        logdir.mkdir()
        path = save(saved_objects, logdir, 1, 1)
        assert checkpoint.latest_readable(logdir) == path and not original.is_original(path)
        checkpoint.restore(saved_objects, path)


def test_a_folder_whose_name_is_not_utf_8(saved_objects, tmp_path, corpus):
    """TensorFlow cannot name it, but a model that was copied there can be read."""
    path = save(saved_objects, tmp_path / "logdir", 1, 1)
    logdir = tmp_path / os.fsdecode(b"mod\xe8le")
    path.parent.rename(logdir)
    path = logdir / path.name
    assert checkpoint.latest_readable(logdir) == path and not original.is_original(path)
    checkpoint.restore(saved_objects, path)
    with pytest.raises(InputError, match="this path is not UTF-8. Rename it"):
        run_main(train, corpus | dict(logdir=f"{logdir}2"))
    assert not Path(f"{logdir}2").exists()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_parameters_that_are_not_finite_are_refused(tmp_path, value):
    model, _ = small_model(0)
    variable = model.trainable_variables[-1]
    variable.assign(np.full(variable.shape, value))
    path = save(checkpoint.make_checkpoint(model), tmp_path, 1, 1)
    with pytest.raises(InputError, match=f"{path}: this checkpoint is damaged .* is not finite"):
        checkpoint.restore_average(model, [path])


def test_if_a_checkpoint_is_deleted_while_it_is_read_the_newer_one_is_used(
    saved_objects, tmp_path, monkeypatch, capsys
):
    """At the end of an epoch, training saves a checkpoint and deletes the mid-epoch ones."""
    save(saved_objects, tmp_path, 1, 10)
    save(saved_objects, tmp_path, 2, 15, False)
    read_error, calls = checkpoint.read_error, []

    def end_the_epoch_first(path):
        calls.append(path.name)
        if len(calls) == 1:
            save(saved_objects, tmp_path, 2, 20)
        return read_error(path)

    monkeypatch.setattr(checkpoint, "read_error", end_the_epoch_first)
    assert checkpoint.latest_readable(tmp_path).name == "model_epoch_02_gs_20"
    assert calls == ["model_epoch_02_gs_15_partial", "model_epoch_02_gs_20"]
    assert "damaged" not in capsys.readouterr().err


def test_a_message_about_an_unproven_damage_suggests_no_deletion(
    saved_objects, tmp_path, monkeypatch
):
    for epoch in (1, 2):
        path = save(saved_objects, tmp_path, epoch, epoch)
    denied = tf.errors.PermissionDeniedError(None, None, "denied")
    monkeypatch.setattr(checkpoint, "read_error", lambda path: denied)
    with pytest.raises(InputError, match="cannot be read .denied.. Copy its two files") as raised:
        checkpoint.latest_readable(tmp_path)
    assert "delete" not in str(raised.value) and path.name in str(raised.value)


def test_a_checkpoint_is_on_the_disk_before_it_gets_its_name(saved_objects, tmp_path, monkeypatch):
    """After a loss of power, a file with the name of a checkpoint is complete."""
    events = []
    for name in ("fsync", "durable_replace"):
        call = getattr(checkpoint, name)

        def record(*paths, name=name, call=call):
            events.append((name, Path(paths[0]).name))
            return call(*paths)

        monkeypatch.setattr(checkpoint, name, record)
    save(saved_objects, tmp_path, 1, 1)
    files = [f"{checkpoint.TEMP_NAME}{suffix}" for suffix in checkpoint.SUFFIXES]
    synced, named = [[(name, f) for f in files] for name in ("fsync", "durable_replace")]
    assert events[:4] == synced + named


def test_data_without_an_index_is_deleted_after_the_next_checkpoint(saved_objects, tmp_path):
    """A kill between two deletions can leave half a gigabyte."""
    paths = [save(saved_objects, tmp_path, epoch, epoch) for epoch in (1, 2)]
    Path(f"{paths[0]}.index").unlink()
    newer = tmp_path / f"model_epoch_09_gs_9{checkpoint.SUFFIXES[0]}"
    other = tmp_path / f"mine{checkpoint.SUFFIXES[0]}"
    for path in (newer, other):
        path.write_text("copied just now")
    save(saved_objects, tmp_path, 3, 3)
    existing = {path.name for path in tmp_path.glob(f"*{checkpoint.SUFFIXES[0]}")}
    names = {f"model_epoch_0{epoch}_gs_{epoch}{checkpoint.SUFFIXES[0]}" for epoch in (2, 3, 9)}
    assert existing == names | {other.name}


def test_an_unfinished_checkpoint_of_a_killed_run_is_deleted(tmp_path):
    file = tmp_path / f"{checkpoint.TEMP_NAME}{checkpoint.SUFFIXES[0]}"
    file.write_text("half")
    with checkpoint.lock(tmp_path):
        assert not file.exists()


@pytest.mark.parametrize("name", ["checkpoint", "run.json", "model_epoch_01_gs_1.index"])
def test_a_folder_in_place_of_a_file_is_noticed_before_training(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"{name}: is a folder"), checkpoint.lock(tmp_path):
        pass


def test_an_error_of_cleaning_up_does_not_hide_that_of_writing(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError("clean-up")

    monkeypatch.setattr(checkpoint, "delete_files", denied)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="no checkpoint can be written"):
        checkpoint.write(tf.train.Checkpoint(v=tf.Variable(1.0)), tmp_path / "file" / "model")


def test_one_training_run_at_a_time(tmp_path):
    with checkpoint.lock(tmp_path):
        message = f"another training run writes here .process {os.getpid()}"
        with pytest.raises(InputError, match=message):
            with checkpoint.lock(tmp_path):
                pass
    with checkpoint.lock(tmp_path):
        pass


# Checkpoints of the 2017 code -----------------------------------------------------


def write_original(golden, folder, adam):
    """Write a checkpoint like TensorFlow 1, with or without Adam's slots."""
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
    return checkpoint.latest_readable(folder)


@pytest.mark.parametrize("adam", [False, True])
def test_an_original_checkpoint_gives_the_original_logits(golden, tmp_path, adam):
    path = write_original(golden, tmp_path, adam)
    assert original.is_original(path)
    arrays = original.read_original(path)
    model_args, vocab_sizes = original.infer_model_args(arrays)
    assert list(vocab_sizes) == golden.vocab_sizes
    not_inferred = ("lr", "num_heads", "sinusoid")
    expected = {k: v for k, v in golden.hparams.items() if k not in not_inferred}
    assert not golden.hparams["sinusoid"] and model_args == expected

    model = transformer(*vocab_sizes, num_heads=golden.hparams["num_heads"], **model_args)
    model(golden["x"], golden["y"])
    original.assign_original(model, arrays)
    difference = np.abs(model(golden["x"], golden["y"]) - golden["logits"]).max()
    assert difference < 1e-5


def test_a_training_neither_resumes_nor_starts_from_an_original(golden, tmp_path, corpus):
    folder = tmp_path / "original"
    folder.mkdir()
    write_original(golden, folder, adam=True)
    message = f"{folder}/hparams.json: missing. .* A model of the 2017 code, which has no such file"
    for name in ("logdir", "start_from"):
        with pytest.raises(InputError, match=message):
            run_main(train, corpus | {name: str(folder)})


def test_our_checkpoint_is_not_treated_as_an_original(tmp_path):
    model, _ = small_model(0)
    path = save(checkpoint.make_checkpoint(model), tmp_path, 1, 1)
    assert not original.is_original(path)


@pytest.mark.parametrize("name, array", [("decoder/dec_pe/lookup_table", None), ("dense/bias", 3)])
def test_an_array_that_is_missing_or_has_another_shape_is_named(golden, name, array):
    arrays = golden.group("w")
    arrays.pop(name)
    if array:
        arrays[name] = np.zeros(array, np.float32)
    with pytest.raises(InputError, match=name):
        original.assign_original(golden.model(), arrays)


@slow
def test_eval_infers_sizes_and_min_cnt_from_an_original_checkpoint(golden, tmp_path, capsys):
    logdir, flags = tmp_path / "logdir", write_corpus(tmp_path, [("wda wf", "wca wg")])
    logdir.mkdir()
    path = write_original(golden, logdir, adam=True)
    (tmp_path / "preprocessed").mkdir()
    for lang, size in zip(("de", "en"), golden.vocab_sizes, strict=True):
        words = [f"{special}\t9" for special in SPECIALS]
        words += [f"{word(i)}\t{3 if i < size else 2}" for i in range(4, size + 5)]
        vocab = tmp_path / "preprocessed" / f"{lang}.vocab.tsv"
        vocab.write_text("".join(f"{line}\n" for line in words))
    run_main(eval, flags | {"num_heads": golden.hparams["num_heads"]})
    assert "assuming num_heads" not in capsys.readouterr().out

    run_main(eval, flags | dict(results=str(tmp_path / "assumed")))
    assert f"{path}: assuming num_heads 8, because the checkpoint" in capsys.readouterr().out

    model = golden.model()
    x = np.zeros((1, golden.hparams["maxlen"]), np.int32)
    x[0, :3] = 30, 5, 3
    preds = greedy(*decoder(model, x), tf.constant([BOS]), golden.hparams["maxlen"], EOS)
    got = " ".join(word(i) for i in preds.numpy()[0]).split("</S>")[0].strip()
    records, _ = results_of(tmp_path / "results" / path.name)
    assert records == [["- source: wda wf", "- expected: wca wg", f"- got: {got}"]]


def word(i):
    """Make the word with id `i`: w and its digits as letters, since cleaning drops digits."""
    return SPECIALS[i] if i < 4 else "w" + "".join("abcdefghij"[int(digit)] for digit in str(i))


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
    expected, score = results_of(original_run / "results" / "model_epoch_15_gs_6450")
    got, _ = results_of(tmp_path / "model_epoch_15_gs_6450")
    assert len(expected) == 896 and len(got) == 952
    assert got[:896] == expected
    columns = [[record[i].partition(": ")[2] for record in got[:896]] for i in (1, 2)]
    bleu, _ = bleu_score(*columns)
    assert score.strip() == f"Bleu Score = {bleu}"
