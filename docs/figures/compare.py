"""Draw the dev BLEU of several trainings over their minutes, in one picture.

python docs/figures/compare.py docs/low_resource.png tiny=LOGDIR low_resource=LOGDIR
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ("", "docs/figures")]

from draw import read_scalars
from matplotlib.figure import Figure


def draw_curves(curves, path):
    """Draw a line for each training.

    Args:
      curves: {label: (scores, minutes)}.
    """
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for label, (scores, minutes) in curves.items():
        axes.plot(minutes, scores, linewidth=1, label=label)
    axes.set(xlabel="minutes", ylabel="dev_bleu")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def main():
    """Draw the trainings that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("output", help="PNG file")
    parser.add_argument("trainings", nargs="+", metavar="LABEL=LOGDIR")
    args = parser.parse_args()
    curves = {}
    for training in args.trainings:
        label, _, logdir = training.partition("=")
        if not logdir:
            parser.error(f"{training}: give LABEL=LOGDIR")
        scalars = read_scalars(logdir)
        if "dev_bleu" not in scalars:
            parser.error(f"{logdir}: no dev_bleu. Train with --source_dev and --target_dev")
        curves[label] = scalars["dev_bleu"][1:]
    draw_curves(curves, args.output)


if __name__ == "__main__":
    main()
