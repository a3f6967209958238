"""The image has the files that run (without Docker), and docs/deploy.md has a file for nginx."""

import os
import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from packaging.requirements import Requirement

from helpers import blocks
from processes import ROOT, free_ports

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
START = ["serve.py", "--logdir", "docs/sample_model", "--beam", "1", "--nbest", "1", "--port"]


def names_of(requirements):
    """The names of packages in a file of requirements, in lower case."""
    lines = re.sub(r"(^|  )[#-].*", "", (ROOT / requirements).read_text("utf-8"), flags=re.M)
    return {Requirement(line).name.lower() for line in lines.split("\n") if line.strip()}


def test_an_installation_without_cuda_lacks_only_what_needs_it():
    cpu, full = names_of("requirements-cpu.txt"), names_of("requirements.txt")
    assert cpu - full == {"tensorflow-cpu"} and full - cpu == {"tensorflow-text"}


def copied_files():
    """The files that git lists and .dockerignore keeps: the last pattern that fits decides."""
    lines = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    rules = [
        (line[0] == "!", re.compile(re.escape(line.strip("!")).replace(r"\*", "[^/]*") + "(/|$)"))
        for line in lines
        if line[0] != "#"
    ]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.splitlines():
        if [is_kept for is_kept, pattern in rules if pattern.match(name)][-1]:
            yield name


def is_healthy(port, process) -> bool:
    """Run the health check of the image, with this port, and this process as its first one."""
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    check = re.search(r"HEALTHCHECK .*? CMD (.*?[^\\])\n", dockerfile, re.DOTALL)[1]
    check = check.replace("8080", str(port)).replace("python", sys.executable)
    check = check.replace("/proc/1/", f"/proc/{process.pid}/")
    return not subprocess.run(["sh", "-c", check], stderr=subprocess.DEVNULL).returncode


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Start serve.py in a folder with the files of the image: its port, and its process."""
    folder = tmp_path_factory.mktemp("app")
    for name in copied_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    assert not {"tests", "benchmarks", "README.md"} & {path.name for path in folder.iterdir()}
    (port,) = free_ports(1)
    command = [sys.executable, *START, str(port)]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE) as process:
        assert b"http" in process.stdout.readline()
        yield port, process
        process.terminate()


@pytest.mark.skipif(not os.path.exists("/proc/1"), reason="no /proc: a test for Linux")
def test_a_server_that_answers_is_healthy_and_so_is_a_training(server):
    port, process = server
    (unused,) = free_ports(1)
    assert is_healthy(port, process) and not is_healthy(unused, process)
    with subprocess.Popen(["sleep", "60"]) as training:
        assert is_healthy(unused, training)
        training.kill()


@pytest.mark.skipif(not (NGINX and shutil.which("openssl")), reason="no nginx, or no openssl")
def test_nginx_passes_translations_on(server, tmp_path):
    (block,) = [block for kind, block in blocks("deploy.md") if kind == "nginx"]
    (own_port,) = free_ports(1)
    for old, new in {
        "443": str(own_port),
        "8080": str(server[0]),
        "5r/s": "1r/m",  # a busy machine is slow
        "/etc/ssl/private/translate.example.org.key": f"{tmp_path}/key",
        "/etc/ssl/translate.example.org.pem": f"{tmp_path}/certificate",
    }.items():
        assert old in block
        block = block.replace(old, new)
    make = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=x -keyout key -out certificate"
    subprocess.run(make.split(), cwd=tmp_path, capture_output=True, check=True)
    folders = "client_body proxy fastcgi uwsgi scgi".split()
    folders = "".join(f"{name}_temp_path {tmp_path}/{name};" for name in folders)
    first = f"user root; pid {tmp_path}/pid; error_log {tmp_path}/log; events {{}}"
    (tmp_path / "conf").write_text(f"{first} http {{ access_log off; {folders} {block} }}")

    def status_and_answer(path, body=None):
        host = dict(Host="translate.example.org")
        request = urllib.request.Request(f"https://127.0.0.1:{own_port}/{path}", body, host)
        try:
            context = ssl._create_unverified_context()
            with urllib.request.urlopen(request, context=context) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    command = [NGINX, "-c", tmp_path / "conf"]
    subprocess.run(command, check=True)
    try:
        status, answer = status_and_answer("translate?source=de&target=en&q=Hund", b"")
        assert status == 200 and b"translatedText" in answer
        assert status_and_answer("nothing")[0] == 404
        status, answer = status_and_answer("translate", b"a" * 150_000)
        assert status == 413 and b"nginx" in answer
        assert 429 in [status_and_answer("health")[0] for _ in range(30)]
    finally:
        subprocess.run([*command, "-s", "stop"], check=True)
