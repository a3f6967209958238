"""What the page shows of the inside of a model: attention, likely tokens, and beam search.

For an ordinary translation, nothing of this is computed. Numbers of blocks, heads and translations
count from 1, as on the page.
"""

import functools
import itertools
import warnings

import numpy as np
import tensorflow as tf

from support.errors import InputError
from text.ids import BOS, SPECIALS, RaggedIds
from translation.attention_maps import append_eos, attention_maps, cross_weights
from translation.inference import decoding_batches, search_arguments, token_log_probs
from translation.paragraphs import as_one_sentence
from translation.search import Beam, Ensemble, paper_penalty

MAX_SOURCE_TOKENS = 99  # a longer sentence is refused
TOP_TOKENS = 5
KINDS = ("cross", "encoder", "decoder")  # fields of AttentionMaps, in the order of the page

# The first token of a translation attends to one token only.
warnings.filterwarnings("ignore", "You are using a softmax over axis -1 of a tensor of shape")


class InsideView:
    """Computes what the page shows of the inside of a model, in types that JSON has.

    The arguments of `attention`, `steps` and `beam` are what a client wants to see:

      text, prefix: a sentence, and the first words of its translation.
      translation: which of the n best; 0 for the best.
      kind: one of KINDS; "" for the first that the model has.
      block, head: 0 for the last block, and for the mean of all heads.
    """

    def __init__(self, translator):
        self.loaded, self.nbest = translator.loaded, translator.decode.nbest
        # The next look at a sentence then needs no search.
        self.translate = functools.lru_cache(16)(
            lambda *own: translator.translate([as_one_sentence(*own)])[0].sentences[0]
        )

        @tf.function(input_signature=[tf.TensorSpec([None, None], tf.int32)] * 2, autograph=False)
        def weights_and_probabilities(x, y):
            model = self.loaded.model
            return cross_weights(model, x, y), tf.exp(token_log_probs(model, x, y))

        self.weights_and_probabilities = weights_and_probabilities

    def describe(self, translations) -> list[dict]:
        """Return the answer about each `Translation`; its attention is (T_y, T_x)."""
        hp, (source, target) = self.loaded.hp, self.loaded.vocabs
        answers, found = [], []  # found: ids of source and translation, and the part of the answer
        for own in translations:
            parts = []
            for best in own.hypotheses if len(own.ids) else []:
                score = round(best.score, 4)
                parts.append(dict(text=best.text, score=score, truncated=best.at_limit))
                found.append((own.ids, best.ids, parts[-1]))
            x = [*map(source.display, own.ids[:-1])]
            answers.append(dict(source=x, translations=parts, truncated=own.truncated))
        X = RaggedIds.from_lists([x for x, _, _ in found])
        Y = RaggedIds.from_lists([append_eos(y, hp) for _, y, _ in found])
        for rows in decoding_batches(np.maximum(X.lengths, Y.lengths), width=hp.pad_to):
            batch = self.weights_and_probabilities(X.pad(rows, hp.pad_to), Y.pad(rows, hp.pad_to))
            for row, weights, probabilities in zip(rows, *map(np.asarray, batch), strict=True):
                x, y, part = found[row]
                T_y, T_x = len(y), len(x) - 1  # without </S>
                part["tokens"] = [*map(target.display, y)]
                part["probabilities"] = rounded(probabilities[:T_y], 3)
                part["attention"] = rounded(weights[:T_y, :T_x], 3)
        return answers

    def find(self, text, prefix, translation):
        """Return the ids of a sentence and of its translation, with `</S>`, (T,) and a list."""
        found = self.translate(text, prefix)
        num_tokens = max(0, len(found.ids) - 1)  # without </S>
        if not 0 < num_tokens <= MAX_SOURCE_TOKENS:
            raise InputError(
                f"This sentence has {num_tokens} tokens. To look inside, give one of 1 to"
                f" {MAX_SOURCE_TOKENS}."
            )
        if translation > len(found.hypotheses):
            raise InputError(f"translation must be at most {len(found.hypotheses)}.")
        best = found.hypotheses[max(0, translation - 1)]
        return found.ids, append_eos(best.ids, self.loaded.hp)

    def pad(self, ids):
        """Return ids as the model reads them, (1, T)."""
        return RaggedIds.from_lists([ids]).pad(width=self.loaded.hp.pad_to)

    def tokens(self, side, ids) -> list[str]:
        """Return the tokens of ids; side 0 is the source."""
        return [*map(self.loaded.vocabs[side].id_to_token, ids)]

    def attention(self, text, prefix="", translation=0, kind="", block=0, head=0) -> dict:
        """Return the map of a head, or the mean of those of a block."""
        (x, y), model = self.find(text, prefix, translation), self.loaded.model
        maps = attention_maps(model, self.pad(x), self.pad(y))._asdict()
        kinds = {
            name: dict(blocks=len(maps[name]), heads=int(maps[name][0].shape[1]))
            for name in KINDS
            if maps[name]
        }
        note = "" if kinds else "This model has no attention."
        if isinstance(model, Ensemble):
            note += f"The attention is that of the first of {len(model.models)} models."
        answer = dict(kinds=kinds, weights=[], rows=[], columns=[], note=note)
        if not kinds:
            return answer
        kind = kind or next(iter(kinds))
        try:
            weights = np.asarray(maps[kind][block - 1])[0]  # (h, T_q, T_k)
            weights = weights[head - 1] if head else weights.mean(axis=0)
        except (KeyError, IndexError):
            raise InputError(f"Choose one of these kinds, blocks and heads: {kinds}") from None
        x_tokens, y_tokens = self.tokens(0, x), self.tokens(1, y)
        rows = x_tokens if kind == "encoder" else y_tokens
        columns = [SPECIALS[BOS], *y_tokens[:-1]] if kind == "decoder" else x_tokens
        weights = rounded(weights[: len(rows), : len(columns)], 3)
        answer |= dict(kind=kind, block=block or kinds[kind]["blocks"], head=head)
        return answer | dict(weights=weights, rows=rows, columns=columns)

    def steps(self, text, prefix="", translation=0, **_) -> dict:
        """Return the most likely next tokens at each step."""
        x, y = self.find(text, prefix, translation)
        logits = self.loaded.model(self.pad(x), self.pad(y))[0, : len(y)]  # (T_y, vocab)
        logits = tf.cast(logits, tf.float32)
        probabilities = tf.nn.softmax(logits)
        highest, ids = tf.math.top_k(probabilities, min(TOP_TOKENS, logits.shape[-1]))
        own = tf.gather(probabilities, y, batch_dims=1)  # (T_y,)
        rows = zip(self.tokens(1, y), rounded(own), ids.numpy(), rounded(highest), strict=True)
        steps = []
        for token, probability, ids, values in rows:
            likely = [*zip(self.tokens(1, ids), values, strict=True)]
            steps.append(dict(token=token, probability=probability, best=likely))
        return dict(steps=steps, note="")

    def beam(self, text, prefix="", **_) -> dict:
        """Return the hypotheses of beam search, step by step."""
        x, _ = self.find(text, prefix, translation=0)
        hp, vocab = self.loaded.hp, self.loaded.vocabs[1]
        if hp.beam == 1:
            return dict(steps=[], note="There is no beam. Start serve.py with --beam 5 to see one.")
        prefixes = tf.constant([vocab.encode(vocab.prepare([prefix]))[0][:-1]], tf.int32)
        args = search_arguments(self.loaded.model, hp, self.pad(x), hp.beam, prefixes)
        penalty = paper_penalty(hp.alpha)
        steps = beam_tree(Beam(**args, beam=hp.beam, penalty=penalty, nbest=self.nbest))
        for node in itertools.chain(*steps):
            node["token"] = vocab.id_to_token(node["token"])
        return dict(steps=steps, note="")


def beam_tree(beam) -> list[list[dict]]:
    """Search with a `Beam` of one sentence, and keep all of its hypotheses.

    A node is a hypothesis: the one of its parent, and one more token. `parent` is the index of
    that one in the step before, -1 in the first step. Its `fate` is `kept` if other nodes continue
    it, `dropped` if none of its continuations was among the best, `ended` if it is complete, `open`
    if it was not complete when the search ended. `rank` is its place among the translations that
    the search returns, from 1; 0 for the others.

    A step has the most likely nodes first: K that have not ended, and those that end.
    """
    K, beam_state = beam.beam, beam.start()
    steps, places = [], [-1] * K  # places: the indices of the live hypotheses in their step
    while beam.is_unfinished(beam_state)[0]:
        found = beam.continue_live(beam_state)
        beam_state = beam.choose(beam_state, found)
        ids, log_probs, parents, ended = (
            tensor[0].numpy()
            for tensor in (found.best.ids[..., -1], found.best.scores, found.parents, found.ended)
        )  # (2K,)
        scores = log_probs / beam.penalty(len(steps) + 1)
        live = np.flatnonzero(~ended)[:K]
        shown = sorted([*live, *np.flatnonzero(ended[:K])])
        steps.append(
            [
                dict(
                    parent=places[parents[i]],
                    token=int(ids[i]),
                    log_prob=float(log_probs[i]),
                    score=float(scores[i]),
                    fate="ended" if ended[i] else "open",
                    rank=0,
                )
                for i in shown
                if log_probs[i] > -np.inf
            ]
        )
        places = [shown.index(i) for i in live]
    for nodes, later in itertools.pairwise(steps):
        parents = {node["parent"] for node in later}
        for i, node in enumerate(nodes):
            if node["fate"] == "open":
                node["fate"] = "kept" if i in parents else "dropped"
    complete = [node for node in itertools.chain(*steps) if node["fate"] == "ended"]
    best = sorted(complete, key=lambda node: -node["score"])[: beam.nbest]
    for rank, node in enumerate(best, 1):
        node["rank"] = rank
    return steps


def rounded(values, digits=4) -> list:
    """Return numbers of Python with some digits after the point."""
    return np.asarray(values).astype(float).round(digits).tolist()
