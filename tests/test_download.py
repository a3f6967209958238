"""Downloading a corpus, from a server that this file starts and that misbehaves in many ways."""

import argparse
import gzip
import hashlib
import http.server
import io
import shutil
import sys
import tarfile
import threading
from functools import partial

import pytest

from processes import ROOT
from support.errors import InputError

sys.path.insert(0, str(ROOT / "corpora"))
try:
    import download
finally:
    sys.path.pop(0)

TEXTS = {
    "train.de": "Zwei Hunde laufen über eine Wiese.\n".encode() * 5_000,
    "train.en": b"Two dogs run across a meadow.\n" * 5_000,
}
CHECKSUMS = {name: hashlib.sha256(text).hexdigest() for name, text in TEXTS.items()}
IWSLT2017 = [f"train.tags.de-en.{lang}" for lang in ("de", "en")]
IWSLT2017 += [f"IWSLT17.TED.tst2010.de-en.{lang}.xml" for lang in ("de", "en")]


@pytest.fixture
def served(monkeypatch, tmp_path):
    """The folder of a server of two small texts as Multi30k, and of an archive as IWSLT 2017.

    Each text of the archive is its own name.
    """
    folder = tmp_path / "served"
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / f"{name}.gz").write_bytes(gzip.compress(text, 0))
    with tarfile.open(folder / "de-en.tgz", "w:gz") as tar:
        for name in (*IWSLT2017, "README", "._train.tags.de-en.de"):
            member = tarfile.TarInfo(f"./de-en/{name}")
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    md5 = hashlib.md5((folder / "de-en.tgz").read_bytes()).hexdigest()
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        for name, fetch in dict(
            multi30k=partial(download.fetch_texts, url, CHECKSUMS),
            iwslt2017=partial(download.fetch_archive, f"{url}/de-en.tgz", md5),
        ).items():
            monkeypatch.setitem(download.CORPORA, name, (f"terms of {name}", fetch))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield folder
        server.shutdown()


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


@pytest.mark.parametrize("corpus", ["multi30k", "multi30k_fr_cs"])
def test_the_checksums_are_those_of_real_text(real_text, corpus):
    checksums = getattr(download, f"{corpus.upper()}_SHA256")
    paths = {name: real_text / corpus / name for name in checksums}
    paths = {name: path for name, path in paths.items() if path.exists()}
    assert len(paths) >= 6
    for name, path in paths.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == checksums[name]


def fetch(corpus, folder):
    """Run the tool in this process."""
    download.main(argparse.Namespace(corpus=corpus, output=str(folder)))


MULTI30K = {f"multi30k/{name}": text for name, text in TEXTS.items()}


@pytest.mark.parametrize(
    "corpus, expected, archives",
    [
        ("multi30k", MULTI30K, {f"downloads/multi30k_{name}.gz" for name in TEXTS}),
        ("iwslt2017", {n: n.encode() for n in IWSLT2017}, {"downloads/iwslt2017_de-en.tgz"}),
    ],
)
def test_the_files_are_the_texts_and_nothing_is_downloaded_twice(
    served, tmp_path, capsys, corpus, expected, archives
):
    output = tmp_path / "out"
    fetch(corpus, output)
    licence, *paths = (printed := capsys.readouterr()).out.splitlines()
    assert licence == f"Licence of {corpus}: terms of {corpus}" and "100%" in printed.err
    assert paths == [str(output / name) for name in expected]
    shutil.rmtree(served)
    (output / min(expected)).unlink()
    fetch(corpus, output)
    assert files_in(output) == {*expected} | archives
    assert {name: (output / name).read_bytes() for name in expected} == expected


@pytest.mark.parametrize("name", ["multi30k/train.en", "train.tags.de-en.en"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_with_other_content_is_never_replaced(served, tmp_path, name, is_link):
    """Nor is a link followed that leads out of the folder."""
    folder, outside = tmp_path / "corpora", tmp_path / "outside"
    path = folder / name
    path.parent.mkdir(parents=True)
    path.symlink_to(outside) if is_link else path.write_text("My own text.\n")
    with pytest.raises(InputError, match=f"^{path}: exists .* Move it away"):
        fetch("multi30k" if "multi30k" in name else "iwslt2017", folder)
    assert not outside.exists() and (is_link or path.read_text() == "My own text.\n")


GERMAN = gzip.compress(TEXTS["train.de"])


@pytest.mark.parametrize(
    "name, content",
    [
        *(("train.de.gz", content) for content in (GERMAN[:-20], b"<html>", b"")),
        *(("train.de.gz", gzip.compress(TEXTS["train.en"])), ("de-en.tgz", b"")),
    ],
)
def test_a_damaged_text_is_deleted(served, tmp_path, name, content):
    corpus = "iwslt2017" if "tgz" in name else "multi30k"
    right = (served / name).read_bytes()
    (served / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"/{name}: the download is not the published file"):
        fetch(corpus, tmp_path / "out")
    assert not files_in(tmp_path / "out")
    (served / name).write_bytes(right)
    fetch(corpus, tmp_path / "out")


def test_a_failure_of_the_network_has_one_message(served, tmp_path):
    (served / "train.de.gz").unlink()
    message = r"/train.de.gz: cannot be downloaded \(.*Check the network connection"
    with pytest.raises(ConnectionError, match=message):
        fetch("multi30k", tmp_path / "out")
    assert not files_in(tmp_path / "out")
