"""TensorBoard's event files in logdir: read the curves, and keep them consistent when resuming."""

import contextlib
import os
import sys
from pathlib import Path

import tensorflow as tf
from google.protobuf.message import DecodeError

from runtime.files import fsync, make_folder

# Curves with a point every few steps. The others have one per evaluation.
STEP_TAGS = {"mean_loss", "acc", "lr", "gradient_norm", "tokens_per_second"}
EARLIER = "earlier_events"  # folder for the event files of earlier training runs
TEMP_NAME = "truncated.tmp"  # a name that TensorBoard does not read
HEADER_BYTES = 12  # before the content of a record
CHECKSUM_BYTES = 4  # after it
MAX_RECORD_BYTES = 2**28


def event_files(logdir):
    """List the event files, oldest first. Folders, links and pipes of such a name are none."""
    paths = sorted(Path(logdir).glob("events.out.tfevents.*"))
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def count_framed_records(path) -> int:
    """Count the records of an event file up to the first one whose length cannot be right.

    TensorFlow believes a length, and crashes if there is not so much memory. A record is its
    length of 8 bytes, a checksum, its content and another checksum.
    """
    count, end = 0, path.stat().st_size
    with open(path, "rb") as file:
        while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
            length = int.from_bytes(header[:8], "little")
            if length > min(MAX_RECORD_BYTES, end - file.tell() - CHECKSUM_BYTES):
                break
            file.seek(length + CHECKSUM_BYTES, os.SEEK_CUR)
            count += 1
    return count


def read_records(path):
    """Read the records of an event file, up to the first one that is damaged or is no event.

    Returns:
      (list of bytes, bool): the records, and whether the file has more.
    """
    records = []
    count = count_framed_records(path)
    dataset = tf.data.TFRecordDataset(str(path), buffer_size=2**20).take(count)
    with contextlib.suppress(tf.errors.DataLossError, DecodeError):
        for record in dataset:
            content = record.numpy()
            tf.compat.v1.Event.FromString(content)
            records.append(content)
    num_bytes = sum(HEADER_BYTES + len(record) + CHECKSUM_BYTES for record in records)
    return records, num_bytes < path.stat().st_size


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
        make_folder(folder)
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
        if not records:  # nothing that TensorBoard reads; the file may be one of the user's
            continue
        if damaged or len(kept) < len(records):
            temporary = path.with_name(TEMP_NAME)
            try:
                temporary.unlink(missing_ok=True)  # it may be a link to another file
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
