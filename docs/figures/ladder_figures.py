"""Draw pictures of docs/walkthrough.md from models that benchmarks/ladder.py has trained.

python docs/figures/ladder_figures.py

alignment.png shows where a recurrent decoder looks, attention_functions.png the same for each
attention function, and learned.png what two encodings of positions have learned.
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("", "docs/figures", "benchmarks")]

import numpy as np
from draw import DOCS, draw_attention
from ladder import row_folder
from matplotlib.figure import Figure

from choices import ATTENTION_SCORES
from hparams import find_trained
from ids import RaggedIds
from inference import load_model
from monitor.attention_maps import alignments
from runtime.errors import InputError

PAIR = ("Ein Mann schläft in einem grünen Raum.", "A man is sleeping in a green room.")
MAX_DISTANCE = 40  # tokens, in the picture of T5's numbers


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


def draw_learned(learned, t5, path):
    """Draw similarities of learned positions, and T5's numbers, of two models."""
    figure = Figure((9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    image = left.imshow(similarities(learned), cmap="RdBu", vmin=-1, vmax=1)
    left.set(title="cosine of learned positions", xlabel="position", ylabel="position")
    figure.colorbar(image, ax=left)
    distances = np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    for head, numbers in enumerate(numbers_by_distance(t5), 1):
        right.plot(distances, numbers, label=f"head {head}")
    right.set(title="T5: added to the score", xlabel="position of the key minus that of the query")
    right.legend()
    figure.savefig(path, dpi=110)


def draw_functions(models, path):
    """Draw the attention of recurrent models to the source of PAIR.

    Args:
      models: dict, `LoadedModel` by the name of the attention function.
    """
    figure = Figure((9, 6.6), layout="constrained")
    axes = figure.subplots(2, 3).flat
    for ax, (name, loaded) in zip(axes, models.items(), strict=True):
        X, Y = (
            RaggedIds.from_lists(vocab.encode([line]))
            for vocab, line in zip(loaded.vocabs, PAIR, strict=True)
        )
        (weights,) = alignments(loaded, X, Y)  # (T_y, T_x)
        # Without a softmax, weights may be negative: red.
        ax.imshow(weights, cmap="RdBu", vmin=-1, vmax=1)
        source, target = (
            [vocab.id_to_token(i) for i in ids[0]]
            for vocab, ids in zip(loaded.vocabs, (X, Y), strict=True)
        )
        ax.set_xticks(range(len(source)), source, rotation=90, fontsize=8)
        ax.set_yticks(range(len(target)), target, fontsize=8)
        ax.set_title(name)
    figure.savefig(path, dpi=110)


def main():
    """Draw all pictures."""

    def load(row):
        try:
            return load_model(find_trained(dict(logdir=str(row_folder(row, seed=0) / "logdir"))))
        except InputError as error:
            sys.exit(f"{error}. benchmarks/ladder.py trains the models")

    draw_attention(load("gru, additive"), DOCS / "alignment.png")
    recurrent = {name: load(f"gru, {name}") for name in ATTENTION_SCORES}
    draw_functions(recurrent, DOCS / "attention_functions.png")
    learned, t5 = (load(f"positions {name}").model for name in ("learned", "t5"))
    draw_learned(learned, t5, DOCS / "learned.png")


if __name__ == "__main__":
    main()
