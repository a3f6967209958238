"""Train a Transformer; stopped or killed, the same command resumes from the last checkpoint."""

import contextlib
import dataclasses
import math
import os
import re
import signal
import sys
import time
from pathlib import Path

from hparams import (
    AUTO,
    Hyperparams,
    InputError,
    announce_inputs,
    check_no_links,
    choose_schedule,
    load_hparams,
    make_folder,
    may_write,
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
import events
import summaries
from bleu import LITTLE_LEARNED_HINT, empty_note, sacrebleu_score, tokenizer_note
from data_load import (
    cut_anew,
    get_batch_data,
    load_test_data,
    load_train_data,
    plan_batches,
)
from decoding import make_search, rows_at_once, share, to_text, translate
from model import make_model
from modules import Adam, WarmUp, cross_entropy
from text import PAD, fingerprints, load_vocabs, save_vocabs

BATCH = (tf.TensorSpec([None, None], tf.int32),) * 2  # x and y, (N, T)
SUMMARY_STEPS = 10  # steps from one point of TensorBoard's curves to the next


def make_strategy():
    """One device, all devices of this machine, or the workers that TF_CONFIG names."""
    if "TF_CONFIG" in os.environ:
        share()  # which refuses what TensorFlow would not understand either
        return tf.distribute.MultiWorkerMirroredStrategy()
    devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
    if len(devices) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in devices])
    return tf.distribute.get_strategy()


def make_step(strategy, model, optimizer):
    """The training step: a batch (x, y) of (N, T) -> (mean_loss, acc, targets), all ().

    They are over all words of the batch that are no padding, and `targets` says how many.
    """

    def replica_step(x, y):
        istarget = tf.not_equal(y, PAD)  # (N, T)
        words = tf.boolean_mask(y, istarget)  # (M,), the targets that are no padding
        # Over all replicas: each word counts the same, whichever replica it came to.
        own = tf.cast(tf.size(words), tf.float32)
        targets = tf.distribute.get_replica_context().all_reduce("SUM", own)
        with tf.GradientTape() as tape:
            logits = model(x, y, training=True, istarget=istarget)  # (M, V)
            logits = tf.cast(logits, tf.float32)
            with tf.name_scope("mean_loss"):  # a box in TensorBoard's graph
                mean_loss = tf.reduce_sum(cross_entropy(words, logits)) / targets
        gradients = tape.gradient(mean_loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        with tf.name_scope("acc"):
            preds = tf.argmax(logits, axis=-1, output_type=tf.int32)  # (M,)
            acc = tf.reduce_sum(tf.cast(preds == words, tf.float32)) / targets
        return mean_loss, acc, own

    # One graph for batches of all widths. One of the first batch's width, and another for
    # the rest, would round otherwise, and training that goes on has another first batch.
    nothing = tf.data.Dataset.from_generator(tuple, output_signature=BATCH)
    signature = strategy.experimental_distribute_dataset(nothing).element_spec

    @tf.function(input_signature=signature, autograph=False)
    def step(x, y):
        parts = strategy.run(replica_step, args=(x, y))
        return tuple(strategy.reduce("SUM", part, axis=None) for part in parts)

    return step


def make_loss(model):
    """The loss without training: a batch (x, y) of (N, T) -> (sum over its words, their number)."""

    @tf.function(input_signature=BATCH, autograph=False)
    def loss(x, y):
        istarget = tf.not_equal(y, PAD)  # (N, T)
        words = tf.boolean_mask(y, istarget)  # (M,)
        logits = tf.cast(model(x, y, istarget=istarget), tf.float32)  # (M, V)
        return tf.reduce_sum(cross_entropy(words, logits)), tf.size(words)

    return loss


def epoch_batches(data, vocabs, hp, epoch, done=0):
    """`get_batch_data`, of text that is cut into other pieces each epoch where hp says so."""
    if hp.bpe_dropout:
        data = cut_anew(data, vocabs, hp.bpe_dropout, hp.seed, epoch)
    return get_batch_data(data, hp, epoch, done)


def dev_loss(loss, data, hp):
    """The mean of a `make_loss` over all words of a development set.

    Args:
      data: Data.
    """
    parts = []
    for rows in rows_at_once(np.maximum(data.X.lengths, data.Y.lengths)):
        parts.append(loss(data.X.pad(rows, hp.width), data.Y.pad(rows, hp.width)))
    total, words = np.sum(parts, axis=0)
    return total / words


def load_dev_data(hp, vocabs):
    """The development set as `EvalData`, or None."""
    if hp.source_dev == "none":
        return None
    dev = load_test_data(hp, vocabs, "dev")
    if note := tokenizer_note(hp.target_lang, dev.references):
        print(note)
    return dev


def open_logdir(flags):
    """What a run starts from: the hyperparameters, and the model that may be there already.

    Returns:
      (Hyperparams, dict, Path or None): as `load_hparams`, and the newest checkpoint.

    Raises:
      InputError: what is there cannot be trained on.
    """
    logdir = flags.get("logdir", Hyperparams.logdir)
    path = checkpoint.newest_whole(logdir)
    if path is not None and checkpoint.is_original(path):
        raise InputError(
            f"{path}: a checkpoint of the original, which eval.py can evaluate: to train, give a"
            " new --logdir"
        )
    within_epoch = path is not None and checkpoint.is_partial(path)
    hp, trained_with = load_hparams(flags, path is not None, within_epoch)
    if path is not None and hp.recipe != flags.get("recipe", Hyperparams.recipe):
        raise InputError(
            f"{logdir}: holds a model of the recipe {hp.recipe}, and this command names no recipe,"
            f" which means {Hyperparams.recipe}. To resume that model, add --recipe {hp.recipe}; to"
            f" train {Hyperparams.recipe}, give a new --logdir"
        )
    if path is None and hp.tokens == "pieces" and "vocab_size" not in flags:
        hp = dataclasses.replace(hp, vocab_size=AUTO)  # that of the file which prepro.py wrote
    return hp, trained_with, path


def note_other_vocab(hp, vocabs):
    """Say where `preprocessed` holds another vocabulary than the model that is resumed."""
    for vocab in dict.fromkeys(vocabs):
        other = Path(hp.preprocessed) / vocab.path.name
        if other.is_file() and other.read_bytes() != vocab.path.read_bytes():
            print(
                f"{other} is not the vocabulary that this model was trained with. The model keeps"
                f" its own, {vocab.path}; to use the other one, give a new --logdir"
            )


def settle_schedule(hp, data):
    """The hyperparameters without `AUTO`, for a training that begins.

    Prints what was chosen, and warns of a warm-up that does not end.
    """
    if not hp.warmup_steps and hp.num_epochs != AUTO:
        return hp
    steps_per_epoch = len(plan_batches(data, hp, 1))
    chosen = choose_schedule(hp, steps_per_epoch)
    steps = steps_per_epoch * chosen.num_epochs
    if chosen != hp:
        print(
            f"Chosen for {len(data.X)} pairs, {steps_per_epoch} steps per epoch: num_epochs"
            f" {chosen.num_epochs}, {steps} steps in all, warmup_steps {chosen.warmup_steps}"
        )
    if chosen.warmup_steps > steps:
        print(
            f"The learning rate never reaches its peak: warmup_steps is {chosen.warmup_steps}, but"
            f" {chosen.num_epochs} epochs of this text are {steps} steps. Use --warmup_steps {AUTO}"
            f" or --num_epochs {AUTO}",
            file=sys.stderr,
        )
    return chosen


class Stop:
    """Hears Ctrl-C and SIGTERM, which within `with` wait until training can save.

    A second one ends training at once.
    """

    def __init__(self):
        self.signal = None  # the number of the first one
        self.at_once = False  # whether it is not to wait

    def __enter__(self):
        self.before = {s: signal.signal(s, self.hear) for s in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def hear(self, number, _):
        """Handle a signal."""
        second, self.signal = self.signal is not None, number
        if self.at_once or second:
            raise KeyboardInterrupt(number)

    def check(self):
        """Raise KeyboardInterrupt if there was one."""
        if self.signal is not None:
            raise KeyboardInterrupt(self.signal)

    @contextlib.contextmanager
    def not_waiting(self):
        """Within `with`, training could save at any time."""
        self.at_once = True
        try:
            self.check()
            yield
        finally:
            self.at_once = False


class Training:
    """A model in training, and how far it is: all that a checkpoint holds.

    Args:
      hp: Hyperparams.
      vocabs: those of source and target.
      path: the checkpoint to resume from, or None.
      dev_sha256: the digest of the development set, "" if there is none.
    """

    def __init__(self, hp, vocabs, path=None, dev_sha256=""):
        keras.utils.set_random_seed(hp.seed)
        self.hp, self.vocabs, self.path, self.dev_sha256 = hp, vocabs, path, dev_sha256
        self.strategy = make_strategy()
        self.chief = self.strategy.extended.should_checkpoint  # of several workers, the writer
        self.schedule = WarmUp(hp.peak_lr, hp.warmup_steps)
        with self.strategy.scope():
            self.model = make_model(hp, *map(len, vocabs))
            self.optimizer = Adam(self.schedule, 0.9, hp.beta_2, hp.epsilon)
            self.optimizer.build(self.model.trainable_variables)
        self.step = make_step(self.strategy, self.model, self.optimizer)
        self.search, self.loss = make_search(self.model, hp, beam=1), make_loss(self.model)
        self.vocab_sha256 = fingerprints(vocabs)
        # Of the epoch under way: batches that are done, sums of their mean_loss and acc.
        self.progress = tf.Variable(np.zeros(3))
        self.text = tf.Variable(b"")  # the digests of what it is trained on
        known = [self.progress, self.text]
        self.parts = checkpoint.trackable(self.model, self.optimizer, known)
        self.history = []  # (mean_loss, acc, targets) of the steps behind them
        self.since = 0.0  # when the first of those began, in seconds
        self.profile = summaries.Profile(hp.logdir, hp.profile * self.chief)
        self.epoch, self.global_step, self.scores = 1, 0, {}
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        count = self.strategy.num_replicas_in_sync
        print(f"{self.model.count_params():,} weights on {count} {kind}")
        print("Building the graph of a training step takes some seconds", flush=True)
        if path:
            self.restore(path)

    def restore(self, path):
        """Go on from the checkpoint at `path`."""
        checkpoint.restore(self.parts, path)
        self.epoch, self.global_step = checkpoint.epoch_and_step(path)
        scores = checkpoint.read_scores(self.hp.logdir, self.dev_sha256)
        # Those behind it are of a run that was gone back on.
        here = checkpoint.place(path)
        self.scores = {
            name: bleu for name, bleu in scores.items() if checkpoint.place(name) <= here
        }
        if not checkpoint.is_partial(path):
            self.next_epoch()
        print(f"Resuming from {path}")

    @contextlib.contextmanager
    def logdir(self, newest):
        """Within `with`, this training alone writes to its logdir, TensorBoard's points too.

        Args:
          newest: the newest checkpoint when this training was made, or None.

        Raises:
          InputError: another training writes there, or has since then.
        """
        if not self.chief:
            yield
            return
        make_folder(self.hp.logdir)
        check_no_links(self.hp.logdir)
        with checkpoint.lock(self.hp.logdir):
            if checkpoint.newest(self.hp.logdir) != newest:
                raise InputError(f"{self.hp.logdir}: another training wrote here: start again")
            save_vocabs(self.vocabs, self.hp.logdir)
            if self.path:
                events.cut(self.hp.logdir, self.global_step, checkpoint.is_partial(self.path))
            else:
                events.set_aside(self.hp.logdir)
            with tf.summary.create_file_writer(self.hp.logdir).as_default():
                if not self.path:
                    summaries.write_setup(self.hp, self.step.get_concrete_function().graph)
                summaries.write_projector(self.hp, self.model, self.vocabs)
                with self.profile:
                    yield

    def next_epoch(self):
        """Stand before the first step of the epoch to come."""
        self.epoch += 1
        self.progress.assign(np.zeros(3))

    def save(self, partial=False):
        """Write a checkpoint, of the end of the epoch or of a place within it.

        Raises:
          InputError: the weights are no numbers any more, or the loss has exploded.
        """
        self.count()
        batches, total_loss, _ = self.progress.numpy()
        guessing = math.log(len(self.vocabs[1]))  # the loss of equal probabilities
        if total_loss > batches * (3 * guessing + 10):
            self.diverged(
                f"mean_loss is {total_loss / batches:.3g} in epoch {self.epoch}, up to step"
                f" {self.global_step}; equal probabilities would have {guessing:.1f}"
            )
        if not self.chief:
            return
        for name, weight in checkpoint.named_variables(self.model).items():
            if not tf.reduce_all(tf.math.is_finite(weight)):
                self.diverged(f"{name} is no number after step {self.global_step}")
        tf.summary.flush()
        save_hparams(self.hp, self.vocab_sha256)
        place = self.epoch, self.global_step
        self.path = checkpoint.save(self.parts, self.hp.logdir, *place, self.hp.keep, partial)

    def diverged(self, what):
        """Raise InputError: there is nothing to go on with."""
        good = f"The last good checkpoint is {self.path}" if self.path else "There is no checkpoint"
        raise InputError(f"{what}. {good}. Train with a lower --lr, or longer --warmup_steps")

    def interrupted_message(self):
        """What a signal has ended: how far training is, what is saved, and how to resume."""
        if not self.chief:
            return "stopped. Start all workers again to resume from the last checkpoint"
        if not self.path:
            return "stopped before the first checkpoint: nothing is saved"
        saved = checkpoint.epoch_and_step(self.path)[1]
        lost = self.global_step - saved
        lost = f", {lost} steps before this one" if lost else ""
        return (
            f"stopped in epoch {self.epoch} after step {self.global_step}. The last checkpoint is"
            f" {self.path}{lost}. The same command resumes from there"
        )

    def run(self, data, dev, stop):
        """Train for `num_epochs`, or until `patience` is at its end.

        Args:
          data: Data.
          dev: EvalData of the development set, or None.
          stop: Stop.

        Raises:
          InputError: a loss is no number, or the epoch under way is of another text.
          KeyboardInterrupt: `stop` heard a signal, and a checkpoint was saved.
        """
        self.take(data)
        note = ""
        while self.epoch <= self.hp.num_epochs and self.hopeful():
            began = time.monotonic()
            self.train_epoch(data, stop)
            batches, *sums = self.progress.numpy()
            report = "mean_loss {:.3f} acc {:.3f}".format(*np.array(sums) / batches)
            if dev:
                *numbers, note = self.evaluate(dev, stop)
                report += ", dev loss {:.3f} BLEU {:.2f}".format(*numbers)
                report += f" ({note}, as is usual at first)" if note else ""
            self.save()
            if self.chief:
                print(f"{self.path}: {report}, {time.monotonic() - began:.0f} s", flush=True)
            self.next_epoch()
        if note and self.chief:
            print(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)

    def take(self, data):
        """Remember which text this is; raise InputError where an epoch is to end with another."""
        text = data.X.digest() + data.Y.digest()
        if self.progress[0] and text != self.text.numpy():
            raise InputError(
                f"{self.hp.source_train} and {self.hp.target_train}: not the text that {self.path}"
                " was in the middle of: put that one back until its epoch is done, or give a new"
                " --logdir"
            )
        self.text.assign(text)

    def hopeful(self):
        """Whether one of the last `patience` epochs has brought a better dev BLEU."""
        if not self.hp.patience or not self.scores:
            return True
        best = max(self.scores, key=self.scores.get)
        if self.epoch - checkpoint.epoch_and_step(best)[0] <= self.hp.patience:
            return True
        bleu, patience = self.scores[best], self.hp.patience
        print(f"No better dev BLEU than {bleu:.2f} in {patience} epochs: stopping")
        return False

    def train_epoch(self, data, stop):
        """The batches of the epoch that are not done yet."""
        hp, done = self.hp, int(self.progress[0])
        batches, num_batch = epoch_batches(data, self.vocabs, hp, self.epoch, done)
        batches = self.strategy.experimental_distribute_dataset(batches)
        title = f"epoch {self.epoch}/{hp.num_epochs}"
        self.since = time.monotonic()
        with tqdm(batches, title, num_batch, False, initial=done, mininterval=1, unit="b") as bar:
            for x, y in self.profile.watch(bar, self.global_step):
                self.history.append(self.step(x, y))
                self.global_step += 1
                done += 1
                if self.global_step % SUMMARY_STEPS == 0 or done == num_batch:
                    bar.set_postfix_str(self.tell(), refresh=False)
                due = hp.save_steps and self.global_step % hp.save_steps == 0
                # Workers that ended before the chief would leave it in a step without them.
                stopping = stop.signal is not None and self.chief
                if due or stopping:
                    self.save(partial=True)
                    self.since = time.monotonic()
                if stopping:
                    stop.check()

    def count(self):
        """Take the newest steps into `progress`; returns them, (steps, 3).

        Raises:
          InputError: a mean_loss is no number.
        """
        numbers = np.array(self.history, np.float64).reshape(-1, 3)  # mean_loss, acc, targets
        lost = np.flatnonzero(~np.isfinite(numbers[:, 0]))
        if len(lost):
            step = self.global_step - len(numbers) + 1 + lost[0]
            self.diverged(f"mean_loss is {numbers[lost[0], 0]} at step {step}")
        self.progress.assign_add([len(numbers), *numbers[:, :2].sum(axis=0)])
        self.history.clear()
        return numbers

    def tell(self):
        """Write a point of each curve; returns what the progress bar shows."""
        numbers = self.count()  # which waits for the steps
        mean_loss, acc, _ = numbers[-1]
        now = time.monotonic()
        points = dict(
            mean_loss=mean_loss,
            acc=acc,
            lr=self.schedule(self.global_step - 1),
            gradient_norm=self.optimizer.gradient_norm(),
            tokens_per_second=numbers[:, 2].sum() / (now - self.since),
        )
        self.since = now
        for name, value in points.items():
            tf.summary.scalar(name, value, self.global_step)
        return f"mean_loss {mean_loss:.3f} acc {acc:.3f}"

    def evaluate(self, dev, stop):
        """The loss of the development set, the BLEU of its greedy translations, and a note.

        The note is empty unless most translations are.
        """
        try:
            with stop.not_waiting():
                got = to_text(translate(self.search, dev.data.X, self.hp), self.vocabs[1])
                loss = dev_loss(self.loss, dev.data, self.hp)
        except KeyboardInterrupt:
            self.save(partial=True)
            raise
        bleu, _ = sacrebleu_score(dev, got, self.hp.target_lang)
        end = checkpoint.path_at(self.hp.logdir, self.epoch, self.global_step)
        self.scores[end.name] = bleu
        if self.chief:  # before the checkpoint: one that is there has its score
            tf.summary.scalar("dev_loss", loss, self.global_step)
            tf.summary.scalar("dev_bleu", bleu, self.global_step)
            summaries.write_samples(dev, got, self.global_step)
            summaries.write_attention(self.model, dev, self.vocabs, self.hp, self.global_step)
            checkpoint.write_scores(self.hp.logdir, self.scores, self.dev_sha256)
        return loss, bleu, empty_note(got)


def failure(error, hp):
    """What a person is to know of an error of TensorFlow: an OSError, or the error itself."""
    if isinstance(error, tf.errors.ResourceExhaustedError):
        size = "batch_tokens" if hp.batch_tokens else "batch_size"
        return OSError(
            f"a batch is too large for the memory: lower {size} {getattr(hp, size)} or maxlen"
            f" {hp.maxlen}"
        )
    if "TF_CONFIG" in os.environ:
        aborted = re.search("aborted by: (.*)", error.message)
        reason = aborted[1] if aborted else error.message.partition("\n")[0]
        return OSError(
            f"a worker is gone ({reason}): start all of them again, and they go on from the last"
            " checkpoint"
        )
    return error


def main(flags):
    """Train, or resume; `flags` as `parse_flags` returns them.

    Raises:
      InputError: what is given does not fit, or a loss is no number.
      KeyboardInterrupt: a signal came, and a checkpoint was saved.
      OSError: a disk or a memory is full, or a worker is gone.
    """
    hp, trained_with, path = open_logdir(flags)
    newest = checkpoint.newest(hp.logdir)
    vocabs = load_vocabs(hp, trained_with)
    if hp.tokens == "pieces":
        hp = dataclasses.replace(hp, vocab_size=len(vocabs[0]))
    if path:
        checkpoint.check_sizes(hp, [*map(len, vocabs)], path)
        note_other_vocab(hp, vocabs)
    if path and checkpoint.epochs_done(path) >= hp.num_epochs:
        print(
            f"{path}: all {hp.num_epochs} epochs of this model (recipe {hp.recipe}) are done. To"
            " train it for longer, raise --num_epochs; to train another one, give a new --logdir"
        )
        return

    if path:
        sides = [f"{side}_{part}" for part in ("train", "dev") for side in ("source", "target")]
        announce_inputs(hp, flags, *sides)
    dev = load_dev_data(hp, vocabs)
    data = load_train_data(hp, vocabs, may_write(hp.ids_path, "preprocessed", flags))
    if not path:
        hp = settle_schedule(hp, data)
    if hp.deterministic:
        tf.config.experimental.enable_op_determinism()
    try:
        training = Training(hp, vocabs, path, dev.digest() if dev else "")
    except tf.errors.ResourceExhaustedError:
        raise OSError(
            f"the model is too large for the memory: lower hidden_units {hp.hidden_units},"
            f" num_blocks {hp.num_blocks} or maxlen {hp.maxlen}"
        ) from None
    with training.logdir(newest), Stop() as stop:
        try:
            training.run(data, dev, stop)
        except KeyboardInterrupt as interrupt:
            number = (*interrupt.args, signal.SIGINT)[0]
            raise KeyboardInterrupt(number, training.interrupted_message()) from None
        except tf.errors.OpError as error:
            if not training.chief:
                stop.check()  # the chief has ended too
            raise failure(error, hp) from None
    print("Done")


if __name__ == "__main__":
    run(main, flags, "stopped before training began. The same command starts or resumes it")
