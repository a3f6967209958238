"""Run a script: its errors are one line, and its exit code tells their kind."""

import gc
import os
import signal
import sys

from support.errors import InputError
from support.signals import raise_keyboard_interrupt, termination_signals

# What a wrong path of a user raises.
PATH_ERRORS = (
    *(FileNotFoundError, FileExistsError, PermissionError),
    *(IsADirectoryError, NotADirectoryError),
)


def run_script(main, *arguments):
    """Call `main(*arguments)`, print its error as one line, and end the program.

    The exit code is 2 for an error of the user, 1 for one of the system, and 128 plus the number of
    a signal. The arguments of a KeyboardInterrupt may be that number, and a message.
    """
    program = os.path.basename(sys.argv[0])
    gc.freeze()  # collections skip the objects of TensorFlow, half a million
    gc.enable()
    if sys.modules.get("matplotlib", "") is None:  # see `prepare_loading`
        del sys.modules["matplotlib"]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in termination_signals():
        signal.signal(number, raise_keyboard_interrupt)
    for stream in (sys.stdin, sys.stdout, sys.stderr):  # file names may hold any bytes
        stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    code = 0
    try:
        main(*arguments)
        sys.stdout.flush()
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
        number, message = [*error.args, *(signal.SIGINT, "stopped")[len(error.args) :]]
        code = 128 + number
    if code:
        if message:
            print(f"{program}: {message}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes at exit, and may fail again
        sys.exit(code)
