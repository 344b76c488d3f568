"""`make install` where only a default index can be reached, one of this test's own: what is said of its size, and what is fetched."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import time
import zipfile
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from scripts import install
from tests.servers import serving

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).with_name("uv")
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]

[project]
name = "project"
version = "1"
dependencies = ["torch>=2.11", "sympy"]
"""
BACKEND = """
import zipfile

def get_requires_for_build_editable(settings=None):
    return []

def build_editable(folder, settings=None, metadata=None):
    name = "project-1-py3-none-any.whl"
    with zipfile.ZipFile(f"{folder}/{name}", "w") as wheel:
        kept = "Metadata-Version: 2.1\\nName: project\\nVersion: 1\\nRequires-Dist: torch>=2.11\\nRequires-Dist: sympy\\n"
        wheel.writestr("project-1.dist-info/METADATA", kept)
        wheel.writestr("project-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr("project-1.dist-info/RECORD", "")
    return name
"""


class Index:
    """A package index with made-up releases, which counts what is fetched."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.metadata: dict[str, str] = {}
        self.sizes: dict[str, int] = {}
        self.fetched: Counter[str] = Counter()
        self.pause_s = 0.0
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index._answer(self)

            def log_message(self, *given: object) -> None:
                """Nothing on the terminal."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/simple"

    def add(self, name: str, version: str, listed: int, *needs: str, padding: int = 0) -> None:
        """A release that is listed with any size, and is a small wheel."""
        stem = f"{name.replace('-', '_')}-{version}"
        lines = [f"Requires-Dist: {need}\n" for need in needs]
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{''.join(lines)}"
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as wheel:
            wheel.writestr(f"{stem}.dist-info/METADATA", metadata)
            tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            wheel.writestr(f"{stem}.dist-info/WHEEL", tags)
            wheel.writestr(f"{stem}.data/data/{name}.bin", os.urandom(padding))
            wheel.writestr(f"{stem}.dist-info/RECORD", "")
        file = f"{stem}-py3-none-any.whl"
        self.files[file], self.metadata[file], self.sizes[file] = content.getvalue(), metadata, listed

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        *_, folder, last = ["", *request.path.strip("/").split("/")]
        kind, body = "application/octet-stream", b""
        if folder == "simple":
            kind = "application/vnd.pypi.simple.v1+json"
            found = [file for file in self.files if file.split("-")[0].replace("_", "-") == last]
            files = [
                {
                    "filename": file,
                    "url": f"/files/{file}",
                    "size": self.sizes[file],
                    "core-metadata": True,
                    "dist-info-metadata": {"sha256": _digest(self.metadata[file].encode())},
                    "hashes": {"sha256": _digest(self.files[file])},
                }
                for file in found
            ]
            page = {"meta": {"api-version": "1.1"}, "name": last, "files": files, "versions": []}
            body = json.dumps(page).encode() if found else b""
        elif last in self.files:
            self.fetched[last] += 1
            body = self.files[last]
        elif last.removesuffix(".metadata") in self.metadata:
            body = self.metadata[last.removesuffix(".metadata")].encode()
        request.send_response(200 if body else 404)
        request.send_header("Content-Type", kind)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        for begin in range(0, len(body), 1 << 18):
            request.wfile.write(body[begin : begin + (1 << 18)])
            if len(body) > 1 << 18:
                time.sleep(self.pause_s)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def index() -> Iterator[Index]:
    """torch's default build, with a library that it needs and two versions of another."""
    found = Index()
    found.add("torch", "2.13.0", 527_000_000, "nvidia-cublas", "sympy>=1.13", padding=2 << 20)
    found.add("nvidia-cublas", "13.1", 2_100_000_000)
    found.add("sympy", "1.14.0", 6_000_000)
    found.add("sympy", "1.15.0", 6_000_000)
    with serving(found.server):
        yield found


@pytest.fixture
def surroundings(index: Index, tmp_path: Path) -> dict[str, str]:
    """Variables with which pip and uv see that index and no other host."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **kept,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index.url,
        "PIP_CACHE_DIR": str(tmp_path / "pip-cache"),
        "UV_NO_CONFIG": "1",
        "UV_DEFAULT_INDEX": index.url,
        "UV_CACHE_DIR": str(tmp_path / "uv-cache"),
        "UV_HTTP_RETRIES": "0",
        "HTTPS_PROXY": "http://127.0.0.1:9",  # where CPU builds are kept cannot be reached
        "NO_PROXY": "127.0.0.1",
    }


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with this installer, and an environment that has uv, and this environment's pip, which takes seconds to install."""
    folder = tmp_path / "project"
    (folder / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "scripts" / "install.py", folder / "scripts")
    (folder / "constraints.txt").write_text("sympy==1.14.0\n")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(BACKEND)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / ".venv")], check=True)
    (packages,) = (folder / ".venv").glob("lib/python*/site-packages")
    (packages / "pip").symlink_to(Path(sysconfig.get_path("purelib")) / "pip")
    (folder / ".venv" / "bin" / "uv").symlink_to(UV)
    return folder


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems' default builds carry no CUDA"
)
def test_the_default_build_says_its_size_before_it_comes_and_nothing_comes_twice(
    index: Index, surroundings: dict[str, str], project: Path
) -> None:
    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "scripts/install.py", "--venv", ".venv", *arguments],
            cwd=project,
            env=surroundings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said = run("--only-torch")
    size = "2,633 MB in 3 packages (nvidia-cublas 2,100 MB, torch 527 MB, sympy 6 MB, ...)"
    assert said.index(size) < said.index("default build ..."), said
    once = {
        "torch-2.13.0-py3-none-any.whl": 1,
        "nvidia_cublas-13.1-py3-none-any.whl": 1,
        "sympy-1.14.0-py3-none-any.whl": 1,
    }
    assert index.fetched == once, (
        "nothing is fetched to learn its size, and nothing that a later step replaces"
    )
    assert "torch 2.13.0 is already there: kept" in run()
    assert "torch 2.13.0 is already there: kept" in run()
    assert index.fetched == once


def test_a_download_says_how_far_it_is(
    index: Index,
    surroundings: dict[str, str],
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    for name, value in surroundings.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(install, "SIGN_OF_LIFE_S", 0.2)
    monkeypatch.setattr(install, "CONSTRAINTS", project / "constraints.txt")
    index.pause_s = 0.3
    index.sizes["torch-2.13.0-py3-none-any.whl"] = 2 << 20
    environment = install.Environment(project / ".venv")
    sizes = environment.download_of("torch==2.13.0")
    assert sizes == {"torch": 2 << 20, "nvidia-cublas": 2_100_000_000, "sympy": 6_000_000}
    assert index.fetched == {}
    environment.install("torch", "torch==2.13.0", sizes=sizes)
    said = capsys.readouterr().out
    assert re.search(r"\.\.\. \d s: [\d,]+ MB of 2,108 MB: Downloading torch", said), said
    assert not (project / ".venv" / "download").exists()


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("global.index-url='http://a'", {"UV_DEFAULT_INDEX": "http://a"}),
        (":env:.index-url='http://b'\nglobal.index-url='http://a'", {"UV_DEFAULT_INDEX": "http://b"}),
        ("global.index-url='http://a'\ninstall.index-url='http://b'", {"UV_DEFAULT_INDEX": "http://b"}),
        ("download.index-url='http://a'", {}),
        (rf"global.extra-{install._INDEX}='\nhttp://a\nhttp://b'", {"UV_INDEX": "http://a http://b"}),
        (r"global.find-links='\n~\n/nowhere/at/all\nhttp://a'", {"UV_FIND_LINKS": f"{Path.home()},http://a"}),
        ("global.no-index='true'\nglobal.constraint='a.txt'\nglobal.quiet='1'", {"UV_NO_INDEX": "true", "UV_CONSTRAINT": "a.txt"}),
        ("global.pre='true'", None),
        (":env:.only-binary=':all:'", None),
    ],
)  # fmt: skip
def test_uv_is_told_what_pip_is_told_or_pip_does_its_work(listed: str, found: dict[str, str] | None) -> None:
    wanted = None if found is None else {"UV_INDEX_STRATEGY": "unsafe-best-match", **found}
    assert install.sources_of(listed) == wanted


def test_a_download_that_broke_off_is_not_begun_again_with_another_build(
    index: Index, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers of a release that came for the most part would be spent once more on the default build."""
    environment = install.Environment(project / ".venv")
    monkeypatch.setattr(environment, "download_of", lambda *given: {"torch": 500_000_000})
    breaks = ["sh", "-c", "echo ' Downloaded nvidia-cublas'; echo 'error: connection reset'; exit 2"]
    begin = environment.try_run
    monkeypatch.setattr(
        environment, "try_run", lambda arguments, sizes=None, variables=None: begin(breaks, sizes)
    )
    with pytest.raises(
        install.InstallError, match=r"500 MB to download.*broke off.*goes on from what is there"
    ):
        install._uv_torch(environment, "torch==2.13.0", "auto")
    refuses = ["sh", "-c", "echo 'no solution found'; exit 1"]
    monkeypatch.setattr(
        environment, "try_run", lambda arguments, sizes=None, variables=None: begin(refuses, sizes)
    )
    assert not install._uv_torch(environment, "torch==2.13.0", "auto")
