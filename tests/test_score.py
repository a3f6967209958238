"""translate.py --score and --alignments: probabilities and links of given translations."""

import math
import re

import numpy as np
import pytest

import translate
from conftest import slow
from data_load import encode_lines
from helpers import load, read_test_sentences, translated, write_lines
from hparams import make_hparams
from model.transformer import make_model
from text.ids import EOS, SPECIALS
from text.vocab import WordVocab
from translation import attention_maps
from translation.attention_maps import word_alignments, word_indices
from translation.inference import LoadedModel
from translation.score import Scorer


@pytest.fixture(params=["legacy", "tiny", pytest.param("rnn_attention", marks=slow)])
def loaded(request, trained):
    flags = trained(request.param)
    loaded = load(dict(logdir=flags["logdir"], beam=3, alpha=0.0))
    return loaded, *(read_test_sentences(flags[f"{side}_test"]) for side in ("source", "target"))


def score_lines(flags, folder, lines, texts, **more):
    """Score translations of lines with translate.py: the lines of the output."""
    return translated(flags, folder, lines, score=write_lines(folder / "given", texts), **more)


def test_the_score_is_the_log_probability_of_all_tokens(loaded):
    """Computed from the logits of one pair at a time, without padding.

    And the right translation is more likely than another one.
    """
    (_, hp, model, vocabs), lines, translations = loaded
    scorer = Scorer(loaded[0])
    given, others = (
        sum(score.logp for score in scorer(lines, texts))
        for texts in (translations, [text[::-1] for text in translations])
    )
    assert given > others
    scores = scorer(lines[:4], translations[:4])
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


def test_a_side_that_is_too_long_or_empty_has_no_score(trained, tmp_path, capsys):
    """The others and their alignments keep their places."""
    lines = ["der Hund schläft", "der Hund", "Hund " * 15, "Hund " * 14, "", "Hund"]
    texts = ["the dog sleeps", "dog " * 15, "the dog", "dog " * 14, "the cat", " "]
    aligned, legacy = tmp_path / "align", trained("legacy")  # it reads at most 14 words
    found = score_lines(legacy, tmp_path, lines, texts, alignments=aligned)
    assert [line == "nan\tnan" for line in found] == [False, True, True, False, True, True]
    assert "2 of 6 lines" in capsys.readouterr().err
    links = [
        [pair.split("-")[1] for pair in line.split()] for line in aligned.read_text().splitlines()
    ]
    assert links == [[*"012"], [], [], [*map(str, range(14))], [], []]


def test_scores_of_found_translations_are_those_of_the_search(
    trained, tmp_path, monkeypatch, capsys
):
    """In a model of words: with subwords, the search leaves out <UNK>, which has a probability.

    In several batches, and with a line of alignments for each translation.
    """
    monkeypatch.setattr(translate, "MAX_BATCH_LINES", 7)
    flags, aligned = trained("legacy"), tmp_path / "align"
    lines = read_test_sentences(flags["source_test"])
    found = translated(flags, tmp_path, lines, beam=3, nbest=2, alpha=0.0, alignments=aligned)
    found = [line.split(" ||| ") for line in found]
    links = aligned.read_text().splitlines()
    assert [len(own.split()) for own in links] == [len(text.split()) for _, text, _ in found]
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


def test_alignments_join_the_weights_of_a_word(trained, monkeypatch):
    loaded = load(dict(logdir=trained("tiny")["logdir"]))
    vocab, _ = loaded.vocabs
    x, y = vocab.encode(["Der Hund schläft.", "The dog."])
    x_words, y_words = (word_indices(ids[:-1], vocab) for ids in (x, y))
    assert x_words.max() == 2 and y_words.max() == 1 and len(x_words) > 4
    weights = np.zeros((len(y), len(x)))
    weights[:, -1] = 1.0  # </S> gets most, and does not count
    weights[:-1, :-1][np.ix_(y_words == 0, x_words == 1)] = 0.05
    weights[0, np.flatnonzero(x_words == 2)[0]] = 0.06  # one subword gets more, its word less
    weights[:-1, :-1][np.ix_(y_words == 1, x_words == 0)] = 0.1
    monkeypatch.setattr(attention_maps, "alignments", lambda *_: [weights])
    expected = ["1-0 0-1", ""] if (x_words == 1).sum() > 1 else ["2-0 0-1", ""]
    assert word_alignments(loaded, [(x, y[:-1]), ([], y)]) == expected


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
