"""Write a German-English corpus from a small grammar, in the files of IWSLT 2016.

    python corpora/sample.py --output corpora/sample --train 20000 --dev 200 --test 1000

The sentences have gender, case and agreement, verbs in second position and at the end, separable
verbs, modals, negation, questions, relative and subordinate clauses, and inversion after an
adverb. Each German sentence has one translation. The same seed gives the same bytes, and a larger
--train only adds pairs at the end. No development or test sentence, German or English, is in the
training text.
"""

import contextlib
import itertools
import random
import sys
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.cli import Parser, parse_path, run_script
from runtime.errors import InputError
from runtime.files import atomic_open, make_folder

MAX_WORDS = 14  # in the longer side of a pair
LANGUAGES = ("de", "en")
TALK_PAIRS = 100  # pairs between two headers of markup lines
SIGNATURE = "corpora/sample.py"  # in the first lines of every file that this script writes

# Words -------------------------------------------------------------------------

# German singular, gender, plural; English singular, plural. A singular with a slash is a weak
# noun: the ending after the slash is added in all cases but the nominative singular.
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

# German, its comparative, English, its comparative, by the kinds of nouns they describe.
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
COLOUR_TABLE = "rot red, blau blue, grün green, schwarz black, weiß white, gelb yellow, braun brown"

# German infinitive (a bar after a separable prefix), forms for du and er (- if regular),
# participle; English base form, third person, past; auxiliary of the perfect. The key is the
# frame: the objects that the verb requires. Underscores are spaces.
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
SPEECH_VERB_TABLE = """
    sagen - - gesagt say says said haben, hoffen - - gehofft hope hopes hoped haben,
    glauben - - geglaubt believe believes believed haben,
    hören - - gehört hear hears heard haben, vergessen vergisst vergisst vergessen
    forget forgets forgot haben"""

# German and English location, then German and English destination.
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
MORE_LOCATIONS = """
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
FREQUENCY_TABLE = "oft often, immer always, manchmal sometimes, nie never, selten rarely"

# German forms for ich, du, er, wir, ihr, sie; English auxiliary (- for do) and the words after
# it; the same two if negated.
MODALS = """
    kann kannst kann können könnt können can - can -,
    muss musst muss müssen müsst müssen must - - have_to,
    will willst will wollen wollt wollen - want_to - want_to,
    darf darfst darf dürfen dürft dürfen may - may -,
    soll sollst soll sollen sollt sollen should - should -,
    möchte möchtest möchte möchten möchtet möchten would like_to would like_to"""
# Forms are in the order of the persons: ich, du, er, wir, ihr, sie.
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
    weak: str  # ending of a weak noun in all cases but the nominative singular
    gender: str
    plural: str | None
    en: str
    en_plural: str
    kind: str


class Verb(NamedTuple):
    """A verb in both languages."""

    prefix: str  # the separable prefix, or empty
    infinitive: str
    present: list[str]  # one form per person, without the prefix
    participle: str
    en: tuple[str, str, str]  # base, third person, past
    perfect: list[str]  # forms of haben or sein
    frame: str  # the objects that it requires, see VERBS


class Phrase(NamedTuple):
    """A noun phrase or pronoun in one case."""

    de: str
    en: str
    person: int  # 0 to 5, the index of a verb's form
    relative: str = ""  # English and German pronoun of a relative clause about it
    pronoun: bool = False


def entries(table):
    """Yield the entries of a table, each as a list of its words."""
    for entry in table.split(","):
        yield [word.replace("_", " ") for word in entry.split()]


def parse_noun(kind, words):
    """Make a `Noun` from the five words of its entry."""
    singular, gender, plural, en, en_plural = words
    singular, _, weak = singular.partition("/")
    return Noun(singular, weak, gender, None if plural == "-" else plural, en, en_plural, kind)


def parse_verb(frame, words):
    """Make a `Verb` from the words of its entry, and add its regular forms.

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
NOUNS_BY_KIND = {kind: [noun for noun in LEXICON if noun.kind == kind] for kind in NOUNS}
ADJECTIVES_BY_KIND = {
    kind: [
        words
        for kinds, table in ADJECTIVES.items()
        if kind in kinds.split()
        for words in entries(table)
    ]
    for kind in NOUNS
}
TEMPORARY = "müde hungrig glücklich traurig ruhig krank".split()  # states that may pass
COLOURS = list(entries(COLOUR_TABLE))
COLOURED_KINDS = ("thing", "door", "clothing", "hat", "vehicle")
ALL_VERBS = [parse_verb(frame, words) for frame, table in VERBS.items() for words in entries(table)]
ANIMAL_VERBS = """schlafen warten schwimmen spielen aufwachen einschlafen laufen kommen essen
    trinken sehen suchen finden folgen""".split()
SPEECH_VERBS = [parse_verb("alone", words) for words in entries(SPEECH_VERB_TABLE)]
KNOW = Verb("", "wissen", WISSEN, "gewusst", ("know", "knows", "knew"), HABEN, "alone")
LOCATIONS = [(de, en) for de, en, *_ in [*entries(PLACES), *entries(MORE_LOCATIONS)]]
DESTINATIONS = [(de, en) for _, _, de, en in entries(PLACES)]
TIMES_BY_TENSE = {tense: [*entries(ANY_TIME), *entries(table)] for tense, table in TIMES.items()}
FREQUENCIES = list(entries(FREQUENCY_TABLE))
MODAL_VERBS = list(entries(MODALS))
PERSON_OF_PRONOUN = {"ich": 0, "du": 1, "er": 2, "sie": 2, "wir": 3, "ihr": 4}
PRONOUNS_BY_CASE = {case: list(entries(table)) for case, table in PRONOUNS.items()}

# Noun phrases ------------------------------------------------------------------

# Endings by case, in the order m, f, n, plural.
GENDERS = ["m", "f", "n", "pl"]
ARTICLES = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem den"}
DER_WORD_ENDINGS = {"nom": "er e es e", "acc": "en e es e", "dat": "em er em en"}
EIN_WORD_ENDINGS = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em en"}
# Endings of adjectives: weak after der, mixed after ein, strong without an article.
WEAK_ENDINGS = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en en"}
MIXED_ENDINGS = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en en"}
STRONG_ENDINGS = {"nom": "- - - e", "acc": "- - - e", "dat": "- - - en"}
POSSESSIVES = [("mein", "my"), ("dein", "your"), ("sein", "his"), ("unser", "our")]


def ending(table, case, gender):
    """Return the ending for a case and gender.

    >>> ending(MIXED_ENDINGS, "nom", "n")
    'es'
    """
    return table[case].split()[GENDERS.index(gender)].replace("-", "")


def determiner(rng, kind, case, gender):
    """Draw a determiner.

    Args:
      kind: "definite", "indefinite", "possessive", "dieser", "jeder" or "kein".

    Returns:
      (str, str, dict): German, English (a, even if it must become an), and the endings of an
      adjective after it.
    """
    plural = gender == "pl"
    if kind == "definite":
        return ending(ARTICLES, case, gender), "the", WEAK_ENDINGS
    if kind == "dieser":
        de = "dies" + ending(DER_WORD_ENDINGS, case, gender)
        return de, "these" if plural else "this", WEAK_ENDINGS
    if kind == "jeder":
        return "jed" + ending(DER_WORD_ENDINGS, case, gender), "every", WEAK_ENDINGS
    if kind == "possessive":
        de, en = rng.choice(POSSESSIVES)
        return de + ending(EIN_WORD_ENDINGS, case, gender), en, MIXED_ENDINGS
    if kind == "kein":
        return "kein" + ending(EIN_WORD_ENDINGS, case, gender), "" if plural else "a", MIXED_ENDINGS
    if plural:
        return "", "", STRONG_ENDINGS
    return "ein" + ending(EIN_WORD_ENDINGS, case, gender), "a", MIXED_ENDINGS


def noun_phrase(rng, kinds, case, definite=False, negated=False):
    """Draw a phrase with a noun of one of `kinds`.

    Args:
      definite: whether the phrase must be definite (not a, an or a bare plural).
      negated: whether the phrase negates its clause with kein, if the noun has a plural.
    """
    noun = rng.choice(NOUNS_BY_KIND[rng.choice(kinds)])
    gender = "pl" if noun.plural and rng.random() < 0.25 else noun.gender
    options = ["definite"] * 8 + ["dieser"] * 2
    if noun.en not in ("man", "woman"):  # with a possessive these are husband and wife
        options += ["possessive"] * 3
    if noun.plural and not definite:
        options += ["indefinite"] * 6 + ["jeder"] * (gender != "pl")
    kind = "kein" if negated and noun.plural else rng.choice(options)
    article, en_article, endings = determiner(rng, kind, case, gender)

    de, en = [article], [en_article]
    if rng.random() < 0.3:
        has_colour = noun.kind in COLOURED_KINDS and rng.random() < 0.5
        adjective = rng.choice(COLOURS if has_colour else ADJECTIVES_BY_KIND[noun.kind])
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
    """Draw a pronoun, of another person than `subject` if that is given."""
    choices = PRONOUNS_BY_CASE[case]
    if subject is not None and subject.person in (0, 1, 3, 4):
        own = {0: "me us", 3: "me us", 1: "you", 4: "you"}[subject.person].split()
        choices = [choice for choice in choices if choice[1] not in own]
    de, en = rng.choice(choices)
    person = 5 if (de, en) == ("sie", "they") else PERSON_OF_PRONOUN.get(de, 2)
    return Phrase(de, en, person, pronoun=True)


def join(parts) -> str:
    """Join the parts that are not empty with spaces."""
    return " ".join(part for part in parts if part)


# Clauses -----------------------------------------------------------------------


class Clause:
    """A subject, a verb, its objects and adverbs, which can be put in several orders.

    German orders: `second` (the verb after the subject, in second position), `first` (before the
    subject), `last` (at the end). English orders: `plain` and `question`.
    """

    def __init__(self, rng, verb, subject, tenses=("present", "past", "future", "modal")):
        self.subject = subject
        self.time = self.frequency = None
        self.pronouns, self.objects, self.complements = [], [], []  # pairs of German, English
        self.negated = rng.random() < 0.15 and not subject.de.startswith("jed")
        self.needs_nicht = self.negated  # unless an object with kein negates the clause
        self.conjugate(rng, verb, rng.choice(tenses))

    def conjugate(self, rng, verb, tense):
        """Set the finite verb, the verb form at the end, and the English verb."""
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
        """Add an adverb of time that fits the tense."""
        self.time = rng.choice(TIMES_BY_TENSE[self.tense])

    def add_frequency(self, rng):
        """Add an adverb of frequency.

        "Never" and "rarely" are left out with a modal, which they would negate, and with "every".
        """
        phrases = [self.subject.de, *(de for de, _ in [*self.objects, *self.complements])]
        every = any("jed" in phrase for phrase in phrases)
        rare = ("nie", "selten") if self.tense == "modal" or every else ()
        self.frequency = rng.choice([pair for pair in FREQUENCIES if pair[0] not in rare])

    def german(self, order, opening=""):
        """Return the German words.

        Args:
          order: position of the verb: "first", "second" or "last".
          opening: adverb or question word that opens the clause.
        """
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
        """Return the English words.

        Args:
          order: "plain" or "question".
          opening: adverb or question word that opens the clause.
        """
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
    """Draw a pronoun or a phrase in the nominative, sometimes with a relative clause."""
    if rng.random() < 0.3:
        return pronoun(rng, "nom")
    subject = noun_phrase(rng, kinds, "nom")
    if rng.random() < 0.1:
        other = noun_phrase(rng, kinds, "nom", definite=True)
        return Phrase(f"{subject.de} und {other.de}", f"{subject.en} and {other.en}", 5)
    if relative and rng.random() < 0.12:
        en, de = subject.relative.split()
        verb = rng.choice([v for v in ALL_VERBS if v.infinitive in ANIMAL_VERBS])
        clause = verb_clause(rng, verb, Phrase(de, en, subject.person), bare=True)
        german, english = clause.german("last"), clause.english("plain")
        return Phrase(f"{subject.de}, {german},", f"{subject.en} {english}", subject.person)
    return subject


def verb_clause(rng, verb, subject, bare=False, without=(), **kwargs):
    """Draw a clause with the objects that the verb's frame requires.

    Args:
      bare: whether to leave out all adverbs.
      without: the parts to leave out: "acc", "place", "time".
    """
    clause = Clause(rng, verb, subject, **kwargs)
    frame = verb.frame
    if frame == "to":
        clause.complements.append(rng.choice(DESTINATIONS))
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
        clause.complements.append(rng.choice(LOCATIONS))
    if "time" not in without:
        add_adverb(rng, clause)
    return clause


def add_adverb(rng, clause):
    """Sometimes add an adverb of time or of frequency to `clause`."""
    if rng.random() < 0.3:
        clause.add_time(rng)
    elif not clause.negated and rng.random() < 0.2:
        clause.add_frequency(rng)


def add_object(rng, clause, case, kinds, alone):
    """Add an object in the accusative or dative, or after a preposition, to `clause`."""
    preposition, _, case = case.rpartition("+")
    if kinds[0] == "person" and (alone or case == "dat") and rng.random() < 0.25:
        phrase = pronoun(rng, case, clause.subject)
    else:
        kein = clause.needs_nicht and case == "acc" and not preposition and rng.random() < 0.5
        phrase = noun_phrase(rng, kinds, case, definite=clause.negated, negated=kein)
        clause.needs_nicht &= not phrase.de.startswith("kein")
    if preposition:
        clause.complements.append((f"{preposition} {phrase.de}", phrase.en))
    elif phrase.pronoun:
        clause.pronouns.append((phrase.de, phrase.en))
    else:
        clause.objects.append((phrase.de, phrase.en))


def copula_clause(rng):
    """Draw a clause with sein: a quality, a location or a comparison."""
    kind = rng.choice(("person", "animal"))
    subject = some_subject(rng, [kind], relative=False)
    forms = [(SEIN, BE, "present"), (WAR, WAS, "past")]
    german, english, tense = rng.choice(forms)
    be = Verb("", "sein", german, "gewesen", ("", "", ""), german, "alone")
    clause = Clause(rng, be, subject, tenses=("present",))
    clause.tense, clause.auxiliary = tense, english[subject.person]
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
            add_adverb(rng, clause)
    return clause


def some_clause(rng, relative=True, **kwargs):
    """Draw a clause with any verb; `kwargs` are those of `verb_clause`."""
    if rng.random() < 0.15 and not kwargs:
        return copula_clause(rng)
    verb = rng.choice(ALL_VERBS)
    kinds = ["person", "animal"] if verb.infinitive in ANIMAL_VERBS else ["person"]
    return verb_clause(rng, verb, some_subject(rng, kinds, relative), **kwargs)


# Sentences ---------------------------------------------------------------------


def statement(rng):
    """Draw a main clause."""
    clause = some_clause(rng)
    return clause.german("second"), clause.english("plain"), "."


def inversion(rng):
    """Draw a main clause that opens with an adverb; the German verb then precedes its subject."""
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
    german, english, without = rng.choice(
        [("warum", "why", ()), ("wo", "where", ("place",)), ("wann", "when", ("time",))]
    )
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
    """Draw a main clause and a subordinate clause with because, although or when."""
    german, english = rng.choice([("weil", " because"), ("obwohl", " although"), ("wenn", " when")])
    tenses = dict(tenses=("present",)) if german == "wenn" else {}
    main = some_clause(rng, relative=False, **tenses)
    return two_clauses(main, german, english, some_clause(rng, relative=False, **tenses))


def reported_speech(rng):
    """Draw a main clause with a verb of saying or knowing, and a clause with that or whether."""
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
        digest = int.from_bytes(blake2b(german.encode(), digest_size=8).digest(), "little")
        if max(german.count(" "), english.count(" ")) >= MAX_WORDS or digest in seen:
            continue
        seen.add(digest)
        # A relative clause at the end leaves a comma before the full stop.
        german = german.removesuffix(",").replace(",,", ",")
        yield german[0].upper() + german[1:] + stop, english[0].upper() + english[1:] + stop


# Files -------------------------------------------------------------------------


def talk_lines(pairs):
    """Yield the lines of both sides: the text, and markup lines before each talk."""
    for number, pair in enumerate(pairs):
        if number % TALK_PAIRS == 0:
            talk = number // TALK_PAIRS + 1
            yield tuple(f"<url>{SIGNATURE}?lang={lang}&talk={talk}</url>" for lang in LANGUAGES)
            yield (f"<talkid>{talk}</talkid>",) * 2
        yield pair


def xml_lines(pairs):
    """Yield the lines of both sides: one XML document of numbered segments."""
    yield ('<?xml version="1.0" encoding="UTF-8"?>',) * 2
    yield ("<mteval>",) * 2
    yield tuple(f'<srcset setid="sample" srclang="{lang}">' for lang in LANGUAGES)
    yield tuple(f"<doc><url>{SIGNATURE}?lang={lang}</url>" for lang in LANGUAGES)
    for number, pair in enumerate(pairs, 1):
        yield tuple(f'<seg id="{number}"> {sentence} </seg>' for sentence in pair)
    yield ("</doc></srcset></mteval>",) * 2


def check_own_files(paths):
    """Raise InputError if one of the files exists and was not written by this script."""
    for path in paths:
        if path.exists():
            with path.open("rb") as file:
                if SIGNATURE.encode() not in file.read(300):
                    raise InputError(
                        f"{path}: exists already, and this script did not write it. Choose another"
                        " --output, or move the file away"
                    )


def write_corpus(output, train, dev, test, seed):
    """Write the six files into the folder `output`, and return their paths.

    Training pairs are written as they are drawn. Memory holds one number per pair. The files get
    their names when all six are complete.

    Raises:
      OSError: a file cannot be written.
    """
    folder = Path(output)
    train_paths = [folder / f"train.tags.de-en.{lang}" for lang in LANGUAGES]
    test_paths = [folder / f"IWSLT16.TED.tst2014.de-en.{lang}.xml" for lang in LANGUAGES]
    dev_paths = [folder / f"IWSLT16.TED.dev2010.de-en.{lang}.xml" for lang in LANGUAGES]
    paths = train_paths + dev_paths + test_paths
    check_own_files(paths)
    make_folder(folder)

    pairs = sentence_pairs(seed)
    tests = list(itertools.islice(pairs, test))
    devs = list(itertools.islice(pairs, dev))
    held_out = {english for _, english in tests + devs}
    trains = itertools.islice((pair for pair in pairs if pair[1] not in held_out), train)
    with contextlib.ExitStack() as stack:
        for part_paths, lines in (
            (test_paths, xml_lines(tests)),
            (dev_paths, xml_lines(devs)),
            (train_paths, talk_lines(trains)),
        ):
            files = [stack.enter_context(atomic_open(path)) for path in part_paths]
            for pair in lines:
                for file, line in zip(files, pair, strict=True):
                    file.write(f"{line}\n".encode())
    return paths


def main(args):
    """Write the corpus that the command line asks for."""
    paths = write_corpus(args.output, args.train, args.dev, args.test, args.seed)
    print("\n".join(map(str, paths)))


def parse_args():
    """Parse the command line."""
    parser = Parser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--output", type=parse_path, default="corpora", help="folder to write to (default: corpora)"
    )
    parser.add_argument("--train", type=int, default=20_000, help="training pairs")
    parser.add_argument("--dev", type=int, default=200, help="pairs of the development set")
    parser.add_argument("--test", type=int, default=1_000, help="pairs of the test set")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random sentences")
    args = parser.parse_args()
    if min(args.train, args.dev, args.test) < 1:
        parser.error("--train, --dev and --test must be at least 1")
    return args


if __name__ == "__main__":
    run_script(main, parse_args())
