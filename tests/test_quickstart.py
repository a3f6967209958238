"""quickstart.py: from two files to a translator in one command."""

import signal
import subprocess
import sys
from unittest.mock import Mock

import pytest

import quickstart
from conftest import needs_bfloat16, sample_pairs, slow
from corpora.split import PARTS
from helpers import write_lines, write_pairs
from processes import ROOT
from support.errors import InputError


def arguments(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["quickstart.py", *map(str, words)])
    return quickstart.parse_args()


@pytest.mark.parametrize(
    "words, expected",
    [
        ("my.de my.en", ["de", "en"]),
        ("a/train.zh.gz b/train.en", ["zh", "en"]),
        ("my.tsv --source_lang pt-br --target_lang en", ["pt-br", "en"]),
        ("a.txt b.txt --source_lang ja --target_lang zh", ["ja", "zh"]),
        ("a.de b.txt --target_lang en", ["de", "en"]),
        ("my.de.txt my.en.txt", InputError),
        ("my.de my.en --minutes 0", SystemExit),
        *((words, InputError) for words in ("text.1 text.2", "my.tsv --source_lang de", "my.csv")),
        *((words, SystemExit) for words in ("my.de", "a.de b.en c.fr", "my.tsv b.tsv", "a/x b/x")),
    ],
)
def test_languages(monkeypatch, words, expected):
    try:
        got = quickstart.choose_languages(arguments(monkeypatch, *words.split()))
    except (InputError, SystemExit) as error:
        got = type(error)
    assert got == expected


def test_what_is_chosen(tmp_path, monkeypatch, capfd):
    """From a table. Another text needs another folder; a stopped run of the same text resumes."""
    pairs, folder = sample_pairs(400), tmp_path / "log"
    table = write_lines(tmp_path / "my.tsv", ["\t".join(pair) for pair in [*pairs, pairs[0]]])
    words = table, "--source_lang", "de", "--target_lang", "en", "--logdir", folder
    args = arguments(monkeypatch, *words)
    calls, run = [], quickstart.run

    def run_corpora(script, *words):
        calls.append(script)
        if script.startswith("corpora"):
            run(script, *words)
        elif script == "eval.py":
            (folder / "results").mkdir(exist_ok=True)
            (folder / "results" / "model").write_text("".join(reversed(records)))

    records = [f"- source: s{i}\n- expected: a dog\n- got: {'a dog'[:i]}\n" for i in range(6)]
    monkeypatch.setattr(quickstart, "run", run_corpora)
    quickstart.main(args)
    scripts = ["prepro.py", "train.py", "eval.py", "export.py"]
    assert calls == [f"corpora/{name}.py" for name in ("convert", "clean", "split")] + scripts
    flags = (folder / "flags").read_text().splitlines()
    assert "--recipe low_resource" in flags and "--source_lang de" in flags
    assert f"--target_test {folder}/split/test.en" in flags
    assert [(folder / f"split/{part}.de").read_text().count("\n") for part in PARTS] == [
        360,
        20,
        20,
    ]
    printed = capfd.readouterr().out
    assert "duplicate: 1 pairs" in printed and printed.index("\ns0\n") < printed.index("\ns5\n")
    assert (folder / "examples.txt").read_text() == "s3\ns4\ns5\n"
    quickstart.main(args)
    assert calls[7:] == scripts
    table.write_text(table.read_text()[:-2] + "!\n")  # as long as before
    with pytest.raises(InputError, match="is of another text"):
        quickstart.main(args)
    with pytest.raises(InputError, match="was not made by"):  # else it could lose files
        quickstart.main(arguments(monkeypatch, *words[:-1], tmp_path))


def test_a_failing_command_ends_it(tmp_path, monkeypatch, capfd):
    """Its message has the file of the user."""
    files = [write_lines(tmp_path / f"{count}.txt", ["a"] * count) for count in (3, 2)]
    words = "--source_lang", "de", "--target_lang", "en", "--logdir", tmp_path / "log"
    with pytest.raises(SystemExit) as error:
        quickstart.main(arguments(monkeypatch, *files, *words))
    assert error.value.code == 2 and f"{files[0]}: 3 sentences" in capfd.readouterr().err
    assert len((tmp_path / "log" / "flags").read_text().splitlines()) == 1
    monkeypatch.setattr(quickstart, "prepare_text", lambda *_: {})
    monkeypatch.setattr(quickstart, "run", Mock(side_effect=KeyboardInterrupt))
    write_lines(files[1], ["a"] * 3)
    with pytest.raises(KeyboardInterrupt):  # the text is right now: it begins again
        quickstart.main(arguments(monkeypatch, *files, *words))


@slow
@needs_bfloat16  # the system names it, oneDNN does not have it
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_one_command(tmp_path, number):
    """Stopped in the training, the same command resumes."""
    paths, folder = write_pairs(tmp_path, sample_pairs(1500)), tmp_path / "log"
    command = [sys.executable, "quickstart.py", *paths, "--minutes", "0.3", "--logdir", folder]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert any("Building the graph" in line for line in process.stdout)
        process.send_signal(number)
        process.stdout.read()  # to the end of the training
    assert process.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Resuming from" in done.stdout or "this training is done" in done.stdout
    assert done.stdout.count("  translation: ") == 10 and "serve.py --logdir" in done.stdout
    assert "# Translation from de to en" in (folder / "export/README.md").read_text()
