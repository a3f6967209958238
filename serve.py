"""Serve a web page that translates text and shows what each token attends to.

    python serve.py --logdir logdir

The page is at http://127.0.0.1:8080. Other computers can open it only if --host allows it."""

import asyncio
import dataclasses
import ipaddress
import re
import signal
import socket

from hparams import Hyperparams, find_trained
from runtime.cli import parse_flags, run_script
from runtime.errors import InputError
from runtime.flags import NONE, Flags, flag


@dataclasses.dataclass(frozen=True)
class ServeFlags(Flags):
    """The flags of this script."""

    host: str = flag("127.0.0.1", "address to listen on; 0.0.0.0: all addresses of this computer")
    port: int = flag(8080, "port to listen on; 0: any free port", 0, 2**16)
    allowed_hosts: str = flag(
        NONE,
        "host names that a proxy passes on, with commas between them, as translate.example.org",
    )
    split: bool = flag(
        True,
        "split a text into sentences, and sentences of more than maxlen tokens into parts; without"
        " it, a line is one sentence",
    )
    protect: bool = flag(
        True,
        "keep URLs, e-mail addresses, placeholders such as {name} and %s, tags, emoji, numbers, and"
        " characters that the vocabulary lacks; with subwords",
    )
    nbest: int = flag(5, "translations per sentence; raises --beam if it is smaller", 1, 1001)


def settle(flags):
    """Find the model, before TensorFlow is loaded; see `main`."""
    options, flags = ServeFlags.separate(flags)
    return options, find_trained(flags)


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    settled = parse_flags(__doc__, settle, Hyperparams, ServeFlags, reads_model=True)

from inference import Translator, load_model
from paragraphs import Splitter
from server.app import host_name, make_app
from server.inside import InsideView
from server.listening import listen
from server.translating import InspectedTranslator, Sentence

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(host) -> bool:
    """Whether only this computer can connect to a host, an address or a name."""
    try:
        results = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False  # `listen` reports it
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


def main(options, models):
    """Serve until the program is stopped.

    Args:
      options: ServeFlags.
      models: list of `Trained`.

    Raises:
      KeyboardInterrupt: a signal came.
    """
    hosts = accepted_hosts(options)
    loaded = load_model(models)
    hp = loaded.hp
    nbest = 1 if hp.temperature else options.nbest  # a random translation is one
    loaded = loaded.with_hp(beam=max(hp.beam, nbest))
    translate = InspectedTranslator(loaded, nbest, options.protect)
    translate([Sentence("Hund")])  # the first call takes a second
    translator = translate.translator
    plain = Translator(loaded, translator.decode, translator.max_tokens)
    look_inside = InsideView(loaded, plain, nbest)
    split = None
    if options.split:
        split = Splitter(hp.source_lang, loaded.vocabs[0], hp.maxlen)
    app = make_app(translate, (hp.source_lang, hp.target_lang), hosts, look_inside, split)
    asyncio.run(listen(app, options.host, options.port))
    raise KeyboardInterrupt(signal.SIGTERM)


if __name__ == "__main__":
    run_script(main, *settled)
