"""Greedy and beam search: logits that spell words, and comparisons with exhaustive search."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import slow
from hparams import make_hparams
from model.transformer import make_model
from text.ids import EOS, PAD, UNK
from translation import inference
from translation.inference import make_search, suppressed_ids
from translation.search import (
    beam_search,
    greedy,
    paper_penalty,
    prefix_step,
    sampling_step,
    suppressing_step,
    top_tokens,
)

LETTERS = ".abcdefghijklmnopqrstuvwxyz"  # "." has id 0
END = LETTERS.index("z")


def speller(words, sizes, dtype):
    """Make a step function that spells `words`, one per sentence.

    Its state is the number of steps, (N,), its memory the numbers of the words, (N,). The number of
    sentences that it reads is appended to `sizes`.
    """
    ids = tf.constant([[LETTERS.index(letter) for letter in word] for word in words])  # (N, T)

    def step(previous, t, sentences):
        sizes.append(len(previous))
        words = tf.gather(ids, sentences)  # (N, T)
        expected = tf.gather(words, tf.maximum(t - 1, 0), batch_dims=1)  # (N,)
        tf.debugging.assert_equal(previous, tf.where(t == 0, tf.zeros_like(expected), expected))
        return tf.one_hot(tf.gather(words, t, batch_dims=1), len(LETTERS), dtype=dtype), t + 1

    return step


@pytest.mark.parametrize(
    "words, steps, eos, expected_sizes",
    [
        (["transformer"], 11, END, [1] * 11),
        (["azaz"], 4, -1, [1] * 4),  # as in the 2017 code
        (["z...", "z..."], 4, END, [2]),
        # When a quarter of the batch is done, the step function reads the others only.
        (
            ["abcdefghiz..", "abz.........", "az..........", "abcz........", "abcdez......"],
            *(12, END, [5, 5, 5, 3, 2, 2, 1, 1, 1, 1]),
        ),
    ],
)
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_greedy_search_spells_and_feeds_each_letter_back(words, steps, eos, expected_sizes, dtype):
    """A finished sentence gets zeros while others continue."""
    sizes, N = [], len(words)
    step, zeros = speller(words, sizes, dtype), tf.zeros([N], tf.int32)
    preds = greedy(step, zeros, tf.range(N), zeros, steps, eos).numpy()
    spelled = ["".join(LETTERS[i] for i in row) for row in preds]
    assert spelled == [word[: len(expected_sizes)] for word in words] and sizes == expected_sizes


# Beam search --------------------------------------------------------

V, STOP = 5, 3


def table_step(seed, N, T):
    """Make a step function whose logits depend on the sentence and on all earlier tokens.

    Its state is the tokens so far, (N * K, t), its memory the numbers of the sentences, (N,). A
    search that mixes up the states of hypotheses gets other logits.

    Returns:
      (step function, (N, V**T, V) float32): the table has the logits by the code of the tokens.
    """
    tables = np.random.default_rng(seed).normal(scale=1.5, size=[N, V**T, V]).astype(np.float32)

    def step(ids, state, sentences):
        state = tf.concat([state, ids[:, None]], axis=1)  # (N * K, t)
        digits = state[:, 1:]  # without the start
        powers = V ** tf.range(tf.shape(digits)[1])
        code = tf.reduce_sum(digits * powers, axis=1)  # (N * K,)
        K = tf.size(ids) // tf.size(sentences)
        sentence = tf.repeat(sentences, K)
        return tf.gather_nd(tables, tf.stack([sentence, code], axis=1)), state

    return step, tables


def exhaustive(table, max_length, penalty):
    """List all sentences of a vocabulary of 5 without padding, best first: [(score, ids)]."""
    logits = table.astype(np.float64)
    logits[:, PAD] = -np.inf
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    sentences = []
    for length in range(1, max_length + 1):
        for ids in itertools.product(range(1, V), repeat=length):
            if STOP in ids[:-1] or (ids[-1] != STOP and length < max_length):
                continue
            total = code = 0
            for position, token in enumerate(ids):
                total += log_probs[code, token]
                code += token * V**position
            sentences.append((total / float(penalty(tf.constant(length, tf.float32))), ids))
    return sorted(sentences, reverse=True)


def search(step, N, beam, max_lengths, penalty, nbest=1, prefixes=None):
    state = tf.zeros([N * beam, 0], tf.int32)
    step = suppressing_step(step, [PAD])
    if prefixes is not None:
        step, state = prefix_step(step), (state, tf.repeat(tf.constant(prefixes), beam, axis=0))
    first_ids, limits = tf.fill([N], 2), tf.constant(max_lengths)
    sizes = dict(eos=STOP, beam=beam, penalty=penalty, nbest=nbest)
    run = tf.function(lambda: beam_search(step, state, tf.range(N), first_ids, limits, **sizes))
    ids, scores = run()
    return ids.numpy(), scores.numpy()


def tokens(row):
    return tuple(int(i) for i in row if i)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
def test_a_beam_wide_enough_finds_what_exhaustive_search_finds(alpha):
    max_lengths, nbest = [4, 3, 4], 6
    penalty = paper_penalty(alpha)
    step, tables = table_step(0, 3, 4)
    preds, scores = search(step, 3, 4**4, max_lengths, penalty, nbest)
    for table, max_length, rows, row_scores in zip(tables, max_lengths, preds, scores, strict=True):
        expected = exhaustive(table, max_length, penalty)[:nbest]
        assert [tokens(row) for row in rows] == [ids for _, ids in expected]
        np.testing.assert_allclose(row_scores, [score for score, _ in expected], atol=1e-5)


def test_a_prefix_is_continued_as_exhaustive_search_would():
    """Scores are log-probabilities given the prefix. Prefixes may differ in length."""
    prefixes, nbest, penalty = [[1, 0, 0], [4, 2, 0], [2, 2, 4], [0, 0, 0]], 5, paper_penalty(0.0)
    step, tables = table_step(0, 4, 4)
    preds, scores = search(step, 4, 4**4, [4] * 4, penalty, nbest, prefixes=prefixes)
    for table, prefix, rows, row_scores in zip(tables, prefixes, preds, scores, strict=True):
        prefix = tokens(prefix)
        found = [
            (score, ids)
            for score, ids in exhaustive(table, 4, penalty)
            if ids[: len(prefix)] == prefix
        ]
        total = np.logaddexp.reduce([score for score, _ in found])  # that of the prefix
        expected = [(score - total, ids) for score, ids in found][:nbest]
        assert [tokens(row) for row in rows if any(row)] == [ids for _, ids in expected]
        real = row_scores[row_scores > -np.inf]
        np.testing.assert_allclose(real, [score for score, _ in expected], atol=1e-5)


def test_one_hypothesis_without_a_penalty_is_greedy(eager):
    N, T = 6, 4
    step, _ = table_step(7, N, T)
    start, state = tf.fill([N], 2), tf.zeros([N, 0], tf.int32)
    expected = greedy(suppressing_step(step, [PAD]), state, tf.range(N), start, T, STOP).numpy()
    preds, _ = search(step, N, 1, [T] * N, paper_penalty(0.0))
    assert [tokens(row) for row in preds[:, 0]] == [tokens(row) for row in expected]
    assert len({len(tokens(row)) for row in expected}) > 1  # some end early


def test_beam_search_drops_sentences_that_are_done(eager):
    """Sentences of 1 to 4 tokens, in a batch and alone."""
    N = 12
    step, _ = table_step(5, N, 4)
    sizes = []

    def counting_step(ids, state, sentences):
        sizes.append(len(sentences))
        return step(ids, state, sentences)

    max_lengths = [1, 2, 3, 4] * (N // 4)
    together = search(counting_step, N, 3, max_lengths, paper_penalty(0.6), nbest=2)
    assert sizes[0] == N and sizes[-1] <= N // 2
    for n in range(N):

        def alone(ids, state, sentences, n=n):
            return step(ids, state, sentences + n)

        preds, scores = search(alone, 1, 3, [max_lengths[n]], paper_penalty(0.6), nbest=2)
        assert [tokens(row) for row in preds[0]] == [tokens(row) for row in together[0][n]]
        np.testing.assert_allclose(scores[0], together[1][n], atol=1e-5)


@pytest.mark.parametrize("V", [2, 7, 9 * 64, 1009, 64 * 6 + 1])
@pytest.mark.parametrize("count", [1, 2, 6])
def test_the_most_likely_tokens(V, count):
    """Whether V is small, a multiple of the size of a group, or prime; and with equal logits."""
    logits = np.random.default_rng(V).normal(scale=4, size=[50, V]).astype(np.float32)
    logits[:20] = np.round(logits[:20])
    logits[3] = 0.0
    logits[4, 1:] = -np.inf
    logits[5, 1] = 200.0  # all others have a probability of 0 in float32
    log_probs = tf.nn.log_softmax(tf.constant(logits, tf.float64)).numpy()
    expected = np.argsort(-log_probs, axis=1, kind="stable")[:, :count]
    found, ids = top_tokens(tf.constant(logits), count)
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(
        found, np.take_along_axis(log_probs, expected, axis=1), rtol=1e-5, atol=1e-5
    )


def constant_step(logits, calls):
    """Make a step function that always returns the same logits (V,)."""

    def step(ids, state, memory):
        calls.append(1)
        return tf.tile(tf.constant([logits]), [tf.size(ids), 1]), state

    return step


def test_beam_search_stops_when_no_live_hypothesis_can_win(eager):
    calls = []
    step = constant_step(np.log([0.025, 0.025, 0.025, 0.9, 0.025], dtype=np.float32), calls)
    preds, scores = search(step, 2, 2, [50, 50], paper_penalty(0.6))
    assert preds[:, 0].tolist() == [[STOP], [STOP]] and len(calls) == 1
    np.testing.assert_allclose(scores, np.log(0.9 / 0.975), atol=1e-5)  # without <PAD>


@pytest.mark.parametrize("beam", [1, 2])
def test_a_late_sentence_may_win_by_its_length(eager, beam):
    """The bound that stops the search is that of the longest sentence, not of the current one.

    The first step ends with probability 0.6. Otherwise ten tokens are certain. With a penalty
    the longer sentence wins: log(0.4) / penalty(10) > log(0.6) / penalty(1).
    """
    logits = np.full([2, V], -30.0, np.float32)
    logits[0, [STOP, 1]] = np.log([0.6, 0.4])
    logits[1, 1] = 0.0

    def step(ids, state, memory):
        state = tf.concat([state, ids[:, None]], axis=1)
        return tf.gather(logits, tf.cast(tf.shape(state)[1] > 1, tf.int32) + 0 * ids), state

    penalty = paper_penalty(1.5)
    preds, scores = search(step, 1, beam, [10], penalty)
    assert tokens(preds[0, 0]) == (1,) * 10
    assert scores[0, 0] == pytest.approx(np.log(0.4) / float(penalty(10.0)), abs=1e-4)


def test_missing_sentences_score_minus_infinity(eager):
    step, _ = table_step(0, 1, 1)
    preds, scores = search(step, 1, 6, [1], paper_penalty(0.6), nbest=6)
    assert np.isfinite(scores[0, :4]).all() and np.isneginf(scores[0, 4:]).all()
    assert sorted(tokens(row)[0] for row in preds[0, :4]) == [1, 2, 3, 4]


def test_the_penalty_is_the_formula_of_the_paper():
    """((5 + length) / 6)**alpha"""
    np.testing.assert_allclose(paper_penalty(0.6)(tf.constant([1.0, 7.0])), [1, 2**0.6])


def test_each_thread_has_batches_and_all_together_have_a_limit():
    lengths = np.random.default_rng(0).integers(2, 20, 1000)
    for beam, count in ((1, 1000), (5, 1000), (5, 7), (5, 2)):
        for threads in (1, 2, 4):
            batches = [*inference.decoding_batches(lengths[:count], beam, threads=threads)]
            assert sorted(np.concatenate(batches)) == [*range(count)]
            assert len(batches) >= min(count, threads)
            hypotheses = threads * beam * max(map(len, batches))
            assert hypotheses <= inference.MAX_BATCH_HYPOTHESES
    assert inference.decoding_batch_size(10**9, beam=1) == 1
    assert inference.decoding_batch_size(1, beam=10**9) == 1
    assert inference.decoding_batch_size(10, beam=1) > inference.decoding_batch_size(100, beam=1)


# Sampling -----------------------------------------------------------


def draw(logits, seeds, length, temperature):
    """Draw sentences of a fixed length with the same logits at each step: (N, length)."""
    step = sampling_step(constant_step(logits, []), temperature)
    zeros = tf.zeros([len(seeds)], tf.int32)
    state = (), tf.constant(seeds), zeros
    return tf.function(lambda: greedy(step, state, (), zeros, length))().numpy()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_have_the_probabilities_of_the_model(temperature):
    logits, count = [0.0, 1.0, 2.0, -1.0, -np.inf], 4000
    p = tf.nn.softmax(tf.constant(logits) / temperature).numpy()
    sentences = draw(logits, [*range(count)], 2, temperature=temperature)
    for tokens in sentences.T:
        shares = np.bincount(tokens, minlength=5) / count
        np.testing.assert_allclose(shares, p, atol=5 * 0.5 / count**0.5)
    assert sentences.max() == 3  # a suppressed token is never drawn
    first, second = sentences.T  # the tokens of a sentence are independent
    both = np.mean((first == 2) & (second == 2))
    assert both == pytest.approx(p[2] ** 2, abs=5 * 0.5 / count**0.5)


def test_a_seed_draws_the_same_in_any_batch(eager):
    logits = [0.0] * 9
    several = draw(logits, [3, 8, 5], 20, temperature=1.0)
    for row, seed in zip(several, [3, 8, 5], strict=True):
        np.testing.assert_array_equal(draw(logits, [seed], 20, temperature=1.0)[0], row)
    assert len(np.unique(several, axis=0)) == 3


# The searches of models ---------------------------------------------


def untrained(vocab_size=40, **flags):
    """An untrained model and its hyperparameters."""
    keras.utils.set_random_seed(1)
    sizes = dict(recipe="tiny", hidden_units=16, ffn_units=16, num_blocks=1, num_heads=2)
    hp = make_hparams(sizes | flags)
    return hp, make_model(hp, vocab_size, vocab_size)


def sources(rows):
    """Ids of sources, (rows, 6)."""
    x = np.random.default_rng(0).integers(4, 40, (rows, 6), np.int32)
    x[:, -1] = EOS
    return x


@pytest.mark.parametrize(
    "beam, more", [(4, {}), pytest.param(1, {}, marks=slow), (1, dict(temperature=1.0))]
)
def test_a_model_that_continues_its_own_translation(eager, beam, more):
    """Without a prefix the search is that without prefixes."""
    hp, model = untrained(max_output_ratio=0.1, beam=beam, **more)
    x = sources(5)
    best, scores = make_search(model, hp, beam, nbest=beam)(x)
    continued = make_search(model, hp, beam, nbest=beam, prefixed=True)
    none = tf.zeros([5, 0], tf.int32)
    np.testing.assert_array_equal(continued(x, none)[0], best)
    np.testing.assert_allclose(continued(x, none)[1], scores, atol=1e-5)
    if beam == 1:
        prefixes = np.where(np.arange(4) < [[0], [1], [2], [3], [4]], best[:, 0, :4].numpy(), 0)
        np.testing.assert_array_equal(continued(x, prefixes)[0], best)
    other = np.array([[9, 8, 0], [7, UNK, 0], [5, 5, 5], [0, 0, 0], [4, 4, 0]], np.int32)
    preds = continued(x, other)[0].numpy()  # (N, beam, T)
    starts = np.where(other[:, None] > 0, preds[:, :, :3], 0)
    np.testing.assert_array_equal(starts, np.repeat(other[:, None], beam, axis=1))
    assert (preds[:, 0, 3] != preds[0, 0, 3]).any()


def test_a_model_draws_by_its_seed_and_by_the_sentence(eager):
    x, (hp, model) = sources(3), untrained(temperature=1.0, beam=1, max_output_ratio=0.1)

    def translate(x, seed=0):
        """The translations, (N, 10); zeros follow the longest one of the batch."""
        search = make_search(model, dataclasses.replace(hp, seed=seed), beam=1)
        ids = search(tf.constant(x))[0][:, 0]  # (N, T)
        return np.pad(ids, [(0, 0), (0, 10 - ids.shape[1])])

    ids = translate(x)
    np.testing.assert_array_equal(translate(x), ids)
    np.testing.assert_array_equal(translate(np.pad(x[:1], [(0, 0), (0, 5)]))[0], ids[0])
    assert (ids[0] != translate(x, seed=1)[0]).any() and (ids[0] != ids[1]).any()


@pytest.mark.parametrize("beam, sizes", [(1, [2]), (3, [1, 3])])
def test_no_tokens_are_repeated(eager, beam, sizes):
    """A model with random parameters repeats itself at once."""
    hp, model = untrained(max_output_ratio=0.1)

    def repeated(n, **more):
        preds, _ = make_search(model, dataclasses.replace(hp, **more), beam)(sources(3))
        rows = [[*inference.truncate_at_eos(row)] for row in preds[:, 0].numpy()]
        ngrams = [[*zip(*(row[i:] for i in range(n)), strict=False)] for row in rows]
        return sum(len(grams) - len({*grams}) for grams in ngrams)

    for n in sizes:
        assert repeated(n) > 0
        assert repeated(n, no_repeat_ngram=n) == 0


def test_a_given_beginning_may_repeat_itself(eager):
    """And it may have tokens that the model would not choose."""
    hp, model = untrained(no_repeat_ngram=2)
    prefixes = np.array([[7, 7, 7, UNK]], np.int32)
    for beam in (1, 3):
        preds, scores = make_search(model, hp, beam, prefixed=True)(sources(1), prefixes)
        assert preds[0, 0, :4].numpy().tolist() == [7, 7, 7, UNK] and np.isfinite(scores[0, 0])
        assert UNK not in preds[0, 0, 4:].numpy()


@pytest.mark.parametrize(
    "flags, of_greedy, of_beam",
    [
        (dict(recipe="legacy"), [], [PAD]),  # only the 2017 code may choose padding
        (dict(recipe="legacy", tokenizer="bpe"), [UNK], [PAD, UNK]),
        (dict(recipe="updated"), [PAD, UNK], [PAD, UNK]),
    ],
)
def test_what_a_search_never_chooses(eager, flags, of_greedy, of_beam):
    """The bias of the output layer makes <PAD> and <UNK> the most likely tokens."""
    hp = make_hparams(flags)
    assert (suppressed_ids(hp, 1), suppressed_ids(hp, 3)) == (of_greedy, of_beam)
    if hp.recipe == "legacy":
        hp, model = untrained(12, maxlen=9, **flags)
        model.output_layer.bias.assign(9 * np.eye(12)[[PAD, UNK]].sum(axis=0))
        for beam, never in ((1, of_greedy), (3, of_beam)):
            preds, _ = make_search(model, hp, beam)(np.array([[5, 6, 3, *[0] * 6]], np.int32))
            assert {*preds[0, 0, :3].numpy()} & {PAD, UNK} <= {PAD, UNK} - {*never}
            assert never == [PAD, UNK] or {*preds[0, 0, :3].numpy()} & {PAD, UNK}
