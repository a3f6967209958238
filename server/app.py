"""The HTTP interface: the page, its requests, and those of clients of LibreTranslate."""

import asyncio
import logging
import re
from pathlib import Path

from aiohttp import web

from server.html_text import HtmlText
from support.errors import InputError
from translation.paragraphs import as_one_sentence

PAGE = Path(__file__).resolve().with_name("page.html").read_text("utf-8")
MAX_REQUEST_BYTES = 100_000
MAX_BATCH_REQUESTS = 32  # whose texts are translated together
LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")  # of this machine
SURROGATES = re.compile("[\ud800-\udfff]")  # JSON may have them, UTF-8 may not
USAGE = 'Send application/json: {"text": "a text"}, or the fields q, source and target.'


class Interface:
    """The page at /, translations at /translate, the model's inside at /look.

    Args:
      translator: Translator.
      inside: InsideView.
      languages: codes of source and target, for clients of LibreTranslate.
      host: the address of the server.

    Attributes:
      app: web.Application.
    """

    def __init__(self, translator, inside, languages, host):
        self.split, self.inside, self.host = translator.split, inside, host
        self.translate_batch = Batcher(translator.translate)
        self.look_lock = asyncio.Lock()
        self.source, self.target = languages
        self.detected = dict(language=self.source, confidence=0)  # nothing is detected
        self.facts = {
            "/languages": [dict(code=self.source, name=self.source, targets=[self.target])],
            "/detect": [self.detected],
            "/health": dict(status="ok"),
        }
        self.app = web.Application(middlewares=[self.answer], client_max_size=MAX_REQUEST_BYTES)
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
        line, prefix = line_field(fields, "text"), line_field(fields, "prefix", "")
        paragraph = self.split(fields["text"]) if fields.get("split", True) else None
        if not paragraph or len(paragraph.sentences) < 2:
            paragraph = as_one_sentence(line)
        (found,) = await self.translate_batch([paragraph], [prefix])
        if len(paragraph.sentences) > 1:
            return web.json_response(paragraph_answer(found))
        (answer,) = await asyncio.to_thread(self.inside.describe, found.sentences)
        return web.json_response(answer)

    async def look(self, request):
        """What the model computes for a translation: its attention, its steps, or its beam."""
        fields = await read_fields(request)
        look = dict(
            text=line_field(fields, "text"),
            prefix=line_field(fields, "prefix", ""),
            kind=text_field(fields, "kind", ""),
            **{name: number_field(fields, name) for name in ("translation", "block", "head")},
        )
        show = getattr(self.inside, request.match_info["part"])
        async with self.look_lock:
            return web.json_response(await asyncio.to_thread(show, **look))

    async def answer_libretranslate(self, fields) -> dict:
        """Return the answer to a client of LibreTranslate (https://docs.libretranslate.com)."""
        is_auto = choice_field(fields, "source", self.source, "auto") == "auto"
        choice_field(fields, "target", self.target)
        is_html = choice_field(fields, "format", "text", "html", default="text") == "html"
        is_list, count = isinstance(fields.get("q"), list), 1 + number_field(fields, "alternatives")
        given = fields["q"] if is_list else [fields.get("q")]
        texts = [text_field(dict(q=text), "q") for text in given]
        if is_html:
            translations = [await self.translate_html(text, count) for text in texts]
        else:
            found = await self.translate_batch([*map(self.split, texts)])
            translations = [own.best(count) for own in found]
        answer = dict(translatedText=[best for best, *_ in translations])
        if count > 1:
            answer["alternatives"] = [others for _, *others in translations]
        if is_auto:
            answer["detectedLanguage"] = [self.detected] * len(texts)
        return answer if is_list else {name: value for name, (value,) in answer.items()}

    async def translate_html(self, text, count) -> list[str]:
        """Return the best translations of HTML, at most `count`."""
        document = HtmlText(text, self.split)
        found = await self.translate_batch([*map(as_one_sentence, document.sentences)])
        translations = [own.sentences[0] for own in found]
        answers = await asyncio.to_thread(self.inside.describe, translations, count)
        found = max([1, *(len(answer["translations"]) for answer in answers)])
        return [document.join(answers, i) for i in range(min(count, found))]


def paragraph_answer(found) -> dict:
    """Return the answer to a text of several sentences: its translation, and that of each one.

    Args:
      found: TranslatedText.
    """
    paragraph, sentences = found
    texts, truncated = [own.text for own in sentences], [own.at_limit for own in sentences]
    befores = [paragraph.gaps[0], *paragraph.joints(texts)][:-1]
    rows = zip(befores, paragraph.inputs, texts, truncated, strict=True)
    return dict(
        source=[],
        translations=[dict(text=found.text, truncated=any(truncated))],
        truncated=any(own.truncated for own in sentences),
        sentences=[
            dict(before=before, text=text, translation=translation, truncated=is_cut)
            for before, text, translation, is_cut in rows
        ],
    )


class Batcher:
    """Translates the texts of concurrent requests in batches.

    While a batch is translated, requests wait for the lock. The first one that gets it translates
    for the others, too.

    Args:
      translate: function, as `Translator.translate`. It runs in a thread.
    """

    def __init__(self, translate):
        self.translate, self.lock = translate, asyncio.Lock()
        self.waiting = []  # of each request its texts, their prefixes, the future of the results

    async def __call__(self, texts, prefixes=None) -> list:
        """Return the results for the texts of a request, or raise an exception of `translate`."""
        found = asyncio.Future()
        self.waiting.append((texts, prefixes or [""] * len(texts), found))
        async with self.lock:
            if not found.done():
                batch = self.waiting[:MAX_BATCH_REQUESTS]
                del self.waiting[:MAX_BATCH_REQUESTS]
                texts, prefixes, futures = zip(*batch, strict=True)
                together = sum(texts, []), sum(prefixes, [])
                try:
                    results = iter(await asyncio.to_thread(self.translate, *together))
                    for own, future in zip(texts, futures, strict=True):
                        future.set_result([next(results) for _ in own])
                except Exception as error:
                    for future in futures:
                        future.set_exception(error)
        return await found


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
    if not isinstance(text, str) or SURROGATES.search(text):
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
