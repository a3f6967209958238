"""Exported models give the same numbers in Hugging Face's Marian class as here."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import prepro
from conftest import sample_pairs, slow, slow_unless, write_corpus
from data_load import encode_lines
from helpers import ODD_LINES, load, read_test_sentences, run_main
from hparams import make_hparams
from ids import BOS, PAD, UNK
from inference import LoadedModel, Translator
from interop import huggingface_model
from marian import Marian, ask_transformers, needs_transformers
from model import make_model
from processes import forked_script
from runtime.errors import InputError
from search import suppress
from text import read_lines
from vocab import SubwordVocab, load_vocabs

SIDES = (("source", "de"), ("target", "en"))
MARIAN = dict(positions="paired_sinusoid", normalization="post")  # what it has, and tiny has not


@pytest.fixture(scope="module", params=slow_unless([], ["updated", "paper", "tiny"]))
def exported(request, trained, tmp_path_factory):
    """The flags of a model, and the folder of its export."""
    model = trained(request.param, **MARIAN)
    flags = dict(logdir=model["logdir"], average_checkpoints=1, beam=1)
    path = tmp_path_factory.mktemp(request.param) / "model"
    done = forked_script("export.py", **flags, format="huggingface", output=path)
    assert done.returncode == 0 and f"{path}: " in done.stdout, done.stderr
    return flags | dict(source_test=model["source_test"]), path


def model_flags(flags) -> dict:
    """Return the flags that name the model, without that of the test set."""
    return {name: value for name, value in flags.items() if name != "source_test"}


def random_pairs(count=4):
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield [np.append(rng.integers(4, 100, rng.integers(1, 12)), 3) for _ in range(2)]


def log_probs(logits):
    """Without <PAD>, whose logit differs by design."""
    return tf.nn.log_softmax(suppress(logits, [PAD]))[..., 1:].numpy()


def our_log_probs(model, x, y):
    x, y = (tf.constant(side[None], tf.int32) for side in (x, y))
    return log_probs(model(x, y))[0]


def test_the_log_probabilities_are_equal(exported):
    flags, path = exported
    _, _, model, _ = load(model_flags(flags))
    marian = Marian(path)
    assert not {"lm_head.weight", "model.encoder.embed_tokens.weight"} & marian.tensors.keys()
    for x, y in random_pairs():
        theirs = log_probs(marian.logits(x, y).astype("float32"))
        np.testing.assert_allclose(our_log_probs(model, x, y), theirs, atol=1e-3)


def test_the_settings_are_those_of_the_model(exported):
    flags, path = exported
    _, hp, _, (vocab, target) = load(model_flags(flags))
    config, generation, tokenizer, ids = (
        json.loads((path / f"{name}.json").read_text("utf-8"))
        for name in ("config", "generation_config", "tokenizer_config", "vocab")
    )
    assert (
        config["vocab_size"] == len(vocab) == len(ids) and config["decoder_start_token_id"] == BOS
    )
    assert config["max_position_embeddings"] == 1 + hp.max_output_tokens(hp.max_input_tokens)
    assert all(vocab.id_to_token(i) == token for token, i in ids.items())
    assert generation["num_beams"] == 1 and generation["bad_words_ids"] == [[PAD], [UNK]]
    assert (tokenizer["source_lang"], tokenizer["target_lang"]) == ("de", "en")
    assert (path / "source.spm").read_bytes() == vocab.content
    assert (path / "target.spm").read_bytes() == target.content


@pytest.mark.parametrize("on, on_weights", [("sublayers", 0.3), ("both", 0.2)])
def test_fine_tuning_starts_with_the_dropout_of_the_model(on, on_weights):
    own = dict(attention_dropout=0.3) if on == "sublayers" else {}
    hp = make_hparams(dict(recipe="tiny", dropout_on=on, ffn_dropout=0.4) | own)
    config = huggingface_model.model_config(hp, 9)
    assert config["encoder_layers"] == config["decoder_layers"] == 4
    shallow = dataclasses.replace(hp, decoder_blocks=2)
    assert huggingface_model.model_config(shallow, 9)["decoder_layers"] == 2
    names = ("dropout", "attention_dropout", "activation_dropout")
    assert [config[name] for name in names] == [0.2, on_weights, 0.4]


def test_the_search_of_generate():
    config = huggingface_model.generation_config(make_hparams(dict(recipe="paper")))
    assert config["num_beams"] == 4 and config["early_stopping"] is True


def test_symbols_are_refused(tmp_path):
    flags = write_corpus(tmp_path, sample_pairs(90)) | dict(recipe="tiny", vocab_size=200)
    run_main(prepro, flags | dict(symbols=">>de<<"))
    vocab = SubwordVocab(Path(flags["preprocessed"]) / "bpe.model")
    with pytest.raises(InputError, match="bpe.model: has the symbol >>de<<, .* --format"):
        loaded = LoadedModel([], make_hparams(flags | MARIAN), None, (vocab, vocab))
        huggingface_model.write(loaded, tmp_path / "out")
    assert not (tmp_path / "out").exists()


# The class itself --------------------------------------------------------------

CLIENT = """
import json, sys
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
paths, lines, limits, pairs = json.load(sys.stdin)
answers = []
for path in paths:
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForSeq2SeqLM.from_pretrained(path)
    ids = [tokenizer(line)["input_ids"] for line in lines]
    texts = []
    for line, limit in zip(lines, limits):
        output = model.generate(**tokenizer(line, return_tensors="pt"), max_length=limit)
        texts.append(tokenizer.decode(output[0], skip_special_tokens=True))
    batch = tokenizer(lines[:len(limits)] or [""], return_tensors="pt", padding=True)
    together = tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)
    logits = [
        model(input_ids=torch.tensor([x]), labels=torch.tensor([y]),
              decoder_input_ids=torch.tensor([[2] + y[:-1]])).logits[0].tolist()
        for x, y in pairs
    ]
    answers.append([ids, texts, together, logits])
    tokenizer.save_pretrained(paths[0] + "_again")
    model.save_pretrained(paths[0] + "_again")
json.dump(answers, sys.stdout)
"""


@needs_transformers
def test_transformers_computes_the_same(exported):
    flags, path = exported
    lines = read_test_sentences(flags["source_test"]).raw
    odd_lines = (line.strip("\ufeff\r").replace("\0", "") for line in ODD_LINES)
    lines += [line for line in odd_lines if line.strip()]
    loaded = load(model_flags(flags))
    _, hp, model, vocabs = loaded
    rows = encode_lines(lines, vocabs[0], hp)[0]
    limits = [1 + int(hp.max_output_tokens(len(row))) for row in rows]  # the <S> counts
    pairs = [*random_pairs()]
    given = lines, limits, [[side.tolist() for side in pair] for pair in pairs]
    (answer,) = ask_transformers(CLIENT, [str(path)], *given)
    (again,) = ask_transformers(CLIENT, [f"{path}_again"], *given)
    assert again == answer
    ids, texts, together, logits = answer
    assert ids == [row.tolist() for row in rows]
    assert texts == [translation.text for translation in Translator(loaded)(lines)]
    assert all(long.startswith(short) for long, short in zip(together, texts, strict=True))
    assert len(set(texts)) > 5
    for (x, y), theirs in zip(pairs, logits, strict=True):
        theirs = log_probs(np.array(theirs, "float32"))
        np.testing.assert_allclose(our_log_probs(model, x, y), theirs, atol=1e-3)


@needs_transformers
@slow
def test_real_text_has_the_same_tokens(real_text, tmp_path):
    """The model has not learned anything, only the vocabulary has."""
    folder = real_text / "multi30k"
    flags = {f"{side}_train": str(folder / f"train.{lang}") for side, lang in SIDES}
    flags |= dict(recipe="tiny", preprocessed=str(tmp_path / "vocab")) | MARIAN
    run_main(prepro, flags)
    hp = make_hparams(flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    model = make_model(hp, *map(len, vocabs))
    huggingface_model.write(LoadedModel([], hp, model, vocabs), tmp_path / "model")
    lines = [line for _, lang in SIDES for line in read_lines(folder / f"val.{lang}")]
    assert len(lines) == 2028
    [[ids, *_]] = ask_transformers(CLIENT, [str(tmp_path / "model")], lines, [], [])
    assert ids == vocabs[0].encode(lines)
