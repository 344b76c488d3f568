"""The dispatcher: notifies workers of waiting rows and ends abandoned rows.

It runs as a thread of every API process. No other code sends messages, so a broker outage delays work but never fails a
request.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import product

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from evaluator.counting import counted
from services.db.models import Evaluation, Job
from services.db.session import Database
from services.jobs import batches, events, lease
from services.jobs.endings import end_evaluation, end_job
from services.jobs.lease import LeasedModel, LeasedRow
from services.observing import workers as observed
from services.users import audit
from services.worker.app import EXPIRES_S
from services.worker.identity import is_known_dead

LOOK_EVERY_S = 1.0
_MOST_MESSAGES = 8
_PURGE_EVERY_S = 24 * 3600.0
_MODELS: tuple[LeasedModel, ...] = (Job, Evaluation)
_log = logging.getLogger(__name__)


class Dispatcher:
    """A thread that polls the database every second and notifies workers at once when `events.NEW_WORK` is set.

    Args:
        database: where the rows are.
        tell: says that rows of a table may be ready for a device (`services.worker.app.tell`).
        max_attempts: attempts without progress before a row is failed.
        audit_days: days to keep audit log entries; 0 keeps them forever.
    """

    def __init__(
        self, database: Database, tell: Callable[[str, str], None], max_attempts: int, audit_days: int = 0
    ) -> None:
        self._database = database
        self._tell = tell
        self._max_attempts = max_attempts
        self._audit_days = audit_days
        self._purged_at = time.monotonic() - _PURGE_EVERY_S
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)
        self._told: dict[tuple[LeasedModel, str], float] = {}

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the current round."""
        self._stopped.set()
        events.NEW_WORK.set()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        looked_at = -LOOK_EVERY_S
        while not self._stopped.is_set():
            is_new = events.NEW_WORK.is_set()
            events.NEW_WORK.clear()
            try:
                if is_new:  # a user is waiting: notify first, run the full round later
                    self._tell_workers(at_once=True)
                if time.monotonic() - looked_at >= LOOK_EVERY_S:
                    looked_at = time.monotonic()
                    self.look()
                    self._purge()
            except SQLAlchemyError:
                _log.warning("the dispatcher could not reach the database", exc_info=True)
            except Exception:  # noqa: BLE001 - if this thread died, nothing would be sent, freed or ended again
                _log.exception("a round of the dispatcher failed")
            events.NEW_WORK.wait(max(0.0, looked_at + LOOK_EVERY_S - time.monotonic()))

    def look(self) -> None:
        """Run one round."""
        freed = self._free_rows_of_the_dead() | self._resume_answered()
        for model in _MODELS:
            self._end_abandoned(model)
        self._tell_workers(at_once=freed)

    def _purge(self) -> None:
        if time.monotonic() - self._purged_at >= _PURGE_EVERY_S:
            self._purged_at = time.monotonic()
            gone = audit.purge(self._database, self._audit_days)
            if gone:
                _log.info("%d old entries of the audit log were deleted", gone)

    def _free_rows_of_the_dead(self) -> bool:
        owners: set[str] = set()
        with self._database.read() as session:
            for model in _MODELS:
                owners.update(owner for owner in lease.owners(session, model) if is_known_dead(owner))
        if owners:
            _log.info("workers that died: %s", ", ".join(sorted(owners)))
            with self._database.write() as session:
                lease.expire_leases_of(session, sorted(owners))
        return bool(owners)

    def _resume_answered(self) -> bool:
        with self._database.read() as session:
            answered = batches.answered_on_disk(session)
        for job_id in answered:
            with self._database.write() as session:
                job = events.lock_job(session, job_id)
                if job is not None and job.state == "waiting":
                    batches.resume(session, job)
        return bool(answered)

    def _end_abandoned(self, model: LeasedModel) -> None:
        with self._database.read() as session:
            if not lease.abandoned(session, model, self._max_attempts):
                return
        with self._database.write() as session:
            for row in lease.abandoned(session, model, self._max_attempts):
                _end(session, row)

    def _tell_workers(self, *, at_once: bool) -> None:
        """Message each worker of a device that has waiting rows; unless `at_once`, at most every `EXPIRES_S`.

        A device without live workers gets no messages: they would pile up, and a worker polls when it starts.
        """
        now_s = time.monotonic()
        due: list[tuple[LeasedModel, str, int]] = []
        with self._database.read() as session:
            heard = Counter(worker.device for worker in observed.alive(session))
            for model, (device, workers) in product(_MODELS, heard.items()):
                told_s = self._told.get((model, device), -math.inf)
                if (at_once or now_s - told_s >= EXPIRES_S) and lease.any_claimable(
                    session, model, device, self._max_attempts
                ):
                    due.append((model, device, min(workers, _MOST_MESSAGES)))
        try:
            for model, device, count in due:
                for _ in range(count):
                    self._tell(device, model.__tablename__)
                self._told[model, device] = now_s
        except Exception as error:  # noqa: BLE001 - a broker that is loading, full or flushed raises many kinds of errors
            _log.warning("the broker took no message: %s", error)


def _end(session: Session, row: LeasedRow) -> None:
    if row.cancel_requested:
        state, reason = "cancelled", "cancelled; its worker had died or given it back"
    else:
        state = "failed"
        reason = (
            f"gave up after {counted(row.attempt, 'attempt')}: the worker died, or the database failed it, {counted(row.stalled_attempts, 'time')} "
            f"in a row without anything new being stored{f' ({row.reason})' if row.reason else ''}"
        )
    if isinstance(row, Job):
        end_job(session, row, state, reason, verdict="not_judged" if state == "failed" else None)
    else:
        end_evaluation(session, row, state, reason, None)
