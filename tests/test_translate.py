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
from conftest import sample_pairs, slow
from helpers import (
    ODD_LINES,
    read_test_sentences,
    refused,
    run_main,
    run_translate,
    skip_search,
    translate_command,
    translated,
)
from processes import ROOT, Forked, forked_script
from support.errors import InputError
from translation.paragraphs import Splitter
from translation.translator import restore_prefix

LONG_LINE = max(range(len(ODD_LINES)), key=lambda i: len(ODD_LINES[i].split()))


@pytest.fixture(params=["legacy", "tiny"])
def model(request, trained):
    return trained(request.param)


@pytest.fixture
def tiny(trained):
    return trained("tiny")


def test_each_input_line_gives_one_output_line(model):
    out, stderr = run_translate(model, "\n".join(ODD_LINES).encode(), beam=1)
    *lines, end = out.split("\n")
    assert end == "" and len(lines) == len(ODD_LINES)
    assert lines[1] == lines[3] == "" and lines[0] == lines[-1] != ""
    if model["recipe"] == "tiny":
        assert lines[2] == lines[0] and lines[5] != ""
        assert "truncated" not in stderr
    else:
        truncated = f"1 of {len(lines)} lines were truncated to 14 tokens"
        assert lines[5] == "" and f"{truncated} (first: line {1 + LONG_LINE}). With" in stderr


def test_translations_equal_those_of_eval(tiny, tmp_path):
    lines = read_test_sentences(tiny["source_test"])
    run_main(eval, dict(logdir=tiny["logdir"], results=str(tmp_path), beam=2))
    (path,) = tmp_path.iterdir()
    found = re.findall(r"^- got: (.*)", path.read_text("utf-8"), re.MULTILINE)
    assert translated(tiny, tmp_path, lines, beam=2) == found and len({*found}) > 3


def test_a_line_is_translated_before_the_next_one_comes(tiny):
    with Forked(translate_command(tiny, beam=1)) as process:
        answers = []
        for _ in range(2):
            process.stdin.write("Der Hund schläft\n".encode())
            answers.append(process.stdout.readline())
        assert answers[0] == answers[1] != ""
        process.stdin.close()
        assert process.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGPIPE])
def test_it_can_be_stopped_while_it_waits_for_lines(tiny, number):
    """By Ctrl-C, SIGTERM, or a closed pipe, and without a traceback."""
    with Forked(translate_command(tiny, beam=1), prepare=skip_search) as process:
        process.stdin.write("Der Hund schläft\n".encode())
        assert process.stdout.readline()
        if number == signal.SIGPIPE:
            process.stdout.close()
            process.stdin.write(b"Die Katze singt\n")
            expected = 1
        else:
            process.send_signal(number)
            expected = 128 + number
        assert process.wait(60) == expected
        stderr = process.stderr.read()
    assert "Traceback" not in stderr and "Fatal" not in stderr


@slow
def test_very_long_lines_are_truncated(tiny, tmp_path, capsys):
    """A line of a million characters, and a word of a hundred thousand."""
    lines = ["Der Hund", "a b" * 333_333, "x" * 100_000, "Der Hund"]
    found = translated(tiny, tmp_path, lines, beam=1)
    assert "2 of 4 lines were truncated to 1023 tokens" in capsys.readouterr().err
    assert len(found) == 4 and found[0] == found[3] != ""


SAMPLE = dict(logdir=str(ROOT / "docs" / "sample_model"))
GERMAN = "Die Frau hat den Brief nicht gelesen. Der Hund schläft.  Der Mann liest ein Buch."
ENGLISH = "The woman did not read the letter. The dog sleeps.  The man reads a book."


def test_a_line_may_be_a_paragraph():
    text = f"{GERMAN}\n\n  Der Hund schläft.\n \nDer\u2028Hund schläft.\n"
    out, stderr = run_translate(SAMPLE, text.encode(), split=True, beam=1)
    lines = out.split("\n")
    assert lines[:4] == [ENGLISH, "", "  The dog sleeps.", " "] and len(lines) == 6
    assert len(lines[4].splitlines()) == 1
    assert "truncated" not in stderr


def test_a_paragraph_for_one_of_several_target_languages(tmp_path, monkeypatch):
    """Each sentence is read with the symbol."""
    monkeypatch.setattr(Splitter, "is_symbol", lambda *_: True)
    sentences = ["Der Hund schläft.", "Eine Frau singt sehr laut.", "Das Kind lacht."]

    lines = [f">>en<< {sentence}" for sentence in sentences]
    texts = translated(SAMPLE, tmp_path, lines, beam=1)
    whole = translated(SAMPLE, tmp_path, [f">>en<< {' '.join(sentences)}"], beam=1, split=True)
    assert whole == [" ".join(texts)]


@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_nothing_is_truncated_if_lines_are_split(trained, recipe):
    """Also in a model that reads at most 14 words, and is given 2,001."""
    text = "Der Hund schläft, " * 667 + "\n" + "x" * 3000 + "\n"
    out, stderr = run_translate(trained(recipe), text.encode(), split=True, beam=1)
    assert out.count("\n") == 2 and "truncated" not in stderr
    assert len(out.split("\n")[0].split()) > 20


def test_several_translations_of_a_line(tiny, tmp_path, capsys):
    lines = ["Der Hund schläft", "", "Die Frau singt"]
    found = translated(tiny, tmp_path, lines, beam=4, nbest=3)
    assert "translating: 3 lines" in capsys.readouterr().err
    rows = [line.split(" ||| ") for line in found]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] + ["2"] * 3
    for hypotheses in (rows[:3], rows[4:]):
        scores = [float(score) for _, _, score in hypotheses]
        assert scores == sorted(scores, reverse=True) and scores[0] < 0
        assert len({text for _, text, _ in hypotheses}) == 3
    assert translated(tiny, tmp_path, lines, beam=4) == [rows[0][1], "", rows[4][1]]


def test_a_file_of_several_batches(tiny, tmp_path, monkeypatch):
    """Numbers and prefixes continue in the next batch."""
    monkeypatch.setattr("translate.MAX_BATCH_LINES", 1)
    prefix, prefixes = tmp_path / "prefix", ["The", "A cat", "They"]
    prefix.write_text("".join(f"{words}\n" for words in prefixes), "utf-8")
    lines = ["Der Hund schläft", "Die Frau singt", "Die Katze läuft"]
    found = translated(tiny, tmp_path, lines, beam=2, nbest=2, prefix=prefix)
    rows = [line.split(" ||| ") for line in found]
    assert [row[0] for row in rows] == ["0", "0", "1", "1", "2", "2"]
    assert all(text.startswith(prefixes[int(number)]) for number, text, _ in rows)


def test_a_terminal_is_asked_for_sentences(tiny):
    terminal, program_side = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *translate_command(tiny)],
        stdin=program_side,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
    )
    os.write(terminal, "Der Hund schläft\n\n\x04".encode())
    out, stderr = process.communicate(timeout=120)
    expected, _ = run_translate(tiny, "Der Hund schläft\n".encode())
    assert process.returncode == 0 and b"Ctrl-D ends" in stderr
    assert out.decode() == expected + "\n"


@pytest.mark.parametrize(
    "given, message",
    [
        (dict(source="nowhere"), "nowhere"),
        (dict(source="{folder}"), "directory"),
        (dict(output="{folder}"), "directory"),
        (dict(logdir="{folder}"), "{folder}: holds no checkpoint"),
        (dict(nbest=9, beam=2), "nbest is 9, but beam is 2, .* --beam 9"),
        (dict(nbest=0), "nbest is 0"),
        (dict(attention="out.pdf"), "attention out.pdf: choose a name that ends in .png"),
        (dict(split=True, nbest=2), "split is for paragraphs"),
        (dict(split=True, prefix="{two}"), "split is for paragraphs"),
        (dict(split=True, score="{two}"), "split is for paragraphs"),
        (dict(split=True, alignments="new"), "split is for paragraphs"),
        (dict(source="-", prefix="{two}"), "score and prefix need a file. Give --source"),
        (dict(source="-", score="{two}"), "score and prefix need a file. Give --source"),
        (dict(prefix="{two}"), "{two}: 2 lines, but .* has 1. Make line n"),
        (dict(score="{two}"), "{two}: 2 lines, but .* has 1. Make line n"),
    ],
)
def test_what_cannot_be_done_is_refused(trained, tmp_path, given, message):
    names = dict(folder=tmp_path, two=tmp_path / "two")
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "in").write_text("Der Hund\n")
    before = sorted(tmp_path.iterdir())
    given = {
        n: value.format(**names) if type(value) is str else value for n, value in given.items()
    }
    given = dict(source=str(tmp_path / "in"), output=str(tmp_path / "out")) | given
    with pytest.raises((InputError, OSError), match=message.format(**names)):
        run_main(translate, dict(logdir=trained("tiny")["logdir"]) | given)
    assert sorted(tmp_path.iterdir()) == before


def test_text_that_is_not_utf8_is_refused(tiny, tmp_path):
    source, output = tmp_path / "latin1", tmp_path / "out"
    source.write_bytes("Der Hund\nBäume\n".encode("latin1"))
    output.write_text("mine")
    more = dict(logdir=tiny["logdir"], source=source, output=output)
    refused("translate.py", f"{source}:2: byte 2", "convert.py", prepare=skip_search, **more)
    assert output.read_text() == "mine" and sorted(tmp_path.iterdir()) == [source, output]


def test_a_prefix_is_normalized():
    assert restore_prefix("u dogs", "u\u0308\u200b ", "u") == "ü dogs"
    assert restore_prefix("A dog", "\u200b", "") == "A dog"


def test_a_picture_of_the_attention(tiny, tmp_path, capsys):
    picture, pictures = tmp_path / "out.png", []
    # The second one shows the beginning of a long sentence, and an empty line is not drawn.
    for line in ("Der Hund schläft $", "Der Hund schläft " * 40, ""):
        translated(tiny, tmp_path, [line], beam=1, attention=picture)
        pictures.append(picture.read_bytes())
    assert f"{picture}: attention of the last translation\n" in capsys.readouterr().err
    assert pictures[0][:4] == b"\x89PNG" and pictures[0] != pictures[1] == pictures[2]
    assert max(struct.unpack(">II", pictures[1][16:24])) < 4000


def test_attention_is_drawn_once(trained, tmp_path, monkeypatch):
    """That of the last line that is not empty: the last ones have no word of the vocabulary."""
    monkeypatch.setattr("translate.MAX_BATCH_LINES", 1)
    drawn = []
    monkeypatch.setattr(translate, "draw_translation", lambda *args: drawn.append(args))
    lines = ["Der Hund schläft", "Die Katze läuft", "$", ""]
    translated(trained("legacy"), tmp_path, lines, attention="a.png")
    ((_, translation, path),) = drawn
    assert (path, translation.line) == ("a.png", "Die Katze läuft") and len(translation.ids) == 4


# Prefixes ----------------------------------------------------------------------


@slow
@pytest.mark.parametrize("recipe", ["tiny", "legacy", "rnn"])
def test_translations_continue_the_words_of_a_file(trained, tmp_path, recipe):
    lines = [*(source for source, _ in sample_pairs(20, seed=1)), ""]
    plain = translated(trained(recipe), tmp_path, lines, beam=1)
    # Prefixes of no word, of one word, of two words.
    own = [" ".join(line.split()[: i % 3]) for i, line in enumerate(plain)]
    other = ["The dog", "", "They"] * 7
    unknown = ["The 猫"] + [""] * 20
    for prefixes in (own, other, unknown):
        path = tmp_path / "prefixes"
        path.write_text("".join(f"{prefix}\n" for prefix in prefixes), "utf-8")
        got = translated(trained(recipe), tmp_path, lines, beam=1, prefix=path)
        assert len(got) == 21 and got[20] == ""  # an empty line stays empty
        if prefixes is own and recipe == "legacy":  # subwords may be cut in another way
            assert got == plain
        for text, prefix, line in zip(got[:20], prefixes, plain, strict=False):
            assert text.startswith(prefix)
            assert prefix or text == line


@slow
def test_a_prefix_works_with_the_other_flags(trained, tmp_path):
    lines, prefix = ["Der Hund schläft.", "Die Katze läuft."], tmp_path / "prefix"
    more = dict(beam=4, nbest=3, attention=tmp_path / "a.png", alignments=tmp_path / "align")
    pictures = []
    for prefixes in ("The cat\n\n", "The cat\nThe dog and the\n"):
        prefix.write_text(prefixes, "utf-8")
        found = translated(trained("tiny"), tmp_path, lines, prefix=prefix, **more)
        pictures.append(more["attention"].read_bytes())
        texts = [line.split(" ||| ")[1] for line in found]
        assert len(texts) == len(more["alignments"].read_text().splitlines()) == 6
        assert all(text.startswith("The cat") for text in texts[:3]) and len({*texts[:3]}) > 1
    assert pictures[0] != pictures[1]  # it is that of the last line


# Random translations -------------------------------------------------------------


@slow
def test_random_translations(trained):
    flags = trained("tiny")
    text = "".join(f"{line}\n" for line in read_test_sentences(flags["source_test"])).encode()
    drawn = dict(beam=1, temperature=1.0)
    one, again, other = (
        run_translate(flags, text, **drawn, **more)[0] for more in ({}, {}, dict(seed=1))
    )
    assert one == again != other


# Files that cannot be written or read ---------------------------------------------


@slow
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full: a test for Linux")
def test_a_picture_that_cannot_be_written_loses_no_translation(trained, tmp_path):
    flags = trained("tiny")
    picture = tmp_path / "full.png"
    picture.symlink_to("/dev/full")
    paths = {name: tmp_path / name for name in ("output", "alignments")}
    done = forked_script(
        "translate.py",
        logdir=flags["logdir"],
        source=flags["source_test"],
        attention=picture,
        beam=1,
        **paths,
    )
    assert done.returncode == 1 and "/dev/full: no space left on device" in done.stderr
    count = len(read_test_sentences(flags["source_test"]))
    for path in paths.values():
        assert len(path.read_text("utf-8").splitlines()) >= count
