"""Greedy and beam search: logits that spell words, and comparisons with exhaustive search."""

import dataclasses
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from conftest import slow, slow_unless
from hparams import make_hparams
from model.transformer import make_model
from translation import inference
from translation.inference import make_search
from translation.search import (
    beam_search,
    greedy,
    paper_penalty,
    prefix_step,
    sampling_step,
    top_tokens,
)

LETTERS = ".abcdefghijklmnopqrstuvwxyz"  # "." has id 0
EOS = LETTERS.index("z")


def speller(*words):
    """Make a step function that spells `words`, one per sentence.

    Its state is the number of steps, (N,), its memory the numbers of the words, (N,).
    """
    ids = tf.constant([[LETTERS.index(letter) for letter in word] for word in words])  # (N, T)

    def step(previous, t, sentences):
        words = tf.gather(ids, sentences)  # (N, T)
        expected = tf.gather(words, tf.maximum(t - 1, 0), batch_dims=1)  # (N,)
        tf.debugging.assert_equal(previous, tf.where(t == 0, tf.zeros_like(expected), expected))
        return tf.one_hot(tf.gather(words, t, batch_dims=1), len(LETTERS)), t + 1

    return step


def search_greedily(step, N, *args):
    return greedy(step, tf.zeros([N], tf.int32), tf.range(N), tf.zeros([N], tf.int32), *args)


def spell(preds):
    return ["".join(LETTERS[i] for i in row) for row in preds.numpy()]


def test_greedy_search_spells_and_feeds_each_letter_back():
    preds = search_greedily(speller("transformer"), 1, 11)
    assert spell(preds) == ["transformer"]


@pytest.mark.parametrize("suppress_ids", [[], [0]])
def test_greedy_search_accepts_logits_in_bfloat16(suppress_ids):
    step = speller("abz")

    def rounded(*args):
        logits, state = step(*args)
        return tf.cast(logits, tf.bfloat16), state

    preds = search_greedily(rounded, 1, 9, EOS, suppress_ids)
    assert spell(preds) == ["abz"]


def test_a_finished_sentence_gets_zeros_while_others_continue():
    step = speller("abcdz.", "abz...")
    preds = search_greedily(step, 2, 6, EOS)
    assert spell(preds) == ["abcdz", "abz.."]


def test_greedy_search_stops_when_all_sentences_have_ended():
    calls = tf.Variable(0)

    def step(previous, state, memory):
        calls.assign_add(1)
        return tf.one_hot([EOS, EOS], len(LETTERS)), state

    search_greedily(step, 2, 9, EOS)
    assert calls.numpy() == 1


def test_sentences_that_are_done_leave_the_batch():
    """When a quarter of the batch is done, the step function reads the others only."""
    words = ["abcdefghiz", "abz", "az", "abcz", "abcdez"]
    sizes = []

    def step(previous, t, sentences):
        sizes.append(len(previous))
        return speller(*(word.ljust(10, ".") for word in words))(previous, t, sentences)

    preds = search_greedily(step, 5, 10, EOS)
    assert spell(preds) == [word.ljust(10, ".") for word in words]
    assert sizes == [5, 5, 5, 3, 2, 2, 1, 1, 1, 1]


def test_without_eos_greedy_search_continues_as_in_the_2017_code():
    preds = search_greedily(speller("azaz"), 1, 4)
    assert spell(preds) == ["azaz"]


@pytest.mark.parametrize("recipe, allowed", [("legacy", True), ("updated", False)])
def test_only_the_2017_code_may_choose_padding(recipe, allowed):
    hp = make_hparams(dict(recipe=recipe, hidden_units=4, num_heads=1, num_blocks=1, maxlen=5))
    model = make_model(hp, 9, 9)
    ids = tf.constant([[5, 6, 3]])
    model(ids, ids)
    model.decode_step = lambda ids, cache, memory: (tf.one_hot(0 * ids, 9, 100.0), cache)
    preds, _ = make_search(model, hp, beam=1)(ids)
    assert np.all(preds.numpy() == PAD) == allowed and (PAD in preds.numpy()) == allowed


# Beam search ---------------------------------------------------------------------

V, STOP, PAD = 5, 3, 0


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
    if prefixes is not None:
        step, state = prefix_step(step), (state, tf.repeat(tf.constant(prefixes), beam, axis=0))
    run = tf.function(
        lambda: beam_search(
            step,
            state,
            memory=tf.range(N),
            first_ids=tf.fill([N], 2),
            max_lengths=tf.constant(max_lengths),
            eos=STOP,
            beam=beam,
            penalty=penalty,
            nbest=nbest,
            suppress_ids=[PAD],
        )
    )
    ids, scores = run()
    return ids.numpy(), scores.numpy()


def tokens(row):
    return tuple(int(i) for i in row if i)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("seed", slow_unless([0], range(3)))
def test_a_beam_wide_enough_finds_what_exhaustive_search_finds(alpha, seed):
    max_lengths, nbest = [4, 3, 4], 6
    penalty = paper_penalty(alpha)
    step, tables = table_step(seed, 3, 4)
    preds, scores = search(step, 3, 4**4, max_lengths, penalty, nbest)
    for table, max_length, rows, row_scores in zip(tables, max_lengths, preds, scores, strict=True):
        expected = exhaustive(table, max_length, penalty)[:nbest]
        assert [tokens(row) for row in rows] == [ids for _, ids in expected]
        np.testing.assert_allclose(row_scores, [score for score, _ in expected], atol=1e-5)


@pytest.mark.parametrize("seed", slow_unless([0], range(3)))
def test_a_prefix_is_continued_as_exhaustive_search_would(seed):
    """Scores are log-probabilities given the prefix. Prefixes may differ in length."""
    prefixes, nbest, penalty = [[1, 0, 0], [4, 2, 0], [2, 2, 4], [0, 0, 0]], 5, paper_penalty(0.0)
    step, tables = table_step(seed, 4, 4)
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


def test_a_prefix_as_long_as_the_sentence_may_be():
    step, _ = table_step(0, 2, 4)
    preds, _ = search(step, 2, 3, [2, 4], paper_penalty(0.6), prefixes=[[4, 1, 2], [STOP, 0, 0]])
    assert [tokens(row) for row in preds[:, 0]] == [(4, 1), (STOP,)]


@pytest.mark.parametrize(
    "beam, more",
    [
        (4, {}),
        pytest.param(1, {}, marks=slow),
        pytest.param(1, dict(temperature=1.0), marks=slow),
    ],
)
def test_a_model_that_continues_its_own_translation(beam, more):
    """Without a prefix the search is that without prefixes."""
    flags = dict(recipe="tiny", vocab_size=60, hidden_units=16, num_blocks=1, num_heads=2)
    hp = make_hparams(flags | dict(beam=beam) | more)
    keras.utils.set_random_seed(0)
    model = make_model(hp, 60, 60)
    x = np.random.default_rng(0).integers(4, 60, (5, 6), np.int32)
    x[:, -1] = 3
    best, scores = make_search(model, hp, beam, nbest=beam)(x)
    continued = make_search(model, hp, beam, nbest=beam, prefixed=True)
    none = tf.zeros([5, 0], tf.int32)
    np.testing.assert_array_equal(continued(x, none)[0], best)
    np.testing.assert_allclose(continued(x, none)[1], scores, atol=1e-5)
    ids = best[:, 0].numpy()
    prefixes = np.where(np.arange(4) < [[0], [1], [2], [3], [4]], ids[:, :4], 0)
    if beam == 1:
        np.testing.assert_array_equal(continued(x, prefixes)[0], best)
    other = np.array([[9, 8, 0], [7, 0, 0], [5, 5, 5], [0, 0, 0], [4, 4, 0]], np.int32)
    preds = continued(x, other)[0].numpy()  # (N, beam, T)
    starts = np.where(other[:, None] > 0, preds[:, :, :3], 0)
    np.testing.assert_array_equal(starts, np.repeat(other[:, None], beam, axis=1))
    assert (preds[:, 0, 3] != preds[0, 0, 3]).any()


def test_one_hypothesis_without_a_penalty_is_greedy():
    N, T = 6, 4
    step, _ = table_step(7, N, T)
    start, state = tf.fill([N], 2), tf.zeros([N, 0], tf.int32)
    expected = greedy(step, state, tf.range(N), start, T, STOP, suppress_ids=[PAD]).numpy()
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


def test_a_wider_beam_scores_no_worse_in_sum():
    step, _ = table_step(1, 40, 4)
    sums = [search(step, 40, beam, [4] * 40, paper_penalty(0.6))[1].sum() for beam in (1, 4, 64)]
    assert sums[0] < sums[1] <= sums[2]


def test_the_sentences_of_a_batch_are_independent():
    step, tables = table_step(3, 2, 4)
    both, _ = search(step, 2, 3, [4, 2], paper_penalty(0.6), nbest=2)
    for n, max_length in enumerate([4, 2]):

        def alone(ids, state, memory, n=n):
            state = tf.concat([state, ids[:, None]], axis=1)
            code = tf.reduce_sum(state[:, 1:] * V ** tf.range(tf.shape(state)[1] - 1), axis=1)
            return tf.gather(tables[n], code), state

        one, _ = search(alone, 1, 3, [max_length], paper_penalty(0.6), nbest=2)
        assert [tokens(row) for row in one[0]] == [tokens(row) for row in both[n]]


def test_padding_is_never_chosen_and_follows_eos():
    def step(ids, state, memory):
        likes_padding = tf.constant([9.0, 0.5, 0.0, 1.0, 0.2])
        return tf.tile(likes_padding[None], [tf.size(ids), 1]), state

    preds, _ = search(step, 1, 2, [5], paper_penalty(0.6), 2)
    for row in preds[0]:
        ids = tokens(row)
        assert row[: len(ids)].all() and (STOP not in ids[:-1])
    state = tf.zeros([1, 0], tf.int32)
    ids = greedy(step, state, (), tf.constant([2]), 5, STOP, suppress_ids=[PAD])
    assert ids.numpy().tolist() == [[STOP]]


def test_beam_search_stops_when_no_live_hypothesis_can_win():
    calls = tf.Variable(0)

    def step(ids, state, memory):
        calls.assign_add(1)
        sure = tf.math.log([0.025, 0.025, 0.025, 0.9, 0.025])
        return tf.tile(sure[None], [tf.size(ids), 1]), state

    preds, scores = search(step, 2, 2, [50, 50], paper_penalty(0.6))
    assert preds[:, 0].tolist() == [[STOP], [STOP]] and calls.numpy() == 1
    np.testing.assert_allclose(scores, np.log(0.9 / 0.975), atol=1e-5)  # without <PAD>


@pytest.mark.parametrize("beam", [1, 2])
def test_a_late_sentence_may_win_by_its_length(beam):
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


def test_each_thread_has_batches_and_all_together_have_a_limit():
    lengths = np.random.default_rng(0).integers(2, 20, 1000)
    for beam, count in ((1, 1000), (5, 1000), (5, 7), (5, 2)):
        for threads in (1, 2, 4):
            batches = [*inference.decoding_batches(lengths[:count], beam, threads=threads)]
            assert sorted(np.concatenate(batches)) == [*range(count)]
            assert len(batches) >= min(count, threads)
            hypotheses = threads * beam * max(map(len, batches))
            assert hypotheses <= inference.MAX_BATCH_HYPOTHESES


def test_a_batch_has_at_least_one_sentence():
    assert inference.decoding_batch_size(10**9, beam=1) == 1
    assert inference.decoding_batch_size(1, beam=10**9) == 1
    assert inference.decoding_batch_size(10, beam=1) > inference.decoding_batch_size(100, beam=1)


def test_missing_sentences_score_minus_infinity():
    step, _ = table_step(0, 1, 1)
    preds, scores = search(step, 1, 6, [1], paper_penalty(0.6), nbest=6)
    assert np.isfinite(scores[0, :4]).all() and np.isneginf(scores[0, 4:]).all()
    assert sorted(tokens(row)[0] for row in preds[0, :4]) == [1, 2, 3, 4]


def test_the_penalty_is_the_formula_of_the_paper():
    np.testing.assert_allclose(paper_penalty(0.6)(tf.constant([1.0, 7.0])), [1, 2**0.6])


# Sampling ------------------------------------------------------------------------


def fixed_logits(logits):
    """Make a step function that always returns the same logits (V,)."""

    def step(ids, state, memory):
        return tf.tile(tf.constant([logits]), [tf.size(ids), 1]), state

    return step


def draw(logits, seeds, length=1, **how):
    """Draw sentences of a fixed length with `fixed_logits`: (N, length)."""
    step = sampling_step(fixed_logits(logits), **how)
    zeros = tf.zeros([len(seeds)], tf.int32)
    state = (), tf.constant(seeds), zeros
    return tf.function(lambda: greedy(step, state, (), zeros, length))().numpy()


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_samples_have_the_probabilities_of_the_model(temperature):
    logits, count = [0.0, 1.0, 2.0, -1.0], 4000
    p = tf.nn.softmax(tf.constant(logits) / temperature).numpy()
    sentences = draw(logits, [*range(count)], 2, temperature=temperature)
    for tokens in sentences.T:
        shares = np.bincount(tokens, minlength=4) / count
        np.testing.assert_allclose(shares, p, atol=5 * 0.5 / count**0.5)
    first, second = sentences.T  # the tokens of a sentence are independent
    both = np.mean((first == 2) & (second == 2))
    assert both == pytest.approx(p[2] ** 2, abs=5 * 0.5 / count**0.5)


def test_a_seed_draws_the_same_in_any_batch():
    logits = [0.0] * 9
    several = draw(logits, [3, 8, 5], 20, temperature=1.0)
    for row, seed in zip(several, [3, 8, 5], strict=True):
        np.testing.assert_array_equal(draw(logits, [seed], 20, temperature=1.0)[0], row)
    assert len(np.unique(several, axis=0)) == 3


def test_suppressed_tokens_are_never_drawn():
    some = draw([0.0, 1.0, 2.0, 3.0], [*range(200)], temperature=9.0, suppress_ids=[3])
    assert {*some.ravel()} == {0, 1, 2}


@slow
def test_a_model_draws_by_its_seed_and_by_the_sentence():
    flags = dict(recipe="tiny", vocab_size=60, hidden_units=16, num_blocks=1, num_heads=2, beam=1)
    x = np.random.default_rng(0).integers(4, 60, (3, 6), np.int32)
    x[:, -1] = 3
    keras.utils.set_random_seed(0)
    model = make_model(make_hparams(flags), 60, 60)

    def translator(**more):
        """A function of x: the translations, (N, 22); zeros follow the longest one of the batch."""
        hp = make_hparams(flags | dict(temperature=1.0) | more)
        search = make_search(model, hp, beam=1)

        def translate(x):
            ids = search(x)[0][:, 0]  # (N, T)
            return np.pad(ids, [(0, 0), (0, hp.max_output_tokens(6) - ids.shape[1])])

        return translate

    translate = translator()
    ids = translate(x)
    np.testing.assert_array_equal(translate(x), ids)
    np.testing.assert_array_equal(translate(np.pad(x[:1], [(0, 0), (0, 5)]))[0], ids[0])
    assert (ids[0] != translator(seed=1)(x)[0]).any() and (ids[0] != ids[1]).any()


# Repetitions and <UNK> -------------------------------------------------------------------


@pytest.mark.parametrize("beam, sizes", [(1, [2]), pytest.param(3, [1, 2, 3], marks=slow)])
def test_no_tokens_are_repeated(beam, sizes):
    """A model with random parameters repeats itself at once."""
    keras.utils.set_random_seed(1)
    hp = make_hparams(dict(recipe="tiny", hidden_units=16, ffn_units=16, num_blocks=1))
    model = make_model(hp, 40, 40)
    x = np.random.default_rng(0).integers(4, 40, (3, 6), np.int32)

    def translate(**more):
        preds, _ = make_search(model, dataclasses.replace(hp, **more), beam)(x)
        return [[*inference.truncate_at_eos(row)] for row in preds[:, 0].numpy()]

    def repeated(rows, n):
        ngrams = [[*zip(*(row[i:] for i in range(n)), strict=False)] for row in rows]
        return sum(len(grams) - len({*grams}) for grams in ngrams)

    plain = translate()
    for n in sizes:
        assert repeated(plain, n) > 0
        assert repeated(translate(no_repeat_ngram=n), n) == 0


def test_a_given_beginning_may_repeat_itself():
    keras.utils.set_random_seed(1)
    hp = make_hparams(dict(recipe="tiny", hidden_units=16, ffn_units=16, num_blocks=1))
    model = make_model(hp, 40, 40)
    x, prefixes = np.array([[5, 6, 3]], np.int32), np.array([[7, 7, 7, 7]], np.int32)
    hp = dataclasses.replace(hp, no_repeat_ngram=2)
    preds, scores = make_search(model, hp, 3, prefixed=True)(x, prefixes)
    assert preds[0, 0, :4].numpy().tolist() == [7] * 4 and np.isfinite(scores[0, 0])


@pytest.mark.parametrize("beam", [1, 3])
@pytest.mark.parametrize("tokenizer, chosen", [("words", True), ("bpe", False)])
def test_only_a_model_of_words_chooses_unknown_tokens(eager, tokenizer, chosen, beam):
    """The bias of the output layer makes <UNK> the most likely token."""
    hp = make_hparams(dict(tokenizer=tokenizer, hidden_units=16, num_blocks=1, num_heads=2))
    model = make_model(hp, 12, 12)
    model.output_layer.bias.assign(10 * np.eye(12)[inference.UNK])
    x = np.array([[5, 6, 3]], np.int32)
    preds, _ = make_search(model, hp, beam)(x)
    assert (inference.UNK in preds[0, 0].numpy()) == chosen


def test_a_given_beginning_may_have_unknown_tokens(eager):
    hp = make_hparams(dict(recipe="tiny", hidden_units=16, ffn_units=16, num_blocks=1))
    model = make_model(hp, 12, 12)
    x, prefixes = np.array([[5, 6, 3]], np.int32), np.array([[5, inference.UNK]], np.int32)
    for beam in (1, 3):
        preds, scores = make_search(model, hp, beam, prefixed=True)(x, prefixes)
        assert preds[0, 0, :2].numpy().tolist() == [5, inference.UNK]
        assert np.isfinite(scores).all() and inference.UNK not in preds[0, 0, 2:].numpy()
