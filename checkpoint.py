"""Find, save, restore and average checkpoints.

A checkpoint consists of two files, `model_epoch_01_gs_430.index` and
`model_epoch_01_gs_430.data-00000-of-00001`, where 430 is the global step. The name ends in
`_partial` if the checkpoint was saved in the middle of its epoch. `run.json` next to them lists
the checkpoints of a training. It is written last: a checkpoint counts when it is listed there.
TensorFlow's own tools read the file `checkpoint`, which names the newest one, too.

The path of a checkpoint is a Path without the two suffixes.
"""

import contextlib
import hashlib
import json
import math
import re
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from hparams import hparams_path, no_checkpoint_error
from interop.tensor_bundle import MAX_INDEX_BYTES, check_bundle
from runtime.errors import MALFORMED_JSON, InputError
from runtime.files import (
    atomic_write,
    check_not_directory,
    durable_replace,
    fsync,
    is_utf8,
    lock_file,
    locked_error,
    read_file,
    read_json,
)
from variable_names import variable_shapes, variables_by_2017_name

TEMP_NAME = "unfinished_checkpoint"  # name of a checkpoint until both files are complete
RUN_FILE = "run.json"  # the checkpoints of a training
SUFFIXES = (".data-00000-of-00001", ".index")  # in the order in which they are written
MAX_EPOCH, MAX_STEP = 10**9, 10**18  # exclusive
NAME_PATTERN = re.compile(r"model_epoch_([0-9]{2,9})_gs_([0-9]{1,18})(_partial)?")
# The 2017 code used names of the same form, or let TensorFlow 1 choose them.
ORIGINAL_NAME_PATTERN = re.compile(r"model\.ckpt(?:-([0-9]{1,18}))?")
RECENT_SHARE = 1 / 4  # of the steps of a training, whose checkpoints are averaged
MAX_STATE_BYTES = 2**20  # of the file `checkpoint`
READ_ERRORS = (tf.errors.OpError, ValueError, OSError, InputError)
# Errors of reading that do not prove that a file is damaged.
OUTSIDE_CAUSES = (
    OSError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.FailedPreconditionError,
)

# The checkpoints of a training ---------------------------------------------------


class Row(NamedTuple):
    """A row of run.json: a checkpoint of the training. Its files may have been deleted since."""

    name: str
    epoch: int  # counted from 1
    step: int  # global step
    epoch_done: bool  # whether it is the end of its epoch
    score: float | None = None  # on the development set; None if it was not evaluated
    metric: str | None = None  # of the score
    dev: str | None = None  # digest of the development set

    @property
    def place(self):
        """Sort key of the rows of a training."""
        return self.epoch, self.step, self.epoch_done

    @property
    def epochs_done(self) -> int:
        """The number of complete epochs."""
        return self.epoch - (not self.epoch_done)


def make_row(epoch, step, epoch_done=True, score=None, metric=None, dev=None) -> Row:
    """Make the row of a checkpoint of ours, with its name.

    >>> make_row(3, 1290).name, make_row(3, 1290, epoch_done=False).name
    ('model_epoch_03_gs_1290', 'model_epoch_03_gs_1290_partial')
    """
    suffix = "" if epoch_done else "_partial"
    name = f"model_epoch_{epoch:02d}_gs_{step}{suffix}"
    return Row(name, epoch, step, epoch_done, score, metric, dev)


def read_rows(logdir) -> list[Row]:
    """List the checkpoints of the training in `logdir`, oldest first, from run.json."""
    logdir = Path(logdir)
    if logdir.is_file() or not logdir.exists() and index_exists(logdir):
        raise InputError(f"{logdir}: is a file. --logdir names a folder, as {logdir.parent}")
    path = logdir / RUN_FILE
    if not path.exists():
        return rows_of_names(logdir)
    try:
        rows = [Row(**row) for row in read_json(path)["checkpoints"]]
        check_rows(rows)
    except (InputError, *MALFORMED_JSON):
        raise InputError(
            f"{path}: does not list the checkpoints of a training. Copy it again. Without a copy,"
            " delete it, and the scores of the development set are lost"
        ) from None
    return rows


def check_rows(rows):
    """Check rows that someone else may have written.

    Raises:
      MALFORMED_JSON: they are not the checkpoints of a training, in the order of time.
    """
    for row in rows:
        numbers = row.epoch, row.step
        scored = row.score is not None
        if (
            {*map(type, numbers)} != {int}
            or type(row.epoch_done) is not bool
            or not (0 < row.epoch < MAX_EPOCH and 0 <= row.step < MAX_STEP)
            or row.name != make_row(*row[1:]).name
            or scored
            and not (type(row.score) in (int, float) and math.isfinite(row.score))
            or {type(row.metric), type(row.dev)} != {str if scored else type(None)}
        ):
            raise ValueError("not the row of a checkpoint")
    places = [row.place for row in rows]
    if not rows or places != sorted({*places}):
        raise ValueError("not in the order of time")


def rows_of_names(logdir) -> list[Row]:
    """List the checkpoints in a folder without run.json, oldest first, from their names.

    They were copied, or are of the 2017 code, which wrote the file `checkpoint`. If it is there, it
    names the newest one, and the others of the same training. Only the last part of the path in
    `checkpoint` counts, since the file may come from another machine or from someone else.
    """
    names = [index.name.removesuffix(".index") for index in logdir.glob("*.index")]
    rows = sorted(filter(None, map(row_of_name, names)), key=lambda row: row.place)
    state = logdir / "checkpoint"
    if not state.is_file():
        return rows
    text = read_file(state, MAX_STATE_BYTES).decode("utf-8", errors="replace")
    name, *_ = [*names_in_state(text, "model_checkpoint_path"), ""]
    if not name:
        raise InputError(f"{state}: names no checkpoint. Delete it, or copy the file again")
    original = ORIGINAL_NAME_PATTERN.fullmatch(name)
    newest = Row(name, 0, int(original[1] or 0), True) if original else row_of_name(name)
    if not newest:
        raise InputError(
            f"{state}: names {name!r}, but the name of a checkpoint is like"
            f" model_epoch_03_gs_1290. Delete the file if {logdir} is yours. Do not use the folder"
            " if it is not"
        )
    if not index_exists(logdir / name):
        raise InputError(
            f"{state}: names {name}, but there is no {logdir / name}.index. Copy that checkpoint"
            f" again, or delete {state} to use the newest checkpoint in the folder"
        )
    listed = {*names_in_state(text, "all_model_checkpoint_paths")}
    earlier = [row for row in rows if row.place < newest.place]
    return [*(row for row in earlier if not listed or row.name in listed), newest]


def row_of_name(name) -> Row | None:
    """Read the row of a checkpoint from its name, None if it is not one of ours or of 2017."""
    match = NAME_PATTERN.fullmatch(name)
    row = match and make_row(int(match[1]), int(match[2]), epoch_done=not match[3])
    return row if row and row.name == name else None


def names_in_state(text, field) -> list[str]:
    """List the names of the checkpoints that a field of the file `checkpoint` has, in linear time.

    >>> names_in_state('model_checkpoint_path: "/a/model_epoch_01_gs_9"', "model_checkpoint_path")
    ['model_epoch_01_gs_9']
    """
    paths = re.findall(rf'^[ \t]*{field}: "([^"\n]*)"', text, re.MULTILINE)
    return [re.split(r"[/\\]", path)[-1] for path in paths]


# Finding -----------------------------------------------------------------------


def index_exists(path) -> bool:
    """Whether a checkpoint exists: its index is written last, and deleted first."""
    return Path(f"{path}.index").exists()


def existing(logdir, rows) -> list[Row]:
    """Return the rows whose checkpoints have not been deleted."""
    return [row for row in rows if index_exists(Path(logdir) / row.name)]


def latest_readable(logdir):
    """Find the newest checkpoint that is not damaged; returns its path, or None.

    Prints a message for each damaged checkpoint. Training may delete a checkpoint while it is
    read here. It has saved a newer one before, which is then returned.
    """
    logdir, rows = Path(logdir), read_rows(logdir)
    if not rows:
        return None
    candidates = [*existing(logdir, rows[:-1]), rows[-1]]
    while error := read_error(path := logdir / candidates.pop().name):
        if read_rows(logdir) != rows:
            return latest_readable(logdir)
        if not candidates or not is_damage(error):
            raise restore_error(path, error)
        print(f"{damage_message(path, error)}. Using the one before it", file=sys.stderr)
    return path


def require_latest(logdir) -> Path:
    """Return `latest_readable`, or raise InputError if there is no checkpoint."""
    path = latest_readable(logdir)
    if path is None:
        raise no_checkpoint_error(logdir)
    return path


def rows_to(path) -> list[Row]:
    """List the checkpoints of the training that `path` belongs to, up to it, oldest first."""
    rows = read_rows(path.parent)
    names = [row.name for row in rows]
    return rows[: names.index(path.name) + 1] if path.name in names else []


def checkpoints_to_average(path, count):
    """List up to `count` checkpoints, oldest first: `path` and those before it.

    They are the ends of epochs, and with `dev_steps` all that were evaluated, of the training that
    `path` belongs to, in the last `RECENT_SHARE` of its steps: after an early stop, the first
    epochs would spoil the mean (docs/training.md has figures). A checkpoint within an epoch counts,
    too, if half an epoch has passed since the last of these.
    """
    rows = rows_to(path) if count > 1 else []
    if not rows:
        return [path]
    newest = rows[-1]
    recent = [row for row in rows if newest.step - row.step < RECENT_SHARE * newest.step]
    members = existing(path.parent, filter(is_milestone, recent))
    if not members:
        return [path]
    last = members[-1]
    if last != newest and newest.step - last.step >= 0.5 * last.step / last.epoch:
        members.append(newest)
    return [path.with_name(row.name) for row in members[-count:]]


def is_milestone(row) -> bool:
    """Whether a checkpoint is the end of an epoch, or was evaluated."""
    return row.epoch_done or row.score is not None


def best_row(logdir, rows):
    """Find the existing checkpoint with the best dev score, None if there is none.

    Scores of another metric or development set than the last one are not compared with it.
    """
    scored = [row for row in rows if row.score is not None]
    same = [row for row in scored if (row.metric, row.dev) == (scored[-1].metric, scored[-1].dev)]
    return max(existing(logdir, same), key=lambda row: row.score, default=None)


def require_best(logdir) -> Path:
    """Return the path of the best checkpoint, or raise InputError if there is none."""
    row = best_row(logdir, read_rows(logdir))
    if row is None:
        raise InputError(
            f"{logdir}: holds no checkpoint with a dev score. Train with --source_dev and"
            " --target_dev, or leave --best out"
        )
    return Path(logdir) / row.name


# Reading -----------------------------------------------------------------------


@contextlib.contextmanager
def open_checkpoint(path):
    """Context manager: TensorFlow's reader of the checkpoint at `path`.

    The checkpoint may come from someone else. It is checked before, and TensorFlow reads it in
    no other way.

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
        digest.update(read_file(f"{path}.index", MAX_INDEX_BYTES))
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

    The file may hold more: one that was saved in training also restores a model alone.

    TensorFlow could do that, but would first follow the graph of objects in the file, which
    nobody has checked.
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
