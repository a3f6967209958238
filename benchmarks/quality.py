"""Train a recipe on real text, compute its BLEU, and append the rows to quality.md.

    REAL_TEXT=DIR python benchmarks/quality.py multi30k de-en --recipe tiny
    REAL_TEXT=DIR python benchmarks/quality.py iwslt16 de-en --recipe legacy --num_epochs 20

All further arguments go to prepro.py and train.py. DIR holds the folder of the corpus;
benchmarks/README.md explains how to get it. The development set is scored, on which settings are
chosen; `--score test` scores the test set. The same command resumes a run that was stopped. The
packages in benchmarks/requirements.txt are needed, too.
"""

import argparse
import datetime
import importlib.util
import os
import sys
import time
from pathlib import Path

from harness import ROOT, corpus_folder, num_cores, run_script

sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

THREE_TEXTS = dict(train="train.{}", dev="dev.{}", test="test.{}")
CORPORA = dict(
    multi30k=dict(train="train.{}", dev="val.{}", test="test_2016_flickr.{}"),
    iwslt16=dict(train="train.tags.de-en.{}", test="IWSLT16.TED.tst2014.de-en.{}.xml"),
    loresmt2021_en_ga=THREE_TEXTS,
    small_parallel_enja=THREE_TEXTS,
    wordshk_en_yue=THREE_TEXTS,
)
COLUMNS = (
    *("date", "corpus", "flags", "training", "set", "decoding"),
    *("sacreBLEU", "interval", "lower-cased", "tokens", "chrF"),
)
HEADER = f"""# Scores of all runs of quality.py

README.md, section Quality, explains the kinds of BLEU. `dev` is the development set; the interval
is half of sacreBLEU's 95% interval.

| {" | ".join(COLUMNS)} |
{"|---" * len(COLUMNS)}|
"""


def corpus_flags(corpus, direction) -> dict:
    """Return the flags that name the files and languages of a corpus.

    Args:
      direction: the languages, for example "de-en".

    Raises:
      SystemExit: as `corpus_folder`, or the corpus lacks one of the languages.
    """
    folder = corpus_folder(corpus)
    source, target = direction.split("-")
    flags = {"source_lang": source, "target_lang": target}
    for part, name in CORPORA[corpus].items():
        flags[f"source_{part}"] = str(folder / name.format(source))
        flags[f"target_{part}"] = str(folder / name.format(target))
    for path in (flags["source_train"], flags["target_train"]):
        if not Path(path).exists():
            sys.exit(f"{path}: no such file. Name two languages of {corpus}, as in de-en")
    return flags


def train(flags, more_flags) -> float:
    """Run prepro.py and train.py; returns the minutes of training in this run."""
    if not Path(flags["logdir"]).exists():
        run_script("prepro.py", flags, more_flags)
    start = time.monotonic()
    run_script("train.py", flags, more_flags)
    return (time.monotonic() - start) / 60


# Scoring ------------------------------------------------------------


def moses_tokens(lines, lang) -> list[str]:
    """Lower-case, normalize punctuation, and split into Moses tokens, as Wu et al. 2021 do."""
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    normalize, tokenize = MosesPunctNormalizer(lang=lang).normalize, MosesTokenizer(lang=lang)
    lowered = (normalize(line.lower()) for line in lines)
    return [tokenize.tokenize(line, escape=False, return_str=True) for line in lowered]


def spacy_tokens(lines, lang) -> list[str]:
    """Lower-case and split into spaCy tokens, as the PyTorch tutorials do."""
    import spacy

    tokenize = spacy.blank(lang)
    return [" ".join(token.text for token in tokenize(line.lower())) for line in lines]


def characters(lines, lang) -> list[str]:
    """Split into characters, as sacreBLEU's tokenizer `char` does."""
    return [" ".join("".join(line.split())) for line in lines]


# How published results split a language into words, where that is not `moses_tokens`.
PUBLISHED_TOKENS = dict(en=spacy_tokens, yue=characters)


def bleu_row(test, got, lang) -> list[str]:
    """Compute sacreBLEU, its interval, lower-cased, BLEU of published results' tokens, and chrF."""
    import sacrebleu

    from text.bleu import align_with_references, compare_systems, corpus_score

    tokens = PUBLISHED_TOKENS.get(lang, moses_tokens)
    own = align_with_references(test, got)
    got_tokens = tokens(own, lang)
    references = [tokens(side, lang) for side in test.references]
    scores = [
        corpus_score("bleu", test, got)[0],
        compare_systems(test.references, own, own)["bleu"][0].ci,
        corpus_score("bleu", test, got, lowercase=True)[0],
        sacrebleu.corpus_bleu(got_tokens, references, tokenize="none", force=True).score,
        corpus_score("chrf", test, got)[0],
    ]
    return [f"{score:.2f}" for score in scores]


def score_set(flags, part) -> dict:
    """Translate all sentences of a set by greedy search, and then with the flags of the recipe.

    Args:
      part: "dev" or "test".

    Returns:
      {description of the decoding: what `bleu_row` returns}
    """

    from data_load import load_test_data
    from translation.inference import SearchDecoder, describe_decoding, load_model

    rows = {}
    for search_flags in (dict(beam=1, average_checkpoints=1), {}):
        loaded = load_model({"logdir": flags["logdir"]} | search_flags)
        test = load_test_data(loaded.hp, loaded.vocabs, part)
        got = [best.text for best, *_ in SearchDecoder(loaded, show_progress=True)(test.data.X)]
        decoding = describe_decoding(loaded)
        rows[decoding] = bleu_row(test, got, loaded.hp.target_lang)
        print(f"{part}, {decoding}: {rows[decoding]}", flush=True)
    return rows


def main():
    """Train and score the model that the command line describes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("direction", help="the languages, for example de-en")
    parser.add_argument("--score", choices=("dev", "test"), help="the set to score")
    parser.add_argument("--work", default="benchmarks/work", help="folder for models")
    args, more_flags = parser.parse_known_args()
    package = "spacy" if args.direction.endswith("-en") else "sacremoses"
    if not importlib.util.find_spec(package):  # before hours of training
        parser.error(f"{package} is missing. Run: pip install -r benchmarks/requirements.txt")
    flags = corpus_flags(args.corpus, args.direction)
    part = args.score or ("dev" if "source_dev" in flags else "test")
    if f"source_{part}" not in flags:
        parser.error(f"{args.corpus} has no {part} set. Leave --score out.")
    words = [args.corpus, args.direction, *(word.lstrip("-") for word in more_flags)]
    work = Path(args.work).resolve() / "_".join(words).replace("=", "_")
    flags |= {name: str(work / name) for name in ("preprocessed", "logdir", "results")}
    minutes = train(flags, more_flags)
    table = ROOT / "benchmarks" / "quality.md"
    rows = [] if table.exists() else [HEADER]
    training = f"{minutes:.0f} min, {num_cores()} cores"
    today = datetime.date.today()
    corpus, flags_cell = f"{args.corpus} {args.direction}", f"`{' '.join(more_flags)}`"
    for decoding, scores in score_set(flags, part).items():
        cells = [today, corpus, flags_cell, training, part, decoding, *scores]
        rows.append("| " + " | ".join(map(str, cells)) + " |\n")
    with table.open("a", encoding="utf-8") as file:
        file.writelines(rows)
    print("".join(rows), end="")


if __name__ == "__main__":
    main()
