"""Recognize files that do not hold one sentence per line, by their first bytes or lines."""

import codecs
import shlex
import tarfile

import regex

from runtime.errors import InputError
from segments import opens_segment

# Bytes --------------------------------------------------------------------------

# The first bytes of files that are not text: the name of their format, and a command that unpacks
# them, or None.
FILE_TYPES = {
    rb"\x1f\x8b": ("compressed with gzip", "gunzip"),
    rb"BZh[1-9](1AY&SY|\x17rE8P\x90)": ("compressed with bzip2", "bunzip2"),
    rb"\xfd7zXZ\x00": ("compressed with xz", "unxz"),
    rb"\x5d\x00\x00.{2}(\xff{8}|.{6}\x00{2})": ("compressed with lzma", "unlzma"),
    rb"\x28\xb5\x2f\xfd": ("compressed with zstd", "unzstd"),
    rb"\x04\x22\x4d\x18": ("compressed with lz4", "unlz4"),
    rb"LZIP[\x00\x01]": ("compressed with lzip", "lzip -d"),
    rb"\x1f\x9d": ("compressed with compress", "uncompress"),
    # The name of the first file in the archive follows.
    rb"PK\x03\x04.{26}(\[Content_Types\]|mimetype|_rels/|docProps/|xl/|word/)": (
        "a spreadsheet or an office document",
        None,
    ),
    rb"PK(\x03\x04|\x05\x06)": ("a zip archive or an office document", "unzip"),
    rb"7z\xbc\xaf\x27\x1c": ("a 7-Zip archive", "7z x"),
    rb"Rar!\x1a\x07": ("a RAR archive", "unrar x"),
    rb"%PDF-": ("a PDF document", None),
    rb"\{\\rtf": ("an RTF document", None),
    rb"\xd0\xcf\x11\xe0": ("an office document", None),
    rb"PAR1\x15": ("a Parquet file", None),
    rb"ARROW1\x00": ("an Arrow file", None),
    rb"SQLite format 3\x00": ("an SQLite database", None),
}
FIND_ENCODING = (
    "Find out the encoding of the file: ask its author, or try `file -i`. Convert it with `iconv"
    " -f ENCODING -t utf-8`, and read the result before you use it"
)


def check_first_bytes(name, line):
    """Raise InputError if a file is compressed, a document, or UTF-16.

    Args:
      line: the bytes of the file up to its first line feed.
    """
    for start, (kind, command) in FILE_TYPES.items():
        if regex.match(start, line, regex.DOTALL):
            remedy = "Save its text as UTF-8, one sentence on each line"
            if "spreadsheet" in kind:
                remedy += (
                    ", or a table as TSV, with tabs between the columns, which"
                    " `python corpora/split.py` reads"
                )
            if command:
                remedy = f"Unpack it, for example with `{command}`"
            raise InputError(f"{name}: {kind}. {remedy}")
    if is_tar(line):
        raise InputError(f"{name}: a tar archive. Unpack it, for example with `tar xf`")
    if encoding := utf16_or_32(line):
        raise InputError(
            f"{name}: is {encoding.upper()}. Convert the file, for example with `iconv -f"
            f" {encoding} -t utf-8`"
        )


def is_tar(line) -> bool:
    """Whether a file with this first line of bytes is a tar archive. Its header has a checksum."""
    try:
        return bool(tarfile.TarInfo.frombuf(line[: tarfile.BLOCKSIZE], "utf-8", "surrogateescape"))
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


# Lines --------------------------------------------------------------------------

FORMAT_LINES = 100  # lines at the beginning of a file that show its format
# Elements at the beginning of an XML file, and the name of its format.
ROOTS = dict(
    tmx="TMX",
    dataset="WMT's XML",
    xliff="XLIFF",
    html="HTML",
    **dict.fromkeys(("mteval", "srcset", "refset", "tstset"), "a test set in XML"),
)
SPLIT_DOES_IT = ". `python corpora/split.py` does it, and makes development and test files"
SHOWN_IN = "docs/training.md#formats shows how"  # of TMX, WMT's XML, SGML and CSV


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
            + (SPLIT_DOES_IT if root == "tmx" else "")
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
            f" file of its own ({remedy})" + (SPLIT_DOES_IT if "TSV" in kind else "")
        )


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
