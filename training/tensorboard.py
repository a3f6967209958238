"""What TensorBoard shows of a training. The functions write to the default summary writer."""

import contextlib

import numpy as np
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_plugin

from text.ids import BOS, SPECIALS
from translation.attention_maps import (
    MAX_PICTURE_TOKENS,
    attention_maps,
    figure_to_array,
    plot_heads,
)

SAMPLES = 10  # sentences of the development set in the table of translations
MAX_DRAWN_TOKENS = 16  # of the sentence whose attention is drawn, if there is one so short


@contextlib.contextmanager
def events(training):
    """Context manager: what is written goes to the event file of a `train.Training`.

    After a kill, the steps since the last checkpoint are written again, with the same values.
    """
    hp = training.hp
    with tf.summary.create_file_writer(hp.logdir).as_default():
        if training.step == 0:
            hparams_plugin.hparams(vars(hp), hp.logdir)
            tf.summary.graph(training.train_step.get_concrete_function().graph.as_graph_def())
        yield


def write_scalars(step, **values):
    """Write a point of some curves, and what was written before to the file."""
    for name, value in values.items():
        tf.summary.scalar(name, value, step)
    tf.summary.flush()


def write_samples(dev, got, global_step):
    """Write a table of the first sentences of an EvalSet and their translations."""
    columns = [column[:SAMPLES] for column in (dev.data.Sources, dev.data.Targets, got)]
    rows = [["**source**", "**reference**", "**translation**"]]
    # As code, in which Markdown changes nothing.
    rows += [[f"`` {text} ``" for text in row] for row in zip(*columns, strict=True)]
    tf.summary.text("dev_samples", tf.constant(rows), global_step)


def write_attention(model, dev, vocabs, hp, global_step):
    """Write a picture of each head of the last block for a sentence pair of the development set.

    The decoder reads the reference, so that the tokens stay the same from epoch to epoch.
    """
    sides = dev.data.X, dev.data.Y
    lengths = np.maximum(*(side.lengths for side in sides))  # (N,)
    row = np.argmax(np.where(lengths <= MAX_DRAWN_TOKENS, lengths, -lengths))  # longest that fits
    source, target = (
        [vocab.id_to_token(id) for id in side[row][:MAX_PICTURE_TOKENS]]
        for vocab, side in zip(vocabs, sides, strict=True)
    )
    decoder_inputs = [SPECIALS[BOS], *target[:-1]]
    maps = attention_maps(model, *(side.pad([row], hp.pad_to) for side in sides))  # of (1, T)
    for kind, x_labels, y_labels, titles in (
        ("encoder", source, source, ("keys: source", "queries: source")),
        ("decoder", decoder_inputs, target, ("keys: tokens so far", "next token")),
        ("cross", source, target, ("keys: source", "next token")),
    ):
        blocks = getattr(maps, kind)
        if not blocks:  # a recurrent model
            continue
        heads = np.array(blocks[-1])[0, :, : len(y_labels), : len(x_labels)]
        figures = (plot_heads(head[None], x_labels, y_labels, *titles) for head in heads)
        pictures = np.stack([*map(figure_to_array, figures)])  # (h, height, width, 4)
        tf.summary.image(f"attention/{kind}", pictures, global_step, max_outputs=len(pictures))
