"""A model of pieces on all of a real test set: every way of translating finds the same."""

import pytest

import ctranslate
import prepro
import train
from bleu import sacrebleu_score
from conftest import INSTALL_EXTRAS, forked_script, slow
from data_load import load_test_data
from decoding import Translator, load
from test_export import serve

pytest.importorskip("ctranslate2", reason=INSTALL_EXTRAS)
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


def texts(best):
    return [text for text, _ in best]


def assert_same(best, others):
    """A model that repeats itself has hypotheses that tie but for the last bits."""
    differing = [pair for pair in zip(best, others, strict=True) if len(set(pair)) > 1]
    assert len(differing) <= 2 and len(set(best)) > 800, differing


@slow
def test_beam_search(flags, tmp_path):
    """As translate.py finds it, CTranslate2, and an exported model in a process of its own."""
    how = dict(beam=4, length_penalty="ctranslate2", alpha=1.0)
    test, best = found(flags, **how)
    assert_same(texts(best), texts(found(flags, float32, **how)[1]))
    path = tmp_path / "model"
    done = forked_script("export.py", logdir=flags["logdir"], average=1, output=path, **how)
    assert done.returncode == 0, done.stderr
    assert_same(texts(best), serve(path, test.data.Sources, tmp_path)[0])


def test_greedy_search(flags):
    """CTranslate2 in float32 finds the same, in int8 nearly."""
    test, best = found(flags, beam=1)
    assert_same(texts(best), texts(found(flags, float32, beam=1)[1]))
    others = found(flags, int8, beam=1)[1]
    bleu, other = (sacrebleu_score(test, texts(some), "en")[0] for some in (best, others))
    assert bleu > 8 and other == pytest.approx(bleu, abs=0.3)
