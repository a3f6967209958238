"""Write a German-English corpus from a small grammar, in the files of IWSLT 2016.

    python corpora/sample.py --output corpora/sample --train 20000 --dev 200 --test 1000

Each German sentence has one translation. The same seed gives the same bytes, and a larger --train
only adds pairs at the end. No development or test sentence is in the training text.
"""

import itertools
import random
import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.cli import run_script
from support.errors import InputError
from support.files import atomic_write
from support.flags import Parser, expand_path

MAX_WORDS = 14  # in the longer side of a pair
LANGUAGES = ("de", "en")
TALK_PAIRS = 100  # pairs between two headers of markup lines
SIGNATURE = "corpora/sample.py"  # in the first lines of every file

# Words --------------------------------------------------------------


WORDS = {}  # the entries of sample.tsv, lists of words, by table and key; - is an empty word
for line in Path(__file__).with_suffix(".tsv").read_text("utf-8").splitlines():
    if not line.startswith("#"):
        table, key, *words = line.replace("\t-", "\t").split("\t")
        WORDS.setdefault(table, {}).setdefault(key, []).append(words)
FORMS = {word: forms for word, (forms,) in WORDS["forms"].items()}


class Noun(NamedTuple):
    """A noun in both languages: its kind, and the words of its entry."""

    kind: str
    singular: str  # of a weak noun, its ending in other cases follows after a slash
    gender: str
    plural: str
    en: str
    en_plural: str


class Verb(NamedTuple):
    """A verb in both languages."""

    prefix: str  # the separable prefix, or empty
    infinitive: str
    present: list[str]  # one form per person, without the prefix
    participle: str
    en: tuple[str, str, str]  # base, third person, past
    perfect: list[str]  # forms of haben or sein
    frame: str  # the objects that it requires


class Phrase(NamedTuple):
    """A noun phrase or pronoun in one case."""

    de: str
    en: str
    person: int  # 0 to 5, the index of a verb's form
    relative: str = ""  # English and German pronoun of a relative clause about it


def parse_verb(frame, words):
    """Make a `Verb` from the words of its entry, and add its regular forms."""
    infinitive, du, er, participle, *en, auxiliary = words
    prefix, _, plain = infinitive.rpartition("|")
    stem = plain.removesuffix("en")
    linked = stem + "e" if stem[-1] in "td" else stem
    du = du or linked + ("t" if stem[-1] in "sßzx" else "st")
    present = [stem + "e", du, er or linked + "t", plain, linked + "t", plain]
    return Verb(prefix, prefix + plain, present, participle, tuple(en), FORMS[auxiliary], frame)


NOUNS_BY_KIND = {kind: [Noun(kind, *row) for row in rows] for kind, rows in WORDS["noun"].items()}
ADJECTIVES_BY_KIND = {kind: [] for kind in NOUNS_BY_KIND}
for kinds, entries in WORDS["adjective"].items():
    for kind in kinds.split():
        ADJECTIVES_BY_KIND[kind] += entries
TEMPORARY = "müde hungrig glücklich traurig ruhig krank".split()  # states that may pass
COLOURED_KINDS = ("thing", "door", "clothing", "hat", "vehicle")
ALL_VERBS = [parse_verb(frame, row) for frame, rows in WORDS["verb"].items() for row in rows]
ANIMAL_VERBS = """schlafen warten schwimmen spielen aufwachen einschlafen laufen kommen essen
    trinken sehen suchen finden folgen""".split()
SPEECH_VERBS = [parse_verb("alone", words) for words in WORDS["speech verb"]["alone"]]
WISSEN = FORMS["wissen"]
KNOW = Verb("", "wissen", WISSEN, "gewusst", ("know", "knows", "knew"), FORMS["haben"], "alone")
LOCATIONS = [(de, en) for entries in WORDS["place"].values() for de, en, *_ in entries]
DESTINATIONS = [(de, en) for _, _, de, en in WORDS["place"]["destination"]]

# Noun phrases -------------------------------------------------------

GENDERS = ["m", "f", "n", "pl"]


def ending(kind, case, gender):
    """Return the ending of a kind of words for a case and gender."""
    return WORDS["ending"][f"{kind} {case}"][0][GENDERS.index(gender)]


def determiner(rng, kind, case, gender):
    """Draw it in German and English, with the kind of an adjective after it."""
    if kind == "indefinite" and gender == "pl":
        return "", "", "strong"
    rows = WORDS["determiner"][kind]
    stem, endings, adjective_kind, *en = rng.choice(rows) if len(rows) > 1 else rows[0]
    return stem + ending(endings, case, gender), en[gender == "pl"], adjective_kind


def noun_phrase(rng, kinds, case, definite=False, negated=False):
    """Draw a phrase with a noun; a `negated` one has kein if the noun has a plural."""
    noun = rng.choice(NOUNS_BY_KIND[rng.choice(kinds)])
    gender = "pl" if noun.plural and rng.random() < 0.25 else noun.gender
    options = ["definite"] * 8 + ["dieser"] * 2
    if noun.en not in ("man", "woman"):  # with a possessive these are husband and wife
        options += ["possessive"] * 3
    if noun.plural and not definite:
        options += ["indefinite"] * 6 + ["jeder"] * (gender != "pl")
    kind = "kein" if negated and noun.plural else rng.choice(options)
    article, en_article, adjective_kind = determiner(rng, kind, case, gender)

    de, en = [article], [en_article]
    if rng.random() < 0.3:
        has_colour = noun.kind in COLOURED_KINDS and rng.random() < 0.5
        colours = WORDS["colour"]["any"]
        adjective = rng.choice(colours if has_colour else ADJECTIVES_BY_KIND[noun.kind])
        de.append(adjective[0].removesuffix("e") + ending(adjective_kind, case, gender))
        en.append(adjective[len(adjective) // 2])
    if gender == "pl":
        de.append(noun.plural + ("n" if case == "dat" and noun.plural[-1] not in "ns" else ""))
        en.append(noun.en_plural)
    else:
        singular, _, weak = noun.singular.partition("/")
        de.append(singular + (weak if case != "nom" else ""))
        en.append(noun.en)
    if en[0] == "a" and en[1][0] in "aeiou":
        en[0] = "an"
    relative = ("who " if noun.kind == "person" else "that ") + ending("article", "nom", gender)
    return Phrase(join(de), join(en), 5 if gender == "pl" else 2, relative)


def pronoun(rng, case, subject=None):
    """Draw a pronoun; for ich and wir, or du and ihr, as `subject` none of the same two."""
    own = subject.person % 3 if subject else 2
    choices = [row for row in WORDS["pronoun"][case] if own == 2 or int(row[2]) % 3 != own]
    de, en, person = rng.choice(choices)
    return Phrase(de, en, int(person))


def join(parts) -> str:
    """Join the parts that are not empty with spaces."""
    return " ".join(filter(None, parts))


# Clauses ------------------------------------------------------------


class Clause:
    """A subject, a verb, its objects and adverbs, which can be put in several orders.

    German orders: the verb is `first`, `second` or `last`. English orders: `plain`, `question`.
    """

    def __init__(self, rng, verb, subject, tenses=("present", "past", "future", "modal")):
        self.subject = subject
        self.time = self.frequency = None
        self.pronouns, self.objects, self.complements = [], [], []  # pairs of German, English
        self.negated = rng.random() < 0.15 and not subject.de.startswith("jed")
        self.needs_nicht = self.negated  # unless an object with kein negates the clause
        # The finite verb, the verb form at the end, and the English verb.
        person, self.tense, self.prefix, self.end = subject.person, rng.choice(tenses), "", ""
        self.auxiliary, self.forms = "", verb.en
        if self.tense == "present":
            self.finite, self.prefix = verb.present[person], verb.prefix
        elif self.tense == "past":
            self.finite, self.end = verb.perfect[person], verb.participle
        elif self.tense == "future":
            self.finite, self.end, self.auxiliary = FORMS["werden"][person], verb.infinitive, "will"
        else:
            modal = rng.choice(WORDS["modal"]["any"])
            self.finite, self.end = modal[person], verb.infinitive
            self.auxiliary, main = modal[8:] if self.negated else modal[6:8]
            third = main.replace("want", "wants").replace("have", "has")
            self.forms = join([main, verb.en[0]]), join([third, verb.en[0]]), ""

    def add_time(self, rng):
        """Add an adverb of time that fits the tense."""
        self.time = rng.choice(WORDS["time"]["any"] + WORDS["time"][self.tense])

    def add_adverb(self, rng):
        """Sometimes add an adverb of time or of frequency.

        "Never" and "rarely" are left out with a modal, which they would negate, and with "every".
        """
        if rng.random() < 0.3:
            self.add_time(rng)
        elif not self.negated and rng.random() < 0.2:
            others = [de for de, _ in self.objects + self.complements]
            no_rare = self.tense == "modal" or "jed" in join([self.subject.de, *others])
            rare = ("nie", "selten") if no_rare else ()
            pairs = WORDS["frequency"]["any"]
            self.frequency = rng.choice([pair for pair in pairs if pair[0] not in rare])

    def german(self, order, opening=""):
        """Return the German words; an adverb or question word may open the clause."""
        nicht = "nicht" if self.needs_nicht else ""
        middle = [de for de, _ in self.pronouns]
        middle += [pair[0] for pair in (self.time, self.frequency) if pair and pair[0] != opening]
        middle += [de for de, _ in self.objects] + [nicht] + [de for de, _ in self.complements]
        subject = self.subject.de
        if order == "last":
            return join([opening, subject, *middle, self.end, self.prefix + self.finite])
        head = [subject, self.finite] if order == "second" else [self.finite, subject]
        return join([opening, *head, *middle, self.end, self.prefix])

    def english(self, order, opening=""):
        """Return the English words; `opening` as in `german`."""
        frequency = self.frequency[1] if self.frequency else ""
        rest = [en for _, en in [*self.pronouns, *self.objects, *self.complements]]
        rest += [self.time[1]] if self.time and self.time[1] != opening else []
        subject, auxiliary, not_ = self.subject.en, self.auxiliary, "not" if self.negated else ""
        base, third, past = self.forms
        singular = self.subject.person == 2
        if not auxiliary and not self.negated and order == "plain":
            verb = past if self.tense == "past" else third if singular else base
            return join([opening, subject, frequency, verb, *rest])
        if not auxiliary:
            auxiliary = "did" if self.tense == "past" else "does" if singular else "do"
        if order == "question":
            return join([opening, auxiliary, subject, not_, frequency, base, *rest])
        auxiliary = "cannot" if (auxiliary, not_) == ("can", "not") else join([auxiliary, not_])
        return join([opening, subject, auxiliary, frequency, base, *rest])


def some_subject(rng, kinds, relative=True):
    """Draw a pronoun or a phrase in the nominative."""
    if rng.random() < 0.3:
        return pronoun(rng, "nom")
    subject = noun_phrase(rng, kinds, "nom")
    if rng.random() < 0.1:
        other = noun_phrase(rng, kinds, "nom", definite=True)
        return Phrase(f"{subject.de} und {other.de}", f"{subject.en} and {other.en}", 5)
    if relative and rng.random() < 0.12:
        en, de = subject.relative.split()
        verb = rng.choice([v for v in ALL_VERBS if v.infinitive in ANIMAL_VERBS])
        clause = verb_clause(rng, verb, Phrase(de, en, subject.person), without=("place", "time"))
        german, english = clause.german("last"), clause.english("plain")
        return Phrase(f"{subject.de}, {german},", f"{subject.en} {english}", subject.person)
    return subject


def verb_clause(rng, verb, subject, without=(), **kwargs):
    """Draw what the verb's frame requires, but for `without`: "acc", "place", "time"."""
    clause = Clause(rng, verb, subject, **kwargs)
    frame = verb.frame
    if frame == "to":
        clause.complements.append(rng.choice(DESTINATIONS))
    elif ":" in frame:
        slots = [slot.split(":") for slot in frame.split()]
        for case, kinds in slots:
            if case not in without:
                add_object(rng, clause, case, kinds.split(","), alone=len(slots) == 1)
    if frame not in ("to", "away") and "place" not in without and rng.random() < 0.3:
        clause.complements.append(rng.choice(LOCATIONS))
    if "time" not in without:
        clause.add_adverb(rng)
    return clause


def add_object(rng, clause, case, kinds, alone):
    """Add an object to `clause`; `case` is "acc" or "dat", or has a preposition and + before it."""
    preposition, _, case = case.rpartition("+")
    if kinds[0] == "person" and (alone or case == "dat") and rng.random() < 0.25:
        phrase, slot = pronoun(rng, case, clause.subject), clause.pronouns
    else:
        slot = clause.objects
        kein = clause.needs_nicht and case == "acc" and not preposition and rng.random() < 0.5
        phrase = noun_phrase(rng, kinds, case, definite=clause.negated, negated=kein)
        clause.needs_nicht &= not phrase.de.startswith("kein")
    slot = clause.complements if preposition else slot
    slot.append((join([preposition, phrase.de]), phrase.en))


def copula_clause(rng):
    """Draw a clause with sein: a quality, a location or a comparison."""
    kind = rng.choice(("person", "animal"))
    subject = some_subject(rng, [kind], relative=False)
    german, english, tense = rng.choice([("sein", "be", "present"), ("war", "was", "past")])
    be = Verb("", "sein", FORMS[german], "gewesen", ("", "", ""), [], "alone")
    clause = Clause(rng, be, subject, tenses=("present",))
    clause.tense, clause.auxiliary = tense, FORMS[english][subject.person]
    adjective = rng.choice(ADJECTIVES_BY_KIND[kind])
    draw = rng.random()
    if draw < 0.2:
        clause.complements.append(rng.choice(LOCATIONS))
    elif draw < 0.4:
        other = noun_phrase(rng, [kind], "nom", definite=True)
        clause.complements.append(
            (f"{adjective[1]} als {other.de}", f"{adjective[3]} than {other.en}")
        )
    else:
        clause.complements.append((adjective[0], adjective[2]))
        if adjective[0] in TEMPORARY:
            clause.add_adverb(rng)
    return clause


def some_clause(rng, relative=True, **kwargs):
    """Draw a clause with any verb; `kwargs` are those of `verb_clause`."""
    if rng.random() < 0.15 and not kwargs:
        return copula_clause(rng)
    verb = rng.choice(ALL_VERBS)
    kinds = ["person", "animal"] if verb.infinitive in ANIMAL_VERBS else ["person"]
    return verb_clause(rng, verb, some_subject(rng, kinds, relative), **kwargs)


# Sentences: German, English, and the mark at the end ----------------


def statement(rng):
    """Draw a main clause."""
    clause = some_clause(rng)
    return clause.german("second"), clause.english("plain"), "."


def inversion(rng):
    """Draw an adverb, and a main clause whose German verb then precedes its subject."""
    clause = some_clause(rng, without=("time",))
    clause.add_time(rng)
    german, english = clause.time
    return clause.german("first", german), clause.english("plain", english), "."


def question(rng):
    """Draw a yes-no question."""
    clause = some_clause(rng, relative=False)
    return clause.german("first"), clause.english("question"), "?"


def adverb_question(rng):
    """Draw a question with why, where or when."""
    german, english, *without = rng.choice(WORDS["question adverb"]["any"])
    verbs = [verb for verb in ALL_VERBS if verb.frame not in ("to", "away") or german != "wo"]
    subject = some_subject(rng, ["person"], relative=False)
    clause = verb_clause(rng, rng.choice(verbs), subject, without=without)
    return clause.german("first", german), clause.english("question", english), "?"


def who_question(rng):
    """Draw a question about the subject."""
    clause = verb_clause(rng, rng.choice(ALL_VERBS), Phrase("wer", "who", 2))
    return clause.german("second"), clause.english("plain"), "?"


def what_question(rng):
    """Draw a question about the object."""
    verbs = [v for v in ALL_VERBS if v.frame.startswith("acc") and "person" not in v.frame]
    subject = some_subject(rng, ["person"], relative=False)
    clause = verb_clause(rng, rng.choice(verbs), subject, without=("acc",))
    return clause.german("first", "was"), clause.english("question", "what"), "?"


def two_clauses(main, german, english, other, order="last"):
    """Join a main clause and another one, whose German verb is in the position `order`."""
    return (
        f"{main.german('second')}, {german} {other.german(order)}",
        f"{main.english('plain')}{english} {other.english('plain')}",
        ".",
    )


def subordination(rng):
    """Draw a main and a subordinate clause."""
    german, english = rng.choice([("weil", " because"), ("obwohl", " although"), ("wenn", " when")])
    tenses = dict(tenses=("present",)) if german == "wenn" else {}
    main = some_clause(rng, relative=False, **tenses)
    return two_clauses(main, german, english, some_clause(rng, relative=False, **tenses))


def reported_speech(rng):
    """Draw a clause of saying or knowing, and what is said."""
    subject = some_subject(rng, ["person"], relative=False)
    if rng.random() < 0.4:
        main = Clause(rng, KNOW, subject, tenses=("present",))
    else:
        main = Clause(rng, rng.choice(SPEECH_VERBS), subject, tenses=("present", "past"))
    whether = main.finite in WISSEN and main.negated
    german, english = ("ob", " whether") if whether else ("dass", " that")
    tenses = dict(tenses=("past",)) if main.tense == "past" else {}
    return two_clauses(main, german, english, some_clause(rng, relative=False, **tenses))


def contrast(rng):
    """Draw two main clauses joined by but."""
    one, other = some_clause(rng, relative=False), some_clause(rng, relative=False)
    return two_clauses(one, "aber", ", but", other, order="second")


SENTENCES = [statement] * 6 + [inversion] * 4 + [question] * 3 + [adverb_question] * 2
SENTENCES += [who_question, what_question, contrast] + [subordination] * 3 + [reported_speech] * 3


def sentence_pairs(seed):
    """Yield pairs of a German and an English sentence without end. No German one is repeated."""
    rng = random.Random(seed)
    seen = set()
    while True:
        german, english, stop = rng.choice(SENTENCES)(rng)
        if max(german.count(" "), english.count(" ")) >= MAX_WORDS or german in seen:
            continue
        seen.add(german)
        # A relative clause at the end leaves a comma before the full stop.
        german = german.removesuffix(",").replace(",,", ",")
        yield german[0].upper() + german[1:] + stop, english[0].upper() + english[1:] + stop


# Files --------------------------------------------------------------


def talk_text(sentences, lang) -> str:
    """Make a training file: markup lines before each talk, and its sentences."""
    lines = []
    for talk, first in enumerate(range(0, len(sentences), TALK_PAIRS), 1):
        lines += [f"<url>{SIGNATURE}?lang={lang}&talk={talk}</url>", f"<talkid>{talk}</talkid>"]
        lines += sentences[first : first + TALK_PAIRS]
    return "\n".join([*lines, ""])


def xml_text(sentences, lang) -> str:
    """Make a test set: one XML document of numbered segments."""
    segments = (f'<seg id="{i}"> {text} </seg>\n' for i, text in enumerate(sentences, 1))
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<srcset setid="sample"'
        f' srclang="{lang}">\n<doc><url>{SIGNATURE}?lang={lang}</url>\n{"".join(segments)}'
        "</doc></srcset></mteval>\n"
    )


def main(args):
    """Write the six files."""
    pairs = sentence_pairs(args.seed)
    tests, devs = ([*itertools.islice(pairs, count)] for count in (args.test, args.dev))
    held_out = {english for _, english in tests + devs}
    trains = itertools.islice((pair for pair in pairs if pair[1] not in held_out), args.train)
    texts = {}
    for name, make_text, part in (
        ("IWSLT16.TED.tst2014.de-en.{}.xml", xml_text, tests),
        ("IWSLT16.TED.dev2010.de-en.{}.xml", xml_text, devs),
        ("train.tags.de-en.{}", talk_text, trains),
    ):
        for lang, side in zip(LANGUAGES, zip(*part, strict=True), strict=True):
            texts[Path(args.output) / name.format(lang)] = make_text(side, lang)
    for path in texts:
        if path.exists() and SIGNATURE not in path.read_text("utf-8", "replace"):
            raise InputError(f"{path}: exists, and is another text. Choose another --output")
    for path, text in texts.items():
        atomic_write(path, text)
        print(path)


def parse_args():
    """Parse the command line."""
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=expand_path, default="corpora", help="folder (corpora)")
    for name, default in dict(train=20_000, dev=200, test=1_000).items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"pairs ({default})")
    parser.add_argument("--seed", type=int, default=0, help="of the random sentences (0)")
    args = parser.parse_args()
    if min(args.train, args.dev, args.test) < 1:
        parser.error("--train, --dev and --test must be at least 1")
    return args


if __name__ == "__main__":
    run_script(main, parse_args())
