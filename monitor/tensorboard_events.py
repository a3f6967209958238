"""TensorBoard's event files in logdir: read the curves, and keep them consistent when resuming."""

import os
import sys
from pathlib import Path

import tensorflow as tf

from runtime.files import fsync

# Curves with a point every few steps. The others have one per evaluation.
STEP_TAGS = {"mean_loss", "acc", "lr", "gradient_norm", "tokens_per_second"}
EARLIER = "earlier_events"  # folder for the event files of earlier training runs
TEMP_NAME = "truncated.tmp"  # a name that TensorBoard does not read


def event_files(logdir):
    """List the event files, oldest first."""
    return sorted(Path(logdir).glob("events.out.tfevents.*"))


def read_records(path):
    """Read the records of an event file, up to the first damaged one.

    Returns:
      (list of bytes, bool): the records, and whether the file is damaged.
    """
    records = []
    try:
        for record in tf.data.TFRecordDataset(str(path), buffer_size=2**20):
            records.append(record.numpy())
    except tf.errors.DataLossError:
        return records, True
    return records, False


def scalars(path):
    """Yield the points of all curves in an event file: tag, step, value, and time in seconds."""
    for record in read_records(path)[0]:
        event = tf.compat.v1.Event.FromString(record)
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                point = float(tf.make_ndarray(value.tensor))
                yield value.tag, event.step, point, event.wall_time


def set_aside(logdir):
    """Move the event files of an earlier training run into a folder, with a message.

    They are not deleted: they may belong to someone else, or to a run whose checkpoints have
    been moved.
    """
    folder = Path(logdir) / EARLIER
    for path in event_files(logdir):
        folder.mkdir(exist_ok=True)
        os.replace(path, folder / path.name)
        print(f"{path}: belongs to an earlier training run. Moved it to {folder}", file=sys.stderr)


def truncate(logdir, global_step, evaluated):
    """Remove events newer than the checkpoint from which training resumes.

    Args:
      global_step: step of the checkpoint.
      evaluated: whether the checkpoint was saved at the end of an epoch or after an evaluation. If
        not, the events of an evaluation at the same step are newer.

    Raises:
      OSError: a file cannot be written.
    """

    def keep(record):
        event = tf.compat.v1.Event.FromString(record)
        if event.file_version or event.step < global_step:
            return True
        by_step = {value.tag for value in event.summary.value} <= STEP_TAGS and not event.graph_def
        return event.step == global_step and (by_step or evaluated)

    for path in event_files(logdir):
        records, damaged = read_records(path)
        kept = [*filter(keep, records)]
        if damaged or len(kept) < len(records):
            temporary = path.with_name(TEMP_NAME)
            try:
                with tf.io.TFRecordWriter(str(temporary)) as writer:
                    for record in kept:
                        writer.write(record)
                fsync(temporary)
                os.replace(temporary, path)
            except (OSError, tf.errors.OpError) as error:
                temporary.unlink(missing_ok=True)
                raise OSError(
                    f"{path}: newer events cannot be removed ({error}). Free some space, and run"
                    " the command again"
                ) from None
