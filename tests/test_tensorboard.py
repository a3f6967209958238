"""What TensorBoard shows of a training run, in its files and on its pages."""

import contextlib
import io
import re
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

import prepro
import train
from conftest import Golden, sample_pairs, write_corpus
from data_load import SentencePairs
from helpers import STEP_TAGS, event_values, run_main, saved_paths, scalars
from hparams import make_hparams
from modules import MultiheadAttention
from text.ids import RaggedIds
from training import tensorboard
from training.optimizer import FusedAdam
from training.step import make_train_step
from translation.attention_maps import AttentionMaps, attention_maps, figure_to_array, plot_heads

SENTENCES = sample_pairs(1, seed=1)[0]  # the first pair of the development set
TINY = dict(recipe="tiny", vocab_size=300, hidden_units=32, num_blocks=1, num_heads=2)


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """Train a model: the flags, and what was printed on both streams."""
    folder = tmp_path_factory.mktemp("run")
    flags = write_corpus(folder, sample_pairs(200), sample_pairs(20, seed=1)) | TINY
    flags |= dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    flags |= dict(batch_tokens=300, lr=0.002)
    run_main(prepro, flags)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run_main(train, flags | dict(num_epochs=2))
    return flags, out.getvalue(), err.getvalue()


@pytest.fixture
def logdir(training):
    return training[0]["logdir"]


def test_what_is_printed(training, logdir):
    """A checkpoint per epoch; progress bars of the epoch and of the development set."""
    _, out, err = training
    names = re.findall(r"(model_epoch_\d+_gs_\d+).npz: mean_loss .* BLEU", out)
    assert names == [path.stem for path in saved_paths(logdir)] and len(names) == 2
    assert "Training on 200 of 200 pairs" in out and "parameters on 1 CPU, " in out
    assert "epoch 2/2" in err and "translating" in err


# Event files -----------------------------------------------------------------------


def test_curves(logdir):
    points = scalars(logdir)
    by_step, at_end = {*STEP_TAGS}, {"dev_loss", "dev_bleu", "dev_chrf"}
    assert set(points) == by_step | at_end
    steps, (epoch, last) = {*points["mean_loss"]}, points["dev_loss"]
    assert all(set(points[name]) == steps for name in by_step) and last in steps
    assert all(set(points[name]) == {epoch, last} for name in at_end)
    assert points["dev_loss"][last] < points["dev_loss"][epoch] < np.log(300) + 1
    for name in ("gradient_norm", "tokens_per_second"):
        assert all(value > 0 for value in points[name].values())


def test_each_epoch_writes_pictures_and_a_table(logdir):
    found = event_values(logdir)
    per_run = ["graph", "_hparams_/session_start_info"]
    per_epoch = ["attention/cross", "attention/decoder", "attention/encoder", "dev_samples"]
    assert sorted(tag for tag, *_ in found) == sorted(per_run + 2 * per_epoch)
    for _, _, tensor in (value for value in found if value[0].startswith("attention/")):
        width, _, *pictures = tf.make_ndarray(tensor)
        assert len(pictures) == TINY["num_heads"] and int(width) <= 350  # shown without shrinking
    table = next(tf.make_ndarray(tensor) for tag, _, tensor in found if tag == "dev_samples")
    assert table.shape == (11, 3) and table[0, 0] == b"**source**"
    assert [*table[1, :2]] == [f"`` {text} ``".encode() for text in SENTENCES]


# Attention maps --------------------------------------------------------------------


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


def test_the_decoder_does_not_attend_to_later_tokens(golden):
    maps = attention_maps(golden.model(), golden["x"], golden["y"])
    assert all(np.all(np.triu(heads, 1) == 0) for heads in maps.decoder)


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
