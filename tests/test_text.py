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
from helpers import vocabs_of, write_lines
from hparams import Hyperparams, make_hparams
from support.errors import InputError
from text import lines as text
from text.bleu import METRICS, bleu_score, corpus_score
from text.lines import read_eval_set, read_lines, read_pairs, read_sentences, training_files

# Lines --------------------------------------------------------------


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_only_a_line_feed_ends_a_line(tmp_path, pack):
    path = tmp_path / "text"
    content = "\ufeffein\r\nzwei\u2028drei\x85vier\x0bfünf\rsechs\n\nsie\ufeffben".encode()
    path.write_bytes(pack(content))
    lines = ["ein", "zwei\u2028drei\x85vier\x0bfünf\rsechs", "", "sie\ufeffben"]
    assert list(read_lines(path)) == lines


# Sentences ----------------------------------------------------------

SENTENCES = [
    *("<b>Öffnet</b> die Datei", '<a href="%s">ヘルプ</a>', "<3", "<url>", "<p>幫手</p>", ""),
    *("Preab ar an <br>", "R&D &amp; mehr", "a <seg> of a talk", "<segment>", " ein\u2028x "),
    *("<de> Ein Hund", "<num>"),
]
TAGS = [
    *("<doc docid='1' genre=\"a = b\">", "  </doc> ", "<p>", "<P>", "</hl>", "<!-- a -->"),
    *("<url>a</url>", "<title>a < b</title>", "<reviewer href='x'>", "</reviewer>", "<url></url>"),
    *('<CHAPTER ID="1">', '<SPEAKER ID=3 NAME="A">', '<?xml version="1.0"?>', "<!DOCTYPE mteval>"),
    *(
        '<doc docid="1"><url>a</url>',
        *("</p> </doc>", '<refset setid="a" trglang="en">', "\t<description>a</description>\t"),
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


NOT_UTF_8 = "byte {} of this line is not text in UTF-8. .* `python corpora/convert.py`"


@pytest.mark.parametrize(
    "content, problem",
    [
        (b"ein\nB\xe4ume\n", f":2: {NOT_UTF_8.format(2)}"),
        ("ein\nzwei\n".encode("utf-16"), f":1: {NOT_UTF_8.format(1)}"),
        ("ein\nzwei\n".encode("utf-16le"), f":1: {NOT_UTF_8.format(2)}"),
        (b"", ": holds no text. Put one sentence on each line"),
        (b"<url>x</url>\n \n\n", ": holds no text."),
        (b"a\n<seg>b\n", ":2: this line is XML, not a sentence. Make .* corpora/convert.py`"),
        (b"<seg>a</seg><seg>b</seg>", ":1: this line is XML"),
        (b'<?xml version="1.0"?>\n<tmx version="1.4">', ":2: this line is XML"),
        (b'<dataset id="x">', ":1: this line is XML"),
    ],
)
def test_what_is_no_list_of_lines_is_refused(tmp_path, content, problem):
    path = tmp_path / "test.xml"
    for written in (content, gzip.compress(content)):
        path.write_bytes(written)
        with pytest.raises(InputError, match=f"^{path}{problem}"):
            list(read_sentences(path))


UNITS = ["<", "<p>", "<p ", '<p "', "<!--", "<url>", "<url>a</url>", "<seg ", "<seg>", "&amp;"]


@pytest.mark.parametrize("unit", UNITS)
def test_no_line_takes_more_than_linear_time(unit, tmp_path):
    path = tmp_path / "text"
    path.write_text(f"{unit * 200_000}x\n")
    start = time.process_time()  # of this process: other programs do not count
    with contextlib.suppress(InputError):
        list(read_sentences(path))
    assert time.process_time() - start < 6  # about 0.1 s; quadratic time would be an hour


# Pairs --------------------------------------------------------------


def write_sides(folder, *sides):
    """Write files of lines; returns their paths."""
    return [write_lines(folder / f"side{i}", lines) for i, lines in enumerate(sides)]


def test_pairs_are_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_LINES", 2)
    paths = write_sides(tmp_path, ["a", "<p>", "", "c"], ["1", "2", "3", "<p>"])
    assert [*read_pairs(paths)] == [[["a", ""], ["1", "2"]], [["c"], ["3"]]]
    for number in (1, 2, 9):
        paths[1].write_text("1\n<p>\n2\n3\n" + "more\n" * number)
        for pair, counts in ((paths, (3, 3 + number)), (paths[::-1], (3 + number, 3))):
            message = f"^{pair[0]}: {counts[0]} sentences, but {pair[1]} has {counts[1]} "
            with pytest.raises(InputError, match=message):
                list(read_pairs(pair))


def test_both_sides_of_the_training_text_name_as_many_files():
    for counts in ((1, 2), (2, 1)):
        source, target = (",".join([name] * n) for name, n in zip("xy", counts, strict=True))
        with pytest.raises(InputError, match="names {} files, but target.* {}.".format(*counts)):
            training_files(Hyperparams(source_train=source, target_train=target))


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
    for source, target, problem in (
        (0, ",".join(names[2:]), f"{paths[0]}: 2 sentences, but {paths[3]} has 1 "),
        (3, names[1], f"{paths[3]}: 1 sentences, but {paths[1]} has 2 "),
        (0, f"{names[1]},nowhere", "nowhere: no such file or directory. Check the path"),
    ):
        with pytest.raises(InputError, match=f"^{problem}"):
            read_eval_set(Hyperparams(source_test=names[source], target_test=target))


@pytest.mark.parametrize(
    "names, count",
    [
        ("loresmt2021_en_ga/train.en loresmt2021_en_ga/train.ga", 8112),
        ("small_parallel_enja/train.ja small_parallel_enja/train.en", 50_000),
    ],
)
def test_pairs_of_real_text(real_text, names, count):
    blocks = read_pairs([real_text / name for name in names.split()])
    assert sum(len(source) for source, _ in blocks) == count


# Normalization ------------------------------------------------------


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
    assert text.normalize(texts[0]) == text.normalize(texts[1])


def test_what_can_be_seen_stays():
    lines = [
        "می\u200cخواهم",
        "क्\u200dष",
        "ന്\u200d ",
        "👩\u200d🔬",
        "🏃🏽\u200d♂️",
        "ＡＢ½…",
        "26 °C",
    ]
    lines.append("a\tb\u00a0c\u3000d")
    assert [*map(text.normalize, lines)] == lines


@given(
    st.text(st.sampled_from("a\u0301\u0323eß\u00ad\u200b\u200c\u200dф가\u11a8\u0651\u064e\ufeff"))
)
def test_normalizing_again_changes_nothing(line):
    once = text.normalize(line)
    assert text.normalize(once) == once and unicodedata.is_normalized("NFC", once)


@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_the_form_of_a_text_changes_no_ids_and_no_score(tmp_path, recipe):
    words = "Köchin Straße läuft über schöne grüne Bäume früh".split()
    lines = [" ".join(words[i:] + words[:i]) for i in range(len(words))]
    forms = [lines, [unicodedata.normalize("NFD", line) for line in lines]]
    forms.append([line.replace("ß", "\u00adß") for line in lines])
    found = []
    for i, source in enumerate(forms):
        flags = write_corpus(tmp_path / str(i), [*zip(source, source[::-1], strict=True)])
        flags |= dict(recipe=recipe, min_cnt=1)
        prepro.main(flags)
        vocabs = vocabs_of(flags)
        found.append(load_train_data(make_hparams(flags), vocabs).X.ids.tolist())
        test = load_test_data(make_hparams(flags), vocabs)
        got = [vocabs[1].decode(ids) for ids in test.data.Y]
        assert got == lines[::-1]
        for metric in METRICS:
            assert corpus_score(metric, test, got)[0] == pytest.approx(100)
        assert bleu_score(test.data.Targets, got)[0] == pytest.approx(100)
    assert found[0] == found[1] == found[2]
