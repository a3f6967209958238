"""Break the code on purpose, one line at a time, and count how often the tests notice.

    pip install cosmic-ray pytest-cov
    python tests/mutants.py --count 320 --seed 0

First all tests run once, to learn which of them run which line. Then each mutant, one change of a
line, gets the tests of its line, fastest first, until one fails. One that survives gets the test
files of MORE_TESTS: they run scripts in other processes, which the measurement does not see. The
results so far are in build/mutants, from where the same command resumes. The runner of cosmic-ray,
which makes most mutants, would start TensorFlow for each of them.
"""

import argparse
import ast
import collections
import difflib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from xml.etree import ElementTree

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("SLOW", "1")  # all tests, also those of `make test-slow`

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.operator import Operator
from cosmic_ray.plugins import get_operator, operator_names
from coverage.numbits import numbits_to_nums

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "mutants"
MAX_TEST_SECONDS = 60  # of the tests that one mutant gets, as they took without it
MAX_MUTANT_SECONDS = 400  # of these tests with it
MAX_MORE_SECONDS = 1500  # of MORE_TESTS
LEFT_OUT = ("VariableReplacer", "VariableInserter", "ExceptionReplacer", "ZeroIteration")
MODEL_TESTS = "attention modules positions rnn model"
TEXT_TESTS = "text data_load vocab tiny refusals"
MORE_TESTS = {  # of all files that are changed
    "mini.py": "mini",
    "hparams.py": f"hparams {MODEL_TESTS}",
    "model/attention.py": MODEL_TESTS,
    "modules.py": MODEL_TESTS,
    "model/positions.py": MODEL_TESTS,
    "model/transformer.py": MODEL_TESTS,
    "variants/positions.py": MODEL_TESTS,
    "variants/rnn.py": MODEL_TESTS,
    "training/optimizer.py": "modules model tensorboard checkpoint",
    "training/step.py": "training_step model distribute",
    "translation/search.py": "search translate",
    "text/lines.py": TEXT_TESTS,
    "text/vocab.py": TEXT_TESTS,
    "text/ids.py": TEXT_TESTS,
    "data_load.py": TEXT_TESTS,
    "checkpoints/checkpoint.py": "checkpoint untrusted resume scripts",
    "translation/inference.py": "search translate scripts",
    "translation/translator.py": "protected translate",
    "translation/score.py": "score",
    "train.py": "training_step scripts resume tensorboard tiny refusals",
}


class OwnOperator(Operator):
    @classmethod
    def examples(cls):
        return ()


class DropStatement(OwnOperator):
    """Leave out a statement that is a call, an augmented assignment or a `raise`."""

    def mutation_positions(self, node):
        first = node.children[0] if node.type == "simple_stmt" else None
        if first is None or first.type not in ("atom_expr", "expr_stmt", "raise_stmt"):
            return
        if first.type == "expr_stmt" and first.children[1].type in ("annassign", "operator"):
            if getattr(first.children[1], "value", ":") in ("=", ":"):
                return  # any use of the name would raise NameError
        yield first.start_pos, first.end_pos

    def mutate(self, node, index):
        replacement = parso.parse("pass").children[0]
        replacement.prefix = node.children[0].get_first_leaf().prefix
        node.children[0] = replacement
        return node


class SwapArguments(OwnOperator):
    """Exchange the two arguments of a call that has two and names neither."""

    def mutation_positions(self, node):
        inner = node.children[1] if node.type == "trailer" and len(node.children) == 3 else None
        if inner is not None and inner.type == "arglist" and len(inner.children) == 3:
            if not any(child.type == "argument" for child in inner.children):
                yield inner.start_pos, inner.end_pos

    def mutate(self, node, index):
        first, comma, second = node.children[1].children
        first, second = (child.get_code(include_prefix=False) for child in (first, second))
        return parso.parse(f"f({second}, {first})").children[0].children[1]


def operators():
    """The operators that are tried, as (name, instance)."""
    own = dict(DropStatement=DropStatement(), SwapArguments=SwapArguments())
    names = [name for name in operator_names() if not any(word in name for word in LEFT_OUT)]
    return list(own.items()) + [(name, get_operator(name)()) for name in sorted(names)]


def mutants_of(name):
    """Every mutant of a file: {(line, kind of change): [(operator's name, occurrence)]}."""
    tree = get_ast((ROOT / name).read_text("utf-8"))
    places = collections.defaultdict(list)
    for operator_name, operator in operators():
        positions = [p for node in ast_nodes(tree) for p in operator.mutation_positions(node)]
        kind = operator_name.split("/")[-1].split("_")[0]
        for occurrence, (start, _) in enumerate(positions):
            places[start[0], kind].append((operator_name, occurrence))
    return places


def sample(count, seed):
    """Mutants of all files, as many of each as its share of places, at least 15, as dicts."""
    rng, chosen = random.Random(seed), []
    places = {name: mutants_of(name) for name in MORE_TESTS}
    total = sum(map(len, places.values()))
    by_name = dict(operators())
    for name, of_file in places.items():
        source = (ROOT / name).read_text("utf-8")
        wanted = max(15, round(count * len(of_file) / total))
        taken = 0
        for place in rng.sample(sorted(of_file), len(of_file)):
            operator, occurrence = rng.choice(of_file[place])
            code = mutate_code(source, by_name[operator], occurrence)
            try:
                same = code is None or ast.dump(ast.parse(code)) == ast.dump(ast.parse(source))
            except SyntaxError:
                continue
            if same or taken == wanted:
                continue
            lines = difflib.unified_diff(source.splitlines(), code.splitlines(), n=0, lineterm="")
            diff = [line for line in lines if line[:2] not in ("--", "++", "@@")]
            chosen.append(dict(file=name, line=place[0], operator=operator, diff=diff, code=code))
            taken += 1
    return chosen


def measure():
    """Run all tests once: {file: {line: tests}} and {test: seconds}."""
    report, coverage, seconds = BUILD / "tests.xml", str(BUILD / "coverage"), collections.Counter()
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadscope", "--cov=."]
    command += ["--cov-context=test", "--cov-report=", f"--junitxml={report}"]
    subprocess.run(command, cwd=ROOT, check=True, env=os.environ | dict(COVERAGE_FILE=coverage))
    for case in ElementTree.parse(report).iter("testcase"):
        module = case.get("classname").replace(".", "/")
        seconds[f"{module}.py::{case.get('name')}"] = float(case.get("time"))
    rows = sqlite3.connect(coverage).execute(
        "select file.path, context.context, numbits from line_bits"
        " join file on file.id = file_id join context on context.id = context_id"
    )
    lines = collections.defaultdict(lambda: collections.defaultdict(set))
    for path, context, numbits in rows:
        test = context.rpartition("|")[0]  # an id may have one
        for line in numbits_to_nums(numbits):
            if test:
                lines[str(Path(path).relative_to(ROOT))][line].add(test)
    return lines, seconds


def tests_of(mutant, lines, seconds):
    """The tests of a mutant, fastest first, up to MAX_TEST_SECONDS."""
    of_file = lines[mutant["file"]]
    nodes, line = ast.walk(ast.parse((ROOT / mutant["file"]).read_text("utf-8"))), mutant["line"]
    starts = [
        n.lineno
        for n in nodes
        if isinstance(n, ast.stmt) and line in range(n.lineno, n.end_lineno + 1)
    ]
    first = max(starts, default=line)  # of the innermost statement
    tests = of_file.get(line) or of_file.get(first)
    if not tests:  # a line that runs when the module is imported
        tests = set().union(*of_file.values())
    chosen, total = [], 0.0
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        total += seconds[test]
        if chosen and total > MAX_TEST_SECONDS:
            break
        chosen.append(test)
    return chosen


def run_tests(folder, tests, output):
    """Run in this process, a copy of one that has loaded TensorFlow; exit with pytest's code."""
    os.setpgrp()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    import pytest

    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist"]
    code = pytest.main([*options, f"--basetemp={folder}/tmp", f"--rootdir={folder}", *tests])
    os._exit(int(code))


def verdict(mutant, folder, tests, max_seconds):
    """caught, survived or timeout."""
    (folder / mutant["file"]).write_text(mutant["code"], "utf-8")
    process = multiprocessing.get_context("fork").Process(
        target=run_tests, args=(folder, tests, folder / "output.txt")
    )
    process.start()
    process.join(max_seconds)
    timed_out = process.is_alive()
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.join()
    shutil.copy(ROOT / mutant["file"], folder / mutant["file"])
    if timed_out:
        return "timeout"
    return {0: "survived", 1: "caught", 2: "caught"}.get(process.exitcode, f"{process.exitcode}")


def copy_of_the_project(number):
    folder = BUILD / f"copy_{number}"
    shutil.rmtree(folder, ignore_errors=True)
    leave_out = (".git", ".venv", "build", "logdir", "results", "work", "__pycache__")
    shutil.copytree(ROOT, folder, symlinks=True, ignore=shutil.ignore_patterns(*leave_out))
    return folder


def report(results):
    """Print a table of the files, then the mutants that no test caught."""
    print("| file | mutants | caught | share |\n|---|---|---|---|")
    for name in [*MORE_TESTS, "all"]:
        of_file = [r for r in results if name in (r["file"], "all")]
        caught = sum(r["verdict"] in ("caught", "timeout") for r in of_file)
        share = f"{caught / len(of_file):.0%}" if of_file else ""
        print(f"| `{name}` | {len(of_file)} | {caught} | {share} |")
    for result in results:
        if result["verdict"] == "survived":
            print(f"\n{result['file']}:{result['line']} {result['operator']}")
            print("\n".join(result["diff"]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=320)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    flags = parser.parse_args()
    BUILD.mkdir(parents=True, exist_ok=True)
    known = BUILD / "tests.json"
    if not known.exists():
        lines, seconds = measure()
        lines = {name: {n: sorted(t) for n, t in lines[name].items()} for name in MORE_TESTS}
        known.write_text(json.dumps([lines, seconds]))
    lines, seconds = json.loads(known.read_text())
    lines = {name: {int(n): {*t} for n, t in of_file.items()} for name, of_file in lines.items()}
    seconds = collections.Counter(seconds)
    for module in ("tensorflow", "tensorflow_text", "sentencepiece", "nltk", "sacrebleu", "pytest"):
        importlib.import_module(module)

    log = BUILD / f"results_{flags.seed}.jsonl"
    done = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    ready = {(r["file"], r["line"], r["operator"]): r for r in done}
    folders = Queue()
    for number in range(flags.processes):
        folders.put(copy_of_the_project(number))
    chosen = sample(flags.count, flags.seed)

    def one(number, mutant):
        key = mutant["file"], mutant["line"], mutant["operator"]
        if key not in ready:
            folder = folders.get()
            try:
                tests = tests_of(mutant, lines, seconds)
                outcome = verdict(mutant, folder, tests, MAX_MUTANT_SECONDS)
                if outcome == "survived":
                    tests = [f"tests/test_{name}.py" for name in MORE_TESTS[mutant["file"]].split()]
                    tests.append(mutant["file"])  # its doctests
                    outcome = verdict(mutant, folder, tests, MAX_MORE_SECONDS)
            finally:
                folders.put(folder)
            ready[key] = mutant | dict(verdict=outcome, code=None)
            with open(log, "a") as file:
                file.write(json.dumps(ready[key]) + "\n")
            print(f"{number + 1}/{len(chosen)} {key}: {outcome}", file=sys.stderr)
        return ready[key]

    with ThreadPoolExecutor(flags.processes) as pool:
        report([*pool.map(one, range(len(chosen)), chosen)])


if __name__ == "__main__":
    main()
