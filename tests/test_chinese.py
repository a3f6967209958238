"""The Chinese documents in docs/zh/ say what the English ones say: section by section.

The text of a section is compared by what both languages share: code, formulas, numbers, names
in backquotes, links, pictures and the shape of tables.
"""

import re
from collections import Counter

import pytest

from processes import ROOT

CHINESE = ROOT / "docs" / "zh"
ENGLISH = {
    "README.md": ROOT / "README.md",
    **{
        f"{name}.md": ROOT / "docs" / f"{name}.md"
        for name in ("walkthrough", "exercises", "original", "errors", "break_it")
    },
}
BLOCK = re.compile(r"^```.*?^```$|^\$\$.*?^\$\$$", re.DOTALL | re.MULTILINE)
MARKED = re.compile(r"`[^`\n]+`|\]\([^)]+\)|\$[^$\n]+\$|\d+ 月")  # names, links, formulas, months
# Comments, except one that names the file of an excerpt, and docstrings of one line.
COMMENT = re.compile(r"# (?![\w/]+\.py: ).*$|(?<=\"\"\").*(?=\"\"\"$)", re.MULTILINE)
LANGUAGES = re.compile(r"^\[(中文|English)\]\(.*\)$\n", re.MULTILINE)  # the link to the other one


def read(path):
    """The text of a document without the link to its other language."""
    return LANGUAGES.sub("", path.read_text("utf-8"))


def sections(text) -> list:
    """The sections of a document: (level of the title, text with the title)."""
    blocks = iter(BLOCK.findall(text))  # a `#` in a block is no title
    parts = re.split(r"^(?=#+ )", BLOCK.sub("\0", text), flags=re.MULTILINE)
    return [
        (len(part) - len(part.lstrip("#")), re.sub("\0", lambda _: next(blocks), part))
        for part in parts
        if part.strip()
    ]


def facts(section) -> dict:
    """What a section has in every language."""
    prose = BLOCK.sub("", section)
    return dict(
        blocks=[COMMENT.sub("", block) for block in BLOCK.findall(section)],
        marked=Counter(re.findall(r"`[^`\n]+`|\$[^$\n]+\$", prose)),  # names, formulas
        links=prose.count("]("),
        numbers=Counter(re.findall(r"\d+(?:[.,]\d+)*", MARKED.sub(" ", prose))),
        rows=[line.count("|") for line in prose.splitlines() if line.startswith("|")],
    )


@pytest.mark.parametrize("name", ENGLISH)
def test_both_languages_have_the_same_facts(name):
    english, chinese = sections(read(ENGLISH[name])), sections(read(CHINESE / name))
    assert [level for level, _ in chinese] == [level for level, _ in english]
    for (_, original), (_, translated) in zip(english, chinese, strict=True):
        assert facts(translated) == facts(original), original.partition("\n")[0]


@pytest.mark.parametrize("name", ENGLISH)
def test_the_prose_is_chinese(name):
    for _, section in sections(read(CHINESE / name)):
        prose = MARKED.sub("", BLOCK.sub("", section))
        prose = re.sub(r"^ {4}.*", "", prose, flags=re.MULTILINE)  # programs and outputs
        for line in prose.splitlines():
            words = re.findall(r"[A-Za-z]{2,}", line)
            assert len(words) < 12 or re.search(r"[\u4e00-\u9fff]", line), line


def test_each_language_links_to_the_other():
    for name, english in ENGLISH.items():
        for path, other in ((english, CHINESE / name), (CHINESE / name, english)):
            text = path.read_text("utf-8")
            label = "English" if path.parent == CHINESE else "中文"
            (link,) = re.findall(rf"^\[{label}\]\((.*)\)$", text, re.MULTILINE)
            assert (path.parent / link).resolve() == other.resolve()
