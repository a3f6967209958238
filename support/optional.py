"""Import packages that only some formats need."""

import importlib
from importlib.util import find_spec

from support.errors import InputError


def import_optional(module):
    """Import a module of a package that may not be installed."""
    package = module.partition(".")[0]
    if not find_spec(package):
        raise InputError(f"{package} is not installed. Install it with `pip install {package}`")
    return importlib.import_module(module)
