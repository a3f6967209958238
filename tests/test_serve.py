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
import urllib.parse
import urllib.request

import numpy as np
import pytest
from aiohttp.test_utils import TestClient, TestServer

from browser import chromium, wait_for, wait_for_text
from data_load import encode_lines
from ids import RaggedIds
from inference import Translator, load_model, token_log_probs
from monitor.attention_maps import append_eos
from processes import Forked, command_line
from server import app as serve_app
from server.app import MAX_CHARACTERS, MAX_LINES, make_app
from server.listening import close_silent_connections, make_runner
from server.translating import Batcher
from test_bad_input import refused
from text import read_test_sentences


@pytest.fixture(scope="module", params=["legacy", "tiny"])
def flags(request, trained):
    return trained(request.param)


@pytest.fixture(scope="module")
def server(flags):
    """Start serve.py: the address of the page."""
    with serving(flags) as address:
        yield address


@contextlib.contextmanager
def serving(flags):
    """Start serve.py with the model that `flags` trained, and yield the address of the page."""
    options = dict(logdir=flags["logdir"], port=0, nbest=3, beam=1)
    with Forked(["serve.py", *command_line(options)]) as process:
        address = next((line.split()[0] for line in process.stdout if "http" in line), "")
        assert address.startswith("http://127.0.0.1:"), process.stderr.read()
        try:
            yield address
        finally:
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
            assert len(hypothesis["probabilities"]) == len(hypothesis["tokens"])
            for row in hypothesis["attention"]:
                assert len(row) == len(answer["source"]) and sum(row) < 1.02
            if hp.tokenizer == "bpe":
                assert "".join(hypothesis["tokens"]).strip() == hypothesis["text"]
        if hp.tokenizer == "bpe":
            assert "".join(answer["source"]).strip() in (line, "<UNK>", "<UNK>b<UNK>b<UNK>")


def test_a_recurrent_model_is_served(trained):
    flags = trained("rnn_attention")
    line = read_test_sentences(flags["source_test"]).raw[0]
    with serving(flags) as server:
        status, answer = ask(server, sentence(line))
    _, hp, model, vocabs = load_model(dict(logdir=flags["logdir"], beam=3))
    (expected,) = Translator(hp, model, vocabs, nbest=3)([line])
    assert status == 200
    assert [hypothesis["text"] for hypothesis in answer["translations"]] == [e[0] for e in expected]
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
        (MAX_CHARACTERS + 1, "A sentence has at most"),
        (serve_app.MAX_REQUEST_BYTES, "A request has at most"),
    ],
)
def test_long_sentences_are_refused(server, count, reason):
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
        results = await one_by_one(range(300))
        assert sum(isinstance(result, asyncio.QueueFull) for result in results) == 300 - 256
        with pytest.raises(asyncio.QueueFull):  # all or none
            await batcher(range(257))
        assert await batcher(range(256)) == [*range(0, 512, 2)]
        worker.cancel()

    asyncio.run(scenario())
    # The first 50 items come at once. How the others are batched depends on the machine.
    assert calls[0] == 32 and max(calls) == 32
    # The cancelled item is not processed.
    assert sum(calls) == 50 + 3 + 3 + 2 + 1 + 256 + 256


def test_incomplete_requests_are_closed(monkeypatch):
    """After a part of the head or of the body. Other requests are answered all the time."""
    monkeypatch.setattr(serve_app, "REQUEST_SECONDS", 0.3)
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
        app = make_app(lambda sentences: [dict(text=s.text.upper()) for s in sentences])
        runner = make_runner(app)
        await runner.setup()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(close_silent_connections(runner), "127.0.0.1", 0)
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


def test_idle_and_unread_connections_are_closed(monkeypatch):
    """After an answer, if no request follows, or if the client does not read it."""
    monkeypatch.setattr(serve_app, "REQUEST_SECONDS", 0.3)
    size = 30_000_000  # more than the buffers of the kernel
    transports = []  # of the server, one per answer
    body = sentence("Hund")
    request = b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    request += b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def scenario():
        async def record(request, _):
            transports.append(request.transport)

        app = make_app(lambda sentences: [dict(text="x" * size) for _ in sentences])
        app.on_response_prepare.append(record)
        runner = make_runner(app)
        await runner.setup()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(close_silent_connections(runner), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request)
        assert len(await asyncio.wait_for(reader.read(), 60)) > size  # then it is closed
        writer.close()

        monkeypatch.setattr(serve_app, "ANSWER_SECONDS", 0.5)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
        writer.write(request)
        async with asyncio.timeout(60):
            while len(transports) < 2 or not transports[1].is_closing():
                await asyncio.sleep(0.05)
        with contextlib.suppress(ConnectionResetError):
            assert len(await asyncio.wait_for(reader.read(), 30)) < size
        writer.close()
        server.close()
        await runner.cleanup()

    asyncio.run(scenario())


def test_a_failure_of_the_server_is_answered_in_json():
    def fail(_):
        raise ValueError("a mistake in the code")

    async def scenario():
        async with TestClient(TestServer(make_app(fail))) as client:
            async with client.post("/translate", json=dict(text="Hund")) as response:
                assert response.status == 500
                assert await response.json() == dict(error=serve_app.SERVER_FAILED)
            async with client.get("/missing") as response:
                assert response.status == 404

    asyncio.run(scenario())


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
        (dict(q="Hund", format="html"), 400),
        (dict(q="Hund", alternatives="many"), 400),
        (dict(q="Hund", alternatives=float("inf")), 400),
        (dict(q=7), 400),
        (dict(q=["Hund", None]), 400),
        (dict(q="\ud800"), 400),
        (dict(q="x" * (MAX_CHARACTERS + 1)), 413),
        (dict(q="\n" * MAX_LINES), 413),
        (dict(text="Hund", prefix=7), 400),
        (dict(text="Hund", prefix="x" * (MAX_CHARACTERS + 1)), 413),
    ],
)
def test_requests_with_wrong_fields_are_refused(server, fields, status):
    got, answer = ask_libretranslate(server, **fields)
    assert got == status and answer["error"]


@pytest.mark.parametrize("q", ["\n" * 10**6, ["a"] * (MAX_LINES + 1), ["a\n" * MAX_LINES]])
def test_the_lines_of_a_request_are_counted_before_they_are_read(monkeypatch, q):
    """Other clients wait meanwhile."""
    monkeypatch.setattr(serve_app, "text_field", lambda *_: pytest.fail("was read"))
    with pytest.raises(serve_app.RequestError) as error:
        serve_app.sentence_lines(q)
    assert error.value.status == 413


def test_a_form_of_another_site_is_refused(server):
    """A browser sends forms to any address, and the header Origin with them."""
    body = urllib.parse.urlencode(dict(q="Hund", source="de", target="en")).encode()
    assert ask(server, body, serve_app.FORM, Origin="https://evil.example")[0] == 403
    for origin in ("null", "http://[::1", f"{server}.evil.example"):
        assert ask(server, body, serve_app.FORM, Origin=origin)[0] == 403
    assert ask(server, body, serve_app.FORM, Origin=server)[0] == 200


def test_an_overloaded_server_answers_503_and_recovers(monkeypatch):
    """None of a refused text's sentences stays in the queue."""
    monkeypatch.setattr("server.translating.MAX_QUEUED_SENTENCES", 5)
    translated, begun, released = [], threading.Event(), threading.Event()

    def translate(sentences):
        begun.set()
        released.wait(60)
        translated.extend(sentence.text for sentence in sentences)
        return [dict(translations=[dict(text=s.text.upper())]) for s in sentences]

    async def scenario():
        app = make_app(translate, ("de", "en"))
        client, queue = TestClient(TestServer(app)), app[serve_app.BATCHER].queue
        async with client, asyncio.timeout(60):

            async def post(lines):
                fields = dict(q="\n".join(lines), source="de", target="en")
                async with client.post("/translate", json=fields) as response:
                    return response.status, await response.json()

            first = asyncio.create_task(post(["a"]))
            while not begun.is_set():
                await asyncio.sleep(0.01)
            waiting = [asyncio.create_task(post([letter])) for letter in "bc"]
            while queue.qsize() < 2:
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
def test_a_prefix_is_continued(flags, server, prefix):
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
    _, hp, model, vocabs = load_model(dict(logdir=flags["logdir"], beam=2, alpha=0.0))
    lines = read_test_sentences(flags["source_test"])[1]
    X, *_ = encode_lines(lines, vocabs[0], hp)
    best = [hypotheses[0] for hypotheses in Translator(hp, model, vocabs).decode_ids(X)]
    Y = RaggedIds.from_lists([append_eos(ids, hp) for ids, _ in best])
    for row, (_, score) in enumerate(best):
        logp = token_log_probs(model, X.pad([row]), Y.pad([row]))
        assert np.sum(logp) == pytest.approx(score, abs=0.02)


def test_the_page(flags, server):
    source = read_test_sentences(flags["source_test"])[1][0]
    _, hp, model, vocabs = load_model(dict(logdir=flags["logdir"], beam=3))
    best = [text for text, _ in Translator(hp, model, vocabs, nbest=3)([source])[0]]
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
        assert wait_for(lambda: translation().startswith("They") and len(translation()) > 5)
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
for (const element of document.querySelectorAll("textarea, input, button, [tabindex]")) {
    const name = element.labels?.[0]?.textContent || element.ariaLabel || element.innerText;
    if (!name?.trim() && element.getClientRects().length) faults.push(element.outerHTML);
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


@pytest.mark.parametrize("width", [360, 1500])
def test_the_page_is_accessible_and_fits_a_phone(flags, server, width):
    source = read_test_sentences(flags["source_test"])[1][0]
    with chromium() as driver:
        from selenium.webdriver.common.by import By

        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride",
            dict(width=width, height=700, deviceScaleFactor=1, mobile=width < 500),
        )
        driver.get(server)
        assert driver.execute_script("return innerWidth") == width
        driver.find_element(By.ID, "text").send_keys(source + "\n")
        wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#alternatives button"))
        assert driver.execute_script(ACCESSIBILITY) == []
        # The check notices faults.
        driver.execute_script(
            "byId('note').textContent = 'x'; byId('note').style.color = '#ccc';"
            "document.querySelector('label').remove(); document.documentElement.lang = '';"
        )
        assert len(driver.execute_script(ACCESSIBILITY)) == 3


def test_a_port_that_is_taken(flags, server):
    port = server.rpartition(":")[2]
    refused("serve.py", f"127.0.0.1:{port}", "--port", logdir=flags["logdir"], port=port)
