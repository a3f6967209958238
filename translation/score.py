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
    source_ids: tuple = ()  # of the line, `</S>` included
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
        """Score the translations of lines: NaN if a side is empty, or too long for the model."""
        hp, sides, too_long = self.loaded.hp, [], set()
        for texts, vocab in zip((lines, translations), self.loaded.vocabs, strict=True):
            ids, rows, truncated = encode_lines(texts, vocab, hp)
            sides.append(dict(zip(rows, ids, strict=True)))
            too_long.update(truncated)
        rows = sorted(sides[0].keys() & sides[1].keys() - too_long)
        X, Y = (RaggedIds.from_lists([side[row] for row in rows]) for side in sides)
        scores = [LineScore()] * len(lines)
        for batch in decoding_batches(np.maximum(X.lengths, Y.lengths), width=hp.pad_to):
            logp = self.log_probability(X.pad(batch, hp.pad_to), Y.pad(batch, hp.pad_to)).numpy()
            for i, value in zip(batch, logp, strict=True):
                scores[rows[i]] = LineScore(float(value), len(Y[i]), X[i], Y[i][:-1])
        return scores
