"""translate.py --score and --alignments: probabilities and links of given translations."""

import math
import re

import numpy as np
import pytest

import translate
from conftest import slow
from data_load import encode_lines
from helpers import load, read_test_sentences, run_main, translated
from hparams import make_hparams
from model.transformer import make_model
from text.ids import EOS, SPECIALS
from text.vocab import WordVocab
from translation import attention_maps
from translation.attention_maps import word_alignments, word_indices
from translation.inference import LoadedModel
from translation.score import LineScore, Scorer


@pytest.fixture(params=["legacy", "tiny", pytest.param("rnn_attention", marks=slow)])
def loaded(request, trained):
    flags = trained(request.param)
    loaded = load(dict(logdir=flags["logdir"], beam=3, alpha=0.0))
    return loaded, *(read_test_sentences(flags[f"{side}_test"]) for side in SIDES)


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


def score_lines(flags, folder, lines, texts, **more):
    """Score translations of lines with translate.py: the lines of the output."""
    (folder / "given").write_text("".join(f"{text}\n" for text in texts), "utf-8")
    return translated(flags, folder, lines, score=folder / "given", **more)


def test_a_side_that_is_too_long_has_no_score(trained, tmp_path, capsys):
    lines = ["der Hund", "der Hund", "Hund " * 15, "Hund " * 14]
    texts = ["the dog", "dog " * 15, "the dog", "dog " * 14]
    found = score_lines(trained("legacy"), tmp_path, lines, texts)  # reads at most 14 words
    assert [line == "nan\tnan" for line in found] == [False, True, True, False]
    assert "2 of 4 lines" in capsys.readouterr().err


def test_scores_of_found_translations_are_those_of_the_search(trained, tmp_path, capsys):
    """In a model of words: with subwords, the search leaves out <UNK>, which has a probability."""
    flags = trained("legacy")
    lines = read_test_sentences(flags["source_test"])
    found = translated(flags, tmp_path, lines, beam=3, nbest=2, alpha=0.0)
    found = [line.split(" ||| ") for line in found]
    sources, texts = [lines[int(number)] for number, *_ in found], [text for _, text, _ in found]
    lines = score_lines(flags, tmp_path, sources, texts)
    printed = capsys.readouterr().err
    rows = [tuple(map(float, line.split("\t"))) for line in lines]
    assert len(rows) == len(found) > 30
    # A text may also be tokenized in another way than the search found it.
    pairs = zip(rows, found, strict=True)
    equal = [abs(logp - float(score)) < 2e-3 for (logp, _), (_, _, score) in pairs]
    assert sum(equal) > 0.5 * len(equal)
    scored = [logp for logp, _ in rows if not math.isnan(logp)]
    assert f"{len(scored)} of {len(rows)} lines" in printed
    total = float(re.search(r"log-probability (-[\d.]+)", printed)[1])
    assert total == pytest.approx(sum(scored), abs=0.01)


def test_empty_lines_and_alignments_keep_their_places(trained, tmp_path, capsys):
    lines = ["Der Hund schläft.", "", "Der Hund", "Die Katze"]
    texts, aligned = ["The dog sleeps.", "The cat", " ", "The cat"], tmp_path / "align"
    rows = score_lines(trained("tiny"), tmp_path, lines, texts, alignments=aligned)
    assert rows[1] == rows[2] == "nan\tnan" and "nan" not in rows[0] + rows[3]
    assert "2 of 4 lines" in capsys.readouterr().err
    links = aligned.read_text().splitlines()
    assert links[1] == links[2] == ""
    assert [pair.split("-")[1] for pair in links[0].split()] == ["0", "1", "2"]
    assert {pair.split("-")[0] for pair in links[3].split()} <= {"0", "1"}


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
    lines = read_test_sentences(flags["source_test"])
    more = dict(beam=3, nbest=2, alignments=tmp_path / "align")
    found = translated(flags, tmp_path, lines, **more)
    aligned = more["alignments"].read_text().splitlines()
    assert len(found) == len(aligned) > 30
    for line, pairs in zip(found, aligned, strict=True):
        assert len(pairs.split()) == len(line.split(" ||| ")[1].split())
