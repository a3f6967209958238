"""Several models that translate together."""

import tensorflow as tf


class Ensemble:
    """Models whose log-probabilities are averaged.

    It is a `StepModel` itself, so that a search needs no change. The models may differ in size and
    kind, but not in their vocabularies.

    Args:
      models: list of `Transformer` or `RecurrentModel`.
    """

    def __init__(self, models):
        self.models = models

    @property
    def variables(self):
        """The variables of all models."""
        return [variable for model in self.models for variable in model.variables]

    def __call__(self, x, y):
        """Compute the mean log-probabilities, in place of logits."""
        return mean_log_probs([model(x, y) for model in self.models])

    def encode_memory(self, x):
        """List the memories of the models."""
        return [model.encode_memory(x) for model in self.models]

    def initial_cache(self, memory, beam=1):
        """List the first caches of the models."""
        pairs = zip(self.models, memory, strict=True)
        return [model.initial_cache(own, beam) for model, own in pairs]

    def decode_step(self, ids, cache, memory):
        """Read the newest tokens with all models; returns mean log-probabilities, and caches."""
        steps = zip(self.models, cache, memory, strict=True)
        logits, cache = zip(
            *(model.decode_step(ids, own, memory) for model, own, memory in steps), strict=True
        )
        return mean_log_probs(logits), [*cache]


def mean_log_probs(logits):
    """Average the log-probabilities that logits (..., vocab) of several models give."""
    log_probs = [tf.nn.log_softmax(tf.cast(own, tf.float32)) for own in logits]
    return tf.add_n(log_probs) / len(log_probs)
