"""The optimizer and the learning rate."""

import keras
import tensorflow as tf
from keras import ops

from hparams import OPTIMIZERS

MAX_WARMUP_STEPS = 1000  # if the flags do not choose; at most a tenth of all steps
END_SHARE = 0.01  # of the peak, the last rate of a linear schedule


def paper_rate(step, peak, warmup_steps):
    """The learning rate of the paper (equation 3), whose peak is (C * warmup_steps)**-0.5."""
    rise = step * warmup_steps**-1.5
    return peak * warmup_steps**0.5 * min(rise, step**-0.5)


def learning_rate(hp, step, progress, total_steps) -> float:
    """The learning rate of a step, from 1: constant, of the paper, or on two straight lines.

    `progress` is the share of the training that is done after this step.
    """
    warmup_steps = hp.warmup_steps or max(1, min(MAX_WARMUP_STEPS, total_steps // 10))
    peak = hp.lr or (hp.hidden_units * warmup_steps) ** -0.5
    if hp.schedule == "constant":
        return peak
    if hp.schedule == "paper":
        return paper_rate(step, peak, warmup_steps)
    fall = (1 - progress) / max(1e-9, 1 - warmup_steps / total_steps)
    return peak * min(1.0, step / warmup_steps, max(fall, END_SHARE))


class FusedAdam(keras.optimizers.Adam):
    """Adam (Kingma and Ba 2015) with one fused operation per variable.

    Optimized: equals `keras.optimizers.Adam`, a chain of operations that each read and write all
    parameters. It uses private names of Keras, so `requirements.txt` limits the releases.
    """

    precision = "float32"  # of products in the update, if there are any

    def build(self, variables):
        super().build(variables)
        self.half_squared_norm = tf.Variable(0.0, trainable=False)

    def gradient_norm(self):
        """Return the norm of the last gradient of all parameters together, () float32."""
        return tf.sqrt(2 * self.half_squared_norm.read_value())

    def apply(self, grads, trainable_variables=None):
        super().apply([tf.convert_to_tensor(gradient) for gradient in grads], trainable_variables)

    def _all_reduce_sum_gradients(self, grads_and_vars):
        # One replica has nothing to sum, and needs no operation for each gradient.
        is_one = tf.distribute.get_replica_context().num_replicas_in_sync == 1
        return grads_and_vars if is_one else super()._all_reduce_sum_gradients(grads_and_vars)

    def _distributed_tf_update_step(self, distribution, grads_and_vars, learning_rate):
        # With several devices, Keras has summed the gradients over all of them by now.
        gradients = [distribution.experimental_local_results(pair[0])[0] for pair in grads_and_vars]
        halves = [tf.cast(tf.nn.l2_loss(gradient), tf.float32) for gradient in gradients]
        self.half_squared_norm.assign(tf.add_n(halves))
        # All variables share the learning rate and the powers of beta: the graph is smaller.
        dtype = gradients[0].dtype
        step = ops.cast(self.iterations + 1, dtype)
        constants = dict(beta1=self.beta_1, beta2=self.beta_2, epsilon=self.epsilon)
        self.shared = {name: tf.constant(value, dtype) for name, value in constants.items()}
        self.shared |= dict(beta1_power=self.beta_1**step, beta2_power=self.beta_2**step)
        self.shared["lr"] = ops.cast(learning_rate, dtype)
        super()._distributed_tf_update_step(distribution, grads_and_vars, learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        """Update one variable; Keras calls this for each variable and its gradient."""
        index = self._get_variable_index(variable)
        tf.raw_ops.ResourceApplyAdam(
            var=variable_handle(variable),
            m=variable_handle(self._momentums[index]),
            v=variable_handle(self._velocities[index]),
            grad=gradient,
            **self.shared,
        )


def make_optimizer(hp):
    """Make the optimizer. Its learning rate is assigned before each step."""
    Optimizer = OPTIMIZERS[hp.optimizer].load()
    optimizer = Optimizer(learning_rate=0.0, beta_1=0.9, beta_2=hp.beta_2, epsilon=hp.epsilon)
    optimizer.precision = hp.precision
    return optimizer


class GradientSum:
    """Sums over several batches that share one update: gradients and metrics, per replica."""

    def __init__(self, variables):
        self.totals = [  # the last one of StepMetrics
            tf.Variable(
                tf.zeros(shape),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )
            for shape in (*(variable.shape for variable in variables), [3])
        ]

    def add(self, gradients, metrics):
        """Add the gradients and the metrics, each (), of a batch."""
        for total, value in zip(self.totals, (*gradients, tf.stack(metrics)), strict=True):
            total.assign_add(tf.convert_to_tensor(value))

    def pop(self):
        """Return the sums, (list of tensors, (3,)), and set them to zero."""
        *gradients, metrics = [total.read_value() for total in self.totals]
        for total in self.totals:
            total.assign(tf.zeros_like(total))
        return gradients, metrics


def clip_gradients(gradients, max_norm):
    """Scale gradients down if the norm of all together is above `max_norm` (Pascanu et al. 2013).

    `gradients` are those of this replica. Their sum over all replicas is clipped.
    """
    context = tf.distribute.get_replica_context()
    gradients = context.all_reduce("SUM", [tf.convert_to_tensor(g) for g in gradients])
    gradients, _ = tf.clip_by_global_norm(gradients, max_norm)
    # Keras sums them over the replicas once more.
    return [gradient / context.num_replicas_in_sync for gradient in gradients]


def variable_handle(variable):
    """Return the handle by which operations of TensorFlow refer to a variable."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle
