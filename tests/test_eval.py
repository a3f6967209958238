"""BLEU scores, and the summary of eval.py."""

import math
import random
import re
import warnings
from pathlib import Path

import nltk.translate.bleu_score as nltk_bleu
import pytest
import sacrebleu

import eval
from conftest import slow
from data_load import EvalSet, SentencePairs
from eval import LEFT_OUT, describe_scores, read_results, results_path
from helpers import load, run_main
from hparams import Hyperparams
from support.errors import InputError
from text.bleu import bleu_score, choose_tokenizer, compare_systems, corpus_score, empty_note
from text.vocab import WordVocab

LONG = "the dog sees the cat in the park"


def test_words_end_at_the_first_eos():
    vocab = WordVocab.__new__(WordVocab)
    vocab.idx2word = dict(enumerate(["<PAD>", "<UNK>", "<S>", "</S>", "a", "dog"]))
    assert vocab.decode([4, 5, 3, 5]) == "a dog"
    assert vocab.decode([4, 1, 5]) == "a <UNK> dog"
    assert vocab.decode([3, 0, 0]) == ""


@pytest.mark.parametrize(
    "expected, got, score, scored",
    [
        ([LONG, "a b c", LONG], [LONG, "a b c", "the dog sees"], 100, 1),  # more than three words
        (
            ["a b c d e f g h"],
            ["a b c d"],
            100 * math.exp(-1),
            1,
        ),  # half of it is there
        (["a b"], ["a b"], 0, 0),
        ([], [], 0, 0),
        ([LONG], ["x y z w"], 0, 1),
    ],
)
def test_the_bleu_of_2017(expected, got, score, scored):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bleu_score(expected, got) == (pytest.approx(score), scored)


def test_the_bleu_of_2017_is_that_of_nltk():
    refs, got = [[LONG.split()], ["a b c d".split()]], [LONG, "a b c e"]
    score = 100 * nltk_bleu.corpus_bleu(refs, [text.split() for text in got])
    assert bleu_score([LONG, "a b c d"], got) == (score, 2)


def eval_set(references, rows):
    """Make a test set in which only the pairs `rows` are translated."""
    data = SentencePairs(None, None, [], [references[row] for row in rows], rows)
    return EvalSet(data, [references])


def test_sacrebleu_counts_an_untranslated_sentence_as_an_empty_line():
    references = ["The dog sleeps.", "A cat runs home.", "They all sing songs."]
    expected = sacrebleu.corpus_bleu(["", "A cat runs home", ""], [references])
    score, signature = corpus_score("bleu", eval_set(references, [1]), ["A cat runs home"], "en")
    assert score == expected.score > 0 and "case:mixed" in signature and "tok:13a" in signature


def test_sacrebleu_without_case():
    test, got = eval_set(["The Dog sleeps in the Park ."], [0]), ["the dog sleeps in the park ."]
    assert corpus_score("bleu", test, got, "en")[0] < 50
    score, signature = corpus_score("bleu", test, got, "en", lowercase=True)
    assert score > 99.9 and "case:lc" in signature


def test_sacrebleu_with_several_references(references):
    """They count in BLEU, chrF, the intervals and the digest, but not in the loss."""
    other, got = (wrong_words(references, share, share) for share in (0.3, 0.2))
    one = eval_set(references, range(len(references)))
    both = one._replace(references=[references, other])
    for name, expected in (
        ("bleu", sacrebleu.corpus_bleu(got, [references, other]).score),
        ("chrf", sacrebleu.corpus_chrf(got, [references, other]).score),
    ):
        score, signature = corpus_score(name, both, got, "en")
        assert score == expected > corpus_score(name, one, got, "en")[0]
        assert "nrefs:2" in signature
    assert one.digest() != both.digest() and min(intervals(both.references, got).values()) > 0


@pytest.mark.parametrize(
    "lang, line, tokenizer",
    [
        ("en", "A dog runs in 東京.", "13a"),
        ("en", "我爱你，你爱我吗？世界很大。", "zh"),
        ("zh", "你好，世界很大。", "zh"),
        ("en", "今朝彼女は新聞を読みました。", "char"),
        ("ja", "ABC DEF GHI", "char"),
        ("de", "สวัสดีชาวโลก", "char"),
        ("en", "안녕 세상 안녕 세상 안녕", "13a"),
        ("en", "1 + 1 = 2", "13a"),
    ],
)
def test_the_script_of_the_references_chooses_the_tokenizer(lang, line, tokenizer):
    assert choose_tokenizer(lang, (line,)) == tokenizer
    score, signature = corpus_score("bleu", eval_set([line, line], [0, 1]), [line, line[:6]], lang)
    assert 10 < score < 100 and f"|tok:{tokenizer}|" in signature


@pytest.mark.parametrize(
    "got, note", [([], ""), (["a", ""], ""), (["", " ", "a"], "2 of 3 translations are empty")]
)
def test_empty_translations_are_noticed(got, note):
    assert empty_note(got) == note


def test_the_summary_counts_pairs_left_out_and_scored():
    data = SentencePairs(None, None, [LONG, "x"], [LONG, "y"], rows=[0, 3])
    references = [LONG, "too long", "", "y"]
    test = EvalSet(data._replace(num_empty=1), [references])
    lines = describe_scores(test, [LONG, "y"], Hyperparams(maxlen=9), "words")
    assert lines[0] == "Left out = 2 of 4 (1 longer than 8 words, 1 with an empty line on a side)"
    assert lines[1] == "Left out, numbers of the pairs = 2 3"
    assert lines[2].startswith("sacreBLEU = ") and "version:" in lines[2]
    assert lines[3].startswith("sacreBLEU, lower-cased = ") and "case:lc" in lines[3]
    assert lines[4].startswith("chrF = ") and "nc:6" in lines[4]
    assert re.fullmatch(r"95% intervals = BLEU [\d.]+, chrF [\d.]+ \(plus or minus\)", lines[5])
    assert lines[6].startswith("Pairs scored = 1 of 4")
    assert lines[7] == "Bleu Score = 100.0"


def test_the_bleu_of_2017_is_of_the_cleaned_text_and_sacrebleu_of_the_raw_one():
    """The tokenizer of sacreBLEU is that of the target language."""
    data = SentencePairs(None, None, ["x"], [LONG], rows=[0])
    test = EvalSet(data, [[f"{LONG}, 26!"]])
    lines = describe_scores(test, [LONG], Hyperparams(source_lang="ja"), "words")
    assert lines[-1] == "Bleu Score = 100.0"
    assert "|tok:13a|" in lines[2] and 10 < float(lines[2].split()[2]) < 90


def test_the_digest_of_a_test_set_depends_on_both_sides():
    data = SentencePairs(None, None, ["a"], ["b"], rows=[0])
    others = [EvalSet(data, [["c"]]), EvalSet(data._replace(Sources=["x"]), [["b"]])]
    assert EvalSet(data, [["b"]]).digest() not in [other.digest() for other in others]


def test_translations_are_words_of_the_target_language(trained, tmp_path):
    logdir = trained("legacy")["logdir"]
    run_main(eval, dict(logdir=logdir, results=str(tmp_path)))
    (path,) = tmp_path.iterdir()
    got = re.findall("^- got: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    _, _, _, (source, target) = load(dict(logdir=logdir))
    words = {*" ".join(got).split()}
    assert words <= target.word2idx.keys() and not words <= source.word2idx.keys()


# Comparing two systems ---------------------------------------------------------


@pytest.fixture(scope="module")
def references():
    """Sentences of different words."""
    words = "a dog cat house runs sleeps sees the big small red in on under tree street".split()
    rng = random.Random(0)
    return [" ".join(rng.choices(words, k=rng.randint(5, 15))) for _ in range(200)]


def wrong_words(references, share, seed=0):
    """Replace a share of the words."""
    rng = random.Random(seed)
    return [
        " ".join("wrong" if rng.random() < share else word for word in reference.split())
        for reference in references
    ]


def intervals(references, got):
    """The intervals of a system, by the names of metrics."""
    compared = compare_systems(references, got, got, "en")
    return {name: comparison.intervals[0] for name, comparison in compared.items()}


def test_a_difference_is_compared_with_chance(references):
    """Half of the differences between equal systems are no chance only by chance."""
    good, same, bad = (
        wrong_words(references, share, seed) for share, seed in ((0.1, 0), (0.1, 1), (0.3, 2))
    )
    test, found = eval_set(references, range(len(references))), {}
    for name, other in dict(bad=bad, same=same, good=good).items():
        found[name] = compare_systems([references], good, other, "en")
    for metric in ("bleu", "chrf"):
        compared = found["bad"][metric]
        assert compared.scores[0] > compared.scores[1] + 5 and compared.p_value < 0.01
        assert found["same"][metric].p_value > 0.05 and found["good"][metric].p_value == 1
        assert compared.scores[0] == pytest.approx(corpus_score(metric, test, good, "en")[0])
        own = found["good"][metric].intervals[0]
        assert own == pytest.approx(compared.intervals[0], abs=0.5) and own > 0.5


def test_this_evaluation_is_named_before_the_other_one(references):
    references = references[:30]
    test = eval_set(references, range(len(references)))
    good, bad = (wrong_words(references, share) for share in (0.1, 0.3))
    for got, other in ((good, bad), (bad, good)):
        *_, line, _, last = describe_scores(test, got, Hyperparams(), "words", "path", other)
        found = re.match(r"Compared with path = BLEU ([\d.]+) .* there ([\d.]+) ", line)
        scores = [corpus_score("bleu", test, texts, "en")[0] for texts in (got, other)]
        assert [*found.groups()] == [f"{score:.2f}" for score in scores]
        assert last.startswith("Bleu Score = ")


def test_the_interval_shrinks_with_the_root_of_the_sentences(references):
    few, many = (
        intervals([refs], wrong_words(refs, 0.2))["bleu"] for refs in (references[:50], references)
    )
    assert 1.4 < few / many < 2.8  # 2, but for chance


@pytest.mark.parametrize("got", ["", "x", "the dog"])
def test_the_interval_of_a_bad_translation_of_few_sentences(got):
    found = intervals([[LONG, "y"]], [got, ""])
    assert all(0 <= interval < 60 for interval in found.values())


def results_text(got, left_out="-"):
    lines = [f"- source: x\n- expected: y\n- got: {text}\n" for text in got]
    return "\n".join([*lines, "Test set = a.de, a.en", f"{LEFT_OUT} = {left_out}", ""])


HP = Hyperparams(source_test="text/a.de", target_test="text/a.en")


def test_translations_are_read_from_results(tmp_path):
    path = tmp_path / "results"
    path.write_text(results_text(["a", "", "d\u2028\r e"], "3"), "utf-8", newline="")
    assert read_results(path, HP, 4) == ["a", "", "", "d\u2028\r e"]


def test_results_that_cannot_be_compared(tmp_path):
    good, path = results_text("abc"), tmp_path / "results"
    for text in ("Ein Hund\n", good.replace("= -", "= 2"), good.replace("a.en", "b.en")):
        path.write_text(text)
        with pytest.raises(InputError, match=f"^{path}: is not a results file of this test set"):
            read_results(path, HP, 3)


@pytest.mark.parametrize(
    "given, name",
    [
        ({}, "results/model_epoch_01_gs_9"),
        (dict(logdir="a/run/"), "results/model_epoch_01_gs_9.run"),
        (dict(logdir="a/run", results="r"), "r/model_epoch_01_gs_9"),
    ],
)
def test_results_have_the_name_of_the_checkpoint(given, name):
    for checkpoint in ("model_epoch_01_gs_9.npz", "model_epoch_01_gs_9"):  # here, and in 2017
        assert results_path(Path(checkpoint), Hyperparams(**given)) == Path(name)


@slow
def test_eval_compares_two_evaluations_of_a_model(trained, tmp_path, capsys):
    flags = dict(logdir=trained("tiny")["logdir"], results=str(tmp_path / "first"))
    run_main(eval, flags | dict(beam=1))
    (path,) = (tmp_path / "first").iterdir()
    capsys.readouterr()
    more = dict(results=str(tmp_path / "second"), compare=str(path), temperature=1.0, seed=7)
    run_main(eval, flags | more | dict(beam=1))
    printed = capsys.readouterr().out.splitlines()
    lines = [line for line in printed if line.startswith("Compared with ")]
    for name, line in zip(("BLEU", "chrF"), lines, strict=True):
        assert re.fullmatch(
            rf"Compared with {path} = {name} [\d.]+ plus or minus [\d.]+,"
            r" there [\d.]+ plus or minus [\d.]+, p = [01]\.\d{3}",
            line,
        )
    text = (tmp_path / "second" / path.name).read_text("utf-8")
    *_, before, last, bleu_score = text.splitlines()
    assert [before, last] == lines and bleu_score.startswith("Bleu Score = ")
    assert "\nDecoding = samples, temperature 1.0, seed 7, model_epoch_12_gs_" in text
