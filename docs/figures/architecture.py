"""Draw docs/architecture.png: the model, with the names of the classes and the shapes of tensors.

python docs/figures/architecture.py
"""

from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

PATH = Path(__file__).resolve().parent.parent / "architecture.png"
COLOURS = dict(
    embedding="#fde0dd",
    attention="#fdd0a2",
    feedforward="#c6dbef",
    normalize="#fff7bc",
    logits="#c7e9c0",
    block="#f4f4f4",
)
BLUE, GREY = "#1f4e79", "#444"

# Horizontal positions
ENCODER, DECODER, WIDTH = 0.0, 6.4, 3.2
# Vertical positions of the lower edges
INPUT, BLOCK, STEP = 1.0, 3.5, 2.25  # STEP from one sublayer to the next
SUBLAYER_HEIGHT, ADD_OFFSET, ADD_HEIGHT = 0.95, 1.2, 0.45

INPUT_EMBEDDING = "InputEmbedding\nEmbedding · √C + positions, dropout"
ENCODER_SUBLAYERS = [
    ("attention", "MultiheadAttention\nself_attention"),
    ("feedforward", "Feedforward\nfeedforward"),
]
DECODER_SUBLAYERS = [
    ("attention", "MultiheadAttention\nself_attention, causality=True"),
    ("attention", "MultiheadAttention\nvanilla_attention"),
    ("feedforward", "Feedforward\nfeedforward"),
]
DETAILS = """\
Inside a MultiheadAttention
Q = queries W_Q, K = keys W_K, V = keys W_V
(legacy: each followed by ReLU)
split into heads          (N, h, T, C/h)
softmax(Q Kᵀ / √(C/h))    (N, h, T_q, T_k)
· V, heads joined         (N, T_q, C)
· W_O  (paper, tiny)      (N, T_q, C)

Inside a Feedforward
inner, ReLU               (N, T, ffn_units)
outer                     (N, T, C)

Each of them adds its input to its output
and normalizes the sum: Normalize(x + f(x))
"""


def draw_box(ax, x, y, height, kind, text):
    """Draw a box with its lower left corner at (x, y): a name, and smaller text below it."""
    shape = "round,pad=0.05"
    colour = COLOURS[kind]
    ax.add_patch(FancyBboxPatch((x, y), WIDTH, height, shape, facecolor=colour, edgecolor="#555"))
    name, _, rest = text.partition("\n")
    centre = x + WIDTH / 2
    ax.text(centre, y + height * (0.68 if rest else 0.5), name, ha="center", va="center")
    ax.text(centre, y + height * 0.27, rest, ha="center", va="center", fontsize=8, color=GREY)


def draw_arrow(ax, *points):
    """Draw a line through points, with an arrow head at the last one."""
    if len(points) > 2:
        ax.plot(*zip(*points[:-1], strict=True), color="black", lw=1.2, solid_joinstyle="round")
    style = dict(arrowstyle="->", lw=1.2, shrinkA=0, shrinkB=0)
    ax.annotate("", points[-1], points[-2], arrowprops=style)


def write_shape(ax, x, y, text, **options):
    """Write the shape of a tensor."""
    options = dict(fontsize=9, va="center", family="monospace", color=BLUE) | options
    ax.text(x, y, text, **options)


def draw_sublayer(ax, x, y, kind, name):
    """Draw a sublayer with its residual connection and its layer normalization.

    Returns:
      float: the upper edge.
    """
    centre, add_y = x + WIDTH / 2, y + ADD_OFFSET
    draw_box(ax, x, y, SUBLAYER_HEIGHT, kind, name)
    draw_arrow(ax, (centre, y + SUBLAYER_HEIGHT + 0.05), (centre, add_y - 0.05))
    draw_box(ax, x, add_y, ADD_HEIGHT, "normalize", "Add, Normalize")
    # The residual connection leaves below the sublayer, and passes it on the right.
    fork, right, add_middle = y - 0.22, x + WIDTH + 0.35, add_y + ADD_HEIGHT / 2
    start, end = (centre, fork), (x + WIDTH + 0.05, add_middle)
    draw_arrow(ax, start, (right, fork), (right, add_middle), end)
    return add_y + ADD_HEIGHT + 0.05


def draw_stack(ax, x, title, sublayers, ids):
    """Draw an embedding and the block above it.

    Returns:
      float: the upper edge of the block.
    """
    centre = x + WIDTH / 2
    height = STEP * len(sublayers)
    ax.add_patch(
        FancyBboxPatch(
            (x - 0.3, BLOCK - 0.5),
            WIDTH + 0.85,
            height + 0.3,
            "round,pad=0.1",
            facecolor=COLOURS["block"],
            edgecolor="#999",
            linestyle="--",
        )
    )
    ax.text(
        x - 0.25,
        BLOCK - 0.3 + height,
        f"{title} × num_blocks",
        fontsize=8,
        color="#555",
        va="center",
    )

    ax.text(centre, 0.0, ids, ha="center", va="center", style="italic")
    draw_arrow(ax, (centre, 0.2), (centre, INPUT - 0.05))
    write_shape(ax, centre + 0.12, 0.55, "(N, T)")
    draw_box(ax, x, INPUT, 1.0, "embedding", INPUT_EMBEDDING)
    edge = INPUT + 1.05
    for i, (kind, name) in enumerate(sublayers):
        y = BLOCK + i * STEP
        draw_arrow(ax, (centre, edge), (centre, y - 0.05))
        write_shape(ax, centre + 0.12, INPUT + 1.4 if i == 0 else y - 0.39, "(N, T, C)")
        edge = draw_sublayer(ax, x, y, kind, name)
    return edge


def main():
    """Draw architecture.png."""
    figure = Figure(figsize=(11, 11), layout="constrained")
    ax = figure.subplots()
    enc_top = draw_stack(ax, ENCODER, "EncoderBlock", ENCODER_SUBLAYERS, "x: source ids")
    dec_ids = "shift_right(y): <S>, then the target ids"
    dec_top = draw_stack(ax, DECODER, "DecoderBlock", DECODER_SUBLAYERS, dec_ids)

    # The encoder's output goes into each block of the decoder.
    enc_centre, dec_centre = ENCODER + WIDTH / 2, DECODER + WIDTH / 2
    corner, attention_y = 4.85, BLOCK + STEP + SUBLAYER_HEIGHT / 2
    turn = enc_top + 0.9
    draw_arrow(
        ax,
        (enc_centre, enc_top),
        (enc_centre, turn),
        (corner, turn),
        (corner, attention_y),
        (DECODER - 0.05, attention_y),
    )
    write_shape(ax, enc_centre + 0.12, turn + 0.2, "memory (N, T, C)")
    write_shape(ax, corner + 0.1, attention_y + 0.17, "keys, values", fontsize=8)

    logits_y = dec_top + 1.1
    draw_arrow(ax, (dec_centre, dec_top), (dec_centre, logits_y - 0.05))
    write_shape(ax, dec_centre + 0.12, dec_top + 0.8, "(N, T, C)")
    text = "to_logits\nLinear, or the transposed Embedding"
    draw_box(ax, DECODER, logits_y, 0.95, "logits", text)
    draw_arrow(ax, (dec_centre, logits_y + 1.0), (dec_centre, logits_y + 1.65))
    write_shape(ax, dec_centre + 0.12, logits_y + 1.3, "(N, T, V)")
    ax.text(dec_centre, logits_y + 1.85, "logits", ha="center", va="center", style="italic")

    ax.text(
        ENCODER - 0.6,
        logits_y + 1.95,
        DETAILS,
        fontsize=9,
        family="monospace",
        va="top",
        linespacing=1.45,
    )
    ax.set(xlim=(-0.8, 10.4), ylim=(-0.3, logits_y + 2.1))
    ax.axis("off")
    figure.savefig(PATH, dpi=90)


if __name__ == "__main__":
    main()
