"""Score translations: BLEU as in the 2017 code, and sacreBLEU, which is comparable elsewhere."""

import warnings

import regex
import sacrebleu
from sacrebleu.significance import PairedTest

# sacreBLEU's tokenizers for scripts without spaces between words. Japanese has Han characters, too.
SCRIPTS = {
    r"[\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}]": "char",
    r"\p{Han}": "zh",
}
MIN_SCRIPT_SHARE = 0.2  # of the letters; in Japanese up to four of five letters are Han
METRICS = dict(bleu="BLEU", chrf="chrF")  # names for the user, by the values of --metric
BOOTSTRAP_SAMPLES = 1000
MIN_SCORE = 1e-6  # below it the score is 0, for which NLTK returns a tiny number


def bleu_score(expected, got):
    """Compute BLEU as the 2017 code does, 0 to 100, and the number of pairs that it counts.

    Words are split at spaces. Pairs with 3 words or less on a side are left out.
    """
    pairs = [(target.split(), words.split()) for target, words in zip(expected, got, strict=True)]
    pairs = [pair for pair in pairs if min(map(len, pair)) > 3]
    if not pairs:
        return 0.0, 0
    from nltk.translate.bleu_score import corpus_bleu  # takes a fifth of a second

    refs, hypotheses = zip(*pairs, strict=True)
    with warnings.catch_warnings(action="ignore"):  # NLTK warns if the score is 0
        score = 100 * corpus_bleu([[ref] for ref in refs], hypotheses)
    return (score if score > MIN_SCORE else 0.0), len(pairs)


def make_metric(name, references, lowercase=False):
    """Make the metric of sacreBLEU with a name from `METRICS`."""
    if name == "chrf":
        return sacrebleu.CHRF(lowercase=lowercase)
    # With `force`, it does not warn of text that is tokenized.
    return sacrebleu.BLEU(lowercase, tokenize=choose_tokenizer(references[0]), force=True)


def corpus_score(name, test, got, lowercase=False):
    """Compute a score of sacreBLEU, 0 to 100, on raw text, and the signature of its settings.

    `got` are the translations of an EvalSet; that of a pair that was left out is an empty line.
    """
    metric = make_metric(name, test.references, lowercase)
    score = metric.corpus_score(align_with_references(test, got), test.references).score
    return score, str(metric.get_signature())


def compare_systems(references, hypotheses, others) -> dict:
    """Compare two systems by paired bootstrap (Koehn 2004): sacreBLEU's `Result`s for each metric.

    A `Result` has the score, 0 to 100, and `ci`, half of its 95% interval. The first one also has
    `p_value`, the probability of such a difference by chance.
    """
    test = PairedTest(
        [("other", others), ("this", hypotheses)],
        {name: make_metric(name, references) for name in METRICS},
        references,
        test_type="bs",
        n_samples=BOOTSTRAP_SAMPLES,
    )
    _, results = test()
    pairs = dict(zip(METRICS, [*results.values()][1:], strict=True))
    for other, this in pairs.values():
        # Chance alone always makes a difference of 0 or more; sacreBLEU counts larger ones only.
        this.p_value = this.p_value if this.score != other.score else 1.0
    return {name: (this, other) for name, (other, this) in pairs.items()}


def choose_tokenizer(references) -> str:
    """Choose sacreBLEU's tokenizer by the script of the references.

    The tokenizer 13a would treat a sentence in a script without spaces as one word.

    >>> choose_tokenizer(["我爱你。"])
    'zh'
    """
    text = " ".join(references)
    least = MIN_SCRIPT_SHARE * len(regex.findall(r"\p{L}", text))
    names = (name for script, name in SCRIPTS.items() if len(regex.findall(script, text)) > least)
    return next(names, "13a")


def score_note(got, scores) -> str:
    """Return a note if most translations are empty, or too short for BLEU, else an empty string."""
    empty = sum(not text.strip() for text in got)
    if empty > len(got) / 2:
        return (
            f"{empty} of {len(got)} translations are empty. The model has learned too little. Train"
            " longer or on more text, and check --lr"
        )
    if round(scores["bleu"], 2) == 0 and scores["chrf"] > 50:
        return "BLEU is 0 if no four words in sequence are right. Use chrF, as with --metric chrf"
    return ""


def align_with_references(test, got) -> list[str]:
    """Return a translation for each pair of a test set, empty for one that was left out."""
    by_row = dict(zip(test.data.rows, got, strict=True))
    return [by_row.get(row, "") for row in range(len(test.references[0]))]
