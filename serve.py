"""Serve a web page that translates sentences and shows what each token attends to.

    python serve.py --logdir logdir

The page is at http://127.0.0.1:8080. Other computers can open it only if --host allows it."""

import asyncio
import dataclasses
import signal

from hparams import Hyperparams, read_trained
from runtime.cli import parse_flags, run_script
from runtime.flags import Flags, flag


@dataclasses.dataclass(frozen=True)
class ServeFlags(Flags):
    """The flags of this script."""

    host: str = flag("127.0.0.1", "address to listen on; 0.0.0.0: all addresses of this computer")
    port: int = flag(8080, "port to listen on; 0: any free port", 0, 2**16)
    nbest: int = flag(5, "translations per sentence; raises --beam if it is smaller", 1, 1001)


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    flags = parse_flags(__doc__, Hyperparams, ServeFlags, reads_model=True, check=read_trained)

from inference import Translator, load_model
from server.app import make_app
from server.listening import listen
from server.translating import InspectedTranslator, Sentence

LOOPBACK = ("127.0.0.1", "localhost", "::1")


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
    nbest = 1 if hp.temperature else options.nbest  # a random translation is one
    hp = dataclasses.replace(hp, beam=max(hp.beam, nbest))
    translate = InspectedTranslator(model, Translator(hp, model, vocabs, nbest))
    translate([Sentence("Hund")])  # the first call takes a second
    hosts = LOOPBACK if options.host in LOOPBACK else ()
    app = make_app(translate, (hp.source_lang, hp.target_lang), hosts)
    asyncio.run(listen(app, options.host, options.port))
    raise KeyboardInterrupt(signal.SIGTERM)


if __name__ == "__main__":
    run_script(main, flags)
