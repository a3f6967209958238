"""The page of serve.py, asked as programs ask and as people do."""

import asyncio
import concurrent.futures
import json
import socket
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from aiohttp import web

import serve
from browser import chromium, shows, wait_for
from conftest import ROOT
from decoding import Translator, load
from serve import LONGEST, Batcher
from test_bad_input import refused
from text import read_test


@pytest.fixture(scope="module", params=["legacy", "tiny"])
def flags(request, trained):
    return trained(request.param)


@pytest.fixture(scope="module")
def server(flags):
    """The address of the page."""
    options = [f"--logdir={flags['logdir']}", "--port=0", "--nbest=3", "--beam=1"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    command = [sys.executable, str(ROOT / "serve.py"), *options]
    with subprocess.Popen(command, **pipes) as process:
        address = next((line.split()[0] for line in process.stdout if "http" in line), "")
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        yield address
        process.terminate()


def ask(server, body, content_type="application/json", **headers):
    """The status and the answer of a request with this body, bytes."""
    headers |= {"Content-Type": content_type}
    request = urllib.request.Request(f"{server}/translate", body, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            own = error.headers.get_content_type() == "application/json"
            return error.code, json.load(error) if own else None


def sentence(text):
    return json.dumps(dict(text=text)).encode()


def test_many_at_once_are_translated_as_one_by_one(flags, server):
    lines = [*read_test(flags["source_test"])[1], "", "我", "<b>&</b>"]
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = [*threads.map(lambda line: ask(server, sentence(line)), lines)]
    _, hp, model, vocabs = load(dict(logdir=flags["logdir"], beam=3))
    expected = Translator(hp, model, vocabs, nbest=3)(lines)
    for line, (status, answer), best in zip(lines, answers, expected, strict=True):
        assert status == 200
        got = [(found["text"], found["score"]) for found in answer["translations"]]
        assert (got or [("", 0.0)]) == [
            (text, pytest.approx(score, abs=2e-4)) for text, score in best
        ]
        for found in answer["translations"]:
            assert len(found["attention"]) == len(found["words"])
            for row in found["attention"]:
                assert len(row) == len(answer["source"]) and sum(row) < 1.02
            if hp.tokens == "pieces":
                assert "".join(found["words"]).strip() == found["text"]
        if hp.tokens == "pieces":
            assert "".join(answer["source"]).strip() in (line, "<UNK>", "<UNK>b<UNK>b<UNK>")


@pytest.mark.parametrize(
    "body, content_type",
    [
        (b"{", "application/json"),
        (b"\xff", "application/json"),
        (b"[]", "application/json"),
        (b'{"text": 1}', "application/json"),
        (b'{"text": "\\ud800"}', "application/json"),
        (b"[" * 15_000, "application/json"),
        (b"{}", "application/json; charset=rot13"),
        (sentence("Hund"), "text/plain"),
    ],
)
def test_what_is_no_sentence_is_refused(server, body, content_type):
    status, answer = ask(server, body, content_type)
    assert status == 400 and answer["error"]


def test_what_is_not_packed_as_it_says(server):
    status, answer = ask(server, sentence("Hund"), **{"Content-Encoding": "gzip"})
    assert status == 400 and answer["error"]


@pytest.mark.parametrize("count", [LONGEST + 1, 10**6])
def test_a_sentence_has_its_bounds(server, count):
    status, answer = ask(server, sentence("x" * count))
    assert status == 413 and str(LONGEST) in answer["error"]


def test_an_answer_has_its_bounds(server):
    """Of a sentence without blanks, or of 500 words, too."""
    for text in ("x" * LONGEST, "a " * (LONGEST // 2)):
        status, answer = ask(server, sentence(text))
        assert status == 200 and len(answer["source"]) < 200 and len(json.dumps(answer)) < 5e6
    assert answer["cut"]


def test_it_is_asked_by_its_own_names_alone(server):
    assert ask(server, sentence("Hund"), Host="evil.example")[0] == 403
    assert ask(server, sentence("Hund"), Host="[::1")[0] in (400, 403)
    assert ask(server, sentence("Hund"), Host="localhost:80")[0] == 200


def test_those_that_come_together_are_one_batch():
    calls = []

    def double(items):
        calls.append(len(items))
        if "bad" in items:
            raise ValueError("bad")
        return [2 * item for item in items]

    async def scenario():
        batcher = Batcher(double)
        worker = asyncio.create_task(batcher.work())
        assert await asyncio.gather(*map(batcher, range(50))) == [*range(0, 100, 2)]
        failed = await asyncio.gather(*map(batcher, [1, "bad", 2]), return_exceptions=True)
        assert isinstance(failed[1], ValueError) and failed[::2] == [2, 4]
        assert await batcher(4) == 8  # it goes on
        gone = asyncio.create_task(batcher(5))
        await asyncio.sleep(0)
        gone.cancel()
        assert await batcher(6) == 12
        full = await asyncio.gather(*map(batcher, range(300)), return_exceptions=True)
        assert sum(isinstance(result, asyncio.QueueFull) for result in full) == 300 - 256
        worker.cancel()

    asyncio.run(scenario())
    # A batch of 50 waits for nothing; how the others meet depends on the machine.
    assert calls[0] == 32 and max(calls) == 32
    assert sum(calls) == 50 + 3 + 3 + 1 + 1 + 256  # nobody waits for the one that is gone


def test_half_a_request_is_not_waited_for(monkeypatch):
    """Of a head, of a body; the others are served meanwhile and afterwards."""
    monkeypatch.setattr(serve, "REQUEST_SECONDS", 0.3)
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = sentence("Hund")

    async def answer(port, request):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            return await asyncio.wait_for(reader.read(), 30)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def scenario():
        app = serve.make_app(lambda lines: [dict(text=line.upper()) for line in lines])
        runner = web.AppRunner(app)
        await runner.setup()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(serve.close_silent_connections(runner), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        length = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        halves = [answer(port, head[: n * 10]) for n in range(5)]
        halves.append(answer(port, head + length + body[:4]))
        *silent, late, good = await asyncio.gather(*halves, answer(port, head + length + body))
        assert silent == [b""] * 5
        assert late.startswith(b"HTTP/1.1 408 ") and b"within 0.3 seconds" in late
        assert good.endswith(b'{"text": "HUND"}')
        assert b"HUND" in await answer(port, head + length + body)
        server.close()
        await runner.cleanup()

    asyncio.run(scenario())


def test_a_malformed_request_is_not_reported_as_a_fault(flags):
    """Not ten lines of a traceback for each, on the terminal of the server."""
    command = [sys.executable, str(ROOT / "serve.py"), f"--logdir={flags['logdir']}", "--port=0"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen(command, **pipes) as process:
        address = next((line.split()[0] for line in process.stdout if "http" in line), "")
        for request in (
            b"GET / HTTP/9\r\n\r\n",
            b"\x00\xff\r\n\r\n",
            b"GET / HTTP/1.1\r\nA\r\n\r\n",
        ):
            port = int(address.rpartition(":")[2])
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(request)
                assert b"400" in client.recv(1000)
        process.terminate()
        assert "Traceback" not in process.stderr.read()


def test_the_page(flags, server):
    source = read_test(flags["source_test"])[1][0]
    _, hp, model, vocabs = load(dict(logdir=flags["logdir"], beam=3))
    best = [text for text, _ in Translator(hp, model, vocabs, nbest=3)([source])[0]]
    with chromium() as driver:
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.by import By

        def words(name):
            return driver.find_elements(By.CSS_SELECTOR, f"#{name} span")

        def colours(name):
            return [word.value_of_css_property("background-color") for word in words(name)]

        driver.get(server)
        driver.find_element(By.ID, "text").send_keys(source + "\n")
        shows(driver, *best)
        shown = driver.find_element(By.ID, "target").text
        assert shown.split() == best[0].split()
        ActionChains(driver).move_to_element(words("target")[0]).perform()
        assert wait_for(lambda: len(set(colours("source"))) > 1)
        ActionChains(driver).move_to_element(words("source")[0]).perform()
        assert wait_for(lambda: len(set(colours("target"))) > 1)
        driver.find_elements(By.CSS_SELECTOR, "#alternatives li")[1].click()
        assert driver.find_element(By.ID, "target").text.split() == best[1].split()


def test_a_port_that_is_taken(flags, server):
    port = server.rpartition(":")[2]
    refused("serve.py", f"127.0.0.1:{port}", "--port", logdir=flags["logdir"], port=port)
