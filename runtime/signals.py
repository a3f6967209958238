"""Handle Ctrl-C, SIGTERM, and SIGHUP, which comes when the terminal is closed."""

import contextlib
import os
import signal
import threading


def termination_signals() -> list[int]:
    """SIGTERM, and SIGHUP unless it is ignored, as `nohup` makes the program do."""
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGTERM, *hangup]


def set_handler(number, handler):
    """Set a signal handler; returns the one before. Outside of the main thread, do nothing."""
    if threading.current_thread() is threading.main_thread():
        return signal.signal(number, handler)


def raise_keyboard_interrupt(number, _):
    """Signal handler: end the program as Ctrl-C does."""
    raise KeyboardInterrupt(number)


class SignalGuard:
    """Context manager that defers Ctrl-C, SIGTERM and SIGHUP until the program has saved its work.

    A second Ctrl-C or SIGTERM ends the program at once. SIGHUP often comes twice: from the shell
    that ends and from the system.
    """

    def __init__(self):
        self.signal = None  # number of the first signal
        self.immediate = False  # whether a signal may end the program right now

    def __enter__(self):
        self.terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        numbers = (signal.SIGINT, *termination_signals())
        self.previous = {number: set_handler(number, self.handle) for number in numbers}
        return self

    def __exit__(self, *_):
        for number, handler in self.previous.items():
            set_handler(number, handler)

    def handle(self, number, _):
        """Signal handler: note the first signal, raise KeyboardInterrupt at the second."""
        if number == signal.SIGHUP:
            silence(self.terminals)
        is_second = self.signal is not None and number != signal.SIGHUP
        self.signal = number
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


def silence(streams):
    """Discard what is written to these file descriptors: a closed terminal reports an error."""
    with open(os.devnull, "wb") as devnull:
        for stream in streams:
            os.dup2(devnull.fileno(), stream)
