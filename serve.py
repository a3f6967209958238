"""A page on which one types a sentence and sees its translations, and what each word attends to.

    python serve.py --logdir logdir

It is at http://127.0.0.1:8080, for this machine alone unless --host says otherwise."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import weakref
from pathlib import Path
from urllib.parse import urlsplit

from hparams import InputError, Options, option, parse_flags, run


@dataclasses.dataclass(frozen=True)
class Task(Options):
    """Where the page is, and how much it shows."""

    host: str = option("127.0.0.1", "address to listen at; 0.0.0.0: all of this machine's")
    port: int = option(8080, "port to listen at; 0: a free one", 0, 2**16)
    nbest: int = option(5, "translations of a sentence; the beam has as many hypotheses", 1, 1001)


if __name__ == "__main__":
    flags = parse_flags(__doc__, Task)  # before TensorFlow is loaded

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from attention import alignments, ended
from data_load import Ragged, encode_lines
from decoding import Translator, load
from text import before_end

PAGE = Path(__file__).resolve().with_name("serve.html")
LONGEST = 1000  # characters of a sentence
TOKENS = 200  # of it that are read, since what is shown grows with their square
AT_ONCE = 32  # sentences in a batch
MOMENT = 0.01  # seconds that the first of them waits for others
JSON = "application/json"
WAITING = 256  # sentences that wait for a batch, at most
REQUEST_SECONDS = 20  # within which a client must have sent its request
ANSWERED = web.AppKey("answered", weakref.WeakSet)  # connections that have sent a request
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Explainer:
    """Sentences to their translations, with what each word of those attends to.

    Args:
      model: a `Transformer`.
      translator: `Translator` with this model.
    """

    def __init__(self, model, translator):
        self.model, self.translator = model, translator

    def __call__(self, lines):
        """What the page shows of each line, a list of dicts that JSON can hold."""
        hp, vocabs = self.translator.hp, self.translator.vocabs
        X, rows, cut = encode_lines(lines, vocabs[0], hp, min(TOKENS, hp.longest))
        found = self.translator.find(X)
        sources = Ragged.of([x for x, best in zip(X, found, strict=True) for _ in best])
        targets = Ragged.of([ended(ids, hp) for best in found for ids, _ in best])
        weights = iter(alignments(self.model, hp, sources, targets))
        shown = [dict(source=[], translations=[], cut=row in cut) for row in range(len(lines))]
        for row, x, best in zip(rows, X, found, strict=True):
            shown[row]["source"] = [readable(vocabs[0].token(i), hp) for i in x[:-1]]
            for ids, score in best:
                words = [readable(vocabs[1].token(i), hp) for i in before_end(ids)]
                shown[row]["translations"].append(
                    dict(
                        text=vocabs[1].decode(ids),
                        score=round(float(score), 4),
                        words=words,
                        # Of each word of it to each of the source; those of </S> stay out.
                        attention=next(weights)[: len(words), :-1].astype(float).round(3).tolist(),
                    )
                )
        return shown


def readable(token, hp):
    """A word or a piece as it stands in a line, where a blank goes before it."""
    return f" {token}" if hp.tokens == "words" else token.replace("▁", " ")


class Batcher:
    """Calls a function once for all that come while it is busy, or at the same moment.

    Args:
      function: of a list, to a list as long. It is called in a thread of its own.
    """

    def __init__(self, function):
        self.function = function
        self.waiting = asyncio.Queue(WAITING)

    async def __call__(self, item):
        """What `function` makes of an item, or raises of it.

        Raises:
          asyncio.QueueFull: too many wait already.
        """
        future = asyncio.get_running_loop().create_future()
        self.waiting.put_nowait((item, future))
        return await future

    async def work(self):
        """Serve what waits, for ever."""
        while True:
            part = [await self.waiting.get()]
            await asyncio.sleep(MOMENT)
            while len(part) < AT_ONCE and not self.waiting.empty():
                part.append(self.waiting.get_nowait())
            part = [(item, future) for item, future in part if not future.done()]
            results = await asyncio.to_thread(self.results, [item for item, _ in part])
            for (_, future), result in zip(part, results, strict=True):
                if future.done():  # whoever asked is gone
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def results(self, items):
        """What `function` makes of items, or the exceptions that it raises of each by itself."""
        try:
            return self.function(items)
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self.results([item])]


def make_app(explain, hosts=()):
    """The page at / and the translations at /translate, an `aiohttp.web.Application`.

    Args:
      explain: as `Explainer`.
      hosts: names that it may be asked by, any if there are none.
    """
    batcher = Batcher(lambda lines: [json.dumps(shown) for shown in explain(lines)])

    @web.middleware
    async def named(request, handler):
        app[ANSWERED].add(request.transport)
        # Another site's page may come by a name of its own that leads here.
        if hosts and host_of(request) not in hosts:
            return refused(403, f"ask for {' or '.join(hosts)}")
        return await handler(request)

    async def page(_):
        return web.Response(text=PAGE.read_text("utf-8"), content_type="text/html")

    async def translate(request):
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                line = sentence_of(await request.read())
        except TimeoutError:
            return refused(408, f"the request did not come within {REQUEST_SECONDS} seconds")
        except (web.RequestPayloadError, ValueError):
            line = None
        except web.HTTPRequestEntityTooLarge:
            line = " " * (LONGEST + 1)
        # A page of another site may not send this type unasked.
        if line is None or request.content_type != JSON:
            return refused(400, f'send {JSON}: {{"text": "a sentence"}}')
        if len(line) > LONGEST:
            return refused(413, f"a sentence has at most {LONGEST} characters")
        try:
            text = await batcher(" ".join(line.split("\n")))
            return web.Response(text=text, content_type=JSON)
        except asyncio.QueueFull:
            return refused(503, "too many sentences wait")

    async def working(_):
        task = asyncio.create_task(batcher.work())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    app = web.Application(client_max_size=16 * LONGEST, middlewares=[named])
    app[ANSWERED] = weakref.WeakSet()
    app.add_routes([web.get("/", page), web.post("/translate", translate)])
    app.cleanup_ctx.append(working)
    return app


def sentence_of(body):
    """The text in a request's body, bytes.

    Raises:
      ValueError: there is none, or it is no Unicode.
    """
    try:
        text = json.loads(body)["text"]
        text.encode()  # which halves of a surrogate pair are not for
        return text
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("no text") from None


def host_of(request):
    """The name of this machine that a request was sent to, or None."""
    try:
        return urlsplit(f"//{request.host}").hostname
    except ValueError:
        return None


def refused(status, reason):
    """An answer that tells the page why there is no translation."""
    return web.json_response(dict(error=reason), status=status)


def close_silent_connections(runner):
    """A factory of connections, which end where no request comes in time.

    aiohttp bounds the time between two requests of a connection, and not that of the first.
    """
    loop = asyncio.get_running_loop()

    def connection():
        protocol = runner.server()
        loop.call_later(REQUEST_SECONDS, close_if_silent, protocol)
        return protocol

    def close_if_silent(protocol):
        transport = protocol.transport
        if transport is not None and transport not in runner.app[ANSWERED]:
            transport.abort()

    return connection


def is_our_fault(record):
    """Whether a message of aiohttp's log is not just of a client's malformed request."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def listen(app, host, port):
    """Serve until the program is stopped; says where.

    Raises:
      InputError: it cannot listen there.
    """
    runner = web.AppRunner(app, handler_cancellation=True)  # when whoever asked is gone
    await runner.setup()
    logging.getLogger("aiohttp.server").addFilter(is_our_fault)
    server = None
    try:
        loop = asyncio.get_running_loop()
        connection = close_silent_connections(runner)
        server = await loop.create_server(connection, host, port, reuse_address=True)
        host, port, *_ = server.sockets[0].getsockname()
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{port} (Ctrl-C ends it)", flush=True)
        await asyncio.Event().wait()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{host}:{port}: {reason.lower()}: name another --port or --host"
        ) from None
    finally:
        if server:
            server.close()
        await runner.cleanup()


def main(flags):
    """Serve until the program is stopped; `flags` as `parse_flags` returns them.

    Raises:
      InputError: there is no model, or the address cannot be listened at.
    """
    task, flags = Task.taken_from(flags)
    _, hp, model, vocabs = load(flags)
    hp = dataclasses.replace(hp, beam=max(hp.beam, task.nbest))
    explain = Explainer(model, Translator(hp, model, vocabs, task.nbest))
    explain(["Hund"])  # the first one takes a second
    hosts = LOOPBACK if task.host in LOOPBACK else ()
    asyncio.run(listen(make_app(explain, hosts), task.host, task.port))


if __name__ == "__main__":
    run(main, flags)
