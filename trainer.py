"""The training loop.

Why a custom loop, and not `compile` and `fit`: in Keras 3.15, `fit` is broken under
MultiWorkerMirroredStrategy (keras issues 20585, 20329), and gradient_accumulation_steps under
any strategy (20582). `fit` averages the loss of each replica over its own tokens, so that tokens
count more in a replica that has few of them. Resuming exactly in the middle of an epoch needs
control of the loop.
"""

import dataclasses
import functools
import math
import sys
import time
from pathlib import Path
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

import checkpoint
from bleu import LITTLE_LEARNED_HINT, METRICS, corpus_score, empty_note
from data_load import get_batch_data, pairs_of_epoch
from hparams import (
    NO_EPOCH_LIMIT,
    TEXT_FIELDS,
    TIMED_WARMUP_STEPS,
    late_peak_note,
    save_hparams,
)
from ids import PAD
from inference import (
    LoadedModel,
    SearchDecoder,
    decoding_batches,
    describe_checkpoints,
    limit_hint,
    limit_note,
)
from manifest import make_row
from model import make_model
from modules import smoothed_cross_entropy
from monitor import summaries
from optimizer import GradientSum, make_optimizer, make_schedule
from runtime.errors import InputError
from runtime.workers import check_same_settings, make_strategy
from training_step import BATCH_SPEC, StepMetrics, make_train_step
from variable_names import variables_by_2017_name

PLAN_STEPS = 50  # after each so many steps the end is planned
PLAN_SHARE = 0.1  # or after this share of the time, if that is sooner
ESTIMATE_STEPS = 100  # after so many steps the time that is left is printed
SUMMARY_STEPS = 10  # steps between two points of TensorBoard's curves


def epoch_batches(data, vocabs, hp, epoch, skip=0, strategy=None):
    """Call `get_batch_data`, with the subwords and forms of the epoch."""
    return get_batch_data(pairs_of_epoch(data, vocabs, hp, epoch), hp, epoch, skip, strategy)


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


def evaluate_dev(decode, loss_fn, dev, hp):
    """Translate the development set, and compute its scores and its loss.

    Args:
      decode: Decoder.
      loss_fn: what `make_loss_fn` returned.
      dev: EvalSet.

    Returns:
      (float, dict, list of str, int): the loss per token, the scores by the names of METRICS, the
      translations, and how many of them ended at the limit of their length.
    """
    X, Y = dev.data.X, dev.data.Y
    best = [hypotheses[0] for hypotheses in decode(X)]
    got = [hypothesis.text for hypothesis in best]
    scores = {name: corpus_score(name, dev, got, hp.target_lang)[0] for name in METRICS}
    batches = decoding_batches(np.maximum(X.lengths, Y.lengths), width=hp.pad_to)
    totals = [loss_fn(X.pad(rows, hp.pad_to), Y.pad(rows, hp.pad_to)) for rows in batches]
    loss, num_targets = np.sum(totals, axis=0)
    return loss / num_targets, scores, got, sum(hypothesis.at_limit for hypothesis in best)


def out_of_patience(scores, patience) -> bool:
    """Whether none of the last `patience` evaluations has improved the dev score.

    >>> [out_of_patience([12.0, 11.5], patience) for patience in (0, 1, 2)]
    [False, True, False]

    Args:
      scores: list, in order of time.
      patience: 0 for no limit.
    """
    if not patience or not scores:
        return False
    return len(scores) - 1 - scores.index(max(scores)) >= patience


# Progress and metrics ----------------------------------------------------------


class Progress:
    """The clock of a training, and what is known of the current epoch.

    Epoch and step are in run.json, and the rest in variables of the checkpoint.
    """

    def __init__(self):
        self.epoch = 1  # the current one, counted from 1
        self.global_step = 0  # steps done
        self.epoch_done = False  # whether all steps of the current epoch are done
        self.totals = tf.Variable(np.zeros(3))  # steps, sums of mean_loss and acc in the epoch
        self.text_digest = tf.Variable(b"")  # identifies the training text

    def variables(self) -> dict:
        """The variables to save, by name."""
        return dict(totals=self.totals, text_digest=self.text_digest)

    def resume(self, row):
        """Continue after the checkpoint of a Row, from which the variables were restored."""
        self.epoch, self.global_step = row.epoch, row.step
        if row.epoch_done:
            self.next_epoch()

    def next_epoch(self):
        """Move to the start of the next epoch."""
        self.epoch, self.epoch_done = self.epoch + 1, False
        self.totals.assign(np.zeros(3))

    def add(self, metrics):
        """Count the steps of a StepMetrics."""
        steps = len(metrics.mean_loss)
        self.totals.assign_add([steps, metrics.mean_loss.sum(), metrics.acc.sum()])

    @property
    def epochs_done(self) -> int:
        """The number of complete epochs."""
        return self.epoch - (not self.epoch_done)

    @property
    def steps(self) -> int:
        """Steps of the current epoch whose metrics were added."""
        return int(self.totals[0])

    def means(self):
        """The means of mean_loss and acc over the steps of the current epoch, (2,)."""
        steps, *sums = self.totals.numpy()
        return np.array(sums) / steps


# Fields that may differ between workers: the content of these files is compared, or they have no
# effect on the training.
LOCAL_FIELDS = {*TEXT_FIELDS, "preprocessed", "logdir", "results", "start_from"}


def describe_parameters(paths) -> str:
    """Return the names of checkpoints and a digest of their parameters, "none" without any."""
    if not paths:
        return "none"
    names = ", ".join(path.name for path in paths)
    return f"{names} ({checkpoint.parameters_digest(paths)[:8]})"


class SavedOrigin(NamedTuple):
    """Checkpoints of another model: a new training starts from the mean of their parameters."""

    paths: list

    def describe(self) -> str:
        """Name the checkpoints, for messages."""
        return describe_checkpoints(self.paths)

    def identify(self) -> str:
        """Return their names and a digest, to compare between workers."""
        return describe_parameters(self.paths)

    def restore(self, model):
        """Set the parameters of a built model."""
        checkpoint.restore_average(model, self.paths)


def digest_of(data) -> bytes:
    """Return the digest of the token ids of a SentencePairs."""
    return data.X.digest() + data.Y.digest()


def check_same_text(progress, digest, hp, path):
    """Raise InputError if an epoch in progress began on another text.

    Args:
      digest: that of the training text.
      path: the checkpoint of `progress`.
    """
    if progress.steps and progress.text_digest.numpy() != digest:
        raise InputError(
            f"{hp.source_train} and {hp.target_train}: the training text has changed since {path}"
            " was saved in mid-epoch. Restore it to finish the epoch, or use a new --logdir"
        )


class Clock:
    """Measures the speed of a run, evaluations included.

    Args:
      deadline: when the training ends, as time.monotonic(), or None.
    """

    def __init__(self, deadline=None):
        self.deadline = deadline
        self.start_seconds, self.first_step, self.global_step = 0.0, 0, 0
        self.plan_seconds, self.plan_step = 0.0, 0  # when the end was planned
        self.steps_per_epoch, self.epoch_end = 0, 0

    def start_epoch(self, global_step, steps):
        """Note how many steps are left of an epoch, which may have begun in an earlier run."""
        self.steps_per_epoch = max(self.steps_per_epoch, steps)
        self.epoch_end = global_step + steps

    def step(self, global_step):
        """Note that a step is done. The first one, which builds the graph, is not measured."""
        if not self.start_seconds:
            self.start_seconds, self.first_step = time.monotonic(), global_step
            self.plan_seconds, self.plan_step = self.start_seconds, global_step
        self.global_step = global_step

    def steps(self) -> int:
        """Count the steps that were measured."""
        return self.global_step - self.first_step

    def seconds_per_step(self) -> float:
        """Return the mean time of a step."""
        return (time.monotonic() - self.start_seconds) / max(1, self.steps())

    def plan_is_due(self) -> bool:
        """Whether to plan the end now: every so often, and when the time is over."""
        now = time.monotonic()
        share = (now - self.plan_seconds) / max(1e-9, self.deadline - self.start_seconds)
        is_regular = share >= PLAN_SHARE or self.global_step - self.plan_step >= PLAN_STEPS
        return now > self.deadline or self.steps() > 0 and is_regular

    def note_plan(self):
        """Note that the end has been planned now."""
        self.plan_seconds, self.plan_step = time.monotonic(), self.global_step


class MetricLog:
    """Collects the metrics of steps, and writes the curves of TensorBoard."""

    def __init__(self):
        self.pending = []  # StepMetrics on the device; reading them would wait for their steps
        self.start_interval()

    def start_interval(self):
        """Measure the speed from now on."""
        self.interval_start = time.monotonic()

    def add(self, metrics):
        """Add the StepMetrics of a step."""
        self.pending.append(metrics)

    def flush(self) -> StepMetrics:
        """Wait for the pending steps; returns their metrics, NumPy arrays (steps,)."""
        metrics = np.array(self.pending, np.float64).reshape(-1, 3)  # (steps, 3)
        self.pending.clear()
        return StepMetrics(*metrics.T)

    def write(self, metrics, global_step, lr, gradient_norm):
        """Write a point of each curve, and start the next interval.

        Args:
          metrics: StepMetrics of the steps since the interval began, up to `global_step`.
        """
        seconds = time.monotonic() - self.interval_start
        self.start_interval()
        tf.summary.scalar("mean_loss", metrics.mean_loss[-1], global_step)
        tf.summary.scalar("acc", metrics.acc[-1], global_step)
        tf.summary.scalar("lr", lr, global_step)
        tf.summary.scalar("gradient_norm", gradient_norm, global_step)
        tf.summary.scalar("tokens_per_second", metrics.num_targets.sum() / seconds, global_step)


# The training loop -------------------------------------------------------------


class Trainer:
    """Model, optimizer and progress of a training run: everything that a checkpoint stores.

    Args:
      hp: Hyperparams.
      vocabs: those of source and target.
      rows: the checkpoints of the training so far, as `manifest.Row`; it resumes from the last.
      dev_sha256: digest of the development set, "" if there is none.
      origin: the parameters that a new training starts from: a `SavedOrigin`, or a
        `interop.pretrained.Pretrained`; None for random ones.
      text_digest: digest of the training text, with several workers.
    """

    def __init__(self, hp, vocabs, rows=(), dev_sha256="", origin=None, text_digest=b""):
        # A model that was built before would change the names of layers. The order in which
        # TensorFlow adds gradients follows names, and a resumed run would round differently.
        keras.backend.clear_session()
        keras.utils.set_random_seed(hp.seed)
        self.hp, self.vocabs, self.dev_sha256, self.rows = hp, vocabs, dev_sha256, [*rows]
        self.strategy = make_strategy()
        check_same_settings(self.strategy, self.settings(origin, text_digest))
        self.chief = self.strategy.extended.should_checkpoint  # false in all workers but one
        self.schedule = make_schedule(hp)
        with self.strategy.scope():
            self.model = make_model(hp, *map(len, vocabs))
            self.optimizer = make_optimizer(hp, self.schedule)
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
        self.step = make_step()
        self.accumulate_step = make_step(update=False) if gradient_sum else None
        self.loss_fn = make_loss_fn(self.model, hp.label_smoothing)
        self.progress, self.metric_log = Progress(), MetricLog()
        self.checkpoint = checkpoint.make_checkpoint(
            self.model, self.optimizer, self.progress.variables()
        )
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        count = self.strategy.num_replicas_in_sync
        print(f"{self.model.count_params():,} parameters on {count} {kind}")
        print("Building the graph of a training step takes some seconds", flush=True)
        self.events = tf.summary.create_noop_writer()
        self.notes = {}  # on the last translations of the development set
        if origin:
            origin.restore(self.model)
        if rows:
            checkpoint.restore(self.checkpoint, self.path)
            self.progress.resume(rows[-1])
            print(f"Resuming from {self.path}")

    @functools.cached_property
    def decode(self) -> SearchDecoder:
        """The greedy search that translates the development set."""
        loaded = LoadedModel([], self.hp, self.model, self.vocabs)
        greedy = loaded.with_hp(beam=1, temperature=0.0, top_k=0)
        return SearchDecoder(greedy, show_progress=True)

    def settings(self, origin, text_digest) -> dict:
        """Return what all workers must share, by name; the arguments are those of the class."""
        scores = [row for row in self.rows if row.score is not None]
        return {name: v for name, v in self.hp.as_dict().items() if name not in LOCAL_FIELDS} | {
            "the vocabularies": self.hp.vocab_sha256,
            "the training text": text_digest.hex(),
            "the development set": self.dev_sha256,
            "the checkpoint to resume from": describe_parameters([self.path] if self.rows else []),
            "the scores in run.json": scores,
            "the model to start from": origin.identify() if origin else "none",
        }

    @property
    def path(self):
        """The last checkpoint, or None."""
        return Path(self.hp.logdir) / self.rows[-1].name if self.rows else None

    @property
    def scores(self) -> list[float]:
        """The scores of the evaluations so far, with this metric and development set."""
        return [row.score for row in self.rows if self.is_evaluated(row)]

    def is_evaluated(self, row) -> bool:
        """Whether a checkpoint has a score with this metric and development set."""
        return row.score is not None and (row.metric, row.dev) == (self.hp.metric, self.dev_sha256)

    def train(self, data, dev, guard, deadline=None, planned_fields=()):
        """Train for `num_epochs`, up to `max_steps` or the deadline, or until `patience` runs out.

        Args:
          data: SentencePairs.
          dev: EvalSet, or None.
          guard: SignalGuard.
          deadline: as time.monotonic(), or None.
          planned_fields: names of the fields of the schedule that the deadline may change.

        Raises:
          KeyboardInterrupt: a signal came, and a checkpoint was saved.
        """
        hp, progress = self.hp, self.progress
        self.clock, self.planned_fields = Clock(deadline), planned_fields
        digest = digest_of(data)
        check_same_text(progress, digest, hp, self.path)
        progress.text_digest.assign(digest)
        for bar in self.moments(data):
            if self.log_is_due():
                bar.set_postfix_str(self.log_metrics() + self.time_left(), refresh=False)
            # Only the chief stops at a signal: it would wait for workers that ended before it.
            # Before the first step there is nothing to save; a signal waits for that step.
            stop = self.chief and guard.signal is not None and progress.global_step > 0
            if self.evaluation_is_due():
                self.evaluate_and_save(dev, guard)
                if self.plan_end() and self.chief:  # it may have taken long
                    save_hparams(self.hp)
            elif not self.is_saved() and (self.is_every(hp.save_steps) or stop):
                self.save()
            if stop:
                guard.check()
            if self.is_over():
                break
        if self.steps_are_done():
            print(self.describe_end())
        elif progress.epochs_done < hp.num_epochs and out_of_patience(self.scores, hp.patience):
            unit = "evaluations" if hp.dev_steps else "epochs"
            metric, best = METRICS[hp.metric], max(self.scores)
            print(f"No better dev {metric} than {best:.2f} in {hp.patience} {unit}: stopping")
        for note, hint in self.notes.items():
            if note and self.chief:
                print(f"{note}. {hint}", file=sys.stderr)

    def moments(self, data):
        """Train, and yield where it resumes, at the start of each epoch, and after each step.

        Yields:
          the progress bar.
        """
        hp, progress = self.hp, self.progress
        while progress.epoch <= self.hp.num_epochs:
            done = progress.steps * hp.accumulate  # batches
            batches, num_batch = epoch_batches(
                data, self.vocabs, hp, progress.epoch, skip=done, strategy=self.strategy
            )
            done = min(done, num_batch)  # the last step of an epoch may have fewer batches
            progress.epoch_done = done == num_batch  # a signal came before its evaluation
            steps_left = math.ceil((num_batch - done) / hp.accumulate)
            self.clock.start_epoch(progress.global_step, steps_left)
            of_all = "" if hp.num_epochs == NO_EPOCH_LIMIT else f"/{hp.num_epochs}"
            bar = tqdm(
                batches,
                desc=f"epoch {progress.epoch}{of_all}",
                total=num_batch,
                initial=done,
                leave=False,
                mininterval=1,
                unit="b",
            )
            self.report_start = time.monotonic()
            self.metric_log.start_interval()
            with bar:
                yield bar
                for x, y in bar:
                    done += 1
                    if done % hp.accumulate and done < num_batch:
                        self.accumulate_step(x, y)
                        continue
                    self.metric_log.add(self.step(x, y))
                    progress.global_step += 1
                    progress.epoch_done = done == num_batch
                    self.clock.step(progress.global_step)
                    self.plan_end()
                    if self.clock.steps() == ESTIMATE_STEPS and self.chief:
                        if left := self.time_left():
                            tqdm.write(f"Step {progress.global_step}{left}")
                    yield bar
            progress.next_epoch()

    def is_over(self) -> bool:
        """Whether the training ends here: no patience is left, or all steps are done."""
        return self.steps_are_done() or out_of_patience(self.scores, self.hp.patience)

    def steps_are_done(self) -> bool:
        """Whether the model has `max_steps`."""
        return 0 < self.hp.max_steps <= self.progress.global_step

    def describe_end(self) -> str:
        """Describe that the model has `max_steps`, and how to train it longer."""
        max_steps, steps = self.hp.max_steps, self.progress.global_step
        if self.hp.minutes:
            return (
                f"All {max_steps} steps of --minutes {self.hp.minutes:g} are done. To train longer,"
                " give other --minutes, which count anew, or --num_epochs"
            )
        is_end = steps == max_steps
        done = f"All {steps} steps are done" if is_end else f"The model has {steps} steps already"
        return f"{done}. To train longer, raise --max_steps ({max_steps})"

    def is_every(self, steps) -> bool:
        """Whether this is one of every so many steps; 0: none is."""
        return steps > 0 and self.progress.global_step % steps == 0

    def is_saved(self) -> bool:
        """Whether this step has a checkpoint, or is the start of the training."""
        return self.progress.global_step == (self.rows[-1].step if self.rows else 0)

    def log_is_due(self) -> bool:
        """Whether to write a point of each curve now."""
        due = self.is_every(SUMMARY_STEPS) or self.progress.epoch_done
        return due and len(self.metric_log.pending) > 0

    def evaluation_is_due(self) -> bool:
        """Whether to evaluate now: at the end of an epoch, with `dev_steps`, or at `max_steps`.

        A signal may have prevented it. The checkpoint that was then saved lacks it.
        """
        hp, progress = self.hp, self.progress
        if self.is_saved():
            if not self.rows or self.rows[-1].epoch_done:
                return False
            scored = self.is_evaluated(self.rows[-1]) or not self.dev_sha256
            if scored and not progress.epoch_done:
                return False
        at_end = progress.epoch_done or progress.global_step == hp.max_steps
        return at_end or self.is_every(hp.dev_steps)

    def evaluate_and_save(self, dev, guard):
        """Evaluate on the development set if there is one, save a checkpoint, and report."""
        self.flush_metrics()
        report, score = "mean_loss {:.3f} acc {:.3f}".format(*self.progress.means()), None
        if dev:
            self.check_parameters()  # first: the search cannot name a parameter that is NaN
            loss, scores, self.notes = self.evaluate(dev, guard)
            score = scores[self.hp.metric]
            report += f", dev loss {loss:.3f}"
            report += "".join(f" {METRICS[name]} {score:.2f}" for name, score in scores.items())
            if notes := [*filter(None, self.notes)]:
                report += f" ({'; '.join(notes)}; usual in the first epochs)"
        self.save(score)
        if self.chief:
            seconds = time.monotonic() - self.report_start
            report += f", {seconds:.0f} s{self.time_left() if self.progress.epoch_done else ''}"
            tqdm.write(f"{self.path}: {report}")
            sys.stdout.flush()
        self.report_start = time.monotonic()

    def time_left(self) -> str:
        """Describe how long the remaining steps take at the mean speed of this run."""
        hp, clock, global_step = self.hp, self.clock, self.progress.global_step
        epochs = hp.num_epochs - self.progress.epoch
        steps = clock.epoch_end - global_step + epochs * clock.steps_per_epoch
        if hp.max_steps:
            steps = min(steps, hp.max_steps - global_step)
        seconds = steps * clock.seconds_per_step()
        if clock.deadline and not hp.max_steps:
            seconds = clock.deadline - time.monotonic()
        minutes = math.ceil(seconds / 60)
        return f", {minutes} min left" if minutes > 0 else ""

    def plan_end(self) -> bool:
        """Plan how many steps the training has up to the deadline, if that is due now.

        The learning rate then rises for half of them at most, and falls up to the last one.

        Returns:
          whether it has been planned.
        """
        clock, global_step = self.clock, self.progress.global_step
        if not clock.deadline or not clock.plan_is_due():
            return False
        steps = int((clock.deadline - time.monotonic()) / clock.seconds_per_step())
        max_steps, is_first = global_step + max(0, steps), not self.hp.max_steps
        clock.note_plan()
        changes = dict(max_steps=max_steps)
        if self.hp.decay_steps:
            warmup_steps = min(TIMED_WARMUP_STEPS, max_steps // 2)
            schedule = dict(warmup_steps=warmup_steps, decay_steps=max_steps)
            changes |= {name: schedule[name] for name in self.planned_fields}
        self.hp = dataclasses.replace(self.hp, **changes)
        if self.hp.decay_steps:
            self.schedule.plan(self.hp.warmup_steps, self.hp.decay_steps)
        if is_first:
            tqdm.write(f"Planned: up to step {max_steps} in {self.hp.minutes:g} minutes")
            if self.hp.warmup_steps > max_steps:
                tqdm.write(late_peak_note(self.hp.warmup_steps, max_steps), file=sys.stderr)
        return True

    def evaluate(self, dev, guard):
        """Evaluate on the development set.

        Returns:
          (float, dict, dict): loss; the scores by the names of METRICS; and the notes, of which
          some may be "", with the remedy of each.
        """
        hp, progress = self.hp, self.progress
        try:
            with guard.interruptible():
                loss, scores, got, at_limit = evaluate_dev(self.decode, self.loss_fn, dev, hp)
        except KeyboardInterrupt:
            progress.epoch_done = False  # its evaluation is missing
            self.save()
            raise
        with self.events.as_default():
            tf.summary.scalar("dev_loss", loss, progress.global_step)
            for name, score in scores.items():
                tf.summary.scalar(f"dev_{name}", score, progress.global_step)
            if self.chief:
                summaries.write_samples(dev, got, progress.global_step)
                summaries.write_attention(self.model, dev, self.vocabs, hp, progress.global_step)
        notes = {
            empty_note(got): LITTLE_LEARNED_HINT,
            limit_note(at_limit, len(got), hp): limit_hint(hp),
        }
        return loss, scores, notes

    def flush_metrics(self) -> StepMetrics:
        """Add the pending metrics to the progress; returns them, (steps,)."""
        metrics = self.metric_log.flush()
        (bad_steps,) = np.nonzero(~np.isfinite(metrics.mean_loss))
        if len(bad_steps):
            first = bad_steps[0]
            step = self.progress.global_step - len(metrics.mean_loss) + 1 + first
            raise self.diverged_error(f"mean_loss is {metrics.mean_loss[first]} at step {step}")
        self.progress.add(metrics)
        return metrics

    def log_metrics(self) -> str:
        """Write a point of each of TensorBoard's curves; returns a text for the progress bar."""
        metrics, global_step = self.flush_metrics(), self.progress.global_step
        lr, gradient_norm = self.schedule(global_step - 1), self.optimizer.gradient_norm()
        with self.events.as_default():
            self.metric_log.write(metrics, global_step, lr, gradient_norm)
        return f"mean_loss {metrics.mean_loss[-1]:.3f} acc {metrics.acc[-1]:.3f}"

    def save(self, score=None):
        """Save a checkpoint.

        Args:
          score: that of an evaluation at this step, None without one.
        """
        self.flush_metrics()
        self.check_loss()
        hp, progress = self.hp, self.progress
        evaluation = () if score is None else (float(score), hp.metric, self.dev_sha256)
        clock = progress.epoch, progress.global_step, progress.epoch_done
        row = make_row(*clock, *evaluation)
        rows = [*(other for other in self.rows if other.name != row.name), row]
        if self.chief:
            self.check_parameters()
            save_hparams(hp)
            rows = checkpoint.save(self.checkpoint, hp.logdir, rows, hp.keep_checkpoints)
        self.rows = rows
        self.metric_log.start_interval()

    def check_loss(self):
        """Raise InputError if the loss has exploded."""
        epoch, global_step = self.progress.epoch, self.progress.global_step
        mean_loss, _ = self.progress.means()
        uniform = math.log(len(self.vocabs[1]))  # the loss of equal probabilities
        if mean_loss > 3 * uniform + 10:
            raise self.diverged_error(
                f"mean_loss is {mean_loss:.3g} in epoch {epoch} up to step {global_step}, but"
                f" equal probabilities of all tokens would give {uniform:.1f}"
            )

    def check_parameters(self):
        """Raise InputError if a parameter is NaN or infinite."""
        for name, variable in variables_by_2017_name(self.model).items():
            if not tf.reduce_all(tf.math.is_finite(variable)):
                step = self.progress.global_step
                raise self.diverged_error(f"{name} is NaN or infinite after step {step}")

    def diverged_error(self, problem) -> InputError:
        """Make the error to raise if training cannot continue."""
        last = f"The last good checkpoint is {self.path}" if self.path else "No checkpoint is saved"
        return InputError(f"{problem}. {last}. Restart with a lower --lr or more --warmup_steps")
