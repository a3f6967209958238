"""Draw docs/architecture.png: the model, with the sections of the walk-through and the shapes.

python docs/figures/architecture.py
"""

from style import (
    BLUE,
    GREY,
    NORMAL,
    ORANGE,
    PURPLE,
    SMALL,
    TEXT,
    WIDTH,
    clear_axes,
    draw_arrow,
    draw_box,
    draw_pictures,
    make_figure,
)

HEIGHT = 10.4
# Horizontal positions of the left edges, in inches.
ENCODER, DECODER, BOX = 0.3, 4.65, 2.5
# Vertical positions of the lower edges.
EMBEDDING, BLOCK, STEP = 0.85, 2.6, 1.8  # STEP from one sublayer to the next
SUBLAYER, ADD, ADD_HEIGHT = 0.8, 0.98, 0.34

INPUT = "embedding (2) + positions (7)"
ATTENTION, FEEDFORWARD = "multi-head attention (3, 4)", "feed-forward network (6)"
ENCODER_SUBLAYERS = [
    ("attention", ATTENTION, "self-attention", "mask: padding of x (9)"),
    ("feedforward", FEEDFORWARD, "linear, ReLU, linear", ""),
]
DECODER_SUBLAYERS = [
    ("attention", ATTENTION, "self-attention", "masks: causal, padding of y (9)"),
    ("attention", ATTENTION, "cross-attention (8)", "mask: padding of x (9)"),
    ("feedforward", FEEDFORWARD, "linear, ReLU, linear", ""),
]
INSIDE = [
    ("multihead_attention in mini.py", ""),
    ("Q", "(N, T_q, C)"),
    ("K, V", "(N, T_k, C)"),
    ("Q_, K_, V_: heads", "(h*N, T, C/h)"),
    ("scores, masks, weights", "(h*N, T_q, T_k)"),
    ("outputs", "(N, T_q, C)"),
    ("feedforward in mini.py", ""),
    ("Conv1D, ReLU", "(N, T, 4*C)"),
    ("Conv1D", "(N, T, C)"),
]


def draw_layer(ax, x, y, height, kind, name, text="", mask=""):
    """Draw a box with a name, and smaller text below it."""
    draw_box(ax, x, y, BOX, height, fill=kind)
    lines = [(name, NORMAL, TEXT), (text, SMALL, GREY), (mask, SMALL, PURPLE)]
    lines = [line for line in lines if line[0]]
    for i, (line, size, colour) in enumerate(lines):
        line_y = y + height * (0.5 + 0.29 * ((len(lines) - 1) / 2 - i))
        ax.text(x + BOX / 2, line_y, line, fontsize=size, color=colour, ha="center", va="center")


def write_shape(ax, x, y, text, **options):
    """Write the shape of a tensor."""
    options = dict(fontsize=SMALL, va="center", family="monospace", color=BLUE) | options
    ax.text(x, y, text, **options)


def draw_sublayer(ax, x, y, sublayer):
    """Draw a sublayer with its inputs, its mask, its residual connection and normalization.

    Returns:
      float: the upper edge.
    """
    kind, name, text, mask = sublayer
    middle, add_y = x + BOX / 2, y + ADD
    draw_layer(ax, x, y, SUBLAYER, kind, name, text, mask)
    draw_arrow(ax, (middle, y + SUBLAYER), (middle, add_y))
    draw_layer(ax, x, add_y, ADD_HEIGHT, "normalize", "dropout, add, normalize (5)")
    # The residual connection leaves below the sublayer, and passes it on the right.
    fork, right, add_middle = y - 0.3, x + BOX + 0.28, add_y + ADD_HEIGHT / 2
    draw_arrow(ax, (middle, fork), (right, fork), (right, add_middle), (x + BOX, add_middle))
    if kind == "attention":
        names = "queries" if text.startswith("cross") else "queries, keys, values"
        options = dict(ha="right", va="center", color=ORANGE, fontsize=SMALL)
        ax.text(middle - 0.08, y - 0.15, names, **options)
    return add_y + ADD_HEIGHT


def draw_stack(ax, x, block, sublayers, ids, T):
    """Draw an embedding and the block above it.

    Args:
      block: its name.
      ids: what the embedding reads.
      T: T_x or T_y.

    Returns:
      float: the upper edge of the last sublayer.
    """
    middle, height = x + BOX / 2, STEP * len(sublayers)
    draw_box(ax, x - 0.2, BLOCK - 0.45, BOX + 0.6, height + 0.35, fill="block", linestyle="--")
    small = dict(fontsize=SMALL, color=GREY, va="center")
    ax.text(x - 0.1, BLOCK + height - 0.24, block, **small)
    ax.text(x + BOX + 0.3, BLOCK + height - 0.24, "× num_blocks", ha="right", **small)
    ax.text(middle, 0.2, ids, ha="center", va="center", style="italic")
    draw_arrow(ax, (middle, 0.35), (middle, EMBEDDING))
    write_shape(ax, middle + 0.1, 0.58, f"(N, {T})")
    draw_layer(ax, x, EMBEDDING, 0.72, "embedding", INPUT, "the vectors of tokens times √C")
    edge = EMBEDDING + 0.72
    for i, sublayer in enumerate(sublayers):
        y = BLOCK + i * STEP
        draw_arrow(ax, (middle, edge), (middle, y))
        write_shape(ax, middle + 0.1, BLOCK - 0.75 if i == 0 else y - 0.17, f"(N, {T}, C)")
        edge = draw_sublayer(ax, x, y, sublayer)
    return edge


def draw_architecture():
    """The encoder on the left, the decoder on the right."""
    figure = make_figure(HEIGHT, layout=None)
    ax = clear_axes(figure, WIDTH, HEIGHT)
    top = draw_stack(
        ax, ENCODER, "encoder block (8)", ENCODER_SUBLAYERS, "x: ids of the source", "T_x"
    )
    dec_top = draw_stack(
        ax,
        DECODER,
        "decoder block (8)",
        DECODER_SUBLAYERS,
        "<S>, then y without its end (8)",
        "T_y",
    )

    # The encoder's output goes into each block of the decoder.
    enc_middle, dec_middle = ENCODER + BOX / 2, DECODER + BOX / 2
    corner, cross_y = 4.05, BLOCK + STEP + SUBLAYER / 2
    turn = top + 0.75
    points = (enc_middle, top), (enc_middle, turn), (corner, turn), (corner, cross_y)
    draw_arrow(ax, *points, (DECODER, cross_y))
    write_shape(ax, enc_middle + 0.1, turn + 0.16, "memory (N, T_x, C)")
    keys = dict(fontsize=SMALL, color=ORANGE, va="center", ha="right")
    ax.text(corner - 0.08, cross_y, "keys,\nvalues", **keys)

    logits_y = dec_top + 0.75
    draw_arrow(ax, (dec_middle, dec_top), (dec_middle, logits_y))
    write_shape(ax, dec_middle + 0.1, dec_top + 0.5, "(N, T_y, C)")
    draw_layer(
        ax, DECODER, logits_y, 0.72, "logits", "linear map (2)", "then softmax (2), loss (10)"
    )
    draw_arrow(ax, (dec_middle, logits_y + 0.72), (dec_middle, logits_y + 1.12))
    write_shape(ax, dec_middle + 0.1, logits_y + 0.9, "(N, T_y, vocab_size)")
    ax.text(dec_middle, logits_y + 1.25, "logits", ha="center", va="center", style="italic")

    draw_box(ax, 0.1, 7.5, 3.65, 2.75, fill="block")
    for i, (name, shape) in enumerate(INSIDE):
        y = 10.03 - 0.28 * i
        ax.text(0.25, y, name, va="center", fontsize=SMALL, weight="normal" if shape else "bold")
        write_shape(ax, 3.65, y, shape, ha="right")
    return figure


PICTURES = {"architecture.png": draw_architecture}

if __name__ == "__main__":
    draw_pictures(PICTURES, __doc__)
