"""Train on Multi30k, German to English, and print how soon the development set has which BLEU.

    REAL_TEXT=DIR python benchmarks/race.py --name "tiny" --recipe tiny --seed 0
    REAL_TEXT=DIR python benchmarks/race.py --name "tiny, earlier" --checkout OTHER --recipe tiny
    REAL_TEXT=DIR python benchmarks/race.py --draw docs/race.png

The time counts from the start of prepro.py, and includes the evaluations, which are those of
train.py: greedy search with the newest checkpoint. Processor time is that of all threads and
processes. All further arguments go to prepro.py and train.py. Each run is a row of race.json, in
this folder. `--checkout` runs the scripts of another working tree, for example of an earlier
commit. It needs Linux.
"""

import argparse
import datetime
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from harness import ROOT, WORK, describe_machine, draw_curves, load_rows, save_rows
from quality import corpus_flags

RESULTS = ROOT / "benchmarks" / "race.json"
GOALS = (30, 35, 40, 42)  # BLEU
REPORT = r"gs_(\d+)\S*: .* dev loss .* BLEU ([0-9.]+) chrF"
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid) -> float:
    """Return the processor time of a process so far, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / TICKS_PER_SECOND


def follow(command, pattern, folder):
    """Run a command in a folder, and print its output; ends the program if it fails.

    Yields:
      (re.Match, float): of each line of the output in which the pattern is found, and the seconds
        of processor time so far. Closing the iterator ends the command.
    """
    pipe = dict(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen(command, cwd=folder, **pipe) as process:
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                if found := re.search(pattern, line):
                    yield found, processor_seconds(process.pid)
        except GeneratorExit:
            process.terminate()
            return
    if process.returncode:
        sys.exit(process.returncode)


def race(checkout, more_flags) -> list[list]:
    """Run prepro.py and train.py.

    Args:
      checkout: folder of the scripts.
      more_flags: list of the words of flags.

    Returns:
      list of [minutes, processor minutes, steps, BLEU], one for each evaluation.
    """
    folder = WORK / "race"
    shutil.rmtree(folder, ignore_errors=True)
    files = corpus_flags("multi30k", "de-en")
    flags = files | dict(preprocessed=folder / "preprocessed", logdir=folder / "logdir")
    options = [*(f"--{name}={value}" for name, value in flags.items()), *more_flags]
    start = time.monotonic()
    subprocess.run([sys.executable, "prepro.py", *options], cwd=checkout, check=True)
    prepared = sum(os.times()[2:4])  # of all children, of which this is the first
    command = [sys.executable, "-u", "train.py", *options]
    points = []
    for found, used in follow(command, REPORT, checkout):
        seconds = time.monotonic() - start
        points.append([seconds / 60, (prepared + used) / 60, int(found[1]), float(found[2])])
    return points


def add_row(name, words, points) -> list[dict]:
    """Add a run to race.json, and return all rows; `words` are those of its flags."""
    row = dict(date=str(datetime.date.today()), name=name, flags=" ".join(words))
    points = [[round(value, 2) for value in point] for point in points]
    rows = [*load_rows(RESULTS), row | dict(machine=describe_machine(), points=points)]
    save_rows(RESULTS, rows)
    return rows


def time_to(points, goal) -> str:
    """Describe when a score was reached first: minutes and processor minutes.

    >>> time_to([[1.0, 1.5, 250, 28.0], [2.0, 3.04, 500, 31.0]], 30), time_to([], 30)
    ('2.0 (3.0)', '')
    """
    reached = (point for point in points if point[3] >= goal)
    minutes, processor, *_ = next(reached, (None, None))
    return "" if minutes is None else f"{minutes:.1f} ({processor:.1f})"


def table(rows) -> str:
    """Describe runs in a table of Markdown: minutes, with processor minutes in brackets."""
    columns = ("date", "name", "flags", "machine", *GOALS, "last BLEU", "minutes")
    lines = [f"| {' | '.join(map(str, columns))} |", "|---" * len(columns) + "|"]
    for row in rows:
        points = row["points"]
        minutes, processor, _, bleu = points[-1]
        cells = [row["date"], row["name"], f"`{row['flags']}`", row["machine"]]
        cells += [time_to(points, goal) for goal in GOALS]
        cells += [f"{bleu:.1f}", f"{minutes:.1f} ({processor:.1f})"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(rows, path):
    """Draw the curve of each run: BLEU over minutes of processor time."""
    curves = []
    for row in rows:
        _, processor, _, bleu = zip(*row["points"], strict=True)
        curves.append((row["name"], processor, bleu))
    draw_curves(curves, path, "minutes of processor time", "BLEU of the development set, greedy")


def main():
    """Run the race, or draw the earlier ones."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--name", help="what is new in this run, for the table")
    parser.add_argument("--checkout", default=str(ROOT), help="folder of the scripts to run")
    parser.add_argument("--draw", metavar="PNG", help="draw the runs so far, and run nothing")
    args, more_flags = parser.parse_known_args()
    rows = load_rows(RESULTS)
    if args.draw:
        draw(rows, args.draw)
    else:
        if not args.name:
            parser.error("--name is missing. Say what is new in this run")
        points = race(args.checkout, more_flags)
        rows = add_row(args.name, more_flags, points)
    print(table(rows))


if __name__ == "__main__":
    main()
