"""--augment: a share of the training pairs in other forms, others in each epoch."""

import dataclasses

import numpy as np
import pytest

import prepro
from conftest import sample_pairs, write_corpus
from data_load import load_train_data, pairs_of_epoch, plan_batches
from helpers import run_main
from hparams import make_hparams
from ids import PAD, UNK
from runtime.errors import InputError
from vocab import load_vocabs

AUGMENT = "upper=0.1,title=0.1,lower=0.1,punctuation=0.1,typos=0.1"


@pytest.fixture(scope="module")
def flags(tmp_path_factory):
    flags = write_corpus(tmp_path_factory.mktemp("corpus"), sample_pairs(500))
    flags |= dict(recipe="tiny", vocab_size=500, augment=AUGMENT, fold_case=False)
    run_main(prepro, flags)
    return flags


def load(flags, **more):
    hp = make_hparams(flags | more)
    vocabs = load_vocabs(hp)
    return load_train_data(hp, vocabs), vocabs, hp


def texts(data, vocabs):
    sides = zip(vocabs, (data.X, data.Y), strict=True)
    return [[*map(vocab.decode, side.pad(np.arange(len(side))))] for vocab, side in sides]


@pytest.mark.parametrize("more", [dict(), dict(bpe_dropout=0.1), dict(byte_fallback=True)])
def test_seed_and_epoch_decide_which_pairs_have_another_form(flags, tmp_path, more):
    flags = flags | more | dict(preprocessed=str(tmp_path))
    run_main(prepro, flags)
    data, vocabs, hp = load(flags)
    plain = texts(data, vocabs)

    def epoch(number, **changes):
        changed = dataclasses.replace(hp, **changes)
        return texts(pairs_of_epoch(data, vocabs, changed, number), vocabs)

    first = epoch(1)
    assert first == epoch(1) and first not in (epoch(2), epoch(1, seed=1))
    changed = np.array(
        [[a != b for a, b in zip(*side, strict=True)] for side in zip(plain, first, strict=True)]
    )
    assert 0.35 < changed.any(axis=0).mean() < 0.55  # 0.5 of the pairs; some look the same
    uppers = [source.isupper() and target.isupper() for source, target in zip(*first, strict=True)]
    assert 0.05 < np.mean(uppers) < 0.15
    assert epoch(1, augment="none") == plain


def test_batches_have_the_changed_pairs_and_keep_their_limit(flags):
    data, vocabs, hp = load(flags, batch_tokens=200)
    changed = pairs_of_epoch(data, vocabs, hp, 1)
    plan = plan_batches(changed, hp, 1)
    rows = np.concatenate([plan.rows(batch) for batch in range(len(plan))])
    assert sorted(rows) == [*range(len(data.X))]
    for batch in range(len(plan)):
        x, y = changed.X.pad(plan.rows(batch)), changed.Y.pad(plan.rows(batch))
        assert max(x.size, y.size) <= 200 or len(x) == 1
        for side, ids in ((x, changed.X), (y, changed.Y)):
            lengths = ids.lengths_of(plan.rows(batch))
            assert np.array_equal((side != PAD).sum(axis=1), lengths)
            assert np.array_equal(lengths, ids.lengths[plan.rows(batch)])


def test_a_pair_that_would_be_too_long_stays_as_it_is(flags):
    data, vocabs, hp = load(flags, augment="upper=1")
    longest = max(data.X.lengths.max(), data.Y.lengths.max())
    changed = pairs_of_epoch(data, vocabs, dataclasses.replace(hp, maxlen=int(longest)), 1)
    assert max(changed.X.lengths.max(), changed.Y.lengths.max()) <= longest
    uppers = [text.isupper() for text in texts(changed, vocabs)[0]]
    assert 0 < np.mean(uppers) < 1


def test_the_words_of_2017_have_forms_too(tmp_path):
    flags = write_corpus(tmp_path, sample_pairs(100)) | dict(min_cnt=0, maxlen=20)
    run_main(prepro, flags)
    data, vocabs, hp = load(flags, augment="lower=1")
    changed = pairs_of_epoch(data, vocabs, hp, 1)
    words = vocabs[0].word2idx
    lowered = [[words.get(w.lower(), UNK) for w in s.split()] for s in texts(data, vocabs)[0]]
    assert [x.tolist()[:-1] for x in map(changed.X.patches.__getitem__, range(100))] == lowered


def test_the_vocabulary_has_subwords_of_the_forms(flags, tmp_path):
    """Without them, a sentence in capitals is spelled in letters."""
    lengths = []
    for augment in ("none", "upper=0.5"):
        own = flags | dict(augment=augment, preprocessed=str(tmp_path / augment))
        run_main(prepro, own)
        _, (vocab, _), _ = load(own)
        lines = [german.upper() for german, _ in sample_pairs(50)]
        lengths.append(sum(map(len, vocab.encode(lines))))
    assert lengths[1] < 0.8 * lengths[0]


@pytest.mark.parametrize(
    "augment, problem",
    [
        ("uper=0.1", "'uper' is not a form"),
        ("upper", "'' is not a share"),
        ("upper=", "'' is not a share"),
        ("upper=2", "'2' is not a share"),
        ("upper=-0.1", "'-0.1' is not a share"),
        ("upper=nan", "'nan' is not a share"),
        ("upper=0.1,upper=0.1", "upper is there twice"),
        ("upper=0.6,lower=0.6", "sum of the shares is above 1"),
        ("upper=0.1,", "'' is not a form"),
    ],
)
def test_a_wrong_value_is_refused(augment, problem):
    with pytest.raises(InputError, match=problem):
        make_hparams(dict(augment=augment))
