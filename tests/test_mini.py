"""mini.py is the specification of the recipe legacy: equal to the 2017 code and to the project."""

import functools
import hashlib
import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import mini
import modules
import prepro
from checkpoints.names_2017 import variables_by_2017_name
from conftest import GOLDEN, decoder, sample_pairs, slow, transformer
from data_load import load_test_data, load_train_data
from hparams import Hyperparams
from processes import ROOT
from text.bleu import bleu_score
from text.ids import BOS, EOS, PAD, UNK
from text.vocab import load_vocabs
from translation.attention_maps import attention_maps
from translation.search import greedy

FIELDS = [name for name in vars(mini.Hyperparams) if not name.startswith("_")]
DEFAULTS = Hyperparams()
PATHS = {name: getattr(DEFAULTS, name) for name in FIELDS[:4]}  # of IWSLT 2016
SIZES = dict(hidden_units=16, num_blocks=1, num_heads=2)


@pytest.fixture
def configure(tmp_path, monkeypatch):
    """A function that sets hyperparameters of mini.py. Its files are in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    return lambda **fields: monkeypatch.setattr(mini, "hp", type("hp", (mini.hp,), fields))


@pytest.fixture
def sample(configure):
    """The flags of a corpus of 70 pairs in the format of IWSLT, with vocabularies of both."""
    keras.utils.set_random_seed(0)  # of the weights and the order of the pairs
    pairs, tests = sample_pairs(70), sample_pairs(20, seed=1)
    for name, path in PATHS.items():
        side = name.startswith("target")
        lines = [f"<url>a{side}</url>", "", *(f"{pair[side]} 3" for pair in pairs)]
        if name.endswith("test"):
            lines = [f'<seg id="{i}"> {pair[side]} 3 </seg>' for i, pair in enumerate(tests, 1)]
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text("<mteval>\n" * name.endswith("test") + "\n".join(lines), "utf-8")
    fields = dict(maxlen=9, min_cnt=2, batch_size=8, dropout_rate=0.0, **SIZES)
    configure(**fields, **PATHS, num_epochs=2)
    prepro.main({})
    mini.make_vocab(mini.hp.source_train, "de.vocab.tsv")
    mini.make_vocab(mini.hp.target_train, "en.vocab.tsv")
    return fields


def by_2017_name(model):
    """The variables of `Graph.model` by the names of the 2017 code.

    Keras numbers the layers of a kind over the entire model, TensorFlow 1 in each scope.
    """
    number = {
        layer.name: int((re.findall(r"\d+$", layer.name) or [0])[0]) for layer in model.layers
    }
    found, counts = {}, Counter()
    for layer in sorted(model.layers, key=lambda layer: number[layer.name]):
        for variable in layer.weights:
            *scope, _, weight = variable.path.split("/")
            kind = type(layer).__name__
            count = counts[kind, *scope]
            suffix = f"_{count}" if count else ""
            if kind == "Embedding":
                names = [*scope, "lookup_table"]
            elif kind == "EinsumDense":  # beta and gamma
                weight = dict(bias="Variable", kernel="Variable_1")[weight]
                names = [*scope[:-2], scope[-2] + suffix, scope[-1], weight]
            else:
                names = [*scope, kind.lower() + suffix, weight]
            found["/".join(names)] = variable
        if layer.weights:
            counts[kind, *scope] += 1
    return found


def assign(model, arrays):
    """Set the weights of a `Graph.model` to arrays by the names of the 2017 code."""
    variables = by_2017_name(model)
    assert variables.keys() == arrays.keys()
    for name, variable in variables.items():
        variable.assign(np.reshape(arrays[name], variable.shape))
    return variables


# Equal to the 2017 code ---------------------------------------------


def test_numbers_gradients_steps_and_translations_are_those_of_2017(
    golden, configure, eager, monkeypatch, capsys
):
    """All parameters but a few, whose gradient is rounding noise (tests/test_model.py)."""
    configure(**golden.hparams, dropout_rate=0.0, num_epochs=5)  # of one batch each
    Path(mini.PREPROCESSED).mkdir(parents=True)
    for lang, size in zip(("de", "en"), golden.vocab_sizes, strict=True):
        path = Path(mini.PREPROCESSED) / f"{lang}.vocab.tsv"
        path.write_text("".join(f"w{i}\t1000000000\n" for i in range(size)))
    g, x, y = mini.Graph(), golden["x"], golden["y"]
    variables = assign(g.model, golden.group("w"))

    names = ("enc", "dec", "logits", "loss", "mean_loss", "acc", "preds")
    model = keras.Model([g.x, g.y], {name: getattr(g, name) for name in names})
    with tf.GradientTape() as tape:
        outputs = model([x, y])
    for name in names:
        np.testing.assert_allclose(outputs[name], golden[name], atol=1e-5, err_msg=name)
    gradients = tape.gradient(outputs["mean_loss"], [v.value for v in variables.values()])
    for name, gradient in zip(variables, gradients, strict=True):
        theirs = golden[f"g/{name}"].reshape(gradient.shape)
        difference = np.abs(tf.convert_to_tensor(gradient) - theirs).max()
        assert difference <= 1e-5 * np.abs(theirs).max(), name
    np.testing.assert_array_equal(mini.greedy(g, x), golden["greedy"])

    monkeypatch.setattr(mini, "Graph", lambda is_training: g)
    monkeypatch.setattr(mini, "translate", lambda *_: "")
    monkeypatch.setattr(mini, "get_batch_data", lambda: (x[None], y[None], 1))
    mini.train()
    losses = re.findall(r"mean_loss ([\d.]+)", capsys.readouterr().out)
    np.testing.assert_allclose([*map(float, losses)], golden["losses5"], atol=6e-4)
    differences = [
        np.abs(variable.numpy().ravel() - golden[f"w5/{name}"].ravel())
        for name, variable in variables.items()
    ]
    assert np.sort(np.concatenate(differences))[-20] < 2e-5
    assert float(g.model([x, y])[1]) == pytest.approx(float(golden["mean_loss_after5"]), abs=1e-5)


@pytest.mark.parametrize("maxlen, min_cnt", [(10, 20), (25, 3)])
def test_arrays_of_real_text_are_those_of_2017(real_text, configure, maxlen, min_cnt):
    folder = real_text.resolve() / "iwslt16"
    files = {name: str(folder / Path(path).name) for name, path in PATHS.items()}
    configure(**files, maxlen=maxlen, min_cnt=min_cnt)
    mini.make_vocab(mini.hp.source_train, "de.vocab.tsv")
    mini.make_vocab(mini.hp.target_train, "en.vocab.tsv")
    train_X, train_Y = mini.load_train_data()
    test_X, Sources, Targets = mini.load_test_data()
    golden = json.loads((GOLDEN / "data_iwslt16.json").read_text())
    found = dict(train_X=train_X.tobytes(), train_Y=train_Y.tobytes(), test_X=test_X.tobytes())
    found |= dict(sources="\n".join(Sources).encode(), targets="\n".join(Targets).encode())
    found = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    assert found.items() <= golden[f"maxlen={maxlen},min_cnt={min_cnt}"].items()


# Equal to the complete project --------------------------------------


def test_the_comments_have_the_hyperparameters_of_2017():
    lines = inspect.getsource(mini.Hyperparams).splitlines()
    values = dict(
        re.findall(r"^ *(\w+) = ([^#]*[^# ]) *#", line)[0] for line in lines if " = " in line
    )
    values |= dict(
        re.findall(r"^ *(\w+) = .*2017: (.*)$", line)[0] for line in lines if "2017:" in line
    )
    assert len(FIELDS) == 15
    assert values == {name: str(getattr(DEFAULTS, name)) for name in FIELDS}


def test_text_to_arrays_is_that_of_the_project(sample):
    hp = Hyperparams(**sample)
    vocabs = load_vocabs(hp.preprocessed, hp)
    for vocab, load in zip(vocabs, (mini.load_de_vocab, mini.load_en_vocab), strict=True):
        path = Path(mini.PREPROCESSED) / vocab.path.name
        assert vocab.path != path and vocab.path.read_bytes() == path.read_bytes()
        assert load() == (vocab.word2idx, vocab.idx2word)
    train, test = load_train_data(hp, vocabs), load_test_data(hp, vocabs).data
    assert 30 < len(train.X) < 70 and 10 < len(test.X) < 20  # others are too long
    for ours, theirs in zip(mini.load_train_data(), (train.X, train.Y), strict=True):
        np.testing.assert_array_equal(ours, theirs.pad(width=hp.maxlen))
        assert ours.dtype == np.int32
    X, Sources, Targets = mini.load_test_data()
    np.testing.assert_array_equal(X, test.X.pad(width=hp.maxlen))
    assert (Sources, Targets) == (test.Sources, test.Targets)


def test_an_empty_line_on_one_side_leaves_its_pair_out(sample):
    expected = [data.tolist() for data in mini.load_train_data()]
    for name, line in (("source_train", "\nHund\n"), ("target_train", "the\n\n")):
        path = Path(PATHS[name])
        path.write_text(line + path.read_text("utf-8"), "utf-8")
    assert [data.tolist() for data in mini.load_train_data()] == expected


def test_a_batch_is_full_and_an_epoch_repeats_no_pair(sample):
    X, Y = mini.load_train_data()
    known = Counter(map(bytes, np.hstack([X, Y])))
    epochs = [mini.get_batch_data() for _ in range(2)]
    for x, y, num_batch in epochs:
        assert num_batch == len(X) // 8
        assert x.shape == y.shape == (num_batch, 8, 9)
        pairs = np.concatenate([x, y], axis=2).reshape(-1, 18)
        assert Counter(map(bytes, pairs)) <= known
    assert (epochs[0][0] != epochs[1][0]).any()


@pytest.mark.parametrize("sinusoid", [False, True])
def test_a_copied_model_gives_the_same_translations(sample, configure, eager, sinusoid):
    """And it has the same attention weights."""
    configure(sinusoid=sinusoid)
    vocabs = load_vocabs("preprocessed", Hyperparams(**sample))
    positions = "sinusoid" if sinusoid else "learned"
    model = transformer(*map(len, vocabs), positions=positions, maxlen=9, **SIZES)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:  # as after training: no bias is zero
        scale = 1.0 if variable.name == "lookup_table" else 0.1
        variable.assign_add(rng.normal(scale=scale, size=variable.shape))
    g = mini.Graph(is_training=False)
    assign(g.model, {name: v.numpy() for name, v in variables_by_2017_name(model).items()})
    X, Y = mini.load_train_data()
    *_, cross, logits = keras.Model([g.x, g.y], [*g.attention, g.logits])([X, Y])
    np.testing.assert_allclose(logits, model(X, Y), atol=1e-4)
    weights = np.reshape(cross, (2, len(X), 9, 9)).swapaxes(0, 1)  # (N, h, T_q, T_k)
    np.testing.assert_allclose(weights, attention_maps(model, X, Y).cross[-1], atol=1e-5)
    ours, theirs = mini.greedy(g, X), greedy(*decoder(model, X), tf.fill([len(X)], BOS), 9)
    np.testing.assert_array_equal(ours, theirs)
    assert len(np.unique(ours)) > 20


def test_the_functions_equal_the_layers():
    ids = np.array([[5, 1, 7, 0]], np.int32)
    labels = np.eye(7, dtype="float32")[None]
    np.testing.assert_array_equal(mini.label_smoothing(labels), modules.label_smoothing(labels))
    queries = keras.Input((4, 6))
    assert mini.multihead_attention(queries, queries, num_heads=2).shape == (None, 4, 6)
    for arguments in (dict(), dict(zero_pad=False), dict(scale=False)):
        ours = mini.positional_encoding(ids, 6, **arguments)
        theirs = modules.PositionalEncoding(6, **arguments)(np.arange(4)[None])
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


# A run --------------------------------------------------------------


def test_dropout_acts_in_training_only(sample, configure):
    configure(dropout_rate=0.5)
    X, Y = mini.load_train_data()
    for is_training in (False, True):
        model = mini.Graph(is_training).model
        losses = [float(model([X[:8], Y[:8]])[1]) for _ in range(2)]
        assert (losses[0] != losses[1]) == is_training


def test_training_and_evaluation(sample, configure, monkeypatch, capsys, eager):
    configure(lr=0.01)
    monkeypatch.setattr(mini, "Graph", functools.cache(mini.Graph))
    mini.train()
    losses = [*map(float, re.findall(r"mean_loss ([\d.]+)", capsys.readouterr().out))]
    assert len(losses) == 2 and losses[1] < losses[0]
    num_batch = len(mini.load_train_data()[0]) // 8
    names = [f"model_epoch_{epoch:02d}_gs_{epoch * num_batch}" for epoch in (1, 2)]
    saved = {path.name for path in Path("logdir/mini").iterdir()}
    assert saved == {f"{name}.weights.h5" for name in names}

    X, Sources, Targets = mini.load_test_data()
    _, Y, _, _ = mini.create_data(Sources, Targets)
    monkeypatch.setattr(mini, "greedy", lambda g, x: Y[:8] if (x == X[:8]).all() else None)
    mini.eval()
    weights = [mini.Graph(is_training=value).model.get_weights() for value in (False, True)]
    for ours, theirs in zip(*weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)  # the last epoch's
    results = Path(f"results/mini/{names[1]}").read_text("utf-8")
    rows = re.findall(r"- source: (.*)\n- expected: (.*)\n- got: (.*)\n\n", results)
    sources, expected, got = zip(*rows, strict=True)
    assert ([*sources], [*expected]) == (Sources[:8], Targets[:8])
    _, idx2en = mini.load_en_vocab()
    assert got[0] == " ".join(idx2en[i] for i in Y[0] if i not in (PAD, EOS))
    _, _, score = results.rpartition("Bleu Score = ")
    assert float(score) == pytest.approx(bleu_score(expected, got)[0])
    printed = capsys.readouterr().out
    assert printed.endswith(f"Bleu Score = {score}\n") and printed.count("- got: ") == 5

    monkeypatch.setattr(mini, "greedy", lambda g, x: np.full_like(x, EOS))
    mini.eval()  # of empty translations
    assert capsys.readouterr().out.endswith("- got: \n\nBleu Score = 0.0\n")


def test_what_cannot_be_trained_or_translated_is_one_line(sample, configure):
    with pytest.raises(SystemExit, match="logdir/mini: no trained weights. Train a model"):
        mini.eval()
    with pytest.raises(SystemExit, match="too long. Translate at most 8 words"):
        mini.translate(mini.Graph(), "der " * 9)
    configure(batch_size=100)
    with pytest.raises(ValueError, match=f"{PATHS['source_train']}: .* pairs are no batch"):
        mini.get_batch_data()


def test_the_built_in_text(configure):
    configure()
    mini.prepare()
    sides = [mini.read(path).splitlines() for path in (mini.hp.source_train, mini.hp.target_train)]
    assert len({*sides[0]}) == len(sides[1]) == 6000 and mini.EXAMPLE not in sides[0]
    assert not {*sides[0]} & {*re.findall("<seg>(.*)</seg>", mini.read(mini.hp.source_test))}
    X, Y = mini.load_train_data()
    assert len(X) == 6000 and not (X == UNK).any() and not (Y == UNK).any()
    assert len(mini.load_test_data()[0]) == 640


def run_alone(folder, *words, edits=()):
    """Run mini.py with edits, pairs of strings, in a folder without other files: its output."""
    program = (ROOT / "mini.py").read_text("utf-8")
    for old, new in edits:
        assert old in program
        program = program.replace(old, new)
    (folder / "mini.py").write_text(program, "utf-8")
    command = [sys.executable, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return done.stdout


@slow
def test_a_user_gets_a_good_score_in_an_empty_folder(tmp_path):
    printed = run_alone(tmp_path, "mini.py")
    assert "-> The woman did not read the letter\n" in printed.partition("epoch 2")[0]
    assert float(re.search(r"^Bleu Score = (.*)", printed, re.MULTILINE)[1]) > 95
    assert printed.count("- got: ") == 5 and re.findall("^epoch (.)", printed, re.M) == [*"123"]
    assert run_alone(tmp_path, "mini.py", "Der Hund schläft nicht.") == "The dog does not sleep\n"
    again = run_alone(tmp_path, "-c", "import mini; mini.hp.num_epochs = 1; mini.train()")
    assert printed.startswith(again)  # the seed


@slow
def test_the_edits_to_try_have_an_effect(tmp_path):
    """At the end of mini.py are their scores."""
    residual = ("outputs += queries", "outputs += 0"), ("outputs += inputs", "outputs += 0")
    causality, scores = [("causality=True", "causality=False")], []
    for edits in ((), causality, residual):
        folder = tmp_path / str(len(scores))
        folder.mkdir()
        edits = [("num_epochs = 3 ", "num_epochs = 1 "), *edits]
        printed = run_alone(folder, "mini.py", edits=edits)
        scores.append(float(re.search("Bleu Score = (.*)", printed)[1]))
    assert scores[0] > 60 and scores[1] < scores[0] - 5 and scores[2] < 1


# The file -----------------------------------------------------------


def test_the_document_lists_the_functions_of_2017():
    text = (ROOT / "docs" / "original.md").read_text("utf-8")
    own = re.search(r"these functions of its own: (.*?)\.$", text, re.MULTILINE)[1]
    signatures = [
        f"{name}{inspect.signature(value)}"
        for name, value in vars(mini).items()
        if getattr(value, "__module__", None) == "mini" and f"`{name}`" not in own
        if inspect.isfunction(value) or name == "Graph"
    ]
    rows = re.findall(r"^\| `(\w+\(.*?\))` \| `(\w+)` in `([\w/]+\.py)`", text, re.MULTILINE)
    assert [row[0] for row in rows] == signatures
    for _, name, file in rows:
        source = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^(def|class) {name}\b", source, re.MULTILINE), name
