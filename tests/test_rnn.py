"""The recurrent models: equal to their formulas, and used like the Transformer."""

import itertools

import keras
import numpy as np
import pytest

import translate
from checkpoints.names_2017 import variables_by_2017_name
from conftest import recurrent_model
from helpers import X, Y, gru_step, sigmoid
from hparams import ATTENTION_SCORES, make_hparams
from model.transformer import make_model
from modules import shift_right
from support.errors import InputError
from text.ids import RaggedIds
from translation.attention_maps import alignments
from translation.inference import LoadedModel

C = 8
KINDS = ("rnn", "rnn_attention")


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
    """The logits of one pair by the formulas of docs/walkthrough.md, section 13: (T_y, V)."""
    named = {name: v.numpy() for name, v in variables_by_2017_name(model).items()}

    def weights(scope):
        return {n.rpartition("/")[2]: v for n, v in named.items() if n.startswith(f"{scope}/")}

    def embed(table, i):
        return named[table][i] * (i != 0)

    x = [i for i in x if i]
    step, num_states = STEPS[cell], 2 if cell == "lstm" else 1
    sides = []
    for scope, order in (("encoder/forward", 1), ("encoder/backward", -1)):
        w, read = weights(scope), []
        states = [np.zeros(len(w["recurrent_kernel"]))] * num_states
        for i in x[::order]:
            states = step(w, embed("encoder/enc_embed/lookup_table", i), states)
            read.append(states)
        sides.append((read[::order], read[-1]))
    e = [np.concatenate([side[i][0] for side, _ in sides]) for i in range(len(x))]  # e_1, ..., e_n
    d = [np.concatenate([last[s] for _, last in sides]) for s in range(num_states)]
    logits, last = [], d[0]
    for i in [2, *y[:-1]]:
        context = last
        if model.hp.has_attention:
            parameters = {n: v.numpy() for n, v in model.decoder.score_parameters.items()}
            s = np.array([printed_score(score, parameters, d[0], e_i) for e_i in e])
            alpha = s if score == "cosine" else np.exp(s) / np.exp(s).sum()
            context = sum(a * e_i for a, e_i in zip(alpha, e, strict=True))
        inputs = np.concatenate([embed("decoder/dec_embed/lookup_table", i), context])
        d = step(weights("decoder/cell"), inputs, d)
        logits.append(d[0] @ named["dense/kernel"] + named["dense/bias"])
    return np.stack(logits)


@pytest.mark.parametrize(
    "kind, cell, score",
    [
        *itertools.product(KINDS, STEPS, ["scaled_dot"]),
        *(("rnn_attention", "gru", score) for score in ATTENTION_SCORES),
    ],
)
def test_logits_are_those_of_the_formulas(kind, cell, score):
    model = make(model=kind, cell=cell, attention_score=score, dtype="float64")
    for row, logits in enumerate(model(X, Y).numpy()):
        expected = reference(model, cell, X[row], Y[row], score)
        np.testing.assert_allclose(logits, expected, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_replica_without_rows(kind):
    """A small batch has no rows for some replicas."""
    assert make(model=kind)(X[:0], Y[:0]).shape == (0, Y.shape[1], 13)


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


def test_a_model_without_attention_has_none_to_show(monkeypatch):
    hp = make_hparams(dict(recipe="rnn", hidden_units=16, vocab_size=13))
    monkeypatch.setattr(translate, "load_model", lambda given: LoadedModel([], hp, None, ()))
    with pytest.raises(InputError, match="attention and alignments need a model with attent"):
        translate.main(dict(alignments="a"))
    X = RaggedIds.from_lists([[5, 6, 3]])
    (weights,) = alignments(LoadedModel([], hp, make_model(hp, 13, 13), ()), X, X)
    assert weights.shape == (3, 3) and not weights.any()
