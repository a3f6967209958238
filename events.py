"""TensorBoard's files in logdir: reading the curves back, and removing what is done again."""

import os
import sys
from pathlib import Path

import tensorflow as tf

from hparams import to_disk

# What has points within an epoch; the rest has them at its end.
BY_STEP = {"mean_loss", "acc", "lr", "gradient_norm", "tokens_per_second"}
EARLIER = "earlier_events"  # folder of the files of trainings before this one


def files(logdir):
    """TensorBoard's files, oldest first."""
    return sorted(Path(logdir).glob("events.out.tfevents.*"))


def read(path):
    """The records of a file up to where it breaks off, a list of bytes, and whether it does."""
    records = []
    try:
        for record in tf.data.TFRecordDataset(str(path), buffer_size=2**20):
            records.append(record.numpy())
    except tf.errors.DataLossError:
        return records, True
    return records, False


def began(path):
    """When a file was begun, in seconds."""
    return tf.compat.v1.Event.FromString(read(path)[0][0]).wall_time


def points(path):
    """Yield the points of the curves in a file: name, step, value, and time in seconds."""
    for record in read(path)[0]:
        event = tf.compat.v1.Event.FromString(record)
        curves = (v for v in event.summary.value if v.metadata.plugin_data.plugin_name == "scalars")
        for value in curves:
            yield value.tag, event.step, float(tf.make_ndarray(value.tensor)), event.wall_time


def set_aside(logdir):
    """Move the files of an earlier training into a folder of their own, with a message.

    They may be someone else's, or of a training whose checkpoints are kept elsewhere.
    """
    folder = Path(logdir) / EARLIER
    for path in files(logdir):
        folder.mkdir(exist_ok=True)
        os.replace(path, folder / path.name)
        print(f"{path}: of an earlier training, moved into {folder}", file=sys.stderr)


def cut(logdir, global_step, partial):
    """Remove what was written after a checkpoint, before training resumes from there.

    Args:
      global_step: that of the checkpoint.
      partial: whether it lies within its epoch, and what comes at the end is to come.
    """

    def stays(record):
        event = tf.compat.v1.Event.FromString(record)
        if event.file_version or event.step < global_step:
            return True
        by_step = {value.tag for value in event.summary.value} <= BY_STEP and not event.graph_def
        return event.step == global_step and (by_step or not partial)

    for path in files(logdir):
        records, broken = read(path)
        kept = [*filter(stays, records)]
        if broken or len(kept) < len(records):
            beside = path.with_name("cut.tmp")  # a name that TensorBoard does not read
            with tf.io.TFRecordWriter(str(beside)) as writer:
                for record in kept:
                    writer.write(record)
            to_disk(beside)
            os.replace(beside, path)
