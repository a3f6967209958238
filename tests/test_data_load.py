"""Text to batches: the arrays of the 2017 code on real text, files of ids, batches of an epoch."""

import dataclasses
import hashlib
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import data_load
import prepro
from checkpoints.original import find_min_cnt
from conftest import GOLDEN, write_corpus
from data_load import SentencePairs, get_batch_data, load_test_data, load_train_data
from helpers import vocabs_of
from hparams import Hyperparams, make_hparams
from support.errors import InputError
from text.ids import EOS, RaggedIds
from text.vocab import WordVocab

VOCAB_SHA256 = {
    "de": "94240fde34b7dd1cd00fad21c28bff16083c2ae29c213cdf0b04157c680fc317",
    "en": "c136d199325f6e3a9c4a4cb2af2da4cd8fe866d11905623465e9682579ad8473",
}


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture(scope="module")
def iwslt16(real_text, tmp_path_factory):
    """Write the vocabularies of the corpus of the 2017 code, and return its flags."""
    folder = real_text / "iwslt16"
    flags = {"preprocessed": str(tmp_path_factory.mktemp("iwslt16"))}
    for side, lang in (("source", "de"), ("target", "en")):
        flags[f"{side}_train"] = str(folder / f"train.tags.de-en.{lang}")
        flags[f"{side}_test"] = str(folder / f"IWSLT16.TED.tst2014.de-en.{lang}.xml")
    prepro.main(flags)
    return flags


@pytest.mark.parametrize("maxlen, min_cnt", [(10, 20), (25, 3)])
def test_vocabularies_and_arrays_equal_those_of_2017(iwslt16, maxlen, min_cnt):
    hp = Hyperparams(**iwslt16, maxlen=maxlen, min_cnt=min_cnt)
    for lang, digest in VOCAB_SHA256.items():
        assert sha256((Path(hp.preprocessed) / f"{lang}.vocab.tsv").read_bytes()) == digest
    vocabs = vocabs_of(vars(hp))
    train = load_train_data(hp, vocabs)
    test = load_test_data(hp, vocabs).data
    train_X, train_Y, test_X = (side.pad(width=maxlen) for side in (train.X, train.Y, test.X))
    golden = json.loads((GOLDEN / "data_iwslt16.json").read_text())
    assert golden[f"maxlen={maxlen},min_cnt={min_cnt}"] == {
        "de_vocab": len(vocabs[0]),
        "en_vocab": len(vocabs[1]),
        "train_pairs": len(train.X),
        "test_pairs": len(test.X),
        "train_X": sha256(train_X.tobytes()),
        "train_Y": sha256(train_Y.tobytes()),
        "test_X": sha256(test_X.tobytes()),
        "sources": sha256("\n".join(test.Sources).encode()),
        "targets": sha256("\n".join(test.Targets).encode()),
        "first_X": train_X[0].tolist(),
        "first_Y": train_Y[0].tolist(),
    }


def training_pairs(flags):
    """Load the pairs to train on, as text, with vocabularies of every word in the text."""
    flags = dict(min_cnt=1) | flags
    prepro.main(flags)
    vocabs = vocabs_of(flags)
    data = load_train_data(make_hparams(flags), vocabs)
    assert not data.Sources and not data.Targets  # a large text would fill the memory
    assert all(ids[-1] == EOS for side in (data.X, data.Y) for ids in side)
    return [*zip(map(vocabs[0].decode, data.X), map(vocabs[1].decode, data.Y), strict=True)]


SUBWORDS = dict(tokenizer="bpe", vocab_size=0, maxlen=30)
FIVE = [("eins", "one"), ("", "two"), ("drei", " "), ("vier", "four"), ("fünf", "five")]
LONG = [("a b c", "d"), ("a b", "c d"), ("a", "b c d")]
RARE = [("a a b", "x x x"), ("a", "x")]


@pytest.mark.parametrize(
    "pairs, flags, kept, printed",
    [
        (FIVE, {}, [0, 3, 4], "on 3 of 5 pairs: 0 are longer than maxlen 10, 2 have an empty line"),
        (FIVE, SUBWORDS, [0, 3, 4], "Training on 3 of 5 pairs: 0 are longer"),
        (LONG, dict(maxlen=3), [1], "on 1 of 3 pairs: 2 are longer than maxlen 3, 0 have"),
        (RARE, dict(min_cnt=2), None, "Unknown words: 25% of the source, 0% of the target"),
    ],
)
def test_a_pair_with_an_empty_or_a_long_side_is_left_out_as_a_pair(
    tmp_path, capsys, pairs, flags, kept, printed
):
    found = training_pairs(write_corpus(tmp_path, pairs) | flags)
    assert printed in capsys.readouterr().out
    assert kept is None or found == [pairs[row] for row in kept]


TWO = [("eins", "one"), ("zwei drei", "two three")]


@pytest.mark.parametrize("kind", [dict(vocab_size=28, tokenizer="bpe"), dict(min_cnt=1)])
def test_several_files_are_one_text(tmp_path, kind):
    """A pair of files that is named twice counts twice. All files that prepro.py writes are equal,
    but for the digest of the text in their names."""
    first, second = (
        write_corpus(tmp_path / name, pairs) for name, pairs in (("1", TWO), ("2", FIVE))
    )
    sides = "source_train", "target_train"
    several = first | {side: ",".join([first[side], second[side], second[side]]) for side in sides}
    written = []
    for flags in (several, write_corpus(tmp_path / "one", TWO + FIVE + FIVE)):
        prepro.main(flags | kind | dict(maxlen=20))
        written.append(
            [path.read_bytes() for path in sorted(Path(flags["preprocessed"]).iterdir())]
        )
    assert written[0] == written[1] and len(written[0]) == (6 if "vocab_size" in kind else 7)


def test_both_directions_are_two_files_and_a_comma_may_be_part_of_a_name(tmp_path):
    assert training_pairs(write_corpus(tmp_path / "a,b", TWO)) == TWO
    flags = write_corpus(tmp_path, TWO)
    source, target = flags["source_train"], flags["target_train"]
    flags |= dict(source_train=f"{source},{target}", target_train=f"{target},{source}")
    assert training_pairs(flags) == [*TWO, *(pair[::-1] for pair in TWO)]


# Files of ids -------------------------------------------------------


@pytest.fixture
def encoded(tmp_path):
    """Hyperparams of a corpus of which prepro.py has written the ids, and the vocabularies."""
    pairs = [("eins", "one"), ("", "two"), ("drei\u2028vier", "three")]
    flags = write_corpus(tmp_path, pairs) | dict(recipe="tiny", fold_case=False)
    prepro.main(flags)
    return make_hparams(flags), vocabs_of(flags)


def ids_of(data):
    return [array.tolist() for side in (data.X, data.Y) for array in (side.ids, side.splits)]


def test_the_ids_that_prepro_has_written_are_mapped(encoded, capsys, monkeypatch):
    own = load_train_data(*encoded)
    printed = capsys.readouterr().out.splitlines()[-2:]
    assert ids_of(own) == ids_of(data_load.encode_train_text(*encoded)) and len(own.X) == 2
    monkeypatch.setattr(data_load, "encode_train_text", None)  # a call would fail
    mapped = load_train_data(*encoded)
    assert capsys.readouterr().out.splitlines() == printed and "2 of 3 pairs" in printed[0]
    assert all(isinstance(side.ids, np.memmap) for side in (mapped.X, mapped.Y))


@pytest.mark.parametrize("change", ["text", "maxlen", "vocabulary", "cut file", "killed"])
def test_ids_of_another_text_and_damaged_ones_are_not_used(encoded, change, monkeypatch):
    hp, vocabs = encoded
    assert data_load.map_ids(hp, vocabs)
    (ids,), text = Path(hp.preprocessed).glob("train.*.target.ids.npy"), Path(hp.source_train)
    if change == "text":
        text.write_bytes(text.read_bytes().replace(b"i", b"n"))
    elif change == "maxlen":
        hp = dataclasses.replace(hp, maxlen=99)
    elif change == "vocabulary":
        vocabs[0].content += b"more"
    elif change == "cut file":
        ids.write_bytes(ids.read_bytes()[:-1])
    else:
        with monkeypatch.context() as patched, pytest.raises(TypeError):
            patched.setattr(np, "save", None)
            data_load.write_ids(hp, vocabs)
    assert not data_load.map_ids(hp, vocabs)
    data = load_train_data(hp, vocabs)
    assert not isinstance(data.X.ids, np.memmap)
    assert [vocabs[1].decode(y) for y in data.Y] == ["one", "three"]


def test_a_training_keeps_the_ids_that_it_has_mapped(encoded):
    """Also if prepro.py runs again. A file that is written in place would change under it."""
    data = load_train_data(*encoded)
    before = ids_of(data)
    Path(encoded[0].target_train).write_text("other\n\nwords\n")
    data_load.write_ids(*encoded)
    assert ids_of(data) == before != ids_of(load_train_data(*encoded))
    assert len([*Path(encoded[0].preprocessed).glob("*.npy")]) == 5  # the old ones are deleted


def test_the_text_is_kept_only_if_epochs_change_it(encoded):
    """Other kinds of line ends are part of a sentence."""
    for change in (dict(bpe_dropout=0.1), dict(missing_mark=0.1), {}):
        data = load_train_data(dataclasses.replace(encoded[0], **change), encoded[1])
        kept = [("eins", "one"), ("drei\u2028vier", "three")] if change else []
        assert [*zip(data.Sources, data.Targets, strict=True)] == kept


# Vocabularies of words ----------------------------------------------

GOOD = "<PAD>\t9\n<UNK>\t9\n<S>\t9\n</S>\t9\nein\t3\nHund\t1\n"


def test_a_vocabulary_file_of_words(tmp_path):
    """Four special tokens, then words by their count; words of tag lines count, too."""
    flags = write_corpus(tmp_path, [("b a b 1", "x")]) | dict(source_lang="x.de")
    (tmp_path / "train.source").write_text("<url>ab</url>\nb a b 1\n")
    prepro.main(flags)
    specials = ["<PAD>", "<UNK>", "<S>", "</S>"]
    lines = [f"{special}\t1000000000" for special in specials] + ["b\t2", "urlaburl\t1", "a\t1"]
    path = tmp_path / "preprocessed" / "x.de.vocab.tsv"
    assert path.read_text() == "".join(f"{line}\n" for line in lines)
    vocab = WordVocab(path, min_cnt=2)  # rare words are left out
    assert vocab.word2idx == {word: i for i, word in enumerate([*specials, "b"])}
    assert vocab.idx2word == dict(enumerate(vocab.word2idx))


def test_a_malformed_vocabulary_is_named(tmp_path):
    path = tmp_path / "de.vocab.tsv"
    texts = [GOOD + line for line in ("\n", "Katze 1\n", "Katze\tviele\n", "ein\t1\n")]
    for text in (*texts, GOOD.replace("<S>", "<s>"), ""):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match=f"^{path}: not a vocabulary"):
            WordVocab(path, min_cnt=1)


def test_min_cnt_is_inferred_from_the_sizes(tmp_path):
    paths = [tmp_path / "de", tmp_path / "en"]
    paths[0].write_text(GOOD)
    paths[1].write_text(GOOD.replace("Hund\t1", "dog\t2"))
    assert find_min_cnt(paths, (5, 6), None) == 2
    assert find_min_cnt(paths, (6, 6), None) == 1
    for sizes, given in (((6, 5), None), ((5, 6), 3)):
        with pytest.raises(InputError, match="this model has other vocabularies"):
            find_min_cnt(paths, sizes, given)


# Ids ----------------------------------------------------------------


@pytest.mark.parametrize("largest", [2**16 - 1, 2**16, 2**20])
def test_ids_of_any_size_are_stored_exactly(largest):
    """Also if a part of the text has none of the large ids: the digest is the same."""
    rows = [[4, 3], [largest, 3], [], [4, largest, 3]]
    ragged = RaggedIds.from_lists(rows)
    assert [row.tolist() for row in ragged] == rows
    assert (ragged.ids.dtype == np.uint16) == (largest < 2**16)
    parts = RaggedIds.concatenate([RaggedIds.from_lists(rows[:1]), RaggedIds.from_lists(rows[1:])])
    assert [row.tolist() for row in parts] == rows and parts.digest() == ragged.digest()
    # The digest depends on where sentences end.
    moved = RaggedIds.from_lists([[4], [3, largest, 3], [], [4, largest, 3]])
    assert moved.ids.tolist() == ragged.ids.tolist() and moved.digest() != ragged.digest()


# Batches ------------------------------------------------------------


def ragged_pairs(*lengths):
    """`SentencePairs` whose row i is i, so many times on each side."""
    sides = ([[i] * n for i, n in enumerate(side.tolist())] for side in lengths)
    return SentencePairs(*map(RaggedIds.from_lists, sides), [], [], [])


LENGTHS = np.random.default_rng(0).integers(1, 41, 1000)
ONES = np.ones(1000, int)
SENTENCES, TOKENS = dict(recipe="legacy", maxlen=1), dict(recipe="tiny", batch_tokens=500)
# Flags and pairs, and how many pairs of them are in an epoch.
PLANS = {
    "sentences": (SENTENCES | dict(batch_size=10), ragged_pairs(ONES, ONES), 1000),
    "an incomplete batch": (SENTENCES | dict(batch_size=3), ragged_pairs(ONES, ONES), 999),
    "less than a batch": (SENTENCES, ragged_pairs(ONES[:5], ONES[:5]), 5),
    "longer targets": (TOKENS, ragged_pairs(LENGTHS, 2 * LENGTHS), 1000),
    "longer sources": (TOKENS, ragged_pairs(2 * LENGTHS, LENGTHS), 1000),
}


def epoch_of(data, flags, number=1):
    """Return the batches of an epoch, (x, y) of (N, T)."""
    batches, count = get_batch_data(data, make_hparams(flags), number)
    batches = [(x.numpy(), y.numpy()) for x, y in batches]
    assert len(batches) == count
    return batches


@pytest.mark.parametrize("name", PLANS)
def test_an_epoch_has_different_pairs_in_an_order_of_its_own(name):
    flags, data, count = PLANS[name]

    def rows(seed=0, epoch=1):
        return [x[:, 0].tolist() for x, _ in epoch_of(data, flags | dict(seed=seed), epoch)]

    own, others = rows(), [rows(epoch=2), rows(seed=1)]
    assert len({*sum(own, [])}) == len(sum(own, [])) == count and own == rows()
    if count > 5:
        assert all({*map(frozenset, own)} != {*map(frozenset, other)} for other in others)


@pytest.mark.parametrize("name", PLANS)
def test_a_batch_has_complete_pairs_and_few_tokens(name):
    flags, data, _ = PLANS[name]
    batches = epoch_of(data, flags)
    for x, y in batches:
        assert len(x) == len(y) and max(x.size, y.size) <= flags.get("batch_tokens", 32)
        for source, target in zip(x, y, strict=True):
            if i := source[0]:  # 0 is padding
                assert source[source > 0].tolist() == data.X[i].tolist()
                assert target[target > 0].tolist() == data.Y[i].tolist()
    widths = [y.shape[1] for _, y in batches]
    if "batch_tokens" in flags:
        padded = sum(y.size for _, y in batches)
        assert data.Y.lengths.sum() > 0.85 * padded  # rows of similar length share a batch
        assert widths != sorted(widths)  # but the batches are shuffled


def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own():
    lengths = np.array([700, 3])
    shapes = sorted(x.shape for x, _ in epoch_of(ragged_pairs(lengths, lengths), TOKENS))
    assert shapes == [(1, 3), (1, 700)]


@pytest.mark.parametrize(
    "flags, sha256",
    [
        (dict(recipe="legacy"), "c88641d57c440e14c30906a7717b23bf80957074ccf466113b457687161d60ef"),
        (dict(recipe="tiny"), "f229217a8a0692d152368787bebc553884b6a7529fdc3e960c38e4a498dd39a2"),
        (
            dict(recipe="tiny", batch_tokens=300, seed=1),
            "aeb98e0ee6f9218a3fa80c91b7b885867f5eeb996a412bf12cdc32578731ac09",
        ),
    ],
)
def test_the_batches_are_always_those_of_earlier_trainings(flags, sha256):
    """The results of all measurements depend on them, and resuming a training does."""
    rng = np.random.default_rng(0)
    data = ragged_pairs(*(rng.integers(1, 41, 2000) for _ in "XY"))
    digest = hashlib.sha256()
    for epoch in (1, 2, 3):
        for rows in data_load.plan_batches(data, make_hparams(flags), epoch):
            digest.update(rows.astype(np.int64).tobytes() + b"|")
    assert digest.hexdigest() == sha256


@pytest.mark.parametrize("recipe, most", [("legacy", 10), ("tiny", 40)])
def test_the_plan_of_an_epoch_has_few_bytes_per_pair(recipe, most):
    """More pairs need 4 bytes each, some more for the batches, and 40 while they are sorted."""
    peaks = []
    for count in (250_000, 750_000):
        side = RaggedIds(np.zeros(20 * count, np.uint16), np.arange(0, 20 * count + 1, 20))
        tracemalloc.start()
        try:
            pairs = SentencePairs(side, side, [], [], [])
            data_load.plan_batches(pairs, make_hparams(dict(recipe=recipe)), 1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 500_000 < most, peaks


def test_only_the_next_batch_is_read_ahead():
    read = []

    def items():
        for i in range(1, 9):
            read.append(i)
            yield i
        raise ValueError("a batch that cannot be read")

    batches = data_load.prefetch(items())
    for i in range(1, 9):
        assert next(batches) == i and len(read) <= i + 1
    with pytest.raises(ValueError, match="a batch that cannot be read"):
        next(batches)
