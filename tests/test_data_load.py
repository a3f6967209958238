"""Text to batches: the arrays of the 2017 code on real text, files of ids, batches of an epoch."""

import dataclasses
import gc
import hashlib
import json
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import pytest

import data_load
import prepro
from checkpoints.original import find_min_cnt
from conftest import GOLDEN, write_corpus
from data_load import SentencePairs, create_data, get_batch_data, load_test_data, load_train_data
from helpers import run_main
from hparams import Hyperparams, make_hparams
from support.errors import InputError
from text.ids import EOS, RaggedIds
from text.vocab import WordVocab, load_vocabs

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
    run_main(prepro, flags)
    return flags


@pytest.mark.parametrize("maxlen, min_cnt", [(10, 20), (25, 3)])
def test_vocabularies_and_arrays_equal_those_of_2017(iwslt16, maxlen, min_cnt):
    hp = Hyperparams(**iwslt16, maxlen=maxlen, min_cnt=min_cnt)
    for lang, digest in VOCAB_SHA256.items():
        assert sha256((Path(hp.preprocessed) / f"{lang}.vocab.tsv").read_bytes()) == digest
    vocabs = load_vocabs(hp.preprocessed, hp)
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


def training_pairs(flags, maxlen=10):
    """Load the pairs to train on as text, with vocabularies of every word in the text."""
    flags = flags | dict(maxlen=maxlen, min_cnt=1)
    hp = Hyperparams(**flags)
    run_main(prepro, flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    data = load_train_data(hp, vocabs)
    assert not data.Sources and not data.Targets  # a large text would fill the memory
    assert all(ids[-1] == EOS for side in (data.X, data.Y) for ids in side)
    sides = zip((data.X, data.Y), vocabs, strict=True)
    return list(zip(*([vocab.decode(ids) for ids in side] for side, vocab in sides), strict=True))


SUBWORDS = dict(tokenizer="bpe", vocab_size=0)
FIVE = [("eins", "one"), ("", "two"), ("drei", " "), ("vier", "four"), ("fünf", "five")]
LONG = [("a b c", "d"), ("a b", "c d"), ("a", "b c d")]


@pytest.mark.parametrize(
    "pairs, flags, kept, printed",
    [
        (FIVE, {}, [0, 3, 4], "on 3 of 5 pairs: 0 are longer than maxlen 10, 2 have an empty line"),
        (FIVE, SUBWORDS | dict(maxlen=30), [0, 3, 4], "Training on 3 of 5 pairs: 0 are longer"),
        (LONG, dict(maxlen=3), [1], "on 1 of 3 pairs: 2 are longer than maxlen 3, 0 have"),
    ],
)
def test_a_pair_with_an_empty_or_a_long_side_is_left_out_as_a_pair(
    tmp_path, capsys, pairs, flags, kept, printed
):
    assert training_pairs(write_corpus(tmp_path, pairs) | flags, flags.get("maxlen", 10)) == [
        pairs[row] for row in kept
    ]
    assert printed in capsys.readouterr().out


def test_the_share_of_unknown_words_is_printed(tmp_path, capsys):
    flags = write_corpus(tmp_path, [("a a b", "x x x"), ("a", "x")]) | dict(min_cnt=2)
    run_main(prepro, flags)
    hp = make_hparams(flags)
    load_train_data(hp, load_vocabs(hp.preprocessed, hp))
    assert "Unknown words: 25% of the source, 0% of the target" in capsys.readouterr().out


# Several files -----------------------------------------------------------------


@pytest.fixture
def several(tmp_path):
    """Flags of a corpus of two pairs of files, of which the second is named twice."""
    first, second = (
        write_corpus(tmp_path / name, pairs)
        for name, pairs in (
            ("first", [("eins", "one"), ("zwei drei", "two three")]),
            ("second", [("vier", "four"), ("fünf", "five"), ("", "six")]),
        )
    )
    sides = ("source_train", "target_train")
    return first | {side: ",".join([first[side], second[side], second[side]]) for side in sides}


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_several_files_are_one_text(several, tmp_path, tokenizer):
    """A pair of files that is named twice counts twice. All files that prepro.py writes are equal,
    but for the digest of the text."""
    kind = dict(vocab_size=28, maxlen=20) if tokenizer == "bpe" else dict(min_cnt=1)
    written = []
    pairs = [("vier", "four"), ("fünf", "five"), ("", "six")]
    pairs = [("eins", "one"), ("zwei drei", "two three"), *pairs, *pairs]
    for flags in (several, write_corpus(tmp_path / "one", pairs)):
        run_main(prepro, flags | kind | dict(tokenizer=tokenizer))
        paths = sorted(Path(flags["preprocessed"]).iterdir())
        written.append({p.name: p.read_bytes() for p in paths if p.suffix != ".json"})
    assert written[0] == written[1] and len(written[0]) == (6 if tokenizer == "words" else 5)


def test_both_directions_are_several_files(several):
    """How a model is trained that translates both ways."""
    paths = several["source_train"].split(",")[0], several["target_train"].split(",")[0]
    flags = several | dict(source_train=",".join(paths), target_train=",".join(paths[::-1]))
    assert training_pairs(flags | SUBWORDS, 20) == [
        *(("eins", "one"), ("zwei drei", "two three")),
        *(("one", "eins"), ("two three", "zwei drei")),
    ]


def test_a_comma_may_be_part_of_a_name(several, tmp_path):
    path = tmp_path / "a,b"
    path.write_text(Path(several["source_train"].split(",")[0]).read_text())
    flags = several | dict(
        source_train=str(path), target_train=several["target_train"].split(",")[0]
    )
    assert len(training_pairs(flags)) == 2


# Files of ids ------------------------------------------------------------------


@pytest.fixture
def encoded(tmp_path):
    """Hyperparams of a corpus of which prepro.py has written the ids, and the vocabularies."""
    pairs = [("eins", "one"), ("", "two"), ("drei\u2028vier", "three")]
    flags = write_corpus(tmp_path, pairs) | dict(recipe="tiny", fold_case=False)
    run_main(prepro, flags)
    hp = make_hparams(flags)
    return hp, load_vocabs(hp.preprocessed, hp)


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


@pytest.mark.parametrize(
    "change", ["text", "maxlen", "vocabulary", "order", "no file", "cut file", "killed"]
)
def test_ids_of_another_text_and_damaged_ones_are_not_used(encoded, change, monkeypatch):
    hp, vocabs = encoded
    assert data_load.map_ids(hp, vocabs)
    ids, text = Path(hp.preprocessed) / "train.target.ids.npy", Path(hp.source_train)
    if change == "text":
        text.write_bytes(text.read_bytes().replace(b"i", b"n"))
    elif change == "maxlen":
        hp = dataclasses.replace(hp, maxlen=99)
    elif change == "vocabulary":
        vocabs[0].content += b"more"
    elif change == "order":
        sides = dict(source_train=hp.target_train, target_train=hp.source_train)
        hp = dataclasses.replace(hp, **sides)
    elif change == "killed":
        with monkeypatch.context() as patched, pytest.raises(TypeError):
            patched.setattr(np, "save", None)
            data_load.write_ids(hp, vocabs)
    elif change == "cut file":
        ids.write_bytes(ids.read_bytes()[:-1])
    else:
        ids.unlink()
    assert not data_load.map_ids(hp, vocabs)
    data = load_train_data(hp, vocabs)
    assert not isinstance(data.X.ids, np.memmap)
    assert [vocabs[1].decode(y) for y in data.Y] == (
        ["eins", "drei vier"] if change == "order" else ["one", "three"]
    )


def test_a_training_keeps_the_ids_that_it_has_mapped(encoded):
    """Also if prepro.py runs again. A file that is written in place would change under it."""
    data = load_train_data(*encoded)
    before = ids_of(data)
    Path(encoded[0].target_train).write_text("other\n\nwords\n")
    data_load.write_ids(*encoded)
    assert ids_of(data) == before != ids_of(load_train_data(*encoded))


@pytest.mark.parametrize("dropout, mark", [(0.1, 0.0), (0.0, 0.1), (0.0, 0.0)])
def test_the_text_is_kept_only_if_epochs_change_it(encoded, dropout, mark):
    """Other kinds of line ends are part of a sentence."""
    hp = dataclasses.replace(encoded[0], bpe_dropout=dropout, missing_mark=mark)
    data = load_train_data(hp, encoded[1])
    kept = [("eins", "one"), ("drei\u2028vier", "three")] if hp.changes_text else []
    assert [*zip(data.Sources, data.Targets, strict=True)] == kept


# Vocabularies of words ---------------------------------------------------------

GOOD = "<PAD>\t9\n<UNK>\t9\n<S>\t9\n</S>\t9\nein\t3\nHund\t1\n"


def test_a_vocabulary_file_of_words(tmp_path):
    """Four special tokens, then words by their count; words of tag lines count, too."""
    flags = write_corpus(tmp_path, [("b a b 1", "x")]) | dict(source_lang="x.de")
    (tmp_path / "train.source").write_text("<url>ab</url>\nb a b 1\n")
    run_main(prepro, flags)
    specials = ["<PAD>", "<UNK>", "<S>", "</S>"]
    lines = [f"{special}\t1000000000" for special in specials] + ["b\t2", "urlaburl\t1", "a\t1"]
    path = tmp_path / "preprocessed" / "x.de.vocab.tsv"
    assert path.read_text() == "".join(f"{line}\n" for line in lines)


def test_rare_words_are_left_out(tmp_path):
    path = tmp_path / "de.vocab.tsv"
    path.write_text(GOOD)
    vocab = WordVocab(path, min_cnt=2)
    assert vocab.word2idx == {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "ein": 4}
    assert vocab.idx2word[4] == "ein"


@pytest.mark.parametrize(
    "text",
    [
        *(GOOD + line for line in ("\n", "Katze 1\n", "Katze\tviele\n", "ein\t1\n")),
        *(GOOD.replace("<S>", "<s>"), ""),
    ],
)
def test_a_malformed_vocabulary_is_named(tmp_path, text):
    path = tmp_path / "de.vocab.tsv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=f"^{path}: not a vocabulary"):
        WordVocab(path, min_cnt=1)


def test_min_cnt_is_inferred_from_the_sizes(tmp_path):
    paths = [tmp_path / "de", tmp_path / "en"]
    paths[0].write_text(GOOD)
    paths[1].write_text(GOOD.replace("Hund\t1", "dog\t2"))
    assert find_min_cnt(paths, (5, 6)) == 2
    assert find_min_cnt(paths, (6, 6)) == 1
    for sizes, given in (((6, 5), None), ((5, 6), 3)):
        with pytest.raises(InputError, match="not the vocabularies of this model"):
            find_min_cnt(paths, sizes, given)


# Ids ---------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [2**16 - 1, 2**16, 2**20])
def test_ids_of_any_size_are_stored_exactly(largest):
    """Also if a part of the text has none of the large ids: the digest is the same."""
    rows = [[4, 3], [largest, 3], [], [4, largest, 3]]
    ragged = RaggedIds.from_lists(rows)
    assert [row.tolist() for row in ragged] == rows
    assert (ragged.ids.dtype == np.uint16) == (largest < 2**16)
    parts = RaggedIds.concatenate([RaggedIds.from_lists(rows[:1]), RaggedIds.from_lists(rows[1:])])
    assert [row.tolist() for row in parts] == rows and parts.digest() == ragged.digest()


def test_the_digest_depends_on_where_sentences_end():
    one = RaggedIds.from_lists([[4, 3], [5, 6, 3]])
    other = RaggedIds.from_lists([[4, 3, 5], [6, 3]])
    assert one.ids.tolist() == other.ids.tolist() and one.digest() != other.digest()


# Batches -----------------------------------------------------------------------


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


def test_source_and_target_stay_together():
    vocab = WordVocab.__new__(WordVocab)
    vocab.word2idx = {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "a": 4, "b": 5}
    data = create_data(["a", "b"] * 20, ["a", "b"] * 20, vocab, vocab, 3)
    for x, y in epoch_of(data, dict(batch_size=8, maxlen=3)):
        np.testing.assert_array_equal(x, y)


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
    for count in (500_000, 1_500_000):
        side = RaggedIds(np.zeros(20 * count, np.uint16), np.arange(0, 20 * count + 1, 20))
        tracemalloc.start()
        try:
            pairs = SentencePairs(side, side, [], [], [])
            data_load.plan_batches(pairs, make_hparams(dict(recipe=recipe)), 1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 1_000_000 < most, peaks


def test_the_plan_of_an_epoch_does_not_stay_in_memory(monkeypatch):
    """TensorFlow keeps the functions of tf.numpy_function for ever."""
    orders, plan_batches = [], data_load.plan_batches

    def plan_and_remember(*args):
        plan = plan_batches(*args)
        orders.append(weakref.ref(plan[0].base))
        return plan

    monkeypatch.setattr(data_load, "plan_batches", plan_and_remember)
    for number in (1, 2):
        epoch_of(ragged_pairs(ONES, ONES), SENTENCES, number)
    gc.collect()
    assert [order() for order in orders] == [None, None]


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
