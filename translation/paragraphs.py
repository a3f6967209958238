"""Split text into sentences that a model reads completely, and join their translations."""

import itertools
from typing import NamedTuple

import regex
import sentencex

from text.lines import language_code
from translation.spans import HTML_TAG, SPACED_LETTER

LINE_BREAK = regex.compile(r"([\n\r\v\f\x1c-\x1e\x85\u2028\u2029]\s*+)")  # and empty lines
WHITE_SPACE = regex.compile(r"\s")  # sentencex fails at some of it, as U+3000
LETTER = regex.compile(r"\p{L}")
AND_SO_ON = r"(?<=\b(?:atd|atď|ecc|enz|etc|itd|jne|m\.m|osv|stb|usw|κ\.λπ|т\.\s[дп])\.\s)(?=\p{Lu})"
# Where sentencex misses the end of a sentence, in some languages: also before a number.
MISSED = regex.compile(rf"{AND_SO_ON}|(?<=\p{{L}}{{4}}\.\s|。)(?=\d)", regex.V1)
# Common ones that sentencex lacks in some language, and that end no sentence in another one.
ABBREVIATIONS = (
    "abt|approx|aprox|chap|cia|dept|dipl|dna|dra|exkl|godz|gral|ifj|inkl|inż|kath|lic|mevr|mlle|mme"
    "|prof|profa|pág|resp|sta|séc|им|обл|рис|табл|σελ|डॉ"
)
CONSONANT = "[bcdfghjklmnpqrstvwxzçñčďłńřśšťźžżбвгджзклмнпрстфхцчшщβγδζθκλμνξπρσςτφχψ]"
START = r"(?<![^\s\p{Ps}\p{Pi}\p{Pd}])"  # of a word, but not of the "t" of "don't"
# Where sentencex ends a sentence that goes on.
GOES_ON = rf"""
    (?<=\b(?:(?!\p{{Lu}}{{2}})(?i:{ABBREVIATIONS})|\p{{L}}{{1,20}}(?:dr|str)|Av|TP|TS
        |[advn](?:\.\s?C)?)\.\s++)  # Mme. Petit, 300 v. Chr.
    | (?<=(?<!\p{{N}}\s){START}(?:[\p{{Lu}}\p{{Lo}}]|(?i:{CONSONANT}){CONSONANT}{{,3}})
        \.\s++)  # M. Dupont, Hr. Holm; but 5 km. ends
    | (?<=(?<!\p{{L}})\p{{L}}{{1,3}}\.\s++)(?=\d++(?![.)]\s))  # vol. 2
    | (?<=[.!?][\p{{Pe}}\p{{Pf}}\"']*+)(?![\s\p{{Han}}\p{{Hiragana}}\p{{Katakana}}])  # a.b
    | (?<=[\p{{Pe}}\p{{Pf}}])(?=\p{{L}})  # 「はい。」と言った。
"""
SMALL_LETTER = r"| (?=\W{0,6}(?!\p{Georgian})\p{Ll}++\b)"  # iPhone begins a sentence
ORDINAL = rf"| (?<={START}(?:\d{{1,3}}|[IVXLC]++)\.\s++)"  # 2. Weltkrieg
HAS_ORDINALS = set("az bs cs da de et eu fi fo hr hu is lb lv nb nn no pl sk sl sr tr".split())
# Of the scripts without spaces between words, only Chinese and Japanese write none between
# sentences: their punctuation is as wide as a character.
WIDE_END = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\u3001-\u303f\uff01-\uff65][\p{Pi}\p{Pf}\p{Pe}…—]*+$"
)
INSIDE_WORD = regex.compile(rf"{SPACED_LETTER.pattern}$", regex.VERSION1)
# Where a sentence that is too long is split, the best places first: after the end of a sentence,
# after a clause, at a space. Within numbers, as in 3.5 or 10:30, there is no such place.
BOUNDARIES = (
    regex.compile(r"[.!?…؟۔।॥։።](?=[\p{Pe}\p{Pf}\"']?+\s)|[。！？｡][\p{Pe}\p{Pf}]?+"),
    regex.compile(r"[,;:،؛፣](?=\s)|(?<=\s)[-–—]++(?=\s)|[、，；：､]|——"),
    regex.compile(r"\s"),
)
CLUSTER = regex.compile(r"\X")  # a character as a reader sees it
# The symbol of a target language, which a source of a model for several languages begins with.
TARGET_SYMBOL = regex.compile(r">>[^\s<>]+<<(?!\S)")
SYMBOL_TOKENS = 2  # at most: the symbol, and the space before it


class Paragraph(NamedTuple):
    """A text: its sentences, and the white space before each of them and after the last one."""

    sentences: list[str]
    gaps: list[str]  # one more than sentences
    symbol: str = ""  # which the text begins with, and which belongs to all of its sentences
    prefix: str = ""  # the first words of the translation

    @property
    def inputs(self) -> list[str]:
        """The sentences as the model reads them."""
        return [
            f"{self.symbol} {own}" if self.symbol and not TARGET_SYMBOL.match(own) else own
            for own in self.sentences
        ]

    @classmethod
    def from_pieces(cls, pieces):
        """Make the paragraph of pieces that hold a sentence, or white space only.

        >>> Paragraph.from_pieces(["Eins.  ", "Zwei.", "\\n"])[:2]
        (['Eins.', 'Zwei.'], ['', '  ', '\\n'])
        """
        sentences, gaps = [], [""]
        for piece in pieces:
            if sentence := piece.strip():
                before, after = piece.split(sentence, 1)
                sentences.append(sentence)
                gaps[-1] += before
                gaps.append(after)
            else:
                gaps[-1] += piece
        return cls(sentences, gaps)

    def joints(self, translations) -> list[str]:
        """Return what follows each translation; after the last one, the white space of the text."""
        rows = zip(self.sentences[:-1], self.gaps[1:], translations, strict=False)
        return [*itertools.starmap(joint, rows), *self.gaps[1:][-1:]]

    def join(self, translations) -> str:
        """Put the translations of the sentences into their places."""
        pairs = zip(translations, self.joints(translations), strict=True)
        return "".join([self.gaps[0], *itertools.chain(*pairs)])


def joint(sentence, gap, translation) -> str:
    """Return what separates the translation of a sentence from the next one.

    White space other than a space stays as it is. Where the source has spaces or nothing, the end
    of the translation decides: nothing follows Chinese and Japanese, a space follows other scripts.
    Several spaces stay, and a word that was too long for the model stays one word.

    >>> joint("Gut.", " ", "好。"), joint("好。", "", "Good."), joint("Gut.", "\\n", "好。")
    ('', ' ', '\\n')
    """
    if gap.strip(" \u3000"):
        return gap
    if WIDE_END.search(translation):
        return ""
    if " " in gap or not translation or not gap and INSIDE_WORD.search(sentence):
        return gap
    return " "


# Sentences ----------------------------------------------------------


def as_one_sentence(text, prefix="") -> Paragraph:
    """Return a text that is one sentence, in one line."""
    return Paragraph([text.replace("\n", " ")], ["", ""], prefix=prefix)


def split_lines(text) -> Paragraph:
    """Split text into its lines, each of them a sentence."""
    return Paragraph.from_pieces(text.splitlines(keepends=True))


class Splitter:
    """Split text into sentences, and those of more than `max_tokens` (with `</S>`) into parts.

    Where a text begins with the symbol of a target language, as `>>de<<`, each sentence gets it.
    An unknown language has common rules.
    """

    def __init__(self, language, vocab, max_tokens):
        self.language = language_code(language)
        self.vocab, self.max_tokens = vocab, max_tokens

    def __call__(self, text) -> Paragraph:
        match = TARGET_SYMBOL.match(text.lstrip())
        symbol = match[0] if match and self.is_symbol(match[0]) else ""
        max_tokens = self.max_tokens - (SYMBOL_TOKENS if symbol else 0)
        pieces = []
        for line in LINE_BREAK.split(HTML_TAG.sub("", text)):
            for piece in split_sentences(line, self.language) if line.strip() else [line]:
                pieces += self.fit(piece, max_tokens)
        return Paragraph.from_pieces(with_tags(pieces, text))._replace(symbol=symbol)

    def is_symbol(self, word) -> bool:
        """Whether the vocabulary has a word as one subword."""
        (ids,) = self.vocab.encode(self.vocab.prepare([word]))
        return len(ids) <= SYMBOL_TOKENS + 1 and self.vocab.decode(ids[:-1]) == word

    def fit(self, piece, max_tokens) -> list[str]:
        """Split a piece that has too many tokens, as often as it needs."""
        (ids,) = self.vocab.encode(self.vocab.prepare([piece.strip()]))
        if len(ids) <= max_tokens or len(piece) == 1:
            return [piece]
        return [*itertools.chain(*(self.fit(half, max_tokens) for half in halves(piece)))]


def split_sentences(line, language) -> list[str]:
    """Split a line, which has no line break in it, into pieces. Each has a sentence.

    >>> split_sentences("1. Am 3. Mai kam M. Lang. Er ging. 😀", "de")
    ['1. Am 3. Mai kam M. Lang. ', 'Er ging. 😀']
    """
    segments = sentencex.segment(language, WHITE_SPACE.sub(" ", line))
    lengths = [len(part) for segment in segments for part in MISSED.split(segment)]
    rules = GOES_ON + SMALL_LETTER * (not line.islower()) + ORDINAL * (language in HAS_ORDINALS)
    goes_on = regex.compile(rf"(?!{AND_SO_ON})(?:{rules})", regex.V1 | regex.X)
    pieces, begin, has_letter = [], 0, False
    for start, end in itertools.pairwise(itertools.accumulate(lengths, initial=0)):
        has_letter = has_letter or bool(LETTER.search(line, start, end))
        if has_letter and (end == len(line) or not goes_on.match(line, end)):
            pieces.append(line[begin:end])
            begin, has_letter = end, False
    return [*pieces[:-1], "".join(pieces[-1:]) + line[begin:]]  # a number or an emoji at the end


def with_tags(pieces, text) -> list[str]:
    """Return pieces of HTML's text with its tags. An end tag belongs to the piece before it."""
    tag, found, position = HTML_TAG.pattern, [], 0
    for piece in pieces if HTML_TAG.search(text) else ():
        whole = rf"(?s)(?:(?:{tag})*+.){{{len(piece)}}}(?:\ue000/\w*+\ue001)*+"
        found.append(regex.compile(whole).match(text, position)[0])
        position += len(found[-1])
    return [*found[:-1], found[-1] + text[position:]] if found else pieces


# Parts of long sentences --------------------------------------------


def halves(text) -> tuple[str, str]:
    """Split text of two characters or more at the best place near its middle.

    >>> halves("Wenn es morgen regnet, bleiben wir alle zu Hause.")
    ('Wenn es morgen regnet,', ' bleiben wir alle zu Hause.')
    """
    middle = len(text) // 2
    for margin in (max(1, len(text) // 4), 1):
        for boundary in BOUNDARIES:
            ends = (match.end() for match in boundary.finditer(text, margin, len(text) - margin))
            place = min(ends, key=lambda end: abs(end - middle), default=0)
            if 0 < place < len(text):
                return text[:place], text[place:]
    ends = [match.end() for match in CLUSTER.finditer(text)][:-1]
    place = min(ends, key=lambda end: abs(end - middle), default=middle)
    return text[:place], text[place:]
