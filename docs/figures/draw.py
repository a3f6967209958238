"""Draw docs/curve.png and docs/attention.png from a trained model: its curves, and its attention.

python docs/figures/draw.py --logdir LOGDIR
"""

import sys
from pathlib import Path

import tensorflow as tf
from matplotlib import pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from data_load import load_test_data
from hparams import Hyperparams, find_trained
from ids import UNK, RaggedIds
from inference import SearchDecoder, load_model
from monitor import tensorboard_events
from monitor.attention_maps import alignments, append_eos, plot_heads
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError

DOCS = Path(__file__).resolve().parent.parent
NUM_TOKENS = 12  # of the source sentence to draw: the first of this length without <UNK>


def read_scalars(logdir) -> dict:
    """Read TensorBoard's curves: {name: (steps, values, minutes of training)}.

    A run that was resumed has several event files. The time between them is not counted.
    """
    curves, before = {}, 0.0
    for path in tensorboard_events.event_files(logdir):
        records, _ = tensorboard_events.read_records(path)
        if not records:  # the training was killed before the first one
            continue
        start = seconds = tf.compat.v1.Event.FromString(records[0]).wall_time
        for name, step, value, seconds in tensorboard_events.scalars(path):
            steps, values, minutes = curves.setdefault(name, ([], [], []))
            steps.append(step)
            values.append(value)
            minutes.append((before + seconds - start) / 60)
        before += seconds - start
    return curves


def draw_curve(logdir, path):
    """Draw mean_loss over the steps, and next to it the dev BLEU over the minutes, or acc."""
    curves = read_scalars(logdir)
    figure, axes = plt.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    for ax, name in zip(axes, ("mean_loss", "dev_bleu"), strict=True):
        name = name if name in curves else "acc"
        steps, values, minutes = curves[name]
        x, unit = (minutes, "minutes") if name == "dev_bleu" else (steps, "step")
        ax.plot(x, values, linewidth=0.8, color="tab:blue")
        ax.set(title=name, xlabel=unit)
        ax.grid(alpha=0.3)
    figure.savefig(path, dpi=100)


def draw_attention(loaded, path):
    """Draw the cross-attention of one test sentence: the mean of the heads of the last block."""
    hp, (source, target) = loaded.hp, loaded.vocabs
    data = load_test_data(hp, loaded.vocabs).data
    rows = [row for row, x in enumerate(data.X) if len(x) == NUM_TOKENS + 1 and UNK not in x]
    if not rows:
        raise InputError(
            f"{hp.source_test}: has no sentence of {NUM_TOKENS} known tokens. Name another test set"
            " with --source_test and --target_test"
        )
    x = RaggedIds.from_lists([data.X[rows[0]]])
    ((best,),) = SearchDecoder(loaded.with_hp(beam=1))(x)
    y = append_eos(best.ids, hp)
    (weights,) = alignments(loaded, x, [y])
    x_labels, y_labels = [*map(source.id_to_token, x[0])], [*map(target.id_to_token, y)]
    plot_heads(weights[None], x_labels, y_labels).savefig(path, dpi=150)


def main(models):
    """Draw both pictures for the model in logdir."""
    loaded = load_model(models)
    draw_curve(loaded.hp.logdir, DOCS / "curve.png")
    draw_attention(loaded, DOCS / "attention.png")


if __name__ == "__main__":
    run_script(main, parse_flags(__doc__, find_trained, Hyperparams, reads_model=True))
