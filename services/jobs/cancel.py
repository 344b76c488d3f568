"""Asking a job to stop."""

from __future__ import annotations

from sqlalchemy.orm import Session

from services.errors import NotFound
from services.jobs import events
from services.jobs.endings import end_job


def request_cancel(session: Session, job_id: str) -> None:
    """Ask a job to stop and commit; asking again, or asking a job that has ended, changes nothing.

    A queued or waiting job ends at once. A running one is flagged: its worker's watch sees the flag within half a second and
    kills whatever runs for it (`services.worker.watch`).

    Raises:
        NotFound: no such job.
    """
    job = events.lock_job(session, job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r}")
    if job.state in ("queued", "waiting"):
        how = "before it started" if job.state == "queued" else "while it waited for answers"
        job.cancel_requested = True
        end_job(session, job, "cancelled", f"cancelled {how}")
    elif job.state == "running":
        job.cancel_requested = True
    session.commit()
