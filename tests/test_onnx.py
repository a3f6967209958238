"""Models exported to ONNX are tokenized in JavaScript as here, and translate on their page."""

import contextlib
import functools
import http.server
import itertools
import json
import re
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
from serving import SAMPLE
from text.vocab import load_vocabs
from translation.paragraphs import joint
from translation.translator import Translator

README = (onnx_model.WEB / "README.md").read_text("utf-8")
(COMMANDS,) = re.findall(r"```\n(.*?)```", README, re.DOTALL)  # which fetch the runtime
RUNTIME = re.search(r"npm pack (\S+)", COMMANDS)[1]
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
JOIN = """
import {joint, splitText} from "./translator.js";
import fs from "node:fs";
const [texts, joints] = JSON.parse(fs.readFileSync(0, "utf8"));
const split = (text) => splitText(text, "en").map(({sentence, gap}) => [sentence, gap]);
console.log(JSON.stringify([texts.map(split), joints.map((own) => joint(...own))]));
"""
OBSERVE = """
window.said = [];
const status = document.getElementById("status");
new MutationObserver(() => said.push(status.textContent)).observe(status, {childList: true});
"""
# Scripts, marks and spaces that are hard to tokenize.
CHARACTERS = (
    "abcäöüßAÉ.,;'  \t\u00a0\u200b\u200d\u200cİIıſﬁΣσς中文日本 ▁<>0 1½e\u0301\u0308🙂👨👩ア\r١क्ष"
)


needs_node = pytest.mark.skipif(
    not shutil.which("node"), reason="no Node.js. To run them: install node"
)


def run_javascript(program, folder, value):
    """Run a program that imports translator.js in a folder: its answer about a value."""
    shutil.copy(onnx_model.WEB / "translator.js", folder)
    (folder / "package.json").write_text('{"type": "module"}')
    command, given = ["node", "--input-type=module", "--eval", program], json.dumps(value)
    return json.loads(subprocess.check_output(command, input=given, text=True, cwd=folder))


@needs_node
def test_javascript_splits_a_text_and_joins_its_translations(tmp_path):
    """The joints are those of Python."""
    texts = {
        " 車站在哪兒？我迷路了。\n\nYes.  No. ": [
            *(["車站在哪兒？", ""], ["我迷路了。", "\n"], ["", "\n"], ["Yes.", "  "], ["No.", ""])
        ],
        "a" * 500: [["a" * 300, ""], ["a" * 200, ""]],  # is too long
        "a " * 200: [[("a " * 150)[:-1], " "], [("a " * 50)[:-1], ""]],
        "": [],
    }
    parts = ("Gut.", "好。", "「はい。」", "Ja", "", "ไป"), ("", " ", "  ", "\n", "\u3000", " \t")
    joints = [*itertools.product(*parts, ("好。", "「はい。」", "OK", "Good.", ""))]
    joints = [own for own in joints if own[:2] != ("ไป", "")]  # a sentence does not end so
    found = run_javascript(JOIN, tmp_path, [[*texts], joints])
    assert found == [[*texts.values()], [joint(*own) for own in joints]]


@needs_node
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
    rng = np.random.default_rng(1)
    lines = ["".join(rng.choice([*CHARACTERS], rng.integers(0, 30))) for _ in range(500)]
    lines += [line for pair in sample_pairs(50, seed=2) for line in pair]
    lines += [">>eng<< Der Hund", "ﬁnden Ⅻ ½ ＡＢ ｶﾞ", ">>de<< Der Hund", "Der>>d<num>>>de<<"]
    lines += ["<num>", "▁", " ", "", "Hund " * 60]
    found = run_javascript(TOKENIZE, tmp_path, lines)
    for line, ids, (their_ids, text) in zip(
        lines, source.encode(source.prepare(lines)), found, strict=True
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
        done = subprocess.run(["bash", "-ec", COMMANDS], cwd=work, capture_output=True, timeout=300)
        if done.returncode:
            pytest.skip(f"{RUNTIME} cannot be downloaded")
        shutil.copytree(work / "ort", folder, dirs_exist_ok=True)
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
        driver.get((folder / "index.html").as_uri())
        wait_for(lambda: "Run python -m http.server" in text_of("status"))
        driver.get(address)  # without the runtime, and without a network
        wait_for(lambda: "onnxruntime-web is missing" in text_of("status"))
        shutil.copytree(runtime, folder / "ort")
        for width in (1200, 400):
            driver.set_window_size(width, 800)
            driver.get(address)
            source = driver.find_element("id", "source")
            wait_for(source.is_enabled)
            assert driver.title == "German to English"
            source.send_keys("\n".join(lines))
            wait_for(lambda: text_of("target").split("\n") == expected, seconds=30)
            wait_for(lambda: not text_of("status"))
            widths = driver.execute_script(
                "return [document.documentElement.scrollWidth, innerWidth]"
            )
            assert widths[0] <= widths[1]
        write = "arguments[0].value = arguments[1]; arguments[0].oninput()"
        driver.execute_script(write, source, "Hund " * 1001)
        wait_for(lambda: "at most 5000 characters" in text_of("status"))
        assert not text_of("target")
        driver.execute_script(OBSERVE)
        driver.execute_script(write, source, "Hund " * 100)  # too long for one sentence
        wait_for(lambda: driver.execute_script("return said.at(-1)") == "")
        said = driver.execute_script("return said")
        assert said == ["Sentence 1 of 2 …", "Sentence 2 of 2 …", ""]
        requests = driver.execute_script(
            "return performance.getEntriesByType('resource').map((entry) => entry.name)"
        )
        assert requests and all(name.startswith(address) for name in requests)
