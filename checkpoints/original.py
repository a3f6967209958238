"""Read the checkpoints of the 2017 code."""

import dataclasses
import re
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from checkpoints.checkpoint import assign
from checkpoints.names_2017 import variables_by_2017_name
from hparams import Hyperparams, check_fixed, make_hparams
from model.transformer import make_model
from support.errors import InputError
from text.vocab import WordVocab, load_vocabs


def load_original(given):
    """Load a model of the 2017 code: the fields of a `LoadedModel`.

    TensorFlow reads the checkpoint. Its format is not safe against files that were made to do harm.
    """
    path = find_newest(given.get("logdir", Hyperparams.logdir))
    arrays = read_original(path)
    model_args, vocab_sizes = infer_model_args(arrays)
    check_fixed(path, model_args, given)
    hp = make_hparams(given | model_args)
    min_cnt = find_min_cnt(WordVocab.paths(hp.preprocessed, hp), vocab_sizes, given.get("min_cnt"))
    hp = dataclasses.replace(hp, min_cnt=min_cnt)
    if "num_heads" not in given:
        note = f"assuming --num_heads {hp.num_heads}, because the checkpoint does not record it"
        print(f"{path}: {note}", file=sys.stderr)
    model = make_model(hp, *vocab_sizes)
    variables = variables_by_2017_name(model)
    assign(variables, {name: arrays[name] for name in variables.keys() & arrays}, path)
    return [path], hp, model, load_vocabs(hp.preprocessed, hp)


def find_newest(logdir) -> Path:
    """Return the newest checkpoint in a folder, without the suffixes of its files."""
    paths = [path.with_suffix("") for path in Path(logdir).glob("*.index")]
    steps = {path: int(re.search("[0-9]*$", path.name)[0] or 0) for path in paths}
    if not steps:
        problem = "holds no checkpoint of the 2017 code, and no hparams.json of a newer one"
        raise InputError(f"{logdir}: {problem}. Train a model, or name its folder with --logdir")
    return max(steps, key=steps.get)


def read_original(path) -> dict:
    """Read the arrays of a checkpoint of the 2017 code by name, without Adam's state.

    A convolution of width 1 is a dense layer: its kernel (1, C_in, C_out) loses the first axis.
    """
    try:
        reader = tf.train.load_checkpoint(str(path))
        names = [name for name in reader.get_variable_to_shape_map() if "Adam" not in name]
        arrays = {name: reader.get_tensor(name) for name in names}
    except (ValueError, RuntimeError, tf.errors.OpError) as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"{path}: cannot be read ({reason}). Copy its files again") from None
    if not {"encoder/enc_embed/lookup_table", "decoder/dec_embed/lookup_table"} <= arrays.keys():
        problem = "not a checkpoint of a Transformer of the 2017 code"
        raise InputError(f"{path}: {problem}. Name the folder of a model, with its hparams.json")
    return {name: array[0] if array.ndim == 3 else array for name, array in arrays.items()}


def infer_model_args(arrays):
    """Infer the fields of a model of the 2017 code, a dict, and the sizes of both vocabularies.

    No array depends on `num_heads`, nor on `maxlen` if the positions are sinusoids.
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


def find_min_cnt(paths, vocab_sizes, min_cnt) -> int:
    """Find the `min_cnt` with which two vocabulary files have these sizes; it may be given."""
    counts = [np.array([*WordVocab(path, min_cnt=0).word2cnt.values()]) for path in paths]
    candidates = np.unique(np.concatenate(counts)) if min_cnt is None else [min_cnt]
    for candidate in candidates:
        if [(side >= candidate).sum() for side in counts] == list(vocab_sizes):
            return int(candidate)
    raise InputError(
        f"{paths[0]}: this model has other vocabularies, of {vocab_sizes} words. Name the folder of"
        " its own with --preprocessed, or give the right --min_cnt"
    )
