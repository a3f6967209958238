"""corpora/clean.py: each rule, the numbers it prints, and files that do not fit together."""

import gzip
import re
import subprocess
import sys
import tracemalloc

import pytest

import text
from conftest import sample_pairs, slow
from helpers import write_pairs
from processes import ROOT
from runtime.errors import InputError


@pytest.fixture
def clean(monkeypatch):
    """The module, imported from its folder."""
    monkeypatch.syspath_prepend(str(ROOT / "corpora"))
    import clean

    return clean


def run(*words):
    words = [sys.executable, str(ROOT / "corpora" / "clean.py"), *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True)


BAD = dict(
    empty=("Ein Hund läuft.", " "),
    equal=("Click  here to read more", "click here to read more "),
    long=("Wort " * 300, "word " * 300),
    ratio=("Ja.", "Yes, and that is what all of us have always said about it."),
    script=("Собака бежит домой.", "The dog runs home."),
)


def test_each_rule_removes_its_pair_and_no_other_one(tmp_path):
    good = [*dict(sample_pairs(300)).items()]
    # Short ones may have another ratio, and few letters may be in any script.
    good += [("Nein!", "I do not."), ("7 + 3", "Ω = 10"), ("Ok", "Да")]
    pairs = [*good[:100], *BAD.values(), *good[100:], good[5], good[5]]
    done = run(*write_pairs(tmp_path, pairs), "--output", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    sides = [(tmp_path / "out" / name).read_text("utf-8") for name in ("my.de", "my.en")]
    assert [*zip(*(side.splitlines() for side in sides), strict=True)] == good
    rows = re.findall(r"^\| (\w+) \| ([\d,]+) \| ([\d.]+)% \| (.*) \|$", done.stdout, re.MULTILINE)
    counts = {rule: int(count) for rule, count, *_ in rows}
    assert counts == dict.fromkeys(BAD, 1) | dict(duplicate=2)
    assert rows[-1][2] == f"{200 / len(pairs):.2f}"
    assert "104: Ja. ||| Yes, and" in done.stdout and rows[-1][3].count("<br>") == 1
    assert done.stdout.endswith(f"{len(good)} of {len(pairs)} pairs are kept\n")


def test_lines_that_begin_with_a_tag_are_sentences_and_markup_is_counted(tmp_path):
    pairs = [("<b>Öffnet</b> die Datei", "<b>Open</b> the file"), ("<url>x</url>", "<url>x</url>")]
    paths = write_pairs(tmp_path, [*pairs, *sample_pairs(9)])
    done = run(*paths, "--output", tmp_path / "out")
    assert "10 of 10 pairs are kept" in done.stdout
    skipped = ", ".join(f"1 lines of {path}" for path in paths)
    assert f"Skipped as markup: {skipped}\n" in done.stdout
    assert (tmp_path / "out" / "my.de").read_text("utf-8").startswith(f"{pairs[0][0]}\n")


def test_without_an_output_nothing_is_written(tmp_path):
    paths = write_pairs(tmp_path, [*sample_pairs(5), *BAD.values()])
    assert run(*paths).returncode == 0
    assert sorted(tmp_path.iterdir()) == paths


def test_the_limits_are_flags(tmp_path):
    paths = write_pairs(tmp_path, [*sample_pairs(50), BAD["long"], BAD["ratio"]])
    done = run(*paths, "--max_chars", "2000", "--max_ratio", "9")
    assert "52 of 52 pairs are kept" in done.stdout


def test_the_ratio_is_relative_to_that_of_the_text(tmp_path, clean):
    """Chinese sentences have a third of the characters of English ones."""
    pairs = [("我们今天去公园看花和树。", "Today we all go to the park to look at flowers.")] * 9
    profile = clean.make_profile(write_pairs(tmp_path, pairs))
    assert profile.scripts == ("Han or Kana", "Latin") and profile.ratio > 3
    (chinese, english), limits = pairs[0], clean.Limits(max_chars=1000, max_ratio=3)
    for pair, rule in (
        ((chinese, english), None),
        ((chinese, english[:7]), "ratio"),
        (("The park is green.", english), "script"),
    ):
        assert clean.broken_rule(profile, limits, pair, ()) == rule


def test_examples_are_drawn_from_the_entire_text(clean):
    removed = clean.Removed()
    for number in range(1000):
        removed.add(number, ("a", "b"))
    numbers = [number for number, *_ in removed.examples]
    assert removed.count == 1000 and len({*numbers}) == 3 and max(numbers) > 99


def test_the_terminal_is_not_controlled_by_the_text(tmp_path):
    paths = write_pairs(tmp_path, [*sample_pairs(9), ("\x1b[31mred | a", "\x1b[31mred | a")])
    done = run(*paths)
    assert "10: ?[31mred / a ||| ?[31mred / a" in done.stdout and "\x1b" not in done.stdout


def test_files_that_cannot_be_cleaned(tmp_path):
    paths = write_pairs(tmp_path, sample_pairs(9))
    output = ["--output", tmp_path / "out"]
    texts = dict(short=b"one\n", empty=b"", no_text=b"", latin="ja\nMädchen\n".encode("latin1"))
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    short, empty, no_text, latin = (tmp_path / name for name in texts)
    for words, message in (
        ([paths[0], short], f"{paths[0]}: 9 sentences, but {short} has 1"),
        ([short, paths[0]], f"{short}: 1 sentences, but {paths[0]} has 9"),
        ([empty, no_text], f"{empty}: the file is empty"),
        ([latin, short], f"{latin}:2: byte 2 of this line is not text in UTF-8"),
        ([tmp_path / "missing", short], "missing: no such file"),
        ([paths[0], paths[0]], "both sides have this name"),
        ([*paths, "--against", tmp_path / "missing"], "missing: no such file"),
    ):
        done = run(*words, *output)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "out").exists() or not [*(tmp_path / "out").iterdir()]
    for path in paths:
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    packed = [f"{path}.gz" for path in paths]
    assert run(*packed, *output).returncode == 0
    for path in paths:
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    done = run(*paths, *output)
    assert done.returncode == 2 and "my.de: exists already" in done.stderr
    assert (tmp_path / "out" / "my.de").read_bytes() == paths[0].read_bytes()


def test_all_repeated_pairs_are_found(tmp_path, clean):
    pairs = sample_pairs(300)
    text = pairs + pairs[::2] + pairs[::3]
    profile = clean.make_profile(write_pairs(tmp_path, text))
    paths = write_pairs(tmp_path, text)
    removed = clean.clean_text(paths, [], profile, clean.Limits(1000, 3.0))
    assert {rule: of.count for rule, of in removed.items() if of.count} == dict(duplicate=250)


@slow
@pytest.mark.parametrize("copies, most", [(1, 13), (2, 28)])
def test_memory_per_pair(tmp_path, clean, monkeypatch, copies, most):
    """8 bytes, and 9 more for a pair that is repeated; containers grow by more than they need."""
    monkeypatch.setattr(text, "BLOCK_LINES", 100)
    monkeypatch.setattr(clean, "map_on_cores", map)  # starting processes takes memory, too
    paths = write_pairs(tmp_path, sample_pairs(40_000 // copies) * copies)
    clean.make_profile(paths)  # fills caches, which would count otherwise
    peaks = []
    for count in (10_000, 40_000):
        small = [tmp_path / f"{count}{path.suffix}" for path in paths]
        for path, longer in zip(small, paths, strict=True):
            lines = longer.read_text("utf-8").splitlines(True)
            path.write_text("".join(lines[: count // copies] * copies), "utf-8")
        tracemalloc.start()
        clean.make_profile(small)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert 0 < (peaks[1] - peaks[0]) / 30_000 < most, peaks


def test_a_pair_that_occurs_in_another_file_is_no_duplicate(tmp_path, clean):
    first, second = [("a b c d", "e f g h")], [("a b c d", "i j k l")]
    profile = clean.make_profile(write_pairs(tmp_path, first + second))
    assert not len(profile.repeated)


def test_an_error_while_writing_leaves_no_file(tmp_path, clean):
    paths = write_pairs(tmp_path, sample_pairs(9))
    profile = clean.make_profile(paths)
    paths[1].write_text("too short\n")
    with (
        pytest.raises(InputError, match="9 sentences, but .* has 1"),
        clean.atomic_open(tmp_path / "out" / "a") as file,
    ):
        clean.clean_text(paths, [file, file], profile, clean.Limits(99, 3))
    assert not [*(tmp_path / "out").iterdir()]


def test_sentences_of_test_sets_are_removed(tmp_path):
    pairs = dict(sample_pairs(99))
    pairs = [*pairs.items()]
    test = tmp_path / "test.de", tmp_path / "test.tmx"
    test[0].write_text(f"{pairs[3][0].upper().rstrip('.')} !\n\n", "utf-8")
    test[1].write_text(
        f'<tmx><tu><tuv xml:lang="en"><seg>{pairs[7][1]}</seg></tuv></tu></tmx>', "utf-8"
    )
    done = run(*write_pairs(tmp_path, pairs), "--against", ",".join(map(str, test)))
    assert done.returncode == 0, done.stderr
    (count,) = re.findall(r"^\| overlap \| (\d+) ", done.stdout, re.MULTILINE)
    assert 2 <= int(count) < 9  # several sources may have one translation


def test_other_languages_are_removed(tmp_path):
    pytest.importorskip("py3langid")
    pairs = [*dict(sample_pairs(60)).items()]
    french = "Le chien mange une pomme dans le jardin.", "The dog eats an apple in the garden."
    english = "The dog sees a cat in the large garden.", "The dog is looking at a cat."
    text = [*pairs, french, english, ("Ja.", "Yes.")]
    done = run(*write_pairs(tmp_path, text), "--languages", "de,en")
    assert "| language | 2 |" in done.stdout and "61: Le chien" in done.stdout
    for value in ("de", "de,xx"):
        done = run(*write_pairs(tmp_path, text), "--languages", value)
        assert done.returncode == 2 and f"{value} is not two languages of" in done.stderr


def test_without_py3langid_a_message_says_how_to_install_it(clean, monkeypatch):
    monkeypatch.setattr(clean, "find_spec", lambda name: None)
    with pytest.raises(clean.argparse.ArgumentTypeError, match="pip install py3langid"):
        clean.parse_languages("de,en")


def test_a_shift_is_reported(tmp_path):
    sources, targets = zip(*dict(sample_pairs(900)).items(), strict=True)
    n = len(sources) - 1
    assert n > 300
    paths = write_pairs(tmp_path, [*zip(sources[:n], targets[1:], strict=True)])
    assert (
        f"{paths[0]} and {paths[1]}: from about sentence 1 on, the sides seem to be shifted by 1"
        f" line: {paths[1]} lacks 1 line there or before, or {paths[0]} has 1 line too many"
    ) in run(*paths).stderr


@slow
def test_other_processes_find_the_functions(tmp_path, monkeypatch):
    """As with a text that takes longer than a second."""
    code = (
        "import sys, runpy; sys.path.insert(0, '.'); import runtime.parallel as parallel;"
        " parallel.ALONE_SECONDS = 0; parallel.num_processes = lambda: 2; sys.argv = sys.argv[1:];"
        " sys.path.insert(0, 'corpora'); runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    paths = write_pairs(tmp_path, [*sample_pairs(12_000), *BAD.values()])
    words = [sys.executable, "-c", code, "corpora/clean.py", *map(str, paths)]
    done = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "of 12,005 pairs are kept" in done.stdout, done.stderr
