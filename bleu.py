"""Scores of translations: the documented BLEU, and the one that others can compare with."""

import warnings

import sacrebleu
from nltk.translate.bleu_score import corpus_bleu

# What sacreBLEU cuts text into words with, where blanks do not do it.
TOKENIZERS = dict(zh="zh", ja="char", th="char", lo="char", km="char", my="char", bo="char")


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


def sacrebleu_score(test, got, lang, lowercase=False):
    """The field's score, over a whole test set and against its text as it stands.

    Args:
      test: EvalData; those of its pairs that were left out count as an empty line.
      got: the translations of the others.
      lang: the target language, which decides how text is cut into words.
      lowercase: whether case does not count.

    Returns:
      (float, str): BLEU from 0 to 100, and the signature that says how it was counted.
    """
    bleu = sacrebleu.BLEU(lowercase=lowercase, tokenize=TOKENIZERS.get(lang, "13a"))
    score = bleu.corpus_score(in_place(test, got), [test.references]).score
    return score, str(bleu.get_signature())


def in_place(test, got):
    """A translation for each pair of a test set, empty where it was left out."""
    hypotheses = [""] * len(test.references)
    for row, text in zip(test.data.rows, got, strict=True):
        hypotheses[row] = text
    return hypotheses
