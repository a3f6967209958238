"""Download a public corpus, check it, and unpack it.

    python corpora/download.py multi30k
    python corpora/download.py multi30k_fr_cs
    python corpora/download.py iwslt2017

multi30k: image captions, 29,000 training pairs, in the folder corpora/multi30k: train.de,
train.en, val.* and test_2016_flickr.*.

multi30k_fr_cs: the same captions in French and Czech, in the same folder: train.fr, train.cs,
val.* and test_2016_flickr.*. Line n is the translation of line n of the files of multi30k.

iwslt2017: German-English TED talks, about 206,000 training pairs, in the folder corpora:
train.tags.de-en.*, and development and test sets, for example IWSLT17.TED.tst2014.de-en.de.xml.

The downloads stay in corpora/downloads, and the same command downloads only what is missing there.
"""

import gzip
import hashlib
import os
import re
import sys
import tarfile
import zlib
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pooch
from requests import RequestException

from support.cli import run_script
from support.errors import InputError
from support.files import atomic_write
from support.flags import Parser, expand_path

TIMEOUT_SECONDS = 60  # without any answer of the server
DAMAGED = (
    "the download is not the published file, and is deleted. Run the same command again. If the"
    " error stays, the file on the server has changed"
)
FLICKR_LICENCE = "only for non-commercial research and education (terms of Flickr's images)"
TED_LICENCE = "Creative Commons BY-NC-ND (TED talks): no commercial use, no changed copies"
MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a"
    "/data/task1/raw"
)
# Of the texts: nobody has published those of the downloads.
MULTI30K_SHA256 = {
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
}
MULTI30K_FR_CS_SHA256 = {
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "train.cs": "2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "val.cs": "d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
    "test_2016_flickr.cs": "45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8",
}
IWSLT2017_URL = (
    "https://raw.githubusercontent.com/hlt-mt/WIT3/master/archive/2017-01-trnted/texts/de/en"
    "/de-en.tgz"
)
IWSLT2017_MD5 = "ca2b94d694150d4d6c5dc64c200fa589"
IWSLT2017_NAME = r"(?:train\.tags|IWSLT17\.TED\.\w+)\.de-en\.(?:de|en)(?:\.xml)?"


def fetch_texts(url, checksums, folder):
    """Yield the path and the bytes of each text of Multi30k; `checksums` are their SHA-256."""
    for name, sha256 in checksums.items():
        archive = download(f"{url}/{name}.gz", folder / "downloads" / f"multi30k_{name}.gz")
        try:
            text = gzip.decompress(archive.read_bytes())
        except (EOFError, zlib.error, gzip.BadGzipFile):
            text = b""
        if hashlib.sha256(text).hexdigest() != sha256:
            archive.unlink()
            raise InputError(f"{url}/{name}.gz: {DAMAGED}")
        yield folder / "multi30k" / name, text


def fetch_archive(url, md5, folder):
    """Yield the path and the bytes of each text of IWSLT 2017, which are in one archive."""
    archive = download(url, folder / "downloads" / "iwslt2017_de-en.tgz", f"md5:{md5}")
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.rpartition("/")[2]
            if re.fullmatch(IWSLT2017_NAME, name):
                yield folder / name, tar.extractfile(member).read()


# The licence of each corpus, and the function of a folder that fetches it.
CORPORA = dict(
    multi30k=(FLICKR_LICENCE, partial(fetch_texts, MULTI30K_URL, MULTI30K_SHA256)),
    multi30k_fr_cs=(FLICKR_LICENCE, partial(fetch_texts, MULTI30K_URL, MULTI30K_FR_CS_SHA256)),
    iwslt2017=(TED_LICENCE, partial(fetch_archive, IWSLT2017_URL, IWSLT2017_MD5)),
)


def download(url, path, known_hash=None) -> Path:
    """Download a file to a path, unless it is there, and return the path."""
    downloader = pooch.HTTPDownloader(progressbar=True, timeout=TIMEOUT_SECONDS)
    try:
        pooch.retrieve(url, known_hash, path.name, path.parent, downloader=downloader)
    except RequestException as error:
        raise ConnectionError(
            f"{url}: cannot be downloaded ({error}). Check the network connection, and run the same"
            " command again. If the error stays, the file has been moved"
        ) from None
    except ValueError:  # another hash
        raise InputError(f"{url}: {DAMAGED}") from None
    return path


def main(args):
    """Write the files that do not exist, and print the licence and all paths."""
    pooch.get_logger().setLevel("WARNING")
    licence, fetch = CORPORA[args.corpus]
    print(f"Licence of {args.corpus}: {licence}", flush=True)
    for path, text in fetch(Path(args.output)):
        if not os.path.lexists(path):
            atomic_write(path, text)
        elif not path.is_file() or path.read_bytes() != text:
            raise InputError(
                f"{path}: exists and is another file. Move it away, or change --output"
            )
        print(path)


def parse_args():
    """Parse the command line."""
    parser = Parser(description=__doc__)
    parser.add_argument("corpus", choices=CORPORA, help="the corpus to download")
    parser.add_argument("--output", type=expand_path, default="corpora", help="folder (corpora)")
    return parser.parse_args()


if __name__ == "__main__":
    run_script(main, parse_args())
