"""Attention: how well a key fits a query, and the weights that follow from it.

`hparams.py` explains the letters in shapes, and lists all attention functions, `ATTENTION_SCORES`.
docs/variants.md compares them.
"""

import keras
import tensorflow as tf
from keras import ops

MASK_VALUE = -(2.0**32) + 1  # replaces the scores of hidden keys; from the 2017 code
NORM_EPSILON = 1e-7  # the smallest norm that cosines divide by


def dot(Q, K):
    """Q K^T: (N, h, T_q, d), (N, h, T_k, d) -> (N, h, T_q, T_k)."""
    # tf: the gradient of a matmul has operations for shapes that broadcast.
    return tf.einsum("nhqd,nhkd->nhqk", Q, K)


def scaled_dot(Q, K):
    """Q K^T / sqrt(d): the Transformer's function (paper, section 3.2.1, equation 1).

    Without the division, the variance of a score grows with d, and the softmax saturates.
    """
    return dot(Q, K) * K.shape[-1] ** -0.5


def scores_to_weights(scores, mask, query_mask=None, softmax=True):
    """Turn scores into attention weights: (N, h, T_q, T_k), all of 0 for hidden keys.

    `mask`, broadcast, is False for hidden keys; `query_mask` for queries with weights of 0 only.
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
    """Multiply the keys by the parameter `key_kernel`, if there is one, once for all queries."""
    kernel = parameters.get("key_kernel")
    return K if kernel is None else map_heads(K, ops.cast(kernel, K.dtype))


def attention_scores(choice, Q, keys, parameters):
    """Compute the scores of a row of `ATTENTION_SCORES`: (N, h, T_q, T_k)."""
    given = {name: ops.cast(v, Q.dtype) for name, v in parameters.items() if name != "key_kernel"}
    return choice.load()(Q, keys, **given)


def map_heads(inputs, kernel):
    """Apply the matrix of each head: (N, h, T, d), (h, d, e) -> (N, h, T, e)."""
    # tf: a matmul that broadcasts over N gives wrong numbers in bfloat16 if h = 1, and its gradient
    # has crashed in float32 (TensorFlow 2.21, oneDNN with AVX-512).
    return tf.einsum("nhtd,hde->nhte", inputs, kernel)


def additive(Q, keys, query_kernel, omega):
    """omega^T tanh(W [q; k]) (Bahdanau et al. 2015, appendix A.1.2).

    W [q; k] is the sum of two products: the left half of W, (h, d, d), times q, computed here, and
    the right half times k, computed by `prepare_keys`. The tanh, (N, h, T_q, T_k, d), is computed
    query by query, and again for the gradient: it would fill the memory.
    """
    queries = map_heads(Q, query_kernel)  # (N, h, T_q, d)

    @tf.recompute_grad
    def scores_of(query, keys, omega):
        units = tf.tanh(query[:, :, None] + keys)  # (N, h, T_k, d)
        return tf.reduce_sum(units * omega[:, None], axis=-1)  # (N, h, T_k)

    if Q.shape[2] == 1:  # a recurrent decoder in training
        return scores_of(queries[:, :, 0], keys, omega)[:, :, None]
    # tf: keras.ops.map has no recomputation.
    rows = tf.map_fn(
        lambda query: scores_of(query, keys, omega),
        tf.transpose(queries, [2, 0, 1, 3]),  # (T_q, N, h, d)
        fn_output_signature=tf.TensorSpec([None, Q.shape[1], None], Q.dtype),
    )  # (T_q, N, h, T_k)
    return tf.transpose(rows, [1, 2, 0, 3])  # (N, h, T_q, T_k)


def bilinear(Q, K, kernel):
    """q^T W k (Luong et al. 2015, "general"); `kernel` is W, (h, d, d)."""
    return dot(map_heads(Q, kernel), K)


def cosine(Q, K):
    """q^T k / (|q| |k|), between -1 and 1; 0 for a zero vector.

    Some texts print cosine[Q^T K] V. So `--attention_score cosine` has no softmax: its weights may
    be negative, and do not sum to 1. `cosine_softmax` has one.
    """
    Q, K = (ops.normalize(vectors, axis=-1, epsilon=NORM_EPSILON) for vectors in (Q, K))
    return dot(Q, K)
