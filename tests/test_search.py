"""Greedy search, on logits that spell words."""

import tensorflow as tf

from search import greedy

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


def test_a_finished_sentence_holds_zeros_and_the_others_go_on():
    step = speller("abcdz.", "abz...")
    preds = greedy(step, tf.constant(0), tf.zeros([2], tf.int32), 6, END)
    assert spell(preds) == ["abcdz.", "abz..."]


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
