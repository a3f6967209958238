"""Count which parts of sentences survive a translation: addresses, placeholders, tags, emoji.

    python benchmarks/kept_parts.py test.de test.en --logdir LOGDIR --count 1000

Each sentence gets one part at a random place between two words. The table shows for each kind of
part in how many translations it is exactly once, with the model alone (`--no-protect`) and with
`--protect`. sacreBLEU, lower-cased, is that of the translation without the part. It is compared
with that of the same sentences before they had a part.
"""

import argparse
import os
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import sacrebleu

from text.lines import read_lines
from translation.inference import load_model
from translation.translator import Translator

KINDS = {
    "URL": ["https://www.example.org/path/{}?q=x", "http://example.com/{}", "www.example.de/{}"],
    "e-mail address": ["jane.doe{}@example.org", "info-{}@mail.example.co.uk"],
    "placeholder": ["{{name{}}}", "%{}$s", "%(value{})s", "${{item{}}}"],
    "tag": ["<br id={}/>", '<img src="{}.png">'],
    "emoji": ["😀", "👍🏽", "🇩🇪", "❤️", "👩‍👩‍👧"],
    "number": ["{}", "{}.5", "{}:30", "{},000"],
    "unknown word": ["Łódź{}", "Ελλάδα", "東京", "Київ"],
}


def insert(sentence, part, rng) -> str:
    """Insert a part between two words of a sentence."""
    words = sentence.split(" ")
    place = rng.randrange(len(words))
    return " ".join([*words[:place], part, *words[place:]])


def lowered_bleu(translations, references) -> float:
    """Return sacreBLEU without case."""
    return sacrebleu.corpus_bleu(translations, [references], lowercase=True).score


def main(args):
    """Print the table."""
    sources, references = (list(read_lines(path))[: args.count] for path in args.text)
    loaded = load_model(dict(logdir=args.logdir))
    alone = Translator(loaded)
    plain = lowered_bleu([own.text for own in alone(sources)], references)
    print(f"{len(sources)} sentences, sacreBLEU, lower-cased, without parts: {plain:.2f}\n")
    print("| part | survives: model alone | sacreBLEU | survives: protected | sacreBLEU |")
    print("|---|---|---|---|---|")
    for kind, forms in KINDS.items():
        rng = random.Random(kind)
        parts = [rng.choice(forms).format(rng.randint(2, 9999)) for _ in sources]
        lines = [insert(*pair, rng) for pair in zip(sources, parts, strict=True)]
        row = kind
        for translate in (alone, Translator(loaded, protect=True)):
            texts = [own.text for own in translate(lines)]
            pairs = [*zip(texts, parts, strict=True)]
            share = sum(text.count(part) == 1 for text, part in pairs) / len(pairs)
            rest = [" ".join(text.replace(part, " ", 1).split()) for text, part in pairs]
            row += f" | {share:.1%} | {lowered_bleu(rest, references):.2f}"
        print(f"| {row} |", flush=True)


def parse_args():
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("text", nargs=2, help="source and target of a test set")
    parser.add_argument("--logdir", required=True, help="a model with subwords")
    parser.add_argument("--count", type=int, default=1000, help="sentences; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main(parse_args())
