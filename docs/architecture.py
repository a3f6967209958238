"""Draw the architecture with the names of this project's classes and shapes on the arrows.

python -m docs.architecture
"""

from pathlib import Path

from matplotlib.figure import Figure

PATH = Path(__file__).resolve().parent / "architecture.png"
COLOURS = dict(
    words="#fde0dd", attention="#fdd0a2", feedforward="#c6dbef", logits="#c7e9c0", block="#f4f4f4"
)
LEFT, RIGHT, WIDTH = 0.0, 6.2, 3.2

ENCODER = [
    (1.0, "words", "InputEmbedding\nEmbedding · √C + PositionalEncoding"),
    (3.6, "attention", "self_attention\nMultiheadAttention"),
    (5.2, "feedforward", "Feedforward"),
]
DECODER = [
    (1.0, "words", "InputEmbedding\nEmbedding · √C + PositionalEncoding"),
    (3.6, "attention", "self_attention\nMultiheadAttention, causality"),
    (5.2, "attention", "vanilla_attention\nMultiheadAttention"),
    (6.8, "feedforward", "Feedforward"),
    (9.2, "logits", "logits\nDense, or the Embedding again"),
]


def box(ax, x, y, kind, text, height=1.0):
    """A box with its lower left corner at (x, y): a name, and smaller what else it says."""
    from matplotlib.patches import FancyBboxPatch

    patch = FancyBboxPatch(
        (x, y), WIDTH, height, "round,pad=0.05", facecolor=COLOURS[kind], edgecolor="#555"
    )
    ax.add_patch(patch)
    name, _, rest = text.partition("\n")
    ax.text(x + WIDTH / 2, y + height * (0.65 if rest else 0.5), name, ha="center", va="center")
    ax.text(x + WIDTH / 2, y + 0.3, rest, ha="center", va="center", fontsize=8, color="#444")


def arrow(ax, start, end, shape="", side=0.12, bend=None):
    """An arrow from one point to another with the shape of what goes along it."""
    style = f"arc3,rad={bend}" if bend else "arc3"
    ax.annotate("", end, start, arrowprops=dict(arrowstyle="->", connectionstyle=style, lw=1.2))
    ax.text(
        (start[0] + end[0]) / 2 + side,
        (start[1] + end[1]) / 2,
        shape,
        fontsize=9,
        va="center",
        family="monospace",
        color="#1f4e79",
    )


def column(ax, x, rooms, inputs, outputs):
    """Boxes above one another, with arrows between them."""
    middle, below = x + WIDTH / 2, 0.2
    ax.text(middle, 0.0, inputs, ha="center", va="center", style="italic")
    shape = "(N, T)"
    for y, kind, text in rooms:
        arrow(ax, (middle, below), (middle, y - 0.05), shape)
        box(ax, x, y, kind, text)
        below, shape = y + 1.05, "(N, T, C)"
    arrow(ax, (middle, below), (middle, below + 0.75), outputs[0])
    ax.text(middle, below + 0.95, outputs[1], ha="center", va="center", style="italic")


def frame(ax, x, y, height, title):
    """The part that is there `num_blocks` times."""
    from matplotlib.patches import FancyBboxPatch

    ax.add_patch(
        FancyBboxPatch(
            (x - 0.35, y),
            WIDTH + 0.7,
            height,
            "round,pad=0.1",
            facecolor=COLOURS["block"],
            edgecolor="#999",
            linestyle="--",
        )
    )
    ax.text(x - 0.35, y + height - 0.12, f"{title} × num_blocks", fontsize=9, color="#555")


def main():
    """Draw architecture.png."""
    figure = Figure(figsize=(11, 9.2), layout="constrained")
    ax = figure.subplots()
    frame(ax, LEFT, 2.95, 3.75, "EncoderBlock")
    frame(ax, RIGHT, 2.95, 5.35, "DecoderBlock")
    column(ax, LEFT, ENCODER, "x: source ids", ("", ""))
    column(ax, RIGHT, DECODER, "shift_right(y): <S>, then the target ids", ("(N, T, V)", "scores"))
    # The encoder's output goes into each block of the decoder.
    top = LEFT + WIDTH / 2
    ax.plot([top, top, 4.7, 4.7], [6.9, 7.4, 7.4, 5.7], color="black", lw=1.2)
    arrow(ax, (4.7, 5.7), (RIGHT - 0.05, 5.7))
    ax.text(top + 0.2, 7.6, "memory (N, T, C)", fontsize=9, family="monospace", color="#1f4e79")
    ax.text(4.75, 6.0, "K, V\n(N, h, T, C/h)", fontsize=8, family="monospace", color="#1f4e79")
    within = (
        "Within a MultiheadAttention\n"
        "Q, K, V              (N, h, T, C/h)\n"
        "weights = softmax(Q Kᵀ / √(C/h))   (N, h, T_q, T_k)\n"
        "heads joined         (N, T_q, C)\n"
        "W_O (paper, tiny)    (N, T_q, C)\n"
        "+ queries, Normalize (N, T_q, C)\n\n"
        "Within a Feedforward\n"
        "inner, ReLU          (N, T, ffn_units)\n"
        "outer                (N, T, C)\n"
        "+ inputs, Normalize  (N, T, C)"
    )
    ax.text(-0.6, 11.1, within, fontsize=8.5, family="monospace", va="top", linespacing=1.5)
    ax.set(xlim=(-0.8, 10.2), ylim=(-0.3, 11.3))
    ax.axis("off")
    figure.savefig(PATH, dpi=90)


if __name__ == "__main__":
    main()
