"""Word alignments, compared with the known links of the built-in corpus."""

import pytest

from conftest import sample_pairs
from helpers import load
from inference import Translator
from monitor.attention_maps import align_translations, word_alignments
from processes import ROOT

SENTENCES = 60
MAX_ERROR_RATE = 0.14  # 500 sentences: 0.08


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import alignments

    return alignments


@pytest.fixture(scope="module")
def loaded():
    return load(dict(logdir=str(ROOT / "docs" / "sample_model"), beam=1))


@pytest.fixture(scope="module")
def pairs():
    """The first test sentences and their translations."""
    return sample_pairs(SENTENCES)


def parse(lines):
    """Links 0-0 1-2 of each line, as sets of pairs."""
    return [{tuple(map(int, link.split("-"))) for link in line.split()} for line in lines]


@pytest.mark.parametrize(
    "german, english, expected",
    [
        ("Der Arzt hat den Ball gesucht.", "The doctor looked for the ball.", "00 11 52 34 45"),
        ("Hat er keinen Hund gesehen?", "Did he not see a dog?", "11 22 43 24 35"),
        ("Im Park steht die Frau auf.", "The woman gets up in the park.", "30 41 16"),
        ("Die Frau sieht die Frau.", "The woman sees the woman.", "22"),
    ],
)
def test_links_of_the_built_in_corpus(script, german, english, expected):
    expected = {tuple(map(int, link)) for link in expected.split()}
    assert script.gold_links(german, english) == expected


def test_most_words_of_the_built_in_corpus_have_a_link(script, pairs):
    counts = sum(len(script.gold_links(*pair)) for pair in pairs)
    assert counts > 0.8 * sum(len(english.split()) for _, english in pairs)


def test_given_translations_are_aligned_by_the_best_row_and_block(script, loaded, pairs):
    X, Y = map(loaded.vocabs[0].encode, zip(*pairs, strict=True))
    sides = [(x, y[:-1]) for x, y in zip(X, Y, strict=True)]
    gold = [script.gold_links(*pair) for pair in pairs]
    links = parse(word_alignments(loaded, sides))
    assert script.error_rate(links, gold) < MAX_ERROR_RATE
    choices = script.links_by_choice(loaded, sides)
    rates = {choice: script.error_rate(own, gold) for choice, own in choices.items()}
    assert len(rates) == 6 and min(rates, key=rates.get) == ("output", 2)
    assert sum(map(len, map(set.symmetric_difference, links, choices["output", 2]))) < 4


def test_translations_are_aligned(script, loaded, pairs):
    lines = [german for german, _ in pairs]
    translations = Translator(loaded)(lines)
    gold = [script.gold_links(own.line, own.text) for own in translations]
    links = parse(align_translations(loaded, translations))
    assert sum(map(len, gold)) > 300
    assert script.error_rate(links, gold) < MAX_ERROR_RATE
