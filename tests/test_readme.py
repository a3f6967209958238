"""Every command of README.md works, on a corpus and with a model that are small.

And what it names is there, and every function has its docstring.
"""

import ast
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, forked, sample_pairs

TEXT = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
# What makes it small, behind the flags that the README gives.
VOCAB = "--vocab_size 300 --min_cnt 1"
SMALL = {
    "prepro.py": VOCAB,
    "train.py": f"{VOCAB} --maxlen 40 --hidden_units 16 --ffn_units 16 --num_blocks 1 --num_heads 2"
    " --batch_tokens 0 --batch_size 32 --lr 0.01 --warmup_steps 10 --num_epochs 2",
}
MODEL_OF_THE_ORIGINAL = "python eval.py --num_heads 8"  # test_checkpoint.py has one


def commands(block):
    """The lines of a block without their comments, those that go on as one."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in (re.sub(r"(^|\s)#.*", "", line).strip() for line in lines) if line]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts, and text under all the names that the README gives."""
    folder = tmp_path_factory.mktemp("repository")
    for path in [*ROOT.glob("*.py"), ROOT / "serve.html"]:
        (folder / path.name).symlink_to(path)
    pairs = sample_pairs(400)
    (folder / "corpora").mkdir()
    named = set(re.findall(r"[\w./-]+\.(?:de|en)(?:\.xml)?(?=[\s`])", TEXT))
    for name in named | {f"corpora/IWSLT16.TED.tst2014.de-en.{lang}.xml" for lang in ("de", "en")}:
        side = re.search(r"\.(de|en)(\.xml)?$", name)[1] == "en"
        text = "".join(f"{pair[side]}\n" for pair in pairs)
        (folder / name).write_text(text, "utf-8")
    (folder / "in").write_text("".join(f"{pair[0]}\n" for pair in pairs[:5]), "utf-8")
    return folder


def run(command, folder):
    """Run a command of the README as it stands, but small."""
    _, script, *words = shlex.split(command)
    files = {mark: words.pop(words.index(mark) + 1) for mark in "<>" if mark in words}
    words = [word for word in words if word not in "<>"] + SMALL.get(script, "").split()
    done = forked([script, *words], folder, folder / files.get("<", "in"))
    assert done.returncode == 0, (command, done.stderr)
    if ">" in files:
        (folder / files[">"]).write_text(done.stdout, "utf-8")


def serves(command, folder):
    """Whether a server tells its address."""
    words = [sys.executable, *command.split()[1:], "--port", "0"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        found = any("http://127.0.0.1:" in line for line in iter(process.stdout.readline, ""))
        process.kill()
    return found


def test_every_command(folder):
    ran = []
    for kind, block in BLOCKS:
        lines = [line for line in commands(block) if line.startswith("python ")]
        if kind == "python":
            done = subprocess.run(
                [sys.executable, "-c", block], cwd=folder, capture_output=True, text=True
            )
            assert done.returncode == 0 and done.stdout, done.stderr
            ran.append(block)
        if any("prepro.py" in line for line in lines):  # another training
            for name in ("logdir", "preprocessed", "results"):
                shutil.rmtree(folder / name, ignore_errors=True)
        for line in lines:
            if line.startswith("python serve.py"):
                assert serves(line, folder)
            elif line != MODEL_OF_THE_ORIGINAL:
                run(line, folder)
            ran.append(line)
    assert len(ran) > 15 and (folder / "out.png").exists()
    assert len((folder / "out").read_text("utf-8").splitlines()) == 5


def test_every_public_function_says_what_it_does():
    for path in [*ROOT.glob("*.py"), *ROOT.glob("[bcd]*/*.py")]:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            members = node.body if isinstance(node, (ast.Module, ast.ClassDef)) else []
            for inner in members:
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                    said = inner.name.startswith("_") or ast.get_docstring(inner)
                    assert said, f"{path}:{inner.lineno}: {inner.name}"


def test_what_it_names_is_there():
    for name in re.findall(r"\]\((?!http|#)([^)#]+)", TEXT):
        assert (ROOT / name).exists(), name
    for anchor in re.findall(r"\]\(#([^)]+)\)", TEXT):
        titles = re.findall(r"^#+ (.+)$", TEXT, re.MULTILINE)
        assert anchor in {title.lower().replace(" ", "-").replace("'", "") for title in titles}
    for path in ROOT.glob("*.py"):
        assert f"`{path.name}`" in TEXT, path.name
    for line in Path(ROOT / "requirements.txt").read_text().splitlines():
        if not line.startswith("#"):
            assert re.search(rf"^\| .*\b{re.split('[>=<]', line)[0]}\b", TEXT, re.MULTILINE), line
