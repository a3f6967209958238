"""The recipe tiny, from text to text."""

import contextlib
import dataclasses
import io
import math
import re
import shutil
from threading import get_ident

import numpy as np
import pytest
import tensorflow as tf

import eval
import prepro
import train
from checkpoints import checkpoint
from conftest import sample_pairs, seeds, slow, write_corpus
from data_load import load_test_data, load_train_data
from helpers import (
    event_values,
    load,
    parameters,
    read_test_sentences,
    saved_rows,
    scalars,
)
from hparams import load_hparams, make_hparams
from support.errors import InputError
from text.ids import EOS, PAD, SPECIALS, UNK, RaggedIds
from text.vocab import WordVocab, load_vocabs
from train import count_epochs
from translation import inference
from translation.inference import Hypothesis, LoadedModel, SearchDecoder, limit_note
from translation.search import paper_penalty

TINY = dict(recipe="tiny", vocab_size=180, hidden_units=16, ffn_units=32, num_blocks=1, num_heads=2)
TINY |= dict(fold_case=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Flags and output of three epochs of training, with the test set as development set."""
    folder = tmp_path_factory.mktemp("tiny")
    flags = write_corpus(folder, sample_pairs(200), sample_pairs(30, seed=1)) | TINY
    flags |= dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    flags |= dict(num_epochs=3, batch_size=40, accumulate=2, bpe_dropout=0.1)
    prepro.main(flags)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        train.main(flags)
    return flags, printed.getvalue()


@pytest.mark.parametrize(
    "flags, steps, epochs",
    [
        (dict(recipe="tiny"), 318, 20),  # Multi30k's batches
        (dict(recipe="tiny"), 1, 196),
        (dict(recipe="tiny", num_epochs=3), 5, 3),
        (dict(recipe="tiny", max_steps=9), 5, math.inf),
        (dict(recipe="tiny", num_epochs=3, max_steps=9), 5, 3),
        (dict(recipe="paper"), 5, 20),
        (dict(recipe="paper", max_steps=9), 5, math.inf),
        (dict(recipe="paper", num_epochs=0), 300, 20),
    ],
)
def test_how_many_epochs_a_training_has(flags, steps, epochs):
    assert count_epochs(make_hparams(flags), steps) == epochs


def test_a_smaller_text_has_more_epochs_but_fewer_steps():
    sizes = (1, 4, 17, 45, 200, 300, 5000)
    epochs = [count_epochs(make_hparams(dict(recipe="tiny")), steps) for steps in sizes]
    assert epochs == sorted(epochs, reverse=True)
    totals = [steps * count for steps, count in zip(sizes, epochs, strict=True)]
    assert totals == sorted(totals)


def test_the_length_is_printed_and_the_peak_of_the_rate_is_reached(run):
    flags, printed = run
    assert "parameters on 1 CPU, 9 steps, 3 per epoch\n" in printed
    lines = re.findall(r"_gs_\d\.npz: mean_loss .* chrF [\d.]+, [\d.]+ min\n", printed)
    assert len(lines) == 3 and "\r" not in printed
    rates = scalars(flags["logdir"])["lr"]
    assert [*rates] == [3, 6, 9]
    assert [*rates.values()] == pytest.approx([0.01 * 0.75, 0.01 * 0.375, 0.01 * 0.01])


# Curves with a point every few steps. The others have one per evaluation.
STEP_TAGS = {"mean_loss", "acc", "lr", "gradient_norm", "tokens_per_second"}


def test_each_epoch_prints_the_dev_bleu_and_the_best_one_is_stored(run):
    flags, printed = run
    found = re.findall(r", dev loss [\d.]+ BLEU ([\d.]+) chrF", printed)
    points, rows = scalars(flags["logdir"]), saved_rows(flags["logdir"])
    assert set(points) == STEP_TAGS | {"dev_loss", "dev_bleu", "dev_chrf"}
    assert [*points["dev_bleu"]] == [row.step for row in rows] == [3, 6, 9]
    for scores in (points["dev_bleu"].values(), [row.score for row in rows]):
        assert [f"{bleu:.2f}" for bleu in scores] == found
    best = checkpoint.best_row(rows)
    assert best.score == max(row.score for row in rows)
    assert all([*curve] == [3, 6, 9] for curve in points.values())
    first, _, last = points["dev_loss"].values()
    assert last < first < np.log(TINY["vocab_size"]) + 1
    for name in ("gradient_norm", "tokens_per_second"):
        assert min(points[name].values()) > 0


def test_each_epoch_writes_pictures_and_a_table(run):
    found = event_values(run[0]["logdir"])
    per_run = ["graph", "_hparams_/session_start_info"]
    per_epoch = ["attention/cross", "attention/decoder", "attention/encoder", "dev_samples"]
    assert sorted(tag for tag, *_ in found) == sorted(per_run + 3 * per_epoch)
    for _, _, tensor in (value for value in found if value[0].startswith("attention/")):
        width, _, *pictures = tf.make_ndarray(tensor)
        assert len(pictures) == TINY["num_heads"] and int(width) <= 350  # shown without shrinking
    table = next(tf.make_ndarray(tensor) for tag, _, tensor in found if tag == "dev_samples")
    assert table.shape == (11, 3) and table[0, 0] == b"**source**"
    (pair,) = sample_pairs(1, seed=1)
    assert [*table[1, :2]] == [f"`` {text} ``".encode() for text in pair]


def test_the_dev_bleu_is_what_eval_gives_the_best_checkpoint(run, capsys):
    """The test set is the development set here."""
    eval.main({name: run[0][name] for name in ("logdir", "results")} | dict(best=True, beam=1))
    printed, best = capsys.readouterr().out, checkpoint.best_row(saved_rows(run[0]["logdir"]))
    assert f"Decoding = greedy search, {best.name}\n" in printed
    assert f"sacreBLEU = {best.score:.2f} " in printed


def test_a_warning_for_mostly_empty_translations(run, monkeypatch, capsys, tmp_path):
    empty = Hypothesis("", [], 0.0, at_limit=False)
    monkeypatch.setattr(SearchDecoder, "__call__", lambda _, X: [[empty]] * len(X))
    eval.main(dict(logdir=run[0]["logdir"], results=str(tmp_path), beam=1))
    warning = "30 of 30 translations are empty. The model has learned too little."
    assert warning in capsys.readouterr().err


def test_a_training_that_diverges_keeps_the_last_checkpoint(run, tmp_path, eager):
    logdir = str(shutil.copytree(run[0]["logdir"], tmp_path / "logdir"))
    rows = saved_rows(logdir)
    message = rf"step \d+. The last good checkpoint is .*{rows[-1].name}.npz. Use a new --logdir"
    with pytest.raises(InputError, match=message):
        train.main(run[0] | dict(logdir=logdir, num_epochs=9, lr=1e20))
    assert saved_rows(logdir) == rows
    assert all(np.isfinite(array).all() for array in parameters(logdir).values())


def test_translations_that_fill_their_limit_are_counted(monkeypatch):
    hp = make_hparams(dict(recipe="tiny", max_output_ratio=0.1))
    X = RaggedIds.from_lists([[5, 6, EOS]] * 3)
    # Of at most 10 tokens.
    rows = [[7] * 9 + [EOS], [7] * 10, [7, 7, EOS] + [0] * 7]
    vocab = WordVocab.__new__(WordVocab)
    vocab.idx2word = dict(enumerate([*SPECIALS, *"abcd"]))
    decode = SearchDecoder(LoadedModel([], hp, None, (vocab, vocab)))
    monkeypatch.setattr(inference, "num_cores", lambda: 1)  # all in one batch
    monkeypatch.setattr(
        decode, "search", lambda _: (tf.constant(rows[::-1])[:, None], tf.zeros([3, 1]))
    )
    found = decode(X)
    assert [best.at_limit for (best,) in found] == [False, True, False]
    assert [best.text for (best,) in found] == [" ".join("d" * 9), " ".join("d" * 10), "d d"]
    assert limit_note(1, 3, hp).startswith("1 of 3 translations ended at their limit, --max_output")
    assert limit_note(0, 3, hp) == ""
    assert "--maxlen" in limit_note(1, 3, make_hparams({}))  # of the 2017 code


@slow
def test_a_translation_has_at_most_twice_the_tokens_of_its_source_and_ten(run, tmp_path):
    """By a model that never predicts </S>. A sentence may be longer than any in training."""
    long = " ".join(read_test_sentences(run[0]["source_test"])[:20])
    tests = write_corpus(tmp_path, [("Der Hund", "x"), (long, "y"), ("kurz", "z")])
    names = {name: tests[name] for name in ("source_test", "target_test")}
    loaded = load(dict(logdir=run[0]["logdir"]) | names)
    table = loaded.model.enc_input.tokens.lookup_table
    table.assign(np.where(np.arange(len(loaded.vocabs[0]))[:, None] == EOS, 0, table + 1.0))
    X = load_test_data(loaded.hp, loaded.vocabs).data.X
    assert len(X) == 3 and X.lengths[1] > 2 * loaded.hp.maxlen
    for beam in (1, 2):
        found = SearchDecoder(loaded.with_hp(beam=beam))(X)
        assert [len(best.ids) for best, *_ in found] == [2 * n + 10 for n in X.lengths]


@slow
@pytest.mark.parametrize("threads", [1, 3])
def test_the_order_is_kept_and_a_translation_does_not_depend_on_its_batch(
    run, monkeypatch, threads
):
    loaded = load(dict(logdir=run[0]["logdir"]))
    hp = loaded.hp
    X = load_test_data(hp, loaded.vocabs).data.X
    monkeypatch.setattr(inference, "MAX_BATCH_HYPOTHESES", 35)
    monkeypatch.setattr(inference, "num_cores", lambda: threads)
    assert len(X) > inference.decoding_batch_size(X.lengths.max(), hp.beam) == 7
    for beam in (1, 4):
        decode = SearchDecoder(loaded.with_hp(beam=beam))
        used = set()  # threads

        def search(x, search=decode.search, used=used):
            used.add(get_ident())
            return search(x)

        decode.search = search
        together = [best.text for best, *_ in decode(X)]
        assert len(used) <= threads and (get_ident() in used) == (threads == 1)
        each = (decode(RaggedIds.from_lists([x.tolist()])) for x in X)
        alone = [best.text for [(best, *_)] in each]
        assert together == alone and len(set(together)) > 2


def test_the_development_set_is_identified_by_its_text_and_not_by_its_path(run, tmp_path):
    shutil.copytree(run[0]["logdir"], tmp_path, dirs_exist_ok=True)
    rows = checkpoint.read_rows(tmp_path)
    hp = load_hparams({"logdir": str(tmp_path)})
    vocabs = load_vocabs(tmp_path, hp)
    data = load_train_data(dataclasses.replace(hp, preprocessed=str(tmp_path)), vocabs)
    link = tmp_path / "link"
    link.symlink_to(hp.source_dev)
    other = tmp_path / "other"
    other.write_text(link.read_text("utf-8").replace("e", "a"), "utf-8")
    for path, is_same in ((link, True), (other, False)):
        dev = load_test_data(dataclasses.replace(hp, source_dev=str(path)), vocabs, "dev")
        training = train.Training(hp, vocabs, data, dev)
        assert (training.digests[1] == rows[-1].dev) == is_same


LEGACY = dict(maxlen=7, min_cnt=1, batch_size=25, num_epochs=15, lr=0.003)
SUBWORDS = dict(recipe="tiny", batch_tokens=150, num_epochs=24, lr=0.005, warmup_steps=100)


@slow
@seeds
@pytest.mark.parametrize(
    "words, size, flags",
    [
        ("a b c d e f g h", 6, LEGACY),
        # Each word is one subword. T5 positions are worse here: cross-attention has none then.
        ("Ab, c3 d! Ef 42 g? (hi)", 5, SUBWORDS | dict(positions="paired_sinusoid")),
    ],
)
def test_it_learns_to_copy(seed, tmp_path, record_property, words, size, flags):
    """docs/development.md has the margin."""
    rng = np.random.default_rng(0)
    lines = [" ".join(rng.choice(words.split(), size=size)) for _ in range(600)]
    flags |= write_corpus(tmp_path, list(zip(lines[:550], lines[:550], strict=True)))
    flags |= dict(hidden_units=64, num_blocks=1, num_heads=4, dropout_rate=0.0, seed=seed)
    prepro.main(flags)
    train.main(flags)
    loaded = load(dict(logdir=flags["logdir"]))
    X = RaggedIds.from_lists(loaded.vocabs[0].encode(lines[550:]))
    for beam in (1, 4):
        got = [best.text for best, *_ in SearchDecoder(loaded.with_hp(beam=beam))(X)]
        share = float(np.mean([a == b for a, b in zip(got, lines[550:], strict=True)]))
        record_property(f"share copied, {loaded.hp.recipe}, beam {beam}", share)
        assert share > 0.9


def test_beam_scores_are_the_log_probabilities_of_the_model(run):
    """Divided by the length penalty. Scoring given translations finds the same."""
    loaded = load(dict(logdir=run[0]["logdir"], beam=4))
    _, hp, model, vocabs = loaded
    X = RaggedIds.from_lists([*load_test_data(hp, vocabs).data.X][:3])
    limits, penalty = hp.max_output_tokens(X.lengths), paper_penalty(hp.alpha)
    found = SearchDecoder(loaded, nbest=4)(X)
    for x, limit, hypotheses in zip(X, limits, found, strict=True):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for _, ids, score, _ in hypotheses:
            ids = np.array([[*ids, EOS][:limit]], np.int32)  # (1, T)
            logits = model(x[None], ids).numpy()
            logits[:, :, [PAD, UNK]] = -np.inf  # they are never chosen
            logp = tf.gather(tf.nn.log_softmax(logits), ids, batch_dims=2)
            expected = float(tf.reduce_sum(logp)) / float(penalty(tf.constant(ids.shape[1])))
            assert expected == pytest.approx(float(score), abs=1e-3)
    best = [hypotheses[0] for hypotheses in found]
    Y = RaggedIds.from_lists([[*own.ids, EOS][:n] for own, n in zip(best, limits, strict=True)])
    rescored = inference.sequence_scores(model, X.pad(), Y.pad(), limits, penalty, [PAD, UNK])
    np.testing.assert_allclose(rescored, [own.score for own in best], rtol=1e-4)
