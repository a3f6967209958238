"""Translate the test set with the model in logdir, and score the translations with BLEU."""

import contextlib
import dataclasses
import hashlib
import json
import re
import sys
from pathlib import Path

from hparams import Hyperparams, parse_reader_flags
from support.errors import InputError
from support.flags import NONE, Flags, flag, split_paths
from support.parallel import one_thread_per_operation

LEFT_OUT = "Left out, numbers of the pairs"


@dataclasses.dataclass(frozen=True)
class EvalFlags(Flags):
    """The flags of this script."""

    compare: str = flag(
        NONE,
        "results file of another model for the same test set: show whether the difference may be"
        " chance",
        path=True,
    )


if __name__ == "__main__":  # before TensorFlow is loaded
    given = parse_reader_flags(__doc__, EvalFlags, "source_test", "target_test", "results")
    one_thread_per_operation()

from data_load import load_test_data
from formats.model_card import EVALUATIONS, file_names, read_evaluations
from support.cli import run_script
from support.files import atomic_open, atomic_write
from text import bleu
from text.lines import read_lines
from translation.inference import SearchDecoder, describe_decoding, limit_note, load_model

SAMPLES = 5  # translations that are printed


def describe_test(hp, references) -> str:
    """The line of a results file that identifies the test set."""
    digest = hashlib.sha256("\n".join(map("\n".join, references)).encode()).hexdigest()
    return f"Test set = {file_names(hp.source_test, hp.target_test)} (SHA-256 {digest[:12]})"


def read_results(path, hp, references) -> list[str]:
    """Read the translations of another evaluation, "" for a pair that was left out."""
    text = "\n".join(read_lines(path))
    got = re.findall("^- got: (.*)$", text, re.MULTILINE)
    left_out = re.search(f"^{LEFT_OUT} = ([0-9 ]+|-)$", text, re.MULTILINE)
    numbers = {*left_out[1].split()} - {"-"} if left_out else {}  # counted from 1
    of_test = left_out and describe_test(hp, references) in text.split("\n")
    if not of_test or len(got) + len(numbers) != len(references[0]):
        raise InputError(
            f"{path}: is not a results file of this test set. Evaluate both models with the same"
            " --source_test and --target_test"
        )
    rest = iter(got)
    return ["" if str(row) in numbers else next(rest) for row, _ in enumerate(references[0], 1)]


def describe_scores(test, got, scores, hp, token_name, compare=NONE, others=None) -> list[str]:
    """Return the lines that follow the translations in a results file, as in 2017 and more.

    `scores` are those of `corpus_score` by name, and `others` the translations of the results file
    `compare`.
    """
    own = bleu.align_with_references(test, got)
    (cased, cased_signature), (chrf, chrf_signature) = scores.values()
    lowered, lowered_signature = bleu.corpus_score("bleu", test, got, lowercase=True)
    compared = bleu.compare_systems(test.references, own, others or own)
    score, scored = bleu.bleu_score(test.data.Targets, got)
    total, empty = len(own), test.data.num_empty
    left_out = sorted({*range(total)} - {*test.data.rows})
    return [
        f"Left out = {len(left_out)} of {total}"
        f" ({len(left_out) - empty} longer than {hp.max_input_tokens - 1} {token_name},"
        f" {empty} with an empty line on a side)",
        f"{LEFT_OUT} = {' '.join(str(row + 1) for row in left_out) or '-'}",
        f"sacreBLEU = {cased:.2f} {cased_signature} (all {total} pairs)",
        f"sacreBLEU, lower-cased = {lowered:.2f} {lowered_signature}",
        f"chrF = {chrf:.2f} {chrf_signature}",
        f"95% intervals = BLEU {compared['bleu'][0].ci:.2f},"
        f" chrF {compared['chrf'][0].ci:.2f} (plus or minus)",
        f"Pairs scored = {scored} of {total} (those with more than 3 words on both sides)",
        *(
            f"Compared with {compare} = {bleu.METRICS[name]} {this.score:.2f} plus or minus"
            f" {this.ci:.2f}, there {other.score:.2f} plus or minus {other.ci:.2f},"
            f" p = {this.p_value:.3f}"
            for name, (this, other) in compared.items()
            if others
        ),
        f"Bleu Score = {score}",
    ]


def record_evaluation(folder, hp, decoding, summary):
    """Add the scores to evaluations.json in the folder of the model."""
    own = dict(test=file_names(hp.source_test, hp.target_test), decoding=decoding)
    rows = [row for row in read_evaluations(folder) if not own.items() <= row.items()]
    own["lines"] = [line for line in summary if not line.startswith(LEFT_OUT)]
    with contextlib.suppress(OSError):  # a model that is only to be read
        atomic_write(folder / EVALUATIONS, json.dumps([*rows, own], indent=2) + "\n")


def results_path(newest, hp) -> Path:
    """The name is that of the checkpoint, as in 2017.

    That of the logdir follows if only this flag is given, so that two models have two files.
    """
    name = newest.stem
    if hp.results == Hyperparams.results and hp.logdir != Hyperparams.logdir:
        name = ".".join([name, *(Path(own).resolve().name for own in split_paths(hp.logdir))])
    return Path(hp.results) / name


def main(given):
    """Print samples and scores, and write the results file."""
    options, loaded = EvalFlags.of(given), load_model(given)
    hp, newest, vocabs = loaded.hp, loaded.paths[-1], loaded.vocabs
    path, test, others = results_path(newest, hp), load_test_data(hp, vocabs), None
    if options.compare != NONE:
        others = read_results(options.compare, hp, test.references)
    decoding = describe_decoding(loaded)
    print(f"Translating {len(test.data.X)} sentences: {decoding}")
    search = SearchDecoder(loaded, show_progress=True)
    with atomic_open(path) as file:  # first: an error after the translation would lose it
        found = search(test.data.X)
        got = [best.text for best, *_ in found]
        at_limit = sum(best.at_limit for best, *_ in found)
        columns = zip(test.data.Sources, test.data.Targets, got, strict=True)
        records = [f"- source: {s}\n- expected: {e}\n- got: {g}\n" for s, e, g in columns]
        scores = {name: bleu.corpus_score(name, test, got) for name in bleu.METRICS}
        names = vocabs[0].token_name, options.compare, others
        summary = [
            f"Decoding = {decoding}",
            describe_test(hp, test.references),
            f"Ended at the limit = {at_limit} of {len(got)}",
            *describe_scores(test, got, scores, hp, *names),
        ]
        file.write("".join(f"{line}\n" for line in records + summary).encode())
    if len(loaded.folders) == 1:
        record_evaluation(newest.parent, hp, decoding, summary)

    print("", *records[:SAMPLES], sep="\n")
    print(*(line for line in summary if not line.startswith(LEFT_OUT)), sep="\n")
    print(f"Full results: {path}")
    if note := bleu.score_note(got, {name: score for name, (score, _) in scores.items()}):
        print(note, file=sys.stderr)
    if note := limit_note(at_limit, len(got), hp):
        print(note, file=sys.stderr)


if __name__ == "__main__":
    run_script(main, given)
