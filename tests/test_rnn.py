"""The recurrent models: equal to their formulas, and used like the Transformer."""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

import prepro
import translate
from choices import ATTENTION_SCORES
from conftest import (
    GOLDEN,
    recurrent_model,
    sample_pairs,
    slow,
    write_corpus,
)
from helpers import (
    X,
    Y,
    gru_step,
    load,
    read_test_sentences,
    refused,
    run_main,
    sigmoid,
    tensorflow_text,
)
from hparams import make_hparams
from ids import RaggedIds
from inference import LoadedModel
from model import make_model
from modules import shift_right
from monitor.attention_maps import alignments
from optimizer import FusedAdam
from processes import Forked, forked_script
from runtime.errors import InputError
from training_step import make_train_step
from variable_names import variables_by_2017_name
from variants.rnn import CELLS, LAYERS

C = 8


def make(**args):
    """Build a small model; `dtype` is one of the arguments."""
    keras.utils.set_random_seed(1)
    model = recurrent_model(13, 13, hidden_units=C, **args)
    for variable in model.trainable_variables:  # as after training: no bias is zero
        variable.assign_add(np.random.normal(scale=0.1, size=variable.shape))
    return model


def tanh_step(w, x, states):
    return [np.tanh(x @ w["kernel"] + states[0] @ w["recurrent_kernel"] + w["bias"])]


def lstm_step(w, x, states):
    h, c = states
    i, f, g, o = np.split(x @ w["kernel"] + h @ w["recurrent_kernel"] + w["bias"], 4)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return [sigmoid(o) * np.tanh(c), c]


STEPS = dict(tanh=tanh_step, gru=gru_step, lstm=lstm_step)


def printed_score(name, w, q, k):
    """Score a key for a query by the formulas of docs/variants.md."""
    if name == "additive":
        return w["omega"][0] @ np.tanh(q @ w["query_kernel"][0] + k @ w["key_kernel"][0])
    if name == "bilinear":
        return q @ w["kernel"][0] @ k
    return q @ k / dict(dot=1, scaled_dot=C**0.5).get(name, (q @ q * (k @ k)) ** 0.5)


def reference(model, cell, x, y, score="scaled_dot"):
    """The logits of one pair, token by token, by the formulas of docs/walkthrough.md, section 13.

    Returns:
      (T_y, V)
    """
    named = {name: v.numpy() for name, v in variables_by_2017_name(model).items()}

    def weights(scope):
        return {n.rpartition("/")[2]: v for n, v in named.items() if n.startswith(f"{scope}/")}

    def embed(table, i):
        return named[table][i] * (i != 0)

    x = [i for i in x if i]
    step, num_states = STEPS[cell], 2 if cell == "lstm" else 1
    sides = []
    for scope, order in (("encoder/forward", 1), ("encoder/backward", -1)):
        if w := weights(scope):
            states, read = [np.zeros(len(w["recurrent_kernel"]))] * num_states, []
            for i in x[::order]:
                states = step(w, embed("encoder/enc_embed/lookup_table", i), states)
                read.append(states)
            sides.append((read[::order], read[-1]))
    e = [np.concatenate([side[i][0] for side, _ in sides]) for i in range(len(x))]  # e_1, ..., e_n
    d = [np.concatenate([last[s] for _, last in sides]) for s in range(num_states)]
    logits, last = [], d[0]
    for i in [2, *y[:-1]]:
        context = last
        if model.hp.decoder_attention:
            parameters = {n: v.numpy() for n, v in model.decoder.score_parameters.items()}
            s = np.array([printed_score(score, parameters, d[0], e_i) for e_i in e])
            alpha = s if score == "cosine" else np.exp(s) / np.exp(s).sum()
            context = sum(a * e_i for a, e_i in zip(alpha, e, strict=True))
        inputs = np.concatenate([embed("decoder/dec_embed/lookup_table", i), context])
        d = step(weights("decoder/cell"), inputs, d)
        logits.append(d[0] @ named["dense/kernel"] + named["dense/bias"])
    return np.stack(logits)


@pytest.mark.parametrize(
    "cell, decoder_attention, bidirectional, score",
    [
        *itertools.product(CELLS, (False, True), (False, True), ["scaled_dot"]),
        *(("gru", True, True, score) for score in ATTENTION_SCORES),
    ],
)
def test_logits_are_those_of_the_formulas(cell, decoder_attention, bidirectional, score):
    model = make(
        cell=cell,
        decoder_attention=decoder_attention,
        bidirectional=bidirectional,
        attention_score=score,
        dtype="float64",
    )
    for row, logits in enumerate(model(X, Y).numpy()):
        expected = reference(model, cell, X[row], Y[row], score)
        np.testing.assert_allclose(logits, expected, atol=1e-9)


@pytest.mark.parametrize(
    "cell, decoder_attention, score, bidirectional",
    [
        *((cell, attention, "scaled_dot", True) for cell in CELLS for attention in (False, True)),
        *(("gru", True, score, False) for score in ("additive", "bilinear", "cosine")),
    ],
)
def test_gradients_are_the_slopes_of_the_loss(cell, decoder_attention, score, bidirectional):
    """Finite differences of the independent formulas."""
    model = make(
        cell=cell,
        decoder_attention=decoder_attention,
        bidirectional=bidirectional,
        attention_score=score,
        dtype="float64",
    )
    rng = np.random.default_rng(0)
    probe = rng.normal(size=(6, 13))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(X[:1], Y[:1])[0] * probe)
    named = variables_by_2017_name(model)
    gradients = tape.gradient(loss, [v.value for v in named.values()])
    for (name, variable), gradient in zip(named.items(), gradients, strict=True):
        direction, before = rng.normal(size=variable.shape), variable.numpy()
        losses = []
        for sign in (1, -1):
            variable.assign(before + sign * 1e-5 * direction)
            losses.append((reference(model, cell, X[0], Y[0], score) * probe).sum())
        variable.assign(before)
        slope = np.sum(tf.convert_to_tensor(gradient) * direction)
        assert slope == pytest.approx((losses[0] - losses[1]) / 2e-5, rel=1e-6, abs=1e-7), name


@pytest.mark.parametrize("decoder_attention", [False, True])
def test_a_replica_without_rows(decoder_attention):
    """A small batch has no rows for some replicas."""
    model = make(decoder_attention=decoder_attention)
    assert tf.function(model)(X[:0], Y[:0]).shape == (0, Y.shape[1], 13)


def from_pytorch(cell, arrays):
    """Convert PyTorch's parameters, or their gradients, to kernel, recurrent kernel and bias."""
    arrays = {name: array.T for name, array in arrays.items()}
    kernels = [arrays[f"weight_{name}_l0"] for name in ("ih", "hh")]
    biases = [arrays[f"bias_{name}_l0"] for name in ("ih", "hh")]
    if cell != "gru":
        return [*kernels, sum(biases)]
    # PyTorch: reset, update, new. Keras: update, reset, new.
    r, z, n = np.split(np.arange(len(biases[0])), 3)
    order = np.concatenate([z, r, n])
    return [*(kernel[:, order] for kernel in kernels), np.stack(biases)[:, order]]


@pytest.mark.parametrize("cell", CELLS)
def test_cells_are_those_of_pytorch(cell):
    """States of seven steps, and their gradients; tests/golden/make_rnn_cells.py wrote them."""
    golden = np.load(GOLDEN / "rnn_cells.npz", allow_pickle=False)

    def group(prefix):
        return {n.removeprefix(prefix): golden[n] for n in golden.files if n.startswith(prefix)}

    layer = LAYERS[cell](6, return_sequences=True)
    x = tf.constant(golden["x"])  # (3, 7, 5)
    layer.build(x.shape)
    for variable, array in zip(layer.weights, from_pytorch(cell, group(f"{cell}/")), strict=True):
        variable.assign(array)
    with tf.GradientTape() as tape:
        tape.watch(x)
        states = layer(x)
        loss = tf.reduce_sum(states**2)
    np.testing.assert_allclose(states, golden[f"{cell}/states"], atol=1e-6)
    of_x, *of_weights = tape.gradient(loss, [x, *(v.value for v in layer.weights)])
    np.testing.assert_allclose(of_x, golden[f"{cell}/gradient/x"], rtol=1e-5, atol=1e-6)
    expected = from_pytorch(cell, group(f"{cell}/gradient/"))
    if cell != "gru":
        expected[2] = expected[2] / 2  # both biases have the gradient of their sum
    for ours, theirs in zip(of_weights, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@slow
def test_training_steps_do_not_crash():
    """With the threads of a real training run, oneDNN has crashed in a product of additive."""
    task = functools.partial(train_two_steps, "additive")
    with Forked(task, env=dict(TF_NUM_INTRAOP_THREADS=None)) as process:
        _, printed = process.communicate()
    assert process.returncode == 0, printed


def train_two_steps(score):
    """Train the recipe rnn_attention on random ids."""
    hp = make_hparams(dict(recipe="rnn_attention", attention_score=score, hidden_units=16))
    model, optimizer = make_model(hp, 50, 50), FusedAdam(0.001)
    optimizer.build(model.trainable_variables)
    x, y = np.random.default_rng(0).integers(4, 50, (2, 4, 6), np.int32)
    step = make_train_step(tf.distribute.get_strategy(), model, optimizer)
    for _ in range(2):
        assert np.isfinite(step(tf.constant(x), tf.constant(y))).all()


def test_dropout_acts_in_training_on_embeddings_and_on_the_decoders_states(dropout_inputs):
    model = make(dropout_rate=0.2)
    logits = model(X, Y, training=True)
    source, target, states = dropout_inputs
    np.testing.assert_array_equal(source, model.source_tokens(X))
    np.testing.assert_array_equal(target, model.target_tokens(shift_right(Y)))
    np.testing.assert_allclose(model.to_logits(states), logits, atol=1e-6)
    model(X, Y)
    assert len(dropout_inputs) == 3


def test_cross_attention_has_the_weights_of_each_step():
    model = make()
    weights = model.cross_attention(X, Y).numpy()  # (N, 1, T_y, T_x)
    assert weights.shape == (2, 1, 6, 6)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)
    assert not weights[1, 0, :, 3:].any()  # padding
    memory = model.encode_memory(X)
    _, first = model.decoder.context(memory.last[0], memory)
    np.testing.assert_allclose(weights[:, :, 0], first[:, :, 0], atol=1e-6)


# The scripts -----------------------------------------------------------------------------


@slow
def test_training_resumes_and_gives_the_same(tmp_path):
    """An interrupted and an uninterrupted run have equal parameters.

    The interruptions are in the middle of an epoch and at its end.
    """
    flags = write_corpus(tmp_path, sample_pairs(60), sample_pairs(10, seed=1))
    flags |= dict(recipe="rnn_attention", cell="lstm", hidden_units=16, vocab_size=200)
    flags |= dict(batch_size=20, num_epochs=2, schedule="constant")  # three batches per epoch
    flags |= dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    run_main(prepro, flags)
    for logdir, parts in (("complete", [0]), ("parts", [2, 3, 0])):
        for max_steps in parts:
            more = dict(logdir=tmp_path / logdir, max_steps=max_steps, deterministic=True)
            done = forked_script("train.py", **flags | more)
            assert done.returncode == 0 and "BLEU" in done.stdout, done.stderr
    complete, parts = (
        load(dict(logdir=str(tmp_path / name), average_checkpoints=1))[2]
        for name in ("complete", "parts")
    )
    for one, other in zip(complete.trainable_variables, parts.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, other, err_msg=one.path)


@slow
def test_a_trained_model_is_used_like_a_transformer(trained, tmp_path):
    """eval.py, translate.py, attention, SavedModel; CTranslate2 is refused."""
    flags = trained("rnn_attention")
    logdir = dict(logdir=flags["logdir"])
    done = forked_script("eval.py", **logdir, results=tmp_path / "results")
    assert done.returncode == 0 and "beam 5" in done.stdout, done.stderr
    lines = read_test_sentences(flags["source_test"])
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    files = dict(source=tmp_path / "in", output=tmp_path / "out", attention=tmp_path / "a.png")
    done = forked_script("translate.py", **logdir, **files)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
    tensorflow_text()
    done = forked_script("export.py", **logdir, output=tmp_path / "model")
    assert done.returncode == 0, done.stderr
    serve = tf.saved_model.load(str(tmp_path / "model")).signatures["serving_default"]
    texts = [text.decode() for text in serve(text=tf.constant(lines))["translation"].numpy()]
    assert texts == (tmp_path / "out").read_text("utf-8").splitlines() and len(set(texts)) > 5
    more = logdir | dict(format="ctranslate2", output=tmp_path / "other")
    refused("export.py", "CTranslate2 has no such model", **more)


def test_a_model_without_attention_has_none_to_show(monkeypatch):
    hp = make_hparams(dict(recipe="rnn", hidden_units=16, vocab_size=13))
    monkeypatch.setattr(translate, "load_model", lambda given: LoadedModel([], hp, None, ()))
    for name, value in (("attention", "a.png"), ("alignments", "a")):
        with pytest.raises(InputError, match="attention and alignments need a model with attent"):
            translate.main({name: value})
    X = RaggedIds.from_lists([[5, 6, 3]])
    (weights,) = alignments(LoadedModel([], hp, make_model(hp, 13, 13), ()), X, X)
    assert weights.shape == (3, 3) and not weights.any()
