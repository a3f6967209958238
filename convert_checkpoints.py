"""Convert the folder of a model that was trained before checkpoints became npz files.

python convert_checkpoints.py logdir/old logdir/new
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

from checkpoint import Row, path_of
from hparams import FIELDS, UNSAVED

KEY_END = "/.ATTRIBUTES/VARIABLE_VALUE"


def convert_arrays(reader, lr) -> dict:
    """Return the arrays of an old checkpoint by their new names."""
    arrays = {}
    for key in reader.get_variable_to_shape_map():
        part, _, name = key.removesuffix(KEY_END).partition("/")
        if part not in ("weights", "optimizer", "dropout"):
            continue
        if part == "optimizer" and name != "0":  # the second variable is now the learning rate
            name = str(int(name) + 1)
        arrays[f"{part}/{name.replace('.S', '/').replace('..', '.')}"] = reader.get_tensor(key)
    if "optimizer/0" in arrays:
        arrays["optimizer/1"] = np.float32(lr)
    return arrays


def convert_hparams(old) -> dict:
    """Return the hyperparameters by their new names."""
    rise = "paper" if old.get("warmup_steps") else "constant"
    new = dict(schedule="linear" if old.get("decay_steps") else rise)
    new["missing_mark"] = float(
        (old.get("augment", "").partition("missing_mark=")[2] or "0").split(",")[0]
    )
    if old.get("minutes"):
        old |= dict(num_epochs=0, max_steps=0)
    return {name: value for name, value in old.items() if name in FIELDS.keys() - {*UNSAVED}} | new


def main(old, new):
    """Convert all checkpoints in a folder, and copy its vocabularies."""
    new.mkdir(parents=True)
    hparams = convert_hparams(json.loads((old / "hparams.json").read_text()))
    (new / "hparams.json").write_text(json.dumps(hparams, indent=2) + "\n")
    rows = []
    for row in json.loads((old / "run.json").read_text())["checkpoints"]:
        name, metric, dev = row.pop("name"), row.pop("metric") or "", row.pop("dev") or ""
        row = Row(**row, metric=metric, dev=dev)
        if (old / f"{name}.index").exists():
            reader = tf.train.load_checkpoint(str(old / name))
            np.savez(path_of(new, row), **convert_arrays(reader, hparams["lr"]))
        rows.append(row._asdict())
    (new / "run.json").write_text(json.dumps(dict(checkpoints=rows), indent=2) + "\n")
    for path in (*old.glob("*.model"), *old.glob("*.vocab.tsv")):
        shutil.copy(path, new)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
