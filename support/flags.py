"""Flags: the fields of dataclasses, with the default, help text and range of each.

Nothing here is slow to import: `--help` and a wrong flag are answered before TensorFlow is loaded.
"""

import argparse
import dataclasses
import difflib
import gc
import os
import shlex
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

from support.errors import InputError

ROOT = Path(__file__).resolve().parent.parent  # of the repository, where commands are run
NONE = "none"  # the value of a field that names a file or folder, if there is none

LIMITS = {int: 2**31, float: 3.4e38}  # exclusive; TensorFlow counts with 32 bits

# Declaring ---------------------------------------------------------------------


def flag(default, description, low=0, high=None, choices=None, group="", fixed=False, path=False):
    """Declare a field of a `Flags` dataclass.

    Args:
      low, high: a number is at least `low` and below `high`; None: below that of `LIMITS`.
      choices: the valid strings; None for any.
      group: title under which `--help` lists the flag; None: it is no flag.
      fixed: whether a trained model depends on it.
      path: whether it names a file or folder to read, or several with commas between them.
    """
    high = high or LIMITS.get(type(default))
    metadata = dict(help=description, low=low, high=high, choices=choices, group=group)
    return dataclasses.field(default=default, metadata=metadata | dict(fixed=fixed, path=path))


class Flags:
    """Base of the dataclasses whose fields are declared with `flag`."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))
        for is_broken, message in self.rules():
            if is_broken:
                raise InputError(message)

    def rules(self):
        """Yield each rule of the fields: whether it is broken, and the message."""
        yield from ()

    @classmethod
    def of(cls, given):
        """Make an instance of those of the flags that are its own; `given` is a dict."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in given.items() if name in names})


def check_value(field, value):
    """Raise InputError unless `value` is valid for `field`."""
    low, high, choices = (field.metadata[name] for name in ("low", "high", "choices"))
    if type(value) not in ((int, float) if field.type is float else (field.type,)):
        raise InputError(f"{field.name} is {value!r}. It must be of type {field.type.__name__}")
    if high and not low <= value < high:
        raise InputError(f"{field.name} is {value}. It must be at least {low} and below {high}")
    if choices and value not in choices:
        raise InputError(f"{field.name} is {value}. Choose one of {', '.join(choices)}")
    if field.type is str and (not value or any(ord(char) < 32 for char in value)):
        raise InputError(f"{field.name} is {value!r}. Give it a value without control characters")


# Parsing -----------------------------------------------------------------------


NAMES_ELSEWHERE = dict(
    learning_rate="lr",
    d_model="hidden_units",
    d_ff="ffn_units",
    num_layers="num_blocks",
    beam_size="beam",
    epochs="num_epochs",
    dropout="dropout_rate",
    max_tokens="batch_tokens",
    model_dir="logdir",
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with exit code 2, and which reads @FILE as a shell."""

    def __init__(self, **settings):
        super().__init__(
            fromfile_prefix_chars="@",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )

    def convert_arg_line_to_args(self, arg_line):
        """Split a line of a file of flags."""
        return shlex.split(arg_line, comments=True)

    def error(self, message):
        """Print the message and how to list all flags, and end the program."""
        script = Path(sys.argv[0]).resolve()
        script = script.relative_to(ROOT) if script.is_relative_to(ROOT) else self.prog
        message = message.removesuffix(".")
        self.exit(2, f"{self.prog}: {message}. `python {script} --help` lists all flags\n")

    def parse_args(self):
        """Parse the command line; an unknown flag is an error that names a similar one."""
        try:
            namespace, unknown = self.parse_known_args()
        except ValueError as error:  # not UTF-8, or a quotation mark is missing
            self.error(f"@FILE: not flags as on the command line ({error})")
        if unknown and not unknown[0].startswith("-"):
            self.error(f"{unknown[0]!r} follows no flag. Each value needs its flag before it")
        if unknown:
            name, known = unknown[0].partition("=")[0], self._option_string_actions
            elsewhere = NAMES_ELSEWHERE.get(name.replace("-", "_").strip("_"))
            similar = [f"--{elsewhere}"] if elsewhere else difflib.get_close_matches(name, known)
            guess = f" (did you mean {similar[0]}?)" if similar else ""
            self.error(f"there is no flag {name}{guess}")
        return namespace


def parse_flags(description, *own, hparams, names=None, check=lambda given: None) -> dict:
    """Parse the command line of a script that will load TensorFlow.

    Args:
      own: `Flags` classes of this script alone.
      hparams: the class `Hyperparams`.
      names: the fields of `hparams` that a script has which reads a model, whose values are the
        defaults; None for all fields, with their own defaults.
      check: function of the flags that were given, which raises InputError.

    Returns:
      dict: the flags that were given.
    """
    parser = Parser(
        usage="%(prog)s [--FLAG VALUE | @FILE] ...",
        description=f"{description}\n\n@FILE stands for the flags in a file.",
        epilog=MODEL_EPILOG if names else hparams.describe_recipes(),
        argument_default=argparse.SUPPRESS,
    )
    fields = {field.name: field for kind in (*own, hparams) for field in dataclasses.fields(kind)}
    groups = {}
    for field in fields.values():
        is_saved = names and field in dataclasses.fields(hparams)
        if is_saved and field.name not in names or field.metadata["group"] is None:
            continue
        title = field.metadata["group"] or "this script"
        groups[title] = groups.get(title) or parser.add_argument_group(title)
        of_model = is_saved and (field.metadata["fixed"] or title != "data")
        add_flag(groups[title], field, "the model's" if of_model else field.default)
    given = vars(parser.parse_args())
    try:
        for name, value in given.items():
            check_value(fields[name], value)
            if fields[name].metadata["path"]:
                check_paths_exist(name, value)
        if names:
            check_paths_exist("logdir", given.get("logdir", hparams.logdir))
        for kind in own:
            kind.of(given)
        check(given)
    except (InputError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if not find_spec("tensorflow"):
        message = "has no TensorFlow. Run `make install`, and then `source .venv/bin/activate`"
        parser.exit(2, f"{parser.prog}: {sys.executable} {message}\n")
    prepare_loading()
    return given


MODEL_EPILOG = (
    "The defaults are the flags of the model, which are in hparams.json in its logdir. A model of\n"
    "the 2017 code has no such file: its defaults are those of --recipe legacy."
)


def add_flag(group, field, default):
    """Add the flag of a field to a group of argparse."""
    text = f"{field.metadata['help']} (default: {default})".replace("%", "%%")
    if field.type is bool:
        options = dict(action=argparse.BooleanOptionalAction)
    elif field.metadata["choices"]:
        options = dict(metavar="|".join(field.metadata["choices"]))
    else:
        options = dict(type=expand_path if field.type is str else field.type)
        options["metavar"] = field.type.__name__.upper()
    group.add_argument(f"--{field.name}", help=text, **options)


def expand_path(word) -> str:
    """Replace ~ and variables like $HOME, which no shell has done in --logdir=~/run."""
    return os.path.expanduser(os.path.expandvars(word))


def split_paths(value) -> list[str]:
    """Split the value of a flag that names one file, or several with commas between them.

    >>> split_paths("news.de,talks.de")
    ['news.de', 'talks.de']
    """
    return [value] if os.path.exists(value) else value.split(",")


def check_paths_exist(name, value):
    """Raise InputError unless the files or folders exist that a flag names; "-" and NONE do."""
    for path in split_paths(value):
        if path not in ("-", NONE) and not os.path.exists(path):
            raise InputError(f"{path or value}: no such file or directory. Check --{name}")


def prepare_loading():
    """Prepare to load TensorFlow: quietly, in less time, and Ctrl-C ends the program at once.

    The settings of other Keras programs, as in ~/.keras/keras.json, must not change a model. Python
    collects no garbage until `run_script`, which saves half a second. Keras would import matplotlib
    for pictures of its own, which takes a third of a second: with None in `sys.modules`, it looks
    as if matplotlib were not installed.
    """
    for name in [name for name in os.environ if name.startswith("KERAS_")]:
        del os.environ[name]
    os.environ |= dict(KERAS_BACKEND="tensorflow", KERAS_HOME=os.devnull)  # no keras.json there
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's notices
    gc.disable()
    sys.modules.setdefault("matplotlib", None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
