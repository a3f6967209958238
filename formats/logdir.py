"""Write a model as a folder of this project, to be given away: the parameters alone."""

import dataclasses

import numpy as np

from checkpoints.checkpoint import Row, path_of, read_rows, save
from checkpoints.names_2017 import variables_by_2017_name
from hparams import save_hparams
from text.vocab import save_vocabs


def write(loaded, path):
    """Write a `LoadedModel` into an empty folder. Several checkpoints are saved as their mean."""
    newest = loaded.paths[-1]
    rows = [row for row in read_rows(newest.parent) if path_of(newest.parent, row) == newest]
    save_vocabs(loaded.vocabs, path)
    hp = dataclasses.replace(loaded.hp, logdir=str(path), average_checkpoints=1, best=False)
    save_hparams(hp)
    variables = variables_by_2017_name(loaded.model)
    arrays = {f"weights/{name}": np.asarray(variable) for name, variable in variables.items()}
    # The score belongs to one checkpoint, not to the mean.
    save(path, [Row(row.epoch, row.step) for row in rows] or [Row(0, 0)], arrays)
