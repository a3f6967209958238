"""The error that a user can correct."""

import re


class InputError(Exception):
    """Invalid user input. The message says what is wrong and how to correct it."""

    def __str__(self):
        """Return the message as one line. A file from someone else may have control characters."""
        return re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", super().__str__())
