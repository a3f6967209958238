"""serve.py, used by programs and in a browser."""

import asyncio
import itertools
import json
import re
import signal
import socket
import threading
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest
from aiohttp import FormData
from aiohttp.test_utils import TestClient, TestServer
from libretranslatepy import LibreTranslateAPI

from helpers import load, read_test_sentences
from hparams import Hyperparams
from server.app import MAX_REQUEST_BYTES, Batcher, Interface, paragraph_answer
from server.inside import InsideView
from serving import SAMPLE, SOURCES, TARGETS, ask, started
from translation.inference import Hypothesis
from translation.paragraphs import Paragraph, Splitter, as_one_sentence, split_lines
from translation.translator import TranslatedText, Translation, Translator

LANGUAGES = dict(source="de", target="en")
MIME = "application/json"
JSON = {"Content-Type": MIME}


def answers_to(models, host, *requests):
    """Send requests at once, each a method, a path and more: the status and answer of each."""
    app = Interface(models, host).app()

    async def send(client, method, path, more):
        async with client.request(method, path, **more) as response:
            return response.status, await response.json()

    async def send_all():
        async with TestClient(TestServer(app)) as client:
            return await asyncio.gather(*(send(client, *request) for request in requests))

    return asyncio.run(asyncio.wait_for(send_all(), 120))


# A server without a model -------------------------------------------


def translate_twice(sentence):
    """Translate as a model does, but into capitals and into small letters.

    A sentence with `one` in it has one translation, and one with `cut` has one that is cut.
    """
    capitals = re.sub(r"\w+(?![\w\ue001])", lambda word: word[0].upper(), sentence)  # no tags
    texts = [capitals] if "one" in sentence else [capitals, sentence.lower()]
    found = [Hypothesis(text, [], 0.0, at_limit="cut" in sentence) for text in texts]
    return Translation(sentence, [], found, truncated=False)


class Symbols(list):
    """A vocabulary."""

    def id_to_token(self, i):
        return self[i]


class Server:
    """What a server without a model has in place of a `Translator` and an `InsideView`.

    Its vocabulary has only the symbols of languages.
    """

    split = staticmethod(split_lines)

    def __init__(self, source="de", target="en", symbols=()):
        hp = Hyperparams(source_lang=source, target_lang=target)
        self.loaded = SimpleNamespace(hp=hp, vocabs=[Symbols(symbols)])

    def translate(self, paragraphs):
        return [TranslatedText(own, [*map(translate_twice, own.inputs)]) for own in paragraphs]

    def describe(self, translations):
        return [page_answer(*(best.text for best in own.hypotheses)) for own in translations]

    def steps(self, **look):
        return look

    attention = beam = steps


def answer_to(method, path, server=None, host="127.0.0.1", **more):
    """Send a request to a server without a model: the status and the answer."""
    server = server or Server()
    (answer,) = answers_to([(server, server)], host, (method, path, more))
    return answer


def multipart(**fields):
    """A form in multipart/form-data, as `curl -F` sends it."""
    form = FormData(default_to_multipart=True)
    for name, value in fields.items():
        form.add_field(name, value)
    return form


def page_answer(*texts, truncated=False, **more):
    """The answer for the page."""
    translations = [dict(text=text, truncated=truncated) for text in texts]
    return dict(source=[], translations=translations, truncated=False) | more


RUNS = LANGUAGES | dict(q="Er läuft")
RAN = dict(translatedText="ER LÄUFT")
DETECTED = dict(language="de", confidence=0)
LINE_BREAKS = RUNS | dict(q="A\r\none", alternatives=9)
HTML_TEXT = RUNS | dict(q="<p>Er <!-- x -->", format="HTML", alternatives=1)
LOOK = dict(text="a b", prefix="c", kind="cross", block=3, head=4)
NO_LOOK = dict(text="a", prefix="", translation=0, kind="", block=0, head=0)
SENTENCES = [
    dict(before=" ", text="a", translation="A", truncated=False),
    dict(before="\n ", text="cut", translation="CUT", truncated=True),
]


@pytest.mark.parametrize(
    "path, fields, expected",
    [
        # Clients of LibreTranslate.
        ("translate", dict(json=RUNS | dict(format=None)), RAN),
        ("translate", dict(data=RUNS | dict(api_key="x", format="", alternatives="")), RAN),
        ("translate", dict(data=multipart(**RUNS)), RAN),
        ("translate", dict(params=RUNS | dict(format="text", source="DE", target="en-US")), RAN),
        ("translate", dict(json=RUNS | dict(source="auto")), RAN | dict(detectedLanguage=DETECTED)),
        (
            "translate",
            dict(json=RUNS | dict(q=["a", "", "b\n\n c"], source="auto")),
            dict(translatedText=["A", "", "B\n\n C"], detectedLanguage=[DETECTED] * 3),
        ),
        (
            "translate",
            dict(json=LINE_BREAKS),
            dict(translatedText="A\r\nONE", alternatives=["a\r\nONE"]),
        ),
        (
            "translate",
            dict(data=HTML_TEXT),
            dict(translatedText="<p>ER <!-- x -->", alternatives=["<p>er <!-- x -->"]),
        ),
        ("detect", dict(data=dict(q="Er")), [DETECTED]),
        ("health", None, dict(status="ok")),
        # The page.
        ("translate", dict(json=dict(text="a\nb", split=False)), page_answer("A B", "a b")),
        ("translate", dict(data=dict(text="a\nb", split="false")), page_answer("A B", "a b")),
        (
            "translate",
            dict(json=dict(text=" a\n cut")),
            page_answer(" A\n CUT", truncated=True, sentences=SENTENCES),
        ),
        (
            "look/steps",
            dict(json=LOOK | dict(text="a\nb", translation="2")),
            LOOK | dict(translation=2),
        ),
        ("look/beam", dict(json=dict(text="a")), NO_LOOK),
    ],
)
def test_requests_are_answered(path, fields, expected):
    method = "GET" if fields is None else "POST"
    assert answer_to(method, f"/{path}", **(fields or {})) == (200, expected)


KNOWN = "Choose one of: de to en."
USAGE = "Send application/json"
LARGE = "a" * MAX_REQUEST_BYTES
LONG = f"a&#{'9' * 5000};"


@pytest.mark.parametrize(
    "path, fields, status, reason",
    [
        ("translate", dict(), 400, "q must be text"),
        ("translate", dict(json=dict(q="a", source="de")), 400, "target must be text"),
        ("translate", dict(json=RUNS | dict(source=["de"])), 400, "source must be text"),
        ("translate", dict(json=RUNS | dict(source="en")), 400, KNOWN),
        ("translate", dict(json=RUNS | dict(source="auto", target="fr")), 400, KNOWN),
        ("translate", dict(json=dict(text="a", target="de")), 400, KNOWN),
        ("look/beam", dict(json=dict(text="a", source="fr")), 400, KNOWN),
        ("translate", dict(json=RUNS | dict(format="xml")), 400, "format must be text or html"),
        ("translate", dict(json=dict(q=LONG, format="html") | LANGUAGES), 400, "too many digits"),
        ("translate", dict(json=LANGUAGES), 400, "q must be text"),
        ("translate", dict(json=RUNS | dict(q=["a", None])), 400, "q must be text"),
        ("translate", dict(json=RUNS | dict(alternatives=-1)), 400, "alternatives must be a whole"),
        ("translate", dict(json=dict(text="\ud800")), 400, "text must be text"),
        ("translate", dict(json=dict(text="a", prefix=7)), 400, "prefix must be text"),
        ("translate", dict(data="{", headers=JSON), 400, "cannot be read: Expecting"),
        ("translate", dict(data=b'{"text": "\xff"}', headers=JSON), 400, "'utf-8' codec"),
        ("translate", dict(data="{}", headers={"Content-Type": f"{MIME}; charset=no"}), 400, USAGE),
        ("translate", dict(json=[1]), 400, USAGE),
        ("translate", dict(data="{}", headers=JSON | {"Content-Encoding": "gzip"}), 400, "read"),
        ("translate", dict(data="[" * 99_000, headers=JSON), 400, USAGE),
        ("look/beam", dict(json=dict(text="a", block="9" * 5000)), 400, "block must be a whole"),
        ("translate", dict(data='{"text": "a"}'), 400, USAGE),
        ("translate", dict(json=dict(text=LARGE)), 413, "100000"),
        ("translate", dict(data=dict(q=LARGE)), 413, "100000"),
        ("look/steps", dict(json=dict(text="a", kind=1)), 400, "kind must be text"),
        ("look/steps", dict(json=dict(text="a", block=1.5)), 400, "block must be a whole"),
        ("look/other", dict(json=dict(text="a")), 404, "Not Found"),
        ("health", dict(), 405, "Method Not Allowed"),
        ("detect", dict(headers=dict(Host="evil.example")), 403, "localhost"),
        ("detect", dict(headers=dict(Host="localhost.evil.example:80")), 403, "localhost"),
    ],
)
def test_mistakes_have_a_status_and_a_reason(path, fields, status, reason):
    got, answer = answer_to("POST", f"/{path}", **fields)
    assert got == status and reason in answer["error"]


@pytest.mark.parametrize(
    "name, host",
    [("LOCALHOST:80", "127.0.0.1"), ("[::1]:8080", "localhost"), ("a.example", "0.0.0.0")],
)
def test_names_that_are_accepted(name, host):
    """Those of this machine; a server for other machines has any name."""
    assert answer_to("GET", "/health", host=host, headers=dict(Host=name))[0] == 200


# Languages of a server with models of German, of Chinese and Japanese, and of four languages.
SYMBOLS = ["<S>", ">>en<<", ">>fr<<", ">>bt<<", ">>pt-BR<<", "a"]


@pytest.mark.parametrize(
    "source, target, text, got",
    [
        ("de", "en", "Ei", "EI"),
        ("en", "de", "Ei", "EI"),
        ("DE_at", "en-US", "Ei", "EI"),
        ("zh-Hans", "en", "Ei", "EI"),
        ("en", "fr", "Ei\nAh", ">>FR<< EI\n>>FR<< AH"),
        ("fr", "pt-BR", "Ei", ">>PT-BR<< EI"),
        ("fr", "pt", ">>en<< Ei", ">>EN<< EI"),
        ("auto", "en", "Ei", "de"),  # the first model
        ("auto", "de", "Ei", "en"),  # no other translates into German
        ("auto", "en", "漢字", "zh-CN"),
        ("auto", "en", "漢字です", "ja"),
        ("auto", "fr", "漢字です", "en"),
    ],
)
def test_a_request_chooses_its_model(source, target, text, got):
    pairs = [("de", "en"), ("en", "de"), ("zh-CN", "en"), ("ja", "en")]
    servers = [*itertools.starmap(Server, pairs), Server("en", "fr", SYMBOLS), Server("de", "en")]
    requests = [
        ("POST", "/translate", dict(json=dict(q=text, source=source, target=target))),
        ("GET", "/directions", {}),
        ("GET", "/languages", {}),
    ]
    models = [(server, server) for server in servers]
    (status, answer), (_, directions), (_, languages) = answers_to(models, "", *requests)
    assert status == 200
    assert (
        got == answer.get("detectedLanguage", dict(language=answer["translatedText"]))["language"]
    )
    found = [tuple(own[side]["code"] for side in ("source", "target")) for own in directions]
    several = [("en", "fr"), ("en", "pt-BR"), ("fr", "en"), ("fr", "pt-BR")]
    assert found == [*pairs, *several, ("pt-BR", "fr"), ("pt-BR", "en")]
    names = {own["code"]: (own["name"], own["targets"]) for own in languages}
    assert names["en"] == ("English", ["de", "fr", "pt-BR"])
    assert names["pt-BR"] == ("Brazilian Portuguese", ["fr", "en"])
    assert names["ja"] == ("Japanese", ["en"])


def test_a_failure_of_the_server_is_answered_in_json(caplog):
    def fail(*_, **__):
        raise RuntimeError("a mistake in the code")

    server = Server()
    server.translate = server.beam = fail
    for path in ("/translate", "/look/beam"):
        status, answer = answer_to("POST", path, server, json=dict(text="a"))
        assert status == 500 and answer["error"] == "The server failed. Its log has the reason."
    assert "a mistake in the code" in caplog.text


def test_concurrent_sentences_are_translated_in_batches():
    batches, released = [], threading.Event()

    def double(items):
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


def test_a_sentence_of_a_text_has_the_symbol_of_its_target_language():
    """The page asks for the translation of a sentence alone."""
    paragraph = Paragraph([">>fr<< Eins.", "Zwei."], ["", " ", ""], ">>fr<<")
    found = Translation("", [], [Hypothesis("Un.", [], 0.0, at_limit=False)], truncated=False)
    translated = TranslatedText(paragraph, [found] * 2)
    answer = paragraph_answer(translated, ">>fr<<")
    assert [own["text"] for own in answer["sentences"]] == ["Eins.", "Zwei."]
    answer = paragraph_answer(translated)
    assert [own["text"] for own in answer["sentences"]] == [">>fr<< Eins.", ">>fr<< Zwei."]
    assert answer["translations"][0]["text"] == "Un. Un."


# A server with a model ----------------------------------------------


class Model:
    """A model that answers as `serve.py --nbest 3 --beam 1` does."""

    def __init__(self, logdir):
        loaded = load(dict(logdir=logdir, beam=3))
        split = Splitter("de", loaded.vocabs[0], loaded.hp.maxlen)
        self.translator = Translator(loaded, 3, split, protect=True)
        self.inside = InsideView(self.translator)
        self.inside.describe(self.translator(["Hund"])[0].sentences)  # several threads read next

    def ask_all(self, path, *all_fields):
        """Send requests for the page: the answer to each."""
        requests = [("POST", f"/{path}", dict(json=fields)) for fields in all_fields]
        return answers_to([(self.translator, self.inside)], "127.0.0.1", *requests)

    def ask(self, path="translate", status=200, **fields):
        """The answer to one request."""
        ((got, answer),) = self.ask_all(path, fields)
        assert got == status
        return answer


@pytest.fixture(scope="module")
def tiny(trained):
    """A model of subwords, and a sentence."""
    flags = trained("tiny")
    return Model(flags["logdir"]), read_test_sentences(flags["source_test"])[0]


def test_concurrent_requests_are_translated_as_single_ones(trained, tiny):
    model, _ = tiny
    lines = [*read_test_sentences(trained("tiny")["source_test"]), "", "我", "<b>&</b>"]
    answers = model.ask_all("translate", *(dict(text=line) for line in lines))
    hp = model.translator.loaded.hp
    expected = model.translator.translate([*map(as_one_sentence, lines)])
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
            written = "".join(hypothesis["tokens"]).strip()
            assert written == hypothesis["text"] or "<UNK>" in written
        read = "".join(answer["source"]).strip()  # without case
        assert read in (line.casefold(), "<UNK>", "<UNK>b<UNK>b<UNK>")


def test_a_look_inside_is_answered(tiny):
    model, text = tiny
    translations = model.ask(text=text)["translations"]
    fields = dict(text=text, translation=2, kind="decoder", block=1, head=2)
    answer = model.ask("look/attention", **fields)
    assert answer["head"] == 2 and np.shape(answer["weights"])
    probabilities = [step["probability"] for step in model.ask("look/steps", **fields)["steps"]]
    shown = translations[1]["probabilities"]
    assert probabilities[: len(shown)] == pytest.approx(shown, abs=2e-3)
    steps = model.ask("look/beam", **fields)["steps"]
    scores = {node["rank"]: node["score"] for nodes in steps for node in nodes}
    for rank, translation in enumerate(translations, 1):
        assert scores[rank] == pytest.approx(translation["score"], abs=2e-3)
    answer = model.ask("look/attention", **fields | dict(block=9), status=400)
    assert "one of these kinds, blocks and heads" in answer["error"]


def test_a_prefix_is_continued(tiny):
    model, text = tiny
    for prefix in ("They", "The 猫", "The\ndog"):  # 猫 is unknown
        translations = model.ask(text=text, prefix=prefix)["translations"]
        assert len(translations) == 3
        for translation in translations:
            assert translation["text"].startswith(prefix.replace("\n", " "))
            assert all(0 <= probability <= 1 for probability in translation["probabilities"])


# Paragraphs and HTML ------------------------------------------------


# Of the sample model: docs/sample_model.md.
@pytest.fixture(scope="module")
def sample():
    """The sample model, which translates the words of the built-in corpus."""
    return Model(SAMPLE)


def layout(sentences):
    """A text of three sentences with line breaks and spaces."""
    return "\r\n {}  {}\n\n\t{}\n".format(*sentences)


def test_a_paragraph_is_put_together_again(sample):
    text = layout(SOURCES)
    answer = sample.ask(text=text)
    assert answer["truncated"] is False and answer["source"] == []
    assert answer["translations"] == [dict(text=layout(TARGETS), truncated=False)]
    assert [own["text"] for own in answer["sentences"]] == SOURCES
    assert [own["translation"] for own in answer["sentences"]] == TARGETS
    assert [own["before"] for own in answer["sentences"]] == ["\r\n ", "  ", "\n\n\t"]
    answer = sample.ask(q=[text, "", SOURCES[1]], alternatives=1, **LANGUAGES)
    assert answer["translatedText"] == [layout(TARGETS), "", TARGETS[1]]
    assert [len(others) for others in answer["alternatives"]] == [1, 0, 1]
    assert answer["alternatives"][0][0].count("\n") == text.count("\n")
    answer = sample.ask(text=" ".join(SOURCES), prefix="A woman")  # begins the first sentence
    first, *others = (own["translation"] for own in answer["sentences"])
    assert first.startswith("A woman") and others == TARGETS[1:]
    one, spaces = (sample.ask(text=text) for text in (SOURCES[0], f" {SOURCES[0]}\n"))
    assert one == spaces == sample.ask(text=SOURCES[0], split=False) and one["source"]
    assert one["translations"][0]["text"] == TARGETS[0] and "sentences" not in one


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


def test_the_tags_of_html_are_kept(sample):
    named = {f"t{i}": text for i, text in enumerate(TARGETS)}
    expected = [
        source.format(*TARGETS) if target is None else target.format(*SOURCES, **named)
        for source, target in HTML.items()
    ]
    sources = [source.format(*SOURCES) for source in HTML]
    answer = sample.ask(q=sources, format="html", **LANGUAGES)
    assert answer == dict(translatedText=expected)


# serve.py -----------------------------------------------------------


def test_a_client_of_libretranslate(server):
    client = LibreTranslateAPI(server)
    assert client.languages() == [
        dict(code="de", name="German", targets=["en"]),
        dict(code="en", name="English", targets=["de"]),
    ]
    assert client.detect("Der Hund")[0]["language"] == "de"
    for source in ("de", "auto", "de-DE"):
        assert client.translate(SOURCES[0], source, "en") == TARGETS[0]
    assert client.translate("The dog", "en", "de")
    with pytest.raises(urllib.error.HTTPError, match="400"):
        client.translate("Le chien", "fr", "de")


def test_the_size_of_an_answer_is_limited(server):
    """For a sentence without spaces, and for one of 500 words."""
    for text in ("x" * 1000, "a " * 500):
        answer = ask(server, text=text, split=False)
        assert len(answer["source"]) < 200 and len(json.dumps(answer)) < 5e6
    assert answer["truncated"]
    answer = ask(server, text="Hund", prefix="The dog sees " * 70)
    assert not answer["truncated"]
    assert all(translation["truncated"] for translation in answer["translations"])


def test_a_server_of_random_translations_is_stopped_during_a_request():
    """A random translation is one, and without --split that of a line. The stop prints one line."""
    with started(temperature=1.0, host="0.0.0.0", split=False) as (process, address):
        text, port = " ".join(SOURCES[:2]), int(address.rpartition(":")[2])
        one, again = (ask(address, text=text) for _ in "ab")
        assert one == again and len(one["translations"]) == 1 and "sentences" not in one
        body = json.dumps(dict(text="Hund " * 400)).encode()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            head = f"POST /translate HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
            client.sendall(f"{head}Expect: 100-continue\r\n\r\n".encode())
            assert client.recv(100).startswith(b"HTTP/1.1 100")  # the request has begun
            process.send_signal(signal.SIGTERM)
            client.sendall(body)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            printed = process.stderr.read()
    assert "Traceback" not in printed and printed.endswith("serve.py: stopped\n")
    assert process.returncode == 128 + signal.SIGTERM
