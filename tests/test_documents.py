"""The documents show what the files say: excerpts, outputs of examples, formulas, links.

Each exercise has an answer.
"""

import ast
import re

import keras
import numpy as np
import pytest

import mini
from conftest import slow
from helpers import DOCUMENTS, PRODUCT, blocks, run_program, text_of
from processes import ROOT

NUMBER = r"(?<![\w.])-?\d+(?:\.\d*)?(?:e[+-]?\d+)?(?!\w)"
EXCERPT = re.compile(r"# ([\w/]+\.py): ([\w.]+)\n")  # its first line


def excerpts(name):
    """The code blocks of a document that show a file: (path, name in the file, lines)."""
    for kind, block in blocks(name):
        if kind == "python" and (head := EXCERPT.match(block)):
            yield *head.groups(), block[head.end() :]


def examples(name):
    """The programs of a document with the text that the next block shows, or None."""
    all_blocks = [*blocks(name), ("", "")]
    for (kind, block), (next_kind, next_block) in zip(all_blocks, all_blocks[1:], strict=False):
        if kind == "python" and not EXCERPT.match(block):
            yield block, next_block if next_kind == "text" else None


def definition(path, name):
    """The source of a function, class, method or constant; `name` has dots."""
    source = (ROOT / path).read_text("utf-8")
    node = ast.parse(source)
    for part in name.split("."):
        names = [
            getattr(inner, "name", None) or ast.unparse(getattr(inner, "targets", []))
            for inner in node.body
        ]
        node = node.body[names.index(part)]
    return "\n".join(source.splitlines()[node.lineno - 1 : node.end_lineno])


def shows(excerpt, source):
    """Whether the lines are in the source, with other white space; a line `...` skips some."""
    chunks = re.split(r"^ *\.\.\.\n", excerpt, flags=re.MULTILINE)
    pattern = ".*".join(re.escape(re.sub(r"\s", "", chunk)) for chunk in chunks)
    return re.search(pattern, re.sub(r"\s", "", source))


def test_excerpts_equal_the_files():
    for name in DOCUMENTS:
        for path, defined, lines in excerpts(name):
            assert shows(lines, definition(path, defined)), (path, defined, lines)
    assert len([*excerpts("walkthrough.md")]) >= 15


def same_output(expected, printed):
    """Whether two texts differ in white space and in the rounding of decimal numbers only."""
    texts = [re.sub(r"\s", "", re.sub(NUMBER, "#", text)) for text in (expected, printed)]
    numbers = [re.findall(NUMBER, text) for text in (expected, printed)]
    return texts[0] == texts[1] and all(map(same_number, *numbers))


def same_number(expected, printed):
    """Whether two numbers are equal; decimal ones may differ by two units of the second digit."""
    if "." not in expected + printed:
        return expected == printed
    if "e" in expected:
        return abs(float(expected) - float(printed)) <= 0.1 * abs(float(expected))
    return abs(float(expected) - float(printed)) <= 0.02 + 0.01 * abs(float(expected))


@pytest.mark.parametrize("name", [pytest.param("walkthrough.md", marks=slow), "variants.md"])
def test_examples_print_what_the_page_shows(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(mini, "hp", type("hp", (mini.hp,), {}))
    keras.utils.clear_session()  # Keras numbers layers from 0 again
    names = {"__name__": "__main__"}
    for block, expected in examples(name):
        printed = run_program(block, name, names)
        if expected is None:
            assert not printed, block
        else:
            assert same_output(expected, printed), (block, printed)


@pytest.mark.parametrize("name", ["walkthrough.md", "variants.md"])
def test_formulas_survive_the_rules_of_markdown(name):
    """Markdown reads a formula first: it takes `*`, `_` after punctuation, `<`, and `\\_`."""
    from matplotlib.mathtext import MathTextParser

    text = re.sub(r"^```.*?^```", "", text_of(name), flags=re.DOTALL | re.MULTILINE)
    in_blocks = re.findall(r"^\$\$\n(.*?)\n\$\$$", text, re.DOTALL | re.MULTILINE)
    text = re.sub(r"^\$\$\n.*?\n\$\$$", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "", text)
    in_lines = re.findall(r"\$([^$]*)\$", text)
    assert in_lines
    parser = MathTextParser("path")
    for formula in in_blocks + in_lines:
        assert not re.search(r"[*<]|\\[^a-zA-Z]|(?<!\w)_", formula), formula
        parser.parse(f"${' '.join(formula.split())}$")
    for formula in in_lines:
        assert formula.strip() == formula and "\n" not in formula, formula
        assert "|" not in formula, formula  # it ends the cell of a table
    # A formula in a line stands between spaces or punctuation.
    for before, after in re.findall(r"(?:^|(.))\$[^$\n]+\$(.?)", text, re.MULTILINE):
        assert before in ("", " ", "(") and re.fullmatch(r"|[ .,:;?)]", after), (before, after)


def test_the_walkthrough_names_what_is_in_the_files():
    for document in ("walkthrough.md", "variants.md"):
        named = re.findall(r"`([\w.]+)`\s+in\s+`([\w./]+\.py)`", text_of(document))
        assert named
        for name, file in named:
            assert definition(file, name)


def anchor_of(title):
    """The anchor that a web page gives to a title."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_the_documents_name_what_exists():
    others = [ROOT / "benchmarks" / "README.md", *(ROOT / "docs" / "zh").glob("*.md")]
    for document in [*DOCUMENTS.values(), *others]:
        name, text = document.relative_to(ROOT), document.read_text("utf-8")
        assert not re.search(r"^[A-Z_]{6,}$", text, re.MULTILINE), f"{name}: a placeholder"
        for target in re.findall(r"\]\((?!http)([^)]+)\)", text):
            path, _, anchor = target.partition("#")
            linked = document.parent / path if path else document
            assert linked.exists(), (name, target)
            if anchor:
                titles = re.findall(r"^#+ (.+)$", linked.read_text("utf-8"), re.MULTILINE)
                assert anchor in map(anchor_of, titles), (name, target)
    for path in PRODUCT:
        for document in re.findall(r"docs/[\w.]+\.md", path.read_text("utf-8")):
            assert (ROOT / document).exists(), (path, document)


def test_the_walkthrough_links_to_the_exercises_of_each_section():
    titles = [title for title in sections("exercises.md") if title[:1].isdigit()]
    assert len(titles) > 10
    for title in titles:
        assert f"](exercises.md#{anchor_of(title)})" in text_of("walkthrough.md"), title


def sections(name):
    """The sections of a document by their titles; what stands before them has the title ""."""
    first, *others = re.split(r"^## ", text_of(name), flags=re.MULTILINE)
    return {"": first} | {part.partition("\n")[0]: part for part in others}


@pytest.fixture(scope="module")
def names():
    """The names that the program at the beginning of the exercises defines."""
    namespace, before = {}, mini.hp
    mini.hp = type("hp", (mini.hp,), {})
    (code,) = re.findall(r"^```python\n(.*?)^```", sections("exercises.md")[""], re.DOTALL | re.M)
    run_program(code, "exercises.md", namespace)
    yield namespace
    mini.hp = before


def numbered(name, title):
    """The parts of a section that have numbers: {number: text}."""
    _, *parts = re.split(r"^\*\*(\d+\.\d+)\*\*", sections(name)[title], flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def without_stubs(code):
    """A program without the functions whose body is `...`."""
    tree = ast.parse(code)
    is_stub = lambda node: ast.unparse(node).endswith("...")  # noqa: E731
    tree.body = [node for node in tree.body if not is_stub(node)]
    return ast.unparse(tree)


@slow
@pytest.mark.parametrize("title", [title for title in sections("answers.md") if title])
def test_the_answers_print_what_stands_beneath_them_and_pass_the_checks(names, title, monkeypatch):
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    namespace = dict(names, rng=np.random.default_rng(0))  # whichever sections ran before
    exercises = numbered("exercises.md", title)
    for number, text in numbered("answers.md", title).items():
        programs = re.findall(
            r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.DOTALL | re.M
        )
        checks = re.findall(r"^```python\n(.*?)^```", exercises[number], re.DOTALL | re.M)
        is_own = "*Write it yourself.*" in exercises[number]
        assert bool(checks) == is_own and all("assert" in check for check in checks), number
        for code, _ in programs[:is_own]:  # the function that the check calls
            run_program(code, "answers.md", namespace)
        for check in checks:
            with pytest.raises((AssertionError, TypeError, AttributeError, ValueError)):
                run_program(check, "exercises.md", dict(namespace, rng=np.random.default_rng()))
            run_program(without_stubs(check), "exercises.md", namespace)
        for code, expected in programs[is_own:]:
            assert same_output(expected, run_program(code, "answers.md", namespace)), number


def test_each_exercise_has_an_answer():
    exercises, answers = (
        {title: re.findall(r"^\*\*(\d+\.\d+)\*\*", text, re.MULTILINE) for title, text in found}
        for found in (sections("exercises.md").items(), sections("answers.md").items())
    )
    assert exercises == answers and [*exercises] == [*answers] and len(exercises) == 14
    for number, numbers in enumerate([*exercises.values()][1:], 1):
        assert 4 <= len(numbers) <= 7
        assert numbers == [f"{number}.{i + 1}" for i in range(len(numbers))]
