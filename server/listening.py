"""Accept connections until the program is stopped, and close those of slow clients."""

import asyncio
import errno
import functools
import gc
import math
import sys

from aiohttp import web
from aiohttp.http_exceptions import ContentEncodingError, HttpProcessingError, LineTooLong

from runtime.signals import termination_signals
from server import app as application
from server.hosts import address_error

# A query string may have a text and other fields.
MAX_URL_BYTES = application.MAX_CHARACTER_BYTES * application.MAX_URL_CHARACTERS + 1000
REPORT_SECONDS = 60  # between two reports of one problem
NO_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Connection(web.RequestHandler):
    """A connection. It is closed if the client is slow to send a request or to read an answer.

    aiohttp closes it if no request arrives in `keepalive_timeout`.
    """

    def connection_made(self, transport):
        """Accept a connection."""
        super().connection_made(transport)
        transport.set_write_buffer_limits(0)  # an answer is sent when nothing of it is left here

    async def finish_response(self, request, resp, start_time):
        """Send an answer, but close the connection if the client does not read it in time.

        Returns:
          (web.StreamResponse, bool): the answer, and whether the connection is closed.
        """
        transport = self.transport
        try:
            async with asyncio.timeout(application.ANSWER_SECONDS):
                return await super().finish_response(request, resp, start_time)
        except TimeoutError:
            transport.abort()
            return resp, True

    def handle_error(self, request, status=500, exc=None, message=None):
        """Answer in JSON what is not HTTP, or a failure outside of the application."""
        super().handle_error(request, status, exc, message)  # logs it
        reason = application.SERVER_FAILED
        if isinstance(exc, LineTooLong):
            reason = "The address or a header is too long. Send a long text in the body."
        elif isinstance(exc, ContentEncodingError):
            reason = "This Content-Encoding is not supported. Use gzip, or send the text as it is."
        elif isinstance(exc, HttpProcessingError):
            reason = "This is not valid HTTP. An address has ASCII only: write others as %C3%A4."
        response = application.error_response(status, reason)
        response.force_close()
        return response

    def log_exception(self, *args, exc_info=None, **kwargs):
        """Log an exception, but not one that a malformed request caused."""
        if not isinstance(exc_info, (HttpProcessingError, web.RequestPayloadError)):
            super().log_exception(*args, exc_info=exc_info, **kwargs)


def make_runner(app) -> web.AppRunner:
    """Return a runner of the application."""
    # A handler is cancelled when its client closes the connection.
    return web.AppRunner(app, handler_cancellation=True)


def connection_factory(runner):
    """Return a function that makes the connections of a runner."""
    return functools.partial(
        Connection,
        runner.server,
        loop=asyncio.get_running_loop(),
        keepalive_timeout=application.REQUEST_SECONDS,
        max_line_size=MAX_URL_BYTES,
    )


def make_exception_handler():
    """Return an exception handler for an event loop: it reports a lack of descriptors in a line.

    asyncio would print many tracebacks per second, since each connection that cannot be accepted
    is an error.
    """
    reported = -math.inf  # the time of the last report, in seconds

    def handle_exception(loop, context):
        nonlocal reported
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in NO_RESOURCES):
            loop.default_exception_handler(context)
        elif loop.time() - reported > REPORT_SECONDS:
            reported = loop.time()
            print(
                f"serve.py: cannot accept a connection: {error.strerror.lower()}. Connections wait."
                " If this is frequent, raise the limit, for example with `ulimit -n 4096`",
                file=sys.stderr,
            )

    return handle_exception


async def listen(app, host, port):
    """Print the address and serve until SIGTERM or SIGHUP comes. Ctrl-C cancels the task."""
    runner = make_runner(app)
    await runner.setup()
    server, stopped = None, asyncio.Event()
    try:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(make_exception_handler())
        # The garbage collector leaves out the objects that exist now. It would take most of the
        # time of reading a large request.
        gc.freeze()
        # The handler of `run_script` would raise an exception in the middle of a request.
        for number in termination_signals():
            loop.add_signal_handler(number, stopped.set)
        make_connection = connection_factory(runner)
        server = await loop.create_server(make_connection, host, port, reuse_address=True)
        host, port, *_ = server.sockets[0].getsockname()
        name = f"[{host}]" if ":" in host else host
        print(f"http://{name}:{port} (Ctrl-C stops the server)", flush=True)
        await stopped.wait()
    except (OSError, UnicodeError) as error:
        raise address_error(host, port, error) from None
    finally:
        if server:
            server.close()
        await runner.cleanup()
