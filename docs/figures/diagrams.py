"""Draw the pictures that need no trained model.

python docs/figures/diagrams.py             # all
python docs/figures/diagrams.py masks.png   # one
"""

import matplotlib as mpl
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch, Polygon, Rectangle
from style import (
    BLUE,
    GREEN,
    GREY,
    LARGE,
    NORMAL,
    ORANGE,
    PALE,
    RED,
    SERIES,
    SIGNED_MAP,
    SMALL,
    TEXT,
    WIDTH,
    clear_axes,
    draw_arrow,
    draw_box,
    draw_pictures,
    draw_weights,
    make_figure,
)

from modules import PositionalEncoding, label_smoothing
from training.optimizer import paper_rate

# Positions and schedule --------------------------------------------------------------


def draw_positions():
    """Both forms of the sinusoids, of 50 positions and 64 units, and four sines as curves."""
    figure = make_figure(5.6, title="Sinusoids that encode the position of a token (C = 64)")
    forms = {
        "paper: one frequency per pair of units": True,
        "2017 code: one frequency per unit": False,
    }
    axes = figure.subplot_mosaic("01;cc", height_ratios=(3, 2))
    for i, (title, paired) in enumerate(forms.items()):
        layer = PositionalEncoding(64, paired=paired, zero_pad=False, scale=False)
        encodings = layer(np.arange(50)[None])[0]  # (T, C)
        image = axes[str(i)].imshow(encodings, cmap=SIGNED_MAP, aspect="auto", vmin=-1, vmax=1)
        axes[str(i)].set(title=title, xlabel="unit", ylabel="position")
    figure.colorbar(image, ax=[axes["0"], axes["1"]], label="value", ticks=(-1, 0, 1), aspect=30)
    positions = np.arange(0, 49.1, 0.1)
    for unit in (0, 8, 16, 24):
        axes["c"].plot(positions, np.sin(positions / 10000 ** (unit / 64)), label=f"unit {unit}")
    axes["c"].set(title="paper: four units as curves", xlabel="position", xlim=(0, 49))
    axes["c"].legend(loc="lower right", ncols=4)
    return figure


def draw_schedule():
    """The learning rate over the steps: three warm-ups, and the constant rate of 2017."""
    steps = np.arange(1, 20_002, 50)
    figure = make_figure(3.4, title="The learning rate of the paper, for C = 512")
    ax = figure.subplots()
    for warmup in (1000, 4000, 8000):
        rates = [paper_rate(step, (512 * warmup) ** -0.5, warmup) for step in steps]
        paper = " (paper)" if warmup == 4000 else ""
        ax.plot(steps, rates, label=f"warm-up of {warmup:,} steps{paper}")
    ax.axhline(0.0001, color=GREY, linestyle="--", label="constant 0.0001 (2017 code)")
    ax.set(xlabel="step", ylabel="learning rate", xlim=(0, 20_000), ylim=(0, 0.0015))
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.grid(alpha=0.3)
    ax.legend()
    return figure


def draw_slope():
    """Gradient descent: the loss of one parameter, and a step down its slope."""
    figure = make_figure(2.9, title="The loss (2 w - 3)² of one parameter w")
    ax = figure.subplots()
    w = np.linspace(0, 3, 100)
    ax.plot(w, (2 * w - 3) ** 2)
    tangent = np.array([0.15, 0.85])
    ax.plot(tangent, 4 - 8 * (tangent - 0.5), color=ORANGE, linestyle="--")
    ax.text(0.9, 1.6, "slope: gradient -8", color=ORANGE)
    for point, text in (((0.5, 4.0), "w = 0.5"), ((1.3, 0.16), "w = 0.5 + 0.1 · 8 = 1.3")):
        ax.plot(*point, "o", color=RED)
        ax.text(point[0] + 0.06, point[1] + 0.25, text, color=RED)
    draw_arrow(ax, (0.5, 0.16), (1.3, 0.16), colour=RED)
    ax.plot([0.5, 0.5], [0.16, 4.0], color=RED, lw=0.6, linestyle=":")
    ax.set(xlabel="w", ylabel="loss", ylim=(-0.3, 7))
    return figure


# Training and inference --------------------------------------------------------------

READ, PREDICTED = "<S> The woman did".split(), "The woman did not".split()


def draw_decoder(ax, x, y, read, predicted, colours):
    """Draw a box that reads words from below and predicts words above it."""
    draw_box(ax, x, y, 3.0, 0.3, "decoder", fill="attention")
    for i, (word, best) in enumerate(zip(read, predicted, strict=True)):
        middle = x + 0.4 + 0.74 * i
        ax.text(middle, y - 0.28, word, ha="center", va="center", color=colours[i])
        draw_arrow(ax, (middle, y - 0.16), (middle, y), colour=GREY)
        if best:
            draw_arrow(ax, (middle, y + 0.3), (middle, y + 0.46), colour=GREY)
            ax.text(middle, y + 0.58, best, ha="center", va="center", color=BLUE)


def draw_teacher_forcing():
    """Training in one pass, and inference with a pass for each word."""
    height = 4.6
    figure = make_figure(height, layout=None)
    ax = clear_axes(figure, WIDTH, height)
    centred = dict(ha="center", va="center")
    ax.text(1.8, 4.35, "training: one pass (teacher forcing)", weight="bold", **centred)
    ax.text(1.8, 1.45, "black: the right words, known", **centred)
    ax.text(1.8, 1.2, "blue: predictions, compared with the right words", color=BLUE, **centred)
    draw_decoder(ax, 0.3, 2.4, READ, PREDICTED, [TEXT] * 4)
    ax.text(6.0, 4.35, "inference: one pass for each word", weight="bold", **centred)
    for t in range(4):
        predicted = [""] * t + [PREDICTED[t]]
        draw_decoder(ax, 4.5, 3.45 - 0.98 * t, READ[: t + 1], predicted, [TEXT] + [BLUE] * 3)
    ax.plot([4.0, 4.0], [0.1, height - 0.1], color=PALE, lw=1)
    return figure


def draw_cache():
    """Which keys and values each step of the decoder computes, without a cache and with one."""
    height = 2.9
    figure = make_figure(height, layout=None)
    ax = clear_axes(figure, WIDTH, height)
    for left, title, cached in ((0.9, "without a cache", False), (4.8, "with a KV cache", True)):
        ax.text(left + 1.2, 2.7, title, weight="bold", ha="center", va="center")
        for t in range(4):
            y = 1.75 - 0.42 * t
            ax.text(left - 0.15, y + 0.17, f"step {t + 1}", ha="right", va="center")
            ax.text(left + 0.3 + 0.62 * t, 2.3, READ[t], ha="center", va="center")
            for k in range(t + 1):
                kept = cached and k < t
                text, fill = ("kept", "feedforward") if kept else ("new", "attention")
                draw_box(ax, left + 0.62 * k, y, 0.6, 0.34, text, fill=fill)
    ax.text(WIDTH / 2, 0.15, "keys and values of the words above", ha="center", color=GREY)
    return figure


# Masks -------------------------------------------------------------------------------

SOURCE = ["_der", "_Hund", "_schläft", "</S>", "<PAD>", "<PAD>"]
TARGET = ["<S>", "_the", "_dog", "_sleeps", "</S>", "<PAD>"]  # the decoder's input


def draw_masks():
    """The masks of the three attentions, of one sentence that is padded."""
    source, target = (np.array([token != "<PAD>" for token in side]) for side in (SOURCE, TARGET))
    queries = np.ones((6, 1), bool)  # of both sides
    causal = np.tril(queries & queries.T)
    masks = {
        "encoder self-attention:\npadding mask": (SOURCE, SOURCE, queries & source),
        "decoder self-attention:\ncausal and padding mask": (TARGET, TARGET, causal & target),
        "cross-attention:\nmask of the source": (SOURCE, TARGET, queries & source),
    }
    figure = make_figure(3.6)
    axes = figure.subplots(1, 3)
    colours = "#f3d3cf", "#2f6fb2"
    for ax, (title, (keys, queries, mask)) in zip(axes, masks.items(), strict=True):
        draw_weights(ax, mask, keys, queries, cmap=ListedColormap(colours))
        for q, row in enumerate(mask):
            for k, visible in enumerate(row):
                sign, colour = ("✓", "white") if visible else ("×", "#a04438")
                ax.text(k, q, sign, ha="center", va="center", color=colour, fontsize=NORMAL)
        ax.set_xticks(np.arange(len(keys) - 1) + 0.5, minor=True)
        ax.set_yticks(np.arange(len(queries) - 1) + 0.5, minor=True)
        ax.grid(which="minor", color="white", linewidth=1.5)
        ax.tick_params(which="minor", length=0)
        ax.set(title=title, ylabel="queries", anchor="N")
        ax.set_xlabel("keys", labelpad=8)
    figure.legend(
        [Patch(color=colours[1]), Patch(color=colours[0])],
        ["✓ visible: the query may attend to the key", "× hidden: the weight is 0"],
        loc="outside lower center",
        ncols=2,
        frameon=False,
    )
    return figure


# Normalization -----------------------------------------------------------------------


def draw_cube(ax, x, y, sizes, marked, colour):
    """Draw a cube of N x T x C cells, of which one slice is marked.

    Args:
      sizes: N (to the back), T (down) and C (to the right).
      marked: function (n, t, c) -> bool.
    """
    N, T, C = sizes
    unit, back = 0.3, np.array([0.19, 0.15])

    def draw_face(corners, is_marked):
        points = [np.array([x, y]) + (c * unit, -t * unit) + n * back for n, t, c in corners]
        face = colour if is_marked else "white"
        ax.add_patch(Polygon(points, facecolor=face, edgecolor="#555555", lw=0.7))

    for t in range(T):
        for c in range(C):  # the front, n = 0
            draw_face([(0, t, c), (0, t, c + 1), (0, t + 1, c + 1), (0, t + 1, c)], marked(0, t, c))
    for n in range(N):
        for c in range(C):  # the top, t = 0
            draw_face([(n, 0, c), (n, 0, c + 1), (n + 1, 0, c + 1), (n + 1, 0, c)], marked(n, 0, c))
        for t in range(T):  # the right side, c = C - 1
            draw_face(
                [(n, t, C), (n, t + 1, C), (n + 1, t + 1, C), (n + 1, t, C)], marked(n, t, C - 1)
            )
    label = dict(ha="center", va="center", fontsize=NORMAL)
    ax.text(x + C * unit / 2, y - T * unit - 0.2, f"C units = {C}", **label)
    ax.text(x - 0.2, y - T * unit / 2, f"T tokens = {T}", rotation=90, **label)
    middle = np.array([x + C * unit, y - T * unit]) + N * back / 2 + (0.16, -0.14)
    ax.text(*middle, f"N sentences = {N}", rotation=38, rotation_mode="anchor", **label)


def draw_norms():
    """Which numbers batch normalization and layer normalization average."""
    figure = make_figure(3.6, layout=None)
    ax = clear_axes(figure, WIDTH, 3.6)
    sizes = 3, 4, 6
    kinds = (
        ("batch normalization", ORANGE, lambda n, t, c: c == 2, "one unit", "N · T = 12 numbers"),
        (
            "layer normalization",
            BLUE,
            lambda n, t, c: (n, t) == (0, 1),
            "one token",
            "C = 6 numbers",
        ),
    )
    for i, (name, colour, marked, of, count) in enumerate(kinds):
        x = 0.85 + 4 * i
        ax.text(x + 1.15, 3.35, name, ha="center", fontsize=LARGE, weight="bold", color=colour)
        draw_cube(ax, x, 2.6, sizes, marked, colour)
        lines = f"one mean and one variance for {of}:\nover {count} (coloured)"
        ax.text(x + 1.15, 0.55, lines, ha="center", va="center")
    return figure


# Labels ------------------------------------------------------------------------------


def draw_smoothing():
    """The labels of one position before and after label smoothing, with ten tokens."""
    tokens = ["<PAD>", "<UNK>", "<S>", "</S>", "_the", "_a", "_dog", "_cat", "_sleeps", "_runs"]
    labels = np.eye(len(tokens))[tokens.index("_dog")]
    figure = make_figure(3.4, title='The label of a position whose token is "_dog", for ten tokens')
    axes = figure.subplots(1, 2, sharey=True)
    smoothed = {
        "before: one-hot": labels,
        "after: label smoothing with epsilon = 0.1": label_smoothing(labels, 0.1),
    }
    for ax, (title, values) in zip(axes, smoothed.items(), strict=True):
        colours = [ORANGE if label else BLUE for label in labels]
        bars = ax.bar(tokens, values, color=colours)
        ax.bar_label(bars, [f"{value:.2g}" for value in values], fontsize=SMALL, padding=2)
        ax.set(title=title, ylim=(0, 1.12))
        ax.tick_params(axis="x", rotation=90, length=0)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("probability")
    return figure


# Heads -------------------------------------------------------------------------------


def draw_split_heads():
    """How C units become h heads, and the heads C units again, with shapes."""
    height = 6.3
    figure = make_figure(height, layout=None)
    ax = clear_axes(figure, WIDTH, height)
    h, left, gap = 4, 1.55, 0.24
    colours, width = SERIES[:h], 1.2
    xs = [left + i * (width + gap) for i in range(h)]
    right = xs[-1] + width
    span, middle = right - left, (left + right) / 2

    def write_row(y, name, shape):
        ax.text(0.15, y + 0.1, name, va="center", weight="bold")
        ax.text(0.15, y - 0.13, shape, va="center", color=BLUE, family="monospace", fontsize=SMALL)

    def draw_stripes(y, joined):
        step = span / h
        for i, colour in enumerate(colours):
            x = left + i * step if joined else xs[i]
            w = step if joined else width
            patch = Rectangle((x, y), w, 0.36, facecolor=colour, alpha=0.75, edgecolor="white")
            ax.add_patch(patch)
            ax.text(x + w / 2, y + 0.18, "C/h units", color="white", ha="center", va="center")

    write_row(5.9, "input", "(N, T, C)")
    draw_box(ax, left, 5.72, span, 0.36, "C units of each token", fill=PALE)
    for x in (left + span / 6, middle, right - span / 6):
        draw_arrow(ax, (x, 5.72), (x, 5.42))
    write_row(5.2, "projected", "(N, T, C)")
    for i, name in enumerate(("Q = queries W_Q", "K = keys W_K", "V = keys W_V")):
        draw_box(ax, left + i * span / 3 + 0.05, 5.0, span / 3 - 0.1, 0.42, name, fill="attention")
    ax.text(right + 0.1, 5.2, "one matrix\nfor all heads", fontsize=SMALL, va="center", color=GREY)

    write_row(4.35, "each of them", "(N, T, C)")
    for x in (left + span / 6, middle, right - span / 6):
        draw_arrow(ax, (x, 5.0), (x, 4.55))
    draw_stripes(4.17, joined=True)
    write_row(3.5, "split_heads", "(N, h, T, C/h)")
    for i, x in enumerate(xs):
        draw_arrow(ax, (left + (i + 0.5) * span / h, 4.17), (x + width / 2, 3.7))
    draw_stripes(3.32, joined=False)

    write_row(2.7, "attend_heads", "(N, h, T, C/h)")
    for i, (x, colour) in enumerate(zip(xs, colours, strict=True), 1):
        draw_arrow(ax, (x + width / 2, 3.32), (x + width / 2, 2.98))
        draw_box(ax, x - 0.1, 2.42, width + 0.2, 0.56, "", fill="attention", edge=colour, lw=1.6)
        ax.text(x + width / 2, 2.8, f"head {i}", ha="center", va="center")
        ax.text(x + width / 2, 2.58, "own weights (T, T)", ha="center", va="center", fontsize=SMALL)
        draw_arrow(ax, (x + width / 2, 2.42), (left + (i - 0.5) * span / h, 1.92))
    write_row(1.75, "join_heads", "(N, T, C)")
    draw_stripes(1.56, joined=True)
    draw_arrow(ax, (middle, 1.56), (middle, 1.22))
    write_row(1.02, "W_O", "(C, C)")
    text = "output_projection: mixes the units of all heads"
    draw_box(ax, left, 0.82, span, 0.4, text, fill="attention")
    draw_arrow(ax, (middle, 0.82), (middle, 0.5))
    write_row(0.32, "output", "(N, T, C)")
    draw_box(ax, left, 0.14, span, 0.36, "C units of each token", fill=PALE)
    return figure


# Paths -------------------------------------------------------------------------------


def draw_paths():
    """The path between two tokens in a recurrent encoder and in a Transformer."""
    height = 3.9
    figure = make_figure(height, layout=None)
    ax = clear_axes(figure, WIDTH, height)
    tokens = ["_der", "_Hund", ",", "_den", "_ich", "_sehe", ",", "_schläft"]
    count, first, last = len(tokens), 1, 7
    centred = dict(ha="center", va="center")

    def draw_side(left, title, notes, rows):
        """Draw tokens, and rows of boxes above them: (y, letter, indices on the path)."""
        middle, xs = left + 1.83, [left + 0.22 + 0.46 * i for i in range(count)]
        ax.text(middle, 3.68, title, weight="bold", **centred)
        ax.text(middle, 3.4, notes[0], color=GREY, **centred)
        ax.text(middle, 0.2, notes[1], **centred)
        for i, (x, token) in enumerate(zip(xs, tokens, strict=True)):
            colour = RED if i in (first, last) else GREY
            rotation = 0 if token == "," else 90
            ax.text(x, 1.1, token, rotation=rotation, ha="center", va="top", color=colour)
            draw_arrow(ax, (x, 1.15), (x, rows[0][0] - 0.17), colour=GREY)
            for y, letter, path in rows:
                colours = dict(fill="#f7d9d5", edge=RED) if i in path else {}
                draw_box(ax, x - 0.17, y - 0.17, 0.34, 0.34, letter, **colours)
        return xs

    y = 2.2
    steps = last - first
    notes = "each state waits for the one before it", f"path from _Hund to _schläft: {steps} steps"
    xs = draw_side(0.15, "recurrent encoder", notes, [(y, "e", range(first, last + 1))])
    for i in range(count - 1):
        on_path = dict(colour=RED, lw=2.2) if first <= i < last else dict(colour=GREY)
        draw_arrow(ax, (xs[i] + 0.17, y), (xs[i + 1] - 0.17, y), **on_path)

    low, high = 1.6, 2.85
    notes = "all states at the same time", "path from _Hund to _schläft: 1 step"
    xs = draw_side(4.2, "self-attention", notes, [(low, "x", [first]), (high, "e", [last])])
    for i, x in enumerate(xs):
        for j, other in enumerate(xs):
            ends = [x, other], [low + 0.17, high - 0.17]
            if j != last:
                ax.plot(*ends, color=PALE, lw=0.4, zorder=0)
            elif i != first:
                draw_arrow(ax, *zip(*ends, strict=True), colour="#a8a8a8", lw=0.9)
    draw_arrow(ax, (xs[first], low + 0.17), (xs[last], high - 0.17), colour=RED, lw=2.2)
    ax.plot([4.0, 4.0], [0.1, 3.8], color=PALE, lw=1)
    return figure


# Residual connections ----------------------------------------------------------------


@mpl.rc_context({"text.parse_math": True})
def draw_residual():
    """A layer without and with a residual connection, their gradients, and degradation."""
    height = 3.9
    figure = make_figure(height, layout=None)
    ax = clear_axes(figure, WIDTH, height)
    down = dict(colour=ORANGE, lw=2)
    centred = dict(ha="center", va="center")
    bottom, top = 0.95, 3.0  # of the arrows
    middle = (bottom + top) / 2

    def draw_layer(x, title, output):
        """Draw a layer f from its input to its output."""
        ax.text(x, 3.7, title, weight="bold", **centred)
        ax.text(x, top + 0.2, output, fontsize=LARGE, **centred)
        ax.text(x, bottom - 0.17, "$x$", fontsize=LARGE, **centred)
        draw_box(ax, x - 0.4, middle - 0.22, 0.8, 0.44, "$f$", fill="feedforward", size=LARGE)
        draw_arrow(ax, (x, bottom), (x, middle - 0.22))
        draw_arrow(ax, (x + 0.22, middle - 0.22), (x + 0.22, bottom), **down)
        factor = "$\\times\\; f'(x)$"
        ax.text(x + 0.3, (bottom + middle - 0.22) / 2, factor, color=ORANGE, va="center")

    x = 1.0
    draw_layer(x, "plain layer", "$y = f(x)$")
    draw_arrow(ax, (x, middle + 0.22), (x, top))
    draw_arrow(ax, (x + 0.22, top), (x + 0.22, middle + 0.22), **down)
    note = f"gradient after 12 layers\nwith $f'(x) = 0.3$:\n$0.3^{{12}}$ = {0.3**12:.0e}"
    ax.text(x, 0.32, note, color=ORANGE, **centred)

    x, plus, low, left = 3.75, 2.63, 1.2, 2.82
    draw_layer(x, "residual connection", "$y = x + f(x)$")
    draw_arrow(ax, (x, middle + 0.22), (x, plus - 0.13))
    draw_arrow(ax, (x, plus + 0.13), (x, top))
    circle = dict(boxstyle="circle,pad=0.15", facecolor="white")
    ax.text(x, plus, "+", fontsize=LARGE, bbox=circle, **centred)
    draw_arrow(ax, (x, low), (left, low), (left, plus), (x - 0.14, plus), colour=BLUE, lw=2)
    ax.text(left - 0.18, middle, "x unchanged", color=BLUE, rotation=90, **centred)
    draw_arrow(ax, (x + 0.22, top), (x + 0.22, middle + 0.22), **down)
    inner = left + 0.12, low + 0.12, plus - 0.12
    path = [(x - 0.14, inner[2]), (inner[0], inner[2]), (inner[0], inner[1]), (x - 0.06, inner[1])]
    draw_arrow(ax, *path, **down)
    ax.text(inner[0] + 0.1, middle, "$\\times\\, 1$", color=ORANGE, va="center", fontsize=SMALL)
    note = f"gradient after 12 layers\nwith $f'(x) = 0.3$:\n$(1 + 0.3)^{{12}}$ = {1.3**12:.1f}"
    ax.text(x, 0.32, note, color=ORANGE, **centred)

    ax.text(6.6, 3.7, "degradation (sketch)", weight="bold", **centred)
    curves = figure.add_axes((5.55 / WIDTH, bottom / height, 2.25 / WIDTH, 2.2 / height))
    steps = np.linspace(0, 1, 100)
    for layers, end, speed, colour in ((56, 0.42, 3.5, RED), (20, 0.2, 5, GREEN)):
        error = end + (1 - end) * np.exp(-speed * steps)
        curves.plot(steps, error, color=colour, lw=2)
        curves.text(0.98, error[-1] + 0.12, f"{layers} plain layers", color=colour, ha="right")
    curves.set(xlabel="step", ylabel="training error", xticks=[], yticks=[], ylim=(0, 1.05))
    curves.spines[["top", "right"]].set_visible(False)
    ax.text(6.6, 0.32, "the deeper stack has the\nlarger training error", **centred)
    for border in (2.3, 5.15):
        ax.plot([border, border], [0.1, height - 0.1], color=PALE, lw=1)
    return figure


# Recurrent model ---------------------------------------------------------------------


@mpl.rc_context({"text.parse_math": True})
def draw_rnn():
    """A recurrent encoder and decoder with attention: how one state of the decoder is computed."""
    height, step = 6.1, 2
    figure = make_figure(height, layout=None)
    ax = clear_axes(figure, WIDTH, height)
    source, target = "Hunde sind klein . </S>".split(), "Dogs are small . </S>".split()
    between = 0.93
    xs = [2.4 + between * i for i in range(len(source))]  # of both sentences
    edge, end = xs[0] - 0.3, xs[-1] + 0.3
    rows = dict(x=0.35, e=1.1, s=2.1, softmax=2.68, a=3.26, c=4.05, d=5.0, y=5.75)
    bus = 1.6  # along which the query reaches all scores
    half = 0.2  # of the height of a box
    centred = dict(ha="center", va="center")

    def write_row(row, name, formula=""):
        ax.text(0.12, rows[row], name, va="center", weight="bold")
        ax.text(end + 0.25, rows[row], formula, va="center", color=BLUE)

    def draw_state(x, row, text, **options):
        options = dict(fill="plain", size=LARGE) | options
        draw_box(ax, x - 0.27, rows[row] - half, 0.54, 2 * half, text, **options)

    write_row("x", "source")
    write_row("e", "encoder states", "keys and values")
    write_row("s", "scores", f"$s_i = \\mathrm{{score}}(e_i, d_{step - 1})$")
    write_row("a", "weights", r"$\alpha_i = \dfrac{e^{s_i}}{\sum_j e^{s_j}}$")
    write_row("c", "context", rf"$c_{step} = \sum_i \alpha_i e_i$")
    write_row("d", "decoder states")
    write_row("y", "outputs")

    for i, (x, word) in enumerate(zip(xs, source, strict=True), 1):
        value = x + 0.37  # where the line of the value is
        start = x + 0.2, rows["e"] + half
        draw_arrow(ax, start, (value, start[1] + 0.14), (value, rows["c"] - half), colour=BLUE)
        ax.text(x, rows["x"], f"$x_{i}$\n{word}", **centred)
        draw_arrow(ax, (x, rows["x"] + 0.2), (x, rows["e"] - half), colour=GREY)
        draw_state(x, "e", f"$e_{i}$", fill="feedforward")
        if i > 1:
            draw_arrow(ax, (x - between + 0.27, rows["e"]), (x - 0.27, rows["e"]), colour=GREY)
        draw_arrow(ax, (x, rows["e"] + half), (x, rows["s"] - half))
        draw_arrow(ax, (x - 0.15, bus), (x - 0.15, rows["s"] - half), colour=RED)
        draw_state(x, "s", f"$s_{i}$")
        draw_arrow(ax, (x, rows["s"] + half), (x, rows["softmax"] - 0.14))
        draw_arrow(ax, (x, rows["softmax"] + 0.14), (x, rows["a"] - half))
        draw_state(x, "a", f"$\\alpha_{i}$", fill="attention")
        draw_arrow(ax, (x, rows["a"] + half), (x, rows["c"] - half))
    width = end + 0.17 - edge
    draw_box(ax, edge, rows["softmax"] - 0.14, width, 0.28, "softmax", fill="attention", zorder=3)
    products = " + ".join(rf"\alpha_{i} e_{i}" for i in range(1, len(xs) + 1))
    text = f"$c_{step} = {products}$"
    draw_box(ax, edge, rows["c"] - half, width, 2 * half, text, fill="attention", size=LARGE)

    query, left = xs[step - 2], 1.9
    path = [(query - 0.15, rows["d"] - half), (query - 0.15, 4.5), (left, 4.5), (left, bus)]
    ax.plot(*zip(*path, (xs[-1] - 0.15, bus), strict=True), color=RED, lw=1.2)
    ax.text(left - 0.2, 3.0, f"query $d_{step - 1}$", color=RED, rotation=90, **centred)
    draw_arrow(ax, (xs[step - 1], rows["c"] + half), (xs[step - 1], rows["d"] - half), colour=BLUE)

    before = left - 0.35
    ax.text(before, rows["d"], f"$e_{len(xs)}$", fontsize=LARGE, **centred)
    ax.text(before + 0.05, rows["y"], "<S>", **centred)
    for i, (x, word) in enumerate(zip(xs, target, strict=True), 1):
        now = i == step
        colour = TEXT if now else GREY
        draw_state(x, "d", f"$d_{i}$", fill="logits" if i <= step else "plain", lw=2 if now else 1)
        draw_arrow(ax, (x - between + 0.27, rows["d"]), (x - 0.27, rows["d"]), colour=colour)
        start = x - between + 0.1
        draw_arrow(ax, (start + 0.15, rows["y"] - 0.2), (x - 0.2, rows["d"] + half), colour=colour)
        draw_arrow(ax, (x, rows["d"] + half), (x, rows["y"] - 0.2), colour=colour)
        ax.text(x, rows["y"], f"$y_{i}$\n{word}", color=colour, **centred)
        if not now:
            ax.text(x + 0.1, 4.42, f"$c_{i}$", color=GREY, **centred)
            draw_arrow(ax, (x + 0.1, 4.54), (x + 0.1, rows["d"] - half), colour=GREY)
    return figure


PICTURES = {
    "positions.png": draw_positions,
    "schedule.png": draw_schedule,
    "slope.png": draw_slope,
    "teacher_forcing.png": draw_teacher_forcing,
    "cache.png": draw_cache,
    "masks.png": draw_masks,
    "norms.png": draw_norms,
    "label_smoothing.png": draw_smoothing,
    "split_heads.png": draw_split_heads,
    "paths.png": draw_paths,
    "residual.png": draw_residual,
    "rnn.png": draw_rnn,
}

if __name__ == "__main__":
    draw_pictures(PICTURES, __doc__)
