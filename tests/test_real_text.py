"""A model of pieces on all of a real test set: every way of translating finds the same."""

import pytest

import ctranslate
import prepro
import train
from bleu import sacrebleu_score
from conftest import forked_script
from data_load import load_test_data
from decoding import Translator, load
from test_export import serve

pytest.importorskip("ctranslate2")
SMALL = dict(recipe="tiny", vocab_size=2000, hidden_units=64, ffn_units=128, num_blocks=2)
TRAINING = dict(num_epochs=4, batch_tokens=1024, lr=0.005, warmup_steps=200, keep=1)


@pytest.fixture(scope="module")
def flags(real_text, tmp_path_factory):
    """Of a model that was trained for a quarter of a minute on a part of Multi30k."""
    folder = tmp_path_factory.mktemp("multi30k")
    flags = {name: str(folder / name) for name in ("preprocessed", "logdir", "results")}
    for name, side in (("source", "de"), ("target", "en")):
        lines = (real_text / "multi30k" / f"train.{side}").read_text("utf-8").split("\n")
        flags[f"{name}_train"] = str(folder / f"train.{side}")
        (folder / f"train.{side}").write_text("\n".join(lines[:5000]), "utf-8")
        flags[f"{name}_test"] = str(real_text / "multi30k" / f"test_2016_flickr.{side}")
    flags |= SMALL
    prepro.main(flags)
    train.main(flags | TRAINING)
    return flags


def found(flags, make_search=None, **how):
    """The test set, and its translations with their scores."""
    _, hp, model, vocabs = load(dict(logdir=flags["logdir"], average=1) | how)
    test = load_test_data(hp, vocabs)
    search = make_search and make_search(hp, model, vocabs, 1)
    best = [best[0] for best in Translator(hp, model, vocabs, 1, search)(test.data.Sources)]
    return test, best


def int8(*args):
    return ctranslate.Search(*args, "int8")


def float32(*args):
    return ctranslate.Search(*args, "float32")


def assert_same(texts, others):
    """A model that repeats itself has hypotheses that tie but for the last bits."""
    differing = [pair for pair in zip(texts, others, strict=True) if len(set(pair)) > 1]
    assert len(differing) <= 2 and len(set(texts)) > 800, differing


BEAM = dict(beam=4, length_penalty="ctranslate2", alpha=1.0)


def test_an_exported_model(flags, tmp_path):
    test, best = found(flags, **BEAM)
    path = tmp_path / "model"
    done = forked_script("export.py", logdir=flags["logdir"], average=1, output=path, **BEAM)
    assert done.returncode == 0, done.stderr
    texts, _ = serve(path, test.data.Sources, tmp_path)
    assert_same(texts, [text for text, _ in best])


@pytest.mark.parametrize("how", [dict(beam=1), BEAM])
def test_ctranslate2(flags, how):
    test, best = found(flags, **how)
    _, theirs = found(flags, float32, **how)
    assert_same(*([text for text, _ in some] for some in (best, theirs)))
    bleu = [
        sacrebleu_score(test, [text for text, _ in some], "en")[0]
        for some in (best, found(flags, int8, **how)[1])
    ]
    assert bleu[0] > 8 and bleu[1] == pytest.approx(bleu[0], abs=0.3)
