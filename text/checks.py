"""Check a training text: sentences of test sets in it, and sides that do not fit together.

A line that one side lacks shifts all later lines. A sentence becomes a vector: its length, and its
tokens by their spelling. In each window of the text, the vectors of the pairs (i, i) must vary
together more than those of (i, i + lag).
"""

import itertools
import re
import zlib

import numpy as np
import regex

from support.flags import NONE
from text.lines import BLOCK_LINES, normalize, read_eval_set, read_pairs, training_files

# Punctuation, spaces, accents that stand alone, and control characters.
IGNORED = regex.compile(r"[[\p{P}\p{Z}\p{Sk}\p{C}]--[\n]]+", regex.VERSION1)
WINDOW = 2_000  # pairs that are tested at a time
MIN_PAIRS = 60  # in a window
MAX_LAG = 10
MIN_GAIN = 8.0  # of another lag, in standard deviations of the agreement at other lags
MIN_AGREEMENT = 4.0  # at lag 0, in the same unit; real text has more than 6
MIN_ORDERED_PAIRS = 1_000  # with fewer, good text may have a lower agreement
NUM_HASHES = 64  # columns for the tokens
SAME_MARKS = str.maketrans("。．、，؟？！：；।", "..,,??!:;.")
# Characters of scripts without spaces, beginnings of words, numbers, and other characters.
TOKEN = re.compile(r"[\u2e80-\uffff]|[^\W\d_\u2e80-\uffff]{1,5}|\d+|[^\w\s]")

# Overlap ------------------------------------------------------------


def plain_forms(lines) -> list[str]:
    """Return each line without case, punctuation and spaces, or only stripped if that is all."""
    if not lines:
        return []
    forms = IGNORED.sub("", normalize("\n".join(lines)).casefold()).split("\n")
    return [form or line.strip() for form, line in zip(forms, lines, strict=True)]


def overlap_notes(hp, given):
    """Yield a line for each development and test set that the flags name."""
    for part in ("dev", "test"):
        names = f"source_{part}", f"target_{part}"
        paths = [getattr(hp, name) for name in names]
        if NONE in paths or not given.keys() & {*names}:
            continue
        source, references = read_eval_set(hp, part)
        sides = [plain_forms(side) for side in (source, references[0])]
        found = [set(), set()]  # the forms of each side that are in the training text
        for block in itertools.chain.from_iterable(map(read_pairs, training_files(hp))):
            for known, wanted, lines in zip(found, sides, block, strict=True):
                known |= {*wanted} & {*plain_forms(lines)} - {""}
        counts = [sum(form in known for form in s) for s, known in zip(sides, found, strict=True)]
        yield (
            f"{', '.join(paths)}: {counts[0]} of {len(source)} sources and {counts[1]} targets are"
            " in the training text, but for case and punctuation"
            + (". `corpora/clean.py --against` removes them" if any(counts) else "")
        )


# Shifts -------------------------------------------------------------


def make_vectors(lines) -> np.ndarray:
    """Make the vectors of one side, standardized, (N, 1 + NUM_HASHES) float32."""
    vectors = np.zeros((len(lines), 1 + NUM_HASHES), np.float32)
    for vector, line in zip(vectors, lines, strict=True):
        vector[0] = np.log(len(line) + 3)
        for token in {*TOKEN.findall(line.casefold().translate(SAME_MARKS))}:
            vector[1 + zlib.crc32(token.encode("utf-8", "replace")) % NUM_HASHES] += 1
    return (vectors - vectors.mean(0)) / (vectors.std(0) + 0.05)


def likely_lag(sides) -> int | None:
    """Return the lag at which the sides of a window agree, 0 if in doubt, or None if at no lag."""
    source, target = map(make_vectors, sides)
    count, scores = len(source), {}
    limit = min(MAX_LAG, count // 3)
    for lag in range(-limit, limit + 1):
        rows = source[max(0, -lag) : count - max(0, lag)]
        partners = target[max(0, lag) : count + min(0, lag)]
        # The covariances of all columns: they learn that "you" goes with "你".
        scores[lag] = round(float(np.square(rows.T @ partners).sum() / len(rows)), 6)
    best = max(scores, key=scores.get)
    others = [score for lag, score in scores.items() if lag not in (0, best)]
    noise = np.std(others)
    if scores[best] - scores[0] > MIN_GAIN * noise:
        return best
    agrees = scores[0] - np.mean(others) >= MIN_AGREEMENT * noise  # all lines may be equal
    return 0 if agrees or count < MIN_ORDERED_PAIRS else None


def find_shift(sides):
    """Find the first row and the lag of the first shifted window of a block, or None."""
    for start in range(0, max(1, len(sides[0]) - WINDOW // 2), WINDOW):
        window = [side[start : start + WINDOW] for side in sides]
        if len(window[0]) >= MIN_PAIRS and (lag := likely_lag(window)) != 0:
            return start, lag
    return None


def shift_notes(pairs):
    """Yield a warning for each pair of files that is shifted, or of which one has another order."""
    for paths in pairs:
        for number, block in enumerate(read_pairs(paths)):
            if shift := find_shift(block):
                start, lag = shift
                problem = f"in different orders, or shifted by more than {MAX_LAG}"
                if lag:
                    shorter, longer = paths[:: 1 if lag > 0 else -1]
                    problem = f"shifted by {abs(lag)}: {shorter} lacks lines there or before, or"
                    problem += f" {longer} has too many"
                row = number * BLOCK_LINES + start + 1
                yield (
                    f"{paths[0]} and {paths[1]}: from about sentence {row} on, the sides seem to be"
                    f" {problem}. Correct them"
                )
                break
