"""Train a Transformer.

If it is stopped or killed, the same command resumes from the last checkpoint."""

import contextlib
import dataclasses
import math
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import NamedTuple

from hparams import (
    RECIPES,
    TEXT_FIELDS,
    Hyperparams,
    choose_schedule,
    count_epochs,
    count_steps,
    holds_checkpoint,
    load_hparams,
    make_hparams,
    make_hparams_from,
    read_hparams,
    save_hparams,
)
from runtime.cli import parse_flags, run_script
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


def check_start(flags):
    """Check files and folders before TensorFlow is loaded.

    Args:
      flags: dict of the command line.
    """
    # Here, since `parse_flags` has a message for an environment without packages.
    from text import check_text_files
    from vocab import check_vocabs_exist

    logdir = flags.get("logdir", Hyperparams.logdir)
    start_from = flags.get("start_from", NONE)
    if "TF_CONFIG" not in os.environ:  # of several workers, one holds the lock
        check_unlocked(logdir)
        check_may_make(logdir)
    for name in TEXT_FIELDS:
        if flags.get(name, NONE) != NONE:
            for path in split_paths(flags[name]):
                check_exists(path, f"Check --{name}")
    if any(Path(logdir).glob("*.index")):
        return
    if start_from != NONE:
        if not holds_checkpoint(start_from):
            raise no_model_error(start_from)
    else:
        hp = make_hparams(flags)
        check_text_files(hp, "train")
        check_vocabs_exist(hp)


def no_model_error(start_from) -> InputError:
    """Return the error for a folder to start from that has no model."""
    return InputError(f"{start_from}: holds no checkpoint. Name the folder of a model")


if __name__ == "__main__":  # before TensorFlow is loaded, which takes seconds
    flags = parse_flags(__doc__, Hyperparams, check=check_start)

import numpy as np
import tensorflow as tf

import checkpoint
from bleu import (
    METRICS,
    corpus_score,
    language_notes,
    tokenizer_note,
    training_language_notes,
)
from data_load import (
    apply_bpe_dropout,
    load_test_data,
    load_train_data,
    plan_batches,
)
from inference import SearchDecoder, choose_checkpoints, describe_checkpoints, load_model
from interop import original
from monitor import summaries, tensorboard_events
from runtime.workers import worker_rank
from text import check_text_files
from trainer import Trainer, digest_of
from vocab import TOKENIZERS, load_vocabs, save_vocabs

# The step is in training_step.py, the loop in trainer.py, which also says why it is not Model.fit.

ALPHAS = (0.6, 1.0, 1.4, 1.8)  # --alpha auto chooses among them
LENGTH_SAMPLES = 1_000_000  # pairs whose lengths decide how long a translation may be
LENGTH_MARGIN = 1.5  # how much longer than the training text a translation may be
COVERED_LENGTHS = 0.999  # share of the training pairs that the limit is made for
EVALUATION_FLAGS = (
    *("logdir", "beam", "length_penalty", "average_checkpoints", "best"),
    *("max_output_ratio", "max_output_extra"),
)
CPU_RATE = 5e10  # parameters times tokens of a batch, per second, on two cores


def main(flags):
    """Train, or resume; `flags` as `parse_flags` returns them.

    Raises:
      KeyboardInterrupt: a signal came, and a checkpoint was saved.
      OSError: the disk is full, the memory is too small, or another worker has ended.
    """
    worker_rank()  # raises the InputError of a wrong TF_CONFIG
    # Before the model is read: if another training saves in the meantime, `own_logdir` notices it.
    logdir = flags.get("logdir", Hyperparams.logdir)
    rows_before = checkpoint.read_rows(logdir)
    check_hides_no_ensemble(logdir)
    hp, vocabs, rows, start_paths = find_start(flags)
    check_utf8(hp.logdir)
    if alpha_auto := flags.get("alpha") == AUTO:
        check_alpha_auto(hp)
    if vocabs[0] is vocabs[1]:
        hp = dataclasses.replace(hp, vocab_size=len(vocabs[0]))
    more_steps = rows and epochs_follow_steps(hp, flags, rows[-1].step)
    if rows:
        if rows[-1].epochs_done >= hp.num_epochs and not more_steps:
            path = Path(hp.logdir) / rows[-1].name
            print(
                f"{path}: all {hp.num_epochs} epochs of this model (recipe {hp.recipe}) are done."
                " To train it longer, raise --num_epochs. To train another model, use a new"
                " --logdir"
            )
            if alpha_auto and worker_rank()[0] == 0:
                choose_alpha_of_trained(hp, vocabs, flags)
            return
        announce_inputs(hp, flags, "source_train", "target_train", "source_dev", "target_dev")
    if "source_test" in flags or "target_test" in flags:
        check_text_files(hp, "test")  # eval.py reads it, which may be hours later
    for note in training_language_notes(hp):
        print(note, file=sys.stderr)
    dev = load_dev_data(hp, vocabs)
    data = load_train_data(hp, vocabs, may_write(hp.id_folder, "preprocessed", flags))
    if not rows:
        hp = choose_output_limit(settle_schedule(hp, data, vocabs), flags, data)
    elif more_steps:
        num_epochs = count_epochs(hp.max_steps, count_steps_per_epoch(hp, data, vocabs))
        hp = dataclasses.replace(hp, num_epochs=max(hp.num_epochs, num_epochs))
    if hp.deterministic:
        tf.config.experimental.enable_op_determinism()
    text_digest = digest_of(data) if worker_rank()[1] > 1 else b""
    try:
        trainer = Trainer(hp, vocabs, rows, dev.digest() if dev else "", start_paths, text_digest)
    except tf.errors.ResourceExhaustedError:
        raise OSError(
            f"the model is too large for the memory. Lower --hidden_units ({hp.hidden_units}),"
            f" --num_blocks ({hp.num_blocks}) or --maxlen ({hp.maxlen})"
        ) from None
    if not tf.config.list_physical_devices("GPU"):
        note_slow(hp, data, vocabs, trainer.model.count_params())
    with own_logdir(trainer, rows_before), SignalGuard() as guard:
        try:
            trainer.train(data, dev, guard)
            if alpha_auto and trainer.chief:
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


class Start(NamedTuple):
    """How a training starts."""

    hp: Hyperparams
    vocabs: tuple  # of source and target
    rows: list  # the checkpoints of the training so far; it resumes from the last
    start_paths: list[Path]  # checkpoints of another model: start from their mean


def find_start(flags) -> Start:
    """Decide whether to resume, or to start from another model or from random parameters."""
    logdir = flags.get("logdir", Hyperparams.logdir)
    if path := checkpoint.latest_readable(logdir):
        return resume(flags, path)
    if flags.get("start_from", NONE) != NONE:
        return start_from_model(flags)
    hp = make_hparams(flags)
    if TOKENIZERS[hp.tokenizer].sized_by_flag and "vocab_size" not in flags:
        hp = dataclasses.replace(hp, vocab_size=AUTO)  # the size of the file from prepro.py
    return Start(hp, load_vocabs(hp), [], [])


def resume(flags, path) -> Start:
    """Resume from the checkpoint at `path`."""
    check_not_original(path, "To train a model, use a new --logdir")
    saved, _ = read_hparams(path.parent)
    given = flags.get("start_from", NONE)
    if given != NONE and os.path.abspath(given) != os.path.abspath(saved.start_from):
        raise InputError(
            f"{path.parent}: holds a model that did not start from {given}. Choose a new"
            " --logdir, or leave out --start_from to resume it"
        )
    rows = checkpoint.rows_to(path)
    hp, trained_with = load_hparams(flags, model_exists=True, mid_epoch=not rows[-1].epoch_done)
    if hp.recipe != flags.get("recipe", Hyperparams.recipe) and "start_from" not in flags:
        raise InputError(
            f"{path.parent}: holds a model of the recipe {hp.recipe}, but without --recipe this"
            f" command means {Hyperparams.recipe}. To resume that model, add --recipe {hp.recipe}."
            f" To train {Hyperparams.recipe}, use a new --logdir"
        )
    vocabs = load_vocabs(hp, trained_with)
    checkpoint.check_sizes(hp, [*map(len, vocabs)], path)
    note_other_vocab(hp, vocabs)
    note_changes(saved, hp, flags)
    return Start(hp, vocabs, rows, [])


def start_from_model(flags) -> Start:
    """Start from the parameters and vocabularies of the model in the folder `start_from`."""
    logdir = flags["start_from"]
    newest = checkpoint.latest_readable(logdir)
    if not newest:
        raise no_model_error(logdir)
    check_not_original(newest, "Name the folder of another model")
    choice = {name: flags[name] for name in ("best", "average_checkpoints") if name in flags}
    saved, trained_with = load_hparams(choice | dict(logdir=logdir), model_exists=True)
    hp = make_hparams_from(saved, flags)
    vocabs = load_vocabs(dataclasses.replace(saved, preprocessed=hp.preprocessed), trained_with)
    paths = choose_checkpoints(newest, saved)
    checkpoint.check_sizes(hp, [*map(len, vocabs)], newest)
    print(f"Starting from {describe_checkpoints(paths)} in {logdir}")
    return Start(hp, vocabs, [], paths)


def check_hides_no_ensemble(logdir):
    """Raise InputError if a new folder of this name would be read in place of several models."""
    if "," in logdir and not os.path.exists(logdir):
        raise InputError(
            f"{logdir}: a comma separates the models of an ensemble, so such a folder would hide"
            " them. Choose another --logdir"
        )


def check_not_original(path, remedy):
    """Raise InputError if `path` is a checkpoint of the 2017 code."""
    if original.is_original(path):
        raise InputError(
            f"{path}: this checkpoint of the 2017 code can be evaluated, but not trained. {remedy}"
        )


def note_other_vocab(hp, vocabs):
    """Print a note if `preprocessed` holds other vocabularies than those of the model."""
    for vocab in dict.fromkeys(vocabs):
        other = Path(hp.preprocessed) / vocab.path.name
        if other.is_file() and other.read_bytes() != vocab.content:
            print(
                f"{other} is not the vocabulary that this model was trained with. The model keeps"
                f" its own, {vocab.path}. To use the other one, use a new --logdir"
            )


def note_changes(saved, hp, flags):
    """Print the flags of the training that differ from those of the run that is resumed."""
    for field in dataclasses.fields(Hyperparams):
        name = field.name
        if field.metadata["group"] != "training" or name not in flags or name == "profile_steps":
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
    steps = count_steps(hp, count_steps_per_epoch(hp, data, vocabs))
    print(
        f"No GPU was found. On two CPU cores, a step takes about {seconds:.0f} s, and {steps} steps"
        f" take {steps * seconds / 3600:.0f} hours. The recipe tiny is small enough for a CPU",
        file=sys.stderr,
    )


def check_alpha_auto(hp):
    """Raise InputError if the exponent of the length penalty cannot be chosen."""
    if hp.source_dev == NONE:
        raise InputError("alpha auto needs a development set. Add --source_dev and --target_dev")
    if hp.beam == 1:
        raise InputError("alpha auto is for beam search, and beam is 1. Add --beam 5, for example")


def choose_alpha(hp, dev, guard):
    """Save the exponent of the length penalty with which the model has the best dev score.

    Args:
      hp: Hyperparams. Those of the search are saved with the exponent.
      dev: EvalSet.
      guard: SignalGuard.

    Raises:
      KeyboardInterrupt: a signal came.
    """
    search_flags = {name: getattr(hp, name) for name in EVALUATION_FLAGS}
    loaded = load_model(search_flags)
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
    saved, vocab_sha256 = read_hparams(hp.logdir)
    save_hparams(dataclasses.replace(saved, **search_flags, alpha=best), vocab_sha256)


def choose_alpha_of_trained(hp, vocabs, flags):
    """Choose the exponent as `choose_alpha`, for a model whose training ended in an earlier run.

    Args:
      flags: dict, those of the command line.
    """
    announce_inputs(hp, flags, "source_dev", "target_dev")
    check_folder(hp.logdir)
    with checkpoint.lock(hp.logdir), SignalGuard() as guard:
        choose_alpha(hp, load_dev_data(hp, vocabs), guard)


def load_dev_data(hp, vocabs):
    """Load the development set as an EvalSet, or return None if there is none."""
    if hp.source_dev == NONE:
        return None
    dev = load_test_data(hp, vocabs, "dev")
    for note in language_notes(hp, "dev", dev.data.Sources, dev.data.Targets):
        print(note, file=sys.stderr)
    if note := tokenizer_note(hp.target_lang, dev.references[0]):
        print(note)
    return dev


def epochs_follow_steps(hp, flags, steps_done) -> bool:
    """Whether a training that resumes has as many epochs as `max_steps` needs, which may be new."""
    of_recipe = RECIPES[hp.recipe].get("num_epochs", Hyperparams.num_epochs)
    return flags.get("num_epochs", of_recipe) == AUTO and hp.max_steps > steps_done


def count_steps_per_epoch(hp, data, vocabs) -> int:
    """Count the steps of the first epoch."""
    if hp.bpe_dropout:
        data = apply_bpe_dropout(data, vocabs, hp.bpe_dropout, hp.seed, epoch=1)
    return math.ceil(len(plan_batches(data, hp, 1)) / hp.accumulate)


def settle_schedule(hp, data, vocabs) -> Hyperparams:
    """Replace `AUTO` by numbers for a new model, and print them.

    Warns if the warm-up is longer than the training.
    """
    if not hp.warmup_steps and hp.num_epochs != AUTO:
        return hp
    steps_per_epoch = count_steps_per_epoch(hp, data, vocabs)
    chosen = choose_schedule(hp, steps_per_epoch)
    steps = count_steps(chosen, steps_per_epoch)
    if chosen != hp:
        print(
            f"Chosen for {len(data.X)} pairs, {steps_per_epoch} steps per epoch: num_epochs"
            f" {chosen.num_epochs}, {steps} steps in all, warmup_steps {chosen.warmup_steps}"
        )
    if chosen.warmup_steps > steps:
        print(
            f"The learning rate never reaches its peak: warmup_steps is {chosen.warmup_steps}, but"
            f" the training has {steps} steps in {chosen.num_epochs} epochs. Use --warmup_steps"
            f" {AUTO} or --num_epochs {AUTO}",
            file=sys.stderr,
        )
    return chosen


def choose_output_limit(hp, flags, data) -> Hyperparams:
    """Raise `max_output_ratio` and `max_output_extra` if the training text has longer translations.

    The ratio is 1.5 times the mean ratio of the text. The extra tokens are 1.5 times as many as
    all pairs but one in a thousand need beyond that. Neither becomes lower than it is.

    Args:
      flags: dict, those of the command line, whose values stay.
      data: SentencePairs, the training text.
    """
    count = min(len(data.X), LENGTH_SAMPLES)
    rows = np.linspace(0, len(data.X) - 1, count).astype(np.int64)
    source_lengths, target_lengths = data.X.lengths_of(rows), data.Y.lengths_of(rows)
    ratio, extra = hp.max_output_ratio, hp.max_output_extra
    mean_ratio = target_lengths.sum() / source_lengths.sum()
    if "max_output_ratio" not in flags:
        ratio = max(ratio, math.ceil(10 * LENGTH_MARGIN * mean_ratio) / 10)
    if "max_output_extra" not in flags:
        needed = np.quantile(target_lengths - ratio * source_lengths, COVERED_LENGTHS)
        extra = max(extra, math.ceil(LENGTH_MARGIN * needed))
    chosen = dataclasses.replace(hp, max_output_ratio=ratio, max_output_extra=extra)
    if chosen != hp and hp.unbounded_length:
        print(
            f"Translations may have {chosen.describe_output_limit()}, since the training text has"
            f" {mean_ratio:.1f} target tokens per source token"
        )
    return chosen


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
        if checkpoint.read_rows(hp.logdir) != rows_before:
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
    run_script(main, flags, "stopped before training began. The same command starts or resumes it")
