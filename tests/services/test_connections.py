"""Clients that are slow, and clients that are many: `services.api.connections`, and what one may hold at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.types import Message

from services.api import connections
from services.api.routes import evaluations
from tests.services.keyed import Keyed, submit
from tests.services.service import TINY_TASK, Service
from tests.services.serving import connected, serving, spoken


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    found = Keyed(tmp_path, body_seconds=1.0, streams_per_key=3)
    yield found
    found.close()


def test_a_head_that_does_not_come_costs_no_connection(keyed: Keyed) -> None:
    whole = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with serving(keyed.app, head_seconds=0.5) as url:
        for said in (b"", b"GET /healthz HTTP/1.1\r\nX-A: "):
            assert spoken(url, said, wait_s=3) == b""
        with connected(url) as client:  # nor the second request of a connection
            client.settimeout(3)
            client.sendall(whole)
            assert client.recv(65_536).startswith(b"HTTP/1.1 200")
            client.sendall(b"GET /hea")
            while client.recv(65_536):
                pass


def test_a_byte_now_and_then_makes_no_head(keyed: Keyed) -> None:
    with serving(keyed.app, head_seconds=0.5) as url, connected(url) as client:
        client.settimeout(4)
        began = time.perf_counter()
        try:
            while time.perf_counter() - began < 4:
                client.sendall(b"X")
                time.sleep(0.1)
        except ConnectionError:
            pass
        assert time.perf_counter() - began < 3


def test_a_head_without_end_is_cut_off(keyed: Keyed) -> None:
    with serving(keyed.app) as url:
        said = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X-A: " + b"a" * 200_000
        try:
            assert spoken(url, said, wait_s=5).split(b" ")[1] == b"400"
        except ConnectionError:  # it hung up while we still spoke
            pass
        assert httpx.get(f"{url}/healthz").status_code == 200


def test_a_body_that_does_not_come_is_given_up_and_holds_nobody_else_up(keyed: Keyed) -> None:
    head = b"POST /optimize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 500000\r\n\r\n"
    with serving(keyed.app) as url:
        with ThreadPoolExecutor(100) as crowd:  # twice what the pool of threads holds
            waiting = [crowd.submit(spoken, url, head + b'{"source": "', wait_s=8) for _ in range(100)]
            began = time.perf_counter()
            assert httpx.get(f"{url}/jobs").status_code == 200
            assert time.perf_counter() - began < 5.0
            answers = [one.result() for one in waiting]
    assert {answer.split(b" ")[1] for answer in answers} == {b"408"}
    assert all(b"application/problem+json" in answer for answer in answers)
    assert keyed.client().get("/jobs").json()["data"] == []


@pytest.mark.slow
def test_the_program_is_as_patient_as_it_is_told(tmp_path: Path) -> None:
    patience_s = {"KERNELWRIGHT_HEAD_SECONDS": "1", "KERNELWRIGHT_BODY_SECONDS": "1"}
    with Service(tmp_path, "--no-worker", environment=patience_s) as service:
        assert spoken(service.url, b"GET /healthz HTTP/1.1\r\nX-A: ", wait_s=5) == b""
        late = b"POST /optimize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n{"
        assert spoken(service.url, late, wait_s=5).startswith(b"HTTP/1.1 408 ")
        assert service.get("/jobs").json()["data"] == []


def test_a_stream_is_not_ended_by_the_time_that_a_body_may_take(keyed: Keyed) -> None:
    with serving(keyed.app) as url:
        job_id = submit(keyed.client()).json()["id"]
        with httpx.stream(
            "GET", f"{url}/jobs/{job_id}/events", headers={"Accept": "text/event-stream"}, timeout=10
        ) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("retry:")
            time.sleep(1.5)
            keyed.client().post(f"/jobs/{job_id}/cancel")
            assert any("job.cancelled" in line for line in lines)


def test_beyond_so_many_connections_further_ones_are_turned_away(keyed: Keyed) -> None:
    with serving(keyed.app, most=10) as url:
        held = [connected(url) for _ in range(12)]
        time.sleep(0.3)
        assert httpx.get(f"{url}/healthz").status_code == 503
        for one in held:
            one.close()
        time.sleep(0.3)
        assert httpx.get(f"{url}/healthz").status_code == 200
    assert 16 <= connections.most_connections() <= 4096


def test_streams_of_one_key_are_counted(keyed: Keyed) -> None:
    ada, bob = keyed.key("ada"), keyed.key("bob")
    ids = {made.text: submit(keyed.client(made)).json()["id"] for made in (ada, bob)}
    pieces: list[Iterator[bytes]] = []
    with serving(keyed.app) as url, httpx.Client() as client:

        def opened(text: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {text}", "Accept": "text/event-stream"}
            found = client.send(
                client.build_request("GET", f"{url}/jobs/{ids[text]}/events", headers=headers), stream=True
            )
            if found.status_code == 200:
                pieces.append(found.iter_raw())  # which hangs up when it is forgotten
                next(pieces[-1])
            return found

        first = [opened(ada.text) for _ in range(3)]
        assert [one.status_code for one in first] == [200, 200, 200]
        assert opened(ada.text).status_code == 429
        assert opened(bob.text).status_code == 200
        first[0].close()
        deadline = time.monotonic() + 10
        while (again := opened(ada.text)).status_code != 200:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert again.status_code == 200


def test_who_waits_for_a_verdict_is_counted(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluations, "_MOST_WAITING", 2)
    with serving(keyed.app) as url:
        body = {"source": TINY_TASK, "candidate": "x = 1"}

        def ask() -> tuple[float, httpx.Response]:
            began = time.perf_counter()
            answer = httpx.post(f"{url}/evaluate", json=body, headers={"Prefer": "wait=3"}, timeout=20)
            return time.perf_counter() - began, answer

        with ThreadPoolExecutor(6) as crowd:
            found = [one.result() for one in [crowd.submit(ask) for _ in range(6)]]
    assert {answer.status_code for _, answer in found} == {202}
    assert sum("Preference-Applied" in answer.headers for _, answer in found) == 2
    assert sum(elapsed_s >= 3 for elapsed_s, _ in found) == 2
    assert not keyed.app.state.waiting


@pytest.mark.parametrize("first_s", [0.0, 0.3])
def test_a_body_in_drops_ends_at_its_deadline_however_late_it_is_read(first_s: float) -> None:
    async def drops() -> Message:
        await asyncio.sleep(0.01)
        return {"type": "http.request", "body": b"x", "more_body": True}

    async def read() -> None:
        receive = connections.with_body_timeout(drops, 0.2)
        await asyncio.sleep(first_s)
        for _ in range(1000):
            await receive()
            read_times.append(time.monotonic())

    read_times: list[float] = []
    with pytest.raises(HTTPException) as refused:
        asyncio.run(read())
    assert refused.value.status_code == 408
    assert 1 <= len(read_times) < 30
