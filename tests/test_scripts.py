"""The scripts as a person runs them, one after the other, and again."""

import json
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import checkpoint
import eval
import events
import prepro
import train
from conftest import (
    ROOT,
    SEED,
    SMALL,
    forked,
    forked_script,
    run_script,
    sample_pairs,
    write_corpus,
)
from decoding import load
from hparams import InputError, load_hparams
from model import make_model
from text import load_vocabs

TRAINING = SMALL | dict(batch_size=32, num_epochs=2, lr=0.003)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """All three scripts on 100 pairs: the folder's flags, and what the scripts printed."""
    pairs, tests = sample_pairs(100), sample_pairs(21, seed=1)
    long = ("sehr " * 20 + "lang", "very " * 20 + "long")
    flags = write_corpus(
        tmp_path_factory.mktemp("run"), pairs, [*tests[:7], long, ("", "x"), *tests[7:]]
    )
    printed = {}
    for script, more in (("prepro", {}), ("train", TRAINING), ("eval", {})):
        done = run_script(f"{script}.py", **flags, **more)
        assert done.returncode == 0, done.stderr
        printed[script] = done
    return flags, printed


def test_training_leaves_a_checkpoint_an_epoch(run):
    flags, printed = run
    assert checkpoint.newest(flags["logdir"]).name == "model_epoch_02_gs_6"
    names = re.findall(r"model_epoch_\d+_gs_\d+", printed["train"].stdout)
    assert names == ["model_epoch_01_gs_3", "model_epoch_02_gs_6"]
    assert "Training on 100 of 100 pairs" in printed["train"].stdout
    assert "epoch 2/2" in printed["train"].stderr  # the progress bar


def scalars(logdir):
    """TensorBoard's points, {name: {step: value}}."""
    curves = {}
    for path in events.files(logdir):
        for name, step, number, _ in events.points(path):
            assert step not in curves.setdefault(name, {})
            curves[name][step] = number
    return curves


def test_tensorboard_gets_loss_and_accuracy(run):
    points = scalars(run[0]["logdir"])
    assert set(points) == events.BY_STEP
    assert list(points["mean_loss"]) == list(points["acc"]) == [3, 6]
    assert points["mean_loss"][6] < points["mean_loss"][3]
    assert all(0 <= acc <= 1 for acc in points["acc"].values())


def test_results_are_in_the_documented_format(run):
    flags, printed = run
    with open(f"{flags['results']}/model_epoch_02_gs_6", encoding="utf-8") as file:
        *records, closing = file.read().split("\n\n")
    # Of 23 pairs one is too long and one empty; 21 are no multiple of the batch.
    assert len(records) == 21
    for record in records:
        assert re.fullmatch(r"- source: .+\n- expected: .+\n- got: .*", record)
    decoding, inputs, left_out, numbers, sacrebleu, lowercased, scored, bleu = closing.splitlines()
    assert decoding == "Decoding = greedy search, model_epoch_02_gs_6"
    assert re.fullmatch(r"Inputs = weights [0-9a-f]{16}, test set [0-9a-f]{16}", inputs)
    assert left_out.startswith("Left out = 2 of 23 (1 longer than 14 words, 1 with an empty line")
    assert numbers.endswith("= 8 9")
    assert re.match(r"sacreBLEU = [\d.]+ nrefs:1\|case:mixed\|.*version:", sacrebleu)
    assert re.match(r"sacreBLEU, lower-cased = [\d.]+ nrefs:1\|case:lc\|", lowercased)
    assert re.match(r"Pairs scored = \d+ of 23 ", scored)
    assert re.fullmatch(r"Bleu Score = [\d.]+", bleu)
    assert bleu in printed["eval"].stdout and "- got: " in printed["eval"].stdout


def test_training_that_is_done_says_so_and_changes_nothing(run):
    flags, _ = run
    before = checkpoint.newest(flags["logdir"]).with_suffix(".index").read_bytes()
    done = forked_script("train.py", **flags, **TRAINING)
    assert (
        done.returncode == 0
        and "all 2 epochs of this model (recipe legacy) are done" in done.stdout
    )
    assert checkpoint.newest(flags["logdir"]).with_suffix(".index").read_bytes() == before


def test_the_model_alone_tells_eval_its_hyperparameters(run):
    """Corpus, vocabularies and shape are read from logdir; no other flag is needed."""
    folder = Path(run[0]["logdir"]).parent
    done = forked(["eval.py", "--logdir", "logdir"], cwd=folder)
    assert done.returncode == 0, done.stderr
    assert run[1]["eval"].stdout == done.stdout and "Reading" not in done.stderr


def test_another_test_set_can_be_named(run, tmp_path):
    flags = write_corpus(tmp_path, sample_pairs(3, seed=2))
    tests = {name: flags[name] for name in ("source_test", "target_test", "results")}
    done = forked_script("eval.py", logdir=run[0]["logdir"], **tests)
    assert done.returncode == 0 and "Pairs scored = " in done.stdout and "of 3 " in done.stdout


# Vocabularies of a model ----------------------------------------------------------


@pytest.fixture(params=["legacy", "tiny"])
def moved(request, trained, tmp_path):
    """The flags of a model whose folder has moved to a machine that has nothing else."""
    flags = trained(request.param)
    shutil.copytree(flags["logdir"], tmp_path / "moved")
    gone = {name: str(tmp_path / "gone" / name) for name in ("preprocessed", "results")}
    return flags | gone | dict(logdir=str(tmp_path / "moved"))


def test_a_model_loads_without_the_folder_of_vocabularies(moved, trained, tmp_path):
    same = trained(moved["recipe"])
    outputs = []
    for flags in (same, moved):
        output = tmp_path / f"out{len(outputs)}"
        words = ["translate.py", "--logdir", flags["logdir"], "--preprocessed", "nowhere"]
        words += ["--source", flags["source_test"], "--output", str(output)]
        done = forked(words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        outputs.append(output.read_text("utf-8"))
    assert outputs[0] == outputs[1] and len(outputs[0]) > 30
    done = forked_script("eval.py", **moved)
    assert done.returncode == 0, done.stderr


def test_another_vocabulary_in_preprocessed_does_not_hinder_a_model(moved, tmp_path, capsys):
    """prepro.py run again, on other text: training resumes with the model's own, and says so."""
    other = write_corpus(tmp_path / "other", sample_pairs(80, seed=5))
    both = moved | {name: other[name] for name in ("source_train", "target_train", "preprocessed")}
    prepro.main(both | dict(vocab_size=200))
    before = hash_files(moved["logdir"], "*.model", "*.vocab.tsv")
    train.main(both | dict(num_epochs=13))
    printed = capsys.readouterr().out
    name = "bpe.model" if moved["recipe"] == "tiny" else "en.vocab.tsv"
    path = Path(other["preprocessed"]) / name
    assert f"{path} is not the vocabulary that this model was trained with" in printed
    assert checkpoint.epoch_and_step(checkpoint.newest(moved["logdir"]))[0] == 13
    assert hash_files(moved["logdir"], "*.model", "*.vocab.tsv") == before


def hash_files(folder, *patterns):
    """The content of some files of a folder, by name."""
    paths = [path for pattern in patterns for path in Path(folder).glob(pattern)]
    assert paths
    return {path.name: path.read_bytes() for path in paths}


def test_the_copy_of_a_vocabulary_may_be_missing_but_not_another_one(moved, trained):
    """The messages name a remedy that works."""
    copies = [*Path(moved["logdir"]).glob("*.model"), *Path(moved["logdir"]).glob("*.vocab.tsv")]
    content = copies[0].read_bytes()
    copies[0].unlink()
    with pytest.raises(InputError, match=f"gone/.*{copies[0].name}: no such file, nor a copy in"):
        load({"logdir": moved["logdir"], "preprocessed": moved["preprocessed"]})
    load({"logdir": moved["logdir"], "preprocessed": trained(moved["recipe"])["preprocessed"]})
    lines = content.replace(b"\tA", b"\tB").replace(b"der", b"dre")
    copies[0].write_bytes(lines)
    with pytest.raises(
        InputError, match="moved/.*: not the vocabulary .* Restore the file, or del"
    ):
        load({"logdir": moved["logdir"]})


# Files of results -----------------------------------------------------------------


def evaluate(logdir, *words, cwd):
    """The files of results/ after an evaluation, by name, and what was printed of errors."""
    done = forked(["eval.py", "--logdir", str(logdir), *words], cwd=cwd)
    assert done.returncode == 0, done.stderr
    files = (cwd / "results").iterdir()
    return {path.name: path.read_bytes() for path in files}, done.stderr


def test_evaluations_do_not_overwrite_each_other(run, tmp_path):
    """Other decoding, another test set, another model: each has its own file of results."""
    shutil.copytree(run[0]["logdir"], tmp_path / "logdir")
    shutil.copytree(run[0]["logdir"], tmp_path / "models" / "ja-zh")
    saved = json.loads((tmp_path / "logdir" / "hparams.json").read_text())
    for folder in ("logdir", "models/ja-zh"):
        own = saved | dict(results="results")
        (tmp_path / folder / "hparams.json").write_text(json.dumps(own))
    name = "model_epoch_02_gs_6"
    first, _ = evaluate("logdir", cwd=tmp_path)
    assert [*first] == [name]  # the documented call has the documented name
    again, messages = evaluate("logdir", cwd=tmp_path)
    assert again == first and "another evaluation" not in messages
    evaluate("logdir", "--beam", "3", "--alpha", "0.6", cwd=tmp_path)
    evaluate("./logdir/", "--average", "2", "--best", "false", cwd=tmp_path)
    evaluate("models/ja-zh", cwd=tmp_path)
    other = write_corpus(tmp_path / "other", sample_pairs(5, seed=9))
    tests = ["--source_test", other["source_test"], "--target_test", other["target_test"]]
    files, _ = evaluate("logdir", *tests, cwd=tmp_path)
    more = {f"{name}.{suffix}" for suffix in ("beam-3", "average-2", "ja-zh")}
    assert set(files) == {name, f"{name}.source_test-test.source"} | more
    assert files[name] == first[name]


def test_results_of_another_test_set_of_the_same_name_are_kept(run, tmp_path):
    shutil.copytree(run[0]["logdir"], tmp_path / "logdir")
    tests = write_corpus(tmp_path / "text", sample_pairs(5, seed=9))
    words = ["--source_test", tests["source_test"], "--target_test", tests["target_test"]]
    words += ["--results", "results"]
    (name, content), *_ = evaluate("logdir", *words, cwd=tmp_path)[0].items()
    write_corpus(tmp_path / "text", sample_pairs(5, seed=8))
    files, messages = evaluate("logdir", *words, cwd=tmp_path)
    (kept,) = set(files) - {name}
    assert files[kept] == content != files[name]
    assert f"results/{name}: holds another evaluation, which is called results/{kept}" in messages


# In this process, where TensorFlow is loaded already ------------------------------


def weights(flags):
    """Every weight of the newest checkpoint, by name."""
    hp, trained_with = load_hparams({"logdir": flags["logdir"]}, trained=True)
    vocabs = load_vocabs(hp, trained_with)
    model = make_model(hp, *map(len, vocabs))
    checkpoint.restore(checkpoint.trackable(model), checkpoint.newest(flags["logdir"]))
    return {name: v.numpy() for name, v in checkpoint.named_variables(model).items()}


def test_training_in_two_parts_equals_training_in_one(corpus, tmp_path):
    """Weights, optimizer, dropout and the order of the data go on where they were."""
    flags = corpus | SMALL | dict(batch_size=32, lr=0.003, dropout_rate=0.3)
    train.main(flags | dict(num_epochs=4))
    whole = weights(flags)
    parts = flags | dict(logdir=str(tmp_path / "parts"))
    train.main(parts | dict(num_epochs=1))
    train.main(parts | dict(num_epochs=4))
    for name, weight in weights(parts).items():
        np.testing.assert_allclose(weight, whole[name], atol=1e-5, err_msg=name)
    assert sorted(scalars(parts["logdir"])["mean_loss"]) == [3, 6, 9, 10, 12]


def test_going_on_within_an_epoch_needs_its_text(corpus, monkeypatch):
    flags = corpus | SMALL | dict(num_epochs=1, batch_size=10, save_steps=2)
    save = train.Training.save

    def save_and_stop(training, partial=False):
        save(training, partial)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(train.Training, "save", save_and_stop)
        train.main(flags)
    files = [Path(flags[side]) for side in ("source_train", "target_train")]
    before = [path.read_text("utf-8") for path in files]
    for path, text in zip(files, before, strict=True):
        path.write_text(f"{text}dog\n", "utf-8")
    with pytest.raises(InputError, match="train.source and .*: not the text that .*_partial was"):
        train.main(flags)
    for path, text in zip(files, before, strict=True):
        path.write_text(text, "utf-8")
    train.main(flags)
    assert checkpoint.newest(flags["logdir"]).name == "model_epoch_01_gs_9"


def test_another_vocabulary_stays_beside_the_new_one(corpus, capsys):
    path = Path(corpus["preprocessed"]) / "de.vocab.tsv"
    before = path.read_bytes()
    prepro.main(corpus)
    assert len([*path.parent.iterdir()]) == 2 and capsys.readouterr().err == ""
    for side in ("source_train", "target_train"):
        with open(corpus[side], "a") as file:
            file.write("Neu\n")
    prepro.main(corpus)
    (kept,) = path.parent.glob("de.vocab.tsv.*")
    assert kept.read_bytes() == before != path.read_bytes()
    assert f"{path}: the one that was there is {kept} now" in capsys.readouterr().err


def test_five_checkpoints_stay(corpus):
    train.main(corpus | SMALL | dict(num_epochs=7))
    names = [path.name for path in checkpoint.named(corpus["logdir"])]
    assert names == [f"model_epoch_0{epoch}_gs_{3 * epoch}" for epoch in range(3, 8)]
    assert len(list(Path(corpus["logdir"]).glob("model_epoch_*"))) == 2 * len(names)


def test_a_checkpoint_that_training_deletes_meanwhile_is_not_missed(corpus, monkeypatch):
    train.main(corpus | SMALL | dict(num_epochs=3))
    restore_mean, calls = checkpoint.restore_mean, []

    def delete_first(model, paths):
        calls.append(len(paths))
        if len(calls) == 1:
            Path(f"{paths[0]}.index").unlink()
        restore_mean(model, paths)

    monkeypatch.setattr(checkpoint, "restore_mean", delete_first)
    paths, *_ = load(dict(logdir=corpus["logdir"], average=3))
    assert calls == [3, 2] and len(paths) == 2


def test_seeds_differ(corpus, tmp_path):
    flags = corpus | SMALL | dict(num_epochs=1)
    train.main(flags)
    other = flags | dict(seed=1, logdir=str(tmp_path / "other"))
    train.main(other)
    again = flags | dict(logdir=str(tmp_path / "again"))
    train.main(again)

    def difference(flags, others):
        found = weights(flags)
        return max(np.abs(found[name] - w).max() for name, w in weights(others).items())

    # The same seed differs by rounding at most; another one begins with other weights.
    assert difference(flags, again) < 0.01 < 0.1 < difference(flags, other)


def test_a_learning_rate_flag_counts_when_going_on(corpus):
    flags = corpus | SMALL
    train.main(flags | dict(num_epochs=1))
    before = weights(flags)
    train.main(flags | dict(num_epochs=2, lr=1e-30))
    assert checkpoint.epoch_and_step(checkpoint.newest(flags["logdir"]))[0] == 2
    for name, weight in weights(flags).items():
        np.testing.assert_array_equal(weight, before[name])


def test_the_text_may_change_between_epochs(corpus):
    flags = corpus | SMALL
    train.main(flags | dict(num_epochs=1))
    for side in ("source_train", "target_train"):
        path = Path(flags[side])
        path.write_text(path.read_text("utf-8").split("\n", 1)[1], "utf-8")
    train.main(flags | dict(num_epochs=2))
    assert checkpoint.epoch_and_step(checkpoint.newest(flags["logdir"]))[0] == 2


def test_the_printed_loss_is_the_mean_of_the_epochs_steps(corpus, capsys, monkeypatch):
    monkeypatch.setattr(train, "SUMMARY_STEPS", 1)
    train.main(corpus | SMALL | dict(num_epochs=1, batch_size=20, lr=0.01))
    printed = float(re.search(r"mean_loss ([\d.]+) acc", capsys.readouterr().out)[1])
    losses = [*scalars(corpus["logdir"])["mean_loss"].values()]
    assert len(losses) == 4 and losses[0] - losses[-1] > 0.01
    assert printed == pytest.approx(np.mean(losses), abs=0.001)


def test_a_model_trained_in_bfloat16_translates_in_float32(corpus):
    flags = corpus | SMALL | dict(precision="bfloat16", num_epochs=1)
    train.main(flags)
    ids = np.array([[5, 6, 3]], np.int32)
    given = dict(logdir=flags["logdir"])
    for wanted, said in (("float32", {}), ("bfloat16", dict(precision="bfloat16"))):
        _, hp, model, _ = load(given | said)
        assert hp.precision == wanted
        assert model.compute_dtype == wanted and model(ids, ids).dtype == wanted


def test_a_corpus_smaller_than_a_batch_is_trained_on(tmp_path):
    flags = write_corpus(tmp_path, sample_pairs(5)) | SMALL
    prepro.main(flags)
    train.main(flags | dict(num_epochs=2, batch_size=32))
    assert checkpoint.newest(flags["logdir"]).name == "model_epoch_02_gs_2"


def test_it_learns_to_copy(tmp_path, capsys, record_property):
    """The whole system, until it translates: sentences of letters, into themselves."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdefgh"), size=6)) for _ in range(600)]
    pairs = [(line, line) for line in lines]
    flags = write_corpus(tmp_path, pairs[:550], pairs[550:])
    prepro.main(flags)
    model = dict(maxlen=7, min_cnt=1, hidden_units=64, num_blocks=1, num_heads=4, dropout_rate=0.0)
    train.main(flags | model | dict(batch_size=25, num_epochs=15, lr=0.003, seed=SEED))
    eval.main({name: flags[name] for name in ("logdir", "results")})
    score = re.search(r"Bleu Score = ([\d.]+)", capsys.readouterr().out)
    record_property("Bleu Score", score[1])
    assert float(score[1]) > 90


def test_ctrl_c_is_one_line_and_the_same_command_goes_on(corpus):
    flags = corpus | SMALL | dict(num_epochs=10_000)
    options = [f"--{name}={value}" for name, value in flags.items()]
    command = [sys.executable, str(ROOT / "train.py"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        while b"model_epoch_02" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        printed = process.stderr.read().decode()
    assert process.returncode == 130 and "Traceback" not in printed
    newest = checkpoint.newest(flags["logdir"])
    epoch, step = checkpoint.epoch_and_step(newest)
    assert f"after step {step}. The last checkpoint is {newest}. The same command" in printed
    done = forked_script("train.py", **flags | dict(num_epochs=epoch + 1))
    assert done.returncode == 0, done.stderr
    assert checkpoint.epoch_and_step(checkpoint.newest(flags["logdir"]))[0] == epoch + 1
