"""The HTTP interface: the page, its requests, and those of clients of LibreTranslate."""

import asyncio
import logging
import re
from pathlib import Path

from aiohttp import web

from server.directions import choose_direction, detect, directions_of, language_name
from server.html_text import HtmlText
from support.errors import InputError
from translation.paragraphs import as_one_sentence

ROOT = Path(__file__).resolve().parent.parent
FILES = {"/": ROOT / "server/page.html", "/style.css": ROOT / "formats/web/style.css"}
MAX_REQUEST_BYTES = 100_000
MAX_BATCH_REQUESTS = 32  # whose texts are translated together
LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")  # of this machine
SURROGATES = re.compile("[\ud800-\udfff]")  # JSON may have them, UTF-8 may not
USAGE = 'Send application/json: {"text": "a text"}, or the fields q, source and target.'


class Interface:
    """What the server of some models, each a `Translator` and its `InsideView`, answers."""

    def __init__(self, models, host):
        self.host, self.directions = host, []
        for translator, inside in models:
            more = translator, inside, Batcher(translator.translate)
            self.directions += directions_of(*more)
        pairs = dict.fromkeys((own.source, own.target) for own in self.directions)
        targets = {code: [] for pair in pairs for code in pair}
        for source, target in pairs:
            targets[source].append(target)
        names = [dict(code=code, name=language_name(code)) for code in targets]
        self.facts = {
            "/directions": [choose_direction(self.directions, *own).describe() for own in pairs],
            "/languages": [own | dict(targets=targets[own["code"]]) for own in names],
            "/health": dict(status="ok"),
        }

    def app(self) -> web.Application:
        """Make the application."""
        app = web.Application(middlewares=[self.answer], client_max_size=MAX_REQUEST_BYTES)
        app.router.add_get("/{file:|style.css}", self.file)
        app.router.add_post("/translate", self.translate)
        app.router.add_post("/look/{part:attention|steps|beam}", self.look)
        app.router.add_post("/detect", self.detect)
        app.router.add_get("/{fact:directions|languages|health}", self.fact)
        return app

    @web.middleware
    async def answer(self, request, handler):
        """Answer a request in JSON, but for a file."""
        status = 200
        try:
            # A page of another site may have a name that resolves to this machine (DNS rebinding).
            if self.host in LOCAL_NAMES and request.url.host not in LOCAL_NAMES:
                raise web.HTTPForbidden(text=f"Use one of these hosts: {', '.join(LOCAL_NAMES)}.")
            answer = await handler(request)
            if isinstance(answer, web.FileResponse):
                return answer
        except InputError as error:
            status, answer = 400, dict(error=str(error))
        except web.HTTPException as error:
            status, answer = error.status, dict(error=error.text)
        except Exception:
            logging.exception("%s", request.path)
            status, answer = 500, dict(error="The server failed. Its log has the reason.")
        return web.json_response(answer, status=status)

    async def file(self, request):
        """The page, or its style sheet."""
        return web.FileResponse(FILES[request.path])

    async def fact(self, request):
        """What does not depend on the request."""
        return self.facts[request.path]

    async def detect(self, request):
        """The language of a text, for a client of LibreTranslate."""
        return [detect(text_field(await read_fields(request), "q"), self.directions)]

    async def translate(self, request):
        """Translate a text for the page, or texts for a client of LibreTranslate."""
        fields = await read_fields(request)
        if "text" not in fields:
            return await self.answer_libretranslate(fields)
        text, prefix = text_field(fields, "text"), text_field(fields, "prefix", "")
        direction = self.direction(fields)
        paragraph = direction.read(text)
        if fields.get("split") in (False, "false") or len(paragraph.sentences) < 2:
            paragraph = direction.read(text, as_one_sentence)
        (found,) = await direction.translate_batch([paragraph._replace(prefix=prefix)])
        if len(paragraph.sentences) > 1:
            return paragraph_answer(found, direction.symbol)
        (answer,) = await asyncio.to_thread(direction.inside.describe, found.sentences)
        return answer

    async def look(self, request):
        """What the model computes for a translation: its attention, its steps, or its beam."""
        fields = await read_fields(request)
        direction, text = self.direction(fields), text_field(fields, "text")
        (text,) = direction.read(text, as_one_sentence).inputs
        look = dict(
            text=text,
            prefix=text_field(fields, "prefix", ""),
            kind=text_field(fields, "kind", ""),
            **{name: number_field(fields, name) for name in ("translation", "block", "head")},
        )
        part = getattr(direction.inside, request.match_info["part"])
        return await asyncio.to_thread(part, **look)

    def direction(self, fields, text=""):
        """The direction that the fields of a request name; `auto` is that of the text."""
        source, target = (text_field(fields, name, "") for name in ("source", "target"))
        if source.lower() == "auto":
            target = choose_direction(self.directions, "", target).target
            own = [direction for direction in self.directions if direction.target == target]
            source = detect(text, own)["language"]
        return choose_direction(self.directions, source, target)

    async def answer_libretranslate(self, fields) -> dict:
        """Return the answer to a client of LibreTranslate (https://docs.libretranslate.com)."""
        kind = str(fields.get("format") or "").lower()
        if kind not in ("", "text", "html"):
            raise InputError(f"The field format must be text or html. {USAGE}")
        is_list, count = isinstance(fields.get("q"), list), 1 + number_field(fields, "alternatives")
        given = fields["q"] if is_list else [fields.get("q")]
        texts = [text_field(dict(q=text), "q") for text in given]
        direction = self.direction(dict(source=None, target=None) | fields, "".join(texts))
        if kind == "html":
            translations = [await translate_html(text, count, direction) for text in texts]
        else:
            found = await direction.translate_batch([*map(direction.read, texts)])
            translations = [own.best(count) for own in found]
        answer = dict(translatedText=[best for best, *_ in translations])
        if count > 1:
            answer["alternatives"] = [others for _, *others in translations]
        if fields["source"].lower() == "auto":
            detected = detect("".join(texts), self.directions) | dict(language=direction.source)
            answer["detectedLanguage"] = [detected] * len(texts)
        return answer if is_list else {name: value for name, (value,) in answer.items()}


async def translate_html(text, count, direction) -> list[str]:
    """Return the best translations of HTML, at most `count`."""
    try:
        document = HtmlText(text)
    except ValueError:  # of `int`
        raise InputError("A character reference has too many digits.") from None
    found = await direction.translate_batch([*map(direction.read, document.texts)])
    texts = [own.best(count) for own in found]
    most = max([1, *map(len, texts)])
    return [document.join([own[: i + 1][-1] for own in texts]) for i in range(most)]


def paragraph_answer(found, symbol="") -> dict:
    """Return the answer to a `TranslatedText` of several sentences, with that of each one.

    The symbol of the direction is left out.
    """
    paragraph, best = found.paragraph, [own.hypotheses[0] for own in found.sentences]
    befores = [paragraph.gaps[0], *paragraph.joints([own.text for own in best])]
    rows = zip(befores, paragraph.inputs, best, strict=False)
    sentences = [
        dict(
            before=before,
            text=text.removeprefix(f"{symbol} "),
            translation=own.text,
            truncated=own.at_limit,
        )
        for before, text, own in rows
    ]
    translation = dict(text=found.text, truncated=any(own.at_limit for own in best))
    return dict(
        source=[], translations=[translation], truncated=found.truncated, sentences=sentences
    )


class Batcher:
    """Calls `translate` in a thread, with the texts of concurrent requests in batches.

    While a batch is translated, requests wait for the lock. The first one that gets it translates
    for the others, too.
    """

    def __init__(self, translate):
        self.translate, self.lock = translate, asyncio.Lock()
        self.waiting = []  # of each request its texts, and the future of the results

    async def __call__(self, texts) -> list:
        """Return the results for the texts of a request."""
        found = asyncio.Future()
        self.waiting.append((texts, found))
        async with self.lock:
            if not found.done():
                batch = self.waiting[:MAX_BATCH_REQUESTS]
                del self.waiting[:MAX_BATCH_REQUESTS]
                together = sum((own for own, _ in batch), [])
                try:
                    results = iter(await asyncio.to_thread(self.translate, together))
                    for own, future in batch:
                        future.set_result([next(results) for _ in own])
                except Exception as error:
                    for _, future in batch:
                        future.set_exception(error)
        return await found


# Fields of requests -------------------------------------------------


async def read_fields(request) -> dict:
    """Read the fields of a request: from JSON, or from a query string and a form."""
    try:
        if request.content_type == "application/json":
            return dict(await request.json())
        return {**request.query, **await request.post()}
    except (LookupError, RecursionError, TypeError, ValueError, web.RequestPayloadError) as error:
        raise InputError(f"The request cannot be read: {error}. {USAGE}") from None


def text_field(fields, name, default=None) -> str:
    """Return a field that is text, or raise InputError."""
    text = fields.get(name, default)
    if not isinstance(text, str) or SURROGATES.search(text):
        raise InputError(f"The field {name} must be text. {USAGE}")
    return text


def number_field(fields, name) -> int:
    """Return a field that is a whole number, 0 if it is missing, or raise InputError."""
    word = str(fields.get(name) or 0)
    if not re.fullmatch("[0-9]{1,9}", word):
        raise InputError(f"The field {name} must be a whole number.")
    return int(word)
