"""Sources without the mark at their end: the mark itself, and --missing_mark."""

import numpy as np
import pytest

import prepro
from conftest import sample_pairs, write_corpus
from data_load import load_train_data, pairs_of_epoch
from helpers import run_main
from hparams import make_hparams
from text.forms import without_final_mark
from text.vocab import load_vocabs


@pytest.mark.parametrize(
    "sentence, without",
    [
        ("Die Straße führt zu Łukas' Haus.", "Die Straße führt zu Łukas' Haus"),
        ("Շունը տեսնում է կատվին։", "Շունը տեսնում է կատվին"),
        ("犬が猫を見る。", "犬が猫を見る"),
        ("الكلب يرى القط؟", "الكلب يرى القط"),
        ("कुत्ता बिल्ली को देखता है।", "कुत्ता बिल्ली को देखता है"),
        ("สุนัขเห็นแมว", "สุนัขเห็นแมว"),
        ("Er sagt: „Nein!“", "Er sagt: „Nein“"),
        ("Wirklich?! ", "Wirklich "),
        ("v1.2 ist da", "v1.2 ist da"),
        ("...", ""),
        ("." * 60_000 + "a", "." * 60_000 + "a"),  # in linear time
    ],
)
def test_the_final_mark_is_removed(sentence, without):
    assert without_final_mark(sentence) == without == without_final_mark(without)


@pytest.mark.parametrize("bpe_dropout", [0.0, 0.1])
def test_seed_and_epoch_decide_which_sources_lack_their_mark(tmp_path, bpe_dropout):
    flags = write_corpus(tmp_path, sample_pairs(500))
    flags |= dict(recipe="tiny", vocab_size=500, missing_mark=0.4, bpe_dropout=bpe_dropout)
    run_main(prepro, flags)

    def texts(epoch, **more):
        """Return the text that an epoch trains on, after reading it anew."""
        hp = make_hparams(flags | more)
        vocabs = load_vocabs(hp.preprocessed, hp)
        data = pairs_of_epoch(load_train_data(hp, vocabs), vocabs, hp, epoch)
        sides = zip(vocabs, (data.X, data.Y), strict=True)
        return [[vocab.decode(row) for row in side] for vocab, side in sides]

    plain, first = texts(1, missing_mark=0.0), texts(1)
    assert first == texts(1) and first not in (texts(2), texts(1, seed=1))
    assert first[1] == plain[1]
    changed = [a != b for a, b in zip(plain[0], first[0], strict=True)]
    assert 0.3 < np.mean(changed) < 0.5
    assert {*first[0]} <= {*plain[0], *map(without_final_mark, plain[0])}
