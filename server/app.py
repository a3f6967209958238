"""The HTTP interface: the page, its requests, and those of clients of LibreTranslate."""

import asyncio
import contextlib
import json
import weakref
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from server.translating import Batcher, Sentence

PAGE = Path(__file__).resolve().with_name("page.html")
MAX_CHARACTERS = 1000  # of a sentence
MAX_REQUEST_BYTES = 16 * MAX_CHARACTERS
MAX_LINES = 100  # of a text for the interface of LibreTranslate
REQUEST_SECONDS = 20  # within which a client must have sent its request
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
USAGE = f'Send {JSON}: {{"text": "a sentence"}}, or the fields q, source and target.'
TOO_LONG = f"A sentence has at most {MAX_CHARACTERS} characters."

BATCHER = web.AppKey("batcher", Batcher)
LANGUAGES = web.AppKey("languages", tuple)  # of source and target
HOSTS = web.AppKey("hosts", tuple)  # names under which clients may address the server
ANSWERED = web.AppKey("answered", weakref.WeakSet)  # connections that have sent a request


class RequestError(Exception):
    """A request that is refused, with the status and the reason of the answer."""

    def __init__(self, status, reason):
        super().__init__(reason)
        self.status, self.reason = status, reason


def make_app(translate, languages=("", ""), hosts=()) -> web.Application:
    """Make the application: the page at /, and translations at /translate.

    Args:
      translate: function from a list of `Sentence` to a list of answers, as
        `InspectedTranslator`.
      languages: codes of source and target, for the interface of LibreTranslate.
      hosts: names under which clients may address the server; empty for any name.
    """
    middlewares = [answer_errors, check_host]
    app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=middlewares)
    app[BATCHER] = Batcher(
        lambda sentences: [json.dumps(answer) for answer in translate(sentences)]
    )
    app[LANGUAGES], app[HOSTS] = tuple(languages), tuple(hosts)
    app[ANSWERED] = weakref.WeakSet()
    app.add_routes(
        [
            web.get("/", handle_page),
            web.get("/languages", handle_languages),
            web.post("/translate", handle_translate),
        ]
    )
    app.cleanup_ctx.append(run_batcher)
    return app


async def run_batcher(app):
    """Run the batcher as long as the application."""
    task = asyncio.create_task(app[BATCHER].run())
    yield
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@web.middleware
async def answer_errors(request, handler):
    """Answer with the reason of a `RequestError`, which the page shows."""
    try:
        return await handler(request)
    except RequestError as error:
        return web.json_response(dict(error=error.reason), status=error.status)


@web.middleware
async def check_host(request, handler):
    """Refuse requests that address the server by another name.

    A page of another site may have a name that resolves to this server (DNS rebinding).
    """
    hosts = request.app[HOSTS]
    request.app[ANSWERED].add(request.transport)
    if hosts and host_name(request.host) not in hosts:
        raise RequestError(403, f"Use one of these host names: {', '.join(hosts)}.")
    return await handler(request)


def host_name(header):
    """Return the host name in the header Host, or None if the header is malformed.

    >>> host_name("localhost:8080"), host_name("[::1]"), host_name("user@localhost")
    ('localhost', '::1', None)
    """
    try:
        parts = urlsplit(f"//{header}")
        parts.port  # noqa: B018  raises the error of an invalid port
    except ValueError:
        return None
    # `hostname` is without the name of a user, which a browser never sends.
    return parts.hostname if parts.netloc == header and "@" not in header else None


async def handle_page(_):
    """Answer GET /."""
    return web.Response(text=PAGE.read_text("utf-8"), content_type="text/html")


async def handle_languages(request):
    """Answer GET /languages as LibreTranslate does."""
    source, target = request.app[LANGUAGES]
    return web.json_response([dict(code=source, name=source, targets=[target])])


async def handle_translate(request):
    """Answer POST /translate: a request of the page, or one of a client of LibreTranslate."""
    fields = await read_fields(request)
    if "q" in fields:
        return await answer_libretranslate(request.app, fields)
    sentence = Sentence(text_field(fields, "text"), text_field(fields, "prefix", ""))
    (answer,) = await translate_all(request.app[BATCHER], [sentence])
    return web.Response(text=answer, content_type=JSON)


async def read_fields(request) -> dict:
    """Read the fields of a request, in JSON or in the form that programs send.

    Raises:
      RequestError: it does not arrive in time, is too long or malformed, or may be sent by the
        page of another site. A browser sends JSON of other sites only with permission.
    """
    origin = request.headers.get("Origin")
    if request.content_type == FORM and origin and urlsplit(origin).netloc != request.host:
        raise RequestError(403, "Send this form from the page of this server.")
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            if request.content_type == FORM:
                return dict(await request.post())
            if request.content_type != JSON:
                raise RequestError(400, USAGE)
            fields = json.loads(await request.read())
    except TimeoutError:
        raise RequestError(
            408, f"The request did not arrive within {REQUEST_SECONDS} seconds."
        ) from None
    except (web.RequestPayloadError, ValueError, RecursionError):
        raise RequestError(400, USAGE) from None
    except web.HTTPRequestEntityTooLarge:
        raise RequestError(413, TOO_LONG) from None
    if not isinstance(fields, dict):
        raise RequestError(400, USAGE)
    return fields


def text_field(fields, name, default=None) -> str:
    """Return a field that is text of at most MAX_CHARACTERS, or raise RequestError."""
    text = fields.get(name, default)
    if not isinstance(text, str) or not is_unicode(text):
        raise RequestError(400, USAGE)
    if len(text) > MAX_CHARACTERS:
        raise RequestError(413, TOO_LONG)
    return text.replace("\n", " ")


def is_unicode(text) -> bool:
    """Return False for text with half of a surrogate pair, which JSON can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


async def translate_all(batcher, sentences) -> list[str]:
    """Translate sentences; returns the answers, in JSON.

    Raises:
      RequestError: too many sentences wait already. None of these stays in the queue.
    """
    tasks = [asyncio.ensure_future(batcher(sentence)) for sentence in sentences]
    try:
        return await asyncio.gather(*tasks)
    except asyncio.QueueFull:
        raise RequestError(503, "Too many sentences are waiting. Try again later.") from None
    finally:
        for task in tasks:
            task.cancel()


# LibreTranslate ----------------------------------------------------------------


async def answer_libretranslate(app, fields):
    """Answer a request of a client of LibreTranslate (https://docs.libretranslate.com).

    `q` is a text or a list of texts, with a sentence on each line. The answer has
    `translatedText` of the same kind, and `alternatives` if the request asks for some.
    """
    source, target = app[LANGUAGES]
    for name, supported in (("source", (source, "auto")), ("target", (target,))):
        if fields.get(name) not in supported:
            raise RequestError(
                400, f"{name} {fields.get(name)!r} is not supported. Use {supported[0]}."
            )
    if fields.get("format", "text") != "text":
        raise RequestError(400, "format must be text.")
    texts = fields["q"] if isinstance(fields["q"], list) else [fields["q"]]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(400, USAGE)
    lines = [text.split("\n") for text in texts]
    if sum(map(len, lines)) > MAX_LINES:
        raise RequestError(413, f"A request has at most {MAX_LINES} lines.")
    sentences = [
        Sentence(text_field(dict(q=line), "q"), inspect=False) for text in lines for line in text
    ]
    answers = iter(await translate_all(app[BATCHER], sentences))
    translated = [
        [[best["text"] for best in json.loads(next(answers))["translations"]] or [""] for _ in text]
        for text in lines
    ]  # for each text, for each line, the translations
    results = [join_lines(text, 0) for text in translated]
    answer = dict(translatedText=results if isinstance(fields["q"], list) else results[0])
    try:
        wanted = int(fields.get("alternatives", 0))
    except (TypeError, ValueError):
        raise RequestError(400, "alternatives must be a number.") from None
    if wanted > 0:
        others = [
            [join_lines(text, i) for i in range(1, wanted + 1) if i < max(map(len, text))]
            for text in translated
        ]
        answer["alternatives"] = others if isinstance(fields["q"], list) else others[0]
    if fields["source"] == "auto":  # nothing is detected: there is one language
        answer["detectedLanguage"] = dict(language=source, confidence=0)
    return web.json_response(answer)


def join_lines(translations, index) -> str:
    """Join the translations of the lines of a text: of each line that with this index.

    >>> join_lines([["a", "b"], ["c"]], 1)
    'b\\nc'
    """
    return "\n".join(best[min(index, len(best) - 1)] for best in translations)
