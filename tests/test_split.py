"""corpora/split.py: sizes, groups, formats, and input that cannot be split."""

import gzip
import subprocess
import sys

import numpy as np
import pytest

from conftest import sample_pairs
from helpers import write_pairs
from processes import ROOT

SIZES = ["--dev", "30", "--test", "20"]
LANGUAGES = ["--source_lang", "de", "--target_lang", "en"]


@pytest.fixture
def split(monkeypatch):
    """The module, imported from its folder."""
    monkeypatch.syspath_prepend(str(ROOT / "corpora"))
    import split

    return split


def run(*words):
    words = [sys.executable, str(ROOT / "corpora" / "split.py"), *map(str, words)]
    return subprocess.run(words, capture_output=True, text=True)


def read_parts(folder, names=("de", "en")):
    """The pairs of each part."""
    sides = {
        part: [(folder / f"{part}.{name}").read_text("utf-8").split("\n")[:-1] for name in names]
        for part in ("train", "dev", "test")
    }
    return {part: [*zip(*lines, strict=True)] for part, lines in sides.items()}


def unique_pairs(count):
    return [*{source: (source, target) for source, target in sample_pairs(count)}.values()]


def test_pairs_that_share_a_side_stay_together(tmp_path):
    pairs = unique_pairs(400)
    # A chain: the same source with other case, then the same target without its full stop.
    chain = [("Eins.", "One."), ("EINS", "The one!"), ("Der eine", "the one"), ("", "Nothing.")]
    text = [*pairs[:200], *chain, *pairs[200:]]
    done = run(*write_pairs(tmp_path, text), "--output", tmp_path / "out", *SIZES)
    assert done.returncode == 0, done.stderr
    parts = read_parts(tmp_path / "out")
    assert [len(parts[part]) for part in ("dev", "test")] == [30, 20]
    kept = [pair for pair in text if all(pair)]
    assert sorted(sum(parts.values(), [])) == sorted(kept)
    for got in parts.values():  # in the order of the text
        assert got == [pair for pair in kept if pair in {*got}]
        assert len({*chain} & {*got}) in (0, 3)
    assert f"train.en: {len(kept) - 50:,} pairs" in done.stdout
    assert "Left out: 1 pairs with an empty side" in done.stdout
    assert "Kept together: " in done.stdout


def test_only_the_pairs_and_the_seed_decide(tmp_path):
    pairs = unique_pairs(300)
    found = []
    for i, (text, seed) in enumerate([(pairs, 0), (pairs[::-1], 0), (pairs, 1), (pairs, -1)]):
        paths = write_pairs(tmp_path, text)
        assert not run(*paths, "--output", tmp_path / str(i), *SIZES, "--seed", seed).returncode
        found.append({*read_parts(tmp_path / str(i))["test"]})
    assert found[0] == found[1] and len({frozenset(test) for test in found}) == 3


def test_the_split_is_the_same_on_every_machine(tmp_path):
    pairs = [(f"Satz {i}", f"Sentence {i}") for i in range(40)]
    words = ["--dev", "3", "--test", "3", "--output", tmp_path / "out"]
    assert run(*write_pairs(tmp_path, pairs), *words).returncode == 0
    parts = read_parts(tmp_path / "out")
    for part, numbers in dict(dev=(1, 11, 38), test=(18, 30, 33)).items():
        assert parts[part] == [pairs[number] for number in numbers]


def test_connect(split):
    rng = np.random.default_rng(0)
    sources, targets = rng.integers(0, 60, (2, 100))
    numbers = split.connect(sources, targets)
    changed, expected = True, np.arange(100)
    while changed:  # the smallest row among the neighbors, until nothing changes
        same = (sources[:, None] == sources) | (targets[:, None] == targets)
        smallest = np.where(same, expected, 100).min(1)
        changed, expected = (smallest != expected).any(), smallest
    assert numbers.tolist() == expected.tolist()
    assert split.connect(*np.zeros((2, 0), np.uint64)).tolist() == []


def test_a_long_chain_of_pairs_takes_linear_time(split):
    numbers = np.arange(100_000)
    assert not split.connect(numbers // 2, (numbers + 1) // 2).any()


def test_tsv(tmp_path):
    pairs = unique_pairs(300)
    path = tmp_path / "my.tsv.gz"
    rows = [f"{i}\t{target}\t{source} \r\n" for i, (source, target) in enumerate(pairs)]
    path.write_bytes(gzip.compress("".join(rows).encode()))
    words = [path, "--output", tmp_path / "out", *SIZES, *LANGUAGES, "--columns", "3,2"]
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert sorted(sum(read_parts(tmp_path / "out").values(), [])) == sorted(pairs)
    path.write_text("".join(rows[:5]) + "7\tone column is missing\n")
    done = run(*words[:1], "--output", tmp_path / "out2", *words[3:])
    assert done.returncode == 2 and f"{path}:6: this line has 2 columns" in done.stderr
    assert not (tmp_path / "out2").exists()


def tmx(units):
    """A TMX file of units, lists of (language, text)."""
    body = "".join(
        "<tu>"
        + "".join(f'<tuv xml:lang="{lang}"><seg>{text}</seg></tuv>' for lang, text in unit)
        + "</tu>"
        for unit in units
    )
    return f'<?xml version="1.0"?><tmx version="1.4"><body>{body}</body></tmx>'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tmx(tmp_path, encoding):
    pairs = unique_pairs(300)
    units = [[("de-DE", source), ("EN", target)] for source, target in pairs]
    units[5].append(("en", "another variant"))
    units += [[("de-de", "Nur deutsch.")], [("de-DE", "&lt;p&gt;"), ("en", "A tag on one side.")]]
    path = tmp_path / "my.tmx"
    path.write_bytes(tmx(units).encode(encoding))
    done = run(path, "--output", tmp_path / "out", *SIZES)
    assert done.returncode == 0, done.stderr
    assert sorted(sum(read_parts(tmp_path / "out", ("de-de", "en")).values(), [])) == sorted(pairs)
    assert "1 further variants of a unit in one language" in done.stdout
    assert "1 units without de-de or en" in done.stdout
    assert "1 pairs with a side that is only a tag" in done.stdout
    units[7].append(("fr", "Un"))
    path.write_bytes(gzip.compress(tmx(units).encode(encoding)))
    done = run(path, "--output", tmp_path / "fr", *SIZES)
    assert done.returncode == 2 and "has the languages de-de, en, fr" in done.stderr
    assert run(path, "--output", tmp_path / "fr", *SIZES, *LANGUAGES).returncode == 0
    assert sorted(sum(read_parts(tmp_path / "fr").values(), [])) == sorted(pairs)


def test_what_cannot_be_split(tmp_path):
    paths = write_pairs(tmp_path, unique_pairs(120))
    output = ["--output", tmp_path / "out"]
    one_group = tmp_path / "one.de"
    one_group.write_text("Ja.\n" * len(paths[0].read_text("utf-8").splitlines()))
    table = tmp_path / "table.tsv"
    table.write_text("ja\tyes\n" * 300)
    entity = tmp_path / "entity.tmx"
    entity.write_text('<!DOCTYPE tmx [<!ENTITY a "b">]><tmx><tu/></tmx>')
    broken = tmp_path / "broken.tmx"
    broken.write_text(tmx([[("de", "a"), ("en", "b")]])[:-20])
    (tmp_path / "plain").write_text("Ja.\n" * 9)
    for words, message in (
        ([*paths], "too few for 2,000 pairs of development and test"),
        ([one_group, paths[1], *SIZES], "only 0 of 30 pairs could be put into dev"),
        ([table, *SIZES], "needs two languages"),
        ([table, *LANGUAGES, "--columns", "one"], "--columns: invalid parse_columns value: 'one'"),
        ([table, *LANGUAGES, "--columns", "1,9"], f"{table}:1: this line has 2 columns"),
        ([table, "--source_lang", "de", "--target_lang", "de"], "needs two languages"),
        ([*paths, table], "3 files are named"),
        ([entity, *LANGUAGES], "the entity a is not one of XML's own"),
        ([broken, *LANGUAGES], "is not valid XML"),
        ([tmp_path / "plain", *LANGUAGES], "A file with one language needs a second one"),
        ([tmp_path / "missing", *LANGUAGES], "missing: no such file"),
    ):
        done = run(*words, *output)
        assert done.returncode == 2 and message in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr and not (tmp_path / "out").exists()
    assert run(*paths, *output, "--dev", "9", "--test", "9").returncode == 0
    before = (tmp_path / "out" / "train.de").read_bytes()
    done = run(*paths, *output, "--dev", "9", "--test", "9")
    assert done.returncode == 2 and "exists already" in done.stderr
    assert (tmp_path / "out" / "train.de").read_bytes() == before
