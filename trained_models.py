"""Find trained models, and check that they can be loaded, before TensorFlow is loaded."""

from pathlib import Path
from typing import NamedTuple

from hparams import Hyperparams, hparams_path, load_hparams
from manifest import RUN_FILE, check_has_checkpoint, read_rows, require_best
from runtime.errors import InputError
from runtime.files import split_paths


class Trained(NamedTuple):
    """A folder with a trained model, before TensorFlow is loaded."""

    logdir: str
    given: dict  # the flags that were given
    hp: Hyperparams | None = None  # none for a model of the 2017 code, which has no such file
    vocabs: tuple = ()  # of source and target, if `hp` is known


def find_trained(flags) -> list[Trained]:
    """Find the models in the folders that `logdir` names, before TensorFlow is loaded.

    Args:
      flags: dict, those of the command line. `logdir` may name several folders with commas. Such
        models must fit together.
    """
    # Here, since `parse_flags` has a message for an environment without packages.
    from vocab import load_vocabs

    models = []
    for logdir in split_paths(flags.get("logdir", Hyperparams.logdir)):
        check_has_checkpoint(logdir, read_rows(logdir))
        own, hp, vocabs = flags | dict(logdir=logdir), None, ()
        # A model of the 2017 code has neither file.
        if hparams_path(logdir).exists() or (Path(logdir) / RUN_FILE).exists():
            # After training in bfloat16, too: the parameters are float32 and decode best in it.
            hp = load_hparams(dict(precision="float32") | own)
            vocabs = load_vocabs(hp)
            if hp.best:
                require_best(logdir)
        models.append(Trained(logdir, own, hp, vocabs))
    if all(trained.hp for trained in models):
        check_ensemble([trained.hp for trained in models])
    return models


def check_ensemble(hps):
    """Raise InputError if several models cannot translate together, by their `Hyperparams`."""
    first = hps[0]
    for hp in hps[1:]:
        if (hp.source_lang, hp.target_lang) != (first.source_lang, first.target_lang):
            raise InputError(
                f"{hp.logdir}: translates from {hp.source_lang} to {hp.target_lang}, and"
                f" {first.logdir} from {first.source_lang} to {first.target_lang}. Choose models of"
                " one direction"
            )
        if hp.vocab_sha256 != first.vocab_sha256:
            raise InputError(
                f"{hp.logdir}: has another vocabulary than {first.logdir}. Train both models with"
                " the same --preprocessed"
            )
        for name in ("pad_to", "masks_from_ids", "unbounded_length", "max_input_tokens"):
            if getattr(hp, name) != getattr(first, name):
                raise InputError(
                    f"{hp.logdir}: reads sentences in another way than {first.logdir} (maxlen,"
                    " position encodings or masks differ). Choose models of similar recipes"
                )
