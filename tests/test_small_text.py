"""Small texts: the choices of prepro.py and train.py for them, and their warnings."""

import functools
import math
import random
import re
import shutil
from collections import Counter

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import eval
import inference
import prepro
from conftest import sample_pairs, write_corpus
from helpers import parameters, run_main, saved_rows, scalars, vocabs_of
from hparams import choose_vocab_size, make_hparams
from ids import EOS, SPECIALS, RaggedIds
from inference import LoadedModel, SearchDecoder, limit_note
from processes import forked_script
from train import count_epochs
from vocab import WordVocab

TINY = dict(recipe="tiny", hidden_units=16, ffn_units=16, num_blocks=1, num_heads=2)


# The schedule -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags, steps, epochs",
    [
        (dict(recipe="tiny"), 318, 20),  # Multi30k's batches
        (dict(recipe="tiny"), 1, 196),
        (dict(recipe="tiny", num_epochs=3), 5, 3),
        (dict(recipe="tiny", max_steps=9), 5, math.inf),
        (dict(recipe="tiny", num_epochs=3, max_steps=9), 5, 3),
        (dict(recipe="paper"), 5, 20),
        (dict(recipe="paper", max_steps=9), 5, math.inf),
        (dict(recipe="paper", num_epochs=0), 300, 20),
    ],
)
def test_how_many_epochs_a_training_has(flags, steps, epochs):
    assert count_epochs(make_hparams(flags), steps) == epochs


def test_a_smaller_text_has_more_epochs_but_fewer_steps():
    sizes = (1, 4, 17, 45, 200, 300, 5000)
    epochs = [count_epochs(make_hparams(dict(recipe="tiny")), steps) for steps in sizes]
    assert epochs == sorted(epochs, reverse=True)
    totals = [steps * count for steps, count in zip(sizes, epochs, strict=True)]
    assert totals == sorted(totals)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The flags of 60 pairs, and the `CompletedProcess` of two epochs of training."""
    flags = write_corpus(tmp_path_factory.mktemp("small"), sample_pairs(60)) | TINY
    flags |= dict(vocab_size=0, batch_size=10, accumulate=2)
    run_main(prepro, flags)
    done = forked_script("train.py", **flags, num_epochs=2)
    assert done.returncode == 0, done.stderr
    return flags, done


def test_the_length_is_printed_and_the_peak_of_the_rate_is_reached(run):
    flags, done = run
    assert "parameters on 1 CPU, 6 steps, 3 per epoch\n" in done.stdout
    rates = scalars(flags["logdir"])["lr"]
    assert [*rates] == [3, 6]
    assert [*rates.values()] == pytest.approx([0.01 * 0.6, 0.01 * 0.01])


# The vocabulary ----------------------------------------------------------------------


def test_the_vocabulary_grows_with_the_text():
    sizes = [choose_vocab_size(10**n) for n in range(3, 10)]
    assert sizes == sorted(sizes) and sizes[-1] == 8000


@pytest.mark.parametrize(
    "line",
    ["ab", "The quick brown fox jumps", "我爱你，“你”爱我吗？", "".join(map(chr, range(200, 999)))],
)
def test_text_that_does_not_allow_the_chosen_size_still_has_a_vocabulary(tmp_path, line):
    """Too little text for so many subwords, or more characters than that."""
    flags = write_corpus(tmp_path, [(line, line[::-1])] * 3) | dict(recipe="tiny")
    run_main(prepro, flags)
    vocab, _ = vocabs_of(flags)
    (ids,) = vocab.encode([line])
    assert vocab.decode(ids) == line.casefold() or not line.isprintable()


@functools.cache
def han_text(pairs):
    """Make a text of 3,000 characters with the frequencies of a language, and of English words."""
    rng = random.Random(0)
    han = [chr(0x4E00 + i) for i in range(3000)]
    weights = [1 / (i + 1) for i in range(3000)]
    words = "the a dog man woman child house street small old runs plays eats sleeps near with"
    source = ["".join(rng.choices(han, weights, k=15)) for _ in range(pairs)]
    target = [" ".join(rng.choices(words.split(), k=8)) for _ in range(pairs)]
    return source, target


@pytest.mark.parametrize("pairs", [300, 3000])
def test_a_text_of_many_characters_has_merges_for_both_sides(pairs):
    source, target = han_text(pairs)
    word2cnt = prepro.count_words(source) + prepro.count_words(target)
    proto = prepro.make_subwords(word2cnt, ["a", "b"], 0)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    characters = {*"".join(source + target)} - {" "}
    merged = [i for i in range(len(processor)) if prepro.is_merged(processor, i)]
    assert len(processor) == 5 + len(characters) + len(merged)  # every character is known
    tokens = sum(map(len, processor.encode(target[:100])))
    assert tokens <= 1.5 * 8 * 100  # words, not letters
    if pairs > 300:
        assert sum(map(len, processor.encode(source[:100]))) < 15 * 100  # some pairs are merged


@pytest.mark.parametrize(
    "folder, names",
    [
        ("wordshk_en_yue", ("train.yue", "train.en")),
        ("small_parallel_enja", ("train.ja", "train.en")),
        ("multi30k", ("train.de", "train.en")),
        ("loresmt2021_en_ga", ("train.ga", "train.en")),
    ],
)
@pytest.mark.parametrize("pairs, most", [(300, 3.2), (3000, 2.1)])
def test_no_text_is_spelled(real_text, folder, names, pairs, most):
    """English has fewer than so many subwords per word, in whichever script the other side is."""
    sides = [(real_text / folder / name).read_text("utf-8").split("\n")[:-1] for name in names]
    rows = random.Random(0).sample(range(len(sides[0])), pairs + 300)  # a file may be sorted
    source, target = ([side[row] for row in rows] for side in sides)
    word2cnt = sum(map(prepro.count_words, (source[:pairs], target[:pairs])), Counter())
    proto = prepro.make_subwords(word2cnt, ["a", "b"], 0)
    processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    held_out = target[pairs:]
    tokens = sum(map(len, processor.encode(held_out)))
    assert tokens < most * sum(len(line.split()) for line in held_out)


def test_a_text_that_repeats_its_phrases_has_no_phrases_as_subwords():
    """Without spaces BPE would merge whole sentences, each too rare to be learned."""
    rng = random.Random(0)
    parts = ["私は 彼は 先生は 友達は".split(), "公園で 駅で 家で 町で".split()]
    parts += ["りんごを 本を 手紙を 車を".split(), "買います 見ます 作ります 洗います".split()]
    sentences = ["".join(map(rng.choice, parts)) for _ in range(2000)]
    word2cnt = Counter(sentences)
    size = choose_vocab_size(sum(map(len, sentences)))
    rejected = prepro.train_sentencepiece(word2cnt, size, ["a", "b"])
    assert prepro.rare_share(rejected, word2cnt) > 0.5
    chosen = prepro.make_subwords(word2cnt, ["a", "b"], 0)
    assert prepro.rare_share(chosen, word2cnt) <= prepro.MAX_RARE_SHARE
    processor = sentencepiece.SentencePieceProcessor(model_proto=chosen)
    assert processor.get_piece_size() < size
    assert len(processor.encode(sentences[0])) >= 2


# Warnings ----------------------------------------------------------------------------


def test_a_warning_for_mostly_empty_translations(trained, monkeypatch, capsys, tmp_path):
    """The model predicts </S> as the first token."""
    import inference
    import translate

    flags = trained("tiny")
    models, make_model = [], inference.make_model
    monkeypatch.setattr(
        inference, "make_model", lambda *args: models.append(make_model(*args)) or models[-1]
    )
    monkeypatch.setattr(inference, "assign", lambda *_: end_at_once(models[-1]))
    run_main(eval, dict(logdir=flags["logdir"], results=str(tmp_path)))
    assert "30 of 30 translations are empty. The model has learned too little." in (
        capsys.readouterr().err
    )
    run_main(
        translate,
        dict(logdir=flags["logdir"], source=flags["source_test"], output=str(tmp_path / "out")),
    )
    assert "30 of 30 translations are empty" in capsys.readouterr().err


def end_at_once(model):
    """Give a model parameters with which each translation ends at its first token."""
    table = np.zeros(model.dec_input.tokens.lookup_table.shape, np.float32)
    table[3] = 1.0
    model.dec_input.tokens.lookup_table.assign(table)
    last = model.dec_norm
    last.gamma.assign(np.zeros_like(last.gamma))
    last.beta.assign(np.ones_like(last.beta))


def test_a_training_that_diverges_keeps_the_last_checkpoint(run, tmp_path):
    logdir = shutil.copytree(run[0]["logdir"], tmp_path / "logdir")
    rows = saved_rows(logdir)
    done = forked_script("train.py", **run[0] | dict(logdir=logdir, num_epochs=9, lr=1e20))
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    message = rf"step \d+. The last good checkpoint is .*{rows[-1].name}.npz. Use a new --logdir"
    assert re.search(message, done.stderr), done.stderr
    assert saved_rows(logdir) == rows
    assert all(np.isfinite(array).all() for array in parameters(logdir).values())


# Lengths -----------------------------------------------------------------------------


def test_translations_that_fill_their_limit_are_counted(monkeypatch):
    hp = make_hparams(dict(recipe="tiny", max_output_ratio=0.1))
    X = RaggedIds.from_lists([[5, 6, EOS]] * 3)
    # Of at most 10 tokens.
    rows = [[7] * 9 + [EOS], [7] * 10, [7, 7, EOS] + [0] * 7]
    vocab = WordVocab.__new__(WordVocab)
    vocab.idx2word = dict(enumerate([*SPECIALS, *"abcd"]))
    decode = SearchDecoder(LoadedModel([], hp, None, (vocab, vocab)))
    monkeypatch.setattr(inference, "num_cores", lambda: 1)  # all in one batch
    monkeypatch.setattr(
        decode, "search", lambda _: (tf.constant(rows[::-1])[:, None], tf.zeros([3, 1]))
    )
    found = decode(X)
    assert [best.at_limit for (best,) in found] == [False, True, False]
    assert [best.text for (best,) in found] == [" ".join("d" * 9), " ".join("d" * 10), "d d"]
    assert limit_note(1, 3, hp).startswith("1 of 3 translations ended at their limit, --max_output")
    assert limit_note(0, 3, hp) == ""
    assert "--maxlen" in limit_note(1, 3, make_hparams({}))  # of the 2017 code
