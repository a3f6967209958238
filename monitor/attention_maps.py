"""Attention maps, the attention weights of each head between all tokens, and their pictures."""

import contextlib
import dataclasses
import itertools
import math
import warnings
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

from ensemble import Ensemble
from ids import RaggedIds
from inference import decoding_batches, encode_both, encode_lines
from modules import shift_right
from rnn import RecurrentModel
from vocab import EOS, truncate_at_eos

MAX_PICTURE_TOKENS = 100  # on each axis of a picture
# Fallback fonts: no single font covers all scripts.
FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Arial Unicode MS",
)

# Computing ---------------------------------------------------------------------


class AttentionMaps(NamedTuple):
    """The attention weights of all heads, one array per block from the bottom up.

    They sum to 1 over the last axis, the keys; those of `--attention_score cosine` have any sum,
    and may be negative. A row of `decoder` and `cross` belongs to the step that predicts a token
    of y. The keys of `decoder` are the decoder's inputs, `shift_right(y)`.
    """

    encoder: list  # of (N, h, T_x, T_x)
    decoder: list  # of (N, h, T_y, T_y)
    cross: list  # of (N, h, T_y, T_x)


def attention_maps(model, x, y) -> AttentionMaps:
    """Compute the attention weights of a model that reads x and predicts y.

    A recurrent model has only `cross`, with one block and one head; without attention, no block.

    Args:
      model: of an `Ensemble`, the first model.
      x, y: ids of sources and of their translations, (N, T_x) and (N, T_y) int32.
    """
    if isinstance(model, Ensemble):
        model = model.models[0]
    maps = AttentionMaps([], [], [])
    if isinstance(model, RecurrentModel):
        if model.hp.decoder_attention:
            maps.cross.append(model.cross_attention(x, y))
        return maps
    masks, inputs = model.padding_masks(x), shift_right(y)
    enc = model.enc_input(x)  # (N, T_x, C)
    for block, positions in zip(model.enc_blocks, model.enc_positions, strict=True):
        attended = dict(key_masks=masks, positions=positions)
        keys = block.self_attention.add_norm.prepare(enc)
        maps.encoder.append(block_weights(block.self_attention, enc, keys, **attended))
        enc = block(enc, masks, positions=positions)
    if model.enc_norm:
        enc = model.enc_norm(enc)
    dec, dec_masks = model.dec_input(inputs), model.padding_masks(inputs)  # (N, T_y, C)
    for block, positions in zip(model.dec_blocks, model.dec_positions, strict=True):
        attended = dict(key_masks=dec_masks, causality=True, positions=positions)
        keys = block.self_attention.add_norm.prepare(dec)
        maps.decoder.append(block_weights(block.self_attention, dec, keys, **attended))
        self_attended = block.self_attention(dec, keys, **attended)
        maps.cross.append(block_weights(block.vanilla_attention, self_attended, enc, masks))
        dec = block.feedforward(block.vanilla_attention(self_attended, enc, masks))
    return maps


def block_weights(attention, queries, keys, key_masks, causality=False, positions=None):
    """Compute the attention weights of a `MultiheadAttention`.

    Args:
      queries, keys: (N, T_q, C) and (N, T_k, C).
      key_masks, causality, positions: as in `MultiheadAttention`.

    Returns:
      (N, h, T_q, T_k)
    """
    keys_values = attention.project_keys_values(keys, key_masks)
    return attention.attention_weights(queries, keys_values, causality, positions)


def cross_weights(model, x, y):
    """Compute the cross-attention of the last block, as a mean over its heads: (N, T_y, T_x).

    Without attention, it is 0. The arguments are those of `attention_maps`.
    """
    if cross := attention_maps(model, x, y).cross:
        return ops.mean(cross[-1], axis=1)
    return ops.zeros((*ops.shape(y), ops.shape(x)[1]))


@lru_cache(maxsize=1)
def compiled_cross_weights(model):
    """Return a function of x and y: `cross_weights` as a graph, which leaves out the other maps."""
    signature = [tf.TensorSpec([None, None], tf.int32)] * 2
    return tf.function(partial(cross_weights, model), signature, autograph=False)


def alignments(model, hp, X, Y):
    """Compute the cross-attention of translations.

    Args:
      X, Y: RaggedIds, ids of sources and of their translations, `</S>` included.

    Returns:
      list of (T_y, T_x) float32, which sum to 1 over T_x; to less without masks from ids, because
      the model then also attends to padding. Those of `--attention_score cosine` may be negative,
      and have any sum. Without attention, they are 0.
    """
    # Making the graph takes longer than one sentence without it.
    weights_of = compiled_cross_weights(model) if len(X) > 1 else partial(cross_weights, model)
    results = [None] * len(X)
    for rows in decoding_batches(np.maximum(X.lengths, Y.lengths), width=hp.pad_to):
        weights = weights_of(X.pad(rows, hp.pad_to), Y.pad(rows, hp.pad_to))
        for row, matrix in zip(rows, np.asarray(weights), strict=True):
            results[row] = matrix[: Y.lengths[row], : X.lengths[row]]
    return results


def word_alignments(model, hp, vocabs, lines, translations) -> list[str]:
    """Align the words of lines with those of their translations, both lists of str.

    Words are separated by spaces; those of a word vocabulary are without punctuation. Each word
    of the translation is aligned with the word of the line that gets most of its attention.

    Returns:
      list of str: pairs as 0-0 1-2, word of the line and word of the translation, from 0. "" if
      a side is empty.
    """
    results = [""] * len(lines)
    X, Y, rows, _ = encode_both(hp, vocabs, lines, translations)
    if not hp.unbounded_length:  # a translation may have maxlen words and no </S>
        longer = dataclasses.replace(hp, maxlen=hp.maxlen + 1)
        Y, *_ = encode_lines([translations[row] for row in rows], vocabs[1], longer)
        Y = RaggedIds.from_lists([append_eos(ids, hp) for ids in Y])
    for i, weights in enumerate(alignments(model, hp, X, Y)):
        x_words, y_words = (
            word_indices(truncate_at_eos(ids[i]), vocab)
            for ids, vocab in zip((X, Y), vocabs, strict=True)
        )
        sums = np.zeros((y_words[-1] + 1, x_words[-1] + 1))
        np.add.at(sums, np.ix_(y_words, x_words), weights[: len(y_words), : len(x_words)])
        pairs = [f"{x}-{y}" for y, x in enumerate(sums.argmax(axis=1))]
        results[rows[i]] = " ".join(pairs)
    return results


def word_indices(ids, vocab) -> list[int]:
    """Return for each token the index of its word."""
    begins = [*map(vocab.starts_word, ids)]
    begins[0] = True
    return [count - 1 for count in itertools.accumulate(begins)]


def append_eos(ids, hp) -> list:
    """Return the ids of a translation with `</S>` at the end.

    If the model has a maximum length and the ids fill it, `</S>` is left out.
    """
    return [*truncate_at_eos(ids), EOS][: None if hp.unbounded_length else hp.maxlen]


# Drawing -----------------------------------------------------------------------


def plot_heads(heads, x_labels, y_labels):
    """Plot an attention map per head. Negative weights are red.

    Args:
      heads: (h, T_q, T_k).
      x_labels, y_labels: lists of T_k and T_q tokens, str.

    Returns:
      matplotlib.figure.Figure
    """
    import matplotlib as mpl  # takes a third of a second
    from matplotlib.figure import Figure

    columns = math.ceil(len(heads) ** 0.5)
    rows = math.ceil(len(heads) / columns)
    size = (columns * (1.2 + 0.19 * len(x_labels)), rows * (1.2 + 0.19 * len(y_labels)))  # inches
    installed = set(mpl.font_manager.get_font_names())
    with mpl.rc_context({"font.family": [font for font in FONTS if font in installed]}):
        figure = Figure(size, layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[len(heads) :]:
            ax.remove()
        for i, (ax, head) in enumerate(zip(axes.flat, heads, strict=False)):
            negative = np.min(head) < 0
            ax.imshow(head, cmap="RdBu" if negative else "Blues", vmin=-int(negative), vmax=1)
            # Show `$` literally, not as the start of a formula.
            ax.set_xticks(range(len(x_labels)), x_labels, rotation=90, parse_math=False)
            ax.set_yticks(range(len(y_labels)), y_labels, parse_math=False)
            ax.tick_params(length=0, labelsize=8)
            ax.set_xlabel(f"head {i + 1}" if len(heads) > 1 else "")
            ax.xaxis.tick_top()
        return figure


def figure_to_array(figure):
    """Render a figure as TensorBoard takes it: (height, width, 4) uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with no_font_warnings():
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def save_png(figure, file):
    """Write a figure to a file of bytes."""
    with no_font_warnings():
        figure.savefig(file, format="png", dpi=150)


@contextlib.contextmanager
def no_font_warnings():
    """Context manager: silence the warnings about characters that no font has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
