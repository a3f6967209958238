"""Splitting text into sentences, and joining their translations."""

import random
import time

import pytest
import regex

from server.html_text import HtmlText, tokenize
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


# Long sentences -------------------------------------------------------------------


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


# Any input ------------------------------------------------------------------------

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


# HTML -----------------------------------------------------------------------------


def reverse(sentence, swap):
    """The answer to a sentence: its words in capitals, in their order or in the reverse one."""
    words = sentence.split()
    order = [*range(len(words))][:: -1 if swap else 1]
    texts = [words[i].upper() for i in order]
    translation = dict(text=" ".join(texts), tokens=[f" {text}" for text in texts])
    translation["attention"] = [[float(i == j) for j in range(len(words))] for i in order]
    return dict(source=[f" {word}" for word in words], translations=[translation])


def translate_html(html, swap=False):
    document = HtmlText(html, splitter("de"))
    return document.join([reverse(sentence, swap) for sentence in document.sentences], 0)


@pytest.mark.parametrize(
    "html, translation, swapped",
    [
        ("a <b>b</b> <i>c</i> d", "A <b>B</b> <i>C</i> D", "D <i>C</i> <b>B</b> A"),
        ("a <b>b <i>c</i></b>", "A <b>B <i>C</i></b>", "<b><i>C</i> B</b> A"),
        ("a <img src=x> b", "A <img src=x> B", "<img src=x> B A"),
        ("a <code>x<b</code>.", "A <code>x<b</code>.", None),
        ("<b>a b", "<b>A B", "<b>B A"),
        ("a</b> b", "A</b> B", None),
        ("a <b>gut. Sehr</b> d", "A <b>GUT. SEHR</b> D", "<b>GUT. A D SEHR</b>"),
        ("<b><i>a</b>b</i> c", "<b><i>AB</b></i> C", None),
        ("a <b> b </b>c", "A <b>B</b> C", "C <b>B</b> A"),
        ("a un<b>klar</b>er", "A <b>UNKLARER</b>", "<b>UNKLARER</b> A"),
        ("1 < 2 & 3 &lt; 4 &bogus; &#228;", "1 &lt; 2 &amp; 3 &lt; 4 &amp;BOGUS; Ä", None),
        ("&#99999999999;&#xD800;a", "\ufffd\ufffdA", None),
        ("a<p", "A&lt;P", None),
        ("<!-- a", "<!-- a", None),
        ("<script>a</b>", "<script>a</b>", None),
        ("<a b='>c", "<a b='>C", None),
        ('<a title="<b>x</b>">c</a>', '<a title="<b>x</b>">C</a>', None),
        (
            "<!DOCTYPE html><title>a</title><td>b<td>c",
            "<!DOCTYPE html><title>A</title><td>B<td>C",
            None,
        ),
        ("<p translate='NO'>a<p>b", "<p translate='NO'>a<p>B", None),
        (
            "<div><span class='notranslate'>a</div>b",
            "<div><span class='notranslate'>a</div>B",
            None,
        ),
        ("<SCRIPT>a</SCRIPT >b", "<SCRIPT>a</SCRIPT >B", None),
        ("<br translate=no>a", "<br translate=no>A", None),
        ("<b></b> <br/>", "<b></b> <br/>", None),
    ],
)
def test_where_tags_are_put(html, translation, swapped):
    assert translate_html(html) == translation
    if swapped:
        assert translate_html(html, swap=True) == swapped


@pytest.mark.parametrize("swap", [False, True])
def test_tags_after_a_symbol_that_is_repeated(swap):
    """The translation here repeats it, too."""
    document = HtmlText(
        "&gt;&gt;fr&lt;&lt; eins <b>zwei</b>. Drei <i>vier</i>.", splitter(vocab=Symbols)
    )
    assert document.sentences == [">>fr<< eins zwei.", ">>fr<< Drei vier."]
    translation = document.join([reverse(own, swap) for own in document.sentences], 0)
    symbol = "&gt;&gt;FR&lt;&lt;"
    first, second = f"{symbol} EINS <b>ZWEI.</b>", f"{symbol} DREI <i>VIER.</i>"
    if swap:
        first, second = f"<b>ZWEI.</b> EINS {symbol}", f"<i>VIER.</i> DREI {symbol}"
    assert translation == f"{first} {second}"


def tags(html):
    return [token.raw for token in tokenize(html) if token.kind != "text"]


@pytest.mark.parametrize("swap", [False, True])
def test_no_tag_is_lost_and_nesting_stays_right(swap):
    rng = random.Random(0)
    parts = "<b> </b> <i> </i> </a> d <br> <img>".split() + ["<a x='>'>", "a ", "b. ", "C "]
    parts += ["<p>", "</p>", "<!-- x -->", "<code>y</code>", " ", "&amp;", "<", "好。"]
    for _ in range(500):
        html = "".join(rng.choices(parts, k=rng.randrange(25)))
        translated = translate_html(html, swap)
        assert sorted(tags(translated)) == sorted(tags(html))
    for _ in range(200):
        html = nested(rng, 4)
        translated = translate_html(html, swap)
        assert sorted(tags(translated)) == sorted(tags(html))
        opened = []
        for tag in tags(translated):
            if not tag.startswith("</"):
                opened.append(tag)
            else:
                assert opened.pop() == tag.replace("/", "")
        assert not opened


def nested(rng, depth) -> str:
    """Well-formed HTML of some sentences."""
    parts = [rng.choice(["a ", "b ", "c. D ", "e", " "]) for _ in range(rng.randrange(1, 4))]
    if depth:
        for _ in range(rng.randrange(3)):
            name = rng.choice(["b", "i", "u"])
            place = rng.randrange(len(parts) + 1)
            parts.insert(place, f"<{name}>{nested(rng, depth - 1)}</{name}>")
    return "".join(parts)


HTML_UNITS = ["<", "<a", "<a ", '<a "', "<a b='", '<a b=">"', "</", "<!--", "<!", "<?", "&", "&#1"]
HTML_UNITS += ["<b>", "<b>a ", "<b>a</b> b", "</b>a", "<b><i>a</b> ", "<code>", "<script></"]
HTML_UNITS += ["<div>", "<p translate=no>a", "a<img>", "<a =", "<a a a a =", "<![CDATA[", "&#9"]
HTML_UNITS += ["<p>"]


@pytest.mark.parametrize("unit", HTML_UNITS)
def test_the_time_for_html_is_linear(unit):
    """html.parser of Python 3.11.7 needs 77 s for 100,000 characters of one of them."""
    html = (unit * 10_000)[:10_000]
    assert "".join(token.raw for token in tokenize(html)) == html
    started = time.process_time()
    translated = translate_html(html)
    assert time.process_time() - started < 3
    assert len(regex.findall("<b>", translated)) == html.count("<b>")


def test_html_may_be_nested_deeply():
    for name in ("b", "div", "p"):
        html = f"{f'<{name}>' * 10_000}a b{f'</{name}>' * 10_000}"
        assert translate_html(html) == html.replace("a b", "A B")
    html = f"a {'<b>' * 10_000}b c{'</b>' * 10_000} d"
    assert translate_html(html, swap=True) == f"D {'<b>' * 10_000}C B{'</b>' * 10_000} A"
