"""Several models that translate together."""

import tensorflow as tf


class Ensemble:
    """Models whose log-probabilities are averaged.

    It is a `StepModel` itself, so that a search needs no change. The models may differ in size and
    kind, but not in their vocabularies.
    """

    def __init__(self, models):
        self.models = models

    @property
    def variables(self):
        """The variables of all models."""
        return [variable for model in self.models for variable in model.variables]

    def __call__(self, x, y):
        """Return mean log-probabilities, in place of logits."""
        return mean_log_probs([model(x, y) for model in self.models])

    def encode_memory(self, x):
        """Return the memory of each model."""
        return [model.encode_memory(x) for model in self.models]

    def initial_cache(self, memory, beam=1):
        """Return the cache of each model."""
        pairs = zip(self.models, memory, strict=True)
        return [model.initial_cache(own, beam) for model, own in pairs]

    def decode_step(self, ids, cache, memory):
        """Return mean log-probabilities, and the cache of each model."""
        steps = zip(self.models, cache, memory, strict=True)
        logits, cache = zip(
            *(model.decode_step(ids, own, memory) for model, own, memory in steps), strict=True
        )
        return mean_log_probs(logits), [*cache]


def mean_log_probs(logits):
    """Average over models whose logits are (..., vocab)."""
    log_probs = [tf.nn.log_softmax(tf.cast(own, tf.float32)) for own in logits]
    return tf.add_n(log_probs) / len(log_probs)
