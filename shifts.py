"""Find out whether the sides of a parallel text are shifted against each other.

A line that one side lacks shifts all later lines: line n is then paired with the translation of
line n+1. A sentence and its translation agree in their lengths, marks, numbers and names. So in
each window of the text, the pairs (i, i) must agree more than the pairs (i, i + lag).
"""

import itertools
import re
import zlib

import numpy as np

from runtime.parallel import map_on_cores
from text import BLOCK_LINES, SentenceFile, read_pairs

WINDOW = 2_000  # pairs that are tested at a time
MIN_PAIRS = 60  # in a window
MAX_LAG = 10
MIN_GAIN = 5.0  # in standard deviations of the agreement at other lags
NUM_HASHES = 64  # columns for marks, numbers and long words, by their spelling
MAX_CHARS = 2_000  # of a line that are looked at
SAME_MARKS = str.maketrans("。．、，؟？！：；।", "..,,??!:;.")
TOKEN = re.compile(r"\d+|[^\W\d_]{4,}|[^\w\s]")


def make_vectors(lines) -> np.ndarray:
    """Make the vectors of one side, standardized, (N, 1 + NUM_HASHES) float32."""
    vectors = np.zeros((len(lines), 1 + NUM_HASHES), np.float32)
    for vector, line in zip(vectors, lines, strict=True):
        vector[0] = np.log(len(line) + 3)
        for token in {*TOKEN.findall(line[:MAX_CHARS].casefold().translate(SAME_MARKS))}:
            vector[1 + zlib.crc32(token.encode("utf-8", "replace")) % NUM_HASHES] += 1
    return (vectors - vectors.mean(0)) / (vectors.std(0) + 0.05)


def likely_lag(sides) -> int:
    """Return the lag at which the sides of a window agree; 0 if no other one is clearly better."""
    source, target = map(make_vectors, sides)
    count = len(source)
    lags = range(-min(MAX_LAG, count // 3), min(MAX_LAG, count // 3) + 1)
    agreement = {
        lag: (
            source[max(0, -lag) : count - max(0, lag)] * target[max(0, lag) : count + min(0, lag)]
        ).mean(0)
        for lag in lags
    }
    # Only the columns count that agree at some lag by more than chance.
    weights = np.maximum(0, np.max([*agreement.values()], axis=0) - 2 / count**0.5)
    scores = {lag: float(columns @ weights) for lag, columns in agreement.items()}
    best = max(scores, key=scores.get)
    noise = np.std([score for lag, score in scores.items() if lag not in (0, best)]) + 1e-9
    return best if scores[best] - scores[0] > MIN_GAIN * noise else 0


def find_shift(sides):
    """Find the first shifted window of a block: its first row, and its lag; or None."""
    for start in range(0, max(1, len(sides[0]) - WINDOW // 2), WINDOW):
        window = [side[start : start + WINDOW] for side in sides]
        if len(window[0]) >= MIN_PAIRS and (lag := likely_lag(window)):
            return start, lag
    return None


def shift_notes(pairs):
    """Yield a warning for each pair of files, a list of paths, that is shifted."""
    for paths in pairs:
        blocks = map_on_cores(find_shift, read_pairs([*map(SentenceFile, paths)], "comparing"))
        found = ((number, shift) for number, shift in enumerate(blocks) if shift)
        for number, (start, lag) in itertools.islice(found, 1):
            shorter, longer = paths[:: 1 if lag > 0 else -1]
            count = f"{abs(lag)} line{'s' if abs(lag) > 1 else ''}"
            yield (
                f"{paths[0]} and {paths[1]}: from about sentence {number * BLOCK_LINES + start + 1}"
                f" on, the sides seem to be shifted by {count}: {shorter} lacks {count} there or"
                f" before, or {longer} has {count} too many. Correct them"
            )
