"""What the pictures of docs/ share: sizes, colours, boxes and arrows, maps of attention weights.

A picture is 8 inches wide at 100 pixels per inch, as GitHub shows it; files have twice as many.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch
from PIL import Image

from translation.attention_maps import readable_token

WIDTH = 8.0  # inches
DPI = 200
SMALL, NORMAL, LARGE = 9, 10, 12  # points
STEP_MS, CHOSEN_MS, LAST_MS = 1500, 700, 5000  # how long the images of an animation are shown
# Reduces an image to 256 colours, none of which differs much from the original one.
PALETTE = dict(colors=256, method=Image.Quantize.MAXCOVERAGE)

WEIGHTS_MAP = "Blues"  # attention weights: 0 is white, 1 is dark
SIGNED_MAP = "RdBu_r"  # numbers from -1, blue, to +1, red
TEXT, GREY, PALE = "#222222", "#777777", "#d9d9d9"
BLUE, ORANGE, GREEN, RED, PURPLE = "#1f5fa8", "#d9730d", "#2e8b57", "#c0392b", "#7a4fa3"
SERIES = (BLUE, ORANGE, GREEN, RED, PURPLE, "#8c6d46")
FILL = dict(
    embedding="#fde0dd",
    attention="#fdd9b5",
    feedforward="#cfe2f3",
    normalize="#fff4b8",
    logits="#cdeccd",
    block="#f6f6f6",
    plain="white",
)

mpl.rcParams.update(
    {
        "font.size": NORMAL,
        "axes.titlesize": NORMAL,
        "axes.labelsize": NORMAL,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "legend.fontsize": SMALL,
        "figure.titlesize": LARGE,
        "text.color": TEXT,
        "axes.labelcolor": TEXT,
        "axes.edgecolor": GREY,
        "axes.prop_cycle": mpl.cycler(color=SERIES),
        "text.parse_math": False,
        "savefig.facecolor": "white",
    }
)


def make_figure(height, *, title=None, layout="constrained") -> Figure:
    """Make a figure of the width of a page, and of this height in inches."""
    figure = Figure((WIDTH, height), dpi=DPI, layout=layout)
    if title:
        figure.suptitle(title)
    return figure


def draw_pictures(pictures, description, load=None, logdir="docs/sample_model"):
    """Draw the pictures that the command line names, or all.

    Args:
      pictures: {file name: function that returns a Figure, or a list of images: an animation}.
      description: the docstring of the script.
      load: function of a logdir, whose result the functions take; None for functions without
        arguments.
      logdir: the default of --logdir, in the root of the repository.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(pictures))
    parser.add_argument("--output", type=Path, default=DOCS, help="folder (default: docs)")
    if load:
        parser.add_argument("--logdir", default=str(ROOT / logdir))
    args = parser.parse_args()
    if unknown := {*args.names} - {*pictures}:
        parser.error(f"{', '.join(unknown)}: no such picture. Choose from {', '.join(pictures)}")
    given = [load(args.logdir)] if load else []
    for name in args.names or pictures:
        save(pictures[name](*given), args.output / name)
        print(args.output / name, file=sys.stderr)


def render(figure) -> Image.Image:
    """Render a figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")


def save(picture, path):
    """Write a picture to a file with 256 colours, which is a third as large.

    Args:
      picture: Figure or PIL image; or list of PIL images, an animation.
    """
    if isinstance(picture, list):
        return save_animation(picture, path)
    image = render(picture) if isinstance(picture, Figure) else picture
    image.quantize(**PALETTE, dither=Image.Dither.NONE).save(path, optimize=True)


def save_animation(images, path):
    """Write images to a GIF file, two per step: the second one is shown for a shorter time."""
    joined = np.concatenate([*map(np.asarray, images)])  # one below the other
    palette = Image.fromarray(joined).quantize(**PALETTE, dither=Image.Dither.NONE)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    durations = [STEP_MS, CHOSEN_MS] * (len(images) // 2)
    durations[-1] = LAST_MS
    options = dict(save_all=True, append_images=others, loop=0, optimize=True)
    first.save(path, duration=durations, **options)


# Attention -------------------------------------------------------------------------


def draw_weights(ax, weights, keys=None, queries=None, cmap=WEIGHTS_MAP, low=0, size=SMALL):
    """Draw attention weights (T_q, T_k): keys along the top, queries down the left.

    Args:
      keys, queries: tokens, T_k and T_q of them; None for none.

    Returns:
      what a colour bar needs.
    """
    image = ax.imshow(weights, cmap=cmap, vmin=low, vmax=1)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    keys, queries = ([*map(readable_token, tokens or ())] for tokens in (keys, queries))
    ax.set_xticks(range(len(keys)), keys, rotation=90, fontsize=size)
    ax.set_yticks(range(len(queries)), queries, fontsize=size)
    ax.tick_params(length=0)
    ax.spines[:].set_color(PALE)
    return image


def colour_of(value, cmap, low):
    """Return the colour of a number between `low` and 1."""
    return mpl.colormaps[cmap]((value - low) / (1 - low))


# Boxes and arrows ------------------------------------------------------------------


def clear_axes(figure, width, height):
    """Return axes without lines, whose units are inches if the figure has this size."""
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.axis("off")
    return ax


def draw_box(ax, x, y, width, height, text="", fill="plain", edge=GREY, size=NORMAL, **options):
    """Draw a box with its lower left corner at (x, y), and a text in its middle."""
    box = FancyBboxPatch(
        (x, y),
        width,
        height,
        "round,pad=0,rounding_size=0.05",
        facecolor=FILL.get(fill, fill),
        edgecolor=edge,
        **options,
    )
    ax.add_patch(box)
    ax.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size)


def draw_arrow(ax, *points, colour=TEXT, style="-|>", **options):
    """Draw a line through points, with an arrow head at the last one."""
    options = dict(color=colour, lw=1.2) | options
    if len(points) > 2:
        ax.plot(*zip(*points[:-1], strict=True), solid_joinstyle="round", **options)
    arrow = dict(arrowstyle=style, shrinkA=0, shrinkB=0, mutation_scale=10) | options
    ax.annotate("", points[-1], points[-2], arrowprops=arrow)
