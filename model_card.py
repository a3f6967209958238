"""The card of a model: the README.md of an export, with its settings, scores and limits."""

import json
from pathlib import Path

from bleu import METRICS
from checkpoint import path_of, read_rows
from hparams import FIELDS, RECIPES, hparams_path, load_hparams
from inference import describe_checkpoints
from runtime.flags import split_paths
from variants.ensemble import Ensemble

EVALUATIONS = "evaluations.json"  # what eval.py has found, in the folder of the model

CARD = """\
---
language:
- "{hp.source_lang}"
- "{hp.target_lang}"
# license: choose one. It depends on the training text, too
pipeline_tag: translation
tags:
- translation
---

# Translation from {hp.source_lang} to {hp.target_lang}

A {kind} with {parameters:,} parameters and {tokens:,} {unit}, {checkpoints}.

## Training

{training}

## Scores

{scores}

## Limits

- It reads at most {max_input} {unit} of a sentence.
- It translates sentence by sentence, and knows no context.
- Text that differs from the training text, in its topic or style, has worse translations than these
  scores say. They can be fluent and wrong.
- Translations may repeat prejudices of the training text.
"""


def file_names(*values) -> str:
    """Return the names of files without their folders, which belong to one machine.

    >>> file_names("/home/me/a.de,b.de", "a.en,b.en")
    'a.de, b.de, a.en, b.en'
    """
    return ", ".join(Path(path).name for value in values for path in split_paths(value))


def read_evaluations(folder) -> list[dict]:
    """Return what eval.py has found for the model in a folder, oldest first."""
    path = Path(folder) / EVALUATIONS
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def make_card(loaded) -> str:
    """Return the text of the card of a `LoadedModel`."""
    hp, model, vocab = loaded.hp, loaded.model, loaded.vocabs[0]
    models = model.models if isinstance(model, Ensemble) else [model]
    newest = {path.parent: path for path in loaded.paths}  # of each model
    evaluations = read_evaluations(*newest) if len(newest) == 1 else []
    scores = [f"{row['test']}:\n\n{indent(row['lines'])}" for row in evaluations]
    return CARD.format(
        hp=hp,
        kind="Transformer" if hp.model == "transformer" else f"recurrent model ({hp.cell})",
        parameters=sum(each.count_params() for each in models),
        tokens=len(vocab),
        unit=vocab.token_name,
        checkpoints=describe_checkpoints(loaded.paths),
        training="\n".join(describe_training(path, hp) for path in newest.values()),
        scores="\n\n".join(scores) or "This model has not been evaluated with `eval.py`.",
        max_input=hp.max_input_tokens - 1,
    )


def indent(lines) -> str:
    """Join lines as a block of code in Markdown."""
    return "\n".join(f"    {line}" for line in lines)


def describe_training(newest, hp) -> str:
    """Return the lines on the training of a checkpoint; `hp` is for a model of the 2017 code."""
    folder = newest.parent
    rows = [row for row in read_rows(folder) if path_of(folder, row) == newest]
    if hparams_path(folder).exists():
        hp = load_hparams(dict(logdir=str(folder)))  # with the --precision of the training
    lines = [f"- Text: {file_names(hp.source_train, hp.target_train)}"]
    if rows:
        epochs, minutes = rows[-1].epoch - (not rows[-1].epoch_done), rows[-1].seconds / 60
        lines.append(f"- {epochs} complete epochs, {rows[-1].step:,} steps, {minutes:.0f} minutes")
    scored = [row for row in rows if row.score is not None]
    if scored:
        metric = METRICS[scored[-1].metric]
        lines.append(f"- Development set: {metric} {scored[-1].score:.1f}, greedy search")
    return "\n".join([*lines, "- Settings:", "", indent([settings(hp)])])


def settings(hp) -> str:
    """Return the recipe, and the flags of the model and its training that differ from it."""
    recipe, listed = RECIPES[hp.recipe] | dict(recipe=hp.recipe), [f"--recipe {hp.recipe}"]
    for name, field in FIELDS.items():
        value = getattr(hp, name)
        is_setting = field.metadata["fixed"] or field.metadata["group"] == "training"
        if is_setting and value != recipe.get(name, field.default) and not field.metadata["path"]:
            no = "no-" if value is False else ""
            listed.append(f"--{no}{name}" + ("" if type(value) is bool else f" {value}"))
    return " ".join(listed)
