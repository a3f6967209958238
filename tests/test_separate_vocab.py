"""One vocabulary of subwords per language: --no-joint_vocab."""

import shutil
from pathlib import Path

import pytest
import tensorflow as tf

import prepro
import train
from conftest import SMALL, sample_pairs, slow, write_corpus
from helpers import load, read_test_sentences, run_main, tensorflow_text, vocabs_of
from hparams import make_hparams
from inference import Translator
from processes import forked_script
from runtime.errors import InputError


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """Flags of a text with two vocabularies of different sizes, and of a small model."""
    folder = tmp_path_factory.mktemp("separate")
    flags = write_corpus(folder, sample_pairs(300), sample_pairs(20, seed=1)) | SMALL
    flags |= dict(recipe="tiny", maxlen=40, hidden_units=32, num_epochs=20)
    flags |= dict(joint_vocab=False, tied_embeddings=False, batch_tokens=0, batch_size=32)
    run_main(prepro, flags)
    return flags


@pytest.fixture(scope="module")
def flags(text):
    """These flags, with which the model is trained."""
    run_main(train, text)
    return text


def test_each_language_has_its_own_subwords(text):
    names = {path.name for path in Path(text["preprocessed"]).glob("*.model")}
    assert names == {"bpe.de.model", "bpe.en.model"}
    source, target = vocabs_of(text)
    assert len(source) != len(target)
    (german,), (english,) = source.encode(["über"]), target.encode(["über"])
    assert source.decode(german) == "über" and target.decode(english) != "über"


@slow
def test_a_model_with_two_vocabularies_translates_everywhere(flags, tmp_path):
    """Also as a SavedModel, in CTranslate2, and after it was moved."""
    loaded = load(dict(logdir=flags["logdir"]))
    model = loaded.model
    assert (model.source_vocab, model.target_vocab) == tuple(map(len, loaded.vocabs))
    lines = read_test_sentences(flags["source_test"])
    expected = [translation.text for translation in Translator(loaded)(lines)]
    assert len({*expected}) > 3
    source, moved = tmp_path / "in", tmp_path / "moved"
    source.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    shutil.copytree(flags["logdir"], moved)
    elsewhere = dict(logdir=moved, preprocessed=tmp_path / "missing")
    done = forked_script("translate.py", source=source, **elsewhere)
    assert done.returncode == 0 and done.stdout.splitlines() == expected, done.stderr

    tensorflow_text()  # registers the operations that tokenize

    done = forked_script("export.py", **elsewhere, output=tmp_path / "saved")
    assert done.returncode == 0, done.stderr
    signature = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    texts = signature(text=tf.constant(lines))["translation"].numpy()
    assert [text.decode() for text in texts] == expected

    output = tmp_path / "ctranslate2"
    done = forked_script("export.py", **elsewhere, output=output, format="ctranslate2")
    assert done.returncode == 0, done.stderr
    for lang in ("de", "en"):
        own = Path(flags["preprocessed"]) / f"bpe.{lang}.model"
        assert (output / own.name).read_bytes() == own.read_bytes()


def test_a_moved_model_with_a_joint_vocabulary_is_exported(trained, tmp_path):
    """The vocabulary is that of the model, not one that another prepro.py has written."""
    logdir = tmp_path / "moved"
    shutil.copytree(trained("tiny")["logdir"], logdir)
    other = tmp_path / "preprocessed"
    other.mkdir()
    (other / "bpe.model").write_bytes(b"another one")
    more = dict(logdir=logdir, preprocessed=other, format="ctranslate2")
    done = forked_script("export.py", **more, output=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    content = (logdir / "bpe.model").read_bytes()
    assert (tmp_path / "out" / "bpe.model").read_bytes() == content


@slow
def test_training_resumes_with_the_same_vocabularies(flags, tmp_path, capsys):
    logdir = shutil.copytree(flags["logdir"], tmp_path / "logdir")
    flags = flags | dict(logdir=str(logdir), num_epochs=flags["num_epochs"] + 1)
    run_main(train, flags)
    assert "Resuming from" in capsys.readouterr().out
    with pytest.raises(InputError, match="was trained with --joint_vocab False, not True"):
        run_main(train, flags | dict(joint_vocab=True))


@pytest.mark.parametrize(
    "fields, message",
    [
        (dict(recipe="tiny"), "tied_embeddings needs one vocabulary"),
        (dict(recipe="legacy"), "joint_vocab needs --tokenizer bpe"),
    ],
)
def test_flags_that_contradict_each_other(fields, message):
    with pytest.raises(InputError, match=message):
        make_hparams(fields | dict(joint_vocab=False))


def test_a_size_that_a_side_does_not_have(text):
    with pytest.raises(InputError, match="bpe.de.model: .* do not fit vocab_size 123"):
        vocabs_of(text | dict(vocab_size=123))
