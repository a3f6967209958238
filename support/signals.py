"""Handle Ctrl-C, SIGTERM, and SIGHUP, which comes when the terminal is closed."""

import os
import signal


def termination_signals() -> list[int]:
    """SIGTERM, and SIGHUP unless it is ignored, as `nohup` makes the program do."""
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, *hangup]


def raise_keyboard_interrupt(number, _):
    """Signal handler: end the program as Ctrl-C does."""
    raise KeyboardInterrupt(number)


class SignalGuard:
    """Context manager that notes Ctrl-C, SIGTERM and SIGHUP, so that work can be saved.

    A second Ctrl-C or SIGTERM ends the program at once.

    Attributes:
      signal: number of the first signal, or None.
    """

    signal = None

    def __enter__(self):
        self.terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        numbers = (signal.SIGINT, *termination_signals())
        self.previous = {number: signal.signal(number, self.note) for number in numbers}
        return self

    def __exit__(self, *_):
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def note(self, number, _):
        """Signal handler. SIGHUP often comes twice: from the shell that ends, and the system."""
        if number == signal.SIGHUP:  # what is written to a closed terminal would fail
            for stream in self.terminals:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        elif self.signal is not None:
            raise KeyboardInterrupt(number)
        self.signal = self.signal or number
