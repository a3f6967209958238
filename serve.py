"""Serve a web page that translates sentences and shows what each token attends to.

    python serve.py --logdir logdir

The page is at http://127.0.0.1:8080. Other computers can open it only if --host allows it."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import signal
import weakref
from pathlib import Path
from urllib.parse import urlsplit

from hparams import Hyperparams
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError
from runtime.flags import Flags, flag


@dataclasses.dataclass(frozen=True)
class ServeFlags(Flags):
    """The flags of this script."""

    host: str = flag("127.0.0.1", "address to listen on; 0.0.0.0: all addresses of this computer")
    port: int = flag(8080, "port to listen on; 0: any free port", 0, 2**16)
    nbest: int = flag(5, "translations per sentence; raises --beam if it is smaller", 1, 1001)


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    flags = parse_flags(__doc__, Hyperparams, ServeFlags, reads_model=True)

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from data_load import RaggedIds, encode_lines
from inference import Translator, load_model
from monitor.attention_maps import alignments, append_eos
from vocab import truncate_at_eos

PAGE = Path(__file__).resolve().with_name("serve.html")
MAX_CHARACTERS = 1000  # of a sentence
MAX_TOKENS = 200  # of a sentence, </S> included: an answer grows with their square
MAX_BATCH_SENTENCES = 32
BATCH_WAIT_SECONDS = 0.01  # for which the first sentence of a batch waits for others
MAX_QUEUED_SENTENCES = 256
REQUEST_SECONDS = 20  # within which a client must have sent its request
JSON = "application/json"
LOOPBACK = ("127.0.0.1", "localhost", "::1")

# Translating -------------------------------------------------------------------


class AttentionTranslator:
    """Translate sentences, and compute what each token of a translation attends to.

    Args:
      model: a `Transformer`.
      translator: a `Translator` with this model.
    """

    def __init__(self, model, translator):
        self.model, self.translator = model, translator

    def __call__(self, lines):
        """Translate lines, a list of str.

        Returns:
          list of dict: the answer of the server to each line, in types that JSON has.
        """
        hp, vocabs = self.translator.hp, self.translator.vocabs
        max_tokens = min(MAX_TOKENS, hp.max_input_tokens)
        X, rows, truncated = encode_lines(lines, vocabs[0], hp, max_tokens)
        translations = self.translator.decode_ids(X)
        weights = iter(self.attention(X, translations))
        answers = [
            dict(source=[], translations=[], truncated=row in truncated)
            for row in range(len(lines))
        ]
        for row, x, hypotheses in zip(rows, X, translations, strict=True):
            answers[row]["source"] = display_tokens(x[:-1], vocabs[0], hp)
            answers[row]["translations"] = [
                self.describe_hypothesis(ids, score, next(weights)) for ids, score in hypotheses
            ]
        return answers

    def attention(self, X, translations):
        """Return the attention of all translations of X, a list of (T_y, T_x) arrays."""
        hp = self.translator.hp
        pairs = [(x, ids) for x, best in zip(X, translations, strict=True) for ids, _ in best]
        sources = RaggedIds.from_lists([x for x, _ in pairs])
        targets = RaggedIds.from_lists([append_eos(ids, hp) for _, ids in pairs])
        return alignments(self.model, hp, sources, targets)

    def describe_hypothesis(self, ids, score, weights):
        """Describe a translation by a dict: its text, score, tokens and attention.

        Args:
          weights: (T_y, T_x), with rows and columns of `</S>`, which the dict is without.
        """
        vocab = self.translator.vocabs[1]
        tokens = display_tokens(truncate_at_eos(ids), vocab, self.translator.hp)
        weights = weights[: len(tokens), :-1].astype(float)
        return dict(
            text=vocab.decode(ids),
            score=round(float(score), 4),
            tokens=tokens,
            attention=weights.round(3).tolist(),
        )


def display_tokens(ids, vocab, hp):
    """Convert ids to tokens as they look in a sentence, with a space before each new word."""
    tokens = map(vocab.id_to_token, ids)
    if hp.tokenizer == "words":
        return [f" {token}" for token in tokens]
    return [token.replace("▁", " ") for token in tokens]


class Batcher:
    """Collect items of concurrent tasks, and call a function on batches of them.

    Args:
      function: from a list to a list of the same length. It is called in another thread.
    """

    def __init__(self, function):
        self.function = function
        self.queue = asyncio.Queue(MAX_QUEUED_SENTENCES)

    async def __call__(self, item):
        """Return the result of `function` for an item, or raise its exception.

        Raises:
          asyncio.QueueFull: too many items wait already.
        """
        future = asyncio.get_running_loop().create_future()
        self.queue.put_nowait((item, future))
        return await future

    async def run(self):
        """Process batches until this task is cancelled."""
        while True:
            batch = [await self.queue.get()]
            await asyncio.sleep(BATCH_WAIT_SECONDS)
            while len(batch) < MAX_BATCH_SENTENCES and not self.queue.empty():
                batch.append(self.queue.get_nowait())
            batch = [(item, future) for item, future in batch if not future.done()]
            results = await asyncio.to_thread(self.results, [item for item, _ in batch])
            for (_, future), result in zip(batch, results, strict=True):
                if future.done():  # the client has closed its connection
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

    def results(self, items):
        """Call `function`: a list of results, or of the exceptions that single items raise."""
        try:
            return self.function(items)
        except Exception as error:
            if len(items) == 1:
                return [error]
            return [result for item in items for result in self.results([item])]


# The application ---------------------------------------------------------------

BATCHER = web.AppKey("batcher", Batcher)
HOSTS = web.AppKey("hosts", tuple)  # names under which clients may address the server
ANSWERED = web.AppKey("answered", weakref.WeakSet)  # connections that have sent a request


def make_app(translate, hosts=()) -> web.Application:
    """Make the application: the page at /, and translations at /translate.

    Args:
      translate: function from a list of str to a list of answers, as `AttentionTranslator`.
      hosts: names under which clients may address the server; empty for any name.
    """
    app = web.Application(client_max_size=16 * MAX_CHARACTERS, middlewares=[check_host])
    app[BATCHER] = Batcher(lambda lines: [json.dumps(answer) for answer in translate(lines)])
    app[HOSTS] = tuple(hosts)
    app[ANSWERED] = weakref.WeakSet()
    app.add_routes([web.get("/", handle_page), web.post("/translate", handle_translate)])
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
async def check_host(request, handler):
    """Refuse requests that address the server by another name.

    A page of another site may have a name that resolves to this server (DNS rebinding).
    """
    hosts = request.app[HOSTS]
    request.app[ANSWERED].add(request.transport)
    if hosts and host_name(request.host) not in hosts:
        return error_response(403, f"Use one of these host names: {', '.join(hosts)}.")
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


async def handle_translate(request):
    """Answer POST /translate, whose body is `{"text": "a sentence"}`."""
    usage = f'Send {JSON}: {{"text": "a sentence"}}.'
    too_long = f"A sentence has at most {MAX_CHARACTERS} characters."
    # The page of another site cannot send this type without permission.
    if request.content_type != JSON:
        return error_response(400, usage)
    try:
        async with asyncio.timeout(REQUEST_SECONDS):
            line = parse_request(await request.read())
    except TimeoutError:
        return error_response(408, f"The request did not arrive within {REQUEST_SECONDS} seconds.")
    except (web.RequestPayloadError, ValueError):
        return error_response(400, usage)
    except web.HTTPRequestEntityTooLarge:
        return error_response(413, too_long)
    if len(line) > MAX_CHARACTERS:
        return error_response(413, too_long)
    try:
        answer = await request.app[BATCHER](line.replace("\n", " "))
    except asyncio.QueueFull:
        return error_response(503, "Too many sentences are waiting. Try again later.")
    return web.Response(text=answer, content_type=JSON)


def parse_request(body) -> str:
    """Return the sentence in the body of a request, bytes.

    Raises:
      ValueError: there is none, or it is not valid Unicode.
    """
    try:
        text = json.loads(body)["text"]
        text.encode()  # fails for half of a surrogate pair
        return text
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError("no text") from None


def error_response(status, reason) -> web.Response:
    """Answer with an error that the page shows."""
    return web.json_response(dict(error=reason), status=status)


# Listening ---------------------------------------------------------------------


def close_silent_connections(runner):
    """Return a factory of connections that are closed if no request arrives in time.

    aiohttp limits the time between two requests of a connection, but not before the first.
    """
    loop = asyncio.get_running_loop()

    def make_connection():
        connection = runner.server()
        loop.call_later(REQUEST_SECONDS, close_if_silent, connection)
        return connection

    def close_if_silent(connection):
        transport = connection.transport
        if transport is not None and transport not in runner.app[ANSWERED]:
            transport.abort()

    return make_connection


def is_server_fault(record) -> bool:
    """Return False for the log records of aiohttp that only report a malformed request."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def listen(app, host, port):
    """Print the address and serve until SIGTERM comes. Ctrl-C cancels the task.

    Raises:
      InputError: the address cannot be used.
    """
    # A handler is cancelled when its client closes the connection.
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    logging.getLogger("aiohttp.server").addFilter(is_server_fault)
    server, stopped = None, asyncio.Event()
    try:
        loop = asyncio.get_running_loop()
        # The handler of `run_script` would raise an exception in the middle of a request.
        loop.add_signal_handler(signal.SIGTERM, stopped.set)
        make_connection = close_silent_connections(runner)
        server = await loop.create_server(make_connection, host, port, reuse_address=True)
        host, port, *_ = server.sockets[0].getsockname()
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{port} (Ctrl-C stops the server)", flush=True)
        await stopped.wait()
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"{host}:{port}: {reason.lower()}. Choose another --port or --host"
        ) from None
    finally:
        if server:
            server.close()
        await runner.cleanup()


def main(flags):
    """Serve until the program is stopped.

    Args:
      flags: dict that `parse_flags` returned.

    Raises:
      InputError: there is no model, or the address cannot be used.
      KeyboardInterrupt: a signal came.
    """
    options, flags = ServeFlags.split(flags)
    _, hp, model, vocabs = load_model(flags)
    hp = dataclasses.replace(hp, beam=max(hp.beam, options.nbest))
    translate = AttentionTranslator(model, Translator(hp, model, vocabs, options.nbest))
    translate(["Hund"])  # the first call takes a second
    hosts = LOOPBACK if options.host in LOOPBACK else ()
    asyncio.run(listen(make_app(translate, hosts), options.host, options.port))
    raise KeyboardInterrupt(signal.SIGTERM)


if __name__ == "__main__":
    run_script(main, flags)
