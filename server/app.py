"""The HTTP interface: the page, its requests, and those of clients of LibreTranslate."""

import asyncio
import contextlib
import json
import logging
import weakref
from pathlib import Path
from urllib.parse import urlsplit

from aiohttp import web

from runtime.files import is_utf8
from server.translating import Batcher, Sentence

PAGE = Path(__file__).resolve().with_name("page.html")
MAX_CHARACTERS = 1000  # of a sentence
MAX_LINES = 100  # of a text for the interface of LibreTranslate
# JSON may write a character as two escapes of 6 bytes.
MAX_REQUEST_BYTES = 12 * MAX_CHARACTERS * MAX_LINES
REQUEST_SECONDS = 20  # a client must have sent its request by then
ANSWER_SECONDS = 60  # a client must have read its answer by then
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
USAGE = f'Send {JSON}: {{"text": "a sentence"}}, or the fields q, source and target.'
SERVER_FAILED = "The server failed. Its log has the reason."
TOO_LONG = f"A sentence has at most {MAX_CHARACTERS} characters."

LOGGER = logging.getLogger("aiohttp.server")
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
    """Answer with the reason of a `RequestError`, or that the server failed, for the page."""
    try:
        return await handler(request)
    except RequestError as error:
        return web.json_response(dict(error=error.reason), status=error.status)
    except web.HTTPException:
        raise
    except Exception:
        LOGGER.exception("Error handling request")
        return web.json_response(dict(error=SERVER_FAILED), status=500)


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
    own = (None, f"http://{request.host}", f"https://{request.host}")
    if request.content_type == FORM and origin not in own:
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
    except (web.RequestPayloadError, ValueError, LookupError, RecursionError):
        raise RequestError(400, USAGE) from None
    except web.HTTPRequestEntityTooLarge:
        raise RequestError(
            413, f"A request has at most {MAX_REQUEST_BYTES} bytes. {TOO_LONG}"
        ) from None
    if not isinstance(fields, dict):
        raise RequestError(400, USAGE)
    return fields


def text_field(fields, name, default=None) -> str:
    """Return a field that is text of at most MAX_CHARACTERS, or raise RequestError."""
    text = fields.get(name, default)
    if not isinstance(text, str) or not is_utf8(text):
        raise RequestError(400, USAGE)
    if len(text) > MAX_CHARACTERS:
        raise RequestError(413, TOO_LONG)
    return text.replace("\n", " ")


async def translate_all(batcher, sentences) -> list[str]:
    """Translate sentences; returns the answers, in JSON.

    Raises:
      RequestError: too many sentences wait already, and these were not queued.
    """
    try:
        return await batcher(sentences)
    except asyncio.QueueFull:
        raise RequestError(503, "Too many sentences are waiting. Try again later.") from None


# LibreTranslate ----------------------------------------------------------------


async def answer_libretranslate(app, fields):
    """Answer a request of a client of LibreTranslate (https://docs.libretranslate.com).

    `q` is a text or a list of texts, with a sentence on each line. The answer has
    `translatedText` of the same kind, and `alternatives` if the request asks for some.
    """
    source, _ = app[LANGUAGES]
    check_languages(fields, app[LANGUAGES])
    is_list = isinstance(fields["q"], list)
    texts = sentence_lines(fields["q"])
    sentences = [Sentence(line, inspect=False) for lines in texts for line in lines]
    answers = iter(await translate_all(app[BATCHER], sentences))
    translated = [[texts_of(next(answers)) for _ in lines] for lines in texts]
    results = [join_lines(lines, 0) for lines in translated]
    answer = dict(translatedText=results if is_list else results[0])
    if alternatives := number_field(fields, "alternatives"):
        others = [
            [join_lines(lines, i) for i in range(1, min(alternatives + 1, max(map(len, lines))))]
            for lines in translated
        ]
        answer["alternatives"] = others if is_list else others[0]
    if fields["source"] == "auto":  # not detected: there is one language
        detected = dict(language=source, confidence=0)
        answer["detectedLanguage"] = [detected] * len(texts) if is_list else detected
    return web.json_response(answer)


def check_languages(fields, languages):
    """Raise RequestError if the model does not translate between the languages of a request."""
    source, target = languages
    for name, supported in (("source", (source, "auto")), ("target", (target,))):
        if fields.get(name) not in supported:
            raise RequestError(400, f"This {name} is not supported. Use {supported[0]}.")
    if fields.get("format", "text") != "text":
        raise RequestError(400, "This format is not supported. Use text.")


def sentence_lines(q) -> list[list[str]]:
    """Split a text, or each text of a list, into lines, each of them a sentence.

    Raises:
      RequestError: a text is not a str, or there are too many lines. They are counted before
        they are split: other clients wait in the meantime.
    """
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(400, USAGE)
    if sum(text.count("\n") + 1 for text in texts) > MAX_LINES:
        raise RequestError(413, f"A request has at most {MAX_LINES} lines.")
    return [[text_field(dict(q=line), "q") for line in text.split("\n")] for text in texts]


def number_field(fields, name) -> int:
    """Return a field that is a number, 0 if it is missing, or raise RequestError."""
    try:
        return max(0, int(fields.get(name, 0)))
    except (TypeError, ValueError, OverflowError):
        raise RequestError(400, f"{name} must be a number.") from None


def texts_of(answer) -> list[str]:
    """Return the translations in an answer of the translator, best first, at least one."""
    return [translation["text"] for translation in json.loads(answer)["translations"]] or [""]


def join_lines(lines, index) -> str:
    """Join one translation per line of a text: the one at `index`, or the last if there are fewer.

    >>> join_lines([["a", "b"], ["c"]], 1)
    'b\\nc'
    """
    return "\n".join(texts[min(index, len(texts) - 1)] for texts in lines)
