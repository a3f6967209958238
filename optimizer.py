"""The optimizer and the learning-rate schedule."""

import functools

import keras
import tensorflow as tf
from keras import ops

from choices import OPTIMIZERS


@keras.saving.register_keras_serializable("transformer")
class InverseSqrtSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to a peak and then falls with 1 / sqrt(step).

        peak * warmup_steps**0.5 * min(step**-0.5, step * warmup_steps**-1.5)

    The first step is 1. This is equation 3 of the paper (section 5.3), where the peak is
    (C * warmup_steps)**-0.5. Without warm-up, the learning rate is constant.

    Args:
      peak: the highest learning rate.
      warmup_steps: the step that has it; 0 for a constant learning rate.
    """

    def __init__(self, peak, warmup_steps):
        self.peak = peak
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1  # Keras counts from 0
        if not self.warmup_steps:
            return self.peak * ops.ones_like(step)
        rise = step * self.warmup_steps**-1.5
        return self.peak * self.warmup_steps**0.5 * ops.minimum(rise, step**-0.5)

    def get_config(self):
        """Return the arguments of the constructor."""
        return dict(peak=self.peak, warmup_steps=self.warmup_steps)


@keras.saving.register_keras_serializable("transformer")
class LinearSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that rises linearly to a peak and then falls linearly, to 1% of the peak.

    The first step is 1. After the last step of the schedule the learning rate is constant. Both
    numbers of steps are variables, so that the end of a training can be planned while it runs.

    Args:
      peak: the highest learning rate.
      warmup_steps: the step that has it; 0 if the first step has it.
      decay_steps: the step that has the lowest learning rate.
    """

    END_SHARE = 0.01  # of the peak

    def __init__(self, peak, warmup_steps, decay_steps):
        self.peak = peak
        self.warmup_steps = tf.Variable(float(warmup_steps), trainable=False)
        self.decay_steps = tf.Variable(float(decay_steps), trainable=False)

    def plan(self, warmup_steps, decay_steps):
        """Change the steps with the highest and with the lowest learning rate."""
        self.warmup_steps.assign(warmup_steps)
        self.decay_steps.assign(decay_steps)

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1  # Keras counts from 0
        rise = step / ops.maximum(1.0, self.warmup_steps)
        fall = (self.decay_steps - step) / ops.maximum(1.0, self.decay_steps - self.warmup_steps)
        return self.peak * ops.minimum(rise, ops.maximum(fall, self.END_SHARE))

    def get_config(self):
        """Return the arguments of the constructor."""
        steps = {name: int(getattr(self, name).numpy()) for name in ("warmup_steps", "decay_steps")}
        return dict(peak=self.peak, **steps)


def make_schedule(hp):
    """Make the learning-rate schedule of Hyperparams."""
    if hp.decay_steps:
        return LinearSchedule(hp.peak_lr, hp.warmup_steps, hp.decay_steps)
    return InverseSqrtSchedule(hp.peak_lr, hp.warmup_steps)


@keras.saving.register_keras_serializable("transformer")
class FusedAdam(keras.optimizers.Adam):
    """Adam (Kingma and Ba 2015) with one fused operation per variable.

    Optimized: equals `keras.optimizers.Adam`, which is a chain of operations that each read and
    write all parameters. This class uses private names of Keras, so `requirements.txt` allows
    only the releases of Keras that the tests passed with.
    """

    def build(self, variables):
        """Create the state of the optimizer."""
        super().build(variables)
        self.half_squared_norm = tf.Variable(0.0, trainable=False)

    def gradient_norm(self):
        """Return the norm of the last gradient of all parameters together, () float32."""
        return tf.sqrt(2 * self.half_squared_norm.read_value())

    def apply(self, grads, trainable_variables=None):
        """Update all variables."""
        self.apply_adam = None  # `update_step` makes it for the first variable
        super().apply([tf.convert_to_tensor(gradient) for gradient in grads], trainable_variables)

    def _distributed_tf_update_step(self, distribution, grads_and_vars, learning_rate):
        # With several devices, Keras has summed the gradients over all of them by now.
        gradients = [distribution.experimental_local_results(pair[0])[0] for pair in grads_and_vars]
        halves = [tf.cast(tf.nn.l2_loss(gradient), tf.float32) for gradient in gradients]
        self.half_squared_norm.assign(tf.add_n(halves))
        super()._distributed_tf_update_step(distribution, grads_and_vars, learning_rate)

    def update_step(self, gradient, variable, learning_rate):
        """Update one variable; Keras calls this for each variable and its gradient."""
        index = self._get_variable_index(variable)
        momentum, velocity = self._momentums[index], self._velocities[index]
        # All variables share the learning rate and the powers of beta: the graph is smaller.
        self.apply_adam = self.apply_adam or self.adam_operation(learning_rate, momentum.dtype)
        self.apply_adam(
            var=variable_handle(variable),
            m=variable_handle(momentum),
            v=variable_handle(velocity),
            grad=gradient,
        )

    def adam_operation(self, learning_rate, dtype):
        """Return the operation of this step, without its variable and gradient."""
        step = ops.cast(self.iterations + 1, dtype)
        beta_1, beta_2 = (tf.constant(beta, dtype) for beta in (self.beta_1, self.beta_2))
        return functools.partial(
            tf.raw_ops.ResourceApplyAdam,
            beta1_power=beta_1**step,
            beta2_power=beta_2**step,
            lr=ops.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.constant(self.epsilon, dtype),
        )


def make_optimizer(hp, schedule):
    """Make the optimizer of Hyperparams, with a learning-rate schedule."""
    Optimizer = OPTIMIZERS[hp.optimizer].load()
    return Optimizer(learning_rate=schedule, beta_1=0.9, beta_2=hp.beta_2, epsilon=hp.epsilon)


class GradientSum:
    """Sums over several batches that share one update: gradients and metrics, per replica.

    The mean gradient is then that of one batch as large as all of them together.

    Args:
      variables: the parameters, in the order of their gradients.
      num_metrics: how many metrics are summed.
    """

    def __init__(self, variables, num_metrics):
        def zeros(shape):
            return tf.Variable(
                tf.zeros(shape),
                trainable=False,
                synchronization=tf.VariableSynchronization.ON_READ,
                aggregation=tf.VariableAggregation.SUM,
            )

        self.gradients = [zeros(variable.shape) for variable in variables]
        self.metrics = zeros([num_metrics])

    def add(self, gradients, metrics):
        """Add the gradients and the metrics, each (), of a batch."""
        for total, gradient in zip(self.gradients, gradients, strict=True):
            total.assign_add(tf.convert_to_tensor(gradient))
        self.metrics.assign_add(tf.stack(metrics))

    def pop(self):
        """Return the sums, (list of tensors, (num_metrics,)), and set them to zero."""
        sums = [total.read_value() for total in (*self.gradients, self.metrics)]
        for total in (*self.gradients, self.metrics):
            total.assign(tf.zeros_like(total))
        return sums[:-1], sums[-1]


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
    """Return the resource handle by which TensorFlow's operations refer to a variable."""
    return (variable.value if isinstance(variable, keras.Variable) else variable).handle
