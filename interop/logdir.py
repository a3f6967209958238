"""Write a model as a folder of this project, to be given away.

A folder of a training has Adam's state, several checkpoints and TensorBoard's curves, too. This
one has a single checkpoint, the parameters: it is a tenth as large or smaller.
"""

import dataclasses
from pathlib import Path

from checkpoint import make_checkpoint, save
from hparams import save_hparams
from manifest import make_row, read_rows
from vocab import fingerprints, save_vocabs


def write(loaded, path):
    """Write the parameters, the hyperparameters and the vocabularies.

    The parameters of several checkpoints are saved as their mean.

    Args:
      loaded: LoadedModel.
      path: folder that does not exist yet.
    """
    newest, vocabs = loaded.paths[-1], loaded.vocabs
    row = next(row for row in read_rows(newest.parent) if row.name == newest.name)
    path = Path(path)
    path.mkdir()
    save_vocabs(vocabs, path)
    one = dict(average_checkpoints=1, best=False, vocab_sha256=fingerprints(vocabs))
    save_hparams(dataclasses.replace(loaded.hp, logdir=str(path), **one))
    # The score belongs to one checkpoint, not to the mean.
    save(make_checkpoint(loaded.model), path, [make_row(row.epoch, row.step, row.epoch_done)])
