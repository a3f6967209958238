"""Download a public German-English corpus, check it, and unpack it.

    python corpora/download.py multi30k
    python corpora/download.py iwslt2017

multi30k: image captions, 29,000 training pairs, in the folder corpora/multi30k: train.de,
train.en, val.de, val.en, and four test sets, for example test_2016_flickr.de.

iwslt2017: TED talks, about 206,000 training pairs, in the folder corpora: train.tags.de-en.de,
train.tags.de-en.en, and development and test sets, for example IWSLT17.TED.tst2014.de-en.de.xml.

The same command resumes a download that was interrupted. It downloads nothing for files that
exist and are right, and it never replaces a file with other content.
"""

import argparse
import contextlib
import gzip
import hashlib
import http.client
import sys
import tarfile
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from runtime.cli import Parser, check_environment, parse_path, run_script
from runtime.errors import InputError
from runtime.files import atomic_open, atomic_write, make_folder

if __name__ == "__main__":
    check_environment()  # before the packages are imported

from tqdm import tqdm

CHUNK_BYTES = 2**16
TIMEOUT_S = 60  # without any answer of the server


# Catalogue ---------------------------------------------------------------------


class TextFile(NamedTuple):
    """A file of a corpus. Its size and checksum are None if nobody has published them."""

    path: str  # in the output folder
    size: int | None = None  # bytes
    sha256: str | None = None


class Download(NamedTuple):
    """A gzip file of one text (.gz), or a gzip archive of several (.tgz)."""

    url: str
    files: dict  # {name in the archive: TextFile}
    md5: str | None = None  # of the gzip file


class Corpus(NamedTuple):
    """What `main` downloads and prints."""

    licence: str
    downloads: list


MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a"
    "/data/task1/raw"
)
MULTI30K_FILES = """
train.de 2110398 2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72
train.en 1801238 460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6
val.de 75981 660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660
val.en 63297 1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227
test_2016_flickr.de 70649 4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16
test_2016_flickr.en 62076 399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182
test_2017_flickr.de 64059 c3078bc3b36808bf9d20eb2347ed6137016179ef59ec0d2b9b8ecc3fb2880081
test_2017_flickr.en 55242 ce1450ddc5ab0834502579d77a170849952e15a2938b34cc503bdc25ebb4fb98
test_2017_mscoco.de 29906 58277df3c75f92f7145a11b910b553d1cf82c439249d4dc237c899609eafac22
test_2017_mscoco.en 24949 43051fdfa86fd5395182e718a94ca67b1b227b9f7c79596ff0f6b813216981d2
test_2018_flickr.de 80893 39fcc8b3331d76fb42d648d019c6898b0d5e58baac87bc2a0bb93f44ec8db207
test_2018_flickr.en 70603 4e585c2dd525911a6ea7730e9d0b516239af3f1b1ffae6a2130223cfb639f25e
"""
IWSLT2017_URL = (
    "https://raw.githubusercontent.com/hlt-mt/WIT3/master/archive/2017-01-trnted/texts/de/en"
    "/de-en.tgz"
)
IWSLT2017_MD5 = "ca2b94d694150d4d6c5dc64c200fa589"
IWSLT2017_TESTS = "dev2010 tst2010 tst2011 tst2012 tst2013 tst2014 tst2015".split()


def multi30k(url=MULTI30K_URL, files=MULTI30K_FILES) -> Corpus:
    """List the downloads of Multi30k: one gzip file per text."""
    downloads = []
    for line in files.strip().splitlines():
        name, size, sha256 = line.split()
        file = TextFile(f"multi30k/{name}", int(size), sha256)
        downloads.append(Download(f"{url}/{name}.gz", {name: file}))
    licence = "only for non-commercial research and education (the images' terms of Flickr apply)"
    return Corpus(licence, downloads)


def iwslt2017(url=IWSLT2017_URL, md5=IWSLT2017_MD5) -> Corpus:
    """List the download of IWSLT 2017: one archive."""
    names = [f"train.tags.de-en.{lang}" for lang in ("de", "en")]
    for test in IWSLT2017_TESTS:
        names += [f"IWSLT17.TED.{test}.de-en.{lang}.xml" for lang in ("de", "en")]
    files = {f"de-en/{name}": TextFile(name) for name in names}
    licence = "Creative Commons BY-NC-ND (TED talks): no commercial use, no changed copies"
    return Corpus(licence, [Download(url, files, md5)])


CORPORA = {"multi30k": multi30k(), "iwslt2017": iwslt2017()}


# Downloading -------------------------------------------------------------------


class NetworkError(Exception):
    """A download failed. The same command may succeed later."""


class DamagedError(Exception):
    """A downloaded file is not the expected one."""


@contextlib.contextmanager
def network_errors(url):
    """Raise every error of the network as a NetworkError."""
    try:
        yield
    except urllib.error.HTTPError as error:
        raise NetworkError(
            f"{url}: the server answers {error.code} {error.reason}. Try again later. If the answer"
            " stays the same, the file has been moved"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise connection_error(url, getattr(error, "reason", error)) from None


def connection_error(url, reason) -> NetworkError:
    """The error of a connection that failed or broke."""
    return NetworkError(
        f"{url}: cannot be downloaded ({reason}). Check the network connection. The same command"
        " resumes the download"
    )


def fetch(url, path):
    """Download `url` to `path`, unless that file exists.

    Raises:
      NetworkError: the rest of the file cannot be had now. `path` with .part has the beginning.
    """
    if path.exists():
        return
    part = path.with_name(f"{path.name}.part")
    if part.is_symlink():  # it may lead out of the output folder
        part.unlink()
    while True:
        before = file_size(part)
        try:
            fetch_rest(url, part)
            break
        except NetworkError:
            if file_size(part) <= before:
                raise
    part.replace(path)


def fetch_rest(url, part):
    """Append to `part` the bytes of `url` that it lacks.

    Raises:
      NetworkError: the connection fails or breaks. What has been received is in `part`.
    """
    start = file_size(part)
    headers = {"Range": f"bytes={start}-"} if start else {}
    with network_errors(url):
        try:
            request = urllib.request.Request(url, headers=headers)
            response = urllib.request.urlopen(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
                raise
            response = None
    if response is None:  # `part` is not the beginning of this file
        part.unlink()
        return fetch_rest(url, part)
    if response.status != http.client.PARTIAL_CONTENT:  # the server sends the complete file
        start = 0
    length = response.headers["Content-Length"]
    size = start + int(length) if length else None
    with response, open(part, "ab" if start else "wb") as file:
        with tqdm(
            desc=url.rpartition("/")[2],
            total=size,
            initial=start,
            unit="B",
            unit_scale=True,
        ) as bar:
            while chunk := read_chunk(response, url):
                file.write(chunk)
                bar.update(len(chunk))
    if size not in (None, file_size(part)):
        raise connection_error(url, "the connection was closed too early")


def read_chunk(response, url) -> bytes:
    """Read some bytes of the response; none at its end."""
    with network_errors(url):
        return response.read(CHUNK_BYTES)


def file_size(path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    return path.stat().st_size if path.exists() else 0


# Unpacking ---------------------------------------------------------------------


@contextlib.contextmanager
def unpacking_errors():
    """Raise every error in the format of a gzip file or an archive as a DamagedError."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DamagedError(f"the file cannot be unpacked ({error})") from None


def unpack(download, archive, folder, missing, checksums_path):
    """Write the files `missing` of an archive into `folder`.

    Names in an archive are not trusted: only regular files with an expected name are read, and
    they are written to the path in the catalogue.

    Args:
      archive: path of the downloaded file.
      missing: names in the archive.
      checksums_path: the file of the checksums that the catalogue does not have.

    Raises:
      DamagedError: the archive, or a file in it, is not the expected one.
    """
    if download.md5 and file_digest(archive, "md5") != download.md5:
        raise DamagedError(f"the MD5 checksum is not {download.md5}")
    missing = set(missing)
    with unpacking_errors():
        for name, stream in members(download, archive):
            if name not in missing:
                continue
            missing.remove(name)
            file = download.files[name]
            with atomic_open(folder / file.path) as output, unpacking_errors():
                sha256 = copy(stream, output, file)
                output.flush()
                if not file.sha256:  # before the file has its name: what exists has a checksum
                    add_checksum(checksums_path, file.path, sha256)
    if missing:
        raise DamagedError(f"{min(missing)} is not in it")


def members(download, archive):
    """Yield the regular files in an archive: (name, file object)."""
    if download.url.endswith(".tgz"):
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                if member.isreg():
                    yield member.name.removeprefix("./"), tar.extractfile(member)
    else:
        (name,) = download.files
        with gzip.open(archive) as stream:
            yield name, stream


def copy(stream, output, file) -> str:
    """Copy an unpacked file, and return its SHA-256 checksum.

    Raises:
      DamagedError: its size or checksum is not that of the TextFile `file`.
    """
    digest, size = hashlib.sha256(), 0
    while chunk := stream.read(CHUNK_BYTES):
        size += len(chunk)
        if file.size is not None and size > file.size:
            break
        digest.update(chunk)
        output.write(chunk)
    if file.size not in (None, size):
        raise DamagedError(f"the size of {file.path} is not {file.size} bytes")
    if file.sha256 not in (None, digest.hexdigest()):
        raise DamagedError(f"the SHA-256 checksum of {file.path} is not {file.sha256}")
    return digest.hexdigest()


# What exists -------------------------------------------------------------------


def read_checksums(path) -> dict:
    """Read {path: SHA-256} from a file of the format of sha256sum, which may not exist."""
    if not path.exists():
        return {}
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: sha256 for sha256, _, name in (line.partition("  ") for line in lines)}


def add_checksum(path, name, sha256):
    """Add a line to a file of the format of sha256sum."""
    checksums = read_checksums(path) | {name: sha256}
    atomic_write(path, "".join(f"{sha256}  {name}\n" for name, sha256 in checksums.items()))


def file_digest(path, algorithm) -> str:
    """Return the checksum of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def missing_names(download, folder, checksums) -> list:
    """Return the names of the files in an archive that are not in `folder` yet.

    Args:
      checksums: {path: SHA-256} of those that the catalogue does not have.
    """
    missing = []
    for name, file in download.files.items():
        path = folder / file.path
        if not path.exists() and not path.is_symlink():
            missing.append(name)
            continue
        sha256 = file.sha256 or checksums.get(file.path)
        if not path.is_file() or file_digest(path, "sha256") != sha256:
            raise InputError(
                f"{path}: exists and is not the file of this corpus. Move it away, or choose"
                " another --output"
            )
    return missing


def fetch_corpus(name, folder) -> list:
    """Download and unpack the files of a corpus that do not exist, and return all paths.

    Raises:
      NetworkError: a file cannot be downloaded.
    """
    checksums_path = folder / f"{name}.sha256"
    checksums = read_checksums(checksums_path)
    downloads = CORPORA[name].downloads
    missing = [missing_names(download, folder, checksums) for download in downloads]
    for download, names in zip(downloads, missing, strict=True):
        if not names:
            continue
        make_folder(folder)
        archive = folder / f"{name}_{download.url.rpartition('/')[2]}"
        fetch(download.url, archive)
        try:
            unpack(download, archive, folder, names, checksums_path)
        except DamagedError as error:
            archive.unlink()
            raise InputError(
                f"{download.url}: {error}. The download is deleted. Run the same command again; if"
                " the error stays the same, the file on the server has changed"
            ) from None
        archive.unlink()
    return [folder / file.path for download in downloads for file in download.files.values()]


def parse_arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("corpus", choices=CORPORA, help="the corpus to download")
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=parse_path,
        default="corpora",
        help="folder to write to (corpora)",
    )
    return parser.parse_args()


def main(arguments):
    """Download the corpus that the command line names.

    Raises:
      OSError: a network error.
    """
    print(f"Licence of {arguments.corpus}: {CORPORA[arguments.corpus].licence}", flush=True)
    folder = Path(arguments.output)
    try:
        paths = fetch_corpus(arguments.corpus, folder)
    except NetworkError as error:
        raise OSError(str(error)) from None
    except OSError as error:
        message = str(error)
        if error.strerror:
            message = f"{error.filename or folder}: {error.strerror}"
        raise InputError(
            f"{message}. Free some space, or choose another --output. The same command resumes the"
            " download"
        ) from None
    print("\n".join(map(str, paths)))


if __name__ == "__main__":
    run_script(main, parse_arguments(), "stopped. The same command resumes the download")
