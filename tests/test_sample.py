"""The built-in corpus: its grammar and its files. It replaces no other files."""

import hashlib
import re
import signal
import subprocess
import sys
import time

import pytest

from conftest import ROOT, sample_pairs
from helpers import load, read_test_sentences
from hparams import Hyperparams, make_hparams, read_hparams
from inference import Translator
from processes import run_script
from runtime.cli import parse_flags
from text import SentenceFile


@pytest.fixture(scope="module")
def pairs():
    return sample_pairs(20_000)


def test_no_german_sentence_is_repeated(pairs):
    assert len({german for german, _ in pairs}) == len(pairs)


def test_the_pairs_are_those_of_all_measurements(pairs):
    text = "".join(f"{german}\t{english}\n" for german, english in pairs)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    assert sha256 == "9dca2c68680d736a20460d56cab1ca0d406a0f353d8cc059beb07311739f0d73"


def test_the_seed_decides_and_more_pairs_start_with_fewer(pairs):
    assert sample_pairs(200) == pairs[:200]
    assert sample_pairs(200, seed=1) != pairs[:200]


def test_several_hundred_words_per_side(pairs):
    for side in zip(*pairs, strict=True):
        assert len({word for line in side for word in re.findall(r"\w+", line)}) > 500


@pytest.mark.parametrize(
    "construction, german, english",
    [
        ("question", r"^Wird (der|die|das) ", r"^Will the "),
        ("negated modal", r" muss nicht .*en\.$", r" does not have to "),
        ("kein", r" kein(en|e)? ", r"not "),
        ("separable verb in second place", r" zieht .* an\.$", r" puts? on "),
        (
            "separable verb at the end",
            r", weil .* (aufsteht|ankommt)\.$",
            r" because .* (gets? up|arrives?)",
        ),
        ("verb last", r", dass .* hat\.$", r" that "),
        ("inversion", r"^Heute \w+ (der|die|das) ", r"^Today the "),
        ("weak noun", r" (an|auf) den (\w+ )?(Jungen|Bauern|Affen)\b", r"(boy|farmer|monkey)\b"),
        ("dative plural", r" (mit|von) den (\w+ )?\w+n\b", r" (with|to|of) the "),
        ("relative clause", r"^Der (\w+ )?Bauer, der .*, ", r"^The (\w+ )?farmer who "),
        ("comparison", r" größer als der ", r" (bigger|taller) than the "),
    ],
)
def test_a_construction_is_in_both_languages(pairs, construction, german, english):
    """Each construction occurs, and the English side has it wherever the German side does."""
    matches = [pair for pair in pairs if re.search(german, pair[0])]
    assert matches, construction
    for pair in matches:
        assert re.search(english, pair[1]), pair


def test_adjectives_agree_with_article_and_case(pairs):
    """After der, die, das the ending is e in the nominative singular, en in the dative."""
    text = "\n".join(german for german, _ in pairs)
    assert re.search(r"Der \w+e (Mann|Arzt|Hund)\b", text)
    assert not re.search(r"\b[Dd]em \w+(er|es|em) (Mann|Arzt|Hund|Kind|Pferd)\b", text)
    assert not re.search(r"\b[Ee]in \w+e (Mann|Arzt|Hund|Kind|Mädchen)\b", text)
    assert not re.search(r"\b[Ee]ine [a-zäöü]+(er|es) ", text)
    assert not re.search(r"\b(a [aeiou]|an [^aeiou])\w* ", "\n".join(en for _, en in pairs))


# Files -----------------------------------------------------------------------------


def write(folder, **flags):
    """Run corpora/sample.py, and return its `CompletedProcess`."""
    return run_script("corpora/sample.py", output=folder, **flags)


def test_the_files_are_in_the_formats_of_iwslt(tmp_path):
    assert write(tmp_path, train=300, test=50).returncode == 0
    train, test = {}, {}
    for lang in ("de", "en"):
        path = tmp_path / f"train.tags.de-en.{lang}"
        assert path.read_text(encoding="utf-8").startswith("<url>")
        train[lang] = list(SentenceFile(path).sentences())
        path = tmp_path / f"IWSLT16.TED.tst2014.de-en.{lang}.xml"
        assert '<seg id="50"> ' in path.read_text(encoding="utf-8")
        test[lang] = read_test_sentences(path)[1]
    assert [len(side) for side in train.values()] == [300, 300]
    assert [len(side) for side in test.values()] == [50, 50]
    assert len(set(zip(*train.values(), strict=True))) == 300
    assert train["de"][0] != train["en"][0]


def test_no_test_sentence_is_in_the_training_text(tmp_path):
    """At the default size, at which some English sentences have two German ones."""
    assert write(tmp_path).returncode == 0
    for lang in ("de", "en"):
        train = list(SentenceFile(tmp_path / f"train.tags.de-en.{lang}").sentences())
        test = read_test_sentences(tmp_path / f"IWSLT16.TED.tst2014.de-en.{lang}.xml").raw
        assert len(train) == 20_000 and len(test) == 1_000
        dev = read_test_sentences(tmp_path / f"IWSLT16.TED.dev2010.de-en.{lang}.xml").raw
        assert len(dev) == 200 and not set(test) & set(train) and not set(dev) & set(train)


def test_same_seed_same_bytes(tmp_path):
    for name in "ab":
        write(tmp_path / name, train=100, test=10)
    write(tmp_path / "c", train=100, test=10, seed=1)
    files = {name: sorted((tmp_path / name).iterdir()) for name in "abc"}
    contents = {name: [path.read_bytes() for path in paths] for name, paths in files.items()}
    assert len(files["a"]) == 6 and contents["a"] == contents["b"] != contents["c"]


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
    assert process.returncode == code and errors == "\nsample.py: stopped\n"
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
    made = parse_flags("", make_hparams, Hyperparams)
    saved = read_hparams(ROOT / "docs" / "sample_model")
    other = {name for name in made.as_dict() if getattr(made, name) != getattr(saved, name)}
    # The text decides the warm-up. The mean of ten checkpoints is one.
    assert other == {"logdir", "warmup_steps", "average_checkpoints"}


def test_the_sample_model_translates_the_example_of_the_documents():
    example = "Die Frau hat den Brief nicht gelesen."
    assert example in (ROOT / "docs" / "sample_model.md").read_text("utf-8")
    (translation,) = Translator(load(dict(logdir=str(ROOT / "docs" / "sample_model"))))([example])
    assert translation.text == "The woman did not read the letter."
