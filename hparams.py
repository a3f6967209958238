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
import contextlib
import dataclasses
import difflib
import json
import os
import secrets
import signal
import sys
from pathlib import Path


class InputError(Exception):
    """What a person gave cannot be used; the message names it and the way out."""


MANY = 2**31  # what TensorFlow counts up to
WIDE = 2**16 + 1
FAR = 1024  # tokens of a sentence that are read where there is no other limit
AUTO = "auto"  # the value of a field that the size of the training text decides
MANY_STEPS = 300  # steps per epoch from which on 40 epochs are enough, where `num_epochs` is AUTO


def option(
    default,
    description,
    at_least=None,
    below=None,
    choices=None,
    kept=False,
    ordering=False,
    auto=False,
):
    """A field with the text of its flag, its range, and who is bound to it.

    Args:
      kept: whether a model is.
      ordering: whether an epoch is that has begun, since its batches are others without it.
      auto: whether the value may be `AUTO`.
    """
    rules = dict(at_least=at_least, below=below, choices=choices, kept=kept, ordering=ordering)
    return dataclasses.field(default=default, metadata={"help": description, "auto": auto, **rules})


class Options:
    """What a script is told: a subclass is a dataclass whose fields are options.

    Raises:
      InputError: a value outside its range.
    """

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check(field, getattr(self, field.name))

    @classmethod
    def taken_from(cls, flags):
        """Its own of the flags that `parse_flags` returned, and a dict of the others."""
        names = {field.name for field in dataclasses.fields(cls)}
        own = {name: value for name, value in flags.items() if name in names}
        return cls(**own), {name: value for name, value in flags.items() if name not in names}


@dataclasses.dataclass(frozen=True)
class Hyperparams(Options):
    """Everything a run depends on. The defaults are those of the documents.

    Fields that are `kept` belong to a trained model: once training has begun
    they are read from `logdir`, and a flag that says otherwise is an error.

    Raises:
      InputError: a value outside its range, or fields that contradict each other.
    """

    recipe: str = option(
        "legacy",
        "what the other flags are where they are not given: of the 2017 code, the 2019 code, the"
        " paper, or the paper's model made small",
        choices=("legacy", "updated", "paper", "tiny"),
        kept=True,
    )

    # data
    source_train: str = option(
        "corpora/train.tags.de-en.de", "source side of the training text", ordering=True
    )
    target_train: str = option(
        "corpora/train.tags.de-en.en", "target side of the training text", ordering=True
    )
    source_dev: str = option(
        "none", "source side of the development set, translated after each epoch; none: without"
    )
    target_dev: str = option("none", "target side of the development set; none: without")
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
    tokens: str = option(
        "words", "what a sentence is cut into", choices=("words", "pieces"), kept=True
    )
    min_cnt: int = option(
        20, "words seen less often in the training text become <UNK>", 0, MANY, kept=True
    )
    vocab_size: int = option(
        32000,
        "V: pieces in the one vocabulary of both languages; auto: from the number of characters",
        5,
        MANY,
        kept=True,
        auto=True,
    )
    bpe_dropout: float = option(
        0.0, "share of merges left out as training text is cut into pieces", 0.0, 1.0, ordering=True
    )

    # model
    maxlen: int = option(
        10, "T: tokens in a sentence, </S> included; longer pairs are left out", 1, MANY, kept=True
    )
    hidden_units: int = option(512, "C: width of the model", 1, WIDE, kept=True)
    ffn_units: int = option(0, "width inside a feed-forward; 0: 4 * C", 0, WIDE, kept=True)
    num_blocks: int = option(
        6, "blocks in the encoder, and as many in the decoder", 1, 1001, kept=True
    )
    num_heads: int = option(8, "h: heads of an attention, a divisor of C", 1, WIDE, kept=True)
    sinusoid: bool = option(False, "positions from the sinusoid, not learned", kept=True)
    paired: bool = option(
        False, "sine and cosine in pairs of one frequency, as in the paper", kept=True
    )
    relu_projections: bool = option(True, "Q, K and V pass through a ReLU", kept=True)
    output_projection: bool = option(False, "W_O: joined heads are projected again", kept=True)
    shared: bool = option(False, "one matrix for source words, target words and output", kept=True)
    pad_logit: bool = option(
        False, "<PAD> has a row of its own in the shared output; else its logit is 0", kept=True
    )
    masks: str = option(
        "activations",
        "where padding is read from: zeros in the activations, or token ids",
        choices=("activations", "ids"),
        kept=True,
    )
    dropout_on: str = option(
        "attention",
        "what is dropped beside embeddings: attention weights, outputs of sub-layers, or both",
        choices=("attention", "sublayers", "both"),
        kept=True,
    )
    dropout_rate: float = option(0.1, "share of units dropped in training", 0.0, 1.0, kept=True)

    # training
    batch_size: int = option(
        32,
        "N: sentence pairs in a training batch, over all devices; given without --batch_tokens it"
        " switches batch_tokens off",
        1,
        MANY,
        ordering=True,
    )
    batch_tokens: int = option(
        0,
        "in place of batch_size: tokens of the longer side in a training batch; 0: off",
        0,
        MANY,
        ordering=True,
    )
    lr: float = option(
        0.0001,
        "Adam's learning rate, or its peak; 0: (C * warmup_steps)**-0.5, the paper's",
        0.0,
        3.4e38,  # what float32 holds
    )
    warmup_steps: int = option(
        0,
        "steps up to the peak; 0: the rate stays as it is; auto: a tenth of all, 1000 at most",
        0,
        MANY,
        auto=True,
    )
    beta_2: float = option(0.98, "Adam's decay of the squared gradients", 0.0, 1.0)
    epsilon: float = option(1e-8, "Adam's epsilon", 0.0, 1.0)
    num_epochs: int = option(
        20,
        "passes over the training text; auto: more for a small text",
        1,
        MANY,
        auto=True,
    )
    patience: int = option(
        0, "epochs without a better dev BLEU after which training stops; 0: never", 0, MANY
    )
    precision: str = option(
        "float32",
        "of matrix products in training; weights, sums and the loss stay in float32",
        choices=("float32", "bfloat16"),
    )
    keep: int = option(
        5, "newest checkpoints of ends of epochs that stay, beside the best", 1, MANY
    )
    save_steps: int = option(
        1000, "steps from one checkpoint within an epoch to the next; 0: none", 0, MANY
    )
    deterministic: bool = option(
        False, "sums in a fixed order: two runs give the same weights, to the last bit"
    )
    profile: int = option(
        0, "steps whose profile goes to TensorBoard, once the first ten are over; 0: none", 0, MANY
    )
    seed: int = option(
        0, "fixes weights, dropout and the order of the data", 0, MANY, ordering=True
    )

    # decoding
    beam: int = option(1, "hypotheses of the beam search; 1: greedy", 1, 1001)
    length_penalty: str = option(
        "paper",
        "what a hypothesis' log-probability is divided by: ((5 + len) / 6)**alpha, or len**alpha",
        choices=("paper", "ctranslate2"),
    )
    alpha: float = option(0.6, "exponent of the length penalty", 0.0, 100.0)
    average: int = option(1, "newest checkpoints whose mean is evaluated", 1, MANY)
    best: bool = option(False, "evaluate the checkpoint of the best dev BLEU, and it alone")

    def __post_init__(self):
        super().__post_init__()
        if self.hidden_units % self.num_heads:
            raise InputError(
                f"hidden_units {self.hidden_units} is not a multiple of num_heads {self.num_heads}"
            )
        if (self.source_dev == "none") != (self.target_dev == "none"):
            raise InputError("source_dev and target_dev: give both sides, or none of them")
        if self.patience and self.source_dev == "none":
            raise InputError("patience needs a dev BLEU: give --source_dev and --target_dev")
        if self.bpe_dropout and not (self.tokens == "pieces" and self.unlimited):
            raise InputError(
                "bpe_dropout is for pieces, and for sentences that may grow by it: choose a recipe"
                " that has both, as tiny"
            )
        if self.tokens == "words" and self.vocab_size == AUTO:
            raise InputError("vocab_size auto is for pieces: of words --min_cnt decides how many")
        if self.shared and self.tokens == "words":
            raise InputError("shared is for pieces: words have a vocabulary a side")
        if self.source_lang == self.target_lang:
            raise InputError(
                f"source_lang and target_lang are both {self.source_lang}, so that one vocabulary"
                " file would overwrite the other: give each side its own name"
            )
        for lang in (self.source_lang, self.target_lang):
            if "/" in lang or "\\" in lang:
                raise InputError(f"{lang} is the name of a language, and cannot hold a slash")

    @property
    def unlimited(self):
        """Whether a sentence may be longer than `maxlen`, once the model is trained.

        Learned positions end there; and where padding is read from the activations,
        what it does to a sentence was learned with rows of that length.
        """
        return self.sinusoid and self.masks == "ids"

    @property
    def longest(self):
        """Tokens that are read of a sentence, `</S>` included."""
        return max(FAR, self.maxlen) if self.unlimited else self.maxlen

    @property
    def width(self):
        """What rows of ids are padded to: `maxlen`, or None for the longest among them.

        Where padding is read from the activations, a sentence depends on how much it has.
        """
        return None if self.masks == "ids" else self.maxlen

    @property
    def peak_lr(self):
        """The highest learning rate."""
        return self.lr or (self.hidden_units * max(1, self.warmup_steps)) ** -0.5

    @property
    def pieces_path(self):
        """The sentencepiece model, a `Path`."""
        return Path(self.preprocessed) / "bpe.model"

    @property
    def ids_path(self):
        """The ids of a large training text, a `Path`."""
        return Path(self.preprocessed) / "train.ids.npz"

    def vocab_path(self, lang):
        """The vocabulary file of a language, a `Path`."""
        return Path(self.preprocessed) / f"{lang}.vocab.tsv"


# What the recipes have otherwise than the defaults, which are those of legacy.
UPDATED = dict(
    tokens="pieces",
    maxlen=100,
    ffn_units=2048,
    sinusoid=True,
    paired=True,
    relu_projections=False,
    shared=True,
    masks="ids",
    dropout_rate=0.3,
    batch_size=128,
    lr=0.0003,
    warmup_steps=4000,
    beta_2=0.999,
)
PAPER = UPDATED | dict(
    output_projection=True,
    pad_logit=True,
    dropout_on="both",
    dropout_rate=0.1,
    batch_tokens=4096,
    lr=0.0,
    beta_2=0.98,
    epsilon=1e-9,
    beam=4,
    average=5,
)
TINY = PAPER | dict(
    vocab_size=AUTO,
    hidden_units=128,
    ffn_units=256,
    num_blocks=4,
    num_heads=4,
    dropout_on="sublayers",
    dropout_rate=0.2,
    batch_tokens=2048,
    lr=0.0025,
    warmup_steps=AUTO,
    num_epochs=AUTO,
    keep=10,
    beam=5,
    alpha=1.4,
    average=10,
)
RECIPES = dict(legacy={}, updated=UPDATED, paper=PAPER, tiny=TINY)


def with_recipe(flags):
    """The `Hyperparams` of the flags given: what they leave out, their recipe says."""
    return Hyperparams(**(RECIPES.get(flags.get("recipe"), {}) | choose_batch_unit(flags)))


def choose_batch_unit(flags):
    """The flags, with `batch_tokens` switched off where only `batch_size` is given.

    Raises:
      InputError: both are given.
    """
    if "batch_size" not in flags:
        return flags
    if flags.get("batch_tokens"):
        raise InputError(
            "batch_size and batch_tokens both say how large a batch is: give one of the two"
        )
    return flags | {"batch_tokens": 0}


def choose_vocab_size(characters):
    """The number of pieces for a text, where `vocab_size` is `AUTO`.

    Args:
      characters: in both sides of the training text together, without spaces.

    >>> [choose_vocab_size(n) for n in (1_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000)]
    [63, 486, 1000, 1933, 3981, 7696]
    """
    return min(8000, round(characters**0.6))


def choose_schedule(hp, steps_per_epoch):
    """The hyperparameters with `num_epochs` and `warmup_steps` in place of `AUTO`.

    An epoch of a small text has few steps, and a model needs some thousands to learn
    anything: the fewer they are, the more epochs. The learning rate rises for a tenth of all
    steps. docs/development.md has results.

    Args:
      steps_per_epoch: batches in the first epoch.

    >>> hp = with_recipe(dict(recipe="tiny"))
    >>> chosen = [choose_schedule(hp, steps) for steps in (6, 17, 40, 110, 318)]
    >>> [(hp.num_epochs, hp.warmup_steps) for hp in chosen]
    [(191, 114), (126, 214), (90, 360), (60, 660), (40, 1000)]
    """
    num_epochs, warmup_steps = hp.num_epochs, hp.warmup_steps
    if num_epochs == AUTO:
        num_epochs = round(40 * max(1.0, MANY_STEPS / steps_per_epoch) ** 0.4)
    if warmup_steps == AUTO:
        warmup_steps = min(1000, max(1, num_epochs * steps_per_epoch // 10))
    return dataclasses.replace(hp, num_epochs=num_epochs, warmup_steps=warmup_steps)


def check(field, value):
    """Raise InputError where `value` is not one that `field` allows."""
    if value == AUTO and field.metadata["auto"]:
        return
    if type(value) not in ((int, float) if field.type is float else (field.type,)):
        raise InputError(f"{field.name} is {value!r}: it must be of type {field.type.__name__}")
    if field.type in (int, float):
        low, high = field.metadata["at_least"], field.metadata["below"]
        if not low <= value < high:
            raise InputError(f"{field.name} is {value}: it must be at least {low} and below {high}")
    elif field.metadata["choices"] and value not in field.metadata["choices"]:
        names = ", ".join(field.metadata["choices"])
        raise InputError(f"{field.name} is {value}: choose one of {names}")
    elif field.type is str and not value:
        raise InputError(f"{field.name} is empty: give it a value")
    elif field.type is str and not value.isprintable():
        # Files that someone else wrote may hold what moves the cursor of a terminal.
        if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in value):
            raise InputError(f"{field.name} is {value!r}: control characters cannot be in it")


def parse_flags(description, *own):
    """The hyperparameters given on the command line, a dict of only those.

    Args:
      own: `Options` that the script has besides, which are in the dict too.

    Scripts call this before they import TensorFlow, so that `--help` and a wrong flag are
    answered at once. Ctrl-C then ends the program without a message, until `run` has one.
    """
    check_platform()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # fewer of TensorFlow's notices
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    parser = Parser(
        description=description,
        epilog=recipes_in_words(),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        formatter_class=Help,
    )
    for field in [field for kind in (*own, Hyperparams) for field in dataclasses.fields(kind)]:
        text = f"{field.metadata['help']} (default: {field.default})"
        kind = dict(type=field.type)
        metavar = field.type.__name__.upper()
        if field.type is bool:
            kind = dict(type=boolean, nargs="?", const=True)
        elif field.metadata["auto"]:
            kind, metavar = dict(type=int_or_auto), f"{metavar}|{AUTO}"
        elif field.metadata["choices"]:
            metavar = "|".join(field.metadata["choices"])
        parser.add_argument(f"--{field.name}", metavar=metavar, help=text, **kind)
    flags, unknown = parser.parse_known_args()
    if unknown:
        parser.error(explain_unknown(unknown[0], parser.option_strings()))
    try:
        check_flags(vars(flags), own)
    except InputError as error:
        parser.error(str(error))
    return vars(flags)


def check_platform():
    """End the program on a system that TensorFlow's packages do not support."""
    if sys.platform in ("win32", "cygwin"):
        program = Path(sys.argv[0]).name
        message = "Windows is not supported. Run it within WSL2 (https://aka.ms/wsl), as on Linux"
        print(f"{program}: {message}", file=sys.stderr)
        sys.exit(2)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and exit code 2."""

    def error(self, message):
        """Print the message and where all flags are listed, and end the program."""
        message += "" if message[-1] in ".?" else "."
        self.exit(2, f"{self.prog}: {message} `python {self.prog} --help` lists all flags.\n")

    def option_strings(self):
        """All flags, with their dashes."""
        return [*self._option_string_actions]


def explain_unknown(word, known):
    """A message for a word of the command line that is no flag.

    >>> explain_unknown("--max_len=25", ["--maxlen", "--logdir"])
    'there is no flag --max_len: did you mean --maxlen?'
    """
    if not word.startswith("-"):
        return f"{word!r} follows no flag. Each value needs its flag before it"
    name = word.partition("=")[0]
    similar = difflib.get_close_matches(name, known)
    guess = f": did you mean {similar[0]}?" if similar else "."
    return f"there is no flag {name}{guess}"


def check_flags(flags, own=()):
    """Check the given flags, as far as that needs no trained model.

    Args:
      flags: dict.
      own: `Options` that the script has in addition to `Hyperparams`.

    Raises:
      InputError: a value outside its range, or flags that contradict each other.
    """
    for kind in own:
        _, flags = kind.taken_from(flags)
    for field in dataclasses.fields(Hyperparams):
        if field.name in flags:
            check(field, flags[field.name])
    if not any(Path(flags.get("logdir", Hyperparams.logdir)).glob("*.index")):
        with_recipe(flags)


class Help(argparse.HelpFormatter):
    """Help whose last part keeps its lines."""

    def _fill_text(self, text, width, indent):
        filled = super()._fill_text
        return "\n".join(filled(line, width, indent) for line in text.splitlines())


def recipes_in_words():
    """What each recipe has otherwise than the defaults."""
    lines = ["The defaults are those of the recipe legacy. What the others have:"]
    for recipe, fields in RECIPES.items():
        if fields:
            lines += ["", f"{recipe}: " + ", ".join(f"{k} {v}" for k, v in fields.items())]
    return "\n".join(lines)


def boolean(word):
    """True or False for the words that mean them.

    >>> boolean("False")
    False
    """
    try:
        return {"true": True, "1": True, "false": False, "0": False}[word.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{word} is neither True nor False") from None


def int_or_auto(word):
    """The number that a word stands for, or `AUTO`."""
    try:
        return AUTO if word == AUTO else int(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word} is neither a number nor {AUTO}") from None


def hparams_path(logdir):
    """The file of a model's hyperparameters, a `Path`."""
    return Path(logdir) / "hparams.json"


def save_hparams(hp, vocab_sha256):
    """Write `hp` and the fingerprints of its vocabularies into `hp.logdir`.

    Where that folder stands is not saved, so that it can be moved, nor that this run is
    profiled, since the next one need not be.
    """
    saved = dataclasses.asdict(hp) | {"vocab_sha256": vocab_sha256}
    del saved["logdir"], saved["profile"]
    write_whole(hparams_path(hp.logdir), json.dumps(saved, indent=2) + "\n")


def load_hparams(flags, trained, within_epoch=False):
    """Hyperparameters of the model in `logdir`, under the flags of this call.

    Args:
      flags: dict, what `parse_flags` returned.
      trained: whether there is a model, so that its hyperparameters must be there too.
      within_epoch: whether training goes on in the middle of one.

    Returns:
      (Hyperparams, dict): without a model the defaults under the flags, and an
      empty dict; else what was saved with it under the flags, and the
      fingerprints of the vocabularies it was trained with.

    Raises:
      InputError: a flag contradicts the saved model, or the file is damaged or missing.
    """
    if not trained:
        return with_recipe(flags), {}
    # The schedule was chosen when training began, and stays.
    flags = {name: value for name, value in choose_batch_unit(flags).items() if value != AUTO}
    path = hparams_path(flags.get("logdir", Hyperparams.logdir))
    as_trained, vocab_sha256 = read_hparams(path.parent)
    for field in dataclasses.fields(Hyperparams):
        if field.metadata["kept"] or within_epoch and field.metadata["ordering"]:
            until = "" if field.metadata["kept"] else " until its epoch is done"
            refuse_contradiction(path, field.name, getattr(as_trained, field.name), flags, until)
    own_logdir = {"logdir": str(path.parent)}
    return Hyperparams(**(dataclasses.asdict(as_trained) | own_logdir | flags)), vocab_sha256


def read_hparams(logdir):
    """What `save_hparams` wrote: the hyperparameters, and the fingerprints of the vocabularies.

    Raises:
      InputError: the file is damaged or missing.
    """
    path = hparams_path(logdir)
    if not path.exists():
        raise InputError(
            f"{path}: no such file, and the checkpoint in that folder needs it: copy it there"
        )
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        vocab_sha256 = dict(saved.pop("vocab_sha256"))
        as_trained = Hyperparams(**saved)
        for field in dataclasses.fields(Hyperparams):
            if field.metadata["auto"] and getattr(as_trained, field.name) == AUTO:
                raise InputError(f"{field.name} of a trained model is a number, not {AUTO}")
        if not vocab_sha256:
            raise InputError("vocab_sha256 is empty")
    except (InputError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InputError(f"{path}: not hyperparameters of this project ({error})") from None
    return as_trained, vocab_sha256


def refuse_contradiction(path, name, trained, flags, until=""):
    """Raise InputError where a flag is not what the model at `path` was trained with.

    Args:
      until: how long the flag is to be left out.
    """
    if flags.get(name, trained) != trained:
        raise InputError(
            f"{path}: the model here was trained with --{name} {trained}, not {flags[name]}:"
            f" leave the flag out{until}, or give a new --logdir"
        )


def may_write(path, name, flags):
    """Whether a file or folder that the field `name` decides may be written.

    A model may come from someone else. Its file must not choose where this program writes:
    only below the current folder, or where a flag says.

    Args:
      flags: dict, those given on the command line.
    """
    return name in flags or Path(path).resolve().is_relative_to(Path.cwd().resolve())


def check_may_write(path, name, hp, flags):
    """Raise InputError unless `may_write`."""
    if not may_write(path, name, flags):
        raise InputError(
            f"{hparams_path(hp.logdir)}: its field {name} leads to {path}, outside the current"
            f" folder. To write there, add --{name} {getattr(hp, name)}"
        )


def announce_inputs(hp, flags, *names):
    """Print which files outside the current folder a model's file names, before they are read.

    Args:
      flags: dict, those given on the command line.
      names: fields of `hp`.
    """
    for name in names:
        path = getattr(hp, name)
        if path != "none" and not may_write(path, name, flags):
            where = hparams_path(hp.logdir)
            print(f"Reading {path}, which {where} names as {name}", file=sys.stderr, flush=True)


def check_no_links(folder):
    """Check that no entry of a folder in which training writes leads out of it.

    Raises:
      InputError: one is a symbolic link to elsewhere.
    """
    for path in Path(folder).iterdir():
        if path.is_symlink() and not path.resolve().is_relative_to(Path(folder).resolve()):
            raise InputError(
                f"{path}: a link out of this folder, which training would write to. Put the file"
                " itself there, or delete the link"
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


def beside(path):
    """A name in the same folder, a `Path`, under which what is to stand at `path` is written."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")


def refuse_folder(path):
    """Raise InputError where a folder stands in the place of a file."""
    if Path(path).is_dir():
        raise InputError(f"{path}: a folder is there: name a file, or move it away")


@contextlib.contextmanager
def whole_file(path):
    """A file to write bytes to, beside and renamed, so that it is old or new, never half.

    What is no regular file, as a pipe, is written to as it is.

    Raises:
      InputError: a folder is there, or its own folder cannot be written to.
    """
    refuse_folder(path)
    path = Path(path)
    if path.exists() and not path.is_file():
        with open(path, "wb") as file:
            yield file
        return
    if path.is_symlink():  # which stays one
        path = Path(os.path.realpath(path))
    make_folder(path.parent)
    written = beside(path)
    try:
        with open(written, "xb") as file:
            yield file
        to_disk(written)
        rename(written, path)
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(f"{path}: cannot be written: {error.strerror or error}") from None
    finally:
        written.unlink(missing_ok=True)


def rename(old, new):
    """Give a file another name, which it would have after a loss of power, too."""
    os.replace(old, new)
    with contextlib.suppress(OSError):  # file systems that cannot
        to_disk(Path(new).parent)


def to_disk(path):
    """Wait until a file, or the names in a folder, would be there after a loss of power."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_whole(path, content):
    """Write text or bytes as a `whole_file`."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def interrupt(number, _):
    """What a signal does that is to end a program as Ctrl-C does."""
    raise KeyboardInterrupt(number)


def run(main, flags, stopped="stopped"):
    """Call `main(flags)` as a script does: an InputError is one line and exit code 2.

    Args:
      stopped: the message after Ctrl-C and SIGTERM, where the KeyboardInterrupt, whose
        arguments are the signal and a message, has none.
    """
    program = Path(sys.argv[0]).name
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed
            setattr(sys, name, open(os.devnull, "r+"))
        # As text is, whatever the locale says; names of files may be any bytes.
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        getattr(sys, name).reconfigure(encoding="utf-8", errors=errors)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        main(flags)
        sys.stdout.flush()
    except InputError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # whoever reads the output has enough of it
            print(f"{program}: {error}", file=sys.stderr)
        # What is left in it cannot be written at the end of the process either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt as stop:
        defaults = signal.SIGINT, stopped
        number, message = stop.args + defaults[len(stop.args) :]
        print(f"\n{program}: {message}", file=sys.stderr)
        sys.exit(128 + number)
