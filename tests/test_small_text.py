"""Small texts: the choices of prepro.py and train.py for them, and their warnings."""

import math
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

import eval
import prepro
from conftest import sample_pairs, write_corpus
from helpers import parameters, run_main, saved_rows, scalars
from hparams import make_hparams
from processes import forked_script
from text.ids import EOS, SPECIALS, RaggedIds
from text.vocab import WordVocab
from train import count_epochs
from translation import inference
from translation.inference import LoadedModel, SearchDecoder, limit_note

TINY = dict(recipe="tiny", hidden_units=16, ffn_units=16, num_blocks=1, num_heads=2)


# The schedule -----------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The flags of 60 pairs, and the `CompletedProcess` of two epochs of training."""
    flags = write_corpus(tmp_path_factory.mktemp("small"), sample_pairs(60)) | TINY
    flags |= dict(vocab_size=0, batch_size=10, accumulate=2)
    run_main(prepro, flags)
    done = forked_script("train.py", **flags, num_epochs=2)
    assert done.returncode == 0, done.stderr
    return flags, done


def test_the_length_is_printed_and_the_peak_of_the_rate_is_reached(run):
    flags, done = run
    assert "parameters on 1 CPU, 6 steps, 3 per epoch\n" in done.stdout
    rates = scalars(flags["logdir"])["lr"]
    assert [*rates] == [3, 6]
    assert [*rates.values()] == pytest.approx([0.01 * 0.6, 0.01 * 0.01])


# Warnings ----------------------------------------------------------------------------


def test_a_warning_for_mostly_empty_translations(trained, monkeypatch, capsys, tmp_path):
    """The model predicts </S> as the first token."""
    from translation import inference

    flags = trained("tiny")
    models, make_model = [], inference.make_model
    monkeypatch.setattr(
        inference, "make_model", lambda *args: models.append(make_model(*args)) or models[-1]
    )
    monkeypatch.setattr(inference, "assign", lambda *_: end_at_once(models[-1]))
    run_main(eval, dict(logdir=flags["logdir"], results=str(tmp_path)))
    assert "30 of 30 translations are empty. The model has learned too little." in (
        capsys.readouterr().err
    )


def end_at_once(model):
    """Give a model parameters with which each translation ends at its first token."""
    table = np.zeros(model.dec_input.tokens.lookup_table.shape, np.float32)
    table[3] = 1.0
    model.dec_input.tokens.lookup_table.assign(table)
    last = model.dec_norm
    last.gamma.assign(np.zeros_like(last.gamma))
    last.beta.assign(np.ones_like(last.beta))


def test_a_training_that_diverges_keeps_the_last_checkpoint(run, tmp_path):
    logdir = shutil.copytree(run[0]["logdir"], tmp_path / "logdir")
    rows = saved_rows(logdir)
    done = forked_script("train.py", **run[0] | dict(logdir=logdir, num_epochs=9, lr=1e20))
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    message = rf"step \d+. The last good checkpoint is .*{rows[-1].name}.npz. Use a new --logdir"
    assert re.search(message, done.stderr), done.stderr
    assert saved_rows(logdir) == rows
    assert all(np.isfinite(array).all() for array in parameters(logdir).values())


# Lengths -----------------------------------------------------------------------------


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
