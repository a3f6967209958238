"""rerank.py: lists of translations, sorted by a reverse model or by their similarity."""

import math

import pytest

import prepro
import rerank
import train
from conftest import SMALL, sample_pairs, slow, write_corpus
from helpers import load, run_main
from hparams import Hyperparams
from inference import LoadedModel
from processes import forked_script
from runtime.errors import InputError
from score import LineScore, Scorer
from vocab import WordVocab


def write_nbest(path, lists):
    """Write lists of pairs of text and score as translate.py does."""
    lines = [
        f"{number} ||| {text} ||| {score:.4f}\n"
        for number, best in enumerate(lists)
        for text, score in best
    ]
    path.write_text("".join(lines), "utf-8")


LISTS = [
    [("a | b ||| c", -1.0), ("a", -2.0)],
    [("", 0.0)],
    [("d", -0.5), ("d e", -0.75), ("", -3.0)],
]


def test_lists_are_read_as_they_were_written(tmp_path):
    write_nbest(tmp_path / "nbest", LISTS)
    assert rerank.read_nbest(tmp_path / "nbest", 3) == LISTS


@pytest.mark.parametrize(
    "text, message",
    [
        ("A dog runs.\n", "nbest:1: is not `number ||| translation ||| score`"),
        ("0 ||| a ||| -1\n1 ||| a\n", "nbest:2: is not"),
        ("0 ||| a ||| nan\n", "nbest:1: is not"),
        ("-1 ||| a ||| 0\n", "nbest:1: is not"),
        ("0 ||| a ||| 1\n2 ||| b ||| 1\n", "nbest:2: is of line 2, but the source has 2 lines"),
        ("9999999999 ||| a ||| 1\n", "nbest:1: is of line 9999999999"),
        ("1 ||| a ||| 1\n", "nbest: has no translation of line 0"),
    ],
)
def test_lists_that_do_not_fit(tmp_path, text, message):
    (tmp_path / "nbest").write_text(text)
    with pytest.raises(InputError) as error:
        rerank.read_nbest(tmp_path / "nbest", 2)
    assert f"{tmp_path}/{message}" in str(error.value)


@pytest.mark.parametrize(
    "more, message",
    [
        (dict(method="mbr", logdir="x"), "logdir has no effect: mbr needs no model"),
        (dict(beam=3), "beam has no effect: nothing is translated"),
    ],
)
def test_flags_without_effect_are_refused(more, message):
    with pytest.raises(InputError, match=message):
        run_main(rerank, dict(source="a", nbest="b") | more)


def test_a_reverse_model_scores_the_source_per_token():
    def scorer(texts, sources):
        assert texts == ["a | b ||| c", "a", "", "d", "d e", ""]
        assert sources == ["x", "x", "", "y z", "y z", "y z"]
        backs = [(-9.0, 3), (-3.0, 3), (math.nan, 0), (-4.0, 2), (-1.0, 2), (math.nan, 0)]
        return [LineScore(*back) for back in backs]

    scores = rerank.reverse_scores(["x", "", "y z"], LISTS, scorer, weight=0.5)
    assert scores == [[-2.5, -2.5], [-math.inf], [-1.5, -1.0, -math.inf]]


def test_the_translation_that_is_most_similar_to_the_others():
    texts = ["the cat sleeps", "a dog runs home", "a dog runs fast", "a dog ran home"]
    scores = rerank.mbr_scores([(text, -1.0) for text in texts])
    assert scores.index(max(scores)) == 1 and scores.index(min(scores)) == 0
    # A translation that is nearly certain is chosen, although the others are similar.
    sure = rerank.mbr_scores([(text, -20.0 if i else 0.0) for i, text in enumerate(texts)])
    assert sure.index(max(sure)) == 0
    assert rerank.mbr_scores([("", 0.0)]) == [0.0]


@pytest.fixture(scope="module")
def reverse(tmp_path_factory):
    """The folder of a model from English to German."""
    folder = tmp_path_factory.mktemp("reverse")
    pairs = [(english, german) for german, english in sample_pairs(300)]
    flags = write_corpus(folder, pairs) | SMALL
    flags |= dict(recipe="tiny", vocab_size=300, maxlen=40, num_epochs=6, lr=0.01, warmup_steps=10)
    flags |= dict(batch_tokens=0, batch_size=32, source_lang="en", target_lang="de")
    run_main(prepro, flags)
    run_main(train, flags)
    return flags["logdir"]


@slow
def test_the_best_translations_are_written(trained, reverse, tmp_path):
    source, nbest, out = tmp_path / "in", tmp_path / "nbest", tmp_path / "out"
    lines = [german for german, _ in sample_pairs(12, seed=1)]
    source.write_text("".join(f"{line}\n" for line in [*lines, ""]), "utf-8")
    flags = dict(logdir=trained("tiny")["logdir"], source=source, output=nbest)
    assert forked_script("translate.py", **flags, beam=6, nbest=6, alpha=0.0).returncode == 0
    lists = rerank.read_nbest(nbest, 13)
    first = [best[0][0] for best in lists]
    for more, method in (
        (dict(method="mbr"), "mbr"),
        (dict(logdir=reverse, weight=0.0), "first"),
        (dict(logdir=reverse, weight=500.0), "reverse"),
    ):
        done = forked_script("rerank.py", source=source, nbest=nbest, output=out, **more)
        assert done.returncode == 0, done.stderr
        got = out.read_text("utf-8").splitlines()
        assert len(got) == 13 and got[12] == ""
        for text, best in zip(got, lists, strict=True):
            assert text in [other for other, _ in best]
        changed = sum(text != other for text, other in zip(got, first, strict=True))
        assert f"{changed} of 13 translations have changed" in done.stderr
        if method == "first":
            assert not changed
            continue
        scores = map(rerank.mbr_scores, lists)
        if method == "reverse":
            scorer = Scorer(load(dict(logdir=reverse)))
            scores = rerank.reverse_scores([*lines, ""], lists, scorer, weight=500.0)
        pairs = zip(lists, scores, strict=True)
        assert got == [max(zip(own, best, strict=True))[1][0] for best, own in pairs]
    done = forked_script("rerank.py", source=source, nbest=nbest, method="mbr")
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 13


def test_standard_output_has_translations_only(tmp_path, monkeypatch, capsysbinary):
    """Loading a checkpoint of the 2017 code prints a line."""

    def load_model(_):
        print("assuming num_heads 8")
        return LoadedModel([], Hyperparams(maxlen=20), None, (WordVocab, WordVocab))

    def scorer(texts, _):
        return [LineScore(-1.0, 1)] * 2

    scorer.truncated = 3
    monkeypatch.setattr(rerank, "load_model", load_model)
    monkeypatch.setattr(rerank, "Scorer", lambda *_: scorer)
    monkeypatch.setattr(rerank, "SCORED_LINES", 1)
    write_nbest(tmp_path / "nbest", [[("a", -2.0), ("b\u200b", -1.0)], [("c", -1.0), ("d", -2.0)]])
    lists = rerank.read_nbest(tmp_path / "nbest", 2)
    rerank.main(rerank.RerankFlags(source="in", nbest="nbest"), [], ["x", "y"], lists)
    got = capsysbinary.readouterr()
    assert got.out == b"b\nc\n" and b"assuming num_heads 8" in got.err
    assert b"3 translations have no score, since they or their source have more than" in got.err


def test_flags_that_are_missing_or_wrong(tmp_path):
    path = tmp_path / "in"
    path.write_text("a\n")
    nbest = tmp_path / "nbest"
    nbest.write_text("0 ||| a ||| -1.0\n")
    for flags, message in (
        (dict(source=path), "nbest is missing. Give --source and --nbest"),
        (dict(nbest=path), "source is missing"),
        (dict(source=path, nbest=nbest), "needs a model of the other direction"),
        (
            dict(source=path, nbest=path, method="mbr"),
            "in:1: is not `number ||| translation ||| score`",
        ),
        (dict(source=path, nbest=path, method="best"), "Choose one of reverse, mbr"),
        (dict(source=path, nbest=path, weight=-1), "weight is -1"),
        (dict(source=tmp_path / "missing", nbest=path), "missing: no such file"),
    ):
        done = forked_script("rerank.py", **flags)
        assert done.returncode == 2 and message in done.stderr, done.stderr
        assert "Traceback" not in done.stderr
