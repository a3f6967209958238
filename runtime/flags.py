"""Declare flags: the default, help text, valid range and rules of each.

The flags of a script are the fields of dataclasses that derive from `Flags`. This module
imports nothing heavy, so that `--help` answers at once.
"""

import dataclasses
import importlib
import os
import re
from collections.abc import Callable
from typing import NamedTuple

from runtime.errors import InputError

INT32_LIMIT = 2**31  # exclusive; TensorFlow counts with 32 bits
WIDTH_LIMIT = 2**16 + 1  # exclusive; units of a layer
AUTO = "auto"  # the value of a field that the program chooses
NONE = "none"  # the value of a field that names a file or folder, if there is none
URL_PATTERN = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)

# Rules -------------------------------------------------------------------------


class Condition(NamedTuple):
    """A condition of a rule that is not just a valid value, or a tuple of valid values."""

    holds: Callable  # of the value
    description: str  # completes "needs ..."; {name} stands for the name of the value


def above(limit) -> Condition:
    """The condition that a number is above a limit."""
    return Condition(lambda value: value > limit, f"--{{name}} above {limit}")


@dataclasses.dataclass(frozen=True)
class Choice:
    """A row of a table of what can be chosen by name (choices.py).

    Attributes:
      target: the module and name of the class or function that implements it.
      needs, remedy: as in `flag`; they apply if this row is chosen.
    """

    target: str = ""
    needs: dict = dataclasses.field(default_factory=dict)
    remedy: str = ""

    def load(self):
        """Import the class or function."""
        module, _, name = self.target.rpartition(".")
        return getattr(importlib.import_module(module), name)


def check_conditions(subject, conditions, values, remedy):
    """Raise InputError unless the conditions of a rule hold.

    Args:
      subject: begins the message, as "top_k 5 needs".
      conditions: dict, a value, a tuple of values or a `Condition` by the name of a field or
        property. A name that `values` lacks is not checked.
      values: object that has the values.
      remedy: ends the message.
    """
    for name, wanted in conditions.items():
        value = getattr(values, name, wanted)
        if isinstance(wanted, Condition):
            holds, description = wanted.holds, wanted.description
        else:
            several = wanted if isinstance(wanted, tuple) else (wanted,)
            holds = several.__contains__
            description = " or ".join(as_flag("{name}", value) for value in several)
        if value is not wanted and not holds(value):
            actual = f", and it is {value}" if description.startswith("--") else ""
            raise InputError(f"{subject} {description.format(name=name)}{actual}. {remedy}")


def as_flag(name, value) -> str:
    """Write a value as on the command line.

    >>> [as_flag("sinusoid", value) for value in (True, False)], as_flag("maxlen", 10)
    (['--sinusoid', '--no-sinusoid'], '--maxlen 10')
    """
    if isinstance(value, bool):
        return f"--{name}" if value else f"--no-{name}"
    return f"--{name} {value}"


# Flags -------------------------------------------------------------------------


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
    needs=None,
    only_with=None,
    remedy="",
):
    """Declare a field of a `Flags` dataclass.

    Args:
      at_least: smallest valid number.
      below: smallest number that is too large.
      choices: the valid strings, perhaps with a `Choice` for each; None for any.
      group: title under which `--help` lists the flag.
      fixed: "model" if a trained model depends on the value; "epoch" if changing it in the
        middle of an epoch would change the batches.
      auto: whether the value may be `AUTO`.
      path: whether it names a file or folder, or several with commas between them.
      needs: dict as in `check_conditions`, which must hold if the value is not the default.
      only_with: the same, if the flag is given; otherwise it would have no effect.
      remedy: what to do if one of these does not hold.
    """
    metadata = dict(help=description, at_least=at_least, below=below, choices=choices)
    metadata |= dict(group=group, fixed=fixed, auto=auto, path=path)
    metadata |= dict(needs=needs or {}, only_with=only_with or {}, remedy=remedy)
    return dataclasses.field(default=default, metadata=metadata)


class Flags:
    """Base of the dataclasses whose fields are declared with `flag`."""

    @classmethod
    def declared(cls) -> list[dataclasses.Field]:
        """List the fields that are flags."""
        return [field for field in dataclasses.fields(cls) if field.metadata]

    def as_dict(self) -> dict:
        """The values of the flags by their names."""
        return {field.name: getattr(self, field.name) for field in self.declared()}

    def __post_init__(self):
        for field in self.declared():
            value = getattr(self, field.name)
            if hasattr(value, "item"):  # a number of NumPy
                value = value.item()
                object.__setattr__(self, field.name, value)
            check_value(field, value)
        self.check_needs(self)

    def check_needs(self, values):
        """Raise InputError if a value of this object contradicts one of `values`."""
        for field in self.declared():
            value, choices = getattr(self, field.name), field.metadata["choices"]
            subject = f"{field.name} needs" if value is True else f"{field.name} {value} needs"
            remedy = field.metadata["remedy"] or "Change one of the two"
            if value != field.default:
                check_conditions(subject, field.metadata["needs"], values, remedy)
            if isinstance(choices, dict) and value in choices:
                row = choices[value]
                check_conditions(subject, row.needs, values, row.remedy or remedy)

    def check_effects(self, given, values):
        """Raise InputError if one of the flags that were given has no effect.

        Args:
          given: their names.
          values: object that has the values of the rules.
        """
        for field in self.declared():
            if field.name in given:
                remedy = field.metadata["remedy"] or "Leave it out"
                subject = f"{field.name} has an effect only with"
                check_conditions(subject, field.metadata["only_with"], values, remedy)

    @classmethod
    def separate(cls, flags):
        """Separate parsed flags into an instance of this class and a dict of the rest."""
        names = {field.name for field in cls.declared()}
        own = {name: value for name, value in flags.items() if name in names}
        options = cls(**own)
        options.check_effects(own, options)
        return options, {name: value for name, value in flags.items() if name not in names}


def check_not_given(given, names, reason):
    """Raise InputError if one of the names is among the flags that were given.

    Args:
      given: dict, or names.
      reason: what follows the name in the message.
    """
    for name in names:
        if name in given:
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
