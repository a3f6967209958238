"""The built-in corpus: its grammar and its files. It replaces no other files."""

import hashlib
import signal
import subprocess
import sys
import time

import pytest

from conftest import ROOT, sample_pairs
from helpers import load, read_test_sentences
from hparams import FIELDS, UNSAVED, Hyperparams, load_hparams, make_hparams
from processes import run_script
from support import flags as runtime_flags
from text.lines import read_sentences
from translation.translator import Translator


@pytest.fixture(scope="module")
def pairs():
    return sample_pairs(20_000)


def test_the_pairs_are_those_of_all_measurements(pairs):
    """With this sum they have all constructions of corpora/sample.py, and no sentence twice."""
    text = "".join(f"{german}\t{english}\n" for german, english in pairs)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    assert sha256 == "9dca2c68680d736a20460d56cab1ca0d406a0f353d8cc059beb07311739f0d73"


def test_the_seed_decides_and_more_pairs_start_with_fewer(pairs):
    assert sample_pairs(200) == pairs[:200]
    assert sample_pairs(200, seed=1) != pairs[:200]


# Files -----------------------------------------------------------------------------


def write(folder, **flags):
    """Run corpora/sample.py, and return its `CompletedProcess`."""
    return run_script("corpora/sample.py", output=folder, **flags)


def test_the_files_are_those_of_iwslt_and_no_test_sentence_is_in_the_training_text(tmp_path):
    """At the default size, at which some English sentences have two German ones."""
    assert write(tmp_path).returncode == 0
    for lang in ("de", "en"):
        path = tmp_path / f"train.tags.de-en.{lang}"
        assert path.read_text(encoding="utf-8").startswith("<url>")
        train = list(read_sentences(path))
        paths = [
            tmp_path / f"IWSLT16.TED.{name}.de-en.{lang}.xml" for name in ("dev2010", "tst2014")
        ]
        assert '<seg id="50"> ' in paths[0].read_text(encoding="utf-8")
        dev, test = (read_test_sentences(path) for path in paths)
        assert [len(train), len(dev), len(test)] == [20_000, 200, 1_000]
        assert not {*test, *dev} & {*train}


def test_same_seed_same_bytes(tmp_path):
    for name, seed in dict(a=0, b=0, c=1).items():
        write(tmp_path / name, train=100, test=10, seed=seed)
    a, b, c = ([path.read_bytes() for path in sorted((tmp_path / n).iterdir())] for n in "abc")
    assert len(a) == 6 and a == b != c


@pytest.mark.parametrize("flag", ["train", "dev", "test"])
def test_a_part_without_pairs_is_refused(tmp_path, flag):
    done = write(tmp_path, **{flag: 0})
    assert done.returncode == 2 and "must be at least 1" in done.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_leaves_no_file(tmp_path, number, code):
    words = [sys.executable, ROOT / "corpora" / "sample.py", "--output", tmp_path]
    with subprocess.Popen([*words, "--train", "100000000"], stderr=subprocess.PIPE) as process:
        while len([*tmp_path.iterdir()]) < 6:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        errors = process.stderr.read().decode()
    assert process.returncode == code and errors == "sample.py: stopped\n"
    assert not [*tmp_path.iterdir()]


def test_it_replaces_its_own_files_and_no_others(tmp_path):
    assert write(tmp_path, train=10, test=2).returncode == 0
    assert write(tmp_path, train=20, test=2).returncode == 0
    foreign = tmp_path / "train.tags.de-en.en"
    foreign.write_text("My own text.\n")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    done = write(tmp_path, train=30, test=2)
    assert done.returncode == 2 and str(foreign) in done.stderr
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_sample_model_is_that_of_its_flags(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", f"@{ROOT}/docs/sample_model.flags"])
    for name in ("check_paths_exist", "prepare_loading"):  # the text need not exist
        monkeypatch.setattr(runtime_flags, name, lambda *_: None)
    made = make_hparams(runtime_flags.parse_flags("", hparams=Hyperparams))
    saved = load_hparams(dict(logdir=str(ROOT / "docs" / "sample_model")))
    other = {name for name in FIELDS if getattr(made, name) != getattr(saved, name)}
    # The text decides the warm-up. The mean of ten checkpoints is one.
    assert other - {*UNSAVED} == {"warmup_steps", "average_checkpoints"}


def test_the_sample_model_translates_the_example_of_the_documents():
    example = "Die Frau hat den Brief nicht gelesen."
    assert example in (ROOT / "docs" / "sample_model.md").read_text("utf-8")
    (translation,) = Translator(load(dict(logdir=str(ROOT / "docs" / "sample_model"))))([example])
    assert translation.text == "The woman did not read the letter."
