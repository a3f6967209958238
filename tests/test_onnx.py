"""Models exported to ONNX translate as here: in Python, in JavaScript, and on their page."""

import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

import prepro
from browser import chromium, wait_for
from choices import ATTENTION_SCORES, POSITIONS
from conftest import (
    INSTALL_EXTRAS,
    recurrent_model,
    sample_pairs,
    slow,
    slow_unless,
    transformer,
    write_corpus,
)
from data_load import encode_lines
from helpers import ODD_LINES, load, read_test_sentences, run_main, run_translate
from hparams import make_hparams
from ids import BOS, EOS, PAD
from inference import SearchDecoder
from interop import onnx_model
from interop.pretrained import read_pretrained
from marian import make_marian
from processes import ROOT, forked_script
from search import suppress
from vocab import load_vocabs

onnxruntime = pytest.importorskip("onnxruntime", reason=INSTALL_EXTRAS)
pytest.importorskip("tf2onnx", reason=INSTALL_EXTRAS)

RUNTIME = "onnxruntime-web@1.30.0"  # the version that the page names
TOKENIZE = """
import fs from "node:fs";
import {Translator} from "./translator.js";
const settings = JSON.parse(fs.readFileSync("model.json"));
const translator = new Translator(settings, null, null, null);
const lines = JSON.parse(fs.readFileSync(0, "utf8"));
const [source, target] = translator.tokenizers;
console.log(JSON.stringify(lines.map((line) => {
    const ids = source.encode(translator.normalized(line));
    return [ids, translator.normalized(target.decode(ids))];
})));
"""
# Scripts, marks and spaces that are hard to tokenize.
CHARACTERS = (
    "abcäöüßAÉ.,;'  \t\u00a0\u200b\u200d\u200cİIıſﬁΣσς中文日本 ▁<>0 1½e\u0301\u0308🙂👨👩ア\r١क्ष"
)


def export(flags, path, **more):
    """Export a model, and return the folder."""
    done = forked_script("export.py", logdir=flags["logdir"], format="onnx", output=path, **more)
    assert done.returncode == 0 and f"{path}: " in done.stdout, done.stderr
    return path


def translate_with_python(folder, text, *options) -> str:
    """Translate bytes with the program in an exported folder, without this project."""
    done = subprocess.run(
        [sys.executable, folder / "translate.py", *options],
        input=text,
        stdout=subprocess.PIPE,
        cwd=folder,
        check=True,
    )
    return done.stdout.decode()


@pytest.fixture(
    scope="module", params=slow_unless(["tiny"], ["legacy", "paper", "tiny", "rnn_attention"])
)
def exported(request, trained, tmp_path_factory):
    """The flags of a model, and the folder of its export."""
    flags = trained(request.param)
    return flags, export(flags, tmp_path_factory.mktemp("onnx") / "model", beam=4)


@pytest.mark.parametrize("beam", slow_unless([4], [1, 4]))
def test_translations_in_python_are_equal(exported, beam):
    flags, folder = exported
    lines = [*read_test_sentences(flags["source_test"]).raw, *ODD_LINES[1:]]
    text = "".join(f"{line}\n" for line in lines).encode()
    ours, _ = run_translate(flags, text, beam=beam, protect=False)
    # A model of 2017 may choose <PAD> in greedy search, which is decided when it is exported.
    if beam > 1 or flags["recipe"] != "legacy":
        assert translate_with_python(folder, text, "--beam", str(beam)) == ours
    assert len({*ours.splitlines()}) > 5


def make_random_model(positions="t5", attention_score="scaled_dot", **fields):
    """Make a small model with random parameters."""
    if fields.get("model") == "rnn":
        return recurrent_model(50, 50, hidden_units=16, **fields)
    sizes = dict(hidden_units=16, ffn_units=32, num_blocks=2, num_heads=2, maxlen=20)
    kind = dict(positions=positions, attention_score=attention_score, mask_from="ids")
    return transformer(50, 50, **sizes, **kind, **fields)


KINDS = (
    [dict(positions=name, decoder_blocks=1) for name in POSITIONS]
    + [dict(positions="none", attention_score=name) for name in ATTENTION_SCORES]
    + [dict(ffn_activation="swish", output_bias=True, tied_embeddings=True)]
    + [
        dict(model="rnn", cell=cell, decoder_attention=attention)
        for cell in ("tanh", "gru", "lstm")
        for attention in (True, False)
    ]
)


@pytest.mark.parametrize(
    "fields", slow_unless([], KINDS), ids=lambda kind: "-".join(map(str, kind.values()))
)
def test_graphs_compute_what_the_model_computes(tmp_path, fields):
    model = make_random_model(**fields)
    sessions = {}
    for name, function in onnx_model.make_functions(model, [PAD]).items():
        path = tmp_path / f"{name}.onnx"
        onnx_model.save_onnx(function, path, "float32")
        sessions[name] = onnxruntime.InferenceSession(path)

    def run(name, **inputs):
        outputs = [output.name for output in sessions[name].get_outputs()]
        known = {value.name for value in sessions[name].get_inputs()}
        inputs = {key: value for key, value in inputs.items() if key in known}
        return dict(zip(outputs, sessions[name].run(None, inputs), strict=True))

    x = np.array([[5, 6, 7, 8, EOS]], np.int32)
    memory = model.encode_memory(x)
    state = model.initial_cache(memory)
    tensors = run("encoder", x=x)
    rng = np.random.default_rng(0)
    newest, parents = np.array([BOS], np.int32), np.array([0], np.int32)
    for rows in (3, 3, 2, 3):
        rows_of_parents = [tf.gather(tensor, parents) for tensor in tf.nest.flatten(state)]
        state = tf.nest.pack_sequence_as(state, rows_of_parents)
        logits, state = model.decode_step(newest, state, memory)
        expected, _ = tf.math.top_k(tf.nn.log_softmax(suppress(logits, [PAD])), 6)
        count = np.array([6], np.int32)
        outputs = run("step", ids=newest, parents=parents, count=count, **tensors)
        np.testing.assert_allclose(outputs["scores"], expected, atol=1e-4)
        names = [name for name in outputs if name.startswith("next_")]
        tensors |= {name.removeprefix("next_"): outputs[name] for name in names}
        parents = rng.integers(0, len(newest), rows).astype(np.int32)
        newest = rng.integers(4, 50, rows).astype(np.int32)


# JavaScript ----------------------------------------------------------------------


needs_node = pytest.mark.skipif(
    not shutil.which("node"), reason="no Node.js. To run them: install node"
)


@needs_node
@pytest.mark.parametrize(
    "more",
    [
        dict(fold_case=True),
        dict(fold_case=False, byte_fallback=True, vocab_size=400, symbols=">>de<<,>>d,<num>"),
        dict(recipe="legacy", min_cnt=1),
    ],
    ids=["folded case", "symbols and bytes", "words"],
)
def test_javascript_tokenizes_as_sentencepiece(tmp_path, more):
    flags = write_corpus(tmp_path, sample_pairs(90))
    flags |= dict(recipe="tiny") | more
    run_main(prepro, flags)
    check_javascript(tmp_path, load_vocabs(flags["preprocessed"], make_hparams(flags)))


@needs_node
def test_javascript_tokenizes_as_marian(tmp_path):
    texts = [list(side) for side in zip(*sample_pairs(300), strict=True)]
    make_marian(tmp_path / "marian", texts)
    check_javascript(tmp_path, read_pretrained(tmp_path / "marian", {}).vocabs)


def check_javascript(tmp_path, vocabs):
    """Compare the tokens of odd and usual lines."""
    source, target = vocabs
    settings = dict(
        source=onnx_model.describe_tokenizer(source) | onnx_model.encoding_rules(source),
        target=onnx_model.describe_tokenizer(target),
        normalize=onnx_model.normalization_patterns(),
    )
    (tmp_path / "model.json").write_text(json.dumps(settings), "utf-8")
    shutil.copy(onnx_model.WEB / "translator.js", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    rng = np.random.default_rng(1)
    lines = ["".join(rng.choice([*CHARACTERS], rng.integers(0, 30))) for _ in range(500)]
    lines += [line for pair in sample_pairs(50, seed=2) for line in pair]
    lines += [
        ">>eng<< Der Hund",
        "ﬁnden Ⅻ ½ ＡＢ ｶﾞ",
        ">>de<< Der Hund",
        "Der>>d<num>>>de<<",
        "<num>",
        "▁",
        " ",
        "",
        "Hund " * 60,
    ]
    done = subprocess.run(
        ["node", "--input-type=module", "--eval", TOKENIZE],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=True,
    )
    for line, ids, (their_ids, text) in zip(
        lines, source.encode(source.prepare(lines)), json.loads(done.stdout), strict=True
    ):
        assert their_ids == ids[:-1], line
        if all(i < len(target) for i in ids):
            assert text == target.decode(ids), line


def text_of(driver, name) -> str:
    """Return the text of an element of a page."""
    return driver.find_element("id", name).text


@contextlib.contextmanager
def served(folder):
    """Context manager: the address of a static server of a folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    handler.log_message = lambda *args: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


@pytest.fixture(scope="module")
def runtime(request, tmp_path_factory):
    """The folder with the files of onnxruntime-web; skips the test without it."""
    folder = request.config.cache.mkdir("onnxruntime-web")
    if not (folder / "ready").exists():
        if not shutil.which("npm"):
            pytest.skip("no npm. To run them: install Node.js")
        work = tmp_path_factory.mktemp("npm")
        done = subprocess.run(["npm", "pack", RUNTIME], cwd=work, capture_output=True, timeout=300)
        if done.returncode:
            pytest.skip(f"{RUNTIME} cannot be downloaded")
        (archive,) = work.glob("*.tgz")
        shutil.unpack_archive(archive, work, filter="data")
        for path in (work / "package" / "dist").glob("ort*wasm*"):
            shutil.copy(path, folder)
        (folder / "ready").touch()
    return folder


@slow
def test_the_page_translates(exported, runtime, tmp_path):
    flags, folder = exported
    folder = shutil.copytree(folder, tmp_path / "page")
    lines = read_test_sentences(flags["source_test"]).raw[:8]
    ours = SearchDecoder(load(dict(logdir=flags["logdir"], beam=4)))
    vocabs, hp = ours.loaded.vocabs, ours.loaded.hp
    expected = [best.text for [best] in ours(encode_lines(lines, vocabs[0], hp)[0])]
    with served(folder) as address, chromium() as driver:
        driver.get(address)  # without the runtime, and without a network
        wait_for(lambda: "onnxruntime-web is missing" in text_of(driver, "status"))
        shutil.copytree(runtime, folder / "ort")
        for width in (1200, 400):
            driver.set_window_size(width, 800)
            driver.get(address)
            source = driver.find_element("id", "source")
            wait_for(source.is_enabled)
            source.send_keys("\n".join(lines))
            wait_for(lambda: text_of(driver, "target").split("\n") == expected, seconds=30)
            assert not text_of(driver, "status")
            widths = driver.execute_script(
                "return [document.documentElement.scrollWidth, innerWidth]"
            )
            assert widths[0] <= widths[1]
        requests = driver.execute_script(
            "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        assert requests and all(name.startswith(address) for name in requests)


def test_the_page_names_the_tested_runtime():
    assert RUNTIME in (ROOT / "interop" / "web" / "index.html").read_text("utf-8")
