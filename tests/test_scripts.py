"""The scripts as a user runs them, one after the other, and again."""

import dataclasses
import fcntl
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import checkpoint
import eval
import prepro
import train
import trainer
from conftest import SMALL, needs_bfloat16, sample_pairs, seeds, slow, write_corpus
from data_load import load_train_data
from helpers import STEP_TAGS, load, parameters, run_main, saved_rows, scalars
from hparams import Hyperparams, make_hparams
from processes import ROOT, Forked, command_line, forked, forked_script
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError
from runtime.flags import AUTO
from runtime.signals import SignalGuard
from vocab import load_vocabs

TRAINING = SMALL | dict(batch_size=32, num_epochs=2, lr=0.003)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run all three scripts on 100 pairs; returns the flags, and the finished processes."""
    pairs, tests = sample_pairs(100), sample_pairs(21, seed=1)
    long = ("sehr " * 20 + "lang", "very " * 20 + "long")
    flags = write_corpus(
        tmp_path_factory.mktemp("run"), pairs, [*tests[:7], long, ("", "x"), *tests[7:]]
    )
    printed = {}
    for script, more in (("prepro", {}), ("train", TRAINING), ("eval", {})):
        done = forked_script(f"{script}.py", **flags, **more)
        assert done.returncode == 0, done.stderr
        printed[script] = done
    return flags, printed


def test_training_saves_one_checkpoint_per_epoch(run):
    flags, printed = run
    assert checkpoint.latest_readable(flags["logdir"]).name == "model_epoch_02_gs_6"
    names = re.findall(r"model_epoch_\d+_gs_\d+", printed["train"].stdout)
    assert names == ["model_epoch_01_gs_3", "model_epoch_02_gs_6"]
    assert "Training on 100 of 100 pairs" in printed["train"].stdout
    assert "epoch 2/2" in printed["train"].stderr  # the progress bar


def test_the_file_of_hyperparameters_of_2017_is_not_read(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("hyperparams.py").write_text("class Hyperparams:\n    maxlen = 20\n")
    run_main(prepro, corpus)
    assert "hyperparams.py: is not read. Give its values as flags" in capsys.readouterr().err


def test_tensorboard_gets_loss_and_accuracy(run):
    points = scalars(run[0]["logdir"])
    assert set(points) == STEP_TAGS
    assert list(points["mean_loss"]) == list(points["acc"]) == [3, 6]
    assert points["mean_loss"][6] < points["mean_loss"][3]
    assert all(0 <= acc <= 1 for acc in points["acc"].values())


def test_results_have_the_format_of_the_2017_code(run):
    flags, printed = run
    with open(f"{flags['results']}/model_epoch_02_gs_6", encoding="utf-8") as file:
        *records, closing = file.read().split("\n\n")
    # 23 pairs without one that is too long and one that is empty. 21 is no multiple of the batch.
    assert len(records) == 21
    for record in records:
        assert re.fullmatch(r"- source: .+\n- expected: .+\n- got: .*", record)
    decoding, names, at_limit, left_out, numbers, *scores = closing.splitlines()
    *sacrebleu, intervals, scored, bleu = scores
    assert re.fullmatch(r"Ended at the limit = \d+ of 21", at_limit)
    assert decoding == "Decoding = greedy search, model_epoch_02_gs_6"
    assert names == "Test set = test.source, test.target"
    assert left_out.startswith("Left out = 2 of 23 (1 longer than 14 words, 1 with an empty line")
    assert numbers.endswith("= 8 9")
    assert re.match(r"sacreBLEU = [\d.]+ nrefs:1\|case:mixed\|.*version:", sacrebleu[0])
    assert re.match(r"sacreBLEU, lower-cased = [\d.]+ nrefs:1\|case:lc\|", sacrebleu[1])
    assert re.match(r"chrF = [\d.]+ nrefs:1\|case:mixed\|", sacrebleu[2]) and len(sacrebleu) == 3
    assert intervals.startswith("95% intervals = BLEU ")
    assert re.match(r"Pairs scored = \d+ of 23 ", scored)
    assert re.fullmatch(r"Bleu Score = [\d.]+", bleu)
    assert bleu in printed["eval"].stdout and "- got: " in printed["eval"].stdout


@slow
def test_training_again_after_all_epochs_changes_no_checkpoint(run):
    flags, _ = run
    before = checkpoint.latest_readable(flags["logdir"]).with_suffix(".index").read_bytes()
    done = forked_script("train.py", **flags, **TRAINING)
    assert done.returncode == 0
    assert "all 2 epochs of this model (recipe legacy) are done" in done.stdout
    assert checkpoint.latest_readable(flags["logdir"]).with_suffix(".index").read_bytes() == before


def test_eval_reads_all_hyperparameters_from_logdir(run):
    """It needs no other flag for the corpus, the vocabularies and the sizes of the model."""
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


@pytest.fixture(params=[pytest.param("legacy", marks=slow), "tiny"])
def moved(request, trained, tmp_path):
    """The flags of a model whose folder was moved to a machine without its other files."""
    flags = trained(request.param)
    shutil.copytree(flags["logdir"], tmp_path / "moved")
    missing = {name: str(tmp_path / "missing" / name) for name in ("preprocessed", "results")}
    return flags | missing | dict(logdir=str(tmp_path / "moved"))


def test_a_model_loads_without_the_folder_of_vocabularies(moved, trained, tmp_path):
    outputs = []
    for flags in (trained(moved["recipe"]), moved):
        output = tmp_path / f"out{len(outputs)}"
        words = ["translate.py", "--logdir", flags["logdir"], "--preprocessed", "nowhere"]
        words += ["--beam", "1"]
        words += ["--source", flags["source_test"], "--output", str(output)]
        done = forked(words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        outputs.append(output.read_text("utf-8"))
    assert outputs[0] == outputs[1] and len(outputs[0]) > 30
    done = forked_script("eval.py", **moved, beam=1)
    assert done.returncode == 0, done.stderr


@slow
def test_training_resumes_with_the_vocabulary_of_the_model(moved, trained, tmp_path, capsys):
    """It prints a note if prepro.py has written another one since."""
    other = write_corpus(tmp_path / "other", sample_pairs(80, seed=5))
    both = moved | {name: other[name] for name in ("source_train", "target_train", "preprocessed")}
    run_main(prepro, both | dict(vocab_size=200))
    before = read_files(moved["logdir"], "*.model", "*.vocab.tsv")
    run_main(train, both | dict(num_epochs=13))
    printed = capsys.readouterr().out
    name = "bpe.model" if moved["recipe"] == "tiny" else "en.vocab.tsv"
    path = Path(other["preprocessed"]) / name
    assert f"{path} is not the vocabulary that this model was trained with" in printed
    assert saved_rows(moved["logdir"])[-1].epoch == 13
    assert read_files(moved["logdir"], "*.model", "*.vocab.tsv") == before
    own = dict(preprocessed=trained(moved["recipe"])["preprocessed"], num_epochs=14)
    run_main(train, both | own)
    assert "is not the vocabulary" not in capsys.readouterr().out


@slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_flag_deterministic_reaches_tensorflow(corpus, monkeypatch, deterministic):
    calls = []
    monkeypatch.setattr(
        train.tf.config.experimental, "enable_op_determinism", lambda: calls.append(1)
    )
    run_main(train, corpus | SMALL | dict(num_epochs=1, deterministic=deterministic))
    assert calls == [1] * deterministic


def read_files(folder, *patterns):
    """Read some files of a folder; returns their content by name."""
    paths = [path for pattern in patterns for path in Path(folder).glob(pattern)]
    assert paths
    return {path.name: path.read_bytes() for path in paths}


def test_hyperparameters_are_made_twice_before_a_training_begins(tmp_path, monkeypatch):
    """From the flags, and with all that the text decides."""
    flags = write_corpus(tmp_path, sample_pairs(40)) | dict(recipe="tiny")
    run_main(prepro, flags)
    made, check = [], Hyperparams.__post_init__
    monkeypatch.setattr(Hyperparams, "__post_init__", lambda hp: made.append(hp) or check(hp))

    def begin(hp, *_):
        assert AUTO not in (hp.vocab_size, hp.num_epochs, hp.warmup_steps) and hp.vocab_sha256
        raise InputError("begins")

    monkeypatch.setattr(train, "Trainer", begin)
    with pytest.raises(InputError, match="begins"):
        run_main(train, flags)
    assert len(made) == 2


def test_the_copy_of_a_vocabulary_may_be_missing_but_not_differ(moved, trained):
    """The messages name a remedy that works."""
    copies = [*Path(moved["logdir"]).glob("*.model"), *Path(moved["logdir"]).glob("*.vocab.tsv")]
    content = copies[0].read_bytes()
    copies[0].unlink()
    message = f"missing/.*{copies[0].name}: no such file, nor a copy in"
    with pytest.raises(InputError, match=message):
        load({"logdir": moved["logdir"], "preprocessed": moved["preprocessed"]})
    load({"logdir": moved["logdir"], "preprocessed": trained(moved["recipe"])["preprocessed"]})
    lines = content.replace(b"\tA", b"\tB").replace(b"der", b"dre")
    copies[0].write_bytes(lines)
    message = "moved/.*: not the vocabulary .* Restore the file.* delete this one"
    with pytest.raises(InputError, match=message):
        load({"logdir": moved["logdir"]})


# In this process, which has loaded TensorFlow already ------------------------------


@slow
def test_training_in_two_runs_equals_training_in_one(corpus, tmp_path):
    """Parameters, optimizer, dropout and the order of the data are resumed."""
    flags = corpus | SMALL | dict(batch_size=32, lr=0.003, dropout_rate=0.3)
    run_main(train, flags | dict(num_epochs=4))
    expected = parameters(flags["logdir"])
    resumed = flags | dict(logdir=str(tmp_path / "resumed"))
    run_main(train, resumed | dict(num_epochs=1))
    run_main(train, resumed | dict(num_epochs=4))
    for name, parameter in parameters(resumed["logdir"]).items():
        np.testing.assert_allclose(parameter, expected[name], atol=1e-5, err_msg=name)
    assert sorted(scalars(resumed["logdir"])["mean_loss"]) == [3, 6, 9, 10, 12]


@slow
def test_resuming_in_mid_epoch_needs_the_same_text(corpus, monkeypatch):
    flags = corpus | SMALL | dict(num_epochs=1, batch_size=10, save_steps=2)
    save = trainer.Trainer.save

    def save_and_stop(self):
        save(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(trainer.Trainer, "save", save_and_stop)
        run_main(train, flags)
    files = [Path(flags[side]) for side in ("source_train", "target_train")]
    before = [path.read_text("utf-8") for path in files]
    for path, text in zip(files, before, strict=True):
        path.write_text(f"{text}dog\n", "utf-8")
    message = "train.source and .*: the training text has changed since .*_partial was saved in mid"
    with pytest.raises(InputError, match=message):
        run_main(train, flags)
    for path, text in zip(files, before, strict=True):
        path.write_text(text, "utf-8")
    run_main(train, flags)
    assert checkpoint.latest_readable(flags["logdir"]).name == "model_epoch_01_gs_9"


def test_the_development_set_is_not_the_test_set(corpus, tmp_path):
    pairs = sample_pairs(7, seed=5)
    files = write_corpus(tmp_path / "dev", pairs)
    names = dict(source_dev=files["source_train"], target_dev=files["target_train"])
    hp = make_hparams(corpus | SMALL | names)
    assert train.find_start(hp.given).dev.references == [[text for _, text in pairs]]


def test_another_vocabulary_is_kept_next_to_the_new_one(corpus, capsys):
    path = Path(corpus["preprocessed"]) / "de.vocab.tsv"
    before = path.read_bytes()
    run_main(prepro, corpus)
    assert len([*path.parent.iterdir()]) == 2 and capsys.readouterr().err == ""
    for side in ("source_train", "target_train"):
        with open(corpus[side], "a") as file:
            file.write("Neu\n")
    run_main(prepro, corpus)
    (kept,) = path.parent.glob("de.vocab.tsv.*")
    assert kept.read_bytes() == before != path.read_bytes()
    assert f"{path}: the previous file is now {kept}" in capsys.readouterr().err


@slow
def test_five_checkpoints_stay(corpus):
    run_main(train, corpus | SMALL | dict(num_epochs=7))
    names = [row.name for row in saved_rows(corpus["logdir"])]
    assert names == [f"model_epoch_0{epoch}_gs_{3 * epoch}" for epoch in range(3, 8)]
    assert len(list(Path(corpus["logdir"]).glob("model_epoch_*"))) == 2 * len(names)


def test_the_seed_decides_the_initial_parameters(corpus):
    hp = make_hparams(corpus | SMALL)
    vocabs = load_vocabs(hp)

    def initial(seed):
        return trainer.Trainer(dataclasses.replace(hp, seed=seed), vocabs).model.get_weights()

    def differ(ours, theirs):
        return any(np.any(one != other) for one, other in zip(ours, theirs, strict=True))

    first, again, other = initial(0), initial(0), initial(1)
    assert not differ(first, again) and differ(first, other)


@slow
def test_text_and_learning_rate_may_change_between_epochs(corpus, capsys):
    flags = corpus | SMALL
    run_main(train, flags | dict(num_epochs=1))
    before = parameters(flags["logdir"])
    for side in ("source_train", "target_train"):
        path = Path(flags[side])
        path.write_text(path.read_text("utf-8").split("\n", 40)[40], "utf-8")
    capsys.readouterr()
    run_main(train, flags | dict(num_epochs=2, lr=1e-30))
    printed = capsys.readouterr().out
    assert "lr is now 1e-30. It was 0.0001 in the training so far" in printed
    assert "num_epochs is now 2. It was 1" in printed and "seed is now" not in printed
    assert checkpoint.latest_readable(flags["logdir"]).name == "model_epoch_02_gs_4"
    for name, parameter in parameters(flags["logdir"]).items():
        np.testing.assert_array_equal(parameter, before[name])


def test_the_printed_loss_is_the_mean_of_the_epochs_steps(corpus, capsys, monkeypatch):
    monkeypatch.setattr(trainer, "SUMMARY_STEPS", 1)
    run_main(train, corpus | SMALL | dict(num_epochs=1, batch_size=20, lr=0.01))
    printed = float(re.search(r"mean_loss ([\d.]+) acc", capsys.readouterr().out)[1])
    losses = [*scalars(corpus["logdir"])["mean_loss"].values()]
    assert len(losses) == 4 and losses[0] - losses[-1] > 0.01
    assert printed == pytest.approx(np.mean(losses), abs=0.001)


@slow
@needs_bfloat16
def test_a_model_trained_in_bfloat16_translates_in_float32(corpus):
    flags = corpus | SMALL | dict(precision="bfloat16", num_epochs=1)
    run_main(train, flags)
    ids = np.array([[5, 6, 3]], np.int32)
    logdir = dict(logdir=flags["logdir"])
    for expected, more in (("float32", {}), ("bfloat16", dict(precision="bfloat16"))):
        _, hp, model, _ = load(logdir | more)
        assert hp.precision == expected
        assert model.compute_dtype == expected and model(ids, ids).dtype == expected


@slow
def test_a_corpus_smaller_than_a_batch_is_trained_on(tmp_path):
    flags = write_corpus(tmp_path, sample_pairs(5)) | SMALL
    run_main(prepro, flags)
    run_main(train, flags | dict(num_epochs=2, batch_size=32))
    assert checkpoint.latest_readable(flags["logdir"]).name == "model_epoch_02_gs_2"


@slow
@seeds
def test_it_learns_to_copy(seed, tmp_path, capsys, record_property):
    """The complete system learns to copy sentences of letters."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(list("abcdefgh"), size=6)) for _ in range(600)]
    pairs = [(line, line) for line in lines]
    flags = write_corpus(tmp_path, pairs[:550], pairs[550:])
    run_main(prepro, flags)
    model = dict(maxlen=7, min_cnt=1, hidden_units=64, num_blocks=1, num_heads=4, dropout_rate=0.0)
    run_main(train, flags | model | dict(batch_size=25, num_epochs=15, lr=0.003, seed=seed))
    run_main(eval, {name: flags[name] for name in ("logdir", "results")})
    score = re.search(r"Bleu Score = ([\d.]+)", capsys.readouterr().out)
    record_property("Bleu Score", score[1])
    assert float(score[1]) > 90


@slow
def test_ctrl_c_prints_one_line_and_the_same_command_resumes(corpus):
    flags = corpus | SMALL | dict(num_epochs=10_000)
    with Forked(["train.py", *command_line(flags)]) as process:
        while "model_epoch_02" not in process.stdout.readline():
            pass
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        printed = process.stderr.read()
    assert process.returncode == 130 and "Traceback" not in printed
    latest = checkpoint.latest_readable(flags["logdir"])
    _, epoch, step, *_ = saved_rows(flags["logdir"])[-1]
    assert f"after step {step}. The last checkpoint is {latest}. The same command" in printed
    done = forked_script("train.py", **flags | dict(num_epochs=epoch + 1))
    assert done.returncode == 0, done.stderr
    assert saved_rows(flags["logdir"])[-1].epoch == epoch + 1


class NotebookStream(io.StringIO):
    """A stream as those of notebooks: it has no encoding to change, and no descriptor."""


def test_scripts_run_in_a_notebook_and_outside_of_the_main_thread(monkeypatch):
    for name in ("stdout", "stderr"):
        monkeypatch.setattr(sys, name, NotebookStream())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def fail(flags):
        print("report")
        raise InputError("wrong input")

    def run():
        with pytest.raises(SystemExit) as ended, SignalGuard():
            run_script(fail, {})
        codes.append(ended.value.code)

    codes = []
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        run()
    finally:
        signal.signal(signal.SIGTERM, handlers[1])
    assert codes == [2, 2]
    assert sys.stdout.getvalue() == "report\n" * 2
    assert sys.stderr.getvalue().count("wrong input\n") == 2


def test_a_logger_that_was_made_before_the_script_writes_its_messages():
    """TensorFlow makes its loggers when it is imported."""
    code = """
import logging
from runtime.cli import run_script
logging.basicConfig(format="%(message)s")
run_script(lambda flags: [print("report"), logging.warning("a warning of TensorFlow")], {})
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("report\n", "a warning of TensorFlow\n")
    assert done.returncode == 0


def test_a_wrong_flag_in_a_notebook_leaves_it_as_it_was(monkeypatch):
    """A notebook goes on: it imports matplotlib, and its stop button sends the signal of Ctrl-C."""
    monkeypatch.setattr(sys, "argv", ["train.py", "--no_such_flag"])
    monkeypatch.setattr("runtime.cli.settle_environment", lambda: None)
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    codes = []

    def run():
        with pytest.raises(SystemExit) as ended:
            parse_flags("", dict, Hyperparams)
        codes.append(ended.value.code)

    handler = signal.default_int_handler  # of a notebook; another test may have left its own
    signal.signal(signal.SIGINT, handler)
    run()
    assert "matplotlib" not in sys.modules and signal.getsignal(signal.SIGINT) == handler
    thread = threading.Thread(target=run)  # where Python allows no signal handlers
    thread.start()
    thread.join()
    assert codes == [2, 2]


@pytest.mark.parametrize("full", [False, True])
def test_a_report_that_cannot_be_written_does_not_end_the_work(full):
    """The pipe is closed, or the disk is full. Python itself reports nothing at exit either."""
    code = """
import sys
from runtime.cli import run_script
run_script(lambda flags: [print("x" * 999, flush=True) for _ in range(99)] and done(), {})
"""
    code = code.replace("done()", "print('done', file=sys.stderr)")
    output = open("/dev/full", "w") if full else subprocess.PIPE
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=output, stderr=subprocess.PIPE, text=True
    )
    if full:
        output.close()
    else:
        process.stdout.close()
    printed = process.stderr.read()
    process.stderr.close()
    message = "-c: the report could not be written: No space left on device\n"
    assert printed == "done\n" + (message if full else "")
    assert process.wait() == (1 if full else 0)


# What starting loads ---------------------------------------------------------------


@slow
def test_training_loads_nothing_that_only_other_scripts_need_and_no_settings(tmp_path):
    """Settings of other Keras programs have no effect."""
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"floatx": "float64", "backend": "torch"}')
    env = os.environ | dict(HOME=str(tmp_path), KERAS_BACKEND="jax", KERAS_MAX_EPOCHS="x")
    code = (
        "import sys; sys.argv = ['train.py'];"
        "from runtime.cli import parse_flags; from hparams import Hyperparams;"
        "parse_flags('', dict, Hyperparams); import train;"
        "print(*(name for name, module in sys.modules.items() if module));"
        "import keras, os; print(keras.config.backend(), keras.config.floatx());"
        "print('TF_CONFIG' in os.environ)"
    )
    command = [sys.executable, "-c", code]
    env |= dict(TF_CONFIG=" ", OMP_NUM_THREADS="x", CUDA_VISIBLE_DEVICES="7,x")
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    names, settings, has_workers = done.stdout.splitlines()
    assert (settings, has_workers) == ("tensorflow float32", "False")
    loaded = {*names.split()}
    assert "tensorflow" in loaded
    assert loaded.isdisjoint({"nltk", "aiohttp", "tensorflow_text", "matplotlib"})


def refused_early(words, cwd=ROOT, env=None):
    """Check that a script ends with one line before it loads TensorFlow, and return the line.

    Args:
      env: variables to add to the environment.
    """
    command = [sys.executable, "-X", "importtime", str(ROOT / words[0]), *words[1:]]
    env = os.environ | (env or {})
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    lines = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
    assert done.returncode == 2 and len(lines) == 1, lines
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "hparams" in modules and "tensorflow" not in modules
    assert lines[0].startswith(f"{words[0]}: ") and not done.stdout
    return lines[0]


@pytest.mark.parametrize(
    "words, message",
    [
        (["translate.py"], "logdir: holds no checkpoint. Train a model"),
        (["serve.py", "--logdir", "{logdir},no"], "no: holds no checkpoint"),
        (
            ["serve.py", "--logdir", "{logdir}", "--maxlen", "9"],
            "was trained with --maxlen 15, not",
        ),
        (
            ["translate.py", "--logdir", "{logdir}", "--source", "no"],
            "no: no such file or directory. Check",
        ),
        (
            ["eval.py", "--logdir", "{logdir}", "--compare", "no"],
            "no: no such file or directory. Check",
        ),
        (["eval.py", "--logdir", "{logdir}", "--source_test", "a", "--target_test", "b"], "a: no "),
        (
            ["eval.py", "--logdir", "{logdir}", "--source_test", "{source_test}"]
            + ["--target_test", "{target_train}"],
            ": [0-9]+ sentences, but .* has [0-9]+",
        ),
        (
            ["eval.py", "--logdir", "{logdir}", "--results", "{source_test}"]
            + ["--source_test", "{source_test}", "--target_test", "{target_test}"],
            "is a file, and a folder is needed here",
        ),
        (
            ["eval.py", "--logdir", "{logdir}", "--source_test", "{source_test}"]
            + ["--target_test", "{target_test}", "--compare", "{source_test}"],
            "is not a results file of eval.py",
        ),
        (
            ["eval.py", "--logdir", "{logdir}"]
            + ["--source_test", "/dev/null", "--target_test", "/dev/null"],
            "/null: the file is empty, or every line is markup .* Put one sentence on each line",
        ),
        (
            ["translate.py", "--logdir", "{logdir}", "--source", "{preprocessed}"],
            "is a directory. Check the path, which --source names",
        ),
        (
            ["translate.py", "--logdir", "{logdir}", "--source", "{source_test}"]
            + ["--score", "{target_train}"],
            ": [0-9]+ lines, but .* has [0-9]+. Make line n",
        ),
        (
            ["translate.py", "--logdir", "{logdir}", "--source", "{source_test}"]
            + ["--prefix", "{target_train}"],
            ": [0-9]+ lines, but .* has [0-9]+. Make line n",
        ),
        (
            ["translate.py", "--logdir", "{logdir}", "--best"],
            "logdir: holds no checkpoint with a dev score",
        ),
        (["export.py", "--logdir", "{logdir}", "--output", "{logdir}"], "already exists"),
        (
            ["export.py", "--logdir", "{logdir}", "--output", "{source_test}/a/b"],
            "is a file, and a folder is needed here",
        ),
        (
            ["export.py", "--logdir", "{logdir},{logdir}", "--format", "logdir"],
            "logdir names several models, and logdir has one",
        ),
        (
            ["translate.py", "--logdir", "{logdir}", "--output", "{source_test}/a"],
            "is a file, and a folder is needed here",
        ),
        (
            ["translate.py", "--logdir", "{logdir}", "--attention", "{source_test}/a.png"],
            "is a file, and a folder is needed here",
        ),
        (
            ["translate.py", "--logdir", "{logdir}", "--alignments", "{source_test}/a"],
            "is a file, and a folder is needed here",
        ),
        (
            ["eval.py", "--logdir", "{logdir}"]
            + ["--source_test", "{source_train}", "--target_test", "/dev/null"],
            ": [0-9]+ sentences, but .* has 0",
        ),
        (
            ["train.py", "--start_from", "{logdir}", "--best", "--logdir", "new"]
            + ["--source_train", "{source_train}", "--target_train", "{target_train}"],
            "logdir: holds no checkpoint with a dev score",
        ),
        (
            ["train.py", "--source_train", "{preprocessed}", "--target_train", "{target_train}"],
            "is a directory. Check the path",
        ),
        (
            ["train.py", "--source_dev", "no", "--target_dev", "no"],
            "no: no such file or directory. Check --source_dev",
        ),
        (
            ["train.py", "--source_train", "{source_train}", "--target_train", "{target_train}"]
            + ["--preprocessed", "{preprocessed}"]
            + ["--source_dev", "{source_train}", "--target_dev", "{target_test}"],
            ": [0-9]+ sentences, but .* has [0-9]+",
        ),
        (
            ["train.py", "--source_train", "{source_train},{source_train}"]
            + ["--target_train", "{target_train}"],
            "source_train names 2 files, but target_train names 1",
        ),
        (["train.py", "--start_from", "no"], "no: holds no checkpoint. Name the folder of"),
        (
            ["train.py", "--source_train", "{source_train}", "--target_train", "{target_train}"]
            + ["--preprocessed", "{preprocessed}", "--recipe", "tiny"],
            "bpe.source.model: no such file .*/de.vocab.tsv exists, but this is the recipe tiny",
        ),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, list) else "",
)
def test_what_needs_no_tensorflow_is_checked_before_it_is_loaded(run, tmp_path, words, message):
    line = refused_early([word.format(**run[0]) for word in words], cwd=tmp_path)
    assert re.search(message, line)
    assert not [*tmp_path.iterdir()]


@pytest.fixture
def copied(run, tmp_path):
    """A copy of the folder of the trained model, which a test may change."""
    return Path(shutil.copytree(run[0]["logdir"], tmp_path / "copied"))


@pytest.mark.parametrize("script", ["translate", "eval", "serve", "export", "train"])
@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_a_vocabulary_is_checked_before_tensorflow_is_loaded(run, copied, script, damage):
    flags = {name: value for name, value in run[0].items() if name.endswith(("train", "test"))}
    flags |= dict(logdir=copied, preprocessed=copied.parent)
    path = copied / "de.vocab.tsv"
    if damage == "missing":
        path.unlink()
        problem = "no such file, nor a copy in"
    else:
        path.write_text("die\t7\n")
        problem = "the first four words are not"
    line = refused_early([f"{script}.py", *command_line(flags)], cwd=copied.parent)
    assert problem in line and "Copy the file" in line


def test_models_that_differ_are_found_before_tensorflow_is_loaded(run, copied):
    hparams = copied / "hparams.json"
    hparams.write_text(hparams.read_text().replace('"maxlen": 15', '"maxlen": 16'))
    words = ["translate.py", "--logdir", f"{run[0]['logdir']},{copied}"]
    assert "reads sentences in another way than" in refused_early(words)


def test_another_batch_is_refused_before_tensorflow_is_loaded(run, copied):
    """In the middle of the first epoch. Later, an epoch's end may be the last sound checkpoint."""
    first, second = saved_rows(copied)
    for suffix in checkpoint.SUFFIXES:
        path = copied / f"{second.name}{suffix}"
        path.rename(copied / f"{second.name}_partial{suffix}")
    partial = second._replace(epoch_done=False, name=f"{second.name}_partial")
    flags = dict(source_train=run[0]["source_train"], target_train=run[0]["target_train"])
    flags |= dict(logdir=str(copied), batch_size=7)

    def write_rows(*rows):
        rows = [row._asdict() for row in rows]
        (copied / "run.json").write_text(json.dumps(dict(checkpoints=rows)))

    write_rows(first, partial)
    assert train.find_start(flags).hp.batch_size == 7
    write_rows(partial)
    line = refused_early(["train.py", *command_line(flags)])
    assert "trained with --batch_size 32, not 7. Leave the flag out until" in line


@pytest.mark.parametrize("damage", ["hparams.json", *checkpoint.SUFFIXES])
def test_a_missing_file_of_a_model_is_named_before_tensorflow_is_loaded(copied, damage):
    for path in copied.glob(f"*{damage}"):
        path.unlink()
    line = refused_early(["translate.py", "--logdir", str(copied)])
    assert f"{damage}: " in line and "Copy it" in line


@pytest.mark.parametrize(
    "package, words",
    [
        ("ctranslate2", ["export.py", "--format", "ctranslate2"]),
        ("safetensors", ["export.py", "--format", "huggingface"]),
        ("tf2onnx", ["export.py", "--format", "onnx"]),
        ("onnxruntime", ["export.py", "--format", "onnx", "--quantization", "int8"]),
    ],
)
def test_a_missing_package_is_named_before_tensorflow_is_loaded(run, tmp_path, package, words):
    for installed in {"tf2onnx", "onnxruntime"} - {package}:  # they may be missing here
        (tmp_path / f"{installed}.py").touch()
    block = f"import sys; sys.modules[{package!r}] = None"
    (tmp_path / "sitecustomize.py").write_text(block)
    words = [*words, "--logdir", run[0]["logdir"]]
    line = refused_early(words, cwd=tmp_path, env=dict(PYTHONPATH=str(tmp_path)))
    assert f"{package} is not installed. Install it with `pip install {package}`" in line


def test_a_locked_folder_is_found_before_the_text_is_read(run, tmp_path):
    (tmp_path / "lock").write_text("123\n")
    with open(tmp_path / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = ["train.py", "--logdir", str(tmp_path)]
        assert f"{tmp_path}: another training run writes here (process 123)" in refused_early(words)
    (tmp_path / "lock").unlink()
    os.mkfifo(tmp_path / "lock")  # of someone else: must not be waited for
    assert "lock: not a regular file" in refused_early([*words, "--source_train", "no"])


def test_a_deleted_folder_is_named(tmp_path):
    code = "import os, runpy, sys; os.rmdir(os.getcwd()); sys.argv = sys.argv[1:];"
    code += "runpy.run_path(sys.argv[0], run_name='__main__')"
    command = [sys.executable, "-c", code, str(ROOT / "prepro.py")]
    env = os.environ | dict(PYTHONPATH=str(ROOT))
    (tmp_path / "gone").mkdir()
    done = subprocess.run(command, cwd=tmp_path / "gone", env=env, capture_output=True, text=True)
    assert done.returncode == 2
    assert "prepro.py: the current folder was deleted. Change" in done.stderr


def test_a_model_without_a_test_set_says_so(run, tmp_path):
    logdir = shutil.copytree(run[0]["logdir"], tmp_path / "logdir")
    saved = json.loads((logdir / "hparams.json").read_text())
    names = ("source_test", "target_test")
    saved |= {name: getattr(Hyperparams, name) for name in names}
    (logdir / "hparams.json").write_text(json.dumps(saved))
    line = refused_early(["eval.py", "--logdir", "logdir"], cwd=tmp_path)
    assert "source_test was not given, here or in training. Name a test set" in line
    assert "IWSLT" not in line


def test_a_large_model_on_a_cpu_says_how_long_it_takes(corpus, capsys):
    hp = make_hparams(corpus | SMALL | dict(num_epochs=10))
    vocabs = load_vocabs(hp)
    data = load_train_data(hp, vocabs)
    capsys.readouterr()
    train.note_slow(hp, data, vocabs, num_parameters=10**6)
    assert capsys.readouterr().err == ""
    train.note_slow(hp, data, vocabs, num_parameters=10**12)
    assert re.search(r"a step takes about \d+ s, and 30 steps take \d+", capsys.readouterr().err)
