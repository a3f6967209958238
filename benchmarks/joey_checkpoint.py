"""Write parameters as a checkpoint of JoeyNMT: joey_checkpoint.py PARAMETERS OUTPUT."""

import sys

import numpy as np
import torch


def main(parameters, output):
    """Convert the .npz file `parameters` to the file that JoeyNMT reads."""
    arrays = np.load(parameters)
    state = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    torch.save(dict(model_state=state), output)


if __name__ == "__main__":
    main(*sys.argv[1:])
