"""Draw what recurrent models attend to, and what encodings of positions learn.

python docs/figures/train_models.py recurrent learned t5
python docs/figures/trained.py

attention_functions.json has the weights of six models of benchmarks/ladder.py, to about 0.01: they
were read from the colours of an earlier picture. --measure computes them from such models again.
"""

import json
import sys

import numpy as np
from sentence import LINE
from style import (
    GREY,
    LARGE,
    ROOT,
    SIGNED_MAP,
    SMALL,
    draw_pictures,
    draw_weights,
    make_figure,
)
from train_models import trained_logdir

from choices import ATTENTION_SCORES
from ids import RaggedIds
from inference import Translator, load_model
from monitor.attention_maps import alignments, append_eos
from trained_models import find_trained

PAIR = ("Ein Mann schläft in einem grünen Raum.", "A man is sleeping in a green room.")
FUNCTIONS = ROOT / "docs" / "figures" / "attention_functions.json"
NOTES = dict(
    scaled_dot="softer than dot",
    dot="nearly 0 or 1; some words look at _Ein",
    additive="along the diagonal",
    bilinear="nearly 0 or 1",
    cosine="no softmax: also below 0 (red)",
    cosine_softmax="nearly equal: about 1/9 each",
)
MAX_DISTANCE = 15  # tokens, in the picture of T5's numbers


def load(name):
    """Load a model of train_models.py."""
    return load_model(find_trained(dict(logdir=trained_logdir(name))))


def draw_alignment():
    """The attention of a recurrent decoder for one sentence, which it translates."""
    loaded = load("recurrent")
    source, target = loaded.vocabs
    (translation,) = Translator(loaded.with_hp(beam=1))([LINE])
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


def measure_functions():
    """Write the attention weights of the ladder's recurrent models for PAIR to a file."""
    sys.path.append(str(ROOT / "benchmarks"))
    from ladder import row_folder

    weights, sides = {}, []
    for name in ATTENTION_SCORES:
        loaded = load_model(
            find_trained(dict(logdir=str(row_folder(f"gru, {name}", seed=0) / "logdir")))
        )
        sides = [
            RaggedIds.from_lists(vocab.encode([line]))
            for vocab, line in zip(loaded.vocabs, PAIR, strict=True)
        ]
        (matrix,) = alignments(loaded, *sides)  # (T_y, T_x)
        weights[name] = np.round(matrix, 2).tolist()
    source, target = (
        [vocab.id_to_token(i) for i in ids[0]]
        for vocab, ids in zip(loaded.vocabs, sides, strict=True)
    )
    content = dict(source=source, translation=target, weights=weights)
    FUNCTIONS.write_text(json.dumps(content, ensure_ascii=False, indent=1), "utf-8")


def draw_functions():
    """The attention of six recurrent models, which differ in the attention function."""
    content = json.loads(FUNCTIONS.read_text("utf-8"))
    figure = make_figure(7.2)
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for i, (ax, (name, weights)) in enumerate(
        zip(axes.flat, content["weights"].items(), strict=True)
    ):
        # Without a softmax, weights may be negative: red.
        image = draw_weights(
            ax, weights, content["source"], content["translation"], cmap="RdBu", low=-1
        )
        ax.set_aspect("auto")
        ax.tick_params(labeltop=i < 3, labelbottom=False, labelleft=i % 3 == 0)
        ax.set_title(name, weight="bold")
        ax.text(
            0.5,
            -0.03,
            NOTES[name],
            transform=ax.transAxes,
            ha="center",
            va="top",
            color=GREY,
            fontsize=SMALL,
        )
    figure.suptitle("source")
    figure.supylabel("translation", fontsize=LARGE)
    bar = figure.colorbar(image, ax=axes, orientation="horizontal", aspect=50, pad=0.06)
    bar.set_label("attention weight")
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
    "attention_functions.png": draw_functions,
    "learned.png": draw_learned,
}

if __name__ == "__main__":
    if sys.argv[1:] == ["--measure"]:
        measure_functions()
    else:
        draw_pictures(PICTURES, __doc__)
