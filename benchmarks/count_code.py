"""Count what makes the project long, and check that it stays below its limits.

    python benchmarks/count_code.py

All text files that git lists are counted, in lines of at most 100 characters. Code is without blank
lines, comments and docstrings. Product is all Python but tests/, benchmarks/, docs/ and mini.py
(which repeats facts on purpose). A floor is a step of the longest chain of imports between its
files; imports in functions count. Flags are all that the parser of a script accepts, but for --help
and --version; --x and --no-x are one. HTML has its CSS. The exit code is 1 if a limit is broken.
"""

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {
    "product lines": 10_350,
    "product characters": 464_700,
    "product code": 6910,
    "functions of the product": 682,
    "benchmarks lines": 1500,
    "tests lines": 12_734,
    "tests characters": 559_500,
    "English documents lines": 5900,
    "docs Python lines": 1800,
    "HTML and JavaScript bytes": 42_184,
    "other text lines": 490,
    "flags of train.py": 70,
    "flags of translate.py": 25,
}
SCRIPTS = ("prepro.py", "train.py", "eval.py", "translate.py", "serve.py", "export.py")
NOT_COUNTED = ("requirements.lock", "corpora/sample.tsv", "tutorial.ipynb", "tests/golden/")
# Runs a script until it parses its flags, and prints their names.
LIST_FLAGS = """
import argparse, json, runpy, sys
def parse(parser, *_):
    names = [action.option_strings[-1] for action in parser._actions if action.option_strings]
    print(json.dumps(names))
    raise SystemExit
argparse.ArgumentParser.parse_known_args = parse
sys.path.insert(0, "")
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def kind_of(name) -> str:
    """Return the kind of a file, or "" if it is not counted.

    >>> [kind_of(name) for name in ("mini.py", "docs/figures/a.py", "server/app.py", "docs/a.md")]
    ['mini.py', 'docs Python', 'product', 'English documents']
    """
    folder, suffix = name.partition("/")[0], Path(name).suffix
    if suffix == ".py":
        name = name if name == "mini.py" else "product"
        return dict(tests="tests", benchmarks="benchmarks", docs="docs Python").get(folder, name)
    if name.startswith(NOT_COUNTED):
        return ""
    if suffix == ".md":
        return "Chinese documents" if name.startswith("docs/zh/") else "English documents"
    return "HTML and JavaScript" if suffix in (".html", ".js", ".css") else "other text"


def read_texts() -> dict:
    """Return the texts of all files that are counted, by their names."""
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    found = {}
    for name in filter(kind_of, names.stdout.decode().split("\0")[:-1]):
        content = (ROOT / name).read_bytes()
        if b"\0" not in content:  # else it is no text
            found[name] = content.decode()
    return found


def code_lines(text) -> int:
    """Count the lines of code of a Python file.

    >>> code_lines('\"\"\"A docstring.\"\"\"\\n\\nx = 1  # one\\n# two\\n')
    1
    """
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE) and token.string:
            lines |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= {*range(node.lineno, node.end_lineno + 1)}
    return sum(1 for number in lines if text.splitlines()[number - 1].strip())


def imports_of(tree, files) -> set:
    """Return the names of the files that a syntax tree imports, of `files` by their modules."""
    modules = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return {files[module] for module in modules if module in files}


def longest_chain(trees) -> list:
    """Return the names of the files in the longest chain of imports, the importing one first."""
    files = {name[:-3].replace("/", "."): name for name in trees}
    imports = {name: imports_of(tree, files) for name, tree in trees.items()}
    chains = {}

    def chain(name):
        if name not in chains:
            chains[name] = []  # an import in a circle is no step
            chains[name] = [name, *max(map(chain, sorted(imports[name])), key=len, default=[])]
        return chains[name]

    return max(map(chain, trees), key=len)


def flags_of(script) -> int:
    """Count the flags of a script."""
    command = [sys.executable, "-c", LIST_FLAGS, script]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    names = {name.removeprefix("--") for name in json.loads(done.stdout)} - {"help", "version"}
    return sum(name.removeprefix("no-") not in names - {name} for name in names)


def main():
    """Print the counts, and return whether a limit is broken."""
    texts = read_texts()
    files, counts = Counter(map(kind_of, texts)), Counter()
    for name, text in texts.items():
        kind = kind_of(name)
        counts[f"{kind} lines"] += len(text.splitlines())
        counts[f"{kind} characters"] += len(text)
        counts[f"{kind} bytes"] += len(text.encode())
        counts[f"{kind} code"] += code_lines(text) if name.endswith(".py") else 0
    columns = ("lines", "characters", "bytes", "code")
    print(f"{'':20}{'files':>11}" + "".join(f"{column:>11}" for column in columns))
    for kind in sorted(files):
        cells = [files[kind], *(counts[f"{kind} {column}"] for column in columns)]
        print(f"{kind:20}" + "".join(f"{cell:11,}" for cell in cells))

    trees = {name: ast.parse(texts[name]) for name in texts if kind_of(name) == "product"}
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [
        (node.end_lineno - node.lineno + 1, f"{name}:{node.lineno}: {node.name}")
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, kinds)
    ]
    chain = longest_chain(trees)
    lines, longest = max((len(texts[name].splitlines()), name) for name in trees)
    print(f"\nfiles in the root {sum('/' not in name for name in texts)}")
    print(f"functions of the product {len(functions)}")
    print(f"longest file {longest}, {lines} lines")
    print("longest function {1}, {0} lines".format(*max(functions)))
    print(f"floors {len(chain)}: {' > '.join(chain)}")
    for name in SCRIPTS:
        counts[f"flags of {name}"] = flags_of(name)
        print(f"flags of {name} {counts[f'flags of {name}']}")
    broken = {name: limit for name, limit in LIMITS.items() if counts[name] > limit}
    for name, limit in broken.items():
        print(f"Too long: {name} {counts[name]:,}, limit {limit:,}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
