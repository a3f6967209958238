"""Read text files: UTF-8 lines, lines of markup, and the segments of XML test sets.

Only a line feed ends a line. Some programs also end a line at U+2028, U+0085 or a lone
carriage return, which would shift one side of a parallel corpus against the other.
"""

import codecs
import gzip
import html
import itertools
import os
import zlib
from typing import NamedTuple

import regex

from hparams import Hyperparams
from runtime.errors import InputError
from runtime.files import split_paths

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


def blocks(lines, size=None):
    """Yield lists of `size` lines, by default `BLOCK_LINES`; the last list has the rest.

    >>> [len(block) for block in blocks("x" * 25_000)]
    [10000, 10000, 5000]
    """
    lines = iter(lines)
    while block := list(itertools.islice(lines, size or BLOCK_LINES)):
        yield block


def check_text_files(hp, part):
    """Check that both files of a part of the corpus exist.

    Args:
      part: "train", "dev" or "test".

    Raises:
      InputError: a file is missing. The message depends on whether the user named it.
    """
    for name in (f"source_{part}", f"target_{part}"):
        value = getattr(hp, name)
        for path in split_paths(value) if part == "train" else [value]:
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

    Raises:
      InputError: the sides have different numbers of files.
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

    Raises:
      InputError: the file cannot be opened or unpacked, or is not UTF-8 (names the line).
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


def decode_utf8(name, lines):
    """Yield lines of bytes as text, without line ends and byte-order mark.

    Args:
      name: the source of the lines, for messages.

    Raises:
      InputError: a line is not UTF-8 (names the line).
    """
    for number, line in enumerate(lines, 1):
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            if number == 1 and line.startswith(GZIP_MAGIC):  # of standard input
                raise InputError(
                    f"{name}: compressed with gzip. Unpack it, for example with `zcat`"
                ) from None
            if number == 1 and line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
                raise InputError(
                    f"{name}: is UTF-16. Convert the file, for example with"
                    " `iconv -f utf-16 -t utf-8`"
                ) from None
            raise InputError(
                f"{name}:{number}: byte {error.start + 1} of this line is not UTF-8."
                " Convert the file, for example with `iconv -f latin1 -t utf-8`"
            ) from None
        yield text.removeprefix("\ufeff" if number == 1 else "").rstrip("\r\n")


def clean(line) -> str:
    """Remove every character that is not white space, a Latin letter or an apostrophe.

    >>> clean("She isn't 26 -- she's naïve.")
    "She isn't   she's naïve"
    """
    return regex.sub(r"[^\s\p{Latin}']", "", line)


# Training files ----------------------------------------------------------------


def skip_markup(lines):
    """Yield the lines that do not start with <."""
    return (line for line in lines if not line.startswith("<"))


class SentenceFile:
    """A text file with one sentence per line. Lines that start with < are markup.

    Attributes:
      num_sentences: sentences among the lines read so far.
      markup_lines: numbers of the markup lines read so far, counted from 1.
    """

    def __init__(self, path):
        self.path = path
        self.num_sentences = 0
        self.markup_lines = []

    def lines(self):
        """Yield all lines, markup included. Raise InputError as `read_lines` does."""
        for number, line in enumerate(read_lines(self.path), 1):
            if line.startswith("<"):
                self.markup_lines.append(number)
            else:
                self.num_sentences += 1
            yield line

    def sentences(self):
        """Yield the sentences. Raise InputError as `read_lines` does."""
        return skip_markup(self.lines())


def empty_text_error(path, num_sentences) -> InputError:
    """Return the error for a file without text.

    Args:
      num_sentences: lines that do not start with <, all of them empty.
    """
    if num_sentences:
        return InputError(f"{path}: every line is empty. Put one sentence on each line")
    if os.path.getsize(path):
        return InputError(
            f"{path}: every line starts with <, which marks markup. If a line is a sentence, put a"
            " space in front of it"
        )
    return InputError(f"{path}: the file is empty. Put one sentence on each line")


def check_same_length(source, target):
    """Check that both sides have the same number of sentences.

    Args:
      source, target: `SentenceFile`, read to its end, or `EvalSentences`.

    Raises:
      InputError: the numbers differ, or the same number of lines is skipped on each side, but
        not the same lines.
    """
    unpaired = min(set(source.markup_lines) ^ set(target.markup_lines), default=None)
    skipped = f"line {unpaired} starts with < in only one file and is skipped there"
    if source.num_sentences != target.num_sentences:
        problem = (
            f"{source.path}: {source.num_sentences} sentences, but {target.path} has"
            f" {target.num_sentences} (lines that start with < are not counted). Make line n of"
            " one file the translation of line n of the other"
        )
        raise InputError(f"{problem}. Note that {skipped}" if unpaired else problem)
    # In IWSLT's files one side may have more lines of markup. If the numbers are equal but the
    # line numbers are not, these lines are probably sentences.
    if unpaired and len(source.markup_lines) == len(target.markup_lines):
        raise InputError(
            f"{source.path} and {target.path}: {skipped}. Put a space in front of it, or delete"
            " the pair"
        )


# Test files --------------------------------------------------------------------


class Segment(NamedTuple):
    """Where a sentence of an XML file comes from."""

    line: int  # line number of its <seg>, counted from 1
    id: str | None  # attribute of its <seg>


class EvalSentences(NamedTuple):
    """The sentences of a test or development file."""

    cleaned: list[str]  # as the 2017 code cleans them
    raw: list[str]  # as a person reads them
    segments: list[Segment]  # one per sentence if the file is XML, else empty
    markup_lines: list[int]  # numbers of the lines skipped if the file is plain text
    path: str

    @property
    def num_sentences(self) -> int:
        """Number of sentences."""
        return len(self.raw)


def read_test_sentences(path) -> EvalSentences:
    """Read the sentences of a test file.

    If the file has `<seg>` tags, as IWSLT's XML does, a sentence is the text between two of
    them. Otherwise it is a line, as in a training file.

    Raises:
      InputError: as `read_lines` and `parse_segments`.
    """
    file = SentenceFile(path)
    lines = list(file.lines())
    if not any(map(opens_segment, lines)):
        raw = list(skip_markup(lines))
        cleaned = [clean(line).strip() for line in raw]
        return EvalSentences(cleaned, raw, [], file.markup_lines, path)
    text = replace_spans("\n".join(lines), "<!--", "-->", lambda comment: "")
    text = replace_spans(text, "<![CDATA[", "]]>", lambda data: html.escape(data, quote=False))
    contents, segments = parse_segments(path, text)
    raw = [one_line(html.unescape(content)) for content in contents]
    cleaned = [clean(content).strip() for content in contents]
    return EvalSentences(cleaned, raw, segments, [], path)


def opens_segment(line) -> bool:
    """Whether a `<seg>` is on the line, with only tags before it.

    >>> opens_segment('<doc> <seg id="1">a'), opens_segment("a <seg> is a tag")
    (True, False)
    """
    match = regex.search(r"<seg\b", line, regex.IGNORECASE)
    return bool(match and regex.fullmatch(r"(?:\s|<[^>]*+>)*+", line[: match.start()]))


def replace_spans(text, opening, closing, change) -> str:
    """Replace the text between two marks, and the marks. Line numbers do not change.

    Args:
      change: function that maps the text between the marks to its replacement.

    >>> replace_spans("a<!-- b -->c<!-- d", "<!--", "-->", lambda comment: "")
    'ac<!-- d'
    """
    outputs, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        span = change(text[start + len(opening) : end])
        lost_lines = text.count("\n", start, end) - span.count("\n")
        outputs += [text[position:start], span, "\n" * lost_lines]
        position = end + len(closing)
    return "".join([*outputs, text[position:]])


def one_line(text) -> str:
    """Join the lines of a text, each without the white space around it, with spaces."""
    return " ".join(line.strip() for line in regex.split(r"[\r\n]", text.strip()))


def drop_markup(text) -> str:
    """Remove all tags from a text, as the 2017 code does.

    Equal to `re.sub("<[^>]+>", "", text)`, but linear in time even if no > follows.

    >>> drop_markup("a <b>c</b> <> d < e")
    'a c <> d < e'
    """
    outputs, position = [], 0
    while (start := text.find("<", position)) >= 0:
        end = text.find(">", start + 1)
        if end < 0:
            break
        if end == start + 1:  # <> is no tag
            outputs.append(text[position : end + 1])
        else:
            outputs.append(text[position:start])
        position = end + 1
    return "".join([*outputs, text[position:]])


def parse_segments(path, text):
    """Find the text between each `<seg>` and its `</seg>`.

    A line may hold several segments, and a segment may span several lines.

    Args:
      path: the file that the text comes from, for messages.

    Returns:
      (list of str, list of Segment): the segments, each on one line and without tags; and where
      each begins.

    Raises:
      InputError: a segment is not opened or not closed (names the line).
    """
    contents, segments = [], []
    line, counted = 1, 0  # the line number, and the position up to which lines are counted
    start = None  # position of the open segment's content
    for tag in regex.finditer(r"<(/?)seg\b([^<>]*)>", text, regex.IGNORECASE):
        closes = tag[1] == "/"
        line += text.count("\n", counted, tag.start())
        counted = tag.start()
        if closes and start is None:
            raise InputError(f"{path}:{line}: </seg> without a <seg> before it. Delete the </seg>")
        if not closes and start is not None:
            raise unclosed_segment_error(path, segments[-1])
        if closes:
            contents.append(one_line(drop_markup(text[start : tag.start()])))
            start = None
        else:
            id_attribute = regex.search(r"""\bid\s*=\s*["']?([^"'\s]+)""", tag[2])
            segments.append(Segment(line, id_attribute[1] if id_attribute else None))
            start = tag.end()
    if start is not None:
        raise unclosed_segment_error(path, segments[-1])
    return contents, segments


def unclosed_segment_error(path, segment) -> InputError:
    """Return the error for a segment without an end."""
    return InputError(
        f"{path}:{segment.line}: this <seg> is not closed. Write </seg> after its text"
    )


def check_same_segments(source, target):
    """Check that segments at the same position in two XML files have the same id.

    Args:
      source, target: `EvalSentences`.

    Raises:
      InputError: two ids differ.
    """
    for one, other in zip(source.segments, target.segments, strict=False):
        if one.id and other.id and one.id != other.id:
            raise InputError(
                f"{source.path}:{one.line}: segment {one.id} is paired with segment {other.id} in"
                f" {target.path}:{other.line}. Put the same segments in the same order in both"
                " files"
            )
