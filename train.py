"""Train a Transformer.

If it is stopped or killed, the same command resumes from the last checkpoint."""

import contextlib
import hashlib
import itertools
import math
import os
import sys
import time

from checkpoints import checkpoint
from hparams import Hyperparams, hparams_path, load_hparams, make_hparams, save_hparams
from support.errors import InputError
from support.flags import NONE, parse_flags

START_SECONDS = time.monotonic()  # --minutes counts from here


def choose_hparams(given):
    """The hyperparameters, and those of the model of ours that the training starts from."""
    logdir, folder = given.get("logdir", Hyperparams.logdir), given.get("start_from", NONE)
    if os.path.realpath(logdir) == os.path.realpath(folder):
        raise InputError("start_from and logdir are the same folder. Use a new --logdir")
    if checkpoint.read_rows(logdir):
        return load_hparams(given), None
    if not hparams_path(folder).exists():
        return make_hparams(given), None
    choice = {name: given[name] for name in ("best", "average_checkpoints") if name in given}
    other = load_hparams(choice | dict(logdir=folder))
    return make_hparams(given, other), other


if __name__ == "__main__":  # before TensorFlow is loaded
    given = parse_flags(__doc__, hparams=Hyperparams, check=choose_hparams)

import keras
import numpy as np
import tensorflow as tf
from tqdm import tqdm

from checkpoints.names_2017 import variables_by_2017_name
from data_load import get_batch_data, load_test_data, load_train_data, pairs_of_epoch
from formats.marian import read_pretrained
from model.transformer import make_model
from support.cli import SignalGuard, run_script
from support.files import lock_logdir
from text.bleu import METRICS, corpus_score, score_note
from text.vocab import load_vocabs, save_vocabs
from training import tensorboard as summaries
from training.optimizer import GradientSum, learning_rate, make_optimizer
from training.step import make_loss_fn, make_train_step
from training.workers import check_same_settings, make_strategy, mean_of_workers
from translation.inference import LoadedModel, SearchDecoder, decoding_batches

ENOUGH_STEPS_PER_EPOCH = 300  # with so many, num_epochs 0 is 20
TIMED_STEPS = 2500  # a training of some minutes has the warm-up of one with so many steps
SUMMARY_STEPS = 10  # steps between two points of TensorBoard's curves
SAVE_SECONDS = 600  # without a checkpoint; a fifth of `minutes` if that is sooner


class Training:
    """A training on `data`, SentencePairs, with `dev`, an EvalSet or None: how far it has come.

    docs/development.md says why the loop is not Keras's `fit`.
    """

    def __init__(self, hp, vocabs, data, dev=None, strategy=None):
        # These passes of TensorFlow make no step faster, and take half a second.
        passes = "layout_optimizer", "shape_optimization", "loop_optimization"
        passes += "constant_folding", "remapping"
        tf.config.optimizer.set_experimental_options(dict.fromkeys(passes, False))
        # The rounding of sums follows the names of layers.
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(hp.seed)
        self.hp, self.vocabs, self.data, self.dev = hp, vocabs, data, dev
        self.digests = digest_of_batches(data, hp), dev.digest() if dev else ""
        self.strategy = strategy or tf.distribute.get_strategy()
        self.is_first = self.strategy.extended.should_checkpoint  # of several workers
        check_same_settings(self.strategy, (hp, self.digests))

        with self.strategy.scope():
            self.model = make_model(hp, *map(len, vocabs))
            self.optimizer = make_optimizer(hp)
            self.optimizer.build(self.model.trainable_variables)
            sums = GradientSum(self.model.trainable_variables) if hp.accumulate > 1 else None
        self.train_step = make_train_step(self.strategy, self.model, self.optimizer, hp, sums)
        self.accumulate_step = make_train_step(self.strategy, self.model, None, hp, sums)
        self.loss_fn = make_loss_fn(self.model, hp.label_smoothing)  # of the development set
        greedy = LoadedModel([], hp, self.model, vocabs).with_hp(beam=1, temperature=0.0)
        self.decode = SearchDecoder(greedy, show_progress=True)
        self.rows = []  # the checkpoints so far, oldest first
        self.epoch, self.step, self.epoch_done = 1, 0, False
        self.sums = np.zeros(3)  # of the current epoch: steps, mean_loss, acc
        self.seconds, self.started_at = 0.0, START_SECONDS  # of training in all runs
        self.saved_at = self.logged_at = time.monotonic()
        _, batches = get_batch_data(pairs_of_epoch(data, vocabs, hp, 1), hp, 1)
        steps = math.ceil(batches / hp.accumulate)
        self.num_epochs = count_epochs(hp, steps)
        most_steps = min(hp.max_steps or math.inf, self.num_epochs * steps)
        self.total_steps = TIMED_STEPS if hp.minutes else most_steps
        length = f"{hp.minutes:g} minutes" if hp.minutes else f"{most_steps} steps"
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        devices = f"{self.strategy.num_replicas_in_sync} {kind}"
        print(f"{self.model.count_params():,} parameters on {devices}, {length}, {steps} per epoch")
        print("Building the graph of a step takes some seconds", flush=True)

    # Where it stands ------------------------------------------------

    @property
    def progress(self) -> float:
        """The share of the training that is done: of its minutes, or of its steps."""
        minutes = self.hp.minutes
        return self.seconds / (60 * minutes) if minutes else self.step / self.total_steps

    @property
    def is_tired(self) -> bool:
        """Whether none of the last `patience` evaluations was better than those before.

        Scores of 0.00 in the first quarter of the epochs do not count before a better one.
        """
        rows, early = checkpoint.scored_rows(self.rows), self.num_epochs / 4
        rows = itertools.dropwhile(lambda own: not round(own.score, 2) and own.epoch <= early, rows)
        counted = [-1.0, *(round(row.score, 2) for row in rows)]
        return 0 < self.hp.patience < len(counted) - counted.index(max(counted))

    @property
    def is_over(self) -> bool:
        is_after_last = self.epoch + self.epoch_done > self.num_epochs
        is_long_enough = 0 < self.hp.max_steps <= self.step
        is_late = self.hp.minutes > 0 and self.progress >= 1
        return is_after_last or is_long_enough or is_late or self.is_tired

    @property
    def path(self):
        """The last checkpoint, or None."""
        return checkpoint.path_of(self.hp.logdir, self.rows[-1]) if self.rows else None

    def variables(self) -> dict:
        """The variables of a checkpoint, by name."""
        named = {f"weights/{name}": v for name, v in variables_by_2017_name(self.model).items()}
        named |= {f"optimizer/{i}": v for i, v in enumerate(self.optimizer.variables)}
        return named | {f"dropout/{i}": v for i, v in enumerate(self.model.non_trainable_variables)}

    def resume(self, rows):
        """Continue after the newest of these checkpoints that is not damaged."""
        self.rows, arrays = checkpoint.load_newest(self.hp.logdir, rows)
        row = self.rows[-1]
        checkpoint.assign(self.variables(), arrays, self.path)
        self.epoch, self.step, self.epoch_done = row.epoch, row.step, row.epoch_done
        self.sums, self.seconds = np.array(row.sums), row.seconds
        self.started_at -= row.seconds
        if not row.epoch_done and row.text != self.digests[0]:
            raise InputError(
                f"{self.path}: the text, or a flag that its batches depend on, has changed since"
                " this was saved in mid-epoch. Restore it, or use a new --logdir"
            )
        print(f"Resuming from {self.path}")

    # The loop -------------------------------------------------------

    def train(self, guard):
        """Train to the end. If `guard` notes a signal, save, and raise KeyboardInterrupt."""
        hp, pending = self.hp, []  # StepMetrics; reading them would wait for their steps
        most_seconds = min(SAVE_SECONDS, 60 * hp.minutes / 5 or SAVE_SECONDS)
        if self.dev and not self.rows and hp.start_from != NONE:
            report = self.evaluate()[1]
            if self.is_first:
                print(f"{hp.start_from}: before the first step{report}", flush=True)
        while not self.is_over:
            for (x, y), is_update in self.batches():
                if not is_update:
                    self.accumulate_step(x, y)
                    continue
                self.step += 1
                self.seconds = time.monotonic() - self.started_at
                if hp.minutes:  # all workers end at the same step
                    self.seconds = mean_of_workers(self.strategy, self.seconds)
                rate = learning_rate(hp, self.step, self.progress, self.total_steps)
                self.optimizer.learning_rate.assign(rate)
                pending.append(self.train_step(x, y))

                stops = self.is_first and guard.signal is not None
                evaluates = self.epoch_done or self.is_over or self.is_every(hp.dev_steps)
                by_time = time.monotonic() - self.saved_at > most_seconds
                saves = evaluates or stops or by_time or self.is_every(hp.save_steps)
                if saves or self.is_every(SUMMARY_STEPS):
                    self.log(pending, rate)
                if saves:
                    self.save(evaluates)
                    self.saved_at = self.logged_at = time.monotonic()
                if stops:
                    message = f"stopped after step {self.step}. {self.path}"
                    raise KeyboardInterrupt(guard.signal, f"{message}: the same command resumes")
                if self.is_over:
                    return

    def batches(self):
        """Yield the batches left of an epoch, and whether each completes a step."""
        if self.epoch_done:
            self.epoch, self.sums = self.epoch + 1, np.zeros(3)
        hp, done = self.hp, int(self.sums[0]) * self.hp.accumulate
        data = pairs_of_epoch(self.data, self.vocabs, hp, self.epoch)
        batches, total = get_batch_data(data, hp, self.epoch, done, self.strategy)
        of_all = f"/{self.num_epochs}" if self.num_epochs < math.inf else ""
        settings = dict(total=total, initial=done, leave=False, mininterval=1, unit="b")
        settings["disable"] = None  # where there is no terminal
        with tqdm(batches, f"epoch {self.epoch}{of_all}", **settings) as self.bar:
            for number, batch in enumerate(self.bar, done + 1):
                self.epoch_done = number == total
                yield batch, number % hp.accumulate == 0 or self.epoch_done

    def is_every(self, steps) -> bool:
        """Whether this is one of every so many steps; 0: none is."""
        return steps > 0 and self.step % steps == 0

    def log(self, pending, rate):
        """Wait for the metrics of the last steps, and write points of curves."""
        loss, acc, num_targets = np.array(pending, np.float64).T  # (steps,)
        pending.clear()
        self.sums += len(loss), loss.sum(), acc.sum()
        if not loss.mean() < 3 * math.log(len(self.vocabs[1])) + 10:  # or it is NaN
            raise self.diverged_error(f"mean_loss is {loss[-1]:.3g} at step {self.step}")
        before, self.logged_at = self.logged_at, time.monotonic()
        speed = num_targets.sum() / (self.logged_at - before)
        norm = self.optimizer.gradient_norm()
        curves = dict(lr=rate, gradient_norm=norm, tokens_per_second=speed)
        summaries.write_scalars(self.step, mean_loss=loss[-1], acc=acc[-1], **curves)
        minutes = max(0, math.ceil(self.seconds * (1 / self.progress - 1) / 60))
        report = f"mean_loss {loss[-1]:.3f} acc {acc[-1]:.3f}, {minutes} min left"
        self.bar.set_postfix_str(report, refresh=False)

    def diverged_error(self, problem) -> InputError:
        """The error if training cannot continue."""
        last = f"The last good checkpoint is {self.path}" if self.path else "No checkpoint is saved"
        remedy = "Use a new --logdir, and a lower --lr or more --warmup_steps"
        return InputError(f"{problem}. {last}. {remedy}")

    # Evaluating and saving ------------------------------------------

    def save(self, evaluates):
        """Save a checkpoint; if it `evaluates`, with the score of the development set."""
        arrays = {name: np.asarray(variable) for name, variable in self.variables().items()}
        for name, array in arrays.items():
            if not np.isfinite(array).all():  # the loss was computed before the update
                raise self.diverged_error(f"{name} is not finite after step {self.step}")
        score, report = self.evaluate() if evaluates and self.dev else (None, "")
        place = self.epoch, self.step, self.epoch_done, self.seconds, self.sums.tolist()
        by_time = not (evaluates or self.is_every(self.hp.save_steps))
        row = checkpoint.Row(*place, *self.digests, self.hp.metric, score, by_time)
        self.rows = [*self.rows, row]
        if self.is_first:
            self.rows = checkpoint.save(self.hp.logdir, self.rows, arrays, self.hp.keep_checkpoints)
            if evaluates:
                loss, acc = self.sums[1:] / self.sums[0]
                minutes = f", {self.seconds / 60:.1f} min"
                tqdm.write(f"{self.path}: mean_loss {loss:.3f} acc {acc:.3f}{report}{minutes}")
                sys.stdout.flush()

    def evaluate(self):
        """Translate the development set: its score, and a report."""
        hp, dev = self.hp, self.dev
        got = [best.text for best, *_ in self.decode(dev.data.X)]
        scores = {name: float(corpus_score(name, dev, got)[0]) for name in METRICS}
        loss = mean_loss(self.loss_fn, dev.data, hp.pad_to)
        if self.is_first:  # the pictures take seconds
            summaries.write_samples(dev, got, self.step)
            summaries.write_attention(self.model, dev, self.vocabs, hp, self.step)
            curves = {f"dev_{name}": score for name, score in scores.items()}
            summaries.write_scalars(self.step, dev_loss=loss, **curves)
            if note := score_note(got, scores):
                tqdm.write(note, file=sys.stderr)
        report = "".join(f" {METRICS[name]} {score:.2f}" for name, score in scores.items())
        return scores[hp.metric], f", dev loss {loss:.3f}{report}"


def mean_loss(loss_fn, data, pad_to) -> float:
    """Return the loss per token."""
    batches = decoding_batches(np.maximum(data.X.lengths, data.Y.lengths), width=pad_to)
    totals = [loss_fn(data.X.pad(rows, pad_to), data.Y.pad(rows, pad_to)) for rows in batches]
    loss, num_targets = np.sum(totals, axis=0)
    return loss / num_targets


def count_epochs(hp, steps_per_epoch):
    """The number of epochs. If it is 0: 20, more for a small text, or no limit with `minutes`.

    >>> [count_epochs(make_hparams(dict(recipe="tiny")), steps) for steps in (6, 110, 318)]
    [96, 30, 20]
    """
    if hp.minutes or hp.max_steps and not hp.num_epochs:
        return math.inf
    return hp.num_epochs or round(20 * max(1.0, ENOUGH_STEPS_PER_EPOCH / steps_per_epoch) ** 0.4)


def digest_of_batches(data, hp) -> str:
    """Return a digest of the training text and of what decides its batches."""
    flags = hp.batch_size, hp.batch_tokens, hp.accumulate, hp.seed, hp.bpe_dropout, hp.missing_mark
    content = data.X.digest() + data.Y.digest() + repr(flags).encode()
    return hashlib.sha256(content).hexdigest()[:16]


# Starting -----------------------------------------------------------


def start(given, strategy) -> Training:
    """Resume the training in `logdir`, or start from another model or random parameters."""
    hp, other = choose_hparams(given)
    rows, folder = checkpoint.read_rows(hp.logdir), given.get("start_from", NONE)
    if rows:
        vocabs = load_vocabs(hp.logdir, hp)
    elif other:
        vocabs, chosen = load_vocabs(folder, other), (other.best, other.average_checkpoints)
        _, weights = checkpoint.load_model_weights(folder, *chosen)
    elif folder != NONE:
        pretrained = read_pretrained(folder, given)
        hp, vocabs = make_hparams(given, pretrained.hp), pretrained.vocabs
    else:
        vocabs = load_vocabs(hp.preprocessed, hp)
    for vocab in vocabs:
        vocab.check_flags(hp, given)
    if hp.deterministic:
        tf.config.experimental.enable_op_determinism()
    dev = load_test_data(hp, vocabs, "dev") if hp.source_dev != NONE else None
    training = Training(hp, vocabs, load_train_data(hp, vocabs), dev, strategy)
    if rows:
        training.resume(rows)
    elif folder != NONE:
        print(f"Starting from {folder}")
        if other:
            checkpoint.assign(variables_by_2017_name(training.model), weights, folder)
        else:
            pretrained.restore(training.model)
    return training


def main(given):
    """Train, or resume."""
    strategy, logdir = make_strategy(), given.get("logdir", Hyperparams.logdir)
    is_first = strategy.extended.should_checkpoint  # false in all workers but one
    with lock_logdir(logdir) if is_first else contextlib.nullcontext(), SignalGuard() as guard:
        try:
            training = start(given, strategy)
            if training.is_over:
                print(
                    f"{training.path}: this training is done. To train longer, raise --num_epochs,"
                    " --max_steps, --minutes or --patience"
                )
                return
            if is_first:
                save_vocabs(training.vocabs, logdir)
                save_hparams(training.hp)
            with summaries.events(training) if is_first else contextlib.nullcontext():
                training.train(guard)
            if training.is_tired:
                print(f"No better dev score in {training.hp.patience} evaluations")
        except tf.errors.ResourceExhaustedError:
            raise OSError(
                "the memory or the disk is full. Lower --batch_tokens or --batch_size or free space"
            ) from None
        except tf.errors.OpError:
            if "TF_CONFIG" not in os.environ:
                raise
            if guard.signal:  # the others got it, too, and the first one has saved
                raise KeyboardInterrupt(guard.signal, "stopped") from None
            raise OSError("a worker is gone. Start all of them again: they resume") from None
    print("Done")


if __name__ == "__main__":
    run_script(main, given)
