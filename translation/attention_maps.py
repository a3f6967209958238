"""Attention maps, the attention weights of each head between all tokens, and their pictures."""

import math
import sys
import warnings
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from keras import ops

from modules import shift_right
from support.files import atomic_open
from text.ids import EOS, RaggedIds
from text.vocab import truncate_at_eos
from translation.inference import decoding_batches
from translation.search import Ensemble
from variants.rnn import RecurrentModel

MAX_PICTURE_TOKENS = 100  # on each axis of a picture
# With this resolution, a map of one head and 16 tokens has 350 pixels. TensorBoard shrinks larger
# pictures to this width, which would make the tokens unreadable.
TENSORBOARD_DPI = 78
# Fallback fonts: no single font covers all scripts.
FONTS = ("DejaVu Sans", "Noto Sans CJK JP", "Hiragino Sans", "Microsoft YaHei", "Arial Unicode MS")

# Computing ----------------------------------------------------------


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
    """Compute the attention weights of a model that reads x (N, T_x) and predicts y (N, T_y).

    A recurrent model has only `cross`, with one block and one head; without attention, no block.
    Those of an `Ensemble` are those of its first model.
    """
    if isinstance(model, Ensemble):
        model = model.models[0]
    maps = AttentionMaps([], [], [])
    if isinstance(model, RecurrentModel):
        if model.hp.has_attention:
            maps.cross.append(model.cross_attention(x, y))
        return maps
    masks, inputs = model.padding_masks(x), shift_right(y)
    enc = model.enc_input(x)  # (N, T_x, C)
    for block, positions in zip(model.enc_blocks, model.enc_positions, strict=True):
        weights = block.self_attention.attention_weights(enc, key_masks=masks, positions=positions)
        maps.encoder.append(weights)
        enc = block(enc, masks, positions=positions)
    enc = model.enc_norm(enc) if model.enc_norm else enc
    dec, dec_masks = model.dec_input(inputs), model.padding_masks(inputs)  # (N, T_y, C)
    for block, positions in zip(model.dec_blocks, model.dec_positions, strict=True):
        attention, cross_attention = block.self_attention, block.vanilla_attention
        attended = dict(key_masks=dec_masks, causality=True, positions=positions)
        maps.decoder.append(attention.attention_weights(dec, **attended))
        dec = attention(dec, **attended)
        maps.cross.append(cross_attention.attention_weights(dec, enc, masks))
        dec = block.feedforward(cross_attention(dec, enc, masks))
    return maps


def cross_weights(model, x, y):
    """Compute the cross-attention of the last block, as a mean over its heads: (N, T_y, T_x).

    For word alignments, this block, at the step that outputs a token, was the best one in most
    models (docs/translating.md). Without attention, it is 0.
    """
    if cross := attention_maps(model, x, y).cross:
        return ops.mean(cross[-1], axis=1)
    return ops.zeros((*ops.shape(y), ops.shape(x)[1]))


@lru_cache(maxsize=1)
def compiled_cross_weights(model):
    """Return `cross_weights` as a graph, which leaves out the other maps."""
    signature = [tf.TensorSpec([None, None], tf.int32)] * 2
    return tf.function(partial(cross_weights, model), signature, autograph=False)


def alignments(loaded, X, Y):
    """Compute the cross-attention of translations: a list of (T_y, T_x) float32.

    They sum to 1 over T_x, or to less if the model also attends to padding, as that of 2017. Those
    of `--attention_score cosine` have any sum. X are RaggedIds of sources, with `</S>`, and Y the
    ids of their translations, which get it by `append_eos`.
    """
    model, hp = loaded.model, loaded.hp
    Y = RaggedIds.from_lists([append_eos(ids, hp) for ids in Y])
    # Making the graph takes longer than one sentence without it.
    weights_of = compiled_cross_weights(model) if len(X) > 1 else partial(cross_weights, model)
    results = [None] * len(X)
    for rows in decoding_batches(np.maximum(X.lengths, Y.lengths), width=hp.pad_to):
        weights = weights_of(X.pad(rows, hp.pad_to), Y.pad(rows, hp.pad_to))
        for row, matrix in zip(rows, np.asarray(weights), strict=True):
            results[row] = matrix[: Y.lengths[row], : X.lengths[row]]
    return results


def word_alignments(loaded, pairs) -> list[str]:
    """Align the words of sources with those of their translations.

    Each word of a translation is aligned with the word of the source that gets most of its
    attention. Spaces separate words. A result is as 0-0 1-2, word of the source and of the
    translation; "" if a side is empty. `pairs` are the ids of a source, with `</S>`, and of its
    translation, without.
    """
    results = [""] * len(pairs)
    rows = [row for row, sides in enumerate(pairs) if all(map(len, sides))]
    X, Y = (RaggedIds.from_lists([pairs[row][side] for row in rows]) for side in (0, 1))
    for row, x, y, weights in zip(rows, X, Y, alignments(loaded, X, Y), strict=True):
        y = y[: len(weights)]  # the model may have a maximum length
        x_words, y_words = map(word_indices, (x[:-1], y), loaded.vocabs)
        sums = np.zeros((y_words[-1] + 1, x_words[-1] + 1))
        np.add.at(sums, np.ix_(y_words, x_words), weights[: len(y_words), : len(x_words)])
        links = enumerate(sums.argmax(axis=1))
        results[row] = " ".join(f"{x_word}-{y_word}" for y_word, x_word in links)
    return results


def word_indices(ids, vocab):
    """The index of the word of each token, (T,)."""
    return np.cumsum([0, *map(vocab.starts_word, ids[1:])])


def append_eos(ids, hp) -> list:
    """Return the ids of a translation with `</S>` at the end, unless they fill a maximum length."""
    return [*truncate_at_eos(ids), EOS][: None if hp.unbounded_length else hp.maxlen]


# Drawing ------------------------------------------------------------


def readable_token(token) -> str:
    """Replace the sign that begins a word: in most fonts it is a thick bar."""
    return token.replace("▁", "_")


def plot_heads(heads, x_labels, y_labels, x_title="source", y_title="translation"):
    """Plot the maps of heads, (h, T_q, T_k), as a matplotlib Figure. Negative weights are red.

    `x_labels` and `y_labels` are the T_k tokens of the keys, and the T_q tokens of the queries.
    """
    import matplotlib as mpl  # takes a third of a second
    from matplotlib.figure import Figure

    columns = math.ceil(len(heads) ** 0.5)
    rows = math.ceil(len(heads) / columns)
    size = (columns * (1.4 + 0.19 * len(x_labels)), rows * (1.4 + 0.19 * len(y_labels)))  # inches
    x_labels, y_labels = ([*map(readable_token, labels)] for labels in (x_labels, y_labels))
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
            ax.xaxis.tick_top()
            ax.xaxis.set_label_position("top")
            ax.set_xlabel(f"{x_title}, head {i + 1}" if len(heads) > 1 else x_title, labelpad=8)
            ax.set_ylabel(y_title)
        return figure


def draw_translation(loaded, translation, path):
    """Write a picture of what each token of the best of a `Translation` attends to."""
    x, y = translation.ids, append_eos(translation.hypotheses[0].ids, loaded.hp)
    (weights,) = alignments(loaded, RaggedIds.from_lists([x]), [y])
    x_labels, y_labels = (
        [*map(vocab.id_to_token, ids[:MAX_PICTURE_TOKENS])]
        for vocab, ids in zip(loaded.vocabs, (x, y), strict=True)
    )
    figure = plot_heads(weights[None, : len(y_labels), : len(x_labels)], x_labels, y_labels)
    with atomic_open(path) as file, warnings.catch_warnings(action="ignore"):  # of missing glyphs
        figure.savefig(file, format="png", dpi=150)
    print(
        f"{path}: attention of the last translation, at most {MAX_PICTURE_TOKENS} tokens",
        file=sys.stderr,
    )


def figure_to_array(figure):
    """Render a figure as TensorBoard takes it: (height, width, 4) uint8."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.set_dpi(TENSORBOARD_DPI)
    canvas = FigureCanvasAgg(figure)
    with warnings.catch_warnings(action="ignore"):
        canvas.draw()
    return np.asarray(canvas.buffer_rgba())
