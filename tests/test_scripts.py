"""The scripts as a user runs them, one after the other, and again."""

import contextlib
import io
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import eval
import prepro
import train
from conftest import SMALL, needs_bfloat16, sample_pairs, slow, write_corpus
from helpers import load
from processes import ROOT, run_script


@pytest.fixture(scope="module")
def evaluated(trained, tmp_path_factory):
    """Evaluate a model of words on 23 pairs: the folder, and what was printed."""
    folder, tests = tmp_path_factory.mktemp("run"), sample_pairs(21, seed=1)
    long = ("sehr " * 20 + "lang", "very " * 20 + "long")
    files = write_corpus(folder, [*tests[:7], long, ("", "x"), *tests[7:]])
    of_model = {name: files[name] for name in ("results", "source_test", "target_test")}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        eval.main(of_model | dict(logdir=trained("legacy")["logdir"]))
    return folder, printed.getvalue()


def test_the_file_of_hyperparameters_of_2017_is_not_read(corpus, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("hyperparams.py").write_text("class Hyperparams:\n    maxlen = 20\n")
    prepro.main(corpus)
    assert "hyperparams.py: is not read. Give its values as flags" in capsys.readouterr().err


def test_results_have_the_format_of_the_2017_code(evaluated):
    folder, printed = evaluated
    (path,) = (folder / "results").iterdir()
    *records, closing = path.read_text("utf-8").split("\n\n")
    # 23 pairs without one that is too long and one that is empty. 21 is no multiple of the batch.
    assert len(records) == 21
    for record in records:
        assert re.fullmatch(r"- source: .+\n- expected: .+\n- got: .*", record)
    lines = [
        f"Decoding = greedy search, {path.name}",
        r"Test set = test\.source, test\.target \(SHA-256 [0-9a-f]{12}\)",
        r"Ended at the limit = \d+ of 21",
        r"Left out = 2 of 23 \(1 longer than 14 words, 1 with an empty line.*",
        ".*= 8 9",
        r"sacreBLEU = [\d.]+ nrefs:1\|case:mixed\|.*version:.*",
        r"sacreBLEU, lower-cased = [\d.]+ nrefs:1\|case:lc\|.*",
        r"chrF = [\d.]+ nrefs:1\|case:mixed\|.*",
        "95% intervals = BLEU .*",
        r"Pairs scored = \d+ of 23 .*",
        r"Bleu Score = [\d.]+",
    ]
    for line, pattern in zip(closing.splitlines(), lines, strict=True):
        assert re.fullmatch(pattern, line)
    assert closing.splitlines()[-1] in printed and "- got: " in printed


def test_tensorflow_prints_nothing_and_errors_are_printed():
    code = "from support.flags import load_tensorflow; load_tensorflow();"
    code += "from support.cli import run_script; run_script(open, 'no such file')"
    env = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True)
    assert done.returncode == 2
    assert done.stderr == b"-c: no such file: no such file or directory. Check the path\n"


# In this process, which has loaded TensorFlow already ---------------


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_flag_deterministic_reaches_tensorflow(corpus, monkeypatch, deterministic):
    calls = []
    settings = train.tf.config.experimental
    monkeypatch.setattr(settings, "enable_op_determinism", lambda: calls.append(1))
    monkeypatch.setattr(train, "load_train_data", lambda *_: pytest.fail("enough"))
    with pytest.raises(pytest.fail.Exception):
        train.main(corpus | dict(deterministic=deterministic))
    assert calls == [1] * deterministic


@slow
@needs_bfloat16
def test_a_model_trained_in_bfloat16_translates_in_float32(corpus):
    flags = corpus | SMALL | dict(precision="bfloat16", num_epochs=1)
    train.main(flags)
    ids = np.array([[5, 6, 3]], np.int32)
    logdir = dict(logdir=flags["logdir"])
    for expected, more in (("float32", {}), ("bfloat16", dict(precision="bfloat16"))):
        _, hp, model, _ = load(logdir | more)
        assert hp.precision == expected
        assert model.compute_dtype == expected and model(ids, ids).dtype == expected


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


# What starting loads ------------------------------------------------


@slow
def test_training_loads_nothing_that_only_other_scripts_need_and_no_settings(tmp_path):
    """Settings of other Keras programs have no effect."""
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras" / "keras.json").write_text('{"floatx": "float64", "backend": "torch"}')
    env = os.environ | dict(HOME=str(tmp_path), KERAS_BACKEND="jax")
    code = "import sys; from support.flags import load_tensorflow; load_tensorflow(); import train;"
    code += "print(*(name for name, module in sys.modules.items() if module));"
    code += "import keras; print(keras.config.backend(), keras.config.floatx())"
    printed = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=env, text=True)
    names, settings = printed.splitlines()
    assert settings == "tensorflow float32"
    unused = {"nltk", "aiohttp", "tensorflow_text", "matplotlib"}
    assert "tensorflow" in names.split() and unused.isdisjoint(names.split())
