"""serve.py, used by programs and in a browser."""

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import json
import os
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import numpy as np
import pytest
from aiohttp.compression_utils import HAS_BROTLI
from aiohttp.test_utils import TestClient, TestServer
from server.hosts import LOOPBACK, accepted_hosts, check_address
from server.listening import (
    MAX_URL_BYTES,
    connection_factory,
    make_exception_handler,
    make_runner,
)

from browser import chromium, wait_for, wait_for_text
from conftest import slow
from data_load import encode_lines
from helpers import load, read_test_sentences, refused
from ids import RaggedIds
from inference import SearchDecoder, Translator, token_log_probs
from monitor.attention_maps import append_eos
from paragraphs import Paragraph
from processes import ROOT, Forked, command_line
from protected import make_translator
from runtime.errors import InputError
from serve import ServeFlags
from server import app as serve_app
from server.app import MAX_CHARACTERS, MAX_SENTENCE_CHARACTERS, MAX_SENTENCES, make_app
from server.translating import Batcher


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
def serving(flags, *more):
    """Start serve.py with the model that `flags` trained, and yield the address of the page.

    Args:
      more: other flags, as words of a command line.
    """
    options = dict(logdir=flags["logdir"], port=0, nbest=3, beam=1)
    with Forked(["serve.py", *command_line(options), *more]) as process:
        address = next((line.split()[0] for line in process.stdout if "http" in line), "")
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        try:
            yield address
        finally:
            process.terminate()


def ask(server, body, content_type="application/json", path="translate", **headers):
    """Send a request with this body, bytes: the status and the answer."""
    headers |= {"Content-Type": content_type}
    request = urllib.request.Request(f"{server}/{path}", body, headers)
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


@contextlib.asynccontextmanager
async def serving_app(app):
    """Serve an application as serve.py does, and yield the port."""
    runner = make_runner(app)
    await runner.setup()
    server = await asyncio.get_running_loop().create_server(
        connection_factory(runner), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await runner.cleanup()


def upper_case(sentences):
    """Translate as `InspectedTranslator` does, but into capitals."""
    return [dict(translations=[dict(text=sentence.text.upper())]) for sentence in sentences]


def show_look(look):
    """Answer a look inside the model with what it asks for."""
    return look._asdict()


def answers(*requests, translate=upper_case, hosts=(), look_inside=show_look):
    """Send requests, bytes, to a server without a model: the status and the answer of each."""

    async def answer(port, request):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert b"\r\nContent-Type: application/json" in head
        return int(head.split()[1]), json.loads(body)

    async def scenario():
        async with serving_app(make_app(translate, ("de", "en"), hosts, look_inside)) as port:
            return [await asyncio.wait_for(answer(port, request), 60) for request in requests]

    return asyncio.run(scenario())


def post(body=b"", content_type=None, path="/translate", **headers):
    """The bytes of a request with this body."""
    headers = dict(Host="localhost", Connection="close") | headers
    headers |= {"Content-Length": len(body)}
    if content_type is not None:
        headers["Content-Type"] = content_type
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    return f"POST {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body


def test_concurrent_requests_are_translated_as_single_ones(server_of):
    flags, server = server_of
    lines = [*read_test_sentences(flags["source_test"])[1], "", "我", "<b>&</b>"]
    with concurrent.futures.ThreadPoolExecutor(16) as threads:
        answers = [*threads.map(lambda line: ask(server, sentence(line)), lines)]
    loaded = load(dict(logdir=flags["logdir"], beam=3))
    hp = loaded.hp
    expected = make_translator(loaded, True, SearchDecoder(loaded, nbest=3))(lines)
    for line, (status, answer), best in zip(lines, answers, expected, strict=True):
        assert status == 200
        got = [(hypothesis["text"], hypothesis["score"]) for hypothesis in answer["translations"]]
        assert (got or [("", 0.0)]) == [
            (own.text, pytest.approx(own.score, abs=2e-4)) for own in best.hypotheses
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


@slow
def test_a_recurrent_model_is_served(trained):
    flags = trained("rnn_attention")
    line = read_test_sentences(flags["source_test"]).raw[0]
    with serving(flags) as server:
        status, answer = ask(server, sentence(line))
    loaded = load(dict(logdir=flags["logdir"], beam=3))
    (expected,) = Translator(loaded, SearchDecoder(loaded, nbest=3))([line])
    assert status == 200
    texts = [hypothesis["text"] for hypothesis in answer["translations"]]
    assert texts == [hypothesis.text for hypothesis in expected.hypotheses]
    for hypothesis in answer["translations"]:
        sums = np.sum(hypothesis["attention"], axis=-1)  # without the weights on `</S>`
        assert (sums > 0.3).all() and (sums < 1.02).all()


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
        (b"q=Hund&source=de&target=en", f"{serve_app.FORM}; charset=rot13"),
        (b"source=de&target=en", serve_app.FORM),
    ],
)
def test_malformed_requests_are_refused(server, body, content_type):
    status, answer = ask(server, body, content_type)
    assert status == 400 and answer["error"]


def test_a_wrong_content_encoding_is_refused(server):
    status, answer = ask(server, sentence("Hund"), **{"Content-Encoding": "gzip"})
    assert status == 400 and answer["error"]


@pytest.mark.parametrize(
    "count, reason",
    [
        (MAX_CHARACTERS + 1, "A text has at most"),
        (serve_app.MAX_REQUEST_BYTES, "A request has at most"),
    ],
)
def test_long_texts_are_refused(server, count, reason):
    status, answer = ask(server, sentence("x" * count))
    assert status == 413 and str(MAX_CHARACTERS) in answer["error"]


def test_the_size_of_an_answer_is_limited(server):
    """For a sentence without spaces, and for one of 500 words."""
    for text in ("x" * 1000, "a " * 500):
        body = json.dumps(dict(text=text, split=False)).encode()
        status, answer = ask(server, body)
        assert status == 200 and len(answer["source"]) < 200 and len(json.dumps(answer)) < 5e6
    assert answer["truncated"]


def test_a_translation_of_the_maximum_length_is_truncated(server):
    body = json.dumps(dict(text="Hund", prefix="The dog sees " * 70)).encode()
    _, answer = ask(server, body)
    assert not answer["truncated"]
    assert all(translation["truncated"] for translation in answer["translations"])


@pytest.mark.parametrize("host", ["localhost:80", "LOCALHOST", "127.0.0.1", "[::1]:8080"])
def test_its_own_host_names_are_accepted(server, host):
    assert ask(server, sentence("Hund"), Host=host)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "evil@localhost", "a:b@localhost:80", "localhost/"],
)
def test_other_host_names_are_refused(server, host):
    assert ask(server, sentence("Hund"), Host=host)[0] == 403


@pytest.mark.parametrize(
    "flags, hosts",
    [
        (dict(), LOOPBACK),
        (dict(host="localhost"), LOOPBACK),
        (dict(host="127.0.0.2"), (*LOOPBACK, "127.0.0.2")),
        (dict(host="::ffff:127.0.0.1"), (*LOOPBACK, "::ffff:127.0.0.1")),
        (dict(host="0.0.0.0"), ()),
        (dict(host="::"), ()),
        (dict(allowed_hosts="A.example, b.example:8443"), (*LOOPBACK, "a.example", "b.example")),
        (dict(host="0.0.0.0", allowed_hosts="a.example"), (*LOOPBACK, "0.0.0.0", "a.example")),
    ],
)
def test_the_host_names_of_an_address(flags, hosts):
    """A page of another site must not reach a server for this computer only."""
    assert accepted_hosts(ServeFlags(**flags)) == hosts


def test_an_address_is_checked_before_the_server_starts(monkeypatch):
    def check(*addresses):
        results = [(family, socket.SOCK_STREAM, 6, "", own) for family, own in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: results)
        check_address("name.example", 80)

    ours, others = (socket.AF_INET, ("127.0.0.1", 0)), (socket.AF_INET, ("192.0.2.1", 0))
    unknown = 9999, ("::1", 0, 0, 0)  # as IPv6 without support for it
    check(ours)
    check(unknown, others, ours)
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = socket.AF_INET, server.getsockname()
        for addresses in ([ours, taken], [others], [unknown]):
            with pytest.raises(InputError, match="name.example:80: .*. Choose another --port or"):
                check(*addresses)


@pytest.mark.parametrize("names", ["https://a.example", "a.example/b", "*.a.example", "a,", "ä.de"])
def test_allowed_hosts_that_are_no_host_names(names):
    with pytest.raises(InputError, match="is not a host name"):
        accepted_hosts(ServeFlags(allowed_hosts=names))


def test_a_proxy_passes_the_name_of_its_host_on():
    hosts = accepted_hosts(ServeFlags(allowed_hosts="translate.example.org"))
    form = b"q=Hund&source=de&target=en"
    own, other, none = answers(
        post(
            form,
            serve_app.FORM,
            Host="translate.example.org",
            Origin="https://translate.example.org",
        ),
        post(form, serve_app.FORM, Host="evil.example"),
        b"GET /health HTTP/1.0\r\n\r\n",
        hosts=hosts,
    )
    assert own == (200, dict(translatedText="HUND"))
    assert other[0] == none[0] == 403 and "allowed_hosts" in other[1]["error"]


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

        async def one_by_one(items):
            calls = (batcher([item]) for item in items)
            return await asyncio.gather(*calls, return_exceptions=True)

        assert await one_by_one(range(50)) == [[2 * i] for i in range(50)]
        failed = await one_by_one([1, "bad", 2])
        assert isinstance(failed[1], ValueError) and failed[::2] == [[2], [4]]
        assert await batcher([4, 3]) == [8, 6]  # an error does not stop it
        cancelled = asyncio.create_task(batcher([5]))
        await asyncio.sleep(0)
        cancelled.cancel()
        assert await batcher([6]) == [12]
        results = await one_by_one(range(1100))
        assert sum(isinstance(result, asyncio.QueueFull) for result in results) == 1100 - 1000
        with pytest.raises(asyncio.QueueFull):  # all or none; a quarter is for single items
            await batcher(range(751))
        assert await batcher([]) == []
        assert await batcher(range(750)) == [*range(0, 1500, 2)]
        assert batcher.queued == 0 and not batcher.tasks
        worker.cancel()

    asyncio.run(scenario())
    # The first 50 items come at once. How the others are batched depends on the machine.
    assert calls[0] == 32 and max(calls) == 32
    # The cancelled item is not processed.
    assert sum(calls) == 50 + 3 + 3 + 2 + 1 + 1000 + 750


def test_tasks_take_turns():
    """A text of many sentences does not delay those of other clients."""
    batches = []

    def note(items):
        batches.append(items)
        return items

    async def scenario():
        batcher = Batcher(note, max_batch=8)
        tasks = [asyncio.create_task(batcher(range(start, start + 100))) for start in (0, 1000)]
        await asyncio.sleep(0)
        tasks.append(asyncio.create_task(batcher(["one"])))
        await asyncio.sleep(0)
        worker = asyncio.create_task(batcher.run())
        results = await asyncio.gather(*tasks)
        assert results == [[*range(100)], [*range(1000, 1100)], ["one"]]
        worker.cancel()

    asyncio.run(scenario())
    assert batches[0] == [0, 1000, "one", 1, 1001, 2, 1002, 3]
    assert [len(batch) for batch in batches] == [8] * 25 + [1]


def test_incomplete_requests_are_closed(monkeypatch):
    """After a part of the head or of the body. Other requests are answered all the time."""
    monkeypatch.setattr(serve_app, "REQUEST_SECONDS", 0.3)
    head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    body = sentence("Hund")

    async def answer(port, request, reads_all=True):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        try:
            read = reader.read() if reads_all else reader.readuntil(b"}")
            return await asyncio.wait_for(read, 30)
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def scenario():
        length = b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
        good = head + length + body
        async with serving_app(make_app(upper_case)) as port:
            incomplete = [answer(port, head[: n * 10]) for n in range(5)]
            # aiohttp waits another 10 s for the rest of the body before it closes this one.
            incomplete.append(answer(port, head + length + body[:4], reads_all=False))
            *silent, late, first = await asyncio.gather(*incomplete, answer(port, good))
            assert silent == [b""] * 5
            assert late.startswith(b"HTTP/1.1 408 ") and b"within 0.3 seconds" in late
            assert b"HUND" in first and b"HUND" in await answer(port, good)

    asyncio.run(scenario())


ANSWER_BYTES = 30_000_000  # more than the buffers of the kernel


def long_answer(sentences):
    """Answer a text, a number, with so many bytes."""
    return [dict(text="x" * int(sentence.text)) for sentence in sentences]


async def connect_with_small_buffers(port):
    """Connect to a server: a reader and a writer. The kernel holds few bytes of an answer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=client, limit=1000)


def keep_alive(text):
    """A request after which the connection stays open."""
    return post(sentence(text), "application/json", Connection="keep-alive")


def test_an_idle_connection_is_closed_after_an_answer(monkeypatch):
    monkeypatch.setattr(serve_app, "REQUEST_SECONDS", 0.3)

    async def scenario():
        async with serving_app(make_app(long_answer)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(keep_alive(str(ANSWER_BYTES)))
            assert len(await asyncio.wait_for(reader.read(), 60)) > ANSWER_BYTES
            writer.close()

    asyncio.run(scenario())


# The buffer of a connection in asyncio may hold 64 kB more than the kernel.
@pytest.mark.parametrize("size", [40_000, 1_000_000])
def test_a_connection_is_closed_if_its_answer_is_not_read(monkeypatch, size):
    monkeypatch.setattr(serve_app, "ANSWER_SECONDS", 0.5)
    transports = []  # of the server

    async def scenario():
        async def record(request, _):
            transports.append(request.transport)
            request.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)

        app = make_app(long_answer)
        app.on_response_prepare.append(record)
        async with serving_app(app) as port:
            reader, writer = await connect_with_small_buffers(port)
            writer.write(keep_alive(str(size)))
            async with asyncio.timeout(15):
                while not transports or not transports[0].is_closing():
                    await asyncio.sleep(0.05)
            with contextlib.suppress(ConnectionResetError):
                assert len(await asyncio.wait_for(reader.read(), 30)) < size
            writer.close()

    asyncio.run(scenario())


def test_each_answer_of_a_connection_has_its_own_time(monkeypatch):
    """The time of the first answer ends while the client reads the second one."""
    monkeypatch.setattr(serve_app, "ANSWER_SECONDS", 0.5)

    async def scenario():
        async with serving_app(make_app(long_answer)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
            writer.write(keep_alive("1"))
            assert b" 200 OK" in await reader.readline()
            await reader.readuntil(b"}")
            monkeypatch.setattr(serve_app, "ANSWER_SECONDS", 60)
            writer.write(post(sentence(str(ANSWER_BYTES)), "application/json"))
            await asyncio.sleep(1)
            assert len(await asyncio.wait_for(reader.read(), 60)) > ANSWER_BYTES
            writer.close()

    asyncio.run(scenario())


def test_a_lack_of_descriptors_is_reported_in_one_line(capsys):
    reported = []

    async def scenario():
        loop = asyncio.get_running_loop()
        loop.default_exception_handler = reported.append
        loop.set_exception_handler(make_exception_handler())
        for number in [errno.EMFILE, errno.ENFILE] * 50:
            context = dict(message="accept", exception=OSError(number, os.strerror(number)))
            loop.call_exception_handler(context)
        loop.call_exception_handler(dict(message="another", exception=ValueError("bad")))

    asyncio.run(scenario())
    assert [context["message"] for context in reported] == ["another"]
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1 and "too many open files" in printed and "ulimit" in printed


def test_a_failure_of_the_server_is_answered_in_json():
    def fail(_):
        raise ValueError("a mistake in the code")

    async def scenario():
        async with TestClient(TestServer(make_app(fail))) as client:
            async with client.post("/translate", json=dict(text="Hund")) as response:
                assert response.status == 500
                assert await response.json() == dict(error=serve_app.SERVER_FAILED)

    asyncio.run(scenario())


def test_all_errors_are_answered_in_json(caplog):
    """And no request of a client fills the log."""
    get = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    packed = post(sentence("Hund"), "application/json", **{"Content-Encoding": "gzip"})
    requests = {
        get % b"/missing": 404,
        get % b"/translate?q=Hund&source=de&target=en": 405,  # LibreTranslate has POST only
        post(b"", path="/languages"): 405,
        post(b"x" * (serve_app.MAX_REQUEST_BYTES + 1), "application/json"): 413,
        post(b"", path="/translate?q=" + "x" * MAX_URL_BYTES): 400,
        post(b"", path="/translate?q=läuft"): 400,
        b"no HTTP\r\n\r\n": 400,
        packed: 400,
    }
    got = answers(*requests)
    assert [status for status, _ in got] == [*requests.values()]
    assert all(answer["error"] for _, answer in got)
    assert not caplog.records


# Each of them takes from a second to hours if it is read with a parser that is not linear.
SLOW_REQUESTS = {
    "charset": post(b"q=x-" + b"a" * 10**6, "application/x-www-form-urlencoded; charset=punycode"),
    "charset of a field": post(
        b'--x\r\nContent-Disposition: form-data; name="q"\r\n'
        b"Content-Type: text/plain; charset=punycode\r\n\r\nx-" + b"a" * 10**6 + b"\r\n--x--",
        "multipart/form-data; boundary=x",
    ),
    "quotation marks": post(sentence("Hund"), '"' * 8000),
    "brackets in a header": post(sentence("Hund"), f"application/json;{'(' * 8000}"),
    "charset of a parameter": post(b"", "application/json; a*=punycode''%E4%E4"),
    "line feeds": post(b"\n" * 10**6, "multipart/form-data; boundary=x"),
    "headers of a field": post(
        b"--x\r\n" + b"a:b\r\n" * 200_000 + b"\r\n--x--", "multipart/form-data; boundary=x"
    ),
    "fields": post(b"q=a&" * 250_000, "application/x-www-form-urlencoded"),
    "fields in parts": post(
        b'--x\r\nContent-Disposition: form-data; name="q"\r\n\r\n\r\n' * 20_000 + b"--x--",
        "multipart/form-data; boundary=x",
    ),
    "number": post(b'{"text": ' + b"9" * 10**6 + b"}", "application/json"),
    "number in text": post(
        b"q=a&source=de&target=en&alternatives=" + b"9" * 10**6,
        "application/x-www-form-urlencoded",
    ),
    "nesting": post(b'{"a":' * 200_000, "application/json"),
}


@pytest.mark.parametrize("name", SLOW_REQUESTS)
def test_no_request_blocks_the_others(monkeypatch, name, caplog):
    """Each one is refused at once, and not by an exception, also if it may be larger."""
    monkeypatch.setattr(serve_app, "MAX_REQUEST_BYTES", 2 * 10**6)
    digits = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)  # as PYTHONINTMAXSTRDIGITS=0
    started = time.process_time()
    try:
        ((status, answer),) = answers(SLOW_REQUESTS[name])
    finally:
        sys.set_int_max_str_digits(digits)
    assert status == 400 and not caplog.records
    assert answer["error"] and "missing" not in answer["error"]  # refused before its end is read
    assert time.process_time() - started < 2


def test_other_computers_get_one_random_translation(trained):
    options = dict(logdir=trained("tiny")["logdir"], port=0, nbest=3, beam=1)
    options |= dict(temperature=1.0, host="0.0.0.0")
    with Forked(["serve.py", *command_line(options)]) as process:
        address = next((line.split()[0] for line in process.stdout if "http" in line), "")
        server = f"http://127.0.0.1:{address.rpartition(':')[2]}"
        one, again = (ask(server, sentence("Der Hund schläft."), Host="a.example") for _ in "ab")
        process.terminate()
    assert address.startswith("http://0.0.0.0:")
    assert one == again and one[0] == 200 and len(one[1]["translations"]) == 1


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
        if not HAS_BROTLI:
            with connect() as client:
                head = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
                client.sendall(head + b"Content-Encoding: br\r\n\r\nxx")
                assert b"This Content-Encoding is not supported" in client.recv(1000)
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


# Looking inside ----------------------------------------------------------------


def look(path="attention", **fields):
    """A request for a part of the inside of the model."""
    return post(json.dumps(fields).encode(), "application/json", path=f"/look/{path}")


def test_a_look_inside_is_answered(server_of):
    flags, server = server_of
    text = read_test_sentences(flags["source_test"])[1][0]
    _, translated = ask(server, sentence(text))
    body = json.dumps(dict(text=text, translation=2, kind="decoder", block=1, head=2)).encode()
    status, answer = ask(server, body, path="look/attention")
    assert status == 200 and answer["head"] == 2 and np.shape(answer["weights"])
    status, answer = ask(server, body, path="look/steps")
    probabilities = [step["probability"] for step in answer["steps"]]
    shown = translated["translations"][1]["probabilities"]
    assert status == 200 and probabilities[: len(shown)] == pytest.approx(shown, abs=2e-3)
    status, answer = ask(server, body, path="look/beam")
    scores = {node["rank"]: node["score"] for nodes in answer["steps"] for node in nodes}
    for rank, translation in enumerate(translated["translations"], 1):
        assert scores[rank] == pytest.approx(translation["score"], abs=2e-3)
    assert status == 200


def test_the_fields_of_a_look():
    given = dict(text="a\nb", prefix="c", translation="2", kind="cross", block=3, head=4.0)
    every, few = answers(look("steps", **given), look("beam", text="a"))
    expected = dict(part="steps", text="a b", prefix="c", translation=2, kind="cross")
    assert every == (200, expected | dict(block=3, head=4))
    nothing = dict.fromkeys(("translation", "block", "head"))
    assert few == (200, dict(part="beam", text="a", prefix="", kind="") | nothing)


def test_wrong_looks_are_refused():
    numbers = (0, -1, 1.5, float("nan"), 1e300, True, "x", "9" * 99, [1], "\u0663")
    requests = {look(text="a", block=number): 400 for number in numbers}
    requests |= {
        look(text="a", head=0): 400,
        look(text="a", translation=0): 400,
        look(text="a", kind=1): 400,
        look(text="x" * (MAX_SENTENCE_CHARACTERS + 1)): 413,
        look(text="a", prefix="x" * (MAX_SENTENCE_CHARACTERS + 1)): 413,
        look(): 400,
        look("other", text="a"): 404,
        post(b"{", "application/json", path="/look/beam"): 400,
        post(b"text=a", serve_app.FORM, path="/look/beam", Origin="http://evil.example"): 403,
    }
    got = answers(*requests)
    assert [status for status, _ in got] == [*requests.values()]
    assert all(answer["error"] for _, answer in got)
    ((status, _),) = answers(look(text="a"), hosts=("other.example",))
    assert status == 403


@pytest.mark.parametrize(
    "path, fields, status, reason",
    [
        ("beam", dict(text=" "), 400, "empty"),
        ("steps", dict(text="a " * 300), 413, "at most"),
        ("attention", dict(text="Hund", block=9), 400, "block must be at most 1"),
        ("attention", dict(text="Hund", head=3), 400, "head must be at most 2"),
        ("attention", dict(text="Hund", kind="all"), 400, "Choose cross or encoder or decoder"),
    ],
)
def test_looks_at_what_is_not_there_are_refused(server, path, fields, status, reason):
    got, answer = ask(server, json.dumps(fields).encode(), path=f"look/{path}")
    assert got == status and reason in answer["error"]


def test_translations_do_not_wait_for_looks(monkeypatch):
    """And few looks wait for others."""
    monkeypatch.setattr(serve_app, "MAX_WAITING_LOOKS", 1)
    begun, released = threading.Event(), threading.Event()

    def look_slowly(look):
        begun.set()
        released.wait(60)
        return look._asdict()

    async def scenario():
        client = TestClient(TestServer(make_app(upper_case, ("de", "en"), (), look_slowly)))
        async with client, asyncio.timeout(60):

            async def post(path):
                async with client.post(path, json=dict(text="a")) as response:
                    return response.status

            looks = [asyncio.create_task(post("/look/beam"))]
            while not begun.is_set():
                await asyncio.sleep(0.01)
            looks.append(asyncio.create_task(post("/look/beam")))
            while not client.app[serve_app.LOOK_BATCHER].queued:
                await asyncio.sleep(0.01)
            assert await post("/look/steps") == 503
            assert await post("/translate") == 200
            released.set()
            assert await asyncio.gather(*looks) == [200, 200]

    asyncio.run(scenario())


# LibreTranslate ----------------------------------------------------------------


def ask_libretranslate(server, form=False, **fields):
    fields = dict(source="de", target="en") | fields
    if form:
        return ask(server, urllib.parse.urlencode(fields).encode(), serve_app.FORM)
    return ask(server, json.dumps(fields).encode())


@pytest.mark.parametrize("form", [False, True])
def test_clients_of_libretranslate(flags, server, form):
    lines = read_test_sentences(flags["source_test"])[1][:3]
    expected = [ask(server, sentence(line))[1]["translations"] for line in lines]
    best = [translations[0]["text"] for translations in expected]
    for source in ("de", "auto"):
        status, answer = ask_libretranslate(server, form, q=lines[0], source=source, format="text")
        assert status == 200 and answer.pop("translatedText") == best[0]
        detected = dict(detectedLanguage=dict(language="de", confidence=0))
        assert answer == (detected if source == "auto" else {})
    text = f"{lines[0]}\n\n{lines[1]}"
    status, answer = ask_libretranslate(server, form, q=text, alternatives=1)
    assert answer["translatedText"] == f"{best[0]}\n\n{best[1]}"
    second = [translations[1]["text"] for translations in expected]
    assert answer["alternatives"] == [f"{second[0]}\n\n{second[1]}"]
    if not form:
        status, answer = ask_libretranslate(server, q=lines, alternatives=10**12)
        assert answer["translatedText"] == best
        assert [others[0] for others in answer["alternatives"]] == second
        status, answer = ask_libretranslate(server, q=[lines[0]] * 90 + ["x" * 900], source="auto")
        assert status == 200 and len(answer["detectedLanguage"]) == 91


def test_the_languages_are_listed(server):
    with urllib.request.urlopen(f"{server}/languages") as response:
        assert json.load(response) == [dict(code="de", name="de", targets=["en"])]


@pytest.mark.parametrize(
    "fields, status",
    [
        (dict(q="Hund", target="fr"), 400),
        (dict(q="Hund", source="en"), 400),
        (dict(q="Hund", source=["de"]), 400),
        (dict(q="Hund", format="xml"), 400),
        (dict(q="Hund", format=1), 400),
        (dict(q="Hund", alternatives="many"), 400),
        (dict(q="Hund", alternatives=float("inf")), 400),
        (dict(q=7), 400),
        (dict(q=["Hund", None]), 400),
        (dict(q="\ud800"), 400),
        (dict(q="x" * (MAX_CHARACTERS + 1)), 413),
        (dict(q=["x" * 1000] * 21), 413),
        (dict(q=[""] * (MAX_SENTENCES + 1)), 413),
        (dict(q="Hund.\n" * (MAX_SENTENCES + 1)), 413),
        (dict(q="<p>Hund" * (MAX_SENTENCES + 1), format="html"), 413),
        (dict(text="Hund.\n" * (MAX_SENTENCES + 1)), 413),
        (dict(text="Hund", split="no"), 400),
        (dict(text="Hund", split=[]), 400),
        (dict(text="Hund", prefix=7), 400),
        (dict(text="Hund", prefix="x" * (MAX_SENTENCE_CHARACTERS + 1)), 413),
    ],
)
def test_requests_with_wrong_fields_are_refused(server, fields, status):
    got, answer = ask_libretranslate(server, **fields)
    assert got == status and answer["error"]


@pytest.mark.parametrize("q", ["\n" * 10**6, ["a"] * (MAX_SENTENCES + 1)])
def test_the_size_of_a_request_is_checked_before_it_is_read(monkeypatch, q):
    """Other clients wait meanwhile."""
    monkeypatch.setattr(serve_app, "text_field", lambda *_: pytest.fail("was read"))
    with pytest.raises(serve_app.RequestError) as error:
        serve_app.texts_field(dict(q=q))
    assert error.value.status == 413


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
    with serving(dict(logdir=str(ROOT / "docs" / "sample_model")), "--no-split") as address:
        yield address


def layout(sentences):
    """A text of three sentences with line breaks and spaces."""
    return "\r\n {}  {}\n\n\t{}\n".format(*sentences)


def test_a_paragraph_is_put_together_again(sample_server):
    status, answer = ask(sample_server, sentence(layout(SOURCES)))
    assert status == 200 and answer["truncated"] is False and answer["source"] == []
    assert answer["translations"] == [dict(text=layout(TARGETS), truncated=False)]
    assert [own["text"] for own in answer["sentences"]] == SOURCES
    assert [own["translation"] for own in answer["sentences"]] == TARGETS
    assert [own["before"] for own in answer["sentences"]] == ["\r\n ", "  ", "\n\n\t"]
    text = layout(SOURCES)
    for form in (False, True):
        status, answer = ask_libretranslate(sample_server, form, q=text)
        assert (status, answer) == (200, dict(translatedText=layout(TARGETS)))
    _, answer = ask_libretranslate(sample_server, q=[text, "", SOURCES[1]], alternatives=1)
    assert answer["translatedText"] == [layout(TARGETS), "", TARGETS[1]]
    assert [len(others) for others in answer["alternatives"]] == [1, 0, 1]
    assert answer["alternatives"][0][0].count("\n") == text.count("\n")


def test_one_sentence_has_the_answer_of_a_sentence(sample_server):
    plain, spaces, unsplit = (
        ask(sample_server, json.dumps(fields).encode())[1]
        for fields in (
            dict(text=SOURCES[0]),
            dict(text=f" {SOURCES[0]}\n"),
            dict(text=SOURCES[0], split=False),
        )
    )
    assert plain == spaces == unsplit and "sentences" not in plain
    assert plain["translations"][0]["text"] == TARGETS[0]
    _, both = ask(sample_server, json.dumps(dict(text=" ".join(SOURCES), split=False)).encode())
    assert "sentences" not in both
    _, empty = ask(sample_server, sentence(" \n "))
    assert empty == dict(source=[], translations=[], truncated=False)


def test_a_sentence_of_a_text_has_the_symbol_of_its_target_language():
    """The page asks for the translation of a sentence alone."""
    paragraph = Paragraph([">>fr<< Eins.", "Zwei."], ["", " ", ""], ("", ">>fr<<"))
    answer = serve_app.paragraph_answer(paragraph, [dict(translations=[dict(text="Un.")])] * 2)
    assert [own["text"] for own in answer["sentences"]] == [">>fr<< Eins.", ">>fr<< Zwei."]
    assert answer["translations"][0]["text"] == "Un. Un."


def test_a_prefix_begins_the_first_sentence(sample_server):
    fields = dict(text=" ".join(SOURCES), prefix="A woman")
    _, answer = ask(sample_server, json.dumps(fields).encode())
    first, *others = (own["translation"] for own in answer["sentences"])
    assert first.startswith("A woman") and others == TARGETS[1:]


@slow
def test_nothing_of_a_text_is_dropped(sample_server, unsplit_server):
    """500 words without the end of a sentence, in LibreTranslate's answer and in the other one."""
    text = "der Hund und " * 170
    _, answer = ask(sample_server, sentence(text))
    assert answer["truncated"] is False and len(answer["sentences"]) > 2
    assert " ".join(own["text"] for own in answer["sentences"]) == text.strip()
    _, answer = ask(unsplit_server, sentence(text))
    assert answer["truncated"] is True
    assert ask_libretranslate(unsplit_server, q=text)[1]["truncated"] is True
    assert ask_libretranslate(unsplit_server, q=["a", text])[1]["truncated"] == [False, True]


@slow
def test_a_server_that_does_not_split(unsplit_server):
    _, answer = ask(unsplit_server, sentence(" ".join(SOURCES)))
    assert "sentences" not in answer and answer["translations"]
    text = "\n\n".join(SOURCES)
    _, answer = ask_libretranslate(unsplit_server, q=text)
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
    assert ask_libretranslate(sample_server, **fields) == (200, dict(translatedText=expected))


def test_html_may_have_alternatives_and_unsplit_blocks(sample_server, unsplit_server):
    html = "<p>Die <b>Frau</b> hat den Brief nicht gelesen.</p>"
    _, answer = ask_libretranslate(sample_server, q=html, format="HTML", alternatives=2)
    assert answer["translatedText"] == "<p>The <b>woman</b> did not read the letter.</p>"
    for text in answer["alternatives"]:
        assert text.startswith("<p>") and "<b>" in text and text.endswith("</p>")
    _, answer = ask_libretranslate(unsplit_server, q=f"<i>{html}", format="html")
    assert answer["translatedText"] == "<i><p>The <b>woman</b> did not read the letter.</p>"


def multipart(*fields, head="", **headers):
    """A request with a form in multipart/form-data, as `curl -F` sends it.

    Args:
      fields: pairs of a Content-Disposition, after `form-data; `, and a value in bytes.
      head: more headers of each field.
    """
    parts = [
        f"--x1\r\nContent-Disposition: form-data; {name}\r\n{head}\r\n".encode() + value + b"\r\n"
        for name, value in fields
    ]
    return post(b"".join(parts) + b"--x1--\r\n", "multipart/form-data; boundary=x1", **headers)


def form_fields(q, name="name={}"):
    values = dict(q=q, source=b"de", target=b"en")
    return [(name.format(field), value) for field, value in values.items()]


QUERY = "/translate?q=Er+l%C3%A4uft&source=de&target=en"
LANGUAGES = dict(source="de", target="en")
CLIENTS = {
    "LibreTranslator of deep-translator": post(path=f"{QUERY}&format=text&api_key=x"),
    "libretranslatepy": post(b"q=Er+l%C3%A4uft&source=de&target=en", serve_app.FORM),
    "curl -F": multipart(*form_fields("Er läuft".encode(), 'name="{}"')),
    "requests with files": multipart(
        *form_fields("Er läuft".encode(), 'name="{0}"; filename="{0}"')
    ),
    "HttpClient of .NET": multipart(
        *form_fields("Er läuft".encode()), head="Content-Type: text/plain; charset=utf-8\r\n"
    ),
    "HttpClient of Apache": multipart(
        *form_fields("Er läuft".encode("latin1"), 'name="{}"'),
        head="Content-Type: text/plain; charset=ISO-8859-1\r\nContent-Transfer-Encoding: 8bit\r\n",
    ),
    "fetch of a browser": post(
        json.dumps(LANGUAGES | dict(q="Er läuft", format="text", alternatives=0)).encode(),
        "application/json",
        Origin="http://localhost",
    ),
    "JSON with a charset": post(
        json.dumps(LANGUAGES | dict(q="Er läuft", format=None), ensure_ascii=False).encode(),
        "application/json; charset=utf-8",
    ),
    "languages in capitals": post(
        "q=Er läuft&source=DE&target=EN&format=&alternatives=".encode(), serve_app.FORM
    ),
    "a query string and a form": post(b"source=de&target=en&q=no", serve_app.FORM, path=QUERY),
    "a query string and another body": post(b"{}", "text/plain", path=QUERY),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_requests_of_clients(client):
    """In the form in which these programs send them."""
    assert answers(CLIENTS[client]) == [(200, dict(translatedText="ER LÄUFT"))]


def test_a_query_string_may_have_a_long_text():
    text = "😀" * serve_app.MAX_URL_CHARACTERS
    query = urllib.parse.urlencode(dict(q=text) | LANGUAGES)
    assert answers(post(path=f"/translate?{query}")) == [(200, dict(translatedText=text))]


def test_the_line_ends_of_a_browser():
    lines = multipart(*form_fields(b"Hund\r\n\r\nHaus"))
    assert answers(lines) == [(200, dict(translatedText="HUND\r\n\r\nHAUS"))]


def test_what_clients_ask_before_they_translate():
    get = b"GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    health, settings, spec, detected = answers(
        get % b"/health",
        get % b"/frontend/settings",
        get % b"/spec",
        post(b"q=Er+rennt", serve_app.FORM, path="/detect"),
    )
    assert health == (200, dict(status="ok"))
    assert settings[1]["charLimit"] == MAX_CHARACTERS and settings[1]["keyRequired"] is False
    assert settings[1]["language"]["target"]["code"] == "en"
    assert {*spec[1]["paths"]} >= {"/translate", "/languages", "/detect"}
    assert "post" in spec[1]["paths"]["/translate"]
    assert detected == (200, [dict(language="de", confidence=0)])


@pytest.mark.parametrize("missing", ["q", "source", "target"])
def test_a_missing_field_is_named(missing):
    fields = dict(q="Hund") | LANGUAGES
    del fields[missing]
    requests = [post(json.dumps(fields).encode(), "application/json")]
    requests.append(post(urllib.parse.urlencode(fields).encode(), serve_app.FORM))
    for status, answer in answers(*requests):
        assert status == 400 and f"missing {missing} parameter" in answer["error"]


def test_limits_that_take_effect_are_in_the_answer():
    def translate(sentences):
        """Truncate `source`, or the second of three translations of `target`."""
        return [
            dict(
                truncated=sentence.text == "source",
                translations=[
                    dict(text=str(i), truncated=sentence.text == "target" and i == 1)
                    for i in range(3)
                ],
            )
            for sentence in sentences
        ]

    def answer(**fields):
        body = json.dumps(fields | LANGUAGES).encode()
        ((status, answer),) = answers(post(body, "application/json"), translate=translate)
        assert status == 200
        return answer

    assert answer(q="a") == dict(translatedText="0")
    assert answer(q="a\nsource") == dict(translatedText="0\n0", truncated=True)
    assert answer(q=["a", "source"])["truncated"] == [False, True]
    assert "truncated" not in answer(q="target")
    assert answer(q="target", alternatives=1)["truncated"] is True
    several = answer(q="a", alternatives=5)
    assert several["alternatives"] == ["1", "2"] and several["maxAlternatives"] == 2
    assert "maxAlternatives" not in answer(q="a", alternatives=2)


def test_requests_of_another_site_are_refused():
    """A browser sends forms and query strings to any address, and the header Origin with them."""
    form = b"q=Hund&source=de&target=en"

    def requests(origin):
        return [
            post(form, serve_app.FORM, Origin=origin),
            post(form, "text/plain", path=QUERY, Origin=origin),
            post(path=QUERY, Origin=origin),
            post(b"q=Hund", serve_app.FORM, path="/detect", Origin=origin),
            multipart(*form_fields(b"Hund"), Origin=origin),
        ]

    for origin in ("https://evil.example", "null", "http://[::1", "http://localhost.evil.example"):
        assert {status for status, _ in answers(*requests(origin))} == {403}
    assert {status for status, _ in answers(*requests("http://localhost"))} == {200}


def test_an_overloaded_server_answers_503_and_recovers(monkeypatch):
    """None of a refused text's sentences stays in the queue."""
    monkeypatch.setattr("server.translating.MAX_QUEUED_SENTENCES", 5)  # 3 for a text
    translated, begun, released = [], threading.Event(), threading.Event()

    def translate(sentences):
        begun.set()
        released.wait(60)
        translated.extend(sentence.text for sentence in sentences)
        return upper_case(sentences)

    async def scenario():
        app = make_app(translate, ("de", "en"))
        client, batcher = TestClient(TestServer(app)), app[serve_app.BATCHER]
        async with client, asyncio.timeout(60):

            async def post(lines):
                fields = dict(q="\n".join(lines), source="de", target="en")
                async with client.post("/translate", json=fields) as response:
                    return response.status, await response.json()

            first = asyncio.create_task(post(["a"]))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            waiting = [asyncio.create_task(post([letter])) for letter in "bc"]
            while batcher.queued < 2:
                await asyncio.sleep(0.01)
            status, answer = await post("defg")
            assert status == 503 and "Try again later" in answer["error"]
            status, _ = await asyncio.wait_for(post("hijklm"), 9)
            assert status == 503
            released.set()
            for letter, task in zip("abc", [first, *waiting], strict=True):
                assert await task == (200, dict(translatedText=letter.upper()))
            assert await post("xyz") == (200, dict(translatedText="X\nY\nZ"))

    asyncio.run(scenario())
    assert translated == [*"abc", *"xyz"]


# The page ----------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["They", "The 猫"])  # the second one has an unknown character
def test_a_prefix_is_continued(server_of, prefix):
    flags, server = server_of
    source = read_test_sentences(flags["source_test"])[1][0]
    body = json.dumps(dict(text=source, prefix=prefix)).encode()
    status, answer = ask(server, body)
    assert status == 200 and answer["translations"]
    for translation in answer["translations"]:
        assert translation["text"].startswith(prefix)
        assert all(0 <= probability <= 1 for probability in translation["probabilities"])


def test_probabilities_multiply_to_the_score(trained):
    """With one hypothesis and no length penalty."""
    flags = trained("tiny")
    loaded = load(dict(logdir=flags["logdir"], beam=2, alpha=0.0))
    _, hp, model, vocabs = loaded
    lines = read_test_sentences(flags["source_test"])[1][:10]
    X, *_ = encode_lines(lines, vocabs[0], hp)
    best = [hypotheses[0] for hypotheses in SearchDecoder(loaded)(X)]
    Y = RaggedIds.from_lists([append_eos(own.ids, hp) for own in best])
    for row, own in enumerate(best):
        logp = token_log_probs(model, X.pad([row]), Y.pad([row]))
        assert np.sum(logp) == pytest.approx(own.score, abs=0.02)


def test_the_page(flags, server):
    source = read_test_sentences(flags["source_test"])[1][0]
    loaded = load(dict(logdir=flags["logdir"], beam=3))
    (translation,) = Translator(loaded, SearchDecoder(loaded, nbest=3))([source])
    best = [hypothesis.text for hypothesis in translation.hypotheses]
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

        second = read_test_sentences(flags["source_test"])[1][1]
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


@pytest.fixture(scope="module")
def sentence_server(flags):
    """The server that takes a text for one sentence, however long it is."""
    with serving(flags, "--no-split") as address:
        yield address


@slow
def test_the_page_shows_the_inside_of_the_model(flags, sentence_server):
    sentences = read_test_sentences(flags["source_test"])[1]
    # A model as small as this one may translate some sentences alike.
    answers = [ask(sentence_server, sentence(line))[1]["translations"] for line in sentences]
    first = [hypothesis["tokens"] for hypothesis in answers[0]]
    other = next(i for i, (best, *_) in enumerate(answers) if best["tokens"] not in first)
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

        driver.get(sentence_server)
        driver.find_element(By.ID, "text").send_keys(sentences[0] + "\n")
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
        driver.find_element(By.ID, "text").send_keys(sentences[other] + "\n")
        wait_until_shown(lambda: texts("#map tbody th") != before)
        assert texts("#map .masked")  # the chosen kind stays
        # What is refused is said.
        driver.find_element(By.ID, "text").clear()
        driver.find_element(By.ID, "text").send_keys("a " * 150 + "\n")
        wait_for_text(driver, "To look inside, give one of at most")
        wait_until_shown(lambda: not texts("#map td"))
        statuses = [entry["message"] for entry in driver.get_log("browser")]
        assert all("413" in message for message in statuses)


@slow
def test_the_page_with_an_input_method_and_without_storage(server):
    """Enter ends a word of the input method; the browser refuses to store the last sentences."""
    refuse = 'Object.defineProperty(window, "sessionStorage", {get() { throw new Error(); }})'
    with chromium() as driver:

        def requests():
            return driver.execute_script("return lastRequest")

        def dispatch(name, kind, event, **fields):
            options = json.dumps(dict(bubbles=True, cancelable=True) | fields)
            driver.execute_script(f"byId('{name}').dispatchEvent(new {kind}('{event}', {options}))")

        driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", dict(source=refuse))
        driver.get(server)
        driver.execute_script("byId('text').value = 'Hund'")
        dispatch("text", "KeyboardEvent", "keydown", key="Enter", isComposing=True)
        assert requests() == 0
        dispatch("text", "KeyboardEvent", "keydown", key="Enter")
        assert requests() == 1
        assert wait_for(lambda: driver.execute_script("return answer !== null"))
        dispatch("translation", "InputEvent", "input", isComposing=True, inputType="insertText")
        time.sleep(1)
        before = requests()
        dispatch("translation", "CompositionEvent", "compositionend")
        assert wait_for(lambda: requests() == before + 1)
        driver.execute_script(f"byId('text').value = 'x'.repeat({MAX_CHARACTERS + 1})")
        dispatch("text", "KeyboardEvent", "keydown", key="Enter")
        wait_for_text(driver, serve_app.TOO_LONG)
        # A translation that waits for the end of typing is not continued for another sentence.
        before = requests()
        driver.execute_script("byId('text').value = 'Hund'")
        dispatch("translation", "InputEvent", "input", inputType="insertText")
        dispatch("text", "KeyboardEvent", "keydown", key="Enter")
        time.sleep(1)
        assert requests() == before + 2


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


@slow
@pytest.mark.parametrize("width, colours", [(360, "light"), (1500, "dark")])
def test_the_page_is_accessible_and_fits_a_phone(flags, server, width, colours):
    source = read_test_sentences(flags["source_test"])[1][0]
    with chromium() as driver:
        from selenium.webdriver.common.by import By

        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            dict(width=width, height=700, deviceScaleFactor=1, mobile=width < 500),
        )
        feature = dict(name="prefers-color-scheme", value=colours)
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", dict(features=[feature]))
        driver.get(server)
        assert driver.execute_script("return innerWidth") == width
        background = driver.find_element(By.TAG_NAME, "body").value_of_css_property(
            "background-color"
        )
        assert (background == "rgba(255, 255, 255, 1)") == (colours == "light")
        driver.find_element(By.ID, "text").send_keys(source + "\n")
        wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#alternatives button"))
        assert driver.execute_script(ACCESSIBILITY) == []
        driver.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
        for parts in ("#map td", "#likely li", ".node"):
            wait_for(lambda parts=parts: driver.find_elements(By.CSS_SELECTOR, parts))
        assert driver.execute_script(ACCESSIBILITY) == []
        # The check notices faults.
        driver.execute_script(
            "byId('note').textContent = 'x'; byId('note').style.color = '#777';"
            "byId('note').style.background = '#888';"
            "document.querySelector('label').remove(); document.documentElement.lang = '';"
        )
        assert len(driver.execute_script(ACCESSIBILITY)) == 3


def test_a_port_that_is_taken(flags, server):
    port = server.rpartition(":")[2]
    refused("serve.py", f"127.0.0.1:{port}", "--port", logdir=flags["logdir"], port=port)
