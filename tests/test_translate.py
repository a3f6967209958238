"""translate.py, as users and other programs run it."""

import gzip
import os
import pty
import re
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

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
)
from inference import (
    restore_prefix,
)
from paragraphs import Splitter
from processes import ROOT, Forked, forked, forked_script
from runtime.errors import InputError

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


def test_translations_equal_those_of_eval(tiny):
    sources = read_test_sentences(tiny["source_test"])[1]
    out, _ = run_translate(tiny, "".join(f"{line}\n" for line in sources).encode(), beam=2)
    done = forked_script("eval.py", logdir=tiny["logdir"], results=tiny["results"], beam=2)
    text = Path(re.search(r"Full results: (.+)", done.stdout)[1]).read_text("utf-8")
    assert out.splitlines() == re.findall(r"^- got: (.*)", text, re.MULTILINE)


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


def test_a_source_that_is_named_like_a_temporary_file(tiny, tmp_path):
    source, output = tmp_path / "out.tmp", tmp_path / "out"
    source.write_text("Der Hund schläft\n", "utf-8")
    given = dict(logdir=tiny["logdir"], source=str(source), output=str(output))
    run_main(translate, given | dict(beam=1))
    assert output.read_text("utf-8").strip() and source.read_text("utf-8") == "Der Hund schläft\n"


@slow
def test_very_long_lines_are_truncated(tiny, tmp_path):
    """A line of a million characters, and a word of a hundred thousand."""
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(f"Der Hund\n{'a b' * 333_333}\n{'x' * 100_000}\nDer Hund\n", "utf-8")
    given = dict(logdir=tiny["logdir"], source=source, output=output, beam=1)
    done = forked_script("translate.py", **given)
    assert done.returncode == 0 and "2 of 4 lines were truncated to 1023 tokens" in done.stderr
    lines = output.read_text("utf-8").split("\n")
    assert len(lines) == 5 and lines[0] == lines[3] != ""


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

    def translated(lines, split):
        paths = {name: tmp_path / name for name in ("source", "output")}
        paths["source"].write_text("".join(f"{line}\n" for line in lines), "utf-8")
        given = {name: str(path) for name, path in paths.items()} | SAMPLE
        run_main(translate, given | dict(split=split, beam=1))
        return paths["output"].read_text("utf-8").splitlines()

    texts = translated([f">>en<< {sentence}" for sentence in sentences], split=False)
    whole = translated([f">>en<< {' '.join(sentences)}"], split=True)
    assert whole == [" ".join(texts)]


@pytest.mark.parametrize("recipe", ["legacy", "tiny"])
def test_nothing_is_truncated_if_lines_are_split(trained, recipe):
    """Also in a model that reads at most 14 words, and is given 2,001."""
    text = "Der Hund schläft, " * 667 + "\n" + "x" * 3000 + "\n"
    out, stderr = run_translate(trained(recipe), text.encode(), split=True, beam=1)
    assert out.count("\n") == 2 and "truncated" not in stderr
    assert len(out.split("\n")[0].split()) > 20


@pytest.mark.parametrize("flag", ["score", "prefix", "nbest", "alignments"])
def test_flags_for_sentences_refuse_paragraphs(tmp_path, flag):
    path = tmp_path / "in"
    path.write_text("Der Hund schläft.\n", "utf-8")
    value = 2 if flag == "nbest" else path
    given = {"source": path, "split": True, "beam": 2, flag: value} | SAMPLE
    if flag == "score":
        del given["beam"]
    refused("translate.py", "split needs", flag, **given)


def test_several_translations_of_a_line(tiny, tmp_path):
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("Der Hund schläft\n\nDie Frau singt\n")
    done = forked_script(
        "translate.py", logdir=tiny["logdir"], beam=4, nbest=3, source=source, output=output
    )
    assert done.returncode == 0 and done.stdout == ""
    assert "translating: 3 lines" in done.stderr
    rows = [line.split(" ||| ") for line in output.read_text("utf-8").splitlines()]
    assert [row[0] for row in rows] == ["0"] * 3 + ["1"] + ["2"] * 3
    for hypotheses in (rows[:3], rows[4:]):
        scores = [float(score) for _, _, score in hypotheses]
        assert scores == sorted(scores, reverse=True) and scores[0] < 0
        assert len({text for _, text, _ in hypotheses}) == 3
    best, _ = run_translate(tiny, source.read_bytes(), beam=4)
    assert best.splitlines() == [rows[0][1], "", rows[4][1]]


def test_a_file_of_several_batches(tiny, tmp_path, monkeypatch):
    """Numbers and prefixes continue in the next batch."""
    monkeypatch.setattr("translate.MAX_BATCH_LINES", 1)
    source, prefix, output = (tmp_path / name for name in ("in", "prefix", "out"))
    source.write_text("Der Hund schläft\nDie Frau singt\nDie Katze läuft\n", "utf-8")
    prefixes = ["The", "A cat", "They"]
    prefix.write_text("".join(f"{words}\n" for words in prefixes), "utf-8")
    given = dict(source=str(source), prefix=str(prefix), output=str(output))
    run_main(translate, dict(logdir=tiny["logdir"], beam=2, nbest=2) | given)
    rows = [line.split(" ||| ") for line in output.read_text("utf-8").splitlines()]
    assert [row[0] for row in rows] == ["0", "0", "1", "1", "2", "2"]
    assert all(text.startswith(prefixes[int(number)]) for number, text, _ in rows)


@slow
@pytest.mark.parametrize(
    ("names", "threads"),
    [(["source"], "1"), ([], None), (["source", "score"], None)],
    ids=["file", "standard input", "score"],
)
def test_one_thread_per_operation_where_each_core_has_a_batch(
    tiny, tmp_path, monkeypatch, names, threads
):
    path = tmp_path / "in"
    path.write_text("Der Hund schläft.\n", "utf-8")
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    translate.settle({"logdir": tiny["logdir"]} | dict.fromkeys(names, str(path)))
    assert os.environ.get("TF_NUM_INTRAOP_THREADS") == threads


def test_a_terminal_is_asked_for_sentences(tiny):
    terminal, program_side = pty.openpty()
    locale = dict(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    script, *options = translate_command(tiny)
    process = subprocess.Popen(
        [sys.executable, str(ROOT / script), *options],
        stdin=program_side,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | locale,
    )
    os.write(terminal, "Bäume\n".encode("latin-1") + "Der Hund schläft\n\n\x04".encode())
    out, stderr = process.communicate(timeout=120)
    expected, _ = run_translate(tiny, "Der Hund schläft\n".encode())
    assert process.returncode == 0 and b"Ctrl-D ends" in stderr and b"not UTF-8" in stderr
    assert out.decode().split("\n")[:2] == [expected.strip(), ""]


def test_a_compressed_file_on_standard_input_is_refused(tiny):
    done = forked(translate_command(tiny), stdin=gzip.compress(b"Der Hund\n"))
    assert done.returncode == 2 and not done.stdout
    assert "standard input: compressed with gzip. Unpack it" in done.stderr


def test_bad_input_is_refused(tiny, tmp_path):
    latin1, output = tmp_path / "latin1", tmp_path / "out"
    latin1.write_bytes("Der Hund\nBäume\n".encode("latin1"))
    output.write_text("mine")
    given = dict(logdir=tiny["logdir"], output=output)
    needles = f"{latin1}:2: byte 2", "iconv"
    refused("translate.py", *needles, prepare=skip_search, **given, source=latin1)
    for message, wrong in {
        "nowhere: no such file": dict(source="nowhere"),
        "is a directory": dict(source=str(tmp_path)),
        "nbest is 9, but beam is 2, .* --beam 9": dict(nbest=9, beam=2),
        "nbest is 0": dict(nbest=0),
        "attention out.pdf: .* PNG": dict(attention="out.pdf"),
        f"{tmp_path}: is a folder": dict(output=str(tmp_path)),
        "no checkpoint": dict(logdir=str(tmp_path)),
    }.items():
        with pytest.raises(InputError, match=message):
            run_main(translate, {name: str(value) for name, value in given.items()} | wrong)
    assert output.read_text() == "mine"
    assert sorted(tmp_path.iterdir()) == [latin1, output]  # no temporary files


def test_a_prefix_is_normalized():
    assert restore_prefix("u dogs", "u\u0308\u200b ", "u") == "ü dogs"
    assert restore_prefix("A dog", "\u200b", "") == "A dog"


def test_a_picture_of_the_attention(tiny, tmp_path, capsys):
    given = dict(logdir=tiny["logdir"], source=str(tmp_path / "in"), output=str(tmp_path / "out"))
    given |= dict(beam=1)
    picture = tmp_path / "out.png"
    Path(given["source"]).write_text("Der Hund schläft $\n", "utf-8")
    run_main(translate, given | dict(attention=str(picture)))
    before = picture.read_bytes()
    assert before[:4] == b"\x89PNG"
    assert f"{picture}: attention of the last translation\n" in capsys.readouterr().err
    # It shows the beginning of a long sentence.
    Path(given["source"]).write_text("Der Hund schläft " * 40, "utf-8")
    run_main(translate, given | dict(attention=str(picture)))
    assert before != picture.read_bytes()
    assert max(struct.unpack(">II", picture.read_bytes()[16:24])) < 4000
    before = picture.read_bytes()
    Path(given["source"]).write_text("\n")  # an empty line is not drawn
    run_main(translate, given | dict(attention=str(picture)))
    assert picture.read_bytes() == before and Path(given["output"]).read_text() == "\n"


@pytest.mark.parametrize("last", ["", "$\n\n"])  # without a word of the vocabulary, empty
def test_attention_is_drawn_once(trained, tmp_path, monkeypatch, last):
    monkeypatch.setattr("translate.MAX_BATCH_LINES", 1)
    given = dict(logdir=trained("legacy")["logdir"], source=str(tmp_path / "in"))
    drawn = []
    monkeypatch.setattr(translate, "draw_translation", lambda *args: drawn.append(args))
    Path(given["source"]).write_text("Der Hund schläft\nDie Katze läuft\n" + last, "utf-8")
    picture = str(tmp_path / "a.png")
    run_main(translate, given | dict(attention=picture, output=str(tmp_path / "out")))
    ((loaded, translation, path),) = drawn
    assert path == picture and len(loaded.vocabs) == 2
    assert translation.line == "Die Katze läuft" and len(translation.ids) == 4


# Prefixes ----------------------------------------------------------------------


@slow
@pytest.mark.parametrize("recipe", ["tiny", "legacy", "rnn"])
def test_translations_continue_the_words_of_a_file(trained, tmp_path, recipe):
    flags = dict(logdir=trained(recipe)["logdir"], source=tmp_path / "in", output=tmp_path / "out")
    lines = [source for source, _ in sample_pairs(20, seed=1)]
    flags["source"].write_text("".join(f"{line}\n" for line in [*lines, ""]), "utf-8")
    done = forked_script("translate.py", **flags, beam=1)
    assert done.returncode == 0, done.stderr
    plain = flags["output"].read_text("utf-8").splitlines()
    # Prefixes of no word, of one word, of two words.
    own = [" ".join(line.split()[: i % 3]) for i, line in enumerate(plain)]
    other = ["The dog", "", "They"] * 7
    unknown = ["The 猫"] + [""] * 20
    for prefixes in (own, other, unknown):
        path = tmp_path / "prefixes"
        path.write_text("".join(f"{prefix}\n" for prefix in prefixes), "utf-8")
        done = forked_script("translate.py", **flags, beam=1, prefix=path)
        assert done.returncode == 0, done.stderr
        got = flags["output"].read_text("utf-8").splitlines()
        assert len(got) == 21 and got[20] == ""  # an empty line stays empty
        if prefixes is own and recipe == "legacy":  # subwords may be cut in another way
            assert got == plain
        for text, prefix, line in zip(got[:20], prefixes, plain, strict=False):
            assert text.startswith(prefix)
            assert prefix or text == line


@slow
def test_a_prefix_works_with_the_other_flags(trained, tmp_path):
    flags = dict(logdir=trained("tiny")["logdir"], source=tmp_path / "in", prefix=tmp_path / "p")
    flags["source"].write_text("Der Hund schläft.\nDie Katze läuft.\n", "utf-8")
    flags["prefix"].write_text("The cat\n\n", "utf-8")
    more = dict(beam=4, nbest=3, attention=tmp_path / "a.png", alignments=tmp_path / "align")
    done = forked_script("translate.py", **flags | more)
    assert done.returncode == 0, done.stderr
    texts = [line.split(" ||| ")[1] for line in done.stdout.splitlines()]
    assert len(texts) == 6 and all(text.startswith("The cat") for text in texts[:3])
    assert len({*texts[:3]}) > 1
    assert len(more["alignments"].read_text().splitlines()) == 6
    picture = more["attention"].read_bytes()
    flags["prefix"].write_text("The cat\nThe dog and the\n", "utf-8")  # it is that of the last line
    assert forked_script("translate.py", **flags | more).returncode == 0
    assert picture != more["attention"].read_bytes()


def test_a_prefix_that_cannot_be_used(trained, tmp_path):
    logdir = trained("tiny")["logdir"]
    source, prefix = tmp_path / "in", tmp_path / "prefix"
    source.write_text("a\nb\n")
    prefix.write_text("a\n")
    os.mkfifo(tmp_path / "pipe")
    flags = dict(logdir=logdir, source=source, prefix=prefix, output=tmp_path / "out")
    for more, message in (
        ({}, f"{source}: 2 lines, but {prefix} has 1"),
        (dict(prefix=tmp_path / "missing"), "missing: no such file or directory. Check the path"),
        (dict(source="-"), "needs the file of the sources, --source. Leave it out, or"),
        (dict(source=tmp_path / "pipe"), "pipe: not a regular file, and with --prefix"),
        (dict(score=source), "needs translations, and --score makes none. Leave it out"),
    ):
        with pytest.raises(InputError, match=re.escape(message)):
            run_main(translate, {name: str(path) for name, path in (flags | more).items()})
        assert not flags["output"].exists()


# Random translations -------------------------------------------------------------


@slow
def test_random_translations(trained, tmp_path):
    flags = trained("tiny")
    text = "".join(f"{line}\n" for line in read_test_sentences(flags["source_test"]).raw).encode()
    drawn = dict(beam=1, temperature=1.0)
    one, again, other = (
        run_translate(flags, text, **drawn, **more)[0] for more in ({}, {}, dict(seed=1))
    )
    assert one == again != other
    more = drawn | dict(seed=7)
    done = forked_script("eval.py", logdir=flags["logdir"], results=tmp_path, **more)
    assert done.returncode == 0, done.stderr
    assert "samples, temperature 1.0, seed 7" in done.stdout
    (path,) = tmp_path.iterdir()
    assert all(part in path.name for part in ("beam-1", "temperature-1.0", "seed-7"))


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
    assert done.returncode == 1 and f"{picture}: cannot be written: No space" in done.stderr
    count = len(read_test_sentences(flags["source_test"]).raw)
    for path in paths.values():
        assert len(path.read_text("utf-8").splitlines()) >= count


def test_a_source_that_cannot_be_opened(trained, monkeypatch, tmp_path):
    path = tmp_path / "in"
    path.touch()

    def refuse(name, *args, **kwargs):
        if os.fspath(name) == str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return builtins_open(name, *args, **kwargs)

    builtins_open = open
    monkeypatch.setattr("builtins.open", refuse)
    given = dict(logdir=trained("tiny")["logdir"], source=str(path), output=str(tmp_path / "o"))
    with pytest.raises(InputError, match="in: permission denied"):
        run_main(translate, given)
