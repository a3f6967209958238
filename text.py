"""Text: how a line becomes a normalized sentence, and two files become pairs of sentences.

Only a line feed ends a line. Some programs also end a line at U+2028, U+0085 or a lone
carriage return, which would shift one side of a parallel corpus against the other.
"""

import contextlib
import gzip
import itertools
import os
import unicodedata
import zlib

import regex
from tqdm import tqdm

from formats import FIND_ENCODING, FORMAT_LINES, check_first_bytes, check_sentences
from hparams import Hyperparams
from runtime.errors import InputError
from runtime.files import check_exists, split_paths

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


def starts_with_tag(line) -> bool:
    """Whether a line is markup for the 2017 code."""
    return line.startswith("<")


# The lines of a file ------------------------------------------------------------

GZIP_MAGIC = b"\x1f\x8b"  # the first two bytes of a compressed file
BLOCK_LINES = 10_000  # lines in memory as text at a time: strings take far more room than ids
MAX_LINE_BYTES = 2**25  # a longer line is no sentence, and a small gzip file can hold gigabytes
ISO_2022_ESCAPE = b"\x1b$"  # before Japanese, Chinese or Korean, which is then ASCII characters


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
    not_ascii = 0  # number of the last line that is UTF-8 and not ASCII
    for number in itertools.count(1):
        line = file.readline(MAX_LINE_BYTES + 1)
        if not line:
            return
        if number == 1:
            check_first_bytes(name, line)
        if len(line) > MAX_LINE_BYTES:
            raise InputError(
                f"{name}:{number}: this line is longer than {MAX_LINE_BYTES >> 20} MB. Put one"
                " sentence on each line"
            )
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            remedy = FIND_ENCODING
            if not_ascii:  # a conversion of the complete file would damage that line
                remedy = f"Line {not_ascii} is, so correct this line, or delete it on both sides"
            raise InputError(
                f"{name}:{number}: byte {error.start + 1} of this line is not UTF-8. {remedy}"
            ) from None
        if not line.isascii():
            not_ascii = number
        elif ISO_2022_ESCAPE in line:
            raise InputError(f"{name}:{number}: this line is ISO-2022. {FIND_ENCODING}")
        if number == 1:
            text = text.removeprefix("\ufeff")  # the byte-order mark
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

MISSING_CORPUS_HINT = (
    "The default is the corpus of the 2017 code, IWSLT 2016 German-English, which can no longer be"
    " downloaded. Run `python corpora/download.py multi30k` for another corpus, and name its files"
    " or your own with --source_train and --target_train. Or run `python corpora/sample.py`, which"
    " writes a small built-in corpus under these names"
)
MISSING_TEST_HINT = "Name a test set with --source_test and --target_test"


def check_text_files(hp, part):
    """Check that the files of a part of the corpus exist; of the training text as many per side.

    Args:
      part: "train", "dev" or "test".
    """
    for name in (f"source_{part}", f"target_{part}"):
        value = getattr(hp, name)
        several = part == "train" or name.startswith("target")  # text, or references
        for path in split_paths(value) if several else [value]:
            is_default = path == getattr(Hyperparams, name)
            if part == "test" and is_default and not os.path.exists(path):
                raise InputError(f"{name} was not given, here or in training. {MISSING_TEST_HINT}")
            check_exists(path, MISSING_CORPUS_HINT if is_default else f"Check --{name}")
    if part == "train":
        training_files(hp)


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

    Args:
      is_markup: function that decides whether a line is markup.

    Attributes:
      num_sentences: sentences among the lines read so far.
      markup_lines: numbers of the markup lines read so far, counted from 1.
    """

    def __init__(self, path, is_markup=is_tag_line):
        self.path, self.is_markup = path, is_markup
        self.num_sentences = 0
        self.markup_lines = []

    def lines(self, with_markup=True):
        """Yield the lines, with or without those of markup."""
        self.num_sentences, self.markup_lines = 0, []
        lines = read_lines(self.path)
        head = list(itertools.islice(lines, FORMAT_LINES))
        check_sentences(self.path, head)
        for number, line in enumerate(itertools.chain(head, lines), 1):
            if self.is_markup(line):
                self.markup_lines.append(number)
                if not with_markup:
                    continue
            else:
                self.num_sentences += 1
            yield line

    def sentences(self):
        """Yield the lines that are not markup."""
        return self.lines(with_markup=False)

    def line_number(self, index) -> int:
        """Return the number of the line that holds a sentence, counted from 1.

        Args:
          index: that of a sentence that was read, counted from 0.
        """
        number = index + 1
        for markup_line in self.markup_lines:
            if markup_line > number:
                break
            number += 1
        return number

    @property
    def skipped(self) -> tuple[int, int]:
        """The `count_skipped` of the lines read so far."""
        return count_skipped(self.markup_lines)


def check_beginnings(paths):
    """Read the first lines of files of sentences, for their errors. A pipe is read only once."""
    for path in paths:
        if os.path.isfile(path) or os.path.isdir(path):
            next(SentenceFile(path).lines(), None)


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
    """Check that both sides have the same number of sentences.

    Args:
      source, target: `SentenceFile`, read to its end, or `EvalSentences`.
    """
    unpaired = min(set(source.markup_lines) ^ set(target.markup_lines), default=None)
    skipped = f"line {unpaired} is skipped as markup in only one file"
    if source.num_sentences != target.num_sentences:
        problem = (
            f"{source.path}: {source.num_sentences} sentences, but {target.path} has"
            f" {target.num_sentences} (lines of markup are not counted). Make line n of one file"
            " the translation of line n of the other"
        )
        raise InputError(f"{problem}. Note that {skipped}" if unpaired else problem)
    # In IWSLT's files one side may have more lines of markup. If the numbers are equal but the
    # line numbers are not, these lines are probably sentences.
    if unpaired and len(source.markup_lines) == len(target.markup_lines):
        raise InputError(
            f"{source.path} and {target.path}: {skipped}. Delete the pair, or write the line so"
            " that it does not begin with <"
        )


def empty_text_error(path, num_sentences) -> InputError:
    """Return the error for a file without text.

    Args:
      num_sentences: lines that are not markup, all of them empty.
    """
    if num_sentences:
        return InputError(f"{path}: every line is empty. Put one sentence on each line")
    return InputError(
        f"{path}: the file is empty, or every line is markup (with --tokenizer words, a line that"
        " starts with <). Put one sentence on each line"
    )


def count_skipped(markup_lines) -> tuple[int, int]:
    """Count the lines of markup, given by their numbers; returns also the first number, or 0."""
    return len(markup_lines), next(iter(markup_lines), 0)


def skipped_note(paths, skipped) -> str:
    """Return a note on the lines that are left out as markup, or an empty string.

    Args:
      skipped: the `count_skipped` of each path.

    >>> skipped_note(["a.de", "a.en"], [(2, 7), (0, 0)])
    'Skipped as markup: 2 lines of a.de (first: line 7)'
    """
    counts = [
        f"{count} lines of {path} (first: line {first})"
        for path, (count, first) in zip(paths, skipped, strict=True)
        if count
    ]
    return f"Skipped as markup: {', '.join(counts)}" if counts else ""
