"""Translate the test set with the model in logdir, and score the translations with BLEU."""

import os
import re
import sys
from pathlib import Path

from hparams import Hyperparams, hparams_path, read_hparams
from runtime.cli import parse_flags, run_script
from runtime.files import (
    announce_inputs,
    atomic_write,
    check_may_write,
    keep_copy,
    make_folder,
)

if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    flags = parse_flags(__doc__, Hyperparams, reads_model=True)

import checkpoint
from bleu import LITTLE_LEARNED_HINT, bleu_score, empty_note, sacrebleu_score, tokenizer_note
from data_load import load_test_data
from inference import decode_all, describe_decoding, detokenize_best, load_model, make_search
from runtime.workers import translate_distributed

SAMPLES = 5  # translations that are printed
MAX_PRINTED_CHARS = 200  # of a line of the summary, which may list hundreds of pairs
MAX_NAME_CHARS = 200  # of a results file
# Flags that appear in the name of the results file if they differ from those of training.
NAMING_FLAGS = ("source_test", "beam", "length_penalty", "alpha", "average_checkpoints", "best")


def results_path(hp, paths) -> Path:
    """Return the path of the results file of this evaluation.

    It is named after the checkpoint, as in the 2017 code. The name of logdir follows unless it
    is the default, and then the flags that differ from those of training, so that evaluations
    do not overwrite each other: model_epoch_03_gs_66.ja-zh.beam-1

    Args:
      paths: the checkpoints of the model.
    """
    parts = [paths[-1].name]
    if os.path.normpath(hp.logdir) != Hyperparams.logdir and hp.results == Hyperparams.results:
        parts.append(Path(os.path.abspath(hp.logdir)).name)
    saved = read_hparams(hp.logdir)[0] if hparams_path(hp.logdir).exists() else hp
    for name in NAMING_FLAGS:
        value = getattr(hp, name)
        if value != getattr(saved, name):
            parts.append(f"{name}-{Path(value).name if name == 'source_test' else value}")
    name = re.sub(r"[^\w.-]", "_", ".".join(parts), flags=re.ASCII)
    return Path(hp.results) / name[:MAX_NAME_CHARS]


def keep_other_results(path, identity):
    """Keep the file at `path` under a new name if it holds the results of another evaluation.

    Args:
      identity: lines that the results of this evaluation contain.
    """
    if not path.is_file():
        return
    lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    if not set(identity) <= set(lines):
        new_path = keep_copy(path)
        print(f"{path}: holds another evaluation. Renamed it to {new_path}", file=sys.stderr)


def describe_scores(test, got, hp, token_name) -> list[str]:
    """Return the lines that follow the translations in a results file.

    The last line is that of the 2017 code.

    Args:
      token_name: that of the vocabularies, for messages.
    """
    bleu, signature = sacrebleu_score(test, got, hp.target_lang)
    lowered, lowered_signature = sacrebleu_score(test, got, hp.target_lang, lowercase=True)
    score, scored = bleu_score(test.data.Targets, got)
    total, empty = len(test.references), len(test.empty_pairs)
    left_out = sorted(set(range(total)) - set(test.data.rows))
    return [
        f"Left out = {len(left_out)} of {total}"
        f" ({len(left_out) - empty} longer than {hp.max_input_tokens - 1} {token_name},"
        f" {empty} with an empty line on a side)",
        f"Left out, numbers of the pairs = {' '.join(str(row + 1) for row in left_out) or '-'}",
        f"sacreBLEU = {bleu:.2f} {signature} (all {total} pairs)",
        f"sacreBLEU, lower-cased = {lowered:.2f} {lowered_signature}",
        f"Pairs scored = {scored} of {total} (those with more than 3 words on both sides)",
        f"Bleu Score = {score}",
    ]


def main(flags):
    """Translate and score the test set, print samples, and write the results file.

    Args:
      flags: dict that `parse_flags` returned.

    Raises:
      InputError: there is no model, or the test set cannot be used.
    """
    paths, hp, model, vocabs = load_model(flags)
    path = results_path(hp, paths)
    check_may_write(path, "results", hp, flags)
    announce_inputs(hp, flags, "source_test", "target_test")
    test = load_test_data(hp, vocabs)
    make_folder(hp.results)
    decoding = describe_decoding(hp, paths)
    digest = checkpoint.parameters_digest(paths)
    inputs = f"weights {digest[:16]}, test set {test.digest()[:16]}"
    identity = [f"Decoding = {decoding}", f"Inputs = {inputs}"]
    if note := tokenizer_note(hp.target_lang, test.references):
        print(note)
    print(f"Translating {len(test.data.X)} sentences: {decoding}")
    search = make_search(model, hp, hp.beam)

    def translate(X):
        return detokenize_best(decode_all(search, X, hp), vocabs[1])

    got = translate_distributed(translate, test.data.X, path, settings=f"{decoding}, {digest}")
    if got is None:
        print("Done: worker 0 collects the results")
        return

    columns = zip(test.data.Sources, test.data.Targets, got, strict=True)
    records = [f"- source: {s}\n- expected: {e}\n- got: {g}\n" for s, e, g in columns]
    summary = [*identity, *describe_scores(test, got, hp, vocabs[0].token_name)]
    keep_other_results(path, identity)
    atomic_write(path, "\n".join(records + summary) + "\n")

    print("", *records[:SAMPLES], sep="\n")
    print(*(line for line in summary if len(line) < MAX_PRINTED_CHARS), sep="\n")
    print(f"Full results: {path}")
    if note := empty_note(got):
        print(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)


if __name__ == "__main__":
    run_script(main, flags)
