"""Beam search of one sentence in plain Python, which keeps all its hypotheses: the beam as a tree.

`search.beam_search` finds the same translations faster, and for many sentences at once. It keeps
only what is still needed.
"""

import dataclasses
import itertools
import math

import numpy as np
import tensorflow as tf

from search import suppress, take_rows, top_tokens


@dataclasses.dataclass
class Node:
    """A hypothesis of beam search: the one of its parent, and one more token.

    Its fate: `kept` if other nodes continue it, `dropped` if none of its continuations was among
    the best, `ended` if it is complete, `open` if it was not complete when the search ended.
    """

    parent: int  # its index among the nodes of the step before; -1 in the first step
    token: int  # id
    log_prob: float  # of all its tokens together
    score: float  # log_prob / length penalty
    fate: str
    rank: int = 0  # among the translations that the search returns, from 1; 0 for the others


def trace_beam(step, state, memory, start, max_lengths, eos, suppress_ids, beam, penalty, nbest):
    """Search as `search.beam_search` does, with its arguments, for N = 1 sentence.

    Returns:
      list of lists of Node: the hypotheses that each step keeps, the most likely first. A step
      keeps K = `beam` hypotheses that have not ended, and those that end with it.
    """
    K, limit = beam, int(max_lengths[0])
    steps, complete = [], []  # complete: the best K nodes that have ended, best first
    # The K live hypotheses. They start out equal, so only the first one is given a finite value.
    log_probs = np.float32([0] + [-math.inf] * (K - 1))  # (K,)
    newest_ids, places = tf.repeat(start, K), np.full(K, -1)  # places: their indices in a step

    def length_penalty(length):
        return np.float32(penalty(tf.constant(length, tf.float32)))

    def can_improve():
        return len(complete) < nbest or (
            log_probs[0] / length_penalty(limit) > complete[nbest - 1].score
        )

    while len(steps) < limit and can_improve():
        logits, state = step(newest_ids, state, memory)  # (K, vocab)
        token_log_probs, tokens = map(np.array, top_tokens(suppress(logits, suppress_ids), 2 * K))
        sums = log_probs[:, None] + token_log_probs  # (K, 2K)
        best = np.argsort(-sums, axis=None, kind="stable")[: 2 * K]
        parents, columns = np.unravel_index(best, sums.shape)  # (2K,)
        ids, log_probs = tokens[parents, columns], sums[parents, columns]  # (2K,)
        scores = log_probs / length_penalty(len(steps) + 1)
        ends = (ids == eos) | (len(steps) + 1 == limit)  # (2K,)
        # Only the best K may end. The best K of those that do not end stay live.
        live = np.flatnonzero(~ends)[:K]
        kept = np.sort([*np.flatnonzero(ends[:K]), *live])
        nodes = [
            Node(
                parent=int(places[parents[i]]),
                token=int(ids[i]),
                log_prob=float(log_probs[i]),
                score=float(scores[i]),
                fate="ended" if ends[i] else "open",
            )
            for i in kept
            if log_probs[i] > -math.inf
        ]
        steps.append(nodes)
        ended = [node for node in nodes if node.fate == "ended"]
        complete = sorted(complete + ended, key=lambda node: -node.score)[:K]
        newest_ids, log_probs = ids[live], log_probs[live]
        places = np.searchsorted(kept, live)
        state = take_rows(state, tf.constant(parents[live], tf.int32))

    for rank, node in enumerate(complete[:nbest], 1):
        node.rank = rank
    for nodes, later in itertools.pairwise(steps):
        parents = {node.parent for node in later}
        for i, node in enumerate(nodes):
            if node.fate == "open":
                node.fate = "kept" if i in parents else "dropped"
    return steps
