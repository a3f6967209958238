"""What CTranslate2 makes of our models is what we make of them."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import ctranslate
from conftest import INSTALL_EXTRAS, forked_script
from data_load import encode_lines
from decoding import Translator, load, make_search, translate
from hparams import InputError
from search import without
from test_bad_input import refused
from test_translate import ODD
from test_translate import translate as run_translate
from text import PAD, before_end, read_test

ctranslate2 = pytest.importorskip("ctranslate2", reason=INSTALL_EXTRAS)


@pytest.fixture(scope="module", params=["updated", "paper", "tiny"])
def flags(request, trained):
    return trained(request.param)


def loaded(flags, **more):
    """(hp, model, vocabs), and the ids of the test set."""
    _, hp, model, vocabs = load(dict(logdir=flags["logdir"]) | more)
    _, lines, _ = read_test(flags["source_test"])
    return (hp, model, vocabs), encode_lines(lines, vocabs[0], hp)[0]


SEARCHES = [dict(beam=1)] + [
    dict(beam=4, length_penalty="ctranslate2", alpha=alpha) for alpha in (0.0, 0.6)
]


@pytest.mark.parametrize("search", SEARCHES)
def test_it_finds_the_same(flags, search):
    (hp, model, vocabs), X = loaded(flags, **search)
    ours = translate(make_search(model, hp, hp.beam), X, hp, quiet=True)
    theirs = ctranslate.Search(hp, model, vocabs, 1, "float32")(X)
    for [(ids, score)], [(words, other)] in zip(ours, theirs, strict=True):
        assert before_end(ids).tolist() == words.tolist()
        assert hp.beam == 1 or score == pytest.approx(other, abs=1e-4)
    assert len({tuple(words) for [(words, _)] in theirs}) > 3


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_it_scores_the_same(flags, tmp_path, quantization):
    """In int8 nearly: the step of a weight is 1/127 of the largest in its row."""
    (hp, model, vocabs), X = loaded(flags, beam=1)
    ctranslate.write(hp, model, vocabs, tmp_path / "model", quantization)
    translator = ctranslate2.Translator(str(tmp_path / "model"), compute_type=quantization)
    pairs = [(x[:-1], np.flip(x[:-1])) for x in X]  # anything will do for a translation
    tokens = [[[*map(vocabs[0].token, side)] for side in pair] for pair in pairs]
    scored = translator.score_batch(*map(list, zip(*tokens, strict=True)))
    differences = []
    for (x, y), result in zip(pairs, scored, strict=True):
        x, y = (np.append(side, 3)[None].astype(np.int32) for side in (x, y))
        logp = tf.nn.log_softmax(without([PAD], model(x, y)))[0].numpy()
        differences.extend(logp[range(y.size), y[0]] - result.log_probs)
    if quantization == "float32":
        np.testing.assert_allclose(differences, 0, atol=1e-4)
    else:
        assert 0 < np.abs(differences).mean() < 0.05


CLIENT = """
import sys
import ctranslate2, sentencepiece
cut = sentencepiece.SentencePieceProcessor(model_file=sys.argv[1] + "/bpe.model")
translator = ctranslate2.Translator(sys.argv[1])
pieces = cut.encode(sys.stdin.read().splitlines(), out_type=str)
for found in translator.translate_batch(pieces, beam_size=1):
    print(cut.decode(found.hypotheses[0]))
"""


def test_an_exported_model_needs_nothing_of_this_project(trained, tmp_path):
    flags = trained("tiny")
    path = tmp_path / "out" / "model"
    more = dict(logdir=flags["logdir"], output=path, format="ctranslate2")
    done = forked_script("export.py", **more, quantization="int8")
    assert done.returncode == 0 and f"{path}: " in done.stdout, done.stderr
    small = (path / "model.bin").stat().st_size
    path.rename(path.with_name("int8"))
    assert forked_script("export.py", **more).returncode == 0
    assert small < 0.75 * (path / "model.bin").stat().st_size

    lines = read_test(flags["source_test"])[1]
    text = "".join(f"{line}\n" for line in lines)
    client = [sys.executable, "-c", CLIENT, str(path)]
    done = subprocess.run(client, input=text, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (hp, model, vocabs), _ = loaded(flags, beam=1)
    ours = [best[0][0] for best in Translator(hp, model, vocabs)(lines)]
    theirs = done.stdout.splitlines()
    # By itself it goes on to 256 pieces where a sentence does not end.
    assert all(one.startswith(other) for one, other in zip(theirs, ours, strict=True))
    assert "" not in ours and len(set(ours)) > 3


def test_translate_uses_it(trained):
    flags = trained("tiny")
    text = "".join(f"{line}\n" for line in ODD).encode()
    more = dict(beam=3, nbest=2, length_penalty="ctranslate2", alpha=1.0)
    outputs = []
    for engine in ("tensorflow", "ctranslate2"):
        out, _ = run_translate(flags, text, engine=engine, **more)
        outputs.append([line.split(" ||| ") for line in out.splitlines()])
    assert len(outputs[0]) > len(ODD)
    for ours, theirs in zip(*outputs, strict=True):
        assert ours[:2] == theirs[:2]
        assert float(ours[2]) == pytest.approx(float(theirs[2]), abs=1.1e-4)


def test_what_it_cannot_do(trained, tmp_path, monkeypatch):
    legacy, tiny = (trained(recipe)["logdir"] for recipe in ("legacy", "tiny"))
    more = dict(format="ctranslate2", output=tmp_path / "out")
    refused("export.py", "recipe legacy", "ReLU", "saved_model", logdir=legacy, **more)
    refused(
        "translate.py", "length penalty paper", "--alpha", logdir=tiny, engine="ctranslate2", beam=2
    )
    assert not [*tmp_path.iterdir()]
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError, match="pip install ctranslate2"):
        ctranslate.library()


def test_a_line_that_is_too_long_for_it(trained):
    flags = trained("tiny")
    (hp, model, vocabs), _ = loaded(flags, beam=1)
    search = ctranslate.Search(hp, model, vocabs, 1, "float32")
    translator = Translator(hp, model, vocabs, 1, search)
    assert len(translator(["Hund " * 2000, "Der Hund"])) == 2 and translator.cut == 1
