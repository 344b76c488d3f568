"""Asking a job or an evaluation to stop.

What is queued or waiting ends at once. What runs is flagged: its worker's watch sees the flag within half a second and kills whatever
runs for it (`services.worker.watch`). Asking again, or asking what has ended, changes nothing.
"""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.db.ids import is_id
from services.db.models import Evaluation
from services.errors import NotFound
from services.jobs import events
from services.jobs.endings import end_evaluation, end_job


def request_cancel(session: Session, job_id: str) -> None:
    """Ask a job to stop, and what judges candidates that were added to it by hand; commits.

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
    # Each in a transaction of its own: the end of an evaluation locks its job after it.
    going_on = Evaluation.state.in_(("queued", "running"))
    for one in session.scalars(select(Evaluation.id).where(Evaluation.job_id == job_id, going_on)).all():
        request_cancel_evaluation(session, one)


def request_cancel_evaluation(session: Session, evaluation_id: str) -> None:
    """Ask an evaluation to stop, and commit.

    Raises:
        NotFound: no such evaluation.
    """
    row = (
        session.get(Evaluation, evaluation_id, with_for_update=True, populate_existing=True)
        if is_id(evaluation_id)
        else None
    )
    if row is None:
        raise NotFound(f"there is no evaluation {evaluation_id[:40]!r}")
    if row.state == "queued":
        row.cancel_requested = True
        end_evaluation(session, row, "cancelled", "cancelled before it started", None)
    elif row.state == "running":
        row.cancel_requested = True
    session.commit()
