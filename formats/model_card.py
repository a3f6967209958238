"""The card of a model: the README.md of an export, with its settings, scores and limits."""

import json
from pathlib import Path

from checkpoints.checkpoint import path_of, read_rows
from hparams import FIELDS, RECIPES, hparams_path, load_hparams
from support.flags import split_paths
from text.bleu import METRICS
from translation.inference import describe_checkpoints
from translation.search import Ensemble

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
    """The names of files without their folders, which belong to one machine.

    >>> file_names("/home/me/a.de,b.de", "a.en,b.en")
    'a.de, b.de, a.en, b.en'
    """
    return ", ".join(Path(path).name for value in values for path in split_paths(value))


def read_evaluations(folder) -> list[dict]:
    """What eval.py has found for the model in a folder, oldest first."""
    path = Path(folder) / EVALUATIONS
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def make_card(loaded) -> str:
    """The text of the card of a `LoadedModel`."""
    hp, vocab = loaded.hp, loaded.vocabs[0]
    newest = {path.parent: path for path in loaded.paths}  # of each model
    rows = read_evaluations(*newest) if len(newest) == 1 else []
    scores = [f"{row['test']}:\n\n    " + "\n    ".join(row["lines"]) for row in rows]
    models = loaded.model.models if isinstance(loaded.model, Ensemble) else [loaded.model]
    return CARD.format(
        hp=hp,
        kind="Transformer" if hp.model == "transformer" else f"recurrent model ({hp.cell})",
        parameters=sum(model.count_params() for model in models),
        tokens=len(vocab),
        unit=vocab.token_name,
        checkpoints=describe_checkpoints(loaded.paths),
        training="\n".join(describe_training(path, hp) for path in newest.values()),
        scores="\n\n".join(scores) or "This model has not been evaluated with `eval.py`.",
        max_input=hp.max_input_tokens - 1,
    )


def describe_training(newest, hp) -> str:
    """The lines on the training of a checkpoint; `hp` is for a model of the 2017 code."""
    folder = newest.parent
    if hparams_path(folder).exists():
        hp = load_hparams(dict(logdir=str(folder)))  # with the --precision of the training
    lines, settings = [f"- Text: {file_names(hp.source_train, hp.target_train)}"], []
    for name, field in FIELDS.items():
        value, kind = getattr(hp, name), field.metadata
        is_setting = (kind["fixed"] or kind["group"] == "training") and not kind["path"]
        if is_setting and value != RECIPES[hp.recipe].get(name, field.default):
            settings.append(f"{name} {value}")
    lines.append(f"- Settings: {', '.join(settings)}")
    for row in [row for row in read_rows(folder) if path_of(folder, row) == newest]:
        epochs, minutes = row.epoch - (not row.epoch_done), row.seconds / 60
        lines.append(f"- {epochs} complete epochs, {row.step:,} steps, {minutes:.0f} minutes")
        if row.score is not None:
            lines.append(f"- Development set: {METRICS[row.metric]} {row.score:.1f}, greedy search")
    return "\n".join(lines)
