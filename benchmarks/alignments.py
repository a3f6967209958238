"""Compare the word alignments of models with links that are known, on the built-in corpus.

    python benchmarks/alignments.py docs/sample_model logdir/demo

The sentences are drawn with another seed than the training text. Their links follow from the words
in corpora/sample.tsv. The script prints alignment error rates: for the cross-attention of the step
that outputs a token or of the next one, which reads it; for each decoder block, and for their mean;
for the translations of the corpus (`given`), and for those of the model (`own`).
"""

import argparse
import itertools
import sys
from collections import Counter, defaultdict

import numpy as np
from harness import ROOT

sys.path.insert(0, str(ROOT / "corpora"))
sys.path.insert(0, str(ROOT))

import sample

from ids import RaggedIds
from inference import Translator, load_model
from monitor.attention_maps import aligned_words, append_eos, attention_maps
from score import Scorer
from trained_models import find_trained

ROWS = ("output", "input")
BATCH = 50  # sentences

# Known links --------------------------------------------------------------------

# Words that corpora/sample.tsv does not have, as German English.
OTHER_WORDS = """weil because, obwohl although, wenn when, wann when, aber but, ob whether,
    dass that, und and, als than, nicht not, warum why, wo where, wer who, was what"""


def inflected(stem, *tables) -> list[str]:
    """A stem with all endings of some tables."""
    endings = " ".join(ending for table in tables for ending in table.values()).split()
    return [stem + ending.replace("-", "") for ending in endings]


def nouns_and_adjectives():
    """Yield pairs: German forms and English forms, lists of str."""
    for noun in itertools.chain(*sample.NOUNS_BY_KIND.values()):
        yield [noun.singular, noun.singular + noun.weak], [noun.en]
        if noun.plural:
            yield [noun.plural, noun.plural + "n"], [noun.en_plural]
    tables = sample.WEAK_ENDINGS, sample.MIXED_ENDINGS
    for words in itertools.chain(*sample.ADJECTIVES_BY_KIND.values(), sample.COLOURS):
        german, english = words[: len(words) // 2], words[len(words) // 2 :]
        yield [german[0], *inflected(german[0].removesuffix("e"), *tables)], [english[0]]
        yield german[1:], [word.split()[-1] for word in english[1:]]


def verbs():
    """Yield such pairs. Of `get up` they have the first word, of `steht ... auf` none."""
    for verb in [*sample.ALL_VERBS, *sample.SPEECH_VERBS, sample.KNOW]:
        german = [*(verb.prefix + form for form in verb.present), verb.infinitive, verb.participle]
        yield german, [form.split()[0] for form in verb.en]
    for modal in sample.MODAL_VERBS:
        english = {" ".join(pair).replace("-", "").split()[0] for pair in (modal[6:8], modal[8:])}
        third = dict(want="wants", have="has")
        yield modal[:6], [*english, *(third[word] for word in english & third.keys())]
    yield sample.WERDEN, ["will"]
    for forms, english in ((sample.SEIN, sample.BE), (sample.WAR, sample.WAS)):
        yield from (([german], [word]) for german, word in zip(forms, english, strict=True))


def other_words():
    """Yield such pairs: pronouns, conjunctions, and the last words of phrases."""
    for german, english in itertools.chain(*sample.PRONOUNS_BY_CASE.values()):
        yield [german], [english]
    yield inflected("kein", sample.EIN_WORD_ENDINGS), ["not"]
    for german, english in map(str.split, OTHER_WORDS.split(",")):
        yield [german], [english]
    for german, english in phrases():
        yield german[-1:], english[-1:]


def phrases():
    """Yield the words of adverbs and places, a list for each language."""
    pairs = [*sample.LOCATIONS, *sample.DESTINATIONS, *sample.FREQUENCIES]
    pairs += itertools.chain(*sample.TIMES_BY_TENSE.values())
    yield from ((de.split(), en.split()) for de, en in pairs if en != "a year ago")


def words_before_nouns():
    """Yield such pairs: articles, and the words of phrases that are as long in both languages."""
    for stem, endings, _, *english in sample.DETERMINERS.values():
        yield inflected(stem, endings), [*filter(None, english)]
    for stem, english in (*sample.POSSESSIVES, ("ein", "an"), ("kein", "an")):
        yield inflected(stem, sample.EIN_WORD_ENDINGS), [english]
    for german, english in phrases():
        if len(german) == len(english):
            yield from (([de], [en]) for de, en in zip(german[:-1], english, strict=False))


def lexicon(*pairs) -> dict[str, set]:
    """The German words of each English word, in lower case."""
    words = defaultdict(set)
    for german, english in itertools.chain(*pairs):
        for word in english:
            words[word.lower()].update(map(str.lower, german))
    return words


FREE = lexicon(nouns_and_adjectives(), verbs(), other_words())
BOUND = lexicon(words_before_nouns())


def gold_links(german, english) -> set[tuple[int, int]]:
    """The sure links of a sentence of the built-in corpus and a translation of it.

    A word has a link if its counterpart is clear: each of the two occurs once; or it is an article
    or a preposition, and the next word has a link. One word in six has none.

    >>> sorted(gold_links("Der Hund hat den Brief gelesen.", "The dog read the letter."))
    [(0, 0), (1, 1), (3, 3), (4, 4), (5, 2)]
    """
    german, english = (
        [word.strip(".,?").lower() for word in line.split()] for line in (german, english)
    )
    choices = [
        [i for i, word in enumerate(german) if word in FREE.get(other, ())] for other in english
    ]
    claims = Counter(itertools.chain(*choices))
    links = {j: i[0] for j, i in enumerate(choices) if len(i) == 1 and claims[i[0]] == 1}
    for j in reversed(range(len(english) - 1)):
        i = links.get(j + 1, 0) - 1
        if j not in links and i >= 0 and german[i] in BOUND.get(english[j], ()):
            links[j] = i
    return {(i, j) for j, i in links.items()}


# Alignments of a model ----------------------------------------------------------


def error_rate(links, gold) -> float:
    """The alignment error rate, over the words of translations that have a link in `gold`.

    If each of them also has one link in `links`, precision and recall are both 1 - error rate.

    Args:
      links, gold: lists of sets of (source word, word of the translation), one per sentence.
    """
    hits = counted = 0
    for own, known in zip(links, gold, strict=True):
        decided = {j for _, j in known}
        hits += 2 * len(own & known)
        counted += len(known) + sum(j in decided for _, j in own)
    return 1 - hits / counted


def links_by_choice(loaded, pairs) -> dict:
    """The links of each pair of ids, for each choice of row and block: lists of sets."""
    links = defaultdict(list)
    for start in range(0, len(pairs), BATCH):
        xs, ys = zip(*pairs[start : start + BATCH], strict=True)
        X, Y = (RaggedIds.from_lists(s) for s in (xs, [append_eos(y, loaded.hp) for y in ys]))
        width = loaded.hp.pad_to
        maps = attention_maps(loaded.model, *(ids.pad(range(len(xs)), width) for ids in (X, Y)))
        blocks = [np.mean(weights, axis=1) for weights in maps.cross]  # of (N, T_y, T_x)
        named = dict(enumerate(blocks, 1)) | dict(mean=np.mean(blocks, axis=0))
        for (shift, row), block in itertools.product(enumerate(ROWS), named):
            for x, y, weights in zip(xs, ys, named[block], strict=True):
                words = aligned_words(x, y, weights[shift:], loaded.vocabs)
                links[row, block].append({(i, j) for j, i in enumerate(words)})
    return links


def error_rates(logdir, count) -> dict:
    """The alignment error rates of a model for each choice: of given and of own translations.

    Args:
      logdir: folder of the model.
      count: sentences, of the test set that corpora/sample.py writes.
    """
    loaded = load_model(find_trained(dict(logdir=logdir)))
    lines, given = map(list, zip(*itertools.islice(sample.sentence_pairs(0), count), strict=True))
    own = [translation.text for translation in Translator(loaded)(lines)]
    rates = defaultdict(list)
    for texts in (given, own):
        pairs, too_long = Scorer(loaded).encode(lines, texts)
        pairs = {row: (x, y[:-1]) for row, (x, y) in pairs.items() if row not in too_long}
        gold = [gold_links(lines[row], texts[row]) for row in pairs]
        for choice, links in links_by_choice(loaded, [*pairs.values()]).items():
            rates[choice].append(error_rate(links, gold))
    return rates


def main():
    """Print a table of the models that the command line names."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("logdirs", nargs="+", metavar="LOGDIR")
    parser.add_argument("--sentences", type=int, default=500)
    args = parser.parse_args()
    print("| model | row | block | given | own |\n|---|---|---|---|---|")
    for logdir in args.logdirs:
        for (row, block), (given, own) in error_rates(logdir, args.sentences).items():
            print(f"| {logdir} | {row} | {block} | {given:.1%} | {own:.1%} |", flush=True)


if __name__ == "__main__":
    main()
