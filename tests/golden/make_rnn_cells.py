"""Write rnn_cells.npz: states and gradients of PyTorch's recurrent layers.

    pip install torch numpy
    python tests/golden/make_rnn_cells.py

Arrays are named CELL/PARAMETER, CELL/gradient/PARAMETER, CELL/states and CELL/gradient/x, with
PyTorch's names and order of gates. The loss is the sum of all squared states.
"""

from pathlib import Path

import numpy as np
import torch

LAYERS = dict(tanh=torch.nn.RNN, gru=torch.nn.GRU, lstm=torch.nn.LSTM)


def main():
    """Compute all arrays, and write them next to this file."""
    torch.manual_seed(0)
    x = torch.randn(3, 7, 5)
    arrays = dict(x=x)
    for cell, make_layer in LAYERS.items():
        layer, inputs = make_layer(5, 6, batch_first=True), x.clone().requires_grad_()
        states, _ = layer(inputs)
        states.square().sum().backward()
        arrays |= {f"{cell}/states": states, f"{cell}/gradient/x": inputs.grad}
        for name, parameter in layer.named_parameters():
            arrays |= {f"{cell}/{name}": parameter, f"{cell}/gradient/{name}": parameter.grad}
    path = Path(__file__).with_name("rnn_cells.npz")
    np.savez_compressed(path, **{name: array.detach() for name, array in arrays.items()})


if __name__ == "__main__":
    main()
