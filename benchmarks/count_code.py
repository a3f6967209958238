"""Count what makes the project long: lines and code per folder, and facts that are said twice.

    python benchmarks/count_code.py

Code is what remains without blank lines, comments and docstrings.
"""

import ast
import io
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NO_PRODUCT = ("tests", "benchmarks", "docs", "mini.py")  # mini.py repeats facts on purpose


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


def functions(tree):
    """List all functions and methods of a syntax tree."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def main():
    """Print the counts."""
    listed = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True)
    texts = {Path(name): (ROOT / name).read_text() for name in listed.stdout.split()}
    lines, code, files = Counter(), Counter(), Counter()
    for path, text in texts.items():
        own_row = len(path.parts) > 1 or path.name in NO_PRODUCT
        for folder in (path.parts[0] if own_row else "(root)", "all"):
            lines[folder] += text.count("\n")
            code[folder] += code_lines(text)
            files[folder] += 1
    for counts in (lines, code, files):
        counts["product"] = counts["all"] - sum(counts[folder] for folder in NO_PRODUCT)
    print(f"{'folder':12}{'files':>8}{'lines':>8}{'code':>8}")
    for folder in sorted(lines):
        print(f"{folder:12}{files[folder]:8}{lines[folder]:8}{code[folder]:8}")
    product = [
        function
        for path, text in texts.items()
        if path.parts[0] not in NO_PRODUCT
        for function in functions(ast.parse(text))
    ]
    with_flags = sum("flags" in [arg.arg for arg in f.args.args] for f in product)
    raised = texts[Path("hparams.py")].count("raise InputError")
    print(f"\nfunctions of the product {len(product)}, of which take `flags` {with_flags}")
    print(f"`raise InputError` in hparams.py {raised}")


if __name__ == "__main__":
    main()
