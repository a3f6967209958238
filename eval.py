"""Translate the test set with the model in logdir, and score the translations with BLEU."""

import dataclasses
import hashlib
import itertools
import os
import re
import sys
from pathlib import Path

from hparams import SEARCH_FLAGS, Hyperparams, hparams_path, read_hparams
from runtime.cli import parse_flags, run_script
from runtime.cluster import worker_rank
from runtime.errors import InputError
from runtime.files import (
    announce_inputs,
    atomic_write,
    check_exists,
    check_may_make,
    check_may_write,
    check_regular_file,
    keep_copy,
    make_folder,
)
from runtime.flags import NONE, Flags, flag
from runtime.parallel import one_thread_per_operation
from trained_models import find_trained

LEFT_OUT = "Left out, numbers of the pairs"


@dataclasses.dataclass(frozen=True)
class EvalFlags(Flags):
    """The flags of this script."""

    compare: str = flag(
        NONE,
        "results file of another evaluation of the same test set: show whether the difference may"
        " be chance; none: no comparison",
        path=True,
    )


def read_results(path, references) -> list[str]:
    """Read the translations of another evaluation, one per pair of the test set.

    Args:
      references: of the test set, lists of str.
    """
    from text import read_lines  # here, as in `settle`

    text = "\n".join(read_lines(path, "Check the path, which --compare names"))
    got = re.findall("^- got: (.*)$", text, re.MULTILINE)
    left_out = re.search(f"^{LEFT_OUT} = ([0-9 ]+|-)$", text, re.MULTILINE)
    digest = re.search("^Inputs = .* references ([0-9a-f]+)$", text, re.MULTILINE)
    if not left_out or not digest:
        raise InputError(f"{path}: is not a results file of eval.py. Choose one in results/")
    numbers = {*left_out[1].split()}  # counted from 1
    rows = [row for row in range(len(references[0])) if str(row + 1) not in numbers]
    if digest[1] != references_digest(references) or len(got) != len(rows):
        raise InputError(
            f"{path}: holds translations of another test set. Evaluate both models with the same"
            " --source_test and --target_test"
        )
    hypotheses = [""] * len(references[0])
    for row, translation in zip(rows, got, strict=True):
        hypotheses[row] = translation
    return hypotheses


def references_digest(references) -> str:
    """Return a digest that identifies the references of a test set, lists of str."""
    text = "\n".join(itertools.chain(*references)).encode("utf-8", "surrogateescape")
    return hashlib.sha256(text).hexdigest()[:16]


def settle(flags):
    """Read the files that the flags name, before TensorFlow is loaded; see `main`."""
    # Here, since `parse_flags` has a message for an environment without packages.
    from data_load import load_test_data

    options, flags = EvalFlags.separate(flags)
    models = find_trained(flags)
    if options.compare != NONE:
        check_exists(options.compare, "Check the path, which --compare names")
    test = others = None
    if hp := models[0].hp:
        announce_inputs(hp, "source_test", "target_test")
        test = load_test_data(hp, models[0].vocabs)
        if options.compare != NONE:
            others = read_results(options.compare, test.references)
        check_may_write(Path(hp.results), "results", hp)
        check_may_make(hp.results)
    one_thread_per_operation()
    return options, models, test, others


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    settled = parse_flags(__doc__, settle, Hyperparams, EvalFlags, reads_model=True)

import checkpoint
from bleu import (
    LITTLE_LEARNED_HINT,
    METRICS,
    align_with_references,
    bleu_score,
    compare_systems,
    confidence_intervals,
    corpus_score,
    empty_note,
)
from data_load import load_test_data
from inference import (
    SearchDecoder,
    SharedDecoder,
    describe_decoding,
    limit_hint,
    limit_note,
    load_model,
)
from interop.original import is_original
from model_card import record_evaluation, write_card

SAMPLES = 5  # translations that are printed
MAX_PRINTED_CHARS = 200  # a line of LEFT_OUT may list hundreds of pairs
MAX_NAME_CHARS = 200  # of a results file
# Flags that appear in the name of the results file if they differ from those of training.
NAMING_FLAGS = ("source_test", *SEARCH_FLAGS, "seed", "average_checkpoints", "best")


def results_path(loaded) -> Path:
    """Return the path of the results file of this evaluation.

    It is named after the checkpoint, as in the 2017 code. The name of logdir follows unless it
    is the default, or the names of an ensemble, and then the flags that differ from those of
    training, so that evaluations do not overwrite each other: model_epoch_03_gs_66.ja-zh.beam-1
    """
    hp, paths = loaded.hp, loaded.paths
    parts = [paths[-1].name]
    folders = loaded.folders
    named = folders != [Path(Hyperparams.logdir)] and hp.results == Hyperparams.results
    if named or len(folders) > 1:
        parts.append("+".join(Path(os.path.abspath(folder)).name for folder in folders))
    saved = read_hparams(hp.logdir) if hparams_path(hp.logdir).exists() else hp
    for name in NAMING_FLAGS:
        value = getattr(hp, name)
        if value != getattr(saved, name):
            parts.append(f"{name}-{Path(value).name if name == 'source_test' else value}")
    if hp.precision != Hyperparams.precision:
        parts.append(hp.precision)
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
        print(f"{path}: holds another evaluation. Copied it to {new_path}", file=sys.stderr)


def describe_scores(test, got, hp, token_name) -> list[str]:
    """Return the lines that follow the translations in a results file.

    The last line is that of the 2017 code.

    Args:
      token_name: that of the vocabularies, for messages.
    """
    lang = hp.target_lang
    bleu, signature = corpus_score("bleu", test, got, lang)
    lowered, lowered_signature = corpus_score("bleu", test, got, lang, lowercase=True)
    chrf, chrf_signature = corpus_score("chrf", test, got, lang)
    intervals = confidence_intervals(test, got, lang)
    score, scored = bleu_score(test.data.Targets, got)
    total, empty = len(test.references[0]), len(test.empty_pairs)
    left_out = sorted(set(range(total)) - set(test.data.rows))
    return [
        f"Left out = {len(left_out)} of {total}"
        f" ({len(left_out) - empty} longer than {hp.max_input_tokens - 1} {token_name},"
        f" {empty} with an empty line on a side)",
        f"{LEFT_OUT} = {' '.join(str(row + 1) for row in left_out) or '-'}",
        f"sacreBLEU = {bleu:.2f} {signature} (all {total} pairs)",
        f"sacreBLEU, lower-cased = {lowered:.2f} {lowered_signature}",
        f"chrF = {chrf:.2f} {chrf_signature}",
        "95% intervals = BLEU {bleu:.2f}, chrF {chrf:.2f} (plus or minus)".format(**intervals),
        f"Pairs scored = {scored} of {total} (those with more than 3 words on both sides)",
        f"Bleu Score = {score}",
    ]


def describe_comparison(path, test, got, others, lang) -> list[str]:
    """Return a line per metric that compares two systems, this one first.

    Args:
      path: the results file that `others` come from.
    """
    compared = compare_systems(test.references, align_with_references(test, got), others, lang)
    return [
        f"Compared with {path} = {METRICS[name]} {c.scores[0]:.2f} plus or minus"
        f" {c.intervals[0]:.2f}, there {c.scores[1]:.2f} plus or minus {c.intervals[1]:.2f},"
        f" p = {c.p_value:.3f}"
        for name, c in compared.items()
    ]


def describe_identity(loaded, decoding, digest, test) -> list[str]:
    """Return the lines of a results file that say of which evaluation it is.

    Args:
      decoding: what `describe_decoding` returned.
      digest: that of the parameters.
    """
    inputs = f"weights {digest[:16]}, test set {test.digest()[:16]}"
    if is_original(loaded.paths[-1]):  # its checkpoint does not record the number of heads
        inputs += f", {loaded.hp.num_heads} heads"
    inputs += f", references {references_digest(test.references)}"
    return [f"Decoding = {decoding}", f"Inputs = {inputs}"]


def is_long_list(line) -> bool:
    """Whether a line of the summary is a long list of pairs, which only the file shows."""
    return line.startswith(LEFT_OUT) and len(line) >= MAX_PRINTED_CHARS


def main(options, models, test=None, others=None):
    """Translate and score the test set, print samples, and write the results file.

    Args:
      options: EvalFlags.
      models: list of `Trained`.
      test: the test set, if it was loaded.
      others: the translations to compare with, if they were read.
    """
    rank, _ = worker_rank()
    loaded = load_model(models)
    hp, paths, vocabs = loaded.hp, loaded.paths, loaded.vocabs
    path = results_path(loaded)
    check_may_write(path, "results", hp)
    check_regular_file(path, "the results are written there. Delete it")
    test = test or load_test_data(hp, vocabs)
    if options.compare != NONE and others is None:
        others = read_results(options.compare, test.references)
    make_folder(hp.results)
    decoding = describe_decoding(loaded)
    digest = checkpoint.parameters_digest(paths)
    identity = describe_identity(loaded, decoding, digest, test)
    print(f"Translating {len(test.data.X)} sentences: {decoding}")
    search = SearchDecoder(loaded, show_progress=True)
    found = SharedDecoder(search, path, settings=f"{decoding}, {digest}")(test.data.X)
    if rank:
        print("Done: worker 0 collects the results")
        return

    got = [best.text for best, *_ in found]
    at_limit = sum(best.at_limit for best, *_ in found)
    columns = zip(test.data.Sources, test.data.Targets, got, strict=True)
    records = [f"- source: {s}\n- expected: {e}\n- got: {g}\n" for s, e, g in columns]
    summary = [
        *identity,
        f"Ended at the limit = {at_limit} of {len(got)} ({hp.describe_output_limit()})",
        *describe_scores(test, got, hp, vocabs[0].token_name),
    ]
    if others:
        # Before the Bleu Score, which is the last line in the 2017 code.
        summary[-1:-1] = describe_comparison(options.compare, test, got, others, hp.target_lang)
    keep_other_results(path, identity)
    atomic_write(path, "\n".join(records + summary) + "\n")
    if len(loaded.folders) == 1:
        lines = [line for line in summary if not line.startswith(LEFT_OUT)]
        record_evaluation(loaded, decoding, lines)
        write_card(loaded, paths[-1].parent)

    print("", *records[:SAMPLES], sep="\n")
    print(*(line for line in summary if not is_long_list(line)), sep="\n")
    print(f"Full results: {path}")
    if note := empty_note(got):
        print(f"{note}. {LITTLE_LEARNED_HINT}", file=sys.stderr)
    if note := limit_note(at_limit, len(got), hp):
        print(f"{note}. {limit_hint(hp)}", file=sys.stderr)


if __name__ == "__main__":
    run_script(main, *settled)
