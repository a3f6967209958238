"""The programs in docs/answers.md print what stands beneath them; each exercise has an answer."""

import re

import pytest

from conftest import slow
from helpers import run_program
from processes import ROOT

DOCS = ROOT / "docs"
EXAMPLE = re.compile(r"^```python\n(.*?)^```\n\n```text\n(.*?)^```", re.DOTALL | re.MULTILINE)
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def sections(name):
    """The sections of a document by their titles; what stands before them has the title ""."""
    first, *others = re.split(r"^## ", (DOCS / name).read_text("utf-8"), flags=re.MULTILINE)
    return {"": first} | {part.partition("\n")[0]: part.partition("\n")[2] for part in others}


def texts_and_numbers(printed):
    """Split an output into its text without spaces, and its numbers."""
    return re.sub(r"\s", "", NUMBER.sub("#", printed)), [*map(float, NUMBER.findall(printed))]


def assert_same(printed, expected):
    """Compare two outputs: the text exactly, the numbers up to their rounding."""
    (text, numbers), (same, others) = map(texts_and_numbers, (printed, expected))
    assert text == same, printed
    assert numbers == pytest.approx(others, rel=0.02, abs=0.02), printed


def named(text):
    """The numbers of exercises or answers in a section, as ["1.1", "1.2"]."""
    return re.findall(r"^\*\*(\d+\.\d+)\*\*", text, re.MULTILINE)


@pytest.fixture(scope="module")
def names():
    """The names that the program at the beginning defines."""
    (code,) = re.findall(r"^```python\n(.*?)^```", sections("answers.md")[""], re.DOTALL | re.M)
    namespace = {}
    run_program(code, "answers.md", namespace)
    return namespace


@slow
@pytest.mark.parametrize("title", [title for title in sections("answers.md") if title])
def test_the_programs_print_what_stands_beneath_them(names, title):
    text = sections("answers.md")[title]
    examples = EXAMPLE.findall(text)
    assert len(examples) == text.count("```python")
    namespace = dict(names)
    for code, expected in examples:
        assert_same(run_program(code, "answers.md", namespace), expected)


def test_each_exercise_has_an_answer():
    exercises, answers = sections("exercises.md"), sections("answers.md")
    assert [*exercises] == [*answers] and len(exercises) == 14
    for number, title in enumerate(title for title in exercises if title):
        found = named(exercises[title])
        assert found == named(answers[title]) and 3 <= len(found) <= 5, title
        assert found == [f"{number + 1}.{i + 1}" for i in range(len(found))]


@pytest.mark.parametrize("expected", ["a 2.5 [1 2]\n", "a 2.6 [1 3]\n", "a 2.6 [1 2]\nb\n"])
def test_another_output_is_noticed(expected):
    with pytest.raises(AssertionError):
        assert_same("a 2.60 [1. 2.]\n", expected)
