"""Parse the flags of a script, run it, and print its errors in one line.

Scripts call `parse_flags` before they import TensorFlow, which takes seconds, so that
`--help` and a wrong flag are answered at once.
"""

import argparse
import contextlib
import difflib
import errno
import gc
import io
import os
import re
import shlex
import signal
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from runtime.errors import InputError
from runtime.flags import AUTO, check_no_url, check_value, expand_path
from runtime.signals import (
    raise_keyboard_interrupt,
    set_handler,
    silence,
    termination_signals,
)

ROOT = Path(__file__).resolve().parent.parent  # of the repository, where commands are run

# Flags -------------------------------------------------------------------------


def parse_flags(description, settle, hparams, *extra, reads_model=False):
    """Parse the command line, and return what a script makes of its flags.

    Ctrl-C then ends the program without a message, until `run_script` prints one.

    Args:
      settle: function from the flags that are given, a dict, to what `main` of the script takes.
        It makes the checks that need no TensorFlow.
      hparams: the class `Hyperparams`.
      extra: `Flags` classes of this script alone.
      reads_model: whether the script reads a trained model, whose hyperparameters are the
        defaults then.
    """
    check_environment()
    settle_environment()
    prepare_streams()
    begin_loading()
    parser = Parser(
        usage="%(prog)s [--FLAG VALUE | @FILE] ...",
        description=f"{description}\n{FLAG_FILE_NOTE}",
        epilog=MODEL_EPILOG if reads_model else hparams.describe_recipes(),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
        formatter_class=HelpFormatter,
    )
    try:
        words = read_flag_files(sys.argv[1:])
    except InputError as error:
        parser.error(str(error))
    saved = read_saved(words, hparams) if reads_model and {"-h", "--help"} & {*words} else {}
    titles = [
        *(["this script"] if extra else []),
        "data",
        "model",
        "training",
        "decoding",
        "checkpoints",
    ]
    groups = {title: parser.add_argument_group(title) for title in titles}
    for kind in (*extra, hparams):
        for field in kind.declared():
            default = field.default
            if reads_model and kind is hparams and field.name != "logdir":
                default = saved.get(field.name, "the model's")
            add_flag(groups[field.metadata["group"] or "this script"], field, default)
    namespace, unknown = parser.parse_known_args(words)
    if unknown:
        parser.error(explain_unknown(unknown[0], parser.option_strings()))
    flags = vars(namespace)
    try:
        for kind in (*extra, hparams):
            for field in kind.declared():
                if field.name in flags:
                    check_value(field, flags[field.name])
    except InputError as error:
        parser.error(str(error))
    try:
        return settle(flags)
    except InputError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except OSError as error:  # a folder may not be read, or a name is too long
        problem = str(error)
        if error.filename:
            problem = f"{error.filename}: {error.strerror.lower()}. Check the path"
        parser.exit(2, f"{parser.prog}: {problem}\n")


FLAG_FILE_NOTE = "@FILE stands for the flags in a file, written as on the command line."
MODEL_EPILOG = (
    "A model's flags are saved in hparams.json in its logdir, and are the defaults here. To see"
    " them, add --logdir to --help. A checkpoint of the 2017 code has no such file: its defaults"
    " are those of --recipe legacy, which `python train.py --help` lists."
)


def read_flag_files(words) -> list[str]:
    """Replace each word @FILE by the words in that file, separated as in a shell."""
    outputs = []
    for word in words:
        if not word.startswith("@"):
            outputs.append(word)
            continue
        path = Path(expand_path(word[1:]))
        try:
            outputs += shlex.split(remove_comments(path.read_text("utf-8-sig")))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror.lower()}. Name a file after @") from None
        except ValueError as error:  # not UTF-8, or a quotation mark is missing
            problem = f"not flags as on the command line ({error})"
            raise InputError(f"{path}: {problem}. Write them as --maxlen 25") from None
    return outputs


def remove_comments(text) -> str:
    """Remove comments from # to the end of the line. A # in quotation marks or in a word stays.

    >>> remove_comments("--seed 1 # a comment\\n--logdir 'a #2' --results b#3")
    "--seed 1 \\n--logdir 'a #2' --results b#3"
    """
    kept = r"""("(?:\\.|[^"\\])*"|'[^']*'|\\.)"""
    return re.sub(rf"(?m){kept}|(^|\s)#.*", lambda match: match[1] or match[2] or "", text)


def read_saved(words, hparams) -> dict:
    """Read the hyperparameters of the model in the folder that `--logdir` names; {} if none."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--logdir", default=hparams.logdir, type=parse_path)
    try:
        return hparams.saved_in(parser.parse_known_args(words)[0].logdir)
    except (argparse.ArgumentError, OSError):
        return {}


def add_flag(group, field, default):
    """Add the flag of a dataclass field to an argparse group."""
    name, text = f"--{field.name}", field.metadata["help"]
    kind, metavar = dict(type=field.type), field.type.__name__.upper()
    if field.type is bool:
        kind, negation = dict(type=parse_bool, nargs="?", const=True), f"--no-{field.name}"
        group.add_argument(negation, dest=field.name, action="store_false", help=argparse.SUPPRESS)
        text += f"; {negation}: off"
    elif field.metadata["auto"]:
        kind, metavar = dict(type=partial(number_or_auto, field.type)), f"{metavar}|{AUTO}"
    elif field.metadata["choices"]:
        metavar = "|".join(field.metadata["choices"])
    elif field.metadata["path"]:
        kind = dict(type=parse_path)
    shown = str(default).replace("%", "%%")  # argparse replaces %(prog)s and the like
    group.add_argument(name, metavar=metavar, help=f"{text} (default: {shown})", **kind)


def check_environment():
    """End the program where TensorFlow is not available, or the current folder is deleted."""
    folder = None
    with contextlib.suppress(OSError):
        folder = os.getcwd()
    if sys.platform in ("win32", "cygwin"):
        message = "Windows is not supported. Run it within WSL2 (https://aka.ms/wsl), as on Linux"
    elif not find_spec("tensorflow"):
        message = (
            f"{sys.executable} has no TensorFlow. Run `make install` and then"
            " `source .venv/bin/activate`, or `pip install -r requirements.txt`"
        )
    elif folder is None:
        message = "the current folder was deleted. Change to another one, for example with `cd ~`"
    else:
        return
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    sys.exit(2)


def settle_environment():
    """Set the variables of TensorFlow and Keras, before they are loaded.

    The settings of other Keras programs, as in ~/.keras/keras.json, must not change a model.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # hides TensorFlow's notices
    for name in [name for name in os.environ if name.startswith("KERAS_")]:
        del os.environ[name]
    os.environ |= dict(KERAS_BACKEND="tensorflow", KERAS_HOME=os.devnull)  # no keras.json there
    if not os.environ.get("TF_CONFIG", "").strip():
        os.environ.pop("TF_CONFIG", None)


def begin_loading():
    """Prepare to load TensorFlow: Ctrl-C ends the program at once, and loading takes less time.

    Python collects no garbage until `end_loading`, which saves half a second, and matplotlib is
    hidden: Keras would import it for pictures of its own, which takes a third of a second. With
    None in `sys.modules`, it looks as if matplotlib were not installed.
    """
    gc.disable()
    sys.modules.setdefault("matplotlib", None)
    set_handler(signal.SIGINT, signal.SIG_DFL)


def end_loading():
    """Undo `begin_loading`. A notebook continues after a script."""
    gc.freeze()  # collections skip the objects of TensorFlow, half a million
    gc.enable()
    if sys.modules.get("matplotlib", "") is None:
        del sys.modules["matplotlib"]
    set_handler(signal.SIGINT, signal.default_int_handler)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with exit code 2."""

    def exit(self, status=0, message=None):
        """End the program before TensorFlow is loaded."""
        end_loading()
        super().exit(status, message)

    def error(self, message):
        """Print the message and how to list all flags, and end the program."""
        message += "" if message[-1] in ".?" else "."
        script = Path(os.path.realpath(sys.argv[0]))
        script = script.relative_to(ROOT) if script.is_relative_to(ROOT) else self.prog
        self.exit(2, f"{self.prog}: {message} `python {script} --help` lists all flags.\n")

    def option_strings(self):
        """All flags, with their dashes."""
        return [*self._option_string_actions]


class HelpFormatter(argparse.HelpFormatter):
    """A formatter that keeps the lines of the epilog."""

    def _fill_text(self, text, width, indent):
        filled = super()._fill_text
        return "\n".join(filled(line, width, indent) for line in text.splitlines())


# Flags of the paper and of other programs, by their names there.
NAMES_ELSEWHERE = {
    "--learning_rate": "--lr",
    "--d_model": "--hidden_units",
    "--d_ff": "--ffn_units",
    "--num_layers": "--num_blocks",
    "--beam_size": "--beam",
}


def explain_unknown(word, known) -> str:
    """Explain a word of the command line that is not a flag.

    >>> explain_unknown("--max_len=25", ["--maxlen", "--logdir"])
    'there is no flag --max_len: did you mean --maxlen?'
    >>> explain_unknown("--learning_rate", ["--lr", "--logdir"])
    'there is no flag --learning_rate: did you mean --lr?'
    """
    if not word.startswith("-"):
        return f"{word!r} follows no flag. Each value needs its flag before it"
    name = word.partition("=")[0]
    other_name = NAMES_ELSEWHERE.get(name)
    similar = [other_name] if other_name in known else difflib.get_close_matches(name, known)
    guess = f": did you mean {similar[0]}?" if similar else "."
    return f"there is no flag {name}{guess}"


def parse_bool(word) -> bool:
    """Convert the words True, False, 1 and 0, in any case.

    >>> parse_bool("False")
    False
    """
    try:
        return {"true": True, "1": True, "false": False, "0": False}[word.lower()]
    except KeyError:
        raise argparse.ArgumentTypeError(f"{word} is neither True nor False") from None


def parse_path(word) -> str:
    """Return a path of the command line, as `expand_path` does.

    A URL is an error, and so is a name that no file can have: since Python 3.14, such a file just
    does not exist.
    """
    try:
        check_no_url(word)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    path = expand_path(word)
    for name in path.split(","):  # there may be several
        try:
            os.lstat(name)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                text = f"{name}: {error.strerror.lower()}. Check the path"
                raise argparse.ArgumentTypeError(text) from None
        except ValueError:
            pass  # a zero byte has a message of its own
    return path


def number_or_auto(kind, word):
    """Convert a word to a number of the type `kind`, or return `AUTO`."""
    try:
        return AUTO if word == AUTO else kind(word)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{word} is neither a number nor {AUTO}") from None


# Running -----------------------------------------------------------------------


class ReportStream(io.TextIOWrapper):
    """A stream for messages and progress, whose errors do not end the program.

    The other end of a pipe may be closed, as when the connection to a terminal is lost, or the
    disk may be full. Later output is lost.

    Attributes:
      error: the first error of writing, or None.
      earlier: the stream in whose place this one is.
    """

    error = earlier = None

    def write(self, text):
        """Write text."""
        try:
            return super().write(text)
        except OSError as error:
            self.discard(error)
            return len(text)

    def flush(self):
        """Write the buffered text."""
        try:
            super().flush()
        except OSError as error:
            self.discard(error)

    def discard(self, error):
        """Discard the rest. Else each later write, and Python at exit, would fail again."""
        self.error = self.error or error
        silence_stream(self)


def silence_stream(stream):
    """Discard the output of a stream, also the buffered one. A notebook's stream stays."""
    with contextlib.suppress(OSError):
        silence([stream.fileno()])


def prepare_streams():
    """Make standard streams that are open, and UTF-8 in any locale.

    Standard output and error become `ReportStream`. Data goes to `sys.stdout.buffer`, whose errors
    are raised. A notebook has streams of its own, which stay.
    """
    for name in ("stdin", "stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # the caller has closed it
            stream = open(os.devnull, "r+")
            setattr(sys, name, stream)
        if type(stream) is not io.TextIOWrapper:
            continue
        # File names may hold any bytes.
        errors = "backslashreplace" if name == "stderr" else "surrogateescape"
        if name == "stdin":
            stream.reconfigure(encoding="utf-8", errors=errors)
        else:
            buffering = dict(line_buffering=stream.line_buffering)
            buffering |= dict(write_through=stream.write_through)
            with contextlib.suppress(OSError):
                stream.flush()
            # The buffer is not detached: the loggers of TensorFlow still write to `stream`.
            report = ReportStream(stream.buffer, "utf-8", errors, **buffering)
            report.earlier = stream  # without a reference, it would close the buffer
            setattr(sys, name, report)


def run_script(main, *arguments, interrupted_message="stopped"):
    """Call `main(*arguments)`, print an error as one line, and exit with its code.

    The code is 2 for an InputError, 1 for an OSError, and 128 plus the number of a signal.

    Args:
      interrupted_message: printed after Ctrl-C, SIGTERM or SIGHUP. A KeyboardInterrupt whose
        arguments are a signal and a message prints that message instead.
    """
    program = Path(sys.argv[0]).name
    end_loading()
    prepare_streams()
    for number in termination_signals():
        set_handler(number, raise_keyboard_interrupt)
    try:
        main(*arguments)
        sys.stdout.flush()
    except InputError as error:
        print(f"{program}: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        if not isinstance(error, BrokenPipeError):  # the reader closed the pipe, as `head` does
            print(f"{program}: {error}", file=sys.stderr)
        sys.stdout.flush()  # the lines printed before the error
        silence_stream(sys.stdout)  # else Python would fail once more at exit
        sys.exit(1)
    except KeyboardInterrupt as interrupt:
        defaults = signal.SIGINT, interrupted_message
        number, message = interrupt.args + defaults[len(interrupt.args) :]
        print(f"\n{program}: {message}", file=sys.stderr)
        sys.exit(128 + number)
    error = getattr(sys.stdout, "error", None)
    if error and not isinstance(error, BrokenPipeError):
        print(f"{program}: the report could not be written: {error.strerror}", file=sys.stderr)
        sys.exit(1)
