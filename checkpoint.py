"""Checkpoints: saving, restoring, and reading those of the original.

A checkpoint is two files, `model_epoch_01_gs_430.index` and
`model_epoch_01_gs_430.data-00000-of-00001`; the name of one made within its epoch
ends in `_partial`. The file `checkpoint` beside them names the newest, as TensorFlow
has always done.
"""

import contextlib
import fcntl
import json
import math
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from hparams import InputError, hparams_path, rename, to_disk, write_whole

WRITING = "unfinished_checkpoint"  # what a checkpoint is called until it is whole
SCORES = "dev_bleu.json"  # the dev BLEU of each epoch
ENDINGS = (".data-00000-of-00001", ".index")  # the index last: it makes a checkpoint whole
NAME = re.compile(r"model_epoch_([0-9]{1,9})_gs_([0-9]{1,18})(_partial)?")
# The 2017 code's names are ours, or those that TensorFlow 1 chose for it.
ORIGINAL_NAME = re.compile(r"model\.ckpt(-[0-9]+)?")
UNREADABLE = (tf.errors.OpError, ValueError, AssertionError, IndexError)
# Errors that do not prove that a file is damaged.
OUTSIDE_CAUSES = (
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.FailedPreconditionError,
)


def named(logdir):
    """The checkpoints in `logdir` that bear our names, oldest first, Paths without endings."""
    paths = [index.with_suffix("") for index in Path(logdir).glob("*.index")]
    return sorted((path for path in paths if NAME.fullmatch(path.name)), key=place)


def newest(logdir):
    """The newest checkpoint in `logdir`, a Path without its endings, or None.

    The one that the file `checkpoint` names is looked for in `logdir` itself, wherever the
    folder was in training. Without that file, it is the newest by name. The files may come
    from someone else: only names of checkpoints are followed.

    Raises:
      InputError: `logdir` is a file, or `checkpoint` names no checkpoint, or one that is
        missing.
    """
    logdir = Path(logdir)
    if logdir.is_file() or not logdir.exists() and Path(f"{logdir}.index").exists():
        raise InputError(f"{logdir}: a file; --logdir names a folder, as {logdir.parent}")
    state = logdir / "checkpoint"
    if not state.is_file():
        return (named(logdir) or [None])[-1]
    text = state.read_text("utf-8", errors="replace")
    found = re.search(r'model_checkpoint_path: "(?:.*[/\\])?([^"/\\]+)"', text)
    if not found:
        raise InputError(f"{state}: names no checkpoint. Delete it, or copy the file again")
    if not (NAME.fullmatch(found[1]) or ORIGINAL_NAME.fullmatch(found[1])):
        raise InputError(
            f"{state}: names {found[1]!r}, and a checkpoint is called like model_epoch_03_gs_1290."
            f" Delete the file if {logdir} is yours, and do not use the folder if it is not"
        )
    path = logdir / found[1]
    if not index_exists(path):
        if state.read_text("utf-8", errors="replace") != text:
            return newest(logdir)  # a training has written and deleted since
        raise InputError(
            f"{state}: names {path.name}, and there is no {path}.index. Copy it again, or delete"
            f" {state}, and the newest checkpoint of the folder is used"
        )
    return path


def newest_whole(logdir):
    """`newest`, or where that is damaged the one before it, after a message.

    A training may delete a checkpoint while it is read here. It has written a newer one
    before that, which is then read instead.

    Raises:
      InputError: there are checkpoints, and none of them can be read.
    """
    path = newest(logdir)
    if path is None:
        return None
    before = []
    if NAME.fullmatch(path.name):
        before = [other for other in named(logdir) if place(other) < place(path)]
    while error := unreadable(path):
        if not index_exists(path):
            return newest_whole(logdir)
        if not before or not is_damage(error):
            raise not_restored(path, error)
        print(f"{damaged(path, error)}. Using the one before it", file=sys.stderr)
        path = before.pop()
    return path


def index_exists(path):
    """Whether a checkpoint is there: its index is written last, and deleted first."""
    return Path(f"{path}.index").exists()


def require_newest(logdir):
    """`newest_whole`, or an InputError that says what to do."""
    path = newest_whole(logdir)
    if path is None:
        raise InputError(
            f"{logdir}: no checkpoint here: train a model with `python train.py`, or name the"
            " folder of one with --logdir"
        )
    return path


def unreadable(path):
    """Why the checkpoint at `path` cannot be read, or None. TensorFlow keeps checksums of it."""
    try:
        with open_checkpoint(path) as reader:
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
    except UNREADABLE as error:
        return error
    return None


@contextlib.contextmanager
def literal_path(path):
    """A path of the same checkpoint that TensorFlow does not take for a pattern of names.

    TensorFlow writes to `run[1]/model`, and finds no file of that name when it reads.
    """
    if not set("*?[]\\") & set(str(path)):
        yield str(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "logdir"
        link.symlink_to(path.parent.resolve(), target_is_directory=True)
        yield str(link / path.name)


@contextlib.contextmanager
def open_checkpoint(path):
    """TensorFlow's reader of the checkpoint at `path`."""
    with literal_path(path) as name:
        yield tf.train.load_checkpoint(name)


def is_damage(error):
    """Whether an error of reading proves that the file is damaged."""
    return not isinstance(error, OUTSIDE_CAUSES)


def damaged(path, error):
    """The message of a checkpoint that cannot be read."""
    reason = str(error).partition("\n")[0]
    state = "is damaged" if is_damage(error) else "cannot be read"
    return f"{path}: this checkpoint {state} ({reason})"


def not_restored(path, error):
    """The InputError of a checkpoint that cannot be read."""
    remedy = "Copy its two files again"
    if is_damage(error):
        remedy += f"; without a copy, delete them and {path.with_name('checkpoint')}"
    return InputError(f"{damaged(path, error)}. {remedy}")


@contextlib.contextmanager
def lock(logdir):
    """Keep other trainings out of `logdir`, for as long as this process has it.

    Raises:
      InputError: another one is in there.
    """
    with open(Path(logdir) / "lock", "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # which ends with its process
        except BlockingIOError:
            file.seek(0)
            raise InputError(
                f"{logdir}: another training writes here (process {file.read().strip()}): wait"
                " for it, or give a new --logdir"
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        discard(Path(logdir) / WRITING)  # what is there is of one that was killed
        yield


# Our own -----------------------------------------------------------------------


def trackable(model, optimizer=None, progress=None):
    """Everything a run goes on from: weights; in training, the optimizer's state, and dropout's.

    Each variable is put in by itself and by name. TensorFlow would follow the
    attributes of a Keras model, but not the lists of blocks among them, and leave
    out without a word what it does not reach.

    Args:
      progress: tf.Variables, what else the training must know.
    """
    parts = {"weights": {name: v.value for name, v in named_variables(model).items()}}
    if optimizer is not None:
        parts["optimizer"] = [v.value for v in optimizer.variables]
        parts["dropout"] = [v.value for v in model.non_trainable_variables]
    if progress is not None:
        parts["progress"] = progress
    return tf.train.Checkpoint(**parts)


def save(parts, logdir, epoch, global_step, keep=5, partial=False):
    """Write `parts`, a `trackable`, as a checkpoint; returns its path.

    Of those at the end of an epoch the `keep` newest stay, as the original's Saver kept
    five, and the best; of those within an epoch the two newest, until it ends.

    Args:
      partial: whether this is within the epoch, and not its end.

    Raises:
      OSError: it cannot be written; what there was before is untouched.
    """
    path = path_at(logdir, epoch, global_step, partial)
    beside = write(parts, path.with_name(WRITING))
    for ending in ENDINGS:
        rename(f"{beside}{ending}", f"{path}{ending}")
    # Of those before this one: whoever went back to it may want those behind it.
    before = [other for other in named(logdir) if place(other) < place(path)]
    ends = [other for other in [*before, path] if not is_partial(other)][-keep:]
    kept = [*ends, *filter(is_partial, before[-1:]), path] if partial else ends
    delete_orphans(logdir, path)
    lines = [f'model_checkpoint_path: "{path.name}"']
    lines += [f'all_model_checkpoint_paths: "{other.name}"' for other in kept]
    write_whole(Path(logdir) / "checkpoint", "\n".join(lines) + "\n")
    for other in set(before) - {*kept, best(logdir)}:
        for ending in reversed(ENDINGS):
            Path(f"{other}{ending}").unlink(missing_ok=True)
    return path


def delete_orphans(logdir, path):
    """Delete data files without an index, which a kill between two steps has left.

    Only those of checkpoints before the one at `path`: someone may be copying others.
    """
    for data in Path(logdir).glob(f"*{ENDINGS[0]}"):
        other = data.with_name(data.name.removesuffix(ENDINGS[0]))
        if NAME.fullmatch(other.name) and place(other) < place(path) and not index_exists(other):
            data.unlink(missing_ok=True)


def write(parts, path):
    """Write a checkpoint through to the disk, or nothing; returns its path."""
    try:
        parts.write(str(path))
        for ending in ENDINGS:
            to_disk(f"{path}{ending}")
    except (OSError, tf.errors.OpError) as error:
        discard(path)
        reason = str(error).partition("\n")[0]
        raise OSError(
            f"{path.parent}: no checkpoint can be written ({reason}); the last one is untouched"
        ) from None
    return path


def discard(path):
    """Delete all files of a checkpoint that is not whole."""
    for left in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def write_scores(logdir, scores, dev):
    """Write the file that `read_scores` reads.

    Args:
      dev: what identifies the development set, a str.
    """
    write_whole(Path(logdir) / SCORES, json.dumps(dict(dev=dev, bleu=scores), indent=2) + "\n")


def read_scores(logdir, dev=None):
    """The BLEU after each epoch of the development set `dev`, or of any if that is None.

    Returns:
      dict: by the name of a checkpoint, in the order of the epochs.

    Raises:
      InputError: the file that remembers them is damaged.
    """
    file = Path(logdir) / SCORES
    if not file.exists():
        return {}
    try:
        content = json.loads(file.read_text("utf-8"))
        scores = {name: float(bleu) for name, bleu in content["bleu"].items()}
        known = content["dev"]
        for name, bleu in scores.items():
            place(name)  # which refuses what is no checkpoint's
            if not math.isfinite(bleu):
                raise ValueError(name)
    except (ValueError, TypeError, KeyError, AttributeError, InputError):
        raise InputError(f"{file}: holds no BLEU: delete it, or copy it again") from None
    return scores if dev in (None, known) else {}


def best(logdir):
    """The checkpoint with the best dev BLEU of those that are there, or None."""
    there = {other.name for other in named(logdir)}
    scores = {name: bleu for name, bleu in read_scores(logdir).items() if name in there}
    return Path(logdir) / max(scores, key=scores.get) if scores else None


def require_best(logdir):
    """`best`, or an InputError that says what to do."""
    path = best(logdir)
    if path is None:
        raise InputError(
            f"{logdir}: no checkpoint with a dev BLEU is here: train with --source_dev and"
            " --target_dev, or leave --best out"
        )
    return path


def last(path, count):
    """The checkpoint at `path` behind those at the ends of the epochs just before it.

    They are `count` at most, and an epoch that is missing ends the row: the best one
    stays when its neighbours go.
    """
    if not NAME.fullmatch(path.name):
        return [path]
    (epoch, _), row = epoch_and_step(path), [path]
    ends = {
        epoch_and_step(other)[0]: other for other in named(path.parent) if not is_partial(other)
    }
    while len(row) < count and epoch - len(row) in ends:
        row.insert(0, ends[epoch - len(row)])
    return row


def restore(parts, path):
    """Read the checkpoint at `path` into `parts`, a `trackable`.

    A checkpoint may hold more than `parts`, as one of a training does for a model alone.

    Raises:
      InputError: it is damaged, or does not fit.
    """
    try:
        refuse_other_weights(parts, path)
        with literal_path(path) as name:
            parts.read(name).assert_existing_objects_matched().expect_partial()
    except UNREADABLE as error:
        raise not_restored(path, error) from None


def refuse_other_weights(parts, path):
    """Raise InputError where the weights at `path` have other names or shapes than in `parts`."""
    with open_checkpoint(path) as reader:
        shapes = reader.get_variable_to_shape_map()
    saved = {name: shape for name, shape in shapes.items() if name.startswith("weights/")}
    expected = {saved_name(name): [*weight.shape] for name, weight in parts.weights.items()}
    differing = [name for name in saved.keys() | expected if saved.get(name) != expected.get(name)]
    if differing:
        raise other_weights_error(path, min(differing), saved, expected, len(differing))


def other_weights_error(path, name, saved, expected, count):
    """The InputError of a checkpoint whose weights are not those of the model.

    Args:
      name: one of the weights that differ, of which there are `count`.
      saved, expected: shapes by name, in the checkpoint and in the model.
    """
    return InputError(
        f"{path}: these are not the weights of the model that {hparams_path(path.parent)} describes"
        f" ({count} differ; {name.split('/')[1].replace('.S', '/')} has the shape"
        f" {saved.get(name)} here and {expected.get(name)} there). The two files belong to"
        " different trainings: put those of one training there"
    )


def check_sizes(hp, vocab_sizes, path):
    """Check the sizes that decide how large a model is, before it is built.

    A file of hyperparameters that someone else wrote may ask for more memory than there is.

    Args:
      vocab_sizes: (int, int), of source and target.

    Raises:
      InputError: the checkpoint at `path` has other sizes, or cannot be read.
    """
    try:
        with open_checkpoint(path) as reader:
            saved = reader.get_variable_to_shape_map()
    except UNREADABLE as error:
        raise not_restored(path, error) from None
    embed = ["encoder/enc_embed", "decoder/dec_embed"]
    expected = {
        saved_name(f"{name}/lookup_table"): [size, hp.hidden_units]
        for name, size in zip(
            ["shared_embed"] * 2 if hp.shared else embed, vocab_sizes, strict=True
        )
    }
    if not hp.sinusoid:
        expected[saved_name("encoder/enc_pe/lookup_table")] = [hp.maxlen, hp.hidden_units]
    ffn_units = hp.ffn_units or 4 * hp.hidden_units
    for block in (0, hp.num_blocks - 1):
        inner = f"decoder/num_blocks_{block}/multihead_attention/conv1d/kernel"
        expected[saved_name(inner)] = [hp.hidden_units, ffn_units]
    differing = [name for name, shape in expected.items() if saved.get(name) != shape]
    if differing:
        raise other_weights_error(path, min(differing), saved, expected, len(differing))


def saved_name(name):
    """What TensorFlow calls a weight of `trackable` within a checkpoint."""
    return f"weights/{name.replace('.', '..').replace('/', '.S')}/.ATTRIBUTES/VARIABLE_VALUE"


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


def path_at(logdir, epoch, global_step, partial=False):
    """The path of a checkpoint, without its endings."""
    return Path(logdir) / f"model_epoch_{epoch:02d}_gs_{global_step}{'_partial' * partial}"


def is_partial(path):
    """Whether a checkpoint was made within its epoch, and not at the end."""
    return Path(path).name.endswith("_partial")


def epochs_done(path):
    """How many epochs were whole at a checkpoint."""
    return epoch_and_step(path)[0] - is_partial(path)


def place(path):
    """What checkpoints are sorted by, the oldest first."""
    return *epoch_and_step(path), not is_partial(path)


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
    """The weights of a `MultiheadAttention` by name."""
    names = normalize_names(attention.normalize, scope)
    dense = {"dense": attention.query, "dense_1": attention.key, "dense_2": attention.value}
    if attention.output_projection:
        dense["dense_3"] = attention.output_projection
    for name, layer in dense.items():
        names[f"{scope}/{name}/kernel"] = layer.kernel
        names[f"{scope}/{name}/bias"] = layer.bias
    return names


def feedforward_names(feedforward, scope, normalize_scope):
    """The weights of a `Feedforward` by name."""
    names = normalize_names(feedforward.normalize, f"{scope}/{normalize_scope}")
    for name, layer in {"conv1d": feedforward.inner, "conv1d_1": feedforward.outer}.items():
        names[f"{scope}/multihead_attention/{name}/kernel"] = layer.kernel
        names[f"{scope}/multihead_attention/{name}/bias"] = layer.bias
    return names


def normalize_names(normalize, scope):
    """The weights of a `Normalize` by name."""
    return {
        f"{scope}/ln/Variable": normalize.beta,
        f"{scope}/ln/Variable_1": normalize.gamma,
    }


# The original's ----------------------------------------------------------------


def is_original(path):
    """Whether the original wrote this checkpoint (TensorFlow 1, names of variables)."""
    try:
        with open_checkpoint(path) as reader:
            return reader.has_tensor("encoder/enc_embed/lookup_table")
    except UNREADABLE as error:
        raise not_restored(path, error) from None


def read_original(path):
    """The arrays of the original's checkpoint by their names, without Adam's slots."""
    try:
        with open_checkpoint(path) as reader:
            names = [name for name in reader.get_variable_to_shape_map() if "Adam" not in name]
            arrays = {name: reader.get_tensor(name) for name in names}
    except UNREADABLE as error:
        raise not_restored(path, error) from None
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
