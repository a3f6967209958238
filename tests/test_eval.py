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
from data_load import EvalSet, SentencePairs
from eval import LEFT_OUT, describe_scores, describe_test, read_results, results_path
from helpers import load
from hparams import Hyperparams
from support.errors import InputError
from text.bleu import (
    METRICS,
    bleu_score,
    choose_tokenizer,
    compare_systems,
    corpus_score,
    score_note,
)

LONG = "the dog sees the cat in the park"


@pytest.mark.parametrize(
    "expected, got, score, scored",
    [
        ([LONG, "a b c", LONG], [LONG, "a b c", "the dog sees"], 100, 1),  # more than three words
        (["a b c d e f g h"], ["a b c d"], 100 * math.exp(-1), 1),  # half of it is there
        (["a b"], ["a b"], 0, 0),
        ([], [], 0, 0),
        ([LONG], ["x y z w"], 0, 1),
    ],
)
def test_the_bleu_of_2017(expected, got, score, scored):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bleu_score(expected, got) == (pytest.approx(score), scored)
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
    score, signature = corpus_score("bleu", eval_set(references, [1]), ["A cat runs home"])
    assert score == expected.score > 0 and "case:mixed" in signature and "tok:13a" in signature


def test_sacrebleu_with_several_references(references):
    """They count in BLEU, chrF, the intervals and the digest, but not in the loss."""
    other, got = (wrong_words(references, share, share) for share in (0.3, 0.2))
    one = eval_set(references, range(len(references)))
    both = one._replace(references=[references, other])
    for name, expected in (
        ("bleu", sacrebleu.corpus_bleu(got, [references, other]).score),
        ("chrf", sacrebleu.corpus_chrf(got, [references, other]).score),
    ):
        score, signature = corpus_score(name, both, got)
        assert score == expected > corpus_score(name, one, got)[0]
        assert "nrefs:2" in signature
    assert one.digest() != both.digest() and min(intervals(both.references, got).values()) > 0
    others = one._replace(data=one.data._replace(Sources=["x"])), one._replace(references=[other])
    assert one.digest() not in [own.digest() for own in others]


@pytest.mark.parametrize(
    "line, tokenizer",
    [
        ("A dog runs in 東京.", "13a"),
        ("我爱你，你爱我吗？世界很大。", "zh"),
        ("今朝彼女は新聞を読みました。", "char"),
        ("สวัสดีชาวโลก", "char"),
        ("안녕 세상 안녕 세상 안녕", "13a"),
        ("1 + 1 = 2", "13a"),
    ],
)
def test_the_script_of_the_references_chooses_the_tokenizer(line, tokenizer):
    assert choose_tokenizer((line,)) == tokenizer
    score, signature = corpus_score("bleu", eval_set([line, line], [0, 1]), [line, line[:6]])
    assert 10 < score < 100 and f"|tok:{tokenizer}|" in signature


@pytest.mark.parametrize(
    "got, bleu, chrf, note",
    [
        (["a", "", " "], 0, 90, "2 of 3 translations are empty. The model has learned too little"),
        (["a", "b", ""], 0.004, 51, "BLEU is 0 if no four words .* --metric chrf"),
        (["a"], 0, 49, ""),
        (["a"], 0.006, 51, ""),
    ],
)
def test_notes_on_scores(got, bleu, chrf, note):
    assert re.match(note or "$", score_note(got, dict(bleu=bleu, chrf=chrf)))


def test_the_lines_of_the_summary():
    """The BLEU of 2017 is of the cleaned text, and sacreBLEU of the raw one and of both cases."""
    data = SentencePairs(None, None, [LONG, "x"], [LONG, "y"], rows=[0, 3])
    references = ["The Dog sees the cat in the park, 26!", "too long", "", "y"]
    test = EvalSet(data._replace(num_empty=1), [references])
    got, hp = [LONG, "y"], Hyperparams(maxlen=9, source_lang="ja")
    scores = {name: corpus_score(name, test, got) for name in METRICS}
    lines = describe_scores(test, got, scores, hp, "words")
    assert lines[0] == "Left out = 2 of 4 (1 longer than 8 words, 1 with an empty line on a side)"
    assert lines[1] == "Left out, numbers of the pairs = 2 3"
    assert lines[2].startswith("sacreBLEU = ") and "|case:mixed|" in lines[2]
    assert lines[3].startswith("sacreBLEU, lower-cased = ") and "|case:lc|" in lines[3]
    assert "|tok:13a|" in lines[2] + lines[3] and "version:" in lines[2]
    cased, lowered = (float(line.split(" = ")[1].split()[0]) for line in lines[2:4])
    assert 10 < cased < lowered < 90
    assert lines[4].startswith("chrF = ") and "nc:6" in lines[4]
    assert re.fullmatch(r"95% intervals = BLEU [\d.]+, chrF [\d.]+ \(plus or minus\)", lines[5])
    assert lines[6].startswith("Pairs scored = 1 of 4")
    assert lines[7:] == ["Bleu Score = 100.0"]


# Comparing two systems ----------------------------------------------


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
    compared = compare_systems(references, got, got)
    return {name: this.ci for name, (this, _) in compared.items()}


def test_a_difference_is_compared_with_chance(references):
    """Half of the differences between equal systems are no chance only by chance."""
    good, same, bad = (
        wrong_words(references, share, seed) for share, seed in ((0.1, 0), (0.1, 1), (0.3, 2))
    )
    test, found = eval_set(references, range(len(references))), {}
    for name, other in dict(bad=bad, same=same, good=good).items():
        found[name] = compare_systems([references], good, other)
    for metric in ("bleu", "chrf"):
        this, other = found["bad"][metric]
        assert this.score > other.score + 5 and this.p_value < 0.01
        assert found["same"][metric][0].p_value > 0.05 and found["good"][metric][0].p_value == 1
        assert this.score == pytest.approx(corpus_score(metric, test, good)[0])
        own = found["good"][metric][0].ci
        assert own == pytest.approx(this.ci, abs=0.5) and own > 0.5


def test_the_interval_shrinks_with_the_root_of_the_sentences(references):
    few, many = (
        intervals([refs], wrong_words(refs, 0.2))["bleu"] for refs in (references[:50], references)
    )
    assert 1.4 < few / many < 2.8  # 2, but for chance
    for got in ("", "x", "the dog"):  # a bad translation of few sentences
        assert all(0 <= own < 60 for own in intervals([[LONG, "y"]], [got, ""]).values())


HP = Hyperparams(source_test="text/a.de", target_test="text/a.en")
REFERENCES = [["a", "b", "c", "d"], ["e", "", "", "f"]]
RESULTS = "- source: x\n- got: a\n\n- got: \n\n- got: d\u2028\r e\n\n"
RESULTS += f"{describe_test(HP, REFERENCES)}\n{LEFT_OUT} = 3\n"


def test_translations_are_read_from_results(tmp_path):
    path = tmp_path / "results"
    path.write_text(RESULTS, "utf-8", newline="")
    assert read_results(path, HP, REFERENCES) == ["a", "", "", "d\u2028\r e"]
    complete = RESULTS.replace("- source", "- got: b\n- source").replace("= 3", "= -")
    path.write_text(complete, "utf-8", newline="")
    assert read_results(path, HP, REFERENCES) == ["b", "a", "", "d\u2028\r e"]
    others = [["a", "b", "c", "e"], REFERENCES[1]]
    for old, new, references in (
        ("", "", others),  # of the same names
        ("", "", REFERENCES[:1]),
        ("= 3", "= -", REFERENCES),
        ("= 3", "= 2 3", REFERENCES),
        ("a.en", "b.en", REFERENCES),
        (LEFT_OUT, "x", REFERENCES),
    ):
        path.write_text(RESULTS.replace(old, new), "utf-8", newline="")
        with pytest.raises(InputError, match=f"^{path}: is not a results file of this test set"):
            read_results(path, HP, references)


@pytest.mark.parametrize(
    "given, name",
    [
        ({}, "results/model_epoch_01_gs_9"),
        (dict(logdir="a/run/"), "results/model_epoch_01_gs_9.run"),
        (dict(logdir="a/run,b"), "results/model_epoch_01_gs_9.run.b"),
        (dict(logdir="a/run", results="r"), "r/model_epoch_01_gs_9"),
    ],
)
def test_results_have_the_name_of_the_checkpoint(given, name):
    for checkpoint in ("model_epoch_01_gs_9.npz", "model_epoch_01_gs_9"):  # here, and in 2017
        assert results_path(Path(checkpoint), Hyperparams(**given)) == Path(name)


def test_eval_compares_two_evaluations_of_a_model(trained, tmp_path, capsys):
    """The translations are words of the target language. The score of this model comes first."""
    logdir, texts = trained("legacy")["logdir"], []
    more = dict(beam=1, results=str(tmp_path / "first"))
    for _ in range(2):
        eval.main(dict(logdir=logdir) | more)
        (path,) = Path(more["results"]).iterdir()
        texts.append(path.read_text("utf-8"))
        more = dict(results=str(tmp_path / "second"), compare=str(path), temperature=2.0, seed=7)
    _, _, _, (source, target) = load(dict(logdir=logdir))
    words = {*" ".join(re.findall("^- got: (.*)$", texts[0], re.MULTILINE)).split()}
    assert words <= target.word2idx.keys() and not words <= source.word2idx.keys()
    assert "\nDecoding = samples, temperature 2.0, seed 7, model_epoch_12_gs_" in texts[1]
    there, here = (re.search("^sacreBLEU = ([0-9.]+) ", text, re.MULTILINE)[1] for text in texts)
    *_, bleu, chrf, last = texts[1].splitlines()
    compared = f"Compared with {tmp_path}/first/{path.name} = "
    number, chance = "[0-9.]+", " plus or minus [0-9.]+"
    p = r", p = [01]\.\d\d\d"
    assert re.fullmatch(f"{compared}BLEU {here}{chance}, there {there}{chance}{p}", bleu)
    assert re.fullmatch(f"{compared}chrF {number}{chance}, there {number}{chance}{p}", chrf)
    assert last.startswith("Bleu Score = ") and here != there
    assert f"{bleu}\n{chrf}\n" in capsys.readouterr().out
