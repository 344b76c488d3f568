"""Clients that ask and do not read: what they leave untaken is cut off, and whoever reads on, however slowly, gets all of it."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastapi import FastAPI, Response

from services.api.connections import HeadTimeoutProtocol
from services.db.models import Event
from tests.services.keyed import Keyed, submit
from tests.services.serving import serving

# More than the system itself takes in for a connection: 4 MiB to send and, of who asks for so little, next to nothing to read.
_ANSWER = b"a" * 12_000_000
_PATIENCE_S = 1.0
_SOON_S = 15


@contextmanager
def _asked(url: str, path: str, *headers: str) -> Iterator[socket.socket]:
    """A connection on which an answer was asked for, with a small buffer to receive it."""
    parts = urlsplit(url)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16_384)
        client.settimeout(_SOON_S)
        client.connect((parts.hostname, parts.port))
        client.sendall("\r\n".join([f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", ""]).encode())
        yield client


def _rest(client: socket.socket) -> int:
    """How many bytes still come until the server hangs up."""
    found = 0
    try:
        while piece := client.recv(1_000_000):
            found += len(piece)
    except ConnectionError:
        pass
    return found


@pytest.fixture
def large() -> FastAPI:
    app = FastAPI()

    @app.get("/")
    def answer() -> Response:
        return Response(_ANSWER, headers={"Connection": "close"})

    return app


def test_an_answer_that_nobody_reads_costs_no_connection(
    large: FastAPI, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[float] = []
    end = HeadTimeoutProtocol.connection_lost

    def ended(self: HeadTimeoutProtocol, exc: Exception | None) -> None:
        lost.append(time.monotonic())
        end(self, exc)

    monkeypatch.setattr(HeadTimeoutProtocol, "connection_lost", ended)
    with serving(large, answer_seconds=_PATIENCE_S) as url, _asked(url, "/") as client:
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        deadline = time.monotonic() + _SOON_S
        while not lost:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert _rest(client) < len(_ANSWER) - 1_000_000


def test_who_reads_on_gets_all_of_an_answer(large: FastAPI) -> None:
    """It takes several times as long as nothing at all may be taken."""
    with serving(large, answer_seconds=_PATIENCE_S) as url, _asked(url, "/") as client:
        began, found = time.monotonic(), 0
        while time.monotonic() - began < 4 * _PATIENCE_S:
            found += len(client.recv(100_000))
            time.sleep(0.05)
        assert 0 < found < len(_ANSWER)
        assert found + _rest(client) > len(_ANSWER)


def test_a_stream_that_nobody_reads_gives_its_place_back(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, streams_per_key=1)
    job_id = submit(keyed.client()).json()["id"]
    with keyed.base.write() as session:
        session.add_all(
            Event(job_id=job_id, name="candidate.proposed", data={"label": "a" * 60_000}) for _ in range(200)
        )
    path, accept = f"/jobs/{job_id}/events", "Accept: text/event-stream"
    streams = keyed.app.state.streams
    with serving(keyed.app, answer_seconds=_PATIENCE_S) as url:
        with _asked(url, path, accept) as client:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            deadline = time.monotonic() + _SOON_S
            while not streams.is_full("127.0.0.1"):  # the head of an answer is sent before its body is begun
                assert time.monotonic() < deadline
                time.sleep(0.001)
            while streams.is_full("127.0.0.1"):
                assert time.monotonic() < deadline
                time.sleep(0.05)
            assert _rest(client) < 11_000_000
        with _asked(url, path, accept) as again:
            assert again.recv(1000).startswith(b"HTTP/1.1 200")
    keyed.close()
