"""Run a script: its errors are one line, its exit code tells their kind, and signals end it."""

import gc
import os
import signal
import sys

from support.errors import InputError

# What a wrong path of a user raises.
PATH_ERRORS = (
    *(FileNotFoundError, FileExistsError, PermissionError),
    *(IsADirectoryError, NotADirectoryError),
)


def run_script(main, *arguments):
    """Call `main(*arguments)`, print its error as one line, and end the program.

    The exit code is 2 for an error of the user, 1 for one of the system, and 128 plus the number of
    a signal. The arguments of a KeyboardInterrupt are that number and a message.
    """
    gc.freeze()  # collections skip the objects of TensorFlow, half a million
    gc.enable()
    if sys.modules.get("matplotlib", "") is None:  # see `load_tensorflow`
        del sys.modules["matplotlib"]
    for number in ending_signals():
        signal.signal(number, interrupt)
    for stream in filter(None, (sys.stdin, sys.stdout, sys.stderr)):  # None: it is closed
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")  # any file names
    try:
        main(*arguments)
        print(end="", flush=True)
        return
    except InputError as error:
        code, message = 2, error
    except BrokenPipeError:  # the reader of the output has ended, as `head` does
        code, message = 1, ""
    except OSError as error:
        code, message = 2 if isinstance(error, PATH_ERRORS) else 1, error
        if error.filename:
            remedy = "Check the path" if code == 2 else "Correct this, and run the command again"
            message = f"{error.filename}: {error.strerror.lower()}. {remedy}"
    except KeyboardInterrupt as error:
        number, message = error.args or (signal.SIGINT, "stopped")
        code = 128 + number
    if message:
        print(f"{os.path.basename(sys.argv[0])}: {message}", file=sys.stderr)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes at exit, and may fail again
    sys.exit(code)


def ending_signals() -> list[int]:
    """Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends, unless `nohup` ignores it."""
    hangup = [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]
    return [signal.SIGINT, signal.SIGTERM, *hangup]


def interrupt(number, _):
    """Signal handler: end the program."""
    raise KeyboardInterrupt(number, "stopped")


class SignalGuard:
    """Context manager that notes Ctrl-C, SIGTERM and SIGHUP, so that work can be saved.

    A second Ctrl-C or SIGTERM ends the program at once.
    """

    signal = None  # its number

    def __enter__(self):
        self.terminals = [stream for stream in (1, 2) if os.isatty(stream)]
        self.previous = {number: signal.signal(number, self.note) for number in ending_signals()}
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
            interrupt(number, None)
        self.signal = number
