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
import platform
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
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
    options = [f"--{name}={value}" for name, value in flags.items()]
    subprocess.run([sys.executable, str(ROOT / script), *options, *given], check=True)


def train(flags, given):
    """Run prepro.py and train.py; returns the minutes that training took, in all its parts."""
    if not Path(flags["logdir"]).exists():
        run_script("prepro.py", flags, given)
    clock = Path(f"{flags['logdir']}.seconds")
    before = float(clock.read_text()) if clock.exists() else 0.0
    began = time.monotonic()
    try:
        run_script("train.py", flags, given)
    finally:
        seconds = before + time.monotonic() - began
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


def figures(got, references, lang):
    """sacreBLEU (13a), the same lower-cased, and BLEU of the tokens of public figures."""
    import sacrebleu

    tokens = spacy_tokens if lang == "en" else moses_tokens
    counted = [
        sacrebleu.corpus_bleu(got, [references]),
        sacrebleu.corpus_bleu(got, [references], lowercase=True),
        sacrebleu.corpus_bleu(
            tokens(got, lang), [tokens(references, lang)], tokenize="none", force=True
        ),
    ]
    return [round(bleu.score, 2) for bleu in counted]


def decodings(hp):
    """What is scored: {name: flags}."""
    ways = {"greedy": dict(beam=1, average=1)}
    if hp.tokens == "pieces":
        ways["greedy, mean of 10"] = dict(beam=1, average=10)
        ways["beam 5, mean of 10"] = dict(beam=5, average=10)
    return ways


def score(flags, part):
    """Translate a set in each way: {name: figures}, of all its sentences."""
    from data_load import load_test_data
    from decoding import load, make_search, to_text, translate
    from hparams import load_hparams

    logdir = {"logdir": flags["logdir"]}
    found = {}
    for name, way in decodings(load_hparams(logdir, trained=True)[0]).items():
        _, hp, model, vocabs = load(logdir | way)
        test = load_test_data(hp, vocabs, (flags[f"source_{part}"], flags[f"target_{part}"]))
        texts = to_text(translate(make_search(model, hp, hp.beam), test.data.X, hp), vocabs[1])
        got = [""] * len(test.references)
        for row, text in zip(test.data.rows, texts, strict=True):
            got[row] = text
        found[name] = figures(got, test.references, hp.target_lang)
        print(f"{part}, {name}: {found[name]}", flush=True)
    return found


def main():
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
    words = [args.corpus, args.direction, *(word.lstrip("-") for word in given)]
    work = Path(args.work).resolve() / "_".join(words).replace("=", "_")
    flags |= {name: str(work / name) for name in ("preprocessed", "logdir", "results")}
    minutes = train(flags, [*given, "--keep=10"])
    part = args.score or ("dev" if "source_dev" in flags else "test")
    table = ROOT / "benchmarks" / "quality.md"
    rows = [] if table.exists() else [HEADER]
    cores = f"{minutes:.0f} min, {os.cpu_count()} cores"
    today = datetime.date.today()
    for name, counts in score(flags, part).items():
        cells = [today, f"{args.corpus} {args.direction}", f"`{' '.join(given)}`", cores, part]
        rows.append("| " + " | ".join(map(str, [*cells, name, *counts])) + " |\n")
    with table.open("a", encoding="utf-8") as file:
        file.writelines(rows)
    print("".join(rows), platform.processor(), end="")


if __name__ == "__main__":
    main()
