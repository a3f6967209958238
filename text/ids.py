"""Sequences of token ids of any length, in two flat arrays."""

import dataclasses
import hashlib
import itertools

import numpy as np

PAD, UNK, BOS, EOS = range(4)  # ids of the first four tokens of every vocabulary
SPECIALS = ("<PAD>", "<UNK>", "<S>", "</S>")


@dataclasses.dataclass(frozen=True)
class RaggedIds:
    """The NumPy twin of tf.RaggedTensor. Both arrays may be files mapped into memory."""

    ids: np.ndarray  # (sum of all lengths,) uint16, or int32 if an id does not fit
    splits: np.ndarray  # (N + 1,) int64, row i is ids[splits[i]:splits[i + 1]]

    @classmethod
    def from_lists(cls, sequences):
        """Build from a list of lists of ids."""
        splits = np.cumsum([0, *map(len, sequences)])
        ids = np.fromiter(itertools.chain.from_iterable(sequences), np.int32, splits[-1])
        fits = ids.max(initial=0) < 2**16
        return cls(ids.astype(np.uint16) if fits else ids, splits)

    @classmethod
    def concatenate(cls, parts):
        """Build from `RaggedIds`, at least one."""
        lengths = np.concatenate([[0], *(part.lengths for part in parts)])
        return cls(np.concatenate([part.ids for part in parts]), np.cumsum(lengths))

    def __len__(self):
        return len(self.splits) - 1

    def __getitem__(self, row):
        return self.ids[self.splits[row] : self.splits[row + 1]].astype(np.int32)

    @property
    def lengths(self):
        """(N,) int32"""
        return np.diff(self.splits).astype(np.int32)

    def digest(self) -> bytes:
        """Return the SHA-256 of the ids and their splits."""
        digest = hashlib.sha256(self.ids)
        digest.update(self.splits)
        return digest.digest()

    def pad(self, rows=None, width=None):
        """Pad rows, an array of indices, or all, with `<PAD>` -> (N, T) int32.

        T is `width`, or the length of the longest of these rows.

        >>> RaggedIds.from_lists([[5, 3], [3]]).pad().tolist()
        [[5, 3], [3, 0]]
        """
        rows = np.arange(len(self)) if rows is None else rows
        starts, ends = self.splits[:-1][rows], self.splits[1:][rows]
        columns = np.arange(width or (ends - starts).max(initial=0))
        indices = starts[:, None] + columns  # (N, T)
        padded = self.ids[np.minimum(indices, len(self.ids) - 1)]  # (N, T)
        return np.where(indices < ends[:, None], padded, PAD).astype(np.int32)
