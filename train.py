"""Train a Transformer.

If it is stopped or killed, the same command resumes from the last checkpoint."""

import contextlib
import os
import re
import time

from checkpoint import read_rows
from hparams import Hyperparams, hparams_path, load_hparams, make_hparams, save_hparams
from runtime.flags import NONE, parse_flags

START_SECONDS = time.monotonic()  # --minutes counts from here


def choose_hparams(given):
    """The hyperparameters of a training, and those of the model of ours that it starts from."""
    logdir, folder = given.get("logdir", Hyperparams.logdir), given.get("start_from", NONE)
    if read_rows(logdir):
        return load_hparams(given), None
    if folder == NONE or not hparams_path(folder).exists():
        return make_hparams(given), None
    choice = {name: given[name] for name in ("best", "average_checkpoints") if name in given}
    other = load_hparams(choice | dict(logdir=folder))
    return make_hparams(given, other), other


if __name__ == "__main__":  # before TensorFlow is loaded, which takes seconds
    given = parse_flags(__doc__, hparams=Hyperparams, check=choose_hparams)

import tensorflow as tf

from checkpoint import assign, load_model_weights
from data_load import load_test_data, load_train_data
from interop.marian import read_pretrained
from monitor import summaries
from runtime.cli import run_script
from runtime.files import lock_logdir
from runtime.signals import SignalGuard
from runtime.workers import make_strategy
from trainer import Trainer
from variable_names import variables_by_2017_name
from vocab import load_vocabs, save_vocabs

# The step is in training_step.py, the loop in trainer.py, which also says why it is not Model.fit.


def start(given, strategy):
    """Resume the training in `logdir`, or start from another model or from random parameters.

    Args:
      given: dict, the flags of the command line.
      strategy: tf.distribute.Strategy.

    Returns:
      Trainer.
    """
    folder = given.get("start_from", NONE)
    hp, other = choose_hparams(given)
    rows = read_rows(hp.logdir)
    restore = None  # function that sets the parameters of a new model
    if rows:
        vocabs = load_vocabs(hp.logdir, hp)
    elif other:
        vocabs = load_vocabs(folder, other)
        paths, weights = load_model_weights(folder, other.best, other.average_checkpoints)
        print(f"Starting from {', '.join(map(str, paths))}")

        def restore(model):
            assign(variables_by_2017_name(model), weights, paths[-1])

    elif folder != NONE:
        pretrained = read_pretrained(folder, given)
        print(f"Starting from {folder}")
        hp, vocabs = make_hparams(given, pretrained.hp), pretrained.vocabs
        restore = pretrained.restore
    else:
        vocabs = load_vocabs(hp.preprocessed, hp)
        for vocab in vocabs:
            vocab.check_flags(hp, given)
    if hp.deterministic:
        tf.config.experimental.enable_op_determinism()
    dev = load_test_data(hp, vocabs, "dev") if hp.source_dev != NONE else None
    data = load_train_data(hp, vocabs)
    trainer = Trainer(hp, vocabs, data, dev, strategy, START_SECONDS)
    if rows:
        trainer.resume(rows)
    elif restore:
        restore(trainer.model)
    return trainer


def main(given):
    """Train, or resume.

    Args:
      given: dict, the flags of the command line.

    Raises:
      KeyboardInterrupt: a signal came, and a checkpoint was saved.
      OSError: the disk is full, the memory is too small, or another worker has ended.
    """
    strategy, logdir = make_strategy(), given.get("logdir", Hyperparams.logdir)
    is_first = strategy.extended.should_checkpoint  # false in all workers but one
    with lock_logdir(logdir) if is_first else contextlib.nullcontext(), SignalGuard() as guard:
        try:
            trainer = start(given, strategy)
            if trainer.is_done():
                print(
                    f"{trainer.path}: this training is done. To train it longer, raise --num_epochs"
                    ", --max_steps, --minutes or --patience. To train another model, use a new"
                    " --logdir"
                )
                return
            if is_first:
                prepare_logdir(trainer)
            trainer.train(guard)
        except tf.errors.OpError as error:
            if guard.signal:  # another worker got it, too, and has ended
                raise KeyboardInterrupt(guard.signal) from None
            raise explain_tf_error(error, logdir) from None
    print("Done")


def prepare_logdir(trainer):
    """Save what belongs to a model beside its checkpoints, and open TensorBoard's event file."""
    hp = trainer.hp
    if trainer.rows:
        summaries.cut_events(hp.logdir, trainer.step)
    else:
        save_vocabs(trainer.vocabs, hp.logdir)
    save_hparams(hp)
    trainer.events = tf.summary.create_file_writer(hp.logdir)
    if not trainer.rows:
        with trainer.events.as_default():
            graph = trainer.train_step.get_concrete_function().graph
            summaries.write_hparams_and_graph(hp, graph)


def explain_tf_error(error, logdir) -> Exception:
    """Translate an error of TensorFlow into an OSError with a message for the user.

    Returns errors of other causes as they are.
    """
    if re.search("No space left on device|[Qq]uota exceeded", error.message):
        return OSError(f"{logdir}: the disk is full. Free some space, and run the command again")
    if isinstance(error, tf.errors.ResourceExhaustedError):
        return OSError(
            "the memory is too small for the model or a batch. Lower --batch_tokens, --batch_size,"
            " --maxlen or --hidden_units"
        )
    if "TF_CONFIG" in os.environ:
        return OSError("a worker is gone. Start all of them again: they resume")
    return error


if __name__ == "__main__":
    run_script(main, given)
