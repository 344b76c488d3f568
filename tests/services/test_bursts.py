"""Many requests at a time wait for each other, and none for ever: connections to the database are fewer than threads."""

from __future__ import annotations

import inspect
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from fastapi.routing import APIRoute
from limits import parse_many
from sqlalchemy import event, select, text, update

from services.api.deps import Route, SessionDep
from services.commands.serve import _listen
from services.db.models import Job
from services.db.session import Database
from services.users.rates import Rates
from tests.services.databases import fresh_database, new_job
from tests.services.keyed import Keyed
from tests.services.serving import serving

_AT_A_TIME = 120


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.services("postgres"))])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty database with the newest schema."""
    with fresh_database(request.param, tmp_path, request) as found:
        yield found


def test_a_burst_of_requests_is_answered(tmp_path: Path) -> None:
    keyed = Keyed(tmp_path, rate_limit="1000000/minute", rate_limit_without_key="1000000/minute")
    key = keyed.key("ada", "read").text
    ready = threading.Barrier(_AT_A_TIME)
    # The pool gives up after 30 s, and every request with it.
    client = httpx.Client(
        headers={"Authorization": f"Bearer {key}"},
        timeout=25,
        limits=httpx.Limits(max_connections=_AT_A_TIME),
    )

    def ask(url: str) -> int:
        ready.wait()
        return client.get(f"{url}/jobs").status_code

    with serving(keyed.app) as url, client, ThreadPoolExecutor(_AT_A_TIME) as people:
        found = Counter(people.map(ask, [url] * _AT_A_TIME))
    assert found == {200: _AT_A_TIME}


def test_every_route_with_a_session_ends_it_in_its_own_thread(tmp_path: Path) -> None:
    seen = 0
    for route in _routes(Keyed(tmp_path).app.routes):
        given = inspect.signature(route.endpoint, eval_str=True).parameters.values()
        if any(one.annotation == SessionDep for one in given):
            seen += 1
            assert isinstance(route, Route), route.path
    assert seen >= 30


def _routes(found: list[object]) -> Iterator[APIRoute]:
    for one in found:
        if isinstance(one, APIRoute):
            yield one
        else:
            router = getattr(one, "original_router", None) or getattr(one, "router", None)
            yield from _routes(getattr(router, "routes", []))


def test_a_session_for_reading_refuses_to_write(base: Database, tmp_path: Path) -> None:
    job_id = new_job(base, tmp_path)
    with base.read() as session:
        job = session.get(Job, job_id)
        assert job is not None
        with pytest.raises(RuntimeError, match="for reading"):
            session.execute(update(Job).values(name="other"))
        job.name = "other"
        with pytest.raises(RuntimeError, match="for reading"):
            session.flush()
    with base.read() as session:
        assert session.scalar(select(Job.name).where(Job.id == job_id)) != "other"


@pytest.mark.services("postgres")
def test_a_rush_pays_for_its_connections_once(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """PostgreSQL starts a process for each connection, which knows no table yet."""
    made = []
    with fresh_database("postgres", tmp_path, request) as base:
        event.listen(base.engine, "connect", lambda *given: made.append(given[0]))

        def rush() -> None:
            together = threading.Barrier(12)

            def ask() -> None:
                with base.read() as session:
                    session.execute(select(1))
                    together.wait(timeout=30)

            with ThreadPoolExecutor(12) as pool:
                for future in [pool.submit(ask) for _ in range(12)]:
                    future.result()

        rush()
        count = len(made)
        rush()
        assert len(made) == count <= 12
        last = []
        for _ in range(3):  # the one used last is taken first
            with base.read() as session:
                last.append(session.scalar(text("SELECT pg_backend_pid()")))
        assert len(set(last)) == 1


def test_answers_leave_at_once() -> None:
    # asyncio turns Nagle's algorithm off for sockets that say that they are TCP: else an answer in two parts waits 40 ms
    listener = _listen("127.0.0.1", 0)
    assert listener.proto == socket.IPPROTO_TCP
    listener.close()


def test_requests_are_counted_by_many_threads_at_once() -> None:
    rates, limits = Rates("memory://"), parse_many("1000/day")
    together = threading.Barrier(20)
    before = sys.getswitchinterval()

    def count() -> list[float]:
        found = []
        for _ in range(60):
            time.sleep(0.015)  # until the storage's timer of 10 ms has ended
            together.wait()
            found.append(rates.take(limits, "ada"))
        return found

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(20) as people:
            waits = [wait_s for one in [people.submit(count) for _ in range(20)] for wait_s in one.result()]
    finally:
        sys.setswitchinterval(before)
    assert (len(waits), waits.count(0.0)) == (1200, 1000)
