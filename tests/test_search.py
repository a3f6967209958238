"""Greedy and beam search, on logits that spell words and against exhaustive search."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from decoding import make_search
from hparams import with_recipe
from model import make_model
from search import PENALTIES, beam_search, greedy, paper_penalty

LETTERS = ".abcdefghijklmnopqrstuvwxyz"  # "." has id 0
END = LETTERS.index("z")


def speller(*words):
    """A step function that spells `words`, one a sentence, and counts its calls."""
    ids = tf.constant([[LETTERS.index(letter) for letter in word] for word in words])  # (N, T)

    def step(previous, t):
        expected = tf.gather(ids, tf.maximum(t - 1, 0), axis=1)  # (N,)
        tf.debugging.assert_equal(previous, tf.where(t == 0, tf.zeros_like(expected), expected))
        return tf.one_hot(tf.gather(ids, t, axis=1), len(LETTERS)), t + 1

    return step


def spell(preds):
    return ["".join(LETTERS[i] for i in row) for row in preds.numpy()]


def test_it_spells_and_feeds_each_letter_back():
    preds = greedy(speller("transformer"), tf.constant(0), tf.zeros([1], tf.int32), 11)
    assert spell(preds) == ["transformer"]


@pytest.mark.parametrize("never", [[], [0]])
def test_it_takes_logits_in_bfloat16(never):
    step = speller("abz")

    def rounded(*args):
        logits, state = step(*args)
        return tf.cast(logits, tf.bfloat16), state

    preds = greedy(rounded, tf.constant(0), tf.zeros([1], tf.int32), 9, END, never)
    assert spell(preds) == ["abz"]


def test_a_finished_sentence_holds_zeros_and_the_others_go_on():
    step = speller("abcdz.", "abz...")
    preds = greedy(step, tf.constant(0), tf.zeros([2], tf.int32), 6, END)
    assert spell(preds) == ["abcdz", "abz.."]


def test_it_stops_when_all_have_ended():
    calls = tf.Variable(0)

    def step(previous, state):
        calls.assign_add(1)
        return tf.one_hot([END, END], len(LETTERS)), state

    greedy(step, tf.constant(0), tf.zeros([2], tf.int32), 9, END)
    assert calls.numpy() == 1


def test_without_an_end_it_goes_on_as_the_original_did():
    preds = greedy(speller("azaz"), tf.constant(0), tf.zeros([1], tf.int32), 4)
    assert spell(preds) == ["azaz"]


@pytest.mark.parametrize("recipe, allowed", [("legacy", True), ("updated", False)])
def test_only_the_2017_code_may_choose_padding(recipe, allowed):
    hp = with_recipe(dict(recipe=recipe, hidden_units=4, num_heads=1, num_blocks=1, maxlen=5))
    model = make_model(hp, 9, 9)
    ids = tf.constant([[5, 6, 3]])
    model(ids, ids)
    model.step = lambda ids, state, memories: (tf.one_hot(0 * ids, 9, 100.0), state)
    preds, _ = make_search(model, hp, beam=1)(ids)
    assert np.all(preds.numpy() == PADDING) == allowed and (PADDING in preds.numpy()) == allowed


# Beam search ---------------------------------------------------------------------

V, STOP, PADDING = 5, 3, 0


def table_step(seed, N, T):
    """A step function whose logits depend on the sentence and on all words before.

    The state is the words so far, (N * K, t), so that a search that mixes up the
    hypotheses' states gets other logits.
    """
    tables = np.random.default_rng(seed).normal(scale=1.5, size=[N, V**T, V]).astype(np.float32)

    def step(ids, past):
        past = tf.concat([past, ids[:, None]], axis=1)  # (N * K, t)
        digits = past[:, 1:]  # without the start
        places = V ** tf.range(tf.shape(digits)[1])
        code = tf.reduce_sum(digits * places, axis=1)  # (N * K,)
        K = tf.shape(ids)[0] // N
        sentence = tf.repeat(tf.range(N), K)
        return tf.gather_nd(tables, tf.stack([sentence, code], axis=1)), past

    return step, tables


def exhaustive(table, limit, penalty):
    """Every sentence of a vocabulary of 5 without padding, best first: [(score, words)]."""
    logits = table.astype(np.float64)
    logits[:, PADDING] = -np.inf
    logp = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    found = []
    for length in range(1, limit + 1):
        for words in itertools.product(range(1, V), repeat=length):
            if STOP in words[:-1] or (words[-1] != STOP and length < limit):
                continue
            total = code = 0
            for place, word in enumerate(words):
                total += logp[code, word]
                code += word * V**place
            found.append((total / float(penalty(tf.constant(length, tf.float32))), words))
    return sorted(found, reverse=True)


def search(step, N, beam, limits, penalty, nbest=1):
    state = tf.zeros([N * beam, 0], tf.int32)
    run = tf.function(
        lambda: beam_search(
            step,
            state,
            start=tf.fill([N], 2),
            limits=tf.constant(limits),
            end=STOP,
            beam=beam,
            penalty=penalty,
            nbest=nbest,
            never=[PADDING],
        )
    )
    return [part.numpy() for part in run()]


def words_of(row):
    return tuple(int(i) for i in row if i)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_beam_wide_enough_finds_what_exhaustive_search_finds(name, alpha, seed):
    limits, nbest = [4, 3, 4], 6
    penalty = PENALTIES[name](alpha)
    step, tables = table_step(seed, 3, 4)
    preds, scores = search(step, 3, 4**4, limits, penalty, nbest)
    for table, limit, rows, found in zip(tables, limits, preds, scores, strict=True):
        expected = exhaustive(table, limit, penalty)[:nbest]
        assert [words_of(row) for row in rows] == [words for _, words in expected]
        np.testing.assert_allclose(found, [score for score, _ in expected], atol=1e-5)


def test_one_hypothesis_without_a_penalty_is_greedy():
    N, T = 6, 4
    step, _ = table_step(7, N, T)
    start, state = tf.fill([N], 2), tf.zeros([N, 0], tf.int32)
    expected = greedy(step, state, start, T, STOP, never=[PADDING]).numpy()
    preds, _ = search(step, N, 1, [T] * N, paper_penalty(0.0))
    assert [words_of(row) for row in preds[:, 0]] == [words_of(row) for row in expected]
    assert len({len(words_of(row)) for row in expected}) > 1  # some end early


def test_a_wider_beam_scores_no_worse_in_sum():
    step, _ = table_step(1, 40, 4)
    sums = [search(step, 40, beam, [4] * 40, paper_penalty(0.6))[1].sum() for beam in (1, 4, 64)]
    assert sums[0] < sums[1] <= sums[2]


def test_the_sentences_of_a_batch_do_not_touch():
    step, tables = table_step(3, 2, 4)
    both, _ = search(step, 2, 3, [4, 2], paper_penalty(0.6), nbest=2)
    for n, limit in enumerate([4, 2]):

        def alone(ids, past, n=n):
            past = tf.concat([past, ids[:, None]], axis=1)
            code = tf.reduce_sum(past[:, 1:] * V ** tf.range(tf.shape(past)[1] - 1), axis=1)
            return tf.gather(tables[n], code), past

        one, _ = search(alone, 1, 3, [limit], paper_penalty(0.6), nbest=2)
        assert [words_of(row) for row in one[0]] == [words_of(row) for row in both[n]]


def test_padding_is_never_chosen_and_follows_the_end():
    def step(ids, state):
        likes_padding = tf.constant([9.0, 0.5, 0.0, 1.0, 0.2])
        return tf.tile(likes_padding[None], [tf.size(ids), 1]), state

    preds, _ = search(lambda ids, state: step(ids, state), 1, 2, [5], paper_penalty(0.6), 2)
    for row in preds[0]:
        words = words_of(row)
        assert row[: len(words)].all() and (STOP not in words[:-1])
    state = tf.zeros([1, 0], tf.int32)
    ids = greedy(step, state, tf.constant([2]), 5, STOP, never=[PADDING])
    assert ids.numpy().tolist() == [[STOP]]


def test_it_ends_when_no_open_hypothesis_can_win():
    calls = tf.Variable(0)

    def step(ids, state):
        calls.assign_add(1)
        sure = tf.constant([-20.0, -20.0, -20.0, 9.0, -20.0])
        return tf.tile(sure[None], [tf.size(ids), 1]), state

    preds, scores = search(step, 2, 2, [50, 50], paper_penalty(0.6))
    assert preds[:, 0].tolist() == [[STOP], [STOP]] and calls.numpy() == 1
    np.testing.assert_allclose(scores, 0, atol=1e-6)


def test_a_late_sentence_may_win_by_its_length():
    """The bound that stops the search is that of the longest sentence, not of the present one.

    The first step ends with probability 0.6; going on is sure to give ten words. With a
    penalty the longer one wins: log(0.4) / penalty(10) > log(0.6) / penalty(1).
    """
    logits = np.full([2, V], -30.0, np.float32)
    logits[0, [STOP, 1]] = np.log([0.6, 0.4])
    logits[1, 1] = 0.0

    def step(ids, past):
        past = tf.concat([past, ids[:, None]], axis=1)
        return tf.gather(logits, tf.cast(tf.shape(past)[1] > 1, tf.int32) + 0 * ids), past

    penalty = paper_penalty(1.5)
    preds, scores = search(step, 1, 2, [10], penalty)
    assert words_of(preds[0, 0]) == (1,) * 10
    assert scores[0, 0] == pytest.approx(np.log(0.4) / float(penalty(10.0)), abs=1e-4)


def test_where_there_are_fewer_sentences_than_wanted_the_rest_scores_minus_infinity():
    step, _ = table_step(0, 1, 1)
    preds, scores = search(step, 1, 6, [1], paper_penalty(0.6), nbest=6)
    assert np.isfinite(scores[0, :4]).all() and np.isneginf(scores[0, 4:]).all()
    assert sorted(words_of(row)[0] for row in preds[0, :4]) == [1, 2, 3, 4]


def test_penalties_are_the_named_formulas():
    lengths = tf.constant([1.0, 7.0])
    np.testing.assert_allclose(PENALTIES["paper"](0.6)(lengths), [1, 2**0.6])
    np.testing.assert_allclose(PENALTIES["ctranslate2"](0.6)(lengths), [1, 7**0.6])
