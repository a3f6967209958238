"""Text to batches: the arrays of the 2017 code on real text, and unusual text files."""

import dataclasses
import gc
import gzip
import hashlib
import json
import os
import shutil
import time
import tracemalloc
import unicodedata
import weakref
from pathlib import Path

import loky
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import data_load
import prepro
import text
from bleu import METRICS, bleu_score, corpus_score
from conftest import GOLDEN, slow_unless, write_corpus
from data_load import create_data, get_batch_data, load_test_data, load_train_data
from eval_sets import read_test_set
from helpers import read_test_sentences, run_main
from hparams import Hyperparams, make_hparams
from ids import EOS, RaggedIds
from interop.original import find_min_cnt
from runtime import parallel
from runtime.errors import InputError
from text import read_lines
from vocab import WordVocab, load_vocabs

VOCAB_SHA256 = {
    "de": "94240fde34b7dd1cd00fad21c28bff16083c2ae29c213cdf0b04157c680fc317",
    "en": "c136d199325f6e3a9c4a4cb2af2da4cd8fe866d11905623465e9682579ad8473",
}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def iwslt16(real_text, tmp_path_factory):
    """Write the vocabularies of the corpus of the 2017 code, and return its flags."""
    folder = real_text / "iwslt16"
    flags = {"preprocessed": str(tmp_path_factory.mktemp("iwslt16"))}
    for side, lang in (("source", "de"), ("target", "en")):
        flags[f"{side}_train"] = str(folder / f"train.tags.de-en.{lang}")
        flags[f"{side}_test"] = str(folder / f"IWSLT16.TED.tst2014.de-en.{lang}.xml")
    run_main(prepro, flags)
    return flags


@pytest.mark.parametrize("lang", ["de", "en"])
def test_vocabularies_equal_those_of_2017_byte_for_byte(iwslt16, lang):
    path = Path(iwslt16["preprocessed"]) / f"{lang}.vocab.tsv"
    assert sha256(path.read_bytes()) == VOCAB_SHA256[lang]


def test_a_vocabulary_file_of_words(tmp_path):
    """Four special tokens, then words by their count; words of markup count, too."""
    flags = write_corpus(tmp_path, [("b a b 1", "x")])
    (tmp_path / "train.source").write_text("<url>ab</url>\nb a b 1\n")
    run_main(prepro, flags)
    specials = ["<PAD>", "<UNK>", "<S>", "</S>"]
    lines = [f"{special}\t1000000000" for special in specials] + ["b\t2", "urlaburl\t1", "a\t1"]
    path = tmp_path / "preprocessed" / "de.vocab.tsv"
    assert path.read_text() == "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("maxlen, min_cnt", [(10, 20), (25, 3)])
def test_arrays_equal_those_of_2017(iwslt16, maxlen, min_cnt):
    hp = Hyperparams(**iwslt16, maxlen=maxlen, min_cnt=min_cnt)
    vocabs = load_vocabs(hp.preprocessed, hp)
    train = load_train_data(hp, vocabs)
    test = load_test_data(hp, vocabs).data
    train_X, train_Y, test_X = (side.pad(width=maxlen) for side in (train.X, train.Y, test.X))
    golden = json.loads((GOLDEN / "data_iwslt16.json").read_text())
    assert golden[f"maxlen={maxlen},min_cnt={min_cnt}"] == {
        "de_vocab": len(vocabs[0]),
        "en_vocab": len(vocabs[1]),
        "train_pairs": len(train.X),
        "test_pairs": len(test.X),
        "train_X": sha256(train_X.tobytes()),
        "train_Y": sha256(train_Y.tobytes()),
        "test_X": sha256(test_X.tobytes()),
        "sources": sha256("\n".join(test.Sources).encode()),
        "targets": sha256("\n".join(test.Targets).encode()),
        "first_X": train_X[0].tolist(),
        "first_Y": train_Y[0].tolist(),
    }


# Reading -----------------------------------------------------------------------


def training_pairs(flags, maxlen=10):
    """Load the pairs to train on as text, with vocabularies of every word in the text."""
    hp = Hyperparams(**flags, maxlen=maxlen, min_cnt=1)
    run_main(prepro, flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    data = load_train_data(hp, vocabs)
    assert not data.Sources and not data.Targets  # a large text would fill the memory
    assert all(ids[-1] == EOS for side in (data.X, data.Y) for ids in side)
    sides = zip((data.X, data.Y), vocabs, strict=True)
    return list(zip(*([vocab.decode(ids) for ids in side] for side, vocab in sides), strict=True))


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffein\r\nzwei\u2028drei\x85vier\x0bfünf\rsechs\n\nsieben".encode())
    lines = ["ein", "zwei\u2028drei\x85vier\x0bfünf\rsechs", "", "sieben"]
    assert list(read_lines(path)) == lines


def test_compressed_files_are_read_as_what_they_contain(tmp_path):
    plain, packed = tmp_path / "plain", tmp_path / "packed.de"
    for content in (b"", b"\xef\xbb\xbfein\r\nzwei", b"<seg id='1'>drei</seg>\n"):
        plain.write_bytes(content)
        packed.write_bytes(gzip.compress(content))
        assert [*read_lines(packed)] == [*read_lines(plain)]
        same = read_test_sentences(packed)._replace(path=plain)
        assert same == read_test_sentences(plain)


@pytest.mark.parametrize(
    "content, place",
    [
        (b"ein\nB\xe4ume\n", "2: byte 2"),
        ("ein\nzwei\n".encode("utf-16"), "1: byte 1"),
        ("ein\nzwei\n".encode("utf-16le"), "1: byte 2"),
        (b"z\0wei\n", "1: byte 2"),
        (b"%PDF-1.4\n%\xe2\xe3\n", "2: byte 2"),
    ],
)
def test_a_file_that_is_not_text_in_utf_8_is_named(tmp_path, content, place):
    path = tmp_path / "a"
    for written in (content, gzip.compress(content)):
        path.write_bytes(written)
        with pytest.raises(InputError, match=f"^{path}:{place} of this line .*iconv -f latin1"):
            list(read_lines(path))


def test_a_pair_with_an_empty_side_is_left_out_as_a_pair(tmp_path, capsys):
    pairs = [("eins", "one"), ("", "two"), ("drei", " "), ("vier", "four"), ("fünf", "five")]
    assert training_pairs(write_corpus(tmp_path, pairs)) == [pairs[0], pairs[3], pairs[4]]
    assert "Training on 3 of 5 pairs" in capsys.readouterr().out


def test_the_share_of_unknown_words_is_printed(tmp_path, capsys):
    flags = write_corpus(tmp_path, [("a a b", "x x x"), ("a", "x")])
    run_main(prepro, flags)
    hp = Hyperparams(**flags, min_cnt=2)
    load_train_data(hp, load_vocabs(hp.preprocessed, hp))
    assert "Unknown words: 25% of the source, 0% of the target" in capsys.readouterr().out


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_markup_lines_are_skipped_on_each_side_independently(tmp_path, capsys, tokenizer):
    flags = write_corpus(tmp_path, [("eins", "one"), ("zwei", "two")])
    flags |= dict(tokenizer=tokenizer, vocab_size=18) if tokenizer == "bpe" else {}
    path = tmp_path / "train.source"
    path.write_text("<url>a</url>\n<title>b</title>\neins\n<p>\nzwei\n")
    assert training_pairs(flags) == [("eins", "one"), ("zwei", "two")]
    note = f"Skipped as markup: 3 lines of {path}\n"
    assert capsys.readouterr().out.count(note) == 2  # of prepro.py and train.py


UI_STRINGS = [
    ("<b>Öffnet</b> die Datei", "<b>Open</b> the file"),
    ('<a href="%s">ヘルプ</a>', '<a href="%s">Help</a>'),
    ("<3", "<3"),
    ("<url>", "<num>"),
    ("<p>幫手</p>", "<p>Help</p>"),
    ("Preab ar an <br>", "Jump to <br>"),
]
MARKUP = [
    *("<doc docid='1' genre=\"a > b\">", "  </doc> ", "<p>", "<P>", "</p></doc>", "<!-- a -->"),
    *("<url>a</url>", "<title>a < b</title>", "<reviewer href='x'>", "</reviewer>", "<url></url>"),
    *('<CHAPTER ID="1">', '<SPEAKER ID=3 NAME="A">', '<?xml version="1.0"?>', "<!DOCTYPE mteval>"),
    *("<doc><url>a</url>", "\t<description>a</description>\t"),
]


def test_a_line_is_markup_only_if_all_of_it_is_a_tag_of_a_known_format(tmp_path):
    assert all(map(text.is_tag_line, MARKUP))
    assert text.is_tag_line("\ufeff<doc docid='2'>")  # the second of two joined files
    pairs = [*UI_STRINGS, ("x", "y")]
    flags = write_corpus(tmp_path, pairs) | dict(tokenizer="bpe", vocab_size=60)
    (tmp_path / "train.source").write_text(
        "".join(f"{pair[0]}\r\n{markup}\r\n" for pair, markup in zip(pairs, MARKUP, strict=False)),
        "utf-8",
    )
    assert training_pairs(flags, maxlen=60) == pairs
    assert read_test_sentences(flags["target_test"]).raw == [target for _, target in pairs]


@pytest.mark.parametrize("unit", ["<", "<p>", "<p ", '<p "', "<!--", "<url>", "<title>a</title>"])
def test_no_line_takes_more_than_linear_time(unit):
    start = time.process_time()
    text.is_tag_line(f"{unit * 200_000}x")
    assert time.process_time() - start < 30  # below 1 s; quadratic time would be an hour


def test_a_pair_longer_than_maxlen_on_either_side_is_left_out(tmp_path):
    flags = write_corpus(tmp_path, [("a b c", "d"), ("a b", "c d"), ("a", "b c d")])
    assert training_pairs(flags, maxlen=3) == [("a b", "c d")]  # and </S>


def test_a_corpus_read_in_blocks_gives_the_same_pairs(tmp_path, monkeypatch):
    pairs = [("eins", "one"), ("", "two"), ("drei vier", "three four"), ("fünf", "five")]
    flags = write_corpus(tmp_path, [*pairs, ("sechs", "6")])
    monkeypatch.setattr(text, "BLOCK_LINES", 2)
    assert training_pairs(flags) == [pairs[0], *pairs[2:], ("sechs", "")]
    with open(flags["target_train"], "a") as file:
        file.write("more\n" * 4)
    with pytest.raises(InputError, match="5 sentences, but .* has 9"):
        training_pairs(flags)


# Several files -----------------------------------------------------------------


@pytest.fixture
def several(tmp_path):
    """Flags of a corpus of two pairs of files, of which the second is named twice."""
    first, second = (
        write_corpus(tmp_path / name, pairs)
        for name, pairs in (
            ("first", [("eins", "one"), ("zwei drei", "two three")]),
            ("second", [("vier", "four"), ("fünf", "five"), ("", "six")]),
        )
    )
    sides = ("source_train", "target_train")
    return first | {side: ",".join([first[side], second[side], second[side]]) for side in sides}


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_several_files_are_one_text(several, tmp_path, tokenizer):
    """A pair of files that is named twice counts twice."""
    kind = dict(vocab_size=28, maxlen=20) if tokenizer == "bpe" else dict(min_cnt=1)
    vocabularies, texts = [], []
    one = write_corpus(
        tmp_path / "one",
        [("eins", "one"), ("zwei drei", "two three")]
        + 2 * [("vier", "four"), ("fünf", "five"), ("", "six")],
    )
    for flags in (several, one):
        hp = make_hparams(flags | kind | dict(tokenizer=tokenizer))
        run_main(prepro, flags | kind | dict(tokenizer=tokenizer))
        vocabularies.append([path.read_bytes() for path in sorted(Path(hp.preprocessed).iterdir())])
        data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
        texts.append([side.digest() for side in (data.X, data.Y)])
        assert len(data.X) == 6
    assert vocabularies[0] == vocabularies[1] and texts[0] == texts[1]


def test_both_directions_are_several_files(several):
    """How a model is trained that translates both ways."""
    paths = several["source_train"].split(",")[0], several["target_train"].split(",")[0]
    flags = several | dict(source_train=",".join(paths), target_train=",".join(paths[::-1]))
    assert training_pairs(flags | dict(tokenizer="bpe", vocab_size=25)) == [
        *(("eins", "one"), ("zwei drei", "two three")),
        *(("one", "eins"), ("two three", "zwei drei")),
    ]


def test_several_files_that_do_not_fit_together(several, tmp_path):
    def read(**flags):
        training_pairs(several | flags)

    sources, targets = (several[f"{side}_train"].split(",") for side in ("source", "target"))
    with pytest.raises(InputError, match="source_train names 3 files, but target_train names 1"):
        read(target_train=targets[0])
    with pytest.raises(InputError, match=f"^{tmp_path}/missing: no such file"):
        read(source_train=",".join([*sources[:2], f"{tmp_path}/missing"]))
    swapped = ",".join([targets[1], targets[0], targets[2]])  # as many sentences in all
    with pytest.raises(InputError, match=f"{sources[0]}: 2 sentences, but {targets[1]} has 3"):
        read(target_train=swapped)


def test_a_comma_may_be_part_of_a_name(several, tmp_path):
    path = tmp_path / "a,b"
    path.write_text(Path(several["source_train"].split(",")[0]).read_text())
    flags = several | dict(
        source_train=str(path), target_train=several["target_train"].split(",")[0]
    )
    assert len(training_pairs(flags)) == 2


# Files of ids ------------------------------------------------------------------


@pytest.fixture
def encoded(tmp_path):
    """Flags of a corpus with the files of its ids."""
    flags = write_corpus(tmp_path, [("eins", "one"), ("", "two"), ("drei vier", "three")])
    training_pairs(flags)
    return flags


def test_the_ids_of_a_text_are_kept_in_files_that_are_mapped(capsys, encoded, monkeypatch):
    printed = capsys.readouterr().out
    monkeypatch.setattr(data_load, "encode_block", None)  # a call would fail
    assert training_pairs(encoded) == [("eins", "one"), ("drei vier", "three")]
    assert capsys.readouterr().out == printed
    hp = Hyperparams(**encoded, min_cnt=1)
    data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
    for side in (data.X, data.Y):
        assert isinstance(side.ids, np.memmap) and isinstance(side.splits, np.memmap)


def test_the_text_is_kept_only_if_epochs_change_it(tmp_path):
    """Also if the files are there already. Other kinds of line ends are part of a sentence."""
    pairs = [("ein\u2028s\x0bx", "one"), ("", "two"), ("drei\x85", "three")]
    flags = write_corpus(tmp_path, pairs) | dict(recipe="tiny")
    run_main(prepro, flags)
    for dropout, mark in ((0.1, 0.0), (0.0, 0.1), (0.0, 0.0), (0.1, 0.0)):
        hp = make_hparams(flags | dict(bpe_dropout=dropout, missing_mark=mark))
        data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
        kept = pairs[::2] if hp.changes_text else []
        assert [*zip(data.Sources, data.Targets, strict=True)] == kept


@pytest.mark.parametrize("change", ["text", "maxlen", "min_cnt", "vocabulary", "order"])
def test_files_of_another_text_are_not_used(encoded, change):
    """The name of their folder follows from all that the ids depend on, but not from times."""
    hp = Hyperparams(**encoded, min_cnt=1)
    vocabs = load_vocabs(hp.preprocessed, hp)
    key = data_load.key_of_ids(hp, vocabs)
    os.utime(hp.source_train, ns=(0, 0))
    assert data_load.key_of_ids(hp, vocabs) == key
    if change == "text":
        path = Path(hp.source_train)
        path.write_bytes(path.read_bytes()[:-2] + b"x\n")
    elif change == "vocabulary":
        vocabs[0].content += b"more\t1\n"
    elif change == "order":
        names = dict(source_train=hp.target_train, target_train=hp.source_train)
        hp = dataclasses.replace(hp, **names)
    else:
        hp = dataclasses.replace(hp, **{change: 9})
    assert data_load.key_of_ids(hp, vocabs) != key
    (folder,) = (Path(hp.preprocessed) / "train_ids").glob("ids-*")
    assert folder.name == key


def test_a_text_that_changes_while_it_is_read(encoded, monkeypatch):
    hp = dataclasses.replace(Hyperparams(**encoded, min_cnt=1), maxlen=9)
    keys = iter(["ids-1", "ids-2"])
    monkeypatch.setattr(data_load, "key_of_ids", lambda *_: next(keys))
    with pytest.raises(InputError, match="a file has changed while it was read"):
        load_train_data(hp, load_vocabs(hp.preprocessed, hp))


@pytest.mark.parametrize("tokenizer", slow_unless(["bpe"], ["words", "bpe"]))
def test_vocabularies_and_ids_of_two_processes_are_those_of_one(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_LINES", 10)
    monkeypatch.setattr(parallel, "num_processes", lambda: 2)
    monkeypatch.setattr(parallel, "ALONE_SECONDS", -1)
    words = "eins zwei drei vier fünf sechs sieben".split()
    pairs = [(" ".join(words[i % 7 : i % 11]), f"number {i % 13}") for i in range(200)]
    flags = write_corpus(tmp_path, pairs) | dict(tokenizer=tokenizer, vocab_size=60, min_cnt=1)

    hp = make_hparams(flags)

    def read_text():
        shutil.rmtree(hp.preprocessed, ignore_errors=True)
        run_main(prepro, flags)
        files = [path.read_bytes() for path in sorted(Path(hp.preprocessed).glob("*.*"))]
        data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
        return files, *(
            array.tolist() for side in (data.X, data.Y) for array in (side.ids, side.splits)
        )

    several = read_text()
    monkeypatch.delattr(loky, "ProcessPoolExecutor")
    vocabs = load_vocabs(hp.preprocessed, hp)
    shutil.rmtree(Path(hp.preprocessed) / "train_ids")
    for task in (lambda: run_main(prepro, flags), lambda: load_train_data(hp, vocabs)):
        with pytest.raises(AttributeError, match="ProcessPoolExecutor"):
            task()  # the text above needed it
    monkeypatch.setattr(parallel, "num_processes", lambda: 1)
    assert several == read_text()


def test_skipped_lines_are_counted_even_if_the_text_is_not_read_again(encoded, capsys):
    path = Path(encoded["source_train"])
    path.write_text(f"<url>x</url>\n{path.read_text('utf-8')}", "utf-8")
    hp = Hyperparams(**encoded, min_cnt=1)
    for _ in range(2):
        load_train_data(hp, load_vocabs(hp.preprocessed, hp))
        assert f"Skipped as markup: 1 lines of {path}\n" in capsys.readouterr().out


def test_test_sets_may_be_xml_or_plain(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_text('<doc>\n<seg id="1"> Ein Hund. </seg>\n <seg id="2">A &amp; B</seg>\n</doc>')
    target.write_text("A dog.\nA & B\n")
    hp = Hyperparams(source_test=str(source), target_test=str(target))
    vocab = tmp_path / "vocab"
    vocab.write_text(GOOD.replace("ein", "Ein"))
    test = load_test_data(hp, (WordVocab(vocab, 1),) * 2)
    assert test.data.Sources == ["Ein Hund", "A amp B"]  # as the 2017 code cleaned them
    assert test.references == [["A dog.", "A & B"]]
    assert [x.tolist() for x in test.data.X] == [[4, 5, 3], [1, 1, 1, 3]]


@pytest.mark.parametrize(
    "text, segments",
    [
        ('\ufeff\ufeff<seg id="1">a</seg>', [("a", 1, "1")]),
        ('<seg id="1"> a <b>c</b> </seg><seg>d</seg>', [("a c", 1, "1"), ("d", 1, None)]),
        ("x\n<seg id=7>\n a\n  b c\n</seg>\n<seg></seg>", [("a b c", 2, "7"), ("", 6, None)]),
        ("<segment>no</segment>\n <seg>a &lt; b</seg>", [("a < b", 2, None)]),
        ('<doc>\n <p><seg id="1">a</seg></p>', [("a", 2, "1")]),
    ],
)
def test_segments_may_share_lines_and_span_them(tmp_path, text, segments):
    path = tmp_path / "test.xml"
    path.write_text(text)
    test = read_test_sentences(path)
    places = [(place.line, place.id) for place in test.segments]
    assert [(line, *place) for line, place in zip(test.raw, places, strict=True)] == segments


@pytest.mark.parametrize(
    "text, problem",
    [
        ("<seg>a</seg>\n<seg>b\n<seg>c</seg>", ":2: this <seg> is not closed"),
        ("<seg>a</seg>\n<seg>b\n", ":2: this <seg> is not closed"),
        ('<seg\nid="1"\n>a</seg>\n<seg>b', ":4: this <seg> is not closed"),
        ("<seg>a</seg>\nb</seg>\n", ":2: </seg> without a <seg> before it"),
    ],
)
def test_broken_segments_are_named(tmp_path, text, problem):
    path = tmp_path / "test.xml"
    path.write_text(text)
    with pytest.raises(InputError, match=f"{path}{problem}"):
        read_test_sentences(path)


def test_segments_with_different_ids_are_refused(tmp_path):
    paths = tmp_path / "source", tmp_path / "target"
    paths[0].write_text('<seg id="1">a</seg>\n<seg id="2">b</seg>\n')
    paths[1].write_text('<seg id="1">A</seg>\n\n<seg id="3">B</seg>\n')
    with pytest.raises(
        InputError, match="source:2: segment 2 is paired with segment 3 in .*target:3"
    ):
        load_test_data(Hyperparams(source_test=str(paths[0]), target_test=str(paths[1])), None)


def test_only_the_entities_of_xml_are_replaced(tmp_path):
    """In HTML, the semicolon may be missing."""
    path = tmp_path / "a.sgm"
    content = "http://a.b/?x=1&copy=2&reg=3&lt=4&section=5 R&D of AT&T"
    path.write_text(f"<seg>{content} &amp;copy; &#228; &#x732B; &quot;&apos; &#0; &nbsp;</seg>")
    assert read_test_sentences(path).raw == [f"{content} &copy; ä 猫 \"' &#0; &nbsp;"]


# Test sets with both languages -------------------------------------------------

WMT = """<?xml version='1.0' encoding='utf-8'?>
<dataset id="x">
<doc origlang="ja" id="d1">
  <src lang="ja"><p><seg id="1">彼は &lt;水泳&gt; &amp;
 得意</seg><seg id="2">猫</seg></p></src>
  <ref lang="en" translator="A"><p><seg id="2">cat A</seg><seg id="1">he A</seg></p></ref>
  <ref lang="en" translator="B"><p><seg id="2">cat B</seg></p></ref>
  <hyp system="MT" language="en"><p><seg id="1">bad</seg><seg id="2">bad</seg></p></hyp>
</doc>
<doc testsuite="t" id="d2"><src lang="ja"><seg id="1">x</seg></src></doc>
</dataset>
"""
TMX = """<?xml version="1.0"?><!DOCTYPE tmx SYSTEM "tmx14.dtd">
<tmx version="1.4"><header srclang="en"/><body>
<tu><tuv xml:lang="en-US"><seg>Open <bpt i="1">&lt;b></bpt>the<ept i="1">&lt;/b></ept>
 <hi>file</hi></seg></tuv><tuv xml:lang="GA"><seg>Oscail an comhad</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>only one</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>Help</seg></tuv><tuv xml:lang="GA"><seg>Cabhair</seg></tuv></tu>
</body></tmx>
"""


def read_both(tmp_path, content, *more, langs=("ja", "en")):
    """Read one file as both sides: its source, and lists of references."""
    path = tmp_path / "both.xml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    source, references = read_test_set(path, [path, *more], *langs)
    return source.raw, [side.raw for side in references]


@pytest.mark.parametrize(
    "change",
    [
        str,
        lambda text: "\ufeff" + text.replace("\n", "\r\n"),
        lambda text: gzip.compress(text.encode()),
        lambda text: text.replace("\n", ""),
        lambda text: text.replace("<dataset", "<collection><dataset") + "</collection>",
    ],
)
def test_a_file_of_wmt_has_a_source_and_several_references(tmp_path, capsys, change):
    """A segment without a reference is left out; a missing second one repeats the first one."""
    source, references = read_both(tmp_path, change(WMT))
    assert source == ["彼は <水泳> & 得意", "猫"]
    assert references == [["he A", "cat A"], ["he A", "cat B"]]
    assert "Left out: 1 segments of" in capsys.readouterr().out


def test_a_unit_of_tmx_with_several_translations_has_several_references(tmp_path):
    more = '<tuv xml:lang="ga_ie"><seg>Cuidiú</seg></tuv></tu>\n</body>'
    content = TMX.replace('"GA"', '"ga-IE"').replace("</tu>\n</body>", more)
    source, references = read_both(tmp_path, content, langs=("en", "ga"))
    assert source == ["Open the file", "Help"]
    assert references == [["Oscail an comhad", "Cabhair"], ["Oscail an comhad", "Cuidiú"]]
    with pytest.raises(InputError, match="2 versions of a document as the source"):
        read_both(tmp_path, content, langs=("ga", "en"))
    content = content.replace("ga_ie", "ga-GB")
    _, references = read_both(tmp_path, content, langs=("en", "ga_IE"))
    assert references == [["Oscail an comhad", "Cabhair"]]


def test_the_languages_of_tmx_decide(tmp_path, capsys):
    english, irish = ["Open the file", "Help"], ["Oscail an comhad", "Cabhair"]
    assert read_both(tmp_path, TMX, langs=("ga", "en")) == (irish, [english])
    assert read_both(tmp_path, TMX, langs=("en", "ga-IE")) == (english, [irish])
    assert capsys.readouterr().out.count("Left out: 1 segments of") == 2


def test_several_files_of_references(tmp_path):
    more = tmp_path / "more.en"
    more.write_text("one\ntwo\nthree\n")
    assert read_both(tmp_path, WMT, more) == (
        ["彼は <水泳> & 得意", "猫", "x"],
        [["he A", "cat A", "three"], ["one", "cat B", "three"], ["he A", "two", "three"]],
    )
    hp = Hyperparams(source_test=str(more), target_test=f"{more},{more}", source_lang="x")
    vocab = tmp_path / "vocab"
    vocab.write_text(GOOD.replace("ein", "one"))
    assert (
        load_test_data(hp, (WordVocab(vocab, 1),) * 2).references == [["one", "two", "three"]] * 2
    )
    more.with_name("short").write_text("one\n")
    with pytest.raises(InputError, match="3 sentences, but .*short has 1"):
        load_test_data(dataclasses.replace(hp, target_test=f"{more},{tmp_path}/short"), None)
    with pytest.raises(InputError, match="nowhere: no such file or directory. Check the path"):
        load_test_data(dataclasses.replace(hp, target_test=f"{more},nowhere"), None)


def sgml(kind, docs, more=""):
    """Write documents, each a triple of id, further attributes, and segments by their ids."""
    lines = [f'<{kind} setid="x" srclang="any"{more}>']
    for doc, attributes, segments in docs:
        lines += [f'<DOC docid="{doc}"{attributes}>', "<hl>"]
        lines += [f'<seg id="{number}">{text}</seg>' for number, text in segments] + ["</DOC>"]
    return "\n".join([*lines, f"</{kind}>", ""])


SOURCE = [("d1", "", [(1, "一 R&D"), (2, "二")]), ("d2", "", [(1, "三")])]
TARGET = [("d2", "", [(1, "three")]), ("d1", "", [(2, "two"), (1, "one")])]


def test_documents_are_paired_by_their_ids(tmp_path, capsys):
    """Also in one file, and with several translations of a document."""
    paths = tmp_path / "a.sgm", tmp_path / "b.sgm"
    paths[0].write_text(sgml("srcset", SOURCE))
    second = [
        (doc, ' sysid="2"', [(id, f"{text} 2") for id, text in segs]) for doc, _, segs in SOURCE
    ]
    reference = sgml("refset", TARGET)
    paths[1].write_text(sgml("refset", [*TARGET, *second], ' trglang="en"'))
    source, references = read_test_set(paths[0], [paths[1]], "ja", "en")
    assert source.raw == ["一 R&D", "二", "三"]
    assert [side.raw for side in references] == [
        ["one", "two", "three"],
        ["一 R&D 2", "二 2", "三 2"],
    ]
    assert f"Skipped as markup: 8 lines of {paths[0]}" in capsys.readouterr().out
    one_file = f"<mteval>{paths[0].read_text()}{reference}</mteval>"
    assert read_both(tmp_path, one_file)[1] == [["one", "two", "three"]]
    # Files for the other direction; ids of documents that name a language.
    paths[1].write_text(sgml("refset", SOURCE).replace('docid="', 'docid="en.'))
    source, references = read_test_set(paths[1], [paths[0]], "en", "ja")
    assert source.raw == references[0].raw


@pytest.mark.parametrize(
    "content, message",
    [
        (WMT.replace('lang="en"', 'lang="de"').replace('"ja"', '"en"'), "source is in the lang"),
        (WMT.replace("&amp;", "&"), r"both.xml:4: this line is not valid XML .*&amp;"),
        (WMT.replace("ref", "hyp"), "holds no reference"),
        (WMT.replace("src", "hyp"), "holds no source"),
        (WMT.replace('"2">cat B', '"3">cat B'), None),
        (WMT.replace('"1">he A', '"2">he A'), "segment 1 of document d1 is paired with segment 2"),
        (TMX.replace("GA", "de"), "holds the languages de, en-us, and none match ja"),
        (
            TMX.replace("GA", "ja").replace("Help", "&nbsp;"),
            "the entity nbsp is not one of XML's own",
        ),
        (sgml("srcset", SOURCE), "holds no reference"),
        ('<doc docid="1"><seg id="1">a</seg></doc>', "holds one side of a test set"),
        (
            sgml("srcset", SOURCE * 2) + sgml("refset", SOURCE),
            "2 versions of a document as the sou",
        ),
    ],
)
def test_a_file_that_is_no_source_with_references_is_refused(tmp_path, content, message):
    """The source is never scored against itself."""
    if not message:
        assert read_both(tmp_path, content)[1][0] == ["he A", "cat A"]
        return
    with pytest.raises(InputError, match=message):
        read_both(tmp_path, content)


@pytest.mark.parametrize(
    "target, message",
    [
        (
            TARGET[1:],
            r"a.sgm:\d+: segment 1 of document d1 is paired with segment 2 .* in .*b.sgm:4",
        ),
        (
            SOURCE[:1],
            "a.sgm:9: segment 1 of document d2 has no counterpart in .*b.sgm, which has 2",
        ),
        ([*SOURCE, ("d3", "", [(1, "x")])], "b.sgm:13: segment 1 of document d3 has no count"),
        ([("d1", "", [(1, "a"), (1, "b")]), SOURCE[1]], "segment 2 .* is paired with segment 1"),
        (
            [SOURCE[0], ("d3", "", [(1, "x")])],
            "segment 1 of document d2 is paired with segment 1 of document d3",
        ),
    ],
)
def test_missing_and_repeated_segments_are_named(tmp_path, target, message):
    paths = tmp_path / "a.sgm", tmp_path / "b.sgm"
    paths[0].write_text(sgml("srcset", SOURCE))
    paths[1].write_text(sgml("refset", target))
    with pytest.raises(InputError, match=message):
        read_test_set(paths[0], [paths[1]], "ja", "en")


def test_the_same_text_on_both_sides_is_noted(tmp_path, capsys):
    (path := tmp_path / "a").write_text("a\n")
    read_test_set(path, [path], "de", "en")
    assert "the source and the reference are the same text" in capsys.readouterr().err


# Vocabularies ------------------------------------------------------------------

GOOD = "<PAD>\t9\n<UNK>\t9\n<S>\t9\n</S>\t9\nein\t3\nHund\t1\n"


def test_language_names_may_contain_a_dot(tmp_path):
    hp = Hyperparams(preprocessed=str(tmp_path), source_lang="x.de", target_lang="x.en", min_cnt=1)
    for path in WordVocab.paths(tmp_path, hp):
        path.write_text(GOOD)
    assert [vocab.name for vocab in load_vocabs(tmp_path, hp)] == ["x.de", "x.en"]


def test_rare_words_are_left_out(tmp_path):
    path = tmp_path / "de.vocab.tsv"
    path.write_text(GOOD)
    vocab = WordVocab(path, min_cnt=2)
    assert vocab.word2idx == {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "ein": 4}
    assert vocab.idx2word[4] == "ein"
    with pytest.raises(InputError, match="no word occurs 5 times or more"):
        WordVocab(path, min_cnt=5)


@pytest.mark.parametrize(
    "text",
    [
        *(GOOD + line for line in ("\n", "Katze 1\n", "Katze\tviele\n", "ein\t1\n")),
        *(GOOD.replace("<S>", "<s>"), ""),
    ],
)
def test_a_malformed_vocabulary_is_named(tmp_path, text):
    path = tmp_path / "de.vocab.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"^{path}: not a vocabulary"):
        WordVocab(path, min_cnt=1)


def test_min_cnt_is_inferred_from_the_sizes(tmp_path):
    paths = [tmp_path / "de", tmp_path / "en"]
    paths[0].write_text(GOOD)
    paths[1].write_text(GOOD.replace("Hund\t1", "dog\t2"))
    assert find_min_cnt(paths, (5, 6)) == 2
    assert find_min_cnt(paths, (6, 6)) == 1
    with pytest.raises(InputError, match="not the vocabularies of this model"):
        find_min_cnt(paths, (6, 5))
    with pytest.raises(InputError, match="not the vocabularies of this model"):
        find_min_cnt(paths, (5, 6), min_cnt=3)


# Batches -----------------------------------------------------------------------


def numbered(count):
    """`SentencePairs` whose row i is [i]."""
    rows = RaggedIds.from_lists([[i] for i in range(count)])
    return data_load.SentencePairs(rows, rows, [], [], list(range(count)))


def epoch(count, batch_size, seed=0, number=1):
    hp = Hyperparams(batch_size=batch_size, seed=seed, maxlen=1)
    batches, num_batch = get_batch_data(numbered(count), hp, number)
    batches = [x.numpy().ravel().tolist() for x, _ in batches]
    assert len(batches) == num_batch
    return batches


def test_the_plan_of_an_epoch_does_not_stay_in_memory(monkeypatch):
    """TensorFlow keeps the functions of tf.numpy_function for ever."""
    plans, plan_batches = [], data_load.plan_batches

    def plan_and_remember(*args):
        plan = plan_batches(*args)
        plans.append(weakref.ref(plan))
        return plan

    monkeypatch.setattr(data_load, "plan_batches", plan_and_remember)
    for number in (1, 2):
        assert len(epoch(20, 5, number=number)) == 4
    gc.collect()
    assert [plan() for plan in plans] == [None, None]


def test_only_the_next_batch_is_read_ahead():
    read = []

    def items():
        for i in range(1, 9):
            read.append(i)
            yield i
        raise ValueError("a batch that cannot be read")

    batches = data_load.prefetch(items())
    for i in range(1, 9):
        assert next(batches) == i and len(read) <= i + 1
    with pytest.raises(ValueError, match="a batch that cannot be read"):
        next(batches)


@pytest.mark.parametrize("largest", [2**16 - 1, 2**16, 2**20])
def test_ids_of_any_size_are_stored_exactly(largest):
    rows = [[largest, 3], [4, largest, 3]]
    ragged = RaggedIds.from_lists(rows)
    assert [row.tolist() for row in ragged] == rows
    assert (ragged.ids.dtype == np.uint16) == (largest < 2**16)


def test_the_digest_does_not_depend_on_the_type_of_the_ids():
    """A text in files may have larger ids than the same text in memory."""
    small = RaggedIds.from_lists([[4, 5, 3], [6, 3]])
    assert small.ids.dtype == np.uint16
    assert RaggedIds(small.ids.astype(np.int32), small.splits).digest() == small.digest()
    large = RaggedIds.from_lists([[4, 5, 3], [2**16 + 6, 3]])
    assert large.digest() != small.digest()


def test_the_digest_depends_on_where_sentences_end():
    one = RaggedIds.from_lists([[4, 3], [5, 6, 3]])
    other = RaggedIds.from_lists([[4, 3, 5], [6, 3]])
    assert one.ids.tolist() == other.ids.tolist() and one.digest() != other.digest()


@pytest.mark.parametrize(
    "flags, sha256",
    [
        (dict(recipe="legacy"), "c88641d57c440e14c30906a7717b23bf80957074ccf466113b457687161d60ef"),
        (dict(recipe="tiny"), "f229217a8a0692d152368787bebc553884b6a7529fdc3e960c38e4a498dd39a2"),
        (
            dict(recipe="tiny", batch_tokens=300, seed=1),
            "aeb98e0ee6f9218a3fa80c91b7b885867f5eeb996a412bf12cdc32578731ac09",
        ),
    ],
)
def test_the_batches_are_always_those_of_earlier_trainings(flags, sha256):
    """The results of all measurements depend on them, and resuming a training does."""
    rng = np.random.default_rng(0)
    X, Y = (RaggedIds.from_lists([[4] * n for n in rng.integers(1, 41, 2000)]) for _ in "XY")
    digest = hashlib.sha256()
    for epoch in (1, 2, 3):
        plan = data_load.plan_batches(
            data_load.SentencePairs(X, Y, [], [], []), make_hparams(flags), epoch
        )
        for batch in range(len(plan)):
            digest.update(plan.rows(batch).astype(np.int64).tobytes() + b"|")
    assert digest.hexdigest() == sha256


@pytest.mark.parametrize("recipe, most", [("legacy", 5), ("tiny", 31)])
def test_the_plan_of_an_epoch_has_few_bytes_per_pair(recipe, most):
    """More pairs need 4 bytes each, and 30 while they are sorted."""
    hp = make_hparams(dict(recipe=recipe))
    peaks = []
    for count in (500_000, 1_500_000):
        splits = np.arange(0, 20 * count + 1, 20)
        side = RaggedIds(np.zeros(20 * count, np.uint16), splits)
        data = data_load.SentencePairs(side, side, [], [], [])
        tracemalloc.start()
        try:
            data_load.plan_batches(data, hp, 1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 1_000_000 < most, peaks


def test_an_epoch_has_only_full_batches_of_different_pairs():
    batches = epoch(10, 3)
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert len({row for batch in batches for row in batch}) == 9


def test_only_seed_and_epoch_decide_the_order():
    assert epoch(50, 10) == epoch(50, 10)
    assert epoch(50, 10) != epoch(50, 10, number=2)
    assert epoch(50, 10) != epoch(50, 10, seed=1)


def test_a_corpus_smaller_than_a_batch_is_one_batch():
    assert [sorted(batch) for batch in epoch(3, 32)] == [[0, 1, 2]]


def sentences(count):
    """`SentencePairs` of many lengths: row i is i, 1 to 40 times, and twice that in the target."""
    lengths = np.random.default_rng(0).integers(1, 41, count)
    X = RaggedIds.from_lists([[i] * length for i, length in enumerate(lengths)])
    Y = RaggedIds.from_lists([[i] * 2 * length for i, length in enumerate(lengths)])
    return data_load.SentencePairs(X, Y, [], [], list(range(count)))


def token_batches(data, seed=0, epoch=1):
    hp = make_hparams(dict(recipe="tiny", batch_tokens=500, seed=seed))
    batches, num_batch = get_batch_data(data, hp, epoch)
    batches = [(x.numpy(), y.numpy()) for x, y in batches]
    assert len(batches) == num_batch
    return batches


def test_batches_of_tokens_hold_every_pair_once_and_no_more_tokens_than_the_limit():
    data = sentences(1000)
    batches = token_batches(data)
    seen = [i for x, _ in batches for i in x[:, 0]]
    assert sorted(seen) == list(range(1000))
    for x, y in batches:
        assert max(x.size, y.size) <= 500
        for source, target in zip(x, y, strict=True):
            i = source[0]
            assert source[source > 0].tolist() == data.X[i].tolist() or i == 0
            assert target[target > 0].tolist() == data.Y[i].tolist() or i == 0
    padded = sum(y.size for _, y in batches)
    assert data.Y.lengths.sum() > 0.85 * padded  # rows of similar length share a batch
    widths = [y.shape[1] for _, y in batches]
    assert widths != sorted(widths)  # but the batches are shuffled


def test_the_longer_side_bounds_a_batch_of_tokens():
    """Here the source is longer."""
    data = sentences(300)
    data = data._replace(X=data.Y, Y=data.X)
    for x, y in token_batches(data):
        assert y.size < x.size <= 500


def test_batches_of_tokens_differ_in_each_epoch():
    data = sentences(200)

    def rows(**kwargs):
        return [x[:, 0].tolist() for x, _ in token_batches(data, **kwargs)]

    assert rows() == rows()
    others = rows(), rows(epoch=2), rows(seed=1)
    contents = [{frozenset(batch) for batch in batches} for batches in others]
    assert contents[0] != contents[1] and contents[0] != contents[2]


def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own():
    X = RaggedIds.from_lists([[4] * 700, [5] * 3])
    batches = token_batches(data_load.SentencePairs(X, X, [], [], [0, 1]))
    assert sorted(x.shape for x, _ in batches) == [(1, 3), (1, 700)]


def test_source_and_target_stay_together():
    words = {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "a": 4, "b": 5}
    vocab = WordVocab.__new__(WordVocab)
    vocab.word2idx = words
    data = create_data(["a", "b"] * 20, ["a", "b"] * 20, vocab, vocab, 3)
    batches, _ = get_batch_data(data, Hyperparams(batch_size=8, maxlen=3), 1)
    for x, y in batches:
        np.testing.assert_array_equal(x, y)


# Normalization -----------------------------------------------------------------------


# Each item: texts that look equal.
EQUAL_TEXTS = {
    "composed": ("über", "u\u0308ber"),
    "half-composed Vietnamese": ("tiếng Việt", "ti\u00ea\u0301ng Vi\u00ea\u0323t"),
    "marks in another order": ("e\u0323\u0301x", "e\u0301\u0323x"),
    "Arabic marks": ("\u0628\u0651\u064e", "\u0628\u064e\u0651"),
    "half-composed Hangul": ("각", "가\u11a8"),
    "Bengali with nukta": ("\u09a1\u09bc", "\u09dc"),
    "Ångström": ("\u00c5", "\u212b"),
    "soft hyphen": ("Straße", "Stra\u00adße"),
    "zero-width space": ("läuft", "\u200bläu\u200bft"),
    "byte-order mark": ("Hund", "\ufeffHu\ufeffnd"),
    "marks of direction": ("שלום", "\u200f\u202bשלום\u202c\u2069"),
    "control characters": ("Hund", "H\0u\x07n\x92d"),
    "joiner in Latin": ("Auflage", "Auf\u200clage"),
    "a mark after what is invisible": ("ü", "u\u00ad\u0308"),
    "non-joiner at the end of Persian words": ("می خواهم", "می\u200c خواهم\u200c"),
    "joiners after a comma, a digit and at the beginning": ("\u060cا5ا", "\u060c\u200cا5\u200dا"),
    "joiners in Thai, Han and Hebrew": ("ไทย我爱ה", "\u200dไท\u200cย我\u200d爱ה\u200c"),
    "grapheme joiner and vowels of Khmer without a form": ("កកb", "ក\u17b4ក\u17b5b\u034f"),
    "nothing but joiners": ("", "\u200c\u200d"),
}


@pytest.mark.parametrize("texts", EQUAL_TEXTS.values(), ids=EQUAL_TEXTS)
def test_text_that_looks_equal_is_equal(texts):
    assert {*map(text.normalize, texts)} == {text.normalize(texts[0])}


@pytest.mark.parametrize(
    "line",
    [
        "می\u200cخواهم",
        "क्\u200dष",
        "ന്\u200d ",
        "👩\u200d🔬",
        "🏃🏽\u200d♂️",
        "ＡＢ½…",
        "a\tb\u00a0c\u3000d",
        "26 °C",
    ],
)
def test_what_can_be_seen_stays(line):
    assert text.normalize(line) == line


@given(
    st.text(st.sampled_from("a\u0301\u0323eß\u00ad\u200b\u200c\u200dф가\u11a8\u0651\u064e\ufeff"))
)
def test_normalizing_again_changes_nothing(line):
    once = text.normalize(line)
    assert text.normalize(once) == once and unicodedata.is_normalized("NFC", once)
    assert text.normalize_lines([line, "x", line]) == [once, "x", once]


@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_the_form_of_a_text_changes_no_ids_and_no_score(tmp_path, recipe, capsys):
    words = "Köchin Straße läuft über schöne grüne Bäume früh".split()
    lines = [" ".join(words[i:] + words[:i]) for i in range(len(words))]
    forms = dict(NFC=lines, NFD=[unicodedata.normalize("NFD", line) for line in lines])
    forms["hyphens"] = [line.replace("ß", "\u00adß") for line in lines]
    vocab_ids, sets = [], {}
    for name, source in forms.items():
        flags = write_corpus(tmp_path / name, [*zip(source, source[::-1], strict=True)])
        flags |= dict(recipe=recipe, min_cnt=1)
        run_main(prepro, flags)
        hp = make_hparams(flags)
        vocabs = load_vocabs(hp.preprocessed, hp)
        vocab_ids.append(load_train_data(hp, vocabs).X.ids.tolist())
        test = sets[name] = load_test_data(hp, vocabs)
        got = [vocabs[1].decode(ids) for ids in test.data.Y]
        assert got == lines[::-1]
        for metric in METRICS:
            assert corpus_score(metric, test, got, "de")[0] == pytest.approx(100)
        assert bleu_score(test.data.Targets, got)[0] == pytest.approx(100)
    assert vocab_ids[0] == vocab_ids[1] == vocab_ids[2]
    # Of two of the texts, by prepro.py and by `load_test_data`.
    assert capsys.readouterr().out.count("8 of 8 sentences were normalized") == 4
