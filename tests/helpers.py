"""What several test files share: text, small models, files of a run, scripts that refuse input."""

import contextlib
import io
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from checkpoints import checkpoint
from processes import ROOT, command_line, forked, forked_script

# What the scripts at the root import from.
NAMES = "support text model variants checkpoints translation training formats server"
FOLDERS = [ROOT / name for name in NAMES.split()]
PRODUCT = [*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in folder.glob("*.py"))]

# Lines of input that a translating program must survive.
ODD_LINES = [
    "\ufeffDer Hund schläft",  # a byte-order mark
    "",
    "Der Hund schla\u0308ft\r",  # NFD, and a carriage return at the end
    " \t \u00a0",
    "Die Frau\u2028singt\u0085laut",
    "我爱你",
    "a\0b",
    " ".join(["Katze"] * 30),
    "x" * 99,
    "Der Hund schläft",
]

# Two sentences and their translations as ids, and the sizes of a model for them.
X = np.array([[5, 6, 7, 8, 3, 0], [9, 10, 3, 0, 0, 0]], np.int32)  # (N, T)
Y = np.array([[11, 5, 6, 3, 0, 0], [7, 8, 9, 10, 11, 3]], np.int32)
SIZES = dict(maxlen=6, hidden_units=16, ffn_units=32, num_blocks=2, num_heads=4)

DOCUMENTS = {
    path.name: path for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
}

RNG = np.random.default_rng(0)  # reset by the fixture `seed`


def text_of(name):
    """The text of a document."""
    return DOCUMENTS[name].read_text("utf-8")


def blocks(name):
    """The code blocks of a document, as (language, text)."""
    return re.findall(r"^```(\w*)\n(.*?)^```", text_of(name), re.DOTALL | re.MULTILINE)


def random(*shape):
    """Draw an array of normal numbers."""
    return RNG.normal(size=shape).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_step(w, x, states):
    """A step of a GRU by its formulas, with the weights in a dict."""
    (h,) = states
    from_input = np.split(x @ w["kernel"] + w["bias"][0], 3)
    from_state = np.split(h @ w["recurrent_kernel"] + w["bias"][1], 3)
    update, reset = (sigmoid(from_input[i] + from_state[i]) for i in (0, 1))
    candidate = np.tanh(from_input[2] + reset * from_state[2])
    return [update * h + (1 - update) * candidate]


def run_program(code, name, namespace) -> str:
    """Run a program of the document `name`, and return what it prints."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, name, "exec"), namespace)
    return printed.getvalue()


def skip_search():
    """Find the same translation of each sentence in this process, without the graph of a search."""
    from translation.inference import Hypothesis, SearchDecoder

    def decode(self, X, prefixes=None):
        best = Hypothesis(self.loaded.vocabs[1].decode([5]), [5], -1.0, at_limit=False)
        return [[best] * self.nbest for _ in X]

    SearchDecoder.__call__ = decode


def skip_graphs(patch):
    """Let each step of a training add its ids to a parameter, and skip the search as above."""
    import tensorflow as tf

    import train
    from translation.inference import SearchDecoder

    def make_step(strategy, model, *_):
        variable = model.trainable_variables[0]

        def step(x, y):
            variable.assign(0.9 * variable + tf.cast(tf.reduce_mean(x * y[:, :1]), tf.float32))
            return 5.0, 1.0, 9.0

        step.get_concrete_function = lambda: SimpleNamespace(graph=tf.Graph())
        return step

    patch.setattr(train, "make_train_step", make_step)
    patch.setattr(train, "mean_loss", lambda *_: 2.0)
    patch.setattr(train.summaries, "write_attention", lambda *_: None)
    patch.setattr(SearchDecoder, "__call__", SearchDecoder.__call__)  # restores it
    skip_search()


def vocabs_of(flags):
    """Load the vocabularies that prepro.py wrote, and compare them with the flags."""
    from hparams import make_hparams
    from text.vocab import load_vocabs

    hp = make_hparams(flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    for vocab in vocabs:
        vocab.check_flags(hp, flags)
    return vocabs


def load(flags):
    """Load the model that flags name, a dict."""
    from translation.inference import load_model

    return load_model(flags)


def refused(script, *needles, prepare=None, **flags):
    """Check that a script refuses its input, with one line that contains every needle."""
    done = forked_script(script, prepare, **flags)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    message = [line for line in done.stderr.splitlines() if line.startswith(f"{script}: ")]
    assert len(message) == 1, done.stderr
    for needle in needles:
        assert str(needle) in message[0]


def translate_command(flags, **more):
    """The command line that translates with the model of `flags`."""
    return ["translate.py", *command_line(dict(logdir=flags["logdir"], **more))]


def run_translate(flags, text, **more):
    """Translate bytes on standard input: the text on standard output and on standard error."""
    done = forked(translate_command(flags, **more), stdin=text)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def translated(flags, folder, lines, **more):
    """Translate lines from a file to a file, in this process: the lines of the output."""
    import translate

    source, output = folder / "in", folder / "out"
    write_lines(source, lines)
    given = dict(logdir=flags["logdir"], source=source, output=output) | more
    translate.main({n: str(v) if isinstance(v, Path) else v for n, v in given.items()})
    return output.read_text("utf-8").splitlines()


def read_test_sentences(path):
    """Read a file of a test set: its sentences, normalized."""
    from text.lines import normalize, read_sentences

    return [*map(normalize, read_sentences(path))]


def tensorflow_text():
    """Import tensorflow-text, which registers operations; skips the test if it cannot be used."""
    import tensorflow as tf

    try:
        import tensorflow_text
    except (ImportError, tf.errors.NotFoundError) as error:
        pytest.skip(str(error))
    return tensorflow_text


def read_all_events(logdir):
    """Yield the events of all files, oldest first. After a kill, the last one may be cut off."""
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    for path in sorted(Path(logdir).glob("events.out.tfevents.*")):
        yield from LegacyEventFileLoader(str(path)).Load()


def scalars(logdir):
    """Read TensorBoard's curves, {name: {step: value}}. A step that is repeated has its value."""
    import tensorflow as tf

    curves = {}
    for event in read_all_events(logdir):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "scalars":
                number = float(tf.make_ndarray(value.tensor))
                before = curves.setdefault(value.tag, {}).setdefault(event.step, number)
                assert before == number or value.tag == "tokens_per_second"
    return curves


def event_values(logdir):
    """Everything in the event files except the curves: [(tag, step, value)]."""
    found = []
    for event in read_all_events(logdir):
        if event.graph_def:
            found.append(("graph", event.step, event.graph_def))
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name != "scalars":
                found.append((value.tag, event.step, value.tensor))
    return found


def latest(logdir) -> Path:
    """Return the file of the latest checkpoint."""
    return checkpoint.path_of(logdir, saved_rows(logdir)[-1])


def parameters(logdir) -> dict:
    """Read the parameters of the latest checkpoint, by their names of 2017."""
    return checkpoint.weights_of(checkpoint.load(latest(logdir)))


def saved_rows(logdir) -> list:
    """The rows of the checkpoints in `logdir` that have a file, oldest first."""
    return checkpoint.existing(logdir, checkpoint.read_rows(logdir))


def write_lines(path, lines):
    """Write a file of lines; returns its path."""
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def write_pairs(folder, pairs):
    """Write pairs to two files; returns their paths."""
    sides = zip(("my.de", "my.en"), zip(*pairs, strict=True), strict=True)
    return [write_lines(folder / name, lines) for name, lines in sides]
