"""Flags: the fields of dataclasses, with the default, help text and range of each.

Nothing here is slow to import: `--help` and a wrong flag are answered before TensorFlow is loaded.
"""

import argparse
import dataclasses
import difflib
import gc
import importlib
import os
import platform
import re
import shlex
import signal
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from support.errors import InputError

VERSION = "1.0"  # of this project, as in CHANGELOG.md
NONE = "none"  # the value of a field that names a file or folder, if there is none
LIMITS = {int: 2**31, float: 3.4e38}  # exclusive; TensorFlow counts with 32 bits

# Declaring ----------------------------------------------------------


def flag(
    default,
    description,
    low=0,  # of a number
    high=None,  # exclusive; None: that of LIMITS
    choices=None,  # the valid strings
    group="this script",  # title under which `--help` lists the flag; None: it is no flag
    fixed=False,  # whether a trained model depends on it
    path=False,  # whether it names a file or folder to read, or several with commas between them
    positional=False,  # whether its name may be left out
):
    """Declare a field of a `Flags` dataclass."""
    metadata = dict(help=description, low=low, high=high or LIMITS.get(type(default)))
    metadata |= dict(choices=choices, group=group, fixed=fixed, path=path, positional=positional)
    return dataclasses.field(default=default, metadata=metadata)


class Flags:
    """Base of the dataclasses whose fields are declared with `flag`."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))
        for problem in self.problems():
            raise InputError(problem)

    def problems(self):
        """Yield what is wrong with the fields together."""
        yield from ()

    @classmethod
    def of(cls, given):
        """Make an instance of those of the given flags that are its own."""
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


# Parsing ------------------------------------------------------------

# Names in other toolkits, which are not similar to ours.
NAMES_ELSEWHERE = dict(
    d_ff="--ffn_units",
    d_model="--hidden_units",
    device="the variable CUDA_VISIBLE_DEVICES",
    dropout="--dropout_rate",
    fp16="--precision",
    input="--source",
    learning_rate="--lr",
    model="--logdir",
    num_layers="--num_blocks",
    save_dir="--logdir",
    src="--source or --source_train",
    tgt="--target_train or --score",
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, and which reads @FILE as a shell."""

    def __init__(self, **settings):
        super().__init__(
            fromfile_prefix_chars="@",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            **settings,
        )
        meaning = "print the versions and the processor, for a report of an error"
        own = dict(action="store_true", default=argparse.SUPPRESS, help=meaning)
        self.add_argument("--version", **own)

    def _parse_optional(self, arg_string):
        """Read the dashes in a name as underscores."""
        name, *value = re.split("(=)", arg_string, maxsplit=1)
        names = {own.replace("-", "_"): own for own in self._option_string_actions}
        name = names.get(name.replace("-", "_"), name)
        return super()._parse_optional("".join([name, *value]))

    def convert_arg_line_to_args(self, arg_line):
        """Split a line of a file of flags."""
        return shlex.split(arg_line.removeprefix("\ufeff"), comments=True)

    def error(self, message):
        """Print the message, and end the program."""
        remedy = f"`python {sys.argv[0]} --help` lists all flags"
        self.exit(2, f"{self.prog}: {message.removesuffix('.')}. {remedy}\n")

    def parse_args(self):
        """Parse the command line. The error of an unknown flag names a similar one."""
        if "--version" in sys.argv[1:]:
            print(describe_versions())
            self.exit()
        try:
            namespace, unknown = self.parse_known_args()
        except ValueError as error:  # not UTF-8, or a quotation mark is missing
            self.error(f"@FILE: not flags as on the command line ({error})")
        if unknown:
            name, known = unknown[0].partition("=")[0], self._option_string_actions
            elsewhere = NAMES_ELSEWHERE.get(name.replace("-", "_").strip("_"))
            similar = [elsewhere] if elsewhere else difflib.get_close_matches(name, known)
            guess = f" (did you mean {similar[0]}?)" if similar else ""
            self.error(f"there is no flag {name}{guess}")
        return namespace


def cpu_info() -> str:
    """What Linux says of the processor; empty on another system."""
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def describe_versions() -> str:
    """What a report of an error needs."""
    names = ("tensorflow", "tensorflow_cpu", "keras")
    found = (f"{own.name} {own.version}" for own in metadata.distributions() if own.name in names)
    versions = f"Transformer {VERSION}", *sorted(found), f"Python {platform.python_version()}"
    name = re.findall("model name.*: (.*)", cpu_info())[:1]
    bfloat16 = "bfloat16" if "bf16" in cpu_info() else "no bfloat16"
    machine = *name, f"{os.cpu_count()} cores", bfloat16
    return ", ".join([*versions, platform.platform(), *machine])


def parse_flags(description, *own, hparams, names=None, check=lambda _: None, repeated="") -> dict:
    """Parse the command line of a script that will load TensorFlow: the flags that are given.

    They are those of `own` classes, and of `hparams` all, or the `names` of a script that reads a
    model. `check` raises InputError. The value of the `repeated` flag is a list.
    """
    parser = Parser(
        usage="%(prog)s [--FLAG VALUE | @FILE] ...",
        description=f"{description}\n\n@FILE stands for the flags in a file.",
        argument_default=argparse.SUPPRESS,
    )
    fields, groups = {}, {}
    for kind in (*own, hparams):
        is_saved = names and kind is hparams
        for field in dataclasses.fields(kind):
            title = field.metadata["group"]
            if title is None or is_saved and field.name not in names:
                continue
            fields[field.name] = field
            groups[title] = groups.get(title) or parser.add_argument_group(title)
            of_model = is_saved and (field.metadata["fixed"] or title != "data")
            default = "the model's" if of_model else field.default
            action = "append" if field.name == repeated else None
            add_flag(groups[title], field, default, action)
    given = vars(parser.parse_args())
    try:
        for name, given_value in given.items():
            for value in given_value if name == repeated else [given_value]:
                check_value(fields[name], value)
                if fields[name].metadata["path"]:
                    check_paths_exist(name, value)
        for kind in own:
            kind.of(given)
        check(given)
    except (InputError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    if not find_spec("tensorflow"):
        message = "has no TensorFlow. Run `make install`, and then `source .venv/bin/activate`"
        parser.exit(2, f"{parser.prog}: {sys.executable} {message}\n")
    load_tensorflow()
    return given


def add_flag(group, field, default, action=None):
    """Add the flag of a field to a group of argparse."""
    text = f"{field.metadata['help']} (default: {default})".replace("%", "%%")
    if field.type is bool:
        options = dict(action=argparse.BooleanOptionalAction)
    elif field.metadata["choices"]:
        options = dict(metavar="|".join(field.metadata["choices"]))
    else:
        options = dict(type=expand_path if field.type is str else field.type, action=action)
        options["metavar"] = field.type.__name__.upper()
    group.add_argument(f"--{field.name}", help=text, **options)
    if field.metadata["positional"]:
        group.add_argument(field.name, nargs="?", type=expand_path, help=argparse.SUPPRESS)


def expand_path(word) -> str:
    """Replace ~ and $HOME, as no shell does in --logdir=~/run."""
    return ",".join(map(os.path.expanduser, os.path.expandvars(word).split(",")))


def split_paths(value) -> list[str]:
    """Split the value of a flag that names a file, or several with commas between them."""
    return [value] if os.path.exists(value) else value.split(",")


def check_paths_exist(name, value):
    """Raise InputError if a file or folder is missing that a flag names; "-" and NONE are none."""
    for path in split_paths(value):
        if path not in ("-", NONE) and not os.path.exists(path):
            raise InputError(f"{path or value}: no such file or directory. Check --{name}")


def load_tensorflow():
    """Load TensorFlow: quietly, in less time, and Ctrl-C ends the program at once.

    Without garbage collection until `run_script` it takes half a second less, and without
    matplotlib, which Keras would import for pictures of its own, a third of a second.
    """
    # Settings of other Keras programs must not change a model. No keras.json is in os.devnull.
    os.environ |= dict(KERAS_BACKEND="tensorflow", KERAS_HOME=os.devnull)
    gc.disable()
    sys.modules.setdefault("matplotlib", None)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "TF_CPP_MIN_LOG_LEVEL" in os.environ:
        return
    # TensorFlow 2.21 reads it only after its first notices (its issue 100442).
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    stderr = os.dup(2)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        importlib.import_module("tensorflow")
    finally:
        os.dup2(stderr, 2)
