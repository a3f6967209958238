"""Checkpoints: saving, restoring, and reading those of the original.

A checkpoint is two files, `model_epoch_01_gs_430.index` and
`model_epoch_01_gs_430.data-00000-of-00001`. The file `checkpoint` beside them
names the newest, as TensorFlow has always done.
"""

import json
import os
import re
from pathlib import Path

import numpy as np
import tensorflow as tf

from hparams import InputError, write_whole

BEST = "best.json"  # names the checkpoint of the best dev BLEU
ENDINGS = (".data-00000-of-00001", ".index")  # the index last: it makes a checkpoint whole
NAME = re.compile(r"model_epoch_(\d+)_gs_(\d+)")
UNREADABLE = (tf.errors.OpError, ValueError, AssertionError, IndexError)


def named(logdir):
    """The checkpoints in `logdir` that bear our names, oldest first, Paths without endings."""
    paths = [index.with_suffix("") for index in Path(logdir).glob("*.index")]
    return sorted((path for path in paths if NAME.fullmatch(path.name)), key=epoch_and_step)


def newest(logdir):
    """The newest checkpoint in `logdir`, a Path without its endings, or None.

    What `checkpoint` says is looked for in `logdir` itself, wherever the folder
    stood in training; without that file, the newest by name.

    Raises:
      InputError: `checkpoint` names one that is not there.
    """
    state = Path(logdir) / "checkpoint"
    if not state.is_file():
        return (named(logdir) or [None])[-1]
    text = state.read_text("utf-8", errors="replace")
    found = re.search(r'model_checkpoint_path: "(?:.*[/\\])?([^"/\\]+)"', text)
    if not found:
        raise InputError(f"{state}: names no checkpoint: delete it, or copy the file again")
    path = Path(logdir) / found[1]
    if not Path(f"{path}.index").is_file():
        raise InputError(f"{state} names {path.name}, and {path}.index is not there: copy it again")
    return path


def require_newest(logdir):
    """`newest`, or an InputError that says what to do."""
    path = newest(logdir)
    if path is None:
        raise InputError(
            f"{logdir}: no checkpoint here: train a model with `python train.py`, or name the"
            " folder of one with --logdir"
        )
    return path


def damaged(path, error):
    """The InputError for a checkpoint that cannot be read."""
    path, state = Path(path), Path(path).parent / "checkpoint"
    way_out = "copy it again"
    before = last(path, 2)[:-1]
    if before:
        way_out += f", or write {before[0].name} into {state} in place of what is named there"
    reason = str(error).partition("\n")[0]
    return InputError(f"{path}: this checkpoint is damaged ({reason}): {way_out}")


# Our own -----------------------------------------------------------------------


def trackable(model, optimizer=None):
    """Everything a run goes on from: weights, and with an optimizer its state and dropout's.

    Each variable is put in by itself and by name. TensorFlow would follow the
    attributes of a Keras model, but not the lists of blocks among them, and leave
    out without a word what it does not reach.
    """
    parts = {"weights": {name: v.value for name, v in named_variables(model).items()}}
    if optimizer is not None:
        parts["optimizer"] = [v.value for v in optimizer.variables]
        parts["dropout"] = [v.value for v in model.non_trainable_variables]
    return tf.train.Checkpoint(**parts)


def save(parts, logdir, epoch, global_step, keep=5):
    """Write `parts`, a `trackable`, as the checkpoint of this epoch; returns its path.

    The `keep` newest stay, as the original's Saver kept five, and the best.
    """
    path = Path(logdir) / f"model_epoch_{epoch:02d}_gs_{global_step}"
    beside = parts.write(str(path.with_name("writing")))
    for ending in ENDINGS:
        os.replace(beside + ending, f"{path}{ending}")
    # Of those before this one: whoever went back to it may want those behind it.
    older = [other for other in named(logdir) if epoch_and_step(other) < (epoch, global_step)]
    kept = [*older, path][-keep:]
    lines = [f'model_checkpoint_path: "{path.name}"']
    lines += [f'all_model_checkpoint_paths: "{other.name}"' for other in kept]
    write_whole(Path(logdir) / "checkpoint", "\n".join(lines) + "\n")
    best, _ = read_best(logdir)
    for other in set(older) - {*kept, best}:
        for ending in reversed(ENDINGS):
            Path(f"{other}{ending}").unlink(missing_ok=True)
    return path


def write_best(path, bleu, dev):
    """Remember the checkpoint at `path` as the one with the best BLEU so far of the set `dev`."""
    best = dict(checkpoint=path.name, bleu=bleu, dev=dev)
    write_whole(path.with_name(BEST), json.dumps(best) + "\n")


def read_best(logdir, dev=None):
    """The checkpoint with the best BLEU of the set `dev`, or of whichever it was, and that BLEU.

    Returns:
      (Path, float); (None, -1.0) where there is none, or it is gone.

    Raises:
      InputError: the file that remembers it is damaged.
    """
    file = Path(logdir) / BEST
    if not file.exists():
        return None, -1.0
    try:
        best = json.loads(file.read_text("utf-8"))
        path, bleu = Path(logdir) / best["checkpoint"], float(best["bleu"])
        same = dev in (None, best["dev"])
    except (ValueError, TypeError, KeyError):
        raise InputError(f"{file}: names no checkpoint: delete it, or copy it again") from None
    there = NAME.fullmatch(path.name) and Path(f"{path}.index").exists()
    return (path, bleu) if same and there else (None, -1.0)


def require_best(logdir):
    """The checkpoint with the best dev BLEU, or an InputError that says what to do."""
    path, _ = read_best(logdir)
    if path is None:
        raise InputError(
            f"{logdir}: no checkpoint with a dev BLEU is here: train with --source_dev and"
            " --target_dev, or leave --best out"
        )
    return path


def last(path, count):
    """The checkpoint at `path` behind those of the epochs just before it, `count` at most.

    An epoch that is missing ends the row: the best one stays when its neighbours go.
    """
    if not NAME.fullmatch(path.name):
        return [path]
    epoch, row = epoch_and_step(path)[0], [path]
    for other in reversed(named(path.parent)):
        if epoch_and_step(other)[0] == epoch - len(row) and len(row) < count:
            row.insert(0, other)
    return row


def restore(parts, path):
    """Read the checkpoint at `path` into `parts`, a `trackable`.

    A checkpoint may hold more than `parts`, as one of a training does for a model alone.

    Raises:
      InputError: it is damaged, or does not fit.
    """
    try:
        parts.read(str(path)).assert_existing_objects_matched().expect_partial()
    except UNREADABLE as error:
        raise damaged(path, error) from None


def restore_mean(model, paths):
    """Read the mean of the weights of the checkpoints at `paths` into a built model.

    Raises:
      InputError: one of them is damaged, or does not fit.
    """
    parts, variables = trackable(model), model.trainable_variables
    sums = [np.zeros(variable.shape, variable.dtype) for variable in variables]
    for path in paths:
        restore(parts, path)
        for total, variable in zip(sums, variables, strict=True):
            total += variable.numpy()
    for total, variable in zip(sums, variables, strict=True):
        variable.assign(total / len(paths))


def epoch_and_step(path):
    """(epoch, global step) that the name of a checkpoint tells.

    >>> epoch_and_step("logdir/model_epoch_03_gs_1290")
    (3, 1290)

    Raises:
      InputError: it has another name.
    """
    numbers = NAME.fullmatch(Path(path).name)
    if not numbers:
        raise InputError(f"{path}: to go on, it must be named like model_epoch_03_gs_1290")
    return int(numbers[1]), int(numbers[2])


# Names -------------------------------------------------------------------------


def named_variables(model):
    """The weights of a built `Transformer` by the names that the 2017 code gave them.

    What that code did not have, the shared matrix and W_O, is named in its manner.
    """
    if model.enc_words.embed is model.dec_words.embed:
        names = {"shared_embed/lookup_table": model.enc_words.embed.lookup_table}
    else:
        names = {
            "encoder/enc_embed/lookup_table": model.enc_words.embed.lookup_table,
            "decoder/dec_embed/lookup_table": model.dec_words.embed.lookup_table,
            "dense/kernel": model.logits.kernel,
            "dense/bias": model.logits.bias,
        }
    if model.enc_words.pe.weights:
        names["encoder/enc_pe/lookup_table"] = model.enc_words.pe.lookup_table
        names["decoder/dec_pe/lookup_table"] = model.dec_words.pe.lookup_table
    for i, block in enumerate(model.enc_blocks):
        scope = f"encoder/num_blocks_{i}"
        names |= attention_names(block.self_attention, f"{scope}/multihead_attention")
        # feedforward's default scope is "multihead_attention" too: TensorFlow shared
        # the scope for its convolutions and numbered it anew for its normalisation.
        names |= feedforward_names(block.feedforward, scope, "multihead_attention_1")
    for i, block in enumerate(model.dec_blocks):
        scope = f"decoder/num_blocks_{i}"
        names |= attention_names(block.self_attention, f"{scope}/self_attention")
        names |= attention_names(block.vanilla_attention, f"{scope}/vanilla_attention")
        names |= feedforward_names(block.feedforward, scope, "multihead_attention")
    return names


def attention_names(attention, scope):
    names = normalize_names(attention.normalize, scope)
    dense = {"dense": attention.query, "dense_1": attention.key, "dense_2": attention.value}
    if attention.output_projection:
        dense["dense_3"] = attention.output_projection
    for name, layer in dense.items():
        names[f"{scope}/{name}/kernel"] = layer.kernel
        names[f"{scope}/{name}/bias"] = layer.bias
    return names


def feedforward_names(feedforward, scope, normalize_scope):
    names = normalize_names(feedforward.normalize, f"{scope}/{normalize_scope}")
    for name, layer in {"conv1d": feedforward.inner, "conv1d_1": feedforward.outer}.items():
        names[f"{scope}/multihead_attention/{name}/kernel"] = layer.kernel
        names[f"{scope}/multihead_attention/{name}/bias"] = layer.bias
    return names


def normalize_names(normalize, scope):
    return {
        f"{scope}/ln/Variable": normalize.beta,
        f"{scope}/ln/Variable_1": normalize.gamma,
    }


# The original's ----------------------------------------------------------------


def is_original(path):
    """Whether the original wrote this checkpoint (TensorFlow 1, names of variables)."""
    try:
        return tf.train.load_checkpoint(str(path)).has_tensor("encoder/enc_embed/lookup_table")
    except UNREADABLE as error:
        raise damaged(path, error) from None


def read_original(path):
    """The arrays of the original's checkpoint by their names, without Adam's slots."""
    try:
        reader = tf.train.load_checkpoint(str(path))
        names = [name for name in reader.get_variable_to_shape_map() if "Adam" not in name]
        arrays = {name: reader.get_tensor(name) for name in names}
    except UNREADABLE as error:
        raise damaged(path, error) from None
    if "decoder/dec_embed/lookup_table" not in arrays:
        raise InputError(f"{path}: this checkpoint of the original has no decoder")
    return arrays


def original_shape(arrays):
    """What the original's arrays tell of its hyperparameters, and its two vocabulary sizes.

    Returns:
      (dict, (int, int)): `num_heads` is not among them, no array tells it, nor is
      `maxlen` where the positions are sinusoids.
    """
    source_vocab, hidden_units = arrays["encoder/enc_embed/lookup_table"].shape
    target_vocab, _ = arrays["decoder/dec_embed/lookup_table"].shape
    num_blocks = len({name.split("/")[1] for name in arrays if "/num_blocks_" in name})
    shape = dict(hidden_units=hidden_units, num_blocks=num_blocks)
    shape["sinusoid"] = "encoder/enc_pe/lookup_table" not in arrays
    if not shape["sinusoid"]:
        shape["maxlen"] = arrays["encoder/enc_pe/lookup_table"].shape[0]
    return shape, (source_vocab, target_vocab)


def assign_original(model, arrays, source="the original's weights"):
    """Give a built `Transformer` the original's weights.

    A convolution of width 1 is a dense layer: its kernel (1, C_in, C_out) loses
    its first axis.

    Raises:
      InputError: an array is missing, or has another shape than the rest tell.
    """
    for name, variable in named_variables(model).items():
        if name not in arrays:
            raise InputError(f"{source}: the array {name} is missing")
        if arrays[name].size != np.prod(variable.shape):
            shape = tuple(arrays[name].shape)
            wanted = tuple(variable.shape)
            raise InputError(f"{source}: the array {name} has shape {shape}, not {wanted}")
        variable.assign(arrays[name].reshape(variable.shape))
