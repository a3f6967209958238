"""Text to batches: the arrays of the 2017 code on real text, and unusual text files."""

import dataclasses
import gc
import hashlib
import json
import os
import shutil
import tracemalloc
import weakref
from pathlib import Path

import loky
import numpy as np
import pytest

import data_load
import prepro
import text
from conftest import GOLDEN, slow_unless, write_corpus
from data_load import create_data, get_batch_data, load_test_data, load_train_data
from helpers import run_main
from hparams import Hyperparams, make_hparams
from ids import EOS, RaggedIds
from interop.original import find_min_cnt
from runtime import parallel
from runtime.errors import InputError
from vocab import WordVocab, load_vocabs

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


@pytest.mark.parametrize("lang", ["de", "en"])
def test_vocabularies_equal_those_of_2017_byte_for_byte(iwslt16, lang):
    path = Path(iwslt16["preprocessed"]) / f"{lang}.vocab.tsv"
    assert sha256(path.read_bytes()) == VOCAB_SHA256[lang]


def test_a_vocabulary_file_of_words(tmp_path):
    """Four special tokens, then words by their count; words of markup count, too."""
    flags = write_corpus(tmp_path, [("b a b 1", "x")])
    (tmp_path / "train.source").write_text("<url>ab</url>\nb a b 1\n")
    run_main(prepro, flags)
    specials = ["<PAD>", "<UNK>", "<S>", "</S>"]
    lines = [f"{special}\t1000000000" for special in specials] + ["b\t2", "urlaburl\t1", "a\t1"]
    path = tmp_path / "preprocessed" / "de.vocab.tsv"
    assert path.read_text() == "".join(f"{line}\n" for line in lines)


@pytest.mark.parametrize("maxlen, min_cnt", [(10, 20), (25, 3)])
def test_arrays_equal_those_of_2017(iwslt16, maxlen, min_cnt):
    hp = Hyperparams(**iwslt16, maxlen=maxlen, min_cnt=min_cnt)
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


# Reading -----------------------------------------------------------------------


def training_pairs(flags, maxlen=10):
    """Load the pairs to train on as text, with vocabularies of every word in the text."""
    hp = Hyperparams(**flags, maxlen=maxlen, min_cnt=1)
    run_main(prepro, flags)
    vocabs = load_vocabs(hp.preprocessed, hp)
    data = load_train_data(hp, vocabs)
    assert not data.Sources and not data.Targets  # a large text would fill the memory
    assert all(ids[-1] == EOS for side in (data.X, data.Y) for ids in side)
    sides = zip((data.X, data.Y), vocabs, strict=True)
    return list(zip(*([vocab.decode(ids) for ids in side] for side, vocab in sides), strict=True))


def test_a_pair_with_an_empty_side_is_left_out_as_a_pair(tmp_path, capsys):
    pairs = [("eins", "one"), ("", "two"), ("drei", " "), ("vier", "four"), ("fünf", "five")]
    assert training_pairs(write_corpus(tmp_path, pairs)) == [pairs[0], pairs[3], pairs[4]]
    assert "Training on 3 of 5 pairs" in capsys.readouterr().out


def test_the_share_of_unknown_words_is_printed(tmp_path, capsys):
    flags = write_corpus(tmp_path, [("a a b", "x x x"), ("a", "x")])
    run_main(prepro, flags)
    hp = Hyperparams(**flags, min_cnt=2)
    load_train_data(hp, load_vocabs(hp.preprocessed, hp))
    assert "Unknown words: 25% of the source, 0% of the target" in capsys.readouterr().out


@pytest.mark.parametrize("tokenizer", ["words", "bpe"])
def test_lines_of_tags_are_skipped_on_each_side_independently(tmp_path, tokenizer):
    flags = write_corpus(tmp_path, [("eins", "one"), ("zwei", "two")])
    flags |= dict(tokenizer=tokenizer, vocab_size=18) if tokenizer == "bpe" else {}
    path = tmp_path / "train.source"
    path.write_text("<url>a</url>\n<title>b</title>\neins\n<p>\nzwei\n")
    assert training_pairs(flags) == [("eins", "one"), ("zwei", "two")]


def test_a_pair_longer_than_maxlen_on_either_side_is_left_out(tmp_path):
    flags = write_corpus(tmp_path, [("a b c", "d"), ("a b", "c d"), ("a", "b c d")])
    assert training_pairs(flags, maxlen=3) == [("a b", "c d")]  # and </S>


def test_a_corpus_read_in_blocks_gives_the_same_pairs(tmp_path, monkeypatch):
    pairs = [("eins", "one"), ("", "two"), ("drei vier", "three four"), ("fünf", "five")]
    flags = write_corpus(tmp_path, [*pairs, ("sechs", "6")])
    monkeypatch.setattr(text, "BLOCK_LINES", 2)
    assert training_pairs(flags) == [pairs[0], *pairs[2:], ("sechs", "")]
    with open(flags["target_train"], "a") as file:
        file.write("more\n" * 4)
    with pytest.raises(InputError, match="5 sentences, but .* has 9"):
        training_pairs(flags)


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
    """A pair of files that is named twice counts twice."""
    kind = dict(vocab_size=28, maxlen=20) if tokenizer == "bpe" else dict(min_cnt=1)
    vocabularies, texts = [], []
    one = write_corpus(
        tmp_path / "one",
        [("eins", "one"), ("zwei drei", "two three")]
        + 2 * [("vier", "four"), ("fünf", "five"), ("", "six")],
    )
    for flags in (several, one):
        hp = make_hparams(flags | kind | dict(tokenizer=tokenizer))
        run_main(prepro, flags | kind | dict(tokenizer=tokenizer))
        vocabularies.append([path.read_bytes() for path in sorted(Path(hp.preprocessed).iterdir())])
        data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
        texts.append([side.digest() for side in (data.X, data.Y)])
        assert len(data.X) == 6
    assert vocabularies[0] == vocabularies[1] and texts[0] == texts[1]


def test_both_directions_are_several_files(several):
    """How a model is trained that translates both ways."""
    paths = several["source_train"].split(",")[0], several["target_train"].split(",")[0]
    flags = several | dict(source_train=",".join(paths), target_train=",".join(paths[::-1]))
    assert training_pairs(flags | dict(tokenizer="bpe", vocab_size=25)) == [
        *(("eins", "one"), ("zwei drei", "two three")),
        *(("one", "eins"), ("two three", "zwei drei")),
    ]


def test_several_files_that_do_not_fit_together(several, tmp_path):
    def read(**flags):
        training_pairs(several | flags)

    sources, targets = (several[f"{side}_train"].split(",") for side in ("source", "target"))
    with pytest.raises(InputError, match="source_train names 3 files, but target_train names 1"):
        read(target_train=targets[0])
    with pytest.raises(InputError, match=f"^{tmp_path}/missing: no such file"):
        read(source_train=",".join([*sources[:2], f"{tmp_path}/missing"]))
    swapped = ",".join([targets[1], targets[0], targets[2]])  # as many sentences in all
    with pytest.raises(InputError, match=f"{sources[0]}: 2 sentences, but {targets[1]} has 3"):
        read(target_train=swapped)


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
    """Flags of a corpus with the files of its ids."""
    flags = write_corpus(tmp_path, [("eins", "one"), ("", "two"), ("drei vier", "three")])
    training_pairs(flags)
    return flags


def test_the_ids_of_a_text_are_kept_in_files_that_are_mapped(capsys, encoded, monkeypatch):
    printed = capsys.readouterr().out
    monkeypatch.setattr(data_load, "encode_block", None)  # a call would fail
    assert training_pairs(encoded) == [("eins", "one"), ("drei vier", "three")]
    assert capsys.readouterr().out == printed
    hp = Hyperparams(**encoded, min_cnt=1)
    data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
    for side in (data.X, data.Y):
        assert isinstance(side.ids, np.memmap) and isinstance(side.splits, np.memmap)


def test_the_text_is_kept_only_if_epochs_change_it(tmp_path):
    """Also if the files are there already. Other kinds of line ends are part of a sentence."""
    pairs = [("ein\u2028s\x0bx", "one"), ("", "two"), ("drei\x85", "three")]
    flags = write_corpus(tmp_path, pairs) | dict(recipe="tiny")
    run_main(prepro, flags)
    for dropout, mark in ((0.1, 0.0), (0.0, 0.1), (0.0, 0.0), (0.1, 0.0)):
        hp = make_hparams(flags | dict(bpe_dropout=dropout, missing_mark=mark))
        data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
        kept = pairs[::2] if hp.changes_text else []
        assert [*zip(data.Sources, data.Targets, strict=True)] == kept


@pytest.mark.parametrize("change", ["text", "maxlen", "min_cnt", "vocabulary", "order"])
def test_files_of_another_text_are_not_used(encoded, change):
    """The name of their folder follows from all that the ids depend on, but not from times."""
    hp = Hyperparams(**encoded, min_cnt=1)
    vocabs = load_vocabs(hp.preprocessed, hp)
    key = data_load.key_of_ids(hp, vocabs)
    os.utime(hp.source_train, ns=(0, 0))
    assert data_load.key_of_ids(hp, vocabs) == key
    if change == "text":
        path = Path(hp.source_train)
        path.write_bytes(path.read_bytes()[:-2] + b"x\n")
    elif change == "vocabulary":
        vocabs[0].content += b"more\t1\n"
    elif change == "order":
        names = dict(source_train=hp.target_train, target_train=hp.source_train)
        hp = dataclasses.replace(hp, **names)
    else:
        hp = dataclasses.replace(hp, **{change: 9})
    assert data_load.key_of_ids(hp, vocabs) != key
    (folder,) = (Path(hp.preprocessed) / "train_ids").glob("ids-*")
    assert folder.name == key


def test_a_text_that_changes_while_it_is_read(encoded, monkeypatch):
    hp = dataclasses.replace(Hyperparams(**encoded, min_cnt=1), maxlen=9)
    keys = iter(["ids-1", "ids-2"])
    monkeypatch.setattr(data_load, "key_of_ids", lambda *_: next(keys))
    with pytest.raises(InputError, match="a file has changed while it was read"):
        load_train_data(hp, load_vocabs(hp.preprocessed, hp))


@pytest.mark.parametrize("tokenizer", slow_unless(["bpe"], ["words", "bpe"]))
def test_vocabularies_and_ids_of_two_processes_are_those_of_one(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(text, "BLOCK_LINES", 10)
    monkeypatch.setattr(parallel, "num_processes", lambda: 2)
    monkeypatch.setattr(parallel, "ALONE_SECONDS", -1)
    words = "eins zwei drei vier fünf sechs sieben".split()
    pairs = [(" ".join(words[i % 7 : i % 11]), f"number {i % 13}") for i in range(200)]
    flags = write_corpus(tmp_path, pairs) | dict(tokenizer=tokenizer, vocab_size=60, min_cnt=1)

    hp = make_hparams(flags)

    def read_text():
        shutil.rmtree(hp.preprocessed, ignore_errors=True)
        run_main(prepro, flags)
        files = [path.read_bytes() for path in sorted(Path(hp.preprocessed).glob("*.*"))]
        data = load_train_data(hp, load_vocabs(hp.preprocessed, hp))
        return files, *(
            array.tolist() for side in (data.X, data.Y) for array in (side.ids, side.splits)
        )

    several = read_text()
    monkeypatch.delattr(loky, "ProcessPoolExecutor")
    vocabs = load_vocabs(hp.preprocessed, hp)
    shutil.rmtree(Path(hp.preprocessed) / "train_ids")
    for task in (lambda: run_main(prepro, flags), lambda: load_train_data(hp, vocabs)):
        with pytest.raises(AttributeError, match="ProcessPoolExecutor"):
            task()  # the text above needed it
    monkeypatch.setattr(parallel, "num_processes", lambda: 1)
    assert several == read_text()


# Vocabularies ------------------------------------------------------------------

GOOD = "<PAD>\t9\n<UNK>\t9\n<S>\t9\n</S>\t9\nein\t3\nHund\t1\n"


def test_language_names_may_contain_a_dot(tmp_path):
    hp = Hyperparams(preprocessed=str(tmp_path), source_lang="x.de", target_lang="x.en", min_cnt=1)
    for path in WordVocab.paths(tmp_path, hp):
        path.write_text(GOOD)
    assert [vocab.name for vocab in load_vocabs(tmp_path, hp)] == ["x.de", "x.en"]


def test_rare_words_are_left_out(tmp_path):
    path = tmp_path / "de.vocab.tsv"
    path.write_text(GOOD)
    vocab = WordVocab(path, min_cnt=2)
    assert vocab.word2idx == {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "ein": 4}
    assert vocab.idx2word[4] == "ein"
    with pytest.raises(InputError, match="no word occurs 5 times or more"):
        WordVocab(path, min_cnt=5)


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
    with pytest.raises(InputError, match="not the vocabularies of this model"):
        find_min_cnt(paths, (6, 5))
    with pytest.raises(InputError, match="not the vocabularies of this model"):
        find_min_cnt(paths, (5, 6), min_cnt=3)


# Batches -----------------------------------------------------------------------


def numbered(count):
    """`SentencePairs` whose row i is [i]."""
    rows = RaggedIds.from_lists([[i] for i in range(count)])
    return data_load.SentencePairs(rows, rows, [], [], list(range(count)))


def epoch(count, batch_size, seed=0, number=1):
    hp = Hyperparams(batch_size=batch_size, seed=seed, maxlen=1)
    batches, num_batch = get_batch_data(numbered(count), hp, number)
    batches = [x.numpy().ravel().tolist() for x, _ in batches]
    assert len(batches) == num_batch
    return batches


def test_the_plan_of_an_epoch_does_not_stay_in_memory(monkeypatch):
    """TensorFlow keeps the functions of tf.numpy_function for ever."""
    plans, plan_batches = [], data_load.plan_batches

    def plan_and_remember(*args):
        plan = plan_batches(*args)
        plans.append(weakref.ref(plan))
        return plan

    monkeypatch.setattr(data_load, "plan_batches", plan_and_remember)
    for number in (1, 2):
        assert len(epoch(20, 5, number=number)) == 4
    gc.collect()
    assert [plan() for plan in plans] == [None, None]


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


@pytest.mark.parametrize("largest", [2**16 - 1, 2**16, 2**20])
def test_ids_of_any_size_are_stored_exactly(largest):
    rows = [[largest, 3], [4, largest, 3]]
    ragged = RaggedIds.from_lists(rows)
    assert [row.tolist() for row in ragged] == rows
    assert (ragged.ids.dtype == np.uint16) == (largest < 2**16)


def test_the_digest_does_not_depend_on_the_type_of_the_ids():
    """A text in files may have larger ids than the same text in memory."""
    small = RaggedIds.from_lists([[4, 5, 3], [6, 3]])
    assert small.ids.dtype == np.uint16
    assert RaggedIds(small.ids.astype(np.int32), small.splits).digest() == small.digest()
    large = RaggedIds.from_lists([[4, 5, 3], [2**16 + 6, 3]])
    assert large.digest() != small.digest()


def test_the_digest_depends_on_where_sentences_end():
    one = RaggedIds.from_lists([[4, 3], [5, 6, 3]])
    other = RaggedIds.from_lists([[4, 3, 5], [6, 3]])
    assert one.ids.tolist() == other.ids.tolist() and one.digest() != other.digest()


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
    X, Y = (RaggedIds.from_lists([[4] * n for n in rng.integers(1, 41, 2000)]) for _ in "XY")
    digest = hashlib.sha256()
    for epoch in (1, 2, 3):
        plan = data_load.plan_batches(
            data_load.SentencePairs(X, Y, [], [], []), make_hparams(flags), epoch
        )
        for batch in range(len(plan)):
            digest.update(plan.rows(batch).astype(np.int64).tobytes() + b"|")
    assert digest.hexdigest() == sha256


@pytest.mark.parametrize("recipe, most", [("legacy", 5), ("tiny", 31)])
def test_the_plan_of_an_epoch_has_few_bytes_per_pair(recipe, most):
    """More pairs need 4 bytes each, and 30 while they are sorted."""
    hp = make_hparams(dict(recipe=recipe))
    peaks = []
    for count in (500_000, 1_500_000):
        splits = np.arange(0, 20 * count + 1, 20)
        side = RaggedIds(np.zeros(20 * count, np.uint16), splits)
        data = data_load.SentencePairs(side, side, [], [], [])
        tracemalloc.start()
        try:
            data_load.plan_batches(data, hp, 1)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 1_000_000 < most, peaks


def test_an_epoch_has_only_full_batches_of_different_pairs():
    batches = epoch(10, 3)
    assert [len(batch) for batch in batches] == [3, 3, 3]
    assert len({row for batch in batches for row in batch}) == 9


def test_only_seed_and_epoch_decide_the_order():
    assert epoch(50, 10) == epoch(50, 10)
    assert epoch(50, 10) != epoch(50, 10, number=2)
    assert epoch(50, 10) != epoch(50, 10, seed=1)


def test_a_corpus_smaller_than_a_batch_is_one_batch():
    assert [sorted(batch) for batch in epoch(3, 32)] == [[0, 1, 2]]


def sentences(count):
    """`SentencePairs` of many lengths: row i is i, 1 to 40 times, and twice that in the target."""
    lengths = np.random.default_rng(0).integers(1, 41, count)
    X = RaggedIds.from_lists([[i] * length for i, length in enumerate(lengths)])
    Y = RaggedIds.from_lists([[i] * 2 * length for i, length in enumerate(lengths)])
    return data_load.SentencePairs(X, Y, [], [], list(range(count)))


def token_batches(data, seed=0, epoch=1):
    hp = make_hparams(dict(recipe="tiny", batch_tokens=500, seed=seed))
    batches, num_batch = get_batch_data(data, hp, epoch)
    batches = [(x.numpy(), y.numpy()) for x, y in batches]
    assert len(batches) == num_batch
    return batches


def test_batches_of_tokens_hold_every_pair_once_and_no_more_tokens_than_the_limit():
    data = sentences(1000)
    batches = token_batches(data)
    seen = [i for x, _ in batches for i in x[:, 0]]
    assert sorted(seen) == list(range(1000))
    for x, y in batches:
        assert max(x.size, y.size) <= 500
        for source, target in zip(x, y, strict=True):
            i = source[0]
            assert source[source > 0].tolist() == data.X[i].tolist() or i == 0
            assert target[target > 0].tolist() == data.Y[i].tolist() or i == 0
    padded = sum(y.size for _, y in batches)
    assert data.Y.lengths.sum() > 0.85 * padded  # rows of similar length share a batch
    widths = [y.shape[1] for _, y in batches]
    assert widths != sorted(widths)  # but the batches are shuffled


def test_the_longer_side_bounds_a_batch_of_tokens():
    """Here the source is longer."""
    data = sentences(300)
    data = data._replace(X=data.Y, Y=data.X)
    for x, y in token_batches(data):
        assert y.size < x.size <= 500


def test_batches_of_tokens_differ_in_each_epoch():
    data = sentences(200)

    def rows(**kwargs):
        return [x[:, 0].tolist() for x, _ in token_batches(data, **kwargs)]

    assert rows() == rows()
    others = rows(), rows(epoch=2), rows(seed=1)
    contents = [{frozenset(batch) for batch in batches} for batches in others]
    assert contents[0] != contents[1] and contents[0] != contents[2]


def test_a_pair_longer_than_a_batch_is_a_batch_of_its_own():
    X = RaggedIds.from_lists([[4] * 700, [5] * 3])
    batches = token_batches(data_load.SentencePairs(X, X, [], [], [0, 1]))
    assert sorted(x.shape for x, _ in batches) == [(1, 3), (1, 700)]


def test_source_and_target_stay_together():
    words = {"<PAD>": 0, "<UNK>": 1, "<S>": 2, "</S>": 3, "a": 4, "b": 5}
    vocab = WordVocab.__new__(WordVocab)
    vocab.word2idx = words
    data = create_data(["a", "b"] * 20, ["a", "b"] * 20, vocab, vocab, 3)
    batches, _ = get_batch_data(data, Hyperparams(batch_size=8, maxlen=3), 1)
    for x, y in batches:
        np.testing.assert_array_equal(x, y)
