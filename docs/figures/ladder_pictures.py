"""Draw the pictures of docs/ladder.md from benchmarks/ladder.json.

python docs/figures/ladder_pictures.py
"""

import statistics
import sys

from style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, ROOT, SMALL, draw_pictures, make_figure

sys.path.append(str(ROOT / "benchmarks"))

from ladder import WORDS, load_results, mean_of_seeds

# The rows of the picture by source length.
DRAWN_BY_LENGTH = ("tanh", "gru", "lstm", "gru, additive", "transformer", "positions none")
# The groups of rows in the picture of all rows: a name, the begin of the rows' names, a colour.
GROUPS = (
    ("recurrent, one context", ("tanh", "gru", "lstm"), ORANGE),
    ("recurrent, attention", ("gru, ",), RED),
    ("the paper's Transformer", ("transformer",), BLUE),
    ("other positions", ("positions ",), GREEN),
    ("other attention functions", ("attention ",), PURPLE),
    ("other heads", ("1 head", "2 heads", "8 heads"), "#8c6d46"),
    ("one other part changed", ("",), GREY),
)


def group_of(name) -> int:
    """Return the index of a row's group."""
    for i, (_, begins, _) in enumerate(GROUPS):
        for begin in begins:
            if name == begin or (begin[-1:] in (" ", "") and name.startswith(begin)):
                return i
    raise ValueError(name)


def ranges(measured) -> dict:
    """Return (lowest, mean, highest) BLEU of each row."""
    scores = {}
    for row in measured:
        scores.setdefault(row["name"], []).append(row["bleu"])
    return {name: (min(of), statistics.mean(of), max(of)) for name, of in scores.items()}


def draw_speed():
    """BLEU and speed of all rows, in groups."""
    measured = load_results()
    rows = sorted(mean_of_seeds(measured), key=lambda row: group_of(row["name"]))
    spreads = ranges(measured)
    figure = make_figure(10.5)
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    y, ticks, last = 0.0, [], None
    for row in rows:
        group = group_of(row["name"])
        title, _, colour = GROUPS[group]
        if group != last:
            y += 1.5
            left.text(0, y - 0.85, title, color=colour, weight="bold", va="center", fontsize=SMALL)
            last = group
        low, mean, high = spreads[row["name"]]
        left.barh(y, mean, color=colour, alpha=0.75)
        if high > low:
            left.plot([low, high], [y, y], color="black", lw=1.2, marker="|", markersize=6)
        left.text(max(high, mean) + 0.5, y, f"{mean:.1f}", va="center", fontsize=SMALL)
        right.plot(row["speed"], y, "o", color=colour, markersize=5)
        right.text(1.78, y, f"{row['speed']:.2f}", ha="right", va="center", fontsize=SMALL)
        ticks.append((y, row["name"]))
        y += 1
    left.set_yticks(*zip(*ticks, strict=True))
    right.set_yticks([position for position, _ in ticks], [])
    left.axvline(spreads["transformer"][1], color=BLUE, lw=0.8, linestyle=":")
    right.axvline(1, color=BLUE, lw=0.8, linestyle=":")
    xlabel = "sacreBLEU (line: lowest and highest seed)"
    left.set(title="BLEU after five minutes", xlabel=xlabel, xlim=(0, 34))
    right.set(title="speed of a training step", xlabel="transformer: 1", xlim=(0.3, 1.8))
    for ax in (left, right):
        ax.set_ylim(y, 0)
        ax.tick_params(axis="y", length=0)
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(axis="x", alpha=0.3)
    return figure


def draw_length():
    """BLEU by the length of the source, and as a share of that of short sentences."""
    measured = [row for row in load_results() if row["name"] in DRAWN_BY_LENGTH]
    labels = [f"{low + 1} to {high}" for low, high in zip((0, *WORDS), WORDS, strict=False)]
    labels[-1:] = [labels[-1], f"more than {WORDS[-1]}"]
    figure = make_figure(4.2)
    axes = figure.subplots(1, 2)
    for row in mean_of_seeds(measured):
        name, scores = row["name"], row["by_length"]
        shares = [100 * score / scores[0] for score in scores]
        same = [other["by_length"] for other in measured if other["name"] == name]
        for ax, values in zip(axes, (scores, shares), strict=True):
            style = dict(marker="o", markersize=4, lw=2.2 if name == "transformer" else 1.3)
            (line,) = ax.plot(labels, values, label=name, **style)
        if len(same) > 1:
            lowest, highest = ([*map(f, zip(*same, strict=True))] for f in (min, max))
            axes[0].fill_between(labels, lowest, highest, color=line.get_color(), alpha=0.12, lw=0)
    axes[0].set(title="BLEU", ylabel="sacreBLEU", ylim=(0, None))
    axes[1].set(title="share of the BLEU of short sentences", ylabel="percent", ylim=(0, None))
    for ax in axes:
        ax.set_xlabel("words in the source")
        ax.tick_params(axis="x", rotation=20)
        ax.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


PICTURES = {"ladder_length.png": draw_length, "ladder_speed.png": draw_speed}

if __name__ == "__main__":
    draw_pictures(PICTURES, __doc__)
