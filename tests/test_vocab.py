"""Subwords: the sentencepiece model, its size, case, symbols and bytes, and BPE-dropout."""

import dataclasses
import json
import random
import re
import shutil
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import prepro
import train
from conftest import SMALL, sample_pairs, slow, write_corpus
from data_load import load_test_data, load_train_data, pairs_of_epoch, without_final_mark
from formats import ctranslate2_model, saved_model
from formats.saved_model import SubwordOps
from helpers import load, read_test_sentences, tensorflow_text, vocabs_of
from hparams import make_hparams
from processes import ROOT
from support.errors import InputError
from text.ids import EOS, SPECIALS, UNK
from text.lines import read_sentences
from text.vocab import SubwordVocab, save_vocabs
from translation.paragraphs import Splitter
from translation.translator import Translator

TINY = dict(recipe="tiny", vocab_size=180, fold_case=False)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """The flags of a corpus of 200 pairs with its subwords."""
    flags = write_corpus(tmp_path_factory.mktemp("vocab"), sample_pairs(200), sample_pairs(30, 1))
    prepro.main(flags | TINY)
    return flags | TINY


@pytest.fixture(scope="module")
def vocab(flags):
    """The `SubwordVocab` of these flags."""
    return vocabs_of(flags)[0]


# The sentencepiece model --------------------------------------------


def test_both_sides_share_a_model_whose_text_comes_back(flags, vocab):
    assert vocab.tokens()[:4] == list(SPECIALS) and len(vocab) == 180
    source, target = vocabs_of(flags)
    assert source is target
    lines = [*read_sentences(flags["source_train"]), *read_sentences(flags["target_train"])]
    encoded = vocab.encode(lines)
    assert all(ids[-1] == EOS and UNK not in ids for ids in encoded)
    assert [vocab.decode(ids) for ids in encoded] == lines
    assert vocab.decode([*encoded[0], 7, 8]) == lines[0]  # ids after </S> are ignored
    assert vocab.decode([EOS, 5]) == ""


def test_the_sentencepiece_model_alone_composes_and_makes_plain_spaces(vocab):
    """For programs that use the file without `text.normalize`."""
    decomposed = unicodedata.normalize("NFD", "für die schöne")
    lines = ["Ein\u00a0Hund\tim\u2028Park ", decomposed, "\xads"]
    texts = [vocab.decode(vocab.encode([line])[0]) for line in lines]
    assert texts == ["Ein Hund im Park", "für die schöne", "s"]


# With prepro.py's flags, those of train.py, and the message.
OTHER_FLAGS = [
    ({}, dict(vocab_size=90), "its 180 subwords do not fit vocab_size 90. Write"),
    (dict(fold_case=True), dict(fold_case=False), "do not fit fold_case False"),
    (dict(fold_case=False), dict(fold_case=True), "no such file|do not fit fold_case True"),
    (dict(symbols=">>de<<"), dict(symbols=">>de<<,>>en<<"), "do not fit symbols .* and this flag"),
    ({}, dict(byte_fallback=True), "do not fit byte_fallback True"),
    ({}, dict(preprocessed="nowhere"), "nowhere/bpe.model: no such file .* Run `python prepro.py`"),
]


@pytest.mark.parametrize("written, wanted, message", OTHER_FLAGS)
def test_a_flag_that_prepro_did_not_have_is_refused(flags, tmp_path, written, wanted, message):
    flags = flags | dict(preprocessed=str(tmp_path))
    prepro.main(flags | written)
    vocabs_of(flags | written)
    with pytest.raises(InputError, match=message):
        vocabs_of(flags | written | wanted)


def test_no_vocabulary_of_another_recipe_is_left(flags, tmp_path):
    """`fold_case` writes a second file, which would be read."""
    flags = flags | dict(preprocessed=str(tmp_path / "pre"))
    for fold_case, names in ((True, ["bpe.model", "bpe.source.model"]), (False, ["bpe.model"])):
        prepro.main(flags | dict(fold_case=fold_case))
        vocabs = vocabs_of(flags | dict(fold_case=fold_case))
        save_vocabs(vocabs, tmp_path / "log")
        for folder in ("pre", "log"):
            assert sorted(path.name for path in (tmp_path / folder).glob("*.model")) == names


def test_without_a_flag_training_takes_the_size_from_the_file(flags):
    """Even if the recipe has another vocab_size."""
    given = {name: value for name, value in flags.items() if name != "vocab_size"}
    assert make_hparams(given | dict(recipe="paper")).vocab_size > 180
    assert len(vocabs_of(given | dict(recipe="paper"))[0]) == 180


# The number of subwords ---------------------------------------------


def make_processor(word2cnt):
    """Make the sentencepiece model of some words, and return its processor."""
    proto = prepro.make_subwords(word2cnt, make_hparams(dict(recipe="tiny")))
    return sentencepiece.SentencePieceProcessor(model_proto=proto)


def test_the_vocabulary_grows_with_the_text():
    """N**0.6 subwords for N characters, and at most 8000."""
    letters = random.Random(0)
    words = ["".join(letters.choices("abcdefghijklmnop", k=6)) for _ in range(3000)]
    for count, size in ((1, 357), (10, 1423), (10_000, 8000)):
        assert len(make_processor(Counter(dict.fromkeys(words, count)))) == size


def test_a_size_that_the_text_does_not_allow_names_the_nearest(flags, tmp_path):
    flags = flags | dict(preprocessed=str(tmp_path))

    def nearest_to(size):
        with pytest.raises(InputError) as raised:
            prepro.main(flags | dict(vocab_size=size))
        return int(re.search(r"--vocab_size (\d+), the nearest", str(raised.value))[1])

    for refused, step in ((10, -1), (10_000, 1)):
        nearest = nearest_to(refused)
        prepro.main(flags | dict(vocab_size=nearest))
        assert len(SubwordVocab(tmp_path / "bpe.model")) == nearest == nearest_to(nearest + step)


@pytest.mark.parametrize(
    "line",
    [
        *("ab", "The quick brown fox jumps", "".join(map(chr, range(200, 999)))),
        "我爱你，“你”爱我吗？ＡＢ½…",
        "أحبك كثيرا",
        "Ζωή, 12.5 % — “naïve”!",
        "नमस्ते दुनिया",
        "안녕 세상 🙂",
        "ab" * 40_000,  # sentencepiece fails at a word of 65,536 characters
        "Balken ▃▅▇ voll",  # sentencepiece skips a word with U+2585, and then its other characters
    ],
)
def test_any_little_text_has_a_vocabulary(tmp_path, line):
    """Also if it has too few characters for the chosen size, or more characters than that."""
    flags = write_corpus(tmp_path, [(line, line[::-1])] * 3) | dict(recipe="tiny", fold_case=False)
    prepro.main(flags)
    vocab, _ = vocabs_of(flags)
    known = line.replace("▅", "")
    (ids,) = vocab.encode([known])
    assert UNK not in ids and (vocab.decode(ids) == known or not line.isprintable())


@pytest.mark.parametrize("pairs", [300, 3000])
def test_a_text_of_many_characters_has_merges_for_both_sides(pairs):
    """3,000 characters with the frequencies of a language, and English words."""
    rng = random.Random(0)
    han, weights = [chr(0x4E00 + i) for i in range(3000)], [1 / (i + 1) for i in range(3000)]
    words = "the a dog man woman child house street small old runs plays eats sleeps near with"
    source = ["".join(rng.choices(han, weights, k=15)) for _ in range(pairs)]
    target = [" ".join(rng.choices(words.split(), k=8)) for _ in range(pairs)]
    processor = make_processor(prepro.count_words(source + target))
    characters = {*"".join(source + target)} - {" "}
    merges = [piece for piece in map(processor.id_to_piece, range(4, len(processor))) if piece[1:]]
    assert len(processor) == 5 + len(characters) + len(merges)  # every character is known
    assert sum(map(len, processor.encode(target[:100]))) <= 1.5 * 8 * 100  # words, not letters
    if pairs > 300:
        assert sum(map(len, processor.encode(source[:100]))) < 15 * 100  # some pairs are merged


# Sources without case -----------------------------------------------


@pytest.mark.parametrize("joint_vocab", [True, False])
def test_a_source_has_no_case_and_a_target_keeps_it(flags, tmp_path, joint_vocab):
    more = dict(fold_case=True, joint_vocab=joint_vocab, preprocessed=str(tmp_path), vocab_size=300)
    flags = flags | more | dict(tied_embeddings=joint_vocab)
    prepro.main(flags)
    source, target = vocabs_of(flags)
    for german, english in sample_pairs(20):
        forms = [german, german.upper(), german.title(), german.lower()]
        assert len({tuple(ids) for ids in source.encode(forms)}) == 1
        assert target.decode(target.encode([english])[0]) == english
        assert target.encode([english]) != target.encode([english.upper()])
    assert (source.tokens() == target.tokens()) == joint_vocab


FORMS = [
    "Straße STRASSE strasse",
    "σοφός ΣΟΦΌΣ",
    "Ёж ЁЖ ёж",
    "I\u0308s i\u0308S ÏS",
    "ＡＢ犬 ａｂ犬",
]


@pytest.mark.parametrize("lang, texts", [("de", FORMS), ("tr", ["ışık_İki IŞIK_İKİ Işık_iki"])])
def test_case_follows_the_rules_of_the_language(tmp_path, lang, texts):
    texts = [text.split() for text in texts]
    flags = write_corpus(tmp_path, [(" ".join([form, *form]), "x") for form in sum(texts, [])])
    flags |= dict(recipe="tiny", source_lang=lang)
    prepro.main(flags)
    for forms in texts:
        ids = vocabs_of(flags)[0].encode(forms)
        assert len({tuple(own) for own in ids}) == 1 and UNK not in ids[0]


# BPE-dropout and missing marks --------------------------------------


@pytest.mark.parametrize("bpe_dropout, missing_mark", [(0.1, 0.0), (0.0, 0.4), (0.1, 0.4)])
def test_seed_and_epoch_decide_how_an_epoch_changes_the_text(
    flags, vocab, bpe_dropout, missing_mark
):
    hp = make_hparams(flags | dict(bpe_dropout=bpe_dropout, missing_mark=missing_mark))
    data = load_train_data(hp, (vocab, vocab))

    def ids_and_sources(epoch, **changes):
        """Return the ids of both sides in an epoch, and the text of the sources."""
        changed = dataclasses.replace(hp, **changes)
        pairs = pairs_of_epoch(data, (vocab, vocab), changed, epoch)
        assert [*map(vocab.decode, pairs.Y)] == data.Targets
        return [*pairs.X.ids, *pairs.Y.ids], [*map(vocab.decode, pairs.X)]

    first, plain = ids_and_sources(1), [*data.X.ids, *data.Y.ids]
    others = [ids_and_sources(2), ids_and_sources(1, seed=1)]
    assert first == ids_and_sources(1) and first[0] not in [plain, *(ids for ids, _ in others)]
    changed = [a != b for a, b in zip(data.Sources, first[1], strict=True)]
    assert (0.3 < np.mean(changed) < 0.5) if missing_mark else not any(changed)
    assert {*first[1]} <= {*data.Sources, *map(without_final_mark, data.Sources)}
    if bpe_dropout:  # more of it gives more subwords
        assert len(ids_and_sources(1, bpe_dropout=0.01)[0]) < len(first[0])
        copies = pairs_of_epoch(data._replace(Targets=data.Sources), (vocab, vocab), hp, 1)
        assert copies.X.ids.tolist() != copies.Y.ids.tolist()  # each side by itself
    # A test set does not change.
    tests = [load_test_data(make_hparams(own), (vocab, vocab)) for own in (flags, flags | vars(hp))]
    assert tests[0].data.X.ids.tolist() == tests[1].data.X.ids.tolist()


MARKS = {
    "Die Straße führt zu Łukas' Haus.": "Die Straße führt zu Łukas' Haus",
    "Շունը տեսնում է կատվին։": "Շունը տեսնում է կատվին",
    "犬が猫を見る。": "犬が猫を見る",
    "الكلب يرى القط؟": "الكلب يرى القط",
    "कुत्ता बिल्ली को देखता है।": "कुत्ता बिल्ली को देखता है",
    "สุนัขเห็นแมว": "สุนัขเห็นแมว",
    "Er sagt: „Nein!“": "Er sagt: „Nein“",
    "Wirklich?! ": "Wirklich ",
    "v1.2 ist da": "v1.2 ist da",
    "...": "",
    "." * 60_000 + "a": "." * 60_000 + "a",  # in linear time
}


def test_the_final_mark_is_removed():
    for sentence, without in MARKS.items():
        assert without_final_mark(sentence) == without == without_final_mark(without)


def test_files_and_bpe_dropout_are_the_same_in_every_process(flags, vocab, tmp_path):
    """A resumed run must read the subwords of the run that was stopped."""
    program = (
        "import json, sys; from pathlib import Path; import prepro; from text.vocab import"
        " SubwordVocab; flags = json.loads(sys.argv[1]); prepro.main(flags);"
        "print(SubwordVocab(Path(sys.argv[2])).encode(sys.argv[3:], dropout=0.5, seed=7))"
    )
    lines, path = [german for german, _ in sample_pairs(20)], tmp_path / "bpe.model"
    command = [sys.executable, "-c", program, json.dumps(flags | dict(preprocessed=str(tmp_path)))]
    done = subprocess.run([*command, path, *lines], cwd=ROOT, capture_output=True, text=True)
    assert path.read_bytes() == vocab.content, done.stderr
    assert done.stdout.splitlines()[-1] == str(vocab.encode(lines, dropout=0.5, seed=7))


# Symbols and bytes --------------------------------------------------


@pytest.mark.parametrize("fold_case", [True, False])
def test_a_symbol_is_repeated_before_each_sentence(tmp_path, fold_case):
    flags = write_corpus(tmp_path, sample_pairs(300)) | dict(recipe="tiny", fold_case=fold_case)
    prepro.main(flags | dict(symbols=">>en<<,>>DE<<"))
    split = Splitter("de", vocabs_of(flags)[0], max_tokens=50)
    for symbol, kept in ((">>en<<", ">>en<< "), (">>DE<<", ">>DE<< "), (">>xx<<", "")):
        inputs = split(f"{symbol} Der Hund schläft. Die Frau singt.").inputs
        assert inputs == [f"{symbol} Der Hund schläft.", f"{kept}Die Frau singt."]


@pytest.mark.parametrize("vocab_size", [0, 400])
def test_symbols_are_one_subword_and_unseen_characters_are_bytes(tmp_path, vocab_size):
    flags = write_corpus(tmp_path, sample_pairs(300)) | dict(recipe="tiny", vocab_size=vocab_size)
    flags |= dict(fold_case=False)
    plain = dict(preprocessed=str(tmp_path / "plain"))
    prepro.main(flags | plain)
    prepro.main(flags | dict(symbols=">>de<<,@@1@@", byte_fallback=True))
    vocab, before = (vocabs_of(flags | more)[0] for more in ({}, plain))
    if not vocab_size:  # as many learned ones
        assert abs(len(vocab) - len(before) - 258) <= 2
    text = ">>de<< Der Hund @@1@@ schläft 日"
    (ids,), (known,) = vocab.encode([text]), before.encode([text])
    tokens = [vocab.id_to_token(i) for i in ids]
    assert ">>de<<" in tokens and "@@1@@" in tokens
    assert tokens[-4:-1] == [f"<0x{byte:02X}>" for byte in "日".encode()]
    assert UNK not in ids and UNK in known
    assert vocab.decode(ids) == text
    tokenizer = tensorflow_text().SentencepieceTokenizer(vocab.content, add_eos=True)  # of exports
    assert tokenizer.tokenize(text).numpy().tolist() == ids
    assert tokenizer.detokenize(ids[:-1]).numpy().decode() == text
    assert "@@1@@" not in [before.id_to_token(i) for i in known]
    # A translation is one line, also if the model chooses the byte of a line feed.
    ends = [vocab.processor.piece_to_id(f"<0x{byte:02X}>") for byte in b"\n\r"]
    assert vocab.decode([*ids[:-1], *ends, *ids]).split() == [*text.split(), *text.split()]
    for i in range(len(vocab)):
        assert not {"\n", "\r"} & {*vocab.decode([i])}
    rows = tf.ragged.constant([ids[:-1], ends], tf.int32)
    assert SubwordOps(vocab, vocab).decode(rows).numpy().tolist() == [text.encode(), b"  "]


BAD_SYMBOLS = {">>de<<,": "''", "a b": "'a b'", "<S>,x": "'<S>'", "<0x41>": "'<0x41>'"}
BAD_SYMBOLS |= {"x,y,x": "'x'", "e\u0301,é": "'é'", "a\u200bb": r"'a\\u200bb'"}


def test_symbols_that_cannot_be_are_refused(flags, tmp_path):
    flags = flags | dict(preprocessed=str(tmp_path))
    for symbols, word in BAD_SYMBOLS.items():
        with pytest.raises(InputError, match=f"{word} cannot be .*Write words with commas"):
            prepro.main(flags | dict(symbols=symbols))
    assert not [*tmp_path.iterdir()]


def test_rare_characters_can_be_spelled(tmp_path):
    """Each of 300 characters occurs twice, so they would need more subwords than there are."""
    rare = "".join(map(chr, range(0x4E00, 0x4E00 + 300)))
    pairs = [(f"{char} {'好人' * 30}", "good people") for char in rare]
    flags = write_corpus(tmp_path, pairs * 2) | dict(recipe="tiny", vocab_size=290)
    with pytest.raises(InputError, match="does not allow 290 subwords"):
        prepro.main(flags)
    for size in (290, 0):  # none of the 300 is a subword
        prepro.main(flags | dict(byte_fallback=True, vocab_size=size))
        vocab = SubwordVocab(Path(flags["preprocessed"]) / "bpe.model")
        (ids,) = vocab.encode(["一好人"])
        assert UNK not in ids and vocab.decode(ids) == "一好人" and "一" not in vocab.tokens()
        assert len(vocab) < 450


# One vocabulary per language ----------------------------------------


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    """Flags of a text with two vocabularies of different sizes."""
    flags = write_corpus(
        tmp_path_factory.mktemp("separate"), sample_pairs(300), sample_pairs(20, 1)
    )
    flags |= dict(recipe="tiny", joint_vocab=False, tied_embeddings=False)
    prepro.main(flags)
    return flags


def test_each_language_has_its_own_subwords(separate):
    source, target = vocabs_of(separate)
    assert [vocab.path.name for vocab in (source, target)] == ["bpe.de.model", "bpe.en.model"]
    (german,), (english,) = source.encode(["über"]), target.encode(["über"])
    assert source.decode(german) == "über" and target.decode(english) != "über"
    with pytest.raises(InputError, match="bpe.de.model: .* do not fit vocab_size 123"):
        vocabs_of(separate | dict(vocab_size=123))


@slow
def test_a_model_with_two_vocabularies_translates_everywhere(separate, tmp_path, capsys):
    """Also as a SavedModel, in CTranslate2, after it was moved, and after it was resumed."""
    flags = separate | SMALL | dict(maxlen=40, num_epochs=20, batch_tokens=0, batch_size=32)
    train.main(flags)
    moved = shutil.copytree(separate["logdir"], tmp_path / "moved")
    loaded = load(dict(logdir=str(moved), preprocessed=str(tmp_path / "missing")))
    assert (loaded.model.source_vocab, loaded.model.target_vocab) == (*map(len, loaded.vocabs),)
    lines = read_test_sentences(separate["source_test"])
    expected = [translation.text for translation in Translator(loaded)(lines)]
    assert len({*expected}) > 3
    tensorflow_text()  # registers the operations that tokenize
    saved_model.write(loaded, str(tmp_path))
    signature = tf.saved_model.load(str(tmp_path)).signatures["serving_default"]
    texts = signature(text=tf.constant(lines))["translation"].numpy()
    assert [text.decode() for text in texts] == expected
    ctranslate2_model.write(loaded, tmp_path, "float32")
    for vocab in loaded.vocabs:
        assert (tmp_path / vocab.path.name).read_bytes() == vocab.content
    train.main(flags | dict(logdir=str(moved), num_epochs=21))
    assert "Resuming from" in capsys.readouterr().out


def test_a_model_has_its_own_vocabulary(tmp_path):
    """Not that which another prepro.py has written."""
    (tmp_path / "bpe.model").write_bytes(b"another one")
    logdir = ROOT / "docs" / "sample_model"
    (vocab, _) = load(dict(logdir=str(logdir), preprocessed=str(tmp_path))).vocabs
    assert vocab.path.parent == logdir and vocab.content == vocab.path.read_bytes()
