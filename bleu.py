"""Scores of translations: the documented BLEU, and the one that others can compare with."""

import functools
import warnings

import regex
import sacrebleu
from nltk.translate.bleu_score import corpus_bleu

# sacreBLEU's tokenizers of languages that write no spaces between words.
TOKENIZERS = dict(zh="zh", ja="char", th="char", lo="char", km="char", my="char", bo="char")
DEFAULT_TOKENIZER = "13a"
# The languages that a script tells, where the references are in it. Japanese has Han too.
SCRIPTS = dict(
    ja=r"[\p{Hiragana}\p{Katakana}]",
    zh=r"\p{Han}",
    th=r"\p{Thai}",
    lo=r"\p{Lao}",
    km=r"\p{Khmer}",
    my=r"\p{Myanmar}",
    bo=r"\p{Tibetan}",
)
MIN_SCRIPT_SHARE = 0.2  # of the letters: Japanese may have four Han in five
LITTLE_LEARNED_HINT = (
    "The model has learned too little. Train longer (--num_epochs) or on more text; --lr and"
    " --warmup_steps may be wrong, too"
)
NO_MATCH = 1e-6  # NLTK returns a tiny number in place of 0


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
        score = 100 * corpus_bleu([[ref] for ref in refs], hypotheses)
    return (score if score > NO_MATCH else 0.0), len(pairs)


def sacrebleu_score(test, got, lang, lowercase=False):
    """The field's score, over a whole test set and against its text as it stands.

    Args:
      test: EvalData; those of its pairs that were left out count as an empty line.
      got: the translations of the others.
      lang: the target language; `choose_tokenizer` takes it.
      lowercase: whether case does not count.

    Returns:
      (float, str): BLEU from 0 to 100, and the signature that says how it was counted.
    """
    tokenizer = choose_tokenizer(lang, tuple(test.references))
    bleu = sacrebleu.BLEU(lowercase=lowercase, tokenize=tokenizer)
    score = bleu.corpus_score(in_place(test, got), [test.references]).score
    return score, str(bleu.get_signature())


def tokenizer_note(lang, references):
    """A note where the references are not in the script of `lang`; empty where they are."""
    tokenizer = choose_tokenizer(lang, tuple(references))
    if tokenizer == TOKENIZERS.get(lang, DEFAULT_TOKENIZER):
        return ""
    (name, *_) = [name for name, other in TOKENIZERS.items() if other == tokenizer]
    return (
        f"The references are not in the script of --target_lang {lang}: sacreBLEU splits them with"
        f" the tokenizer {tokenizer}, as for --target_lang {name}"
    )


@functools.lru_cache(8)
def choose_tokenizer(lang, references):
    """sacreBLEU's tokenizer for a language, or for the script where `lang` does not fit it.

    The tokenizer 13a takes a Chinese sentence without spaces for one word, so that its BLEU
    says nothing.

    Args:
      lang: the target language's name, for example "en".
      references: tuple of sentences.

    >>> choose_tokenizer("en", ("我爱你。",))
    'zh'
    """
    if lang in TOKENIZERS:
        return TOKENIZERS[lang]
    text = " ".join(references)
    letters = len(regex.findall(r"\p{L}", text))
    for script_lang, pattern in SCRIPTS.items():
        if len(regex.findall(pattern, text)) > MIN_SCRIPT_SHARE * letters:
            return TOKENIZERS[script_lang]
    return DEFAULT_TOKENIZER


def empty_note(got):
    """A note where most translations are empty; empty where they are not.

    >>> empty_note(["", "", "A dog."])
    '2 of 3 translations are empty'
    """
    empty = sum(not text.strip() for text in got)
    return f"{empty} of {len(got)} translations are empty" if empty > len(got) / 2 else ""


def in_place(test, got):
    """A translation for each pair of a test set, empty where it was left out."""
    hypotheses = [""] * len(test.references)
    for row, text in zip(test.data.rows, got, strict=True):
        hypotheses[row] = text
    return hypotheses
