"""Find, save, restore and average checkpoints.

A checkpoint consists of two files, `model_epoch_01_gs_430.index` and
`model_epoch_01_gs_430.data-00000-of-00001`, where 430 is the global step. The name ends in
`_partial` if the checkpoint was saved in the middle of its epoch. The file `checkpoint` next
to them names the newest checkpoint; TensorFlow's own tools read it, too.

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

import numpy as np
import tensorflow as tf

from hparams import hparams_path, no_checkpoint_error
from interop.tensor_bundle import MAX_INDEX_BYTES, check_bundle
from interop.variable_names import kernel_shapes, variables_by_2017_name
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

TEMP_NAME = "unfinished_checkpoint"  # name of a checkpoint until both files are complete
DEV_SCORES_FILE = "dev_scores.json"  # the score of each evaluation on the development set
SUFFIXES = (".data-00000-of-00001", ".index")  # in the order in which they are written
NAME_PATTERN = re.compile(r"model_epoch_([0-9]{1,9})_gs_([0-9]{1,18})(_partial)?")
# The 2017 code used names of the same form, or let TensorFlow 1 choose them.
ORIGINAL_NAME_PATTERN = re.compile(r"model\.ckpt(-[0-9]+)?")
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

# Names -------------------------------------------------------------------------


def checkpoint_path(logdir, epoch, global_step, mid_epoch=False) -> Path:
    """The path of a checkpoint of ours."""
    suffix = "_partial" if mid_epoch else ""
    return Path(logdir) / f"model_epoch_{epoch:02d}_gs_{global_step}{suffix}"


def epoch_and_step(path):
    """Read epoch and global step from the name of a checkpoint.

    >>> epoch_and_step("logdir/model_epoch_03_gs_1290")
    (3, 1290)
    """
    match = NAME_PATTERN.fullmatch(Path(path).name)
    if not match:
        raise InputError(
            f"{path}: is not the name of a checkpoint that training can resume from. Give the"
            " files a name like model_epoch_03_gs_1290"
        )
    return int(match[1]), int(match[2])


def is_mid_epoch(path) -> bool:
    """Whether a checkpoint was saved in the middle of its epoch."""
    return Path(path).name.endswith("_partial")


def epochs_done(path) -> int:
    """The number of complete epochs at a checkpoint."""
    epoch, _ = epoch_and_step(path)
    return epoch - 1 if is_mid_epoch(path) else epoch


def sort_key(path):
    """Sort key of checkpoints, oldest first."""
    return *epoch_and_step(path), not is_mid_epoch(path)


# Finding -----------------------------------------------------------------------


def list_checkpoints(logdir):
    """List the paths of the checkpoints of ours in `logdir`, oldest first."""
    paths = [index.with_suffix("") for index in Path(logdir).glob("*.index")]
    return sorted((path for path in paths if NAME_PATTERN.fullmatch(path.name)), key=sort_key)


def index_exists(path) -> bool:
    """Whether a checkpoint exists: its index is written last, and deleted first."""
    return Path(f"{path}.index").exists()


def latest(logdir):
    """Find the newest checkpoint in `logdir`; returns its path, or None.

    It is the one that the file `checkpoint` names, or without that file the newest by name. Only
    the last part of the path in `checkpoint` counts. It must be the name of a checkpoint in
    `logdir`, since the file may come from another machine or from someone else.
    (tf.train.get_checkpoint_state would return the path that was valid during training.)
    """
    logdir = Path(logdir)
    if logdir.is_file() or not logdir.exists() and index_exists(logdir):
        raise InputError(f"{logdir}: is a file. --logdir names a folder, as {logdir.parent}")
    state = logdir / "checkpoint"
    if not state.is_file():
        return (list_checkpoints(logdir) or [None])[-1]
    text = read_state(state)
    name, *_ = [*names_in_state(text, "model_checkpoint_path"), ""]
    if not name:
        raise InputError(f"{state}: names no checkpoint. Delete it, or copy the file again")
    if not (NAME_PATTERN.fullmatch(name) or ORIGINAL_NAME_PATTERN.fullmatch(name)):
        raise InputError(
            f"{state}: names {name!r}, but the name of a checkpoint is like"
            f" model_epoch_03_gs_1290. Delete the file if {logdir} is yours. Do not use the folder"
            " if it is not"
        )
    path = logdir / name
    if not index_exists(path):
        if read_state(state) != text:
            return latest(logdir)  # training has saved and deleted checkpoints since
        raise InputError(
            f"{state}: names {name}, but there is no {path}.index. Copy that checkpoint again, or"
            f" delete {state} to use the newest checkpoint in the folder"
        )
    return path


def read_state(path) -> str:
    """Read the file `checkpoint`. Raise InputError if it is larger than any such file."""
    return read_file(path, MAX_STATE_BYTES).decode("utf-8", errors="replace")


def names_in_state(text, field) -> list[str]:
    """List the names of the checkpoints that a field of the file `checkpoint` has, in linear time.

    >>> names_in_state('model_checkpoint_path: "/a/model_epoch_01_gs_9"', "model_checkpoint_path")
    ['model_epoch_01_gs_9']
    """
    paths = re.findall(rf'^[ \t]*{field}: "([^"\n]*)"', text, re.MULTILINE)
    return [re.split(r"[/\\]", path)[-1] for path in paths]


def latest_readable(logdir):
    """Find the newest checkpoint that is not damaged; returns its path, or None.

    Prints a message for each damaged checkpoint. Training may delete a checkpoint while it is
    read here. It has saved a newer one before, which is then returned.
    """
    path = latest(logdir)
    if path is None:
        return None
    earlier = []
    if NAME_PATTERN.fullmatch(path.name):
        earlier = [other for other in list_checkpoints(logdir) if sort_key(other) < sort_key(path)]
    while error := read_error(path):
        if not index_exists(path):
            return latest_readable(logdir)
        if not earlier or not is_damage(error):
            raise restore_error(path, error)
        print(f"{damage_message(path, error)}. Using the one before it", file=sys.stderr)
        path = earlier.pop()
    return path


def require_latest(logdir) -> Path:
    """Return `latest_readable`, or raise InputError if there is no checkpoint."""
    path = latest_readable(logdir)
    if path is None:
        raise no_checkpoint_error(logdir)
    return path


def checkpoints_to_average(path, count):
    """List up to `count` checkpoints, oldest first: `path` and those before it.

    They are the ends of epochs, and with `dev_steps` all that were evaluated, of the training that
    `path` belongs to, in the last `RECENT_SHARE` of its steps: after an early stop, the first
    epochs would spoil the mean (docs/training.md has figures). A checkpoint within an epoch counts,
    too, if half an epoch has passed since the last of these.
    """
    if count == 1 or not NAME_PATTERN.fullmatch(path.name):
        return [path]
    evaluated = evaluated_names(path.parent)
    _, newest_step = epoch_and_step(path)
    members = [
        other
        for other in list_training(path)
        if (not is_mid_epoch(other) or other.name in evaluated)
        and newest_step - epoch_and_step(other)[1] < RECENT_SHARE * newest_step
    ]
    if members and path not in members:
        epoch, step = epoch_and_step(members[-1])
        if newest_step - step < 0.5 * step / epoch:
            return members[-count:]
    return [*(member for member in members if member != path), path][-count:]


def list_training(path):
    """List the checkpoints of the training that `path` belongs to, up to it, oldest first.

    The file `checkpoint` lists them. Others in the folder may be left from a training that was
    rolled back. Without the file, all count.
    """
    listed = listed_names(path.parent)
    return [
        other
        for other in list_checkpoints(path.parent)
        if sort_key(other) <= sort_key(path) and (not listed or other.name in listed)
    ]


def listed_names(logdir) -> set[str]:
    """Return the names of checkpoints that the file `checkpoint` lists; empty without it."""
    state = Path(logdir) / "checkpoint"
    if not state.is_file():
        return set()
    return set(names_in_state(read_state(state), "all_model_checkpoint_paths"))


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
        remedy += f". Without a copy, delete them and {path.with_name('checkpoint')}"
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
    files = [Path(logdir) / name for name in ("checkpoint", DEV_SCORES_FILE)]
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
def save(
    checkpoint,
    logdir,
    epoch,
    global_step,
    keep=5,
    mid_epoch=False,
    evaluated=frozenset(),
    previous=None,
) -> Path:
    """Save a checkpoint and delete old ones; returns its path.

    The `keep` newest ends of epochs stay (the 2017 code kept 5), and the one with the best dev
    score. Mid-epoch checkpoints that were evaluated count as ends of epochs. The two newest of
    the others stay until their epoch ends.

    Args:
      checkpoint: a `make_checkpoint`.
      mid_epoch: whether the epoch is not complete.
      evaluated: names of the checkpoints that were evaluated on the development set.
      previous: the checkpoint of the same training before this one; None: the newest in `logdir`.
        Files of other trainings are left alone.

    Raises:
      OSError: it cannot be written. The checkpoints before are unchanged.
    """
    path = checkpoint_path(logdir, epoch, global_step, mid_epoch)
    previous = previous or latest(logdir)
    history = list_training(previous) if previous else []
    temporary = path.with_name(TEMP_NAME)
    write(checkpoint, temporary)
    for suffix in SUFFIXES:
        durable_replace(f"{temporary}{suffix}", f"{path}{suffix}")
    # Newer ones stay: the user may have gone back to an earlier checkpoint for a trial.
    earlier = [other for other in history if sort_key(other) < sort_key(path)]
    kept = [
        other for other in [*earlier, path] if not is_mid_epoch(other) or other.name in evaluated
    ][-keep:]
    if mid_epoch:
        kept += [p for p in [*earlier[-1:], path] if is_mid_epoch(p) and p not in kept]
    delete_orphans(logdir, path)
    lines = [f'model_checkpoint_path: "{path.name}"']
    lines += [f'all_model_checkpoint_paths: "{other.name}"' for other in kept]
    atomic_write(Path(logdir) / "checkpoint", "\n".join(lines) + "\n")
    earlier += [path.with_name(name) for name in read_dev_scores(logdir) if name != path.name]
    for other in set(earlier) - {*kept, best(logdir)}:
        for suffix in reversed(SUFFIXES):
            Path(f"{other}{suffix}").unlink(missing_ok=True)
    return path


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


def delete_orphans(logdir, path):
    """Delete data files without an index, which a kill during `save` leaves.

    Files of checkpoints after the one at `path` stay: someone may be copying them.
    """
    for data in Path(logdir).glob(f"*{SUFFIXES[0]}"):
        other = data.with_name(data.name.removesuffix(SUFFIXES[0]))
        if (
            NAME_PATTERN.fullmatch(other.name)
            and sort_key(other) < sort_key(path)
            and not index_exists(other)
        ):
            data.unlink(missing_ok=True)


# Dev scores --------------------------------------------------------------------


def write_dev_scores(logdir, scores, metric, dev_sha256):
    """Write the file that `read_dev_scores` reads.

    The names of checkpoints with a score of another metric or set stay in it.
    """
    existing = {path.name for path in list_checkpoints(logdir)}
    earlier = existing.intersection(evaluated_names(logdir)).difference(scores)
    content = dict(dev=dev_sha256, metric=metric, scores=scores, earlier=sorted(earlier))
    atomic_write(Path(logdir) / DEV_SCORES_FILE, json.dumps(content, indent=2) + "\n")


def read_dev_scores(logdir, metric=None, dev_sha256=None) -> dict:
    """Read the score of each evaluation, by the name of its checkpoint, in order of time.

    Args:
      metric: the metric of the scores. Those of another metric are not returned. None accepts any.
      dev_sha256: digest of the development set. The scores of another set are not returned.
        None accepts any set.
    """
    content = read_dev_scores_file(logdir)
    same = metric in (None, content["metric"]) and dev_sha256 in (None, content["dev"])
    return content["scores"] if same else {}


def evaluated_names(logdir) -> list[str]:
    """List the names of the checkpoints that were evaluated with any metric and set."""
    content = read_dev_scores_file(logdir)
    return [*content["earlier"], *content["scores"]]


def read_dev_scores_file(logdir) -> dict:
    """Read what `write_dev_scores` wrote; without the file, there are no scores."""
    path = Path(logdir) / DEV_SCORES_FILE
    if not path.exists():
        return dict(dev=None, metric=None, scores={}, earlier=[])
    try:
        content = read_json(path)
        scores = {name: float(score) for name, score in content["scores"].items()}
        earlier = [*content.get("earlier", [])]
        for name in (*scores, *earlier):
            sort_key(name)  # raises InputError unless it is the name of a checkpoint
        if not all(map(math.isfinite, scores.values())):
            raise ValueError("a score is not finite")
        return dict(dev=content["dev"], metric=content["metric"], scores=scores, earlier=earlier)
    except (InputError, *MALFORMED_JSON):
        raise InputError(f"{path}: holds no dev scores. Delete it, or copy it again") from None


def best(logdir):
    """Find the checkpoint in `logdir` with the best dev score; returns its path, or None."""
    names = {path.name for path in list_checkpoints(logdir)}
    scores = {name: score for name, score in read_dev_scores(logdir).items() if name in names}
    return Path(logdir) / max(scores, key=scores.get) if scores else None


def require_best(logdir) -> Path:
    """Return `best`, or raise InputError if there is none."""
    path = best(logdir)
    if path is None:
        raise InputError(
            f"{logdir}: holds no checkpoint with a dev score. Train with --source_dev and"
            " --target_dev, or leave --best out"
        )
    return path


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
    """Compare the sizes that determine the memory of a model, before it is built.

    An hparams.json that someone else wrote may ask for more memory than there is.

    Args:
      vocab_sizes: (int, int), of source and target.
    """
    source_vocab, target_vocab = vocab_sizes
    if hp.tied_embeddings:
        shapes = {"shared_embed/lookup_table": [target_vocab, hp.hidden_units]}
    else:
        shapes = {
            "encoder/enc_embed/lookup_table": [source_vocab, hp.hidden_units],
            "decoder/dec_embed/lookup_table": [target_vocab, hp.hidden_units],
        }
    if hp.model == "rnn":
        gates = dict(tanh=1, gru=3, lstm=4)[hp.cell]
        shapes["decoder/cell/recurrent_kernel"] = [hp.hidden_units, gates * hp.hidden_units]
    else:
        if hp.positions in ("learned", "product", "hierarchical"):
            shapes["encoder/enc_pe/lookup_table"] = [hp.maxlen, hp.hidden_units]
        ffn_units = hp.ffn_units or 4 * hp.hidden_units
        shapes |= kernel_shapes(hp.num_blocks, hp.hidden_units, ffn_units)
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
