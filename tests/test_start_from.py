"""A training that starts from another model: its parameters, vocabularies and kind."""

import json
import os
import shutil
from pathlib import Path

import manifest
import numpy as np
import pytest

import checkpoint
import prepro
import train
from conftest import sample_pairs, slow, write_corpus
from helpers import load, run_main, saved_rows, scalars
from hparams import load_hparams, read_hparams
from processes import forked_script
from runtime.errors import InputError
from vocab import load_vocabs

NO_CHANGE = dict(lr=1e-30, warmup_steps=0, num_epochs=1)


def started(base, folder, **more):
    """The flags of a training on other text that starts from the model of the flags `base`."""
    flags = write_corpus(folder, sample_pairs(80, seed=5)) | dict(batch_size=16, batch_tokens=0)
    return flags | dict(start_from=base["logdir"]) | NO_CHANGE | more


def parameters(logdir, **flags):
    _, _, model, vocabs = load(dict(logdir=str(logdir)) | flags)
    return [variable.numpy() for variable in model.trainable_variables], vocabs


@pytest.mark.parametrize(
    "recipe",
    [
        "tiny",
        *(pytest.param(name, marks=slow) for name in ("legacy", "low_resource", "rnn_attention")),
    ],
)
def test_it_starts_with_the_parameters_and_vocabularies_of_the_other_model(
    trained, tmp_path, recipe
):
    base = trained(recipe)
    flags = started(base, tmp_path, average_checkpoints=3)
    run_main(train, flags)
    assert saved_rows(flags["logdir"])[-1].epochs_done == 1
    expected, vocabs = parameters(base["logdir"], average_checkpoints=3)
    newest, _ = parameters(base["logdir"], average_checkpoints=1)
    got, new_vocabs = parameters(flags["logdir"], average_checkpoints=1)
    for value, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(value, other, atol=1e-7)
    assert any(np.abs(a - b).max() > 1e-4 for a, b in zip(newest, expected, strict=True))
    for vocab, other in zip(new_vocabs, vocabs, strict=True):
        assert vocab.fingerprint == other.fingerprint
        assert vocab.path.parent == Path(flags["logdir"])
    assert read_hparams(flags["logdir"]).model == read_hparams(base["logdir"]).model


@slow
def test_optimizer_schedule_and_epochs_begin_anew_and_it_resumes(trained, tmp_path, capsys):
    flags = started(trained("tiny"), tmp_path, lr=0.001, warmup_steps=4, save_steps=0)
    flags |= dict(decay_steps=0)  # with "auto" the only epoch ends at the lowest rate
    run_main(train, flags)
    assert "Starting from" in capsys.readouterr().out
    ((step, lr),) = scalars(flags["logdir"])["lr"].items()
    assert lr == pytest.approx(0.001 * min((4 / step) ** 0.5, step / 4), rel=1e-3)
    run_main(train, flags | dict(num_epochs=2, start_from=os.path.relpath(flags["start_from"])))
    printed = capsys.readouterr().out
    assert "Resuming from" in printed and "Starting from" not in printed
    assert checkpoint.latest_readable(flags["logdir"]).name == f"model_epoch_02_gs_{2 * step}"


def test_the_flags_or_the_other_model_choose_its_checkpoints(trained, tmp_path):
    """The best one is that model's choice, unless a flag says how many."""
    base = trained("tiny")
    copy = shutil.copytree(base["logdir"], tmp_path / "copy")
    path = copy / "hparams.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(best=True)))
    rows = saved_rows(copy)
    paths = [copy / row.name for row in rows]
    rows[0] = rows[0]._replace(score=1.0, metric="bleu", dev="digest")
    content = dict(checkpoints=[row._asdict() for row in rows])
    (copy / manifest.RUN_FILE).write_text(json.dumps(content))
    for more, expected in (({}, paths[:1]), (dict(average_checkpoints=2), paths[-2:])):
        flags = started(base, tmp_path, start_from=str(copy), **more)
        start = train.find_start(flags)
        vocabs = load_vocabs(start.other)
        assert train.saved_origin(start, vocabs).paths == expected


@slow
def test_it_begins_as_good_as_the_other_model(trained, tmp_path):
    base = trained("tiny")
    text = {name: base[name] for name in ("source_train", "target_train")}
    flags = started(base, tmp_path, **text)
    run_main(train, flags)
    before, after = (
        [*scalars(logdir)["mean_loss"].values()] for logdir in (base["logdir"], flags["logdir"])
    )
    assert before[-1] < before[0] - 0.5
    assert after[0] == pytest.approx(before[-1], abs=0.25)


@pytest.mark.parametrize(
    "change, problem",
    [
        (dict(start_from="nowhere"), "nowhere: holds no checkpoint. Name the folder of a model"),
        (
            dict(hidden_units=64),
            "this model was trained with --hidden_units 16, not 64. Leave the flag out\n",
        ),
        (dict(recipe="legacy"), "this model was trained with --recipe tiny, not legacy"),
        (dict(best=True), "holds no checkpoint with a dev score"),
    ],
)
def test_what_does_not_fit_is_refused(trained, tmp_path, change, problem):
    flags = started(trained("tiny"), tmp_path) | change
    done = forked_script("train.py", **flags)
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert problem in done.stderr
    assert not Path(flags["logdir"]).exists()


@slow
def test_the_dropout_may_change(trained, tmp_path):
    rates = dict(dropout_rate=0.35, attention_dropout=0.15, ffn_dropout=0.25, word_dropout=0.05)
    flags = started(trained("tiny"), tmp_path, **rates)
    run_main(train, flags)
    run_main(train, flags | dict(num_epochs=2))  # the same flags resume the training
    hp = read_hparams(flags["logdir"])
    assert {name: getattr(hp, name) for name in rates} == rates
    unchanged = dict(num_epochs=1, logdir=str(tmp_path / "unchanged"))
    run_main(train, started(trained("low_resource"), tmp_path / "other", **unchanged))
    hp = read_hparams(unchanged["logdir"])
    assert hp.dropout_rate == read_hparams(trained("low_resource")["logdir"]).dropout_rate


@slow
def test_the_languages_may_change_if_they_have_one_vocabulary(trained, tmp_path):
    flags = started(trained("tiny"), tmp_path, source_lang="en", target_lang="de")
    run_main(train, flags)
    hp = read_hparams(flags["logdir"])
    assert (hp.source_lang, hp.target_lang) == ("en", "de")
    flags = started(trained("legacy"), tmp_path / "words", source_lang="fr")
    with pytest.raises(InputError, match="was trained with --source_lang de, not fr"):
        run_main(train, flags)


def test_a_model_that_started_elsewhere_is_not_resumed(trained):
    """The flag would have no effect."""
    base = trained("tiny")
    done = forked_script("train.py", **base | dict(start_from="nowhere"))
    assert done.returncode == 2 and "holds a model that did not start from nowhere" in done.stderr


def test_a_folder_whose_vocabulary_is_another_one_is_refused(trained, tmp_path):
    base = trained("tiny")
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in Path(base["logdir"]).glob("*"):
        if path.suffix != ".model" and path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    flags = started(base, tmp_path, start_from=str(copy))
    run_main(
        prepro,
        dict(recipe="tiny", vocab_size=200)
        | {k: flags[k] for k in ("source_train", "target_train", "preprocessed")},
    )
    with pytest.raises(InputError, match="not the vocabulary that the model in .*copy was"):
        run_main(train, flags)
    assert json.loads((copy / "hparams.json").read_text())


def test_auto_is_also_a_name(trained, tmp_path, monkeypatch):
    """Only fields that the program chooses have the value auto."""
    for name in ("auto", "logdir"):  # the default
        shutil.copytree(trained("tiny")["logdir"], tmp_path / name)
    monkeypatch.chdir(tmp_path)
    saved = read_hparams("auto")
    given = dict(logdir="auto", source_test="auto", target_test="b", num_epochs="auto")
    hp = load_hparams(given)
    assert hp.vocab_sha256 == saved.vocab_sha256
    assert (hp.logdir, hp.source_test) == ("auto", "auto")
    assert (hp.num_epochs, hp.recipe) == (saved.num_epochs, "tiny")
    with pytest.raises(InputError, match="was trained with --positions t5, not auto"):
        load_hparams(dict(positions="auto"))


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_text_in_another_script_is_refused(trained, tmp_path, side):
    """Each unknown word is one <UNK> after a space, which is a known subword."""
    flags = started(trained("tiny"), tmp_path)
    text = "они читают книгу в большом доме\n" * 80
    Path(flags[f"{side}_train"]).write_text(text, "utf-8")
    with pytest.raises(
        InputError, match=r"\d% of its subwords are not in .* model could not learn"
    ):
        run_main(train, flags)


def test_a_folder_with_a_comma_would_hide_an_ensemble(trained, tmp_path):
    flags = started(trained("tiny"), tmp_path, logdir=f"{tmp_path}/a,{tmp_path}/b")
    with pytest.raises(InputError, match="a comma separates the models of an ensemble"):
        run_main(train, flags)
    assert not (tmp_path / "a,").exists()


@pytest.mark.parametrize("side", ["source", "target"])
def test_one_side_of_another_text_is_refused(trained, side):
    """Its lines would be compared with those of the saved file of the other side."""
    flags = trained("tiny")
    given = dict(logdir=flags["logdir"])
    with pytest.raises(InputError, match=f"{side}_test other does not belong to the saved"):
        load_hparams(given | {f"{side}_test": "other"})
    for more in ({f"{side}_test": flags[f"{side}_test"]}, dict(source_test="a", target_test="b")):
        load_hparams(given | more)
