"""Appending to a job's log of events, and the signal that there is new work.

Readers resume by id, so within a job an id must never become visible after a greater one. PostgreSQL hands out ids
before commit; locking the job's row first makes that impossible. SQLite has one writer at a time anyway.
"""

from __future__ import annotations

import threading
from typing import Any, cast

from sqlalchemy import Table, exists, insert, select
from sqlalchemy.orm import Session

from services.db.ids import is_id
from services.db.models import Event, Job
from services.db.types import shown_json

#: Set when a row is made that wants a worker, for the dispatcher of this process. Only a hint: it looks every second anyway.
NEW_WORK = threading.Event()
# Not by way of a model's row: that takes three times as long, and what was just appended is not asked for.
_APPEND = insert(cast(Table, Event.__table__)).inline()


def lock_job(session: Session, job_id: str) -> Job | None:
    """The job's row, locked to the end of the transaction."""
    if not is_id(job_id):
        return None
    return session.get(Job, job_id, with_for_update=True, populate_existing=True)


def append(
    session: Session, job_id: str, name: str, data: dict[str, Any], *, once: str | None = None
) -> bool:
    """Append an event; False, writing nothing, when the job already has one with this `once`. Caller holds the lock of a job that
    is stored."""
    if once is not None:
        once = f"{name}:{once}"[:200]
        if session.scalar(select(exists().where(Event.job_id == job_id, Event.once == once))):
            return False
    session.execute(_APPEND, {"job_id": job_id, "name": name[:64], "data": shown_json(data), "once": once})
    return True
