"""Other attention functions than that of the paper, `attention.scaled_dot`.

Each is a pure function of queries and keys, and of its parameters. model/attention.py explains the
letters in shapes.
"""

import tensorflow as tf
from keras import ops

from model.attention import dot, map_heads

NORM_EPSILON = 1e-7  # the smallest norm that cosines divide by


def additive(Q, keys, query_kernel, omega):
    """omega^T tanh(W [q; k]) (Bahdanau et al. 2015, appendix A.1.2).

    W [q; k] is the sum of two products: the left half of W times q, computed here, and the right
    half times k, computed by `attention.prepare_keys`. Texts leave the size of the tanh open;
    here it is d. Each head has another W and omega. The tanh has shape (N, h, T_q, T_k, d). It is
    computed query by query, at most ten at a time, and again for the gradient: no memory holds it
    for all queries of a long sentence.

    Args:
      keys: the keys times the right half of W, (N, h, T_k, d).
      query_kernel: the left half of W, transposed, (h, d, d).
      omega: (h, d).
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
    """q^T k / (|q| |k|), between -1 and 1. The angle of a zero vector is taken as 90 degrees.

    Some texts print cosine[Q^T K] V, without a softmax. `--attention_score cosine` is that reading:
    weights may be negative, and do not sum to 1. `cosine_softmax` has the softmax of the others.
    """
    Q, K = (ops.normalize(vectors, axis=-1, epsilon=NORM_EPSILON) for vectors in (Q, K))
    return dot(Q, K)
