"""Start a training from a Marian model in the format of Hugging Face transformers, as OPUS-MT has.

    config.json              sizes and settings
    model.safetensors        the parameters
    vocab.json               the ids of all tokens
    target_vocab.json        those of the target language, if both have their own
    source.spm, target.spm   the sentencepiece models, whose own ids do not count

The folder may come from someone else. Nothing in it is run, and nothing is written to it. A model
here has the special tokens first. So its tokens have other ids than in vocab.json, and
`Tokens.rows` says where the vector of each is.
"""

import dataclasses
import json
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from hparams import Hyperparams, make_hparams
from ids import BOS, EOS, PAD, SPECIALS, UNK
from interop.marian_names import PAD_LOGIT, layer_places, unit_order
from runtime.errors import InputError
from runtime.optional import import_optional
from variable_names import variables_by_2017_name
from vocab import SubwordVocab

CONFIG, PARAMETERS = "config.json", "model.safetensors"
ACTIVATION_NAMES = dict(relu="relu", swish="swish", silu="swish")  # their names here
START_NAMES = "<s>", SPECIALS[BOS]
SPECIAL_NAMES = {*SPECIALS, "<s>", "<pad>", "<unk>", "</s>"}
LANGUAGE_TOKEN = re.compile(r">>.+<<")  # names the target language, in a model for several
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,8})*")
# A file has tensors that are equal once, under one of their names.
TIED = {
    "model.shared.weight": (
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
        "lm_head.weight",
    ),
    "model.decoder.embed_tokens.weight": ("lm_head.weight",),
}
UNSEEN_BIAS = -10.0  # of a token that Marian cannot write, below the bias of <UNK>
DOWNLOAD_AGAIN = "Download the folder again"


class Tokens(NamedTuple):
    """The tokens of a vocabulary in the order of their ids here."""

    names: list  # of str
    rows: list  # of int: which row of Marian's matrix each token has
    added_bias: list  # of float: 0, or added to Marian's bias of a token that Marian cannot write


class Pretrained(NamedTuple):
    """A model in the format of Hugging Face."""

    folder: Path
    hp: Hyperparams
    vocabs: tuple  # (Vocab, Vocab)
    sides: tuple  # (Tokens, Tokens), of source and target; the same object if they are joint

    def restore(self, model):
        """Set the parameters of a built model."""
        path, variables = self.folder / PARAMETERS, variables_by_2017_name(model)
        safetensors = import_optional("safetensors")
        try:
            for name, array in convert_parameters(self, read_parameters(path)):
                variables[name].assign(array)
        except (LookupError, OSError, ValueError, safetensors.SafetensorError) as error:
            raise InputError(f"{path}: does not fit {CONFIG} ({error}). {DOWNLOAD_AGAIN}") from None


def read_pretrained(folder, flags) -> Pretrained:
    """Read the settings and vocabularies.

    Args:
      flags: dict, those of the command line.
    """
    folder = Path(folder)
    if not (folder / PARAMETERS).exists():
        raise InputError(
            f"{folder / PARAMETERS}: no such file. Name the folder of a model. Convert"
            " pytorch_model.bin with AutoModelForSeq2SeqLM.from_pretrained and save_pretrained"
        )
    try:
        config = read_settings(folder / CONFIG)
        hp = make_hparams(model_fields(folder / CONFIG, config) | languages(folder, flags))
        sides, vocabs = read_vocabularies(folder, config, hp)
    except (DecodeError, KeyError, OSError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"  # a KeyError has only the key
        raise InputError(f"{folder}: no Marian model ({reason}). {DOWNLOAD_AGAIN}") from None
    hp = dataclasses.replace(hp, vocab_size=len(vocabs[0]), logdir=str(folder))
    return Pretrained(folder, hp, vocabs, sides)


# Settings ----------------------------------------------------------------------


def read_settings(path) -> dict:
    """Read a JSON file that holds an object."""
    return dict(json.loads(path.read_text("utf-8")))


def model_fields(path, config) -> dict:
    """Return the hyperparameters that config.json describes.

    Raises:
      InputError: the model is of a kind that this project does not have.
    """
    heads, ffn_dim = config.get("encoder_attention_heads"), config.get("encoder_ffn_dim")
    needed = dict(
        model_type=("marian",),
        activation_function=(*ACTIVATION_NAMES,),
        scale_embedding=(True,),
        decoder_attention_heads=(heads,),
        decoder_ffn_dim=(ffn_dim,),
    )
    usual = dict(  # settings that only old files have, with their usual values
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
        static_position_embeddings=True,
        tie_word_embeddings=True,
    )
    for name, values in (needed | {name: (value,) for name, value in usual.items()}).items():
        value = config.get(name, usual.get(name))
        if value not in values:
            raise InputError(
                f"{path}: {name} is {value!r}. --start_from reads folders of train.py, and Marian"
                f" models with {' or '.join(map(repr, values))}"
            )
    joint = config.get("share_encoder_decoder_embeddings", True)
    return dict(
        recipe="paper",
        maxlen=config["max_position_embeddings"],
        hidden_units=config["d_model"],
        ffn_units=ffn_dim,
        ffn_activation=ACTIVATION_NAMES[config["activation_function"]],
        num_blocks=config["encoder_layers"],
        decoder_blocks=config["decoder_layers"],
        num_heads=heads,
        positions="paired_sinusoid",
        joint_vocab=joint,
        tied_embeddings=joint,
        output_bias=joint,
        pad_logit=False,
        dropout_on="sublayers",
        dropout_rate=config.get("dropout", 0.0),
        attention_dropout=config.get("attention_dropout", 0.0),
        ffn_dropout=config.get("activation_dropout", 0.0),
    )


def languages(folder, flags) -> dict:
    """Return the languages: those of the flags, or those of tokenizer_config.json.

    Models for several languages name a group of them there.
    """
    path, langs = folder / "tokenizer_config.json", {}
    settings = read_settings(path) if path.exists() else {}
    for name in ("source_lang", "target_lang"):
        lang = flags.get(name, settings.get(name))
        if name not in flags and not (isinstance(lang, str) and LANGUAGE.fullmatch(lang)):
            raise InputError(
                f"{path}: {name} is {lang!r}, not the code of one language. Add --{name}"
            )
        langs[name] = lang
    return langs


# Vocabularies --------------------------------------------------------------------


def read_vocabularies(folder, config, hp) -> tuple:
    """Return the `Tokens` of source and target, and their vocabularies, which no file holds."""
    names = ("source", "target")
    models = [ModelProto.FromString((folder / f"{name}.spm").read_bytes()) for name in names]
    if hp.joint_vocab:
        sides = (arrange_tokens(folder / "vocab.json", config, models),) * 2
    else:
        files = folder / "vocab.json", folder / "target_vocab.json"
        pairs = zip(files, models, strict=True)
        sides = tuple(arrange_tokens(file, config, [model]) for file, model in pairs)
    files = ["bpe.source", "bpe"]
    if not hp.joint_vocab:
        files = [f"bpe.{hp.source_lang}", f"bpe.{hp.target_lang}"]
    vocabs = []
    with tempfile.TemporaryDirectory() as temporary:
        for name, file, model, tokens in zip(names, files, models, sides, strict=True):
            path = Path(temporary) / f"{file}.model"
            path.write_bytes(make_sentencepiece(model, tokens, name == "source"))
            vocabs.append(SubwordVocab(path))
    return sides, tuple(vocabs)


def arrange_tokens(path, config, models) -> Tokens:
    """Give each token its id here: the special ones first, then those of a vocabulary file.

    The sentencepiece models may have subwords that the file lacks. Marian reads them as `<UNK>`,
    and never writes them. Here each is a token of its own, with the vector of `<UNK>` and a low
    bias, which training can raise.

    Args:
      path: vocab.json.
      config: config.json, which names the rows of the tokens pad, eos and start.
      models: the sentencepiece models.
    """
    ids, start = read_settings(path), config["decoder_start_token_id"]
    unknown = ids["<unk>" if "<unk>" in ids else SPECIALS[UNK]]
    # In the order of `ids`.
    rows = config["pad_token_id"], unknown, start, config["eos_token_id"]
    ordinary = sorted((i, name) for name, i in ids.items() if name not in SPECIAL_NAMES)
    pieces = [piece.piece for model in models for piece in usual_pieces(model)]
    missing = [name for name in dict.fromkeys(pieces) if name not in ids]
    # Most models have no token of their own for the start.
    has_start = start in [ids.get(name) for name in START_NAMES]
    special_bias = [PAD_LOGIT, 0.0, 0.0 if has_start else PAD_LOGIT, 0.0]
    return Tokens(
        names=[*SPECIALS, *(name for _, name in ordinary), *missing],
        rows=[*rows, *(i for i, _ in ordinary), *[unknown] * len(missing)],
        added_bias=[*special_bias, *[0.0] * len(ordinary), *[UNSEEN_BIAS] * len(missing)],
    )


def usual_pieces(model) -> list:
    """Return the subwords of a ModelProto that text is split into.

    Names of languages are not among them: Marian removes them from a source before.
    """
    kinds = ModelProto.SentencePiece
    usual = kinds.NORMAL, kinds.USER_DEFINED, kinds.BYTE
    pieces = [piece for piece in model.pieces if piece.type in usual]
    return [p for p in pieces if not LANGUAGE_TOKEN.fullmatch(p.piece.removeprefix("▁"))]


def make_sentencepiece(model, tokens, is_source) -> bytes:
    """Make a sentencepiece model that splits text in the same way, with the ids here.

    A token that the model lacks, as those of the other language, is unused: no text has it.
    Marian takes a name of the target language from the beginning of a source. Its token has a
    space before it, as all text does.
    """
    kinds = ModelProto.SentencePiece
    types = dict(zip(SPECIALS, (kinds.CONTROL, kinds.UNKNOWN, *[kinds.CONTROL] * 2), strict=True))
    pieces = {piece.piece: piece for piece in usual_pieces(model)}
    made = ModelProto()
    made.CopyFrom(model)
    del made.pieces[:], made.self_test_data.samples[:]
    for name in tokens.names:
        if name in types:
            made.pieces.add(piece=name, type=types[name])
        elif name in pieces:
            made.pieces.add().CopyFrom(pieces[name])
        elif is_source and LANGUAGE_TOKEN.fullmatch(name) and f"▁{name}" not in tokens.names:
            made.pieces.add(piece=f"▁{name}", type=kinds.USER_DEFINED)
        else:
            made.pieces.add(piece=name, type=kinds.UNUSED)
    trainer = made.trainer_spec
    trainer.vocab_size = len(tokens.names)
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = PAD, UNK, BOS, EOS
    trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = SPECIALS
    return made.SerializeToString(deterministic=True)


# Parameters --------------------------------------------------------------------


def read_parameters(path) -> dict:
    """Return the tensors of model.safetensors by their names, also those that are tied."""
    tensors = import_optional("safetensors.numpy").load_file(path)
    for name, tied in TIED.items():
        for other in tied:
            if other in tensors:
                tensors.setdefault(name, tensors[other])
    return {name: np.asarray(array, np.float32) for name, array in tensors.items()}


def embedding_names(hp) -> tuple[str, str]:
    """Return the names of Marian's matrices for source and target tokens."""
    if hp.joint_vocab:
        return ("model.shared.weight",) * 2
    return "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"


def convert_parameters(pretrained, tensors):
    """Yield the name of each variable, as in `variables_by_2017_name`, and its value.

    Args:
      tensors: those of Marian by their names.
    """
    hp, target = pretrained.hp, pretrained.sides[1]
    order = np.argsort(unit_order(hp.hidden_units))  # back to the order here
    for name, (variable, unit_axes) in layer_places(hp).items():
        array = tensors[name].T
        for axis in unit_axes:
            array = array.take(order, axis)
        yield variable, array
    bias = tensors["final_logits_bias"][0, target.rows] + np.array(target.added_bias, np.float32)
    yield "dense/bias", bias
    source_table, target_table = (
        tensors[name][side.rows][:, order]
        for name, side in zip(embedding_names(hp), pretrained.sides, strict=True)
    )
    if hp.joint_vocab:
        yield "shared_embed/lookup_table", source_table
    else:
        yield "encoder/enc_embed/lookup_table", source_table
        yield "decoder/dec_embed/lookup_table", target_table
        yield "dense/kernel", target_table.T
