"""Count which parts of sentences survive a translation: addresses, code, tags, numbers.

    python benchmarks/kept_parts.py test.de test.en --logdir LOGDIR --count 1000

Each sentence gets one part at a random place between two words. The table shows for each kind of
part in how many translations it is exactly once: by the model alone (`--no-protect`), with
`--protect`, and as HTML with the part in `<b>`; and in how many of these `<b>` encloses exactly it.
sacreBLEU, lower-cased, is that of the translation without the part. The last two lines compare the
test set as it is, and its lines with digits, without and with `--protect`.
"""

import argparse
import html
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import sacrebleu

from server.html_text import HtmlText
from text.lines import read_lines
from translation.inference import load_model
from translation.translator import Translator

KINDS = {
    "address": "https://www.example.org/path/{}?q=(x) www.example.de/{} info-{}@a.example.uk",
    "path, name": "/usr/lib/x{} C:\\x{} file_{} a=b{}",
    "placeholder": "{{name{}}} {{{{user.name{}}}}} %{{count{}}} ${{item{}}} $t(a{})",
    "directive": "%{}$s %(value{})s %{}.2f %ld %.*s %s%s %dx%d",
    "code": "MP{} AB{} CO2 x86_{}",
    "tag": '<br/> <img~src="{}.png"> <%=~name{}~%>',  # ~: a space
    "emoji": "😀 👍🏽 🇩🇪 ❤️ 👩‍👩‍👧",
    "number": "{} {}.5 {}:30 {},000",
    "unknown word": "Łódź{} Ελλάδα 東京 Київ",
}


def insert(sentence, part, rng) -> str:
    """Insert a part between two words of a sentence."""
    words = sentence.split(" ")
    place = rng.randrange(len(words))
    return " ".join([*words[:place], part, *words[place:]])


def lowered_bleu(translations, references) -> float:
    """Return sacreBLEU without case."""
    return sacrebleu.corpus_bleu(translations, [references], lowercase=True).score


def main():
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs=2, help="source and target of a test set")
    parser.add_argument("--logdir", required=True, help="a model with subwords")
    parser.add_argument("--count", type=int, default=1000, help="sentences; default: %(default)s")
    args = parser.parse_args()
    sources, references = (list(read_lines(path))[: args.count] for path in args.text)
    loaded = load_model(dict(logdir=args.logdir))
    alone, protected = Translator(loaded), Translator(loaded, protect=True)
    print("| part | model alone | sacreBLEU | protected | sacreBLEU | in `<b>` | exactly |")
    print("|---|---|---|---|---|---|---|")
    for kind, forms in KINDS.items():
        rng = random.Random(kind)
        chosen = [rng.choice(forms.split()) for _ in sources]
        parts = [own.format(rng.randint(10, 9999)).replace("~", " ") for own in chosen]
        lines = [insert(*pair, rng) for pair in zip(sources, parts, strict=True)]
        row = kind
        for translate in (alone, protected):
            texts = [own.text for own in translate(lines)]
            pairs = [*zip(texts, parts, strict=True)]
            share = sum(text.count(part) == 1 for text, part in pairs) / len(pairs)
            rest = [" ".join(text.replace(part, " ", 1).split()) for text, part in pairs]
            row += f" | {share:.1%} | {lowered_bleu(rest, references):.2f}"
        pages = [
            HtmlText(html.escape(line).replace(part, f"<b>{part}</b>"))
            for line, part in zip(lines, map(html.escape, parts), strict=True)
        ]
        texts = [page.join([own.text for own in protected(page.texts)]) for page in pages]
        counts = [
            [text.count(own) == 1 for own in (part, f"<b>{part}</b>")]
            for text, part in zip(texts, [html.escape(p, quote=False) for p in parts], strict=True)
        ]
        whole, exact = (sum(column) / len(counts) for column in zip(*counts, strict=True))
        print(f"| {row} | {whole:.1%} | {exact:.1%} |", flush=True)
    translations = [[own.text for own in translate(sources)] for translate in (alone, protected)]
    with_digits = [row for row, line in enumerate(sources) if any(map(str.isdigit, line))]
    for name, rows in (("all lines", range(len(sources))), ("lines with digits", with_digits)):
        chosen = [[texts[row] for row in rows] for texts in (*translations, references)]
        bleus = " and ".join(f"{lowered_bleu(own, chosen[-1]):.2f}" for own in chosen[:-1])
        print(f"{name} ({len(rows)}), model alone and protected: {bleus}")


if __name__ == "__main__":
    main()
