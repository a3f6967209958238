"""The error that a user can correct."""

import re


class InputError(Exception):
    """Invalid user input. The message says what is wrong and how to correct it."""

    def __str__(self):
        """Return the message with escapes for what is unprintable in a file from someone else."""
        unprintable = r"[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]"  # not bytes of paths
        return re.sub(unprintable, lambda match: ascii(match[0])[1:-1], super().__str__())
