"""Writing files: completely or not at all, with messages that name the right file."""

import fcntl
import os
import stat
import subprocess
import sys

import pytest

from conftest import ROOT
from runtime.errors import InputError
from runtime.files import (
    atomic_open,
    atomic_write,
    check_may_make,
    lock_file,
    make_folder,
    read_file,
)


def test_a_file_is_written_atomically(tmp_path):
    path, other = tmp_path / "out", tmp_path / "out.tmp"
    path.write_text("old")
    other.write_text("another file")
    with pytest.raises(ZeroDivisionError), atomic_open(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    with atomic_open(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
    assert path.read_text() == "new" and other.read_text() == "another file"
    assert sorted(tmp_path.iterdir()) == [path, other]


def test_links_and_pipes_are_followed(tmp_path):
    target, link, folder = (tmp_path / name for name in ("target", "link", "folder"))
    link.symlink_to(target)
    folder.mkdir()
    atomic_write(link, "text")
    assert link.is_symlink() and target.read_text() == "text"
    with pytest.raises(InputError, match="folder: is a folder"):
        atomic_write(folder, "text")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic_write(pipe, "text")
    assert os.read(reader, 9) == b"text" and pipe.is_fifo()
    os.close(reader)


def test_a_file_is_on_the_disk_before_it_has_its_name_and_then_its_name(tmp_path, monkeypatch):
    """After a loss of power, the old file or the complete new one is there."""
    events = []
    fsync, replace = os.fsync, os.replace

    def record_fsync(handle):
        status = os.fstat(handle)
        events.append("folder" if stat.S_ISDIR(status.st_mode) else f"{status.st_size} bytes")
        fsync(handle)

    def record_replace(old, new):
        events.append("replace")
        replace(old, new)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(os, "replace", record_replace)
    atomic_write(tmp_path / "out", "text")
    assert events == ["4 bytes", "replace", "folder"]


@pytest.mark.parametrize("kind", ["pipe", "folder", "device", "large", "file"])
def test_only_a_regular_file_of_limited_size_is_read(tmp_path, kind):
    path = tmp_path / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_text("four" if kind == "file" else "fives")
    if kind == "file":
        assert read_file(path, 4) == b"four"
        return
    with pytest.raises(InputError, match=f"{path}: (not a regular file|larger than 4 bytes)"):
        read_file(path, 4)


# Locks ---------------------------------------------------------------------------


def test_a_lock_names_its_process_and_changes_no_file_of_the_user(tmp_path):
    mine, lock = tmp_path / "mine", tmp_path / "lock"
    with lock_file(lock):
        assert lock.read_text() == f"{os.getpid()}\n"
        with pytest.raises(BlockingIOError, match=f"^{os.getpid()}$"):
            with lock_file(lock, wait=False):
                pass
    lock.write_text("123456789\n")  # of an earlier run
    with lock_file(lock):
        assert lock.read_text() == f"{os.getpid()}\n"
    for content in ("mine\n", "42\n"):
        lock.unlink()
        mine.write_text(content)
        lock.hardlink_to(mine)
        with lock_file(lock):
            assert mine.read_text() == content
    lock.unlink()
    lock.write_text("my notes")
    with lock_file(lock):
        assert lock.read_text() == "my notes"


@pytest.mark.parametrize("kind", ["link", "dangling link", "pipe", "folder"])
def test_a_lock_is_a_regular_file(tmp_path, kind):
    mine, lock = tmp_path / "mine", tmp_path / "lock"
    if kind == "link":
        mine.touch()
    if "link" in kind:
        lock.symlink_to(mine)
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.mkdir()
    with pytest.raises(InputError, match=f"{lock}: is not a regular file"), lock_file(lock):
        pass
    assert mine.exists() == (kind == "link")


def test_a_file_system_without_locks(tmp_path, monkeypatch, capsys):
    def flock(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_file(tmp_path / "lock", wait=False):
        pass
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert f"{tmp_path / 'lock'}: this file system has no locks (function not impl" in printed


# Streams -------------------------------------------------------------------------


def test_standard_output_as_a_path(tmp_path):
    script = "from runtime.files import atomic_write; atomic_write('/dev/stdout', 'text')"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "text" and not done.stderr


def run_python(script, **kwargs):
    """Run a script that prints nothing until its buffer is full, unless it flushes."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env, **kwargs)


def test_an_error_of_writing_has_the_path_of_its_file(tmp_path):
    """A limit on the size of a file stands for a full disk."""
    script = f"""
import resource, signal
from runtime.files import atomic_open
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
with atomic_open({str(tmp_path / "large")!r}) as large, atomic_open({str(tmp_path / "small")!r}):
    large.write(bytes(2000))
    large.flush()
"""
    last_line = run_python(script).stderr.splitlines()[-1]
    assert last_line == f"OSError: {tmp_path / 'large'}: cannot be written: File too large"
    assert not [*tmp_path.iterdir()]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full: a test for Linux")
def test_a_full_device_is_named():
    with pytest.raises(OSError, match="^/dev/full: cannot be written: No space"):
        atomic_write("/dev/full", "text")


@pytest.mark.parametrize("error", [BrokenPipeError(32, "Broken pipe"), OSError(5, "a read error")])
def test_other_errors_are_not_changed(error, tmp_path):
    with pytest.raises(OSError) as raised, atomic_open(tmp_path / "out"):
        raise error
    assert raised.value is error and not [*tmp_path.iterdir()]


def test_a_replaced_file_keeps_its_permissions(tmp_path):
    path, link, target = (tmp_path / name for name in ("out", "link", "target"))
    for file in (path, target):
        file.touch()
        file.chmod(0o600)
    atomic_write(path, "private")
    assert path.stat().st_mode & 0o777 == 0o600 and path.read_text() == "private"
    target.chmod(0o640)
    link.symlink_to(target)
    umask = os.umask(0o022)
    try:
        atomic_write(link, "public", follow_links=False)
    finally:
        os.umask(umask)
    assert link.stat().st_mode & 0o777 == 0o644 and not target.read_text()


def test_a_file_in_place_of_a_folder(tmp_path):
    path = tmp_path / "file"
    path.touch()
    for folder in (path, path / "below"):
        with pytest.raises(InputError, match="file.*Choose another path"):
            make_folder(folder)
        with pytest.raises(InputError, match="file.*Choose another path"):
            check_may_make(folder)


def test_an_error_of_cleaning_up_does_not_hide_the_first_one(tmp_path, monkeypatch):
    def denied(*_):
        raise PermissionError("clean-up")

    monkeypatch.setattr("pathlib.Path.unlink", denied)
    with pytest.raises(ZeroDivisionError), atomic_open(tmp_path / "out"):
        raise ZeroDivisionError


def test_an_error_does_not_lose_the_lines_before_it():
    script = """
from runtime.cli import run_script
def main(_):
    print("Bleu Score = 27.3")
    raise OSError("results: the disk is full")
run_script(main, {})
"""
    done = run_python(script)
    assert done.stdout == "Bleu Score = 27.3\n" and done.returncode == 1
    assert done.stderr == "-c: results: the disk is full\n"
