"""Serve a web page that translates text and shows what each token attends to.

    python serve.py --logdir logdir

The page is at http://127.0.0.1:8080. Other computers can open it only if --host allows it."""

import asyncio
import dataclasses
import signal

from hparams import Hyperparams
from runtime.cli import parse_flags, run_script
from runtime.flags import NONE, Flags, flag
from server.hosts import accepted_hosts, check_address
from trained_models import find_trained


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
    """Find the model, and check the address, before TensorFlow is loaded; see `main`."""
    options, flags = ServeFlags.separate(flags)
    models, hosts = find_trained(flags), accepted_hosts(options)
    check_address(options.host, options.port)
    return options, models, hosts


if __name__ == "__main__":  # before the slow imports, see runtime/cli.py
    settled = parse_flags(__doc__, settle, Hyperparams, ServeFlags, reads_model=True)

from inference import Translator, load_model
from paragraphs import Splitter
from server.app import make_app
from server.inside import InsideView
from server.listening import listen
from server.translating import InspectedTranslator, Sentence


def main(options, models, hosts):
    """Serve until the program is stopped.

    Args:
      options: ServeFlags.
      models: list of `Trained`.
      hosts: what `accepted_hosts` returned.

    Raises:
      KeyboardInterrupt: a signal came.
    """
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
