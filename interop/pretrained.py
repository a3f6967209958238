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

import contextlib
import dataclasses
import functools
import hashlib
import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
from google.protobuf.message import DecodeError
from sentencepiece.sentencepiece_model_pb2 import ModelProto, TrainerSpec

from hparams import Hyperparams, make_hparams
from ids import BOS, EOS, PAD, SPECIALS, UNK
from interop.marian_names import PAD_LOGIT, layer_places, unit_order
from runtime.errors import MALFORMED_JSON, InputError
from runtime.files import check_regular_file, is_utf8, read_json
from runtime.flags import AUTO
from runtime.optional import import_optional
from vocab import SubwordVocab, fingerprints

CONFIG, PARAMETERS, PICKLED = "config.json", "model.safetensors", "pytorch_model.bin"
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
MAX_REASON_CHARS = 250  # of what a message repeats, since it may be long
UNSEEN_BIAS = -10.0  # of a token that Marian cannot write, below the bias of <UNK>
DOWNLOAD_AGAIN = "Download the folder again"


class Tokens(NamedTuple):
    """The tokens of a vocabulary in the order of their ids here."""

    names: list  # of str
    rows: list  # of int: which row of Marian's matrix each token has
    added_bias: list  # of float: 0, or added to Marian's bias of a token that Marian cannot write


class Pretrained(NamedTuple):
    """A model in the format of Hugging Face, before TensorFlow is loaded."""

    folder: Path
    hp: Hyperparams
    vocabs: tuple  # (Vocab, Vocab)
    sides: tuple  # (Tokens, Tokens), of source and target; the same object if they are joint
    num_rows: tuple  # (int, int), of Marian's matrices

    def describe(self) -> str:
        """Name the file of the parameters, for messages."""
        return PARAMETERS

    def identify(self) -> str:
        """Return a digest of that file, to compare between workers."""
        with open(self.folder / PARAMETERS, "rb") as file:
            return f"{PARAMETERS} ({hashlib.file_digest(file, 'sha256').hexdigest()[:8]})"

    def restore(self, model):
        """Set the parameters of a built model."""
        from variable_names import variables_by_2017_name

        variables = variables_by_2017_name(model)
        with open_parameters(self) as read:
            for name, array in convert_parameters(self, read):
                variables[name].assign(array)


def is_pretrained(folder) -> bool:
    """Whether a folder looks like a model in the format of Hugging Face."""
    return (Path(folder) / CONFIG).is_file()


def read_pretrained(folder, flags) -> Pretrained:
    """Read the settings and vocabularies, and check the names and shapes of the parameters.

    Args:
      flags: dict, those of the command line.
    """
    folder = Path(folder)
    config = read_settings(folder / CONFIG)
    fields = model_fields(folder / CONFIG, config)
    fields |= languages(folder, flags)
    try:
        hp = make_hparams(fields)
    except InputError as error:
        raise InputError(f"{folder / CONFIG}: {cut(error)}") from None
    joint = hp.joint_vocab
    keys = dict(pad="pad_token_id", eos="eos_token_id", start="decoder_start_token_id")
    special = {name: require(folder / CONFIG, config, key, int) for name, key in keys.items()}
    num_rows = (config["vocab_size"], config.get("decoder_vocab_size", config["vocab_size"]))
    models = [read_sentencepiece(folder / f"{side}.spm") for side in ("source", "target")]
    names = ["vocab.json", "vocab.json" if joint else "target_vocab.json"]
    if joint:
        tokens = arrange_tokens(folder / names[0], special, num_rows[0], models)
        sides = tokens, tokens
    else:
        sides = tuple(
            arrange_tokens(folder / name, special, count, [model])
            for name, count, model in zip(names, num_rows, models, strict=True)
        )
    contents = [
        make_sentencepiece(folder / f"{name}.spm", model, tokens, name == "source")
        for name, model, tokens in zip(("source", "target"), models, sides, strict=True)
    ]
    vocabs = load_sentencepiece_models(folder, hp, contents)
    size = len(vocabs[0]) if joint else AUTO  # two may differ
    chosen = dict(vocab_size=size, vocab_sha256=fingerprints(vocabs), given={})
    hp = dataclasses.replace(hp, **chosen, logdir=str(folder))
    pretrained = Pretrained(folder, hp, vocabs, sides, num_rows)
    with open_parameters(pretrained):
        return pretrained


# Settings ----------------------------------------------------------------------


def read_settings(path) -> dict:
    """Read a JSON file that holds an object."""
    try:
        content = read_json(path)
        if not isinstance(content, dict):
            raise ValueError("it is not an object")
    except (OSError, *MALFORMED_JSON) as error:
        raise InputError(f"{path}: cannot be read ({cut(error)}). {DOWNLOAD_AGAIN}") from None
    return content


def cut(value) -> str:
    """Return the beginning of a value as text."""
    return str(value)[:MAX_REASON_CHARS]


def require(path, settings, name, kind, default=None):
    """Return a value of a settings file; raise InputError if it is missing or of another type."""
    value = settings.get(name, default)
    if not isinstance(value, kind) or isinstance(value, bool) != (kind is bool):
        raise InputError(f"{path}: {name} is {cut(repr(value))}, of another type. {DOWNLOAD_AGAIN}")
    return value


def model_fields(path, config) -> dict:
    """Return the hyperparameters that config.json describes, after checks."""
    kind = config.get("model_type")
    if kind != "marian":
        raise InputError(
            f"{path}: describes a model of the type {cut(repr(kind))}. --start_from reads models"
            " of the type 'marian', and folders of train.py"
        )
    get = functools.partial(require, path, config)
    sizes = {name: get(f"encoder_{name}", int) for name in ("attention_heads", "ffn_dim")}
    for name, size in sizes.items():
        if (other := get(f"decoder_{name}", int)) != size:
            raise InputError(
                f"{path}: encoder_{name} is {size}, and decoder_{name} is {other}. Only models"
                " where both are equal can be read"
            )
    usual = dict(  # settings that only old files have, with their usual values
        normalize_before=False,
        normalize_embedding=False,
        add_final_layer_norm=False,
        static_position_embeddings=True,
        tie_word_embeddings=True,
    )
    needed = {name: (value,) for name, value in usual.items()}
    needed |= dict(activation_function=(*ACTIVATION_NAMES,), scale_embedding=(True,))
    for name, values in needed.items():
        value = config.get(name, usual.get(name))
        if value not in values:
            raise InputError(
                f"{path}: {name} is {cut(repr(value))}. Only models with"
                f" {' or '.join(map(repr, values))} can be read"
            )
    joint = get("share_encoder_decoder_embeddings", bool, True)
    size = get("vocab_size", int)
    if get("decoder_vocab_size", int, size) != size and joint:
        raise InputError(f"{path}: one vocabulary has two sizes. {DOWNLOAD_AGAIN}")
    return dict(
        recipe="paper",
        maxlen=get("max_position_embeddings", int),
        hidden_units=get("d_model", int),
        ffn_units=sizes["ffn_dim"],
        ffn_activation=ACTIVATION_NAMES[config["activation_function"]],
        num_blocks=get("encoder_layers", int),
        decoder_blocks=get("decoder_layers", int),
        num_heads=sizes["attention_heads"],
        positions="paired_sinusoid",
        joint_vocab=joint,
        tied_embeddings=joint,
        output_bias=joint,
        pad_logit=False,
        dropout_on="sublayers",
        dropout_rate=get("dropout", (int, float), 0.0),
        attention_dropout=get("attention_dropout", (int, float), 0.0),
        ffn_dropout=get("activation_dropout", (int, float), 0.0),
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
                f"{path}: {name} is {cut(repr(lang))}, not the code of one language. Add --{name}"
            )
        langs[name] = lang
    return langs


# Vocabularies --------------------------------------------------------------------


def read_sentencepiece(path) -> ModelProto:
    """Read a sentencepiece model. The vocabulary that is made of it is checked."""
    try:
        model = ModelProto.FromString(path.read_bytes())
        if not all(isinstance(piece.piece, str) for piece in model.pieces):  # else they are bytes
            raise ValueError("a subword is not UTF-8")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror.lower()}. {DOWNLOAD_AGAIN}") from None
    except (DecodeError, ValueError) as error:
        problem = f"not a sentencepiece model ({cut(error)})"
        raise InputError(f"{path}: {problem}. {DOWNLOAD_AGAIN}") from None
    if model.trainer_spec.model_type not in (TrainerSpec.UNIGRAM, TrainerSpec.BPE):
        raise InputError(f"{path}: splits text neither into unigrams nor by BPE. {DOWNLOAD_AGAIN}")
    return model


def arrange_tokens(path, special, num_rows, models) -> Tokens:
    """Give each token its id here: the special ones first, then those of a vocabulary file.

    The sentencepiece models may have subwords that the file lacks. Marian reads them as `<UNK>`,
    and never writes them. Here each is a token of its own, with the vector of `<UNK>` and a low
    bias, which training can raise.

    Args:
      path: vocab.json.
      special: dict, the rows of the tokens pad, eos and start.
      num_rows: of Marian's matrix.
      models: the sentencepiece models.
    """
    ids = read_settings(path)
    if not is_utf8("".join(ids)):
        raise InputError(f"{path}: a token is not UTF-8. {DOWNLOAD_AGAIN}")
    valid = all(isinstance(i, int) and 0 <= i < num_rows for i in ids.values())
    if not valid or len({*ids.values()}) < len(ids):
        raise InputError(
            f"{path}: the ids are not different numbers from 0 to {num_rows - 1}. {DOWNLOAD_AGAIN}"
        )
    unknown = next((ids[name] for name in ("<unk>", SPECIALS[UNK]) if name in ids), num_rows)
    rows = special["pad"], unknown, special["start"], special["eos"]  # in the order of `ids`
    if not all(0 <= row < num_rows for row in rows):
        raise InputError(f"{path}: lacks a special token. {DOWNLOAD_AGAIN}")
    ordinary = sorted((i, name) for name, i in ids.items() if name not in SPECIAL_NAMES)
    pieces = [piece.piece for model in models for piece in usual_pieces(model)]
    missing = [name for name in dict.fromkeys(pieces) if name not in ids]
    # Most models have no token of their own for the start.
    has_start = special["start"] in [ids.get(name) for name in START_NAMES]
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


def make_sentencepiece(path, model, tokens, is_source) -> bytes:
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
    unused = sum(piece.type == kinds.UNUSED for piece in made.pieces)
    if trainer.model_type == trainer.BPE and unused:
        raise InputError(
            f"{path}: lacks {unused} tokens of the vocabulary, which BPE would join. Only unigrams"
            " can be read where the two languages differ"
        )
    trainer.vocab_size = len(tokens.names)
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = PAD, UNK, BOS, EOS
    trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = SPECIALS
    return made.SerializeToString(deterministic=True)


def load_sentencepiece_models(folder, hp, contents) -> tuple:
    """Load the vocabularies, which are in no file of the folder.

    Args:
      contents: list of bytes, the sentencepiece models of source and target.
    """
    two = {"bpe.source": ""} if hp.joint_vocab else {}
    paths = SubwordVocab.paths(dataclasses.replace(hp, vocab_sha256=two))
    with tempfile.TemporaryDirectory() as temporary:
        vocabs = []
        for path, content in zip(paths, contents, strict=True):
            copy = Path(temporary) / path.name
            copy.write_bytes(content)
            try:
                vocabs.append(SubwordVocab(copy))
            except InputError as error:
                raise InputError(str(error).replace(temporary, str(folder))) from None
            vocabs[-1].path = folder / path.name
    return tuple(vocabs)


# Parameters --------------------------------------------------------------------


@contextlib.contextmanager
def open_parameters(pretrained):
    """Context manager: a function that returns a tensor of model.safetensors by its name.

    The names and shapes are checked before.
    """
    path, pickled = pretrained.folder / PARAMETERS, pretrained.folder / PICKLED
    if pickled.exists() and not path.exists():
        raise InputError(
            f"{pickled}: is a file of pickled objects, which can run any program when it is read."
            f" Convert it to {PARAMETERS} with transformers: load the model with"
            " AutoModelForSeq2SeqLM.from_pretrained, and save it with save_pretrained"
        )
    if not path.exists():
        raise InputError(f"{path}: no such file. Save all parameters in one file of this name")
    check_regular_file(path, f"the parameters are needed. {DOWNLOAD_AGAIN}")
    safetensors = import_optional("safetensors")
    try:
        with safetensors.safe_open(path, framework="numpy") as file:
            check_shapes(path, file, expected_shapes(pretrained))
            yield functools.partial(read_tensor, path, file)
    except (OSError, safetensors.SafetensorError) as error:
        raise InputError(f"{path}: cannot be read ({cut(error)}). {DOWNLOAD_AGAIN}") from None


def check_shapes(path, file, expected):
    """Raise InputError unless an open safetensors file has these shapes, a dict by name."""
    for name, shape in expected.items():
        stored = stored_name(file, name)
        found = tuple(file.get_slice(stored).get_shape()) if stored else "missing"
        if found != shape:
            raise InputError(
                f"{path}: {name} is {found}, and {CONFIG} describes {shape}. {DOWNLOAD_AGAIN}"
            )


def stored_name(file, name) -> str | None:
    """Return the name that a tensor has in an open safetensors file; None if it is missing."""
    present = {*file.keys()}
    return next((tied for tied in (name, *TIED.get(name, ())) if tied in present), None)


def read_tensor(path, file, name):
    """Read a tensor of an open safetensors file as float32."""
    try:
        array = np.asarray(file.get_tensor(stored_name(file, name)), np.float32)
    except (TypeError, ValueError) as error:
        raise InputError(f"{path}: {name} cannot be read ({error}). {DOWNLOAD_AGAIN}") from None
    if not np.isfinite(array).all():
        raise InputError(f"{path}: {name} is not finite. {DOWNLOAD_AGAIN}")
    return array


def embedding_names(hp) -> tuple[str, str]:
    """Return the names of Marian's matrices for source and target tokens."""
    if hp.joint_vocab:
        return ("model.shared.weight",) * 2
    return "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"


def expected_shapes(pretrained) -> dict:
    """Return the shapes of all parameters that are read, by name."""
    hp, C = pretrained.hp, pretrained.hp.hidden_units
    shapes = {"final_logits_bias": (1, pretrained.num_rows[1])}
    for name, count in zip(embedding_names(hp), pretrained.num_rows, strict=True):
        shapes[name] = (count, C)
    for name in layer_places(hp):
        *_, layer, kind = name.split(".")
        outputs = (hp.ffn_units if layer == "fc1" else C,)
        inputs = (hp.ffn_units if layer == "fc2" else C,)
        is_matrix = kind == "weight" and not layer.endswith("layer_norm")
        shapes[name] = outputs + inputs if is_matrix else outputs
    return shapes


def convert_parameters(pretrained, read):
    """Yield the name of each variable, as in `variables_by_2017_name`, and its value.

    Args:
      read: function that returns a tensor of Marian by its name.
    """
    hp, target = pretrained.hp, pretrained.sides[1]
    order = np.argsort(unit_order(hp.hidden_units))  # back to the order here
    for name, (variable, unit_axes) in layer_places(hp).items():
        array = read(name).T
        for axis in unit_axes:
            array = array.take(order, axis)
        yield variable, array
    bias = read("final_logits_bias")[0, target.rows] + np.array(target.added_bias, np.float32)
    yield "dense/bias", bias
    source_table, target_table = (
        read(name)[side.rows][:, order]
        for name, side in zip(embedding_names(hp), pretrained.sides, strict=True)
    )
    if hp.joint_vocab:
        yield "shared_embed/lookup_table", source_table
    else:
        yield "encoder/enc_embed/lookup_table", source_table
        yield "decoder/dec_embed/lookup_table", target_table
        yield "dense/kernel", target_table.T
