"""Exported models compute and translate as here, in programs without this project."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import eval
import export
from conftest import INSTALL_EXTRAS, sample_pairs, slow, slow_unless
from formats import model_card
from helpers import (
    ODD_LINES,
    latest,
    load,
    read_test_sentences,
    tensorflow_text,
    text_of,
    write_lines,
    write_pairs,
)
from hparams import POSITIONS, Choice, make_hparams
from marian import Marian
from model.transformer import make_model
from serving import SAMPLE
from support.errors import InputError
from text.ids import BOS, PAD, UNK
from text.vocab import SubwordVocab
from translation.inference import LoadedModel
from translation.search import suppress
from translation.translator import Translator

# Clients: each translates the file "in" with the folder "exported" ----------


def ask(cwd, *command) -> list[str]:
    """Run a program: its lines of output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def run_saved_model(cwd):
    """The translations and their scores."""
    program = """
import json, tensorflow as tf, tensorflow_text
lines = open("in", encoding="utf-8").read().split("\\n")[:-1]
answer = tf.saved_model.load("exported").signatures["serving_default"](text=tf.constant(lines))
texts = [text.decode() for text in answer["translation"].numpy()]
print(json.dumps([texts, answer["score"].numpy().tolist()]))
"""
    return json.loads(ask(cwd, sys.executable, "-c", program)[-1])


def ask_saved_model(cwd):
    return run_saved_model(cwd)[0]


def ask_ctranslate2(cwd):
    """With the program of docs/export.md, as it says for a vocabulary without --fold_case."""
    section = text_of("export.md").partition("## CTranslate2")[2]
    program = re.search("```python\n(.*?)```", section, re.DOTALL)[1]
    changes = {"/ctranslate2": "", "bpe.source": "bpe", "beam_size=5": "beam_size=1"}
    for old, new in changes.items():
        assert old in program
        program = program.replace(old, new)
    return ask(cwd, sys.executable, "-c", program)


def ask_argos(cwd):
    """As Argos Translate does in its class PackageTranslation, but for the beam."""
    program = """
import ctranslate2, sentencepiece
processor = sentencepiece.SentencePieceProcessor("exported/sentencepiece.model")
translator = ctranslate2.Translator("exported/model")
lines = open("in", encoding="utf-8").read().splitlines()
for result in translator.translate_batch(
    processor.encode(lines, out_type=str), replace_unknowns=True, beam_size=1, length_penalty=0.2
):
    print(processor.decode_pieces(result.hypotheses[0]).replace("▁", " ").removeprefix(" "))
"""
    return ask(cwd, sys.executable, "-c", program)


def ask_onnx(cwd):
    return ask(cwd, "sh", "-c", f"{sys.executable} exported/translate.py < in")


def ask_this_project(cwd):
    return translate(cwd / "exported", (cwd / "in").read_text("utf-8").splitlines())


def translate(logdir, lines, **more):
    """Translate lines with a model of this project."""
    loaded = load(dict(logdir=str(logdir), **more))
    return [translation.text for translation in Translator(loaded)(lines)]


# The client of each format, the package that writes it, and the files besides README.md.
WEB_FILES = "translate.py translator.js index.html style.css"
MARIAN_FILES = "config.json generation_config.json model.safetensors source.spm target.spm"
FORMATS = dict(
    saved_model=(ask_saved_model, "keras", "assets fingerprint.pb saved_model.pb variables"),
    ctranslate2=(ask_ctranslate2, "ctranslate2", "config.json model.bin shared_vocabulary.json"),
    huggingface=(None, "safetensors", f"{MARIAN_FILES} tokenizer_config.json vocab.json"),
    onnx=(ask_onnx, "tf2onnx", f"encoder.onnx step.onnx model.json {WEB_FILES}"),
    argos=(ask_argos, "ctranslate2", "metadata.json model sentencepiece.model"),
    logdir=(ask_this_project, "keras", "hparams.json model_epoch_40_gs_8689.npz run.json"),
)


def exported(folder, format, **more) -> Path:
    """Export the sample model for greedy search: the folder, unpacked."""
    if format == "saved_model":
        tensorflow_text()
    pytest.importorskip(FORMATS[format][1], reason=INSTALL_EXTRAS)
    output = folder / ("packed.argosmodel" if format == "argos" else "exported")
    export.main(dict(logdir=SAMPLE, beam=1, format=format, output=str(output)) | more)
    if format == "argos":
        shutil.unpack_archive(output, folder, "zip")
        output.unlink()
        (folder / "packed").rename(folder / "exported")
    return folder / "exported"


def write(format, loaded, path):
    """Write a model, which need not be on the disk, into an empty folder."""
    more = ("float32",) if format in export.QUANTIZED else ()
    Choice(export.FORMATS[format]).load()(loaded, path, *more)


# Translations -------------------------------------------------------


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Pairs of sentences, and the translations in a results file of eval.py."""
    folder, pairs = tmp_path_factory.mktemp("evaluated"), sample_pairs(60, seed=3)
    source, target = map(str, write_pairs(folder, pairs))
    shutil.copytree(SAMPLE, folder / "model")
    given = dict(source_test=source, target_test=target, beam=1)
    eval.main(given | dict(logdir=str(folder / "model"), results=str(folder / "results")))
    (path,) = (folder / "results").iterdir()
    texts = re.findall("^- got: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert len({*texts}) > 50
    return Path(source), texts


@pytest.mark.parametrize("format", slow_unless(["ctranslate2", "onnx", "logdir"], FORMATS))
def test_exports_translate_as_eval_does(evaluated, tmp_path, capsys, format):
    ask, _, files = FORMATS[format]
    folder = exported(tmp_path, format)
    assert "model_epoch_40_gs_8689" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == [folder]
    names = {path.name for path in folder.iterdir()}
    assert names - {"bpe.model"} == {"README.md", *files.split()}
    assert "# Translation from de to en\n" in (folder / "README.md").read_text("utf-8")
    source, texts = evaluated
    shutil.copy(source, tmp_path / "in")
    assert ask is None or ask(tmp_path) == texts
    if format == "onnx":  # a line may be a paragraph
        (tmp_path / "in").write_text("Der Hund schläft.  Der Mann schläft.\n", "utf-8")
        assert ask(tmp_path) == ["The dog sleeps.  The man sleeps."]
        (tmp_path / "in").write_bytes(b"\xff\n")
        with pytest.raises(AssertionError, match="not text in UTF-8. Convert it"):
            ask(tmp_path)
    if format == "argos":
        metadata = json.loads((folder / "metadata.json").read_text("utf-8"))
        names = [metadata[name] for name in ("from_code", "from_name", "to_code", "to_name")]
        assert names == ["de", "German", "en", "English"]


@pytest.mark.parametrize("format", slow_unless(["ctranslate2"], export.QUANTIZED))
def test_int8_is_smaller_and_translates(evaluated, tmp_path, format):
    sizes, (source, texts) = [], evaluated
    for quantization in ("int8", "float32"):
        (tmp_path / quantization).mkdir()
        folder = exported(tmp_path / quantization, format, quantization=quantization)
        files = [path for path in folder.rglob("*") if path.suffix in (".bin", ".onnx")]
        sizes.append(sum(path.stat().st_size for path in files))
    assert sizes[0] < 0.6 * sizes[1]
    shutil.copy(source, tmp_path / "int8" / "in")
    found = FORMATS[format][0](tmp_path / "int8")
    assert sum(a == b for a, b in zip(found, texts, strict=True)) > 0.5 * len(texts)


@slow
@pytest.mark.parametrize("recipe", ["legacy", "tiny", "rnn_attention"])
@pytest.mark.parametrize("format", ["saved_model", "onnx"])
def test_programs_with_their_own_tokenizer_read_any_line(trained, tmp_path, format, recipe):
    """Words, and subwords without case; the scores are those of the search."""
    flags, beam = trained(recipe), 1 if format == "saved_model" and recipe == "legacy" else 4
    exported(tmp_path, format, logdir=flags["logdir"], beam=beam)
    lines = [line.strip("\ufeff\r") for line in ODD_LINES]
    lines += read_test_sentences(flags["source_test"])
    translations = Translator(load(dict(logdir=flags["logdir"], beam=beam)))(lines)
    texts = [translation.text for translation in translations]
    assert len({*texts}) > 5
    write_lines(tmp_path / "in", lines)
    if format == "onnx":
        program = """
import sys
sys.path.insert(0, "exported")
from translate import Translator
translate = Translator().translate
for line in open("in", encoding="utf-8", newline="\\n"):
    print(translate(line.rstrip("\\r\\n"))[0])
"""
        assert "\n".join(ask(tmp_path, sys.executable, "-c", program)) == "\n".join(texts)
    else:
        answers, scores = run_saved_model(tmp_path)
        assert answers == texts
        found = [own.sentences[0].hypotheses[0].score for own in translations]
        assert beam == 1 or scores == pytest.approx(found, abs=1e-4)
        assert all((score < 0) == (line != "") for line, score in zip(texts, scores, strict=True))


# Probabilities ------------------------------------------------------


def ctranslate2_log_probs(path, vocab, x, y):
    ctranslate2 = pytest.importorskip("ctranslate2", reason=INSTALL_EXTRAS)
    translator = ctranslate2.Translator(str(path))
    source, target = ([*map(vocab.id_to_token, side[:-1])] for side in (x, y))
    return translator.score_batch([source], [target])[0].log_probs


def marian_log_probs(path, vocab, x, y):
    logits = suppress(tf.constant(Marian(path).logits(x, y)), [PAD, UNK])
    return tf.nn.log_softmax(logits).numpy()[range(len(y)), y]


def onnx_log_probs(path, vocab, x, y):
    """Among two hypotheses, which change places at each step."""
    onnxruntime = pytest.importorskip("onnxruntime", reason=INSTALL_EXTRAS)

    def run(name, inputs):
        session = onnxruntime.InferenceSession(path / f"{name}.onnx")
        known = {value.name for value in session.get_inputs()}
        names = [output.name for output in session.get_outputs()]
        inputs = {name: value for name, value in inputs.items() if name in known}
        return dict(zip(names, session.run(None, inputs), strict=True))

    tensors, found = run("encoder", dict(x=np.int32([x]))), []
    for t, token in enumerate(y):
        row, ids = t % 2, [BOS] if t == 0 else [y[t - 1], x[t % len(x)]]
        ids, parents = (ids, [0]) if t == 0 else (ids[:: 1 - 2 * row], [1, 0] if t > 1 else [0, 0])
        given = dict(ids=np.int32(ids), parents=np.int32(parents), count=np.int32([len(vocab)]))
        outputs = run("step", tensors | given)
        tensors |= {name.removeprefix("next_"): value for name, value in outputs.items()}
        (place,) = np.flatnonzero(outputs["tokens"][row] == token)
        found.append(outputs["scores"][row, place])
    return found


LOG_PROBS = dict(
    ctranslate2=ctranslate2_log_probs, huggingface=marian_log_probs, onnx=onnx_log_probs
)
MARIAN = dict(positions="paired_sinusoid", normalization="post")  # what it has, and tiny has not
SCORES = dict(none="additive", learned="bilinear", sinusoid="cosine", product="cosine_softmax")
SMALL = dict(num_blocks=1, decoder_blocks=1)
CASES = [
    *(("ctranslate2", change) for change in (dict(), dict(normalization="post"))),
    ("ctranslate2", MARIAN | dict(architecture="2019")),
    ("ctranslate2", dict(positions="learned", decoder_blocks=3)),
    ("ctranslate2", dict(architecture="marian")),
    *(("huggingface", MARIAN | dict(decoder_blocks=blocks)) for blocks in (0, 1)),
    ("huggingface", MARIAN | dict(architecture="marian")),
    ("huggingface", MARIAN | dict(architecture="2019")),
    *(
        ("onnx", SMALL | dict(positions=name, attention_score=SCORES.get(name, "scaled_dot")))
        for name in POSITIONS
    ),
    ("onnx", SMALL | dict(attention_score="dot", architecture="marian")),
    ("onnx", dict(recipe="rnn", cell="tanh", source_lang="pt_BR")),
    ("onnx", dict(recipe="rnn_attention", cell="gru", attention_score="additive")),
    ("onnx", dict(recipe="rnn_attention", cell="lstm")),
]


def random_model(change) -> LoadedModel:
    """A small model whose parameters, also gamma and beta, are random."""
    vocab = SubwordVocab(Path(SAMPLE) / "bpe.model")
    sizes = dict(hidden_units=16, ffn_units=32, num_blocks=2, num_heads=2, maxlen=20)
    hp = make_hparams(dict(recipe="tiny") | sizes | change)
    model, rng = make_model(hp, len(vocab), len(vocab)), np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(variable + rng.normal(scale=0.1, size=variable.shape))
    return LoadedModel([Path("model.npz")], hp, model, (vocab, vocab))


@pytest.mark.parametrize("case", slow_unless([CASES[0], CASES[5]], CASES), ids=str)
def test_log_probabilities_are_those_of_the_model(tmp_path, case):
    format, change = case
    loaded, rng = random_model(change), np.random.default_rng(1)
    write(format, loaded, tmp_path)
    if "source_lang" in change:  # Intl.Segmenter and sentencex refuse a country after _
        assert json.loads((tmp_path / "model.json").read_text("utf-8"))["languages"] == ["pt", "en"]
    # Sentences, and distances above the last bucket of t5, which is at 128.
    lengths = [(5, 9), (1, 6)] + [(200, 300)] * (format == "ctranslate2" and change == {})
    for sizes in lengths:
        x, y = ([*rng.integers(4, len(loaded.vocabs[0]), size), 3] for size in sizes)
        logits = suppress(loaded.model(np.int32([x]), np.int32([y])), [PAD, UNK])
        expected = tf.nn.log_softmax(logits)[0].numpy()[range(len(y)), y]
        found = LOG_PROBS[format](tmp_path, loaded.vocabs[0], x, y)
        np.testing.assert_allclose(found, expected, atol=1e-3 if format == "huggingface" else 1e-4)


# What is refused ----------------------------------------------------

LEGACY = dict(recipe="legacy")
OTHERS = [dict(attention_score="cosine", positions="none"), dict(residual=False)]
OTHERS += [dict(normalization="none"), LEGACY, dict(recipe="rnn")]


@pytest.mark.parametrize(
    "format, reason, changes",
    [
        ("ctranslate2", "CTranslate2 has no such model", [dict(positions="rotary"), *OTHERS]),
        ("huggingface", "Marian has no such model", [dict(positions="t5"), *OTHERS]),
        ("huggingface", "Export with --format saved_model", [dict(normalization="pre")]),
        ("argos", "needs subwords", [LEGACY]),
        ("onnx", "no temperature", [dict(no_repeat_ngram=2), dict(beam=1, temperature=1.0)]),
    ],
)
def test_models_that_a_format_lacks(tmp_path, format, reason, changes):
    for change in changes:
        hp = make_hparams(change if "recipe" in change else dict(recipe="tiny") | MARIAN | change)
        with pytest.raises(InputError, match=reason):
            write(format, LoadedModel([], hp, None, (None, None)), tmp_path)
    assert not [*tmp_path.iterdir()]


# A folder to give away, and its card --------------------------------


@slow
def test_a_folder_to_give_away_has_the_mean_of_the_parameters(trained, tmp_path):
    flags = trained("tiny")
    mean = dict(logdir=flags["logdir"], average_checkpoints=3)
    export.main(mean | dict(format="logdir", output=str(tmp_path / "shared")))
    lines = read_test_sentences(flags["source_test"])
    assert translate(lines=lines, **mean) == translate(tmp_path / "shared", lines)
    assert {name.partition("/")[0] for name in np.load(latest(tmp_path / "shared"))} == {"weights"}


def test_the_card_of_a_model(trained, tmp_path):
    """It has the scores, each once, and no path of this machine; that of an ensemble has none."""
    logdir = shutil.copytree(trained("tiny")["logdir"], tmp_path / "model")
    score = "sacreBLEU = 12.34 nrefs:1"
    (logdir / model_card.EVALUATIONS).write_text(json.dumps([dict(test="a.de", lines=[score])]))
    hparams = logdir / "hparams.json"
    saved = json.loads(hparams.read_text()) | dict(precision="bfloat16", minutes=7.5)
    hparams.write_text(json.dumps(saved))
    card = model_card.make_card(load(dict(logdir=str(logdir))))
    assert card.splitlines().count(f"    {score}") == 1  # with its signature
    assert card.startswith('---\nlanguage:\n- "de"\n- "en"\n') and "license" in card
    assert "- Text: train.source, train.target" in card and "- 12 complete epochs, " in card
    for flag in ("recipe tiny", "hidden_units 16", "precision bfloat16", "minutes 7.5"):
        assert flag in card
    assert str(tmp_path) not in card and str(Path.home()) not in card
    other = shutil.copytree(logdir, tmp_path / "other")
    card = model_card.make_card(load(dict(logdir=f"{logdir},{other}")))
    assert card.count("- Text: train.source") == 2
    assert "sacreBLEU" not in card and "has not been evaluated" in card
