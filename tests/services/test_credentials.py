"""Where the command line's key comes from, and where it goes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import app
from services.commands.credentials import VARIABLE, KeyNotSent, headers_for

KEY = "kw_aaaaaaaa_" + "A" * 43
SHOWN = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.delenv(f"{VARIABLE}_FILE", raising=False)


@contextmanager
def listening(redirect_to: str | None = None) -> Iterator[tuple[str, list[str | None]]]:
    """A server that writes down which key each request shows; its address and the list."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            body = b'{"data": []}'
            self.send_response(307 if redirect_to else 200)
            if redirect_to:
                self.send_header("Location", redirect_to)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        server.server_close()


def test_a_key_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert headers_for("http://127.0.0.1:8000") == {}
    monkeypatch.setenv(VARIABLE, f" {KEY}\n")
    assert headers_for("http://127.0.0.1:8000") == SHOWN
    file = tmp_path / "key"
    file.write_text(f"{KEY.replace('A', 'B')}\n")
    assert headers_for("http://localhost:8000", file) == {"Authorization": f"Bearer {KEY.replace('A', 'B')}"}
    for content in (b"", b"\xff\xfe", b"two words"):
        file.write_bytes(content)
        with pytest.raises(KeyNotSent):
            headers_for("http://127.0.0.1:8000", file)
    with pytest.raises(KeyNotSent, match="cannot be read"):
        headers_for("http://127.0.0.1:8000", tmp_path / "none")


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://kernels.example", True),
        ("http://127.0.0.1:8000", True),
        ("http://[::1]:8000", True),
        ("http://localhost", True),
        ("http://kernels.example", False),
        ("http://10.0.0.7:8000", False),
        ("http://localhost.evil.example", False),
        ("http://localhost@evil.example", False),
        ("http://127.0.0.1@evil.example/", False),
        ("ftp://kernels.example", False),
        ("kernels.example", False),
        ("", False),
    ],
)
def test_over_plain_http_a_key_stays_on_this_machine(
    monkeypatch: pytest.MonkeyPatch, url: str, sent: bool
) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    if sent:
        assert headers_for(url) == SHOWN
    else:
        with pytest.raises(KeyNotSent, match="--plain-http") as refusal:
            headers_for(url)
        assert KEY not in str(refusal.value)
    assert headers_for(url, plain_http=True) == SHOWN


def test_the_service_that_was_named_gets_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    with listening() as (url, seen):
        assert CliRunner().invoke(app, ["jobs", "--json", "--url", url]).exit_code == 0
        assert seen == [f"Bearer {KEY}"]
        with listening(redirect_to=f"{url}/jobs") as (elsewhere, asked):
            assert CliRunner().invoke(app, ["jobs", "--url", elsewhere]).exit_code == 1
            assert asked == [f"Bearer {KEY}"]
        assert len(seen) == 1, "a redirect is not followed"


def test_no_proxy_sees_what_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    with listening() as (url, seen), listening() as (proxy, overheard):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        assert CliRunner().invoke(app, ["jobs", "--json", "--url", url]).exit_code == 0
        assert (len(seen), overheard) == (1, [])


def test_a_command_that_must_not_send_it_says_so_and_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, KEY)
    done = CliRunner().invoke(app, ["jobs", "--url", "http://kernels.example"])
    assert done.exit_code == 1
    assert "--plain-http" in done.output
    assert KEY not in done.output
