"""The training loop.

Why a custom loop, and not `compile` and `fit`: in Keras 3.15, `fit` is broken under
MultiWorkerMirroredStrategy (keras issues 20585, 20329), and gradient_accumulation_steps under
any strategy (20582). `fit` averages the loss of each replica over its own tokens, so that tokens
count more in a replica that has few of them. Resuming exactly in the middle of an epoch needs
control of the loop.
"""

import functools
import hashlib
import math
import sys
import time

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from bleu import LITTLE_LEARNED_HINT, METRICS, corpus_score, empty_note
from checkpoint import Row, assign, load_newest, path_of, save
from data_load import get_batch_data, pairs_of_epoch, plan_batches
from hparams import FIELDS
from ids import PAD
from inference import LoadedModel, SearchDecoder, decoding_batches
from model import make_model
from modules import smoothed_cross_entropy
from monitor import summaries
from optimizer import GradientSum, learning_rate, make_optimizer
from runtime.errors import InputError
from runtime.workers import check_same_settings, first_workers
from training_step import BATCH_SPEC, StepMetrics, make_train_step
from variable_names import variables_by_2017_name

ENOUGH_STEPS_PER_EPOCH = 300  # with so many, num_epochs 0 is 20
TIMED_STEPS = 2500  # a training of some minutes has the warm-up of one with so many steps
SUMMARY_STEPS = 10  # steps between two points of TensorBoard's curves
SAVE_SECONDS = 600  # the longest time without a checkpoint
SAVE_SHARE = 1 / 5  # of `minutes`, if that is sooner

# The development set -----------------------------------------------------------


def make_loss_fn(model, smoothing=0.1):
    """Make the function from a batch (x, y) of (N, T) to its summed loss and its tokens, both ().

    It differs from training in that there is no dropout.
    """

    @tf.function(input_signature=BATCH_SPEC, autograph=False)
    def loss_fn(x, y):
        istarget = tf.not_equal(y, PAD)  # (N, T)
        target_ids = tf.boolean_mask(y, istarget)  # (M,)
        logits = tf.cast(model(x, y, istarget=istarget), tf.float32)  # (M, vocab)
        losses = smoothed_cross_entropy(target_ids, logits, smoothing)  # (M,)
        return tf.reduce_sum(losses), tf.size(target_ids)

    return loss_fn


def mean_loss(loss_fn, data, pad_to) -> float:
    """Return the loss per token of a SentencePairs."""
    X, Y = data.X, data.Y
    batches = decoding_batches(np.maximum(X.lengths, Y.lengths), width=pad_to)
    totals = [loss_fn(X.pad(rows, pad_to), Y.pad(rows, pad_to)) for rows in batches]
    loss, num_targets = np.sum(totals, axis=0)
    return loss / num_targets


def out_of_patience(scores, patience) -> bool:
    """Whether none of the last `patience` evaluations has improved the dev score.

    >>> [out_of_patience([12.0, 11.5], patience) for patience in (0, 1, 2)]
    [False, True, False]

    Args:
      scores: list, in order of time.
      patience: 0 for no limit.
    """
    return bool(patience and scores) and len(scores) - 1 - scores.index(max(scores)) >= patience


# The training loop -------------------------------------------------------------


class Trainer:
    """A training: the model, the optimizer, and how far it has come.

    Args:
      hp: Hyperparams.
      vocabs: those of source and target.
      data: SentencePairs, the training text.
      dev: EvalSet, or None.
      strategy: tf.distribute.Strategy.
      start_seconds: when this run began, as time.monotonic().
    """

    def __init__(self, hp, vocabs, data, dev=None, strategy=None, start_seconds=None):
        # A model that was built before would change the names of layers. The order in which
        # TensorFlow adds gradients follows names, and a resumed run would round differently.
        keras.backend.clear_session()
        keras.utils.set_random_seed(hp.seed)
        self.hp, self.vocabs, self.data, self.dev = hp, vocabs, data, dev
        self.start_seconds = start_seconds or time.monotonic()
        self.rows = []  # the checkpoints so far, oldest first
        self.epoch, self.step, self.epoch_done = 1, 0, False
        self.seconds = 0.0  # of earlier runs
        self.sums = np.zeros(3)  # of the current epoch: steps, mean_loss, acc
        self.digests = digest_of_batches(data, hp), dev.digest() if dev else ""
        self.strategy = strategy or tf.distribute.get_strategy()
        settings = {n: getattr(hp, n) for n, f in FIELDS.items() if f.metadata["group"] != "data"}
        check_same_settings(self.strategy, settings | dict(texts=self.digests))
        self.is_first = self.strategy.extended.should_checkpoint  # of several workers
        with self.strategy.scope():
            self.model = make_model(hp, *map(len, vocabs))
            self.optimizer = make_optimizer(hp)
            self.optimizer.build(self.model.trainable_variables)
            gradient_sum = None
            if hp.accumulate > 1:
                variables = self.model.trainable_variables
                gradient_sum = GradientSum(variables, num_metrics=len(StepMetrics._fields))
        make_step = functools.partial(
            make_train_step,
            self.strategy,
            self.model,
            self.optimizer,
            smoothing=hp.label_smoothing,
            clip_norm=hp.clip_norm,
            consistency=hp.consistency,
            gradient_sum=gradient_sum,
        )
        self.train_step = make_step()
        self.accumulate_step = make_step(update=False) if gradient_sum else None
        self.loss_fn = make_loss_fn(self.model, hp.label_smoothing)
        first_epoch = plan_batches(pairs_of_epoch(data, vocabs, hp, 1), hp, 1)
        steps = math.ceil(len(first_epoch) / hp.accumulate)
        self.num_epochs = count_epochs(hp, steps)
        self.total_steps = int(min(hp.max_steps or math.inf, self.num_epochs * steps))
        if hp.minutes:
            self.num_epochs, self.total_steps = math.inf, TIMED_STEPS
        self.events = tf.summary.create_noop_writer()
        count = self.strategy.num_replicas_in_sync
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        length = f"{hp.minutes:g} minutes" if hp.minutes else f"{self.total_steps} steps"
        print(
            f"{self.model.count_params():,} parameters on {count} {kind}, {length}, {steps} steps"
            " in an epoch. Building the graph of a step takes some seconds",
            flush=True,
        )

    # Where it stands ---------------------------------------------------------------

    @property
    def path(self):
        """The last checkpoint, or None."""
        return path_of(self.hp.logdir, self.rows[-1]) if self.rows else None

    @property
    def scores(self) -> list[float]:
        """The scores of the evaluations so far, with this metric and development set."""
        current = self.hp.metric, self.digests[1]
        same = [row for row in self.rows if (row.metric, row.dev) == current]
        return [row.score for row in same if row.score is not None]

    def elapsed(self) -> float:
        """Seconds of training in all runs."""
        return self.seconds + time.monotonic() - self.start_seconds

    def progress(self, step) -> float:
        """The share of the training that is done after a step, from 0 to 1."""
        if self.hp.minutes:
            return first_workers(self.strategy, self.elapsed() / (60 * self.hp.minutes))
        return step / self.total_steps

    def is_done(self) -> bool:
        """Whether nothing is left to train."""
        steps_done = self.hp.max_steps and self.step >= self.hp.max_steps
        # The last checkpoint counts: a run that begins with a second left has a last step, too.
        seconds = first_workers(self.strategy, self.rows[-1].seconds if self.rows else 0)
        time_is_over = 0 < 60 * self.hp.minutes <= seconds
        tired = out_of_patience(self.scores, self.hp.patience)
        return bool(self.epoch > self.num_epochs or steps_done or time_is_over or tired)

    def is_every(self, steps) -> bool:
        """Whether this is one of every so many steps; 0: none is."""
        return steps > 0 and self.step % steps == 0

    def variables(self) -> dict:
        """The variables of a checkpoint, by name."""
        named = {f"weights/{name}": v for name, v in variables_by_2017_name(self.model).items()}
        named |= {f"optimizer/{i}": v for i, v in enumerate(self.optimizer.variables)}
        return named | {f"dropout/{i}": v for i, v in enumerate(self.model.non_trainable_variables)}

    def resume(self, rows):
        """Continue after the newest of these checkpoints that is not damaged."""
        self.rows, arrays = load_newest(self.hp.logdir, rows)
        row = self.rows[-1]
        assign(self.variables(), arrays, self.path)
        self.epoch, self.step, self.seconds = row.epoch, row.step, row.seconds
        self.sums = np.array(row.sums)
        if row.epoch_done:
            self.epoch, self.sums = row.epoch + 1, np.zeros(3)
        elif row.text != self.digests[0]:
            raise InputError(
                f"{self.hp.source_train} and {self.hp.target_train}: the text, or a flag that its"
                f" batches depend on, has changed since {self.path} was saved in mid-epoch. Restore"
                " it to finish the epoch, or use a new --logdir"
            )
        print(f"Resuming from {self.path}")

    # The loop ------------------------------------------------------------------------

    def train(self, guard):
        """Train to the end, or until a signal comes.

        Args:
          guard: SignalGuard.

        Raises:
          KeyboardInterrupt: a signal came, and a checkpoint was saved.
        """
        hp, pending = self.hp, []  # StepMetrics; reading them would wait for their steps
        interval = min(SAVE_SECONDS, 60 * hp.minutes * SAVE_SHARE or SAVE_SECONDS)
        self.report_seconds = self.log_seconds = self.save_seconds = time.monotonic()
        while not self.is_done():
            for (x, y), is_update in self.batches():
                if not is_update:
                    self.accumulate_step(x, y)
                    continue
                self.step += 1
                progress = self.progress(self.step)
                rate = learning_rate(hp, self.step, progress, self.total_steps)
                self.optimizer.learning_rate.assign(rate)
                pending.append(self.train_step(x, y))
                is_last = progress >= 1 if hp.minutes else self.step == hp.max_steps
                stops = self.is_first and guard.signal is not None
                evaluates = self.epoch_done or is_last or self.is_every(hp.dev_steps)
                is_timed = time.monotonic() - self.save_seconds > interval
                saves = self.is_every(hp.save_steps) or stops or is_timed
                if evaluates or saves or self.is_every(SUMMARY_STEPS):
                    self.log(pending, rate, progress)
                if evaluates:
                    self.evaluate_and_save()
                elif saves:
                    self.save(by_time=not self.is_every(hp.save_steps))
                if stops:
                    raise KeyboardInterrupt(
                        guard.signal,
                        f"stopped after step {self.step}. {self.path}: the same command resumes",
                    )
                if out_of_patience(self.scores, hp.patience):
                    metric, best = METRICS[hp.metric], max(self.scores)
                    print(f"No better dev {metric} than {best:.2f} in {hp.patience} evaluations")
                    return
                if is_last:
                    return
            self.epoch, self.epoch_done, self.sums = self.epoch + 1, False, np.zeros(3)

    def batches(self):
        """Yield the batches that are left of an epoch, and whether each completes a step."""
        hp, done = self.hp, int(self.sums[0]) * self.hp.accumulate
        data = pairs_of_epoch(self.data, self.vocabs, hp, self.epoch)
        batches, total = get_batch_data(data, hp, self.epoch, done, self.strategy)
        of_all = f"/{self.num_epochs}" if self.num_epochs < math.inf else ""
        settings = dict(total=total, initial=done, leave=False, mininterval=1, unit="b")
        with tqdm(batches, f"epoch {self.epoch}{of_all}", **settings) as self.bar:
            for number, batch in enumerate(self.bar, done + 1):
                self.epoch_done = number == total
                yield batch, number % hp.accumulate == 0 or self.epoch_done

    def log(self, pending, rate, progress):
        """Read the metrics of the last steps, which waits for them, and write points of curves.

        Raises:
          InputError: the loss has exploded.
        """
        loss, acc, num_targets = np.array(pending, np.float64).T  # (steps,)
        pending.clear()
        self.sums += len(loss), loss.sum(), acc.sum()
        if not loss.mean() < 3 * math.log(len(self.vocabs[1])) + 10:  # or it is NaN
            raise self.diverged_error(f"mean_loss is {loss[-1]:.3g} at step {self.step}")
        now = time.monotonic()
        with self.events.as_default():
            tf.summary.scalar("mean_loss", loss[-1], self.step)
            tf.summary.scalar("acc", acc[-1], self.step)
            tf.summary.scalar("lr", rate, self.step)
            tf.summary.scalar("gradient_norm", self.optimizer.gradient_norm(), self.step)
            speed = num_targets.sum() / (now - self.log_seconds)
            tf.summary.scalar("tokens_per_second", speed, self.step)
        self.log_seconds = now
        minutes = math.ceil(self.elapsed() * (1 / progress - 1) / 60) if progress < 1 else 0
        self.bar.set_postfix_str(
            f"mean_loss {loss[-1]:.3f} acc {acc[-1]:.3f}, {minutes} min left", refresh=False
        )

    def evaluate_and_save(self):
        """Evaluate on the development set if there is one, save a checkpoint, and report."""
        hp, dev, score, note = self.hp, self.dev, None, ""
        report = "mean_loss {:.3f} acc {:.3f}".format(*self.sums[1:] / self.sums[0])
        if dev:
            self.check_parameters()  # first: the search cannot name a parameter that is NaN
            got = [best.text for best, *_ in self.decode(dev.data.X)]
            scores = {name: corpus_score(name, dev, got, hp.target_lang)[0] for name in METRICS}
            score, loss = float(scores[hp.metric]), mean_loss(self.loss_fn, dev.data, hp.pad_to)
            report += f", dev loss {loss:.3f}"
            report += "".join(f" {METRICS[name]} {value:.2f}" for name, value in scores.items())
            note = empty_note(got)
            with self.events.as_default():
                tf.summary.scalar("dev_loss", loss, self.step)
                for name, value in scores.items():
                    tf.summary.scalar(f"dev_{name}", value, self.step)
                if self.is_first:
                    summaries.write_samples(dev, got, self.step)
                    summaries.write_attention(self.model, dev, self.vocabs, hp, self.step)
        self.save(score)
        now = time.monotonic()
        if self.is_first:
            tqdm.write(f"{self.path}: {report}, {now - self.report_seconds:.0f} s")
            if note:
                tqdm.write(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)
            sys.stdout.flush()
        self.report_seconds = self.log_seconds = now

    @functools.cached_property
    def decode(self):
        """Decoder of the development set: greedy search."""
        greedy = dict(beam=1, temperature=0.0)
        loaded = LoadedModel([], self.hp, self.model, self.vocabs).with_hp(**greedy)
        return SearchDecoder(loaded, show_progress=True)

    def save(self, score=None, by_time=False):
        """Save a checkpoint.

        Args:
          score: that of an evaluation at this step, None without one.
          by_time: whether it is saved only because some minutes have passed, or at a signal.
        """
        self.check_parameters()
        row = Row(
            self.epoch,
            self.step,
            self.epoch_done,
            self.elapsed(),
            self.sums.tolist(),
            *self.digests,
            self.hp.metric,
            score,
            by_time,
        )
        self.rows = [*(other for other in self.rows if other.step < self.step), row]
        if self.is_first:
            arrays = {name: np.asarray(variable) for name, variable in self.variables().items()}
            self.rows = save(self.hp.logdir, self.rows, arrays, self.hp.keep_checkpoints)
        self.save_seconds = self.log_seconds = time.monotonic()

    def check_parameters(self):
        """Raise InputError if a parameter is NaN or infinite."""
        for name, variable in variables_by_2017_name(self.model).items():
            if not tf.reduce_all(tf.math.is_finite(variable)):
                raise self.diverged_error(f"{name} is not finite after step {self.step}")

    def diverged_error(self, problem) -> InputError:
        """Make the error to raise if training cannot continue."""
        last = f"The last good checkpoint is {self.path}" if self.path else "No checkpoint is saved"
        return InputError(
            f"{problem}. {last}. Use a new --logdir, and a lower --lr or more --warmup_steps"
        )


def count_epochs(hp, steps_per_epoch):
    """The number of epochs; if `num_epochs` is 0, 20, and more for a small text.

    An epoch of a small text has few steps, and a model needs some thousands to learn anything
    (docs/development.md has results). With `max_steps`, it is without limit.

    >>> from hparams import make_hparams
    >>> [count_epochs(make_hparams(dict(recipe="tiny")), steps) for steps in (6, 110, 318)]
    [96, 30, 20]
    """
    if hp.num_epochs or hp.max_steps:
        return hp.num_epochs or math.inf
    return round(20 * max(1.0, ENOUGH_STEPS_PER_EPOCH / steps_per_epoch) ** 0.4)


def digest_of_batches(data, hp) -> str:
    """Return a digest of the training text, and of what decides its batches."""
    flags = hp.batch_size, hp.batch_tokens, hp.accumulate, hp.seed, hp.bpe_dropout, hp.missing_mark
    digest = hashlib.sha256(data.X.digest() + data.Y.digest() + repr(flags).encode())
    return digest.hexdigest()[:16]
