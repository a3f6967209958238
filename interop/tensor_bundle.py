"""Check the two files of a checkpoint before TensorFlow reads them.

TensorFlow trusts the index of a checkpoint: a negative dimension or an unknown type there ends
the process. This module reads the index itself, in bounded time and memory, and accepts only
what TensorFlow writes for the variables of this project and of the 2017 code.

The index is a table of keys and values in the format of LevelDB, without compression:

    table   data blocks, a block of other tables, an index block, a footer of 48 bytes
    footer  the handles of the last two blocks, and the table's magic number
    handle  offset and size of a block, as varints
    block   entries; the offsets of some of them, 4 bytes each; the number of these offsets
    entry   three varints: bytes shared with the key before, other bytes of the key, bytes of the
            value; then these bytes. In the index block, the value is the handle of a data block.

Each block is followed by a byte for its compression and by a checksum, which TensorFlow compares.
The first key is empty, its value a BundleHeaderProto. The other keys are the names of tensors,
their values a BundleEntryProto: the type, the shape, and where the tensor is in the data file.
"""

import math
import struct
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError
from tensorflow.core.framework import types_pb2
from tensorflow.core.protobuf.tensor_bundle_pb2 import BundleEntryProto, BundleHeaderProto

from manifest import DATA_SUFFIX, INDEX_SUFFIX
from runtime.files import check_regular_file, read_file

MAX_INDEX_BYTES = 2**24  # a model of 12 blocks needs 100 kB
MAX_ENTRIES = 2**17
MAX_KEY_BYTES = 1024
MAX_STRING_BYTES = 2**26  # the longest string describes all variables
MAX_RANK = 8
MAX_DIMENSION = 2**31 - 1
MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
FOOTER_BYTES = 48
TRAILER_BYTES = 5  # after a block: its compression, and a checksum
MAX_VARINT_BYTES = 10
STRING_CHECKSUM_BYTES = 4  # between the length of a string and the string
ITEM_BYTES = {
    types_pb2.DT_FLOAT: 4,
    types_pb2.DT_DOUBLE: 8,
    types_pb2.DT_INT32: 4,
    types_pb2.DT_INT64: 8,
}


class Handle(NamedTuple):
    """Where a block is in a table."""

    offset: int  # in bytes
    size: int  # in bytes, without its trailer


def check_bundle(path):
    """Check the files of the checkpoint at `path`.

    Raises:
      ValueError: the index is not one that TensorFlow wrote for a checkpoint of this project.
      OSError: a file cannot be read.
    """
    data = Path(f"{path}{DATA_SUFFIX}")
    # TensorFlow would look for checkpoints in a folder of this name.
    check_regular_file(path, "the name of a checkpoint is needed. Move it away")
    check_regular_file(data, "a checkpoint is needed. Copy the file again")
    data_bytes = data.stat().st_size
    end = 0  # of the tensors so far
    for key, entry in sorted(
        read_index(read_file(f"{path}{INDEX_SUFFIX}", MAX_INDEX_BYTES)),
        key=lambda pair: pair[1].offset,
    ):
        check_entry(key, entry)
        if entry.offset < end or entry.offset + entry.size > data_bytes:
            raise ValueError(f"{key}: not within its part of the data file")
        end = entry.offset + entry.size
        if entry.dtype == types_pb2.DT_STRING:
            check_string(data, key, entry)


def read_index(table) -> list[tuple[str, BundleEntryProto]]:
    """Read the names of the tensors and their entries.

    Args:
      table: bytes of the index.

    Raises:
      ValueError: it has another format.
    """
    pairs = read_table(table)
    try:
        key, value = next(pairs, (None, b""))
        header = BundleHeaderProto.FromString(value)
        if key != b"" or header.num_shards != 1 or header.endianness != BundleHeaderProto.LITTLE:
            raise ValueError("not the index of a checkpoint in one file")
        return [(read_name(key), BundleEntryProto.FromString(value)) for key, value in pairs]
    except DecodeError:
        raise ValueError("an entry of the index is damaged") from None


def read_name(key) -> str:
    """Return the name of a tensor as text. Raise ValueError unless it can be printed."""
    name = key.decode()
    if not name.isprintable():
        raise ValueError("the name of a tensor cannot be printed")
    return name


def check_entry(key, entry):
    """Raise ValueError unless an entry describes one complete tensor of a known type."""
    dimensions = [dimension.size for dimension in entry.shape.dim]
    if entry.shape.unknown_rank or len(dimensions) > MAX_RANK:
        raise ValueError(f"{key}: the shape has no rank, or more than {MAX_RANK} dimensions")
    if not all(0 <= dimension <= MAX_DIMENSION for dimension in dimensions):
        raise ValueError(f"{key}: a dimension is negative or too large")
    if entry.shard_id or entry.slices or entry.offset < 0 or entry.size < 0:
        raise ValueError(f"{key}: not a whole tensor in the only data file")
    if entry.dtype == types_pb2.DT_STRING:
        if dimensions or entry.size > MAX_STRING_BYTES:
            raise ValueError(f"{key}: more than one string, or a longer one than expected")
    elif entry.dtype not in ITEM_BYTES:
        raise ValueError(f"{key}: type {entry.dtype} is not one of a checkpoint's types")
    # A dimension of 0 must not hide an overflow.
    elif math.prod(max(1, dimension) for dimension in dimensions) > 2**48:
        raise ValueError(f"{key}: the shape is too large")
    elif entry.size != math.prod(dimensions) * ITEM_BYTES[entry.dtype]:
        raise ValueError(f"{key}: the size does not match the shape")


def check_string(data, key, entry):
    """Raise ValueError unless the length of a string, in the data file, matches its entry."""
    with open(data, "rb") as file:
        file.seek(entry.offset)
        start = file.read(min(entry.size, MAX_VARINT_BYTES))
    length, position = read_varint(start, 0, len(start))
    if position + STRING_CHECKSUM_BYTES + length != entry.size:
        raise ValueError(f"{key}: the length of the string does not match its entry")


# Tables ------------------------------------------------------------------------


def read_table(table):
    """Yield the keys and values of a table, in the order of the keys, which must rise.

    Raises:
      ValueError: it has another format, or too many entries.
    """
    footer = len(table) - FOOTER_BYTES
    if footer < 0 or table[-len(MAGIC) :] != MAGIC:
        raise ValueError("the index does not end as one")
    _, position = read_handle(table, footer, len(table))
    index, _ = read_handle(table, position, len(table))
    previous, start, count = None, 0, 0
    for last_key, value in read_block(table, index):
        block, _ = read_handle(value, 0, len(value))
        if block.offset != start:
            raise ValueError("the blocks of the index do not follow each other")
        start = block.offset + block.size + TRAILER_BYTES
        for pair in read_block(table, block):
            count += 1
            if previous is not None and pair[0] <= previous or count > MAX_ENTRIES:
                raise ValueError("the names of the tensors are out of order, or too many")
            previous = pair[0]
            yield pair
        # A name after the last one of its block, and before the first one of the next block.
        if previous is None or previous > last_key:
            raise ValueError("the blocks of the index are out of order")
        previous = last_key


def read_block(table, block):
    """Yield the keys and values of the entries in a block, a `Handle`.

    Raises:
      ValueError: it has another format.
    """
    end = block.offset + block.size
    if block.size < 8 or end + TRAILER_BYTES > len(table) or table[end]:
        raise ValueError("a block of the index is incomplete or compressed")
    (num_restarts,) = struct.unpack_from("<I", table, end - 4)
    restarts_start = end - 4 - 4 * num_restarts
    if num_restarts < 1 or restarts_start < block.offset:
        raise ValueError("a block of the index is damaged")
    restarts = struct.unpack_from(f"<{num_restarts}I", table, restarts_start)
    key, position, complete_keys = b"", block.offset, []
    while position < restarts_start:
        if not table[position]:
            complete_keys.append(position - block.offset)
        shared, position = read_varint(table, position, restarts_start)
        unshared, position = read_varint(table, position, restarts_start)
        value_bytes, position = read_varint(table, position, restarts_start)
        value_start = position + unshared
        if shared > len(key) or value_start + value_bytes > restarts_start:
            raise ValueError("an entry of the index is damaged")
        key = key[:shared] + table[position:value_start]
        if len(key) > MAX_KEY_BYTES:
            raise ValueError("the name of a tensor is too long")
        position = value_start + value_bytes
        yield key, table[value_start:position]
    # TensorFlow starts to read at any of these offsets.
    if restarts[0] or not {*restarts[1:]} <= {*complete_keys} or [*restarts] != sorted({*restarts}):
        raise ValueError("a block of the index is damaged")


def read_handle(table, position, end):
    """Read a `Handle`; returns it, and the position after it."""
    offset, position = read_varint(table, position, end)
    size, position = read_varint(table, position, end)
    return Handle(offset, size), position


def read_varint(content, position, end):
    """Read a number of 7 bits per byte, the lowest first; returns it, and the position after it.

    Raises:
      ValueError: it does not end before `end`, or is too long.
    """
    number = 0
    for i, byte in enumerate(content[position : min(end, position + MAX_VARINT_BYTES)]):
        number |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            return number, position + i + 1
    raise ValueError("a number in the index is damaged")
