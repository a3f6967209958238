"""Downloading a corpus, from a server that this file starts and that misbehaves in many ways."""

import contextlib
import dataclasses
import gzip
import hashlib
import http.server
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time

import pytest

from processes import ROOT
from runtime.errors import InputError

sys.path.insert(0, str(ROOT / "corpora"))
try:
    import download
finally:
    sys.path.pop(0)

GERMAN = "Zwei Hunde laufen über eine Wiese.\n".encode() * 5_000
ENGLISH = b"Two dogs run across a meadow.\n" * 5_000


# The server --------------------------------------------------------------------


@dataclasses.dataclass
class Site:
    """What a server sends, and what it was asked for."""

    url: str = ""
    files: dict = dataclasses.field(default_factory=dict)  # {path: bytes}
    cut_after: list = dataclasses.field(default_factory=list)  # bytes sent, for each request
    stall_after: int = 0  # bytes sent, before the server waits for `go_on`
    go_on: threading.Event = dataclasses.field(default_factory=threading.Event)
    has_ranges: bool = True
    has_lengths: bool = True
    requests: list = dataclasses.field(default_factory=list)  # (path, Range)


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        site, ranges = self.server.site, self.headers["Range"]
        site.requests.append((self.path, ranges))
        content = site.files.get(self.path)
        if content is None:
            return self.send_error(404)
        start = int(re.fullmatch(r"bytes=(\d+)-", ranges)[1]) if ranges else 0
        start = start if site.has_ranges else 0
        if start and start >= len(content):
            return self.send_error(416)
        self.send_response(206 if start else 200)
        if start:
            last = len(content) - 1
            self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        if site.has_lengths:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        limit = site.cut_after.pop(0) if site.cut_after else None
        content = content[start:][:limit]
        with contextlib.suppress(ConnectionError):  # the client was stopped
            if site.stall_after:
                self.wfile.write(content[: site.stall_after])
                content = content[site.stall_after :]
                site.go_on.wait(60)
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture
def site():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.site = Site(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.site
        server.shutdown()
        thread.join()


def catalogue_line(name, text):
    return f"{name} {len(text)} {hashlib.sha256(text).hexdigest()}\n"


@pytest.fixture
def multi30k(site, monkeypatch):
    """Put two small texts on the server, as Multi30k."""
    lines = ""
    for name, text in {"train.de": GERMAN, "train.en": ENGLISH}.items():
        site.files[f"/raw/{name}.gz"] = gzip.compress(text, compresslevel=0)
        lines += catalogue_line(name, text)
    set_multi30k(site, lines, monkeypatch)
    return site


def set_multi30k(site, lines, monkeypatch):
    corpus = download.multi30k(f"{site.url}/raw", lines)
    monkeypatch.setitem(download.CORPORA, "multi30k", corpus)


def archive(*members):
    """Make a .tgz file of members: (name, bytes), or (name, target) for a symbolic link."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
                tar.addfile(member)
            else:
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
    return file.getvalue()


def iwslt_members():
    """All members of the archive of IWSLT 2017, each with its own name as its text."""
    return [(name, f"{name}\n".encode()) for name in download.iwslt2017().downloads[0].files]


@pytest.fixture
def serve_iwslt(site, monkeypatch):
    """Give a function that puts an archive with the given members on the server."""

    def serve(*members):
        content = archive(*members)
        site.files["/de-en.tgz"] = content
        md5 = hashlib.md5(content).hexdigest()
        corpus = download.iwslt2017(f"{site.url}/de-en.tgz", md5)
        monkeypatch.setitem(download.CORPORA, "iwslt2017", corpus)
        return site

    return serve


def fetch(name, folder):
    return download.fetch_corpus(name, folder)


def files_in(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


MULTI30K_FILES = {"multi30k/train.de", "multi30k/train.en"}


# The catalogue -----------------------------------------------------------------


def test_every_url_is_secure_and_every_path_is_in_the_folder():
    for corpus in download.CORPORA.values():
        for each in corpus.downloads:
            assert each.url.startswith("https://")
            for file in each.files.values():
                assert re.fullmatch(r"(multi30k/)?\w[\w.-]*", file.path)


def test_the_checksums_are_those_of_real_text(real_text):
    downloads = download.CORPORA["multi30k"].downloads
    assert len(downloads) == 12
    existing = [
        each
        for each in downloads
        for file in each.files.values()
        if (real_text / file.path).exists()
    ]
    assert len(existing) >= 6
    for each in existing:
        assert download.missing_names(each, real_text, {}) == []


# Complete downloads ------------------------------------------------------------


def test_the_files_are_the_texts_and_nothing_else_is_left(multi30k, tmp_path):
    paths = fetch("multi30k", tmp_path)
    assert [path.read_bytes() for path in paths] == [GERMAN, ENGLISH]
    assert files_in(tmp_path) == MULTI30K_FILES


def test_a_server_that_sends_no_length(multi30k, tmp_path):
    multi30k.has_lengths = False
    fetch("multi30k", tmp_path)
    assert (tmp_path / "multi30k" / "train.de").read_bytes() == GERMAN


@pytest.mark.parametrize("prefix", ["", "./"])
def test_an_archive_gives_the_names_that_the_documentation_has(serve_iwslt, tmp_path, prefix):
    members = iwslt_members()
    serve_iwslt(*((prefix + name, text) for name, text in members))
    fetch("iwslt2017", tmp_path)
    assert files_in(tmp_path) == {name[6:] for name, _ in members} | {"iwslt2017.sha256"}
    for name in ("train.tags.de-en.de", "IWSLT17.TED.tst2014.de-en.en.xml"):
        assert (tmp_path / name).read_text() == f"de-en/{name}\n"


def test_the_checksums_of_an_archive_are_in_the_format_of_sha256sum(serve_iwslt, tmp_path):
    serve_iwslt(*iwslt_members())
    fetch("iwslt2017", tmp_path)
    lines = (tmp_path / "iwslt2017.sha256").read_text().splitlines()
    assert len(lines) == len(iwslt_members())
    for line in lines:
        sha256, name = line.split("  ")
        assert hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() == sha256


@pytest.mark.parametrize("corpus", ["multi30k", "iwslt2017"])
def test_nothing_is_downloaded_twice(multi30k, serve_iwslt, tmp_path, corpus):
    serve_iwslt(*iwslt_members())
    paths = fetch(corpus, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in paths}
    multi30k.requests.clear()
    assert fetch(corpus, tmp_path) == paths
    assert not multi30k.requests
    assert {path: path.stat().st_mtime_ns for path in paths} == before


@pytest.mark.parametrize("corpus, name", [("multi30k", "train.en.gz"), ("iwslt2017", "de-en.tgz")])
def test_a_file_that_is_missing_is_downloaded_again(multi30k, serve_iwslt, tmp_path, corpus, name):
    serve_iwslt(*iwslt_members())
    paths = fetch(corpus, tmp_path)
    text = paths[1].read_bytes()
    paths[1].unlink()
    multi30k.requests.clear()
    fetch(corpus, tmp_path)
    assert [path.rpartition("/")[2] for path, _ in multi30k.requests] == [name]
    assert paths[1].read_bytes() == text


@pytest.mark.parametrize("corpus", ["multi30k", "iwslt2017"])
def test_a_file_with_other_content_is_never_replaced(multi30k, serve_iwslt, tmp_path, corpus):
    serve_iwslt(*iwslt_members())
    path = tmp_path / {"multi30k": "multi30k/train.en", "iwslt2017": "train.tags.de-en.en"}[corpus]
    path.parent.mkdir(exist_ok=True)
    path.write_text("My own text.\n")
    with pytest.raises(InputError, match=f"^{path}: exists .* Move it away"):
        fetch(corpus, tmp_path)
    assert path.read_text() == "My own text.\n" and not multi30k.requests


@pytest.mark.parametrize("name", ["multi30k/train.de", "multi30k_train.de.gz.part"])
def test_a_link_out_of_the_folder_is_not_written_to(multi30k, tmp_path, name):
    link, outside = tmp_path / "corpora" / name, tmp_path / "outside"
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    with contextlib.suppress(InputError):
        fetch("multi30k", tmp_path / "corpora")
    assert not outside.exists()


# Interrupted downloads ---------------------------------------------------------


def test_a_broken_connection_is_resumed(multi30k, tmp_path):
    multi30k.cut_after = [1_000, 2_000]
    fetch("multi30k", tmp_path)
    ranges = [ranges for path, ranges in multi30k.requests if path == "/raw/train.de.gz"]
    assert ranges == [None, "bytes=1000-", "bytes=3000-"]
    assert (tmp_path / "multi30k" / "train.de").read_bytes() == GERMAN
    assert files_in(tmp_path) == MULTI30K_FILES


def test_a_later_run_resumes(multi30k, tmp_path):
    """The connection breaks, and then the server sends nothing more."""
    multi30k.cut_after = [1_000, 0]
    with pytest.raises(download.NetworkError, match="train.de.gz: .*closed too early.* resumes"):
        fetch("multi30k", tmp_path)
    assert files_in(tmp_path) == {"multi30k_train.de.gz.part"}
    multi30k.requests.clear()
    fetch("multi30k", tmp_path)
    assert multi30k.requests[0] == ("/raw/train.de.gz", "bytes=1000-")
    assert files_in(tmp_path) == MULTI30K_FILES


def test_a_server_without_ranges_sends_the_whole_file_again(multi30k, tmp_path):
    multi30k.has_ranges = False
    multi30k.cut_after = [1_000]
    fetch("multi30k", tmp_path)
    assert multi30k.requests[1] == ("/raw/train.de.gz", "bytes=1000-")
    assert (tmp_path / "multi30k" / "train.de").read_bytes() == GERMAN


def test_a_beginning_that_is_longer_than_the_file_is_given_up(multi30k, tmp_path):
    (tmp_path / "multi30k_train.de.gz.part").write_bytes(b"x" * 10**6)
    fetch("multi30k", tmp_path)
    assert (tmp_path / "multi30k" / "train.de").read_bytes() == GERMAN


def test_the_beginning_of_another_file_is_deleted(multi30k, tmp_path):
    (tmp_path / "multi30k_train.de.gz.part").write_bytes(b"x" * 100)
    with pytest.raises(InputError, match="train.de.gz: .*The download is deleted"):
        fetch("multi30k", tmp_path)
    assert not files_in(tmp_path)
    fetch("multi30k", tmp_path)
    assert files_in(tmp_path) == MULTI30K_FILES


# Damaged downloads -------------------------------------------------------------


@pytest.mark.parametrize("size_change, text", [(-1, GERMAN), (1, GERMAN), (0, GERMAN[::-1])])
def test_a_wrong_size_or_checksum(multi30k, tmp_path, monkeypatch, size_change, text):
    size, sha256 = len(GERMAN) + size_change, hashlib.sha256(text).hexdigest()
    set_multi30k(multi30k, f"train.de {size} {sha256}\n", monkeypatch)
    what = "size" if size_change else "SHA-256 checksum"
    with pytest.raises(InputError, match=f"train.de.gz: the {what} of .*Run the same command"):
        fetch("multi30k", tmp_path)
    assert not files_in(tmp_path)


def test_a_small_file_that_unpacks_to_a_large_one(multi30k, tmp_path, monkeypatch):
    """It is given up as soon as it is larger than the expected one."""
    multi30k.files["/raw/train.de.gz"] = gzip.compress(bytes(10**8))
    written = []
    copy = download.copy
    monkeypatch.setattr(
        download, "copy", lambda source, output, file: copy(source, Counting(output, written), file)
    )
    with pytest.raises(InputError, match="size"):
        fetch("multi30k", tmp_path)
    assert sum(written) <= len(GERMAN) and not files_in(tmp_path)


class Counting:
    """A file that records how much is written to it."""

    def __init__(self, file, written):
        self.file, self.written = file, written

    def write(self, chunk):
        self.written.append(len(chunk))
        self.file.write(chunk)


@pytest.mark.parametrize("change", [lambda gz: gz[:-20], lambda gz: b"<html>", lambda gz: b""])
def test_a_file_that_is_not_gzip_or_is_incomplete(multi30k, tmp_path, change):
    gz = multi30k.files["/raw/train.de.gz"]
    multi30k.files["/raw/train.de.gz"] = change(gz)
    with pytest.raises(InputError, match="/train.de.gz: .*The download is deleted"):
        fetch("multi30k", tmp_path)
    assert not files_in(tmp_path)


def test_an_archive_with_a_wrong_checksum(serve_iwslt, tmp_path):
    site = serve_iwslt(*iwslt_members())
    site.files["/de-en.tgz"] = archive(*iwslt_members(), ("more", b""))
    with pytest.raises(InputError, match="de-en.tgz: the MD5 checksum is not .* has changed"):
        fetch("iwslt2017", tmp_path)
    assert not files_in(tmp_path)


# Untrusted archives ------------------------------------------------------------


def test_only_expected_members_are_unpacked(serve_iwslt, tmp_path):
    members = iwslt_members()
    evil = [
        ("../evil", b"x"),
        ("../../evil", b"x"),
        ("/tmp/test_download_evil", b"x"),
        ("de-en/../../evil", b"x"),
        ("de-en/README", b"x"),
        ("de-en/link", ".."),
        ("de-en/link/evil", b"x"),
    ]
    serve_iwslt(*evil, *members)
    folder = tmp_path / "a" / "b"
    fetch("iwslt2017", folder)
    assert files_in(tmp_path) == {
        f"a/b/{name}" for name in [*(name[6:] for name, _ in members), "iwslt2017.sha256"]
    }
    assert not os.path.exists("/tmp/test_download_evil")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "train.tags.de-en.en"])
def test_a_link_in_place_of_an_expected_member(serve_iwslt, tmp_path, target):
    name = "de-en/train.tags.de-en.de"
    members = [(each, target if each == name else text) for each, text in iwslt_members()]
    serve_iwslt(*members)
    with pytest.raises(InputError, match=f"de-en.tgz: {name} is not in it"):
        fetch("iwslt2017", tmp_path)
    assert not os.path.lexists(tmp_path / "train.tags.de-en.de")


def test_a_missing_member(serve_iwslt, tmp_path):
    serve_iwslt(*iwslt_members()[1:])
    with pytest.raises(InputError, match="de-en.tgz: de-en/train.tags.de-en.de is not in it"):
        fetch("iwslt2017", tmp_path)
    assert not (tmp_path / "train.tags.de-en.de").exists()
    serve_iwslt(*iwslt_members())
    fetch("iwslt2017", tmp_path)
    assert (tmp_path / "train.tags.de-en.de").exists()


# The command -------------------------------------------------------------------

DRIVER = """
import sys
sys.path[:0] = [{root!r}, {corpora!r}]
import download
download.CORPORA["multi30k"] = download.multi30k({url!r}, {lines!r})
sys.argv[0] = "download.py"
download.run_script(
    download.main, download.parse_arguments(), "stopped. The same command resumes the download"
)
"""


def command(site, *words, under=()):
    """The words that run the script in a process of its own, on the texts of the server."""
    lines = catalogue_line("train.de", GERMAN) + catalogue_line("train.en", ENGLISH)
    driver = DRIVER.format(
        root=str(ROOT), corpora=str(ROOT / "corpora"), url=f"{site.url}/raw", lines=lines
    )
    return [*under, sys.executable, "-c", driver, *map(str, words)]


def run(site, *words, under=()):
    return subprocess.run(command(site, *words, under=under), capture_output=True, text=True)


def error_line(done):
    """The only line of stderr that is not a progress bar."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("download.py: ")]
    assert "Traceback" not in done.stderr
    return line


def test_the_command_prints_the_licence_a_progress_bar_and_the_files(multi30k, tmp_path):
    done = run(multi30k, "multi30k", "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    licence, *paths = done.stdout.splitlines()
    assert "non-commercial" in licence
    assert paths == [str(tmp_path / name) for name in sorted(MULTI30K_FILES)]
    assert "train.de.gz: 100%" in done.stderr


@pytest.mark.parametrize("words", [[], ["wmt14"], ["multi30k", "--out", "x"]])
def test_wrong_arguments(multi30k, words):
    done = run(multi30k, *words)
    assert done.returncode == 2 and "--help" in error_line(done)


def test_a_url_that_does_not_exist(multi30k, tmp_path):
    del multi30k.files["/raw/train.en.gz"]
    done = run(multi30k, "multi30k", "--output", tmp_path)
    assert done.returncode == 1
    url = f"{multi30k.url}/raw/train.en.gz"
    assert f"{url}: the server answers 404 Not Found. Try again later." in error_line(done)
    assert files_in(tmp_path) == {"multi30k/train.de"}


def test_a_server_that_does_not_answer(tmp_path):
    done = run(Site("http://127.0.0.1:1"), "multi30k", "--output", tmp_path)
    assert done.returncode == 1
    assert "train.de.gz: cannot be downloaded (" in error_line(done)
    assert "Check the network connection" in error_line(done)


def test_a_wrong_checksum_has_exit_code_2(multi30k, tmp_path):
    multi30k.files["/raw/train.de.gz"] = multi30k.files["/raw/train.en.gz"]
    done = run(multi30k, "multi30k", "--output", tmp_path)
    assert done.returncode == 2 and "/raw/train.de.gz: the size" in error_line(done)
    assert not files_in(tmp_path)


def test_no_space(multi30k, tmp_path):
    """A limit on the size of a file stands for a full disk; then there is space again."""
    under = ["bash", "-c", 'ulimit -f 40; exec "$@"', "bash"]  # 40 KiB, as it counts
    done = run(multi30k, "multi30k", "--output", tmp_path, under=under)
    assert done.returncode == 2
    assert f"{tmp_path}: File too large. Free some space" in error_line(done)
    assert files_in(tmp_path) == {"multi30k_train.de.gz.part"}
    multi30k.requests.clear()
    assert run(multi30k, "multi30k", "--output", tmp_path).returncode == 0
    assert multi30k.requests[0][1] == "bytes=40960-"


def test_no_space_to_unpack_keeps_the_download(multi30k, tmp_path):
    multi30k.files["/raw/train.de.gz"] = gzip.compress(GERMAN)
    under = ["bash", "-c", 'ulimit -f 40; exec "$@"', "bash"]
    done = run(multi30k, "multi30k", "--output", tmp_path, under=under)
    assert done.returncode == 2
    assert "train.de: cannot be written: File too large. Free some space" in error_line(done)
    assert files_in(tmp_path) == {"multi30k_train.de.gz"}
    multi30k.requests.clear()
    assert run(multi30k, "multi30k", "--output", tmp_path).returncode == 0
    assert [path for path, _ in multi30k.requests] == ["/raw/train.en.gz"]


# Root may write anywhere, but for a root without that privilege.
BOUND = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []


@pytest.mark.skipif(
    BOUND != [] and not shutil.which("setpriv"),
    reason="no setpriv. To run them: as another user than root",
)
def test_a_folder_that_may_only_be_read(multi30k, tmp_path):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    done = run(multi30k, "multi30k", "--output", folder, under=BOUND)
    assert done.returncode == 2 and f"{folder}: " in error_line(done)
    assert "cannot be written to" in error_line(done) and not multi30k.requests


def test_an_output_that_is_a_file(multi30k, tmp_path):
    path = tmp_path / "file"
    path.write_text("x")
    done = run(multi30k, "multi30k", "--output", path)
    assert done.returncode == 2 and f"{path}: " in error_line(done)
    assert path.read_text() == "x"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_a_beginning_that_is_resumed(multi30k, tmp_path, number):
    multi30k.stall_after = 100_000
    part = tmp_path / "multi30k_train.de.gz.part"
    words = command(multi30k, "multi30k", "--output", tmp_path)
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 60
        while download.file_size(part) == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    multi30k.go_on.set()
    assert process.returncode == 128 + number
    assert "download.py: stopped. The same command resumes the download" in stderr
    size = part.stat().st_size
    assert files_in(tmp_path) == {part.name} and 0 < size <= 100_000

    multi30k.stall_after = 0
    multi30k.requests.clear()
    fetch("multi30k", tmp_path)
    assert multi30k.requests[0] == ("/raw/train.de.gz", f"bytes={size}-")
    assert (tmp_path / "multi30k" / "train.de").read_bytes() == GERMAN
