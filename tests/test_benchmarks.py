"""The benchmarks still fit the project's code."""

import importlib
import json
import re
import sys

import numpy as np
import pytest

from conftest import SMALL, sample_pairs, slow, write_corpus
from helpers import load
from hparams import load_hparams, make_hparams
from model import make_model
from processes import ROOT
from vocab import load_vocabs

NEED_TORCH = ("joey_checkpoint", "step_torch")


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(sys, "argv", [])


def test_every_module_can_be_imported(benchmarks):
    names = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    for name in sorted(names.difference(NEED_TORCH)):
        importlib.import_module(name)


@slow
def test_the_first_step(benchmarks, corpus, monkeypatch, capsys):
    import time_data

    monkeypatch.setattr(time_data, "STEPS", 1)

    time_data.first_step(*(f"{name}={value}" for name, value in (corpus | SMALL).items()))
    assert "first step" in capsys.readouterr().out


@slow
@pytest.mark.parametrize("make", ["make_steps", "make_lower_bound"])
def test_steps(benchmarks, corpus, make):
    import step_tensorflow

    hp = make_hparams(corpus | SMALL)
    batch = np.full([2, hp.maxlen], 5, np.int32)
    getattr(step_tensorflow, make)([(batch, batch)], hp, load_vocabs(hp))()


def test_batches_for_all_programs(benchmarks, corpus, tmp_path):
    import step_tensorflow
    import time_train

    flags = corpus | SMALL
    path, size, num_targets, count = time_train.write_batches(flags, 2, tmp_path)
    batches, hp, _ = step_tensorflow.load_batches(path, json.dumps(flags))
    assert len(batches) == count == 2 and size["hidden_units"] == hp.hidden_units
    assert sum(np.count_nonzero(y) for _, y in batches) == num_targets


@slow
def test_decoding_with_and_without_a_cache_gives_the_same_tokens(benchmarks, monkeypatch):
    import decode_tensorflow

    monkeypatch.setattr(decode_tensorflow, "NUM_TOKENS", 64)
    monkeypatch.setattr(decode_tensorflow, "VOCAB_SIZE", 50)
    untrained = decode_tensorflow.untrained_model(SMALL | dict(recipe="legacy", maxlen=8))
    cached, uncached = decode_tensorflow.cached(*untrained), decode_tensorflow.uncached(*untrained)
    assert cached().shape == (8, 8)
    np.testing.assert_array_equal(cached(), uncached())


@slow
def test_translating_the_test_set(benchmarks, trained, tmp_path):
    import decode_tensorflow

    output = tmp_path / "output"
    decode_tensorflow.trained("trained", {"logdir": trained("tiny")["logdir"]}, output)()
    assert len(output.read_text("utf-8").splitlines()) == 30


@slow
def test_the_time_from_the_command(benchmarks, trained, capsys):
    import time_start

    for measure, stamps in ((time_start.training, 5), (time_start.translation, 4)):
        measure(trained("tiny")["logdir"])
        assert (
            len(re.findall(r"^timestamp [\w ]+ [\d.]+$", capsys.readouterr().out, re.M)) == stamps
        )


@slow
def test_bleu_of_greedy_search_and_of_the_recipe(benchmarks, trained, monkeypatch):
    import quality

    lower = lambda lines, lang: [*map(str.lower, lines)]  # noqa: E731
    monkeypatch.setitem(quality.PUBLISHED_TOKENS, "en", lower)  # spaCy is an extra
    rows = quality.score_set({"logdir": trained("tiny")["logdir"]}, "test")
    greedy, recipe = rows
    assert greedy.startswith("greedy search") and recipe.startswith("beam 5")
    assert all(re.fullmatch(r"\d+\.\d\d", score) for row in rows.values() for score in row)


@slow
def test_the_model_for_joeynmt(benchmarks, trained, tmp_path):
    import joey
    import time_decode

    flags = trained("tiny", positions="paired_sinusoid", normalization="post")
    hp = load_hparams({"logdir": flags["logdir"]})
    config = joey.joey_config(hp, dict(source_train="train.de", source_dev="val.de"), tmp_path)
    assert json.loads(json.dumps(config))["data"]["train"] == "train"
    arrays = time_decode.joey_parameters(load({"logdir": flags["logdir"]}).model)
    # A linear layer and a normalization have two arrays each, an attention has 4 linear layers.
    per_encoder_block, per_decoder_block = 2 * (4 + 1 + 2 + 1), 2 * (4 + 4 + 1 + 1 + 2 + 1)
    blocks = hp.num_blocks * (per_encoder_block + per_decoder_block)
    assert len(arrays) == blocks + 3 + 2  # the tied matrix three times, two tables of positions


def test_the_table_and_the_curves_of_the_race(benchmarks, tmp_path):
    import race

    points = [[1.0, 1.5, 250, 28.0], [2.0, 3.04, 500, 31.0], [3.0, 4.5, 750, 30.5]]
    row = dict(date="2026-11-25", name="tiny", flags="--seed 0", machine="a PC", points=points)
    last = race.table([row, row]).splitlines()[-1]
    assert last.split(" | ")[4:] == ["2.0 (3.0)", "", "", "", "30.5", "3.0 (4.5) |"]
    race.draw([row], tmp_path / "race.png")
    assert (tmp_path / "race.png").stat().st_size > 1000
    line = (
        "logdir/model_epoch_01_gs_253: mean_loss 5.491 acc 0.302, dev loss 4.227 BLEU 13.03 chrF 3"
    )
    assert race.REPORT.search(line).groups() == ("253", "13.03")


def test_a_missing_corpus_is_named(benchmarks, tmp_path, monkeypatch):
    from harness import corpus_folder

    monkeypatch.delenv("REAL_TEXT", raising=False)
    with pytest.raises(SystemExit, match="REAL_TEXT is not set. Set it to the folder that holds"):
        corpus_folder("multi30k")
    monkeypatch.setenv("REAL_TEXT", str(tmp_path))
    with pytest.raises(SystemExit, match="multi30k: no such folder. Set REAL_TEXT to"):
        corpus_folder("multi30k")
    (tmp_path / "multi30k").mkdir()
    assert corpus_folder("multi30k") == tmp_path.resolve() / "multi30k"


@slow
def test_a_row_of_the_ladder_is_trained_once_and_again_if_asked(
    benchmarks, tmp_path, monkeypatch, capsys
):
    import ladder

    monkeypatch.setattr(ladder, "LADDER", tmp_path / "ladder")
    monkeypatch.setattr(ladder, "RESULTS", tmp_path / "ladder.json")
    monkeypatch.setattr(ladder, "REFERENCE_STEPS", 3)
    monkeypatch.setattr(ladder, "measure_speed", lambda *_: 1.3)
    text = write_corpus(tmp_path, sample_pairs(60), sample_pairs(5, seed=1))
    monkeypatch.setattr(ladder, "corpus_flags", lambda *_: text | ladder_dev(text))
    for more in ([], ["--again"], []):
        monkeypatch.setattr(sys, "argv", ["ladder.py", "--rows", "gru", *more])
        ladder.main()
    trained, known = "after 4 steps", "in ladder.json"
    printed = re.findall(rf"gru: BLEU [\d.]+ ({trained}|{known})", capsys.readouterr().out)
    assert printed == [trained, trained, known, known]
    (row,) = json.loads((tmp_path / "ladder.json").read_text())
    assert (row["steps"], row["speed"]) == (4, 1.3)


def ladder_dev(text):
    """The flags of a development set, which is the test set."""
    return {f"{side}_dev": text[f"{side}_test"] for side in ("source", "target")}


def test_the_rows_of_the_ladder(benchmarks):
    """Their flags are valid, and models of different kinds have about as many parameters."""
    import ladder

    rows = ladder.rows()
    fields = [make_hparams(flags) for flags in rows.values()]
    assert len({str(hp) for hp in fields}) == len(rows) > 30
    for name in ("tanh", "gru", "lstm", "gru, scaled_dot", "transformer"):
        model = make_model(make_hparams(rows[name]), 8000, 8000)
        assert model.count_params() == pytest.approx(2.35e6, rel=0.03), name
    results = "- source: a b\n- expected: one two three four\n- got: one two three four\n\n"
    assert ladder.bleu_by_length(results) == [pytest.approx(100), 0, 0, 0]
    measured = [
        dict(name=name, bleu=bleu, by_length=[bleu, 0.0])
        for name, bleu in (("transformer", 30.0), ("gru", 20.0), ("gru", 22.0))
    ]
    gru, transformer = ladder.mean_of_seeds(measured)
    assert gru["name"] == "gru" and gru["bleu"] == 21.0 and gru["spread"] == " (20.0 to 22.0)"
    assert gru["by_length"] == [21.0, 0.0] and transformer["spread"] == ""
