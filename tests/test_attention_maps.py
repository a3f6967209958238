"""Word alignments, compared with the known links of the built-in corpus."""

from helpers import load
from processes import ROOT
from translation.attention_maps import word_alignments
from translation.translator import Translator

# A sentence of the corpus, its translation, and the words that belong together.
LINKED = """
Am Freitag kann dieser Richter schwimmen. | On Friday this judge can swim. | 00 11 24 32 43 55
Um acht Uhr werden die Mütter Flaschen zumachen. | At eight o'clock the mothers will close \
bottles. | 00 11 22 35 43 54 67 76
Mein Sänger wird den Brief zu Hause lesen. | My singer will read the letter at home. \
| 00 11 22 34 45 56 67 73
Werden diese Freunde immer die Zeitungen holen? | Will these friends always fetch the newspapers? \
| 00 11 22 33 45 56 64
Ist eine Schwester in die Küche gegangen? | Did a sister go to the kitchen? | 11 22 34 45 56 63
"""


def test_words_are_aligned_with_those_that_they_translate():
    """Of a given translation, and of the model's own one, which is the same here."""
    rows = [line.split(" | ") for line in LINKED.strip().splitlines()]
    sources, targets, links = zip(*rows, strict=True)
    gold = [{tuple(map(int, link)) for link in row.split()} for row in links]
    loaded = load(dict(logdir=str(ROOT / "docs" / "sample_model"), beam=1))
    translations = Translator(loaded)([*sources])
    assert [own.text for own in translations] == [*targets]
    X, Y = map(loaded.vocabs[0].encode, (sources, targets))
    given = [(x, y[:-1]) for x, y in zip(X, Y, strict=True)]
    found = [(own.ids, own.hypotheses[0].ids) for text in translations for own in text.sentences]
    for lines in (word_alignments(loaded, pairs) for pairs in (given, found)):
        found = [{tuple(map(int, link.split("-"))) for link in line.split()} for line in lines]
        hits = sum(len(own & known) for own, known in zip(found, gold, strict=True))
        assert hits > 0.86 * sum(map(len, gold))
