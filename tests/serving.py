"""serve.py with the sample model, for several tests."""

import contextlib
import json
import urllib.request

from processes import ROOT, Forked, command_line

SAMPLE = str(ROOT / "docs" / "sample_model")
SOURCES = ["Die Frau hat den Brief nicht gelesen.", "Der Hund schläft.", "Der Mann liest ein Buch."]
TARGETS = ["The woman did not read the letter.", "The dog sleeps.", "The man reads a book."]


@contextlib.contextmanager
def started(*others, **more):
    """Start serve.py with the sample model and others: the process, and its address."""
    words = [word for folder in others for word in ("--logdir", str(folder))]
    options = dict(logdir=SAMPLE, port=0, nbest=3, beam=1) | more
    with Forked(["serve.py", *command_line(options), *words]) as process:
        line = next((line for line in process.stdout if "http" in line), "")
        assert line.startswith(f"http://{options.get('host', '127.0.0.1')}:"), process.stderr.read()
        try:
            yield process, f"http://127.0.0.1:{line.split()[0].rpartition(':')[2]}"
        finally:
            process.terminate()


def ask(address, **fields):
    """Send fields as JSON to a running server: the answer."""
    body, head = json.dumps(fields).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(f"{address}/translate", body, head)) as got:
        return json.load(got)
