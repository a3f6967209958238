"""Random text, files and hyperparameters: no crash, and no text is lost.

SOAK=1 tries many more of each.
"""

import dataclasses
import os
import re
import unicodedata
from tempfile import TemporaryDirectory

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import prepro
from conftest import BFLOAT16, sample_pairs, slow, write_corpus
from formats import saved_model
from formats.saved_model import SubwordOps, WordOps
from helpers import read_test_sentences, tensorflow_text, vocabs_of
from hparams import ARCHITECTURES, ATTENTION_SCORES, POSITIONS, RECIPES, make_hparams
from model.transformer import make_model
from support.errors import InputError
from text.ids import EOS, SPECIALS, UNK
from text.lines import clean, normalize, read_lines
from text.vocab import WordVocab
from training.optimizer import FusedAdam
from training.step import make_train_step
from translation.inference import LoadedModel, make_search
from translation.translator import Translator

SOAK = "SOAK" in os.environ
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=40)


def examples(fast, soak, shrink=True):
    """Settings of Hypothesis: the number of examples without and with SOAK; whether to shrink."""
    checks = HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much
    return settings(
        max_examples=soak if SOAK else fast,
        deadline=None,
        derandomize=not SOAK,
        print_blob=True,
        database=None,
        phases=[Phase.explicit, Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=checks,
    )


# Files --------------------------------------------------------------


@examples(100, 20_000)
@given(st.binary(max_size=80))
def test_bytes_are_read_as_lines_or_refused(tmp_path, content):
    path = tmp_path / "text"
    path.write_bytes(content)
    try:
        lines = list(read_lines(path))
    except InputError as error:
        assert re.match(rf"{path}(:\d+: byte \d+ of this line is not|: a damaged)", str(error))
    else:
        assert len(lines) == content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
        assert not any("\n" in line for line in lines)


TAGS = ["<seg>", '<seg id="1">', "</seg>", "<seg ", "<", ">", "<doc>", "&amp;", "&#10;", "<!-- "]


@examples(100, 20_000)
@given(st.lists(st.sampled_from([*TAGS, "-->", "\n", "a b"])).map("".join))
def test_tags_are_read_as_sentences_or_refused(tmp_path, content):
    path = tmp_path / "test.xml"
    path.write_text(content)
    try:
        lines = read_test_sentences(path)
    except InputError as error:
        assert re.match(rf"{path}(: holds no text|:\d+: this line is XML)", str(error))
    else:
        assert not any("\n" in line for line in lines)


# Vocabularies -------------------------------------------------------


@examples(100, 20_000)
@given(st.lists(LINE, min_size=1))
def test_words_come_back_from_their_ids(tmp_path, lines):
    text, path = tmp_path / "text", tmp_path / "de.vocab.tsv"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    try:
        path.write_text(prepro.make_vocab([text]), encoding="utf-8", newline="")
    except InputError:
        assert not clean(" ".join(lines)).split()
        return
    vocab = WordVocab(path, 0)
    assert sum([*vocab.word2cnt.values()][4:]) == len(clean(" ".join(lines)).split())
    for line in map(clean, lines):
        assert vocab.decode(vocab.encode([line])[0]) == " ".join(line.split())


@pytest.fixture(scope="module")
def subwords(tmp_path_factory):
    """A `SubwordVocab` with 300 subwords."""
    flags = write_corpus(tmp_path_factory.mktemp("subwords"), sample_pairs(200))
    flags |= dict(recipe="tiny", vocab_size=300)
    prepro.main(flags)
    return vocabs_of(flags)[1]  # that of the source reads text without its case


@examples(100, 20_000)
@given(data=st.data())
def test_text_comes_back_from_its_subwords(subwords, data):
    tokens = map(subwords.id_to_token, range(4, len(subwords)))
    known = sorted({char for token in tokens for char in token} - {"▁"})
    line = data.draw(st.text(st.sampled_from([*known, " ", "\t", "\u00a0"])))
    line = unicodedata.normalize(data.draw(st.sampled_from(["NFC", "NFD"])), line)
    (ids,) = subwords.encode([line])
    wanted = " ".join(unicodedata.normalize("NFC", line).split())
    assert ids[-1] == EOS and subwords.decode(ids) == wanted


@examples(100, 20_000)
@given(st.lists(TEXT, max_size=5), st.sampled_from([0.0, 0.1]))
def test_any_text_has_subwords(subwords, lines, dropout):
    """BPE-dropout changes the subwords of a text, but not the text that they spell."""
    encoded = subwords.encode(lines, dropout)
    for ids, undropped in zip(encoded, subwords.encode(lines), strict=True):
        assert ids[-1] == EOS and all(0 <= i < len(subwords) for i in ids)
        if UNK not in undropped:
            assert subwords.decode(ids) == subwords.decode(undropped)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A `WordVocab` with the words a, é, ß, ' and aé, and its `WordOps`."""
    tensorflow_text()
    path = tmp_path_factory.mktemp("words") / "de.vocab.tsv"
    listed = [*SPECIALS, "a", "é", "ß", "'", "aé"]
    path.write_text("".join(f"{word}\t9\n" for word in listed), encoding="utf-8")
    vocab = WordVocab(path, 0)
    return vocab, WordOps(vocab, vocab)


# A TensorFlow string cannot hold surrogates.
LINES = st.lists(
    st.text(
        st.one_of(
            st.sampled_from("aéß'م \u0085\u00a0\u2028\x1c\x00\u200c\u200d\xad"),
            st.characters(codec="utf-8"),
        ),
        max_size=20,
    ),
    min_size=1,
)


@examples(100, 20_000)
@given(LINES, st.sampled_from(["words", "subwords"]))
@example(["می\u200c خواهم\u200c", "Auf\u200clage"], "words")
def test_tokens_are_the_same_within_tensorflow(words, subwords, lines, kind):
    vocab, ops = words if kind == "words" else (subwords, SubwordOps(subwords, subwords))
    expected = vocab.encode(vocab.prepare([line.replace("\n", " ") for line in lines]))
    assert ops.encode(tf.constant(lines)).to_list() == expected
    normal = [text.decode() for text in ops.normalize(tf.constant(lines)).numpy()]
    assert normal == [*map(normalize, lines)]
    ids = tf.ragged.constant([ids[:-1] for ids in expected], tf.int32, ragged_rank=1)
    texts = [text.decode() for text in ops.decode(ids).numpy()]
    assert texts == [vocab.decode(np.array(ids)) for ids in expected]


def test_every_character_is_classified_the_same_within_tensorflow(words):
    vocab, ops = words
    chars = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
    lines = ["".join(f"a{char}a " for char in chars[i::5000]) for i in range(5000)]
    assert ops.encode(tf.constant(lines)).to_list() == vocab.encode(map(clean, lines))


# The model ----------------------------------------------------------

FLAGS = dict(
    recipe=[*RECIPES],
    model=["transformer", "rnn", "rnn_attention"],
    cell=["tanh", "gru", "lstm"],
    maxlen=[1, 2, 7],
    hidden_units=[7, 16, 24],
    num_heads=[1, 2, 3],
    num_blocks=[1, 2],
    ffn_units=[0, 1, 5],
    positions=[*POSITIONS],
    attention_score=[*ATTENTION_SCORES],
    architecture=[*ARCHITECTURES],
    tied_embeddings=[False, True],
    mask_padding=[True, False],
    dropout_rate=[0.0, 0.3],
    residual=[True, False],
    normalization=["post", "pre", "none"],
    precision=["float32", "bfloat16"] if BFLOAT16 else ["float32"],
    beam=[1, 3],
    alpha=[0.0, 1.4],
)
SOME_FLAGS = st.fixed_dictionaries(
    {}, optional={name: st.sampled_from(values) for name, values in FLAGS.items()}
)


def small_hparams(flags):
    """The hyperparameters, with few units and blocks, or None if the flags contradict each other.

    The message then names a flag, or the optimizer, which a recipe may choose.
    """
    try:
        hp = make_hparams(flags)
    except InputError as error:
        assert any(name in str(error) for name in (*flags, "optimizer")), (error, flags)
        return None
    sizes = dict(hidden_units=32, num_blocks=1, decoder_blocks=1, ffn_units=64)
    sizes = {name: min(getattr(hp, name), size) for name, size in sizes.items()}
    return dataclasses.replace(hp, **sizes)


@examples(15, 1000, shrink=False)
@given(SOME_FLAGS)
def test_flags_make_a_model_or_are_refused_with_a_message(flags):
    if hp := small_hparams(flags):
        x, y = np.array([[4, 5, 3]], np.int32)[:, : hp.maxlen].repeat(2, axis=0)[None].repeat(2, 0)
        logits = make_model(dataclasses.replace(hp, precision="float32"), 6, 6)(x, y)
        assert logits.shape == (*y.shape, 6) and np.isfinite(logits).all(), flags
        keras.backend.clear_session()


@slow
@examples(6, 120, shrink=False)
@given(SOME_FLAGS.map(small_hparams).filter(bool))
def test_models_train_translate_and_export(words, subwords, hp):
    """A SavedModel translates as the model."""
    vocabs = (words[0] if hp.tokenizer == "words" else subwords,) * 2
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, 9, (2, 3, min(hp.maxlen, 7)), dtype=np.int32)
    x[:, -1], y[:, -1] = EOS, EOS
    x[1, 1:], y[1, 1:] = 0, 0
    model, optimizer = make_model(hp, *map(len, vocabs)), FusedAdam(0.001)
    optimizer.build(model.trainable_variables)
    step = make_train_step(tf.distribute.get_strategy(), model, optimizer)
    for _ in range(2):
        assert np.isfinite(step(x, y)).all()
    x[2] = 0  # only padding, which is never in training data
    preds, scores = make_search(model, hp, hp.beam)(x)
    assert preds.shape[:2] == (3, 1) and np.isfinite(scores).all()
    assert np.all((preds >= 0) & (preds < len(vocabs[1])))

    loaded, lines = LoadedModel([], hp, model, vocabs), ["a", "", "a é ß", "Ein Hund läuft"]
    tensorflow_text()
    with TemporaryDirectory() as folder:
        saved_model.write(loaded, folder)
        serve = tf.saved_model.load(folder).signatures["serving_default"]
        answer = serve(text=tf.constant(lines))
    best = [found.sentences[0].hypotheses[0] for found in Translator(loaded)(lines)]
    assert [text.decode() for text in answer["translation"].numpy()] == [own.text for own in best]
    if hp.beam > 1:  # greedy search gives no scores
        tolerance = 1e-4 if hp.precision == "float32" else 0.1
        scores = [own.score for own in best]
        np.testing.assert_allclose(answer["score"], scores, tolerance, tolerance)
    keras.backend.clear_session()
