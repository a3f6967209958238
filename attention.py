"""Attention maps: how much of each word every head takes; and pictures of them."""

import contextlib
import math
import warnings
from typing import NamedTuple

import numpy as np

from data_load import Ragged, encode_lines
from decoding import rows_at_once
from model import shift_right
from text import END, SPECIALS, UNK, before_end, clean

# Those that are installed go together: no font has all of the world's letters.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Arial Unicode MS",
)


class AttentionMaps(NamedTuple):
    """The weights of each head, for each block from the bottom up; they sum to 1 over T_k.

    The rows of `decoder` and `cross` are the words of y, each at the moment when it is
    given; what `decoder` attends to is `shift_right(y)`.
    """

    encoder: list  # of (N, h, T_x, T_x)
    decoder: list  # of (N, h, T_y, T_y)
    cross: list  # of (N, h, T_y, T_x)


def attention_maps(model, x, y):
    """What a `Transformer` attends to as it reads x and writes y.

    Args:
      x, y: ids of sources and of their translations, (N, T_x) and (N, T_y) int32.

    Returns:
      AttentionMaps
    """
    maps = AttentionMaps([], [], [])
    masks, inputs = model.masks(x), shift_right(y)
    enc = model.enc_words(x)  # (N, T_x, C)
    for block in model.enc_blocks:
        maps.encoder.append(weights(block.self_attention, enc, enc, masks))
        enc = block(enc, masks)
    dec, dec_masks = model.dec_words(inputs), model.masks(inputs)  # (N, T_y, C)
    for block in model.dec_blocks:
        maps.decoder.append(weights(block.self_attention, dec, dec, dec_masks, causality=True))
        seen = block.self_attention(dec, dec, dec_masks, causality=True)
        maps.cross.append(weights(block.vanilla_attention, seen, enc, masks))
        dec = block.feedforward(block.vanilla_attention(seen, enc, masks))
    return maps


def weights(attention, queries, keys, masks, causality=False):
    """What a `MultiheadAttention` makes its sums with: (N, h, T_q, T_k)."""
    return attention.weigh(queries, attention.project(keys, masks), causality)


def alignments(model, hp, X, Y):
    """How much of each source word each word of a translation takes: in the last block.

    Args:
      X, Y: Ragged, ids of sources and of their translations, `</S>` included.

    Returns:
      list of (T_y, T_x) float32, which sum to 1 over T_x, or to less: a model whose masks are
      read from the activations also attends to padding.
    """
    found = [None] * len(X)
    for rows in rows_at_once(np.maximum(X.lengths, Y.lengths)):
        maps = attention_maps(model, X.pad(rows, hp.width), Y.pad(rows, hp.width))
        means = np.mean(maps.cross[-1], axis=1)  # (N, T_y, T_x)
        for row, mean in zip(rows, means, strict=True):
            found[row] = mean[: Y.lengths[row], : X.lengths[row]]
    return found


def ended(ids, hp):
    """The ids of a translation and `</S>`, a list, as far as the model can read them."""
    return [*before_end(ids), END][: None if hp.unlimited else hp.maxlen]


def replace_unknown(model, hp, vocabs, lines, texts):
    """Put the source's word in place of each `<UNK>`: the one that the attention points to.

    Args:
      vocabs: two `Words`.
      lines, texts: sentences and their translations, lists of str.

    Returns:
      list of str
    """
    texts = list(texts)
    rows = [row for row, text in enumerate(texts) if SPECIALS[UNK] in text.split()]
    X, filled, _ = encode_lines([lines[row] for row in rows], vocabs[0], hp)
    rows = [rows[i] for i in filled]
    Y = Ragged.of([ended(ids, hp) for ids in vocabs[1].encode(texts[row] for row in rows)])
    for row, weights in zip(rows, alignments(model, hp, X, Y), strict=True):
        source = clean(lines[row]).split()
        chosen = np.argmax(weights[:, :-1], axis=1)  # (T_y,), of the words, and not </S>
        words = zip(texts[row].split(), chosen, strict=False)
        texts[row] = " ".join(source[i] if word == SPECIALS[UNK] else word for word, i in words)
    return texts


def draw(heads, across, down):
    """Draw a map for each head.

    Args:
      heads: (h, T_q, T_k).
      across, down: T_k and T_q words, str.

    Returns:
      matplotlib.figure.Figure
    """
    import matplotlib as mpl  # a third of a second, for those who want no pictures
    from matplotlib.figure import Figure

    columns = math.ceil(len(heads) ** 0.5)
    rows = math.ceil(len(heads) / columns)
    size = (columns * (1.2 + 0.19 * len(across)), rows * (1.2 + 0.19 * len(down)))
    known = set(mpl.font_manager.get_font_names())
    with mpl.rc_context({"font.family": [font for font in FONTS if font in known]}):
        figure = Figure(size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[len(heads) :]:
            ax.remove()
        for i, (ax, head) in enumerate(zip(axes.flat, heads, strict=False)):
            ax.imshow(head, cmap="Blues", vmin=0, vmax=1)
            # A dollar is no formula here.
            ax.set_xticks(range(len(across)), across, rotation=90, parse_math=False)
            ax.set_yticks(range(len(down)), down, parse_math=False)
            ax.tick_params(length=0, labelsize=8)
            ax.set_xlabel(f"head {i + 1}" if len(heads) > 1 else "")
            ax.xaxis.tick_top()
        return figure


def pixels(figure):
    """A picture as TensorBoard takes it: (height, width, 4) uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with without_warnings():
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def save(figure, file):
    """Write a picture to a file of bytes, as PNG."""
    with without_warnings():
        figure.savefig(file, format="png", dpi=150)


@contextlib.contextmanager
def without_warnings():
    """Within `with`, matplotlib does not warn of letters that no font has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
