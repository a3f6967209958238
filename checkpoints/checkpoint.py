"""Checkpoints: `model_epoch_03_gs_1290.npz`, and `run.json`, which lists those of a training.

A checkpoint holds arrays and nothing else: NumPy reads it without pickles, and the file has a
checksum of each array. `run.json` is written last: what it does not list does not exist. The name
of a file follows from numbers, so a list from someone else names no path.
"""

import json
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np

from support.errors import InputError
from support.files import atomic_open, atomic_write

RUN_FILE = "run.json"
RECENT_SHARE = 1 / 4  # of the steps of a training, whose checkpoints are averaged


class Row(NamedTuple):
    """A checkpoint of a training. Its file may have been deleted since."""

    epoch: int  # counted from 1
    step: int
    epoch_done: bool = True  # whether it is the end of its epoch
    seconds: float = 0.0  # of training so far
    sums: list = [0.0, 0.0, 0.0]  # steps, loss and accuracy of the epoch so far
    text: str = ""  # digest of the training text
    dev: str = ""  # digest of the development set, if there is one
    metric: str = ""  # of the score
    score: float | None = None  # on the development set; None if it was not evaluated
    by_time: bool = False  # saved after some minutes, or at a signal; the next one replaces it

    @property
    def name(self) -> str:
        """The name of the file, as in 2017."""
        return f"model_epoch_{self.epoch:02d}_gs_{self.step:d}"

    @property
    def is_milestone(self) -> bool:
        """Whether it is the end of an epoch, or was evaluated."""
        return self.epoch_done or self.score is not None


def path_of(logdir, row) -> Path:
    """The file of a checkpoint."""
    return Path(logdir) / f"{row.name}.npz"


def read_rows(logdir) -> list[Row]:
    """List the checkpoints of a training, oldest first; none if the folder has no run.json."""
    path = Path(logdir) / RUN_FILE
    if not path.is_file():
        return []
    try:
        listed = json.loads(path.read_text("utf-8"))["checkpoints"]
        rows = [Row(**{name: row[name] for name in Row._fields if name in row}) for row in listed]
        return sorted(rows, key=lambda row: (row.step, row.name))  # a name needs two numbers
    except (OSError, KeyError, TypeError, ValueError):
        problem = "does not list the checkpoints of a training"
        raise InputError(f"{path}: {problem}. Copy it again") from None


def existing(logdir, rows) -> list[Row]:
    """Return the rows whose checkpoints have not been deleted."""
    return [row for row in rows if path_of(logdir, row).exists()]


def scored_rows(rows) -> list[Row]:
    """Return the rows with a score of the last metric and development set."""
    scored = [row for row in rows if row.score is not None]
    return [row for row in scored if (row.metric, row.dev) == (scored[-1].metric, scored[-1].dev)]


def best_row(rows) -> Row | None:
    """Return the newest of the `scored_rows` with the best score."""
    return max(reversed(scored_rows(rows)), key=lambda row: row.score, default=None)


def save(logdir, rows, arrays, keep=5) -> list[Row]:
    """Save the arrays of the last of `rows`, delete old checkpoints, and return the rows left.

    The `keep` newest milestones stay, and the one with the best score. Within an epoch, the two
    newest others stay; one that was saved by time stays until the next.
    """
    newest = rows[-1]
    with atomic_open(path_of(logdir, newest)) as file:
        np.savez(file, **arrays)
    present = existing(logdir, rows)
    kept = [row for row in present if row.is_milestone][-keep:] + [newest, best_row(present)]
    if not newest.epoch_done:
        kept += [row for row in present if not (row.is_milestone or row.by_time)][-2:]
    listed = [row for row in rows if row in kept or row.score is not None]
    content = dict(checkpoints=[row._asdict() for row in listed])
    atomic_write(Path(logdir) / RUN_FILE, json.dumps(content, indent=2) + "\n")
    for row in present:
        if row not in kept:
            path_of(logdir, row).unlink(missing_ok=True)
    return listed


def load(path) -> dict:
    """Read the arrays by name; raises InputError if the file is damaged, or missing."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except Exception as error:  # NumPy has many for a damaged file
        raise InputError(f"{path}: cannot be read ({error}). Copy the file again") from None


def load_newest(logdir, rows):
    """Read the newest checkpoint that is not damaged: the rows up to it, and its arrays."""
    for row in reversed(existing(logdir, rows)):
        try:
            arrays = load(path_of(logdir, row))
            return rows[: rows.index(row) + 1], arrays
        except InputError as error:
            print(f"{error}. Using the one before it", file=sys.stderr)
    raise InputError(
        f"{logdir}: holds no checkpoint that can be read. Train a model, or copy its folder again"
    )


def load_model_weights(logdir, best=False, count=1):
    """Read the parameters of the model in `logdir`: the paths, oldest first, and the mean by name.

    The checkpoint with the best score is used, or the newest one. If the training has a development
    set, it was evaluated. With `count`, the mean of so many: the milestones before it in the last
    `RECENT_SHARE` of the steps (docs/training.md has figures).
    """
    present = existing(logdir, read_rows(logdir))
    used = [row for row in present if row.score is not None or not row.dev] or present
    if best:
        used = [row for row in present if row == best_row(present)]
        if not used:
            raise InputError(
                f"{logdir}: holds no checkpoint with a dev score. Train with --source_dev and"
                " --target_dev, or leave --best out"
            )
    (*earlier, newest), arrays = load_newest(logdir, used)
    recent = [row for row in earlier if newest.step - row.step < RECENT_SHARE * newest.step]
    recent = [row for row in recent if row.is_milestone]
    paths = [path_of(logdir, row) for row in (*recent, newest)][-count:]
    parts = [weights_of(part) for part in (*map(load, paths[:-1]), arrays)]
    return paths, {name: sum(part[name] for part in parts) / len(parts) for name in parts[0]}


def weights_of(arrays) -> dict:
    """The parameters among the arrays of a checkpoint, by their names in 2017."""
    prefix = "weights/"
    return {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}


def assign(variables, arrays, path):
    """Set variables to the arrays of the same names, which come from `path`."""
    shapes = {name: tuple(variable.shape) for name, variable in variables.items()}
    found = {name: array.shape for name, array in arrays.items()}
    for name in sorted(shapes | found):
        if shapes.get(name) != found.get(name) or not np.isfinite(arrays[name]).all():
            raise InputError(
                f"{path}: {name} is {found.get(name)}, in the model {shapes.get(name)}, or is not"
                " finite. Use the hparams.json, vocabulary and checkpoint of one training"
            )
    for name, variable in variables.items():
        variable.assign(arrays[name])
