"""A training that starts from a Marian model in the format of Hugging Face transformers."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import train
from conftest import sample_pairs, slow, write_corpus
from helpers import load, run_main
from hparams import load_hparams
from ids import UNK
from interop.pretrained import read_pretrained
from marian import LANGUAGES, Marian, ask_transformers, make_marian, needs_transformers, write_json
from model import make_model
from processes import forked_script
from runtime.errors import InputError

NO_CHANGE = dict(lr=1e-30, warmup_steps=0, num_epochs=1, batch_size=16)
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


def marian_ids(folder, side, line):
    """Split a line as transformers does: names of languages, then subwords, without its ids."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(folder / f"{side}.spm"))
    target_file = folder / "target_vocab.json"
    apart = (
        side == "target"
        and not json.loads((folder / "config.json").read_text())["share_encoder_decoder_embeddings"]
    )
    vocab = json.loads((target_file if apart else folder / "vocab.json").read_text("utf-8"))
    language = [name for name in LANGUAGES if line.startswith(name)]
    pieces = language + processor.encode(line.removeprefix("".join(language)), out_type=str)
    return [vocab.get(piece, vocab["<unk>"]) for piece in [*pieces, "</s>"]]


def encode(vocab, line):
    (ids,) = vocab.encode(vocab.prepare([line]))
    return ids


def test_tokens_and_logits_are_those_of_marian(folder, texts):
    pretrained, model = restored(folder)
    marian, (source_side, target_side) = Marian(folder), pretrained.sides
    source, target = pretrained.vocabs
    sources = texts[0][:20] + [f"{name} {texts[0][0]}" for name in LANGUAGES] + [ODD]
    targets = texts[1][:20] + texts[1][:2] + [ODD]
    rows, added = np.array(target_side.rows), np.array(target_side.added_bias)
    unknown = 0
    for line, translation in zip(sources, targets, strict=True):
        x, y = encode(source, line), encode(target, translation)
        theirs = marian_ids(folder, "source", line), marian_ids(folder, "target", translation)
        assert ([source_side.rows[i] for i in x], [rows[i] for i in y]) == theirs
        unknown += theirs[0].count(1)
        expected = marian.logits(*theirs)
        got = model(np.array([x]), np.array([y]))[0].numpy()
        np.testing.assert_allclose(got, expected[:, rows] + added, atol=1e-3)
    assert unknown > 2
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
@pytest.mark.parametrize("joint", [True, False])
def test_training_starts_with_its_parameters(texts, joint, tmp_path, capsys):
    folder = tmp_path / "marian"
    make_marian(folder, texts, joint=joint)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    flags = started(folder, tmp_path)
    run_main(train, flags)
    assert f"Starting from {folder}\n" in capsys.readouterr().out
    pretrained, model = restored(folder)
    loaded = load(dict(logdir=flags["logdir"], average_checkpoints=1))
    for got, expected in zip(loaded.model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-7)
    for got, expected in zip(loaded.vocabs, pretrained.vocabs, strict=True):
        assert got.content == expected.content
        assert got.path.parent == Path(flags["logdir"])
    hp = load_hparams(dict(logdir=flags["logdir"]))
    assert (hp.dropout_rate, hp.decoder_blocks, hp.ffn_activation) == (0.15, 1, "swish")
    run_main(train, flags | dict(num_epochs=2, lr=0.001))  # it resumes
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


@slow
@pytest.mark.parametrize("activation", ["swish", "relu"])
def test_what_is_exported_is_read_again(texts, tmp_path, activation):
    make_marian(tmp_path / "marian", texts, activation=activation)
    flags = started(tmp_path / "marian", tmp_path, lr=0.01)
    run_main(train, flags)
    output = tmp_path / "exported"
    done = forked_script("export.py", logdir=flags["logdir"], format="huggingface", output=output)
    assert done.returncode == 0, done.stderr
    loaded = load(dict(logdir=flags["logdir"]))
    pretrained, model = restored(output)
    for got, expected in zip(model.get_weights(), loaded.model.get_weights(), strict=True):
        if got.ndim == 1 and len(got) == len(loaded.vocabs[0]):
            got[0] = expected[0]  # the bias of <PAD>
        np.testing.assert_allclose(got, expected, atol=1e-7)
    for got, expected in zip(pretrained.vocabs, loaded.vocabs, strict=True):
        assert got.content == expected.content


@slow
def test_models_of_this_project_are_read_again(trained, tmp_path):
    flags = trained("tiny", positions="paired_sinusoid", normalization="post")
    more = dict(logdir=flags["logdir"], average_checkpoints=1)
    done = forked_script("export.py", **more, format="huggingface", output=tmp_path / "out")
    assert done.returncode == 0, done.stderr
    loaded = load(more)
    pretrained, model = restored(tmp_path / "out")
    line = sample_pairs(1)[0][0]
    (x, y) = (np.array([encode(vocab, line)]) for vocab in loaded.vocabs)
    np.testing.assert_allclose(model(x, y)[..., 1:], loaded.model(x, y)[..., 1:], atol=1e-4)
    assert [*map(len, pretrained.vocabs)] == [*map(len, loaded.vocabs)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_types_of_numbers(copied, dtype):
    import ml_dtypes

    path, (_, expected) = copied / "model.safetensors", restored(copied)
    kind = getattr(ml_dtypes, dtype, dtype)
    tensors = {name: array.astype(kind) for name, array in load_file(path).items()}
    save_file(tensors, path)
    _, rounded = restored(copied)
    assert expected.count_params() == rounded.count_params()
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


# Folders of strangers ------------------------------------------------------------


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


def only_pickled(folder):
    os.replace(folder / "model.safetensors", folder / "pytorch_model.bin")


FC1 = "model.encoder.layers.0.fc1.weight"
FOLDERS = {
    "another kind": (change_json("config.json", model_type="bart"), "model_type is 'bart'"),
    "no size": (change_json("config.json", d_model=None), "d_model"),
    "a size in words": (change_json("config.json", d_model="16"), "hidden_units is '16'"),
    "heads that differ": (change_json("config.json", decoder_attention_heads=4), "heads is 4"),
    "another activation": (change_json("config.json", activation_function="gelu"), "is 'gelu'"),
    "pre-norm": (change_json("config.json", normalize_before=True), "normalize_before is True"),
    "not tied": (change_json("config.json", tie_word_embeddings=False), "is False"),
    "no scale": (change_json("config.json", scale_embedding=None), "scale_embedding is None"),
    "a list": (lambda folder: (folder / "config.json").write_text("[1]"), "no Marian model"),
    "no target text": (lambda folder: (folder / "target.spm").unlink(), "target.spm"),
    "no vocabulary": (lambda folder: (folder / "vocab.json").unlink(), "vocab.json"),
    "no sentencepiece": (lambda folder: (folder / "source.spm").write_bytes(b"\xff"), "no Marian"),
    "pickled": (only_pickled, "no such file. Name the folder"),
    "cut off": (lambda folder: os.truncate(folder / "model.safetensors", 5000), "does not fit"),
    "a layer more": (change_json("config.json", encoder_layers=3), "layers.2"),
    "another size": (change_json("config.json", d_model=24), "does not fit"),
    "a tensor less": (change_tensors(lambda t: t.pop(FC1)), FC1),
}


@pytest.mark.parametrize("change, problem", FOLDERS.values(), ids=FOLDERS)
def test_a_folder_that_does_not_fit_is_refused(copied, change, problem):
    change(copied)
    with pytest.raises(InputError, match=problem):
        restored(copied)


def test_the_refusal_as_a_user_sees_it(copied, tmp_path):
    only_pickled(copied)
    flags = started(copied, tmp_path)
    done = forked_script("train.py", **flags)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "save_pretrained" in done.stderr


def test_files_that_are_not_read_do_not_matter(copied):
    shutil.copy(copied / "model.safetensors", copied / "pytorch_model.bin")
    (copied / "modeling.py").write_text("raise SystemExit")
    restored(copied)


def test_flags_that_contradict_it_are_refused(copied, tmp_path):
    with pytest.raises(InputError, match="marian: .* trained with --hidden_units 16, not 32"):
        run_main(train, started(copied, tmp_path, hidden_units=32))


def test_characters_of_the_other_language_are_unknown(copied):
    """They have a token, but none that a text of this language is split into."""
    source, target = read_pretrained(copied, {}).vocabs
    assert "ä" in source.characters and "ä" not in target.characters
    assert target.lacks_part_of("ä") and not source.lacks_part_of("ä")


def test_its_languages(copied):
    assert read_pretrained(copied, {}).hp.source_lang == "de"
    hp = read_pretrained(copied, dict(source_lang="nl")).hp
    assert (hp.source_lang, hp.target_lang) == ("nl", "en")
    for name in ("../../x", "ROMANCE", "fr+fr_BE", None, 3):
        change_json("tokenizer_config.json", source_lang=name)(copied)
        with pytest.raises(InputError, match="not the code of one language. Add --source_lang"):
            read_pretrained(copied, {})
        assert read_pretrained(copied, dict(source_lang="fr")).hp.source_lang == "fr"
    (copied / "tokenizer_config.json").unlink()
    with pytest.raises(InputError, match="source_lang is None"):
        read_pretrained(copied, {})


# The class itself ----------------------------------------------------------------


CLIENT = """
import json, sys
import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
folder, lines = json.load(sys.stdin)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModelForSeq2SeqLM.from_pretrained(folder)
model.save_pretrained(folder + "_again")
answers = []
for source, target in lines:
    x, y = tokenizer(source)["input_ids"], tokenizer(text_target=target)["input_ids"]
    start = [model.config.decoder_start_token_id]
    inputs = dict(input_ids=torch.tensor([x]), decoder_input_ids=torch.tensor([start + y[:-1]]))
    answers.append([x, y, model(**inputs).logits[0].tolist()])
json.dump(answers, sys.stdout)
"""


@needs_transformers
def test_transformers_has_the_same_tokens_and_logits(folder, texts):
    lines = [*zip(*(side[:20] for side in texts), strict=True), (ODD, ODD)]
    lines += [(f"{LANGUAGES[0]} {texts[0][0]}", texts[1][0])]
    answers = ask_transformers(CLIENT, str(folder), lines)
    again = Path(f"{folder}_again")  # as the newest release writes it
    for name in ("config.json", "model.safetensors"):
        shutil.copy(again / name, folder / name)
    pretrained, model = restored(folder)
    source_side, target_side = pretrained.sides
    rows, added = np.array(target_side.rows), np.array(target_side.added_bias)
    for line, (x, y, logits) in zip(lines, answers, strict=True):
        ids = [encode(vocab, text) for vocab, text in zip(pretrained.vocabs, line, strict=True)]
        assert [source_side.rows[i] for i in ids[0]] == x
        assert [target_side.rows[i] for i in ids[1]] == y
        got = model(*(np.array([side]) for side in ids))[0].numpy()
        np.testing.assert_allclose(got, np.array(logits)[:, rows] + added, atol=1e-3)
