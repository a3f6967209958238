"""The address that the server listens on, and the names that clients may give it."""

import errno
import ipaddress
import re
import socket
from urllib.parse import urlsplit

from runtime.errors import InputError
from runtime.flags import NONE

# Errors of an address that this computer does not have.
NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host) -> bool:
    """Whether only this computer can connect to a host, an address or a name."""
    try:
        results = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False  # `check_address` reports it
    addresses = [ipaddress.ip_address(address) for *_, (address, *_) in results]
    # Python 3.13 does this itself for IPv4 within IPv6, ::ffff:127.0.0.1.
    return all((getattr(a, "ipv4_mapped", None) or a).is_loopback for a in addresses)


def accepted_hosts(options) -> tuple[str, ...]:
    """List the host names under which clients may address the server; none if any name will do.

    Args:
      options: ServeFlags.
    """
    names = [] if options.allowed_hosts == NONE else options.allowed_hosts.split(",")
    if not names and not is_loopback(options.host):
        return ()
    hosts = [*LOOPBACK, options.host.lower()]
    for name in names:
        hosts.append(host_name(name.strip()))
        if not re.fullmatch("[a-z0-9.:_-]+", hosts[-1] or ""):
            raise InputError(
                f"allowed_hosts: {name!r} is not a host name. Give names such as"
                " translate.example.org, with commas between them"
            )
    return tuple(dict.fromkeys(hosts))


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


def check_address(host, port):
    """Raise InputError if the server could not listen on an address.

    A name may stand for several addresses. Those that this computer does not have do no harm if
    there is another one.
    """
    try:
        results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        errors = [absence_error(family, address) for family, *_, address in results]
        if all(errors):
            raise errors[-1]
    except (OSError, UnicodeError) as error:
        raise address_error(host, port, error) from None


def absence_error(family, address) -> OSError | None:
    """Bind a socket as asyncio does, and close it; returns an error if the address is not here.

    Raises:
      OSError: another error, for example that the port is taken.
    """
    try:
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, True)
            sock.bind(address)
    except OSError as error:
        if error.errno not in NOT_HERE:
            raise
        return error
    return None


def address_error(host, port, error) -> InputError:
    """Return the error for an address on which the server cannot listen."""
    reason = getattr(error, "strerror", None) or str(error)
    return InputError(f"{host}:{port}: {reason.lower()}. Choose another --port or --host")
