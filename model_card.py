"""The card of a model: its training text, settings, scores and limits.

A card is a README.md in the format of Hugging Face. `train.py` and `eval.py` keep its facts in the
folder of the model:

    training.json       the training text, and the minutes of training
    evaluations.json    the scores of each evaluation

`eval.py` writes the card next to the model, and `export.py` into each export.
"""

import contextlib
import json
import os
import re
import time
from pathlib import Path

import tensorflow as tf
from manifest import RUN_FILE, rows_to

from bleu import METRICS
from hparams import NO_EPOCH_LIMIT, RECIPES
from inference import describe_checkpoints
from runtime.errors import MALFORMED_JSON, InputError
from runtime.files import atomic_write, read_json, split_paths
from runtime.flags import NONE, as_flag
from runtime.parallel import num_cores
from variants.ensemble import Ensemble

CARD = "README.md"
MARK = "<!-- Written by eval.py or export.py. Delete this line to keep your changes. -->"
TRAINING, EVALUATIONS = "training.json", "evaluations.json"
MAX_EVALUATIONS = 20  # the newest ones are kept
MAX_LINE_CHARS = 500
TITLES = dict(bleu="sacreBLEU", chrf="chrF")  # as in a results file
# The recipe is listed before all others, and the steps planned for `minutes` in place of them.
UNLISTED_FLAGS = {"recipe", "vocab_sha256", "minutes"}


# Facts -------------------------------------------------------------------------


def read_facts(path):
    """Read a JSON file of this module: None if there is none, or if it is damaged."""
    try:
        facts = read_json(path)
        check_facts(facts)
        return facts
    except (InputError, OSError, *MALFORMED_JSON):
        return None


def check_facts(facts):
    """Check facts that someone else may have written.

    Raises:
      MALFORMED_JSON: they are not made of short lines and numbers.
    """
    if isinstance(facts, dict):
        check_facts([*facts, *facts.values()])
    elif isinstance(facts, list):
        for fact in facts:
            check_facts(fact)
    elif isinstance(facts, str):
        if len(facts) > MAX_LINE_CHARS or not facts.isprintable():
            raise ValueError("not a short line")
    elif not isinstance(facts, int | float):
        raise ValueError("neither text nor a number")


def write_facts(path, facts):
    """Write a JSON file of this module, unless the folder is read-only."""
    with contextlib.suppress(OSError):
        atomic_write(path, json.dumps(facts, indent=2) + "\n")


def copy_facts(logdir, other):
    """Copy the facts of a model to a copy of it."""
    for name in (TRAINING, EVALUATIONS):
        if facts := read_facts(Path(logdir) / name):
            write_facts(Path(other) / name, facts)


@contextlib.contextmanager
def recording_training(hp, num_pairs, notes):
    """Context manager of a training: saves facts on the text, and adds its minutes at the end.

    Args:
      num_pairs: sentence pairs that are trained on.
      notes: lines on the text.
    """
    path, start = Path(hp.logdir) / TRAINING, time.monotonic()
    if hp.start_from != NONE:
        other = Path(os.path.abspath(hp.start_from)).name
        notes = [f"The training started from the parameters of {other}", *notes]
    before = read_training(hp.logdir).get("minutes", 0)
    facts = dict(
        source=file_names(hp.source_train),
        target=file_names(hp.target_train),
        pairs=num_pairs,
        device=describe_device(),
        notes=[without_folders(note)[:MAX_LINE_CHARS] for note in notes],
    )
    try:
        yield
    finally:
        minutes = before + (time.monotonic() - start) / 60
        if (path.parent / RUN_FILE).exists():  # else there is no checkpoint
            write_facts(path, facts | dict(minutes=round(minutes, 2)))


def read_training(logdir) -> dict:
    """Return what `recording_training` saved; empty without it."""
    facts = read_facts(Path(logdir) / TRAINING)
    names = dict(source=str, target=str, pairs=int, device=str, notes=list, minutes=float)
    is_whole = isinstance(facts, dict) and all(
        isinstance(facts.get(name), kind) for name, kind in names.items()
    )
    return facts if is_whole else {}


def describe_device() -> str:
    """Return the devices of a training.

    >>> describe_device() in ("1 CPU core", f"{num_cores()} CPU cores")
    True
    """
    gpus = len(tf.config.list_logical_devices("GPU"))
    count, kind = (gpus, "GPU") if gpus else (num_cores(), "CPU core")
    return f"{count} {kind}{'s' if count > 1 else ''}"


def file_names(paths) -> str:
    """Return the names of files without their folders, which belong to one machine.

    >>> file_names("/home/me/a.de,b.de")
    'a.de, b.de'
    """
    return ", ".join(Path(path).name for path in split_paths(paths))


def without_folders(text) -> str:
    """Remove the folders of paths from a text.

    >>> without_folders("/data/dev.en, dev.ja: 3 of 5")
    'dev.en, dev.ja: 3 of 5'
    """
    return re.sub(r"[^\s,`]*/", "", text)


def record_evaluation(loaded, decoding, summary):
    """Save the scores of an evaluation.

    Args:
      loaded: LoadedModel.
      decoding: what `describe_decoding` returned.
      summary: lines that end a results file.
    """
    path = loaded.paths[-1].parent / EVALUATIONS
    hp = loaded.hp
    test = f"{file_names(hp.source_test)}, {file_names(hp.target_test)}"
    new = dict(test=test, decoding=decoding, lines=[line[:MAX_LINE_CHARS] for line in summary])
    others = [row for row in read_evaluations(loaded) if not is_same_evaluation(row, new)]
    write_facts(path, [*others, new][-MAX_EVALUATIONS:])


def read_evaluations(loaded) -> list[dict]:
    """Return the evaluations of a model, oldest first. Those of an ensemble are not saved."""
    if len(loaded.folders) > 1:
        return []
    rows = read_facts(loaded.paths[-1].parent / EVALUATIONS) or []
    kinds = dict(test=str, decoding=str, lines=list)
    return [
        row
        for row in rows
        if isinstance(row, dict) and all(isinstance(row.get(k), v) for k, v in kinds.items())
    ]


def is_same_evaluation(row, other) -> bool:
    """Whether two evaluations are of the same model, search and test set."""
    return (row["test"], row["decoding"]) == (other["test"], other["decoding"])


# The card ----------------------------------------------------------------------


def write_card(loaded, folder):
    """Write the card of a model into a folder, unless someone has written a README.md there."""
    path = Path(folder) / CARD
    with contextlib.suppress(OSError):
        if not path.exists() or MARK in path.read_text("utf-8", "replace"):
            atomic_write(path, make_card(loaded))


def make_card(loaded) -> str:
    """Return the text of the card of a `LoadedModel`."""
    evaluations = read_evaluations(loaded)
    parts = [
        front_matter(loaded.hp, evaluations),
        MARK,
        *introduction(loaded),
        *training_section(loaded),
        *scores_section(evaluations),
        *limits_section(loaded),
    ]
    return "\n".join(parts) + "\n"


def front_matter(hp, evaluations) -> str:
    """Return the fields that Hugging Face reads, in YAML."""
    name = f"{hp.source_lang}-{hp.target_lang}"
    lines = [
        "---",
        "language:",
        *(f"- {as_yaml(lang)}" for lang in (hp.source_lang, hp.target_lang)),
    ]
    lines += [
        "# license: choose one. It depends on the training text, too",
        "pipeline_tag: translation",
    ]
    lines += ["tags:", "- translation", "- transformer"]
    scored = [(row["test"], scores_of(row)) for row in evaluations]
    if any(scores for _, scores in scored):
        lines += ["model-index:", f"- name: {as_yaml(name)}", "  results:"]
    for test, scores in scored:
        if scores:
            lines += ["  - task: {type: translation}"]
            lines += [f"    dataset: {{name: {as_yaml(test)}, type: text}}", "    metrics:"]
            lines += [f"    - {{type: {kind}, value: {value}}}" for kind, value in scores.items()]
    return "\n".join([*lines, "---"])


def as_yaml(text) -> str:
    """Write a text as a string of YAML. JSON is YAML, too."""
    return json.dumps(text, ensure_ascii=False)


def scores_of(row) -> dict:
    """Return the scores of an evaluation by the names of the metrics.

    >>> scores_of(dict(lines=["sacreBLEU = 39.67 nrefs:1", "chrF = 64.31 nrefs:1"]))
    {'bleu': '39.67', 'chrf': '64.31'}
    """
    scores = {}
    for kind, title in TITLES.items():
        found = re.search(
            rf"^{title} = ([0-9.]+) ", "\n".join(map(str, row["lines"])), re.MULTILINE
        )
        if found:
            scores[kind] = found[1]
    return scores


def introduction(loaded) -> list[str]:
    """Return the first lines of the card."""
    hp = loaded.hp
    kind = "Transformer" if hp.model == "transformer" else f"recurrent model ({hp.cell})"
    model = loaded.model
    models = model.models if isinstance(model, Ensemble) else [model]
    count = f"{sum(each.count_params() for each in models):,}"
    tokens = f"{len(loaded.vocabs[0]):,} {loaded.vocabs[0].token_name}"
    return [
        "",
        f"# Translation from {hp.source_lang} to {hp.target_lang}",
        "",
        f"A {kind} with {count} parameters and {tokens}, {describe_checkpoints(loaded.paths)}.",
    ]


def training_section(loaded) -> list[str]:
    """Return the lines on the training, or on that of each model of an ensemble."""
    newest = {path.parent: path for path in loaded.paths}.values()
    lines = [line for path in newest for line in describe_training(path, loaded.hp)]
    return ["", "## Training", "", *lines, "- Settings:", "", "      " + settings(loaded.hp)]


def describe_training(newest, hp) -> list[str]:
    """Return the lines on the training of a checkpoint."""
    facts, rows, lines = read_training(newest.parent), rows_to(newest), []
    if facts:
        lines += [
            f"- Text: {facts['pairs']:,} sentence pairs of {facts['source']} ({hp.source_lang}) and"
            f" {facts['target']} ({hp.target_lang})",
            *(f"- {note}" for note in facts["notes"]),
        ]
    if rows:
        row = rows[-1]
        time_taken = f", {facts['minutes']:.0f} minutes on {facts['device']}" if facts else ""
        lines.append(f"- {row.epochs_done} complete epochs, {row.step:,} steps{time_taken}")
    scored = [row for row in rows if row.score is not None]
    if scored:
        metric, score = METRICS[scored[-1].metric], scored[-1].score
        lines.append(f"- Development set: {metric} {score:.1f}, greedy search")
    return lines


def settings(hp) -> str:
    """Return the recipe, and the flags of the model and its training that differ from it."""
    recipe = RECIPES[hp.recipe]
    flags = [f"--recipe {hp.recipe}"]
    for field in hp.declared():
        value, usual = getattr(hp, field.name), recipe.get(field.name, field.default)
        is_listed = not field.metadata["path"] and field.name not in UNLISTED_FLAGS
        is_setting = field.metadata["fixed"] or field.metadata["group"] == "training"
        if value not in (usual, NO_EPOCH_LIMIT) and is_setting and is_listed:
            flags.append(as_flag(field.name, value))
    return " ".join(flags)


def scores_section(evaluations) -> list[str]:
    """Return the lines on the evaluations."""
    lines = ["", "## Scores"]
    if not evaluations:
        return [
            *lines,
            "",
            "This model has not been evaluated yet: `python eval.py` adds its scores.",
        ]
    for row in evaluations:
        lines += ["", f"### {row['test']}", ""]
        lines += [f"    {line}" for line in row["lines"]]
    return lines


def limits_section(loaded) -> list[str]:
    """Return the lines on the limits of the model."""
    hp = loaded.hp
    lines = [
        f"- It reads at most {hp.max_input_tokens - 1} {loaded.vocabs[0].token_name} of a sentence,"
        f" and writes at most {hp.max_output_tokens(hp.max_input_tokens)}.",
        "- It translates sentence by sentence, and knows no context.",
        "- Text that differs from the training text, in its topic or style, has worse translations"
        " than these scores say. They can be fluent and wrong.",
        "- Translations may repeat prejudices of the training text.",
    ]
    if hp.fold_case:
        lines.append("- It reads sources without their case.")
    return ["", "## Limits", "", *lines]
