"""BLEU scores, and the summary of eval.py."""

import warnings

import nltk.translate.bleu_score as nltk_bleu
import pytest
import sacrebleu

from bleu import bleu_score, sacrebleu_score
from data_load import EvalSet, SentencePairs
from eval import describe_scores
from hparams import Hyperparams
from vocab import WordVocab

LONG = "the dog sees the cat in the park"


def test_words_end_at_the_first_eos():
    vocab = WordVocab.__new__(WordVocab)
    vocab.idx2word = dict(enumerate(["<PAD>", "<UNK>", "<S>", "</S>", "a", "dog"]))
    assert vocab.decode([4, 5, 3, 5]) == "a dog"
    assert vocab.decode([4, 1, 5]) == "a <UNK> dog"
    assert vocab.decode([3, 0, 0]) == ""


def test_bleu_counts_pairs_of_more_than_three_words_on_both_sides():
    expected = [LONG, "a b c", LONG, "a b c d"]
    got = [LONG, "a b c", "the dog sees", "a b c e"]
    score, scored = bleu_score(expected, got)
    assert scored == 2
    refs = [[LONG.split()], ["a b c d".split()]]
    assert score == 100 * nltk_bleu.corpus_bleu(refs, [LONG.split(), "a b c e".split()])


def test_bleu_without_pairs_or_matches_is_zero():
    assert bleu_score(["a b"], ["a b"]) == (0.0, 0)
    assert bleu_score([], []) == (0.0, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        score, scored = bleu_score([LONG], ["x y z w"])
    assert score < 1e-6 and scored == 1


def eval_set(references, rows):
    """Make a test set in which only the pairs `rows` are translated."""
    data = SentencePairs(None, None, [], [references[row] for row in rows], rows)
    return EvalSet(data, references, [])


def test_sacrebleu_counts_an_untranslated_sentence_as_an_empty_line():
    references = ["The dog sleeps.", "A cat runs home.", "They all sing songs."]
    expected = sacrebleu.corpus_bleu(["", "A cat runs home", ""], [references])
    score, signature = sacrebleu_score(eval_set(references, [1]), ["A cat runs home"], "en")
    assert score == expected.score > 0 and "case:mixed" in signature and "tok:13a" in signature


def test_sacrebleu_without_case():
    test = eval_set(["The Dog sleeps in the Park."], [0])
    assert sacrebleu_score(test, ["the dog sleeps in the park."], "en")[0] < 50
    score, signature = sacrebleu_score(test, ["the dog sleeps in the park."], "en", lowercase=True)
    assert score > 99.9 and "case:lc" in signature


@pytest.mark.parametrize(
    "lang, text", [("zh", "你好，世界很大。"), ("ja", "今日はとても良い天気です。")]
)
def test_sacrebleu_of_languages_without_spaces(lang, text):
    score, _ = sacrebleu_score(eval_set([text, text[::-1]], [0, 1]), [text, text[:5]], lang)
    assert 10 < score < 100


def test_the_summary_counts_pairs_left_out_and_scored():
    data = SentencePairs(None, None, [LONG, "x"], [LONG, "y"], rows=[0, 3])
    references = [LONG, "too long", "", "y"]
    test = EvalSet(data, references, empty_pairs=[2])
    lines = describe_scores(test, [LONG, "y"], Hyperparams(maxlen=9), "words")
    assert lines[0] == "Left out = 2 of 4 (1 longer than 8 words, 1 with an empty line on a side)"
    assert lines[1] == "Left out, numbers of the pairs = 2 3"
    assert lines[2].startswith("sacreBLEU = ") and "version:" in lines[2]
    assert lines[3].startswith("sacreBLEU, lower-cased = ") and "case:lc" in lines[3]
    assert lines[4].startswith("Pairs scored = 1 of 4")
    assert lines[5] == "Bleu Score = 100.0"
