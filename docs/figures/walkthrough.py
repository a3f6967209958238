"""Draw the figures of docs/walkthrough.md: positions.png, mask.png and schedule.png.

python docs/figures/walkthrough.py
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import numpy as np
from matplotlib.figure import Figure

from modules import PositionalEncoding
from optimizer import InverseSqrtSchedule


def draw_positions(path):
    """The sinusoidal position encodings of 50 positions, 64 units."""
    layer = PositionalEncoding(64, paired=True, zero_pad=False, scale=False)
    encodings = layer(np.arange(50)[None])[0]  # (T, C)
    figure = Figure((7, 3.4), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(encodings, cmap="RdBu", aspect="auto", vmin=-1, vmax=1)
    figure.colorbar(image)
    axes.set_xlabel("unit")
    axes.set_ylabel("position")
    figure.savefig(path, dpi=110)


def draw_mask(path):
    """The causal mask of six tokens."""
    tokens = ["<S>", "a", "dog", "runs", "fast", "."]
    figure = Figure((3.4, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.imshow(np.tril(np.ones((6, 6))), cmap="Blues", vmin=0, vmax=1.6)
    axes.set_xticks(range(6), tokens)
    axes.set_yticks(range(6), tokens)
    axes.set_xlabel("keys")
    axes.set_ylabel("queries")
    figure.savefig(path, dpi=110)


def draw_schedule(path):
    """The learning rate over the steps, for three warm-ups and C = 512."""
    steps = np.arange(0, 20_000, 50)
    figure = Figure((7, 3), layout="constrained")
    axes = figure.subplots()
    for warmup in (1000, 4000, 8000):
        schedule = InverseSqrtSchedule((512 * warmup) ** -0.5, warmup)
        axes.plot(steps, [float(schedule(step)) for step in steps], label=f"warm-up {warmup}")
    axes.set_xlabel("step")
    axes.set_ylabel("learning rate")
    axes.legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    draw_positions(ROOT / "docs" / "positions.png")
    draw_mask(ROOT / "docs" / "mask.png")
    draw_schedule(ROOT / "docs" / "schedule.png")
