"""Handle Ctrl-C and SIGTERM."""

import contextlib
import signal


def raise_keyboard_interrupt(number, _):
    """Signal handler: end the program as Ctrl-C does."""
    raise KeyboardInterrupt(number)


class SignalGuard:
    """Context manager that defers Ctrl-C and SIGTERM until the program has saved its work.

    A second signal ends the program at once.
    """

    def __init__(self):
        self.signal = None  # number of the first signal
        self.immediate = False  # whether a signal may end the program right now

    def __enter__(self):
        signals = (signal.SIGINT, signal.SIGTERM)
        self.previous = {number: signal.signal(number, self.handle) for number in signals}
        return self

    def __exit__(self, *_):
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def handle(self, number, _):
        """Signal handler: note the first signal, raise KeyboardInterrupt at the second."""
        is_second, self.signal = self.signal is not None, number
        if self.immediate or is_second:
            raise KeyboardInterrupt(number)

    def check(self):
        """Raise KeyboardInterrupt if a signal has come."""
        if self.signal is not None:
            raise KeyboardInterrupt(self.signal)

    @contextlib.contextmanager
    def interruptible(self):
        """Context manager in which a signal ends the program at once."""
        self.immediate = True
        try:
            self.check()
            yield
        finally:
            self.immediate = False
