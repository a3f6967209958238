"""Serve a web page that translates text and shows what each token attends to.

    python serve.py --logdir logdir
    python serve.py --logdir de-en --logdir en-de

Each --logdir is a model, which adds the directions that it translates. The page is at
http://127.0.0.1:8080. Other computers can open it only if --host allows it."""

import asyncio
import dataclasses
import logging
import os

from hparams import Hyperparams, parse_reader_flags
from support.errors import InputError
from support.flags import Flags, flag


@dataclasses.dataclass(frozen=True)
class ServeFlags(Flags):
    """The flags of this script."""

    host: str = flag("127.0.0.1", "address to listen on; 0.0.0.0: all addresses")
    port: int = flag(8080, "port to listen on; 0: any free port", 0, 2**16)
    split: bool = flag(True, "split a text as translate.py does; without it, at its lines only")
    protect: bool = flag(True, "keep URLs, placeholders, numbers and more, as translate.py does")
    nbest: int = flag(5, "translations per sentence; raises --beam if it is smaller", 1, 1001)


if __name__ == "__main__":  # before TensorFlow is loaded
    given = parse_reader_flags(__doc__, ServeFlags, repeated="logdir")

from aiohttp import web
from yarl import URL

from server.app import Interface
from server.inside import InsideView
from support.cli import SignalGuard, run_script
from translation.inference import load_model
from translation.paragraphs import Splitter, split_lines
from translation.translator import Translator

MAX_TOKENS = 200  # of a sentence, </S> included: an answer grows with their square


def main(given):
    """Load the models, and serve."""
    options = ServeFlags.of(given)
    folders = given.get("logdir", [Hyperparams.logdir])
    models = [load(given | dict(logdir=folder), options) for folder in folders]
    asyncio.run(listen(Interface(models, options.host), options.host, options.port))


def load(given, options):
    """Load a model: its `Translator` and its `InsideView`."""
    loaded = load_model(given)
    hp = loaded.hp
    nbest = 1 if hp.temperature else options.nbest  # a random translation is one
    loaded = loaded.with_hp(beam=max(hp.beam, nbest))
    max_tokens = min(MAX_TOKENS, hp.max_input_tokens)
    splitter = Splitter(hp.source_lang, loaded.vocabs[0], min(max_tokens, hp.maxlen))
    split = splitter if options.split else split_lines
    translator = Translator(loaded, nbest, split, options.protect, max_tokens)
    inside = InsideView(translator)
    inside.describe(translator(["Hund"])[0].sentences)  # the first call takes a second
    return translator, inside


async def listen(interface, host, port):
    """Serve until a signal comes. Requests that wait are then answered, for a minute at most."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("aiohttp.access").setLevel(logging.INFO)
    runner = web.AppRunner(interface.app())
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        reason = os.strerror(error.errno).lower()
        raise InputError(f"{host}:{port}: {reason}. Choose another --port or --host") from None
    (_, port, *_), *_ = runner.addresses
    print(f"{URL.build(scheme='http', host=host, port=port)} (Ctrl-C stops the server)", flush=True)
    with SignalGuard() as guard:
        while not guard.signal:
            await asyncio.sleep(0.1)
        await runner.cleanup()
    raise KeyboardInterrupt(guard.signal, "stopped")


if __name__ == "__main__":
    run_script(main, given)
