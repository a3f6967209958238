"""The reference of `time_train.py`: PyTorch's nn.Transformer, as large, on the same batches.

It is post-norm with ReLU, as ours; positions are a sinusoid, the loss is smoothed, and Adam is
PyTorch's fused one, the fastest that it has.
"""

import json
import math
import sys

import numpy as np
import torch
from beside import serve
from torch import nn


class Reference(nn.Module):
    """The same model by `nn.Transformer`.

    Args:
      size: dict, fields of `Hyperparams` and the sizes of both vocabularies.
    """

    def __init__(self, size):
        super().__init__()
        V, C = size["target_vocab"], size["hidden_units"]
        self.enc_embed = nn.Embedding(size["source_vocab"], C)
        self.dec_embed = self.enc_embed if size["shared"] else nn.Embedding(V, C)
        angles = torch.arange(512)[:, None] / 10000 ** (torch.arange(0, C, 2) / C)
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        self.register_buffer("positions", table)  # (512, C)
        blocks, rate = size["num_blocks"], size["dropout_rate"]
        self.core = nn.Transformer(
            C, size["num_heads"], blocks, blocks, size["ffn_units"], rate, batch_first=True
        )
        self.dropout = nn.Dropout(rate)
        self.logits = nn.Linear(C, V, bias=not size["shared"])
        if size["shared"]:
            self.logits.weight = self.dec_embed.weight
        nn.init.normal_(self.enc_embed.weight, std=C**-0.5)
        self.scale = math.sqrt(C)

    def words(self, embed, ids):
        """Ids (N, T) -> (N, T, C)."""
        return self.dropout(embed(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, x, y):
        """Ids of both sides, (N, T) each -> logits (N, T, V)."""
        before = torch.cat([torch.full_like(y[:, :1], 2), y[:, :-1]], 1)  # (N, T)
        later = torch.ones(y.shape[1], y.shape[1], dtype=torch.bool).triu(1)
        outputs = self.core(
            self.words(self.enc_embed, x),
            self.words(self.dec_embed, before),
            tgt_mask=later,
            src_key_padding_mask=x == 0,
            tgt_key_padding_mask=before == 0,
            memory_key_padding_mask=x == 0,
            tgt_is_causal=True,
        )
        return self.logits(outputs)  # (N, T, V)


def main(batches, size):
    """Serve training steps of the batches in a file."""
    size = json.loads(size)
    arrays = np.load(batches)
    pairs = [
        tuple(torch.from_numpy(arrays[f"{side}{i}"]).long() for side in "xy")
        for i in range(len(arrays.files) // 2)
    ]
    torch.manual_seed(0)
    model = Reference(size)
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, (0.9, 0.98), 1e-9, fused=True)
    half = torch.autocast("cpu", torch.bfloat16, enabled=size["precision"] == "bfloat16")

    def work():
        for x, y in pairs:
            with half:
                logits = model(x, y)
                loss = nn.functional.cross_entropy(
                    logits.flatten(0, 1), y.flatten(), ignore_index=0, label_smoothing=0.1
                )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        loss.item()

    work()  # first calls allocate
    serve(work)


if __name__ == "__main__":
    main(*sys.argv[1:])
