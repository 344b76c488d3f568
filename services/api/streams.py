"""One task that polls the database for all open event streams and wakes those whose job has news.

One query asks for the newest event of all; a stream whose job has new events is woken and reads them itself, in order. Ids of
different jobs do not become visible in order (PostgreSQL hands them out before commit), so every few seconds each watched job is
looked at by itself; that also finds jobs that ended without a further event. A stream ends with its key, and whether a key is
still valid is asked once for all of its streams.
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
LOOK_EVERY_S = 0.5
ASK_EACH_EVERY_S = 5.0
KEY_KEPT_S = 2.5
MOST_OF_ONE = 600


@dataclass(eq=False)
class Watcher:
    """One stream: `seen` is the last event that it has sent; `woken` says that there is something to look at."""

    job_id: str
    seen: int
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class EventStreams:
    """Wakes streams. Lives on one event loop.

    Args:
        database: where events are.
        stopping: set when the service stops; then every stream is woken.
        most: how many streams of one caller's there may be at a time: each is a connection, of which there are not many.
    """

    def __init__(self, database: Database, stopping: asyncio.Event, most: int = MOST_OF_ONE) -> None:
        self._database = database
        self._stopping = stopping
        self._most = most
        self._open: Counter[str] = Counter()
        self._watchers: dict[str, set[Watcher]] = {}
        self._keys: dict[str, tuple[float, bool]] = {}  # when asked, and the answer
        self._task: asyncio.Task[None] | None = None

    def is_full(self, whose: str) -> bool:
        """Whether this caller has as many streams open as one may have."""
        return self._open[whose] >= self._most

    @contextmanager
    def watching(self, job_id: str, seen: int, whose: str = "") -> Iterator[Watcher]:
        """A caller's watcher of a job, woken whenever it may have something new, until the block ends."""
        watcher = Watcher(job_id, seen)
        self._open[whose] += 1
        self._watchers.setdefault(job_id, set()).add(watcher)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        try:
            yield watcher
        finally:
            self._open[whose] -= 1
            self._open += Counter()  # forgets callers without any
            others = self._watchers[job_id]
            others.discard(watcher)
            if not others:
                del self._watchers[job_id]
            if not self._watchers:
                self._keys.clear()

    async def key_is_valid(self, key_id: str) -> bool:
        """Whether a key that was valid still is; the answer is at most `KEY_KEPT_S` old."""
        now = time.monotonic()
        asked_at, was_valid = self._keys.get(key_id, (-math.inf, True))
        if now - asked_at < KEY_KEPT_S:
            return was_valid
        self._keys[key_id] = (now, was_valid)  # other streams do not ask meanwhile
        valid = await run_in_threadpool(_is_valid, self._database, key_id)
        self._keys[key_id] = (now, valid)
        return valid

    async def _run(self) -> None:
        newest, asked_at = 0, -math.inf
        while self._watchers and not self._stopping.is_set():
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
            except SQLAlchemyError as error:  # the database is being restarted: the next look finds it again
                _log.warning("events cannot be read now: %s", type(error).__name__)
            try:
                await asyncio.wait_for(self._stopping.wait(), LOOK_EVERY_S)
            except TimeoutError:
                pass
        self._wake(list(self._watchers))

    def _wake(self, job_ids: Iterable[str]) -> None:
        for job_id in job_ids:
            for watcher in self._watchers.get(job_id, ()):
                watcher.woken.set()


def _is_valid(database: Database, key_id: str) -> bool:
    """False where the database is away: the stream ends, and a client that reconnects is authenticated again."""
    try:
        with database.read() as session:
            return is_valid(session, key_id)
    except SQLAlchemyError as error:
        _log.warning("a key cannot be checked: %s", type(error).__name__)
        return False


def _changed(database: Database, since: int) -> tuple[int, list[str]]:
    """The newest event's id, and the jobs that have events after `since` (none at the very first look)."""
    with database.read() as session:
        newest = session.scalar(select(func.max(Event.id))) or 0
        if not since or newest <= since:
            return max(newest, since), []
        return newest, list(session.scalars(select(Event.job_id).where(Event.id > since).distinct()))


def _each(database: Database, job_ids: Collection[str]) -> list[tuple[str, int | None, bool]]:
    """For each job its newest event, and whether nothing more is to be expected."""
    newest = select(func.max(Event.id)).where(Event.job_id == Job.id).scalar_subquery()
    waiting = exists().where(Evaluation.job_id == Job.id, Evaluation.state.not_in(FINAL_STATES))
    settled = Job.state.in_(FINAL_STATES) & ~waiting
    with database.read() as session:
        rows = session.execute(select(Job.id, newest, settled).where(Job.id.in_(job_ids))).all()
    return [(row[0], row[1], bool(row[2])) for row in rows]
