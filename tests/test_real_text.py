"""A subword model on a real test set: all ways of translating give the same text."""

import pytest
import tensorflow as tf

import prepro
import train
from conftest import INSTALL_EXTRAS, slow
from data_load import load_test_data
from formats import ctranslate2_model, saved_model
from helpers import load, tensorflow_text
from text.bleu import corpus_score
from translation.translator import Translator

SMALL = dict(recipe="tiny", vocab_size=2000, hidden_units=64, ffn_units=128, num_blocks=2)
SMALL |= dict(num_epochs=4, batch_tokens=1024, lr=0.005, warmup_steps=200, keep_checkpoints=1)


def with_ctranslate2(loaded, folder, sentences, beam, quantization="float32"):
    """Export a model to CTranslate2, and translate sentences one by one."""
    folder.mkdir()
    ctranslate2_model.write(loaded, folder, quantization)
    ctranslate2 = pytest.importorskip("ctranslate2", reason=INSTALL_EXTRAS)
    translator = ctranslate2.Translator(str(folder), compute_type=quantization)
    (source, target), texts = loaded.vocabs, []
    for ids in source.encode(source.prepare(sentences)):  # each has a limit of its own
        limit = int(loaded.hp.max_output_tokens(len(ids)))
        options = dict(beam_size=beam, patience=2, max_decoding_length=limit)
        tokens = [*map(source.id_to_token, ids[:-1])]
        (result,) = translator.translate_batch([tokens], **options)
        texts.append(target.processor.decode(result.hypotheses[0]))
    return texts


@slow
def test_a_model_of_multi30k(real_text, tmp_path):
    """It is trained on a part for a quarter of a minute."""
    flags = dict(preprocessed=str(tmp_path), logdir=str(tmp_path / "logdir"))
    for name, side in (("source", "de"), ("target", "en")):
        lines = (real_text / "multi30k" / f"train.{side}").read_text("utf-8").split("\n")
        (tmp_path / f"train.{side}").write_text("\n".join(lines[:5000]), "utf-8")
        flags[f"{name}_train"] = str(tmp_path / f"train.{side}")
        flags[f"{name}_test"] = str(real_text / "multi30k" / f"test_2016_flickr.{side}")
    for script in (prepro, train):
        script.main(flags | SMALL)
    loaded = load(dict(logdir=flags["logdir"]))
    test = load_test_data(loaded.hp, loaded.vocabs)
    sentences, own, bleu = test.data.Sources, {}, {}
    for beam in (1, 5):
        found = Translator(loaded.with_hp(beam=beam))(sentences)
        own[beam] = [translation.text for translation in found]
        bleu[beam] = corpus_score("bleu", test, own[beam])[0]
    assert len({*own[5]}) > 700 and bleu[5] > bleu[1] > 5

    tensorflow_text()  # registers the operations that tokenize
    saved_model.write(loaded.with_hp(beam=5), str(tmp_path / "saved"))
    signature = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    texts = signature(text=tf.constant(sentences))["translation"].numpy()
    # How many of 1,000 may differ: scores may be equal except for rounding, int8 rounds more, and
    # the beam search of CTranslate2 ends by another rule. About 900 differ between beams 1 and 5.
    cases = [(own[5], [text.decode() for text in texts], 2)]
    for beam, kind, most in ((1, "float32", 2), (1, "int8", 300), (5, "float32", 300)):
        theirs = with_ctranslate2(loaded, tmp_path / f"{kind}{beam}", sentences, beam, kind)
        cases.append((own[beam], theirs, most))
    for ours, theirs, most in cases:
        assert sum(a != b for a, b in zip(ours, theirs, strict=True)) <= most
