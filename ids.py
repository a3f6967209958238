"""Sequences of token ids: in memory, or in files that are mapped into it."""

import dataclasses
import hashlib
import itertools
from pathlib import Path

import numpy as np

PAD, UNK, BOS, EOS = range(4)  # ids of the first four tokens of every vocabulary
SPECIALS = ("<PAD>", "<UNK>", "<S>", "</S>")

SCAN_IDS = 2**22  # ids that a scan of all ids holds in memory at a time


@dataclasses.dataclass(frozen=True)
class RaggedIds:
    """Sequences of token ids of any length: the NumPy twin of tf.RaggedTensor.

    Has the same layout (flat values and row splits), but reads and hashes single rows without
    the cost of a TensorFlow op, and takes two bytes per id while the vocabulary allows it. Both
    arrays may be files that are mapped into memory: processes then share what they read of them.
    """

    ids: np.ndarray  # (sum of all lengths,) uint16, or int32 if an id does not fit
    splits: np.ndarray  # (N + 1,) int64, row i is ids[splits[i]:splits[i + 1]]

    @classmethod
    def from_lists(cls, sequences):
        """Build from a list of lists of ids."""
        splits = np.cumsum([0, *map(len, sequences)])
        ids = np.fromiter(itertools.chain.from_iterable(sequences), np.int32, splits[-1])
        return cls(ids.astype(smallest_dtype(ids.max(initial=0)), copy=False), splits)

    @classmethod
    def open(cls, path, dtype):
        """Map the files of a `RaggedWriter` into memory."""
        ids_path, splits_path = file_paths(path)
        splits = np.memmap(splits_path, np.int64, "r")
        empty = not ids_path.stat().st_size  # which cannot be mapped
        ids = np.zeros(0, dtype) if empty else np.memmap(ids_path, dtype, "r")
        return cls(ids, splits)

    def __len__(self):
        return len(self.splits) - 1

    def __getitem__(self, row):
        return self.ids[self.splits[row] : self.splits[row + 1]].astype(np.int32)

    @property
    def lengths(self):
        """(N,) int64"""
        return np.diff(self.splits)

    def lengths_of(self, rows):
        """Return the lengths of some rows, given by their indices, (N,) int32."""
        lengths = self.splits[1:][rows]
        lengths -= self.splits[:-1][rows]  # in place, since there may be 100 million
        return lengths.astype(np.int32)

    def digest(self) -> bytes:
        """Return the SHA-256 of the ids and their splits. It does not depend on the ids' type."""
        pieces = [self.ids[i : i + SCAN_IDS] for i in range(0, len(self.ids), SCAN_IDS)]
        dtype = smallest_dtype(max((piece.max() for piece in pieces), default=0))
        digest = hashlib.sha256()
        for piece in pieces:
            digest.update(piece.astype(dtype, copy=False))
        digest.update(self.splits)
        return digest.digest()

    def counts(self, num_tokens):
        """Count how often each id occurs, (num_tokens,) int64.

        Raises:
          ValueError: an id is negative, or `num_tokens` or larger.
        """
        total = np.zeros(num_tokens, np.int64)
        for start in range(0, len(self.ids), SCAN_IDS):
            piece = self.ids[start : start + SCAN_IDS]
            if piece.max() >= num_tokens:  # bincount would make an array of that size
                raise ValueError(f"the vocabulary has no id {piece.max()}")
            total += np.bincount(piece, minlength=num_tokens)
        return total

    def pad(self, rows=None, width=None):
        """Pad rows with `<PAD>` -> (N, T) int32.

        Args:
          rows: indices of the rows; None for all.
          width: T; None for the length of the longest of these rows.

        >>> RaggedIds.from_lists([[5, 3], [3]]).pad().tolist()
        [[5, 3], [3, 0]]
        >>> RaggedIds.from_lists([[], []]).pad().tolist()
        [[], []]
        """
        rows = np.arange(len(self)) if rows is None else rows
        starts, lengths = self.splits[:-1][rows], self.lengths_of(rows)
        columns = np.arange(width or lengths.max(initial=0))
        indices = starts[:, None] + columns  # (N, T)
        padded = self.ids[np.minimum(indices, len(self.ids) - 1)]  # (N, T)
        return np.where(columns < lengths[:, None], padded, PAD).astype(np.int32)


class RaggedWriter:
    """Writes `RaggedIds` to two files, block by block.

    Args:
      path: the beginning of the paths of both files; see `file_paths`.
      dtype: type of the ids in the file: uint16 or int32.
    """

    def __init__(self, path, dtype):
        self.dtype, self.num_ids = dtype, 0
        self.ids_file, self.splits_file = (file.open("wb") for file in file_paths(path))
        self.splits_file.write(np.zeros(1, np.int64).data)

    def add(self, ragged):
        """Append the rows of a `RaggedIds`."""
        self.ids_file.write(ragged.ids.astype(self.dtype).data)
        self.splits_file.write((ragged.splits[1:] + self.num_ids).data)
        self.num_ids += len(ragged.ids)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.ids_file.close()
        self.splits_file.close()


def smallest_dtype(largest_id) -> type:
    """Return the type of ids up to `largest_id`."""
    return np.uint16 if largest_id < 2**16 else np.int32


def file_paths(path) -> tuple[Path, Path]:
    """Return the names of the files of a `RaggedWriter`: the ids, and where each row ends."""
    return Path(f"{path}.ids"), Path(f"{path}.splits")
