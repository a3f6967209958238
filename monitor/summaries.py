"""What TensorBoard shows of a training run in addition to its curves.

The functions write to the default summary writer.
"""

import contextlib
import os
import sys
from pathlib import Path

import numpy as np
import regex
import tensorflow as tf
from tensorboard.plugins import projector
from tensorboard.plugins.hparams import api as hparams_plugin

from checkpoint import checkpoint_key
from ids import BOS, SPECIALS, UNK
from monitor.attention_maps import (
    MAX_PICTURE_TOKENS,
    attention_maps,
    figure_to_array,
    plot_heads,
)
from runtime.files import atomic_write
from variable_names import variables_by_2017_name

SAMPLES = 10  # sentences of the development set in the table of translations
MAX_DRAWN_TOKENS = 16  # of the sentence whose attention is drawn, if there is one so short
PROFILE_SKIP_STEPS = 10  # the profile leaves out so many batches at first


class EventFile:
    """TensorBoard's event file. When it cannot be written, training continues without it."""

    def __init__(self):
        self.writer, self.ended = tf.summary.create_noop_writer(), False

    def open(self, logdir, prepare):
        """Open a new file in `logdir`, after calling the function `prepare`."""
        self.logdir = logdir
        with errors_end(self):
            prepare()
            self.writer = tf.summary.create_file_writer(os.fspath(logdir))

    @contextlib.contextmanager
    def recording(self):
        """Context manager: the summaries written inside are in the file afterwards."""
        with errors_end(self), self.writer.as_default():  # which flushes at its end
            yield

    def end(self, error):
        """Write no more, and print why."""
        if isinstance(error.__context__, KeyboardInterrupt):  # closing the file failed, too
            raise error.__context__ from None
        if not self.ended:
            reason = describe(error)
            print(
                f"{self.logdir}: TensorBoard's curves end here ({reason}). Training continues",
                file=sys.stderr,
            )
        self.writer, self.ended = tf.summary.create_noop_writer(), True


def write_hparams_and_graph(hp, graph):
    """Write the hyperparameters, except names of files, and the graph of a training step.

    Args:
      hp: Hyperparams.
      graph: tf.Graph.
    """
    fields = [f for f in hp.declared() if f.type is not str or f.metadata["choices"]]
    hparams_plugin.hparams({field.name: getattr(hp, field.name) for field in fields}, hp.logdir)
    tf.summary.graph(graph.as_graph_def())


def write_projector(hp, model, vocabs):
    """Write the configuration of the embedding projector, and the tokens of each embedding."""
    config, logdir = projector.ProjectorConfig(), Path(hp.logdir)
    tables = [
        name for name in variables_by_2017_name(model) if name.endswith("_embed/lookup_table")
    ]
    # With tied embeddings there is one table, and both vocabularies are the same.
    for name, vocab in zip(tables, vocabs, strict=False):
        file = f"{vocab.name}.metadata.tsv"
        atomic_write(logdir / file, vocab.table())
        config.embeddings.add(tensor_name=checkpoint_key(name), metadata_path=file)
    atomic_write(logdir / "projector_config.pbtxt", str(config))


def write_samples(dev, got, global_step):
    """Write a table of the first sentences of the development set and their translations.

    Args:
      dev: EvalSet.
      got: the translations, list of str.
    """
    columns = zip(dev.data.Sources, dev.data.Targets, got, strict=True)
    rows = [["**source**", "**reference**", "**translation**"]]
    rows += [[*map(escape_markdown, row)] for row in list(columns)[:SAMPLES]]
    tf.summary.text("dev_samples", tf.constant(rows), global_step)


def escape_markdown(text) -> str:
    """Escape a text so that Markdown shows it unchanged.

    >>> escape_markdown("*_[a]<b>")
    '\\\\*\\\\_\\\\[a\\\\]&lt;b&gt;'
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return regex.sub(r"([\\`*_{}\[\]()#+\-.!|~:])", r"\\\1", text)


def write_attention(model, dev, vocabs, hp, global_step):
    """Write pictures of the last block's attention for a sentence pair of the development set.

    Each head has its own picture, which TensorBoard shows large enough to read its tokens.
    The decoder reads the reference, so that the tokens stay the same from epoch to epoch.
    """
    row = choose_example(dev.data)
    x, y = (side.pad([row], hp.pad_to) for side in (dev.data.X, dev.data.Y))  # (1, T)
    source, target = (
        [*map(vocab.id_to_token, side[row])]
        for vocab, side in zip(vocabs, (dev.data.X, dev.data.Y), strict=True)
    )
    source, target = source[:MAX_PICTURE_TOKENS], target[:MAX_PICTURE_TOKENS]
    decoder_inputs = [SPECIALS[BOS], *target[:-1]]
    maps = attention_maps(model, x, y)
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


def choose_example(data) -> int:
    """Return the row of the longest pair that fits a picture, without `<UNK>` if possible."""
    lengths = np.maximum(data.X.lengths, data.Y.lengths)  # (N,)
    fits = lengths <= MAX_DRAWN_TOKENS
    known = [UNK not in x and UNK not in y for x, y in zip(data.X, data.Y, strict=True)]
    return int(np.lexsort([np.where(fits, lengths, -lengths), known, fits])[-1])


class Profiler:
    """Context manager that profiles some batches of a training run.

    Args:
      logdir: folder to write the profile to.
      count: batches to profile; 0: none.
    """

    def __init__(self, logdir, count):
        self.logdir, self.count, self.steps, self.running = logdir, count, 0, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def trace(self, batches, global_step):
        """Yield batches. The time from one batch to the next is a step of the profile.

        Args:
          batches: an iterable.
          global_step: steps before the first batch.
        """
        batches = iter(batches)
        while True:
            if self.count and self.steps == PROFILE_SKIP_STEPS and not self.running:
                self.start()
            if self.steps == PROFILE_SKIP_STEPS + self.count:
                self.stop()
            global_step += 1
            with tf.profiler.experimental.Trace("step", step_num=global_step, _r=1):
                batch = next(batches, None)  # within Trace: loading a batch belongs to the step
                if batch is None:
                    return
                self.steps += 1
                yield batch

    def start(self):
        """Start the profile."""
        with errors_end(self):
            self.running = True
            tf.profiler.experimental.start(os.fspath(self.logdir))

    def stop(self):
        """Stop the profile if it is running, and write it."""
        if self.running:
            self.running = False
            with errors_end(self):
                tf.profiler.experimental.stop()

    def end(self, error):
        """Profile no more, and print why."""
        print(
            f"{self.logdir}: no profile is written ({describe(error)}). Training continues",
            file=sys.stderr,
        )
        self.count, self.running = 0, False


@contextlib.contextmanager
def errors_end(part):
    """Context manager: an error ends an `EventFile` or a `Profiler`, and not the training."""
    try:
        yield
    except Exception as error:
        part.end(error)


def describe(error) -> str:
    """Return the first line of the message of an error, or without a message its class."""
    return str(error).partition("\n")[0] or type(error).__name__
