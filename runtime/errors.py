"""The error that a user can correct."""


class InputError(Exception):
    """Invalid user input. The message says what is wrong and how to correct it."""


# What reading a JSON file may raise whose content is not as expected, or which is not JSON.
MALFORMED_JSON = (
    *(AttributeError, KeyError, TypeError, ValueError),
    *(OverflowError, RecursionError),  # numbers too large, nesting too deep
)
