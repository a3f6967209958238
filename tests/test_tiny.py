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
from checkpoints.names_2017 import variables_by_2017_name
from conftest import sample_pairs, seeds, slow, write_corpus
from data_load import load_test_data, load_train_data
from helpers import (
    STEP_TAGS,
    load,
    parameters,
    read_test_sentences,
    run_main,
    saved_paths,
    saved_rows,
    scalars,
)
from hparams import load_hparams, make_hparams
from support.errors import InputError
from text.ids import EOS, PAD, SPECIALS, UNK, RaggedIds
from text.vocab import WordVocab, load_vocabs
from train import count_epochs
from translation import inference
from translation.inference import LoadedModel, SearchDecoder, limit_note
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
    run_main(prepro, flags)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        run_main(train, flags)
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
    rates = scalars(flags["logdir"])["lr"]
    assert [*rates] == [3, 6, 9]
    assert [*rates.values()] == pytest.approx([0.01 * 0.75, 0.01 * 0.375, 0.01 * 0.01])


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


def test_the_dev_bleu_is_what_eval_gives_the_best_checkpoint(run, capsys):
    """The test set is the development set here."""
    run_main(eval, {name: run[0][name] for name in ("logdir", "results")} | dict(best=True, beam=1))
    printed, best = capsys.readouterr().out, checkpoint.best_row(saved_rows(run[0]["logdir"]))
    assert f"Decoding = greedy search, {best.name}\n" in printed
    assert f"sacreBLEU = {best.score:.2f} " in printed


def test_a_warning_for_mostly_empty_translations(run, monkeypatch, capsys, tmp_path, eager):
    """The model predicts </S> as the first token."""
    models, make_model = [], inference.make_model
    monkeypatch.setattr(
        inference, "make_model", lambda *args: models.append(make_model(*args)) or models[-1]
    )
    monkeypatch.setattr(inference, "assign", lambda *_: end_at_once(models[-1]))
    run_main(eval, dict(logdir=run[0]["logdir"], results=str(tmp_path), beam=1))
    warning = "30 of 30 translations are empty. The model has learned too little."
    assert warning in capsys.readouterr().err


def end_at_once(model):
    """Give a model parameters with which each translation ends at its first token."""
    table = np.zeros(model.dec_input.tokens.lookup_table.shape, np.float32)
    table[3] = 1.0
    model.dec_input.tokens.lookup_table.assign(table)
    last = model.dec_norm
    last.gamma.assign(np.zeros_like(last.gamma))
    last.beta.assign(np.ones_like(last.beta))


def test_a_training_that_diverges_keeps_the_last_checkpoint(run, tmp_path, eager):
    logdir = str(shutil.copytree(run[0]["logdir"], tmp_path / "logdir"))
    rows = saved_rows(logdir)
    message = rf"step \d+. The last good checkpoint is .*{rows[-1].name}.npz. Use a new --logdir"
    with pytest.raises(InputError, match=message):
        run_main(train, run[0] | dict(logdir=logdir, num_epochs=9, lr=1e20))
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


def test_average_checkpoints_is_the_mean_of_the_last_ones(run, monkeypatch):
    monkeypatch.setattr(checkpoint, "RECENT_SHARE", 1.0)
    logdir = run[0]["logdir"]
    each = [checkpoint.weights_of(checkpoint.load(path)) for path in saved_paths(logdir)[-2:]]
    _, _, model, _ = load(dict(logdir=logdir, average_checkpoints=2))
    for name, variable in variables_by_2017_name(model).items():
        two = [weights[name] for weights in each]
        np.testing.assert_allclose(variable, np.mean(two, axis=0), atol=1e-6)
        assert np.any(two[0] != two[1])


@slow
def test_training_stops_when_the_dev_bleu_does_not_improve(run, tmp_path, capsys):
    """With a learning rate of almost 0 the first epoch remains the best."""
    more = dict(lr=1e-30, num_epochs=9, patience=2, keep_checkpoints=1, bpe_dropout=0.0)
    still = run[0] | dict(logdir=str(tmp_path)) | more
    run_main(train, still)
    assert "No better dev score in" in capsys.readouterr().out
    names = [path.name[:14] for path in saved_paths(tmp_path)]
    assert names == ["model_epoch_01", "model_epoch_03"]  # the best, and the last one
    assert checkpoint.best_row(saved_rows(tmp_path)).name.startswith(names[0])

    run_main(train, still)
    assert "this training is done" in capsys.readouterr().out
    assert [path.name[:14] for path in saved_paths(tmp_path)] == names


def test_the_development_set_is_identified_by_its_text_and_not_by_its_path(run, tmp_path):
    shutil.copytree(run[0]["logdir"], tmp_path, dirs_exist_ok=True)
    rows = checkpoint.read_rows(tmp_path)
    hp = load_hparams({"logdir": str(tmp_path)})
    vocabs = load_vocabs(tmp_path, hp)
    data = load_train_data(dataclasses.replace(hp, preprocessed=str(tmp_path)), vocabs)
    link = tmp_path / "link"
    link.symlink_to(hp.source_dev)
    for path, is_same in ((str(link), True), (hp.target_dev, False)):
        dev = load_test_data(dataclasses.replace(hp, source_dev=path), vocabs, "dev")
        training = train.Training(hp, vocabs, data, dev)
        assert (training.digests[1] == rows[-1].dev) == is_same


@slow
@seeds
def test_it_learns_to_copy_text_with_digits_and_punctuation(seed, tmp_path, record_property):
    """Train the recipe tiny until it copies sentences.

    Each word becomes one subword, so all are learned. With T5 positions, the cross-attention
    knows no positions, and copies words in no order less well. docs/development.md has the margin.
    """
    rng = np.random.default_rng(0)
    words = "Ab, c3 d! Ef 42 g? (hi)".split()
    lines = [" ".join(rng.choice(words, size=5)) for _ in range(600)]
    flags = write_corpus(tmp_path, list(zip(lines[:550], lines[:550], strict=True)))
    more = dict(recipe="tiny", hidden_units=64, num_blocks=1, num_heads=4, seed=seed)
    more |= dict(positions="paired_sinusoid", dropout_rate=0.0, batch_tokens=150)
    more |= dict(lr=0.005, warmup_steps=100, num_epochs=24)
    run_main(prepro, flags | more)
    run_main(train, flags | more)
    loaded = load(dict(logdir=flags["logdir"]))
    X = RaggedIds.from_lists(loaded.vocabs[0].encode(lines[550:]))
    for beam in (1, 4):
        got = [best.text for best, *_ in SearchDecoder(loaded.with_hp(beam=beam))(X)]
        share = float(np.mean([a == b for a, b in zip(got, lines[550:], strict=True)]))
        record_property(f"share copied, beam {beam}", share)
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
