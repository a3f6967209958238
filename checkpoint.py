"""Find, save, restore and average checkpoints.

A checkpoint consists of two files, `model_epoch_01_gs_430.index` and
`model_epoch_01_gs_430.data-00000-of-00001`, where 430 is the global step. The name ends in
`_partial` if the checkpoint was saved in the middle of its epoch. `run.json` next to them lists
the checkpoints of a training (manifest.py). TensorFlow's own tools read the file `checkpoint`,
which names the newest one, too.

The path of a checkpoint is a Path without the two suffixes.
"""

import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import tensorflow as tf

from hparams import hparams_path
from interop.tensor_bundle import MAX_INDEX_BYTES, check_bundle
from manifest import (
    INDEX_SUFFIX,
    RUN_FILE,
    SUFFIXES,
    Row,
    best_row,
    existing,
    is_milestone,
    no_checkpoint_error,
    read_rows,
)
from runtime.errors import InputError
from runtime.files import (
    atomic_write,
    check_not_directory,
    durable_replace,
    fsync,
    is_utf8,
    lock_file,
    locked_error,
    read_file,
)
from variable_names import variable_shapes, variables_by_2017_name

TEMP_NAME = "unfinished_checkpoint"  # name of a checkpoint until both files are complete
READ_ERRORS = (tf.errors.OpError, ValueError, OSError, InputError)
# Errors of reading that do not prove that a file is damaged.
OUTSIDE_CAUSES = (
    OSError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.FailedPreconditionError,
)

# Reading -----------------------------------------------------------------------


def latest_readable(logdir):
    """Find the newest checkpoint that is not damaged; returns its path.

    Prints a message for each damaged checkpoint. Training may delete a checkpoint while it is
    read here. It has saved a newer one before, which is then returned.
    """
    logdir, rows = Path(logdir), read_rows(logdir)
    if not rows:
        raise no_checkpoint_error(logdir)
    candidates = [*existing(logdir, rows[:-1]), rows[-1]]
    while error := read_error(path := logdir / candidates.pop().name):
        if read_rows(logdir) != rows:
            return latest_readable(logdir)
        if not candidates or not is_damage(error):
            raise restore_error(path, error)
        print(f"{damage_message(path, error)}. Using the one before it", file=sys.stderr)
    return path


@contextlib.contextmanager
def open_checkpoint(path):
    """Context manager: TensorFlow's reader of the checkpoint at `path`.

    The checkpoint may come from someone else. It is checked first. Only this function lets
    TensorFlow read a checkpoint.

    Raises:
      READ_ERRORS: it is damaged, or cannot be read.
    """
    check_bundle(path)
    with literal_path(path) as name:
        yield tf.train.load_checkpoint(name)


@contextlib.contextmanager
def literal_path(path):
    """Context manager: a path of the same checkpoint that is UTF-8, and without wildcards, str.

    TensorFlow writes to `run[1]/model`, but treats the path as a pattern when it reads.
    """
    if not set("*?[]\\") & set(str(path)) and is_utf8(str(path)):
        yield str(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        link = Path(folder) / "logdir"
        link.symlink_to(path.parent.resolve(), target_is_directory=True)
        yield str(link / path.name)


def read_error(path):
    """Read all of a checkpoint, which has checksums; returns the error, or None."""
    try:
        with open_checkpoint(path) as reader:
            for name in reader.get_variable_to_shape_map():
                reader.get_tensor(name)
    except READ_ERRORS as error:
        return error
    return None


def is_damage(error) -> bool:
    """Whether an error of reading proves that a file is damaged."""
    return isinstance(error, FileNotFoundError) or not isinstance(error, OUTSIDE_CAUSES)


def damage_message(path, error) -> str:
    """Describe a checkpoint that cannot be read."""
    reason = str(error).partition("\n")[0]
    problem = "is damaged" if is_damage(error) else "cannot be read"
    return f"{path}: this checkpoint {problem} ({reason})"


def restore_error(path, error) -> InputError:
    """Make the error to raise for a checkpoint that cannot be read."""
    remedy = "Copy its two files again"
    if is_damage(error):
        files = (path.with_name(name) for name in (RUN_FILE, "checkpoint"))
        remedy += f". Without a copy, delete them and {' and '.join(map(str, files))}"
    return InputError(f"{damage_message(path, error)}. {remedy}")


def parameters_digest(paths) -> str:
    """Return a SHA-256 that identifies the parameters of checkpoints."""
    digest = hashlib.sha256()
    for path in paths:
        # It holds checksums of the parameters.
        digest.update(read_file(f"{path}{INDEX_SUFFIX}", MAX_INDEX_BYTES))
    return digest.hexdigest()


# Saving ------------------------------------------------------------------------


@contextlib.contextmanager
def lock(logdir):
    """Context manager: keep other training runs out of `logdir`."""
    files = [Path(logdir) / name for name in ("checkpoint", RUN_FILE)]
    for path in [*files, *(path for end in SUFFIXES for path in Path(logdir).glob(f"*{end}"))]:
        check_not_directory(path)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_file(Path(logdir) / "lock", wait=False))
        except BlockingIOError as error:
            raise locked_error(logdir, error) from None
        delete_files(Path(logdir) / TEMP_NAME)  # left by a run that was killed
        yield


def make_checkpoint(model, optimizer=None, progress=None) -> tf.train.Checkpoint:
    """Collect the variables to save: the model's, and for training everything that it resumes.

    Each variable is added by itself and by name. TensorFlow could follow the attributes of a
    Keras model, but would silently omit the lists of blocks among them.

    Args:
      model: a built `Transformer`.
      optimizer: if given, its state and the seeds of dropout are included.
      progress: dict of other tf.Variables by name.
    """
    objects = {"weights": {name: v.value for name, v in variables_by_2017_name(model).items()}}
    if optimizer is not None:
        objects["optimizer"] = [v.value for v in optimizer.variables]
        objects["dropout"] = [v.value for v in model.non_trainable_variables]
    if progress is not None:
        objects["progress"] = progress
    return tf.train.Checkpoint(**objects)


# tf.train.CheckpointManager is not used: it would delete the best checkpoint when it is no longer
# among the newest, would count mid-epoch checkpoints like others, and does not call fsync, so
# that a loss of power could destroy the last one.
def save(checkpoint, logdir, rows, keep=5) -> list[Row]:
    """Save a checkpoint and delete old ones of the same training.

    The `keep` newest ends of epochs stay (the 2017 code kept 5), and the one with the best dev
    score. Mid-epoch checkpoints that were evaluated count as ends of epochs. The two newest of
    the others stay until their epoch ends. Files of other trainings are left alone.

    Args:
      checkpoint: a `make_checkpoint`.
      rows: the checkpoints of the training, oldest first; the last one is saved now.

    Returns:
      list: `rows` without those that have neither files nor a score.

    Raises:
      OSError: it cannot be written. The checkpoints before are unchanged.
    """
    logdir, newest = Path(logdir), rows[-1]
    temporary = logdir / TEMP_NAME
    write(checkpoint, temporary)
    for suffix in SUFFIXES:
        durable_replace(f"{temporary}{suffix}", f"{logdir / newest.name}{suffix}")
    present = existing(logdir, rows)
    listed = [row for row in rows if row in present or row.score is not None]
    content = dict(checkpoints=[row._asdict() for row in listed])
    atomic_write(logdir / RUN_FILE, json.dumps(content, indent=2) + "\n")
    kept = [*filter(is_milestone, present)][-keep:] + [best_row(logdir, rows)]
    if not newest.epoch_done:
        kept += [row for row in present[-2:] if not row.epoch_done]
    lines = [f'model_checkpoint_path: "{newest.name}"']
    lines += [f'all_model_checkpoint_paths: "{row.name}"' for row in present if row in kept]
    atomic_write(logdir / "checkpoint", "\n".join(lines) + "\n")
    for row in rows:
        if row not in kept:
            for suffix in reversed(SUFFIXES):
                Path(f"{logdir / row.name}{suffix}").unlink(missing_ok=True)
    return listed


def write(checkpoint, path):
    """Write the two files of a checkpoint and fsync them. Leave no file if that fails."""
    try:
        checkpoint.write(str(path))
        for suffix in SUFFIXES:
            fsync(f"{path}{suffix}")
    except (OSError, tf.errors.OpError) as error:
        with contextlib.suppress(OSError):
            delete_files(path)
        reason = str(error).partition("\n")[0]
        raise OSError(
            f"{path.parent}: no checkpoint can be written ({reason}). The last one is unchanged"
        ) from None


def delete_files(path):
    """Delete all files of an incomplete checkpoint."""
    for file in path.parent.glob(f"{path.name}*"):
        shutil.rmtree(file) if file.is_dir() and not file.is_symlink() else file.unlink()


# Restoring ---------------------------------------------------------------------


def restore(checkpoint, path):
    """Read the checkpoint at `path` into the variables of `checkpoint`, a `make_checkpoint`.

    The file may hold more variables: a checkpoint of a training also restores a model alone.

    TensorFlow could restore them, but would first follow the graph of objects in the file, which
    is not checked.
    """
    check_weights_match(checkpoint, path)
    variables = saved_variables(checkpoint)
    try:
        with open_checkpoint(path) as reader:
            shapes = reader.get_variable_to_shape_map()
            dtypes = reader.get_variable_to_dtype_map()
            for key, variable in variables.items():
                if shapes.get(key) != [*variable.shape] or dtypes[key] != variable.dtype:
                    raise ValueError(f"{key} is missing, or has another shape or type")
            for key, variable in variables.items():
                variable.assign(reader.get_tensor(key))
    except READ_ERRORS as error:
        raise restore_error(path, error) from None


def saved_variables(checkpoint) -> dict:
    """Return the variables of a `make_checkpoint` by the keys under which TensorFlow saves them."""
    variables = {checkpoint_key(name): v for name, v in checkpoint.weights.items()}
    for part in ("optimizer", "dropout"):
        for i, variable in enumerate(getattr(checkpoint, part, [])):
            variables[checkpoint_key(str(i), part)] = variable
    for name, variable in getattr(checkpoint, "progress", {}).items():
        variables[checkpoint_key(name, "progress")] = variable
    return variables


def restore_average(model, paths):
    """Set the parameters of a built model to the mean of those at `paths`."""
    checkpoint, variables = make_checkpoint(model), model.trainable_variables
    sums = [np.zeros(variable.shape, variable.dtype) for variable in variables]
    for path in paths:
        restore(checkpoint, path)
        for total, variable in zip(sums, variables, strict=True):
            array = variable.numpy()
            if not np.isfinite(array).all():
                raise restore_error(path, ValueError(f"{variable.path} is not finite"))
            total += array
    for total, variable in zip(sums, variables, strict=True):
        variable.assign(total / len(paths))


def check_weights_match(checkpoint, path):
    """Raise InputError unless `path` holds variables of the names and shapes of `checkpoint`."""
    saved = {key: s for key, s in saved_shapes(path).items() if key.startswith("weights/")}
    expected = {checkpoint_key(name): [*v.shape] for name, v in checkpoint.weights.items()}
    check_shapes(path, saved, expected, keys=saved.keys() | expected.keys())


def check_sizes(hp, vocab_sizes, path):
    """Compare the shapes of the variables of a model, before it is built.

    An hparams.json that someone else wrote may ask for more memory than there is.

    Args:
      vocab_sizes: (int, int), of source and target.
    """
    shapes = variable_shapes(hp, *vocab_sizes)
    expected = {checkpoint_key(name): shape for name, shape in shapes.items()}
    check_shapes(path, saved_shapes(path), expected, keys=expected)


def saved_shapes(path) -> dict:
    """Read the shapes of the variables in a checkpoint, by their keys."""
    try:
        with open_checkpoint(path) as reader:
            return reader.get_variable_to_shape_map()
    except READ_ERRORS as error:
        raise restore_error(path, error) from None


def check_shapes(path, saved, expected, keys):
    """Compare the shapes of variables, by the keys of the checkpoint at `path`.

    Args:
      saved, expected: dicts, for the checkpoint and for the model.
      keys: which of them to compare.
    """
    mismatched = sorted(key for key in keys if saved.get(key) != expected.get(key))
    if mismatched:
        hparams_file, key = hparams_path(path.parent), mismatched[0]
        name = key.split("/")[1].replace(".S", "/")
        raise InputError(
            f"{path}: {len(mismatched)} variables do not match {hparams_file} (first: {name} is"
            f" {saved.get(key, 'missing')} in the checkpoint, {expected.get(key, 'missing')} in the"
            f" model). The checkpoint and {hparams_file.name} come from different runs. Use both"
            " files of one run"
        )


def checkpoint_key(name, part="weights") -> str:
    """The key under which TensorFlow saves a variable of the model, or of another part.

    >>> checkpoint_key("dense/kernel")
    'weights/dense.Skernel/.ATTRIBUTES/VARIABLE_VALUE'
    """
    escaped = name.replace(".", "..").replace("/", ".S")
    return f"{part}/{escaped}/.ATTRIBUTES/VARIABLE_VALUE"
