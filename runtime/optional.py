"""Import packages that only some formats need."""

import importlib
from importlib.util import find_spec

from runtime.errors import InputError


def import_optional(module):
    """Import a module of a package that may not be installed."""
    check_installed([module.partition(".")[0]])
    return importlib.import_module(module)


def check_installed(packages):
    """Raise InputError if a package is missing. None is imported."""
    for package in packages:
        if not find_spec(package):
            raise InputError(f"{package} is not installed. Install it with `pip install {package}`")
