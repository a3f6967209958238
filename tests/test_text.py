"""Lines, sentences and pairs of text files, and the form of a sentence."""

import contextlib
import gzip
import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

import prepro
from conftest import write_corpus
from data_load import load_test_data, load_train_data
from helpers import read_test_sentences, run_main
from hparams import Hyperparams, make_hparams
from support.errors import InputError
from text import lines as text
from text.bleu import METRICS, bleu_score, corpus_score
from text.lines import read_eval_set, read_lines, read_pairs, read_sentences
from text.vocab import load_vocabs

# Lines -------------------------------------------------------------------------


def test_only_a_line_feed_ends_a_line(tmp_path):
    path = tmp_path / "text"
    path.write_bytes("\ufeffein\r\nzwei\u2028drei\x85vier\x0bfünf\rsechs\n\nsieben".encode())
    lines = ["ein", "zwei\u2028drei\x85vier\x0bfünf\rsechs", "", "sieben"]
    assert list(read_lines(path)) == lines


def test_compressed_files_are_read_as_what_they_contain(tmp_path):
    plain, packed = tmp_path / "plain", tmp_path / "packed.de"
    for content in (b"x", b"\xef\xbb\xbfein\r\nzwei", b"<seg id='1'>drei</seg>\n"):
        plain.write_bytes(content)
        packed.write_bytes(gzip.compress(content))
        assert [*read_lines(packed)] == [*read_lines(plain)]
        assert [*read_sentences(packed)] == [*read_sentences(plain)]


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
        with pytest.raises(InputError, match=f"^{path}:{place} of this line .*corpora/convert.py"):
            list(read_lines(path))


# Sentences ---------------------------------------------------------------------

SENTENCES = [
    *("<b>Öffnet</b> die Datei", '<a href="%s">ヘルプ</a>', "<3", "<url>", "<p>幫手</p>", ""),
    *("Preab ar an <br>", "R&D &amp; mehr", "a <seg> of a talk", "<segment>", " ein\u2028x "),
]
TAGS = [
    *("<doc docid='1' genre=\"a = b\">", "  </doc> ", "<p>", "<P>", "</hl>", "<!-- a -->"),
    *("<url>a</url>", "<title>a < b</title>", "<reviewer href='x'>", "</reviewer>", "<url></url>"),
    *('<CHAPTER ID="1">', '<SPEAKER ID=3 NAME="A">', '<?xml version="1.0"?>', "<!DOCTYPE mteval>"),
    *(
        '<doc docid="1"><url>a</url>',
        "</p> </doc>",
        '<refset setid="a" trglang="en">',
        "\t<description>a</description>\t",
    ),
]
SEGMENTS = {
    '<seg id="1"> Ein Hund. </seg>': "Ein Hund.",
    " <seg id=7>R&amp;D &amp;lt; &quot;&apos;&gt; &nbsp; R&D</seg>\t": "R&D &lt; \"'> &nbsp; R&D",
    "<seg></seg>": "",
}


def test_sentences_are_lines_and_segments_but_no_tags(tmp_path):
    path = tmp_path / "text"
    lines = [*TAGS, *SENTENCES, *SEGMENTS, *TAGS]
    path.write_text("".join(f"{line}\r\n" for line in lines), "utf-8", newline="")
    assert [*read_sentences(path)] == [*SENTENCES, *SEGMENTS.values()]
    assert [line for line in lines if text.is_tag_line(line)] == TAGS * 2


@pytest.mark.parametrize(
    "content, problem",
    [
        ("", ": holds no text. Put one sentence on each line"),
        ("<url>x</url>\n \n\n", ": holds no text."),
        (
            "a\n<seg>b\n",
            ":2: this line is XML, not a sentence. Make .* `python corpora/convert.py`",
        ),
        ("<seg>a</seg><seg>b</seg>", ":1: this line is XML"),
        ('<?xml version="1.0"?>\n<tmx version="1.4">', ":2: this line is XML"),
        ('<dataset id="x">', ":1: this line is XML"),
    ],
)
def test_what_is_no_list_of_lines_is_refused(tmp_path, content, problem):
    path = tmp_path / "test.xml"
    path.write_text(content)
    with pytest.raises(InputError, match=f"^{path}{problem}"):
        read_test_sentences(path)


UNITS = ["<", "<p>", "<p ", '<p "', "<!--", "<url>", "<url>a</url>", "<seg ", "<seg>", "&amp;"]


@pytest.mark.parametrize("unit", UNITS)
def test_no_line_takes_more_than_linear_time(unit, tmp_path):
    path = tmp_path / "text"
    path.write_text(f"{unit * 200_000}x\n")
    start = time.process_time()  # of this process: other programs do not count
    with contextlib.suppress(InputError):
        list(read_sentences(path))
    assert time.process_time() - start < 6  # about 0.1 s; quadratic time would be an hour


# Pairs -------------------------------------------------------------------------


def write_sides(folder, *sides):
    """Write files of lines; returns their paths."""
    paths = [folder / f"side{i}" for i in range(len(sides))]
    for path, lines in zip(paths, sides, strict=True):
        path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return paths


def test_pairs_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_LINES", 2)
    paths = write_sides(tmp_path, ["a", "<p>", "", "c"], ["1", "2", "3", "<p>"])
    assert [*read_pairs(paths, "")] == [[["a", ""], ["1", "2"]], [["c"], ["3"]]]
    for number in (4, 5, 9):
        with open(paths[1], "a") as file:
            file.write("more\n" * number)
        count = len(paths[1].read_text().splitlines()) - 1
        for pair, counts in ((paths, (3, count)), (paths[::-1], (count, 3))):
            message = f"^{pair[0]}: {counts[0]} sentences, but {pair[1]} has {counts[1]} "
            with pytest.raises(InputError, match=message):
                list(read_pairs(pair, ""))


def test_a_test_set_may_have_several_references(tmp_path):
    paths = write_sides(
        tmp_path,
        ["<doc>", '<seg id="1"> u\u0308ber </seg>', "<seg>b</seg>"],
        ["A", "B"],
        ["X", ""],
        ["only one"],
    )
    names = [str(path) for path in paths]
    hp = Hyperparams(source_test=names[0], target_test=",".join(names[1:3]))
    assert read_eval_set(hp) == (["über", "b"], [["A", "B"], ["X", ""]])
    hp = Hyperparams(source_dev=names[0], target_dev=names[2])
    assert read_eval_set(hp, "dev") == (["über", "b"], [["X", ""]])
    for target, problem in (
        (",".join(names[2:]), f"{paths[0]}: 2 sentences, but {paths[3]} has 1 "),
        (f"{names[1]},nowhere", "nowhere: no such file or directory. Check the path"),
    ):
        with pytest.raises(InputError, match=f"^{problem}"):
            read_eval_set(Hyperparams(source_test=names[0], target_test=target))


@pytest.mark.parametrize(
    "names, count",
    [
        ("iwslt16/train.tags.de-en.de iwslt16/train.tags.de-en.en", 9106),
        ("iwslt16/IWSLT16.TED.tst2014.de-en.de.xml iwslt16/IWSLT16.TED.tst2014.de-en.en.xml", 1305),
        ("multi30k/train.de multi30k/train.en", 29_000),
        ("multi30k_fr_cs/train.fr multi30k_fr_cs/train.cs", 29_000),
        ("loresmt2021_en_ga/train.en loresmt2021_en_ga/train.ga", 8112),
        ("small_parallel_enja/train.ja small_parallel_enja/train.en", 50_000),
        ("tatoeba_en_zh/train.en tatoeba_en_zh/train.zh", 18_751),
        ("wordshk_en_yue/train.yue wordshk_en_yue/train.en", 38_859),
    ],
)
def test_pairs_of_real_text(real_text, names, count):
    blocks = read_pairs([real_text / name for name in names.split()], "")
    assert sum(len(source) for source, _ in blocks) == count


# Normalization -----------------------------------------------------------------


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
def test_the_form_of_a_text_changes_no_ids_and_no_score(tmp_path, recipe):
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
