"""Draw the README's pictures from a trained model: its loss, and a cross-attention map.

python -m docs.draw --logdir LOGDIR
"""

from pathlib import Path

from matplotlib import pyplot as plt

import events
from attention import alignments, draw, ended
from data_load import Ragged, load_test_data
from decoding import load, make_search, translate
from hparams import InputError, parse_flags, run
from text import UNK

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


def draw_attention(hp, model, vocabs, path):
    """The map for one sentence of the test set, source words across, translation down."""
    source, target = vocabs
    data = load_test_data(hp, vocabs).data
    rows = [row for row, x in enumerate(data.X) if len(x) == WORDS + 1 and UNK not in x]
    if not rows:
        raise InputError(f"{hp.source_test}: holds no sentence of {WORDS} known {hp.tokens}")
    one = Ragged.of([data.X[rows[0]]])
    (((pred, _),),) = translate(make_search(model, hp, beam=1), one, hp)
    y = ended(pred, hp)
    (weights,) = alignments(model, hp, one, Ragged.of([y]))
    words = [*map(source.token, one[0])], [*map(target.token, y)]
    draw(weights[None], *words).savefig(path, dpi=150)


def main(flags):
    """Draw curve.png and attention.png of the model in logdir."""
    _, hp, model, vocabs = load(flags)
    draw_curve(hp.logdir, DOCS / "curve.png")
    draw_attention(hp, model, vocabs, DOCS / "attention.png")


if __name__ == "__main__":
    run(main, parse_flags(__doc__))
