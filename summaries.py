"""What TensorBoard shows of a training besides its curves.

The functions write to the summary writer that is open.
"""

import dataclasses
import os
from pathlib import Path

import numpy as np
import regex
import tensorflow as tf
from tensorboard.plugins import projector
from tensorboard.plugins.hparams import api as hparams_tab

from attention import attention_maps, draw, pixels
from checkpoint import named_variables, saved_name
from hparams import write_whole
from text import UNK, name_of, read_counts

SAMPLES = 10  # sentences of the development set in its table
READABLE = 16  # tokens, at most, of the sentence whose attention is drawn
WARM = 10  # steps before those of the profile


def write_setup(hp, graph):
    """The hyperparameters, but for names of files, and the graph of a training step.

    Args:
      hp: Hyperparams.
      graph: tf.Graph.
    """
    fields = [f for f in dataclasses.fields(hp) if f.type is not str or f.metadata["choices"]]
    hparams_tab.hparams({field.name: getattr(hp, field.name) for field in fields}, hp.logdir)
    tf.summary.graph(graph.as_graph_def())


def write_projector(hp, model, vocabs):
    """What the embedding projector needs besides the checkpoints: the words of each row."""
    config, logdir = projector.ProjectorConfig(), Path(hp.logdir)
    tables = [name for name in named_variables(model) if name.endswith("_embed/lookup_table")]
    for name, vocab in zip(tables, vocabs, strict=False):  # a shared table: one for both
        file = f"{name_of(vocab)}.metadata.tsv"
        write_whole(logdir / file, metadata(vocab))
        config.embeddings.add(tensor_name=saved_name(name), metadata_path=file)
    write_whole(logdir / "projector_config.pbtxt", str(config))


def metadata(vocab):
    """The projector's table of the words of a vocabulary: of `Words` their counts, too."""
    tokens = [vocab.token(i) for i in range(len(vocab))]
    if vocab.path.suffix != ".tsv":
        return "".join(f"{token}\n" for token in tokens)
    counts = read_counts(vocab.path)
    return "word\tcount\n" + "".join(f"{token}\t{counts[token]}\n" for token in tokens)


def write_samples(dev, got, global_step):
    """A table of some of the development set's sentences.

    Args:
      dev: EvalData.
      got: their translations, list of str.
    """
    columns = zip(dev.data.Sources, dev.data.Targets, got, strict=True)
    rows = [["**source**", "**reference**", "**translation**"]]
    rows += [[*map(verbatim, row)] for row in list(columns)[:SAMPLES]]
    tf.summary.text("dev_samples", tf.constant(rows), global_step)


def verbatim(text):
    """Text that Markdown shows as it is.

    >>> verbatim("*_[a]<b>")
    '\\\\*\\\\_\\\\[a\\\\]&lt;b&gt;'
    """
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return regex.sub(r"([\\`*_{}\[\]()#+\-.!|~:])", r"\\\1", text)


def write_attention(model, dev, vocabs, hp, global_step):
    """The last block's attention as it reads a sentence of the development set, and its reference.

    Words and order of the pictures stay the same from epoch to epoch.
    """
    row = readable_row(dev.data)
    x, y = (side.pad([row], hp.width) for side in (dev.data.X, dev.data.Y))  # (1, T)
    source, target = (
        [*map(vocab.token, side[row])]
        for vocab, side in zip(vocabs, (dev.data.X, dev.data.Y), strict=True)
    )
    seen = ["<S>", *target[:-1]]
    maps = attention_maps(model, x, y)
    for kind, across, down in (
        ("encoder", source, source),
        ("decoder", seen, target),
        ("cross", source, target),
    ):
        heads = np.array(getattr(maps, kind)[-1])[0, :, : len(down), : len(across)]
        picture = pixels(draw(heads, across, down))  # (height, width, 4)
        tf.summary.image(f"attention/{kind}", picture[None], global_step)


def readable_row(data):
    """The longest pair that fits into a picture, without unknown words if possible."""
    lengths = np.maximum(data.X.lengths, data.Y.lengths)  # (N,)
    fitting = np.where(lengths <= READABLE, lengths, -lengths)
    known = [UNK not in x and UNK not in y for x, y in zip(data.X, data.Y, strict=True)]
    return int(np.lexsort([fitting, known])[-1])


class Profile:
    """A profile of `count` steps, once the first ones of a run are over.

    Args:
      count: 0 for none.
    """

    def __init__(self, logdir, count):
        self.logdir, self.count, self.steps, self.running = logdir, count, 0, False

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def watch(self, batches, global_step):
        """The batches, where what is done from one to the next is a step of the profile.

        Args:
          batches: an iterable.
          global_step: steps before the first of them.
        """
        batches = iter(batches)
        while True:
            if self.count and self.steps == WARM:
                tf.profiler.experimental.start(os.fspath(self.logdir))
                self.running = True
            if self.steps == WARM + self.count:
                self.stop()
            self.steps += 1
            global_step += 1
            with tf.profiler.experimental.Trace("step", step_num=global_step, _r=1):
                batch = next(batches, None)  # in it: its time is the step's, too
                if batch is None:
                    return
                yield batch

    def stop(self):
        """End it where it has begun, and write it."""
        if self.running:
            tf.profiler.experimental.stop()
            self.running = False
