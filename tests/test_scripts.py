"""The scripts as a user runs them, one after the other, and again."""

import dataclasses
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eval
import prepro
import train
from conftest import SMALL, needs_bfloat16, sample_pairs, seeds, slow, write_corpus
from data_load import load_test_data, load_train_data
from helpers import latest, load, parameters, run_main, saved_rows, skip_search
from hparams import make_hparams
from processes import ROOT, forked, forked_script, run_script
from text.vocab import load_vocabs

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
    of_model = {name: flags[name] for name in ("logdir", "results", "source_test", "target_test")}
    for script, given in dict(prepro=flags, train=flags | TRAINING, eval=of_model).items():
        done = forked_script(f"{script}.py", **given)
        assert done.returncode == 0, done.stderr
        printed[script] = done
    return flags, printed


def test_training_saves_one_checkpoint_per_epoch(run):
    flags, printed = run
    assert latest(flags["logdir"]).name == "model_epoch_02_gs_6.npz"
    names = re.findall(r"model_epoch_\d+_gs_\d+", printed["train"].stdout)
    assert names == ["model_epoch_01_gs_3", "model_epoch_02_gs_6"]
    assert "Training on 100 of 100 pairs" in printed["train"].stdout
    assert "epoch 2/2" in printed["train"].stderr  # the progress bar


def test_the_file_of_hyperparameters_of_2017_is_not_read(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("hyperparams.py").write_text("class Hyperparams:\n    maxlen = 20\n")
    run_main(prepro, corpus)
    assert "hyperparams.py: is not read. Give its values as flags" in capsys.readouterr().err


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


def test_eval_reads_all_hyperparameters_from_logdir(run):
    """It needs no other flag for the corpus, the vocabularies and the sizes of the model."""
    folder = Path(run[0]["logdir"]).parent
    done = forked(["eval.py", "--logdir", "logdir"], cwd=folder)
    assert done.returncode == 0, done.stderr
    before, now = (
        text.partition("Full results")[0] for text in (run[1]["eval"].stdout, done.stdout)
    )
    assert before == now and "Bleu Score" in now


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
    names = ("logdir", "results", "source_test", "target_test")
    done = forked_script("eval.py", **{name: moved[name] for name in names}, beam=1)
    assert done.returncode == 0, done.stderr


@slow
def test_training_resumes_with_the_vocabulary_of_the_model(moved, tmp_path):
    """prepro.py may have written another one since."""
    other = write_corpus(tmp_path / "other", sample_pairs(80, seed=5))
    flags = moved | {name: other[name] for name in ("source_train", "target_train", "preprocessed")}
    run_main(prepro, flags | dict(vocab_size=200))
    vocabs = {path: path.read_bytes() for path in Path(moved["logdir"]).glob("*[lv]")}
    run_main(train, flags | dict(num_epochs=13))
    assert saved_rows(moved["logdir"])[-1].epoch == 13 and vocabs
    assert all(path.read_bytes() == content for path, content in vocabs.items())


@slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_the_flag_deterministic_reaches_tensorflow(corpus, monkeypatch, deterministic):
    calls = []
    monkeypatch.setattr(
        train.tf.config.experimental, "enable_op_determinism", lambda: calls.append(1)
    )
    run_main(train, corpus | SMALL | dict(num_epochs=1, deterministic=deterministic))
    assert calls == [1] * deterministic


# In this process, which has loaded TensorFlow already ------------------------------


def test_the_development_set_is_not_the_test_set(corpus, tmp_path):
    pairs = sample_pairs(7, seed=5)
    files = write_corpus(tmp_path / "dev", pairs)
    names = dict(source_dev=files["source_train"], target_dev=files["target_train"])
    hp = make_hparams(corpus | SMALL | names)
    dev = load_test_data(hp, load_vocabs(hp.preprocessed, hp), "dev")
    assert dev.references == [[text for _, text in pairs]]


def test_the_seed_decides_the_initial_parameters(corpus):
    hp = make_hparams(corpus | SMALL)
    vocabs = load_vocabs(hp.preprocessed, hp)
    data = load_train_data(hp, vocabs)

    def initial(seed):
        own = train.Training(dataclasses.replace(hp, seed=seed), vocabs, data)
        return np.concatenate([np.ravel(array) for array in own.model.get_weights()])

    first, again, other = initial(0), initial(0), initial(1)
    assert np.all(first == again) and np.any(first != other)


@slow
def test_text_and_learning_rate_may_change_between_epochs(corpus):
    flags = corpus | SMALL
    run_main(train, flags | dict(num_epochs=1))
    before = parameters(flags["logdir"])
    for side in ("source_train", "target_train"):
        path = Path(flags[side])
        path.write_text(path.read_text("utf-8").split("\n", 40)[40], "utf-8")
    run_main(train, flags | dict(num_epochs=2, lr=1e-30))
    assert latest(flags["logdir"]).name == "model_epoch_02_gs_4.npz"
    for name, parameter in parameters(flags["logdir"]).items():
        np.testing.assert_array_equal(parameter, before[name])


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
    assert latest(flags["logdir"]).name == "model_epoch_02_gs_2.npz"


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
def test_unusual_text(corpus, tmp_path):
    """Lines of a million characters, a word of a hundred thousand, odd spaces: no crash."""
    odd = ["a b" * 333_333, "x" * 100_000, " \t ", "\u00a0", "u\u0308ber\u2028den\u0085\r"]
    for flag in ("source_train", "target_train"):
        path = Path(corpus[flag])
        text = "\ufeff" + path.read_text("utf-8") + "".join(f"{line}\n" for line in odd)
        path.write_text(text, encoding="utf-8", newline="")
    for script in ("prepro.py", "train.py"):
        done = forked_script(script, **corpus | SMALL | dict(num_epochs=1))
        assert done.returncode == 0, done.stderr
    assert "Training on 98 of 101 pairs: 1 are longer than maxlen 15, 2 have an em" in done.stdout


@slow
def test_a_locale_without_umlauts_and_a_folder_with_them(tmp_path):
    folder = tmp_path / "ein Ordner mit Ümläuten"
    paths = write_corpus(folder, sample_pairs(40))
    flags = {name: os.path.relpath(path, folder) for name, path in paths.items()}
    locale = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    for script, more in (("prepro.py", {}), ("train.py", SMALL | dict(num_epochs=1))):
        done = run_script(script, cwd=folder, env=locale, **flags, **more)
        assert done.returncode == 0, done.stderr
    done = run_script("eval.py", cwd=folder, env=locale, logdir="logdir")
    assert done.returncode == 0, done.stderr
    assert "- source: " in done.stdout and [*(folder / "results").iterdir()]


# Notes -----------------------------------------------------------------------------


def test_a_test_set_of_another_language_is_refused(run, tmp_path):
    swapped = dict(source_test=run[0]["target_test"], target_test=run[0]["source_test"])
    logdir, results = run[0]["logdir"], tmp_path
    done = forked_script("eval.py", skip_search, logdir=logdir, results=results, **swapped)
    assert done.returncode == 2, done.stderr
    assert f"{swapped['source_test']}: 9" in done.stderr and "Check --source_lang" in done.stderr


# What starting loads ---------------------------------------------------------------


@slow
def test_training_loads_nothing_that_only_other_scripts_need_and_no_settings(tmp_path):
    """Settings of other Keras programs have no effect."""
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"floatx": "float64", "backend": "torch"}')
    env = os.environ | dict(HOME=str(tmp_path), KERAS_BACKEND="jax", KERAS_MAX_EPOCHS="x")
    code = (
        "import sys; sys.argv = ['train.py'];"
        "from support.flags import parse_flags; from hparams import Hyperparams;"
        "parse_flags('', hparams=Hyperparams); import train;"
        "print(*(name for name, module in sys.modules.items() if module));"
        "import keras; print(keras.config.backend(), keras.config.floatx())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    names, settings = done.stdout.splitlines()
    assert settings == "tensorflow float32"
    loaded = {*names.split()}
    assert "tensorflow" in loaded
    assert loaded.isdisjoint({"nltk", "aiohttp", "tensorflow_text", "matplotlib"})
