"""Downloading a corpus, from a server that this file starts and that misbehaves in many ways."""

import contextlib
import gzip
import hashlib
import http.server
import io
import subprocess
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
IWSLT2017 = [name.format(lang) for name in download.IWSLT2017_NAMES for lang in ("de", "en")]


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
        monkeypatch.setitem(download.CORPORA, "multi30k", ("", texts))
        md5 = serve_archive(server)
        texts = partial(download.fetch_archive, f"{server.url}/de-en.tgz", md5)
        monkeypatch.setitem(download.CORPORA, "iwslt2017", ("", texts))
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server
        server.shutdown()


def serve_archive(server) -> str:
    """Serve a .tgz file of the texts of IWSLT 2017, each of which is its own name: the MD5."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name in IWSLT2017:
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


@pytest.mark.parametrize("corpus", ["multi30k", "iwslt2017"])
def test_the_files_are_the_texts_and_nothing_is_downloaded_twice(server, tmp_path, corpus):
    paths = download.fetch_corpus(corpus, tmp_path)
    if corpus == "multi30k":
        assert [path.read_bytes() for path in paths] == [*TEXTS.values()]
        archives = {f"downloads/multi30k_{name}.gz" for name in TEXTS}
    else:
        assert [path.read_text() for path in paths] == IWSLT2017
        archives = {"downloads/iwslt2017_de-en.tgz"}
    assert files_in(tmp_path) == {str(path.relative_to(tmp_path)) for path in paths} | archives
    paths[1].unlink()
    server.requests.clear()
    assert download.fetch_corpus(corpus, tmp_path) == paths
    assert paths[1].exists() and not server.requests


@pytest.mark.parametrize("name", ["multi30k/train.en", "train.tags.de-en.en"])
@pytest.mark.parametrize("is_link", [False, True])
def test_a_file_with_other_content_is_never_replaced(server, tmp_path, name, is_link):
    """Nor is a link followed that leads out of the folder."""
    folder, outside = tmp_path / "corpora", tmp_path / "outside"
    path = folder / name
    path.parent.mkdir(parents=True)
    path.symlink_to(outside) if is_link else path.write_text("My own text.\n")
    with pytest.raises(InputError, match=f"^{path}: exists .* Move it away"):
        download.fetch_corpus("multi30k" if "multi30k" in name else "iwslt2017", folder)
    assert not outside.exists() and (is_link or path.read_text() == "My own text.\n")


@pytest.mark.parametrize(
    "content, reason",
    [
        (gzip.compress(TEXTS["train.en"]), "SHA-256 of train.de is not"),
        (gzip.compress(TEXTS["train.de"])[:-20], "Compressed file ended"),
        (b"<html>", "Not a gzipped file"),
        (b"", "SHA-256"),
        (b"", "its MD5 is not"),
    ],
)
def test_a_damaged_text_is_deleted(server, tmp_path, content, reason):
    name, corpus = ("de-en.tgz", "iwslt2017") if "MD5" in reason else ("train.de.gz", "multi30k")
    right, server.files[f"/{name}"] = server.files[f"/{name}"], content
    with pytest.raises(InputError, match=rf"/{name}: the download is damaged \(.*{reason}"):
        download.fetch_corpus(corpus, tmp_path)
    assert not files_in(tmp_path)
    server.files[f"/{name}"] = right
    download.fetch_corpus(corpus, tmp_path)


# The command -------------------------------------------------------------------

DRIVER = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/corpora"]
import download
texts = lambda folder: download.fetch_texts({url!r}, {checksums!r}, folder)
download.CORPORA["multi30k"] = download.FLICKR_LICENCE, texts
sys.argv[0] = "download.py"
download.run_script(download.main, download.parse_arguments())
"""


def run(url, *words, under=()):
    """Run the script: its exit code, what it prints, and the line that is not a progress bar."""
    driver = DRIVER.format(root=str(ROOT), url=url, checksums=CHECKSUMS)
    command = [*under, sys.executable, "-c", driver, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    lines = [line for line in done.stderr.splitlines() if line.startswith("download.py: ")]
    assert "Traceback" not in done.stderr and len(lines) == (done.returncode != 0), done.stderr
    return done.returncode, done.stdout, lines[0] if lines else done.stderr


def test_the_command_prints_the_licence_a_progress_bar_and_the_files(server, tmp_path):
    code, printed, errors = run(server.url, "multi30k", "--output", tmp_path)
    licence, *paths = printed.splitlines()
    assert code == 0 and "non-commercial" in licence and "train.de.gz: 100%" in errors
    assert paths == [str(tmp_path / "multi30k" / name) for name in TEXTS]


@pytest.mark.parametrize("fault", ["no server", "no file", "cut"])
def test_a_failure_of_the_network_has_one_message(server, tmp_path, fault):
    url = "http://127.0.0.1:1" if fault == "no server" else server.url
    if fault == "no file":
        del server.files["/train.de.gz"]
    server.cut_after = 1_000 if fault == "cut" else None
    code, _, line = run(url, "multi30k", "--output", tmp_path)
    assert code == 1 and "/train.de.gz: cannot be downloaded (" in line
    assert "Check the network connection" in line and not files_in(tmp_path)


@pytest.mark.parametrize("kib", [40, 100])  # too little for the download, and for its text
def test_no_space(server, tmp_path, kib):
    """A limit on the size of a file stands for a full disk."""
    under = ["bash", "-c", f'ulimit -f {kib}; exec "$@"', "bash"]
    if kib == 100:
        server.files["/train.de.gz"] = gzip.compress(TEXTS["train.de"])
    code, _, line = run(server.url, "multi30k", "--output", tmp_path, under=under)
    assert code == 1 and "file too large" in line.lower()
    assert files_in(tmp_path) <= {"downloads/multi30k_train.de.gz"}
