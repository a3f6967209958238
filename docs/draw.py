"""Draw the README's pictures from a trained model: its loss, and a cross-attention map.

    python -m docs.draw --logdir LOGDIR

It needs matplotlib besides the project's own packages.
"""

from pathlib import Path

import numpy as np
from matplotlib import pyplot as plt

import events
from data_load import Ragged, load_test_data
from decoding import load, make_search, translate
from hparams import InputError, parse_flags, run
from model import shift_right
from text import UNK, before_end

DOCS = Path(__file__).resolve().parent
WORDS = 12  # of the source sentence that is drawn: the first with so many, none unknown


def read_scalars(logdir):
    """TensorBoard's points, {name: ([step], [value], [minutes of training])}.

    Each part of a training that was stopped and went on has a file of its own, and
    the time between them does not count.
    """
    curves, before = {}, 0.0
    for path in events.files(logdir):
        began = seconds = events.began(path)
        for name, step, value, seconds in events.points(path):
            steps, values, minutes = curves.setdefault(name, ([], [], []))
            steps.append(step)
            values.append(value)
            minutes.append((before + seconds - began) / 60)
        before += seconds - began
    return curves


def draw_curve(logdir, path):
    """mean_loss over the steps, and beside it the dev BLEU over the minutes, or acc."""
    points = read_scalars(logdir)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    for ax, name in zip(axes, ("mean_loss", "dev_bleu"), strict=True):
        name = name if name in points else "acc"
        steps, values, minutes = points[name]
        across, unit = (minutes, "minutes") if name == "dev_bleu" else (steps, "step")
        ax.plot(across, values, linewidth=0.8, color="tab:blue")
        ax.set(title=name, xlabel=unit)
        ax.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def cross_attention(model, x, pred):
    """The last block's attention to the source, mean of the heads: two (1, T) -> (T_q, T_k)."""
    memory, memory_masks = model.encode(x), model.masks(x)
    inputs = shift_right(pred)
    masks = model.masks(inputs)
    *before, last = model.dec_blocks
    dec = model.dec_words(inputs)  # (1, T, C)
    for block in before:
        dec = block(dec, memory, masks, memory_masks)
    dec = last.self_attention(dec, dec, masks, causality=True)
    attention = last.vanilla_attention
    return np.mean(attention.weigh(dec, attention.project(memory, memory_masks))[0], axis=0)


def draw_attention(hp, model, vocabs, path):
    """The map for one sentence of the test set, source words across, translation down."""
    source, target = vocabs
    data = load_test_data(hp, vocabs).data
    rows = [row for row, x in enumerate(data.X) if len(x) == WORDS + 1 and UNK not in x]
    if not rows:
        raise InputError(f"{hp.source_test}: holds no sentence of {WORDS} known {hp.tokens}")
    one = Ragged.of([data.X[rows[0]]])
    x = one.pad(width=None if hp.masks == "ids" else hp.maxlen)  # (1, T)
    (((pred, _),),) = translate(make_search(model, hp, beam=1), one, hp)
    across = [*map(source.token, one[0])]
    down = [*map(target.token, before_end(pred)), "</S>"][: len(pred)]
    weights = cross_attention(model, x, pred[None])[: len(down), : len(across)]

    figure, ax = plt.subplots(figsize=(7, 5.5), layout="constrained")
    ax.imshow(weights, cmap="Blues", vmin=0)
    ax.set_xticks(range(len(across)), across, rotation=45, ha="left")
    ax.xaxis.tick_top()
    ax.set_yticks(range(len(down)), down)
    figure.savefig(path, dpi=100)


def main(flags):
    _, hp, model, vocabs = load(flags)
    draw_curve(hp.logdir, DOCS / "curve.png")
    draw_attention(hp, model, vocabs, DOCS / "attention.png")


if __name__ == "__main__":
    run(main, parse_flags(__doc__))
