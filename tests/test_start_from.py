"""A training that starts from another model: its parameters, vocabularies and kind."""

import dataclasses
import os
import re
from pathlib import Path

import numpy as np
import pytest

import train
from checkpoints import checkpoint
from conftest import sample_pairs, slow_unless, write_corpus
from helpers import load, saved_rows, scalars, skip_graphs
from hparams import load_hparams, save_hparams
from support.errors import InputError

NO_CHANGE = dict(lr=1e-30, warmup_steps=0, num_epochs=1)


def started(base, folder, **more):
    """The flags of a training on other text that starts from the model of the flags `base`."""
    flags = write_corpus(folder, sample_pairs(80, seed=5)) | dict(batch_size=16, batch_tokens=0)
    return flags | dict(start_from=base["logdir"]) | NO_CHANGE | more


def saved_hp(flags):
    return load_hparams(dict(logdir=flags["logdir"]))


def parameters(logdir, **flags):
    _, _, model, vocabs = load(dict(logdir=str(logdir)) | flags)
    return [variable.numpy() for variable in model.trainable_variables], vocabs


@pytest.mark.parametrize(
    "recipe", slow_unless(["tiny"], ["tiny", "legacy", "low_resource", "rnn_attention"])
)
def test_it_starts_with_the_parameters_and_vocabularies_of_the_other_model(
    trained, tmp_path, monkeypatch, capsys, recipe
):
    """The dropout may change, and the languages of one vocabulary. Then it resumes."""
    base = trained(recipe)
    more = dict(dropout_rate=0.35, attention_dropout=0.15)
    more |= {} if recipe == "legacy" else dict(source_lang="en", target_lang="de")
    flags = started(base, tmp_path, average_checkpoints=3, save_steps=0, **more)
    flags |= dict(source_dev=flags["source_test"], target_dev=flags["target_test"])
    train.main(flags)
    printed = capsys.readouterr().out
    # Before the first step, the model is scored. Here, it then does not change.
    scores = re.findall("dev loss (.*) BLEU", printed)
    assert "Starting from" in printed and len(scores) == 2
    assert float(scores[0]) == pytest.approx(float(scores[1]), abs=0.002)
    assert saved_rows(flags["logdir"])[-1].epoch == 1
    expected, vocabs = parameters(base["logdir"], average_checkpoints=3)
    newest, _ = parameters(base["logdir"], average_checkpoints=1)
    got, new_vocabs = parameters(flags["logdir"], average_checkpoints=1)
    for value, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, other, atol=1e-7)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(newest, expected, strict=True))
    for vocab, other in zip(new_vocabs, vocabs, strict=True):
        assert vocab.content == other.content
        assert vocab.path.parent == Path(flags["logdir"])
    hp = saved_hp(flags)
    assert {name: getattr(hp, name) for name in more} == more
    fields = hp.model_fields() | dict(dropout_rate=saved_hp(base).dropout_rate)
    assert fields | dict(attention_dropout=0.0) == saved_hp(base).model_fields()
    ((step, lr),) = scalars(flags["logdir"])["lr"].items()
    assert (step, lr) == (5, pytest.approx(1e-30 * (1 if recipe == "legacy" else 0.01)))

    skip_graphs(monkeypatch)
    train.main(flags | dict(num_epochs=2, start_from=os.path.relpath(flags["start_from"])))
    printed = capsys.readouterr().out
    assert "Resuming from" in printed and "Starting from" not in printed
    assert saved_rows(flags["logdir"])[-1].name == "model_epoch_02_gs_10"


def test_the_flags_or_the_other_model_choose_its_checkpoints(trained, tmp_path, monkeypatch):
    """The best one is that model's choice, unless a flag says how many."""
    base = trained("tiny")
    other = dataclasses.replace(saved_hp(base), best=True, average_checkpoints=1)
    save_hparams(dataclasses.replace(other, logdir=str(tmp_path / "other")))
    monkeypatch.setattr(train, "load_vocabs", lambda *_: ())
    monkeypatch.setattr(checkpoint, "load_model_weights", lambda *args: pytest.fail(str(args[1:])))
    for more, expected in (({}, (True, 1)), (dict(average_checkpoints=2), (False, 2))):
        flags = started(base, tmp_path, start_from=str(tmp_path / "other"), **more)
        with pytest.raises(pytest.fail.Exception) as called:
            train.main(flags)
        assert str(called.value) == str(expected)


def test_a_text_in_another_script_is_refused(trained, tmp_path):
    """Each unknown word is one <UNK> after a space, which is a known subword."""
    flags = started(trained("tiny"), tmp_path)
    text = "они читают книгу в большом доме\n" * 80
    Path(flags["target_train"]).write_text(text, "utf-8")
    with pytest.raises(InputError, match=r"\d% of its subwords are not in .* Check --source_lang"):
        train.main(flags)
