"""Models exported to ONNX are tokenized in JavaScript as here, and translate on their page."""

import contextlib
import functools
import http.server
import json
import shutil
import subprocess
import threading

import numpy as np
import pytest

import export
import prepro
from browser import chromium, wait_for
from conftest import INSTALL_EXTRAS, sample_pairs, slow, write_corpus
from formats import onnx_model
from formats.marian import read_pretrained
from helpers import load
from hparams import make_hparams
from marian import make_marian
from processes import ROOT
from text.vocab import load_vocabs
from translation.translator import Translator

SAMPLE = str(ROOT / "docs" / "sample_model")
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


@pytest.mark.skipif(not shutil.which("node"), reason="no Node.js. To run them: install node")
@pytest.mark.parametrize(
    "more",
    [
        dict(fold_case=True),
        dict(fold_case=False, byte_fallback=True, vocab_size=400, symbols=">>de<<,>>d,<num>"),
        dict(recipe="legacy", min_cnt=1),
        None,  # a model of Marian
    ],
    ids=["folded case", "symbols and bytes", "words", "unigrams"],
)
def test_javascript_tokenizes_as_sentencepiece(tmp_path, more):
    if more:
        flags = write_corpus(tmp_path, sample_pairs(90)) | dict(recipe="tiny") | more
        prepro.main(flags)
        source, target = load_vocabs(flags["preprocessed"], make_hparams(flags))
    else:
        make_marian(tmp_path / "marian", [[*side] for side in zip(*sample_pairs(300), strict=True)])
        source, target = read_pretrained(tmp_path / "marian", {}).vocabs
    settings = dict(
        source=onnx_model.describe_tokenizer(source, encodes=True),
        target=onnx_model.describe_tokenizer(target),
        normalize=onnx_model.normalization_patterns(),
    )
    (tmp_path / "model.json").write_text(json.dumps(settings), "utf-8")
    shutil.copy(onnx_model.WEB / "translator.js", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    rng = np.random.default_rng(1)
    lines = ["".join(rng.choice([*CHARACTERS], rng.integers(0, 30))) for _ in range(500)]
    lines += [line for pair in sample_pairs(50, seed=2) for line in pair]
    lines += [">>eng<< Der Hund", "ﬁnden Ⅻ ½ ＡＢ ｶﾞ", ">>de<< Der Hund", "Der>>d<num>>>de<<"]
    lines += ["<num>", "▁", " ", "", "Hund " * 60]
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
def test_the_page_translates(runtime, tmp_path):
    pytest.importorskip("tf2onnx", reason=INSTALL_EXTRAS)
    folder = tmp_path / "page"
    export.main(dict(logdir=SAMPLE, format="onnx", output=str(folder)))
    assert RUNTIME in (folder / "index.html").read_text("utf-8")
    lines = [line for line, _ in sample_pairs(8, seed=2)]
    expected = [own.text for own in Translator(load(dict(logdir=SAMPLE)))(lines)]
    with served(folder) as address, chromium() as driver:
        text_of = lambda name: driver.find_element("id", name).text  # noqa: E731
        driver.get(address)  # without the runtime, and without a network
        wait_for(lambda: "onnxruntime-web is missing" in text_of("status"))
        shutil.copytree(runtime, folder / "ort")
        for width in (1200, 400):
            driver.set_window_size(width, 800)
            driver.get(address)
            source = driver.find_element("id", "source")
            wait_for(source.is_enabled)
            source.send_keys("\n".join(lines))
            wait_for(lambda: text_of("target").split("\n") == expected, seconds=30)
            assert not text_of("status")
            widths = driver.execute_script(
                "return [document.documentElement.scrollWidth, innerWidth]"
            )
            assert widths[0] <= widths[1]
        requests = driver.execute_script(
            "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        assert requests and all(name.startswith(address) for name in requests)
