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
from bleu import sacrebleu_score
from data_load import cut_anew, get_batch_data, load_test_data, load_train_data
from decoding import make_search, to_text, translate
from model import make_model
from modules import Adam, WarmUp, cross_entropy
from text import PAD, fingerprints, load_vocabs

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
        istarget = tf.not_equal(y, PAD)  # (N, T)
        words = tf.boolean_mask(y, istarget)  # (M,), the targets that are no padding
        # Over all replicas: each word counts the same, whichever replica it came to.
        targets = tf.cast(tf.size(words), tf.float32)
        targets = tf.distribute.get_replica_context().all_reduce("SUM", targets)
        with tf.GradientTape() as tape:
            logits = model(x, y, training=True, istarget=istarget)  # (M, V)
            logits = tf.cast(logits, tf.float32)
            mean_loss = tf.reduce_sum(cross_entropy(words, logits)) / targets
        gradients = tape.gradient(mean_loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        preds = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (M,)
        acc = tf.reduce_sum(tf.cast(preds == words, tf.float32)) / targets
        return mean_loss, acc

    @tf.function(reduce_retracing=True)
    def step(x, y):
        mean_loss, acc = strategy.run(replica_step, args=(x, y))
        return (
            strategy.reduce("SUM", mean_loss, axis=None),
            strategy.reduce("SUM", acc, axis=None),
        )

    return step


def train_epoch(step, schedule, batches, num_batch, global_step, title):
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
                tf.summary.scalar("lr", schedule(global_step - 1), global_step)
                bar.set_postfix_str(f"mean_loss {mean_loss:.3f} acc {acc:.3f}", refresh=False)
    return np.mean(history, axis=0)


def epoch_batches(data, vocabs, hp, epoch):
    """`get_batch_data`, of text that is cut into other pieces each epoch where hp says so."""
    if hp.bpe_dropout:
        data = cut_anew(data, vocabs, hp.bpe_dropout, hp.seed, epoch)
    return get_batch_data(data, hp, epoch)


def load_dev_data(hp, vocabs):
    """The development set as `EvalData`, or None."""
    if hp.source_dev == "none":
        return None
    return load_test_data(hp, vocabs, (hp.source_dev, hp.target_dev))


def best_so_far(hp, done):
    """The epoch with the best BLEU of this dev set, and that BLEU; (done, -1.0) at the start.

    One behind the epochs that are done is of a run that was gone back on.
    """
    path, bleu = checkpoint.read_best(hp.logdir, hp.source_dev)
    epoch = checkpoint.epoch_and_step(path)[0] if path else done
    return (epoch, bleu) if epoch <= done else (done, -1.0)


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


def make_training(hp, strategy, vocabs):
    """A new model, its learning rate, its training step, and the `trackable` of it all."""
    keras.utils.set_random_seed(hp.seed)
    schedule = WarmUp(hp.peak_lr, hp.warmup_steps)
    with strategy.scope():
        model = make_model(hp, *map(len, vocabs))
        optimizer = Adam(schedule, 0.9, hp.beta_2, hp.epsilon)
        optimizer.build(model.trainable_variables)
    kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
    print(f"{model.count_params():,} weights on {strategy.num_replicas_in_sync} {kind}")
    step = make_step(strategy, model, optimizer)
    return model, schedule, step, checkpoint.trackable(model, optimizer)


def main(flags):
    hp, trained_with, path = open_logdir(flags)
    vocabs = load_vocabs(hp, trained_with)
    done, global_step = checkpoint.epoch_and_step(path) if path else (0, 0)
    if done >= hp.num_epochs:
        print(
            f"{path}: all {hp.num_epochs} epochs are done; to train for longer, raise --num_epochs"
        )
        return

    dev = load_dev_data(hp, vocabs)
    data = load_train_data(hp, vocabs)
    make_folder(hp.logdir)
    strategy = make_strategy()
    model, schedule, step, parts = make_training(hp, strategy, vocabs)
    search = make_search(model, hp, beam=1)
    if path:
        checkpoint.restore(parts, path)
        print(f"Going on from {path}")

    vocab_sha256 = fingerprints(vocabs)
    best_epoch, best_bleu = best_so_far(hp, done)
    chief = strategy.extended.should_checkpoint  # of several workers, the one that writes
    log = tf.summary.create_file_writer(hp.logdir) if chief else tf.summary.create_noop_writer()
    with log.as_default():
        for epoch in range(done + 1, hp.num_epochs + 1):
            if hp.patience and epoch - best_epoch > hp.patience:
                print(f"No better dev BLEU than {best_bleu:.2f} in {hp.patience} epochs: stopping")
                break
            began = time.monotonic()
            batches, num_batch = epoch_batches(data, vocabs, hp, epoch)
            batches = strategy.experimental_distribute_dataset(batches)
            title = f"epoch {epoch}/{hp.num_epochs}"
            mean_loss, acc = train_epoch(step, schedule, batches, num_batch, global_step, title)
            global_step += num_batch
            report, bleu = f"mean_loss {mean_loss:.3f} acc {acc:.3f}", -1.0
            if dev:
                got = to_text(translate(search, dev.data.X, hp), vocabs[1])
                bleu, _ = sacrebleu_score(dev, got, hp.target_lang)
                tf.summary.scalar("dev_bleu", bleu, global_step)
                report += f", dev BLEU {bleu:.2f}"
            if chief:
                save_hparams(hp, vocab_sha256)
                path = checkpoint.save(parts, hp.logdir, epoch, global_step, hp.keep)
                print(f"{path}: {report}, {time.monotonic() - began:.0f} s", flush=True)
            if bleu > best_bleu:
                best_epoch, best_bleu = epoch, bleu
                if chief:
                    checkpoint.write_best(path, bleu, hp.source_dev)
    print("Done")


if __name__ == "__main__":
    run(main, flags, "stopped; the same command goes on from the last checkpoint, if there is one")
