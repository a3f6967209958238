"""Muon: an optimizer whose updates of matrices are orthogonal."""

import keras
import tensorflow as tf

from optimizer import FusedAdam

# A singular value s becomes a s + b s^3 + c s^5. With these numbers of Jordan et al., small ones
# grow fast, and all end near 1.
COEFFICIENTS = 3.4445, -4.7750, 2.0315
ITERATIONS = 5
MOMENTUM = 0.95  # share that stays
ADAM_RMS = 0.2  # of Adam's usual updates, in learning rates


@keras.saving.register_keras_serializable("transformer")
class Muon(FusedAdam):
    """Muon (Jordan et al. 2024) for the matrices in blocks, and Adam for all other parameters.

    The update of a matrix is its momentum (Nesterov) with all singular values near 1, so that all
    directions change alike. It is scaled to the size of Adam's updates, and both share a learning
    rate (Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2).
    """

    def build(self, variables):
        """Create the state of the optimizer."""
        super().build(variables)
        self.in_blocks = [is_block_matrix(variable) for variable in variables]

    def update_step(self, gradient, variable, learning_rate):
        """Update one variable."""
        index = self._get_variable_index(variable)
        if not self.in_blocks[index]:
            super().update_step(gradient, variable, learning_rate)
            return
        gradient, momentum = self.note_norm(index, gradient), self._momentums[index]
        average = mix(tf.convert_to_tensor(momentum), gradient)
        momentum.assign(average)
        scale = ADAM_RMS * max(variable.shape) ** 0.5
        update = scale * orthogonalize(mix(average, gradient))
        variable.assign_sub(tf.cast(learning_rate, update.dtype) * update)


def is_block_matrix(variable) -> bool:
    """Whether a parameter is the matrix of a linear layer in an encoder or decoder block."""
    return "coder_block" in variable.path and variable.path.endswith("/kernel")


def mix(average, gradient):
    """Return the next moving average of the gradients."""
    return MOMENTUM * average + (1 - MOMENTUM) * gradient


def orthogonalize(matrix):
    """Set all singular values of a matrix near 1, by a Newton-Schulz iteration."""
    rows, columns = matrix.shape
    X = tf.transpose(matrix) if rows > columns else matrix  # A is then the smaller square
    X /= tf.norm(X) + 1e-7  # no singular value is above 1
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        A = tf.matmul(X, X, transpose_b=True)
        X = a * X + tf.matmul(b * A + c * tf.matmul(A, A), X)
    return tf.transpose(X) if rows > columns else X
