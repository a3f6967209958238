"""A subword model on a real test set: all ways of translating give the same text."""

import pytest

import prepro
import train
from conftest import INSTALL_EXTRAS, slow
from data_load import load_test_data
from formats import ctranslate2_model
from helpers import load, run_main, run_saved_models
from processes import forked_script
from text.bleu import corpus_score
from translation.translator import Translator

ctranslate2 = pytest.importorskip("ctranslate2", reason=INSTALL_EXTRAS)
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


def translate(flags, **decoding):
    """Translate the test set: the test set, and the best translations."""
    loaded = load(dict(logdir=flags["logdir"], average_checkpoints=1) | decoding)
    test = load_test_data(loaded.hp, loaded.vocabs)
    translations = Translator(loaded)(test.data.Sources)
    return test, [found.sentences[0].hypotheses[0] for found in translations]


def texts(best):
    return [hypothesis.text for hypothesis in best]


def assert_same(best, others):
    """Allow two differences: scores may be equal except for rounding."""
    differing = [pair for pair in zip(best, others, strict=True) if len(set(pair)) > 1]
    assert len(differing) <= 2 and len(set(best)) > 800, differing


def test_beam_search(flags, tmp_path):
    """With translate.py, and an exported model in a process of its own."""
    decoding = dict(beam=4, alpha=1.0)
    test, best = translate(flags, **decoding)
    path = tmp_path / "model"
    done = forked_script(
        "export.py", logdir=flags["logdir"], average_checkpoints=1, output=path, **decoding
    )
    assert done.returncode == 0, done.stderr
    assert_same(texts(best), run_saved_models([path], test.data.Sources, tmp_path)[0][0])


def test_exports_for_ctranslate2(flags, tmp_path):
    """Greedy search finds the same with float32, and nearly the same with int8; so does a beam."""
    loaded = load(dict(logdir=flags["logdir"], average_checkpoints=1))
    source, target = loaded.vocabs

    def bleu(texts):
        return corpus_score("bleu", test, texts, "en")[0]

    def theirs(quantization, beam):
        folder = tmp_path / quantization
        if not folder.exists():
            folder.mkdir()
            ctranslate2_model.write(loaded, folder, quantization)
        translator = ctranslate2.Translator(str(folder), compute_type=quantization)
        sentences = source.encode(source.prepare(test.data.Sources))
        texts = []
        for ids in sentences:  # each has a limit of its own
            (result,) = translator.translate_batch(
                [[*map(source.id_to_token, ids[:-1])]],
                beam_size=beam,
                patience=2,
                max_decoding_length=int(loaded.hp.max_output_tokens(len(ids))),
            )
            texts.append(target.processor.decode(result.hypotheses[0]))
        return texts

    test, best = translate(flags, beam=1)
    assert_same(texts(best), theirs("float32", 1))
    assert bleu(texts(best)) > 8
    assert bleu(theirs("int8", 1)) == pytest.approx(bleu(texts(best)), abs=0.3)
    best = texts(translate(flags, beam=5)[1])
    assert bleu(theirs("float32", 5)) == pytest.approx(bleu(best), abs=0.2)
