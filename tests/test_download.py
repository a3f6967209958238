"""Downloading a corpus, from a server that this file starts and that misbehaves in many ways."""

import argparse
import contextlib
import gzip
import hashlib
import http.server
import io
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


class Handler(http.server.BaseHTTPRequestHandler):
    """Sends the bytes in `server.files`, and notes the paths of the requests."""

    def do_GET(self):
        server = self.server
        server.requests.append(self.path)
        content = server.files.get(self.path)
        if content is None:
            return self.send_error(404)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with contextlib.suppress(ConnectionError):  # the client was stopped
            self.wfile.write(content[: server.cut_after])

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    """A server of two small texts as Multi30k, and of an archive as IWSLT 2017."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.url = f"http://127.0.0.1:{server.server_port}"
        server.files = {f"/{name}.gz": gzip.compress(text, 0) for name, text in TEXTS.items()}
        server.requests, server.cut_after = [], None
        texts = partial(download.fetch_texts, server.url, CHECKSUMS)
        monkeypatch.setitem(download.CORPORA, "multi30k", (download.FLICKR_LICENCE, texts))
        md5 = serve_archive(server)
        texts = partial(download.fetch_archive, f"{server.url}/de-en.tgz", md5)
        monkeypatch.setitem(download.CORPORA, "iwslt2017", (download.TED_LICENCE, texts))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def serve_archive(server) -> str:
    """Serve a .tgz file of the texts of IWSLT 2017, each of which is its own name: the MD5."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in (*IWSLT2017, "README", "._train.tags.de-en.de"):
            member = tarfile.TarInfo(f"./de-en/{name}")
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    server.files["/de-en.tgz"] = file.getvalue()
    return hashlib.md5(file.getvalue()).hexdigest()


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


@pytest.mark.parametrize("corpus", ["multi30k", "iwslt2017"])
def test_the_files_are_the_texts_and_nothing_is_downloaded_twice(server, tmp_path, corpus, capsys):
    fetch(corpus, tmp_path)
    licence, *paths = (printed := capsys.readouterr()).out.splitlines()
    assert licence == f"Licence of {corpus}: {download.CORPORA[corpus][0]}"
    assert f"{'train.de.gz' if corpus == 'multi30k' else '.tgz'}: 100%" in printed.err
    if corpus == "multi30k":
        expected = {f"multi30k/{name}": text for name, text in TEXTS.items()}
        archives = {f"downloads/multi30k_{name}.gz" for name in TEXTS}
    else:
        expected = {name: name.encode() for name in IWSLT2017}
        archives = {"downloads/iwslt2017_de-en.tgz"}
    assert files_in(tmp_path) == {*expected} | archives
    assert paths == [str(tmp_path / name) for name in expected]
    assert {name: (tmp_path / name).read_bytes() for name in expected} == expected
    (tmp_path / min(expected)).unlink()
    server.requests.clear()
    fetch(corpus, tmp_path)
    assert files_in(tmp_path) == {*expected} | archives and not server.requests


@pytest.mark.parametrize("name", ["multi30k/train.en", "train.tags.de-en.en"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_with_other_content_is_never_replaced(server, tmp_path, name, is_link):
    """Nor is a link followed that leads out of the folder."""
    folder, outside = tmp_path / "corpora", tmp_path / "outside"
    path = folder / name
    path.parent.mkdir(parents=True)
    path.symlink_to(outside) if is_link else path.write_text("My own text.\n")
    with pytest.raises(InputError, match=f"^{path}: exists .* Move it away"):
        fetch("multi30k" if "multi30k" in name else "iwslt2017", folder)
    assert not outside.exists() and (is_link or path.read_text() == "My own text.\n")


@pytest.mark.parametrize(
    "name, content",
    [
        ("train.de.gz", gzip.compress(TEXTS["train.en"])),
        ("train.de.gz", gzip.compress(TEXTS["train.de"])[:-20]),
        ("train.de.gz", b"<html>"),
        ("train.de.gz", b""),
        ("de-en.tgz", b""),
    ],
)
def test_a_damaged_text_is_deleted(server, tmp_path, name, content):
    corpus = "iwslt2017" if "tgz" in name else "multi30k"
    right, server.files[f"/{name}"] = server.files[f"/{name}"], content
    with pytest.raises(InputError, match=rf"/{name}: the download is not the published file"):
        fetch(corpus, tmp_path)
    assert not files_in(tmp_path)
    server.files[f"/{name}"] = right
    fetch(corpus, tmp_path)


@pytest.mark.parametrize("fault", ["no server", "no file", "cut"])
def test_a_failure_of_the_network_has_one_message(server, tmp_path, fault):
    if fault == "no server":
        server.shutdown()
        server.server_close()
    elif fault == "no file":
        del server.files["/train.de.gz"]
    server.cut_after = 1_000 if fault == "cut" else None
    message = r"/train.de.gz: cannot be downloaded \(.*Check the network connection"
    with pytest.raises(ConnectionError, match=message):
        fetch("multi30k", tmp_path)
    assert not files_in(tmp_path)
