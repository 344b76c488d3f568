"""Many open event streams: each gets every event of its job once, in order, and all of them cost next to nothing."""

from __future__ import annotations

import asyncio
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from sqlalchemy import func, select

from services.db.models import Event, Job
from services.jobs import events
from services.jobs.endings import end_job
from tests.services.databases import new_job
from tests.services.filled import Filled
from tests.services.looking_service import ASK_EACH_EVERY_S

STREAMS = 40


async def follow(client: httpx.AsyncClient, url: str, opened: asyncio.Semaphore, seen: list[int]) -> None:
    """Collects ids of the events of a job until the service ends the stream."""
    async with client.stream("GET", url, headers={"Accept": "text/event-stream"}) as answer:
        assert answer.status_code == 200
        opened.release()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                seen.append(int(json.loads(line.removeprefix("data: "))["id"]))


def test_streams_tell_every_event_once_and_end_with_their_jobs(filled: Filled, tmp_path: Path) -> None:
    service, base = filled.service, filled.database
    jobs = [new_job(base, tmp_path) for _ in range(STREAMS)]

    def tell(number: int) -> None:
        for job_id in jobs[number::2]:
            with base.write() as session:
                events.lock_job(session, job_id)
                events.append(session, job_id, "candidate.progress", {"step": number})

    def late() -> int:
        """An event whose id becomes visible after a greater one of another job, as PostgreSQL has it."""
        with base.uncommitted() as held:
            events.lock_job(held, jobs[0])
            events.append(held, jobs[0], "late", {})
            held.flush()
            number = held.scalars(select(func.max(Event.id)).where(Event.job_id == jobs[0])).one()
            if base.engine.dialect.name == "postgresql":  # SQLite has one writer at a time
                with base.write() as session:
                    events.lock_job(session, jobs[1])
                    events.append(session, jobs[1], "early", {})
            time.sleep(1.0)
            held.commit()
            assert number is not None
            return number

    def finish() -> None:
        for job_id in jobs:
            with base.write() as session:
                job = session.get(Job, job_id, with_for_update=True)
                assert job is not None
                end_job(session, job, "cancelled", "enough")

    told: list[list[int]] = [[] for _ in jobs]

    async def story() -> None:
        opened = asyncio.Semaphore(0)
        limits = httpx.Limits(max_connections=STREAMS)
        async with httpx.AsyncClient(timeout=60, limits=limits) as client:
            tasks = [
                asyncio.create_task(follow(client, f"{service.url}/jobs/{one}/events", opened, seen))
                for one, seen in zip(jobs, told, strict=True)
            ]
            for _ in jobs:
                await opened.acquire()
            for number in range(4):
                await asyncio.to_thread(tell, number % 2)
            number = await asyncio.to_thread(late)
            deadline = time.monotonic() + ASK_EACH_EVERY_S + 5
            while number not in told[0]:
                assert time.monotonic() < deadline, "an event that became visible late is not told"
                await asyncio.sleep(0.05)
            await asyncio.to_thread(finish)
            await asyncio.wait_for(asyncio.gather(*tasks), 60)

    with ThreadPoolExecutor(
        1
    ) as pool:  # this thread may have a loop of its own: tests in a browser leave one
        pool.submit(lambda: asyncio.run(story())).result()
    with base.read() as session:
        for job_id, seen in zip(jobs, told, strict=True):
            assert seen == [
                row.id for row in session.query(Event).filter_by(job_id=job_id).order_by(Event.id)
            ]
            assert len(seen) >= 4


def test_an_event_reaches_a_stream_within_a_second(filled: Filled, tmp_path: Path) -> None:
    service, base = filled.service, filled.database
    job_id = new_job(base, tmp_path)
    stream = service.stream(job_id)
    assert next(stream)["name"] == "job.queued"
    waits = []
    for number in range(3):
        time.sleep(0.4)
        with base.write() as session:
            events.lock_job(session, job_id)
            events.append(session, job_id, "told", {"number": number, "at": time.time()})
        event = next(stream)
        waits.append(time.time() - event["data"]["at"])
        assert event["data"]["number"] == number
    assert min(waits) < 1.0
    stream.close()
