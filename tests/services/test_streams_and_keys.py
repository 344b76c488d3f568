"""A stream of events is open for as long as its key is valid, and asks for little else by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.api import streams
from services.api.routes import events as event_routes
from services.api.streams import EventStreams
from services.jobs import events
from services.users import keys
from services.users.audit import FROM_THE_MACHINE
from tests.services.keyed import Keyed, submit


@pytest.fixture
def keyed(tmp_path: Path) -> Iterator[Keyed]:
    found = Keyed(tmp_path)
    yield found
    found.close()


def test_an_open_stream_ends_when_its_key_does(keyed: Keyed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "ASK_KEYS_EVERY_S", 0.1)

    def tell(job_id: str) -> None:
        with keyed.base.write() as session:
            events.lock_job(session, job_id)
            events.append(session, job_id, "candidate.progress", {})

    async def read_on(key_id: str, job_id: str, seconds: float, *, busy: bool) -> bool:
        """Whether the stream ends by itself; `busy`: something new has happened whenever it looks."""
        stopping = asyncio.Event()
        watched = EventStreams(keyed.base, stopping)
        stream = event_routes._stream(keyed.base, key_id, job_id, 0, watched, stopping)
        try:
            async with asyncio.timeout(seconds):
                async for _ in stream:
                    if busy:
                        await asyncio.to_thread(tell, job_id)
        except TimeoutError:
            return False
        finally:
            stopping.set()
        return True

    for busy in (False, True):
        made = keyed.key("ada")
        job_id = submit(keyed.client(made)).json()["id"]
        assert not asyncio.run(read_on(made.row.id, job_id, 1.0, busy=busy))
        with keyed.base.write() as session:
            keys.revoke_key(session, FROM_THE_MACHINE, made.row.id)
        assert asyncio.run(read_on(made.row.id, job_id, 20.0, busy=busy))


def test_idle_streams_ask_for_their_key_together_and_not_for_events(
    keyed: Keyed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of idle streams share one look-out, and one question about the key that they were opened with."""
    monkeypatch.setattr(streams, "ASK_KEYS_EVERY_S", 0.3)
    monkeypatch.setattr(streams, "LOOK_EVERY_S", 0.25)
    made = keyed.key("ada")
    job_id = submit(keyed.client(made)).json()["id"]
    asked: list[str] = []
    valid, look = streams._valid, event_routes._look

    def counted_keys(*given: Any) -> set[str]:
        asked.append("keys")
        return valid(*given)

    def counted_look(*given: Any) -> Any:
        asked.append("events")
        return look(*given)

    monkeypatch.setattr(streams, "_valid", counted_keys)
    monkeypatch.setattr(event_routes, "_look", counted_look)
    count = 20

    async def idle() -> None:
        stopping = asyncio.Event()
        watched = EventStreams(keyed.base, stopping)

        async def read() -> None:
            async for _ in event_routes._stream(keyed.base, made.row.id, job_id, 0, watched, stopping):
                pass

        reading = [asyncio.create_task(read()) for _ in range(count)]
        await asyncio.sleep(2.0)
        stopping.set()
        await asyncio.wait(reading, timeout=20)

    asyncio.run(idle())
    assert 2 <= asked.count("keys") <= 8
    assert asked.count("events") <= 4 * count, "one page, one that is empty, one when it stops"
