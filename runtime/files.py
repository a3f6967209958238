"""Write files atomically, and only where the user allowed it."""

import contextlib
import hashlib
import io
import json
import os
import secrets
import shutil
import sys
from pathlib import Path

from runtime.errors import InputError
from runtime.flags import NONE

# Atomic writing ----------------------------------------------------------------


class NamedFile(io.FileIO):
    """A file to write bytes to. An error of writing has the path `shown_path`."""

    def __init__(self, path, mode, shown_path):
        super().__init__(path, mode)
        self.shown_path = shown_path

    def write(self, content):
        """Write bytes."""
        try:
            return super().write(content)
        except BrokenPipeError:  # the reader closed the pipe, which is no failure
            raise
        except OSError as error:
            raise write_error(self.shown_path, error) from None


def write_error(path, error) -> OSError:
    """Return an OSError with the path of the file that could not be written."""
    return OSError(f"{path}: cannot be written: {error.strerror or error}")


def open_named(path, mode="wb", shown_path=None):
    """Open a file to write bytes. An error of writing has its path, or `shown_path`."""
    return io.BufferedWriter(NamedFile(path, mode, shown_path or path))


@contextlib.contextmanager
def atomic_open(path, follow_links=True):
    """Open `path` to write bytes. Readers see the old file or the complete new one.

    A pipe or a device is written to directly. A file that is replaced keeps its permissions.

    Args:
      follow_links: whether a symbolic link stays, and the file that it leads to is written; else
        the new file replaces the link.
    """
    check_not_directory(path)
    path = Path(path)
    if follow_links:
        if path.exists() and not path.is_file():
            with open_named(path) as file:
                yield file
            return
        path = Path(os.path.realpath(path))
    make_folder(path.parent)
    temporary = temp_path(path)
    try:
        with open_named(temporary, "xb", path) as file:
            yield file
        try:
            fsync(temporary)
        except OSError as error:
            raise write_error(path, error) from None
        if path.is_file() and not path.is_symlink():
            shutil.copymode(path, temporary)
        durable_replace(temporary, path)
    finally:
        with contextlib.suppress(OSError):  # else the first error would be lost
            temporary.unlink()


@contextlib.contextmanager
def open_output(path):
    """Context manager: a file of bytes, written atomically, or standard output for "-"."""
    if path == "-":
        yield sys.stdout.buffer
    else:
        with atomic_open(path) as file:
            yield file


def is_shown(output) -> bool:
    """Whether the output of a script is on the terminal, where a progress bar would disturb it."""
    return output == "-" and sys.stdout.isatty()


def atomic_write(path, content, follow_links=True):
    """Write text or bytes to `path` as `atomic_open` does."""
    with atomic_open(path, follow_links) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def keep_copy(path) -> Path:
    """Copy a file that is about to be replaced; the name of the copy ends in its digest."""
    content = path.read_bytes()
    copy = path.with_name(f"{path.name}.{hashlib.sha256(content).hexdigest()[:8]}")
    # Who wrote the file can know this name, and could have put a link there.
    atomic_write(copy, content, follow_links=False)
    return copy


def temp_path(path) -> Path:
    """Temporary path in the same folder as `path`."""
    return path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")


def durable_replace(old, new):
    """Rename a file, and make the new name survive a loss of power."""
    os.replace(old, new)
    with contextlib.suppress(OSError):  # some file systems cannot
        fsync(Path(new).parent)


def fsync(path):
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# Locks -------------------------------------------------------------------------

MAX_HOLDER_BYTES = 20  # of the number of a process, in a lock


@contextlib.contextmanager
def lock_file(path, wait=True):
    """Context manager: hold the lock that a file is, which holds the number of this process.

    The system releases the lock when the process ends. Some file systems have no locks; this
    process then continues, with a message.

    Args:
      wait: whether to wait while another process holds the lock.

    Raises:
      BlockingIOError: another process holds the lock. Its only argument is that process, a str.
    """
    with open_lock(path) as file:
        content = file.read(MAX_HOLDER_BYTES + 1)
        try:
            flock(path, file, wait)
        except BlockingIOError:
            raise BlockingIOError(holder_in(content)) from None
        # The file, or another link to it, may be one of the user's.
        if is_holder(content) and os.fstat(file.fileno()).st_nlink == 1:
            file.seek(0)
            file.truncate()
            file.write(f"{os.getpid()}\n")
            file.flush()
        yield


def open_lock(path):
    """Open a lock to read and write it; create the file unless it exists."""
    if os.path.islink(path) or os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: is not a regular file, and a lock is needed here. Delete it")

    def opener(path, _):
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    return open(path, "r+", encoding="latin-1", opener=opener)


def flock(path, file, wait):
    """Lock an open file. Raise BlockingIOError if another process holds the lock, unless `wait`."""
    import fcntl  # Windows has none, and `check_environment` has a message for its users

    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                raise
            print(f"{path}: waiting for the process that holds this lock", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
    except BlockingIOError:
        raise
    except OSError as error:
        print(
            f"{path}: this file system has no locks ({error.strerror.lower()}). Make sure that no"
            " other training writes to this folder",
            file=sys.stderr,
        )


def is_holder(content) -> bool:
    """Whether the content of a lock is the number of a process, or empty."""
    return content == "" or content.removesuffix("\n").isdecimal()


def holder_in(content) -> str:
    """Return the number of the process in a lock, "?" if it has other content."""
    return content.strip() if is_holder(content) else "?"


def locked_error(folder, holder) -> InputError:
    """Return the error for a folder that another training run has locked."""
    return InputError(
        f"{folder}: another training run writes here (process {holder}). Wait for it, or use a new"
        " --logdir"
    )


# Folders -----------------------------------------------------------------------


def make_folder(folder):
    """Create a folder unless it exists."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise no_folder_error(folder) from None
    except OSError as error:
        raise InputError(
            f"{folder}: the folder cannot be created: {error.strerror.lower()}. Choose another path"
        ) from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"{folder}: this folder cannot be written to. Choose another path")


def no_folder_error(path) -> InputError:
    """Return the error for a file in place of a folder."""
    return InputError(
        f"{path}: is a file, and a folder is needed here. Choose another path, or move the file"
        " away"
    )


def check_may_make(folder):
    """Raise InputError if `make_folder` could not create or write to a folder."""
    existing = Path(folder)
    while not os.path.lexists(existing):
        existing = existing.parent
    if not existing.is_dir():
        raise no_folder_error(existing)
    if not os.access(existing, os.W_OK):
        raise InputError(f"{folder}: this folder cannot be written to. Choose another path")


def check_unlocked(folder):
    """Raise InputError if a training run holds the lock of a folder. No file is written."""
    import fcntl

    if not os.path.isfile(Path(folder) / "lock"):
        return
    try:  # the folder may come from someone else, with a pipe or a link in it
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        handle = os.open(Path(folder) / "lock", flags)
    except OSError:  # there is none, or training will report the problem
        return
    with open(handle, "rb") as file, contextlib.suppress(OSError):
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            content = file.read(MAX_HOLDER_BYTES + 1).decode("latin-1")
            raise locked_error(folder, holder_in(content)) from None


def check_utf8(path):
    """Raise InputError if a path is not UTF-8, since TensorFlow cannot write to it."""
    if not is_utf8(os.fspath(path)):
        raise InputError(f"{path}: this path is not UTF-8. Rename it")


def is_utf8(text) -> bool:
    """Whether text can be UTF-8: it has no half of a surrogate pair.

    Python reads other bytes of a path or of a terminal as such halves, and JSON can hold them.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_outputs(options, outputs, inputs):
    """Check the paths of a script's output files.

    Args:
      options: `Flags`.
      outputs, inputs: the fields that name files to write and to read; "-" and `NONE` name none.
    """
    names = {}  # by the real paths
    for name in (*inputs, *outputs):
        path = getattr(options, name)
        if path in ("-", NONE):
            continue
        real = os.path.realpath(path)
        if name in outputs:
            check_not_directory(path)
            device = os.path.exists(path) and not os.path.isfile(path)
            if not device:
                check_may_make(Path(real).parent)
            if real in names and not device:
                raise InputError(
                    f"{path}: --{names[real]} names this file, too. Choose another --{name}"
                )
        names[real] = name


def real_path(path) -> Path:
    """Follow links. Unlike `Path.resolve`, it does not fail where a link leads to itself."""
    return Path(os.path.realpath(path))


def check_exists(path, hint):
    """Raise InputError if there is no file or folder `path`; `hint` says what to do."""
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file or directory. {hint}")


def check_not_directory(path):
    """Raise InputError if `path`, which is to be a file, is a folder."""
    if Path(path).is_dir():
        raise InputError(f"{path}: is a folder. Name a file, or move the folder away")


def check_regular_file(path, reason):
    """Check that `path`, if it exists, is a regular file: no pipe, device or folder.

    Args:
      reason: why it must be one, and what to do, for the message.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: not a regular file, and {reason}")


def check_folder(folder):
    """Check a folder that someone else may have filled, before anything is written to it."""
    inside = real_path(folder)
    for path in Path(folder).rglob("*"):  # does not follow links
        if path.is_symlink() and not real_path(path).is_relative_to(inside):
            raise InputError(
                f"{path}: is a link out of this folder, and training would write to its target."
                " Replace it with the file itself, or delete it"
            )
        if not path.is_dir():
            check_regular_file(path, "training could write to it. Delete it")


# Files that come with a model --------------------------------------------------

MAX_JSON_BYTES = 2**24


def read_file(path, max_bytes) -> bytes:
    """Read a file that someone else may have written.

    Raises:
      OSError: it cannot be read.
    """
    check_regular_file(path, "a file is needed here. Copy the file again")
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        content = file.read(min(size, max_bytes) + 1)
    if len(content) > max_bytes:
        raise InputError(
            f"{path}: larger than {max_bytes:,} bytes, which no such file of this project is. Copy"
            " the file again"
        )
    return content


def read_json(path):
    """Read a JSON file that someone else may have written.

    Raises:
      OSError: it cannot be read.
      MALFORMED_JSON: it is not JSON.
    """
    return json.loads(read_file(path, MAX_JSON_BYTES).decode())


# Paths that come with a model --------------------------------------------------


def may_write(path, name, hp):
    """Whether this program may write to a path that the field `name` of `hp` gives.

    A model may come from someone else, and its hparams.json must not choose where files are
    written. A path is allowed in the current folder, or if a flag names it.
    """
    return name in hp.given or real_path(path).is_relative_to(real_path("."))


def check_may_write(path, name, hp):
    """Raise InputError unless `may_write`."""
    if not may_write(path, name, hp):
        raise InputError(
            f"{hp.path}: its field {name} leads to {path}, outside the current folder. To write"
            f" there, add --{name} {getattr(hp, name)}"
        )


def split_paths(value) -> list[str]:
    """Split the value of a flag that names one file, or several with commas between them.

    >>> split_paths("news.de,talks.de")
    ['news.de', 'talks.de']
    """
    if os.path.exists(value):
        return [value]
    paths = value.split(",")
    if len(paths) > 1 and "" in paths:
        raise InputError(f"{value}: a name is missing next to a comma. Remove the comma")
    return paths


def file_names(*values) -> str:
    """Return the names of files without their folders, which belong to one machine.

    >>> file_names("/home/me/a.de,b.de", "a.en,b.en")
    'a.de, b.de, a.en, b.en'
    """
    return ", ".join(Path(path).name for value in values for path in split_paths(value))


def announce_inputs(hp, *names):
    """Print the path of each file outside the current folder that only hparams.json names.

    Args:
      names: the fields of `hp` whose files are read next.
    """
    for name in names:
        paths = split_paths(getattr(hp, name))
        for path in (path for path in paths if path != NONE and not may_write(path, name, hp)):
            print(f"Reading {path}, which {hp.path} names as {name}", file=sys.stderr, flush=True)
