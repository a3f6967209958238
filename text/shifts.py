"""Find out whether the sides of a parallel text are shifted against each other.

A line that one side lacks shifts all later lines. A sentence becomes a vector: its length, and its
tokens by their spelling. In each window of the text, the vectors of the pairs (i, i) must vary
together more than those of (i, i + lag).
"""

import re
import zlib

import numpy as np

from text.lines import BLOCK_LINES, read_pairs

WINDOW = 2_000  # pairs that are tested at a time
MIN_PAIRS = 60  # in a window
MAX_LAG = 10
MIN_GAIN = 8.0  # in standard deviations of the agreement at other lags
NUM_HASHES = 64  # columns for the tokens
SAME_MARKS = str.maketrans("。．、，؟？！：；।", "..,,??!:;.")
# Characters of scripts without spaces, beginnings of words, numbers, and other characters.
TOKEN = re.compile(r"[\u2e80-\uffff]|[^\W\d_\u2e80-\uffff]{1,5}|\d+|[^\w\s]")


def make_vectors(lines) -> np.ndarray:
    """Make the vectors of one side, standardized, (N, 1 + NUM_HASHES) float32."""
    vectors = np.zeros((len(lines), 1 + NUM_HASHES), np.float32)
    for vector, line in zip(vectors, lines, strict=True):
        vector[0] = np.log(len(line) + 3)
        for token in {*TOKEN.findall(line.casefold().translate(SAME_MARKS))}:
            vector[1 + zlib.crc32(token.encode("utf-8", "replace")) % NUM_HASHES] += 1
    return (vectors - vectors.mean(0)) / (vectors.std(0) + 0.05)


def likely_lag(sides) -> int:
    """Return the lag at which the sides of a window agree; 0 if no other one is clearly better."""
    source, target = map(make_vectors, sides)
    count, scores = len(source), {}
    limit = min(MAX_LAG, count // 3)
    for lag in range(-limit, limit + 1):
        rows = source[max(0, -lag) : count - max(0, lag)]
        partners = target[max(0, lag) : count + min(0, lag)]
        # The covariances of all columns: they learn that "you" goes with "你".
        scores[lag] = float(np.square(rows.T @ partners).sum() / len(rows))
    best = max(scores, key=scores.get)
    noise = np.std([score for lag, score in scores.items() if lag not in (0, best)]) + 1e-9
    return best if scores[best] - scores[0] > MIN_GAIN * noise else 0


def find_shift(sides):
    """Find the first row and the lag of the first shifted window of a block, or None."""
    for start in range(0, max(1, len(sides[0]) - WINDOW // 2), WINDOW):
        window = [side[start : start + WINDOW] for side in sides]
        if len(window[0]) >= MIN_PAIRS and (lag := likely_lag(window)):
            return start, lag
    return None


def shift_notes(pairs):
    """Yield a warning for each pair of files that is shifted."""
    for paths in pairs:
        for number, block in enumerate(read_pairs(paths)):
            if shift := find_shift(block):
                start, lag = shift
                shorter, longer = paths[:: 1 if lag > 0 else -1]
                row = number * BLOCK_LINES + start + 1
                yield (
                    f"{paths[0]} and {paths[1]}: from about sentence {row} on, the sides seem to be"
                    f" shifted by {abs(lag)}: {shorter} lacks lines there or before, or {longer}"
                    " has too many. Correct them"
                )
                break
