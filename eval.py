"""Translate the test set with the newest checkpoint and score it with BLEU."""

import warnings
from pathlib import Path

from hparams import (
    Hyperparams,
    load_hparams,
    make_folder,
    parse_flags,
    refuse_contradiction,
    run,
    write_whole,
)

if __name__ == "__main__":
    flags = parse_flags(__doc__)  # before TensorFlow is loaded, which takes seconds

import numpy as np
import sacrebleu
import tensorflow as tf
from nltk.translate.bleu_score import corpus_bleu
from tqdm import tqdm

import checkpoint
from data_load import END, START, find_min_cnt, load_test_data, load_vocabs
from model import make_model
from search import greedy

SAMPLES = 5  # translations shown on the terminal


# The model ---------------------------------------------------------------------


def load(flags):
    """The model in `logdir`, its hyperparameters, and its vocabularies.

    Returns:
      (Path, Hyperparams, Transformer, tuple): the checkpoint's path first, what
      `load_vocabs` gives last.
    """
    path = checkpoint.require_newest(flags.get("logdir", Hyperparams.logdir))
    if checkpoint.is_original(path):
        return path, *load_original(path, flags)
    hp, trained_with = load_hparams(flags, trained=True)
    vocabs = load_vocabs(hp, trained_with)
    model = make_model(hp, len(vocabs[0]), len(vocabs[2]))
    checkpoint.restore(checkpoint.trackable(model), path)
    return path, hp, model, vocabs


def load_original(path, flags):
    """The same for a checkpoint of the original, whose arrays tell its shape."""
    arrays = checkpoint.read_original(path)
    shape, sizes = checkpoint.original_shape(arrays)
    for name, value in shape.items():
        refuse_contradiction(path, name, value, flags)
    hp = Hyperparams(**(flags | shape))
    paths = [hp.vocab_path(lang) for lang in (hp.source_lang, hp.target_lang)]
    min_cnt = find_min_cnt(paths, sizes, flags.get("min_cnt"))
    hp = Hyperparams(**(flags | shape | {"min_cnt": min_cnt}))
    if "num_heads" not in flags:
        print(f"{path}: taken to have num_heads {hp.num_heads}, which its arrays do not tell")
    model = make_model(hp, *sizes)
    checkpoint.assign_original(model, arrays, path)
    return hp, model, load_vocabs(hp)


# Translating -------------------------------------------------------------------


def translate(model, X, batch_size):
    """Source ids (N, T) -> target ids (N, T), zeros behind `</S>`."""

    @tf.function(input_signature=[tf.TensorSpec([None, model.maxlen], tf.int32)])
    def translate_batch(x):
        start = tf.fill([tf.shape(x)[0]], START)  # (N,)
        return greedy(model.step, model.start(x), start, model.maxlen, END)

    batches = range(0, len(X), batch_size)
    bar = tqdm(batches, "translating", leave=False, mininterval=1, unit="b")
    return np.concatenate([translate_batch(X[i : i + batch_size]) for i in bar])


def to_text(pred, idx2en):
    """Ids (T,) up to `</S>`, as words.

    >>> to_text([4, 5, 3, 0], {0: "<PAD>", 3: "</S>", 4: "a", 5: "dog"})
    'a dog'
    """
    return " ".join(idx2en[idx] for idx in pred).split("</S>")[0].strip()


# Scoring -----------------------------------------------------------------------


def bleu_score(expected, got):
    """The documented score: pairs with more than 3 words on both sides, as they were cleaned.

    Returns:
      (float, int): BLEU from 0 to 100, and how many pairs it counts.
    """
    pairs = [(target.split(), words.split()) for target, words in zip(expected, got, strict=True)]
    pairs = [(ref, hypothesis) for ref, hypothesis in pairs if len(ref) > 3 and len(hypothesis) > 3]
    if not pairs:
        return 0.0, 0
    refs, hypotheses = zip(*pairs, strict=True)
    with warnings.catch_warnings():  # NLTK's, of a score that is 0
        warnings.simplefilter("ignore")
        return 100 * corpus_bleu([[ref] for ref in refs], hypotheses), len(pairs)


def sacrebleu_score(references, rows, got):
    """The field's score, over the whole test set and against its text as it stands.

    Args:
      references: every pair's target.
      rows: which of them were translated; the others count as an empty line.
      got: the translations.

    Returns:
      str: the score and the signature that says how it was counted.
    """
    hypotheses = [""] * len(references)
    for row, words in zip(rows, got, strict=True):
        hypotheses[row] = words
    bleu = sacrebleu.BLEU()
    score = bleu.corpus_score(hypotheses, [references]).score
    return f"{score:.2f} {bleu.get_signature()}"


def scores(test, got, maxlen):
    """The lines that close a results file, the documented one last."""
    score, scored = bleu_score(test.data.Targets, got)
    total, empty = len(test.references), len(test.empty)
    left_out = sorted(set(range(total)) - set(test.data.rows))
    too_long = len(left_out) - empty
    return [
        f"Left out = {len(left_out)} of {total}"
        f" ({too_long} longer than maxlen {maxlen}, {empty} with an empty line on a side)",
        f"Left out, numbers of the pairs = {' '.join(str(row + 1) for row in left_out) or '-'}",
        f"sacreBLEU = {sacrebleu_score(test.references, test.data.rows, got)} (all {total} pairs)",
        f"Pairs scored = {scored} of {total} (those with more than 3 words on both sides)",
        f"Bleu Score = {score}",
    ]


def main(flags):
    path, hp, model, (de2idx, _, en2idx, idx2en) = load(flags)
    test = load_test_data(hp, de2idx, en2idx)
    make_folder(hp.results)
    print(f"Translating {len(test.data.X)} sentences with {path}")
    preds = translate(model, test.data.X, hp.batch_size)
    got = [to_text(pred, idx2en) for pred in preds]

    columns = zip(test.data.Sources, test.data.Targets, got, strict=True)
    records = [f"- source: {s}\n- expected: {e}\n- got: {g}\n" for s, e, g in columns]
    closing = scores(test, got, hp.maxlen)
    results = Path(hp.results) / path.name
    write_whole(results, "\n".join(records + closing) + "\n")

    shown = [line for line in closing if len(line) < 200]  # the numbers may be hundreds
    print("\n".join([""] + records[:SAMPLES] + shown))
    print(f"All of it: {results}")


if __name__ == "__main__":
    run(main, flags)
