"""The recipe tiny, from text to text."""

import dataclasses
import re
import shutil
from pathlib import Path
from threading import get_ident

import numpy as np
import pytest
import tensorflow as tf

import prepro
import train
from checkpoints import checkpoint
from checkpoints.names_2017 import variables_by_2017_name
from conftest import sample_pairs, seeds, slow, write_corpus
from data_load import load_test_data, load_train_data
from helpers import (
    STEP_TAGS,
    dev_scores,
    load,
    read_test_sentences,
    run_main,
    saved_paths,
    saved_rows,
    scalars,
)
from hparams import load_hparams, make_hparams
from processes import forked_script
from text.ids import EOS, PAD, UNK, RaggedIds
from text.vocab import load_vocabs
from translation import inference
from translation.inference import SearchDecoder, make_search
from translation.search import paper_penalty

TINY = dict(recipe="tiny", vocab_size=180, hidden_units=16, ffn_units=32, num_blocks=1, num_heads=2)
TINY |= dict(fold_case=False)


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    """The flags of a corpus of 200 pairs with its subwords, and of a small model."""
    folder = tmp_path_factory.mktemp("subwords")
    flags = write_corpus(folder, sample_pairs(200), sample_pairs(30, seed=1))
    run_main(prepro, flags | TINY)
    return flags | TINY


@pytest.fixture(scope="module")
def run(flags):
    """Flags and output of three epochs of training, with the test set as development set."""
    more = dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    more |= dict(num_epochs=3, warmup_steps=1000, batch_tokens=400, bpe_dropout=0.1)
    done = forked_script("train.py", **flags, **more)
    assert done.returncode == 0, done.stderr
    return flags | more, done.stdout


def test_each_epoch_prints_the_dev_bleu_and_the_best_one_is_stored(run):
    flags, printed = run
    printed_bleu = [
        float(bleu) for bleu in re.findall(r", dev loss [\d.]+ BLEU ([\d.]+) chrF", printed)
    ]
    points = scalars(flags["logdir"])
    assert set(points) == STEP_TAGS | {"dev_loss", "dev_bleu", "dev_chrf"}
    assert [round(bleu, 2) for bleu in points["dev_bleu"].values()] == printed_bleu
    steps = [row.step for row in saved_rows(flags["logdir"])]
    assert list(points["dev_bleu"]) == steps and len(printed_bleu) == 3
    names = [row.name for row in saved_rows(flags["logdir"])]
    scores = dev_scores(flags["logdir"])
    assert {name: round(bleu, 2) for name, bleu in scores.items()} == dict(
        zip(names, printed_bleu, strict=True)
    )
    assert (
        checkpoint.best_row(saved_rows(flags["logdir"])).name
        == names[printed_bleu.index(max(printed_bleu))]
    )


def test_the_learning_rate_is_in_tensorboard(run):
    hp = make_hparams(run[0])
    points = scalars(run[0]["logdir"])["lr"]
    for step, rate in points.items():
        assert rate == pytest.approx(hp.lr * step / hp.warmup_steps, rel=1e-5)


def test_the_dev_bleu_is_what_eval_gives_the_best_checkpoint(run):
    """The test set is the development set here."""
    own = {name: run[0][name] for name in ("logdir", "results")}
    done = forked_script("eval.py", **own, best=True, beam=1)
    best = checkpoint.best_row(saved_rows(run[0]["logdir"]))
    bleu = dev_scores(run[0]["logdir"])[best.name]
    assert f"Decoding = greedy search, {best.name}\n" in done.stdout
    assert f"sacreBLEU = {bleu:.2f} " in done.stdout


@slow
@pytest.mark.parametrize(
    "decoding", [dict(), dict(beam=1, average_checkpoints=10), dict(best=True, beam=3)]
)
def test_eval_writes_plain_text_for_each_line(run, decoding):
    flags, _ = run
    done = forked_script("eval.py", logdir=flags["logdir"], results=flags["results"], **decoding)
    assert done.returncode == 0, done.stderr
    if not decoding:  # as in the recipe
        assert "beam 5, length penalty 1.2" in done.stdout
    name = re.search(r"Full results: (.+)", done.stdout)[1]
    *records, summary = Path(name).read_text("utf-8").split("\n\n")
    sources, references = (
        read_test_sentences(flags[f"{side}_test"]) for side in ("source", "target")
    )
    assert len(records) == len(sources) == 30
    for record, source, reference in zip(records, sources, references, strict=True):
        lines = record.split("\n")
        assert lines[:2] == [f"- source: {source}", f"- expected: {reference}"]
        assert lines[2].startswith("- got: ") and "▁" not in lines[2]
    assert "Left out = 0 of 30" in summary


@slow
def test_a_sentence_longer_than_any_in_training_is_translated(run, tmp_path):
    flags, _ = run
    long = " ".join(read_test_sentences(flags["source_test"]))
    tests = write_corpus(tmp_path, [(long, "x"), ("kurz", "y")])
    names = {name: tests[name] for name in ("source_test", "target_test", "results")}
    done = forked_script("eval.py", logdir=flags["logdir"], **names)
    assert done.returncode == 0, done.stderr
    assert "Left out = 0 of 2" in done.stdout
    _, hp, model, vocabs = load(dict(logdir=flags["logdir"]))
    X = load_test_data(dataclasses.replace(hp, **names), vocabs).data.X
    assert X.lengths[0] > 3 * hp.maxlen


@slow
def test_a_translation_has_at_most_twice_the_tokens_of_its_source_and_ten(run):
    """By a model that never predicts </S>. Small batches bound the memory."""
    loaded = load(dict(logdir=run[0]["logdir"]))
    _, _, model, vocabs = loaded
    table = model.enc_input.tokens.lookup_table
    table.assign(np.where(np.arange(len(vocabs[0]))[:, None] == EOS, 0, table + 1.0))
    X = RaggedIds.from_lists([[9] * length for length in (3, 200, 5)])
    for beam in (1, 2):
        found = SearchDecoder(loaded.with_hp(beam=beam))(X)
        assert [len(best.ids) for best, *_ in found] == [16, 410, 20]


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


def test_the_score_of_a_translation_equals_that_of_the_search(run):
    _, hp, model, vocabs = load(dict(logdir=run[0]["logdir"]))
    x = load_test_data(hp, vocabs).data.X.pad()  # (N, T)
    preds, scores = make_search(model, hp, 4)(x)
    settings = 2 * np.count_nonzero(x, axis=1) + 10, paper_penalty(hp.alpha), [PAD, UNK]
    rescored = inference.sequence_scores(model, x, preds[:, 0], *settings)
    np.testing.assert_allclose(rescored, scores[:, 0], rtol=1e-4)
    preds, scores = make_search(model, hp, 1, scored=True)(x)
    rescored = inference.sequence_scores(model, x, preds[:, 0], *settings)
    np.testing.assert_allclose(rescored, scores[:, 0], rtol=1e-5)


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
def test_training_stops_when_the_dev_bleu_does_not_improve(flags, tmp_path, capsys):
    """With a learning rate of almost 0 the first epoch remains the best."""
    still = flags | dict(
        logdir=str(tmp_path),
        source_dev=flags["source_test"],
        target_dev=flags["target_test"],
        lr=1e-30,
        num_epochs=9,
        patience=2,
        keep_checkpoints=1,
    )
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
    """Without a length penalty the score of a hypothesis is its log-probability."""
    loaded = load(dict(logdir=run[0]["logdir"], alpha=0.0, beam=4))
    _, hp, model, vocabs = loaded
    X = RaggedIds.from_lists([*load_test_data(hp, vocabs).data.X][:3])
    limits = hp.max_output_tokens(X.lengths)
    for x, limit, hypotheses in zip(X, limits, SearchDecoder(loaded, nbest=4)(X), strict=True):
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for _, ids, score, _ in hypotheses:
            ids = np.array([[*ids, EOS][:limit]])  # (1, T)
            logits = model(x[None], ids).numpy()
            logits[:, :, [PAD, UNK]] = -np.inf  # they are never chosen
            logp = tf.gather(tf.nn.log_softmax(logits), ids, batch_dims=2)
            assert float(tf.reduce_sum(logp)) == pytest.approx(float(score), abs=1e-3)
