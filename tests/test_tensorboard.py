"""What TensorBoard shows of a training run, in its files and on its pages."""

import functools
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import prepro
import train
from browser import chromium, image_widths, page_text, wait_for, wait_for_text
from conftest import INSTALL_EXTRAS, Golden, sample_pairs, slow, write_corpus
from data_load import SentencePairs, load_test_data
from helpers import event_values, load, run_main, scalars
from hparams import make_hparams
from ids import UNK, RaggedIds
from modules import MultiheadAttention
from monitor import tensorboard_events
from monitor.attention_maps import attention_maps, figure_to_array, plot_heads
from monitor.summaries import Profiler, choose_example, escape_markdown
from optimizer import FusedAdam
from processes import free_ports
from training_step import make_train_step
from vocab import load_vocabs

TINY = dict(recipe="tiny", vocab_size=300, hidden_units=32, num_blocks=1, num_heads=2)


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    """Train a model in a folder `second`, with a profile: the flags."""
    folder = tmp_path_factory.mktemp("runs")
    flags = write_corpus(folder, sample_pairs(200), sample_pairs(20, seed=1)) | TINY
    flags |= dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    flags |= dict(logdir=str(folder / "logs" / "second"), batch_tokens=300, lr=0.002)
    run_main(prepro, flags)
    run_main(train, flags | dict(num_epochs=2, profile_steps=2))
    return flags


@pytest.fixture(scope="module")
def first(second):
    """Train a model in the folder `first` next to it, without a profile: the flags."""
    flags = second | dict(logdir=str(Path(second["logdir"]).with_name("first")), lr=0.001)
    run_main(train, flags | dict(num_epochs=1))
    return flags


# Event files -----------------------------------------------------------------------


def test_curves(second):
    points = scalars(second["logdir"])
    by_step, at_end = {*tensorboard_events.STEP_TAGS}, {"dev_loss", "dev_bleu", "dev_chrf"}
    assert set(points) == by_step | at_end
    steps, (epoch, last) = {*points["mean_loss"]}, points["dev_loss"]
    assert all(set(points[name]) == steps for name in by_step) and last in steps
    assert all(set(points[name]) == {epoch, last} for name in at_end)
    assert points["dev_loss"][last] < points["dev_loss"][epoch] < np.log(300) + 1
    for name in ("gradient_norm", "tokens_per_second"):
        assert all(value > 0 for value in points[name].values())


@slow
def test_events_of_an_earlier_training_are_kept_in_another_folder(first, tmp_path, capsys):
    logdir = shutil.copytree(first["logdir"], tmp_path / "logdir")
    for path in logdir.glob("model_epoch_*"):
        path.unlink()
    for name in ("checkpoint", "run.json"):
        (logdir / name).unlink()
    (earlier,) = tensorboard_events.event_files(logdir)
    content = earlier.read_bytes()
    run_main(train, first | dict(logdir=str(logdir), num_epochs=1, lr=0.003))
    moved = logdir / tensorboard_events.EARLIER / earlier.name
    assert moved.read_bytes() == content and not earlier.exists()
    assert f"Moved it to {moved.parent}" in capsys.readouterr().err
    assert {*scalars(logdir)["lr"].values()}.isdisjoint(scalars(moved.parent)["lr"].values())


def test_each_epoch_writes_pictures_and_a_table(second):
    found = event_values(second["logdir"])
    per_run = ["graph", "_hparams_/session_start_info"]
    per_epoch = ["attention/cross", "attention/decoder", "attention/encoder", "dev_samples"]
    assert sorted(tag for tag, *_ in found) == sorted(per_run + 2 * per_epoch)
    for _, _, tensor in (value for value in found if value[0].startswith("attention/")):
        width, _, *pictures = tf.make_ndarray(tensor)
        assert len(pictures) == TINY["num_heads"] and int(width) <= 350  # shown without shrinking
    table = next(tf.make_ndarray(tensor) for tag, _, tensor in found if tag == "dev_samples")
    assert table.shape == (11, 3) and table[0, 0] == b"**source**"
    (source, target), *_ = sample_pairs(20, seed=1)
    assert [*table[1, :2]] == [escape_markdown(source).encode(), escape_markdown(target).encode()]


def test_the_projector_has_the_tokens_of_the_embedding(second):
    logdir = Path(second["logdir"])
    text = (logdir / "projector_config.pbtxt").read_text()
    (name,) = [line.split('"')[1] for line in text.splitlines() if "tensor_name" in line]
    shape = tf.train.load_checkpoint(str(logdir)).get_variable_to_shape_map()[name]
    assert shape == [300, 32] and 'metadata_path: "bpe.source.metadata.tsv"' in text
    lines = (logdir / "bpe.source.metadata.tsv").read_text("utf-8").split("\n")
    assert lines[:4] == ["<PAD>", "<UNK>", "<S>", "</S>"] and len(lines) == 301


def test_the_projector_has_the_counts_of_words(corpus):
    vocab, _ = load_vocabs(make_hparams(corpus | dict(min_cnt=2)))
    first, *rows = vocab.table().splitlines()
    assert first == "word\tcount" and len(rows) == len(vocab)
    listed = vocab.path.read_text("utf-8").splitlines()
    assert rows == listed[: len(rows)]


def test_only_a_run_with_profile_steps_has_a_profile(second, trained):
    assert len([*Path(second["logdir"]).rglob("*.xplane.pb")]) == 1
    assert not [*Path(trained("tiny")["logdir"]).rglob("*.xplane.pb")]


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


def test_the_sentence_that_is_drawn_is_short_and_known(second):
    _, hp, _, vocabs = load(dict(logdir=second["logdir"]))
    data = load_test_data(hp, vocabs, "dev").data
    row = choose_example(data)
    lengths = np.maximum(data.X.lengths, data.Y.lengths)
    assert lengths[row] == max(length for length in lengths if length <= 16)


def test_an_example_that_fits_comes_before_one_without_unknown_words():
    rows = RaggedIds.from_lists([[UNK] + [5] * 10, [UNK] + [5] * 11, [5] * 81])
    assert choose_example(SentencePairs(rows, rows, [], [], [])) == 1
    rows = RaggedIds.from_lists([[UNK] + [5] * 10, [5] * 5, [5] * 81])
    assert choose_example(SentencePairs(rows, rows, [], [], [])) == 1


@pytest.mark.parametrize("batches_per_epoch", [4, 10, 100])
def test_the_ends_of_epochs_are_not_profiled_batches(monkeypatch, tmp_path, batches_per_epoch):
    events = []
    for name in ("start", "stop"):
        record = functools.partial(lambda event, *_: events.append(event), name)
        monkeypatch.setattr(tf.profiler.experimental, name, record)
    with Profiler(tmp_path, 5) as profiler:
        for start in range(0, 100, batches_per_epoch):
            for batch in profiler.trace(range(start, start + batches_per_epoch), start):
                events.append(batch)
    assert events[events.index("start") + 1 : events.index("stop")] == [*range(10, 15)]


def test_the_norm_of_the_gradient(eager):
    golden = Golden("legacy_a")
    norms = [np.linalg.norm(array) for array in golden.group("g").values()]
    model = golden.model()
    optimizer = FusedAdam(0.001)
    optimizer.build(model.trainable_variables)
    make_train_step(tf.distribute.get_strategy(), model, optimizer)(golden["x"], golden["y"])
    assert float(optimizer.gradient_norm()) == pytest.approx(np.linalg.norm(norms), rel=1e-5)


# Pages -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def page(first):
    """A function that opens a tab of TensorBoard in Chromium, and returns the driver."""
    with chromium() as driver:
        (port,) = free_ports(1)
        command = [
            sys.executable,
            "-m",
            "tensorboard.main",
            f"--logdir={Path(first['logdir']).parent}",
        ]
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

            def open_tab(tab):
                driver.get("about:blank")
                driver.get(f"http://127.0.0.1:{port}/#{tab}")
                return driver

            yield open_tab
        finally:
            server.kill()
            server.wait()


@slow
def test_page_of_curves(page):
    wait_for_text(
        page("timeseries"), "first", "second", "mean_loss", "tokens_per_second", "dev_bleu"
    )


@slow
def test_page_of_samples(page):
    (source, target), *_ = sample_pairs(20, seed=1)
    wait_for_text(page("text"), "dev_samples", "reference", source, target)


@slow
def test_page_of_attention(page):
    driver = page("images")
    wait_for_text(driver, "attention/cross", "attention/encoder", "attention/decoder")
    assert wait_for(lambda: len(image_widths(driver)) >= 12)  # two runs, three kinds, two heads
    assert min(image_widths(driver)) > 200 and max(image_widths(driver)) <= 350


@slow
def test_page_of_hyperparameters(page):
    wait_for_text(
        page("hparams"), "first", "second", "batch_tokens", "0.0010000", "0.0020000", "dev_bleu"
    )


@slow
def test_page_of_the_graph(page):
    wait_for_text(page("graphs"), "Main Graph", "transformer", "mean_loss", "muon")


@slow
def test_page_of_embeddings(page):
    wait_for_text(page("projector"), "Points: 300", "Dimension: 32", "bpe.source.metadata.tsv")


@slow
def test_page_of_the_profile(page):
    pytest.importorskip("xprof", reason=INSTALL_EXTRAS)
    driver = page("profile")
    step_time = r"Host Compute Time \(σ = [\d.]+ ms\) ([\d.]+) ms"
    match = wait_for(lambda: re.search(step_time, page_text(driver)))
    assert float(match[1]) > 0  # the profiler has recognized the steps
