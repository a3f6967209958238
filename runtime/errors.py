"""The error that a user can correct."""


class InputError(Exception):
    """Invalid user input. The message says what is wrong and how to correct it."""
