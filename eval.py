"""Translate the test set with the model in logdir and score it with BLEU."""

from pathlib import Path

from hparams import make_folder, parse_flags, run, write_whole

if __name__ == "__main__":
    flags = parse_flags(__doc__)  # before TensorFlow is loaded, which takes seconds

from bleu import bleu_score, sacrebleu_score
from data_load import load_test_data
from decoding import describe, load, make_search, to_text, translate, translate_shared

SAMPLES = 5  # translations shown on the terminal


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
    test = load_test_data(hp, vocabs)
    make_folder(hp.results)
    how = describe(hp, paths)
    print(f"Translating {len(test.data.X)} sentences: {how}")
    search = make_search(model, hp, hp.beam)

    def work(X):
        return to_text(translate(search, X, hp), vocabs[1])

    results = Path(hp.results) / paths[-1].name
    got = translate_shared(work, test.data.X, results, how, paths)
    if got is None:
        print("Done: another process puts the parts together")
        return

    columns = zip(test.data.Sources, test.data.Targets, got, strict=True)
    records = [f"- source: {s}\n- expected: {e}\n- got: {g}\n" for s, e, g in columns]
    closing = [f"Decoding = {how}", *scores(test, got, hp)]
    write_whole(results, "\n".join(records + closing) + "\n")

    shown = [line for line in closing if len(line) < 200]  # the numbers may be hundreds
    print("\n".join([""] + records[:SAMPLES] + shown))
    print(f"All of it: {results}")


if __name__ == "__main__":
    run(main, flags)
