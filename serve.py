"""A page on which one types a sentence and sees its translations, and what each word attends to.

    python serve.py --logdir logdir

It is at http://127.0.0.1:8080, for this machine alone unless --host says otherwise."""

import asyncio
import contextlib
import dataclasses
import json
from pathlib import Path

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

from attention import alignments, ended
from data_load import Ragged, encode_lines
from decoding import Translator, load
from text import before_end

PAGE = Path(__file__).resolve().with_name("serve.html")
LONGEST = 1000  # characters of a sentence
AT_ONCE = 32  # sentences in a batch
MOMENT = 0.01  # seconds that the first of them waits for others
JSON = "application/json"
WAITING = 256  # sentences that wait for a batch, at most


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
        X, rows, cut = encode_lines(lines, vocabs[0], hp, self.translator.longest)
        found = [[pair for pair in best if pair[1] > -float("inf")] for best in self.found(X)]
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

    def found(self, X):
        """As `decoding.translate`, of no sentences too."""
        return self.translator.search(X) if len(X) else []


def readable(token, hp):
    """A word or a piece as it stands in a line, where a blank goes before it."""
    return f" {token}" if hp.tokens == "words" else token.replace("▁", " ")


class Batcher:
    """Calls a function once for all that come while it is busy, or at the same moment.

    Args:
      function: of a list, to a list as long.
    """

    def __init__(self, function):
        self.function = function
        self.waiting = asyncio.Queue(WAITING)

    async def __call__(self, item):
        """What `function` makes of an item.

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
            try:
                results = await asyncio.to_thread(self.function, [item for item, _ in part])
            except Exception as error:
                results = [error] * len(part)
            for (_, future), result in zip(part, results, strict=True):
                if future.done():  # whoever asked is gone
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)


def make_app(explain):
    """The page at / and the translations at /translate, an `aiohttp.web.Application`.

    Args:
      explain: as `Explainer`.
    """
    batcher = Batcher(explain)

    async def page(_):
        return web.Response(text=PAGE.read_text("utf-8"), content_type="text/html")

    async def translate(request):
        try:
            # A page of another site may not send this type unasked.
            line = (await request.json())["text"] if request.content_type == JSON else None
        except (ValueError, KeyError, TypeError):
            line = None
        if not isinstance(line, str):
            raise refusal(web.HTTPBadRequest, f'send {JSON}: {{"text": "a sentence"}}')
        if len(line) > LONGEST:
            raise refusal(web.HTTPBadRequest, f"a sentence has at most {LONGEST} characters")
        try:
            return web.json_response(await batcher(" ".join(line.split("\n"))))
        except asyncio.QueueFull:
            raise refusal(web.HTTPServiceUnavailable, "too many sentences wait") from None

    async def working(_):
        task = asyncio.create_task(batcher.work())
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    app = web.Application(client_max_size=16 * LONGEST)
    app.add_routes([web.get("/", page), web.post("/translate", translate)])
    app.cleanup_ctx.append(working)
    return app


def refusal(kind, reason):
    """An answer that tells the page why there is no translation."""
    return kind(text=json.dumps(dict(error=reason)), content_type=JSON)


async def listen(app, host, port):
    """Serve until the program is stopped; says where.

    Raises:
      InputError: it cannot listen there.
    """
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
        host, port, *_ = runner.addresses[0]
        print(f"http://{host}:{port} (Ctrl-C ends it)", flush=True)
        await asyncio.Event().wait()
    except OSError as error:
        raise InputError(
            f"{host}:{port}: {error.strerror.lower()}: name another --port or --host"
        ) from None
    finally:
        await runner.cleanup()


def main(flags):
    task, flags = Task.taken_from(flags)
    _, hp, model, vocabs = load(flags)
    hp = dataclasses.replace(hp, beam=max(hp.beam, task.nbest))
    explain = Explainer(model, Translator(hp, model, vocabs, task.nbest))
    explain(["Hund"])  # the first one takes a second
    asyncio.run(listen(make_app(explain), task.host, task.port))


if __name__ == "__main__":
    run(main, flags)
