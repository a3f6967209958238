"""Text: how a line becomes a normalized sentence, and two files become pairs of sentences.

Only a line feed ends a line. Some programs also end a line at U+2028, U+0085 or a lone
carriage return, which would shift one side of a parallel corpus against the other.
"""

import contextlib
import gzip
import itertools
import unicodedata
import zlib

import regex
from tqdm import tqdm

from hparams import Hyperparams
from runtime.errors import InputError
from runtime.flags import split_paths

# A line -------------------------------------------------------------------------

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
LOOSE_PATTERN = regex.compile(LOOSE_NON_JOINER, regex.MULTILINE)

# Tags of the training text and the test sets of IWSLT, of WMT's test sets in SGML, and of Europarl.
HEADERS = "url|description|keywords|talkid|title|speaker|translator|reviewer"  # hold text
BLOCKS = "doc|p|hl|mteval|srcset|refset|tstset|chapter|speaker"
ATTRIBUTES = r'(?:"[^"]*+"|[^<>])*+'
TAG_LINE = regex.compile(
    rf"""\s*+(?:(?:
        <\?[^<>]*+> | <!--(?:(?!-->).)*+--> | <!DOCTYPE\b[^<>]*+>
        | <(?:{BLOCKS})(?:\s{ATTRIBUTES})?/?> | </(?:{BLOCKS}|{HEADERS})\s*+>
        | <({HEADERS})(?:\s{ATTRIBUTES})?>(?:(?!</\1\s*>).)*+</\1\s*+>
        | <(?:{HEADERS})\s{ATTRIBUTES}>
    )\s*+)++""",
    regex.VERBOSE | regex.IGNORECASE,
)


def normalize(text) -> str:
    """Bring text to the one form in which it is encoded, returned and scored.

    It removes invisible characters, and composes the rest (Unicode's NFC), so that text that looks
    equal is equal. Normalizing twice gives the same as once.

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


def normalize_lines(lines) -> list[str]:
    """Normalize many lines, none of which has a line feed in it."""
    return normalize("\n".join(lines)).split("\n") if lines else []


def clean(line) -> str:
    """Remove every character that is not white space, a Latin letter or an apostrophe.

    >>> clean("She isn't 26 -- she's naïve.")
    "She isn't   she's naïve"
    """
    return regex.sub(r"[^\s\p{Latin}']", "", line)


def language_code(name) -> str:
    """Return the code of a language without that of a country.

    >>> language_code("pt-BR"), language_code("zh_TW")
    ('pt', 'zh')
    """
    return regex.split("[-_]", str(name).lower())[0]


def is_tag_line(line) -> bool:
    """Whether a line consists of tags of a known format; a header of IWSLT has text between them.

    >>> lines = ["<talkid>69</talkid>", '<doc id="1">', " </doc>", "<b>Open</b> it", "<url>"]
    >>> [is_tag_line(line) for line in lines]
    [True, True, True, False, False]
    """
    return "<" in line and bool(TAG_LINE.fullmatch(INVISIBLE_PATTERN.sub("", line)))


# The lines of a file ------------------------------------------------------------

GZIP_MAGIC = b"\x1f\x8b"  # the first two bytes of a compressed file
BLOCK_LINES = 10_000  # lines in memory as text at a time: strings take far more room than ids
# What to do if a file is missing that no flag names.
DEFAULT_HINTS = dict.fromkeys(
    (Hyperparams.source_train, Hyperparams.target_train),
    "The default is the corpus of the 2017 code, IWSLT 2016 German-English, which can no longer be"
    " downloaded. Run `python corpora/download.py multi30k` for another corpus, and name its files"
    " or your own with --source_train and --target_train. Or run `python corpora/sample.py`, which"
    " writes a small built-in corpus under these names",
) | dict.fromkeys(
    (Hyperparams.source_test, Hyperparams.target_test),
    "Name a test set with --source_test and --target_test",
)


def read_lines(path, hint="Check the path"):
    """Yield the lines of a UTF-8 file, without line ends and byte-order mark.

    A file that gzip has compressed is unpacked while it is read.

    Args:
      hint: what the user can do if the file cannot be opened.
    """
    with open_unpacked(path, hint) as file:
        yield from decode_utf8(path, file)


@contextlib.contextmanager
def open_unpacked(path, hint="Check the path"):
    """Context manager: a binary file, unpacked while it is read if gzip has compressed it.

    Args:
      hint: as in `read_lines`.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        hint = DEFAULT_HINTS.get(str(path), hint)
        raise InputError(f"{path}: {error.strerror.lower()}. {hint}") from None
    with file:
        is_gzip = file.peek(2)[:2] == GZIP_MAGIC
        try:
            yield gzip.GzipFile(fileobj=file) if is_gzip else file
        except (EOFError, gzip.BadGzipFile, zlib.error):
            raise InputError(
                f"{path}: a damaged gzip file. Download it or compress it again"
            ) from None


def decode_utf8(name, file):
    """Yield the lines of a binary file as text, without line ends and byte-order mark.

    Args:
      name: that of the file, for messages.
    """
    for number, line in enumerate(file, 1):
        try:
            text = line.decode("utf-8").removeprefix("\ufeff" if number == 1 else "")
            position = line.find(b"\0") if number == 1 else -1  # of UTF-16
        except UnicodeDecodeError as error:
            position = error.start
        if position >= 0:
            raise InputError(
                f"{name}:{number}: byte {position + 1} of this line is not text in UTF-8. Convert"
                " the file, for example with `iconv -f latin1 -t utf-8`"
            )
        yield text.rstrip("\r\n")


def blocks(lines, size=None):
    """Yield lists of `size` lines, by default `BLOCK_LINES`; the last list has the rest.

    >>> [len(block) for block in blocks("x" * 25_000)]
    [10000, 10000, 5000]
    """
    lines = iter(lines)
    while block := list(itertools.islice(lines, size or BLOCK_LINES)):
        yield block


# The sentences of a training text -----------------------------------------------


def training_files(hp) -> list[tuple[str, str]]:
    """List the paths of the training text: pairs of source and target.

    A pair that the flags name twice is in the list twice.
    """
    sources, targets = split_paths(hp.source_train), split_paths(hp.target_train)
    if len(sources) != len(targets):
        raise InputError(
            f"source_train names {len(sources)} files, but target_train names {len(targets)}. Name"
            " a target file for each source file, in the same order"
        )
    return [*zip(sources, targets, strict=True)]


class SentenceFile:
    """A text file with one sentence per line, and lines of markup between them.

    Attributes:
      num_sentences, num_skipped: sentences and lines of markup among the lines read so far.
    """

    def __init__(self, path):
        self.path = path
        self.num_sentences = self.num_skipped = 0

    def lines(self, with_markup=True):
        """Yield the lines, with or without those of markup."""
        self.num_sentences = self.num_skipped = 0
        for line in read_lines(self.path):
            is_markup = is_tag_line(line)
            self.num_skipped += is_markup
            self.num_sentences += not is_markup
            if with_markup or not is_markup:
                yield line

    def sentences(self):
        """Yield the lines that are not markup."""
        return self.lines(with_markup=False)


def read_pairs(files, description):
    """Yield the pairs of two `SentenceFile` in blocks, two lists of sentences each."""
    sides = [blocks(file.sentences()) for file in files]
    with tqdm(desc=description, unit=" pairs", leave=False, mininterval=1, delay=1) as bar:
        for block in itertools.zip_longest(*sides, fillvalue=[]):
            if len(block[0]) != len(block[1]):
                break
            yield block
            bar.update(len(block[0]))
    for _ in itertools.chain(*sides):  # count the rest of the longer file
        pass
    check_same_length(*files)


def check_same_length(source, target):
    """Raise InputError unless both sides, `SentenceFile` or `EvalSentences`, are equally long."""
    if source.num_sentences != target.num_sentences:
        raise InputError(
            f"{source.path}: {source.num_sentences} sentences, but {target.path} has"
            f" {target.num_sentences} (lines of markup are not counted). Make line n of one file"
            " the translation of line n of the other"
        )


def empty_text_error(path, num_sentences) -> InputError:
    """Return the error for a file without text.

    Args:
      num_sentences: lines that are not markup, all of them empty.
    """
    if num_sentences:
        return InputError(f"{path}: every line is empty. Put one sentence on each line")
    return InputError(
        f"{path}: the file is empty, or every line is markup. Put one sentence on each line"
    )


def skipped_note(files) -> str:
    """Return a note on the lines that are left out as markup, or an empty string.

    Args:
      files: list of `SentenceFile` or `EvalSentences`.
    """
    counts = [f"{file.num_skipped} lines of {file.path}" for file in files if file.num_skipped]
    return f"Skipped as markup: {', '.join(counts)}" if counts else ""
