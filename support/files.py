"""Write files atomically, and lock folders."""

import contextlib
import fcntl
import os
import secrets
import sys
from pathlib import Path

from support.errors import InputError


@contextlib.contextmanager
def atomic_open(path):
    """Open `path` to write bytes. Readers see the old file or the complete new one.

    A pipe or a device is written to directly. Missing folders are made. An error of writing has
    the path.
    """
    path = Path(os.path.realpath(path))
    is_direct = path.exists() and not path.is_file()
    temporary = path if is_direct else path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            if not is_direct:
                os.fsync(file.fileno())
                os.replace(temporary, path)
                sync_folder(path.parent)
    except OSError as error:
        if error.filename not in (None, str(temporary)) or isinstance(error, BrokenPipeError):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None
    finally:
        if not is_direct:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_file(path):
    """Open a text file that does not exist yet, to write lines. An error deletes it."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "x", encoding="utf-8", newline="\n") as file:
        try:
            yield file
        except BaseException:
            os.unlink(path)
            raise


def sync_folder(folder):
    """Wait until the names in a folder are on the disk: a new one then survives a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):  # some file systems cannot
        os.fsync(handle)
    os.close(handle)


def atomic_write(path, content):
    """Write text or bytes to `path` as `atomic_open` does."""
    with atomic_open(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def open_output(path):
    """Context manager: a file of bytes, written atomically, or standard output for "-"."""
    if path == "-":
        yield sys.stdout.buffer
    else:
        with atomic_open(path) as file:
            yield file


@contextlib.contextmanager
def lock_logdir(folder):
    """Context manager: keep other trainings out of a folder, and delete what a killed one left.

    The system releases the lock when the process ends.
    """
    Path(folder).mkdir(parents=True, exist_ok=True)
    with open(Path(folder) / "lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder}: another training writes here. Wait for it, or use a new --logdir"
            ) from None
        for path in Path(folder).glob("model_*.tmp"):
            path.unlink()
        yield
