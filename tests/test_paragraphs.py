"""Splitting text into sentences, and joining their translations."""

import random
import time

import pytest

from text.lines import clean
from translation.paragraphs import Paragraph, Splitter, split_lines


class Words:
    """A vocabulary whose tokens are words."""

    def prepare(self, sentences):
        assert not any("\n" in sentence for sentence in sentences)
        return sentences

    def encode(self, sentences):
        return [[4] * len(sentence.split()) + [3] for sentence in sentences]


class Characters(Words):
    """A vocabulary whose tokens are characters."""

    def encode(self, sentences):
        return [[4] * len(sentence) + [3] for sentence in sentences]


class Symbols(Characters):
    """A vocabulary that has the symbol >>fr<<, too."""

    def encode(self, sentences):
        return [[5, 3]] if sentences == [">>fr<<"] else super().encode(sentences)

    def decode(self, ids):
        return ">>fr<<" if ids == [5] else "?"


class Cleaned(Words):
    """The words of 2017: punctuation is no token, but a place to split."""

    def prepare(self, sentences):
        return [clean(sentence) for sentence in sentences]


def splitter(language="de", vocab=Characters, max_tokens=1000):
    return Splitter(language, vocab(), max_tokens)


def source(paragraph):
    """The text of a paragraph."""
    pairs = zip(paragraph.gaps, [*paragraph.sentences, ""], strict=True)
    return "".join(gap + sentence for gap, sentence in pairs)


@pytest.mark.parametrize(
    "language, sentences",
    [
        ("de", ["Am 3. Oktober war Dr. J. S. Meier z. B. in Bonn.", "Er kam um 10.30 Uhr."]),
        ("de", ["Er sagte: „Ich komme.“", "Dann ging er...", "Wirklich?!", "Ja."]),
        ("de", ["Schreiben Sie an a.b@firma.de.", "Oder an https://www.firma.de/a.b?c=1.", "Gut."]),
        ("de", ["DAS KOSTET 3.000,50 EURO.", "DAS IST VIEL!"]),
        ("de-AT", ["Am 3. Mai kam er.", "Dann ging er. 😀"]),
        ("en", ["1. Mr. Smith opened it.", "2. He closed it."]),
        ("en", ["no capital here.", "and no end there"]),
        ("de", ["das ist klein geschrieben. und das auch"]),  # one: German has nouns in capitals
        ("fr", ["«Bonjour. Ça va?» dit-il.", "Oui."]),
        ("hi", ["मैं छात्र हूँ।", "वह गया।"]),
        ("ar", ["هل هذا صحيح؟", "نعم."]),
        ("src", ["A first one.", "A second one!"]),
    ],
)
def test_sentences_with_spaces_between_them(language, sentences):
    split = splitter(language)
    assert split(" ".join(sentences)).sentences == sentences
    text = "\n \n" + "  ".join(sentences) + "\r\n\r\n" + "\u2028".join(sentences) + "\t"
    paragraph = split(text)
    assert paragraph.sentences == sentences * 2
    assert paragraph.join(paragraph.sentences) == source(paragraph) == text


@pytest.mark.parametrize(
    "language, sentences",
    [
        ("zh", ["我是学生。", "他说：“走吧。快点！”然后走了。", "真的吗？", "好……"]),
        ("yue", ["我係學生。", "佢走咗！"]),
        ("ja", ["彼は「行こう。早く。」と言った。", "価格は3.5円。", "「はい。」", "「いいえ。」"]),
    ],
)
def test_sentences_without_spaces_between_them(language, sentences):
    paragraph = splitter(language)("".join(sentences))
    assert paragraph.sentences == sentences
    assert paragraph.join(sentences) == "".join(sentences)
    english = [f"Sentence {i}." for i in range(len(sentences))]
    assert paragraph.join(english) == " ".join(english)


def test_the_script_of_the_translation_decides_about_spaces():
    german = splitter("de")("Eins.  Zwei.\n\nDrei.")
    assert german.join(["一。", "“二。”", "三。"]) == "一。“二。”\n\n三。"
    assert german.join(["One.", "二。", "Three."]) == "One.  二。\n\nThree."
    assert splitter("ja")("今日は晴れ！\u3000明日は？").join(["Sunny!", "And?"]) == "Sunny! And?"
    assert german.join(["하나.", "둘.", "셋."]) == "하나.  둘.\n\n셋."
    assert splitter("zh")("好。\t好。").join(["好。", "好。"]) == "好。\t好。"
    assert splitter("zh")("好。好。").join(["", "Good."]) == "Good."


def test_text_without_a_sentence():
    for text in ("", " ", "\n", "\r\n\u3000\n"):
        assert splitter()(text) == Paragraph([], [text])
        assert Paragraph([], [text]).join([]) == text
    assert splitter()("42 😀").sentences == ["42 😀"]
    assert split_lines(" a b. C.\n\nd").sentences == ["a b. C.", "d"]


# Long sentences -----------------------------------------------------


@pytest.mark.parametrize(
    "language, vocab, max_tokens, parts",
    [
        (
            *("de", Words, 10),
            ["Wenn es morgen regnet,", "bleiben wir alle zu Hause und lesen,", "was du hast."],
        ),
        ("de", Words, 3, ["das", "kostet 3,50"]),
        ("zh", Characters, 11, ["我们昨天去了北京，", "看见了很多人；", "都很高兴"]),
        ("ar", Words, 6, ["ذهب الولد إلى المدرسة،", "ثم عاد إلى البيت"]),
        ("hi", Words, 5, ["राम घर गया,", "सीता आई।", "वह"]),
        (
            *("de", Cleaned, 10),
            [
                "Der Mann, der den Hund sah, ging nach Hause,",
                "weil es in 3 Stunden regnen sollte.",
            ],
        ),
    ],
)
def test_a_long_sentence_is_split_at_clauses_then_at_spaces(language, vocab, max_tokens, parts):
    gap = "" if vocab is Characters else " "
    assert splitter(language, vocab, max_tokens)(gap.join(parts)).sentences == parts


@pytest.mark.parametrize("cluster", ["e\u0301\u0323", "👩\u200d👩\u200d👧", "🇩🇪", "क्षि", "각"])
def test_grapheme_clusters_are_not_split(cluster):
    """The tokens may be fewer than a text has, but not than a cluster has."""
    for count in (3, 50, 500):
        paragraph = splitter(max_tokens=8)(cluster * count)
        assert source(paragraph) == cluster * count
        for sentence in paragraph.sentences:
            assert len(sentence) < 8 and sentence == cluster * (len(sentence) // len(cluster))


@pytest.mark.parametrize("text", ["e" + "\u0301" * 1000, "abcdefghij" * 20])
def test_a_long_word_is_split_and_stays_one_word(text):
    paragraph = splitter(max_tokens=100)(text)
    assert max(map(len, paragraph.sentences)) < 100
    assert paragraph.join(paragraph.sentences) == source(paragraph) == text


def test_the_symbol_of_a_target_language_counts_for_all_sentences():
    split = splitter(vocab=Symbols)
    own = [">>fr<<  Eins.", "Zwei.", "Drei >>fr<< vier.", ">>de<< Fünf.", "Sechs."]
    text = " {} {}\n{}\n{} {}".format(*own)
    paragraph = split(text)
    assert paragraph.sentences == own and source(paragraph) == text
    expected = [f">>fr<< {sentence}" for sentence in own]
    expected[0], expected[3] = own[0], own[3]  # they have one
    assert paragraph.inputs == expected
    for text in (">>xx<< Eins. Zwei.", "Null. >>fr<< Eins."):
        assert split(text).inputs == split(text).sentences
    parts = splitter(vocab=Symbols, max_tokens=30)(f">>fr<< {'eins, zwei ' * 90}").inputs
    assert len(parts) > 20
    assert all(part.startswith(">>fr<< ") and len(part) < 30 + 7 for part in parts)
    # The symbol may have two tokens.
    lengths = [
        len(splitter(vocab=Symbols, max_tokens=30)(f">>fr<< A.\n{n * 'x'}")[0]) for n in (27, 28)
    ]
    assert lengths == [2, 3]


# Any input ----------------------------------------------------------

CHARACTERS = "aB.!? \n\r\t„“\"'()[]「」«»。！好é\u0301🇩👩\u200d1-,;:\u2028\x85\x00\x0b"
CHARACTERS += "\u3000\u2003\xa0\ufeff…؟।<>"


def test_any_text_is_put_together_again():
    """The library for sentences fails at some white space, and drops some line breaks."""
    rng = random.Random(0)
    texts = ["B\u2003.", "B\u3000\u3000. A", "\n" * 3000 + "a.\n\n" * 3000]
    for _ in range(1500):
        text = texts.pop() if texts else "".join(rng.choices(CHARACTERS, k=rng.randrange(60)))
        language = rng.choice(["de", "en", "ja", "zh", "hi", "src", "", "../x", "\0"])
        vocab, limit = rng.choice([Words, Characters]), rng.choice([2, 3, 5, 30])
        paragraph = splitter(language, vocab, limit)(text)
        assert source(paragraph) == text
        assert all(sentence == sentence.strip() != "" for sentence in paragraph.sentences)
        for sentence in paragraph.sentences:
            assert len(vocab().encode([sentence])[0]) <= limit
        paragraph.join(["x"] * len(paragraph.sentences))


UNITS = ["Das ist gut. ", "a", "„a. ", "«a. ", ".", "\n", "a\n\n", "。", "好", "🇩🇪", "\u0301"]
UNITS += ["1. ", "a, ", " ", "(a. ", "「a。」a", "a. B", '"', "😀", "- "]


@pytest.mark.parametrize("unit", UNITS)
def test_the_time_is_linear(unit):
    text = (unit * 20_000)[:20_000]
    for vocab, limit in ((Characters, 200), (Words, 10)):
        started = time.process_time()
        paragraph = splitter("de", vocab, limit)(text)
        assert time.process_time() - started < 3
        assert source(paragraph) == text
