"""What TensorBoard shows of a model: maps of attention, and the norm of the gradient."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from conftest import Golden
from data_load import SentencePairs
from helpers import scalars
from hparams import load_hparams, make_hparams
from modules import MultiheadAttention
from text.ids import RaggedIds
from training import tensorboard
from training.optimizer import FusedAdam, learning_rate
from training.step import make_train_step
from translation.attention_maps import AttentionMaps, attention_maps, figure_to_array, plot_heads


def recorded(monkeypatch, model, x, y):
    """Call the model, and record all attention weights in the order of their computation."""
    records, attend_heads = [], MultiheadAttention.attend_heads

    def record(*args, **kwargs):
        outputs, weights = attend_heads(*args, **kwargs)
        records.append(weights)
        return outputs, weights

    with monkeypatch.context() as patch:
        patch.setattr(MultiheadAttention, "attend_heads", record)
        model(x, y)
    return records


def test_maps_are_what_the_model_attends_to(golden, monkeypatch):
    model, x, y = golden.model(), golden["x"], golden["y"]
    records = recorded(monkeypatch, model, x, y)
    maps = attention_maps(model, x, y)
    blocks = len(maps.encoder)
    assert len(records) == 3 * blocks == len([*maps.encoder, *maps.decoder, *maps.cross])
    for computed, expected in (
        (maps.encoder, records[:blocks]),
        (maps.decoder, records[blocks::2]),
        (maps.cross, records[blocks + 1 :: 2]),
    ):
        for weights, expected_weights in zip(computed, expected, strict=True):
            np.testing.assert_allclose(weights, expected_weights, atol=1e-6)


def test_pictures_of_any_tokens():
    x_labels = ["$a$", "猫", "\u0301", "<b>", "a\tb"]
    for count in (1, 2, 5, 8):
        heads = np.full([count, 3, 5], 0.2)
        picture = figure_to_array(plot_heads(heads, x_labels, ["", "x" * 50, "</S>"]))
        assert picture.dtype == np.uint8 and picture.shape[2] == 4
        assert picture[..., 2].std() > 10  # the picture is not empty


@pytest.mark.parametrize("lengths, drawn", [([3, 16, 15, 17], 16), ([90, 17, 20], 17)])
def test_the_sentence_that_is_drawn_is_the_longest_that_fits(monkeypatch, lengths, drawn):
    shapes, vocab = [], SimpleNamespace(id_to_token=str)
    monkeypatch.setattr(
        tensorboard,
        "attention_maps",
        lambda model, x, y: shapes.append(x.shape) or AttentionMaps((), (), ()),
    )
    rows = RaggedIds.from_lists([[5] * length for length in lengths])
    dev = SimpleNamespace(data=SentencePairs(rows, rows, [], [], []))
    tensorboard.write_attention(None, dev, [vocab] * 2, make_hparams(dict(recipe="tiny")), 1)
    assert shapes == [(1, drawn)]


def test_the_norm_of_the_gradient(eager):
    golden = Golden("legacy_a")
    norms = [np.linalg.norm(array) for array in golden.group("g").values()]
    model = golden.model()
    optimizer = FusedAdam(0.001)
    optimizer.build(model.trainable_variables)
    make_train_step(tf.distribute.get_strategy(), model, optimizer)(golden["x"], golden["y"])
    assert float(optimizer.gradient_norm()) == pytest.approx(np.linalg.norm(norms), rel=1e-5)


def test_the_curve_of_the_learning_rate(trained):
    """Each point is the rate with which its step was made."""
    logdir = trained("tiny")["logdir"]
    hp, rates = load_hparams(dict(logdir=logdir)), scalars(logdir)["lr"]
    total = max(rates)
    assert hp.schedule == "linear" and len({*rates.values()}) > 10
    for step, rate in rates.items():
        assert rate == pytest.approx(learning_rate(hp, step, step / total, total))
