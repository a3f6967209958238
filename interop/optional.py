"""Import packages that only some formats need."""

import importlib

from runtime.errors import InputError


def import_optional(module):
    """Import a module of a package that has the same name as its first part."""
    package = module.partition(".")[0]
    try:
        return importlib.import_module(module)
    except ImportError:
        raise InputError(
            f"{package} is not installed. Install it with `pip install {package}`, or in the"
            f" environment of `make` with `.venv/bin/pip install {package}`"
        ) from None
