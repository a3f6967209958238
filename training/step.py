"""The training step: logits, loss, gradients, and the update of the parameters."""

from typing import NamedTuple

import tensorflow as tf

from hparams import Hyperparams
from modules import divergence_of_halves, smoothed_cross_entropy
from text.ids import PAD
from training.optimizer import clip_gradients

DEFAULTS = Hyperparams()
BATCH_SPEC = (tf.TensorSpec([None, None], tf.int32),) * 2  # x and y, (N, T)


class StepMetrics(NamedTuple):
    """Metrics of one step, each (); or of several steps, each (steps,)."""

    mean_loss: tf.Tensor  # per target token that is not padding, over all replicas
    acc: tf.Tensor  # share of these tokens that are predicted correctly
    num_targets: tf.Tensor  # how many there are


def make_train_step(strategy, model, optimizer, hp=DEFAULTS, gradient_sum=None):
    """Make the function that trains on a batch (x, y) of (N, T) -> StepMetrics.

    With a GradientSum of earlier batches, the metrics are those of all of them. Without an
    optimizer, the batch is only added to it.
    """

    def replica_step(x, y):
        gradients, metrics = replica_gradients(model, x, y, hp, mean=gradient_sum is None)
        if gradient_sum is not None:
            gradient_sum.add(gradients, metrics)
            if optimizer is None:
                return metrics
            gradients, sums = gradient_sum.pop()
            loss, correct, local_targets = tf.unstack(sums)
            num_targets = sum_of_replicas(local_targets)
            gradients = [gradient / num_targets for gradient in gradients]
            metrics = StepMetrics(loss / num_targets, correct / num_targets, local_targets)
        if hp.clip_norm:
            gradients = clip_gradients(gradients, hp.clip_norm)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return metrics

    return batch_function(strategy, replica_step)


def replica_gradients(model, x, y, hp, mean):
    """Compute gradients and StepMetrics on the share of a batch, (N, T), that this replica has.

    With `hp.consistency`, there are two passes, as one batch of 2 * N rows (R-Drop, Wu et al.
    2021). As in their code, the loss is the mean of both cross entropies, plus half of
    `consistency` times the mean of both divergences.

    With `mean`, loss and accuracy are divided by the number of target tokens in all replicas.
    """
    passes = 2 if hp.consistency else 1
    x, y = (tf.tile(ids, [passes, 1]) for ids in (x, y))  # (passes * N, T)
    istarget = tf.not_equal(y, PAD)
    target_ids = tf.boolean_mask(y, istarget)  # (passes * M,), without padding
    local_targets = tf.cast(tf.size(target_ids) / passes, tf.float32)
    # Each token has the same weight, in whichever replica it is.
    num_targets = sum_of_replicas(local_targets) if mean else 1.0
    with tf.GradientTape() as tape:
        logits = model(x, y, training=True, istarget=istarget)  # (passes * M, vocab)
        logits = tf.cast(logits, tf.float32)
        with tf.name_scope("mean_loss"):  # a box in TensorBoard's graph
            losses = smoothed_cross_entropy(target_ids, logits, hp.label_smoothing)  # (passes * M,)
            loss = tf.reduce_sum(losses) / (passes * num_targets)
        objective = loss
        if hp.consistency:
            divergence = tf.reduce_sum(divergence_of_halves(logits)) / num_targets
            objective += hp.consistency / 2 * divergence
    gradients = tape.gradient(objective, model.trainable_variables)
    with tf.name_scope("acc"):
        preds = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (passes * M,)
        acc = tf.reduce_sum(tf.cast(preds == target_ids, tf.float32)) / (passes * num_targets)
    return gradients, StepMetrics(loss, acc, local_targets)


def sum_of_replicas(value):
    """Return the sum of a tensor over all replicas."""
    return tf.distribute.get_replica_context().all_reduce("SUM", value)


def batch_function(strategy, replica_step):
    """Make the function of a batch (x, y) that runs on all replicas, and adds their metrics."""
    # One graph for batches of all widths. With a graph for the width of the first batch and
    # another for the others, a resumed run would round differently: its first batch differs.
    # The signature is read from a dataset without elements: `tuple` makes an empty tuple.
    empty_dataset = tf.data.Dataset.from_generator(tuple, output_signature=BATCH_SPEC)
    signature = strategy.experimental_distribute_dataset(empty_dataset).element_spec

    @tf.function(input_signature=signature, autograph=False)
    def train_step(x, y):
        metrics = strategy.run(replica_step, args=(x, y))
        return StepMetrics(*(strategy.reduce("SUM", metric, axis=None) for metric in metrics))

    return train_step


def make_loss_fn(model, smoothing=0.1):
    """Make the function of a batch: (x, y), (N, T) each -> sums of loss and targets, () each."""

    @tf.function(input_signature=BATCH_SPEC, autograph=False)
    def loss_fn(x, y):
        istarget = tf.not_equal(y, PAD)  # (N, T)
        target_ids = tf.boolean_mask(y, istarget)  # (M,)
        logits = tf.cast(model(x, y, istarget=istarget), tf.float32)  # (M, vocab)
        losses = smoothed_cross_entropy(target_ids, logits, smoothing)  # (M,)
        return tf.reduce_sum(losses), tf.size(target_ids)

    return loss_fn
