"""What TensorBoard shows of a training, up to its pages in a browser."""

import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import events
from attention import attention_maps, draw, pixels
from browser import chromium, shows, wait_for, widths_on, words_on
from conftest import (
    INSTALL_EXTRAS,
    Golden,
    forked_script,
    free_ports,
    sample_pairs,
    write_corpus,
)
from decoding import load
from hparams import with_recipe
from modules import Adam, MultiheadAttention
from summaries import metadata, readable_row, verbatim
from test_scripts import scalars
from text import load_vocabs
from train import load_dev_data, make_step

TINY = dict(recipe="tiny", vocab_size=300, hidden_units=32, num_blocks=1, num_heads=2)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of two trainings, first and second, and the flags of the second."""
    folder = tmp_path_factory.mktemp("runs")
    flags = write_corpus(folder, sample_pairs(400), sample_pairs(20, seed=1)) | TINY
    flags |= dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    assert forked_script("prepro.py", **flags).returncode == 0
    for name, lr, more in (("first", 0.001, {}), ("second", 0.002, dict(profile=2))):
        flags |= dict(logdir=str(folder / "logs" / name), num_epochs=2, batch_tokens=300, lr=lr)
        done = forked_script("train.py", **flags, **more)
        assert done.returncode == 0, done.stderr
    return folder / "logs", flags


def values(logdir):
    """All that is in TensorBoard's files but curves: [(step, tag, value)]."""
    found = []
    for path in events.files(logdir):
        for record in events.read(path)[0]:
            event = tf.compat.v1.Event.FromString(record)
            found += [("graph", event.step, event.graph_def)] if event.graph_def else []
            found += [
                (value.tag, event.step, value.tensor)
                for value in event.summary.value
                if value.metadata.plugin_data.plugin_name != "scalars"
            ]
    return found


# What is written -------------------------------------------------------------------


def test_curves(runs):
    points = scalars(runs[0] / "second")
    by_step, at_end = {*events.BY_STEP}, {"dev_loss", "dev_bleu"}
    assert set(points) == by_step | at_end
    steps, (epoch, last) = {*points["mean_loss"]}, points["dev_loss"]
    assert all(set(points[name]) == steps for name in by_step) and last in steps
    assert all(set(points[name]) == {epoch, last} for name in at_end)
    assert points["dev_loss"][last] < points["dev_loss"][epoch] < np.log(300) + 1
    for name in ("gradient_norm", "tokens_per_second"):
        assert all(value > 0 for value in points[name].values())


def test_each_epoch_has_its_pictures_and_its_table(runs):
    found = values(runs[0] / "second")
    once = ["graph", "_hparams_/session_start_info"]
    each = ["attention/cross", "attention/decoder", "attention/encoder", "dev_samples"]
    assert sorted(tag for tag, *_ in found) == sorted(once + 2 * each)
    table = next(tf.make_ndarray(tensor) for tag, _, tensor in found if tag == "dev_samples")
    assert table.shape == (11, 3) and table[0, 0] == b"**source**"
    (source, target), *_ = sample_pairs(20, seed=1)
    assert [*table[1, :2]] == [verbatim(source).encode(), verbatim(target).encode()]


def test_the_projector_knows_the_words_of_the_table(runs):
    logdir = runs[0] / "first"
    text = (logdir / "projector_config.pbtxt").read_text()
    (name,) = [line.split('"')[1] for line in text.splitlines() if "tensor_name" in line]
    shape = tf.train.load_checkpoint(str(logdir)).get_variable_to_shape_map()[name]
    assert shape == [300, 32] and 'metadata_path: "bpe.metadata.tsv"' in text
    lines = (logdir / "bpe.metadata.tsv").read_text("utf-8").split("\n")
    assert lines[:4] == ["<PAD>", "<UNK>", "<S>", "</S>"] and len(lines) == 301


def test_the_projector_has_the_counts_of_words(corpus):
    vocab, _ = load_vocabs(with_recipe(corpus | dict(min_cnt=2)))
    first, *rows = metadata(vocab).splitlines()
    assert first == "word\tcount" and len(rows) == len(vocab)
    listed = vocab.path.read_text("utf-8").splitlines()
    assert rows == listed[: len(rows)]


def test_a_profile_is_of_the_steps_asked_for(runs):
    assert not [*(runs[0] / "first").rglob("*.xplane.pb")]
    assert len([*(runs[0] / "second").rglob("*.xplane.pb")]) == 1


# Attention maps --------------------------------------------------------------------


def recorded(monkeypatch, model, x, y):
    """The weights of all attentions of a call, in the order in which they are made."""
    made, weigh = [], MultiheadAttention.weigh

    def record(*args, **kwargs):
        made.append(weigh(*args, **kwargs))
        return made[-1]

    with monkeypatch.context() as patch:
        patch.setattr(MultiheadAttention, "weigh", record)
        model(x, y)
    return made


def test_maps_are_what_the_model_attends_to(golden, monkeypatch):
    model, x, y = golden.model(), golden["x"], golden["y"]
    made = recorded(monkeypatch, model, x, y)
    maps = attention_maps(model, x, y)
    blocks = len(maps.encoder)
    assert len(made) == 3 * blocks == len([*maps.encoder, *maps.decoder, *maps.cross])
    for found, wanted in (
        (maps.encoder, made[:blocks]),
        (maps.decoder, made[blocks::2]),
        (maps.cross, made[blocks + 1 :: 2]),
    ):
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-6)


def test_a_decoder_does_not_see_what_comes(golden):
    maps = attention_maps(golden.model(), golden["x"], golden["y"])
    assert all(np.all(np.triu(heads, 1) == 0) for heads in maps.decoder)


def test_pictures_of_any_words():
    across = ["$a$", "猫", "\u0301", "<b>", "a\tb"]
    for count in (1, 2, 5, 8):
        heads = np.full([count, 3, 5], 0.2)
        picture = pixels(draw(heads, across, ["", "x" * 50, "</S>"]))
        assert picture.dtype == np.uint8 and picture.shape[2] == 4
        assert picture[..., 2].std() > 10  # something is drawn


def test_the_sentence_that_is_drawn_fits_and_is_known(runs):
    _, hp, _, vocabs = load(dict(logdir=runs[1]["logdir"]))
    data = load_dev_data(hp, vocabs).data
    row = readable_row(data)
    lengths = np.maximum(data.X.lengths, data.Y.lengths)
    assert lengths[row] == max(length for length in lengths if length <= 16)


def test_the_norm_of_the_gradient():
    golden = Golden("legacy_a")
    norms = [np.linalg.norm(array) for array in golden.group("g").values()]
    model = golden.model()
    optimizer = Adam(0.001)
    optimizer.build(model.trainable_variables)
    make_step(tf.distribute.get_strategy(), model, optimizer)(golden["x"], golden["y"])
    assert float(optimizer.gradient_norm()) == pytest.approx(np.linalg.norm(norms), rel=1e-5)


# Its pages -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(runs):
    """A function that opens a tab of TensorBoard's in Chromium, and returns its driver."""
    with chromium() as driver:
        (port,) = free_ports(1)
        command = [sys.executable, "-m", "tensorboard.main", f"--logdir={runs[0]}"]
        server = subprocess.Popen(
            [*command, "--host=127.0.0.1", f"--port={port}"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            for line in server.stderr:
                if "Press CTRL+C" in line:
                    break

            def go(tab):
                driver.get("about:blank")
                driver.get(f"http://127.0.0.1:{port}/#{tab}")
                return driver

            yield go
        finally:
            server.kill()
            server.wait()


def test_page_of_curves(page):
    shows(page("timeseries"), "first", "second", "mean_loss", "tokens_per_second", "dev_bleu")


def test_page_of_samples(page):
    (source, target), *_ = sample_pairs(20, seed=1)
    shows(page("text"), "dev_samples", "reference", source, target)


def test_page_of_attention(page):
    driver = page("images")
    shows(driver, "attention/cross", "attention/encoder", "attention/decoder")
    assert wait_for(lambda: len(widths_on(driver)) >= 6)
    assert min(widths_on(driver)) > 300


def test_page_of_hyperparameters(page):
    shows(page("hparams"), "first", "second", "batch_tokens", "0.0010000", "0.0020000", "dev_bleu")


def test_page_of_the_graph(page):
    shows(page("graphs"), "Main Graph", "transformer", "mean_loss", "adam")


def test_page_of_embeddings(page):
    shows(page("projector"), "Points: 300", "Dimension: 32", "bpe.metadata.tsv")


def test_page_of_the_profile(page):
    pytest.importorskip("xprof", reason=INSTALL_EXTRAS)
    driver = page("profile")
    taken = r"Host Compute Time \(σ = [\d.]+ ms\) ([\d.]+) ms"
    time = wait_for(lambda: re.search(taken, words_on(driver)))
    assert float(time[1]) > 0  # of a step, which it finds
