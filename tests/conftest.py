"""Shared by the tests: golden numbers, real text, small corpora, trained models."""

import dataclasses
import fcntl
import gc
import hashlib
import itertools
import json
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Several tests run at once. The tests in test_resume.py use the threads of a real training run.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
# The threads of CTranslate2 wait for each other in a loop, which keeps all processors busy.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The servers of the tests are on this machine.
os.environ["no_proxy"] = os.environ["NO_PROXY"] = "127.0.0.1,localhost"

import numpy as np
import pytest

# No TensorFlow: pytest-xdist imports this file in one process more, which runs no test.
from helpers import RNG, write_lines
from processes import ROOT
from serving import SAMPLE, started

GOLDEN = ROOT / "tests" / "golden"
INSTALL_EXTRAS = "no such package. To run them: pip install -r tests/requirements.txt"
slow = pytest.mark.slow
SKIP_SLOW = pytest.mark.skip(
    reason="slow: complete trainings, real text, benchmarks. To run them: make test-slow"
)
# The seeds of tests that train until a task is learned. tests/on_machines.sh sets ten.
seeds = pytest.mark.parametrize("seed", [*map(int, os.environ.get("TEST_SEEDS", "0").split())])
# With ONEDNN_MAX_CPU_ISA, oneDNN has no bfloat16, but TensorFlow asks the processor and crashes.
BFLOAT16 = os.environ.get("ONEDNN_MAX_CPU_ISA") not in ("SSE41", "AVX2")
needs_bfloat16 = pytest.mark.skipif(
    not BFLOAT16, reason="ONEDNN_MAX_CPU_ISA switches bfloat16 off. To run them: unset it"
)
# They begin, so that none of them runs last, on one processor, with the others idle.
LONGEST_FILES = ["test_model", "test_resume", "test_translate", "test_serve", "test_tiny"]
SMALL = dict(maxlen=15, min_cnt=1, hidden_units=16, num_blocks=1, num_heads=2)


def slow_unless(fast, values) -> list:
    """Values for a test or a fixture, of which `make test` takes those in `fast` only."""
    return [value if value in fast else pytest.param(value, marks=slow) for value in values]


def pytest_configure():
    """Collect garbage less often: it took an eighth of the time."""
    gc.set_threshold(50_000, 20, 100)


def pytest_collection_finish():
    """Let collections skip the objects of the modules."""
    gc.freeze()


def pytest_collection_modifyitems(items):
    """Skip the slow tests in `make test`, and begin with the files that take longest."""
    items.sort(key=lambda item: item.path.stem not in LONGEST_FILES)
    for item in items:
        if "SLOW" not in os.environ and item.get_closest_marker("slow"):
            item.add_marker(SKIP_SLOW)


def pytest_terminal_summary(terminalreporter):
    """Say why tests were skipped, and what enables them: one line per reason."""
    reasons = [report.longrepr[2] for report in terminalreporter.stats.get("skipped", [])]
    for reason, count in Counter(reasons).items():
        terminalreporter.write_line(f"{count} skipped: {reason.removeprefix('Skipped: ')}")


def folder_from_environment(name, content):
    """Return the folder that an environment variable names, or skip the test."""
    folder = os.environ.get(name)
    if not folder:
        pytest.skip(
            f"no {content}. To run them: {name}=FOLDER make test test-slow (docs/development.md)"
        )
    return Path(folder)


@pytest.fixture(scope="session")
def real_text():
    """The folder with multi30k/ and iwslt16/."""
    return folder_from_environment("REAL_TEXT", "real text")


@pytest.fixture(scope="session")
def original_run():
    """A run of the 2017 code: the folder of its logdir/, preprocessed/ and results/."""
    return folder_from_environment("ORIGINAL_RUN", "run of the 2017 code")


class Golden:
    """Arrays that the 2017 code computed on one batch, and its parameters."""

    def __init__(self, name):
        arrays = np.load(GOLDEN / f"{name}.npz", allow_pickle=False)
        self.hparams = json.loads(str(arrays["hparams"]))
        self.vocab_sizes = [int(size) for size in arrays["nv"]]
        self.arrays = {name: arrays[name] for name in arrays.files}

    def __getitem__(self, name):
        return self.arrays[name]

    def group(self, prefix):
        """Return the arrays of a group (w, g or w5) by the names of the 2017 variables."""
        prefix += "/"
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}

    def model(self):
        """Build the model with these parameters."""
        from checkpoints.names_2017 import variables_by_2017_name

        names = ("maxlen", "hidden_units", "num_blocks", "num_heads")
        model = transformer(*self.vocab_sizes, **{name: self.hparams[name] for name in names})
        for name, variable in variables_by_2017_name(model).items():
            variable.assign(self[f"w/{name}"].reshape(variable.shape))
        return model


def model_args(recipe):
    """Return the fields of a recipe that describe the model."""
    from hparams import RECIPES, ModelHparams

    names = {field.name for field in dataclasses.fields(ModelHparams)}
    return {name: value for name, value in RECIPES[recipe].items() if name in names}


def transformer(source_vocab, target_vocab, dtype=None, **fields):
    """Make a Transformer with these fields of `ModelHparams`."""
    from hparams import ModelHparams
    from model.transformer import Transformer

    hp = ModelHparams(**dict(dropout_rate=0.0) | fields)
    return Transformer(hp, source_vocab, target_vocab, dtype=dtype)


def recurrent_model(source_vocab, target_vocab, dtype=None, **fields):
    """Make a recurrent model with these fields of `ModelHparams`."""
    from hparams import ModelHparams
    from variants.rnn import RecurrentModel

    hp = ModelHparams(**dict(model="rnn_attention", dropout_rate=0.0) | fields)
    return RecurrentModel(hp, source_vocab, target_vocab, dtype=dtype)


def decoder(model, x, beam=1):
    """Return a model's step function, its initial state and its memory of the sources `x`."""
    memory = model.encode_memory(x)
    return model.decode_step, model.initial_cache(memory, beam), memory


def token_by_token(model, x, y):
    """Compute the logits of `y` as a search does, with a cache: (N, T, vocab).

    Each row of `x` has as many rows of `y`, its hypotheses: N is a multiple of the rows of `x`.
    """
    from modules import shift_right

    step, state, memory = decoder(model, x, len(y) // len(x))
    steps = []
    for ids in shift_right(y).numpy().T:
        logits, state = step(ids, state, memory)
        steps.append(logits)
    return np.stack(steps, axis=1)


@pytest.fixture(params=["legacy_a", "legacy_b"])
def golden(request):
    return Golden(request.param)


def write_corpus(folder, train, test=None):
    """Write training and test pairs, one per line, and return the flags that name the files."""
    folder.mkdir(parents=True, exist_ok=True)
    flags = {name: str(folder / name) for name in ("preprocessed", "logdir", "results")}
    for part, pairs in (("train", train), ("test", test or train)):
        for side, lines in zip(("source", "target"), zip(*pairs, strict=True), strict=True):
            flags[f"{side}_{part}"] = str(write_lines(folder / f"{part}.{side}", lines))
    return flags


def sample_pairs(count, seed=0):
    """Return sentence pairs of the built-in corpus."""
    sys.path.insert(0, str(ROOT / "corpora"))
    try:
        from sample import sentence_pairs
    finally:
        sys.path.pop(0)
    return list(itertools.islice(sentence_pairs(seed), count))


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A function to the flags of a trained model, which is shared: no test may change it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def find(recipe="tiny", **changes):
        name = json.dumps(changes, sort_keys=True)
        number = hashlib.sha256(name.encode()).hexdigest()[:8] if changes else "default"
        return train_once(folder / f"trained_{recipe}_{number}", recipe, **changes)

    return find


def train_once(folder, recipe, **flags):
    """Train a model in the folder unless another process has done so, and return its flags.

    It has learned to end its sentences, unless `flags` change that.
    """
    import prepro
    import train

    folder.mkdir(exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / "flags.json"
        if not done.exists():
            named = write_corpus(folder, sample_pairs(400), sample_pairs(30, seed=1))
            named |= dict(recipe=recipe, lr=0.01, warmup_steps=10)
            named |= {} if recipe == "legacy" else dict(vocab_size=300)
            # In so few steps, and with so few units, Adam learns more than Muon.
            named |= dict(optimizer="adam") if recipe in ("tiny", "low_resource") else {}
            named |= SMALL if "rnn" not in recipe else dict(hidden_units=32)
            named |= dict(ffn_units=64) if recipe in ("updated", "paper") else {}  # not 2,048
            named |= dict(batch_tokens=0, batch_size=32, num_epochs=12)
            named |= dict(maxlen=15 if recipe == "legacy" else 80) | flags
            prepro.main(named)
            train.main(named)
            done.write_text(json.dumps(named))
        return json.loads(done.read_text())


@pytest.fixture
def corpus(tmp_path):
    """The flags of a corpus of 96 pairs with its vocabularies."""
    import prepro

    flags = write_corpus(tmp_path, sample_pairs(96), sample_pairs(20, seed=1))
    prepro.main(flags)
    return flags


@pytest.fixture
def seed():
    """A test draws the same numbers with `helpers.random`, whichever test ran before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


@pytest.fixture
def eager():
    """Run `tf.function`s without a graph, whose building may take longer than what it computes."""
    import tensorflow as tf

    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


@pytest.fixture
def dropout_inputs(monkeypatch):
    """The inputs of all dropout in training, in order. Nothing is dropped."""
    from modules import Dropout

    recorded = []

    def call(self, inputs, training=None):
        if training and self.rate:
            recorded.append(np.array(inputs))
        return inputs

    monkeypatch.setattr(Dropout, "call", call)
    return recorded


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """Start serve.py with the sample model, and with one as if it translated the other way."""
    other = shutil.copytree(SAMPLE, tmp_path_factory.mktemp("models") / "en-de")
    (other / "examples.txt").unlink()
    flags = json.loads((other / "hparams.json").read_text())
    flags |= dict(source_lang="en", target_lang="de")
    (other / "hparams.json").write_text(json.dumps(flags))
    with started(other) as (_, address):
        yield address
