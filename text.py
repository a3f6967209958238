"""Read text files: UTF-8 lines, lines of markup, training text and test sets.

Only a line feed ends a line. Some programs also end a line at U+2028, U+0085 or a lone
carriage return, which would shift one side of a parallel corpus against the other.
"""

import codecs
import gzip
import itertools
import os
import shlex
import sys
import tarfile
import unicodedata
import zlib
from typing import NamedTuple

import regex

from hparams import Hyperparams
from runtime.errors import InputError
from runtime.files import split_paths
from segments import (
    REFERENCE,
    ROLES,
    SOURCE,
    SYSTEM,
    Segment,
    Side,
    opens_segment,
    parse_segments,
    parse_xml,
)

MISSING_CORPUS_HINT = (
    "The default is the corpus of the 2017 code, IWSLT 2016 German-English, which can no longer be"
    " downloaded. Run `python corpora/download.py multi30k` for another corpus, and name its files"
    " or your own with --source_train and --target_train. Or run `make demo`, which trains on a"
    " built-in corpus"
)
MISSING_TEST_HINT = "Name a test set with --source_test and --target_test"


# Lines -------------------------------------------------------------------------

GZIP_MAGIC = b"\x1f\x8b"  # the first two bytes of a compressed file
BLOCK_LINES = 10_000  # lines in memory as text at a time: strings take far more room than ids
MAX_LINE_BYTES = 2**25  # a longer line is no sentence, and a small gzip file can hold gigabytes
# The first bytes of files that are not text: the name of their format, and a command that unpacks
# them.
PACKED = {
    rb"\x1f\x8b": ("compressed with gzip", "gunzip"),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": ("compressed with bzip2", "bunzip2"),
    rb"\xfd7zXZ\x00": ("compressed with xz", "unxz"),
    rb"\x5d\x00\x00.{2}(\xff{8}|.{6}\x00{2})": ("compressed with lzma", "unlzma"),
    rb"\x28\xb5\x2f\xfd": ("compressed with zstd", "unzstd"),
    rb"\x04\x22\x4d\x18": ("compressed with lz4", "unlz4"),
    rb"LZIP[\x00\x01]": ("compressed with lzip", "lzip -d"),
    rb"\x1f\x9d": ("compressed with compress", "uncompress"),
    rb"PK(\x03\x04|\x05\x06)": ("a zip archive or an office document", "unzip"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "7z x"),
    rb"Rar!\x1a\x07": ("a RAR archive", "unrar x"),
}
DOCUMENTS = {
    rb"%PDF-": "a PDF document",
    rb"\{\\rtf": "an RTF document",
    rb"\xd0\xcf\x11\xe0": "an office document",
    rb"PAR1\x15": "a Parquet file",
    rb"ARROW1\x00": "an Arrow file",
    rb"SQLite format 3\x00": "an SQLite database",
}
TAR_HEADER_BYTES = 512
ISO_2022_ESCAPE = b"\x1b$"  # before Japanese, Chinese or Korean, which is then ASCII characters
FIND_ENCODING = (
    "Find out the encoding of the file: ask its author, or try `file -i`. Convert it with `iconv"
    " -f ENCODING -t utf-8`, and read the result before you use it"
)


def blocks(lines, size=None):
    """Yield lists of `size` lines, by default `BLOCK_LINES`; the last list has the rest.

    >>> [len(block) for block in blocks("x" * 25_000)]
    [10000, 10000, 5000]
    """
    lines = iter(lines)
    while block := list(itertools.islice(lines, size or BLOCK_LINES)):
        yield block


def check_text_files(hp, part):
    """Check that the files of both sides of a part of the corpus exist.

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
            check_text_file(path, MISSING_CORPUS_HINT if is_default else f"Check --{name}")


def check_text_file(path, hint):
    """Raise InputError if a text is missing; `hint` says what to do."""
    if not os.path.exists(path):
        raise InputError(f"{path}: no such file. {hint}")


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


def read_lines(path, hint="Check the path"):
    """Yield the lines of a UTF-8 file, without line ends and byte-order mark.

    A file that gzip has compressed is unpacked while it is read.

    Args:
      hint: what the user can do if the file cannot be opened.
    """
    try:
        file = open(path, "rb")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror.lower()}. {hint}") from None
    with file:
        is_gzip = file.peek(2)[:2] == GZIP_MAGIC
        try:
            yield from decode_utf8(path, gzip.GzipFile(fileobj=file) if is_gzip else file)
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
        yield text.removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")


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


def check_first_bytes(name, line):
    """Raise InputError if a file is compressed, a document, or UTF-16.

    Args:
      line: the bytes of the file up to its first line feed.
    """
    for pattern, (kind, command) in PACKED.items():
        if regex.match(pattern, line, regex.DOTALL):
            raise InputError(f"{name}: {kind}. Unpack it, for example with `{command}`")
    if is_tar(line):
        raise InputError(f"{name}: a tar archive. Unpack it, for example with `tar xf`")
    for pattern, kind in DOCUMENTS.items():
        if regex.match(pattern, line):
            raise InputError(f"{name}: {kind}. Save its text as UTF-8, one sentence on each line")
    if encoding := utf16_or_32(line):
        raise InputError(
            f"{name}: is {encoding.upper()}. Convert the file, for example with `iconv -f"
            f" {encoding} -t utf-8`"
        )


def is_tar(line) -> bool:
    """Whether a file with this first line of bytes is a tar archive. Its header has a checksum."""
    try:
        return bool(tarfile.TarInfo.frombuf(line[:TAR_HEADER_BYTES], "utf-8", "surrogateescape"))
    except tarfile.HeaderError:
        return False


def utf16_or_32(line) -> str | None:
    """Return the name of the encoding if a file with this first line of bytes is UTF-16 or UTF-32.

    Without a byte-order mark, zero bytes show it: text of ASCII has one next to each other byte
    in UTF-16, and three in UTF-32.

    >>> utf16_or_32("Hund".encode("utf-16")), utf16_or_32("Hund".encode("utf-16be"))
    ('utf-16', 'utf-16be')
    """
    if line.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):  # before UTF-16's, its prefix
        return "utf-32"
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    even, odd = (line[first::2].count(0) for first in (0, 1))
    if 4 * (even + odd) < len(line):
        return None
    bits = 32 if min(even, odd) > len(line) / 8 else 16
    return f"utf-{bits}{'be' if line[0] == 0 else 'le'}"


def clean(line) -> str:
    """Remove every character that is not white space, a Latin letter or an apostrophe.

    >>> clean("She isn't 26 -- she's naïve.")
    "She isn't   she's naïve"
    """
    return regex.sub(r"[^\s\p{Latin}']", "", line)


# Lines of markup ---------------------------------------------------------------

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


# Formats -----------------------------------------------------------------------

FORMAT_LINES = 100  # lines at the beginning of a file that show its format
# Elements at the beginning of an XML file, and the name of its format.
ROOTS = dict(
    tmx="TMX",
    dataset="WMT's XML",
    xliff="XLIFF",
    html="HTML",
    **dict.fromkeys(("mteval", "srcset", "refset", "tstset"), "a test set in XML"),
)
SHOWN_IN = "docs/training.md#formats shows how"  # of TMX, WMT's XML, SGML and CSV


def root_element(head) -> str | None:
    """Return the name of the first element of an XML file, or None if it is no such file.

    Args:
      head: the first lines of the file.

    >>> root_element(["<?xml version='1.0'?>", "<TEI>"]), root_element(["<b>Open</b> the file"])
    ('tei', None)
    """
    text = next((line for line in head if line.strip()), "").lstrip()
    if not text.startswith("<"):
        return None
    match = regex.search(r"<(\p{L}[\w.-]*)", "\n".join(head))
    name = match[1].lower() if match else "?xml"
    return name if name in ROOTS or text.startswith(("<?xml", "<!DOCTYPE")) else None


def check_sentences(path, head):
    """Check that a file may have one sentence per line, and no other format.

    Args:
      head: the first lines of the file.
    """
    if root := root_element(head):
        raise InputError(
            f"{path}: is {ROOTS.get(root, 'XML')}, and one sentence on each line is needed. Write"
            " the sentences of each language to a file of its own"
            + ("" if root in ("xliff", "html") or root not in ROOTS else f" ({SHOWN_IN})")
        )
    for number, line in enumerate(head, 1):
        if opens_segment(line):
            raise InputError(
                f"{path}:{number}: <seg> begins a segment of XML, and one sentence on each line is"
                f" needed. Write the segments to a file, one on each line ({SHOWN_IN})"
            )
    lines = [line for line in head if line.strip()]
    if lines and (kind_and_remedy := columns_in(path, lines)):
        kind, remedy = kind_and_remedy
        raise InputError(
            f"{path}: holds {kind}, and one sentence on each line is needed. Write each side to a"
            f" file of its own ({remedy})"
        )


def columns_in(path, lines) -> tuple[str, str] | None:
    """Return the name and a remedy of a format that holds several texts, or None.

    Args:
      lines: the first lines of the file, without empty ones.
    """
    reader = "zcat" if str(path).endswith(".gz") else "cat"
    read = f"{reader} {shlex.quote(str(path))}"
    if all("\t" in line for line in lines):
        return "columns with tabs between them (TSV)", f"`{read} | cut -f1 > my.source`"
    if all("|||" in line for line in lines):
        return "columns with ||| between them", f"`{read} | sed 's/ *|||.*//' > my.source`"
    if is_csv(str(path), lines):
        return "columns with commas or semicolons between them (CSV)", SHOWN_IN
    if regex.match(r'\s*(\[\s*)?\{\s*"', "\n".join(lines[:3])):
        return "JSON", "for example with Python's module json"
    return None


def is_csv(path, lines) -> bool:
    """Whether lines are quoted columns, begin with names of columns, or are those of a .csv file.

    >>> is_csv("a.txt", ['"Ja, ja.","Yes, yes."']), is_csv("a.txt", ["Ja, ja."])
    (True, False)
    """
    quoted = r'"(?:[^"]|"")*+"'
    if all(regex.match(rf"\s*{quoted}\s*[,;]\s*{quoted}", line) for line in lines):
        return True
    names = regex.fullmatch(r"[\w-]+([,;])[\w-]+", lines[0].strip())
    if names and len(lines) > 1 and all(names[1] in line for line in lines):
        return True
    suffix = path.lower().removesuffix(".gz").endswith(".csv")
    return suffix and any(2 * sum(c in line for line in lines) > len(lines) for c in ",;")


# Training files ----------------------------------------------------------------


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

    def marked_lines(self):
        """Yield each line, and whether it is markup."""
        self.num_sentences, self.markup_lines = 0, []
        lines = read_lines(self.path)
        head = list(itertools.islice(lines, FORMAT_LINES))
        check_sentences(self.path, head)
        for number, line in enumerate(itertools.chain(head, lines), 1):
            markup = self.is_markup(line)
            if markup:
                self.markup_lines.append(number)
            else:
                self.num_sentences += 1
            yield line, markup

    def lines(self):
        """Yield all lines, markup included. Raise InputError as `marked_lines` does."""
        return (line for line, _ in self.marked_lines())

    def sentences(self):
        """Yield the sentences. Raise InputError as `marked_lines` does."""
        return (line for line, markup in self.marked_lines() if not markup)

    @property
    def skipped(self) -> tuple[int, int]:
        """The `count_skipped` of the lines read so far."""
        return count_skipped(self.markup_lines)


def empty_text_error(path, num_sentences) -> InputError:
    """Return the error for a file without text.

    Args:
      num_sentences: lines that are not markup, all of them empty.
    """
    if num_sentences:
        return InputError(f"{path}: every line is empty. Put one sentence on each line")
    if os.path.getsize(path):
        return InputError(
            f"{path}: every line is markup (with --tokenizer words, a line that starts with <). Put"
            " one sentence on each line"
        )
    return InputError(f"{path}: the file is empty. Put one sentence on each line")


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


# Test files --------------------------------------------------------------------

MAX_TEST_CHARS = 2**28  # a test set is in memory


class EvalSentences(NamedTuple):
    """The sentences of a test or development file, or of one side of a file with several."""

    cleaned: list[str]  # as the 2017 code cleans them
    raw: list[str]  # as a person reads them
    segments: list[Segment]  # one per sentence if the file is XML, else empty
    markup_lines: list[int]  # numbers of the lines that are skipped
    path: str
    role: str | None = None  # a value of ROLES, if the file says it
    lang: str | None = None  # as the file names it
    num_normalized: int = 0  # sentences that `normalize` has changed

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return len(self.raw)

    @property
    def skipped(self) -> tuple[int, int]:
        """The `count_skipped` of the file."""
        return count_skipped(self.markup_lines)


def read_test_set(source_path, target_paths, source_lang, target_lang):
    """Read a test set. Print how many lines and segments are left out, and why.

    A file with both languages, as TMX or WMT's XML, may be the path of both sides.

    Args:
      target_paths: list of the files of the reference translations.

    Returns:
      (EvalSentences, list of EvalSentences): the source, and the references, which have the same
      length. A sentence with fewer references than others repeats its first one, which changes no
      score.
    """
    source_sides = read_test_file(source_path)
    has_both = any(os.path.samefile(path, source_path) for path in target_paths)
    (source,) = choose_sides(source_sides, SOURCE, source_lang, target_lang, has_both)
    targets, columns = [], []  # the references, and for each one the row of each source sentence
    files = [source]
    for path in target_paths:
        same_file = os.path.samefile(path, source_path)
        sides = source_sides if same_file else read_test_file(path)
        files += [] if same_file else sides[:1]
        for target in choose_sides(sides, REFERENCE, target_lang, source_lang, same_file):
            check_not_source(source, target)
            if target.num_normalized:
                print(
                    f"{path}: {target.num_normalized} of {target.num_sentences} sentences were"
                    " normalized (docs/training.md), as translations are. A program that scores"
                    " against the file as it is gives another score"
                )
            targets.append(target)
            columns.append(align(source, target, same_file))
    if note := skipped_note([file.path for file in files], [file.skipped for file in files]):
        print(note)
    rows = [
        [(target, row) for target, row in zip(targets, aligned, strict=True) if row is not None]
        for aligned in zip(*columns, strict=True)
    ]
    kept = [row for row, references in enumerate(rows) if references]
    if rows and not kept:
        raise InputError(f"{source_path}: no segment has a reference. Name another test set")
    unpaired = len(rows) - len(kept)
    unpaired += max(
        target.num_sentences - sum(row is not None for row in column)
        for target, column in zip(targets, columns, strict=True)
    )
    if unpaired:
        print(f"Left out: {unpaired} segments of {source_path} that only one side has")
    references = [
        take_rows([rows[row][number if number < len(rows[row]) else 0] for row in kept], path)
        for number in range(max(map(len, rows), default=1))
    ]
    return take_rows([(source, row) for row in kept], source_path), references


def take_rows(found, path) -> EvalSentences:
    """Build from a list of pairs: an EvalSentences, and the index of a sentence in it."""
    cleaned = [side.cleaned[row] for side, row in found]
    raw = [side.raw[row] for side, row in found]
    return EvalSentences(cleaned, raw, [], [], path)


def read_test_sentences(path) -> EvalSentences:
    """Read the sentences of a test file with one side. Raise InputError as `read_test_file`."""
    return read_test_file(path)[0]


def read_test_file(path) -> list[EvalSentences]:
    """Read a test file: its sides, of which most files have one.

    In XML, a sentence is the text of a `<seg>`. Otherwise it is a line.
    """
    lines, chars = [], 0
    for line in read_lines(path):
        lines.append(line)
        chars += len(line) + 1
        if chars > MAX_TEST_CHARS:
            raise InputError(
                f"{path}: has more than {MAX_TEST_CHARS >> 20} million characters, too many for a"
                " test set. Use a part of it"
            )
    head = lines[:FORMAT_LINES]
    root = root_element(head)
    has_segments = any(map(opens_segment, lines if root else head))
    if root in ("tmx", "dataset") or (
        has_segments and any(opens_segment(line, "tuv|src|ref|hyp") for line in lines)
    ):
        sides, skipped = parse_xml(path, "\n".join(lines)), []
    elif has_segments:
        sides, skipped = parse_segments(path, lines)
    else:
        check_sentences(path, head)
        markup = [*map(is_tag_line, lines)]
        raw = [line for line, is_markup in zip(lines, markup, strict=True) if not is_markup]
        skipped = [number for number, is_markup in enumerate(markup, 1) if is_markup]
        sides = [Side(None, None, raw, raw, [])]
    return [normalize_side(side, skipped, path) for side in sides]


def normalize_side(side, skipped, path) -> EvalSentences:
    """Normalize the sentences of a `Side`, since translations are normalized."""
    cleaned = [clean(content).strip() for content in normalize_lines(side.contents)]
    raw = normalize_lines(side.raw)
    changed = sum(before != after for before, after in zip(side.raw, raw, strict=True))
    return EvalSentences(
        cleaned, raw, side.segments, skipped, path, side.role, side.lang, num_normalized=changed
    )


# Test files: the sides of a test set -------------------------------------------


def choose_sides(sides, role, lang, other_lang, has_both) -> list[EvalSentences]:
    """Choose the sides of a file that are the source, or the references.

    Args:
      sides: what `read_test_file` returned.
      role: SOURCE or REFERENCE.
      lang, other_lang: the language of this side of the model, and of its other side.
      has_both: whether both sides come from this file. If not, a file of sources may hold the
        references, for a model of the other direction.

    Returns:
      One for the source, and one or several for the references.
    """
    path = sides[0].path
    roles = {side.role for side in sides}
    if len(roles) > 1 or has_both:
        sides = [side for side in sides if side.role in (role, None)]
    if not sides or roles == {SYSTEM}:
        names = " and ".join(name for name, value in ROLES.items() if value == role)
        raise InputError(f"{path}: holds no {role} ({names}). Name another file for this side")
    langs = {side.lang for side in sides}
    if len(langs) > 1:
        langs = {name for name in langs if same_language(name, lang)}
        tag = lang.lower().replace("_", "-")
        langs = {name for name in langs if name.lower().replace("_", "-") == tag} or langs
        if len(langs) != 1:
            found = ", ".join(sorted({str(side.lang) for side in sides}))
            raise InputError(
                f"{path}: holds the languages {found}, and {'several of them' if langs else 'none'}"
                f" match {lang}, the {role} language of the model. Write the text of each side to"
                f" a file of its own ({SHOWN_IN})"
            )
        sides = [side for side in sides if side.lang in langs]
    (name,) = langs
    if same_language(name, other_lang) and not same_language(name, lang):
        raise InputError(
            f"{path}: its {role} is in the language {name}, but that of the model is {lang}. Name"
            " a test set of the other direction"
        )
    if role == SOURCE and len(sides) > 1:
        raise InputError(
            f"{path}: holds {len(sides)} versions of a document as the source, and one is needed."
            " Delete the others"
        )
    return sides


def same_language(name, other) -> bool:
    """Whether two names of languages are equal without the region.

    >>> same_language("de-DE", "de"), same_language("german", "de"), same_language(None, "de")
    (True, False, False)
    """
    primary, other = (regex.split("[-_]", str(text).lower())[0] for text in (name, other))
    return primary == other


def check_not_source(source, target):
    """Check that the references are not the source itself."""
    if source.raw != target.raw:
        return
    if source.segments and source.segments == target.segments:
        raise InputError(
            f"{source.path}: holds one side of a test set, and both sides name it. Name the other"
            " side, too"
        )
    print(
        f"{source.path} and {target.path}: the source and the reference are the same text",
        file=sys.stderr,
    )


def align(source, target, same_file) -> list[int | None]:
    """Return the index of the target sentence of each source sentence.

    Segments with unique ids are paired by the ids of document and segment, others by position.

    Args:
      source, target: EvalSentences.
      same_file: whether they come from one file, in which a segment may lack a side. Its index is
        None then.
    """
    keys = [[(segment.doc, segment.id) for segment in side.segments] for side in (source, target)]
    unique = all(len({*side}) == len(side) and all(key[1] for key in side) for side in keys)
    if unique and keys[0] and keys[1] and (same_file or {*keys[0]} == {*keys[1]}):
        index = {key: row for row, key in enumerate(keys[1])}
        return [index.get(key) for key in keys[0]]
    check_same_segments(source, target)
    check_same_length(source, target)
    return [*range(source.num_sentences)]


def check_same_segments(source, target):
    """Check that segments at the same position in two XML files have the same ids.

    Ids of documents count if the files have one in common.

    Args:
      source, target: `EvalSentences`.
    """
    docs = [{segment.doc for segment in side.segments} - {None} for side in (source, target)]
    for one, other in zip(source.segments, target.segments, strict=False):
        same_doc = not (one.doc and other.doc and docs[0] & docs[1]) or one.doc == other.doc
        if one.id and other.id and (one.id != other.id or not same_doc):
            raise InputError(
                f"{source.path}:{one.line}: {one} is paired with {other} in"
                f" {target.path}:{other.line}. Put the same segments in the same order in both"
                " files, each of them once"
            )
    shorter, longer = sorted((source, target), key=lambda side: side.num_sentences)
    for extra in longer.segments[shorter.num_sentences :] if shorter.segments else []:
        raise InputError(
            f"{longer.path}:{extra.line}: {extra} has no counterpart in {shorter.path}, which has"
            f" {shorter.num_sentences} segments. Put the same segments in both files"
        )
