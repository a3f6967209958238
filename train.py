"""Train a Transformer.

If it is stopped or killed, the same command resumes from the last checkpoint."""

import contextlib
import dataclasses
import math
import os
import re
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from hparams import (
    NO_EPOCH_LIMIT,
    RECIPES,
    TEXT_FIELDS,
    UNPLANNED_STEPS,
    Hyperparams,
    check_same_batches,
    choose_schedule,
    count_epochs,
    count_steps,
    describe_limit,
    late_peak_note,
    load_hparams,
    make_hparams,
    override,
    read_hparams,
    save_hparams,
)
from manifest import check_has_checkpoint, existing, read_rows, require_best, rows_to
from runtime.cli import parse_flags, run_script
from runtime.cluster import worker_rank
from runtime.errors import InputError
from runtime.files import (
    announce_inputs,
    check_exists,
    check_folder,
    check_may_make,
    check_unlocked,
    check_utf8,
    make_folder,
    may_write,
    split_paths,
)
from runtime.flags import AUTO, NONE
from runtime.signals import SignalGuard
from trained_models import find_trained

START_SECONDS = time.monotonic()  # --minutes counts from here


class Start(NamedTuple):
    """How a training starts, before TensorFlow is loaded."""

    hp: Hyperparams
    rows: list = []  # the checkpoints in `logdir`, oldest first; none in a new training
    saved: Hyperparams | None = None  # of the training that it resumes
    other: Hyperparams | None = None  # of the model that it starts from
    pretrained: Any = None  # that model, if it is of another program: a `Pretrained`
    vocabs: tuple = ()  # of source and target
    dev: Any = None  # the development set, an `EvalSet`

    @property
    def deadline(self) -> float | None:
        """When the training ends, as time.monotonic(); None if it has a number of steps."""
        hp, saved = self.hp, self.saved
        is_planned = saved and saved.minutes == hp.minutes and saved.max_steps
        return START_SECONDS + 60 * hp.minutes if hp.minutes and not is_planned else None


def find_start(flags) -> Start:
    """Decide whether to resume, or to start from another model or from random parameters.

    Args:
      flags: dict, those of the command line.
    """
    # Here, since `parse_flags` has a message for an environment without packages.
    from data_load import load_test_data
    from text import check_text_files, training_files
    from vocab import fingerprints, load_vocabs

    logdir = flags.get("logdir", Hyperparams.logdir)
    _, num_workers = worker_rank()
    if "TF_CONFIG" not in os.environ:  # of several workers, one holds the lock
        check_unlocked(logdir)
        check_may_make(logdir)
        if os.path.isdir(logdir):
            check_folder(logdir)
    check_hides_no_ensemble(logdir)
    check_utf8(logdir)
    for name in TEXT_FIELDS:
        if flags.get(name, NONE) != NONE:
            for path in split_paths(flags[name]):
                check_exists(path, f"Check --{name}")
    if rows := read_rows(logdir):
        start = resume(flags, read_hparams(logdir), rows)
    elif flags.get("start_from", NONE) != NONE:
        start = start_from_model(flags)
    else:
        start = Start(make_hparams(flags))
    training_files(start.hp)
    if not start.rows:
        check_text_files(start.hp, "train")
    if flags.keys() & {"source_test", "target_test"}:
        check_text_files(start.hp, "test")  # eval.py reads it, which may be hours later
    if start.deadline and num_workers > 1:
        raise InputError("minutes works in a single process only. Give --max_steps in its place")
    vocabs = start.pretrained.vocabs if start.pretrained else load_vocabs(start.other or start.hp)
    start = start._replace(vocabs=vocabs)
    if start.other:
        for vocab in vocabs:
            vocab.check_flags(dataclasses.replace(start.hp, vocab_sha256=fingerprints(vocabs)))
    if flags.get("alpha") == AUTO:
        check_alpha_auto(start.hp)
    if start.hp.source_dev == NONE:
        return start
    if start.rows:
        announce_inputs(start.hp, "source_dev", "target_dev")
    return start._replace(dev=load_test_data(start.hp, vocabs, "dev"))


def resume(given, saved, rows) -> Start:
    """Resume a training.

    Args:
      given: dict, the flags that were given.
      saved: its Hyperparams so far.
      rows: its checkpoints.
    """
    hp = override(saved, given)
    check_has_checkpoint(hp.logdir, rows)
    if not any(row.epoch_done for row in existing(hp.logdir, rows)):
        check_same_batches(hp, saved)
    if saved.num_epochs == NO_EPOCH_LIMIT and not given.get("minutes"):
        hp = replace_minutes(hp)
    start_from = given.get("start_from", NONE)
    if start_from != NONE and os.path.abspath(start_from) != os.path.abspath(saved.start_from):
        raise InputError(
            f"{hp.logdir}: holds a model that did not start from {start_from}. Choose a new"
            " --logdir, or leave out --start_from to resume it"
        )
    if hp.recipe != given.get("recipe", Hyperparams.recipe) and start_from == NONE:
        raise InputError(
            f"{hp.logdir}: holds a model of the recipe {hp.recipe}, but without --recipe this"
            f" command means {Hyperparams.recipe}. To resume that model, add --recipe {hp.recipe}."
            f" To train {Hyperparams.recipe}, use a new --logdir"
        )
    return Start(hp, rows, saved=saved)


def replace_minutes(hp) -> Hyperparams:
    """Let a flag of this call, if there is one, set the end of a training that had `minutes`."""
    if not hp.given.keys() & {"minutes", "num_epochs", "max_steps"}:
        return hp
    max_steps, num_epochs = hp.given.get("max_steps", 0), hp.given.get("num_epochs")
    if num_epochs is None and not max_steps:
        num_epochs = RECIPES[hp.recipe].get("num_epochs", Hyperparams.num_epochs)
    if num_epochs in (None, AUTO):  # max_steps ends it, or adapt_schedule will choose
        num_epochs = NO_EPOCH_LIMIT
    return dataclasses.replace(hp, minutes=0.0, max_steps=max_steps, num_epochs=num_epochs)


def start_from_model(flags) -> Start:
    """Start from the parameters and vocabularies of the model in the folder `start_from`."""
    from interop.pretrained import is_pretrained, read_pretrained

    folder = flags["start_from"]
    rows = read_rows(folder)
    if not rows:
        if not is_pretrained(folder):
            raise InputError(f"{folder}: holds no checkpoint. Name the folder of a model")
        if os.path.realpath(folder) == os.path.realpath(flags.get("logdir", Hyperparams.logdir)):
            raise InputError(f"{folder}: would be changed. Choose another --logdir")
        pretrained = read_pretrained(folder, flags)
        return Start(make_hparams(flags, pretrained.hp), other=pretrained.hp, pretrained=pretrained)
    choice = {name: flags[name] for name in ("best", "average_checkpoints") if name in flags}
    check_has_checkpoint(folder, rows)
    other = load_hparams(choice | dict(logdir=folder))
    if other.best:
        require_best(folder)
    hp = make_hparams(flags, other)
    return Start(hp, other=dataclasses.replace(other, preprocessed=hp.preprocessed))


def check_hides_no_ensemble(logdir):
    """Raise InputError if a new folder of this name would be read in place of several models."""
    if len(split_paths(logdir)) > 1:
        raise InputError(
            f"{logdir}: a comma separates the models of an ensemble, so such a folder would hide"
            " them. Choose another --logdir"
        )


def check_alpha_auto(hp):
    """Raise InputError if the exponent of the length penalty cannot be chosen."""
    if hp.source_dev == NONE:
        raise InputError("alpha auto needs a development set. Add --source_dev and --target_dev")
    if hp.beam == 1:
        raise InputError("alpha auto is for beam search, and beam is 1. Add --beam 5, for example")


if __name__ == "__main__":  # before TensorFlow is loaded, which takes seconds
    start = parse_flags(__doc__, find_start, Hyperparams)

import numpy as np
import tensorflow as tf

import checkpoint
from bleu import (
    METRICS,
    corpus_score,
)
from data_load import (
    load_train_data,
    pairs_of_epoch,
    plan_batches,
)
from inference import SearchDecoder, choose_checkpoints, load_model
from model_card import recording_training
from monitor import summaries, tensorboard_events
from trainer import SavedOrigin, Trainer, digest_of
from vocab import fingerprints, save_vocabs

# The step is in training_step.py, the loop in trainer.py, which also says why it is not Model.fit.

ALPHAS = (0.6, 1.0, 1.4, 1.8)  # --alpha auto chooses among them
LENGTH_SAMPLES = 1_000_000  # pairs whose lengths decide how long a translation may be
LENGTH_MARGIN = 1.5  # how much longer than the training text a translation may be
COVERED_LENGTHS = 0.999  # share of the training pairs that the limit is made for
EVALUATION_FLAGS = (
    *("logdir", "beam", "length_penalty", "average_checkpoints", "best"),
    *("max_output_ratio", "max_output_extra"),
)
PLANNED_FIELDS = ("warmup_steps", "decay_steps")  # `minutes` may set them, unless a flag does
CPU_RATE = 5e10  # parameters times tokens of a batch, per second, on two cores


def main(start):
    """Train, or resume.

    Args:
      start: Start.

    Raises:
      KeyboardInterrupt: a signal came, and a checkpoint was saved.
      OSError: the disk is full, the memory is too small, or another worker has ended.
    """
    hp, rows, origin, vocabs = start.hp, [], None, start.vocabs
    choose_alpha_last = hp.given.get("alpha") == AUTO
    if start.rows:
        rows = rows_to_resume(start, vocabs)
        more_steps = start.deadline or epochs_follow_steps(hp, rows[-1].step)
        if rows[-1].epochs_done >= hp.num_epochs and not more_steps:
            path = Path(hp.logdir) / rows[-1].name
            print(
                f"{path}: all {hp.num_epochs} epochs of this model (recipe {hp.recipe}) are done."
                " To train it longer, raise --num_epochs. To train another model, use a new"
                " --logdir"
            )
            if choose_alpha_last and worker_rank()[0] == 0:
                choose_alpha_of_trained(hp, start.dev)
            return
        announce_inputs(hp, "source_train", "target_train")
    if start.other:
        origin = start.pretrained or saved_origin(start, vocabs)
        print(f"Starting from {origin.describe()} in {start.other.logdir}")
    dev = start.dev
    data = load_train_data(hp, vocabs, may_write(hp.id_folder, "preprocessed", hp))
    if not rows:
        chosen = dict(vocab_size=choose_saved_size(hp, vocabs), vocab_sha256=fingerprints(vocabs))
        chosen |= settle_schedule(hp, data, vocabs) | choose_output_limit(hp, data)
        hp = dataclasses.replace(hp, **chosen)
    elif start.deadline:  # the end is planned again
        hp = dataclasses.replace(hp, num_epochs=NO_EPOCH_LIMIT, max_steps=0)
        if hp.decay_steps and is_chosen(hp, "decay_steps"):
            hp = dataclasses.replace(hp, decay_steps=rows[-1].step + UNPLANNED_STEPS)
    else:
        hp = dataclasses.replace(hp, **adapt_schedule(start, rows[-1], data, vocabs))
    if hp.deterministic:
        tf.config.experimental.enable_op_determinism()
    text_digest = digest_of(data) if worker_rank()[1] > 1 else b""
    try:
        trainer = Trainer(hp, vocabs, rows, dev.digest() if dev else "", origin, text_digest)
    except tf.errors.ResourceExhaustedError:
        raise OSError(
            f"the model is too large for the memory. Lower --hidden_units ({hp.hidden_units}),"
            f" --num_blocks ({hp.num_blocks}) or --maxlen ({hp.maxlen})"
        ) from None
    if not tf.config.list_physical_devices("GPU"):
        note_slow(hp, data, vocabs, trainer.model.count_params())
    with own_logdir(trainer, start.rows), SignalGuard() as guard:
        try:
            recording = recording_training(hp, len(data.X), [])
            with recording if trainer.chief else contextlib.nullcontext():
                planned = {name for name in PLANNED_FIELDS if is_chosen(hp, name)}
                trainer.train(data, dev, guard, start.deadline, planned)
            if choose_alpha_last and trainer.chief:
                choose_alpha(hp, dev, guard)
        except KeyboardInterrupt as interrupt:
            defaults = signal.SIGINT, interrupted_message(trainer)
            arguments = interrupt.args + defaults[len(interrupt.args) :]
            raise KeyboardInterrupt(*arguments) from None
        except tf.errors.OpError as error:
            if not trainer.chief:
                guard.check()  # the chief has ended, too
            raise explain_tf_error(error, hp) from None
    print("Done")


def rows_to_resume(start, vocabs) -> list:
    """Return the checkpoints up to the newest one that is not damaged, after checks and notes."""
    hp, saved = start.hp, start.saved
    path = checkpoint.latest_readable(hp.logdir)
    rows = rows_to(path)
    if not rows[-1].epoch_done:  # known now: newer ones may be damaged
        check_same_batches(hp, saved)
    checkpoint.check_sizes(hp, [*map(len, vocabs)], path)
    note_other_vocab(hp, vocabs)
    note_changes(hp, saved)
    return rows


def saved_origin(start, vocabs) -> SavedOrigin:
    """Return the checkpoints of the other model that the training starts from."""
    newest = checkpoint.latest_readable(start.other.logdir)
    checkpoint.check_sizes(start.hp, [*map(len, vocabs)], newest)
    return SavedOrigin(choose_checkpoints(newest, start.other))


def choose_saved_size(hp, vocabs):
    """The `vocab_size` to save: that of a joint vocabulary; two may have different sizes."""
    if hp.has_one_vocab:
        return len(vocabs[0])
    is_set = not vocabs[0].sized_by_flag or "vocab_size" in hp.given
    return hp.vocab_size if is_set else AUTO


def note_other_vocab(hp, vocabs):
    """Print a note if `preprocessed` holds other vocabularies than those of the model."""
    for vocab in dict.fromkeys(vocabs):
        other = Path(hp.preprocessed) / vocab.path.name
        if other.is_file() and other.read_bytes() != vocab.content:
            print(
                f"{other} is not the vocabulary that this model was trained with. The model keeps"
                f" its own, {vocab.path}. To use the other one, use a new --logdir"
            )


def note_changes(hp, saved):
    """Print the flags of the training that differ from those of the run that is resumed."""
    unprinted = {"profile_steps"}
    if saved.num_epochs == NO_EPOCH_LIMIT:
        unprinted |= {"minutes", "num_epochs", "max_steps"}
        if saved.minutes and not hp.minutes:
            print(f"The training no longer ends after --minutes {saved.minutes:g}")
    for field in hp.declared():
        name = field.name
        if field.metadata["group"] != "training" or name not in hp.given or name in unprinted:
            continue
        before, now = getattr(saved, name), getattr(hp, name)
        if before != now:
            print(f"{name} is now {now}. It was {before} in the training so far")


def note_slow(hp, data, vocabs, num_parameters):
    """Print how long the training takes on a CPU if a step takes longer than a second.

    Args:
      data: SentencePairs.
    """
    batch_tokens = hp.batch_tokens or hp.batch_size * data.Y.lengths.mean()
    seconds = num_parameters * batch_tokens * hp.accumulate / CPU_RATE
    if seconds < 1:
        return
    hours = ""
    if not hp.minutes:
        steps = count_steps(hp.num_epochs, count_steps_per_epoch(hp, data, vocabs), hp.max_steps)
        hours = f", and {steps} steps take {steps * seconds / 3600:.0f} hours"
    print(
        f"No GPU was found. On two CPU cores, a step takes about {seconds:.0f} s{hours}. The recipe"
        " tiny is small enough for a CPU",
        file=sys.stderr,
    )


def choose_alpha(hp, dev, guard):
    """Save the exponent of the length penalty with which the model has the best dev score.

    Args:
      hp: Hyperparams. Those of the search are saved with the exponent.
      dev: EvalSet.
      guard: SignalGuard.

    Raises:
      KeyboardInterrupt: a signal came.
    """
    # Each exponent has a graph of its own, and TensorFlow warns of graphs that are made again.
    tf.get_logger().setLevel("ERROR")
    search_flags = {name: getattr(hp, name) for name in EVALUATION_FLAGS}
    loaded = load_model(find_trained(search_flags))
    scores = {}
    for alpha in sorted({*ALPHAS, hp.alpha}):
        if guard.signal is not None:
            message = "stopped before alpha was chosen. The same command chooses it"
            raise KeyboardInterrupt(guard.signal, message)
        decode = SearchDecoder(loaded.with_hp(alpha=alpha), show_progress=True)
        got = [best.text for best, *_ in decode(dev.data.X)]
        scores[alpha], _ = corpus_score(hp.metric, dev, got, hp.target_lang)
    best = max(scores, key=lambda alpha: (scores[alpha], alpha == hp.alpha))
    listed = ", ".join(f"{alpha}: {score:.2f}" for alpha, score in scores.items())
    print(f"Chosen: alpha {best} ({METRICS[hp.metric]} of the development set: {listed})")
    saved = read_hparams(hp.logdir)
    save_hparams(dataclasses.replace(saved, **search_flags | dict(alpha=best)))


def choose_alpha_of_trained(hp, dev):
    """Choose the exponent as `choose_alpha`, for a model whose training ended in an earlier run."""
    check_folder(hp.logdir)
    with checkpoint.lock(hp.logdir), SignalGuard() as guard:
        choose_alpha(hp, dev, guard)


def epochs_follow_steps(hp, steps_done) -> bool:
    """Whether a resumed training takes its number of epochs from `max_steps`, which may be new."""
    return is_chosen(hp, "num_epochs") and hp.max_steps > steps_done


def is_chosen(hp, name) -> bool:
    """Whether the flags of this call or the recipe let the program choose the value of a field."""
    of_recipe = RECIPES[hp.recipe].get(name, getattr(Hyperparams, name))
    return hp.given.get(name, of_recipe) == AUTO


def count_steps_per_epoch(hp, data, vocabs) -> int:
    """Count the steps of the first epoch."""
    data = pairs_of_epoch(data, vocabs, hp, epoch=1)
    return math.ceil(len(plan_batches(data, hp, 1)) / hp.accumulate)


def settle_schedule(hp, data, vocabs) -> dict[str, int]:
    """Choose numbers for the fields of the schedule that are `AUTO`, and print them.

    Warns if the warm-up is longer than the training.
    """
    if hp.minutes:
        return choose_schedule(hp)
    if not hp.warmup_steps and AUTO not in (hp.num_epochs, hp.decay_steps):
        return {}
    steps_per_epoch = count_steps_per_epoch(hp, data, vocabs)
    chosen = choose_schedule(hp, steps_per_epoch)
    num_epochs, warmup_steps = chosen["num_epochs"], chosen["warmup_steps"]
    steps = count_steps(num_epochs, steps_per_epoch, hp.max_steps)
    if AUTO in (hp.num_epochs, hp.warmup_steps, hp.decay_steps):
        print(
            f"Chosen for {len(data.X)} pairs, {steps_per_epoch} steps per epoch: num_epochs"
            f" {num_epochs}, {steps} steps in all, warmup_steps {warmup_steps}"
        )
    if warmup_steps > steps:
        print(late_peak_note(warmup_steps, steps), file=sys.stderr)
    return chosen


def adapt_schedule(start, row, data, vocabs) -> dict[str, int]:
    """Choose the schedule again if a resumed training has a new end.

    It is chosen as well if `--decay_steps auto` is given, and the learning rate had no end.

    Args:
      start: Start.
      row: the checkpoint to resume from.
    """
    hp, saved = start.hp, start.saved
    has_no_end = hp.num_epochs == NO_EPOCH_LIMIT and not hp.max_steps
    has_new_end = (hp.num_epochs, hp.max_steps) != (saved.num_epochs, saved.max_steps)
    falls_from_now = hp.given.get("decay_steps") == AUTO and not saved.decay_steps
    if not (has_no_end or has_new_end or falls_from_now):
        return {}
    steps_per_epoch = count_steps_per_epoch(hp, data, vocabs)
    num_epochs, decay_steps = hp.num_epochs, hp.decay_steps
    if has_no_end:
        without_end = dataclasses.replace(hp, num_epochs=AUTO)
        num_epochs = choose_schedule(without_end, steps_per_epoch)["num_epochs"]
    elif epochs_follow_steps(hp, row.step):
        more_epochs = count_epochs(hp.max_steps - row.step, steps_per_epoch)
        num_epochs = max(hp.num_epochs, row.epoch + more_epochs)
    steps = count_steps(num_epochs, steps_per_epoch, hp.max_steps)
    if falls_from_now or saved.decay_steps and is_chosen(hp, "decay_steps"):
        decay_steps = steps
        before = f", not {saved.decay_steps}" if saved.decay_steps else ""
        print(f"The learning rate now falls up to step {decay_steps}{before}")
    if hp.warmup_steps > steps and row.step < hp.warmup_steps:
        print(late_peak_note(hp.warmup_steps, steps), file=sys.stderr)
    return dict(num_epochs=num_epochs, decay_steps=decay_steps)


def choose_output_limit(hp, data) -> dict:
    """Raise `max_output_ratio` and `max_output_extra` if the training text has longer translations.

    The ratio is 1.5 times the mean ratio of the text. The extra tokens are 1.5 times as many as
    all pairs but one in a thousand need beyond that. Neither becomes lower than it is. A flag that
    was given stays.

    Args:
      data: SentencePairs, the training text.
    """
    count = min(len(data.X), LENGTH_SAMPLES)
    rows = np.linspace(0, len(data.X) - 1, count).astype(np.int64)
    source_lengths, target_lengths = data.X.lengths_of(rows), data.Y.lengths_of(rows)
    ratio, extra = hp.max_output_ratio, hp.max_output_extra
    mean_ratio = target_lengths.sum() / source_lengths.sum()
    if "max_output_ratio" not in hp.given:
        ratio = max(ratio, math.ceil(10 * LENGTH_MARGIN * mean_ratio) / 10)
    if "max_output_extra" not in hp.given:
        needed = np.quantile(target_lengths - ratio * source_lengths, COVERED_LENGTHS)
        extra = max(extra, math.ceil(LENGTH_MARGIN * needed))
    if (ratio, extra) != (hp.max_output_ratio, hp.max_output_extra) and hp.unbounded_length:
        print(
            f"Translations may have {describe_limit(ratio, extra)}, since the training text has"
            f" {mean_ratio:.1f} target tokens per source token"
        )
    return dict(max_output_ratio=ratio, max_output_extra=extra)


@contextlib.contextmanager
def own_logdir(trainer, rows_before):
    """Context manager: lock logdir for this run, and open TensorBoard's event file there.

    With several workers, only the chief does that.

    Args:
      rows_before: those in `logdir` when this run decided where to resume.
    """
    if not trainer.chief:
        yield
        return
    hp, vocabs = trainer.hp, trainer.vocabs
    make_folder(hp.logdir)
    check_folder(hp.logdir)
    with checkpoint.lock(hp.logdir):
        if read_rows(hp.logdir) != rows_before:
            raise InputError(
                f"{hp.logdir}: another training run has just written here. Run this command again"
            )
        save_vocabs(vocabs, hp.logdir)
        trainer.events.open(hp.logdir, partial(remove_newer_events, trainer))
        with trainer.events.recording():
            if not trainer.path:
                summaries.write_hparams_and_graph(hp, trainer.step.get_concrete_function().graph)
            summaries.write_projector(hp, trainer.model, vocabs)
        with trainer.profiler:
            yield


def remove_newer_events(trainer):
    """Remove the events after the checkpoint of a training, from which it resumes or starts."""
    if not trainer.rows:
        tensorboard_events.set_aside(trainer.hp.logdir)
        return
    row = trainer.rows[-1]
    evaluated = row.epoch_done or trainer.is_evaluated(row)
    tensorboard_events.truncate(trainer.hp.logdir, row.step, evaluated)


def interrupted_message(trainer) -> str:
    """Describe a run that a signal has ended: how far it came, and how to resume."""
    if not trainer.chief:
        return "stopped. Start all workers again to resume from the last checkpoint"
    if not trainer.path:
        return "stopped before the first checkpoint: no progress is saved"
    global_step, path = trainer.progress.global_step, trainer.path
    lost_steps = global_step - trainer.rows[-1].step
    lost = f", {lost_steps} steps before that" if lost_steps else ""
    return (
        f"stopped in epoch {trainer.progress.epoch} after step {global_step}. The last checkpoint"
        f" is {path}{lost}. The same command resumes from there"
    )


def explain_tf_error(error, hp) -> Exception:
    """Translate an error of TensorFlow into an OSError with a message for the user.

    Returns errors of other causes as they are.
    """
    if re.search("No space left on device|[Qq]uota exceeded", error.message):
        return OSError(f"{hp.logdir}: the disk is full. Free some space, and run the command again")
    reason = error.message.partition("\n")[0]
    if isinstance(error, tf.errors.ResourceExhaustedError) and is_about_memory(error):
        size = "batch_tokens" if hp.batch_tokens else "batch_size"
        return OSError(
            f"a batch is too large for the memory. Lower --{size} ({getattr(hp, size)}) or"
            f" --maxlen ({hp.maxlen})"
        )
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return OSError(f"{reason}. Run the command again when there is more of it")
    if "TF_CONFIG" in os.environ:
        aborted = re.search("aborted by: (.*)", error.message)
        reason = aborted[1] if aborted else reason
        return OSError(
            f"a worker is gone ({reason}). Start all workers again to resume from the last"
            " checkpoint"
        )
    return error


def is_about_memory(error) -> bool:
    """Whether memory is exhausted. TensorFlow has one class for it, disks and open files."""
    return bool(re.search("OOM|alloc|memory", error.message, re.IGNORECASE))


if __name__ == "__main__":
    message = "stopped before training began. The same command starts or resumes it"
    run_script(main, start, interrupted_message=message)
