"""Where sentences end: a table of cases in many languages, and places in real text."""

from collections import Counter
from itertools import accumulate
from pathlib import Path

import regex

from translation.paragraphs import split_sentences

# The code of a language, and a text with a bar where a sentence ends and another one follows.
TABLE = Path(__file__).parent / "golden" / "sentences.tsv"
# A number, a full stop and a capital: nearly always an ordinal number, as in "am 19. Januar".
NUMBER_AND_CAPITAL = regex.compile(r"(?<=\d\.\s)(?=\p{Lu})")
ENDS_IN_A_NUMBER = ("gibt es ungefähr 600.000. ", "Samuel ist 16. ")  # the only two in these texts


def ends(text, language):
    """Where sentences of a text end, but for the last one."""
    pieces = split_sentences(text, language)
    assert "".join(pieces) == text
    return {*accumulate(map(len, pieces[:-1]))}


def test_the_table():
    """Known faults are sentences that end in a number or an abbreviation, and rare quotations."""
    wrong, counts = [], Counter()
    for line in TABLE.read_text("utf-8").splitlines():
        language, marked = line.split("\t")
        parts = regex.split(r"(?<= )\| |\|", marked)
        counts[language] += 1
        if ends("".join(parts), language) != {*accumulate(map(len, parts[:-1]))}:
            wrong.append(line)
    assert len(wrong) <= 9 < 0.05 * counts.total(), wrong
    faults = Counter(line.split("\t")[0] for line in wrong)
    assert all(faults[language] <= 0.2 * counts[language] for language in counts), wrong


def read_lines(folder, *patterns):
    """The different lines of files, without tags."""
    paths = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    assert len(paths) >= len(patterns)
    lines = [line for path in paths for line in path.read_text("utf-8").split("\n")]
    return [*dict.fromkeys(regex.sub("<[^<>]*+>", "", line).strip() for line in lines)]


def test_german_ordinal_numbers(real_text):
    wrong, count = [], 0
    for line in read_lines(real_text, "iwslt16/*.de*.xml", "multi30k/*.de"):
        for place in (match.end() for match in NUMBER_AND_CAPITAL.finditer(line)):
            count += 1
            if line[:place].endswith(ENDS_IN_A_NUMBER) != (place in ends(line, "de")):
                wrong.append(line)
    assert count >= 35 and len(wrong) <= 0.1 * count, wrong


def test_captions(real_text):
    """One to a line stay whole; four to a line are split."""
    for language in ("de", "en"):
        lines = read_lines(real_text, f"multi30k/test_2016_flickr.{language}")
        lines = [line for line in lines if regex.search(r"\p{L}\.$", line)]
        assert len(lines) > 800 and not any(ends(line, language) for line in lines)
        groups = [lines[i : i + 4] for i in range(0, len(lines), 4)]
        places = [{*accumulate(len(line) + 1 for line in group[:-1])} for group in groups]
        found = [
            own & ends(" ".join(group), language) for own, group in zip(places, groups, strict=True)
        ]
        assert sum(map(len, found)) >= 0.98 * sum(map(len, places))
