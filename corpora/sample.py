"""Write a German-English corpus from a small grammar, in the files of IWSLT 2016.

    python corpora/sample.py --output corpora/sample --train 20000 --dev 200 --test 1000

The sentences have gender, case and agreement, the verb in second place and at
the end, separable verbs, modals, negation, questions, relative and subordinate
clauses, and adverbs that turn subject and verb around. Each German sentence has
one translation. The same seed gives the same bytes, and more training pairs
continue fewer. No development or test sentence, German or English, is in the training text.
"""

import argparse
import itertools
import os
import random
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

MAX_WORDS = 14  # of the longer side
LANGUAGES = ("de", "en")
TALK = 100  # pairs between two headers of tag lines
MARK = "corpora/sample.py"  # in the first lines of every file written here

# Words -------------------------------------------------------------------------

# German singular, gender, plural; English singular, plural. A singular with a slash
# is a weak noun: behind the slash stands what the other cases add.
NOUNS = {
    "person": """
        Mann m Männer man men, Frau f Frauen woman women, Kind n Kinder child children,
        Junge/n m Jungen boy boys, Mädchen n Mädchen girl girls, Arzt m Ärzte doctor doctors,
        Lehrer m Lehrer teacher teachers, Bruder m Brüder brother brothers,
        Schwester f Schwestern sister sisters, Vater m Väter father fathers,
        Mutter f Mütter mother mothers, Sohn m Söhne son sons, Tochter f Töchter daughter daughters,
        Onkel m Onkel uncle uncles, Tante f Tanten aunt aunts, Freund m Freunde friend friends,
        Nachbar/n m Nachbarn neighbour neighbours, Student/en m Studenten student students,
        Bauer/n m Bauern farmer farmers, Koch m Köche cook cooks, Bäcker m Bäcker baker bakers,
        König m Könige king kings, Königin f Königinnen queen queens,
        Polizist/en m Polizisten policeman policemen, Soldat/en m Soldaten soldier soldiers,
        Richter m Richter judge judges, Maler m Maler painter painters,
        Sänger m Sänger singer singers, Gast m Gäste guest guests, Kellner m Kellner waiter waiters,
        Großmutter f Großmütter grandmother grandmothers,
        Großvater m Großväter grandfather grandfathers, Pilot/en m Piloten pilot pilots""",
    "animal": """
        Hund m Hunde dog dogs, Katze f Katzen cat cats, Pferd n Pferde horse horses,
        Vogel m Vögel bird birds, Kuh f Kühe cow cows, Maus f Mäuse mouse mice,
        Affe/n m Affen monkey monkeys, Bär/en m Bären bear bears, Ente f Enten duck ducks,
        Schwein n Schweine pig pigs, Fuchs m Füchse fox foxes, Wolf m Wölfe wolf wolves""",
    "food": """
        Apfel m Äpfel apple apples, Birne f Birnen pear pears, Kuchen m Kuchen cake cakes,
        Ei n Eier egg eggs, Banane f Bananen banana bananas, Tomate f Tomaten tomato tomatoes,
        Kartoffel f Kartoffeln potato potatoes, Suppe f Suppen soup soups,
        Orange f Orangen orange oranges, Wurst f Würste sausage sausages,
        Karotte f Karotten carrot carrots, Keks m Kekse biscuit biscuits""",
    "drink": """
        Tee m - tea -, Kaffee m - coffee -, Wasser n - water -, Milch f - milk -,
        Saft m - juice -, Bier n - beer -, Wein m - wine -""",
    "text": """
        Buch n Bücher book books, Zeitung f Zeitungen newspaper newspapers,
        Brief m Briefe letter letters, Roman m Romane novel novels,
        Gedicht n Gedichte poem poems, Bericht m Berichte report reports,
        Geschichte f Geschichten story stories""",
    "thing": """
        Tisch m Tische table tables, Stuhl m Stühle chair chairs, Lampe f Lampen lamp lamps,
        Uhr f Uhren clock clocks, Schlüssel m Schlüssel key keys, Tasche f Taschen bag bags,
        Ball m Bälle ball balls, Messer n Messer knife knives, Gabel f Gabeln fork forks,
        Teller m Teller plate plates, Bild n Bilder picture pictures,
        Spiegel m Spiegel mirror mirrors, Kamera f Kameras camera cameras,
        Geschenk n Geschenke gift gifts, Blume f Blumen flower flowers,
        Teppich m Teppiche carpet carpets, Kissen n Kissen pillow pillows""",
    "door": """
        Tür f Türen door doors, Fenster n Fenster window windows, Kiste f Kisten box boxes,
        Flasche f Flaschen bottle bottles, Koffer m Koffer suitcase suitcases""",
    "clothing": """
        Mantel m Mäntel coat coats, Hemd n Hemden shirt shirts,
        Kleid n Kleider dress dresses, Jacke f Jacken jacket jackets, Rock m Röcke skirt skirts,
        Pullover m Pullover sweater sweaters""",
    "hat": "Hut m Hüte hat hats, Mütze f Mützen cap caps",
    "vehicle": """
        Auto n Autos car cars, Fahrrad n Fahrräder bicycle bicycles, Boot n Boote boat boats,
        Motorrad n Motorräder motorcycle motorcycles, Lastwagen m Lastwagen truck trucks,
        Traktor m Traktoren tractor tractors""",
}

# German, its comparative, English, its comparative; the kinds of nouns it goes with.
ADJECTIVES = {
    "person animal": """
        alt älter old older, jung jünger young younger, stark stärker strong stronger,
        klug klüger clever cleverer, klein kleiner small smaller,
        müde müder tired more_tired, hungrig hungriger hungry hungrier,
        glücklich glücklicher happy happier, traurig trauriger sad sadder,
        freundlich freundlicher friendly friendlier, faul fauler lazy lazier,
        ruhig ruhiger calm calmer, mutig mutiger brave braver""",
    "animal": "groß größer big bigger",
    "person": """
        groß größer tall taller, reich reicher rich richer, arm ärmer poor poorer,
        nett netter nice nicer, berühmt berühmter famous more_famous, krank kränker sick sicker""",
    "food": """
        frisch frischer fresh fresher, süß süßer sweet sweeter, groß größer big bigger,
        klein kleiner small smaller""",
    "drink": "warm wärmer warm warmer, kalt kälter cold colder, frisch frischer fresh fresher",
    "text": """
        lang länger long longer, kurz kürzer short shorter, neu neuer new newer,
        alt älter old older, interessant interessanter interesting more_interesting,
        langweilig langweiliger boring more_boring""",
    "thing door clothing hat vehicle": """
        neu neuer new newer, alt älter old older, groß größer big bigger,
        klein kleiner small smaller, schön schöner beautiful more_beautiful,
        billig billiger cheap cheaper, schmutzig schmutziger dirty dirtier,
        schwer schwerer heavy heavier, leicht leichter light lighter""",
}
COLOURS = "rot red, blau blue, grün green, schwarz black, weiß white, gelb yellow, braun brown"

# German infinitive (a bar behind a separable prefix), forms for du and er (- where they
# are regular), participle; English base, third person, past; auxiliary of the perfect
# and the frame. Underscores are spaces.
VERBS = {
    "alone": """
        schlafen schläfst schläft geschlafen sleep sleeps slept haben,
        lachen - - gelacht laugh laughs laughed haben, weinen - - geweint cry cries cried haben,
        tanzen - - getanzt dance dances danced haben, singen - - gesungen sing sings sang haben,
        arbeiten - - gearbeitet work works worked haben,
        warten - - gewartet wait waits waited haben,
        schwimmen - - geschwommen swim swims swam sein, kochen - - gekocht cook cooks cooked haben,
        spielen - - gespielt play plays played haben,
        lernen - - gelernt study studies studied haben,
        beten - - gebetet pray prays prayed haben, rauchen - - geraucht smoke smokes smoked haben,
        auf|stehen - - aufgestanden get_up gets_up got_up sein,
        auf|wachen - - aufgewacht wake_up wakes_up woke_up sein,
        ein|schlafen schläfst schläft eingeschlafen fall_asleep falls_asleep fell_asleep sein,
        fern|sehen siehst sieht ferngesehen watch_television watches_television watched_television
        haben, auf|räumen - - aufgeräumt tidy_up tidies_up tidied_up haben""",
    "away": """
        ab|reisen - - abgereist depart departs departed sein,
        an|kommen - - angekommen arrive arrives arrived sein,
        zurück|kommen - - zurückgekommen come_back comes_back came_back sein,
        aus|gehen - - ausgegangen go_out goes_out went_out sein""",
    "to": """
        gehen - - gegangen go goes went sein, laufen läufst läuft gelaufen run runs ran sein,
        kommen - - gekommen come comes came sein, fahren fährst fährt gefahren drive drives drove
        sein, eilen - - geeilt hurry hurries hurried sein""",
    "acc:text": """
        lesen liest liest gelesen read reads read haben,
        schreiben - - geschrieben write writes wrote haben,
        übersetzen - - übersetzt translate translates translated haben,
        ab|schreiben - - abgeschrieben copy copies copied haben""",
    "acc:food": """
        essen isst isst gegessen eat eats ate haben, kochen - - gekocht cook cooks cooked haben,
        schneiden - - geschnitten cut cuts cut haben,
        probieren - - probiert taste tastes tasted haben""",
    "acc:drink": """
        trinken - - getrunken drink drinks drank haben,
        bestellen - - bestellt order orders ordered haben""",
    "acc:clothing": """
        waschen wäschst wäscht gewaschen wash washes washed haben,
        an|ziehen - - angezogen put_on puts_on put_on haben,
        aus|ziehen - - ausgezogen take_off takes_off took_off haben""",
    "acc:clothing hat": "tragen trägst trägt getragen wear wears wore haben",
    "acc:hat": """
        auf|setzen - - aufgesetzt put_on puts_on put_on haben,
        ab|setzen - - abgesetzt take_off takes_off took_off haben""",
    "acc:vehicle": """
        reparieren - - repariert repair repairs repaired haben,
        waschen wäschst wäscht gewaschen wash washes washed haben,
        verkaufen - - verkauft sell sells sold haben""",
    "acc:door": """
        auf|machen - - aufgemacht open opens opened haben,
        zu|machen - - zugemacht close closes closed haben,
        putzen - - geputzt clean cleans cleaned haben""",
    "acc:person": """
        an|rufen - - angerufen call calls called haben,
        ab|holen - - abgeholt collect collects collected haben,
        ein|laden lädst lädt eingeladen invite invites invited haben,
        besuchen - - besucht visit visits visited haben,
        fragen - - gefragt ask asks asked haben, küssen - - geküsst kiss kisses kissed haben,
        umarmen - - umarmt hug hugs hugged haben, grüßen - - gegrüßt greet greets greeted haben,
        treffen triffst trifft getroffen meet meets met haben""",
    "acc:person animal thing": """
        sehen siehst sieht gesehen see sees saw haben,
        suchen - - gesucht look_for looks_for looked_for haben,
        finden - - gefunden find finds found haben,
        malen - - gemalt paint paints painted haben,
        vergessen vergisst vergisst vergessen forget forgets forgot haben,
        fotografieren - - fotografiert photograph photographs photographed haben""",
    "acc:thing food text": """
        kaufen - - gekauft buy buys bought haben, bezahlen - - bezahlt pay_for pays_for paid_for
        haben, mit|bringen - - mitgebracht bring_along brings_along brought_along haben,
        weg|werfen wirfst wirft weggeworfen throw_away throws_away threw_away haben,
        verlieren - - verloren lose loses lost haben, holen - - geholt fetch fetches fetched haben,
        verstecken - - versteckt hide hides hid haben""",
    "dat:person animal": """
        helfen hilfst hilft geholfen help helps helped haben,
        folgen - - gefolgt follow follows followed sein,
        glauben - - geglaubt believe believes believed haben,
        zu|hören - - zugehört listen_to listens_to listened_to haben,
        antworten - - geantwortet answer answers answered haben,
        danken - - gedankt thank thanks thanked haben""",
    "dat:person acc:thing text": """
        geben gibst gibt gegeben give gives gave haben,
        zeigen - - gezeigt show shows showed haben,
        schicken - - geschickt send sends sent haben,
        bringen - - gebracht bring brings brought haben,
        leihen - - geliehen lend lends lent haben""",
    "auf+acc:person animal": """
        warten - - gewartet wait_for waits_for waited_for haben,
        auf|passen - - aufgepasst look_after looks_after looked_after haben""",
    "an+acc:person animal": "denken - - gedacht think_of thinks_of thought_of haben",
    "mit+dat:person": """
        sprechen sprichst spricht gesprochen talk_to talks_to talked_to haben,
        tanzen - - getanzt dance_with dances_with danced_with haben,
        streiten - - gestritten argue_with argues_with argued_with haben""",
    "von+dat:person animal": """
        träumen - - geträumt dream_of dreams_of dreamed_of haben,
        erzählen - - erzählt tell_of tells_of told_of haben""",
}
SAYING = """
    sagen - - gesagt say says said haben, hoffen - - gehofft hope hopes hoped haben,
    glauben - - geglaubt believe believes believed haben,
    hören - - gehört hear hears heard haben, vergessen vergisst vergisst vergessen
    forget forgets forgot haben"""

# Where somebody is, and where somebody goes.
PLACES = """
    im_Park in_the_park in_den_Park to_the_park,
    im_Garten in_the_garden in_den_Garten to_the_garden,
    in_der_Schule in_the_school in_die_Schule to_the_school,
    in_der_Stadt in_the_city in_die_Stadt to_the_city, im_Dorf in_the_village ins_Dorf
    to_the_village, im_Wald in_the_forest in_den_Wald to_the_forest,
    im_Haus in_the_house ins_Haus to_the_house, in_der_Küche in_the_kitchen in_die_Küche
    to_the_kitchen, im_Hotel in_the_hotel ins_Hotel to_the_hotel,
    in_der_Kirche in_the_church in_die_Kirche to_the_church,
    im_Theater in_the_theatre ins_Theater to_the_theatre,
    im_Museum in_the_museum ins_Museum to_the_museum,
    auf_dem_Markt at_the_market auf_den_Markt to_the_market,
    am_Bahnhof at_the_station zum_Bahnhof to_the_station, am_See at_the_lake zum_See to_the_lake,
    am_Fluss by_the_river zum_Fluss to_the_river, am_Strand on_the_beach zum_Strand to_the_beach,
    zu_Hause at_home nach_Hause home, in_Berlin in_Berlin nach_Berlin to_Berlin,
    in_Wien in_Vienna nach_Wien to_Vienna"""
ONLY_WHERE = """
    unter_dem_Baum under_the_tree, vor_dem_Haus in_front_of_the_house,
    hinter_der_Kirche behind_the_church, neben_der_Brücke next_to_the_bridge,
    auf_der_Straße on_the_street"""

ANY_TIME = """
    heute today, am_Morgen in_the_morning, am_Abend in_the_evening, am_Montag on_Monday,
    am_Freitag on_Friday, am_Sonntag on_Sunday, im_Sommer in_summer, im_Winter in_winter,
    in_der_Nacht at_night, nach_dem_Essen after_the_meal, um_acht_Uhr at_eight_o'clock"""
TIMES = {
    "present": "jeden_Tag every_day, jede_Woche every_week, meistens most_of_the_time",
    "past": "gestern yesterday, letzte_Woche last_week, vor_einem_Jahr a_year_ago",
    "future": "morgen tomorrow, bald soon, nächste_Woche next_week",
    "modal": "jetzt now, morgen tomorrow, bald soon",
}
OFTEN = "oft often, immer always, manchmal sometimes, nie never, selten rarely"

# German for ich, du, er, wir, ihr, sie; English auxiliary (- for do) and what follows it;
# the same where it is negated.
MODALS = """
    kann kannst kann können könnt können can - can -,
    muss musst muss müssen müsst müssen must - - have_to,
    will willst will wollen wollt wollen - want_to - want_to,
    darf darfst darf dürfen dürft dürfen may - may -,
    soll sollst soll sollen sollt sollen should - should -,
    möchte möchtest möchte möchten möchtet möchten would like_to would like_to"""
# Forms go in the order of the persons: ich, du, er, wir, ihr, sie.
SEIN = "bin bist ist sind seid sind".split()
WAR = "war warst war waren wart waren".split()
HABEN = "habe hast hat haben habt haben".split()
WERDEN = "werde wirst wird werden werdet werden".split()
BE = "am are is are are are".split()
WAS = "was were was were were were".split()
WISSEN = "weiß weißt weiß wissen wisst wissen".split()
PRONOUNS = {
    "nom": "ich I, du you, er he, sie she, wir we, ihr you, sie they",
    "acc": "mich me, dich you, ihn him, uns us, euch you",
    "dat": "mir me, dir you, ihm him, uns us, euch you, ihnen them",
}


class Noun(NamedTuple):
    """A noun in both languages."""

    singular: str
    weak: str  # what a weak noun adds in all cases but the nominative singular
    gender: str
    plural: str | None
    en: str
    en_plural: str
    kind: str


class Verb(NamedTuple):
    """A verb in both languages."""

    prefix: str  # of a separable verb
    infinitive: str
    present: list[str]  # a form for each person, without the prefix
    participle: str
    en: tuple[str, str, str]  # base, third person, past
    perfect: list[str]  # forms of haben or sein
    frame: str


class Phrase(NamedTuple):
    """A noun phrase or pronoun, in its case."""

    de: str
    en: str
    person: int  # 0 to 5, see the forms of verbs
    relative: str = ""  # who or that, and the German pronoun of a relative clause about it
    pronoun: bool = False


def entries(table):
    """The entries of a table, each a list of its words."""
    for entry in table.split(","):
        yield [word.replace("_", " ") for word in entry.split()]


def parse_noun(kind, words):
    """The `Noun` of an entry of the word list, split into its five words."""
    singular, gender, plural, en, en_plural = words
    singular, _, weak = singular.partition("/")
    return Noun(singular, weak, gender, None if plural == "-" else plural, en, en_plural, kind)


def parse_verb(frame, words):
    """A verb with its regular forms filled in.

    >>> parse_verb("", "auf|machen - - aufgemacht open opens opened haben".split()).present
    ['mache', 'machst', 'macht', 'machen', 'macht', 'machen']
    """
    infinitive, du, er, participle, *en, auxiliary = words
    prefix, _, plain = infinitive.rpartition("|")
    stem = plain.removesuffix("en")
    linked = stem + "e" if stem[-1] in "td" else stem
    du = linked + ("t" if stem[-1] in "sßzx" else "st") if du == "-" else du
    er = linked + "t" if er == "-" else er
    present = [stem + "e", du, er, plain, linked + "t", plain]
    perfect = SEIN if auxiliary == "sein" else HABEN
    return Verb(prefix, prefix + plain, present, participle, tuple(en), perfect, frame)


LEXICON = [parse_noun(kind, words) for kind, table in NOUNS.items() for words in entries(table)]
OF_KIND = {kind: [noun for noun in LEXICON if noun.kind == kind] for kind in NOUNS}
QUALITIES = {
    kind: [
        words
        for kinds, table in ADJECTIVES.items()
        if kind in kinds.split()
        for words in entries(table)
    ]
    for kind in NOUNS
}
PASSING = "müde hungrig glücklich traurig ruhig krank".split()  # today, and not tomorrow
PAINT = list(entries(COLOURS))
PAINTED = ("thing", "door", "clothing", "hat", "vehicle")
ALL_VERBS = [parse_verb(frame, words) for frame, table in VERBS.items() for words in entries(table)]
ANIMALS_DO = """schlafen warten schwimmen spielen aufwachen einschlafen laufen kommen essen trinken
    sehen suchen finden folgen""".split()
SAYINGS = [parse_verb("alone", words) for words in entries(SAYING)]
KNOW = Verb("", "wissen", WISSEN, "gewusst", ("know", "knows", "knew"), HABEN, "alone")
WHERE = [(de, en) for de, en, *_ in [*entries(PLACES), *entries(ONLY_WHERE)]]
WHERETO = [(de, en) for _, _, de, en in entries(PLACES)]
WHEN = {tense: [*entries(ANY_TIME), *entries(table)] for tense, table in TIMES.items()}
HOW_OFTEN = list(entries(OFTEN))
MODAL_VERBS = list(entries(MODALS))
PERSONS = {"ich": 0, "du": 1, "er": 2, "sie": 2, "wir": 3, "ihr": 4}
PRONOUN_LIST = {case: list(entries(table)) for case, table in PRONOUNS.items()}

# Noun phrases ------------------------------------------------------------------

# Endings by case, in the order m, f, n, plural.
GENDERS = ["m", "f", "n", "pl"]
ARTICLES = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
LIKE_DIESER = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}
LIKE_EIN = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en"}
AFTER_DER = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}
AFTER_EIN = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}
AFTER_NOTHING = {"nom": "- - - e", "acc": "- - - e", "dat": "- - - en"}
POSSESSIVES = [("mein", "my"), ("dein", "your"), ("sein", "his"), ("unser", "our")]


def ending(table, case, gender):
    """
    >>> ending(AFTER_EIN, "nom", "n")
    'es'
    """
    return table[case].split()[GENDERS.index(gender)].replace("-", "")


def determiner(rng, kind, case, gender):
    """(German, English, endings of an adjective behind it); English a may become an.

    `kind` is one of definite, indefinite, possessive, dieser, jeder, kein.
    """
    plural = gender == "pl"
    if kind == "definite":
        return ending(ARTICLES, case, gender), "the", AFTER_DER
    if kind == "dieser":
        return "dies" + ending(LIKE_DIESER, case, gender), "these" if plural else "this", AFTER_DER
    if kind == "jeder":
        return "jed" + ending(LIKE_DIESER, case, gender), "every", AFTER_DER
    if kind == "possessive":
        de, en = rng.choice(POSSESSIVES)
        return de + ending(LIKE_EIN, case, gender), en, AFTER_EIN
    if kind == "kein":
        return "kein" + ending(LIKE_EIN, case, gender), "" if plural else "a", AFTER_EIN
    if plural:
        return "", "", AFTER_NOTHING
    return "ein" + ending(LIKE_EIN, case, gender), "a", AFTER_EIN


def noun_phrase(rng, kinds, case, definite=False, negated=False):
    """A phrase about a noun of one of `kinds`.

    Args:
      definite: never a, an or a bare plural.
      negated: the phrase carries the negation of its clause, as kein does.
    """
    noun = rng.choice(OF_KIND[rng.choice(kinds)])
    gender = "pl" if noun.plural and rng.random() < 0.25 else noun.gender
    options = ["definite"] * 8 + ["dieser"] * 2
    if noun.en not in ("man", "woman"):  # whose possessive makes a husband or wife of them
        options += ["possessive"] * 3
    if noun.plural and not definite:
        options += ["indefinite"] * 6 + ["jeder"] * (gender != "pl")
    kind = "kein" if negated and noun.plural else rng.choice(options)
    article, en_article, endings = determiner(rng, kind, case, gender)

    de, en = [article], [en_article]
    if rng.random() < 0.3:
        adjectives = PAINT if noun.kind in PAINTED and rng.random() < 0.5 else QUALITIES[noun.kind]
        adjective = rng.choice(adjectives)
        de.append(adjective[0].removesuffix("e") + ending(endings, case, gender))
        en.append(adjective[len(adjective) // 2])
    if gender == "pl":
        de.append(noun.plural + ("n" if case == "dat" and noun.plural[-1] not in "ns" else ""))
        en.append(noun.en_plural)
    else:
        de.append(noun.singular + (noun.weak if case != "nom" else ""))
        en.append(noun.en)
    if en[0] == "a" and en[1][0] in "aeiou":
        en[0] = "an"
    relative = ("who " if noun.kind == "person" else "that ") + ending(ARTICLES, "nom", gender)
    return Phrase(join(de), join(en), 5 if gender == "pl" else 2, relative)


def pronoun(rng, case, subject=None):
    """A pronoun, which is not the subject's own person where there is a subject."""
    choices = PRONOUN_LIST[case]
    if subject is not None and subject.person in (0, 1, 3, 4):
        own = {0: "me us", 3: "me us", 1: "you", 4: "you"}[subject.person].split()
        choices = [choice for choice in choices if choice[1] not in own]
    de, en = rng.choice(choices)
    person = 5 if (de, en) == ("sie", "they") else PERSONS.get(de, 2)
    return Phrase(de, en, person, pronoun=True)


def join(parts):
    """The parts that are not empty, with blanks between them."""
    return " ".join(part for part in parts if part)


# Clauses -----------------------------------------------------------------------


class Clause:
    """A subject, a verb and what belongs to them, to be said in any order.

    German orders: `second` (the verb in second place, behind the subject), `first`
    (before the subject), `last` (at the end). English orders: `plain` and `question`.
    """

    def __init__(self, rng, verb, subject, tenses=("present", "past", "future", "modal")):
        self.subject = subject
        self.time = self.often = None
        self.pronouns, self.objects, self.behind = [], [], []  # pairs of German, English
        self.negated = rng.random() < 0.15 and not subject.de.startswith("jed")
        self.not_said = self.negated  # nicht, where no kein says it
        self.conjugate(rng, verb, rng.choice(tenses))

    def conjugate(self, rng, verb, tense):
        """Set the finite verb, its other half at the end, and the English verb."""
        person = self.subject.person
        self.tense, self.prefix, self.end = tense, "", ""
        self.auxiliary, self.forms = "", verb.en
        if tense == "present":
            self.finite, self.prefix = verb.present[person], verb.prefix
        elif tense == "past":
            self.finite, self.end = verb.perfect[person], verb.participle
        elif tense == "future":
            self.finite, self.end, self.auxiliary = WERDEN[person], verb.infinitive, "will"
        else:
            modal = rng.choice(MODAL_VERBS)
            self.finite, self.end = modal[person], verb.infinitive
            self.auxiliary, main = (
                part.replace("-", "") for part in modal[6:][2 * self.negated :][:2]
            )
            third = main.replace("want", "wants").replace("have", "has")
            base = verb.en[0]
            self.forms = join([main, base]), join([third, base]), ""

    def add_time(self, rng):
        """Say when it is."""
        self.time = rng.choice(WHEN[self.tense])

    def add_often(self, rng):
        """Never and rarely go with no modal, which they would negate, and with no every."""
        phrases = [self.subject.de, *(de for de, _ in [*self.objects, *self.behind])]
        every = any("jed" in phrase for phrase in phrases)
        rare = ("nie", "selten") if self.tense == "modal" or every else ()
        self.often = rng.choice([pair for pair in HOW_OFTEN if pair[0] not in rare])

    def german(self, order, opening=""):
        """Its words in German.

        Args:
          order: where the verb stands: "first", "second" or "last".
          opening: an adverb or question word before all of it.
        """
        nicht = "nicht" if self.not_said else ""
        middle = [de for de, _ in self.pronouns]
        middle += [pair[0] for pair in (self.time, self.often) if pair and pair[0] != opening]
        middle += [de for de, _ in self.objects] + [nicht] + [de for de, _ in self.behind]
        subject = self.subject.de
        if order == "last":
            return join([opening, subject, *middle, self.end, self.prefix + self.finite])
        head = [subject, self.finite] if order == "second" else [self.finite, subject]
        return join([opening, *head, *middle, self.end, self.prefix])

    def english(self, order, opening=""):
        """Its words in English.

        Args:
          order: "plain", or "question".
          opening: an adverb or question word before all of it.
        """
        often = self.often[1] if self.often else ""
        rest = [en for _, en in [*self.pronouns, *self.objects, *self.behind]]
        rest += [self.time[1]] if self.time and self.time[1] != opening else []
        subject, auxiliary, not_ = self.subject.en, self.auxiliary, "not" * self.negated
        base, third, past = self.forms
        singular = self.subject.person == 2
        if not auxiliary and not self.negated and order == "plain":
            verb = past if self.tense == "past" else third if singular else base
            return join([opening, subject, often, verb, *rest])
        if not auxiliary:
            auxiliary = "did" if self.tense == "past" else "does" if singular else "do"
        if order == "question":
            return join([opening, auxiliary, subject, not_, often, base, *rest])
        said = "cannot" if (auxiliary, not_) == ("can", "not") else join([auxiliary, not_])
        return join([opening, subject, said, often, base, *rest])


def some_subject(rng, kinds, relative=True):
    """A pronoun or a phrase in the nominative, now and then with a relative clause."""
    if rng.random() < 0.3:
        return pronoun(rng, "nom")
    subject = noun_phrase(rng, kinds, "nom")
    if rng.random() < 0.1:
        other = noun_phrase(rng, kinds, "nom", definite=True)
        return Phrase(f"{subject.de} und {other.de}", f"{subject.en} and {other.en}", 5)
    if relative and rng.random() < 0.12:
        en, de = subject.relative.split()
        verb = rng.choice([v for v in ALL_VERBS if v.infinitive in ANIMALS_DO])
        clause = verb_clause(rng, verb, Phrase(de, en, subject.person), bare=True)
        german, english = clause.german("last"), clause.english("plain")
        return Phrase(f"{subject.de}, {german},", f"{subject.en} {english}", subject.person)
    return subject


def verb_clause(rng, verb, subject, bare=False, without=(), **kwargs):
    """A clause with all that the verb's frame asks for.

    Args:
      bare: no adverbs.
      without: objects, and the place or time, that are left out: acc, place, time.
    """
    clause = Clause(rng, verb, subject, **kwargs)
    frame = verb.frame
    if frame == "to":
        clause.behind.append(rng.choice(WHERETO))
    elif ":" in frame:
        slots = []
        for word in frame.split():
            case, _, kind = word.rpartition(":")
            slots += [(case, [kind])] if case else []
            slots[-1][1].extend([] if case else [kind])
        for case, kinds in slots:
            if case not in without:
                add_object(rng, clause, case, kinds, alone=len(slots) == 1)
    if bare:
        return clause
    if frame not in ("to", "away") and "place" not in without and rng.random() < 0.3:
        clause.behind.append(rng.choice(WHERE))
    if "time" not in without:
        add_adverb(rng, clause)
    return clause


def add_adverb(rng, clause):
    """Say at times when, or how often, `clause` is so."""
    if rng.random() < 0.3:
        clause.add_time(rng)
    elif not clause.negated and rng.random() < 0.2:
        clause.add_often(rng)


def add_object(rng, clause, case, kinds, alone):
    """Put an object in the accusative or dative, or behind a preposition, into `clause`."""
    preposition, _, case = case.rpartition("+")
    if kinds[0] == "person" and (alone or case == "dat") and rng.random() < 0.25:
        phrase = pronoun(rng, case, clause.subject)
    else:
        kein = clause.not_said and case == "acc" and not preposition and rng.random() < 0.5
        phrase = noun_phrase(rng, kinds, case, definite=clause.negated, negated=kein)
        clause.not_said &= not phrase.de.startswith("kein")
    if preposition:
        clause.behind.append((f"{preposition} {phrase.de}", phrase.en))
    elif phrase.pronoun:
        clause.pronouns.append((phrase.de, phrase.en))
    else:
        clause.objects.append((phrase.de, phrase.en))


def copula_clause(rng):
    """Somebody is somehow, somewhere, or more so than somebody else."""
    kind = rng.choice(("person", "animal"))
    subject = some_subject(rng, [kind], relative=False)
    forms = [(SEIN, BE, "present"), (WAR, WAS, "past")]
    german, english, tense = rng.choice(forms)
    be = Verb("", "sein", german, "gewesen", ("", "", ""), german, "alone")
    clause = Clause(rng, be, subject, tenses=("present",))
    clause.tense, clause.auxiliary = tense, english[subject.person]
    adjective = rng.choice(QUALITIES[kind])
    draw = rng.random()
    if draw < 0.2:
        clause.behind.append(rng.choice(WHERE))
    elif draw < 0.4:
        other = noun_phrase(rng, [kind], "nom", definite=True)
        clause.behind.append((f"{adjective[1]} als {other.de}", f"{adjective[3]} than {other.en}"))
    else:
        clause.behind.append((adjective[0], adjective[2]))
        if adjective[0] in PASSING:
            add_adverb(rng, clause)
    return clause


def some_clause(rng, relative=True, **kwargs):
    """A clause with any verb; `kwargs` are those of `verb_clause`."""
    if rng.random() < 0.15 and not kwargs:
        return copula_clause(rng)
    verb = rng.choice(ALL_VERBS)
    kinds = ["person", "animal"] if verb.infinitive in ANIMALS_DO else ["person"]
    return verb_clause(rng, verb, some_subject(rng, kinds, relative), **kwargs)


# Sentences ---------------------------------------------------------------------


def statement(rng):
    """Somebody does something."""
    clause = some_clause(rng)
    return clause.german("second"), clause.english("plain"), "."


def inverted(rng):
    """An adverb opens the sentence, and the verb comes before its subject."""
    clause = some_clause(rng, without=("time",))
    clause.add_time(rng)
    german, english = clause.time
    return clause.german("first", german), clause.english("plain", english), "."


def question(rng):
    """Whether somebody does something."""
    clause = some_clause(rng, relative=False)
    return clause.german("first"), clause.english("question"), "?"


def why_where_when(rng):
    """Why, where or when somebody does something."""
    german, english, without = rng.choice(
        [("warum", "why", ()), ("wo", "where", ("place",)), ("wann", "when", ("time",))]
    )
    verbs = [verb for verb in ALL_VERBS if verb.frame not in ("to", "away") or german != "wo"]
    subject = some_subject(rng, ["person"], relative=False)
    clause = verb_clause(rng, rng.choice(verbs), subject, without=without)
    return clause.german("first", german), clause.english("question", english), "?"


def who(rng):
    """Who does something."""
    clause = verb_clause(rng, rng.choice(ALL_VERBS), Phrase("wer", "who", 2))
    return clause.german("second"), clause.english("plain"), "?"


def what(rng):
    """What somebody does something with."""
    verbs = [v for v in ALL_VERBS if v.frame.startswith("acc") and "person" not in v.frame]
    subject = some_subject(rng, ["person"], relative=False)
    clause = verb_clause(rng, rng.choice(verbs), subject, without=("acc",))
    return clause.german("first", "was"), clause.english("question", "what"), "?"


def two_clauses(main, german, english, other, order="last"):
    """A main clause and another behind a comma, the German one's verb in its `order`."""
    return (
        f"{main.german('second')}, {german} {other.german(order)}",
        f"{main.english('plain')}{english} {other.english('plain')}",
        ".",
    )


def subordinate(rng):
    """A main clause and one that says why, when or despite what, its verb at the end."""
    german, english = rng.choice([("weil", " because"), ("obwohl", " although"), ("wenn", " when")])
    tenses = dict(tenses=("present",)) if german == "wenn" else {}
    main = some_clause(rng, relative=False, **tenses)
    return two_clauses(main, german, english, some_clause(rng, relative=False, **tenses))


def said(rng):
    """Somebody says, hopes or knows that, or does not know whether."""
    subject = some_subject(rng, ["person"], relative=False)
    if rng.random() < 0.4:
        main = Clause(rng, KNOW, subject, tenses=("present",))
    else:
        main = Clause(rng, rng.choice(SAYINGS), subject, tenses=("present", "past"))
    whether = main.finite in WISSEN and main.negated
    german, english = ("ob", " whether") if whether else ("dass", " that")
    tenses = dict(tenses=("past",)) if main.tense == "past" else {}
    return two_clauses(main, german, english, some_clause(rng, relative=False, **tenses))


def but(rng):
    """Two main clauses, one against the other."""
    one, other = some_clause(rng, relative=False), some_clause(rng, relative=False)
    return two_clauses(one, "aber", ", but", other, order="second")


SENTENCES = [statement] * 6 + [inverted] * 4 + [question] * 3 + [why_where_when] * 2
SENTENCES += [who, what, but] + [subordinate] * 3 + [said] * 3


def sentence_pairs(seed):
    """Endless pairs of a German and an English sentence, each German one once."""
    rng = random.Random(seed)
    seen = set()
    while True:
        german, english, stop = rng.choice(SENTENCES)(rng)
        digest = int.from_bytes(blake2b(german.encode(), digest_size=8).digest(), "little")
        if max(german.count(" "), english.count(" ")) >= MAX_WORDS or digest in seen:
            continue
        seen.add(digest)
        # A relative clause that ends the sentence leaves a comma before the full stop.
        german = german.removesuffix(",").replace(",,", ",")
        yield german[0].upper() + german[1:] + stop, english[0].upper() + english[1:] + stop


# Files -------------------------------------------------------------------------


def training_lines(pairs):
    """Both sides' lines: the text, and before each hundred pairs the tags of a talk."""
    for number, pair in enumerate(pairs):
        if number % TALK == 0:
            talk = number // TALK + 1
            yield tuple(f"<url>{MARK}?lang={lang}&talk={talk}</url>" for lang in LANGUAGES)
            yield (f"<talkid>{talk}</talkid>",) * 2
        yield pair


def test_lines(pairs):
    """Both sides' lines: one document of numbered segments."""
    yield ('<?xml version="1.0" encoding="UTF-8"?>',) * 2
    yield ("<mteval>",) * 2
    yield tuple(f'<srcset setid="sample" srclang="{lang}">' for lang in LANGUAGES)
    yield tuple(f"<doc><url>{MARK}?lang={lang}</url>" for lang in LANGUAGES)
    for number, pair in enumerate(pairs, 1):
        yield tuple(f'<seg id="{number}"> {sentence} </seg>' for sentence in pair)
    yield ("</doc></srcset></mteval>",) * 2


def refuse_foreign(paths):
    """Raise FileExistsError for a file that was not written here."""
    for path in paths:
        if path.exists():
            with path.open("rb") as file:
                if MARK.encode() not in file.read(300):
                    raise FileExistsError(
                        f"{path} is there already and was not written by this program: choose"
                        " another --output, or move the file away"
                    )


def write_corpus(output, train, dev, test, seed):
    """Write the six files into the folder `output`; returns their paths.

    A corpus of any size takes no more memory than a number a sentence.

    Raises:
      OSError: a file is there that was not written here, or cannot be written.
    """
    folder = Path(output)
    train_paths = [folder / f"train.tags.de-en.{lang}" for lang in LANGUAGES]
    test_paths = [folder / f"IWSLT16.TED.tst2014.de-en.{lang}.xml" for lang in LANGUAGES]
    dev_paths = [folder / f"IWSLT16.TED.dev2010.de-en.{lang}.xml" for lang in LANGUAGES]
    paths = train_paths + dev_paths + test_paths
    refuse_foreign(paths)
    folder.mkdir(parents=True, exist_ok=True)

    pairs = sentence_pairs(seed)
    tests = list(itertools.islice(pairs, test))
    devs = list(itertools.islice(pairs, dev))
    held_out = {english for _, english in tests + devs}
    trains = itertools.islice((pair for pair in pairs if pair[1] not in held_out), train)
    write_beside(test_paths, test_lines(tests))
    write_beside(dev_paths, test_lines(devs))
    write_beside(train_paths, training_lines(trains))
    for path in paths:  # all of them are whole by now
        os.replace(beside(path), path)
    return paths


def beside(path):
    """What the file at `path` is called until it is whole."""
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def write_beside(paths, lines):
    """Write both sides of `lines`, under names that are not yet theirs."""
    with beside(paths[0]).open("wb") as german, beside(paths[1]).open("wb") as english:
        for de, en in lines:
            german.write(f"{de}\n".encode())
            english.write(f"{en}\n".encode())


def main():
    """Write the corpus that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--output", default="corpora", help="folder to write to (default: corpora)")
    parser.add_argument("--train", type=int, default=20_000, help="pairs to train on")
    parser.add_argument("--dev", type=int, default=200, help="pairs to watch the training with")
    parser.add_argument("--test", type=int, default=1_000, help="pairs to test on")
    parser.add_argument("--seed", type=int, default=0, help="another seed, other sentences")
    args = parser.parse_args()
    if min(args.train, args.dev, args.test) < 1:
        parser.error("--train, --dev and --test must be at least 1")
    try:
        paths = write_corpus(args.output, args.train, args.dev, args.test, args.seed)
    except OSError as error:
        parser.error(str(error))
    print("\n".join(map(str, paths)))


if __name__ == "__main__":
    main()
