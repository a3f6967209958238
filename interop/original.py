"""Read the checkpoints of the 2017 code."""

import dataclasses

import numpy as np

from checkpoint import READ_ERRORS, open_checkpoint, restore_error
from hparams import Hyperparams, check_matches, make_hparams
from model import make_model
from runtime.errors import InputError
from variable_names import variables_by_2017_name
from vocab import WordVocab, fingerprints, load_vocabs


def load_original(path, given):
    """Load a model that the 2017 code trained.

    Args:
      given: dict, the flags that were given.

    Returns:
      (Hyperparams, Transformer, tuple): the tuple is that of `load_vocabs`.
    """
    arrays = read_original(path)
    model_args, vocab_sizes = infer_model_args(arrays)
    remedy = "Leave the flag out, or give a new --logdir"
    check_matches(path, original_hparams(model_args), given, remedy)
    hp = make_hparams(given | model_args)
    min_cnt = find_min_cnt(WordVocab.paths(hp), vocab_sizes, given.get("min_cnt"))
    hp = dataclasses.replace(hp, min_cnt=min_cnt)
    if "num_heads" not in given:
        print(
            f"{path}: assuming num_heads {hp.num_heads}, because the checkpoint does not record it"
            " (set --num_heads)"
        )
    model = make_model(hp, *vocab_sizes)
    assign_original(model, arrays, path)
    vocabs = load_vocabs(hp)
    return dataclasses.replace(hp, vocab_sha256=fingerprints(vocabs)), model, vocabs


def is_original(path) -> bool:
    """Whether a checkpoint was saved by the 2017 code: it has the names of TensorFlow 1."""
    try:
        with open_checkpoint(path) as reader:
            return reader.has_tensor("encoder/enc_embed/lookup_table")
    except READ_ERRORS as error:
        raise restore_error(path, error) from None


def read_original(path) -> dict:
    """Read the arrays of a checkpoint of the 2017 code by name, without Adam's state."""
    try:
        with open_checkpoint(path) as reader:
            names = [name for name in reader.get_variable_to_shape_map() if "Adam" not in name]
            arrays = {name: reader.get_tensor(name) for name in names}
    except READ_ERRORS as error:
        raise restore_error(path, error) from None
    if "decoder/dec_embed/lookup_table" not in arrays:
        raise InputError(
            f"{path}: this checkpoint of the 2017 code has no decoder. Use one of a Transformer"
        )
    return arrays


def infer_model_args(arrays):
    """Infer arguments of `Transformer` from the arrays of a checkpoint of the 2017 code.

    No array depends on `num_heads`, nor on `maxlen` if the positions are sinusoids. These
    two are then missing.

    Returns:
      (dict, (int, int)): the arguments, and the sizes of the two vocabularies.
    """
    source_vocab, hidden_units = arrays["encoder/enc_embed/lookup_table"].shape
    target_vocab, _ = arrays["decoder/dec_embed/lookup_table"].shape
    num_blocks = len({name.split("/")[1] for name in arrays if "/num_blocks_" in name})
    model_args = dict(hidden_units=hidden_units, num_blocks=num_blocks)
    if "encoder/enc_pe/lookup_table" in arrays:
        model_args["maxlen"], _ = arrays["encoder/enc_pe/lookup_table"].shape
    else:
        model_args |= dict(sinusoid=True, positions="sinusoid")
    return model_args, (source_vocab, target_vocab)


def original_hparams(model_args) -> dict:
    """The hyperparameters of a model of the 2017 code that its checkpoint or its code fixes.

    Args:
      model_args: dict of `infer_model_args`.
    """
    defaults = Hyperparams()
    fixed = {name: getattr(defaults, name) for name in ("recipe", "tokenizer", "sinusoid")}
    fixed |= {name: getattr(defaults, name) for name in ("best", "average_checkpoints")}
    fixed |= defaults.model_fields() | model_args
    for name in {"num_heads", "maxlen", "dropout_rate"} - model_args.keys():
        del fixed[name]
    return fixed


def assign_original(model, arrays, source="the 2017 model"):
    """Set the variables of a built `Transformer` to the arrays of a 2017 checkpoint.

    A convolution of width 1 is a dense layer: its kernel (1, C_in, C_out) loses the first
    axis.

    Args:
      source: path of the checkpoint, for messages.
    """
    for name, variable in variables_by_2017_name(model).items():
        if name not in arrays or arrays[name].size != np.prod(variable.shape):
            raise InputError(
                f"{source}: {name} is missing or has another shape. Copy the checkpoint again"
            )
        variable.assign(arrays[name].reshape(variable.shape))


def find_min_cnt(paths, vocab_sizes, min_cnt=None) -> int:
    """Find the largest `min_cnt` with which two vocabulary files have these sizes.

    Smaller ones with the same sizes keep the same words.

    Args:
      min_cnt: the only candidate, if the user gave one.
    """
    counts = [np.array([*WordVocab(path, min_cnt=0).word2cnt.values()]) for path in paths]
    candidates = np.unique(np.concatenate(counts))[::-1] if min_cnt is None else [min_cnt]
    for candidate in candidates:
        if [(side >= candidate).sum() for side in counts] == list(vocab_sizes):
            return int(candidate)
    tried = "no --min_cnt" if min_cnt is None else f"--min_cnt {min_cnt}"
    raise InputError(
        f"{paths[0]} and {paths[1]} are not the vocabularies of this model. It has"
        f" {vocab_sizes[0]} and {vocab_sizes[1]} words, but {tried} leaves that many of the"
        f" {len(counts[0])} and {len(counts[1])} in the files. Copy the model's own files there,"
        " or name their folder with --preprocessed"
    )
