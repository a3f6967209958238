"""Every command of README.md and docs/ works, on a small corpus and with a small model.

The documents also name only files that exist.
"""

import ast
import re
import shlex
import shutil
import string
import subprocess
import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conftest import sample_pairs, slow
from helpers import DOCUMENTS, FOLDERS, PRODUCT, blocks, text_of, write_lines
from processes import ROOT, Forked, forked

# Added to the flags of the documents to make everything small.
VOCAB = "--vocab_size 300 --min_cnt 1"
SMALL = {
    "prepro.py": VOCAB,
    "train.py": f"{VOCAB} --maxlen 40 --hidden_units 16 --ffn_units 16 --num_blocks 1 --num_heads 2"
    " --batch_tokens 0 --batch_size 32 --lr 0.01 --warmup_steps 10 --num_epochs 2",
}
SKIPPED = {
    "python eval.py --num_heads 8": "tests/test_checkpoint.py has a model of the 2017 code",
    "python -m http.server": "tests/test_onnx.py opens the page",
    "python corpora/download.py": "tests/test_download.py has a server",
    "python corpora/clean.py": "tests/test_corpora.py runs it",
    "python quickstart.py": "tests/test_quickstart.py runs it",
    "python corpora/split.py": "tests/test_corpora.py runs it",
    "python tests/mutants.py": "takes hours",
    "python eval.py --logdir logdir/": "tests/test_eval.py compares two evaluations",
    "python serve.py --logdir logdir/": "tests/test_serve.py has such models",
    "python translate.py --logdir logdir/": "tests/test_ensemble.py trains two models",
    "python train.py --start_from opus-mt-de-en": "tests/test_marian.py has such a model",
}
SETUP = [
    f"python {script} --recipe tiny --source_train my.de --target_train my.en"
    " --source_test test.de --target_test test.en"
    for script in ("prepro.py", "train.py")
]


def commands(block):
    """The lines of a block, without comments and variables; a backslash continues a line."""
    text = re.sub(r"(^|\s)#.*", "", block.replace("\\\n", " "), flags=re.MULTILINE)
    variables = {name: value.strip('" ') for name, value in re.findall(r"^(\w+)=(.*)", text, re.M)}
    lines = string.Template(text).safe_substitute(variables).splitlines()
    return [line.strip() for line in lines if line.strip()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The scripts, and text under all the names that the documents give."""
    folder = tmp_path_factory.mktemp("repository")
    for path in [*ROOT.glob("*.py"), *FOLDERS, ROOT / "docs"]:
        (folder / path.name).symlink_to(path)
    pairs = sample_pairs(400)
    text = "\n".join(map(text_of, DOCUMENTS))
    named = set(re.findall(r"[\w./-]+\.(?:de|en)(?:\.xml)?(?=[\s`,])", text))
    defaults = {f"corpora/IWSLT16.TED.tst2014.de-en.{lang}.xml" for lang in ("de", "en")}
    defaults |= {f"corpora/train.tags.de-en.{lang}" for lang in ("de", "en")}
    for name in named | defaults:
        side = re.search(r"\.(de|en)(\.xml)?$", name)[1] == "en"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_lines(folder / name, [pair[side] for pair in pairs])
    write_lines(folder / "in", [source for source, _ in pairs[:5]])
    (folder / "begun").write_text("The\n" * 5, "utf-8")
    (folder / "translations").write_text("A dog\n" * 5, "utf-8")
    return folder


def run(command, folder):
    """Run a command of a document as it stands, but small."""
    _, script, *words = shlex.split(command)
    files = {mark: words.pop(words.index(mark) + 1) for mark in "<>" if mark in words}
    words = [word for word in words if word not in "<>"] + SMALL.get(script, "").split()
    stdin = (folder / files.get("<", "in")).read_bytes()
    done = forked([script, *words], folder, stdin)
    assert done.returncode == 0, (command, done.stderr)
    if ">" in files:
        (folder / files[">"]).write_text(done.stdout, "utf-8")


def start_again(folder):
    """Delete the models and vocabularies of an earlier document or training."""
    for name in ("logdir", "logdir_marian", "preprocessed", "results", "exported"):
        shutil.rmtree(folder / name, ignore_errors=True)


# How many commands a document has at least that are run; those of the others have own tests.
COUNTS = {"README.md": 8, "original.md": 3, "results.md": 6, "training.md": 1}
COUNTS |= {"translating.md": 7, "export.md": 7}
TESTED_ELSEWHERE = "deploy sample_model break_it workers development walkthrough".split()


@slow
@pytest.mark.parametrize("name", COUNTS)
def test_every_command_of_the_documents(folder, name):
    ran = 0
    start_again(folder)
    for kind, block in blocks(name):
        lines = [line for line in commands(block) if line.startswith("python ")]
        lines = [line for line in lines if not line.startswith(tuple(SKIPPED))]
        if any("prepro.py" in line for line in lines):  # another training
            start_again(folder)
        elif (lines or kind == "python") and not (folder / "logdir").exists():
            for command in SETUP:
                run(command, folder)
        if kind == "python":
            program = [sys.executable, "-c", block]
            done = subprocess.run(program, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0 and done.stdout, done.stderr
        for line in lines:
            if line.startswith("python serve.py"):
                with Forked([*line.split()[1:], "--port", "0"], folder) as process:
                    assert any("http://127.0.0.1:" in text for text in process.stdout)
                    process.kill()
            else:
                run(line, folder)
        ran += len(lines) + (kind == "python")
    assert ran >= COUNTS[name]
    if name == "README.md":
        assert (folder / "out.png").exists()
        assert len((folder / "out").read_text("utf-8").splitlines()) == 5


def test_every_document_with_commands_is_run():
    for name in DOCUMENTS.keys() - COUNTS - {f"{name}.md" for name in TESTED_ELSEWHERE}:
        assert not any("python " in block for _, block in blocks(name)), name


def test_the_readme_names_every_file_and_is_short():
    text = text_of("README.md")
    assert len(text.splitlines()) < 200
    for path in [*ROOT.glob("*.py"), *FOLDERS]:
        assert f"`{path.name}`" in text or f"`{path.name}/`" in text, path.name


def test_the_lock_has_all_requirements_with_checksums():
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    pins = re.findall(r"^([\w.-]+)==([\w.]+).*\\\n    --hash=sha256:", lock, re.MULTILINE)
    assert len(pins) == len(re.findall(r"^\w", lock, re.MULTILINE))
    locked = {canonicalize_name(name): version for name, version in pins}
    for line in (ROOT / "requirements.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            requirement, _, reason = line.partition("  # ")
            requirement = Requirement(requirement)
            version = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement}. Run: make lock"
            assert reason, line


# docs/development.md, The house: a file imports from its own floor and from those below.
FLOORS = (
    "support",
    "hparams",
    "text",
    "modules model",
    "variants",
    "data_load checkpoints",
    "translation",
    "training formats server",
    "prepro train eval translate serve export mini quickstart",
)


def test_no_file_imports_from_a_floor_above():
    floor_of = {name: i for i, floor in enumerate(FLOORS) for name in floor.split()}
    assert {path.relative_to(ROOT).parts[0].removesuffix(".py") for path in PRODUCT} == {*floor_of}
    for path in PRODUCT:
        floor = floor_of[path.relative_to(ROOT).parts[0].removesuffix(".py")]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ImportFrom | ast.Import):
                name = (getattr(node, "module", None) or node.names[0].name).partition(".")[0]
                assert floor_of.get(name, -1) <= floor, (path, name)
                assert name not in FLOORS[-1].split(), (path, name)
