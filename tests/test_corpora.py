"""The tools in corpora/, and what prepro.py says about its text: overlaps and shifts."""

import gzip
import hashlib
import importlib
import re
import sys

import numpy as np
import pytest

import prepro
import support.flags
from conftest import sample_pairs, write_corpus
from helpers import write_pairs
from hparams import FIELDS, UNSAVED, Hyperparams, load_hparams, make_hparams
from processes import ROOT
from support.errors import InputError
from text import checks
from text.checks import find_shift, overlap_notes, plain_forms, shift_notes
from text.lines import read_sentences


@pytest.fixture
def run(monkeypatch, capsys):
    """A function that runs a tool in this process, and returns what it prints."""
    monkeypatch.syspath_prepend(str(ROOT / "corpora"))

    def run_tool(name, *words):
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, words)])
        tool = importlib.import_module(name)
        tool.main(tool.parse_args())
        return capsys.readouterr()

    return run_tool


def read_sides(*paths):
    return [path.read_text("utf-8").split("\n")[:-1] for path in paths]


def files_in(folder):
    """The content of all files by their paths."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def different_pairs(count):
    """So many pairs of the built-in corpus, or fewer, whose sources and targets all differ."""
    return [*{target: (source, target) for source, target in sample_pairs(count)}.values()]


# Convert ------------------------------------------------------------

WMT = """<?xml version="1.0"?>
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
<tu><prop>x</prop><tuv xml:lang="en-US"><note>a note</note><prop type="id">7</prop>
<seg>Open <bpt i="1">&lt;b></bpt>the<ept i="1">&lt;/b></ept>
 <hi>file</hi></seg></tuv><tuv xml:lang="GA"><seg>Oscail<ph x="1"/> an comhad</seg></tuv></tu>
<tu><tuv xml:lang="en-US"><seg>only one</seg></tuv></tu>
<tu><tuv lang="EN-gb"><seg>R&amp;D <![CDATA[< 1]]></seg></tuv><tuv xml:lang="ga"><seg>Cabhair</seg>
</tuv><tuv xml:lang="ga-IE"><seg>Cuidiú</seg></tuv></tu>
</body></tmx>
"""
SOURCE = """<srcset setid="x" srclang="any"><DOC docid="d1"><hl>
<seg id="1">一 R&D &copy=2 &amp;copy; &#228; a < b</seg> no text <seg id=2>二</seg></hl></DOC>
<DOC docid="d2"><seg id="1">三</DOC></srcset>
"""
REFERENCES = """<refset setid="x"><doc docid="d2"><seg id="1">three</seg></doc>
<doc docid="d1"><seg id="2">two</seg><seg id="1">one</seg></doc>
<doc docid="d1" sysid="2"><seg id="1">ONE</seg><seg id="2">TWO</seg></doc></refset>
"""
SGML = SOURCE + REFERENCES  # in one file, documents in another order fit together
TEXT = [["一 R&D &copy=2 &copy; ä a < b", "二", "三"], ["one", "two", "three"]]
TSV = 'Öffne "\tx\tOpen \r\nHilfe\t\tHelp\r\n'
CSV = '"Öffne\n die ""Datei""",x,"Open, the file"\r\nHilfe,,Help\r\n\r\nx\r\n'
NEWS = '"Ja", sagte er.\t"Yes," he said.\n\t\n\nä\t"b"\n'
YES = ["Yes", "a, b", "oil"]
OF_CSV = [['Öffne die "Datei"', "Hilfe"], ["Open, the file", "Help"]]
IRISH = ["Oscail an comhad", "Cabhair"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
@pytest.mark.parametrize(
    "name, content, sides, expected, left_out",
    [
        ("a.tsv", TSV, "3,1", [["Open", "Help"], ['Öffne "', "Hilfe"]], 0),
        ("a.tsv", TSV, "", [['Öffne "'], ["x"]], 1),
        ("a.tsv", CSV.replace(",", "\t"), "1,3", [OF_CSV[0], ["Open the file", "Help"]], 2),
        ("a.tsv", NEWS, "", [['"Ja", sagte er.', "ä"], ['"Yes," he said.', '"b"']], 2),
        ("a.csv", CSV, "1,3", OF_CSV, 2),
        (
            "a.csv",
            NEWS.replace("\t", ";"),
            "",
            [['"Ja", sagte er.', "ä"], ['"Yes," he said.', '"b"']],
            2,
        ),
        ("a.csv", 'Ja, "a" b\nÄ,c\n', "", [["Ja", "Ä"], ['"a" b', "c"]], 0),
        ("a.csv", 'Ja, "Yes, yes"\nÄ,  b\n', "", [["Ja", "Ä"], ["Yes, yes", "b"]], 0),
        ("a.csv", CSV.replace(",", ";"), "1,3", [OF_CSV[0], ["Open; the file", "Help"]], 2),
        (
            "a.csv",
            "Ja, ja;Yes\nä;a, b\nÖl, Öl, Öl;oil\n",
            "",
            [["Ja, ja", "ä", "Öl, Öl, Öl"], YES],
            0,
        ),
        ("a.tmx", TMX, "en-US,GA", [["Open the file"], IRISH[:1]], 2),
        ("a.tmx", TMX, "ga-IE,en-gb", [["Cuidiú"], ["R&D < 1"]], 2),
        ("a.tmx", TMX, "ga,ga", [IRISH, IRISH], 1),
        ("a.xml", WMT, "src,ref", [["彼は <水泳> & 得意", "猫"], ["he A", "cat A"]], 1),
        ("a.xml", WMT, "ref,ref", [["he A", "cat A"], ["he A", "cat B"]], 1),
        ("a.sgm", SGML, "src,ref", TEXT, 0),
        ("a.sgm", SGML, "src,ref,ref", [*TEXT, ["ONE", "TWO", "three"]], 0),
        ("a.sgml", REFERENCES, "ref", [["three", "two", "one"]], 0),
        ("a.txt", " Bäume\r\n\nx\x0by\tz", "", [["Bäume", "", "x y z"]], 0),
    ],
)
def test_a_format_becomes_lines(run, tmp_path, name, content, sides, expected, left_out, encoding):
    path, outputs = tmp_path / f"{name}.gz", [tmp_path / f"side{i}" for i in range(len(expected))]
    content = content.replace('"1.0"?', f'"1.0" encoding="{encoding}"?')
    path.write_bytes(gzip.compress(content.encode(encoding, "xmlcharrefreplace")))
    flags = [f"--sides={sides}"] * bool(sides) + ["--encoding", encoding] * (encoding != "utf-8")
    printed = run("convert", path, *outputs, *flags).out
    assert read_sides(*outputs) == expected
    counts = f"{len(expected[0])} lines. Left out: {left_out} units"
    assert printed == f"{', '.join(map(str, outputs))}: {counts}\n"


@pytest.mark.parametrize(
    "name, content, flags, message",
    [
        ("a.txt", b"B\xe4ume\n", "", r"a.txt: cannot be read \('utf-8' codec .* --encoding"),
        ("a.txt", b"x\n", "--encoding foo", "unknown encoding: foo"),
        ("a.tmx", TMX[:-20].encode(), "--sides en", r"a.tmx: cannot be read \(.*line 8"),
        ("a.tmx", TMX.encode(), "--sides en", "sides en. The last one has en-gb, ga, ga-ie"),
        (
            "a.tmx",
            TMX.partition("<tu>")[0].encode() + b"<tu x='" + b"y" * 10**7,
            "",
            "no unit ends within",
        ),
        (
            "a.tmx",
            TMX.partition("<tu>")[0].encode() + b"<tu>" + b"<tuv/>" * 10**6,
            "",
            "no unit ends within",
        ),
        ("a.tmx", b'<!DOCTYPE tmx [<!ENTITY a "b">]><tmx/>', "", "The last one has none"),
        ("a.csv", b'a,b\n"c, d" e,f\ng,h\n', "", "a.csv: cannot be read .*expected after"),
        ("a.csv", b'"x' + b"y" * 200_000, "", "field larger than field limit"),
        ("a.xml.gz", gzip.compress(WMT.encode())[:-30], "--sides src", "a damaged gzip file"),
    ],
)
def test_what_cannot_be_converted(run, tmp_path, name, content, flags, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        run("convert", tmp_path / name, tmp_path / "out", *flags.split())
    assert not (tmp_path / "out").exists()


SIZES = ["--dev", "30", "--test", "20"]


def test_what_the_tools_refuse(run, tmp_path):
    """No file is overwritten, and none is left if a tool fails."""
    paths = write_pairs(tmp_path, different_pairs(120))
    (short := tmp_path / "short.x").write_text("Ja.\n")
    (same := tmp_path / "same.de").write_text("Ja.\n" * len(read_sides(paths[0])[0]))
    (kept := tmp_path / "kept").mkdir()
    for name in ("my.en", "test.en"):
        (kept / name).write_text("x")
    before = files_in(tmp_path)
    new, old = ["--output", tmp_path / "new"], ["--output", kept]
    for tool, words, error, message in (
        ("convert", paths, FileExistsError, "my.en"),  # the second side is an output
        ("split", [*paths, *old, *SIZES], FileExistsError, "test.en"),
        ("clean", [*paths, *old], FileExistsError, "my.en"),
        ("clean", [paths[0], paths[0], *new], FileExistsError, "my.de"),
        ("split", [*paths, *new], InputError, "too few for 2,000 pairs of dev"),
        ("split", [same, paths[1], *new, *SIZES], InputError, "only 0 of 30 pairs could be put in"),
        ("split", [same, paths[0], *new, *SIZES], InputError, "the names end alike. Rename them"),
        ("clean", [paths[0], short, *new], InputError, f"my.de: .* but {short} has 1 "),
        ("clean", [*paths, *new, "--against", "missing"], InputError, "missing: no such file"),
        ("convert", ["missing", tmp_path / "x"], InputError, "missing: no such file"),
    ):
        with pytest.raises(error, match=message):
            run(tool, *words)
    assert files_in(tmp_path) == before


# Split --------------------------------------------------------------


def read_parts(folder):
    """The pairs of each part."""
    return {
        part: [*zip(*read_sides(folder / f"{part}.de", folder / f"{part}.en"), strict=True)]
        for part in ("train", "dev", "test")
    }


def test_pairs_that_share_a_side_stay_together(run, tmp_path):
    pairs = different_pairs(400)
    # A chain: the same source with other case, then the same target without its full stop.
    chain = [("Eins.", "One."), ("EINS", "The one!"), ("Der eine", "the one"), ("", "Nothing.")]
    text = [*pairs[:200], *chain, *pairs[200:]]
    printed = run("split", *write_pairs(tmp_path, text), "--output", tmp_path / "out", *SIZES).out
    parts = read_parts(tmp_path / "out")
    assert [len(parts[part]) for part in ("dev", "test")] == [30, 20]
    kept = [pair for pair in text if all(pair)]
    assert sorted(sum(parts.values(), [])) == sorted(kept)
    for got in parts.values():  # in the order of the text
        assert got == [pair for pair in kept if pair in {*got}]
        assert len({*chain} & {*got}) in (0, 3)
    assert f"train.en: {len(kept) - 50:,} pairs" in printed


def test_only_the_pairs_and_the_seed_decide(run, tmp_path):
    pairs = different_pairs(300)
    pairs += [(source, f"{target} Again") for source, target in pairs[:150]]
    found = []
    for i, (text, seed) in enumerate([(pairs, 0), (pairs[::-1], 0), (pairs, 1), (pairs, -1)]):
        paths = write_pairs(tmp_path, text)
        run("split", *paths, "--output", tmp_path / str(i), *SIZES, "--seed", seed)
        found.append({*read_parts(tmp_path / str(i))["test"]})
    assert found[0] == found[1] and len({frozenset(test) for test in found}) == 3


def test_the_split_is_the_same_on_every_machine(run, tmp_path):
    pairs = [(f"Satz {i}", f"Sentence {i}") for i in range(40)]
    pairs += [(f"Satz {i}", f"Other {i}") for i in range(12)]
    words = ["--dev", "7", "--test", "7", "--output", tmp_path / "out"]
    run("split", *write_pairs(tmp_path, pairs), *words)
    parts = read_parts(tmp_path / "out")
    for part, numbers in dict(
        dev=(1, 8, 23, 35, 38, 41, 48), test=(6, 11, 18, 30, 33, 46, 51)
    ).items():
        assert parts[part] == [pairs[number] for number in numbers]


def test_a_long_chain_of_pairs_is_one_group(run, tmp_path):
    split = importlib.import_module("split")
    numbers = range(100_000)  # in linear time
    pairs = [(number // 2, (number + 1) // 2) for number in numbers]
    assert len({*split.connect(pairs)}) == 1
    assert split.connect([]) == [] and len({*split.connect([(9, 3), (3, 4)])}) == 2


# Clean --------------------------------------------------------------

BAD = dict(
    empty=("Ein Hund läuft.", " "),
    equal=("Click  here to read more", "click here to read more "),
    long=("Wort " * 300, "word " * 300),
    ratio=("Ja.", "Yes, and that is what all of us have always said about it."),
    script=("Собака бежит домой.", "The dog runs home."),
)


def test_each_rule_removes_its_pair_and_no_other_one(run, tmp_path):
    good = different_pairs(300)
    # Short ones may have another ratio, and few letters may be in any script.
    good += [("Nein!", "I do not."), ("7 + 3", "Ω = 10"), ("Ok", "Да"), ("Ok Да", "Ok")]
    good += [("<b>Öffnet</b> die Datei", "<b>Open</b> the file")]
    pairs = [*good[:100], *BAD.values(), *good[100:], good[5], good[5]]
    paths = write_pairs(tmp_path, pairs)
    for path in paths:
        path.write_bytes(gzip.compress(path.read_bytes()))
    printed = run("clean", *paths, "--output", tmp_path / "out").out
    sides = read_sides(tmp_path / "out" / "my.de", tmp_path / "out" / "my.en")
    assert [*zip(*sides, strict=True)] == good
    counts = dict(re.findall(r"^(\w+): (\d+ pairs) ", printed, re.MULTILINE))
    assert counts == dict.fromkeys(BAD, "1 pairs") | dict(duplicate="2 pairs")
    assert f"duplicate: 2 pairs ({200 / len(pairs):.2f}%)\n  {len(pairs) - 1}: '" in printed
    assert "  104: 'Ja.' ||| 'Yes, and" in printed and f"{'Wort ' * 10!r} |||" in printed
    assert printed.endswith(f"{len(good)} of {len(pairs)} pairs are kept\n")


def test_the_limits_are_flags_and_the_text_does_not_control_the_terminal(run, tmp_path):
    red = "\x1b[31mred", "\x1b[31mred"
    paths = write_pairs(tmp_path, [*different_pairs(50), red, BAD["long"], BAD["ratio"]])
    printed = run("clean", *paths, "--max_chars", "2000", "--max_ratio", "9").out
    count = len(read_sides(paths[0])[0])
    assert f"{count - 1} of {count} pairs are kept" in printed
    assert rf"  {count - 2}: '\x1b[31mred' ||| '\x1b[31mred'" in printed and "\x1b" not in printed
    assert sorted(tmp_path.iterdir()) == paths


def test_the_ratio_is_relative_to_that_of_the_text(run, tmp_path):
    """Chinese sentences have a third of the characters of English ones."""
    chinese, english = (
        "我们今天去公园看花和树。",
        "Today we all go to the park to look at flowers{}.",
    )
    pairs = [(f"{chinese}{i}", english.format(i)) for i in range(98)]
    bad = [(chinese, english[:7]), ("The park is green.", english)]
    printed = run("clean", *write_pairs(tmp_path, [*pairs, *bad])).out
    assert "ratio: 1 pairs" in printed and "script: 1 pairs" in printed
    assert "98 of 100 pairs are kept" in printed
    # Pairs that break another rule do not count, even if they are most of the text.
    bad += [(english * 9, english * 9), ("", english * 9), (english * 99, "a " * 600)] * 60
    printed = run("clean", *write_pairs(tmp_path, [*bad, *pairs])).out
    assert "98 of 280 pairs are kept" in printed


def test_sentences_of_test_sets_are_removed(run, tmp_path):
    pairs = different_pairs(99)
    test = tmp_path / "test.de", tmp_path / "test.xml"
    test[0].write_text(f"{pairs[3][0].upper().rstrip('.')} !\n\n", "utf-8")
    test[1].write_text(f"<doc>\n<seg>{pairs[7][1]}</seg>", "utf-8")
    printed = run("clean", *write_pairs(tmp_path, pairs), "--against", f"{test[0]},{test[1]}").out
    assert "overlap: 2 pairs" in printed


def test_other_languages_are_removed(run, tmp_path, monkeypatch):
    pytest.importorskip("py3langid")
    french = "Le chien mange une pomme dans le jardin.", "The dog eats an apple in the garden."
    english = "The dog sees a cat in the large garden.", "The dog is looking at a cat."
    good = different_pairs(60)
    paths = write_pairs(tmp_path, [*good, french, english, ("Ja.", "Yes.")])
    printed = run("clean", *paths, "--languages", "de,en").out
    assert f"language: 2 pairs (3.17%)\n  {len(good) + 1}: 'Le chien" in printed
    for value in ("de", "de,xx"):
        with pytest.raises(InputError, match=f"--languages {value}: give two of .*, de, "):
            run("clean", *paths, "--languages", value)
    importlib.import_module("clean").language_identifier.cache_clear()
    monkeypatch.setattr("support.optional.find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install py3langid"):
        run("clean", *paths, "--languages", "de,en")


# Overlaps -----------------------------------------------------------


def test_plain_forms():
    forms = {"Don't  stop!": "dontstop", "DON’T STOP": "dontstop", "5 < 7": "5<7", "5 > 7": "5>7"}
    forms |= {"!!!": "!!!", "": "", "Straße": "strasse", "a\u2028b": "ab", "学 校。": "学校"}
    assert plain_forms([*forms]) == [*forms.values()] and plain_forms([]) == []


def test_prepro_prints_a_line_for_each_set_that_the_command_names(tmp_path, capsys):
    pairs = different_pairs(200)
    test = [
        (pairs[3][0], "No."),
        (f"{pairs[4][0].upper()} !", pairs[5][1]),
        ("Nein", "?"),
        ("", ""),
    ]
    train = [*pairs[:60], ("", "Empty."), ("Leer.", "")]
    flags = write_corpus(tmp_path, train, test) | dict(recipe="tiny", vocab_size=120)
    dev = write_corpus(tmp_path / "dev", [("Dev", "Dev")])
    flags |= dict(source_dev=dev["source_train"], target_dev=dev["target_train"])
    more = "are in the training text, but for case and punctuation"
    notes = [
        f"{flags['source_dev']}, {flags['target_dev']}: 0 of 1 sources and 0 targets {more}",
        f"{flags['source_test']}, {flags['target_test']}: 2 of 4 sources and 1 targets {more}"
        ". `corpora/clean.py --against` removes them",
    ]
    prepro.main(flags)
    printed = capsys.readouterr().out.splitlines()
    assert [line for line in printed if "training text" in line] == notes
    for part, note in zip(("test", "dev"), notes, strict=True):
        given = {name: value for name, value in flags.items() if f"_{part}" not in name}
        assert [*overlap_notes(make_hparams(given), given)] == [note]


# Shifts -------------------------------------------------------------


@pytest.fixture(scope="module")
def text():
    """600 different pairs of the built-in corpus."""
    return [list(side) for side in zip(*different_pairs(1500)[:600], strict=True)]


def shifted(sides, start, lag):
    """The text without `lag` sources from a row on, or without -lag targets."""
    source, target = sides if lag > 0 else sides[::-1]
    count = abs(lag)
    changed = source[:start] + source[start + count :], target[: len(target) - count]
    return changed if lag > 0 else changed[::-1]


@pytest.mark.parametrize("lag", [1, -1, 2, -7])
@pytest.mark.parametrize("start, window", [(0, 0), (190, 200), (400, 400)])
def test_a_lasting_shift_is_found(text, lag, start, window, monkeypatch):
    monkeypatch.setattr(checks, "WINDOW", 200)
    assert find_shift(shifted(text, start, lag)) == (window, lag)


def variants(text):
    """The same pairs in other orders and forms, none of which is shifted."""
    source, target = text
    random = np.random.default_rng(0).permutation(len(source))
    for order in (
        random,
        *(sorted(random, key=lambda row, key=key: key(source[row])) for key in (len, str)),
    ):
        yield [source[row] for row in order], [target[row] for row in order]
    yield source, source
    yield source, [target[row] for row in random]  # no translations
    yield [line[:3] for line in source], [line[:3] for line in target]
    yield source[:30] * 20, target[:30] * 20
    yield [""] * 300 + source, [""] * 300 + target
    yield ["Ja."] * 500, ["Yes."] * 500
    yield [f"{i}" for i in range(500)], [f"{i}" for i in range(500)]
    yield source[:20], target[1:21]  # too short
    yield ["x" * 10_000] * 70, ["\0"] * 70
    yield [], []


def test_no_shift_is_found_in_other_text(text):
    for sides in variants(text):
        assert find_shift(sides) is None, sides[0][:3]


def test_a_shift_is_reported_with_the_number_of_the_sentence(run, tmp_path, text, monkeypatch):
    """Counted over the blocks in which the text is read."""
    for lag, shorter, longer in ((-1, "en", "de"), (2, "de", "en")):
        sides = shifted(text, 300, lag)
        paths = write_pairs(tmp_path, [*zip(*sides, strict=True)])
        names = {path.suffix: path for path in paths}
        with monkeypatch.context() as patched:
            patched.setattr(checks, "BLOCK_LINES", 300)
            blocks = [[side[row : row + 300] for side in sides] for row in (0, 300)]
            patched.setattr(checks, "read_pairs", lambda _, blocks=blocks: blocks)
            notes = [*shift_notes([paths])]
        assert notes == [
            f"{paths[0]} and {paths[1]}: from about sentence 301 on, the sides seem to be shifted"
            f" by {abs(lag)}: {names[f'.{shorter}']} lacks lines there or before, or"
            f" {names[f'.{longer}']} has too many. Correct them"
        ]
    write_pairs(tmp_path, [*zip(*shifted(text, 0, 1), strict=True)])
    assert "from about sentence 1 on, the sides seem" in run("clean", *paths).err


def test_another_order(run, tmp_path, text):
    """It is reported in a text of 1,000 pairs and more."""
    sides = [3 * side for side in text]
    few, other = (
        np.random.default_rng(0).permutation(side).tolist() for side in (text[1], sides[1])
    )
    for own in (sides, [text[0], few], [["Ja."] * 2000, ["Yes."] * 2000]):
        assert find_shift(own) is None
    assert find_shift([sides[0], other]) == (0, None)
    paths = write_pairs(tmp_path, [*zip(sides[0], other, strict=True)])
    assert (
        "the sides seem to be in different orders, or shifted by more" in run("clean", *paths).err
    )


@pytest.mark.parametrize(
    "names",
    [
        *("multi30k/train.de multi30k/train.en", "tatoeba_en_zh/train.en tatoeba_en_zh/train.zh"),
        "iwslt16/train.tags.de-en.de iwslt16/train.tags.de-en.en",
        "loresmt2021_en_ga/train.en loresmt2021_en_ga/train.ga",
        "small_parallel_enja/train.ja small_parallel_enja/train.en",
    ],
)
def test_shifts_of_real_text(real_text, names):
    """No false alarm in its own order, and by length; shifts in the first one."""
    sides = [[*read_sentences(real_text / name)][:4000] for name in names.split()]
    by_length = sorted(range(4000), key=lambda row: len(sides[0][row]))
    assert find_shift(sides) is None
    assert find_shift([[side[row] for row in by_length] for side in sides]) is None
    random = np.random.default_rng(0).permutation(4000)
    assert find_shift([sides[0], [sides[1][row] for row in random]]) == (0, None)
    for start, lag in ((0, 1), (0, -2), (2000, -1)):
        assert find_shift(shifted(sides, start, lag)) == (start, lag)


# The built-in corpus ------------------------------------------------


def test_the_pairs_are_those_of_all_measurements():
    """With this sum they have all constructions of corpora/sample.py, and no sentence twice."""
    pairs = sample_pairs(20_000)
    text = "".join(f"{german}\t{english}\n" for german, english in pairs)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    assert sha256 == "9dca2c68680d736a20460d56cab1ca0d406a0f353d8cc059beb07311739f0d73"
    assert sample_pairs(200) == pairs[:200] != sample_pairs(200, seed=1)


def test_the_files_are_those_of_iwslt_and_no_test_sentence_is_in_the_training_text(run, tmp_path):
    """At the default size, at which some English sentences have two German ones."""
    printed = run("sample", "--output", tmp_path).out.splitlines()
    assert sorted(printed) == sorted(map(str, files_in(tmp_path))) and len(printed) == 6
    for lang in ("de", "en"):
        path = tmp_path / f"train.tags.de-en.{lang}"
        assert path.read_text("utf-8").startswith("<url>")
        names = [f"IWSLT16.TED.{name}.de-en.{lang}.xml" for name in ("dev2010", "tst2014")]
        assert '<seg id="50"> ' in (tmp_path / names[0]).read_text("utf-8")
        train, dev, test = ([*read_sentences(tmp_path / name)] for name in (path.name, *names))
        assert [len(train), len(dev), len(test)] == [20_000, 200, 1_000]
        assert not {*test, *dev} & {*train}


def test_it_replaces_its_own_files_and_no_others(run, tmp_path):
    def write(**flags):
        run("sample", "--output", tmp_path, *(f"--{name}={n}" for name, n in flags.items()))
        return files_in(tmp_path)

    first, other = write(train=100, test=10), write(train=100, test=10, seed=1)
    assert first == write(train=100, test=10) != other and len(first) == 6
    foreign = tmp_path / "train.tags.de-en.en"
    foreign.write_text("My own text.\n")
    before = files_in(tmp_path)
    with pytest.raises(InputError, match=f"{foreign}: exists, and is another text"):
        write(train=30, test=2)
    for flag in ("train", "dev", "test"):
        with pytest.raises(SystemExit):
            write(**{flag: 0})
    assert files_in(tmp_path) == before


def test_the_sample_model_is_that_of_its_flags(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["train.py", f"@{ROOT}/docs/sample_model.flags"])
    for name in ("check_paths_exist", "load_tensorflow"):  # the text need not exist
        monkeypatch.setattr(support.flags, name, lambda *_: None)
    made = make_hparams(support.flags.parse_flags("", hparams=Hyperparams))
    saved = load_hparams(dict(logdir=str(ROOT / "docs" / "sample_model")))
    other = {name for name in FIELDS if getattr(made, name) != getattr(saved, name)}
    # The text decides the warm-up. The mean of ten checkpoints is one.
    assert other - {*UNSAVED} == {"warmup_steps", "average_checkpoints"}
