"""Train JoeyNMT or Eole on the text of race.py, and add a row to race.json.

    REAL_TEXT=DIR taskset -c 0 python benchmarks/peers.py joeynmt tiny --minutes 30 --seed 0

`tiny` is the size of that recipe; `usual` is the size and the schedule that the peer publishes
for IWSLT 2014 (JoeyNMT) or for WMT 2017 (Eole). Both read the subwords of prepro.py. The time of a
peer leaves out prepro.py and evaluations, which that of race.py includes. README.md says how to
install the peers.
"""

import argparse
import os
import shutil
import string
import subprocess
import sys
from pathlib import Path

from harness import SMALL_PAPER, WORK, run_script
from quality import corpus_flags
from race import add_row, follow

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from hparams import make_hparams
from text.ids import SPECIALS
from text.vocab import load_vocabs

TINY = dict(blocks=4, units=128, inner=256, heads=4, dropout=0.1, batch=2048, beta=0.98)
SIZES = {
    ("joeynmt", "tiny"): TINY | dict(lr=0.002, warmup=200, schedule="warmupinversesquareroot"),
    ("joeynmt", "usual"): dict(blocks=6, units=256, inner=1024, heads=4, dropout=0.3, batch=4096)
    | dict(beta=0.999, lr=0.0003, warmup=0, schedule="plateau"),
    ("eole", "tiny"): TINY | dict(lr=0.4, warmup=200, schedule="noam"),
    ("eole", "usual"): dict(blocks=6, units=512, inner=2048, heads=8, dropout=0.1, batch=4096)
    | dict(beta=0.998, lr=2, warmup=4000, schedule="noam"),
}
# What the log of JoeyNMT says before, at the start of, and after an evaluation.
JOEYNMT_LOG = r"Step: +(?P<step>\d+)|(?P<start>Predicting \d+ example)|bleu: +(?P<bleu>[\d.]+)"


def joeynmt_points(programs, folder, minutes) -> list[list]:
    """Train JoeyNMT; returns points as `race.race` does."""
    points, used_by_evaluations = [], 0
    log = follow(
        [programs / "python", "-m", "joeynmt", "train", "config.yaml"], JOEYNMT_LOG, folder
    )
    for found, used in log:
        if found["step"]:
            step = int(found["step"])
        elif found["start"]:
            start = used
        else:
            now = (start - used_by_evaluations) / 60
            points.append([now, now, step, float(found["bleu"])])
            used_by_evaluations += used - start
            if now > minutes:
                log.close()
    return points


def eole_points(programs, folder, minutes, dev) -> list[list]:
    """Train Eole, and then score the checkpoints; returns points as `race.race` does."""
    import sacrebleu

    eole, times = programs / "eole", {}
    log = follow([eole, "train", "-config", "config.yaml"], r"Saving optimizer.*step_(\d+)", folder)
    for found, used in log:
        if used / 60 > minutes:
            log.close()  # this checkpoint may be incomplete
        else:
            times[int(found[1])] = used / 60
    references = [Path(f"{dev}.en").read_text("utf-8").splitlines()]
    points = []
    for step, now in times.items():
        command = [eole, "predict", "-model_path", f"model/step_{step}", "-src", f"{dev}.de"]
        command += ["-output", "output", "-beam_size", "1", "-batch_size", "64"]
        subprocess.run(command, cwd=folder, check=True)
        lines = (folder / "output").read_text("utf-8").splitlines()
        points.append([now, now, step, sacrebleu.corpus_bleu(lines, references).score])
    return points


def main():
    """Train the peer that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("peer", choices=("joeynmt", "eole"))
    parser.add_argument("size", choices=("tiny", "usual"))
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=int, default=100, help="steps between evaluations")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    programs = WORK / args.peer / "bin"
    folder = WORK / f"{args.peer}_{args.size}_{args.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    files = corpus_flags("multi30k", "de-en") | dict(preprocessed=str(folder / "preprocessed"))
    run_script("prepro.py", files, ["--recipe=tiny", "--no-fold_case"])
    vocab, _ = load_vocabs(folder / "preprocessed", make_hparams(files | SMALL_PAPER))
    tokens = vocab.tokens()[len(SPECIALS) :]
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n", encoding="utf-8")
    train, dev = (files[f"source_{part}"].removesuffix(".de") for part in ("train", "dev"))
    more = dict(train=train, dev=dev, seed=args.seed, every=args.every, log=max(1, args.every // 5))
    template = string.Template(Path(__file__).with_name(f"{args.peer}.yaml").read_text("utf-8"))
    config = template.substitute(SIZES[args.peer, args.size], **more)
    (folder / "config.yaml").write_text(config, encoding="utf-8")
    if args.peer == "joeynmt":
        points = joeynmt_points(programs, folder, args.minutes)
    else:
        points = eole_points(programs, folder, args.minutes, dev)
    add_row(f"{args.peer}, {args.size} size", sys.argv[1:], points)


if __name__ == "__main__":
    main()
