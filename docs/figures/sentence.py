"""Draw what a trained model does with one sentence, the example sentence of the documents.

python docs/figures/sentence.py                       # all, with the model docs/sample_model
python docs/figures/sentence.py beam.png --logdir logdir/sample_model
"""

from functools import cached_property

import numpy as np
import tensorflow as tf
from matplotlib.patches import Rectangle
from style import (
    BLUE,
    GREEN,
    GREY,
    LARGE,
    ORANGE,
    PALE,
    SMALL,
    WEIGHTS_MAP,
    WIDTH,
    clear_axes,
    colour_of,
    draw_box,
    draw_pictures,
    draw_weights,
    make_figure,
    render,
)

from text.ids import EOS, RaggedIds
from translation.attention_maps import append_eos, attention_maps, readable_token
from translation.inference import SearchDecoder, load_model
from translation.search import paper_penalty

LINE = "Die Frau hat den Brief nicht gelesen."
BEAM = 3
WORDS = "▁neighbour", "▁letter"  # of bpe.png
GIF_DPI = 110


class Example:
    """A model, the example sentence, and its translation by greedy search."""

    def __init__(self, logdir):
        self.loaded = load_model(dict(logdir=logdir))
        self.model, self.hp = self.loaded.model, self.loaded.hp
        source, self.target = self.loaded.vocabs
        (self.x,) = source.encode([LINE])
        ((best,),) = SearchDecoder(self.loaded.with_hp(beam=1))(RaggedIds.from_lists([self.x]))
        self.text, self.y = best.text, append_eos(best.ids, self.hp)
        self.source_tokens = [readable_token(source.id_to_token(i)) for i in self.x]
        self.target_tokens = [self.token(i) for i in self.y]

    def token(self, token_id) -> str:
        """Return a token of the target as the pictures show it."""
        return readable_token(self.target.id_to_token(token_id))

    @cached_property
    def maps(self):
        """The attention weights of all heads."""
        return attention_maps(self.model, np.array([self.x]), np.array([self.y]))

    def log_probs(self, ids) -> np.ndarray:
        """Compute the log-probabilities of the token after the given target ids: (vocab_size,)."""
        y = np.array([[*ids, EOS]])  # the last id is not read
        return tf.nn.log_softmax(self.model(np.array([self.x]), y)[0, -1]).numpy()


# Attention maps --------------------------------------------------------------------


def draw_heads(blocks, keys, queries, titles):
    """Draw the weights of all heads: a row per head, a column per block.

    Args:
      blocks: list of (1, h, T_q, T_k).
      titles: of the keys and of the queries.
    """
    heads = blocks[0].shape[1]
    figure = make_figure(0.9 + heads * (0.25 + 0.165 * len(queries)))
    axes = figure.subplots(heads, len(blocks), sharex=True, sharey=True, squeeze=False)
    for row in range(heads):
        for column, weights in enumerate(blocks):
            ax = axes[row, column]
            image = draw_weights(ax, np.asarray(weights)[0, row], keys, queries)
            ax.set_aspect("auto")
            ax.tick_params(labeltop=row == 0, labelbottom=False, labelleft=column == 0)
            ax.set_title(f"block {column + 1}, head {row + 1}", fontsize=SMALL, pad=4)
    figure.supylabel(titles[1], fontsize=LARGE)
    figure.suptitle(titles[0], fontsize=LARGE)
    figure.colorbar(image, ax=axes, label="attention weight", aspect=50, pad=0.02)
    return figure


def draw_cross_heads(example):
    """All heads of the cross-attention."""
    titles = "source: keys of the cross-attention", "translation: the token that is predicted"
    return draw_heads(example.maps.cross, example.source_tokens, example.target_tokens, titles)


def draw_encoder_heads(example):
    """All heads of the encoder's self-attention."""
    titles = "source: keys of the encoder's self-attention", "source: queries"
    return draw_heads(example.maps.encoder, example.source_tokens, example.source_tokens, titles)


def draw_attention(example):
    """The cross-attention of the last block as the mean of its heads."""
    figure = make_figure(4.6)
    ax = figure.subplots()
    weights = np.mean(example.maps.cross[-1], axis=(0, 1))  # (T_y, T_x)
    image = draw_weights(ax, weights, example.source_tokens, example.target_tokens)
    ax.set_aspect("auto")
    ax.set_xlabel("source", fontsize=LARGE, labelpad=8)
    ax.set_ylabel("translation", fontsize=LARGE)
    figure.colorbar(image, label="attention weight (mean of the heads)")
    return figure


# Subwords --------------------------------------------------------------------------


def merges(word, scores) -> list:
    """List the steps of byte-pair encoding: all pieces, and which of them was just merged.

    Each step merges the two neighbours whose joined piece has the highest score. The scores of a
    sentencepiece model are 0, -1, -2, ... in the order in which training found the merges.
    """
    steps = [([*word], None)]
    while True:
        pieces = steps[-1][0]
        pairs = {i: pieces[i] + pieces[i + 1] for i in range(len(pieces) - 1)}
        known = {i: scores[pair] for i, pair in pairs.items() if pair in scores}
        if not known:
            return steps
        best = max(known, key=lambda i: (known[i], -i))
        steps.append(([*pieces[:best], pairs[best], *pieces[best + 2 :]], best))


def draw_bpe(example):
    """The merges of two words: one becomes a single token, the other does not."""
    processor = example.target.processor
    pieces = [processor.id_to_piece(i) for i in range(processor.get_piece_size())]
    scores = {p: processor.get_score(i) for i, p in enumerate(pieces) if len(p) > 1 and p[0] != "<"}
    all_steps = [merges(word, scores) for word in WORDS]
    for word, steps in zip(WORDS, all_steps, strict=True):
        assert steps[-1][0] == processor.encode(word.replace("▁", ""), out_type=str)
    pitch = 0.37
    height = 1.2 + pitch * max(map(len, all_steps))
    figure = make_figure(height, layout=None)
    ax = clear_axes(figure, WIDTH, height)
    for left, steps, title in zip(
        (0.2, 5.0), all_steps, ("ends as one token", "ends as three tokens"), strict=True
    ):
        word = readable_token("".join(steps[0][0]))
        ax.text(left, height - 0.25, f"{word} {title}", weight="bold", va="center")
        for row, (parts, merged) in enumerate(steps):
            x, y = left, height - 0.75 - pitch * row
            for i, part in enumerate(parts):
                width = 0.14 + 0.095 * len(part)
                fill = "#fdd9b5" if i == merged else "white"
                if row == len(steps) - 1:
                    fill = "#cdeccd"
                draw_box(ax, x, y - 0.13, width, 0.26, readable_token(part), fill=fill)
                x += width + 0.05
            note = "characters"
            if merged is not None:
                note = f"merge {1 - scores[parts[merged]]:.0f}"
            ax.text(x + 0.08, y, note, color=GREY, fontsize=SMALL, va="center")
    note = "orange: the merge of this step. The number says when training found it: earlier first"
    ax.text(WIDTH / 2, 0.2, note, ha="center", va="center", color=GREY, fontsize=SMALL)
    return figure


# Beam search -----------------------------------------------------------------------


def trace_beam(example):
    """Run beam search, and record its candidates.

    Returns:
      list of steps; a step is a list of dicts, the best first: ids, parent (index in the step
      before, of a candidate that stayed live), log_prob, kept (live or finished), score if ended.
    """
    penalty = paper_penalty(example.hp.alpha)
    longest = int(example.hp.max_output_tokens(len(example.x)))
    live, finished, steps = [dict(ids=[], log_prob=0.0, place=None)], [], []
    while len(steps) < longest:
        candidates = []
        for hypothesis in live:
            log_probs = example.log_probs(hypothesis["ids"])
            for i in np.argsort(log_probs)[::-1][: 2 * BEAM]:
                candidates.append(
                    dict(
                        ids=[*hypothesis["ids"], int(i)],
                        parent=hypothesis["place"],
                        log_prob=hypothesis["log_prob"] + float(log_probs[i]),
                    )
                )
        candidates = sorted(candidates, key=lambda c: -c["log_prob"])[: 2 * BEAM]
        live = []
        for rank, candidate in enumerate(candidates):
            ended = candidate["ids"][-1] == EOS
            candidate |= dict(place=rank, ended=ended, kept=False)
            if ended and rank < BEAM:
                candidate |= dict(score=candidate["log_prob"] / penalty(len(candidate["ids"])))
                candidate["kept"] = True
                finished.append(candidate)
            elif not ended and len(live) < BEAM:
                candidate["kept"] = True
                live.append(candidate)
        steps.append(candidates)
        best = max((done["score"] for done in finished), default=-np.inf)
        if live[0]["log_prob"] / penalty(longest) <= best:
            break
    return steps, max(finished, key=lambda done: done["score"])


def draw_beam(example):
    """The tree of a beam search: the candidates of each step, the best on the left."""
    steps, best = trace_beam(example)
    search = SearchDecoder(example.loaded.with_hp(beam=BEAM))
    ((found,),) = search(RaggedIds.from_lists([example.x]))
    assert append_eos(found.ids, example.hp) == best["ids"]
    pitch, box, gap = 0.56, 1.06, 0.14
    height = 1.35 + pitch * len(steps)
    figure = make_figure(height, layout=None)
    ax = clear_axes(figure, WIDTH, height)
    left = 0.62

    def place(step, rank):
        return left + rank * (box + gap), height - 1.0 - pitch * step

    ax.text(0.1, height - 0.95 + 0.35, "step", color=GREY, fontsize=SMALL)
    start = left + 1.5 * (box + gap) - gap / 2
    draw_box(ax, start - 0.3, height - 0.45, 0.6, 0.3, "<S>")
    for t, candidates in enumerate(steps):
        ax.text(0.3, place(t, 0)[1] + 0.02, t + 1, ha="center", va="center", color=GREY)
        for rank, candidate in enumerate(candidates):
            x, y = place(t, rank)
            chosen = candidate["ids"] == best["ids"][: t + 1]
            colour = BLUE if chosen else GREY if candidate["kept"] else PALE
            ended = candidate["ended"] and candidate["kept"]
            text = f"{example.token(candidate['ids'][-1])}  {candidate['log_prob']:.2f}"
            fill = "#dbe8f6" if chosen else "#e3f2e3" if ended else "white"
            options = dict(edge=colour, lw=1.8 if chosen else 0.9)
            draw_box(ax, x, y - 0.13, box, 0.3, fill=fill, **options)
            dark = candidate["kept"]
            ax.text(
                x + box / 2,
                y + 0.02,
                text,
                ha="center",
                va="center",
                fontsize=SMALL,
                color="#222222" if dark else "#9a9a9a",
                weight="bold" if chosen else "normal",
            )
            if ended:
                note = (
                    f"/ {candidate['log_prob'] / candidate['score']:.2f} = {candidate['score']:.2f}"
                )
                ax.text(
                    x + box / 2,
                    y - 0.22,
                    note,
                    ha="center",
                    va="center",
                    fontsize=SMALL,
                    color=GREEN,
                )
            if candidate["parent"] is None:
                above = start, height - 0.45
            else:
                px, py = place(t - 1, candidate["parent"])
                above = px + box / 2, py - 0.13
            options = dict(color=colour, lw=1.8 if chosen else 0.9, zorder=0 if not chosen else 1)
            ax.plot([above[0], x + box / 2], [above[1], y + 0.17], **options)
    notes = f"blue: the chosen path    dark: the best {BEAM} that go on    pale: dropped"
    ax.text(WIDTH / 2, 0.2, notes, ha="center", va="center", fontsize=SMALL)
    ax.text(
        WIDTH,
        height - 0.3,
        "number: sum of the log-probabilities \ngreen: ended, divided by the length penalty ",
        ha="right",
        va="center",
        fontsize=SMALL,
        color=GREY,
    )
    return figure


# Decoding step by step -------------------------------------------------------------


def draw_step(example, t, chosen, weights, candidates):
    """Draw one step of greedy decoding.

    Args:
      t: index of the step.
      chosen: whether the token of this step is already there.
      weights: (T_x,), of the cross-attention.
      candidates: list of (token, probability).
    """
    height = 4.3
    figure = make_figure(height, layout=None)
    figure.set_dpi(GIF_DPI)
    ax = clear_axes(figure, WIDTH, height)
    done = len(example.y) == t + 1 and chosen

    def places(tokens):
        """Return the left edge and the width of the box of each token."""
        widths = np.array([0.15 + 0.095 * len(token) for token in tokens])
        starts = 0.15 + np.cumsum([0.0, *(widths[:-1] + 0.07)])
        return [*zip(starts, widths, strict=True)]

    ax.text(0.15, height - 0.25, "source", color=GREY, va="center")
    source = places(example.source_tokens)
    target = places(example.target_tokens)
    source_y, target_y = height - 0.85, height - 2.15
    for (x, width), token, weight in zip(source, example.source_tokens, weights, strict=True):
        dark = weight > 0.6
        draw_box(ax, x, source_y, width, 0.34, fill=colour_of(weight, WEIGHTS_MAP, 0))
        colour = "white" if dark else "#222222"
        ax.text(x + width / 2, source_y + 0.17, token, ha="center", va="center", color=colour)
        if weight >= 0.03:
            start = x + width / 2, source_y
            end = target[t][0] + target[t][1] / 2, target_y + 0.34
            ax.plot(*zip(start, end, strict=True), color=BLUE, lw=0.5 + 6 * weight, alpha=0.75)
    ax.text(0.15, target_y - 0.22, "translation", color=GREY, va="center")
    for i, ((x, width), token) in enumerate(zip(target, example.target_tokens, strict=True)):
        if i < t or (i == t and chosen):
            draw_box(ax, x, target_y, width, 0.34, token, fill="#fdd9b5" if i == t else "white")
        elif i == t:
            draw_box(ax, x, target_y, width, 0.34, "?", fill="white", edge=ORANGE, lw=2)
    title = f"step {t + 1}: the most likely next tokens" if not done else example.text
    ax.text(0.15, 1.5, title, va="center", weight="bold" if done else "normal")
    for row, (token, probability) in enumerate(candidates):
        y = 1.2 - 0.25 * row
        colour = ORANGE if row == 0 else PALE
        ax.text(1.15, y, token, ha="right", va="center")
        ax.add_patch(Rectangle((1.25, y - 0.08), 4.5 * probability, 0.16, facecolor=colour))
        ax.text(1.32 + 4.5 * probability, y, f"{probability:.3f}", va="center", fontsize=SMALL)
    ax.text(
        WIDTH - 0.15,
        height - 0.25,
        "cross-attention: mean of the heads of the last block",
        ha="right",
        va="center",
        color=GREY,
    )
    return render(figure)


def draw_decoding(example):
    """An animation of greedy decoding: two images per step."""
    weights = np.mean(example.maps.cross[-1], axis=(0, 1))  # (T_y, T_x)
    frames = []
    for t in range(len(example.y)):
        log_probs = example.log_probs(example.y[:t])
        best = np.argsort(log_probs)[::-1][:5]
        assert best[0] == example.y[t]
        candidates = [(example.token(i), float(np.exp(log_probs[i]))) for i in best]
        for chosen in (False, True):
            frames.append(draw_step(example, t, chosen, weights[t], candidates))
    return frames


PICTURES = {
    "heads.png": draw_cross_heads,
    "heads_encoder.png": draw_encoder_heads,
    "attention.png": draw_attention,
    "bpe.png": draw_bpe,
    "beam.png": draw_beam,
    "decoding.gif": draw_decoding,
}

if __name__ == "__main__":
    draw_pictures(PICTURES, __doc__, Example)
