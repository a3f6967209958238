"""Make our weights a checkpoint of JoeyNMT: joey_checkpoint.py WEIGHTS OUTPUT."""

import sys

import numpy as np
import torch


def main(weights, output):
    """Write the arrays of the file `weights` as JoeyNMT reads them."""
    arrays = np.load(weights)
    state = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    torch.save(dict(model_state=state), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
