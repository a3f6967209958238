"""The HTTP interface: the page, its requests, and those of clients of LibreTranslate."""

import asyncio
import logging
from pathlib import Path

from aiohttp import web

from runtime.errors import InputError
from runtime.lines import is_utf8
from server.html_text import HtmlText
from server.inside import Look
from server.translating import Batcher, Sentence, nth_text

PAGE = Path(__file__).resolve().with_name("page.html").read_text("utf-8")
MAX_REQUEST_BYTES = 100_000
LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")  # of this machine
USAGE = 'Send application/json: {"text": "a text"}, or the fields q, source and target.'


class Interface:
    """The page at /, translations at /translate, the model's inside at /look.

    Args:
      translate: function from a list of `Sentence` to a list of answers, as `InspectedTranslator`.
      split: function from a text to a `Paragraph`, as `Splitter`.
      look_inside: function from a `Look` to an answer, as `InsideView`.
      languages: codes of source and target, for clients of LibreTranslate.
      host: the address of the server.

    Attributes:
      app: web.Application.
    """

    def __init__(self, translate, split, look_inside, languages, host):
        self.batcher, self.split, self.host = Batcher(translate), split, host
        self.look_inside, self.look_lock = look_inside, asyncio.Lock()
        self.source, self.target = languages
        self.detected = dict(language=self.source, confidence=0)  # nothing is detected
        self.facts = {
            "/languages": [dict(code=self.source, name=self.source, targets=[self.target])],
            "/detect": [self.detected],
            "/health": dict(status="ok"),
        }
        self.app = web.Application(middlewares=[self.answer], client_max_size=MAX_REQUEST_BYTES)
        self.app.on_startup.append(self.batcher.start)
        self.app.add_routes(
            [
                web.get("/", self.page),
                web.post("/translate", self.translate),
                web.post("/look/{part:attention|steps|beam}", self.look),
                web.get("/languages", self.fact),
                web.post("/detect", self.fact),
                web.get("/health", self.fact),
            ]
        )

    @web.middleware
    async def answer(self, request, handler):
        """Answer a request; errors are JSON."""
        try:
            # A page of another site may have a name that resolves to this machine (DNS rebinding).
            if self.host in LOCAL_NAMES and request.url.host not in LOCAL_NAMES:
                raise web.HTTPForbidden(text=f"Use one of these hosts: {', '.join(LOCAL_NAMES)}.")
            return await handler(request)
        except InputError as error:
            status, reason = 400, str(error)
        except web.HTTPException as error:
            status, reason = error.status, error.text
        except Exception:
            logging.exception("%s", request.path)
            status, reason = 500, "The server failed. Its log has the reason."
        return web.json_response(dict(error=reason), status=status)

    async def page(self, _):
        """The page."""
        return web.Response(text=PAGE, content_type="text/html")

    async def fact(self, request):
        """What a client of LibreTranslate asks for, and does not depend on the request."""
        return web.json_response(self.facts[request.path])

    async def translate(self, request):
        """Translate a text for the page, or texts for a client of LibreTranslate."""
        fields = await read_fields(request)
        if "text" not in fields:
            return web.json_response(await self.answer_libretranslate(fields))
        text, prefix = text_field(fields, "text"), line_field(fields, "prefix", "")
        paragraph = self.split(text) if fields.get("split", True) else None
        if paragraph and len(paragraph.sentences) > 1:
            sentences = [Sentence(own, inspect=0) for own in paragraph.inputs]
            sentences[0] = sentences[0]._replace(prefix=prefix)
            answer = paragraph_answer(paragraph, await self.batcher(sentences))
        else:
            (answer,) = await self.batcher([Sentence(line_field(fields, "text"), prefix)])
        return web.json_response(answer)

    async def look(self, request):
        """What the model computes for a translation: its attention, its steps, or its beam."""
        fields = await read_fields(request)
        look = Look(
            part=request.match_info["part"],
            text=line_field(fields, "text"),
            prefix=line_field(fields, "prefix", ""),
            kind=text_field(fields, "kind", ""),
            **{name: number_field(fields, name) for name in ("translation", "block", "head")},
        )
        async with self.look_lock:
            return web.json_response(await asyncio.to_thread(self.look_inside, look))

    async def answer_libretranslate(self, fields) -> dict:
        """Return the answer to a client of LibreTranslate (https://docs.libretranslate.com)."""
        is_auto = choice_field(fields, "source", self.source, "auto") == "auto"
        choice_field(fields, "target", self.target)
        form = dict(text=PlainText, html=HtmlText)[
            choice_field(fields, "format", "text", "html", default="text")
        ]
        is_list, count = isinstance(fields.get("q"), list), 1 + number_field(fields, "alternatives")
        given = fields["q"] if is_list else [fields.get("q")]
        texts = [form(text_field(dict(q=text), "q"), self.split, count) for text in given]
        rest = iter(await self.batcher([own for text in texts for own in text.sentences]))
        translations = []
        for text in texts:
            answers = [next(rest) for _ in text.sentences]
            found = max([1, *(len(answer["translations"]) for answer in answers)])
            translations.append([text.join(answers, i) for i in range(min(count, found))])
        answer = dict(translatedText=[best for best, *_ in translations])
        if count > 1:
            answer["alternatives"] = [others for _, *others in translations]
        if is_auto:
            answer["detectedLanguage"] = [self.detected] * len(texts)
        return answer if is_list else {name: value for name, (value,) in answer.items()}


class PlainText:
    """Text to translate, with the interface of `HtmlText`."""

    def __init__(self, text, split, _):
        self.paragraph = split(text)
        self.sentences = [Sentence(own, inspect=0) for own in self.paragraph.inputs]

    def join(self, answers, index) -> str:
        """Return the translation at `index`; see `nth_text`."""
        return self.paragraph.join([nth_text(answer, index) for answer in answers])


def paragraph_answer(paragraph, answers) -> dict:
    """Return the answer to a text of several sentences: its translation, and that of each one."""
    texts = [nth_text(answer, 0) for answer in answers]
    truncated = [any(own["truncated"] for own in answer["translations"][:1]) for answer in answers]
    befores = [paragraph.gaps[0], *paragraph.joints(texts)][:-1]
    rows = zip(befores, paragraph.inputs, texts, truncated, strict=True)
    return dict(
        source=[],
        translations=[dict(text=paragraph.join(texts), truncated=any(truncated))],
        truncated=any(answer["truncated"] for answer in answers),
        sentences=[
            dict(before=before, text=text, translation=translation, truncated=is_cut)
            for before, text, translation, is_cut in rows
        ],
    )


# Fields of requests --------------------------------------------------------------


async def read_fields(request) -> dict:
    """Read the fields of a request: from JSON, or from a query string and a form."""
    try:
        if request.content_type == "application/json":
            return dict(await request.json())
        return {**request.query, **await request.post()}
    except (LookupError, TypeError, ValueError):  # an unknown charset, no object, no JSON
        raise InputError(USAGE) from None


def text_field(fields, name, default=None) -> str:
    """Return a field that is text, or raise InputError."""
    text = fields.get(name, default)
    if not isinstance(text, str) or not is_utf8(text):
        raise InputError(f"The field {name} must be text. {USAGE}")
    return text


def line_field(fields, name, default=None) -> str:
    """Return a field that is text, with a space for each line break."""
    return text_field(fields, name, default).replace("\n", " ")


def number_field(fields, name) -> int:
    """Return a field that is a whole number, 0 if it is missing, or raise InputError."""
    word = str(fields.get(name) or 0)
    if not word.isdecimal():
        raise InputError(f"The field {name} must be a whole number.")
    return int(word)


def choice_field(fields, name, *choices, default="") -> str:
    """Return a field that is one of the choices, in any case, or raise InputError."""
    word = str(fields.get(name) or default).lower()
    for choice in choices:
        if word == choice.lower():
            return choice
    raise InputError(f"The field {name} must be {' or '.join(choices)}. {USAGE}")
