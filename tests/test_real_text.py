"""A subword model on a real test set: all ways of translating give the same text."""

import pytest

import prepro
import train
from bleu import corpus_score
from conftest import INSTALL_EXTRAS, slow
from data_load import load_test_data
from helpers import load, run_main, run_saved_models
from inference import Translator
from interop import ctranslate2_model
from processes import forked_script

pytest.importorskip("ctranslate2", reason=INSTALL_EXTRAS)
pytestmark = slow
SMALL = dict(recipe="tiny", vocab_size=2000, hidden_units=64, ffn_units=128, num_blocks=2)
TRAINING = dict(num_epochs=4, batch_tokens=1024, lr=0.005, warmup_steps=200, keep_checkpoints=1)


@pytest.fixture(scope="module")
def flags(real_text, tmp_path_factory):
    """The flags of a model that is trained on a part of Multi30k, for a quarter of a minute."""
    folder = tmp_path_factory.mktemp("multi30k")
    flags = {name: str(folder / name) for name in ("preprocessed", "logdir", "results")}
    for name, side in (("source", "de"), ("target", "en")):
        lines = (real_text / "multi30k" / f"train.{side}").read_text("utf-8").split("\n")
        flags[f"{name}_train"] = str(folder / f"train.{side}")
        (folder / f"train.{side}").write_text("\n".join(lines[:5000]), "utf-8")
        flags[f"{name}_test"] = str(real_text / "multi30k" / f"test_2016_flickr.{side}")
    flags |= SMALL
    run_main(prepro, flags)
    run_main(train, flags | TRAINING)
    return flags


def translate(flags, make_decoder=None, **decoding):
    """Translate the test set: the test set, and pairs of translation and score."""
    names = dict(logdir=flags["logdir"], average_checkpoints=1)
    loaded = load(names | decoding)
    test = load_test_data(loaded.hp, loaded.vocabs)
    decode = make_decoder and make_decoder(loaded)
    translations = Translator(loaded, decode)(test.data.Sources)
    return test, [translation.hypotheses[0] for translation in translations]


def int8(loaded):
    return ctranslate2_model.CTranslate2Decoder(loaded, 1, "int8")


def float32(loaded):
    return ctranslate2_model.CTranslate2Decoder(loaded, 1, "float32")


def texts(best):
    return [hypothesis.text for hypothesis in best]


def assert_same(best, others):
    """Allow two differences: scores may be equal except for rounding."""
    differing = [pair for pair in zip(best, others, strict=True) if len(set(pair)) > 1]
    assert len(differing) <= 2 and len(set(best)) > 800, differing


def test_beam_search(flags, tmp_path):
    """With translate.py, CTranslate2, and an exported model in a process of its own."""
    decoding = dict(beam=4, length_penalty="ctranslate2", alpha=1.0)
    test, best = translate(flags, **decoding)
    assert_same(texts(best), texts(translate(flags, float32, **decoding)[1]))
    path = tmp_path / "model"
    done = forked_script(
        "export.py", logdir=flags["logdir"], average_checkpoints=1, output=path, **decoding
    )
    assert done.returncode == 0, done.stderr
    assert_same(texts(best), run_saved_models([path], test.data.Sources, tmp_path)[0][0])


def test_greedy_search(flags):
    """CTranslate2 finds the same with float32, and nearly the same with int8."""
    test, best = translate(flags, beam=1)
    assert_same(texts(best), texts(translate(flags, float32, beam=1)[1]))
    others = translate(flags, int8, beam=1)[1]
    bleu, other = (corpus_score("bleu", test, texts(some), "en")[0] for some in (best, others))
    assert bleu > 8 and other == pytest.approx(bleu, abs=0.3)
