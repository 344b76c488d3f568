"""One task polls the database for all open event streams and wakes those whose job has new events.

One query fetches the newest event id of all jobs; a stream whose job has new events is woken and reads them itself, in order.
Ids of different jobs do not become visible in order (PostgreSQL assigns them before commit), so every few seconds the task
checks each watched job separately; that also finds jobs that ended without a further event. The same task asks for the keys of
all open streams together and ends the streams whose key is no longer valid, so that a stream without news sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import exists, func, select
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from services.db.models import FINAL_STATES, Evaluation, Event, Job
from services.db.session import Database
from services.users.keys import is_valid

_log = logging.getLogger(__name__)
LOOK_EVERY_S = 1.0
ASK_EACH_EVERY_S = 10.0
ASK_KEYS_EVERY_S = 2.5
MOST_OF_ONE = 600


@dataclass(eq=False)
class Watcher:
    """One open stream.

    Attributes:
        job_id: its job.
        seen: id of the last event sent.
        key_id: the key that it was opened with, if any.
        is_revoked: whether that key is no longer valid; the stream ends.
        woken: set when the stream should look at its job's events, or is to end.
    """

    job_id: str
    seen: int
    key_id: str | None = None
    is_revoked: bool = False
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class EventStreams:
    """Wakes streams. Runs on one event loop.

    Args:
        database: the database that holds the events.
        stopping: set when the service stops; every stream is then woken.
        most: open streams allowed per caller; each holds a connection, and connections are limited.
    """

    def __init__(self, database: Database, stopping: asyncio.Event, most: int = MOST_OF_ONE) -> None:
        self._database = database
        self._stopping = stopping
        self._most = most
        self._open: Counter[str] = Counter()
        self._watchers: dict[str, set[Watcher]] = {}
        self._task: asyncio.Task[None] | None = None

    def is_full(self, whose: str) -> bool:
        """Whether this caller has reached the limit of open streams."""
        return self._open[whose] >= self._most

    @contextmanager
    def watching(
        self, job_id: str, seen: int, whose: str = "", key_id: str | None = None
    ) -> Iterator[Watcher]:
        """Register a caller's watcher of a job for the duration of the block; it is woken when the job may have new events."""
        watcher = Watcher(job_id, seen, key_id)
        self._open[whose] += 1
        self._watchers.setdefault(job_id, set()).add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield watcher
        finally:
            self._open[whose] -= 1
            self._open += Counter()  # drops callers without open streams
            others = self._watchers[job_id]
            others.discard(watcher)
            if not others:
                del self._watchers[job_id]

    async def _run(self) -> None:
        newest, asked_at, keys_asked_at = 0, -math.inf, time.monotonic()
        while self._watchers and not self._stopping.is_set():
            if time.monotonic() - keys_asked_at >= ASK_KEYS_EVERY_S:
                await self._end_revoked()
                keys_asked_at = time.monotonic()
            try:
                newest, changed = await run_in_threadpool(_changed, self._database, newest)
                self._wake(changed)
                if time.monotonic() - asked_at >= ASK_EACH_EVERY_S:
                    found = await run_in_threadpool(_each, self._database, list(self._watchers))
                    self._wake(
                        job_id
                        for job_id, last, settled in found
                        if settled or any((last or 0) > one.seen for one in self._watchers.get(job_id, ()))
                    )
                    asked_at = time.monotonic()
            except SQLAlchemyError as error:  # e.g. the database is restarting: the next poll retries
                _log.warning("events cannot be read now: %s", type(error).__name__)
            try:
                await asyncio.wait_for(self._stopping.wait(), LOOK_EVERY_S)
            except TimeoutError:
                pass
        self._wake(list(self._watchers))

    async def _end_revoked(self) -> None:
        keyed = [one for watchers in self._watchers.values() for one in watchers if one.key_id is not None]
        if keyed:
            valid = await run_in_threadpool(_valid, self._database, {str(one.key_id) for one in keyed})
            for watcher in keyed:
                if watcher.key_id not in valid:
                    watcher.is_revoked = True
                    watcher.woken.set()

    def _wake(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            for watcher in self._watchers.get(job_id, ()):
                watcher.woken.set()


def _valid(database: Database, key_ids: Collection[str]) -> set[str]:
    """Return which keys are valid: none if the database is unavailable, which ends their streams. A reconnect authenticates again."""
    try:
        with database.read() as session:
            return {key_id for key_id in key_ids if is_valid(session, key_id)}
    except SQLAlchemyError as error:
        _log.warning("keys cannot be checked: %s", type(error).__name__)
        return set()


def _changed(database: Database, since: int) -> tuple[int, list[str]]:
    """Return the newest event id, and the jobs with events after `since` (none at the very first poll)."""
    with database.read() as session:
        newest = session.scalar(select(func.max(Event.id))) or 0
        if not since or newest <= since:
            return max(newest, since), []
        return newest, list(session.scalars(select(Event.job_id).where(Event.id > since).distinct()))


def _each(database: Database, job_ids: Collection[str]) -> list[tuple[str, int | None, bool]]:
    """Return for each job its id, its newest event id, and whether no more events will come."""
    newest = select(func.max(Event.id)).where(Event.job_id == Job.id).scalar_subquery()
    waiting = exists().where(Evaluation.job_id == Job.id, Evaluation.state.not_in(FINAL_STATES))
    settled = Job.state.in_(FINAL_STATES) & ~waiting
    with database.read() as session:
        rows = session.execute(select(Job.id, newest, settled).where(Job.id.in_(job_ids))).all()
    return [(row[0], row[1], bool(row[2])) for row in rows]
