"""Appends to a job's event log, and signals new work.

Readers resume by id, so within a job an id must never become visible after a greater one. PostgreSQL assigns ids before
commit, so writers lock the job's row first. SQLite has only one writer at a time.
"""

from __future__ import annotations

import threading
from typing import Any, cast

from sqlalchemy import Table, exists, insert, select
from sqlalchemy.orm import Session

from services.db.ids import is_id
from services.db.models import Event, Job
from services.db.types import shown_json

#: Set when a row needs a worker, to wake this process's dispatcher. Only a hint: the dispatcher looks every second anyway.
NEW_WORK = threading.Event()
# A plain INSERT, not an ORM row: that takes three times as long, and the new row is not read back.
_APPEND = insert(cast(Table, Event.__table__)).inline()


def lock_job(session: Session, job_id: str) -> Job | None:
    """Return the job's row, locked until the end of the transaction, or None."""
    if not is_id(job_id):
        return None
    return session.get(Job, job_id, with_for_update=True, populate_existing=True)


def append(
    session: Session, job_id: str, name: str, data: dict[str, Any], *, once: str | None = None
) -> bool:
    """Append an event to a stored job whose lock the caller holds.

    Returns:
        False, and writes nothing, if the job already has an event with this name and `once`.
    """
    if once is not None:
        once = f"{name}:{once}"[:200]
        if session.scalar(select(exists().where(Event.job_id == job_id, Event.once == once))):
            return False
    session.execute(_APPEND, {"job_id": job_id, "name": name[:64], "data": shown_json(data), "once": once})
    return True
