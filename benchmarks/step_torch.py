"""A worker for `time_train.py`: PyTorch's nn.Transformer of the same size, on the same batches.

As in this project, it has post-norm, ReLU, sinusoidal positions and label smoothing. The optimizer
is PyTorch's fused Adam, the fastest that it has.
"""

import json
import math
import sys

import numpy as np
import torch
from harness import worker_loop
from torch import nn


class Baseline(nn.Module):
    """The model of this project, built from `nn.Transformer`.

    Args:
      size: dict with fields of `Hyperparams` and the sizes of both vocabularies.
    """

    def __init__(self, size):
        super().__init__()
        V, C = size["target_vocab"], size["hidden_units"]
        self.enc_embed = nn.Embedding(size["source_vocab"], C)
        self.dec_embed = self.enc_embed if size["tied_embeddings"] else nn.Embedding(V, C)
        angles = torch.arange(512)[:, None] / 10000 ** (torch.arange(0, C, 2) / C)
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("positions", table)  # (512, C)
        blocks, rate = size["num_blocks"], size["dropout_rate"]
        self.transformer = nn.Transformer(
            C, size["num_heads"], blocks, blocks, size["ffn_units"], rate, batch_first=True
        )
        self.dropout = nn.Dropout(rate)
        self.to_logits = nn.Linear(C, V, bias=not size["tied_embeddings"])
        if size["tied_embeddings"]:
            self.to_logits.weight = self.dec_embed.weight
        nn.init.normal_(self.enc_embed.weight, std=C**-0.5)
        self.scale = math.sqrt(C)

    def embed(self, embedding, ids):
        """Embed ids (N, T) and add their positions -> (N, T, C)."""
        return self.dropout(embedding(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, x, y):
        """Compute logits (N, T, vocab) from source ids and target ids, (N, T) each."""
        decoder_inputs = torch.cat([torch.full_like(y[:, :1], 2), y[:, :-1]], 1)  # (N, T)
        causal_mask = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        outputs = self.transformer(
            self.embed(self.enc_embed, x),
            self.embed(self.dec_embed, decoder_inputs),
            tgt_mask=causal_mask,
            src_key_padding_mask=x == 0,
            tgt_key_padding_mask=decoder_inputs == 0,
            memory_key_padding_mask=x == 0,
            tgt_is_causal=True,
        )
        return self.to_logits(outputs)  # (N, T, vocab)


def main(batches, size):
    """Run a worker whose work is a training step on each batch in a file."""
    size = json.loads(size)
    arrays = np.load(batches)
    pairs = [
        tuple(torch.from_numpy(arrays[f"{side}{i}"]).long() for side in "xy")
        for i in range(len(arrays.files) // 2)
    ]
    torch.manual_seed(0)
    model = Baseline(size)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=size["precision"] == "bfloat16")

    def timed_fn():
        for x, y in pairs:
            with autocast:
                logits = model(x, y)
                loss = nn.functional.cross_entropy(
                    logits.flatten(0, 1), y.flatten(), ignore_index=0, label_smoothing=0.1
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss.item()

    timed_fn()  # the first call allocates memory
    worker_loop(timed_fn)


if __name__ == "__main__":
    main(*sys.argv[1:])
