"""translate.py, as users and other programs run it."""

import os
import pty
import re
import signal
import struct
import subprocess
import sys

import pytest

import eval
import translate
from conftest import slow
from helpers import (
    ODD_LINES,
    blocks,
    read_test_sentences,
    run_translate,
    skip_search,
    translate_command,
    translated,
    write_lines,
)
from processes import ROOT, Forked, forked_script
from support.errors import InputError
from translate import TranslateFlags
from translation.inference import Hypothesis, SearchDecoder
from translation.paragraphs import Paragraph
from translation.translator import Translator

SAMPLE = dict(logdir=str(ROOT / "docs" / "sample_model"))
GERMAN = "Die Frau hat den Brief nicht gelesen. Der Hund schläft.  Der Mann liest ein Buch."
ENGLISH = "The woman did not read the letter. The dog sleeps.  The man reads a book."


@pytest.fixture
def tiny(trained):
    return trained("tiny")


def test_each_input_line_gives_one_output_line(trained, tiny, tmp_path, capsys):
    out, stderr = run_translate(tiny, "\n".join(ODD_LINES).encode(), beam=1)
    *lines, end = out.split("\n")
    assert end == "" and len(lines) == len(ODD_LINES) and "truncated" not in stderr
    assert lines[1] == lines[3] == "" and lines[2] == lines[0] == lines[-1] != "" != lines[5]
    lines = translated(trained("legacy"), tmp_path, ODD_LINES, split=False, beam=1)
    assert len(lines) == len(ODD_LINES) and lines[1] == lines[3] == lines[5] == ""
    assert lines[0] == lines[-1] != ""
    truncated = "1 of 10 lines were truncated to 14 tokens (first: line 8). Write a sentence"
    assert truncated in capsys.readouterr().err


def test_the_notes_count_all_blocks(trained, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("translate.MAX_BATCH_LINES", 2)

    def found(_, X):
        return [[Hypothesis("x", [5], 0.0, at_limit=len(ids) > 5)] for ids in X]

    monkeypatch.setattr(SearchDecoder, "__call__", found)
    lines = ["Hund", "Hund " * 30, "", "Hund", "Hund " * 30, "Hund " * 8]
    translated(trained("legacy"), tmp_path, lines, split=False)
    notes = capsys.readouterr().err
    assert "2 of 6 lines were truncated to 14 tokens (first: line 2)" in notes
    assert "3 of 5 translations ended at their limit" in notes


def test_translations_equal_those_of_eval(tiny, tmp_path):
    lines = read_test_sentences(tiny["source_test"])
    eval.main(dict(logdir=tiny["logdir"], results=str(tmp_path), beam=1))
    (path,) = tmp_path.iterdir()
    found = re.findall(r"^- got: (.*)", path.read_text("utf-8"), re.MULTILINE)
    assert translated(tiny, tmp_path, lines, beam=1) == found and len({*found}) > 3


def test_the_lines_for_python_print_what_the_document_says(capsys):
    parts = iter(blocks("translating.md"))
    program = next(block for kind, block in parts if kind == "python")
    exec(program, {})
    assert next(parts) == ("text", capsys.readouterr().out)


def test_a_typed_line_is_translated_before_the_next_one_comes(tiny):
    terminal, program_side = pty.openpty()
    command = [sys.executable, *translate_command(tiny, beam=1)]
    streams = dict(stdin=program_side, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with subprocess.Popen(command, cwd=ROOT, **streams) as process:
        answers = []
        for _ in range(2):
            os.write(terminal, "Der Hund schläft\n".encode())
            answers.append(process.stdout.readline())
        os.write(terminal, b"\n\x04")
        out, stderr = process.communicate(timeout=120)
    assert process.returncode == 0 and b"Ctrl-D ends" in stderr
    assert answers[0] == answers[1] != b"\n" == out


def test_a_file_of_translations_is_written_as_they_come(tiny, tmp_path, monkeypatch, capsys):
    """So a run that is stopped loses none. Without a terminal there is no progress bar."""
    monkeypatch.setattr("translate.MAX_BATCH_LINES", 2)
    out, call = tmp_path / "new" / "out", SearchDecoder.__call__

    def stop_later(*args):
        if out.read_text().count("\n") == 2:
            raise KeyboardInterrupt
        return call(*args)

    monkeypatch.setattr(SearchDecoder, "__call__", stop_later)
    source = write_lines(tmp_path / "in", ["Der Hund schläft"] * 5)
    with pytest.raises(KeyboardInterrupt):
        translate.main(dict(logdir=tiny["logdir"], source=str(source), output=str(out), beam=1))
    first, second = out.read_text().splitlines()
    assert first == second != "" and "\r" not in capsys.readouterr().err


@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGPIPE, 1)])
def test_it_can_be_stopped_while_it_waits_for_lines(tiny, number, code):
    """By Ctrl-C or a closed pipe, and without a traceback."""
    with Forked(translate_command(tiny, beam=1), prepare=skip_search) as process:
        process.stdin.write("Der Hund schläft\n".encode())
        assert process.stdout.readline()
        if number == signal.SIGPIPE:
            process.stdout.close()
            process.stdin.write(b"Die Katze singt\n")
        else:
            process.send_signal(number)
        assert process.wait(60) == code
        stderr = process.stderr.read()
    assert "Traceback" not in stderr and "Fatal" not in stderr


def test_a_line_may_be_a_paragraph(tmp_path, capsys):
    text = [GERMAN, "", "  Der Hund schläft.", " ", "Der\u2028Hund schläft."]
    lines = translated(SAMPLE, tmp_path, text, beam=1)
    assert lines[:4] == [ENGLISH, "", "The dog sleeps.", ""] and len(lines) == 5
    assert "truncated" not in capsys.readouterr().err


def test_nothing_is_truncated_if_lines_are_split(trained, tmp_path, capsys):
    """Also in a model that reads at most 14 words, and is given 201."""
    text = ["Der Hund schläft, " * 67, "x" * 300]
    lines = translated(trained("legacy"), tmp_path, text, beam=1)
    assert len(lines) == 2 and len(lines[0].split()) > 20
    assert "truncated" not in capsys.readouterr().err


class Recorder(Translator):
    """It translates nothing, and records what it should."""

    protects = False

    def __init__(self):
        self.read = []

    def translate_around(self, sentences, prefixes, keep_numbers=False):
        self.read += zip(sentences, prefixes, strict=True)
        return [None] * len(sentences)


def test_each_sentence_is_read_with_its_symbol_and_the_first_one_with_the_prefix():
    translator = Recorder()
    texts = [Paragraph(["Eins.", "Zwei."], ["", " ", ""], ">>fr<<", "Un"), Paragraph([], ["\n"])]
    found = translator.translate(texts)
    assert translator.read == [(">>fr<< Eins.", "Un"), (">>fr<< Zwei.", "")]
    assert [(own.paragraph, len(own.sentences)) for own in found] == [(texts[0], 2), (texts[1], 0)]


def test_several_translations_of_a_line(tiny, tmp_path, monkeypatch, capsys):
    """Each continues a prefix. Numbers and prefixes continue in the next batch."""
    monkeypatch.setattr("translate.MAX_BATCH_LINES", 2)
    prefixes = ["The", "", "They 猫\u200b ", "The dog " * 30, ""]  # an unknown character stays
    lines = ["Der Hund schläft", "Die Frau singt", "Die Katze läuft", "Hund", ""]
    prefix = write_lines(tmp_path / "prefix", prefixes)
    found = translated(tiny, tmp_path, lines, beam=4, nbest=3, prefix=prefix)
    assert "\r" not in capsys.readouterr().err  # no bar without a terminal
    rows = [line.split(" ||| ") for line in found]
    assert [row[0] for row in rows] == [*"00011122234"]
    for line in range(3):
        hypotheses = rows[3 * line : 3 * line + 3]
        scores = [float(score) for _, _, score in hypotheses]
        assert scores == sorted(scores, reverse=True) and scores[0] < 0
        texts = [text for _, text, _ in hypotheses]
        assert len({*texts}) == 3
        begun = prefixes[line].strip(" \u200b")
        assert all(text.startswith(begun) for text in texts)
        assert not begun or not any(text[len(begun) :].startswith("The") for text in texts)


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(nbest=0), "nbest is 0"),
        (dict(attention="out.pdf"), "attention out.pdf: choose a name that ends in .png"),
        (dict(source="a", output="a"), "output would replace the source"),
        (dict(prefix="b"), "score and prefix need a file. Give --source"),
        (dict(score="b"), "score and prefix need a file. Give --source"),
    ],
)
def test_flags_that_contradict_each_other(given, message):
    with pytest.raises(InputError, match=message):
        TranslateFlags(**given)
    TranslateFlags(attention="out.png", nbest=2, alignments="new")


def test_a_picture_of_the_attention(tiny, tmp_path, monkeypatch, capsys):
    """That of the last line that is not empty, also of an earlier batch, and of its beginning."""
    monkeypatch.setattr(SearchDecoder, "__call__", None)
    skip_search()  # each sentence has the same translation
    monkeypatch.setattr("translate.MAX_BATCH_LINES", 2)
    picture, short, long = tmp_path / "out.png", "Der Hund $ 猫", "Der Hund schläft " * 40
    pictures = []
    for lines in ([long, short, "", ""], [short], [short, long], [""]):
        translated(tiny, tmp_path, lines, attention=picture)
        pictures.append(picture.read_bytes())
    assert f"{picture}: attention of the last translation" in capsys.readouterr().err
    assert pictures[0] == pictures[1] != pictures[2] == pictures[3]
    assert pictures[0][:4] == b"\x89PNG"
    assert 1000 < max(struct.unpack(">II", pictures[2][16:24])) < 4000


# Slow ---------------------------------------------------------------


@slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full: a test for Linux")
def test_a_picture_that_cannot_be_written_loses_no_translation(tiny, tmp_path):
    picture = tmp_path / "full.png"
    picture.symlink_to("/dev/full")
    paths = {name: tmp_path / name for name in ("output", "alignments")}
    more = dict(source=tiny["source_test"], attention=picture, beam=1)
    done = forked_script("translate.py", logdir=tiny["logdir"], **more, **paths)
    assert done.returncode == 1 and "/dev/full: no space left on device" in done.stderr
    count = len(read_test_sentences(tiny["source_test"]))
    for path in paths.values():
        assert len(path.read_text("utf-8").splitlines()) >= count
