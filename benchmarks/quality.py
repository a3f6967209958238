"""Train a recipe on real text, score it, and append the rows to quality.md.

    REAL_TEXT=DIR python benchmarks/quality.py multi30k de-en --recipe tiny
    REAL_TEXT=DIR python benchmarks/quality.py iwslt16 de-en --recipe legacy --num_epochs 20

Whatever follows the corpus and the direction goes to prepro.py and train.py. DIR holds
multi30k/ and iwslt16/; README.md says where they are to be had. Of Multi30k it scores
`val`, on which settings are chosen; `--score test` scores the test set instead.
Stopped, the same command goes on. It needs benchmarks/requirements.txt besides.
"""

import argparse
import datetime
import os
import subprocess
import sys
import time
from pathlib import Path

from beside import ROOT, cores

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

CORPORA = dict(
    multi30k=dict(train="train.{}", dev="val.{}", test="test_2016_flickr.{}"),
    iwslt16=dict(train="train.tags.de-en.{}", test="IWSLT16.TED.tst2014.de-en.{}.xml"),
)
HEADER = (
    "| date | corpus | flags | training | set | decoding | sacreBLEU | lower-cased | tokens |\n"
    "|---|---|---|---|---|---|---|---|---|\n"
)


def corpus_flags(corpus, direction, folder):
    """The flags that name the files of a corpus, and folders of this benchmark's own."""
    source, target = direction.split("-")
    flags = {"source_lang": source, "target_lang": target}
    for part, name in CORPORA[corpus].items():
        flags[f"source_{part}"] = str(folder / corpus / name.format(source))
        flags[f"target_{part}"] = str(folder / corpus / name.format(target))
    return flags


def run_script(script, flags, given):
    """Run a script of the project with flags, a dict, and those given besides, a list."""
    options = [f"--{name}={value}" for name, value in flags.items()]
    subprocess.run([sys.executable, str(ROOT / script), *options, *given], check=True)


def train(flags, given):
    """Run prepro.py and train.py; returns the minutes that training took, in all its parts."""
    if not Path(flags["logdir"]).exists():
        run_script("prepro.py", flags, given)
    clock = Path(f"{flags['logdir']}.seconds")
    seconds = float(clock.read_text()) if clock.exists() else 0.0
    newest = Path(flags["logdir"]) / "checkpoint"
    before = newest.read_bytes() if newest.exists() else None
    began = time.monotonic()
    try:
        run_script("train.py", flags, given)
    finally:
        if newest.exists() and newest.read_bytes() != before:  # else there was nothing to do
            seconds += time.monotonic() - began
            clock.write_text(str(seconds))
    return seconds / 60


# Scoring -----------------------------------------------------------------------


def moses_tokens(lines, lang):
    """Lower-cased, punctuation made plain, Moses tokens: as Wu et al. 2021 count."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalize, tokenize = MosesPunctNormalizer(lang=lang).normalize, MosesTokenizer(lang=lang)
    lowered = (normalize(line.lower()) for line in lines)
    return [tokenize.tokenize(line, escape=False, return_str=True) for line in lowered]


def spacy_tokens(lines, lang):
    """Lower-cased spaCy tokens: as the PyTorch tutorials count."""
    import spacy

    tokenize = spacy.blank(lang)
    return [" ".join(token.text for token in tokenize(line.lower())) for line in lines]


def figures(test, got, lang):
    """sacreBLEU, the same lower-cased, and BLEU of the tokens of public figures."""
    import sacrebleu

    from bleu import in_place, sacrebleu_score

    tokens = spacy_tokens if lang == "en" else moses_tokens
    sides = [tokens(side, lang) for side in (in_place(test, got), test.references)]
    counted = [
        sacrebleu_score(test, got, lang)[0],
        sacrebleu_score(test, got, lang, lowercase=True)[0],
        sacrebleu.corpus_bleu(sides[0], [sides[1]], tokenize="none", force=True).score,
    ]
    return [f"{score:.2f}" for score in counted]


def score(flags, part):
    """Translate a set greedily, and as the recipe has it: {how: figures}, of all sentences."""
    from data_load import load_test_data
    from decoding import describe, load, make_search, to_text, translate

    found = {}
    for way in (dict(beam=1, average=1), {}):
        paths, hp, model, vocabs = load({"logdir": flags["logdir"]} | way)
        test = load_test_data(hp, vocabs, part)
        got = to_text(translate(make_search(model, hp, hp.beam), test.data.X, hp), vocabs[1])
        how = describe(hp, paths)
        found[how] = figures(test, got, hp.target_lang)
        print(f"{part}, {how}: {found[how]}", flush=True)
    return found


def main():
    """Train and score as the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("direction", choices=("de-en", "en-de"))
    parser.add_argument("--score", choices=("dev", "test"), help="the set that is scored")
    parser.add_argument("--work", default="benchmarks/work", help="folder of models")
    args, given = parser.parse_known_args()
    if "REAL_TEXT" not in os.environ:
        parser.error("REAL_TEXT is not set: it names the folder of multi30k/ and iwslt16/")

    flags = corpus_flags(args.corpus, args.direction, Path(os.environ["REAL_TEXT"]).resolve())
    part = args.score or ("dev" if "source_dev" in flags else "test")
    if f"source_{part}" not in flags:
        parser.error(f"{args.corpus} has no {part} set: leave --score out")
    words = [args.corpus, args.direction, *(word.lstrip("-") for word in given)]
    work = Path(args.work).resolve() / "_".join(words).replace("=", "_")
    flags |= {name: str(work / name) for name in ("preprocessed", "logdir", "results")}
    minutes = train(flags, given)
    table = ROOT / "benchmarks" / "quality.md"
    rows = [] if table.exists() else [HEADER]
    training = f"{minutes:.0f} min, {cores()} cores"
    today = datetime.date.today()
    for how, counts in score(flags, part).items():
        cells = [today, f"{args.corpus} {args.direction}", f"`{' '.join(given)}`", training, part]
        rows.append("| " + " | ".join(map(str, [*cells, how, *counts])) + " |\n")
    with table.open("a", encoding="utf-8") as file:
        file.writelines(rows)
    print("".join(rows), end="")


if __name__ == "__main__":
    main()
