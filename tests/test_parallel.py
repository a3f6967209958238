"""Computing on all cores."""

import functools
import os
import signal
import subprocess
import sys

import loky
import pytest

from processes import ROOT
from runtime import parallel

ITEMS = 30


@pytest.fixture(autouse=True)
def two_processes(monkeypatch):
    """Two processes start after the first item."""
    monkeypatch.setattr(parallel, "num_processes", lambda: 2)
    monkeypatch.setattr(parallel, "ALONE_SECONDS", -1)


def power_and_process(exponent, number):
    return number**exponent, os.getpid()


def test_results_are_in_order_and_of_other_processes():
    function = functools.partial(power_and_process, 2)
    powers, processes = zip(*parallel.map_on_cores(function, range(ITEMS)), strict=True)
    assert [*powers] == [number**2 for number in range(ITEMS)]
    first, *others = processes
    assert first == os.getpid() and os.getpid() not in others
    assert 1 <= len({*others}) <= 2


def test_one_core_needs_no_other_process(monkeypatch):
    monkeypatch.setattr(parallel, "num_processes", lambda: 1)
    monkeypatch.delattr(loky, "ProcessPoolExecutor")
    assert [*parallel.map_on_cores(abs, range(-ITEMS, 0))] == [*range(ITEMS, 0, -1)]


def test_the_processes_end_without_the_program_pgrep():
    """A container may lack it. Loky then needs psutil, which requirements.txt has."""
    assert "\npsutil" in (ROOT / "requirements.txt").read_text("utf-8")
    program = (
        "from runtime import parallel; parallel.num_processes = lambda: 2;"
        " parallel.ALONE_SECONDS = -1; print(sum(parallel.map_on_cores(abs, [-1, -2, -3])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | dict(PATH=""),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "6\n", done.stderr


def test_a_few_items_need_no_other_process(monkeypatch):
    monkeypatch.setattr(parallel, "ALONE_SECONDS", 60)
    monkeypatch.delattr(loky.ProcessPoolExecutor, "submit")
    assert [*parallel.map_on_cores(abs, [-1, -2])] == [1, 2]


def test_items_are_read_as_they_are_needed():
    read = []
    results = parallel.map_on_cores(abs, (read.append(i) or i for i in range(1000)))
    assert [next(results) for _ in range(20)] == [*range(20)] and len(read) < 30
    results.close()


def test_an_error_of_an_item_or_of_a_function_is_raised():
    def items():
        yield from range(10)
        raise ValueError("item 10")

    with pytest.raises(ValueError, match="item 10"):
        [*parallel.map_on_cores(abs, items())]
    with pytest.raises(ZeroDivisionError):
        [*parallel.map_on_cores(functools.partial(divmod, 1), [1] * 20 + [0])]


def test_a_killed_process_is_noticed():
    with pytest.raises(ChildProcessError, match="was killed"):
        [*parallel.map_on_cores(die_at_the_end, range(ITEMS))]


def die_at_the_end(number):
    if number == ITEMS - 1:
        os.kill(os.getpid(), signal.SIGKILL)


def run_code(code):
    """Run Python code in a new process, in which two processes compute."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    start = "from runtime import parallel\nparallel.num_processes = lambda: 2\n"
    start += "parallel.ALONE_SECONDS = -1\n"
    return subprocess.run(
        [sys.executable, "-c", start + code],
        capture_output=True,
        text=True,
        env=os.environ | dict(PYTHONPATH=path),
        timeout=100,
    )


def modules(number):
    import data_load  # noqa: F401

    return [*sys.modules]


def test_the_processes_do_not_import_tensorflow():
    code = "import test_parallel\n*_, last = parallel.map_on_cores(test_parallel.modules, range(9))"
    done = run_code(code + "\nprint(*last)")
    assert done.returncode == 0, done.stderr
    names = done.stdout.split()
    assert "data_load" in names and "tensorflow" not in names


def test_they_end_when_their_parent_is_killed():
    code = """
import functools, os, signal, test_parallel
function = functools.partial(test_parallel.power_and_process, 1)
for number, process in parallel.map_on_cores(function, range(99)):
    print(process, flush=True)
    if number == 20:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run_code(code)  # it also waits for the others, which have the same standard output
    assert done.returncode == -signal.SIGKILL, done.stderr
    alone, *others = done.stdout.split()
    assert {alone} != {*others}
