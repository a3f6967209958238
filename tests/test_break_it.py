"""docs/break_it.md has the experiments of benchmarks/break_it.py, and they show what it says."""

import contextlib
import io
import json
import re
import shlex
import sys

import pytest

from conftest import slow
from hparams import Hyperparams, make_hparams
from processes import ROOT
from support import flags as runtime_flags

DOCUMENT = (ROOT / "docs" / "break_it.md").read_text("utf-8")


@pytest.fixture
def break_it(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.chdir(ROOT)
    import break_it

    return break_it


def test_each_experiment_changes_the_flags_that_it_names(break_it, monkeypatch):
    """Their text need not exist."""
    for name in ("check_paths_exist", "load_tensorflow"):
        monkeypatch.setattr(runtime_flags, name, lambda *_: None)
    given = {}
    for name, flags in break_it.EXPERIMENTS.items():
        monkeypatch.setattr(sys, "argv", ["train.py", f"@{break_it.FLAGS}", *shlex.split(flags)])
        given[name] = vars(make_hparams(runtime_flags.parse_flags("", hparams=Hyperparams)))
        changed = {
            key for key, value in given[name].items() if value != given[break_it.COMPLETE][key]
        }
        assert changed == {word.removeprefix("no-") for word in re.findall(r"--([\w-]+)", flags)}


def test_the_document_has_the_table_and_a_section_for_each_experiment(break_it):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        break_it.print_table(json.loads(break_it.RESULTS.read_text()))
    table, *_ = printed.getvalue().partition("\n\n")
    assert table in DOCUMENT
    for name, flags in break_it.EXPERIMENTS.items():
        title = name.partition(",")[0].capitalize()
        _, _, section = DOCUMENT.partition(f"\n## {title}\n")
        assert section, name
        command = " ".join(filter(None, [f"python train.py @{break_it.FLAGS}", flags, "--logdir"]))
        assert command in section.partition("\n## ")[0]


@slow
def test_without_a_causal_mask_a_low_loss_is_worth_nothing(break_it, tmp_path):
    break_it.write_corpus()
    short = ["--max_steps", "300"]
    complete, broken = (
        break_it.measure(name, 0, short, folder=str(tmp_path))
        for name in (break_it.COMPLETE, "no causal mask")
    )
    assert broken["mean_loss"] < complete["mean_loss"] - 0.1
    assert broken["dev_loss"] > complete["dev_loss"] + 2
    assert complete["bleu"] > 25 and broken["bleu"] < 10
