"""Random text, random files and random hyperparameters: nothing crashes, nothing is lost.

SOAK=1 tries far more of each, and a million lines.
"""

import os
import re
import unicodedata

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import prepro
from conftest import sample_pairs, write_corpus
from data_load import load_train_data
from decoding import Translator, make_search
from export import PiecesOps, WordsOps
from hparams import InputError, with_recipe
from model import make_model
from modules import Adam
from text import (
    END,
    SPECIALS,
    UNK,
    Pieces,
    Words,
    clean,
    in_blocks,
    load_vocabs,
    read_counts,
    read_lines,
    read_test,
)
from train import make_step

SOAK = "SOAK" in os.environ
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LINE = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=40)


def tried(few, many, shrink=True):
    """How many examples: each test is made anew for each, and the folder may stay."""
    checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
    return settings(
        max_examples=many if SOAK else few,
        deadline=None,
        derandomize=not SOAK,
        database=None,
        phases=[Phase.generate, Phase.shrink] if shrink else [Phase.generate],
        suppress_health_check=checks,
    )


# Files -----------------------------------------------------------------------------


@tried(100, 20_000)
@given(st.binary(max_size=80))
def test_bytes_are_lines_or_refused(tmp_path, content):
    path = tmp_path / "text"
    path.write_bytes(content)
    try:
        lines = list(read_lines(path))
    except InputError as error:
        assert re.match(
            rf"{path}(:\d+: byte \d+ of this line is not UTF-8|: a gzip file)", str(error)
        )
    else:
        assert len(lines) == content.count(b"\n") + (not content.endswith(b"\n") and content != b"")
        assert not any("\n" in line for line in lines)


REFERENCES = ["&amp;", "&#", "&#10;", "&#xa;", "&#x85;"]
TAGS = ["<seg>", '<seg id="1">', "</seg>", "<seg ", "<", ">", "<doc>"]
PARTS = [*REFERENCES, *TAGS, "<!-- ", "-->", "<![CDATA[", "]]>", "\n", "a b"]


@tried(100, 20_000)
@given(st.lists(st.sampled_from(PARTS)).map("".join))
def test_xml_is_sentences_or_refused(tmp_path, content):
    path = tmp_path / "test.xml"
    path.write_text(content)
    try:
        cleaned, raw, places = read_test(path)
    except InputError as error:
        assert re.match(rf"{path}:\d+: ", str(error))
    else:
        assert len(cleaned) == len(raw) and len(places) in (0, len(raw))
        assert not any("\n" in line for line in raw)


# Vocabularies ----------------------------------------------------------------------


@tried(100, 20_000)
@given(st.lists(LINE, min_size=1))
def test_words_come_back_from_their_ids(tmp_path, lines):
    text, path = tmp_path / "text", tmp_path / "de.vocab.tsv"
    text.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="")
    try:
        path.write_text(
            prepro.make_vocab(text, prepro.SentenceCounter()), encoding="utf-8", newline=""
        )
    except InputError:
        assert not clean(" ".join(lines)).split()
        return
    words = Words(path, 0)
    assert sum([*read_counts(path).values()][4:]) == len(clean(" ".join(lines)).split())
    for line in map(clean, lines):
        assert words.decode(words.encode([line])[0]) == " ".join(line.split())


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    flags = write_corpus(tmp_path_factory.mktemp("pieces"), sample_pairs(200))
    hp = with_recipe(flags | dict(recipe="tiny", vocab_size=300))
    prepro.main(flags | dict(recipe="tiny", vocab_size=300))
    return Pieces(hp.pieces_path)


@tried(100, 20_000)
@given(data=st.data())
def test_text_comes_back_from_its_pieces(pieces, data):
    known = sorted({char for i in range(4, len(pieces)) for char in pieces.token(i)} - {"▁"})
    line = data.draw(st.text(st.sampled_from([*known, " ", "\t", "\u00a0"])))
    line = unicodedata.normalize(data.draw(st.sampled_from(["NFC", "NFD"])), line)
    (ids,) = pieces.encode([line])
    wanted = " ".join(unicodedata.normalize("NFC", line).split())
    assert ids[-1] == END and pieces.decode(ids) == wanted


@tried(100, 20_000)
@given(st.lists(TEXT, max_size=5), st.sampled_from([0.0, 0.1]))
def test_any_text_has_pieces(pieces, lines, dropout):
    """BPE-dropout splits a text otherwise, and it is the same text."""
    encoded = pieces.encode(lines, dropout)
    assert len(encoded) == len(lines)
    for ids, undropped in zip(encoded, pieces.encode(lines), strict=True):
        assert ids[-1] == END and all(0 <= i < len(pieces) for i in ids)
        if UNK not in undropped:
            assert pieces.decode(ids) == pieces.decode(undropped)


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """`Words` that has the letters a, é, ß and ', and the same as TensorFlow's operations."""
    path = tmp_path_factory.mktemp("words") / "de.vocab.tsv"
    listed = [*SPECIALS, "a", "é", "ß", "'", "aé"]
    path.write_text("".join(f"{word}\t9\n" for word in listed), encoding="utf-8")
    vocab = Words(path, 0)
    return vocab, WordsOps(vocab, vocab)


# Strings of TensorFlow's may hold anything but what is no character.
CUT = st.lists(
    st.text(
        st.one_of(st.sampled_from("aéß' \u0085\u00a0\u2028\x1c\x00"), st.characters(codec="utf-8")),
        max_size=20,
    ),
    min_size=1,
)


@tried(200, 20_000)
@given(CUT)
def test_words_are_cut_the_same_within_tensorflow(words, lines):
    vocab, ops = words
    expected = vocab.encode(map(clean, lines))
    assert ops.encode(tf.constant(lines)).to_list() == expected
    ids = tf.ragged.constant([ids[:-1] for ids in expected], tf.int32)
    texts = [text.decode() for text in ops.decode(ids).numpy()]
    assert texts == [vocab.decode(np.array(ids)) for ids in expected]


@tried(200, 20_000)
@given(CUT)
def test_pieces_are_cut_the_same_within_tensorflow(pieces, lines):
    ops = PiecesOps(pieces)
    expected = pieces.encode(lines)
    assert ops.encode(tf.constant(lines)).to_list() == expected
    ids = tf.ragged.constant([ids[:-1] for ids in expected], tf.int32, ragged_rank=1)
    texts = [text.decode() for text in ops.decode(ids).numpy()]
    assert texts == [pieces.decode(np.array(ids)) for ids in expected]


def test_every_character_is_dropped_or_a_blank_or_neither_within_tensorflow(words):
    vocab, ops = words
    chars = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]
    lines = [f"a{char}a" for char in chars]
    assert ops.encode(tf.constant(lines)).to_list() == vocab.encode(map(clean, lines))


# The model -------------------------------------------------------------------------

FLAGS = dict(
    recipe=["legacy", "updated", "paper", "tiny"],
    maxlen=[1, 2, 7],
    # So wide that dropout does not take all of a word: at zeros `Normalize` has a slope of 10,000.
    heads=[(16, 1), (24, 3), (16, 16)],
    num_blocks=[1, 2],
    ffn_units=[0, 1, 5],
    sinusoid=[True, False],
    paired=[True, False],
    relu_projections=[True, False],
    output_projection=[True, False],
    shared=[True, False],
    pad_logit=[True, False],
    masks=["activations", "ids"],
    dropout_on=["attention", "sublayers", "both"],
    dropout_rate=[0.0, 0.3],
    precision=["float32", "bfloat16"],
    beam=[1, 3],
    length_penalty=["paper", "ctranslate2"],
    alpha=[0.0, 1.4],
)


@tried(2, 200, shrink=False)
@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in FLAGS.items()}))
def test_any_model_trains_and_translates(flags):
    hidden_units, num_heads = flags.pop("heads")
    flags |= dict(hidden_units=hidden_units, num_heads=num_heads)
    flags["shared"] &= flags["recipe"] != "legacy"
    hp = with_recipe(flags)
    model = make_model(hp, 9, 9)
    optimizer = Adam(0.001)
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, 9, (2, 3, hp.maxlen), dtype=np.int32)
    x[:, -1], y[:, -1] = END, END
    x[1, 1:], y[1, 1:] = 0, 0
    step = make_step(tf.distribute.get_strategy(), model, optimizer)
    for _ in range(2):
        assert np.isfinite(step(x, y)).all()
    for weight in model.trainable_variables:
        assert np.isfinite(weight).all()
    x[2] = 0  # nothing but padding, which training leaves out
    preds, scores = make_search(model, hp, hp.beam)(x)
    assert preds.shape[:2] == (3, 1) and np.isfinite(scores).all()
    assert np.all((preds >= 0) & (preds < 9))
    keras.backend.clear_session()


# A great deal ------------------------------------------------------------------------


@pytest.mark.skipif(not SOAK, reason="takes long. To run them: make soak")
@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_a_million_random_lines(tmp_path, recipe):
    rng = np.random.default_rng(0)
    codes = {*range(1, 3000), *range(0x4E00, 0x5200)} - {ord("\n"), ord("<")}  # which opens a tag
    letters = np.array([*map(chr, codes)])

    def lines():
        for length in rng.integers(0, 30, 1_000_000):
            yield "".join(letters[rng.integers(0, len(letters), length)])

    flags = write_corpus(tmp_path, [("x", "x")]) | dict(recipe=recipe, min_cnt=2)
    for side in ("source_train", "target_train"):
        with open(flags[side], "w", encoding="utf-8", newline="") as file:
            file.writelines(f"{line}\n" for line in lines())
    prepro.main(flags)
    hp = with_recipe(flags | dict(hidden_units=2, num_heads=1, num_blocks=1, beam=1))
    vocabs = load_vocabs(hp)
    assert len(load_train_data(hp, vocabs).X) > 100_000
    translator = Translator(hp, make_model(hp, *map(len, vocabs)), vocabs)
    for block in in_blocks(read_lines(hp.source_train)):
        assert len(translator(block)) == len(block)
