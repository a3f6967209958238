"""corpora/convert.py, split.py and clean.py: what they write and print, and what they refuse."""

import gzip
import importlib
import re
import subprocess
import sys

import pytest

from conftest import sample_pairs
from helpers import write_pairs
from processes import ROOT
from support.errors import InputError


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


@pytest.fixture
def clean(monkeypatch):
    """The module of the tool."""
    monkeypatch.syspath_prepend(str(ROOT / "corpora"))
    return importlib.import_module("clean")


def read_sides(*paths):
    return [path.read_text("utf-8").split("\n")[:-1] for path in paths]


# Convert -----------------------------------------------------------------------

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
<tu><tuv xml:lang="en-US"><seg>Open <bpt i="1">&lt;b></bpt>the<ept i="1">&lt;/b></ept>
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
OF_CSV = [['Öffne die "Datei"', "Hilfe"], ["Open, the file", "Help"]]
IRISH = ["Oscail an comhad", "Cabhair"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "latin-1"])
@pytest.mark.parametrize(
    "name, content, sides, expected, left_out",
    [
        ("a.tsv", TSV, "3,1", [["Open", "Help"], ['Öffne "', "Hilfe"]], 0),
        ("a.tsv", TSV, "", [['Öffne "', "Hilfe"], ["x", ""]], 0),
        ("a.csv", CSV, "1,3", OF_CSV, 2),
        ("a.tmx", TMX, "en,ga", [["Open the file", "R&D < 1"], IRISH], 1),
        ("a.tmx", TMX, "en-US,GA", [["Open the file"], IRISH[:1]], 2),
        ("a.tmx", TMX, "ga,ga", [IRISH, [IRISH[0], "Cuidiú"]], 1),
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
        ("a.tmx", TMX[:-20].encode(), "--sides en", r"a.tmx: cannot be read \(.*line 7"),
        (
            "a.tmx",
            TMX.encode(),
            "--sides fr",
            "has the sides fr. The last one has en-gb, ga, ga-ie",
        ),
        ("a.tmx", b'<!DOCTYPE tmx [<!ENTITY a "b">]><tmx/>', "", "The last one has none"),
        ("a.csv", b'"x' + b"y" * 200_000, "", "field larger than field limit"),
        ("a.xml.gz", gzip.compress(WMT.encode())[:-30], "--sides src", "a damaged gzip file"),
        ("missing", None, "", "missing: no such file or directory"),
    ],
)
def test_what_cannot_be_converted(run, tmp_path, name, content, flags, message):
    if content:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        run("convert", tmp_path / name, tmp_path / "out", *flags.split())
    assert not (tmp_path / "out").exists()


def test_no_file_is_overwritten(run, tmp_path):
    """For the program, the second one of two sides is an output."""
    paths = write_pairs(tmp_path, sample_pairs(9))
    before = paths[1].read_bytes()
    words = [sys.executable, ROOT / "corpora" / "convert.py", *paths]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"convert.py: {paths[1]}: file exists. Check the path\n"
    (tmp_path / "out").mkdir()
    for tool, name, *sizes in (("clean", "my.de"), ("split", "test.en", "--dev=1", "--test=1")):
        (tmp_path / "out" / name).write_text("x")
        with pytest.raises(FileExistsError):
            run(tool, *paths, "--output", tmp_path / "out", *sizes)
    assert [path.read_bytes() for path in (tmp_path / "out").iterdir()] == [b"x"] * 2
    assert paths[1].read_bytes() == before


# Split -------------------------------------------------------------------------

SIZES = ["--dev", "30", "--test", "20"]


def read_parts(folder):
    """The pairs of each part."""
    return {
        part: [*zip(*read_sides(folder / f"{part}.de", folder / f"{part}.en"), strict=True)]
        for part in ("train", "dev", "test")
    }


def unique_pairs(count):
    return [*{source: (source, target) for source, target in sample_pairs(count)}.values()]


def test_pairs_that_share_a_side_stay_together(run, tmp_path):
    pairs = unique_pairs(400)
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
    assert f"train.en: {len(kept) - 50:,} pairs" in printed and "Kept together: " in printed


def test_only_the_pairs_and_the_seed_decide(run, tmp_path):
    pairs = unique_pairs(300)
    pairs += [(source, f"{target} Again") for source, target in pairs[:150]]
    found = []
    for i, (text, seed) in enumerate([(pairs, 0), (pairs[::-1], 0), (pairs, 1), (pairs, -1)]):
        paths = write_pairs(tmp_path, text)
        run("split", *paths, "--output", tmp_path / str(i), *SIZES, "--seed", seed)
        found.append({*read_parts(tmp_path / str(i))["test"]})
    assert found[0] == found[1] and len({frozenset(test) for test in found}) == 3


def test_the_split_is_the_same_on_every_machine(run, tmp_path):
    pairs = [(f"Satz {i}", f"Sentence {i}") for i in range(40)]
    words = ["--dev", "3", "--test", "3", "--output", tmp_path / "out"]
    run("split", *write_pairs(tmp_path, pairs), *words)
    parts = read_parts(tmp_path / "out")
    for part, numbers in dict(dev=(1, 11, 38), test=(18, 30, 33)).items():
        assert parts[part] == [pairs[number] for number in numbers]


def test_a_long_chain_of_pairs_is_one_group(run, tmp_path):
    split = importlib.import_module("split")
    numbers = range(100_000)  # in linear time
    pairs = [(number // 2, (number + 1) // 2) for number in numbers]
    assert len({*split.connect(pairs)}) == 1
    assert split.connect([]) == []


def test_what_cannot_be_split(run, tmp_path):
    paths = write_pairs(tmp_path, unique_pairs(120))
    (one_group := tmp_path / "one.de").write_text("Ja.\n" * len(read_sides(paths[0])[0]))
    for words, message in (
        (paths, "too few for 2,000 pairs of development and test"),
        ([one_group, paths[1], *SIZES], "only 0 of 30 pairs could be put into dev"),
        ([one_group, paths[0], *SIZES], "the names end alike. Rename them"),
    ):
        with pytest.raises(InputError, match=message):
            run("split", *words, "--output", tmp_path / "out")
        assert not (tmp_path / "out").exists()


# Clean -------------------------------------------------------------------------

BAD = dict(
    empty=("Ein Hund läuft.", " "),
    equal=("Click  here to read more", "click here to read more "),
    long=("Wort " * 300, "word " * 300),
    ratio=("Ja.", "Yes, and that is what all of us have always said about it."),
    script=("Собака бежит домой.", "The dog runs home."),
)


def test_each_rule_removes_its_pair_and_no_other_one(run, tmp_path):
    good = [*dict(sample_pairs(300)).items()]
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
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d.]+)% \| (.*) \|$", printed, re.MULTILINE)
    counts = {rule: int(count) for rule, count, *_ in rows}
    assert counts == dict.fromkeys(BAD, 1) | dict(duplicate=2)
    assert rows[-1][2] == f"{200 / len(pairs):.2f}"
    assert "104: Ja. ||| Yes, and" in printed and rows[-1][3].count("<br>") == 1
    assert printed.endswith(f"{len(good)} of {len(pairs)} pairs are kept\n")


def test_the_limits_are_flags(run, tmp_path):
    paths = write_pairs(tmp_path, [*sample_pairs(50), BAD["long"], BAD["ratio"]])
    printed = run("clean", *paths, "--max_chars", "2000", "--max_ratio", "9").out
    assert "52 of 52 pairs are kept" in printed and sorted(tmp_path.iterdir()) == paths


def test_the_ratio_is_relative_to_that_of_the_text(tmp_path, clean):
    """Chinese sentences have a third of the characters of English ones."""
    pairs = [("我们今天去公园看花和树。", "Today we all go to the park to look at flowers.")] * 9
    profile = clean.make_profile(write_pairs(tmp_path, pairs))
    assert profile.scripts == ["Han or Kana", "Latin"] and profile.ratio > 3
    (chinese, english), limits, seen = *pairs[:1], clean.Limits(1000, max_ratio=3), set()
    for pair, rule in (
        ((chinese, english), None),
        ((chinese, english[:7]), "ratio"),
        (("The park is green.", english), "script"),
        ((chinese, english), "duplicate"),
    ):
        assert clean.broken_rule(pair, (), profile, limits, seen) == rule


def test_the_terminal_is_not_controlled_by_the_text(run, tmp_path):
    red = "\x1b[31mred | a", "\x1b[31mred | a"
    printed = run("clean", *write_pairs(tmp_path, [*sample_pairs(9), red])).out
    assert "10: ?[31mred / a ||| ?[31mred / a" in printed and "\x1b" not in printed


def test_files_that_cannot_be_cleaned(run, tmp_path):
    paths = write_pairs(tmp_path, sample_pairs(9))
    (short := tmp_path / "short").write_text("one\n")
    for words, error, message in (
        ([paths[0], short], InputError, f"{paths[0]}: 9 sentences, but {short} has 1 "),
        ([tmp_path / "missing", short], InputError, "missing: no such file"),
        ([*paths, "--against", tmp_path / "missing"], InputError, "missing: no such file"),
        ([paths[0], paths[0]], FileExistsError, "my.de"),
    ):
        with pytest.raises(error, match=message):
            run("clean", *words, "--output", tmp_path / "out")
        assert not [*(tmp_path / "out").glob("*")]


def test_sentences_of_test_sets_are_removed(run, tmp_path):
    pairs = [*dict(sample_pairs(99)).items()]
    test = tmp_path / "test.de", tmp_path / "test.xml"
    test[0].write_text(f"{pairs[3][0].upper().rstrip('.')} !\n\n", "utf-8")
    test[1].write_text(f"<doc>\n<seg>{pairs[7][1]}</seg>", "utf-8")
    words = "--against", ",".join(map(str, test))
    printed = run("clean", *write_pairs(tmp_path, pairs), *words).out
    (count,) = re.findall(r"^\| overlap \| (\d+) ", printed, re.MULTILINE)
    assert 2 <= int(count) < 9  # several sources may have one translation


def test_other_languages_are_removed(run, tmp_path, clean, monkeypatch):
    pytest.importorskip("py3langid")
    pairs = [*dict(sample_pairs(60)).items()]
    french = "Le chien mange une pomme dans le jardin.", "The dog eats an apple in the garden."
    english = "The dog sees a cat in the large garden.", "The dog is looking at a cat."
    paths = write_pairs(tmp_path, [*pairs, french, english, ("Ja.", "Yes.")])
    printed = run("clean", *paths, "--languages", "de,en").out
    assert "| language | 2 |" in printed and "61: Le chien" in printed
    for value in ("de", "de,xx"):
        with pytest.raises(clean.argparse.ArgumentTypeError, match="is not two languages of"):
            clean.parse_languages(value)
    monkeypatch.setattr(clean, "find_spec", lambda name: None)
    with pytest.raises(clean.argparse.ArgumentTypeError, match="pip install py3langid"):
        clean.parse_languages("de,en")


def test_a_shift_is_reported(run, tmp_path):
    sources, targets = zip(*dict(sample_pairs(900)).items(), strict=True)
    n = len(sources) - 1
    assert n > 300
    paths = write_pairs(tmp_path, [*zip(sources[:n], targets[1:], strict=True)])
    assert (
        f"{paths[0]} and {paths[1]}: from about sentence 1 on, the sides seem to be shifted by 1"
        f" line: {paths[1]} lacks 1 line there or before, or {paths[0]} has 1 line too many"
    ) in run("clean", *paths).err
