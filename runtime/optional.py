"""Import packages that only some formats need."""

import importlib
from importlib.util import find_spec

from runtime.errors import InputError


def import_optional(module):
    """Import a module of a package that has the same name as its first part."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise missing_error(package) from None


def check_installed(packages):
    """Raise InputError if one of several packages is missing. None is imported."""
    for package in packages:
        if not find_spec(package):
            raise missing_error(package)


def missing_error(package) -> InputError:
    """Return the error for a package that is not installed."""
    return InputError(
        f"{package} is not installed. Install it with `pip install {package}`, or in the"
        f" environment of `make` with `.venv/bin/pip install {package}`"
    )
