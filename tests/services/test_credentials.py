"""Where the command line's key comes from, and where it goes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services.cli import app
from services.client.sending import KEY_VARIABLE, api_key_of
from services.commands.terminal import KeyNotSent, key_from
from tests.servers import serving

KEY = "kw_aaaaaaaa_" + "A" * 43


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    monkeypatch.delenv(f"{KEY_VARIABLE}_FILE", raising=False)


@contextmanager
def listening(
    redirect_to: str | None = None, *, refuses: bool = False
) -> Iterator[tuple[str, list[str | None]]]:
    """A server that writes down which key each request shows; its address and the list."""
    seen: list[str | None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            body = b'{"data": [], "has_more": false, "first_id": null, "last_id": null}'
            self.send_response(307 if redirect_to else 401 if refuses else 200)
            if redirect_to:
                self.send_header("Location", redirect_to)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None:
            pass

    with serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url, seen


def test_a_key_comes_from_the_environment_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert api_key_of(key_from(None)) is None
    monkeypatch.setenv(KEY_VARIABLE, f" {KEY}\n")
    assert api_key_of(key_from(None)) == KEY
    file = tmp_path / "key"
    file.write_text(f"{KEY.replace('A', 'B')}\n")
    assert api_key_of(key_from(file)) == KEY.replace("A", "B")
    for content in (b"", b"\xff\xfe"):
        file.write_bytes(content)
        with pytest.raises(KeyNotSent):
            key_from(file)
    with pytest.raises(KeyNotSent, match="cannot be read"):
        key_from(tmp_path / "none")


def test_a_key_file_is_sent_and_where_none_is_taken_the_command_says_how_to_give_one(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(KEY)
    with listening() as (url, seen):
        assert CliRunner().invoke(app, ["jobs", "--url", url, "--key-file", str(file)]).exit_code == 0
        assert seen == [f"Bearer {KEY}"]
    with listening(refuses=True) as (url, _):
        done = CliRunner().invoke(app, ["jobs", "--url", url])
        assert done.exit_code == 1
        assert KEY_VARIABLE in done.output
        assert "--key-file" in done.output


def test_the_service_that_was_named_gets_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with listening() as (url, seen):
        assert CliRunner().invoke(app, ["jobs", "--json", "--url", url]).exit_code == 0
        assert seen == [f"Bearer {KEY}"]
        with listening(redirect_to=f"{url}/jobs") as (elsewhere, asked):
            assert CliRunner().invoke(app, ["jobs", "--url", elsewhere]).exit_code == 1
            assert asked == [f"Bearer {KEY}"]
        assert len(seen) == 1, "a redirect is not followed"


def test_no_proxy_sees_what_is_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with listening() as (url, seen), listening() as (proxy, overheard):
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        assert CliRunner().invoke(app, ["jobs", "--json", "--url", url]).exit_code == 0
        assert (len(seen), overheard) == (1, [])


def test_a_command_that_must_not_send_it_says_so_and_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    done = CliRunner().invoke(app, ["jobs", "--url", "http://kernels.example"])
    assert done.exit_code == 1
    assert "--plain-http" in done.output
    assert KEY not in done.output
