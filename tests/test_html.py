"""The text of HTML is translated, and its tags stay around the words to which they belong."""

import random
import re
import time

import numpy as np
import pytest
from markdown_it import MarkdownIt

from helpers import ROOT
from server.html_text import HtmlText, tokenize
from translation.paragraphs import Splitter
from translation.protected import find_parts, put_in, take_out


class Words:
    """A vocabulary of words and marks."""

    def __init__(self):
        self.words = ["", "", "", "</S>"]

    def prepare(self, sentences):
        return sentences

    def encode(self, sentences):
        return [
            [*map(self.id_of, re.findall(r"\w+|[^\w\s]", sentence)), 3] for sentence in sentences
        ]

    def id_of(self, word):
        self.words += [] if word in self.words else [word]
        return self.words.index(word)

    def display(self, i):
        return f" {self.words[i]}" if self.starts_word(i) else self.words[i]

    def starts_word(self, i):
        return self.words[i].isalnum()

    def decode(self, ids):
        return "".join(map(self.display, ids)).lstrip()


def translate(text, reverse):
    """Write words in capitals, perhaps in reverse order. Each one attends to its source."""
    vocab, taken = Words(), take_out(text, find_parts(text))
    (x,) = vocab.encode([taken.text])
    order = [*range(len(x) - 1)][:: -1 if reverse else 1]
    y = [vocab.id_of(vocab.words[x[i]].upper()) for i in order]
    return put_in(taken, x, y, np.eye(len(x))[[*order, -1]], (vocab, vocab))


def translate_html(html, reverse=False, language="de"):
    document, split, translations = HtmlText(html), Splitter(language, Words(), 100), []
    for paragraph in map(split, document.texts):
        translations.append(paragraph.join([translate(own, reverse) for own in paragraph.inputs]))
    return document.join(translations)


UNTRANSLATED = "<i translate=no>a</i> <i translate=no>b</i>"


@pytest.mark.parametrize(
    "html, translation, reversed_",
    [
        ("a <b>b</b> <i>c</i> d", "A <b>B</b> <i>C</i> D", "D <i>C</i> <b>B</b> A"),
        ("a <b>b <i>c</i></b>", "A <b>B <i>C</i></b>", "<b><i>C</i> B</b> A"),
        ("a <img src=x> b", "A <img src=x> B", None),
        ("a <code>x<b</code>.", "A <code>x<b</code>.", None),
        ("<b>a b", "<b>A B", "<b>B A"),
        ("a</b> b", "A</b> B", None),
        ("<a href='?a=1&b=2'>{x}</a> b", "<a href='?a=1&b=2'>{x}</a> B", None),
        ("<button>a</button><button>b c</button>", "<button>A</button><button>B C</button>", None),
        ("<span>a</span><i>b</i> c", "<span>A</span><i>B</i> C", "<span>A</span>C <i>B</i>"),
        ("<b>a&nbsp;</b><i>b</i> c", "<b>A</b> <i>B</i> C", "C <i>B</i> <b>A</b>"),
        ("<b>a</b><b>b</b> c", "<b>A</b><b>B</b> C", "<b>A</b>C <b>B</b>"),
        ("<i>a</i><b>b</b> c", "<i>A</i><b>B</b> C", "<i>A</i>C <b>B</b>"),
        ("<i>a</i><img><b>b</b> c", "<i>A</i><img><b>B</b> C", None),
        ("a<i>&nbsp;</i>b", "A <i></i>B", None),
        ("a<i><b> b</b></i> c", "A <i><b>B</b></i> C", "C <i><b>B</b></i> A"),
        ("<b>a </b><b>b</b> c", "<b>A</b> <b>B</b> C", "C <b>B</b> <b>A</b>"),
        ("<b>a</b><i> b</i> c", "<b>A</b> <i>B</i> C", "C <i>B</i> <b>A</b>"),
        ("a<b> b c </b>d", "A <b>B C</b> D", "D <b>C B</b> A"),
        ("a <b>b <img src=x> c</b>", "A <b>B <img src=x> C</b>", None),
        ("<br class=notranslate>a<br>b", "<br class=notranslate>A<br>B", None),
        ("a H<sub>2</sub>O b<sup>1</sup> c", "A H<sub>2</sub>O B<sup>1</sup> C", None),
        ("1 < 2 & 3 &lt; a &bogus; &#228;", "1&lt; 2&amp; 3&lt; A &amp;bogus; Ä", None),
        ("&#99999999999;&#xD800;a", "\ufffd\ufffd A", None),
        ("a < b", "A&lt; B", None),
        ("<!-- a", "<!-- a", None),
        ("<script>a</b>", "<script>a</b>", None),
        ("<a b='>c", "<a b='>C", None),
        ('<a title="<b>x</b>">c</a>', '<a title="<b>x</b>">C</a>', None),
        (
            "<!DOCTYPE html><title>a</title><td>b<td>1",
            "<!DOCTYPE html><title>A</title><td>B<td>1",
            0,
        ),
        ("<p translate='NO'>a<p>b", "<p translate='NO'>a<p>B", None),
        ("<i class='x notranslate'>a</i>b", "<i class='x notranslate'>a</i>B", None),
        ("<img class=notranslate> a", "<img class=notranslate> A", None),
        ("<i translate=no>a <i>b</i></i> c", "<i translate=no>a <i>b</i></i> C", None),
        (f"{UNTRANSLATED} c", f"{UNTRANSLATED} C", None),
        ("&#xe000;b&#xe001; a", "\ue000b\ue001 A", None),
        ("<b></b> <br/>", "<b></b> <br/>", None),
        ("a <b>gut. Sehr</b> d", "A <b>GUT. SEHR</b> D", ". <b>GUT A D SEHR</b>"),
        ("<b>a. B c</b> d. <i>E.</i>", "<b>A. B C</b> D. <i>E.</i>", None),
        ("\ue000a\ue001", "\ue000A\ue001", None),
    ],
)
def test_where_tags_are_put(html, translation, reversed_):
    assert translate_html(html) == translation
    if reversed_:
        assert translate_html(html, reverse=True) == reversed_


def test_a_part_follows_all_words_that_attend_to_the_one_before_it():
    vocab, line = Words(), "x {a} y"
    taken = take_out(line, find_parts(line))
    (x,), y = vocab.encode([taken.text]), [*map(vocab.id_of, "PQR")]
    assert put_in(taken, x, y, np.eye(3)[[0, 0, 1, 2]], (vocab, vocab)) == "P Q {a} R"


def test_an_end_tag_belongs_to_the_sentence_before_it():
    assert translate_html("东 <b>西。</b>南 北", True, "zh") == "<b>。 西</b>东北 南"


def tags(html):
    return [token.raw for token in tokenize(html)[0] if token.kind != "text"]


@pytest.mark.parametrize("reverse", [False, True])
def test_no_tag_is_lost_and_elements_do_not_cross(reverse):
    rng = random.Random(0)
    parts = "<b> </b> <i> </i> </a> d <br> <img>".split() + ["<a x='>'>", "a ", "b. ", "C "]
    parts += ["<p>", "</p>", "<!-- x -->", "<code>y</code>", " ", "&amp;", "<", "好。", "{x}"]
    for _ in range(300):
        html = "".join(rng.choices(parts, k=rng.randrange(25)))
        assert sorted(tags(translate_html(html, reverse))) == sorted(tags(html))
    for _ in range(300):
        html = nested(rng, 4)
        translated, opened = tags(translate_html(html, reverse)), []
        assert sorted(translated) == sorted(tags(html))
        for tag in translated:
            if not tag.startswith("</"):
                opened.append(tag)
            else:
                assert opened.pop() == tag.replace("/", "")
        assert not opened


def nested(rng, depth) -> str:
    """Well-formed HTML."""
    parts = [rng.choice(["a ", "b ", "c. D ", "e", " "]) for _ in range(rng.randrange(1, 4))]
    for _ in range(rng.randrange(3) if depth else 0):
        name = rng.choice(["b", "i", "u"])
        place = rng.randrange(len(parts) + 1)
        parts.insert(place, f"<{name}>{nested(rng, depth - 1)}</{name}>")
    return "".join(parts)


UNITS = ["<", "<a", "<a ", '<a "', "<a b='", '<a b=">"', "</", "<!--", "<!", "<?", "&", "&#1"]
UNITS += ["<b>", "<b>a ", "<b>a</b> b", "</b>a", "<b><i>a</b> ", "<code>", "<script></", "<div>"]
UNITS += ["<p translate=no>a", "a<img>", "<a =", "<a a a a =", "<![CDATA[", "&#9", "<p>", "a<sub>"]


@pytest.mark.parametrize("unit", UNITS)
def test_the_time_for_html_is_linear(unit):
    html = (unit * 100_000)[:100_000]
    started = time.process_time()
    document = HtmlText(html)
    assert document.join(document.texts).count("<b>") == html.count("<b>")
    assert time.process_time() - started < 5


BLOCK_TAG = r"</?(?:h\d|p|li|ul|ol|pre|table|thead|tbody|tr|td|th|blockquote|hr)\b[^>]*>"


@pytest.mark.parametrize("page", [*ROOT.glob("docs/*.md")], ids=lambda path: path.stem)
def test_pages_of_the_documents(page):
    """As HTML without white space between blocks: each block is translated as it is alone."""
    html = MarkdownIt().enable("table").render(page.read_text("utf-8"))
    html = re.sub(rf"\s*({BLOCK_TAG})\s*", r"\1", html)
    translation, blocks = translate_html(html), re.split(f"({BLOCK_TAG})", html)
    assert tags(translation) == tags(html) and len(blocks) > 20
    assert "".join(map(translate_html, blocks)) == translation
