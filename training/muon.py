"""Muon: an optimizer whose updates of matrices are orthogonal."""

import tensorflow as tf

from training.optimizer import FusedAdam, variable_handle

# A singular value s becomes a s + b s^3 + c s^5. Jordan et al. chose these numbers: small values
# grow fast, and all end near 1.
COEFFICIENTS = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
MOMENTUM = 0.95  # share that stays
ADAM_RMS = 0.2  # root mean square of Adam's updates, divided by the learning rate


class Muon(FusedAdam):
    """Muon (Jordan et al. 2024) for the matrices in blocks, and Adam for all other parameters.

    The update of a matrix is its momentum (Nesterov) with all singular values near 1. It is scaled
    to the size of Adam's updates, and both share a learning rate (Liu et al. 2025, section 2.2).
    """

    def build(self, variables):
        super().build(variables)
        self.in_blocks = [is_block_matrix(variable) for variable in variables]
        self.waiting = {}  # (handle, momentum's handle, gradient) of matrices, by device and shape

    def update_step(self, gradient, variable, learning_rate):
        """Update one variable, or let it wait for all matrices of its shape."""
        index = self._get_variable_index(variable)
        if not self.in_blocks[index]:
            super().update_step(gradient, variable, learning_rate)
            return
        handle = variable_handle(variable)
        matrix = handle, variable_handle(self._momentums[index]), gradient
        self.waiting.setdefault((handle.device, *gradient.shape), []).append(matrix)

    def _distributed_tf_update_step(self, distribution, grads_and_vars, learning_rate):
        super()._distributed_tf_update_step(distribution, grads_and_vars, learning_rate)
        waiting, self.waiting = self.waiting, {}
        for (device, *_), matrices in waiting.items():
            with tf.device(device):
                update_matrices(*zip(*matrices, strict=True), learning_rate, self.precision)


def update_matrices(handles, momentum_handles, gradients, learning_rate, precision):
    """Update n matrices of one shape (rows, columns) together, which takes fewer operations."""
    gradients = tf.stack(gradients)  # (n, rows, columns)
    dtype = gradients.dtype
    momentums = tf.stack(
        [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for handle in momentum_handles]
    )
    momentums = MOMENTUM * momentums + (1 - MOMENTUM) * gradients
    scale = tf.cast(ADAM_RMS * max(gradients.shape[1:]) ** 0.5 * learning_rate, dtype)
    nesterov = MOMENTUM * momentums + (1 - MOMENTUM) * gradients
    updates = scale * orthogonalize(nesterov, precision)
    for handle, value in zip(momentum_handles, tf.unstack(momentums), strict=True):
        tf.raw_ops.AssignVariableOp(resource=handle, value=value)
    for handle, value in zip(handles, tf.unstack(updates), strict=True):
        tf.raw_ops.AssignSubVariableOp(resource=handle, value=value)


def is_block_matrix(variable) -> bool:
    """Whether a parameter is the matrix of a linear layer in an encoder or decoder block."""
    in_block = "encoder_block" in variable.path or "decoder_block" in variable.path
    return in_block and variable.path.endswith("/kernel")


def orthogonalize(matrices, precision="float32"):
    """Set all singular values of matrices (..., rows, columns) near 1 (Newton-Schulz).

    `precision` is that of the products: bfloat16 is enough (Jordan et al. 2024).
    """
    rows, columns = matrices.shape[-2:]
    is_tall = rows > columns
    X = tf.linalg.matrix_transpose(matrices) if is_tall else matrices  # A is the smaller square
    X /= tf.norm(X, axis=[-2, -1], keepdims=True) + 1e-7  # no singular value is above 1
    X = tf.cast(X, precision)
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        A = tf.matmul(X, X, transpose_b=True)
        X = a * X + tf.matmul(b * A + c * tf.matmul(A, A), X)
    X = tf.cast(X, matrices.dtype)
    return tf.linalg.matrix_transpose(X) if is_tall else X
