"""Text: how a line becomes a normalized sentence, and two files become pairs of sentences.

Only a line feed ends a line: other characters would shift one side against the other.
"""

import contextlib
import gzip
import itertools
import unicodedata
import zlib
from xml.sax.saxutils import unescape

import regex
from tqdm import tqdm

from support.errors import InputError
from support.flags import split_paths

# A line -------------------------------------------------------------

# Character classes of invisible characters: control characters, soft hyphens, zero-width spaces,
# marks of direction, byte-order marks; and joiners, which in many scripts change how letters look.
# They have no effect after the characters UNJOINED, nor has a non-joiner before a space.
INVISIBLE = (
    r"\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u034f\u061c\u17b4\u17b5\u200b\u200e\u200f"
    r"\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
)
JOINERS = r"\u200c\u200d"
UNJOINED = (
    r"\p{Latin}\p{Greek}\p{Cyrillic}\p{Armenian}\p{Georgian}\p{Hebrew}\p{Ethiopic}\p{Thai}\p{Lao}"
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{N}\p{P}\p{Sc}\p{Sm}\p{Z}\s"
)
LOOSE_NON_JOINER = r"\u200c+([\p{Z}\s]|$)"
INVISIBLE_PATTERN = regex.compile(rf"[{INVISIBLE}]+")
JOINERS_PATTERN = regex.compile(rf"[{JOINERS}]+")
UNJOINED_PATTERN = regex.compile(rf"(?:^|[{UNJOINED}])[\p{{M}}{JOINERS}]+")
NOT_LATIN = regex.compile(r"[^\s\p{Latin}']")
LOOSE_PATTERN = regex.compile(LOOSE_NON_JOINER, regex.MULTILINE)

TURKISH = ("tr", "az", "tur", "aze", "crh")  # have a dotted and a dotless i

# Lines of tags in the text and the test sets of IWSLT and in Europarl. Headers hold text.
HEADERS = "url|description|keywords|talkid|title|speaker|translator|reviewer"
BLOCKS = "doc|p|hl|mteval|srcset|refset|tstset|chapter"
TAG_LINE = regex.compile(
    rf"""\s*+(?:(?:
        <[?!][^>]*+> | </?(?:{BLOCKS})\b[^<>]*+>
        | <({HEADERS})\b[^<>]*+>(?:(?!</\1>).)*+</\1> | </(?:{HEADERS})> | <(?:{HEADERS})\s[^<>]*+>
    )\s*+)++""",
    regex.VERBOSE | regex.IGNORECASE,
)
SEGMENT = regex.compile(r"\s*+<seg\b[^<>]*>([^<]*)</seg>\s*+")  # a sentence of IWSLT's test sets
XML = regex.compile(r"\s*+<(?:seg|tmx|dataset)\b")  # other files with <seg>, TMX and WMT's XML
CONVERT = "Make lines in UTF-8 of the file with `python corpora/convert.py`"


def normalize(text) -> str:
    """Remove invisible characters and compose the rest (NFC): text that looks equal is equal.

    All text is encoded, returned and scored in this form. Normalizing twice changes nothing.

    >>> normalize("Stra\\u00ADße") == "Straße", normalize("u\\u0308ber") == "über"
    (True, True)
    """
    if text.isascii() and text.isprintable():
        return text
    text = INVISIBLE_PATTERN.sub("", text)
    if JOINERS_PATTERN.search(text):
        text = UNJOINED_PATTERN.sub(lambda match: JOINERS_PATTERN.sub("", match[0]), text)
        text = LOOSE_PATTERN.sub(r"\1", text)
    return unicodedata.normalize("NFC", text)


def clean(line) -> str:
    """Remove every character that is not white space, a Latin letter or an apostrophe."""
    return NOT_LATIN.sub("", line)


def language_code(name) -> str:
    """Return the code of a language without that of a country, as in pt-BR or zh_TW."""
    return regex.split("[-_]", str(name).lower())[0]


def fold(text, lang="") -> str:
    """Remove the case of a normalized text, character by character."""
    if language_code(lang) in TURKISH:
        text = text.replace("İ", "i").replace("I", "ı")
    return unicodedata.normalize("NFC", text.replace("İ", "i").casefold())


# The lines of a file ------------------------------------------------

GZIP_MAGIC = b"\x1f\x8b"  # the first two bytes of a compressed file
BLOCK_LINES = 10_000  # lines in memory as text at a time: strings take far more room than ids


def read_lines(path):
    """Yield the lines of a UTF-8 file as text, without line ends and byte-order mark."""
    with open_unpacked(path) as file:
        yield from decode_utf8(path, file)


@contextlib.contextmanager
def open_unpacked(path):
    """Open a binary file, unpacked while it is read if gzip has compressed it."""
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror.lower()}. Check the path. `python corpora/sample.py` writes"
            " a small corpus with the default names"
        ) from None
    with file:
        is_gzip = file.peek(2)[:2] == GZIP_MAGIC
        try:
            yield gzip.GzipFile(fileobj=file) if is_gzip else file
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise InputError(
                f"{path}: a damaged gzip file. Download it or compress it again"
            ) from None


def decode_utf8(name, file):
    """As `read_lines`, of a binary file; `name` is that of the file, for messages."""
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8").removeprefix("\ufeff" if number == 1 else "")
            position = line.find(b"\0") if number == 1 else -1  # of UTF-16
        except UnicodeDecodeError as error:
            position = error.start
        if position >= 0:
            raise InputError(
                f"{name}:{number}: byte {position + 1} of this line is not text in UTF-8. {CONVERT}"
            )
        yield text.rstrip("\r\n")


def blocks(lines, size=None):
    """Yield lists of `size` lines, by default `BLOCK_LINES`; the last list has the rest."""
    lines = iter(lines)
    while block := list(itertools.islice(lines, size or BLOCK_LINES)):
        yield block


# Sentences and pairs ------------------------------------------------


def read_sentences(path):
    """Yield the sentences of a file: lines that are no tags, and the text of each <seg>."""
    has_text = False
    for number, line in enumerate(read_lines(path), 1):
        if TAG_LINE.fullmatch(line):
            continue
        if segment := SEGMENT.fullmatch(line):
            line = unescape(segment[1].strip(), {"&quot;": '"', "&apos;": "'"})
        elif XML.match(line):
            raise InputError(f"{path}:{number}: this line is XML, not a sentence. {CONVERT}")
        has_text = has_text or bool(line.strip())
        yield line
    if not has_text:
        raise InputError(f"{path}: holds no text. Put one sentence on each line")


def check_same_length(paths, counts):
    """Raise InputError unless two files have as many sentences."""
    if counts[0] != counts[1]:
        raise InputError(
            f"{paths[0]}: {counts[0]} sentences, but {paths[1]} has {counts[1]} (lines of tags are"
            " not counted). Make line n of one file the translation of line n of the other"
        )


def training_files(hp) -> list[tuple[str, str]]:
    """List the source and target files of the training text; a pair may be there twice."""
    sources, targets = split_paths(hp.source_train), split_paths(hp.target_train)
    if len(sources) != len(targets):
        raise InputError(
            f"source_train names {len(sources)} files, but target_train names {len(targets)}. Name"
            " as many, in the same order"
        )
    return [*zip(sources, targets, strict=True)]


def read_pairs(paths):
    """Yield the pairs of a source and a target file in blocks, two lists of sentences each."""
    sides = [read_sentences(path) for path in paths]
    settings = dict(leave=False, mininterval=1, delay=1, disable=None)  # None: if no terminal
    with tqdm(desc="reading", unit=" pairs", **settings) as bar:
        while any(block := [[*itertools.islice(side, BLOCK_LINES)] for side in sides]):
            if len(block[0]) != len(block[1]):
                check_same_length(paths, [sum(1 for _ in read_sentences(path)) for path in paths])
            yield block
            bar.update(len(block[0]))


def read_eval_set(hp, part="test"):
    """Read the normalized sources, and the references of each file."""
    source, target = (getattr(hp, f"{side}_{part}") for side in ("source", "target"))
    paths = [source, *split_paths(target)]
    sides = [[*map(normalize, read_sentences(path))] for path in paths]
    for path, side in zip(paths, sides, strict=True):
        check_same_length((source, path), (len(sides[0]), len(side)))
    return sides[0], sides[1:]
