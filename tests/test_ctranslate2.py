"""CTranslate2 decodes our models as we do."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from conftest import INSTALL_EXTRAS, slow, slow_unless
from data_load import encode_lines
from helpers import ODD_LINES, load, read_test_sentences, refused, run_translate
from hparams import make_hparams
from ids import PAD
from inference import LoadedModel, SearchDecoder, Translator
from interop import ctranslate2_model
from model import make_model
from processes import forked_script
from runtime.errors import InputError
from runtime.optional import import_optional
from search import suppress
from translate import TranslateFlags

ctranslate2 = pytest.importorskip("ctranslate2", reason=INSTALL_EXTRAS)


@pytest.fixture(scope="module", params=slow_unless(["tiny"], ["updated", "paper", "tiny"]))
def flags(request, trained):
    return trained(request.param)


def loaded(flags, **more):
    """Load a model, and the ids of the test set."""
    model = load(dict(logdir=flags["logdir"]) | more)
    lines = read_test_sentences(flags["source_test"]).raw
    return model, encode_lines(lines, model.vocabs[0], model.hp)[0]


SEARCHES = [dict(beam=1)] + [
    dict(beam=4, length_penalty="ctranslate2", alpha=alpha) for alpha in (0.0, 0.6)
]


@pytest.mark.parametrize("search", SEARCHES)
def test_translations_and_scores_are_equal(flags, search):
    model, X = loaded(flags, **search)
    ours = SearchDecoder(model)(X)
    theirs = ctranslate2_model.CTranslate2Decoder(model, 1, "float32")(X)
    for [our], [their] in zip(ours, theirs, strict=True):
        assert our._replace(score=0.0) == their._replace(score=0.0)
        assert model.hp.beam == 1 or our.score == pytest.approx(their.score, abs=1e-4)
    assert len({tuple(best.ids) for [best] in theirs}) > 1  # a small model may repeat itself


def log_probability_differences(loaded, X, path, quantization="float32"):
    """Export a model, and compare the log-probabilities of some tokens there with ours."""
    ctranslate2_model.write(loaded, path, quantization)
    translator = ctranslate2.Translator(str(path), compute_type=quantization)
    pairs = [(x[:-1], np.flip(x[:-1])) for x in X]  # any ids can serve as a translation
    tokens = [[[*map(loaded.vocabs[0].id_to_token, side)] for side in pair] for pair in pairs]
    scored = translator.score_batch(*map(list, zip(*tokens, strict=True)))
    differences = []
    for (x, y), result in zip(pairs, scored, strict=True):
        x, y = (np.append(side, 3)[None].astype(np.int32) for side in (x, y))
        logp = tf.nn.log_softmax(suppress(loaded.model(x, y), [PAD]))[0].numpy()
        differences.extend(logp[range(y.size), y[0]] - result.log_probs)
    return differences


@pytest.mark.parametrize("quantization", ["float32", "int8"])
def test_log_probabilities_are_equal(flags, tmp_path, quantization):
    """With int8 nearly equal: a parameter is rounded to 1/127 of the largest in its row."""
    model, X = loaded(flags, beam=1)
    differences = log_probability_differences(model, X, tmp_path / "model", quantization)
    if quantization == "float32":
        np.testing.assert_allclose(differences, 0, atol=1e-4)
    else:
        # The mean is 0.01 on an EPYC, and 0.13 there with ONEDNN_MAX_CPU_ISA=AVX2.
        assert 0 < np.abs(differences).mean() < 0.3


@pytest.mark.parametrize(
    "more",
    slow_unless(
        [dict(positions="t5")],
        [
            *(dict(normalization="pre"), dict(normalization="post"), dict(positions="t5")),
            dict(decoder_blocks=3),
            dict(ffn_activation="swish", output_bias=True),
        ],
    ),
)
def test_other_models(trained, tmp_path, more):
    (_, hp, _, vocabs), X = loaded(trained("tiny"), beam=1)
    X = [*X, np.resize(X[0][:-1], 300)]  # distances above the last bucket of t5, which is at 128
    hp = dataclasses.replace(hp, **more)
    model = make_model(hp, *map(len, vocabs))
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:  # also gamma and beta differ between layers
        variable.assign(variable + rng.normal(scale=0.1, size=variable.shape))
    pre_norm = LoadedModel([], hp, model, vocabs)
    differences = log_probability_differences(pre_norm, X, tmp_path / "model")
    np.testing.assert_allclose(differences, 0, atol=1e-4)


CLIENT = """
import sys
import ctranslate2, sentencepiece
source, target = (
    sentencepiece.SentencePieceProcessor(model_file=f"{sys.argv[1]}/{name}.model")
    for name in ("bpe.source", "bpe")
)
translator = ctranslate2.Translator(sys.argv[1])
tokens = source.encode(sys.stdin.read().splitlines(), out_type=str)
for result in translator.translate_batch(tokens, beam_size=1):
    print(target.decode(result.hypotheses[0]))
"""


def test_an_exported_model_works_without_this_project(trained, tmp_path):
    flags = trained("tiny")
    path = tmp_path / "out" / "model"
    more = dict(logdir=flags["logdir"], output=path, format="ctranslate2")
    done = forked_script("export.py", **more, quantization="int8")
    assert done.returncode == 0 and f"{path}: " in done.stdout, done.stderr
    int8_size = (path / "model.bin").stat().st_size
    path.rename(path.with_name("int8"))
    assert forked_script("export.py", **more).returncode == 0
    assert int8_size < 0.75 * (path / "model.bin").stat().st_size

    lines = read_test_sentences(flags["source_test"])[1]
    text = "".join(f"{line}\n" for line in lines)
    client = [sys.executable, "-c", CLIENT, str(path)]
    done = subprocess.run(client, input=text, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    model, _ = loaded(flags, beam=1)
    ours = [translation.text for translation in Translator(model)(lines)]
    theirs = done.stdout.splitlines()
    # CTranslate2's limit is 256 tokens: a translation that does not end is longer than ours.
    assert all(long.startswith(short) for long, short in zip(theirs, ours, strict=True))
    assert "" not in ours and len(set(ours)) > 3


def test_translate_with_ctranslate2(trained):
    flags = trained("tiny")
    text = "".join(f"{line}\n" for line in ODD_LINES).encode()
    more = dict(beam=3, nbest=2, length_penalty="ctranslate2", alpha=1.0)
    outputs = []
    for engine in ("tensorflow", "ctranslate2"):
        out, _ = run_translate(flags, text, engine=engine, **more)
        outputs.append([line.split(" ||| ") for line in out.splitlines()])
    assert len(outputs[0]) > len(ODD_LINES)
    for ours, theirs in zip(*outputs, strict=True):
        assert ours[:2] == theirs[:2]
        assert float(ours[2]) == pytest.approx(float(theirs[2]), abs=1e-3)


@slow
def test_paragraphs_with_ctranslate2(trained):
    text = "Der Hund schläft. Die Frau singt.  Der Hund schläft.\n\n".encode()
    outputs = []
    for engine in ("tensorflow", "ctranslate2"):
        more = dict(engine=engine, length_penalty="ctranslate2", alpha=1.0)
        out, _ = run_translate(trained("tiny"), text, split=True, **more)
        outputs.append(out)
    dog, _ = run_translate(trained("tiny"), "Der Hund schläft.\n".encode(), **more)
    assert outputs[0] == outputs[1] and outputs[1].endswith(f"  {dog}\n")


def test_unsupported_models_and_flags(trained, tmp_path, monkeypatch):
    legacy, tiny = (trained(recipe)["logdir"] for recipe in ("legacy", "tiny"))
    more = dict(format="ctranslate2", output=tmp_path / "out")
    refused("export.py", "CTranslate2 has no such model", "saved_model", logdir=legacy, **more)
    search = dict(engine="ctranslate2", beam=2)
    refused("translate.py", "--length_penalty ctranslate2", "it is paper", logdir=tiny, **search)
    for name, value in (
        ("positions", "rotary"),
        ("attention_score", "cosine"),
        ("residual", False),
        ("normalization", "none"),
    ):
        hp = make_hparams(dict(recipe="tiny") | {name: value})
        with pytest.raises(InputError, match=f"ctranslate2 needs .*{name}.*, and it is {value}"):
            TranslateFlags(engine="ctranslate2").check_needs(hp)
        with pytest.raises(InputError, match="CTranslate2 has no such model"):
            ctranslate2_model.check_kind(hp)
    assert not [*tmp_path.iterdir()]
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(InputError, match="pip install ctranslate2"):
        import_optional("ctranslate2")


def test_long_lines_are_truncated(trained):
    flags = trained("tiny")
    model, _ = loaded(flags, beam=1)
    decode = ctranslate2_model.CTranslate2Decoder(model, 1, "float32")
    translator = Translator(model, decode)
    assert len(translator(["Hund " * 2000, "Der Hund"])) == 2 and translator.truncated == 1
