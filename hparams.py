"""Hyperparameters: one field a number, one flag a field.

Every script takes the same flags, made from the fields of `Hyperparams`, and
gives its own errors in one line through `run`. `train.py` saves what it was
trained with into `logdir`, and every script that reads a model starts from there.

The letters that name the axes of tensors throughout the project:

    N  sentences in a batch           T  positions in a sentence
    C  hidden units                   h  attention heads
    V  words in a vocabulary
"""

import argparse
import dataclasses
import json
import math
import os
import signal
import sys
from pathlib import Path


class InputError(Exception):
    """What a person gave cannot be used; the message names it and the way out."""


def option(default, description, at_least=None, below=math.inf, choices=None, kept=False):
    """A field with the text of its flag, its range, and whether a model is bound to it."""
    rules = dict(at_least=at_least, below=below, choices=choices, kept=kept)
    return dataclasses.field(default=default, metadata={"help": description, **rules})


@dataclasses.dataclass(frozen=True)
class Hyperparams:
    """Everything a run depends on. The defaults are those of the documents.

    Fields that are `kept` belong to a trained model: once training has begun
    they are read from `logdir`, and a flag that says otherwise is an error.

    Raises:
      InputError: a value outside its range, or fields that contradict each other.
    """

    recipe: str = option(
        "legacy", "named setting of the model's switches", choices=("legacy",), kept=True
    )

    # data
    source_train: str = option("corpora/train.tags.de-en.de", "source side of the training text")
    target_train: str = option("corpora/train.tags.de-en.en", "target side of the training text")
    source_test: str = option(
        "corpora/IWSLT16.TED.tst2014.de-en.de.xml", "source side of the test set"
    )
    target_test: str = option(
        "corpora/IWSLT16.TED.tst2014.de-en.en.xml", "target side of the test set"
    )
    source_lang: str = option("de", "name of the source language's vocabulary file", kept=True)
    target_lang: str = option("en", "name of the target language's vocabulary file", kept=True)
    preprocessed: str = option("preprocessed", "folder of the vocabularies that prepro.py writes")
    logdir: str = option("logdir", "folder of the checkpoints and of TensorBoard's events")
    results: str = option("results", "folder of the translations that eval.py writes")
    min_cnt: int = option(
        20, "words seen less often in the training text become <UNK>", at_least=0, kept=True
    )

    # model
    maxlen: int = option(
        10, "T: words in a sentence, </S> included; longer pairs are left out", 1, kept=True
    )
    hidden_units: int = option(512, "C: width of the model", 1, kept=True)
    num_blocks: int = option(6, "blocks in the encoder, and as many in the decoder", 1, kept=True)
    num_heads: int = option(8, "h: heads of an attention, a divisor of C", 1, kept=True)
    sinusoid: bool = option(False, "positions from the sinusoid, not learned", kept=True)

    # training
    batch_size: int = option(32, "N: sentence pairs in a batch, over all devices", at_least=1)
    lr: float = option(0.0001, "Adam's learning rate", at_least=0.0)
    dropout_rate: float = option(
        0.1, "share of units dropped in training", 0.0, below=1.0, kept=True
    )
    num_epochs: int = option(20, "passes over the training text", at_least=1)
    seed: int = option(0, "fixes weights, dropout and the order of the data", 0, below=2**31)

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check(field, getattr(self, field.name))
        if self.hidden_units % self.num_heads:
            raise InputError(
                f"hidden_units {self.hidden_units} is not a multiple of num_heads {self.num_heads}"
            )
        if self.source_lang == self.target_lang:
            raise InputError(
                f"source_lang and target_lang are both {self.source_lang}, so that one vocabulary"
                " file would overwrite the other: give each side its own name"
            )
        for lang in (self.source_lang, self.target_lang):
            if "/" in lang or "\\" in lang:
                raise InputError(f"{lang} is the name of a language, and cannot hold a slash")

    def vocab_path(self, lang):
        """The vocabulary file of a language, a `Path`."""
        return Path(self.preprocessed) / f"{lang}.vocab.tsv"


def check(field, value):
    """Raise InputError where `value` is not one that `field` allows."""
    if type(value) not in ((int, float) if field.type is float else (field.type,)):
        raise InputError(f"{field.name} is {value!r}: it must be of type {field.type.__name__}")
    if field.type in (int, float):
        low, high = field.metadata["at_least"], field.metadata["below"]
        if not low <= value < high:
            bound = "" if high == math.inf else f" and below {high}"
            raise InputError(f"{field.name} is {value}: it must be at least {low}{bound}")
    elif field.metadata["choices"] and value not in field.metadata["choices"]:
        names = ", ".join(field.metadata["choices"])
        raise InputError(f"{field.name} is {value}: choose one of {names}")
    elif field.type is str and not value:
        raise InputError(f"{field.name} is empty: give it a value")


def parse_flags(description):
    """The hyperparameters given on the command line, a dict of only those.

    Scripts call this before they import TensorFlow, so that `--help` and a
    mistyped flag answer at once. Ctrl-C then ends the program without a word,
    until `run` has something to say of it.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # fewer of TensorFlow's notices
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parser = argparse.ArgumentParser(
        description=description, argument_default=argparse.SUPPRESS, allow_abbrev=False
    )
    for field in dataclasses.fields(Hyperparams):
        text = f"{field.metadata['help']} (default: {field.default})"
        kind = dict(type=field.type)
        if field.type is bool:
            kind = dict(type=boolean, nargs="?", const=True)
        metavar = field.type.__name__.upper()
        parser.add_argument(f"--{field.name}", metavar=metavar, help=text, **kind)
    return vars(parser.parse_args())


def boolean(word):
    """True or False for the words that mean them.

    >>> boolean("False")
    False
    """
    try:
        return {"true": True, "1": True, "false": False, "0": False}[word.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{word} is neither True nor False") from None


def hparams_path(logdir):
    return Path(logdir) / "hparams.json"


def save_hparams(hp, vocab_sha256):
    """Write `hp` and the fingerprints of its vocabularies into `hp.logdir`.

    Where that folder stands is not saved, so that it can be moved.
    """
    saved = dataclasses.asdict(hp) | {"vocab_sha256": vocab_sha256}
    del saved["logdir"]
    write_whole(hparams_path(hp.logdir), json.dumps(saved, indent=2) + "\n")


def load_hparams(flags, trained):
    """Hyperparameters of the model in `logdir`, under the flags of this call.

    Args:
      flags: dict, what `parse_flags` returned.
      trained: whether there is a model, so that its hyperparameters must be there too.

    Returns:
      (Hyperparams, dict): without a model the defaults under the flags, and an
      empty dict; else what was saved with it under the flags, and the
      fingerprints of the vocabularies it was trained with.

    Raises:
      InputError: a flag contradicts the saved model, or the file is damaged or missing.
    """
    if not trained:
        return Hyperparams(**flags), {}
    path = hparams_path(flags.get("logdir", Hyperparams.logdir))
    if not path.exists():
        raise InputError(f"{path}: not there, and the checkpoint beside it needs it: copy it")
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        vocab_sha256 = saved.pop("vocab_sha256")
        as_trained = Hyperparams(**saved)
    except (InputError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path}: not hyperparameters of this project ({error})") from None
    for field in dataclasses.fields(Hyperparams):
        if field.metadata["kept"]:
            refuse_contradiction(path, field.name, getattr(as_trained, field.name), flags)
    return Hyperparams(**(saved | flags)), vocab_sha256


def refuse_contradiction(path, name, trained, flags):
    """Raise InputError where a flag is not what the model at `path` was trained with."""
    if flags.get(name, trained) != trained:
        raise InputError(
            f"{path}: the model here was trained with --{name} {trained}, not {flags[name]}:"
            " leave the flag out, or give a new --logdir"
        )


def make_folder(folder):
    """Make a folder where there is none.

    Raises:
      InputError: it cannot be made, or not be written to.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made a folder: {error.strerror.lower()}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder}: this folder cannot be written to")


def write_whole(path, text):
    """Write beside and rename, so that a file is either old or new, never half."""
    path = Path(path)
    make_folder(path.parent)
    beside = path.with_name(path.name + ".tmp")
    beside.write_text(text, encoding="utf-8", newline="\n")
    os.replace(beside, path)


def run(main, flags, stopped="stopped"):
    """Call `main(flags)` as a script does: an InputError is one line and exit code 2.

    Args:
      stopped: what to say after Ctrl-C.
    """
    program = Path(sys.argv[0]).name
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        main(flags)
    except InputError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"\n{program}: {stopped}", file=sys.stderr)
        sys.exit(130)
