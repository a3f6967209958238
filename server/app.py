"""The HTTP interface: the page, its requests, and those of clients of LibreTranslate."""

import asyncio
import json
import logging
import re
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from urllib.parse import parse_qsl

from aiohttp import web

from paragraphs import Paragraph, split_lines
from runtime.files import is_utf8
from server.errors import RequestError
from server.hosts import host_name
from server.html_text import HtmlText
from server.inside import Look
from server.translating import Batcher, Sentence, nth_text

PAGE = Path(__file__).resolve().with_name("page.html").read_text("utf-8")
MAX_CHARACTERS = 20_000  # of all texts of a request
MAX_SENTENCES = 500  # of all texts of a request
MAX_SENTENCE_CHARACTERS = 1000  # of the first words of a translation, and to look inside
MAX_URL_CHARACTERS = 5000  # of a text in the query string
MAX_WAITING_LOOKS = 30  # requests for the inside of the model; each one may take seconds
# JSON may write a character as two escapes of 6 bytes, a form as four of 3 bytes.
MAX_CHARACTER_BYTES = 12
MAX_REQUEST_BYTES = MAX_CHARACTER_BYTES * (MAX_CHARACTERS + MAX_SENTENCE_CHARACTERS) + 10_000
MAX_FIELDS = 100  # of a form
INDEX = r"[1-9][0-9]{0,3}(\.0)?"  # a whole number from 1; in JSON it is a float, see `read_fields`
MAX_HEADER_CHARACTERS = 500  # of a header that is parsed: the time is quadratic
REQUEST_SECONDS = 20  # a client must have sent its request by then
ANSWER_SECONDS = 60  # a client must have read its answer by then
JSON = "application/json"
FORM = "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data"
# Python decodes these in linear time. Others are quadratic, for example punycode.
CHARSETS = ("utf-8", "utf8", "us-ascii", "ascii", "iso-8859-1", "latin1", "windows-1252")
USAGE = f'Send {JSON}: {{"text": "a text"}}, or the fields q, source and target.'
SERVER_FAILED = "The server failed. Its log has the reason."
TOO_LONG = f"A text has at most {MAX_CHARACTERS} characters. Send a longer one in parts."

LOGGER = logging.getLogger("aiohttp.server")
BATCHER = web.AppKey("batcher", Batcher)
LOOK_BATCHER = web.AppKey("look_batcher", Batcher)
LANGUAGES = web.AppKey("languages", tuple)  # of source and target
HOSTS = web.AppKey("hosts", tuple)  # names under which clients may address the server
SPLIT = web.AppKey("split", object)  # function from a text to a `Paragraph`, or None


def make_app(
    translate, languages=("", ""), hosts=(), look_inside=None, split=None
) -> web.Application:
    """Make the application: the page at /, translations at /translate, the model's inside at /look.

    Args:
      translate: function from a list of `Sentence` to a list of answers, as
        `InspectedTranslator`.
      languages: codes of source and target, for the interface of LibreTranslate.
      hosts: names under which clients may address the server; empty for any name.
      look_inside: function from a `Look` to an answer, as `InsideView`; None without a model.
      split: function from a text to a `Paragraph`, as `Splitter`; None if a text of the page, and a
        line of a client of LibreTranslate, is one sentence.
    """
    middlewares = [answer_errors, check_host]
    app = web.Application(client_max_size=MAX_REQUEST_BYTES, middlewares=middlewares)
    app[BATCHER] = Batcher(translate)
    # One at a time, so that translations are hardly slower meanwhile.
    app[LOOK_BATCHER] = Batcher(
        lambda looks: [json.dumps(look_inside(look)) for look in looks], MAX_WAITING_LOOKS, 1
    )
    app[LANGUAGES], app[HOSTS], app[SPLIT] = tuple(languages), tuple(hosts), split
    app.add_routes(
        [
            web.get("/", handle_page),
            web.post("/translate", handle_translate),
            web.get("/languages", handle_languages),
            web.post("/detect", handle_detect),
            web.get("/health", handle_health),
            web.get("/frontend/settings", handle_settings),
            web.get("/spec", handle_spec),
        ]
    )
    if look_inside:
        app.add_routes([web.post("/look/{part:attention|steps|beam}", handle_look)])
    app.cleanup_ctx.append(run_batchers)
    return app


async def run_batchers(app):
    """Run the batchers as long as the application."""
    tasks = [asyncio.create_task(app[key].run()) for key in (BATCHER, LOOK_BATCHER)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@web.middleware
async def answer_errors(request, handler):
    """Answer errors in JSON: a `RequestError`, an error of aiohttp, a failure of the server."""
    try:
        return await handler(request)
    except RequestError as error:
        return error_response(error.status, error.reason)
    except web.HTTPException as error:  # no such path, or another method
        reason = f"{request.method} {request.path}: {error.reason.lower()}."
        response = error_response(error.status, reason)
        if allow := error.headers.get("Allow"):
            response.headers["Allow"] = allow
        return response
    except Exception:
        LOGGER.exception("Error handling request")
        return error_response(500, SERVER_FAILED)


def error_response(status, reason) -> web.Response:
    """Return the answer to a request that is refused."""
    return web.json_response(dict(error=reason), status=status)


@web.middleware
async def check_host(request, handler):
    """Refuse requests that address the server by another name.

    A page of another site may have a name that resolves to this server (DNS rebinding).
    """
    hosts = request.app[HOSTS]
    if hosts and host_name(host_header(request)) not in hosts:
        names = ", ".join(hosts)
        reason = f"Use one of these host names: {names}. serve.py --allowed_hosts adds others."
        raise RequestError(403, reason)
    return await handler(request)


def host_header(request) -> str:
    """Return the header Host; without it, `request.host` would ask the network for a name."""
    return request.headers.get("Host", "")


async def handle_page(_):
    """The page."""
    return web.Response(text=PAGE, content_type="text/html")


async def handle_translate(request):
    """Translate a text for the page, or texts for a client of LibreTranslate."""
    fields = await read_fields(request)
    if "q" in fields or "text" not in fields:
        return await answer_libretranslate(request.app, fields)
    text = text_field(fields, "text")
    prefix = one_line(text_field(fields, "prefix", "", MAX_SENTENCE_CHARACTERS))
    split, batcher = request.app[SPLIT], request.app[BATCHER]
    paragraph = Paragraph([], [text])
    if split and boolean_field(fields, "split", True):
        paragraph = await asyncio.to_thread(split, text)
        check_sentences(paragraph.sentences)
    if len(paragraph.sentences) > 1:
        sentences = [Sentence(one_line(own), inspect=0) for own in paragraph.inputs]
        sentences[0] = sentences[0]._replace(prefix=prefix)
        answers = await process_all(batcher, sentences)
        return web.json_response(paragraph_answer(paragraph, answers))
    (answer,) = await process_all(batcher, [Sentence(one_line(text), prefix)])
    return web.Response(text=await asyncio.to_thread(write_json, answer), content_type=JSON)


def write_json(answer) -> str:
    """Write an answer of the translator as JSON."""
    return json.dumps(answer, default=lambda weights: weights.astype(float).round(3).tolist())


def paragraph_answer(paragraph, answers) -> dict:
    """Return the answer to a text of several sentences: its translation, and that of each one.

    Args:
      answers: those of the translator to its sentences.
    """
    texts = [nth_text(answer, 0) for answer in answers]
    truncated = [is_truncated(answer, 1) for answer in answers]
    rows = zip(
        [paragraph.gaps[0], *paragraph.joints(texts)],
        paragraph.inputs,
        texts,
        truncated,
        strict=False,
    )
    return dict(
        source=[],
        translations=[dict(text=paragraph.join(texts), truncated=any(truncated))],
        truncated=any(answer.get("truncated", False) for answer in answers),
        sentences=[
            dict(before=before, text=text, translation=translation, truncated=is_cut)
            for before, text, translation, is_cut in rows
        ],
    )


async def handle_look(request):
    """What the model computes for a translation: its attention, its steps, or its beam."""
    fields = await read_fields(request)
    look = Look(
        part=request.match_info["part"],
        text=one_line(text_field(fields, "text", None, MAX_SENTENCE_CHARACTERS)),
        prefix=one_line(text_field(fields, "prefix", "", MAX_SENTENCE_CHARACTERS)),
        translation=index_field(fields, "translation"),
        kind=text_field(fields, "kind", ""),
        block=index_field(fields, "block"),
        head=index_field(fields, "head"),
    )
    (answer,) = await process_all(request.app[LOOK_BATCHER], [look])
    return web.Response(text=answer, content_type=JSON)


async def process_all(batcher, items) -> list:
    """Give sentences, or looks inside, to a batcher; returns the answers. Those to looks are JSON.

    Raises:
      RequestError: too many items wait already, and these were not queued.
    """
    try:
        return await batcher(items)
    except asyncio.QueueFull:
        raise RequestError(503, "Too many sentences are waiting. Try again later.") from None


# Reading requests --------------------------------------------------------------


async def read_fields(request) -> dict:
    """Read the fields of a request: from JSON, or from the query string and a form.

    LibreTranslate does the same: in JSON it ignores the query string, and next to a query string
    it ignores a body of another type. If several fields have one name, the first one counts.

    Raises:
      RequestError: it does not arrive in time, is too long or malformed, or may be sent by the
        page of another site.
    """
    try:
        header = parse_header(f"Content-Type: {request.headers.get('Content-Type', '')}")
        content_type = header.get_content_type()
        if content_type != JSON:
            check_origin(request)
        body = await read_body(request)
        if content_type == JSON:
            fields = json.loads(body, parse_int=float)  # int may take quadratic time
        else:
            pairs = decode_form(request.rel_url.raw_query_string)
            if content_type == FORM:
                charset = header_charset(header)
                pairs += decode_form(body.rstrip().decode(charset), charset)
            elif content_type == MULTIPART:
                pairs += decode_multipart(body, header.get_boundary())
            fields = dict(reversed(pairs))
    except (ValueError, RecursionError):
        raise RequestError(400, USAGE) from None
    if not isinstance(fields, dict):
        raise RequestError(400, USAGE)
    return fields


def check_origin(request):
    """Raise RequestError if the page of another site sent this query string or form.

    A browser names the site in the header Origin. It sends JSON of other sites only with
    permission, which this server does not give.
    """
    host = host_header(request)
    if request.headers.get("Origin") not in (None, f"http://{host}", f"https://{host}"):
        raise RequestError(403, "Send this request from the page of this server, or as JSON.")


async def read_body(request) -> bytes:
    """Read the body of a request, or raise RequestError."""
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            return await request.read()
    except TimeoutError:
        raise RequestError(
            408, f"The request did not arrive within {REQUEST_SECONDS} seconds."
        ) from None
    except web.RequestPayloadError:
        raise RequestError(400, USAGE) from None
    except web.HTTPRequestEntityTooLarge:
        raise RequestError(
            413, f"A request has at most {MAX_REQUEST_BYTES} bytes. {TOO_LONG}"
        ) from None


def parse_header(text) -> Message:
    """Parse headers, lines of text. Raise ValueError if they are too long."""
    if len(text) > MAX_HEADER_CHARACTERS:
        raise ValueError
    return HeaderParser().parsestr(text)


def header_charset(header) -> str:
    """Return the charset that the header Content-Type names, or raise RequestError."""
    charset = header.get_param("charset", CHARSETS[0])
    if str(charset).lower() not in CHARSETS:
        raise RequestError(400, f"This charset is not supported. Use {CHARSETS[0]}.")
    return charset


def decode_form(text, charset=CHARSETS[0]) -> list[tuple[str, str]]:
    """Decode the fields of a query string or of a form: pairs of name and value.

    >>> decode_form("q=ein+Hund%21&source=de")
    [('q', 'ein Hund!'), ('source', 'de')]

    Raises:
      ValueError: there are too many fields, or a value is not in the charset.
    """
    options = dict(keep_blank_values=True, max_num_fields=MAX_FIELDS)
    return parse_qsl(text, encoding=charset, errors="strict", **options)


def decode_multipart(body, boundary) -> list[tuple[str, str]]:
    """Decode the fields of a form in multipart/form-data (RFC 7578): pairs of name and value.

    `request.post` of aiohttp would decode a field with any charset.

    Raises:
      RequestError: the charset of a field is not supported.
      ValueError: the form is malformed or not complete, or has too many fields.
    """
    if not boundary:
        raise ValueError
    delimiter = f"\r\n--{boundary}".encode()
    _, *parts, end = (b"\r\n" + body).split(delimiter, MAX_FIELDS + 1)
    if not end.startswith(b"--"):
        raise ValueError
    pairs = []
    for part in parts:
        lines, _, value = part.partition(b"\r\n\r\n")
        header = parse_header(lines.decode().lstrip())
        name = header.get_param("name", header="Content-Disposition")
        pairs.append((name, value.decode(header_charset(header))))
    return pairs


def text_field(fields, name, default=None, max_characters=MAX_CHARACTERS) -> str:
    """Return a field that is text of at most so many characters, or raise RequestError."""
    text = fields.get(name, default)
    if not isinstance(text, str) or not is_utf8(text):
        raise RequestError(400, f"{name} must be text. {USAGE}")
    if len(text) > max_characters:
        reason = f"Here, {name} has at most {max_characters} characters."
        raise RequestError(413, TOO_LONG if max_characters == MAX_CHARACTERS else reason)
    return text


def one_line(text) -> str:
    """Replace each line break of a text by a space."""
    return text.replace("\n", " ")


def boolean_field(fields, name, default) -> bool:
    """Return a field that is true or false, or raise RequestError."""
    value = fields.get(name, default)
    if value not in (True, False, "true", "false"):
        raise RequestError(400, f"{name} must be true or false.")
    return value in (True, "true")


def check_sentences(sentences):
    """Raise RequestError if a request has too many sentences."""
    if len(sentences) > MAX_SENTENCES:
        raise RequestError(
            413,
            f"This text has {len(sentences)} sentences. A request has at most {MAX_SENTENCES}. Send"
            " a longer text in parts.",
        )


def index_field(fields, name) -> int | None:
    """Return a field that is a number from 1, None if it is missing, or raise RequestError."""
    number = fields.get(name)
    if number is None:
        return None
    if not isinstance(number, float | str) or not re.fullmatch(INDEX, str(number)):
        raise RequestError(400, f"{name} must be a whole number, 1 or more.")
    return int(float(number))


# LibreTranslate ----------------------------------------------------------------


async def handle_languages(request):
    """The languages of the model."""
    source, target = request.app[LANGUAGES]
    return web.json_response([dict(code=source, name=source, targets=[target])])


async def handle_detect(request):
    """The language of a text: that of the model, with confidence 0."""
    check_present(await read_fields(request), "q")
    source, _ = request.app[LANGUAGES]
    return web.json_response([detected_language(source)])


async def handle_health(_):
    """Whether the server runs."""
    return web.json_response(dict(status="ok"))


async def handle_settings(request):
    """The settings that clients of LibreTranslate ask for."""
    source, target = (dict(code=code, name=code) for code in request.app[LANGUAGES])
    return web.json_response(
        dict(
            charLimit=MAX_CHARACTERS,
            supportedFormat=[*FORMATS],  # an addition: of the field format
            frontendTimeout=500,  # milliseconds that a page waits for more input
            apiKeys=False,
            keyRequired=False,
            suggestions=False,
            filesTranslation=False,
            supportedFilesFormat=[],
            language=dict(source=source, target=target),
        )
    )


async def handle_spec(request):
    """This description of the interface, in Swagger 2.0."""
    paths = {}
    for route in request.app.router.routes():
        responses = {"200": dict(description=route.handler.__doc__)}
        methods = paths.setdefault(route.resource.canonical, {})
        methods[route.method.lower()] = dict(responses=responses)
    info = dict(title="Transformer", version="1")
    return web.json_response(dict(swagger="2.0", info=info, paths=paths))


class PlainText:
    """Text to translate.

    Args:
      text: str.
      split: function from a text to a `Paragraph`.
      count: how many translations are needed; see `HtmlText`.
    """

    def __init__(self, text, split, count=1):
        self.paragraph = split(text)
        self.sentences = [Sentence(own, inspect=0) for own in self.paragraph.inputs]

    def join(self, answers, index) -> str:
        """Return the translation at `index`; see `nth_text`."""
        return self.paragraph.join([nth_text(answer, index) for answer in answers])


FORMATS = dict(text=PlainText, html=HtmlText)


async def answer_libretranslate(app, fields):
    """Answer a request of a client of LibreTranslate (https://docs.libretranslate.com).

    `q` is a text or a list of texts. The answer has `translatedText` of the same kind, and
    `alternatives` if the request asks for some. Where a limit takes effect, it also has `truncated`
    or `maxAlternatives`.
    """
    source, _ = app[LANGUAGES]
    check_present(fields, "q")
    check_languages(fields, app[LANGUAGES])
    alternatives = number_field(fields, "alternatives")
    read_text, split = FORMATS[format_field(fields)], app[SPLIT] or split_lines
    is_list = isinstance(fields["q"], list)
    given = texts_field(fields)
    # In another thread, so that other clients do not wait.
    texts = await asyncio.to_thread(
        lambda: [read_text(text, split, 1 + alternatives) for text in given]
    )
    sentences = [sentence for text in texts for sentence in text.sentences]
    check_sentences(sentences)
    rest = iter(await process_all(app[BATCHER], sentences))
    translated = [[next(rest) for _ in text.sentences] for text in texts]

    def one_or_all(values):
        return values if is_list else values[0]

    counts = [count_alternatives(answers) for answers in translated]
    joined = await asyncio.to_thread(
        lambda: [
            [text.join(answers, i) for i in range(1 + min(alternatives, count))]
            for text, answers, count in zip(texts, translated, counts, strict=True)
        ]
    )
    answer = dict(translatedText=one_or_all([best for best, *_ in joined]))
    if alternatives:
        answer["alternatives"] = one_or_all([others for _, *others in joined])
        if alternatives > min(counts, default=0):
            answer["maxAlternatives"] = one_or_all(counts)
    truncated = [
        any(is_truncated(answer, 1 + alternatives) for answer in answers) for answers in translated
    ]
    if any(truncated):
        answer["truncated"] = one_or_all(truncated)
    if fields["source"].lower() == "auto":
        answer["detectedLanguage"] = one_or_all([detected_language(source)] * len(texts))
    return web.json_response(answer)


def detected_language(source) -> dict:
    """Return the only language of the sources: nothing is detected, so its confidence is 0."""
    return dict(language=source, confidence=0)


def check_present(fields, name):
    """Raise RequestError if a field is missing."""
    if fields.get(name) is None:
        raise RequestError(400, f"Invalid request: missing {name} parameter. {USAGE}")


def check_languages(fields, languages):
    """Raise RequestError if the model does not translate between the languages of a request."""
    source, target = languages
    for name, supported in (("source", (source, "auto")), ("target", (target,))):
        check_present(fields, name)
        code = fields[name]
        if not isinstance(code, str) or code.lower() not in map(str.lower, supported):
            raise RequestError(400, f"This {name} is not supported. Use {supported[0]}.")


def format_field(fields) -> str:
    """Return the format of the texts, text if it is missing, or raise RequestError."""
    name = fields.get("format") or "text"
    if not isinstance(name, str) or name.lower() not in FORMATS:
        raise RequestError(400, f"This format is not supported. Use {' or '.join(FORMATS)}.")
    return name.lower()


def texts_field(fields) -> list[str]:
    """Return the texts of a request, or raise RequestError."""
    q = fields["q"]
    texts = q if isinstance(q, list) else [q]
    if not all(isinstance(text, str) for text in texts):
        raise RequestError(400, f"q must be text, or a list of texts. {USAGE}")
    if sum(map(len, texts)) > MAX_CHARACTERS or len(texts) > MAX_SENTENCES:
        raise RequestError(413, f"{TOO_LONG} A list has at most {MAX_SENTENCES} texts.")
    return [text_field(dict(q=text), "q") for text in texts]


def number_field(fields, name) -> int:
    """Return a field that is a number, 0 if it is missing, or raise RequestError."""
    try:
        return max(0, int(float(fields.get(name) or 0)))  # int of a str may take quadratic time
    except (TypeError, ValueError, OverflowError):
        raise RequestError(400, f"{name} must be a number.") from None


def count_alternatives(answers) -> int:
    """Count the alternatives of a text: those of the sentence that has the most."""
    return max((len(answer["translations"]) - 1 for answer in answers), default=0)


def is_truncated(answer, count) -> bool:
    """Whether the source of an answer, or one of its `count` best translations, was truncated."""
    truncatable = [answer, *answer["translations"][:count]]
    return any(item.get("truncated", False) for item in truncatable)
