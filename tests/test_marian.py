"""Marian models in the format of Hugging Face: read for a training, written, and read again."""

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from sentencepiece.sentencepiece_model_pb2 import ModelProto

import train
from conftest import sample_pairs, slow, write_corpus
from formats.marian import json_files, read_pretrained, write
from helpers import ODD_LINES, load
from hparams import load_hparams, make_hparams
from marian import LANGUAGES, Marian, make_marian, write_json
from model.transformer import make_model
from serving import SAMPLE
from support.errors import InputError
from text.ids import BOS, EOS, PAD, SPECIALS, UNK
from text.vocab import SubwordVocab
from translation.inference import LoadedModel
from translation.translator import Translator

NO_CHANGE = dict(lr=1e-30, warmup_steps=0, num_epochs=1, batch_size=16)
WEIGHTS = "model.safetensors"
INSTALL_TRANSFORMERS = "no Hugging Face. To run them: pip install transformers torch sacremoses"
ODD = "Ⅻ ﬁnden „x“ ☃ €5"


@pytest.fixture(scope="module")
def texts():
    """Both sides of a text."""
    return [list(side) for side in zip(*sample_pairs(300), strict=True)]


@pytest.fixture(scope="module", params=[True, False], ids=["joint", "apart"])
def folder(request, texts, tmp_path_factory):
    """The folder of a model with one vocabulary, or with two."""
    path = tmp_path_factory.mktemp("marian") / "model"
    make_marian(path, texts, joint=request.param)
    return path


@pytest.fixture
def copied(texts, tmp_path):
    """A folder that a test may damage."""
    make_marian(tmp_path / "marian", texts)
    return tmp_path / "marian"


def restored(folder):
    pretrained = read_pretrained(folder, {})
    model = make_model(pretrained.hp, *map(len, pretrained.vocabs))
    pretrained.restore(model)
    return pretrained, model


def encode(vocab, line):
    (ids,) = vocab.encode(vocab.prepare([line]))
    return ids


def test_tokens_and_logits_are_those_of_marian(folder, texts):
    pretrained, model = restored(folder)
    marian, (source_side, target_side) = Marian(folder), pretrained.sides
    source, target = pretrained.vocabs
    apart = marian.config["share_encoder_decoder_embeddings"] is False
    sources = texts[0][:6] + [f"{name} {texts[0][0]}" for name in LANGUAGES] + [ODD]
    targets = texts[1][:6] + texts[1][:2] + [ODD]
    rows, added = np.array(target_side.rows), np.array(target_side.added_bias)
    unknown = 0
    for line, translation in zip(sources, targets, strict=True):
        x, y = encode(source, line), encode(target, translation)
        theirs = (
            marian.ids("source.spm", "vocab.json", line),
            marian.ids("target.spm", "target_vocab.json" if apart else "vocab.json", translation),
        )
        assert ([source_side.rows[i] for i in x], [rows[i] for i in y]) == theirs
        unknown += theirs[0].count(1)
        expected = marian.logits(*theirs)
        got = model(np.array([x]), np.array([y]))[0].numpy()
        np.testing.assert_allclose(got, expected[:, rows] + added, atol=1e-3)
    assert unknown > 2 and {*added} == {0, -10, -100}  # of tokens that Marian cannot write
    assert not {*range(len(marian.table("decoder")))} - {*rows} - {len(marian.table("encoder")) - 1}


def test_targets_are_decoded_as_marian_does(folder, texts):
    vocabs = read_pretrained(folder, {}).vocabs
    rows = [(encode(vocabs[1], line), line) for line in texts[1][:30]]
    decoded = [(vocabs[1].decode(ids), line) for ids, line in rows if UNK not in ids]
    assert len(decoded) > 20 and all(text == line for text, line in decoded)


def started(folder, tmp_path, **more):
    flags = write_corpus(tmp_path, sample_pairs(80, seed=5)) | NO_CHANGE
    return flags | dict(start_from=str(folder)) | more


@slow
def test_training_starts_with_its_parameters(folder, tmp_path, capsys):
    before = {path: path.read_bytes() for path in folder.iterdir()}
    flags = started(folder, tmp_path)
    train.main(flags)
    assert f"Starting from {folder}\n" in capsys.readouterr().out
    pretrained, model = restored(folder)
    loaded = load(dict(logdir=flags["logdir"], average_checkpoints=1))
    for got, expected in zip(loaded.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-7)
    for got, expected in zip(loaded.vocabs, pretrained.vocabs, strict=True):
        assert got.content == expected.content
        assert got.path.parent == Path(flags["logdir"])
    hp = load_hparams(dict(logdir=flags["logdir"]))
    assert (hp.dropout_rate, hp.decoder_blocks, hp.architecture) == (0.15, 1, "marian")
    train.main(flags | dict(num_epochs=2, lr=0.001))  # it resumes
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_is_written_is_read_again(texts, tmp_path):
    make_marian(tmp_path / "swish", texts)
    make_marian(tmp_path / "relu", texts, activation="relu")
    models = [restored(tmp_path / name) for name in ("swish", "relu")]
    loaded = [LoadedModel([], own.hp, model, own.vocabs) for own, model in models]
    for number, own in enumerate([*loaded, load(dict(logdir=SAMPLE))]):
        output = tmp_path / str(number)
        output.mkdir()
        write(own, output)
        tables = {"model.shared.weight", "lm_head.weight", "model.encoder.embed_tokens.weight"}
        tensors = load_file(output / WEIGHTS)
        assert tables & tensors.keys() == {"model.shared.weight"}
        assert tensors["final_logits_bias"][0, PAD] == -100  # <PAD> has no probability
        pretrained, model = restored(output)
        assert [v.tokens() for v in own.vocabs] == [v.tokens() for v in pretrained.vocabs]
        x, y = (np.array([encode(own.vocabs[0], line)]) for line in texts[0][:2])
        expected = own.model(x, y)[..., 1:]  # without <PAD>
        np.testing.assert_allclose(model(x, y)[..., 1:], expected, atol=1e-4)


def test_the_files_in_json():
    hp = make_hparams(dict(recipe="tiny", decoder_blocks=2, attention_dropout=0.3))
    files = json_files(hp, [*SPECIALS, "a"])
    config, search = files["config.json"], files["generation_config.json"]
    assert files["vocab.json"] == {**{token: i for i, token in enumerate(SPECIALS)}, "a": 4}
    assert config["vocab_size"] == config["decoder_vocab_size"] == 5
    assert [config["encoder_layers"], config["decoder_layers"]] == [4, 2]
    assert config["max_position_embeddings"] == 1 + hp.max_output_tokens(hp.max_input_tokens)
    names = ("dropout", "attention_dropout", "activation_dropout")
    assert [config[name] for name in names] == [0.2, 0.3, 0.0]
    for ids in (config, search):
        assert [ids["decoder_start_token_id"], ids["eos_token_id"]] == [BOS, EOS]
    assert search["num_beams"] == 5 and search["early_stopping"] is True
    assert search["bad_words_ids"] == [[PAD], [UNK]]
    tokenizer = files["tokenizer_config.json"]
    assert (tokenizer["source_lang"], tokenizer["target_lang"]) == ("de", "en")


def test_symbols_are_refused(tmp_path):
    loaded, model = load(dict(logdir=SAMPLE)), ModelProto()
    model.ParseFromString(loaded.vocabs[0].content)
    model.pieces[9].piece, model.pieces[9].type = ">>de<<", ModelProto.SentencePiece.USER_DEFINED
    (tmp_path / "bpe.model").write_bytes(model.SerializeToString())
    vocab = SubwordVocab(tmp_path / "bpe.model")
    with pytest.raises(InputError, match="bpe.model: has the symbol >>de<<, .* --format"):
        write(loaded._replace(vocabs=(vocab, vocab)), tmp_path)


def test_other_types_of_numbers(copied):
    path, (_, expected) = copied / "model.safetensors", restored(copied)
    tensors = load_file(path)
    save_file({name: array.astype(ml_dtypes.bfloat16) for name, array in tensors.items()}, path)
    _, rounded = restored(copied)
    for got, wide in zip(rounded.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(got, wide, rtol=0.01, atol=1e-3)


@pytest.mark.parametrize("joint", [True, False])
def test_tied_matrices_are_stored_under_any_of_their_names(texts, tmp_path, joint):
    folder = tmp_path / "marian"
    make_marian(folder, texts, joint=joint)
    _, expected = restored(folder)
    name = "model.shared.weight" if joint else "model.decoder.embed_tokens.weight"
    change_tensors(lambda tensors: tensors.update({"lm_head.weight": tensors.pop(name)}))(folder)
    _, model = restored(folder)
    for got, weights in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(got, weights)


# Folders of strangers -----------------------------------------------


def change_json(name, **changes):
    def change(folder):
        content = json.loads((folder / name).read_text("utf-8"))
        write_json(folder / name, {k: v for k, v in (content | changes).items() if v is not None})

    return change


def change_tensors(change):
    def apply(folder):
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return apply


@pytest.mark.parametrize(
    "change, problem",
    [
        (change_json("config.json", model_type="bart"), "model_type is 'bart'"),
        (change_json("config.json", d_model=None), "d_model"),
        (change_json("config.json", d_model="16"), "hidden_units is '16'"),
        (change_json("config.json", d_model=24), "does not fit"),
        (change_json("config.json", decoder_attention_heads=4), "heads is 4"),
        (change_json("config.json", normalize_before=True), "normalize_before is True"),
        (change_json("config.json", scale_embedding=None), "scale_embedding is None"),
        (change_json("config.json", encoder_layers=3), "layers.2"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "no Marian model"),
        (lambda folder: (folder / "target.spm").unlink(), "target.spm"),
        (lambda folder: (folder / "source.spm").write_bytes(b"\xff"), "no Marian"),
        (lambda folder: (folder / WEIGHTS).unlink(), "no such file. .* save_pretrained"),
        (lambda folder: os.truncate(folder / WEIGHTS, 5000), "does not fit"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(copied, change, problem):
    change(copied)
    with pytest.raises(InputError, match=problem):
        restored(copied)


def test_flags_that_contradict_it_are_refused(copied, tmp_path):
    with pytest.raises(InputError, match="marian: .* trained with --hidden_units 16, not 32"):
        train.main(started(copied, tmp_path, hidden_units=32))


def test_characters_of_the_other_language_are_unknown(copied):
    """They have a token, but none that a text of this language is split into."""
    source, target = read_pretrained(copied, {}).vocabs
    assert "ä" in source.characters and "ä" not in target.characters
    assert target.lacks_part_of("ä") and not source.lacks_part_of("ä")


def test_its_languages(copied):
    assert read_pretrained(copied, {}).hp.source_lang == "de"
    hp = read_pretrained(copied, dict(source_lang="nl")).hp
    assert (hp.source_lang, hp.target_lang) == ("nl", "en")
    for name in ("../../x", "fr+fr_BE", None, 3):
        change_json("tokenizer_config.json", source_lang=name)(copied)
        with pytest.raises(InputError, match="not the code of one language. Add --source_lang"):
            read_pretrained(copied, {})
        assert read_pretrained(copied, dict(source_lang="fr")).hp.source_lang == "fr"
    (copied / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match="_lang is None"):
        read_pretrained(copied, {})


# The class itself ---------------------------------------------------


def test_transformers_computes_the_same(texts, tmp_path):
    """With the tokens, the logits and the translations."""
    torch = pytest.importorskip("torch", reason=INSTALL_TRANSFORMERS)
    transformers = pytest.importorskip("transformers", reason=INSTALL_TRANSFORMERS)
    loaded = load(dict(logdir=SAMPLE, beam=1))
    write(loaded, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    marian = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    pretrained, model = restored(tmp_path)
    rows, added = np.array(pretrained.sides[1].rows), np.array(pretrained.sides[1].added_bias)
    sources = texts[0][:20] + [line.strip("\ufeff\r\0") for line in ODD_LINES if line.strip()]
    for line, translation in zip(sources, Translator(loaded)(sources), strict=True):
        ids = encode(pretrained.vocabs[0], line)
        x = tokenizer(line)["input_ids"]
        assert [pretrained.sides[0].rows[i] for i in ids] == x
        start = torch.tensor([[BOS, *x[:-1]]])
        theirs = marian(input_ids=torch.tensor([x]), decoder_input_ids=start).logits[0]
        got = model(np.array([ids]), np.array([ids]))[0].numpy()
        np.testing.assert_allclose(got, theirs.detach().numpy()[:, rows] + added, atol=1e-3)
        limit = 1 + int(loaded.hp.max_output_tokens(len(x)))  # the <S> counts
        output = marian.generate(input_ids=torch.tensor([x]), max_length=limit)
        assert tokenizer.decode(output[0], skip_special_tokens=True) == translation.text
