"""serve.py, used by programs and in a browser."""

import asyncio
import concurrent.futures
import functools
import json
import signal
import socket
import time
import urllib.error
import urllib.request

import pytest
from aiohttp import web

import serve
from browser import chromium, wait_for, wait_for_text
from inference import Translator, load_model
from processes import Forked, command_line
from serve import MAX_CHARACTERS, Batcher
from test_bad_input import refused
from text import read_test_sentences


@pytest.fixture(scope="module", params=["legacy", "tiny"])
def flags(request, trained):
    return trained(request.param)


@pytest.fixture(scope="module")
def server(flags):
    """Start serve.py: the address of the page."""
    options = dict(logdir=flags["logdir"], port=0, nbest=3, beam=1)
    with Forked(["serve.py", *command_line(options)]) as process:
        address = next((line.split()[0] for line in process.stdout if "http" in line), "")
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        yield address
        process.terminate()


def ask(server, body, content_type="application/json", **headers):
    """Send a request with this body, bytes: the status and the answer."""
    headers |= {"Content-Type": content_type}
    request = urllib.request.Request(f"{server}/translate", body, headers)
    try:
        with urllib.request.urlopen(request) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            is_json = error.headers.get_content_type() == "application/json"
            return error.code, json.load(error) if is_json else None


def sentence(text):
    """The body of a request that translates `text`."""
    return json.dumps(dict(text=text)).encode()


def test_concurrent_requests_are_translated_as_single_ones(flags, server):
    lines = [*read_test_sentences(flags["source_test"])[1], "", "我", "<b>&</b>"]
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = [*threads.map(lambda line: ask(server, sentence(line)), lines)]
    _, hp, model, vocabs = load_model(dict(logdir=flags["logdir"], beam=3))
    expected = Translator(hp, model, vocabs, nbest=3)(lines)
    for line, (status, answer), best in zip(lines, answers, expected, strict=True):
        assert status == 200
        got = [(hypothesis["text"], hypothesis["score"]) for hypothesis in answer["translations"]]
        assert (got or [("", 0.0)]) == [
            (text, pytest.approx(score, abs=2e-4)) for text, score in best
        ]
        for hypothesis in answer["translations"]:
            assert len(hypothesis["attention"]) == len(hypothesis["tokens"])
            for row in hypothesis["attention"]:
                assert len(row) == len(answer["source"]) and sum(row) < 1.02
            if hp.tokenizer == "bpe":
                assert "".join(hypothesis["tokens"]).strip() == hypothesis["text"]
        if hp.tokenizer == "bpe":
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
def test_malformed_requests_are_refused(server, body, content_type):
    status, answer = ask(server, body, content_type)
    assert status == 400 and answer["error"]


def test_a_wrong_content_encoding_is_refused(server):
    status, answer = ask(server, sentence("Hund"), **{"Content-Encoding": "gzip"})
    assert status == 400 and answer["error"]


@pytest.mark.parametrize("count", [MAX_CHARACTERS + 1, 10**6])
def test_long_sentences_are_refused(server, count):
    status, answer = ask(server, sentence("x" * count))
    assert status == 413 and str(MAX_CHARACTERS) in answer["error"]


def test_the_size_of_an_answer_is_limited(server):
    """For a sentence without spaces, and for one of 500 words."""
    for text in ("x" * MAX_CHARACTERS, "a " * (MAX_CHARACTERS // 2)):
        status, answer = ask(server, sentence(text))
        assert status == 200 and len(answer["source"]) < 200 and len(json.dumps(answer)) < 5e6
    assert answer["truncated"]


@pytest.mark.parametrize("host", ["localhost:80", "LOCALHOST", "127.0.0.1", "[::1]:8080"])
def test_its_own_host_names_are_accepted(server, host):
    assert ask(server, sentence("Hund"), Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil@localhost", "a:b@localhost:80", "localhost/"],
)
def test_other_host_names_are_refused(server, host):
    assert ask(server, sentence("Hund"), Host=host)[0] == 403


@pytest.mark.parametrize("host", ["[::1", "localhost:port"])
def test_malformed_host_names_are_refused(server, host):
    assert ask(server, sentence("Hund"), Host=host)[0] in (400, 403)


def test_concurrent_items_are_batched():
    calls = []

    def double(items):
        calls.append(len(items))
        if "bad" in items:
            raise ValueError("bad")
        return [2 * item for item in items]

    async def scenario():
        batcher = Batcher(double)
        worker = asyncio.create_task(batcher.run())
        assert await asyncio.gather(*map(batcher, range(50))) == [*range(0, 100, 2)]
        failed = await asyncio.gather(*map(batcher, [1, "bad", 2]), return_exceptions=True)
        assert isinstance(failed[1], ValueError) and failed[::2] == [2, 4]
        assert await batcher(4) == 8  # an error does not stop it
        cancelled = asyncio.create_task(batcher(5))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await batcher(6) == 12
        results = await asyncio.gather(*map(batcher, range(300)), return_exceptions=True)
        assert sum(isinstance(result, asyncio.QueueFull) for result in results) == 300 - 256
        worker.cancel()

    asyncio.run(scenario())
    # The first 50 items come at once. How the others are batched depends on the machine.
    assert calls[0] == 32 and max(calls) == 32
    assert sum(calls) == 50 + 3 + 3 + 1 + 1 + 256  # the cancelled item is not processed


def test_incomplete_requests_are_closed(monkeypatch):
    """After a part of the head or of the body. Other requests are answered all the time."""
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
        incomplete = [answer(port, head[: n * 10]) for n in range(5)]
        incomplete.append(answer(port, head + length + body[:4]))
        *silent, late, good = await asyncio.gather(*incomplete, answer(port, head + length + body))
        assert silent == [b""] * 5
        assert late.startswith(b"HTTP/1.1 408 ") and b"within 0.3 seconds" in late
        assert good.endswith(b'{"text": "HUND"}')
        assert b"HUND" in await answer(port, head + length + body)
        server.close()
        await runner.cleanup()

    asyncio.run(scenario())


def test_malformed_requests_and_a_stop_during_one_print_no_traceback(flags):
    with Forked(["serve.py", "--logdir", flags["logdir"], "--port", "0"]) as process:
        address = next((line.split()[0] for line in process.stdout if "http" in line), "")
        port = int(address.rpartition(":")[2])
        connect = functools.partial(socket.create_connection, ("127.0.0.1", port), timeout=60)
        for request in (
            b"GET / HTTP/9\r\n\r\n",
            b"\x00\xff\r\n\r\n",
            b"GET / HTTP/1.1\r\nA\r\n\r\n",
        ):
            with connect() as client:
                client.sendall(request)
                assert b"400" in client.recv(1000)
        body = sentence("Hund " * 400)
        with connect() as client:
            head = f"POST /translate HTTP/1.1\r\nHost: {address[7:]}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            client.sendall(head.encode() + body)
            time.sleep(0.2)  # so that the translation begins on most machines
            process.terminate()
            printed = process.stderr.read()
    assert "Traceback" not in printed and printed.endswith("serve.py: stopped\n")
    assert process.returncode == 128 + signal.SIGTERM


def test_the_page(flags, server):
    source = read_test_sentences(flags["source_test"])[1][0]
    _, hp, model, vocabs = load_model(dict(logdir=flags["logdir"], beam=3))
    best = [text for text, _ in Translator(hp, model, vocabs, nbest=3)([source])[0]]
    with chromium() as driver:
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.by import By

        def tokens(name):
            return driver.find_elements(By.CSS_SELECTOR, f"#{name} span")

        def colours(name):
            return [token.value_of_css_property("background-color") for token in tokens(name)]

        driver.get(server)
        driver.find_element(By.ID, "text").send_keys(source + "\n")
        wait_for_text(driver, *best)
        shown = driver.find_element(By.ID, "target").text
        assert shown.split() == best[0].split()
        ActionChains(driver).move_to_element(tokens("target")[0]).perform()
        assert wait_for(lambda: len(set(colours("source"))) > 1)
        ActionChains(driver).move_to_element(tokens("source")[0]).perform()
        assert wait_for(lambda: len(set(colours("target"))) > 1)
        driver.find_elements(By.CSS_SELECTOR, "#alternatives li")[1].click()
        assert driver.find_element(By.ID, "target").text.split() == best[1].split()


def test_a_port_that_is_taken(flags, server):
    port = server.rpartition(":")[2]
    refused("serve.py", f"127.0.0.1:{port}", "--port", logdir=flags["logdir"], port=port)
