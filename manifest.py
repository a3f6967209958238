"""The checkpoints of a training: `run.json` in its folder lists them.

It is written last: a checkpoint counts only if it is listed there. In a folder without run.json,
the names of the files are read. This module needs no TensorFlow, so that a script knows what a
folder holds before it loads TensorFlow.

The path of a checkpoint is a Path without the suffixes of its two files.
"""

import math
import re
from pathlib import Path
from typing import NamedTuple

from runtime.errors import MALFORMED_JSON, InputError
from runtime.files import read_file, read_json

RUN_FILE = "run.json"  # the checkpoints of a training
DATA_SUFFIX, INDEX_SUFFIX = ".data-00000-of-00001", ".index"
SUFFIXES = (DATA_SUFFIX, INDEX_SUFFIX)  # of a checkpoint, in the order of writing
MAX_EPOCH, MAX_STEP = 10**9, 10**18  # exclusive
NAME_PATTERN = re.compile(r"model_epoch_([0-9]{2,9})_gs_([0-9]{1,18})(_partial)?")
# The 2017 code used names of the same form, or let TensorFlow 1 choose them.
ORIGINAL_NAME_PATTERN = re.compile(r"model\.ckpt(?:-([0-9]{1,18}))?")
RECENT_SHARE = 1 / 4  # of the steps of a training, whose checkpoints are averaged
MAX_STATE_BYTES = 2**20  # of the file `checkpoint`

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


def no_checkpoint_error(logdir) -> InputError:
    """Return the error for a folder without a model."""
    return InputError(
        f"{logdir}: holds no checkpoint. Train a model with `python train.py`, or name the folder"
        " of a model with --logdir"
    )


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
        raise InputError(f"{logdir}: is a file. Name the folder of a model, as {logdir.parent}")
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
    names = [index.name.removesuffix(INDEX_SUFFIX) for index in logdir.glob(f"*{INDEX_SUFFIX}")]
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
    return Path(f"{path}{INDEX_SUFFIX}").exists()


def existing(logdir, rows) -> list[Row]:
    """Return the rows whose checkpoints have not been deleted."""
    return [row for row in rows if index_exists(Path(logdir) / row.name)]


def check_has_checkpoint(logdir, rows):
    """Raise InputError if no checkpoint has both of its files."""
    if not rows:
        raise no_checkpoint_error(logdir)
    missing = [missing_file(Path(logdir) / row.name) for row in rows]
    if all(missing):
        raise InputError(f"{missing[-1]}: no such file. Copy it again from the training's folder")


def missing_file(path) -> str:
    """Return the first file that a checkpoint lacks; "" if it has both."""
    files = [f"{path}{suffix}" for suffix in SUFFIXES]
    return next((file for file in files if not Path(file).exists()), "")


def rows_to(path) -> list[Row]:
    """List the checkpoints of the training that `path` belongs to, up to it, oldest first."""
    rows = read_rows(path.parent)
    names = [row.name for row in rows]
    return rows[: names.index(path.name) + 1] if path.name in names else []


def checkpoints_to_average(path, count):
    """List up to `count` checkpoints, oldest first: `path` and those before it.

    They are the ends of epochs and, with `dev_steps`, all checkpoints that were evaluated. They
    belong to the training of `path`, to the last `RECENT_SHARE` of its steps: after an early stop,
    the first epochs would spoil the mean (docs/training.md has figures). A checkpoint within an
    epoch counts, too, if half an epoch has passed since the last of these.
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
