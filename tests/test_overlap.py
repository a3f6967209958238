"""Sentences of test sets in the training text: what prepro.py and train.py print."""

import json
import os
from pathlib import Path

import pytest

import overlap
import prepro
import train
from conftest import sample_pairs, write_corpus
from eval_sets import read_eval_set
from helpers import run_main
from hparams import make_hparams
from overlap import overlap_notes, plain_forms

REAL_TEXT = Path(os.environ.get("REAL_TEXT", "/nonexistent"))


def test_plain_forms():
    lines = [
        "Don't  stop!",
        "DON’T STOP",
        "5 < 7",
        "5 > 7",
        "!!!",
        "",
        "Straße",
        "a\u2028b",
        "学 校。",
    ]
    assert plain_forms(lines) == [
        *("dontstop", "dontstop", "5<7", "5>7", "!!!", "", "strasse", "ab", "学校")
    ]
    assert plain_forms([]) == []


def flags_of(folder):
    """A training text that has some sentences of its development and test set."""
    pairs = [*dict(sample_pairs(200)).items()]
    sources, targets = zip(*pairs, strict=True)
    test = [
        (sources[3], "No."),
        (f"{sources[4].upper()} !", targets[5]),
        ("Nein nein", "?"),
        ("", ""),
    ]
    flags = write_corpus(folder, pairs[:60], test)
    dev = write_corpus(folder / "dev", [("Dev", "Dev")])
    flags |= dict(source_dev=dev["source_train"], target_dev=dev["target_train"])
    return flags | dict(recipe="tiny", vocab_size=120)


def notes_of(flags):
    return [
        f"{flags['source_dev']}, {flags['target_dev']}: none of 1 sources and targets are in the"
        " training text",
        f"{flags['source_test']}, {flags['target_test']}: 1 of 4 sources and 1 of 4 targets are in"
        " the training text (2 and 1 but for case and punctuation). `corpora/clean.py --against`"
        " removes them",
    ]


def test_prepro_prints_a_line_for_each_set(tmp_path, capsys):
    flags = flags_of(tmp_path)
    run_main(prepro, flags)
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if "training text" in line] == notes_of(flags)


def test_the_counts_are_saved_with_the_token_ids(tmp_path, monkeypatch):
    flags = flags_of(tmp_path)
    hp, folder = make_hparams(flags), tmp_path / "ids"
    folder.mkdir()
    (folder / "info.json").write_text("{}")
    assert [*overlap_notes(hp, folder)] == notes_of(flags)
    saved = folder / overlap.COUNTS_FILE
    content = json.loads(saved.read_text())
    with monkeypatch.context() as patch:
        patch.setattr(overlap, "count_overlap", None)  # an error if the text is read again
        assert [*overlap_notes(hp, folder)] == notes_of(flags)
    Path(flags["target_dev"]).write_text("Another one\n")
    assert [*overlap_notes(hp, folder)] == notes_of(flags)
    assert json.loads(saved.read_text())["key"] != content["key"]
    for damaged in ("[", "[]", "{}", json.dumps(dict(key=content["key"], counts=[[1, 2]]))):
        saved.write_text(damaged)
        assert [*overlap_notes(hp, folder)] == notes_of(flags)


def test_a_development_set_that_was_read_may_be_a_pipe(tmp_path):
    flags = flags_of(tmp_path)
    hp = make_hparams(flags)
    text, expected = read_eval_set(hp, "dev"), overlap.named_sets(hp)
    for side in ("source", "target"):
        Path(flags[f"{side}_dev"]).unlink()
    assert overlap.named_sets(hp, text) == expected


def test_train_reads_a_test_set_only_if_the_command_names_it(tmp_path):
    flags = flags_of(tmp_path)
    hp = make_hparams(flags)
    assert len(overlap.named_sets(hp)) == 2
    assert (
        len(overlap.named_sets(make_hparams({**flags, "source_dev": "none", "target_dev": "none"})))
        == 1
    )
    hp = make_hparams({name: value for name, value in flags.items() if "_test" not in name})
    assert [of.name for of in overlap.named_sets(hp)] == [notes_of(flags)[0].partition(":")[0]]


def test_train_prints_the_lines(tmp_path, capsys, monkeypatch):
    flags = flags_of(tmp_path)
    run_main(prepro, flags)
    capsys.readouterr()
    monkeypatch.setattr(train, "settle_schedule", lambda *_: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            run_main(train, flags)
        printed = capsys.readouterr().out
        assert [
            line for line in printed.splitlines() if "in the training text" in line
        ] == notes_of(flags)
    assert (tmp_path / "preprocessed" / "train_ids" / overlap.COUNTS_FILE).exists()


@pytest.mark.skipif(not (REAL_TEXT / "small_parallel_enja").exists(), reason="needs REAL_TEXT")
def test_real_text():
    folder = REAL_TEXT / "small_parallel_enja"
    flags = {
        f"{side}_{part}": str(folder / f"{part}.{lang}")
        for part in ("train", "dev", "test")
        for side, lang in (("source", "en"), ("target", "ja"))
    }
    flags |= dict(recipe="tiny", source_lang="en", target_lang="ja")
    dev, test = overlap_notes(make_hparams(flags))
    assert "77 of 500 sources and 0 of 500 targets" in dev
    assert "60 of 500 sources and 0 of 500 targets" in test
