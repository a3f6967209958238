"""Translate the test set with the model in logdir and score it with BLEU."""

import warnings
from pathlib import Path

from hparams import make_folder, parse_flags, run, write_whole

if __name__ == "__main__":
    flags = parse_flags(__doc__)  # before TensorFlow is loaded, which takes seconds

import sacrebleu
from nltk.translate.bleu_score import corpus_bleu

from data_load import load_test_data
from decoding import load, make_search, to_text, translate

SAMPLES = 5  # translations shown on the terminal


def bleu_score(expected, got):
    """The documented score: words between blanks, pairs with more than 3 on both sides.

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


def sacrebleu_score(references, rows, got, lowercase=False):
    """The field's score, over the whole test set and against its text as it stands.

    Args:
      references: every pair's target.
      rows: which of them were translated; the others count as an empty line.
      got: the translations.
      lowercase: whether case does not count.

    Returns:
      str: the score and the signature that says how it was counted.
    """
    hypotheses = [""] * len(references)
    for row, words in zip(rows, got, strict=True):
        hypotheses[row] = words
    bleu = sacrebleu.BLEU(lowercase=lowercase)
    score = bleu.corpus_score(hypotheses, [references]).score
    return f"{score:.2f} {bleu.get_signature()}"


def scores(test, got, hp):
    """The lines that close a results file, the documented one last."""
    score, scored = bleu_score(test.data.Targets, got)
    total, empty = len(test.references), len(test.empty)
    left_out = sorted(set(range(total)) - set(test.data.rows))
    too_long = len(left_out) - empty
    translated = test.references, test.data.rows, got
    return [
        f"Left out = {len(left_out)} of {total}"
        f" ({too_long} longer than maxlen {hp.maxlen}, {empty} with an empty line on a side)",
        f"Left out, numbers of the pairs = {' '.join(str(row + 1) for row in left_out) or '-'}",
        f"sacreBLEU = {sacrebleu_score(*translated)} (all {total} pairs)",
        f"sacreBLEU, lower-cased = {sacrebleu_score(*translated, lowercase=True)}",
        f"Pairs scored = {scored} of {total} (those with more than 3 words on both sides)",
        f"Bleu Score = {score}",
    ]


def main(flags):
    paths, hp, model, vocabs = load(flags)
    test = load_test_data(hp, vocabs)
    make_folder(hp.results)
    names = paths[-1] if len(paths) == 1 else f"the mean of {len(paths)} checkpoints to {paths[-1]}"
    how = f"beam search, {hp.beam} hypotheses" if hp.beam > 1 else "greedy search"
    print(f"Translating {len(test.data.X)} sentences with {names}, {how}")
    search = make_search(model, hp, hp.beam)
    got = to_text(translate(search, test.data.X, hp), vocabs[1])

    columns = zip(test.data.Sources, test.data.Targets, got, strict=True)
    records = [f"- source: {s}\n- expected: {e}\n- got: {g}\n" for s, e, g in columns]
    closing = scores(test, got, hp)
    results = Path(hp.results) / paths[-1].name
    write_whole(results, "\n".join(records + closing) + "\n")

    shown = [line for line in closing if len(line) < 200]  # the numbers may be hundreds
    print("\n".join([""] + records[:SAMPLES] + shown))
    print(f"All of it: {results}")


if __name__ == "__main__":
    run(main, flags)
