"""Attention: how well a key fits a query, and the weights that follow from it.

`scaled_dot` is the function of the paper. An attention function is a pure function of queries and
keys, and of parameters if it has any. variants/attention.py has the others, and
`ATTENTION_SCORES` in hparams.py lists all of them by the names of the flag `--attention_score`.
docs/variants.md compares them.

    N  sentences    h  heads    T_q, T_k  query and key positions    d  units per head
"""

import keras
import tensorflow as tf
from keras import ops

MASK_VALUE = -(2.0**32) + 1  # replaces the scores of hidden keys; from the 2017 code


def dot(Q, K):
    """Q K^T: (N, h, T_q, d), (N, h, T_k, d) -> (N, h, T_q, T_k).

    Vectors are rows here. Texts whose vectors are columns print Q^T K.
    """
    # tf: without transpose_b, the transposed copy of K takes time.
    return tf.matmul(Q, K, transpose_b=True)


def scaled_dot(Q, K):
    """Q K^T / sqrt(d): the Transformer's function (paper, section 3.2.1, equation 1).

    Without the division, the variance of a score grows with d, and the softmax saturates.
    """
    return dot(Q, K) / K.shape[-1] ** 0.5


def scores_to_weights(scores, mask, query_mask=None, softmax=True):
    """Turn scores into attention weights: (N, h, T_q, T_k), all of 0 for hidden keys.

    Args:
      mask: bool, broadcast to (N, h, T_q, T_k); False hides a key from a query.
      query_mask: bool, broadcast in the same way; False sets all weights of a query to 0.
      softmax: whether weights are the softmax of the scores over T_k, or the scores themselves.
    """
    if softmax:
        weights = ops.softmax(ops.where(mask, upcast(scores), MASK_VALUE))  # sums to 1 over T_k
        weights = ops.cast(weights, scores.dtype)
    else:
        weights = ops.where(mask, scores, ops.zeros_like(scores))
    if query_mask is not None:
        weights = weights * ops.cast(query_mask, weights.dtype)
    return weights


def upcast(inputs):
    """Cast to at least float32: long sums lose too much precision in bfloat16."""
    return ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))


# Any attention function by its row -------------------------------------------------


def add_parameters(layer, choice, num_heads, num_units) -> dict:
    """Add the parameters of a row of `ATTENTION_SCORES` to a layer; returns them by name."""
    sizes = dict(h=num_heads, d=num_units)
    # Glorot's variance for the matrix of one head; Keras takes h for a width of a convolution.
    initializer = keras.initializers.VarianceScaling(num_heads, "fan_avg", "uniform")
    return {
        name: layer.add_weight(
            shape=[sizes[letter] for letter in letters],
            initializer=initializer.clone() if letters == "hdd" else "glorot_uniform",
            name=name,
        )
        for name, letters in choice.parameters.items()
    }


def prepare_keys(K, parameters):
    """Multiply the keys by the parameter `key_kernel`, if there is one.

    (N, h, T_k, d) -> (N, h, T_k, d). A recurrent decoder calls it once for all its steps.
    """
    kernel = parameters.get("key_kernel")
    return K if kernel is None else map_heads(K, ops.cast(kernel, K.dtype))


def attention_scores(choice, Q, keys, parameters):
    """Compute the scores: (N, h, T_q, d), (N, h, T_k, d) -> (N, h, T_q, T_k).

    Args:
      choice: row of `ATTENTION_SCORES`.
      keys: what `prepare_keys` returned.
      parameters: what `add_parameters` returned.
    """
    given = {name: ops.cast(v, Q.dtype) for name, v in parameters.items() if name != "key_kernel"}
    return choice.load()(Q, keys, **given)


def map_heads(inputs, kernel):
    """Apply the matrix of each head: (N, h, T, d), (h, d, e) -> (N, h, T, e)."""
    # tf: a matmul that broadcasts over N gives wrong numbers in bfloat16 if h = 1, and its gradient
    # has crashed in float32 (TensorFlow 2.21, oneDNN with AVX-512).
    return tf.einsum("nhtd,hde->nhte", inputs, kernel)
