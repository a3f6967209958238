"""How likely a model finds given translations."""

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from data_load import encode_lines
from text.ids import PAD, RaggedIds
from translation.inference import decoding_batches, sequence_scores


class LineScore(NamedTuple):
    """How likely a model finds a given translation of a line. NaN: it cannot be scored."""

    logp: float = math.nan  # natural logarithm of its probability, `</S>` included
    num_tokens: int = 0  # `</S>` included; 0 without a score
    source_ids: tuple = ()  # of the line, `</S>` included; none if a side is empty
    target_ids: tuple = ()  # of the translation, without `</S>`

    @property
    def perplexity(self) -> float:
        """The inverse of the mean probability of a token (geometric mean)."""
        return float(np.exp(-self.logp / self.num_tokens)) if self.num_tokens else math.nan


class Scorer:
    """Scores given translations with a `LoadedModel`."""

    def __init__(self, loaded):
        self.loaded = loaded

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2, autograph=False)
        def log_probability(x, y):
            any_length = tf.fill([tf.shape(y)[0]], tf.shape(y)[1])
            # Without <PAD>, as in beam search.
            return sequence_scores(loaded.model, x, y, any_length, tf.ones_like, suppress_ids=[PAD])

        self.log_probability = log_probability

    def __call__(self, lines, translations) -> list[LineScore]:
        """Score the translations of lines, both lists of str.

        The score is NaN if one of the two sides is empty, or too long for the model.
        """
        hp, (source, target) = self.loaded.hp, self.loaded.vocabs
        X, source_rows, long_sources = encode_lines(lines, source, hp)
        # A search may find `maxlen` words without </S>. All of them are kept, to align them.
        limit = hp.max_input_tokens + (not hp.unbounded_length)
        Y, target_rows, long_targets = encode_lines(translations, target, hp, limit)
        xs, ys = dict(zip(source_rows, X, strict=True)), dict(zip(target_rows, Y, strict=True))
        scores = [LineScore() for _ in lines]
        for row in xs.keys() & ys.keys():
            scores[row] = LineScore(source_ids=xs[row], target_ids=ys[row][:-1])
        rows = xs.keys() & ys.keys() - {*long_sources, *long_targets}
        rows = sorted(row for row in rows if len(ys[row]) <= hp.max_input_tokens)
        X, Y = (RaggedIds.from_lists([side[row] for row in rows]) for side in (xs, ys))
        for batch in decoding_batches(np.maximum(X.lengths, Y.lengths), width=hp.pad_to):
            logp = self.log_probability(X.pad(batch, hp.pad_to), Y.pad(batch, hp.pad_to)).numpy()
            for i, value in zip(batch, logp, strict=True):
                score = dict(logp=float(value), num_tokens=len(Y[i]))
                scores[rows[i]] = scores[rows[i]]._replace(**score)
        return scores
