"""Sentences of test sets in the training text: what prepro.py prints."""

import prepro
from conftest import sample_pairs, write_corpus
from helpers import run_main
from hparams import make_hparams
from text.overlap import overlap_notes, plain_forms


def test_plain_forms():
    forms = {"Don't  stop!": "dontstop", "DON’T STOP": "dontstop", "5 < 7": "5<7", "5 > 7": "5>7"}
    forms |= {"!!!": "!!!", "": "", "Straße": "strasse", "a\u2028b": "ab", "学 校。": "学校"}
    assert plain_forms([*forms]) == [*forms.values()] and plain_forms([]) == []


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
    more = "are in the training text, but for case and punctuation"
    return [
        f"{flags['source_dev']}, {flags['target_dev']}: 0 of 1 sources and 0 targets {more}",
        f"{flags['source_test']}, {flags['target_test']}: 2 of 4 sources and 1 targets {more}"
        ". `corpora/clean.py --against` removes them",
    ]


def test_prepro_prints_a_line_for_each_set(tmp_path, capsys):
    flags = flags_of(tmp_path)
    run_main(prepro, flags)
    printed = capsys.readouterr().out
    assert [line for line in printed.splitlines() if "training text" in line] == notes_of(flags)


def test_a_test_set_is_read_only_if_the_command_names_it(tmp_path):
    flags = flags_of(tmp_path)
    for part, note in zip(("test", "dev"), notes_of(flags), strict=True):
        given = {name: value for name, value in flags.items() if f"_{part}" not in name}
        assert [*overlap_notes(make_hparams(given), given)] == [note]


def test_real_text(real_text):
    folder = real_text / "small_parallel_enja"
    flags = {
        f"{side}_{part}": str(folder / f"{part}.{lang}")
        for part in ("train", "dev", "test")
        for side, lang in (("source", "en"), ("target", "ja"))
    }
    flags |= dict(recipe="tiny", source_lang="en", target_lang="ja")
    dev, test = overlap_notes(make_hparams(flags), flags)
    assert "78 of 500 sources and 0 targets" in dev
    assert "61 of 500 sources and 0 targets" in test
