"""Declare flags: the default, help text and valid range of each.

The flags of a script are the fields of dataclasses that derive from `Flags`. This module
imports nothing heavy, so that `--help` answers at once.
"""

import dataclasses
import os
import re

from runtime.errors import InputError

INT32_LIMIT = 2**31  # exclusive; TensorFlow counts with 32 bits
WIDTH_LIMIT = 2**16 + 1  # exclusive; units of a layer
AUTO = "auto"  # the value of a field that the program chooses
NONE = "none"  # the value of a field that names a file or folder, if there is none
URL_PATTERN = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def flag(
    default,
    description,
    at_least=None,
    below=None,
    choices=None,
    group="",
    fixed=None,
    auto=False,
    path=False,
):
    """Declare a field of a `Flags` dataclass.

    Args:
      at_least: smallest valid number.
      below: smallest number that is too large.
      choices: the valid strings; None for any.
      group: title under which `--help` lists the flag.
      fixed: "model" if a trained model depends on the value; "epoch" if changing it in the
        middle of an epoch would change the batches.
      auto: whether the value may be `AUTO`.
      path: whether it names a file or folder, or several with commas between them.
    """
    metadata = dict(help=description, at_least=at_least, below=below, choices=choices)
    metadata |= dict(group=group, fixed=fixed, auto=auto, path=path)
    return dataclasses.field(default=default, metadata=metadata)


class Flags:
    """Base of the dataclasses whose fields are declared with `flag`."""

    def __post_init__(self):
        for field in dataclasses.fields(self):
            check_value(field, getattr(self, field.name))

    @classmethod
    def split(cls, flags):
        """Split parsed flags into an instance of this class and a dict of the rest."""
        names = {field.name for field in dataclasses.fields(cls)}
        own = {name: value for name, value in flags.items() if name in names}
        return cls(**own), {name: value for name, value in flags.items() if name not in names}


def check_not_given(flags, names, reason):
    """Raise InputError if one of the names is among the flags of the command line.

    Args:
      reason: what follows the name in the message.
    """
    for name in names:
        if name in flags:
            raise InputError(f"{name} {reason}. Leave it out")


def check_value(field, value):
    """Raise InputError unless `value` is valid for `field`."""
    if value == AUTO and field.metadata["auto"]:
        return
    if type(value) not in ((int, float) if field.type is float else (field.type,)):
        raise InputError(f"{field.name} is {value!r}. It must be of type {field.type.__name__}")
    if field.type in (int, float):
        low, high = field.metadata["at_least"], field.metadata["below"]
        if not low <= value < high:
            raise InputError(f"{field.name} is {value}. It must be at least {low} and below {high}")
    elif field.metadata["choices"] and value not in field.metadata["choices"]:
        names = ", ".join(field.metadata["choices"])
        raise InputError(f"{field.name} is {value}. Choose one of {names}")
    elif field.type is str and not value:
        raise InputError(f"{field.name} is empty. Give it a value")
    elif field.type is str and not value.isprintable():
        # A file that someone else wrote may contain sequences that control the terminal.
        if any(ord(char) < 32 or 127 <= ord(char) < 160 for char in value):
            raise InputError(f"{field.name} is {value!r}. It must not contain control characters")
    if field.metadata["path"]:
        check_no_url(value)


def check_no_url(value):
    """Raise InputError if a path is a URL, which Python and TensorFlow read differently."""
    for path in value.split(","):
        if URL_PATTERN.match(path):
            raise InputError(f"{path}: is a URL. Name a file or folder on this machine")


def expand_path(value) -> str:
    """Replace ~ and variables like $HOME, as a shell does, in a path or several with commas.

    No shell has done so in --logdir=~/run and in files of flags.
    """
    return ",".join(os.path.expanduser(os.path.expandvars(path)) for path in value.split(","))
