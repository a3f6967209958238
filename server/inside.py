"""What the page shows of the inside of a model: attention, likely tokens, and beam search.

For an ordinary translation, nothing of this is computed. Numbers of blocks, heads and translations
count from 1, as on the page.
"""

import functools
import warnings
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from ids import BOS, SPECIALS, RaggedIds
from inference import search_arguments
from monitor.attention_maps import append_eos, attention_maps
from runtime.errors import InputError
from search import paper_penalty
from server.beam_trace import trace_beam
from variants.ensemble import Ensemble
from variants.rnn import RecurrentModel

MAX_SOURCE_TOKENS = 100  # </S> included: a longer sentence is refused
MAX_TARGET_TOKENS = 100  # the first ones of a translation are shown
MAX_TREE_BEAM = 20  # a tree with more hypotheses per step cannot be read
TOP_TOKENS = 5
KINDS = ("cross", "encoder", "decoder")  # fields of AttentionMaps, in the order of the page

# The first token of a translation attends to one token only.
warnings.filterwarnings("ignore", "You are using a softmax over axis -1 of a tensor of shape")


class Look(NamedTuple):
    """What a client wants to see of the translation of a sentence."""

    part: str  # "attention", "steps" or "beam"
    text: str
    prefix: str = ""  # the first words of the translation
    translation: int = 0  # which of the n best; 0 for the best
    kind: str = ""  # one of KINDS; "" for the first that the model has
    block: int = 0  # 0 for the last
    head: int = 0  # 0 for the mean of all


class InsideView:
    """Compute what the page shows of the inside of a model.

    Args:
      loaded: LoadedModel.
      translator: Translator that finds `nbest` translations per sentence.
      nbest: int.
    """

    def __init__(self, loaded, translator, nbest):
        self.loaded, self.translator, self.nbest = loaded, translator, nbest
        remembered = functools.lru_cache(16)  # so that the next look at a sentence needs no search
        self.translate = remembered(lambda text, prefix: translator([text], [prefix])[0])
        self.step = None  # of the search, as a graph

    def __call__(self, look) -> dict:
        """Return the answer of the server to a `Look`, in types that JSON has."""
        translation = self.translate(look.text, look.prefix)
        tokens = len(translation.ids)
        if not tokens:
            raise InputError("This sentence is empty. Give one to look inside.")
        if tokens > MAX_SOURCE_TOKENS:
            raise InputError(
                f"This sentence has {tokens - 1} tokens. To look inside, give one of at most"
                f" {MAX_SOURCE_TOKENS - 1}."
            )
        number = check_index(look.translation or 1, len(translation.hypotheses), "translation")
        if look.part == "beam":
            return self.beam(translation.ids, look.prefix)
        y = append_eos(translation.hypotheses[number - 1].ids, self.loaded.hp)
        if look.part == "steps":
            answer = self.steps(translation.ids, y)
        else:
            answer = self.attention(translation.ids, y, look)
        if len(y) > MAX_TARGET_TOKENS:
            note = f"Only the first {MAX_TARGET_TOKENS} tokens of the translation are shown."
            answer["note"] = f"{answer['note']} {note}".strip()
        return answer

    def pad(self, ids):
        """Return the ids of a source or of its translation as the model reads them, (1, T)."""
        return RaggedIds.from_lists([ids]).pad(width=self.loaded.hp.pad_to)

    def tokens(self, side, ids) -> list[str]:
        """Return the tokens of ids; side 0 is the source."""
        return [*map(self.loaded.vocabs[side].id_to_token, ids)]

    def attention(self, x, y, look) -> dict:
        """Return an attention map: of a head, or the mean of all heads of a block.

        Args:
          x, y: ids of the source and of its translation, with `</S>`.
        """
        model = self.loaded.model
        y = y[:MAX_TARGET_TOKENS]
        maps = attention_maps(model, self.pad(x), self.pad(y))._asdict()
        kinds = {
            kind: dict(blocks=len(maps[kind]), heads=int(maps[kind][0].shape[1]))
            for kind in KINDS
            if maps[kind]
        }
        answer = dict(kinds=kinds, weights=[], rows=[], columns=[], note=attention_note(model))
        if not kinds:
            return answer
        kind = look.kind or next(iter(kinds))
        if kind not in kinds:
            raise InputError(f"For this model, kind must be {' or '.join(kinds)}.")
        block = check_index(look.block or len(maps[kind]), len(maps[kind]), "block")
        weights = np.asarray(maps[kind][block - 1])[0]  # (h, T_q, T_k)
        if look.head:
            weights = weights[check_index(look.head, len(weights), "head") - 1]
        else:
            weights = weights.mean(axis=0)
        x_tokens, y_tokens = self.tokens(0, x), self.tokens(1, y)
        rows = x_tokens if kind == "encoder" else y_tokens
        columns = [SPECIALS[BOS], *y_tokens[:-1]] if kind == "decoder" else x_tokens
        weights = weights[: len(rows), : len(columns)].astype(float).round(3).tolist()
        chosen = dict(kind=kind, block=block, head=look.head)
        return answer | chosen | dict(weights=weights, rows=rows, columns=columns)

    def steps(self, x, y) -> dict:
        """Return for each step of the translation the most likely next tokens.

        Args:
          x, y: ids of the source and of its translation, with `</S>`.
        """
        y = y[:MAX_TARGET_TOKENS]
        logits = self.loaded.model(self.pad(x), self.pad(y))[0, : len(y)]  # (T_y, vocab)
        logits = tf.cast(logits, tf.float32)
        probabilities = tf.nn.softmax(logits)
        highest, ids = tf.math.top_k(probabilities, min(TOP_TOKENS, logits.shape[-1]))
        own = tf.gather(probabilities, y, batch_dims=1)  # (T_y,)
        likely = [
            [*zip(self.tokens(1, row), values, strict=True)]
            for row, values in zip(ids.numpy(), rounded(highest), strict=True)
        ]
        rows = zip(self.tokens(1, y), rounded(own), likely, strict=True)
        return dict(
            steps=[dict(zip(("token", "probability", "best"), row, strict=True)) for row in rows],
            note="",
        )

    def beam(self, x, prefix) -> dict:
        """Return the hypotheses of beam search, step by step.

        Args:
          x: ids of the source, with `</S>`.
          prefix: the first words of the translation.
        """
        hp, vocab = self.loaded.hp, self.loaded.vocabs[1]
        if note := no_tree_note(hp):
            return dict(steps=[], note=note)
        prefixes = tf.constant([vocab.encode(vocab.prepare([prefix]))[0][:-1]], tf.int32)
        args = search_arguments(self.loaded.model, hp, self.pad(x), hp.beam, prefixes)
        if not self.step:  # it is the same for all sentences
            self.step = tf.function(args["step"], autograph=False, reduce_retracing=True)
        args["step"] = self.step
        steps = trace_beam(**args, beam=hp.beam, penalty=paper_penalty(hp.alpha), nbest=self.nbest)
        return dict(
            steps=[
                [vars(node) | dict(token=vocab.id_to_token(node.token)) for node in nodes]
                for nodes in steps
            ],
            note="",
        )


def check_index(number, count, name) -> int:
    """Return a number from 1 to `count`, or raise InputError."""
    if number > count:
        raise InputError(f"{name} must be at most {count}.")
    return number


def rounded(values) -> list:
    """Return a tensor as numbers of Python with 4 digits after the point."""
    return np.asarray(values).astype(float).round(4).tolist()


def attention_note(model) -> str:
    """Say which attention maps a model lacks; an empty string if it has all."""
    notes = []
    if isinstance(model, Ensemble):
        notes.append(f"The attention is that of the first of {len(model.models)} models.")
        model = model.models[0]
    if isinstance(model, RecurrentModel):
        notes.append(
            "A recurrent model has cross-attention only, in one block with one head."
            if model.hp.has_attention
            else "This recurrent model has no attention."
        )
    return " ".join(notes)


def no_tree_note(hp) -> str:
    """Say why there is no tree of the beam; an empty string if there is one."""
    if hp.temperature:
        return "The server draws a random translation. It has no beam."
    if hp.beam == 1:
        return "Greedy search keeps one hypothesis. Start serve.py with --beam 5 to see a beam."
    if hp.beam > MAX_TREE_BEAM:
        return (
            f"The beam is {hp.beam}, too many for a tree. Start serve.py with --beam and --nbest of"
            f" at most {MAX_TREE_BEAM}."
        )
    return ""
