"""Write files atomically, and lock folders."""

import contextlib
import fcntl
import hashlib
import os
import secrets
from pathlib import Path

from support.errors import InputError


@contextlib.contextmanager
def atomic_open(path, in_place=False):
    """Open `path` to write bytes. Readers see the old file or the complete new one.

    A pipe or a device, or any file if `in_place`, is written to directly. Missing folders are made.
    An error of writing has the path.
    """
    path = Path(os.path.realpath(path))
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(4)}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if in_place or path.exists() and not path.is_file():
            with open(path, "wb") as file:
                yield file
            return
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        folder = os.open(path.parent, os.O_RDONLY)  # the name survives a loss of power, too
        with contextlib.suppress(OSError):  # some file systems cannot
            os.fsync(folder)
        os.close(folder)
    except OSError as error:
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


@contextlib.contextmanager
def new_files(paths):
    """Open text files that do not exist yet, to write lines. An error deletes them."""
    files = []
    try:
        for path in map(Path, paths):
            path.parent.mkdir(parents=True, exist_ok=True)
            files.append(open(path, "x", encoding="utf-8", newline="\n"))
        yield files
        for file in files:
            file.flush()
    except BaseException:
        for file in files:
            os.unlink(file.name)
        raise
    finally:
        for file in files:
            file.close()


def file_digest(path):
    """The SHA-256 of a file, an object of hashlib."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256")


def atomic_write(path, content):
    """Write text or bytes to a file as `atomic_open` does."""
    with atomic_open(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


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
