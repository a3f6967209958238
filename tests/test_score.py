"""translate.py --score and --alignments: probabilities and links of given translations."""

import math
import re

import numpy as np
import pytest

import translate
from conftest import slow
from data_load import encode_lines
from helpers import load, read_test_sentences, refused, run_main
from hparams import make_hparams
from ids import EOS, SPECIALS
from inference import LoadedModel
from model import make_model
from monitor import attention_maps
from monitor.attention_maps import word_alignments, word_indices
from processes import forked_script
from score import LineScore, Scorer
from vocab import WordVocab


@pytest.fixture(params=["legacy", "tiny", pytest.param("rnn_attention", marks=slow)])
def loaded(request, trained):
    flags = trained(request.param)
    loaded = load(dict(logdir=flags["logdir"], beam=3, alpha=0.0))
    return loaded, *(read_test_sentences(flags[f"{side}_test"]).raw for side in SIDES)


SIDES = ("source", "target")


def test_the_score_is_the_log_probability_of_all_tokens(loaded):
    """Computed from the logits of one pair at a time, without padding."""
    (_, hp, model, vocabs), lines, translations = loaded
    scores = Scorer(loaded[0])(lines[:9], translations[:9])
    for line, translation, score in zip(lines, translations, scores, strict=False):
        x, y = (
            encode_lines([text], vocab, hp)[0].pad(width=hp.pad_to)
            for text, vocab in zip((line, translation), vocabs, strict=True)
        )
        logits = np.array(model(x, y), np.float64)[0, :, 1:]  # without <PAD>
        logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        targets = y[0][y[0] != 0]
        expected = sum(row[i - 1] for row, i in zip(logp, targets, strict=False))
        assert score.num_tokens == len(targets)
        assert score.logp == pytest.approx(expected, abs=1e-3)
        assert score.perplexity == pytest.approx(math.exp(-expected / len(targets)), rel=1e-4)


def test_the_right_translation_is_more_likely_than_another_one(loaded):
    model, lines, translations = loaded
    scorer = Scorer(model)
    given, others = (
        sum(score.logp for score in scorer(lines, texts))
        for texts in (translations, [text[::-1] for text in translations])
    )
    assert given > others


def test_a_side_that_is_too_long_has_no_score(trained, tmp_path):
    flags = trained("legacy")  # at most 14 words
    for name, lines in (
        ("in", ["der Hund", "der Hund", "Hund " * 15, "Hund " * 14]),
        ("given", ["the dog", "dog " * 15, "the dog", "dog " * 14]),
    ):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    done = forked_script(
        "translate.py",
        **dict(logdir=flags["logdir"], source=tmp_path / "in", score=tmp_path / "given"),
    )
    assert done.returncode == 0, done.stderr
    assert [line.startswith("nan\tnan") for line in done.stdout.splitlines()] == [0, 1, 1, 0]
    assert "2 of 4 lines" in done.stderr


def test_scores_of_found_translations_are_those_of_the_search(trained, tmp_path):
    """In a model of words: with subwords, the search leaves out <UNK>, which has a probability."""
    flags = trained("legacy")
    more = dict(logdir=flags["logdir"], source=flags["source_test"])
    done = forked_script("translate.py", **more, beam=3, nbest=2, alpha=0.0)
    found = [line.split(" ||| ") for line in done.stdout.splitlines()]
    source, target = tmp_path / "source", tmp_path / "target"
    lines = read_test_sentences(flags["source_test"]).raw
    source.write_text("".join(f"{lines[int(number)]}\n" for number, _, _ in found), "utf-8")
    target.write_text("".join(f"{text}\n" for _, text, _ in found), "utf-8")
    more = dict(logdir=flags["logdir"], source=source, score=target, output=tmp_path / "out")
    done = forked_script("translate.py", **more)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out").read_text().splitlines()
    rows = [tuple(map(float, line.split("\t"))) for line in lines]
    assert len(rows) == len(found) > 30
    # A text may also be tokenized in another way than the search found it.
    pairs = zip(rows, found, strict=True)
    equal = [abs(logp - float(score)) < 2e-3 for (logp, _), (_, _, score) in pairs]
    assert sum(equal) > 0.5 * len(equal)
    scored = [logp for logp, _ in rows if not math.isnan(logp)]
    assert f"{len(scored)} of {len(rows)} lines" in done.stderr
    total = float(re.search(r"log-probability (-[\d.]+)", done.stderr)[1])
    assert total == pytest.approx(sum(scored), abs=0.01)


def test_empty_lines_and_alignments_keep_their_places(trained, tmp_path):
    source, target, out, aligned = (
        tmp_path / name for name in ("source", "target", "out", "align")
    )
    source.write_text("Der Hund schläft.\n\nDer Hund\nDie Katze\n", "utf-8")
    target.write_text("The dog sleeps.\nThe cat\n \nThe cat\n", "utf-8")
    more = dict(source=source, score=target, output=out, alignments=aligned)
    done = forked_script("translate.py", logdir=trained("tiny")["logdir"], **more)
    assert done.returncode == 0, done.stderr
    rows = out.read_text().splitlines()
    assert rows[1] == rows[2] == "nan\tnan" and "nan" not in rows[0] + rows[3]
    assert "2 of 4 lines" in done.stderr
    lines = aligned.read_text().splitlines()
    assert lines[1] == lines[2] == ""
    assert [pair.split("-")[1] for pair in lines[0].split()] == ["0", "1", "2"]
    assert {pair.split("-")[0] for pair in lines[3].split()} <= {"0", "1"}


def test_the_sums_are_those_of_all_blocks(trained, tmp_path, monkeypatch, capsys):
    flags, numbers = trained("tiny"), []
    given = dict(source=flags["source_test"], score=flags["target_test"])
    for lines in (1000, 7):
        monkeypatch.setattr(translate, "MAX_BATCH_LINES", lines)
        run_main(translate, dict(logdir=flags["logdir"], output=str(tmp_path / "out")) | given)
        last = capsys.readouterr().err.splitlines()[-1]
        numbers.append([float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", last)])
    assert numbers[0][:2] == [30, 30] and numbers[1] == pytest.approx(numbers[0], rel=1e-4)


def test_the_perplexity_of_no_tokens():
    assert math.isnan(LineScore(math.nan, 0).perplexity)


def align(loaded, lines, texts):
    """Align lines with given texts, as translate.py --score does."""
    scores = Scorer(loaded)(lines, texts)
    return word_alignments(loaded, [(score.source_ids, score.target_ids) for score in scores])


def test_alignments_join_the_weights_of_a_word(trained, monkeypatch):
    loaded = load(dict(logdir=trained("tiny")["logdir"]))
    vocab, _ = loaded.vocabs
    lines, texts = ["Der Hund schläft.", ""], ["The dog.", "x"]
    x, y = (vocab.encode([side[0]])[0] for side in (lines, texts))
    x_words, y_words = (np.array(word_indices(ids[:-1], vocab)) for ids in (x, y))
    assert x_words.max() == 2 and y_words.max() == 1 and len(x_words) > 4
    weights = np.zeros((len(y), len(x)))
    weights[:, -1] = 1.0  # </S> gets most, and does not count
    weights[:-1, :-1][np.ix_(y_words == 0, x_words == 1)] = 0.05
    weights[0, np.flatnonzero(x_words == 2)[0]] = 0.06  # one subword gets more, its word less
    weights[:-1, :-1][np.ix_(y_words == 1, x_words == 0)] = 0.1
    monkeypatch.setattr(attention_maps, "alignments", lambda *_: [weights])
    expected = ["1-0 0-1", ""] if (x_words == 1).sum() > 1 else ["2-0 0-1", ""]
    assert align(loaded, lines, texts) == expected


def test_words_are_aligned_as_they_are(trained):
    loaded = load(dict(logdir=trained("legacy")["logdir"]))
    (pairs,) = align(loaded, ["der Hund schläft"], ["the dog sleeps"])
    assert [pair.split("-")[1] for pair in pairs.split()] == ["0", "1", "2"]


def test_the_last_word_of_a_translation_that_fills_maxlen_is_aligned(trained):
    """A model with a maximum length ends there, without `</S>`."""
    loaded = load(dict(logdir=trained("legacy")["logdir"]))
    for count in (loaded.hp.maxlen - 1, loaded.hp.maxlen):
        (pairs,) = align(loaded, ["der Hund schläft"], ["dog " * count])
        assert [pair.split("-")[1] for pair in pairs.split()] == [*map(str, range(count))]


def test_the_largest_maxlen_of_learned_positions():
    """A model of the largest `maxlen` has no position for one more token."""
    flags = dict(recipe="tiny", positions="learned", maxlen=4096)
    flags |= dict(hidden_units=8, ffn_units=8, num_blocks=1, num_heads=1)
    hp, vocab = make_hparams(flags), WordVocab.__new__(WordVocab)
    vocab.idx2word = dict(enumerate([*SPECIALS, "a", "b"]))
    loaded = LoadedModel([], hp, make_model(hp, 6, 6), (vocab, vocab))
    for length in (2, 4095, 4096):
        (pairs,) = word_alignments(loaded, [([4, 5, EOS], [4] * length)])
        assert len(pairs.split()) == length


@slow
def test_alignments_of_nbest_lists_have_a_line_for_each(trained, tmp_path):
    flags = trained("tiny")
    more = dict(source=flags["source_test"], beam=3, nbest=2, alignments=tmp_path / "align")
    done = forked_script("translate.py", logdir=flags["logdir"], **more)
    found, aligned = done.stdout.splitlines(), (tmp_path / "align").read_text().splitlines()
    assert len(found) == len(aligned) > 30
    for line, pairs in zip(found, aligned, strict=True):
        assert len(pairs.split()) == len(line.split(" ||| ")[1].split())


@pytest.mark.parametrize(
    "change, words",
    [
        (dict(source="-"), ("needs the file of the sources, --source. Give --source",)),
        (dict(nbest=2, beam=2), ("nbest 2 needs translations",)),
        (dict(attention="out.png"), ("attention out.png needs translations",)),
        (dict(alpha=1), ("alpha has no effect: with --score",)),
        (dict(score="nowhere"), ("nowhere: no such file", "--score")),
        (dict(score="{two}"), ("30 lines, but", "has 2", "Make line n")),
        (dict(alignments="{folder}"), ("is a folder",)),
    ],
)
def test_what_contradicts_score_is_refused(trained, tmp_path, change, words):
    flags = trained("tiny")
    (tmp_path / "two").write_text("a\nb\n")
    change = {
        name: value.format(two=tmp_path / "two", folder=tmp_path)
        if isinstance(value, str)
        else value
        for name, value in change.items()
    }
    given = dict(logdir=flags["logdir"], source=flags["source_test"], score=flags["target_test"])
    output = tmp_path / "out"
    refused("translate.py", *words, **given | dict(output=output) | change)
    assert not output.exists()
