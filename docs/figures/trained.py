"""Draw what recurrent models attend to, and what encodings of positions learn.

python docs/figures/train_models.py recurrent learned t5
python docs/figures/trained.py
"""

import numpy as np
from sentence import LINE
from style import (
    GREY,
    LARGE,
    SIGNED_MAP,
    draw_pictures,
    draw_weights,
    make_figure,
)
from train_models import trained_logdir

from text.ids import RaggedIds
from translation.attention_maps import alignments, append_eos
from translation.inference import load_model
from translation.translator import Translator

MAX_DISTANCE = 15  # tokens, in the picture of T5's numbers


def load(name):
    """Load a model of train_models.py."""
    return load_model(dict(logdir=trained_logdir(name)))


def draw_alignment():
    """The attention of a recurrent decoder for one sentence, which it translates."""
    loaded = load("recurrent")
    source, target = loaded.vocabs
    (found,) = Translator(loaded.with_hp(beam=1))([LINE])
    (translation,) = found.sentences
    x, y = translation.ids, append_eos(translation.hypotheses[0].ids, loaded.hp)
    (weights,) = alignments(loaded, RaggedIds.from_lists([x]), [y])
    x_labels, y_labels = map(source.id_to_token, x), map(target.id_to_token, y)
    figure = make_figure(4.6)
    ax = figure.subplots()
    image = draw_weights(ax, weights, x_labels, y_labels)
    ax.set_aspect("auto")
    ax.set_xlabel("source", fontsize=LARGE, labelpad=8)
    ax.set_ylabel("translation", fontsize=LARGE)
    figure.colorbar(image, label="attention weight")
    return figure


def similarities(model) -> np.ndarray:
    """The cosines between the learned position vectors of the encoder, (maxlen, maxlen)."""
    table = model.enc_input.positions.table.lookup_table.numpy()  # (maxlen, C)
    table = table / np.linalg.norm(table, axis=-1, keepdims=True)
    return table @ table.T


def numbers_by_distance(model) -> np.ndarray:
    """T5's numbers of the encoder, for keys from -MAX_DISTANCE to MAX_DISTANCE: (h, distances)."""
    positions = model.enc_positions[0]
    buckets = positions.buckets(2 * MAX_DISTANCE + 1, 2 * MAX_DISTANCE + 1)[MAX_DISTANCE]
    return positions.table.numpy()[buckets].T


def draw_learned(learned=None, t5=None):
    """What two encodings of positions have learned in the encoder: two models."""
    learned, t5 = learned or load("learned").model, t5 or load("t5").model
    figure = make_figure(4.2)
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    cosines = similarities(learned)
    image = left.imshow(cosines, cmap=SIGNED_MAP, vmin=-1, vmax=1)
    title = "learned positions of the encoder:\ncosine between two positions"
    left.set(title=title, xlabel="position", ylabel="position")
    figure.colorbar(image, ax=left, ticks=(-1, 0, 1), orientation="horizontal", aspect=40)
    numbers = numbers_by_distance(t5)  # (h, distances)
    limit = np.abs(numbers).max()
    image = right.imshow(
        numbers,
        cmap=SIGNED_MAP,
        aspect="auto",
        vmin=-limit,
        vmax=limit,
        extent=(-MAX_DISTANCE - 0.5, MAX_DISTANCE + 0.5, len(numbers) + 0.5, 0.5),
    )
    right.set(
        title="T5, encoder, all blocks:\nnumber added to the score",
        xlabel="position of the key minus position of the query",
        ylabel="head",
        yticks=range(1, len(numbers) + 1),
    )
    right.axvline(-0.5, color=GREY, lw=0.6)
    right.axvline(0.5, color=GREY, lw=0.6)
    figure.colorbar(image, ax=right, orientation="horizontal", aspect=40)
    return figure


PICTURES = {
    "alignment.png": draw_alignment,
    "learned.png": draw_learned,
}

if __name__ == "__main__":
    draw_pictures(PICTURES, __doc__)
