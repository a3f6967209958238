"""Train a Transformer, with a checkpoint an epoch; run again, it goes on from the last one."""

import os
import time

from hparams import (
    Hyperparams,
    InputError,
    load_hparams,
    make_folder,
    parse_flags,
    run,
    save_hparams,
)

if __name__ == "__main__":
    flags = parse_flags(__doc__)  # before TensorFlow is loaded, which takes seconds

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import checkpoint
from data_load import PAD, fingerprints, get_batch_data, load_train_data, load_vocabs
from model import make_model
from modules import cross_entropy

SUMMARY_STEPS = 10  # steps from one point of TensorBoard's curves to the next


def make_strategy():
    """One device, all devices of this machine, or the workers that TF_CONFIG names."""
    if "TF_CONFIG" in os.environ:
        return tf.distribute.MultiWorkerMirroredStrategy()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


def make_step(strategy, model, optimizer):
    """The training step: a batch (x, y) of (N, T) -> (mean_loss, acc), both ()."""

    def replica_step(x, y):
        istarget = tf.cast(tf.not_equal(y, PAD), tf.float32)  # (N, T)
        # Over all replicas: each word counts the same, whichever replica it came to.
        targets = tf.distribute.get_replica_context().all_reduce("SUM", tf.reduce_sum(istarget))
        with tf.GradientTape() as tape:
            logits = model(x, y, training=True)  # (N, T, V)
            mean_loss = tf.reduce_sum(cross_entropy(y, logits) * istarget) / targets
        gradients = tape.gradient(mean_loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        preds = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (N, T)
        acc = tf.reduce_sum(tf.cast(preds == y, tf.float32) * istarget) / targets
        return mean_loss, acc

    @tf.function
    def step(x, y):
        mean_loss, acc = strategy.run(replica_step, args=(x, y))
        return (
            strategy.reduce("SUM", mean_loss, axis=None),
            strategy.reduce("SUM", acc, axis=None),
        )

    return step


def train_epoch(step, batches, num_batch, global_step, title):
    """One pass over the batches; returns the means of mean_loss and acc."""
    history = []
    with tqdm(batches, title, num_batch, leave=False, mininterval=1, unit="b") as bar:
        for x, y in bar:
            history.append(step(x, y))
            global_step += 1
            if global_step % SUMMARY_STEPS == 0 or len(history) == num_batch:
                mean_loss, acc = history[-1]
                tf.summary.scalar("mean_loss", mean_loss, global_step)
                tf.summary.scalar("acc", acc, global_step)
                bar.set_postfix_str(f"mean_loss {mean_loss:.3f} acc {acc:.3f}", refresh=False)
    return np.mean(history, axis=0)


def open_logdir(flags):
    """What a run starts from: the hyperparameters, and the model that may be there already.

    Returns:
      (Hyperparams, dict, Path or None): as `load_hparams`, and the newest checkpoint.

    Raises:
      InputError: what is there cannot be trained on.
    """
    path = checkpoint.newest(flags.get("logdir", Hyperparams.logdir))
    if path is not None and checkpoint.is_original(path):
        raise InputError(
            f"{path}: a checkpoint of the original, which eval.py can evaluate: to train, give a"
            " new --logdir"
        )
    return *load_hparams(flags, trained=path is not None), path


def make_training(hp, strategy, source_vocab, target_vocab):
    """A new model's training step, and the `trackable` that makes up its checkpoints."""
    keras.utils.set_random_seed(hp.seed)
    with strategy.scope():
        model = make_model(hp, source_vocab, target_vocab)
        optimizer = keras.optimizers.Adam(hp.lr, beta_1=0.9, beta_2=0.98, epsilon=1e-8)
        optimizer.build(model.trainable_variables)
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    print(f"{model.count_params():,} weights on {strategy.num_replicas_in_sync} {kind}")
    return make_step(strategy, model, optimizer), checkpoint.trackable(model, optimizer)


def main(flags):
    hp, trained_with, path = open_logdir(flags)
    de2idx, _, en2idx, _ = load_vocabs(hp, trained_with)
    done, global_step = checkpoint.epoch_and_step(path) if path else (0, 0)
    if done >= hp.num_epochs:
        print(
            f"{path}: all {hp.num_epochs} epochs are done; to train for longer, raise --num_epochs"
        )
        return

    data = load_train_data(hp, de2idx, en2idx)
    make_folder(hp.logdir)
    strategy = make_strategy()
    step, parts = make_training(hp, strategy, len(de2idx), len(en2idx))
    if path:
        checkpoint.restore(parts, path)
        print(f"Going on from {path}")

    vocab_sha256 = fingerprints(hp, de2idx, en2idx)
    chief = strategy.extended.should_checkpoint  # of several workers, the one that writes
    log = tf.summary.create_file_writer(hp.logdir) if chief else tf.summary.create_noop_writer()
    with log.as_default():
        for epoch in range(done + 1, hp.num_epochs + 1):
            began = time.monotonic()
            batches, num_batch = get_batch_data(data, hp.batch_size, hp.seed, epoch)
            batches = strategy.experimental_distribute_dataset(batches)
            title = f"epoch {epoch}/{hp.num_epochs}"
            mean_loss, acc = train_epoch(step, batches, num_batch, global_step, title)
            global_step += num_batch
            if chief:
                save_hparams(hp, vocab_sha256)
                path = checkpoint.save(parts, hp.logdir, epoch, global_step)
                seconds = time.monotonic() - began
                report = f"mean_loss {mean_loss:.3f} acc {acc:.3f}, {seconds:.0f} s"
                print(f"{path}: {report}", flush=True)
    print("Done")


if __name__ == "__main__":
    run(main, flags, "stopped; the same command goes on from the last checkpoint, if there is one")
