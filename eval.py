"""Translate the test set with the model in logdir and score it with BLEU."""

import hashlib
import os
import re
import sys
from pathlib import Path

from hparams import (
    Hyperparams,
    announce_inputs,
    check_may_write,
    hparams_path,
    make_folder,
    parse_flags,
    read_hparams,
    rename,
    run,
    write_whole,
)

if __name__ == "__main__":
    flags = parse_flags(__doc__)  # before TensorFlow is loaded, which takes seconds

from bleu import LITTLE_LEARNED_HINT, bleu_score, empty_note, sacrebleu_score, tokenizer_note
from data_load import load_test_data
from decoding import describe, load, make_search, to_text, translate, translate_shared

SAMPLES = 5  # translations shown on the terminal
# Flags that name an evaluation's file where they differ from those of training.
NAMING_FLAGS = ("source_test", "beam", "length_penalty", "alpha", "average", "best")


def results_path(hp, paths):
    """The file of this evaluation's results.

    It is named after the checkpoint, as in the 2017 code. After that come the name of logdir,
    where only logdir is not the default one, and the flags that differ from those of training,
    so that evaluations do not overwrite each other: model_epoch_03_gs_66.ja-zh.beam-1

    Args:
      paths: the checkpoints of the model.
    """
    parts = [paths[-1].name]
    if os.path.normpath(hp.logdir) != Hyperparams.logdir and hp.results == Hyperparams.results:
        parts.append(Path(os.path.abspath(hp.logdir)).name)
    trained = read_hparams(hp.logdir)[0] if hparams_path(hp.logdir).exists() else hp
    for name in NAMING_FLAGS:
        value = getattr(hp, name)
        if value != getattr(trained, name):
            parts.append(f"{name}-{Path(value).name if name == 'source_test' else value}")
    return Path(hp.results) / re.sub(r"[^\w.-]", "_", ".".join(parts), flags=re.ASCII)[:200]


def describe_inputs(test, paths):
    """A line that tells evaluations apart: digests of the weights and of the test set."""
    weights = hashlib.sha256()
    for path in paths:
        weights.update(Path(f"{path}.index").read_bytes())  # which holds checksums of the weights
    return f"Inputs = weights {weights.hexdigest()[:16]}, test set {test.digest()[:16]}"


def keep_other_results(path, identity):
    """Rename the file at `path` where it holds another evaluation than the one to come.

    Args:
      identity: lines that the file of the same evaluation has.
    """
    if not path.is_file():
        return
    content = path.read_bytes()
    if not set(identity) <= set(content.decode("utf-8", "replace").splitlines()):
        kept = path.with_name(f"{path.name}.{hashlib.sha256(content).hexdigest()[:8]}")
        rename(path, kept)
        print(f"{path}: holds another evaluation, which is called {kept} now", file=sys.stderr)


def scores(test, got, hp):
    """The lines that close a results file, the documented one last."""
    bleu, signature = sacrebleu_score(test, got, hp.target_lang)
    lowered, lowered_signature = sacrebleu_score(test, got, hp.target_lang, lowercase=True)
    score, scored = bleu_score(test.data.Targets, got)
    total, empty = len(test.references), len(test.empty)
    left_out = sorted(set(range(total)) - set(test.data.rows))
    too_long = len(left_out) - empty
    return [
        f"Left out = {len(left_out)} of {total}"
        f" ({too_long} longer than {hp.longest - 1} {hp.tokens},"
        f" {empty} with an empty line on a side)",
        f"Left out, numbers of the pairs = {' '.join(str(row + 1) for row in left_out) or '-'}",
        f"sacreBLEU = {bleu:.2f} {signature} (all {total} pairs)",
        f"sacreBLEU, lower-cased = {lowered:.2f} {lowered_signature}",
        f"Pairs scored = {scored} of {total} (those with more than 3 words on both sides)",
        f"Bleu Score = {score}",
    ]


def main(flags):
    """Translate, score, print samples and write `results`; `flags` as `parse_flags` returns them.

    Raises:
      InputError: there is no model, or the test set cannot be used.
    """
    paths, hp, model, vocabs = load(flags)
    results = results_path(hp, paths)
    check_may_write(results, "results", hp, flags)
    announce_inputs(hp, flags, "source_test", "target_test")
    test = load_test_data(hp, vocabs)
    make_folder(hp.results)
    how = describe(hp, paths)
    identity = [f"Decoding = {how}", describe_inputs(test, paths)]
    if note := tokenizer_note(hp.target_lang, test.references):
        print(note)
    print(f"Translating {len(test.data.X)} sentences: {how}")
    search = make_search(model, hp, hp.beam)

    def work(X):
        return to_text(translate(search, X, hp), vocabs[1])

    got = translate_shared(work, test.data.X, results, how, paths)
    if got is None:
        print("Done: another process puts the parts together")
        return

    columns = zip(test.data.Sources, test.data.Targets, got, strict=True)
    records = [f"- source: {s}\n- expected: {e}\n- got: {g}\n" for s, e, g in columns]
    closing = [*identity, *scores(test, got, hp)]
    keep_other_results(results, identity)
    write_whole(results, "\n".join(records + closing) + "\n")

    shown = [line for line in closing if len(line) < 200]  # the numbers may be hundreds
    print("\n".join([""] + records[:SAMPLES] + shown))
    print(f"All of it: {results}")
    if note := empty_note(got):
        print(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)


if __name__ == "__main__":
    run(main, flags)
