"""Exported models translate as eval.py does, in processes without this project."""

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sacrebleu

import eval
import export
import train
from conftest import INSTALL_EXTRAS, sample_pairs, slow, slow_unless
from helpers import (
    ODD_LINES,
    load,
    parameters,
    read_test_sentences,
    run_main,
    run_saved_models,
    tensorflow_text,
    text_of,
    write_pairs,
)
from hparams import make_hparams
from inference import LoadedModel, Translator
from marian import CLIENT_PYTHON, INSTALLED
from processes import ROOT
from runtime.errors import InputError

SAMPLE = str(ROOT / "docs" / "sample_model")

# Clients: each translates the file "in" with the folder "exported" -------------------


def ask(cwd, *command) -> list[str]:
    """Run a program: its lines of output."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def ask_saved_model(cwd):
    lines = (cwd / "in").read_text("utf-8").splitlines()
    return run_saved_models([cwd / "exported"], lines, cwd)[0][0]


def ask_ctranslate2(cwd, beam=1):
    """With the program of docs/export.md, as it says for a vocabulary without --fold_case."""
    section = text_of("export.md").partition("## CTranslate2")[2]
    program = re.search("```python\n(.*?)```", section, re.DOTALL)[1]
    changes = {"/ctranslate2": "", "bpe.source": "bpe", "beam_size=5": f"beam_size={beam}"}
    for old, new in changes.items():
        assert old in program
        program = program.replace(old, new)
    return ask(cwd, sys.executable, "-c", program)


def ask_argos(cwd):
    """As Argos Translate does in its class PackageTranslation, but for the beam."""
    return ask(
        cwd,
        sys.executable,
        "-c",
        """
import ctranslate2, sentencepiece
processor = sentencepiece.SentencePieceProcessor("exported/sentencepiece.model")
translator = ctranslate2.Translator("exported/model")
lines = open("in", encoding="utf-8").read().splitlines()
for result in translator.translate_batch(
    processor.encode(lines, out_type=str), replace_unknowns=True, beam_size=1, length_penalty=0.2
):
    print(processor.decode_pieces(result.hypotheses[0]).replace("▁", " ").removeprefix(" "))
""",
    )


def ask_transformers(cwd):
    if not INSTALLED and CLIENT_PYTHON == sys.executable:
        pytest.skip("no Hugging Face")
    return ask(
        cwd,
        CLIENT_PYTHON,
        "-c",
        """
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("exported")
model = AutoModelForSeq2SeqLM.from_pretrained("exported")
for line in open("in", encoding="utf-8"):
    output = model.generate(**tokenizer(line.strip(), return_tensors="pt"))
    print(tokenizer.decode(output[0], skip_special_tokens=True))
""",
    )


def ask_onnx(cwd):
    return ask(cwd, "sh", "-c", f"{sys.executable} exported/translate.py < in")


def ask_this_project(cwd):
    return translate(cwd / "exported", (cwd / "in").read_text("utf-8").splitlines())


def translate(logdir, lines, **more):
    """Translate lines with a model of this project."""
    loaded = load(dict(logdir=str(logdir), **more))
    return [translation.text for translation in Translator(loaded)(lines)]


# The client of each format, the package that writes it, and the files besides README.md.
FORMATS = dict(
    saved_model=(
        ask_saved_model,
        "tensorflow_text",
        "assets fingerprint.pb saved_model.pb variables",
    ),
    ctranslate2=(
        ask_ctranslate2,
        "ctranslate2",
        "bpe.model config.json model.bin shared_vocabulary.json",
    ),
    huggingface=(
        ask_transformers,
        "safetensors",
        "config.json generation_config.json model.safetensors source.spm target.spm"
        " tokenizer_config.json vocab.json",
    ),
    onnx=(
        ask_onnx,
        "tf2onnx",
        "bpe.model encoder.onnx index.html model.json step.onnx translate.py translator.js",
    ),
    argos=(ask_argos, "ctranslate2", "metadata.json model sentencepiece.model"),
    logdir=(
        ask_this_project,
        "numpy",
        "bpe.model hparams.json model_epoch_40_gs_8689.npz run.json",
    ),
)
FAST = "ctranslate2", "onnx", "logdir"


def need_package(format):
    """Skip the test if a package cannot be used."""
    if format == "saved_model":
        tensorflow_text()
    pytest.importorskip(FORMATS[format][1], reason=INSTALL_EXTRAS)


def exported(folder, format, **more) -> Path:
    """Export the sample model for greedy search: the folder, unpacked."""
    output = folder / ("packed.argosmodel" if format == "argos" else "exported")
    given = dict(logdir=SAMPLE, beam=1, format=format, output=str(output)) | more
    run_main(export, given)
    if format == "argos":
        shutil.unpack_archive(output, folder, "zip")
        output.unlink()
        (folder / "packed").rename(folder / "exported")
    return folder / "exported"


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """Pairs of sentences, and the translations in a results file of eval.py."""
    folder, pairs = tmp_path_factory.mktemp("evaluated"), sample_pairs(60, seed=3)
    source, target = map(str, write_pairs(folder, pairs))
    shutil.copytree(SAMPLE, folder / "model")
    given = dict(source_test=source, target_test=target, beam=1)
    run_main(eval, given | dict(logdir=str(folder / "model"), results=str(folder / "results")))
    (path,) = (folder / "results").iterdir()
    texts = re.findall("^- got: (.*)$", path.read_text("utf-8"), re.MULTILINE)
    assert len({*texts}) > 50
    return Path(source), texts


@pytest.mark.parametrize("format", slow_unless(FAST, FORMATS))
def test_exports_translate_as_eval_does(evaluated, tmp_path, capsys, format):
    need_package(format)
    ask, _, files = FORMATS[format]
    folder = exported(tmp_path, format)
    assert "model_epoch_40_gs_8689" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == [folder]
    assert {path.name for path in folder.iterdir()} == {"README.md", *files.split()}
    assert "# Translation from de to en\n" in (folder / "README.md").read_text("utf-8")
    source, texts = evaluated
    shutil.copy(source, tmp_path / "in")
    assert ask(tmp_path) == texts


@pytest.mark.parametrize("format", slow_unless(["ctranslate2"], export.QUANTIZED))
def test_int8_is_smaller_and_translates(evaluated, tmp_path, format):
    need_package(format)
    sizes = {}
    for quantization in ("float32", "int8"):
        (tmp_path / quantization).mkdir()
        folder = exported(tmp_path / quantization, format, quantization=quantization)
        files = [path for path in folder.rglob("*") if path.suffix in (".bin", ".onnx")]
        sizes[quantization] = sum(path.stat().st_size for path in files)
    # CTranslate2 does not quantize the positions.
    assert sizes["int8"] < (0.5 if format == "onnx" else 0.6) * sizes["float32"]
    source, texts = evaluated
    shutil.copy(source, tmp_path / "int8" / "in")
    found = FORMATS[format][0](tmp_path / "int8")
    assert sum(a == b for a, b in zip(found, texts, strict=True)) > 0.5 * len(texts)


def test_the_languages_of_a_package(tmp_path):
    need_package("argos")
    metadata = json.loads((exported(tmp_path, "argos") / "metadata.json").read_text("utf-8"))
    names = [metadata[name] for name in ("from_code", "from_name", "to_code", "to_name")]
    assert names == ["de", "German", "en", "English"]


@slow
def test_beam_search_of_ctranslate2_has_nearly_the_same_bleu(tmp_path):
    """Its penalty is another one."""
    lines, references = map(list, zip(*sample_pairs(500, seed=3), strict=True))
    need_package("ctranslate2")
    exported(tmp_path, "ctranslate2")
    (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines), "utf-8")
    score, other = (
        sacrebleu.corpus_bleu(texts, [references]).score
        for texts in (translate(SAMPLE, lines, beam=5), ask_ctranslate2(tmp_path, beam=5))
    )
    assert score > 50 and other == pytest.approx(score, abs=0.2)


# What is refused -------------------------------------------------------------------

LEGACY = dict(recipe="legacy")


@pytest.mark.parametrize(
    "format, reason, changes",
    [
        (
            "ctranslate2",
            "CTranslate2 has no such model. Export with --format saved_model",
            [dict(positions="rotary")],
        ),
        (
            "huggingface",
            "Marian has no such model. Export with --format saved_model",
            [dict(positions="t5"), dict(normalization="pre")],
        ),
    ],
)
def test_models_that_a_format_lacks(tmp_path, format, reason, changes):
    marian = dict(recipe="tiny", positions="paired_sinusoid", normalization="post")
    changes += [dict(attention_score="cosine", positions="none"), dict(residual=False)]
    changes += [dict(normalization="none"), LEGACY, dict(recipe="rnn")]
    for change in changes:
        hp = make_hparams(change if "recipe" in change else marian | change)
        with pytest.raises(InputError, match=reason):
            write(format, LoadedModel([], hp, None, (None, None)), tmp_path / "out")
    assert not [*tmp_path.iterdir()]


def write(format, loaded, path):
    importlib.import_module(export.FORMATS[format]).write(loaded, path)


@pytest.mark.parametrize(
    "given, reason",
    [
        (dict(output=SAMPLE), "already exists"),
        (dict(quantization="int8"), "quantization is for ctranslate2, onnx, argos"),
        (dict(format="onnx", no_repeat_ngram=2), "the ONNX search has no temperature"),
        *(
            (dict(format=format, logdir=f"{SAMPLE},{{model}}"), f"several models, and {format} has")
            for format in ("ctranslate2", "huggingface", "argos", "logdir")
        ),
    ],
)
def test_what_a_format_lacks(evaluated, tmp_path, given, reason):
    given = dict(logdir=SAMPLE, output=str(tmp_path / "out")) | given
    given["logdir"] = given["logdir"].format(model=evaluated[0].parent / "model")
    with pytest.raises(InputError, match=reason):
        run_main(export, given)
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("format", [name for name in FORMATS if name != "logdir"])
def test_a_package_that_is_missing_is_named(tmp_path, monkeypatch, format):
    package = FORMATS[format][1]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=f"{package} is not installed. .* `pip install"):
        exported(tmp_path, format)
    assert not [*tmp_path.iterdir()]


def test_argos_needs_subwords(tmp_path):
    with pytest.raises(InputError, match="needs subwords"):
        write("argos", LoadedModel([], make_hparams(LEGACY), None, ()), tmp_path / "out")


# Other models ----------------------------------------------------------------------


@slow
def test_saved_models_read_any_line(trained, tmp_path):
    """Of words, and of subwords; the scores are those of the search."""
    models = {trained("legacy")["logdir"]: 1, trained("tiny")["logdir"]: 4}
    paths = [tmp_path / str(beam) for beam in models.values()]
    for (logdir, beam), path in zip(models.items(), paths, strict=True):
        run_main(export, dict(logdir=logdir, beam=beam, output=str(path)))
    lines = [line.strip("\ufeff\r") for line in ODD_LINES]
    lines += read_test_sentences(trained("tiny")["source_test"]).raw
    answers = run_saved_models(paths, lines, tmp_path)
    for (logdir, beam), (texts, scores) in zip(models.items(), answers, strict=True):
        translations = Translator(load(dict(logdir=logdir, beam=beam)))(lines)
        assert texts == [translation.text for translation in translations]
        assert len({*texts}) > 5
        found = [own.hypotheses[0].score for own in translations]
        assert beam == 1 or scores == pytest.approx(found, abs=1e-4)
        assert all((score < 0) == (line != "") for line, score in zip(texts, scores, strict=True))


@slow
def test_a_folder_to_give_away(trained, tmp_path):
    """It has the mean of the parameters alone, and starts another training."""
    flags, path = trained("tiny"), tmp_path / "shared"
    mean = dict(logdir=flags["logdir"], average_checkpoints=3)
    run_main(export, mean | dict(format="logdir", output=str(path)))
    sizes = [
        sum(file.stat().st_size for file in Path(folder).iterdir() if "tfevents" not in file.name)
        for folder in (flags["logdir"], path)
    ]
    assert sizes[1] < sizes[0] / 3
    lines = read_test_sentences(flags["source_test"]).raw
    assert translate(lines=lines, **mean) == translate(path, lines)
    shared = parameters(path)
    more = dict(start_from=str(path), logdir=str(tmp_path / "more"), num_epochs=1, lr=1e-30)
    run_main(train, flags | more)
    for name, array in parameters(tmp_path / "more").items():
        np.testing.assert_allclose(array, shared[name], atol=1e-6)


@slow
@pytest.mark.parametrize("format", ["logdir", "saved_model"])
def test_a_model_of_the_2017_code_translates_a_real_test_set(
    original_run, real_text, tmp_path, format
):
    flags = {name: str(original_run / name) for name in ("logdir", "preprocessed")}
    flags |= dict(num_heads=4)
    exported(tmp_path, format, **flags)
    shutil.copy(real_text / "multi30k" / "test_2016_flickr.de", tmp_path / "in")
    lines = (tmp_path / "in").read_text("utf-8").splitlines()
    found = FORMATS[format][0](tmp_path)
    assert found == translate(lines=lines, **flags) and len({*found}) > 900
