"""Addresses, placeholders, tags, emoji, numbers and unknown characters survive a translation."""

import pytest

from helpers import ROOT, load
from translation.protected import find_parts, has_numbers, take_out
from translation.translator import Translator


@pytest.fixture(scope="module")
def sample():
    return Translator(load(dict(logdir=str(ROOT / "docs" / "sample_model"))), protect=True)


PARTS = """https://www.example.org/a_(b)?c=d&e=f#g http://localhost:8080/x
www.example.de/Straße example.com first.last+tag@mail.example.co.uk @some_user {name} {0} {{count}}
${HOME} $variable %s %1$d %(name)s %.2f [[0]] <b> </b> <br/> &nbsp; &#8364;
😀 👩‍👩‍👧 🇩🇪 👍🏽 ❤️ 1️⃣""".split()
PARTS.append("<a href=\"https://example.com/?a=b\" title='x y'>")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("frame", ["{}", "Ein {} Hund.", "({}), dann „{}“!", "请看{}吧。"])
def test_parts_are_found_as_a_whole(part, frame):
    line = frame.replace("{}", part)
    found = [own.text for own in find_parts(line)]
    if part.endswith(("Straße", "x", "g", "com", "uk", "user", "variable")):
        line = line.replace("“", " “")  # a quote could be a part of an address
    assert found == [part] * line.count(part)


@pytest.mark.parametrize(
    "line",
    [
        "Ende.Der Hund läuft um 12.30 Uhr z.B. dort.",
        "a<b und c>d, 50% der Leute, 100%ige Sicherheit, $5, R&D, AT&T; {ein Satz}",
        "Er sagt: http ist alt. www. und @ und # und {",
        "3 < 4 > 2 und 10 % Rabatt",
    ],
)
def test_text_is_no_part(line):
    assert [own.text for own in find_parts(line)] == []


def test_unknown_characters_are_parts_with_their_word(sample):
    texts = [
        own.text for own in find_parts("das łódź Haus ωω. x漢y漢字z ☃", sample.loaded.vocabs[0])
    ]
    assert texts == ["łódź", "ωω", "漢", "漢字", "☃"]


@pytest.mark.parametrize("part", ["a", ".", "<b ", "a.", "{", "%(", "@a", "&#", "://", "[[", "ł"])
def test_many_parts_take_linear_time(sample, part):
    for text in (part * (100_000 // len(part)), f"{part} {{a}} " * 10_000):
        assert len(take_out(text, sample.loaded.vocabs[0]).befores) <= 100


def test_numbers():
    assert has_numbers("am 3.5.2020 um 12:30", "on 5/3/2020 at 12:30")
    assert has_numbers("1.234.567", "1234567") and has_numbers("1234567", "1,234,567")
    assert has_numbers("٣ كلاب", "3 dogs") and has_numbers("kein", "none")
    assert not has_numbers("3 und 3", "3 and 4") and not has_numbers("12", "1 and 3")
    assert not has_numbers("9" * 10_000, "8" * 10_000)


KEPT = [
    ("Die Frau hat {} den Brief nicht gelesen.", None),
    ("Die Frau hat den Brief nicht gelesen {}.", None),
    ("{} Die Frau hat den Brief nicht gelesen.", "{} The woman did not read the letter."),
    ("{}", "{}"),
    ("{} {}!", "{} {}!"),
    ("", ""),
]


@pytest.mark.parametrize("part", [*PARTS, "Łódź", "漢字", "12345", "3,14"])
def test_each_part_is_in_the_translation_once(sample, part):
    lines = [frame.replace("{}", part) for frame, _ in KEPT]
    for translation, (frame, expected) in zip(sample(lines), KEPT, strict=True):
        assert translation.text.count(part) == frame.count("{}"), translation.text
        assert [own.line for own in translation.sentences] == [frame.replace("{}", part)]
        if expected is not None:
            assert translation.text == expected.replace("{}", part)


def test_tags_stay_around_the_same_words(sample):
    lines = [
        "<b>Die Frau</b> hat den Brief nicht gelesen.",
        "Die Frau hat <b>den Brief</b> nicht gelesen.",
        "<p>Die Frau hat den Brief nicht gelesen.</p>",
        "(www.example.de) Die Frau hat den Brief nicht gelesen.",
        "Die Frau hat den Brief nicht gelesen {a}, {b}.",
    ]
    assert [translation.text for translation in sample(lines)] == [
        "<b>The woman</b> did not read the letter.",
        "The woman did not read <b>the letter</b>.",
        "<p>The woman did not read the letter.</p>",
        "(www.example.de) The woman did not read the letter.",
        "The woman did not read the letter {a} {b}.",
    ]


def test_a_sentence_without_parts_is_translated_as_before(sample):
    lines = ["Die Frau hat den Brief nicht gelesen.", "", "Der Mann schläft."]
    texts = [
        [translation.text for translation in t(lines)] for t in (sample, Translator(sample.loaded))
    ]
    assert texts[0] == texts[1]
    prefixed = sample(["Die Frau hat {name} gelesen."], ["The woman"])
    assert prefixed[0].text.startswith("The woman")
