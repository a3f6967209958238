"""Accept connections until the program is stopped."""

import asyncio

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from runtime.errors import InputError
from runtime.signals import termination_signals
from server import app as application


def close_silent_connections(runner):
    """Return a factory of connections that are closed if no request arrives in time.

    aiohttp's `keepalive_timeout` limits the time between two requests of a connection, but not
    before the first.
    """
    loop = asyncio.get_running_loop()

    def make_connection():
        connection = runner.server()
        loop.call_later(application.REQUEST_SECONDS, close_if_silent, connection)
        return connection

    def close_if_silent(connection):
        transport = connection.transport
        if transport is not None and transport not in runner.app[application.ANSWERED]:
            transport.abort()

    return make_connection


def make_runner(app) -> web.AppRunner:
    """Return a runner of the application that closes the connections of slow clients."""
    app.on_response_prepare.append(limit_answer)
    # A handler is cancelled when its client closes the connection.
    return web.AppRunner(
        app, handler_cancellation=True, keepalive_timeout=application.REQUEST_SECONDS
    )


async def limit_answer(request, _):
    """Close the connection of a client that does not read its answer in time."""
    loop = asyncio.get_running_loop()
    loop.call_later(application.ANSWER_SECONDS, close_if_unread, request.transport)


def close_if_unread(transport):
    """Close a connection that holds bytes which its client has not read."""
    if transport is not None and transport.get_write_buffer_size():
        transport.abort()


def is_server_fault(record) -> bool:
    """Return False for the log records of aiohttp that only report a malformed request."""
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


async def listen(app, host, port):
    """Print the address and serve until SIGTERM or SIGHUP comes. Ctrl-C cancels the task.

    Raises:
      InputError: the address cannot be used.
    """
    runner = make_runner(app)
    await runner.setup()
    application.LOGGER.addFilter(is_server_fault)
    server, stopped = None, asyncio.Event()
    try:
        loop = asyncio.get_running_loop()
        # The handler of `run_script` would raise an exception in the middle of a request.
        for number in termination_signals():
            loop.add_signal_handler(number, stopped.set)
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
