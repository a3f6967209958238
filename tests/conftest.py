"""What the tests share: golden numbers, real text, small corpora, and running the scripts."""

import contextlib
import fcntl
import functools
import itertools
import json
import multiprocessing
import os
import random
import runpy
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Several tests run at once. Those of test_resume.py take as many threads as a training does.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
INSTALL_EXTRAS = "no such package. To run them: pip install -r tests/requirements.txt"
slow = pytest.mark.skipif("SOAK" not in os.environ, reason="takes long. To run them: make soak")
SEED = int(os.environ.get("TEST_SEED", "0"))  # of the tests that train until a task is learned
SMALL = dict(maxlen=15, min_cnt=1, hidden_units=16, num_blocks=1, num_heads=2)


def pytest_terminal_summary(terminalreporter):
    """Say why tests were skipped, and what enables them: one line per reason."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    for reason, count in Counter(reasons).items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


def from_environment(name, what):
    folder = os.environ.get(name)
    if not folder:
        pytest.skip(f"no {what}. To run them: {name}=FOLDER make test (README.md, Tests)")
    return Path(folder)


@pytest.fixture(scope="session")
def real_text():
    """The folder with multi30k/ and iwslt16/; README.md says where they are to be had."""
    return from_environment("REAL_TEXT", "real text")


@pytest.fixture(scope="session")
def original_run():
    """A run of the original: its logdir/, preprocessed/ and results/."""
    return from_environment("ORIGINAL_RUN", "run of the 2017 code")


class Golden:
    """Numbers that the original computed on one batch, and its weights."""

    def __init__(self, name):
        arrays = np.load(GOLDEN / f"{name}.npz", allow_pickle=False)
        self.hparams = json.loads(str(arrays["hparams"]))
        self.vocab_sizes = [int(size) for size in arrays["nv"]]
        self.arrays = {name: arrays[name] for name in arrays.files}

    def __getitem__(self, name):
        return self.arrays[name]

    def group(self, prefix):
        """w, g or w5: arrays by the original's names of its variables."""
        prefix += "/"
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}

    def model(self):
        import checkpoint
        from model import Transformer

        shape = ("maxlen", "hidden_units", "num_blocks", "num_heads")
        model = Transformer(*self.vocab_sizes, *(self.hparams[name] for name in shape))
        model(self["x"], self["y"])
        checkpoint.assign_original(model, self.group("w"))
        return model


def switches(recipe):
    """What a recipe says of the model."""
    from hparams import RECIPES
    from model import SWITCHES

    return {name: value for name, value in RECIPES[recipe].items() if name in SWITCHES}


def decoder(model, x, beam=1):
    """The step function of a model for the sources x, and the state that it starts from."""
    memories = model.remember(x)
    return lambda ids, pasts: model.step(ids, pasts, memories), model.nothing(len(x) * beam)


@pytest.fixture(params=["legacy_a", "legacy_b"])
def golden(request):
    return Golden(request.param)


def options_of(flags):
    """Flags as they are typed, a list of words."""
    return [word for name, value in flags.items() for word in (f"--{name}", str(value))]


def run_script(script, cwd=ROOT, env=None, under=(), **flags):
    """Run a script of the project in a process of its own; its exit code and both outputs.

    Args:
      cwd: the folder it is run in.
      env: variables that its environment has besides.
      under: the command that runs it, if any.
    """
    command = [*under, sys.executable, str(ROOT / script), *options_of(flags)]
    pipes = dict(capture_output=True, text=True, encoding="utf-8")
    return subprocess.run(command, cwd=cwd, env=os.environ | (env or {}), **pipes)


# Processes that begin with TensorFlow loaded, and spare most of a script's time.
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(["train", "eval", "translate", "export"])


def forked_script(script, **flags):
    """`run_script` in a process that has loaded the modules already."""
    return forked([script, *options_of(flags)])


def forked(words, cwd=ROOT, stdin=os.devnull):
    """Run the script that the first word names, with the others as its arguments."""
    with tempfile.TemporaryDirectory() as folder:
        files = [stdin, Path(folder) / "stdout", Path(folder) / "stderr"]
        os.environ["PYTHONPATH"] = str(ROOT)  # which the server of these processes starts with
        process = FORKS.Process(target=in_child, args=(words, cwd, files))
        process.start()
        process.join()
        del os.environ["PYTHONPATH"]
        texts = [path.read_bytes().decode() for path in files[1:]]
    return subprocess.CompletedProcess(words, process.exitcode, *texts)


def in_child(words, cwd, files):
    for number, path in enumerate(files):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT if number else os.O_RDONLY), number)
    sys.stdin = open(0, closefd=False)
    os.chdir(cwd)
    sys.argv = words
    runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def free_ports(count):
    """Ports for servers that are told theirs.

    The system gives none of these to a program that asks for any: those are 32768 and up.
    """
    ports = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"fewer than {count} free ports")


def write_corpus(folder, train, test=None):
    """Write training and test pairs one a line; the flags that name the files."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = {name: str(folder / name) for name in ("preprocessed", "logdir", "results")}
    for part, pairs in (("train", train), ("test", test or train)):
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            path = folder / f"{part}.{side}"
            path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            flags[f"{side}_{part}"] = str(path)
    return flags


def sample_pairs(count, seed=0):
    """Sentence pairs of the built-in corpus."""
    sys.path.insert(0, str(ROOT / "corpora"))
    try:
        from sample import sentence_pairs
    finally:
        sys.path.pop(0)
    return list(itertools.islice(sentence_pairs(seed), count))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """Gives the flags of a model of a recipe that has learned little, but ends its sentences.

    The processes of a run of the tests share the models, which no test may change.
    """
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    return functools.cache(lambda recipe: train_once(folder / f"trained_{recipe}", recipe))


def train_once(folder, recipe):
    """The flags of a model that was trained in the folder, now or by another process."""
    import prepro
    import train

    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "flags.json"
        if not done.exists():
            flags = write_corpus(folder, sample_pairs(400), sample_pairs(30, seed=1))
            flags |= SMALL | dict(recipe=recipe, vocab_size=300, lr=0.01, warmup_steps=10)
            flags |= dict(batch_tokens=0, batch_size=32, num_epochs=12)
            flags |= dict(maxlen=15 if recipe == "legacy" else 40)
            prepro.main(flags)
            train.main(flags)
            done.write_text(json.dumps(flags))
        return json.loads(done.read_text())


@pytest.fixture
def corpus(tmp_path):
    """Flags of a corpus of 96 pairs with its vocabularies, and of a small model."""
    import prepro

    flags = write_corpus(tmp_path, sample_pairs(96), sample_pairs(20, seed=1))
    prepro.main(flags)
    return flags
