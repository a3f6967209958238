"""Marian models in the format of Hugging Face transformers, as OPUS-MT has: read and written.

    config.json              sizes and settings
    model.safetensors        the parameters
    vocab.json               the ids of all tokens
    target_vocab.json        those of the target language, if both have their own
    source.spm, target.spm   the sentencepiece models, whose own ids do not count

`read_pretrained` reads a model from which a training starts. A model here has the special tokens
first. So its tokens have other ids than in vocab.json, and `Tokens.rows` says where the vector of
each is. `write` makes a folder that `AutoModelForSeq2SeqLM` and `AutoTokenizer` load.
"""

import dataclasses
import json
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto

from checkpoints.checkpoint import assign
from checkpoints.names_2017 import variables_by_2017_name
from hparams import Hyperparams, make_hparams
from support.errors import InputError
from support.optional import import_optional
from text.ids import BOS, EOS, PAD, SPECIALS, UNK
from text.vocab import SubwordVocab

CONFIG, PARAMETERS = "config.json", "model.safetensors"
# What only the config.json of old files has.
OLD_FIELDS = dict(normalize_before=False, normalize_embedding=False, add_final_layer_norm=False)
OLD_FIELDS |= dict(static_position_embeddings=True, tie_word_embeddings=True)
ARCHITECTURES = dict(relu="marian_relu", swish="marian", silu="marian")  # by activation
SPECIAL_NAMES = {*SPECIALS, "<s>", "<pad>", "<unk>", "</s>"}
LANGUAGE_TOKEN = re.compile(r">>.+<<")  # names the target language, in a model for several
LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z]{2,8})*")
# The matrix of the tokens. A file has one that is shared once, under one of its names.
SOURCE_TABLE = "model.encoder.embed_tokens.weight"
TARGET_TABLE = "model.decoder.embed_tokens.weight", "lm_head.weight"
SHARED_TABLE = "model.shared.weight"
# So low that <PAD> has no probability, and high enough for label smoothing, whose loss contains the
# mean of all logits.
PAD_LOGIT = -100.0
UNSEEN_BIAS = -10.0  # of a token that Marian cannot write, below the bias of <UNK>
MAX_GENERATED_TOKENS = 512  # of a translation, unless the caller of `generate` sets a limit
DOWNLOAD_AGAIN = "Download the folder again"
KINDS = ModelProto.SentencePiece  # of the pieces in a sentencepiece model

# Names and order of the parameters ----------------------------------


def unit_order(hidden_units):
    """The units in the order of Marian, (C,): sines of positions first. Here they alternate."""
    return np.concatenate([np.arange(0, hidden_units, 2), np.arange(1, hidden_units, 2)])


def layer_parameters(hp):
    """Yield for each parameter of the blocks its names in Marian and of 2017, and an axis or None.

    This axis has the units of `unit_order`.
    """
    encoder = dict(self_attn="multihead_attention")
    decoder = dict(self_attn="self_attention", encoder_attn="vanilla_attention")
    for side, attentions, normalized in (
        ("encoder", encoder, "multihead_attention_1"),
        ("decoder", decoder, "multihead_attention"),
    ):
        layers = dict(fc1="multihead_attention/conv1d", fc2="multihead_attention/conv1d_1")
        layers |= dict(final_layer_norm=normalized)
        for name, scope in attentions.items():
            layers[f"{name}_layer_norm"] = scope
            for part, dense in zip("q k v out".split(), ("", "_1", "_2", "_3"), strict=True):
                layers[f"{name}.{part}_proj"] = f"{scope}/dense{dense}"
        for i in range(hp.block_counts[side]):
            for name, scope in layers.items():
                theirs, ours = f"model.{side}.layers.{i}.{name}", f"{side}/num_blocks_{i}/{scope}"
                if name.endswith("norm"):
                    yield f"{theirs}.weight", f"{ours}/ln/Variable_1", 0
                    yield f"{theirs}.bias", f"{ours}/ln/Variable", 0
                else:  # a linear layer that writes the units of the model, or reads them
                    writes = name.endswith(("out_proj", "fc2"))
                    yield f"{theirs}.weight", f"{ours}/kernel", int(writes)
                    yield f"{theirs}.bias", f"{ours}/bias", 0 if writes else None


# Reading ------------------------------------------------------------


class Tokens(NamedTuple):
    """The tokens of a vocabulary in the order of their ids here."""

    names: list
    rows: list  # which row of Marian's matrix each token has
    added_bias: list  # to Marian's bias: negative for a token that Marian cannot write


class Pretrained(NamedTuple):
    """A model in the format of Hugging Face."""

    hp: Hyperparams  # its `logdir` is the folder
    vocabs: tuple  # (Vocab, Vocab)
    sides: tuple  # (Tokens, Tokens), of source and target

    def restore(self, model):
        """Set the parameters of a built model."""
        path, safetensors = Path(self.hp.logdir, PARAMETERS), import_optional("safetensors")
        try:
            tensors = import_optional("safetensors.numpy").load_file(path)
            arrays = dict(convert_parameters(self, tensors))
        except (LookupError, OSError, ValueError, safetensors.SafetensorError) as error:
            raise InputError(f"{path}: does not fit {CONFIG} ({error}). {DOWNLOAD_AGAIN}") from None
        assign(variables_by_2017_name(model), arrays, path)


def read_pretrained(folder, flags) -> Pretrained:
    """Read the settings and vocabularies; `flags` are those of the command line."""
    folder = Path(folder)
    if not (folder / PARAMETERS).exists():
        raise InputError(
            f"{folder / PARAMETERS}: no such file. Name the folder of a model. Convert"
            " pytorch_model.bin with AutoModelForSeq2SeqLM.from_pretrained and save_pretrained"
        )
    try:
        config = read_json(folder / CONFIG)
        hp = make_hparams(model_fields(folder / CONFIG, config) | languages(folder, flags))
        sides, vocabs = read_vocabularies(folder, config, hp)
    except (DecodeError, KeyError, OSError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"  # a KeyError has only the key
        raise InputError(f"{folder}: no Marian model ({reason}). {DOWNLOAD_AGAIN}") from None
    hp = dataclasses.replace(hp, vocab_size=len(vocabs[0]), logdir=str(folder))
    return Pretrained(hp, vocabs, sides)


def read_json(path) -> dict:
    """Read a file that holds an object."""
    return dict(json.loads(path.read_text("utf-8")))


def model_fields(path, config) -> dict:
    """The hyperparameters that config.json describes."""
    heads, ffn_units = config.get("encoder_attention_heads"), config.get("encoder_ffn_dim")
    wanted = dict(model_type="marian", scale_embedding=True)
    wanted |= dict(decoder_attention_heads=heads, decoder_ffn_dim=ffn_units)
    for name, value in (wanted | OLD_FIELDS).items():
        found = config.get(name, OLD_FIELDS.get(name))
        if found != value:
            raise InputError(
                f"{path}: {name} is {found!r}. --start_from reads folders of train.py, and Marian"
                f" models with {value!r}"
            )
    joint = config.get("share_encoder_decoder_embeddings", True)
    return dict(
        recipe="paper",
        architecture=ARCHITECTURES[config["activation_function"]],
        maxlen=config["max_position_embeddings"],
        hidden_units=config["d_model"],
        ffn_units=ffn_units,
        num_blocks=config["encoder_layers"],
        decoder_blocks=config["decoder_layers"],
        num_heads=heads,
        positions="paired_sinusoid",
        joint_vocab=joint,
        tied_embeddings=joint,
        dropout_rate=config.get("dropout", 0.0),
        attention_dropout=config.get("attention_dropout", 0.0),
    )


def languages(folder, flags) -> dict:
    """The languages: those of the flags, or of tokenizer_config.json, which may name a group."""
    path = folder / "tokenizer_config.json"
    langs = read_json(path) if path.exists() else {}
    langs = {name: flags.get(name, langs.get(name)) for name in ("source_lang", "target_lang")}
    for name in langs.keys() - flags.keys():
        if not LANGUAGE.fullmatch(str(langs[name])):
            raise InputError(
                f"{path}: {name} is {langs[name]!r}, not the code of one language. Add --{name}"
            )
    return langs


def read_vocabularies(folder, config, hp) -> tuple:
    """The `Tokens` of both sides, and their vocabularies, which no file holds."""
    names = "source.spm", "target.spm"
    models = [ModelProto.FromString((folder / name).read_bytes()) for name in names]
    if hp.joint_vocab:
        sides = (arrange_tokens(folder / "vocab.json", config, models),) * 2
        names = "bpe.source.model", "bpe.model"
    else:
        files = zip(("vocab.json", "target_vocab.json"), models, strict=True)
        sides = tuple(arrange_tokens(folder / name, config, [model]) for name, model in files)
        names = f"bpe.{hp.source_lang}.model", f"bpe.{hp.target_lang}.model"
    contents = map(make_sentencepiece, models, sides, (True, False))
    return sides, tuple(map(SubwordVocab, map(Path, names), contents))


def arrange_tokens(path, config, models) -> Tokens:
    """Give each token its id here: the special ones first, then those of vocab.json.

    Marian reads subwords that the file lacks as `<UNK>`, and never writes them. Here each is a
    token of its own, with the vector of `<UNK>` and a low bias, which training can raise.
    """
    ids, start = read_json(path), config["decoder_start_token_id"]
    unknown = ids["<unk>" if "<unk>" in ids else SPECIALS[UNK]]
    rows = config["pad_token_id"], unknown, start, config["eos_token_id"]
    ordinary = sorted((i, name) for name, i in ids.items() if name not in SPECIAL_NAMES)
    pieces = [piece.piece for model in models for piece in usual_pieces(model)]
    missing = [name for name in dict.fromkeys(pieces) if name not in ids]
    # Most models have no token of their own for the start.
    has_start = start in (ids.get("<s>"), ids.get(SPECIALS[BOS]))
    special_bias = [PAD_LOGIT, 0.0, 0.0 if has_start else PAD_LOGIT, 0.0]
    return Tokens(
        names=[*SPECIALS, *(name for _, name in ordinary), *missing],
        rows=[*rows, *(i for i, _ in ordinary), *[unknown] * len(missing)],
        added_bias=[*special_bias, *[0.0] * len(ordinary), *[UNSEEN_BIAS] * len(missing)],
    )


def usual_pieces(model) -> list:
    """The subwords that text is split into: no names of languages, which Marian removes before."""
    usual = KINDS.NORMAL, KINDS.USER_DEFINED, KINDS.BYTE
    pieces = [piece for piece in model.pieces if piece.type in usual]
    return [p for p in pieces if not LANGUAGE_TOKEN.fullmatch(p.piece.removeprefix("▁"))]


def make_sentencepiece(model, tokens, is_source) -> bytes:
    """Make a sentencepiece model that splits text in the same way, with the ids here.

    A token that the model lacks, as those of the other language, is unused. The name of a target
    language, at the beginning of a source, has a space before it, as all text.
    """
    pieces = {piece.piece: piece for piece in usual_pieces(model)}
    made = ModelProto()
    made.CopyFrom(model)
    del made.pieces[:], made.self_test_data.samples[:]
    for name in tokens.names:
        if name in SPECIALS:
            kind = KINDS.UNKNOWN if name == SPECIALS[UNK] else KINDS.CONTROL
            made.pieces.add(piece=name, type=kind)
        elif name in pieces:
            made.pieces.add().CopyFrom(pieces[name])
        elif is_source and LANGUAGE_TOKEN.fullmatch(name) and f"▁{name}" not in tokens.names:
            made.pieces.add(piece=f"▁{name}", type=KINDS.USER_DEFINED)
        else:
            made.pieces.add(piece=name, type=KINDS.UNUSED)
    trainer = made.trainer_spec
    trainer.vocab_size = len(tokens.names)
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = PAD, UNK, BOS, EOS
    trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = SPECIALS
    return made.SerializeToString(deterministic=True)


def convert_parameters(pretrained, tensors):
    """Yield the 2017 name of each variable, and its value."""
    hp, (source, target) = pretrained.hp, pretrained.sides
    tensors = {name: np.asarray(array, np.float32) for name, array in tensors.items()}
    order = np.argsort(unit_order(hp.hidden_units))  # back to the order here
    for theirs, ours, axis in layer_parameters(hp):
        array = tensors[theirs].T
        yield ours, array if axis is None else array.take(order, axis)
    bias = tensors["final_logits_bias"][0, target.rows] + np.array(target.added_bias, np.float32)
    yield "dense/bias", bias

    def table(tokens, *names):
        name = min(names, key=lambda name: name not in tensors)  # the first that the file has
        return tensors[name][tokens.rows][:, order]  # (V, C)

    if hp.joint_vocab:
        names = SHARED_TABLE, SOURCE_TABLE, *TARGET_TABLE
        yield "shared_embed/lookup_table", table(target, *names)
    else:
        yield "encoder/enc_embed/lookup_table", table(source, SOURCE_TABLE)
        yield "decoder/dec_embed/lookup_table", table(target, *TARGET_TABLE)
        yield "dense/kernel", table(target, *TARGET_TABLE).T


# Writing ------------------------------------------------------------


def write(loaded, path):
    """Write a `LoadedModel` into an empty folder."""
    hp, vocabs = loaded.hp, loaded.vocabs
    check_kind(hp, vocabs[0])
    save = import_optional("safetensors.numpy").save_file
    # transformers 4 refuses a file without this metadata.
    save(make_tensors(loaded.model), path / PARAMETERS, metadata={"format": "pt"})
    for name, vocab in zip(("source.spm", "target.spm"), vocabs, strict=True):
        (path / name).write_bytes(vocab.content)
    for name, content in json_files(hp, vocabs[1].tokens()).items():
        text = json.dumps(content, ensure_ascii=False, indent=2)
        (path / name).write_text(f"{text}\n", "utf-8")


def check_kind(hp, vocab):
    """Raise InputError if Marian has no such model, or the source vocabulary has --symbols.

    Symbols with a space before them are those of Marian itself.
    """
    kind = hp.model, hp.attention_score, hp.mask_from, hp.design.relu_projections, hp.residual
    kind += hp.positions, hp.normalization, hp.tied_embeddings
    usual = "transformer", "scaled_dot", "ids", False, True, "paired_sinusoid", "post", True
    if kind != usual:
        raise InputError(
            "Marian has no such model. Export with --format saved_model, or train with --positions"
            " paired_sinusoid --normalization post and one vocabulary for both languages"
        )
    for piece in ModelProto.FromString(vocab.content).pieces:
        if piece.type == KINDS.USER_DEFINED and not piece.piece.startswith("▁"):
            raise InputError(
                f"{vocab.path}: has the symbol {piece.piece}, which Hugging Face's tokenizer treats"
                " in another way. Export with --format saved_model"
            )


def json_files(hp, tokens) -> dict[str, dict]:
    """The contents of the files in JSON. Marian has other defaults, so each key is needed."""
    ids = dict(pad_token_id=PAD, bos_token_id=BOS, eos_token_id=EOS, decoder_start_token_id=BOS)
    sizes, ffn_units = {}, hp.ffn_units or 4 * hp.hidden_units
    for side, layers in hp.block_counts.items():
        of_side = dict(layers=layers, attention_heads=hp.num_heads, ffn_dim=ffn_units)
        sizes |= {f"{side}_{name}": size for name, size in of_side.items()}
    config = dict(
        architectures=["MarianMTModel"],
        model_type="marian",
        is_encoder_decoder=True,
        vocab_size=len(tokens),
        decoder_vocab_size=len(tokens),
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        d_model=hp.hidden_units,
        scale_embedding=True,
        activation_function=hp.design.ffn_activation,
        # <S>, and the longest translation of the longest source.
        max_position_embeddings=1 + hp.max_output_tokens(hp.max_input_tokens),
        dropout=hp.dropout_rate,
        attention_dropout=hp.weight_dropout,
        activation_dropout=0.0,
        forced_eos_token_id=None,
        use_cache=True,
        dtype="float32",
    )
    search = dict(
        num_beams=hp.beam,
        early_stopping=hp.beam > 1,
        max_length=MAX_GENERATED_TOKENS,
        bad_words_ids=[[PAD], [UNK]],
        no_repeat_ngram_size=hp.no_repeat_ngram,
    )
    tokenizer = dict(
        tokenizer_class="MarianTokenizer",
        source_lang=hp.source_lang,
        target_lang=hp.target_lang,
        unk_token=SPECIALS[UNK],
        bos_token=SPECIALS[BOS],
        eos_token=SPECIALS[EOS],
        pad_token=SPECIALS[PAD],
        model_max_length=hp.max_input_tokens,
        separate_vocabs=False,
        clean_up_tokenization_spaces=False,  # else the space before a period would be lost
    )
    return {
        CONFIG: ids | sizes | config,
        "generation_config.json": ids | search,
        "tokenizer_config.json": tokenizer,
        "vocab.json": {token: i for i, token in enumerate(tokens)},
    }


def make_tensors(model) -> dict:
    """The parameters of a built `Transformer` as those of `MarianMTModel`, by name."""
    hp, order = model.hp, unit_order(model.hp.hidden_units)
    variables = {name: v.numpy() for name, v in variables_by_2017_name(model).items()}
    table = model.enc_input.tokens.padded_table().numpy()[:, order]  # (V, C)
    bias = variables.get("dense/bias", np.zeros(len(table), np.float32))
    bias[PAD] = PAD_LOGIT
    tensors = {SHARED_TABLE: table, "final_logits_bias": bias[None]}
    for theirs, ours, axis in layer_parameters(hp):
        if ours not in variables:  # a model without W_O
            shape = np.eye if ours.endswith("kernel") else np.zeros
            variables[ours] = shape(hp.hidden_units, dtype=np.float32)
        array = variables[ours]
        tensors[theirs] = (array if axis is None else array.take(order, axis)).T
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}
