"""Find out whether the sides of a parallel text are shifted against each other.

A line that one side lacks, or has in addition, shifts all later lines: line n is then paired with
the translation of line n+1. Each window of some thousand pairs is tested by itself:

1. A sentence becomes a vector: the logarithm of its length, its punctuation, its numbers and rare
   words by their spelling, and the most frequent tokens of the window.
2. Canonical correlation analysis (Hotelling 1936) finds the directions in which the vectors of
   both sides agree most. Without a dictionary, it learns that "you" goes with "你". Each half of
   the window is scored with the directions of the other half.
3. The score of a pair is the logarithm of how much more probable it is as a pair than by chance:
   the pointwise mutual information of two normal variables with these correlations.
4. For each lag k, the scores of the pairs (i, i+k) minus those of the pairs (i, i) are added up
   from line to line. The sum falls where the sides are not shifted. Where they are shifted by k
   lines it rises, and the line where it begins to rise is the line where the shift begins (CUSUM,
   Page 1954).
"""

import itertools
import re
import zlib
from collections import Counter
from typing import NamedTuple

import numpy as np

from runtime.parallel import map_on_cores
from text import BLOCK_LINES, SentenceFile, read_pairs

OVERLAP_PAIRS = 2_000  # that a window shares with the one before
ALL_WINDOWS = 50  # at the beginning of a text that are tested, half a million pairs
SAMPLED_WINDOWS = 10  # of so many later windows, one is tested
MIN_PAIRS = 60  # a shorter text has too few pairs for correlations
MAX_LAG = 1_000  # a larger shift is not searched
NEAR_LAGS = 10  # all lags up to this one are tested, of the larger ones only the likeliest
NUM_FAR_LAGS = 3
MIN_RISE = 40.0  # nats
NUM_TOKENS = 150  # the most frequent ones of a window
MAX_CHARS = 2_000  # of a line that are looked at
NUM_HASHES = 32  # dimensions of the other tokens, numbers and names among them
NUM_DIRECTIONS = 32
CHUNK_PAIRS = 50  # chunks of a window belong to one half and to the other one in turn
MAX_SCORE = 6.0  # nats, of a pair
MAX_RHO = 0.98  # correlation
CLEAR_RHO = 0.7  # with less, the window may be shifted from its beginning
MAX_ROUNDS = 6
SHRINKAGE = 0.1  # added to the variances, relative to them
MAX_NOTES = 10  # for a pair of files
SMALL_SHRINKAGE = 2.0  # times columns / rows: small windows have uncertain covariances

# The marks that many languages share; those of Chinese and Japanese are written differently.
MARKS = ".,?!:"
SAME_MARKS = str.maketrans("。．、，？！：؟،。", "..,,?!:?,.")
# Characters of scripts without spaces, beginnings of words, numbers, and other characters.
TOKEN = re.compile(r"[\u2e80-\uffff]|[^\W\d_\u2e80-\uffff]{1,5}|\d+|[^\w\s]")


class Shift(NamedTuple):
    """Pairs of a text that are shifted."""

    start: int  # index of the first one
    end: int | None  # of the first one after them; None: not found
    lag: int  # the translations are so many lines later, or earlier if it is below 0


# Vectors -----------------------------------------------------------------------

NUM_SHARED = 1 + len(MARKS) + NUM_HASHES  # columns that mean the same on both sides


def make_vectors(lines) -> np.ndarray:
    """Make the vectors of one side, (N, columns) float32; see the module."""
    lines = [line[:MAX_CHARS] for line in lines]
    tokens = [{*TOKEN.findall(line.casefold().translate(SAME_MARKS))} for line in lines]
    counts = Counter(token for found in tokens for token in found if not token.isdecimal())
    ordered = sorted(counts, key=lambda token: (-counts[token], token))
    frequent = ordered[: NUM_TOKENS + len(MARKS)]
    columns = {token: NUM_SHARED + i for i, token in enumerate(frequent)}
    columns |= {mark: 1 + i for i, mark in enumerate(MARKS)}
    vectors = np.zeros((len(lines), NUM_SHARED + len(frequent)), np.float32)
    first_hash = 1 + len(MARKS)
    rows, cols = [], []
    for row, found in enumerate(tokens):
        for token in found:
            column = columns.get(token)
            if column is None:
                column = first_hash + zlib.crc32(token.encode("utf-8", "replace")) % NUM_HASHES
            rows.append(row)
            cols.append(column)
    vectors[rows, cols] = 1
    vectors[:, 0] = np.log([len(line) + 3 for line in lines])
    return vectors - vectors.mean(0)


# Correlations ------------------------------------------------------------------


def whiten(side) -> np.ndarray:
    """Return vectors without correlations between their columns, with about the same variance."""
    covariance = (side.T @ side).astype(np.float64) / len(side)
    shrinkage = SHRINKAGE + SMALL_SHRINKAGE * side.shape[1] / len(side)
    covariance += np.diag(shrinkage * np.diag(covariance) + 1e-4)
    return side @ np.linalg.inv(np.linalg.cholesky(covariance)).T.astype(np.float32)


class Half:
    """The window in the directions that one half of its pairs gives, and scores of the other half.

    Args:
      vectors: of both sides, whitened, (N, columns) each.
      lags: the lag of each row of the source, (N,).
      scored: which rows of the source are scored, (N,) bool; the others give the directions.
    """

    def __init__(self, vectors, lags, scored):
        self.scored = scored
        rows = np.arange(len(lags))
        partners = rows + lags
        paired = (partners >= 0) & (partners < len(lags))
        pairs = rows[paired & ~scored], partners[paired & ~scored]
        first, second = (side[of] for side, of in zip(vectors, pairs, strict=True))
        left, _, right = np.linalg.svd(first.T @ second)
        directions = left[:, :NUM_DIRECTIONS], right[:NUM_DIRECTIONS].T
        self.sides = [side @ of for side, of in zip(vectors, directions, strict=True)]
        pairs = rows[paired & scored], partners[paired & scored]
        for i, of in enumerate(pairs):
            self.sides[i] -= self.sides[i][of].mean(0)
            self.sides[i] /= self.sides[i][of].std(0) + 1e-6
        source, target = (side[of] for side, of in zip(self.sides, pairs, strict=True))
        self.rho = np.clip((source * target).mean(0), 0, MAX_RHO)

    def scores(self, lag) -> np.ndarray:
        """Return the score of each pair (i, i + lag), in nats, (N,); 0 if there is none."""
        n = len(self.scored)
        rows = slice(max(0, -lag), n - max(0, lag))
        source, target = self.sides[0][rows], self.sides[1][rows.start + lag : rows.stop + lag]
        variance = 1 - self.rho**2
        mutual = (source * target) @ (self.rho / variance)
        mutual -= (source**2 + target**2) @ (self.rho**2 / variance / 2)
        mutual -= np.log(variance).sum() / 2
        scores = np.zeros(n)
        scores[rows] = mutual.clip(-MAX_SCORE, MAX_SCORE) * self.scored[rows]
        return scores


class Fit:
    """The scores of a window, if each row of the source has a given lag.

    Args:
      vectors, lags: as in `Half`.
    """

    def __init__(self, vectors, lags):
        in_first = np.arange(len(lags)) // CHUNK_PAIRS % 2 == 0
        self.halves = [Half(vectors, lags, scored) for scored in (in_first, ~in_first)]
        self.lags = lags
        self.rho = np.mean([half.rho.max() for half in self.halves])
        self.by_lag = {}

    def scores(self, lag) -> np.ndarray:
        """Return the score of each pair (i, i + lag), (N,)."""
        if lag not in self.by_lag:
            self.by_lag[lag] = sum(half.scores(lag) for half in self.halves)
        return self.by_lag[lag]

    def own_scores(self) -> np.ndarray:
        """Return the scores of the pairs that the lags give, (N,)."""
        return np.choose(
            np.searchsorted(found := np.unique(self.lags), self.lags),
            [self.scores(int(lag)) for lag in found],
        )

    def far_lags(self) -> list[int]:
        """Return the likeliest lags of any size."""
        weights = np.sqrt(self.halves[0].rho)
        return likely_lags(*(side * weights for side in self.halves[0].sides))


def likely_lags(source, target) -> list[int]:
    """Return the lags with the largest sums of products of the rows of two arrays."""
    n, size = len(source), 2 * len(source)
    spectra = [np.fft.rfft(side, size, axis=0) for side in (source, target)]
    sums = np.fft.irfft((spectra[0].conj() * spectra[1]).sum(1), size)
    limit = min(MAX_LAG, n // 3)
    lags = np.concatenate([np.arange(-limit, 0), np.arange(1, limit + 1)])
    return lags[np.argsort(-sums[lags])[:NUM_FAR_LAGS]].tolist()


# Shifts ------------------------------------------------------------------------


def required_rise(lag):
    """Return how much a score must rise for a shift, in nats.

    Among similar lines, as in a sorted text, `lag` pairs are left over at the end of a run. The
    score of each of them may change by 2 * `MAX_SCORE`.
    """
    return MIN_RISE + 2 * MAX_SCORE * abs(lag)


def find_rise(fit, lag):
    """Find where the scores of a lag are most above those of the present lags.

    Returns:
      (float, int, int, int): the rise less the required one; the first row, the one after the
      last, and the lag.
    """
    rise, start, end = largest_rise(fit.scores(lag) - fit.own_scores())
    return rise - required_rise(lag), start, end, lag


def largest_rise(gains):
    """Return the largest sum of consecutive gains, its first row, and the one after its last."""
    sums = np.cumsum(gains)
    before = np.concatenate([[0], sums[:-1]])
    end = int(np.argmax(sums - np.minimum.accumulate(before)))
    start = int(np.argmin(before[: end + 1]))
    return sums[end] - before[start], start, end + 1


def most_correlated(vectors, lags):
    """Return a lag of each row with which all rows, or those of the second half, correlate most.

    Args:
      vectors: as in `Half`.
      lags: those to try.
    """
    n = len(vectors[0])
    best, best_lags = -np.inf, None
    for lag in lags:
        for start in (0, n // 2):
            rows = slice(start + max(0, -lag), n - max(0, lag))
            cross = vectors[0][rows].T @ vectors[1][rows.start + lag : rows.stop + lag]
            count = rows.stop - rows.start
            excess = (cross**2).sum() / count - cross.size  # chi-squared less its mean
            if excess > best:
                best, best_lags = excess, np.where(np.arange(n) < start, 0, lag)
    return best_lags


def find_in_window(vectors):
    """Find the shifts of a window, a list of `Shift`.

    Args:
      vectors: of both sides, (N, columns) each.
    """
    n = len(vectors[0])
    limit = min(NEAR_LAGS, n // 3)
    near = [*range(-limit, 0), *range(1, limit + 1)]
    white = [*map(whiten, vectors)]
    zero = fit = Fit(white, np.zeros(n, int))
    if fit.rho < CLEAR_RHO:
        shared = [side[:, :NUM_SHARED] / (side[:, :NUM_SHARED].std(0) + 1e-3) for side in vectors]
        other = Fit(white, most_correlated(white, {*near, *likely_lags(*shared)}))
        if other.own_scores().sum() - required_rise(other.lags[-1]) > fit.own_scores().sum():
            fit = other
    for _ in range(MAX_ROUNDS):
        lags = {0, *near, *fit.far_lags(), *fit.lags.tolist()}
        rise, start, end, lag = max(find_rise(fit, lag) for lag in lags)
        if rise < 0:
            break
        lags = fit.lags.copy()
        lags[start:end] = lag
        fit = Fit(white, lags)
    if fit.own_scores().sum() - zero.own_scores().sum() < MIN_RISE:
        return []
    shifts, before = [], 0
    ends = [*np.flatnonzero(np.diff(fit.lags)) + 1, n]
    for first, end in zip([0, *ends[:-1]], ends, strict=True):
        lag = int(fit.lags[first])
        rise = (fit.scores(lag) - fit.scores(0))[first:end].sum()
        if lag and rise >= required_rise(lag):
            shifts.append(locate(fit, lag, before, end))
            before = end
    return shifts


def locate(fit, lag, first, end) -> Shift:
    """Return the shift by `lag` that begins after the row `first` of a window and ends at `end`."""
    # The rows are those of the side that lacks no line, so that all of them have a partner.
    offset = max(0, -lag)
    gains = fit.scores(lag)[offset:] - fit.scores(0)[: len(fit.lags) - offset]
    sums = np.concatenate([[0], np.cumsum(gains)])
    end = int(max(first + 1, end - offset))
    is_repaired = sums[end] - sums[-1] > MIN_RISE
    return Shift(first + int(np.argmin(sums[first:end])), end if is_repaired else None, lag)


# A text ------------------------------------------------------------------------


def find_shifts(files):
    """Yield each `Shift` of a text, up to the first one that lasts to the end.

    Some windows of a large text are left out: a shift that lasts is found later, and the windows
    before it are then searched for its beginning.

    Args:
      files: two `SentenceFile`.
    """
    covered = searched = 0
    for start, shifts in search_windows(files, is_sampled):
        for shift in shifts:
            if shift.start < covered:
                continue
            if searched < start and shift.start < start + OVERLAP_PAIRS:
                first, end = searched // BLOCK_LINES, start // BLOCK_LINES + 1
                before = search_windows(files, lambda i, a=first, b=end: a <= i <= b)
                earlier = (found for _, own in before for found in own if found.start >= covered)
                shift = next(earlier, shift)._replace(end=shift.end)
            yield shift
            if shift.end is None:
                return
            covered = shift.end
        searched = start + BLOCK_LINES


def is_sampled(index) -> bool:
    """Whether the window with this index is tested in any case."""
    return index < ALL_WINDOWS or index % SAMPLED_WINDOWS == 0


def search_windows(files, is_tested):
    """Test windows: yield the index of the first pair of each one, and its list of `Shift`.

    Args:
      is_tested: function of the index of a window.
    """
    numbered = enumerate(windows(read_pairs(files, "comparing")))
    return map_on_cores(check_window, (window for i, window in numbered if is_tested(i)))


def windows(blocks):
    """Yield windows of the blocks of `read_pairs`: the index of the first pair, and both sides."""
    start, before = 0, ([], [])
    for block in blocks:
        sides = [[*old, *new] for old, new in zip(before, block, strict=True)]
        yield start, sides
        before = [side[-OVERLAP_PAIRS:] for side in sides]
        start += len(sides[0]) - len(before[0])


def check_window(window) -> list:
    """Return the index of the first pair of a window, and each `Shift` in it.

    Args:
      window: the index of its first pair, and both sides.
    """
    start, sides = window
    if len(sides[0]) < MIN_PAIRS:
        return start, []
    return start, [
        shift._replace(start=start + shift.start, end=shift.end and start + shift.end)
        for shift in find_in_window([*map(make_vectors, sides)])
    ]


def shift_notes(pairs, is_markup):
    """Yield a warning for each shift of a text.

    Args:
      pairs: list of the paths of source and target.
      is_markup: as in `SentenceFile`.
    """
    for paths in pairs:
        files = [SentenceFile(path, is_markup) for path in paths]
        for shift in itertools.islice(find_shifts(files), MAX_NOTES):
            yield describe_shift(files, shift)


def describe_shift(files, shift) -> str:
    """Describe a `Shift` with the numbers of the lines where it begins and ends.

    Args:
      files: two `SentenceFile`, read at least up to these lines.
    """
    first = [f"{file.path}:{file.line_number(shift.start)}" for file in files]
    until = "on"
    if shift.end is not None:
        last = [str(file.line_number(shift.end - 1)) for file in files]
        until = f"to lines {' and '.join(last)}"
    shorter, longer = (file.path for file in files[:: 1 if shift.lag > 0 else -1])
    count = f"{abs(shift.lag)} line{'s' if abs(shift.lag) > 1 else ''}"
    return (
        f"{' and '.join(first)}: from here {until}, the sides seem to be shifted by {count}:"
        f" {shorter} lacks {count} there or before, or {longer} has {count} too many. Correct them"
    )
