"""serve.py, used by programs and in a browser."""

import asyncio
import concurrent.futures
import contextlib
import functools
import json
import signal
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest
from aiohttp import FormData
from aiohttp.test_utils import TestClient, TestServer

from browser import chromium, wait_for, wait_for_text
from conftest import slow
from helpers import load, read_test_sentences, refused
from processes import ROOT, Forked, command_line
from server.app import MAX_REQUEST_BYTES, Batcher, Interface, paragraph_answer
from translation.inference import Hypothesis
from translation.paragraphs import Paragraph, split_lines
from translation.translator import TranslatedText, Translation, Translator

LANGUAGES = dict(source="de", target="en")


@pytest.fixture(scope="module")
def flags(trained):
    return trained("tiny")


@pytest.fixture(scope="module")
def server(flags):
    """Start serve.py: the address of the page."""
    with serving(flags) as address:
        yield address


@pytest.fixture(scope="module")
def word_server(trained):
    """Start serve.py with a model of words."""
    with serving(trained("legacy")) as address:
        yield address


@pytest.fixture(params=["legacy", "tiny"])
def server_of(request, trained):
    """The flags of a model and the address of its page: a model of words, and one of subwords."""
    server = dict(legacy="word_server", tiny="server")[request.param]
    return trained(request.param), request.getfixturevalue(server)


@contextlib.contextmanager
def started(flags, **more):
    """Start serve.py with the model that `flags` trained: the process, and its port."""
    options = dict(logdir=flags["logdir"], port=0, nbest=3, beam=1) | more
    with Forked(["serve.py", *command_line(options)]) as process:
        line = next((line for line in process.stdout if "http" in line), "")
        assert line.startswith(f"http://{options.get('host', '127.0.0.1')}:"), process.stderr.read()
        try:
            yield process, int(line.split()[0].rpartition(":")[2])
        finally:
            process.terminate()


@contextlib.contextmanager
def serving(flags, **more):
    """The same: the address of the page."""
    with started(flags, **more) as (_, port):
        yield f"http://127.0.0.1:{port}"


def ask(server, path="translate", **fields):
    """Send fields as JSON: the status and the answer."""
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{server}/{path}", json.dumps(fields).encode(), headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


# A server without a model ---------------------------------------------------------


def translate_twice(sentence):
    """Translate as a model does, but into capitals and into small letters.

    A sentence with `cut` in it has a translation that is cut.
    """
    texts = [sentence.upper(), sentence.lower()] if sentence else [""]
    found = [Hypothesis(text, [], 0.0, at_limit="cut" in sentence) for text in texts]
    return Translation(sentence, [], found, truncated=False)


class Server:
    """What a server without a model has in place of a `Translator` and an `InsideView`."""

    split = staticmethod(split_lines)

    def translate(self, paragraphs, prefixes):
        return [TranslatedText(own, [*map(translate_twice, own.inputs)]) for own in paragraphs]

    def describe(self, translations, count=None):
        return [page_answer(*(best.text for best in own.hypotheses)) for own in translations]

    def steps(self, **look):
        return look

    attention = beam = steps


def interface(server=None, host="127.0.0.1"):
    """The application of a server without a model."""
    server = server or Server()
    return Interface(server, server, ("de", "en"), host).app


def answer_to(method, path, app=None, **request):
    """Send a request to a server without a model: the status and the answer."""

    async def send():
        async with TestClient(TestServer(app or interface())) as client:
            async with client.request(method, path, **request) as response:
                return response.status, await response.json()

    return asyncio.run(asyncio.wait_for(send(), 60))


def multipart(**fields):
    """A form in multipart/form-data, as `curl -F` sends it."""
    form = FormData(default_to_multipart=True)
    for name, value in fields.items():
        form.add_field(name, value)
    return form


RUNS = LANGUAGES | dict(q="Er läuft")
RAN = dict(translatedText="ER LÄUFT")
DETECTED = dict(language="de", confidence=0)
JSON = {"Content-Type": "application/json"}


def page_answer(*texts, truncated=False, **more):
    """The answer for the page."""
    translations = [dict(text=text, truncated=truncated) for text in texts]
    return dict(source=[], translations=translations, truncated=False) | more


ANSWERS = [
    # Clients of LibreTranslate.
    ("translate", dict(json=RUNS), RAN),
    ("translate", dict(data=RUNS | dict(api_key="x")), RAN),
    ("translate", dict(data=multipart(**RUNS)), RAN),
    ("translate", dict(params=RUNS | dict(format="text")), RAN),
    ("translate", dict(json=RUNS | dict(format=None)), RAN),
    ("translate", dict(data=RUNS | dict(source="DE", format="", alternatives="")), RAN),
    ("translate", dict(json=RUNS | dict(source="auto")), RAN | dict(detectedLanguage=DETECTED)),
    (
        "translate",
        dict(json=RUNS | dict(q=["a", "", "b\n\n c"], source="auto")),
        dict(translatedText=["A", "", "B\n\n C"], detectedLanguage=[DETECTED] * 3),
    ),
    ("translate", dict(json=RUNS | dict(q=[])), dict(translatedText=[])),
    (
        "translate",
        dict(json=RUNS | dict(q="A\r\nb", alternatives=9)),
        dict(translatedText="A\r\nB", alternatives=["a\r\nb"]),
    ),
    (
        "translate",
        dict(data=RUNS | dict(q="<p>Er <!-- x -->", format="HTML", alternatives=1)),
        dict(translatedText="<p>ER <!-- x -->", alternatives=["<p>er <!-- x -->"]),
    ),
    ("detect", dict(data=dict(q="Er")), [DETECTED]),
    ("health", None, dict(status="ok")),
    ("languages", None, [dict(code="de", name="de", targets=["en"])]),
    # The page.
    ("translate", dict(json=dict(text="a\nb", split=False)), page_answer("A B", "a b")),
    (
        "translate",
        dict(json=dict(text=" a\n cut")),
        page_answer(
            " A\n CUT",
            truncated=True,
            sentences=[
                dict(before=" ", text="a", translation="A", truncated=False),
                dict(before="\n ", text="cut", translation="CUT", truncated=True),
            ],
        ),
    ),
    (
        "look/steps",
        dict(json=dict(text="a\nb", prefix="c", translation="2", kind="cross", block=3, head=4)),
        dict(text="a b", prefix="c", translation=2, kind="cross", block=3, head=4),
    ),
    (
        "look/beam",
        dict(json=dict(text="a")),
        dict(text="a", prefix="", translation=0, kind="", block=0, head=0),
    ),
]


@pytest.mark.parametrize("path, fields, expected", ANSWERS)
def test_requests_are_answered(path, fields, expected):
    method = "GET" if fields is None else "POST"
    assert answer_to(method, f"/{path}", **(fields or {})) == (200, expected)


TRANSLATING_MISTAKES = [
    (dict(), "source must be de or auto"),
    (dict(json=LANGUAGES), "q must be text"),
    (dict(data=LANGUAGES), "q must be text"),
    (dict(json=dict(q="a", source="de")), "target must be en"),
    (dict(json=RUNS | dict(source="en")), "source must be de or auto"),
    (dict(json=RUNS | dict(source=["de"])), "source must be de or auto"),
    (dict(json=RUNS | dict(target="fr")), "target must be en"),
    (dict(json=RUNS | dict(format="xml")), "format must be text or html"),
    (dict(json=RUNS | dict(alternatives="many")), "alternatives must be a whole number"),
    (dict(json=RUNS | dict(alternatives=-1)), "alternatives must be a whole number"),
    (dict(json=RUNS | dict(q=7)), "q must be text"),
    (dict(json=RUNS | dict(q=["a", None])), "q must be text"),
    (dict(json=dict(text="\ud800")), "text must be text"),
    (dict(json=dict(text="a", prefix=7)), "prefix must be text"),
    (dict(data="{", headers=JSON), "Send application/json"),
    (dict(data=b"\xff", headers=JSON), "Send application/json"),
    (dict(data="{}", headers={"Content-Type": "application/json; charset=no"}), "Send appl"),
    (dict(json=[1]), "Send application/json"),
    (dict(json="text"), "Send application/json"),
    (dict(data='{"text": "a"}'), "Send application/json"),
]
MISTAKES = [
    *(("POST", "translate", fields, 400, reason) for fields, reason in TRANSLATING_MISTAKES),
    ("POST", "translate", dict(json=dict(text="a" * MAX_REQUEST_BYTES)), 413, "100000"),
    ("POST", "translate", dict(data=dict(q="a" * MAX_REQUEST_BYTES)), 413, "100000"),
    ("POST", "look/steps", dict(json=dict()), 400, "text must be text"),
    ("POST", "look/steps", dict(json=dict(text="a", kind=1)), 400, "kind must be text"),
    ("POST", "look/steps", dict(json=dict(text="a", block=1.5)), 400, "block must be a whole"),
    ("POST", "look/steps", dict(json=dict(text="a", head="x")), 400, "head must be a whole"),
    ("POST", "look/other", dict(json=dict(text="a")), 404, "Not Found"),
    ("GET", "missing", dict(), 404, "Not Found"),
    ("GET", "translate", dict(), 405, "Method Not Allowed"),
    ("GET", "", dict(headers=dict(Host="evil.example")), 403, "localhost"),
    ("GET", "health", dict(headers=dict(Host="localhost.evil.example:80")), 403, "localhost"),
]


@pytest.mark.parametrize("method, path, fields, status, reason", MISTAKES)
def test_mistakes_have_a_status_and_a_reason(method, path, fields, status, reason):
    got, answer = answer_to(method, f"/{path}", **fields)
    assert got == status and reason in answer["error"]


@pytest.mark.parametrize("name", ["localhost:80", "LOCALHOST", "127.0.0.1", "[::1]:8080"])
def test_names_of_this_machine_are_accepted(name):
    assert answer_to("GET", "/health", headers=dict(Host=name))[0] == 200


def test_a_server_for_other_machines_has_any_name():
    app = interface(host="0.0.0.0")
    assert answer_to("GET", "/health", app, headers=dict(Host="a.example"))[0] == 200


def test_a_failure_of_the_server_is_answered_in_json(caplog):
    def fail(*_, **__):
        raise RuntimeError("a mistake in the code")

    for path in ("/translate", "/look/beam"):
        server = Server()
        server.translate = server.beam = fail
        app = interface(server)
        status, answer = answer_to("POST", path, app, json=dict(text="a"))
        assert status == 500 and answer["error"] == "The server failed. Its log has the reason."
    assert "a mistake in the code" in caplog.text


def test_concurrent_sentences_are_translated_in_batches():
    batches, released = [], threading.Event()

    def double(items, prefixes):
        assert prefixes == [""] * len(items)
        released.wait(60)
        batches.append(len(items))
        if "bad" in items:
            raise RuntimeError("bad")
        return [2 * item for item in items]

    async def scenario():
        batcher = Batcher(double)
        requests = [asyncio.create_task(batcher([i, i + 1])) for i in range(40)]
        await asyncio.sleep(0.1)
        released.set()
        assert await asyncio.gather(*requests) == [[2 * i, 2 * i + 2] for i in range(40)]
        with pytest.raises(RuntimeError):
            await batcher(["bad"])
        assert await batcher([4, 3]) == [8, 6]  # an error does not stop it
        assert await batcher([]) == []

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert batches == [2, 64, 14, 1, 2, 0]  # the first request does not wait for others


def test_translations_do_not_wait_for_looks():
    """And looks wait for each other."""
    looks, released = [], threading.Event()

    def look_slowly(**look):
        looks.append(look)
        released.wait(60)
        return look

    server = Server()
    server.beam = look_slowly

    async def scenario():
        async with TestClient(TestServer(interface(server))) as client:

            async def post(path):
                async with client.post(path, json=dict(text="a")) as response:
                    return response.status

            waiting = [asyncio.create_task(post("/look/beam")) for _ in range(2)]
            assert await post("/translate") == 200
            await asyncio.sleep(0.1)
            assert len(looks) == 1
            released.set()
            assert await asyncio.gather(*waiting) == [200, 200]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_a_sentence_of_a_text_has_the_symbol_of_its_target_language():
    """The page asks for the translation of a sentence alone."""
    paragraph = Paragraph([">>fr<< Eins.", "Zwei."], ["", " ", ""], ">>fr<<")
    found = Translation("", [], [Hypothesis("Un.", [], 0.0, at_limit=False)], truncated=False)
    answer = paragraph_answer(TranslatedText(paragraph, [found] * 2))
    assert [own["text"] for own in answer["sentences"]] == [">>fr<< Eins.", ">>fr<< Zwei."]
    assert answer["translations"][0]["text"] == "Un. Un."


# A server with a model ------------------------------------------------------------


def test_concurrent_requests_are_translated_as_single_ones(server_of):
    flags, server = server_of
    lines = [*read_test_sentences(flags["source_test"]), "", "我", "<b>&</b>"]
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = [*threads.map(lambda line: ask(server, text=line), lines)]
    loaded = load(dict(logdir=flags["logdir"], beam=3))
    hp = loaded.hp
    expected = Translator(loaded, nbest=3, protect=True)(lines)
    for line, (status, answer), best in zip(lines, answers, expected, strict=True):
        assert status == 200
        got = [(hypothesis["text"], hypothesis["score"]) for hypothesis in answer["translations"]]
        assert (got or [("", 0.0)]) == [
            (own.text, pytest.approx(own.score, abs=2e-4)) for own in best.sentences[0].hypotheses
        ]
        for hypothesis in answer["translations"]:
            assert len(hypothesis["attention"]) == len(hypothesis["tokens"])
            assert len(hypothesis["probabilities"]) == len(hypothesis["tokens"])
            limit = hp.max_output_tokens(len(answer["source"]) + 1)
            assert hypothesis["truncated"] == (len(hypothesis["tokens"]) == limit)
            for row in hypothesis["attention"]:
                assert len(row) == len(answer["source"]) and sum(row) < 1.02
            if hp.tokenizer == "bpe":
                written = "".join(hypothesis["tokens"]).strip()
                assert written == hypothesis["text"] or "<UNK>" in written
        if hp.tokenizer == "bpe":
            read = "".join(answer["source"]).strip()  # without case
            assert read in (line.casefold(), "<UNK>", "<UNK>b<UNK>b<UNK>")


def test_the_size_of_an_answer_is_limited(server):
    """For a sentence without spaces, and for one of 500 words."""
    for text in ("x" * 1000, "a " * 500):
        status, answer = ask(server, text=text, split=False)
        assert status == 200 and len(answer["source"]) < 200 and len(json.dumps(answer)) < 5e6
    assert answer["truncated"]


def test_a_translation_of_the_maximum_length_is_truncated(server):
    _, answer = ask(server, text="Hund", prefix="The dog sees " * 70)
    assert not answer["truncated"]
    assert all(translation["truncated"] for translation in answer["translations"])


def test_a_random_translation_is_one(trained):
    with serving(trained("tiny"), temperature=1.0, host="0.0.0.0") as server:
        one, again = (ask(server, text="Der Hund schläft.") for _ in "ab")
    assert one == again and one[0] == 200 and len(one[1]["translations"]) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_during_a_request_prints_one_line(flags, number):
    with started(flags) as (process, port):
        body = json.dumps(dict(text="Hund " * 400)).encode()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            time.sleep(0.2)  # so that the translation begins on most machines
            process.send_signal(number)
            printed = process.stderr.read()
    assert "Traceback" not in printed and printed.endswith("serve.py: stopped\n")
    assert process.returncode == 128 + number


def test_an_address_that_is_not_free(flags, server):
    taken = server.removeprefix("http://")
    for address, reason in ((taken, "already in use"), ("192.0.2.1:0", "cannot assign")):
        host, port = address.split(":")
        needles = f"{address}: ", reason, "Choose another --port or --host"
        refused("serve.py", *needles, logdir=flags["logdir"], host=host, port=port)


def test_a_look_inside_is_answered(server_of):
    flags, server = server_of
    text = read_test_sentences(flags["source_test"])[0]
    _, translated = ask(server, text=text)
    fields = dict(text=text, translation=2, kind="decoder", block=1, head=2)
    status, answer = ask(server, "look/attention", **fields)
    assert status == 200 and answer["head"] == 2 and np.shape(answer["weights"])
    status, answer = ask(server, "look/steps", **fields)
    probabilities = [step["probability"] for step in answer["steps"]]
    shown = translated["translations"][1]["probabilities"]
    assert status == 200 and probabilities[: len(shown)] == pytest.approx(shown, abs=2e-3)
    status, answer = ask(server, "look/beam", **fields)
    scores = {node["rank"]: node["score"] for nodes in answer["steps"] for node in nodes}
    for rank, translation in enumerate(translated["translations"], 1):
        assert scores[rank] == pytest.approx(translation["score"], abs=2e-3)
    assert status == 200
    status, answer = ask(server, "look/attention", **fields | dict(block=9))
    assert status == 400 and "one of these kinds, blocks and heads" in answer["error"]


@pytest.mark.parametrize("prefix", ["They", "The 猫"])  # the second one has an unknown character
def test_a_prefix_is_continued(server_of, prefix):
    flags, server = server_of
    source = read_test_sentences(flags["source_test"])[0]
    status, answer = ask(server, text=source, prefix=prefix)
    assert status == 200 and answer["translations"]
    for translation in answer["translations"]:
        assert translation["text"].startswith(prefix)
        assert all(0 <= probability <= 1 for probability in translation["probabilities"])


# Paragraphs and HTML ------------------------------------------------------------

# Of the sample model: docs/sample_model.md.
SOURCES = ["Die Frau hat den Brief nicht gelesen.", "Der Hund schläft.", "Der Mann liest ein Buch."]
TARGETS = ["The woman did not read the letter.", "The dog sleeps.", "The man reads a book."]


@pytest.fixture(scope="module")
def sample_server():
    """Start serve.py with the sample model, which translates the words of the built-in corpus."""
    with serving(dict(logdir=str(ROOT / "docs" / "sample_model"))) as address:
        yield address


@pytest.fixture(scope="module")
def unsplit_server():
    """The same with --no-split."""
    with serving(dict(logdir=str(ROOT / "docs" / "sample_model")), split=False) as address:
        yield address


def layout(sentences):
    """A text of three sentences with line breaks and spaces."""
    return "\r\n {}  {}\n\n\t{}\n".format(*sentences)


def test_a_paragraph_is_put_together_again(sample_server):
    text = layout(SOURCES)
    status, answer = ask(sample_server, text=text)
    assert status == 200 and answer["truncated"] is False and answer["source"] == []
    assert answer["translations"] == [dict(text=layout(TARGETS), truncated=False)]
    assert [own["text"] for own in answer["sentences"]] == SOURCES
    assert [own["translation"] for own in answer["sentences"]] == TARGETS
    assert [own["before"] for own in answer["sentences"]] == ["\r\n ", "  ", "\n\n\t"]
    _, answer = ask(sample_server, q=[text, "", SOURCES[1]], alternatives=1, **LANGUAGES)
    assert answer["translatedText"] == [layout(TARGETS), "", TARGETS[1]]
    assert [len(others) for others in answer["alternatives"]] == [1, 0, 1]
    assert answer["alternatives"][0][0].count("\n") == text.count("\n")


def test_one_sentence_has_the_answer_of_a_sentence(sample_server):
    texts = [SOURCES[0], f" {SOURCES[0]}\n"]
    plain, spaces = (ask(sample_server, text=text)[1] for text in texts)
    _, unsplit = ask(sample_server, text=SOURCES[0], split=False)
    assert plain == spaces == unsplit and "sentences" not in plain
    assert plain["translations"][0]["text"] == TARGETS[0]
    _, both = ask(sample_server, text=" ".join(SOURCES), split=False)
    assert "sentences" not in both


def test_a_prefix_begins_the_first_sentence(sample_server):
    _, answer = ask(sample_server, text=" ".join(SOURCES), prefix="A woman")
    first, *others = (own["translation"] for own in answer["sentences"])
    assert first.startswith("A woman") and others == TARGETS[1:]


@slow
def test_nothing_of_a_text_is_dropped(sample_server):
    """500 words without the end of a sentence."""
    text = "der Hund und " * 170
    _, answer = ask(sample_server, text=text)
    assert answer["truncated"] is False and len(answer["sentences"]) > 2
    assert " ".join(own["text"] for own in answer["sentences"]) == text.strip()


@slow
def test_without_split_each_line_is_a_sentence(unsplit_server):
    _, answer = ask(unsplit_server, text=" ".join(SOURCES))
    assert "sentences" not in answer and answer["translations"]
    _, answer = ask(unsplit_server, text="der Hund und " * 170)
    assert answer["truncated"] is True
    _, answer = ask(unsplit_server, q="\n\n".join(SOURCES), **LANGUAGES)
    assert answer == dict(translatedText="\n\n".join(TARGETS))


HTML = {
    "<p>{0}<p class='a'>{1} <b>{2}</b>": None,
    "<ul>\n  <li>{0}</li>\n  <li>{1}<br/>\n{2}</ul>": None,
    "<!-- {0} --><script>'{0}' < 1</script>{0} <pre>{1}\n</pre><p translate=no>{1}": (
        "<!-- {0} --><script>'{0}' < 1</script>{t0} <pre>{1}\n</pre><p translate=no>{1}"
    ),
    "<code>{0}</code><div class='x notranslate'><p>{1}</div>{2}": (
        "<code>{0}</code><div class='x notranslate'><p>{1}</div>{t2}"
    ),
    "Der Hund schl&auml;ft&#46;&nbsp;{1}": "{t1}&nbsp;{t1}",
    "Die Frau hat <a href='x?a=1&b=2'>den Brief</a> nicht <b>gelesen</b>.": (
        "The woman did not <b>read</b> <a href='x?a=1&b=2'>the letter</a>."
    ),
    "<i>Die Frau</i> hat den Brief nicht gelesen.": "<i>The woman</i> did not read the letter.",
    "<b>{0} Der Hund</b> schläft.": "<b>{t0} The dog</b> sleeps.",
    "<b>{0} <i>{1}</b>": None,
}


@pytest.mark.parametrize("source", HTML)
def test_the_tags_of_html_are_kept(sample_server, source):
    target = HTML[source]
    if target is None:
        expected = source.format(*TARGETS)
    else:
        expected = target.format(*SOURCES, **{f"t{i}": text for i, text in enumerate(TARGETS)})
    fields = dict(q=source.format(*SOURCES), format="html")
    assert ask(sample_server, **fields, **LANGUAGES) == (200, dict(translatedText=expected))


# The page ----------------------------------------------------------------------


# What WCAG 2.1 AA asks for and a program can check: names of controls, contrast, language.
ACCESSIBILITY = """
const faults = [];
const luminance = ([r, g, b]) => [r, g, b].map(c => c / 255)
    .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const rgb = colour => colour.match(/[\\d.]+/g).map(Number);
const background = element => {
    for (; element; element = element.parentElement) {
        const colour = rgb(getComputedStyle(element).backgroundColor);
        if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
};
if (!document.documentElement.lang) faults.push("the page has no language");
if (!document.title) faults.push("the page has no title");
const controls = "textarea, input, button, select, summary, [tabindex]";
for (const element of document.querySelectorAll(controls)) {
    const name = element.labels?.[0]?.textContent || element.ariaLabel || element.innerText;
    if (!name?.trim() && element.checkVisibility()) faults.push(element.outerHTML);
    if (element.tabIndex < 0) faults.push(`not reached by Tab: ${element.outerHTML}`);
}
for (const element of document.querySelectorAll("body *")) {
    if (![...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (["SCRIPT", "STYLE"].includes(element.tagName)) continue;
    const pair = [rgb(getComputedStyle(element).color), background(element)].map(luminance);
    const contrast = (Math.max(...pair) + 0.05) / (Math.min(...pair) + 0.05);
    if (contrast < 4.5) faults.push(`contrast ${contrast}: ${element.outerHTML}`);
}
if (document.documentElement.scrollWidth > innerWidth) faults.push("wider than the screen");
return faults;
"""


def test_the_page(flags, server):
    source, second = read_test_sentences(flags["source_test"])[:2]
    best = [own["text"] for own in ask(server, text=source)[1]["translations"]]
    with chromium() as driver:
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        def tokens(name):
            return driver.find_elements(By.CSS_SELECTOR, f"#{name} span")

        def colours(name):
            return [token.value_of_css_property("background-color") for token in tokens(name)]

        def translation():
            return driver.find_element(By.ID, "translation").get_property("value")

        driver.get(server)
        # An input method ends a word with Enter.
        enter = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true})"
        driver.execute_script(f"byId('text').dispatchEvent({enter})")
        assert driver.execute_script("return lastRequest") == 0
        driver.find_element(By.ID, "text").send_keys(source + "\n")
        wait_for_text(driver, *best)
        assert driver.find_element(By.ID, "target").text.split() == best[0].split()
        assert translation() == best[0]
        for name in ("source", "target"):  # no space indents the line
            assert not tokens(name)[0].get_property("textContent").startswith(" ")
        assert driver.get_log("browser") == []  # no error, of the icon for example
        ActionChains(driver).move_to_element(tokens("target")[0]).perform()
        assert wait_for(lambda: len(set(colours("source"))) > 1)
        wait_for_text(driver, "has the probability 0.")
        ActionChains(driver).move_to_element(tokens("source")[0]).perform()
        assert wait_for(lambda: len(set(colours("target"))) > 1)
        # By keyboard: Tab reaches the tokens of the translation.
        driver.execute_script("arguments[0].focus()", tokens("source")[-1])
        ActionChains(driver).send_keys(Keys.TAB).perform()
        assert driver.switch_to.active_element == tokens("target")[0]
        assert wait_for(lambda: len(set(colours("source"))) > 1)

        driver.find_elements(By.CSS_SELECTOR, "#alternatives button")[1].click()
        assert driver.find_element(By.ID, "target").text.split() == best[1].split()
        # The user types over the translation, which is then continued.
        field = driver.find_element(By.ID, "translation")
        field.send_keys(Keys.CONTROL, "a")
        field.send_keys("They")
        assert wait_for(lambda: translation().startswith("They") and len(translation()) > 4)
        selected = driver.execute_script(
            "return arguments[0].value.slice(arguments[0].selectionStart)", field
        )
        assert selected and translation() == f"They{selected}"
        # Deleting is no request: the user is not done.
        field.send_keys(Keys.BACKSPACE)
        time.sleep(1)
        assert translation() == "They"

        text = driver.find_element(By.ID, "text")
        text.clear()
        text.send_keys(second + "\n")
        buttons = functools.partial(driver.find_elements, By.CSS_SELECTOR, "#history button")
        history = wait_for(lambda: len(buttons()) == 2 and buttons())
        assert [button.text for button in history] == [second, source]
        history[1].click()
        wait_for(lambda: translation() == best[0])
        driver.refresh()
        wait_for_text(driver, source, second)


def test_the_page_shows_a_paragraph(sample_server):
    """By keyboard, on the width of a phone."""
    with chromium() as driver:
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys

        metrics = dict(width=360, height=700, deviceScaleFactor=1, mobile=True)
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

        def value(script):
            return driver.execute_script(f"return {script}")

        def translated(index):
            return wait_for(lambda: value("byId('translation').value") == TARGETS[index])

        driver.get(sample_server)
        assert value("byId('several').checkVisibility()") is False
        field = driver.find_element(By.ID, "text")
        field.send_keys(SOURCES[0] + " " + SOURCES[1], Keys.SHIFT + Keys.ENTER)
        field.send_keys(SOURCES[2] + "\n")
        assert translated(0)
        text = f"{TARGETS[0]} {TARGETS[1]}\n{TARGETS[2]}"
        assert value("byId('paragraph').textContent") == text
        assert driver.find_element(By.ID, "target").text == TARGETS[0]
        # Tab reaches the sentences, and Enter chooses one.
        driver.find_element(By.CSS_SELECTOR, "form button").send_keys(Keys.TAB)
        ActionChains(driver).send_keys(Keys.TAB, Keys.ENTER).perform()
        assert translated(1)
        pressed = "[...document.querySelectorAll('#paragraph [aria-pressed=true]')]"
        assert value(f"{pressed}.map(span => span.textContent)") == [TARGETS[1]]
        wait_for_text(driver, f"Sentence 2 of 3: {SOURCES[1]}")
        # A change of its translation is one of the paragraph.
        driver.find_elements(By.CSS_SELECTOR, "#alternatives button")[1].click()
        other = value("byId('translation').value")
        assert other != TARGETS[1]
        assert value("byId('paragraph').textContent") == text.replace(TARGETS[1], other)
        assert driver.execute_script(ACCESSIBILITY) == []
        # One sentence, which is no HTML here, has the page of a sentence.
        field.clear()
        field.send_keys("<img src=x onerror=alert(1)>\n")
        assert wait_for(lambda: value("byId('several').checkVisibility()") is False)
        assert value("document.images.length") == 0


@slow
def test_the_page_shows_the_inside_of_the_model(unsplit_server):
    with chromium() as driver:
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.by import By
        from selenium.webdriver.common.keys import Keys
        from selenium.webdriver.support.ui import Select

        def find(selector):
            return driver.find_elements(By.CSS_SELECTOR, selector)

        def texts(selector):  # at once, since an answer replaces the elements
            elements = f"[...document.querySelectorAll('{selector}')]"
            return driver.execute_script(f"return {elements}.map(element => element.innerText)")

        def wait_until_shown(condition):
            """Wait until the condition is true and no answer is on its way."""
            wait_for(lambda: condition() and not find("[aria-busy=true]"))

        def press(*keys):
            ActionChains(driver).send_keys(*keys).perform()

        def looks():
            names = "performance.getEntriesByType('resource').map(entry => entry.name)"
            requests = driver.execute_script(f"return {names}")
            return [name.rpartition("/")[2] for name in requests if "/look/" in name]

        dark = dict(name="prefers-color-scheme", value="dark")
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dict(features=[dark]))
        driver.get(unsplit_server)
        driver.find_element(By.ID, "text").send_keys(SOURCES[0] + "\n")
        wait_for(lambda: len(find("#alternatives button")) == 3)
        assert looks() == []  # nothing is computed yet
        find("summary")[0].send_keys(Keys.ENTER)
        wait_until_shown(lambda: texts("#map td") and texts("#likely li"))
        assert sorted(looks()) == ["attention", "steps"]
        assert len(texts("#map tbody th")) == len(texts("#likely li"))
        assert texts("#map thead th")[-1] == texts("#map tbody th")[-1] == "</S>"
        # By keyboard: Tab leads from the choice of the head into the map, arrows move in it.
        find("#head")[0].send_keys(Keys.TAB)
        press(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
        row, column = texts("#map tbody th")[1], texts("#map thead th")[1]
        wait_for_text(driver, f"Row {row}, column {column}: ")
        Select(find("#kind")[0]).select_by_value("decoder")
        wait_until_shown(lambda: texts("#map .masked"))
        assert texts("#map thead th")[0] == "<S>"
        Select(find("#head")[0]).select_by_value("2")
        wait_until_shown(lambda: find("#map [aria-label$='head 2']"))
        assert sorted({*looks()}) == ["attention", "steps"]

        find("details details summary")[0].send_keys(Keys.ENTER)
        wait_until_shown(lambda: texts("#tree .node"))
        assert driver.execute_script(ACCESSIBILITY) == []
        best = texts("#tree .taken")
        assert "■ 1" in best[-1]
        find("#alternatives button")[1].click()
        wait_until_shown(lambda: texts("#tree .taken") != best)
        assert "■ 2" in texts("#tree .taken")[-1]
        find("#tree [tabindex]")[0].click()
        press(Keys.ARROW_DOWN)
        assert driver.switch_to.active_element.text == texts("#tree .taken")[1]
        wait_for_text(driver, "log-probability")
        # Another sentence is shown in the open panel.
        before = texts("#map tbody th")
        driver.find_element(By.ID, "text").clear()
        driver.find_element(By.ID, "text").send_keys(SOURCES[1] + "\n")
        wait_until_shown(lambda: texts("#map tbody th") != before)
        assert texts("#map .masked")  # the chosen kind stays
        # What is refused is said.
        driver.find_element(By.ID, "text").clear()
        driver.find_element(By.ID, "text").send_keys("a " * 150 + "\n")
        wait_for_text(driver, "To look inside, give one of 1 to")
        wait_until_shown(lambda: not texts("#map td"))
        statuses = [entry["message"] for entry in driver.get_log("browser")]
        assert all("400" in message for message in statuses)
