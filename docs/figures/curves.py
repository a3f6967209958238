"""Draw the curves of trainings.

python docs/figures/curves.py                  # all, from the models of train_models.py
python docs/figures/curves.py curve.png --logdir LOGDIR
"""

from pathlib import Path

import numpy as np
import tensorflow as tf
from style import BLUE, ORANGE, PALE, RED, draw_pictures, make_figure
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from train_models import FEW, MANY, MODELS, trained_logdir

SMOOTHED_STEPS = 200  # steps of a moving mean


def read_scalars(logdir) -> dict:
    """Read TensorBoard's curves: {name: (steps, values)}. A resumed run has several files."""
    curves = {}
    for path in sorted(Path(logdir).glob("events.out.tfevents.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.metadata.plugin_data.plugin_name == "scalars":
                    steps, values = curves.setdefault(value.tag, ([], []))
                    steps.append(event.step)
                    values.append(float(tf.make_ndarray(value.tensor)))
    return curves


def moving_mean(steps, values):
    """Average values over the SMOOTHED_STEPS steps around each of them."""
    steps, values = np.array(steps), np.array(values)
    near = np.abs(steps[:, None] - steps) <= SMOOTHED_STEPS / 2
    return near @ values / near.sum(axis=1)


def draw_curve(logdir):
    """The loss of a training, and the BLEU of its development set, with the best one marked."""
    curves = read_scalars(logdir)
    figure = make_figure(3.3)
    left, right = figure.subplots(1, 2)
    steps, losses = curves["mean_loss"]
    left.plot(steps, losses, color=PALE, linewidth=0.8, label="each step that is logged")
    label = f"moving mean of {SMOOTHED_STEPS} steps"
    left.plot(steps, moving_mean(steps, losses), color=BLUE, label=label)
    left.set(title="training loss", ylabel="loss per token", ylim=(0, None))
    left.legend()
    steps, scores = curves["dev_bleu"]
    best = int(np.argmax(scores))
    right.plot(steps, scores, color=BLUE, marker=".", markersize=4)
    right.plot(steps[best], scores[best], marker="o", color=ORANGE)
    right.annotate(
        f"best: {scores[best]:.1f}",
        (steps[best], scores[best]),
        xytext=(0, -26),
        textcoords="offset points",
        ha="right",
        color=ORANGE,
    )
    right.set(title="translations of the development set", ylabel="BLEU", ylim=(0, None))
    for ax in (left, right):
        ax.set(xlabel="step", xlim=(0, None))
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.grid(alpha=0.3)
    return figure


def epoch_means(steps, values, ends):
    """Average values over the steps up to each end of an epoch, from the end before it."""
    steps, values = np.array(steps), np.array(values)
    starts = [0, *ends[:-1]]
    return [
        values[(steps > start) & (steps <= end)].mean()
        for start, end in zip(starts, ends, strict=True)
    ]


def draw_overfitting():
    """Training and development loss of two trainings that differ in the number of pairs."""
    figure = make_figure(3.6, title="Training without dropout and label smoothing")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, name, pairs in zip(axes, ("few_pairs", "many_pairs"), (FEW, MANY), strict=True):
        curves = read_scalars(trained_logdir(name))
        steps, dev_losses = curves["dev_loss"]
        train_losses = epoch_means(*curves["mean_loss"], steps)
        ax.plot(steps, train_losses, color=BLUE, label="training loss")
        ax.plot(steps, dev_losses, color=ORANGE, label="development loss")
        best = int(np.argmin(dev_losses))
        ax.plot(steps[best], dev_losses[best], "o", color=RED, markersize=5)
        ax.annotate(
            f"lowest: {dev_losses[best]:.2f}",
            (steps[best], dev_losses[best]),
            xytext=(0, -16) if name == "few_pairs" else (0, 14),
            textcoords="offset points",
            ha="left" if name == "few_pairs" else "right",
            color=RED,
        )
        epochs = MODELS[name]["num_epochs"]
        ax.set(title=f"{pairs:,} pairs, {epochs} epochs", xlabel="step", ylim=(0, 5))
        ax.xaxis.set_major_formatter("{x:,.0f}")
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("loss per token")
    axes[0].legend()
    return figure


PICTURES = {
    "curve.png": draw_curve,
    "overfitting.png": lambda logdir: draw_overfitting(),
}

if __name__ == "__main__":
    draw_pictures(PICTURES, __doc__, str, logdir="logdir/sample_model")
