"""Writing files: completely or not at all, with messages that name the right file."""

import os
import resource
import subprocess
import sys

import pytest

from conftest import ROOT
from support.files import atomic_open, atomic_write, new_files


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
    with pytest.raises(IsADirectoryError):
        atomic_write(folder, "text")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    atomic_write(pipe, "text")
    assert os.read(reader, 9) == b"text" and pipe.is_fifo()
    os.close(reader)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="no /proc: a test for Linux")
def test_a_file_is_on_the_disk_before_it_has_its_name_and_then_its_name(tmp_path, monkeypatch):
    """After a loss of power, the old file or the complete new one is there."""
    events, replace = [], os.replace

    def fsync(file):
        events.append((os.readlink(f"/proc/self/fd/{file}"), os.fstat(file).st_size))

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", lambda *names: events.append("replace") or replace(*names))
    atomic_write(tmp_path / "out", "text")
    (temporary, size), replaced, (folder, _) = events
    assert temporary.endswith(".tmp") and size == 4
    assert (replaced, folder) == ("replace", str(tmp_path))


def test_an_error_of_writing_has_the_path_of_its_file(tmp_path):
    with pytest.raises(OSError) as raised, atomic_open(tmp_path / "out"):
        raise OSError(28, "No space left on device")
    assert raised.value.filename == str(tmp_path / "out") and raised.value.errno == 28
    for error in (BrokenPipeError(32, "Broken pipe"), FileNotFoundError(2, "No such file", "in")):
        with pytest.raises(type(error)) as raised, atomic_open(tmp_path / "out"):
            raise error
        assert raised.value is error
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))  # acts as a full disk
    try:
        with pytest.raises(OSError), new_files([tmp_path / "a", tmp_path / "b"]) as files:
            files[1].write("a" * 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    long = tmp_path / ("a" * 250)  # the name of the temporary file is too long
    with pytest.raises(OSError) as raised, atomic_open(long):
        pass
    assert raised.value.filename == str(long)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    "error, exit_code, message",
    [
        ("InputError('x: is wrong. Mend it')", 2, "-c: x: is wrong. Mend it\n"),
        ("PermissionError(13, 'Denied', 'a')", 2, "-c: a: denied. Check the path\n"),
        ("OSError(28, 'No space left', 'a')", 1, "-c: a: no space left. Correct this, and run"),
        ("BrokenPipeError(32, 'Broken pipe')", 1, ""),
        ("KeyboardInterrupt()", 130, "-c: stopped\n"),
        ("KeyboardInterrupt(15, 'saved')", 143, "-c: saved\n"),
    ],
)
def test_an_error_is_one_line_and_has_its_exit_code(error, exit_code, message):
    code = f"def main():\n    print('before')\n    raise {error}\nrun_script(main)"
    command = [sys.executable, "-c", f"from support.cli import InputError, run_script\n{code}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == exit_code and done.stderr.startswith(message), done.stderr
    assert done.stderr.count("\n") == bool(message) and done.stdout == "before\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full: a test for Linux")
def test_a_full_standard_output():
    command = [sys.executable, "-c", "from support.cli import run_script; run_script(print, 1)"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1 and done.stderr == "-c: [Errno 28] No space left on device\n"
