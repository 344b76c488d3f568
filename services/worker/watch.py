"""Watches one leased row: extends the lease and stops unwanted work within two seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from types import TracebackType

from sqlalchemy.exc import SQLAlchemyError

from services.db.session import Database
from services.jobs import lease
from services.jobs.lease import Lease

LOOK_EVERY_S = 0.3
GRACE_S = 1.0
_log = logging.getLogger(__name__)


class Watch:
    """Context manager around the work on a row.

    Args:
        database: where the row is.
        held: the lease to extend.
        lease_seconds: the length of each extension; the lease is extended three times in that span.
        stop_work: kills the row's running work. Called once, from the watch's thread.
        give_up: ends a cancelled row if its work has not returned `GRACE_S` after `stop_work`: a worker blocked on a slow
            HTTP response must not delay the cancellation. The database refuses the worker's later writes.
        stopping: whether the worker must release its rows: it is shutting down, or its device is unhealthy.
    """

    def __init__(
        self,
        database: Database,
        held: Lease,
        lease_seconds: float,
        *,
        stop_work: Callable[[], None],
        give_up: Callable[[], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._database = database
        self._lease = held
        self._lease_seconds = lease_seconds
        self._stop_work = stop_work
        self._give_up = give_up
        self._stopping = stopping
        self._done = threading.Event()
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._run,), name=f"watch-{held.row_id}", daemon=True
        )

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _run(self) -> None:
        prolonged = time.monotonic()
        while not self._done.wait(LOOK_EVERY_S):
            try:
                if time.monotonic() - prolonged > self._lease_seconds / 3:
                    with self._database.write() as session:
                        lease.extend(session, self._lease, self._lease_seconds)
                    prolonged = time.monotonic()
                with self._database.read() as session:
                    reason = lease.wanted(session, self._lease)
            except SQLAlchemyError:
                # a database restart must not end the job; a lease that expires meanwhile shows up later as "lost"
                _log.warning(
                    "the watch over %s could not reach the database", self._lease.row_id, exc_info=True
                )
                continue
            if reason is not None or self._stopping():
                self._end(reason)
                return

    def _end(self, reason: str | None) -> None:
        _log.info("stopping %s: %s", self._lease.row_id, reason or "it is given back")
        self._stop_work()
        if reason == "cancelled" and not self._done.wait(GRACE_S):
            self._give_up()
