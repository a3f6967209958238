"""Run the scripts, and functions of the tests, in other processes."""

import contextlib
import json
import multiprocessing
import os
import random
import runpy
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent

# Processes that start with TensorFlow loaded. Loading it takes most of a script's time.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["train", "eval", "translate", "export", "serve"])


def command_line(flags):
    """Return flags as the words of a command line."""
    words = []
    for name, value in flags.items():
        yes_or_no = [f"--{name}" if value else f"--no-{name}"]
        words += yes_or_no if isinstance(value, bool) else [f"--{name}", str(value)]
    return words


def run_script(script, cwd=ROOT, env=None, **flags):
    """Run a script in a new Python process, with more variables in its environment."""
    command = [sys.executable, str(ROOT / script), *command_line(flags)]
    pipes = dict(capture_output=True, text=True, encoding="utf-8")
    return subprocess.run(command, cwd=cwd, env=os.environ | (env or {}), **pipes)


class Forked:
    """A script, or a function, in a process with the modules already loaded: as `Popen`.

    Args:
      task: words of a command line, the first one names the script; or a function to call.
      env: variables to change in the environment; None removes one.
      prepare: function to call in the process before the task.
    """

    def __init__(self, task, cwd=ROOT, env=None, prepare=None):
        pipes = [os.pipe() for _ in range(3)]
        ours = pipes[0][1], pipes[1][0], pipes[2][0]
        theirs = [Connection(pipes[0][0], writable=False)]
        theirs += [Connection(writer, readable=False) for _, writer in pipes[1:]]
        self.process = FORKS.Process(target=run_task, args=(task, cwd, env, prepare, theirs))
        with patch.dict(os.environ, PYTHONPATH=str(ROOT)):  # read when the fork server starts
            self.process.start()
        for end in theirs:
            end.close()
        self.stdin = open(ours[0], "wb", buffering=0)
        self.stdout, self.stderr = (open(end, encoding="utf-8") for end in ours[1:])

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:  # a failed assertion: do not wait for a process that may never end
            self.kill()
        with contextlib.suppress(OSError):
            self.stdin.close()
        self.wait()
        self.stdout.close()
        self.stderr.close()

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def wait(self, timeout=None):
        self.process.join(timeout)
        return self.process.exitcode

    def send_signal(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        self.process.kill()

    def terminate(self):
        self.process.terminate()

    def communicate(self, stdin=b"", timeout=None):
        """Send `stdin`, read both streams to their end, and return them."""
        with ThreadPoolExecutor() as pool:
            texts = pool.map(lambda stream: stream.read(), (self.stdout, self.stderr))
            with contextlib.suppress(BrokenPipeError):
                self.stdin.write(stdin)
            self.stdin.close()
            if self.wait(timeout) is None:
                self.kill()
            return tuple(texts)


def forked(words, cwd=ROOT, stdin=b"", prepare=None):
    """Run a script, the first word, to its end."""
    with Forked(words, cwd, prepare=prepare) as process:
        texts = process.communicate(stdin)
    return subprocess.CompletedProcess(words, process.returncode, *texts)


def forked_script(script, prepare=None, **flags):
    """Run a script as `run_script` does, but in a process with the modules already loaded."""
    return forked([script, *command_line(flags)], prepare=prepare)


def run_task(task, cwd, env, prepare, streams):
    """Run a task in this process, with its standard streams replaced."""
    for number, stream in enumerate(streams):
        os.dup2(stream.fileno(), number)
        stream.close()
    if prepare:
        prepare()
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", closefd=False)
    sys.stderr = open(2, "w", buffering=1, closefd=False)
    os.chdir(cwd)
    for name, value in (env or {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value
    if callable(task):
        task()
    else:
        sys.argv = task
        runpy.run_path(str(ROOT / task[0]), run_name="__main__")


def free_ports(count):
    """Find free ports below 32768, where the system's range for automatic ports starts."""
    ports = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
    return ports[:count]


def start(task, workers=1):
    """Start a script or a function in a process, or in several that are workers of one cluster."""
    if workers == 1:
        return [Forked(task)]
    cluster = dict(worker=[f"127.0.0.1:{port}" for port in free_ports(workers)])
    tasks = [dict(type="worker", index=index) for index in range(workers)]
    configs = [json.dumps(dict(cluster=cluster, task=own)) for own in tasks]
    return [Forked(task, env=dict(TF_CONFIG=config)) for config in configs]
