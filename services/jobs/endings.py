"""Ends and cancels jobs and evaluations.

`end_job` and `end_evaluation` write the final state and, for a job, its event, in the caller's transaction. Cancelling ends a
queued or waiting row at once. A running row is flagged: its worker sees the flag within half a second and kills the row's
processes (`services.worker.watch`). Cancelling twice, or cancelling an ended row, changes nothing.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.db.models import Evaluation, Job, utc_now
from services.db.types import shown_json, shown_text
from services.errors import NotFound
from services.jobs import events, read, tally

_EVENT_OF_STATE = {"succeeded": "job.finished", "failed": "job.failed", "cancelled": "job.cancelled"}


def end_job(
    session: Session,
    job: Job,
    state: str,
    reason: str,
    *,
    verdict: str | None = None,
    winner_sha256: str | None = None,
    summary: dict[str, Any] | None = None,
) -> None:
    """End a job that the caller has locked."""
    job.state = state
    job.reason = shown_text(reason)
    job.verdict = verdict
    job.winner_sha256 = winner_sha256
    job.summary = shown_json(summary) if summary else None
    job.finished_at = utc_now()
    job.lease_owner = job.lease_until = None
    data = {"state": state, "verdict": verdict, "reason": job.reason, "winner_sha256": winner_sha256}
    events.append(session, job.id, _EVENT_OF_STATE[state], data, once="end")
    tally.settle(session, job)


def end_evaluation(
    session: Session, row: Evaluation, state: str, reason: str, result: dict[str, Any] | None
) -> None:
    """End an evaluation that the caller has locked; `result` is the referee's answer, if there is one."""
    row.state = state
    row.reason = shown_text(reason)
    row.result = shown_json(result) if result else None
    word = result.get("verdict") if result else None
    row.verdict = str(word)[:32] if word is not None else None
    row.finished_at = utc_now()
    row.lease_owner = row.lease_until = None
    job = events.lock_job(session, row.job_id) if row.job_id else None
    if job is not None:
        tally.settle(session, job)


def cancel_job(session: Session, job_id: str) -> None:
    """Cancel a job and the evaluations of its external candidates, and commit.

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
    # Each in a separate transaction: ending an evaluation locks the evaluation first and then its job.
    going_on = Evaluation.state.in_(("queued", "running"))
    for one in session.scalars(select(Evaluation.id).where(Evaluation.job_id == job_id, going_on)).all():
        cancel_evaluation(session, one)


def cancel_evaluation(session: Session, evaluation_id: str) -> None:
    """Cancel an evaluation, and commit.

    Raises:
        NotFound: no such evaluation.
    """
    row = read.evaluation_row(session, evaluation_id, lock=True)
    if row.state == "queued":
        row.cancel_requested = True
        end_evaluation(session, row, "cancelled", "cancelled before it started", None)
    elif row.state == "running":
        row.cancel_requested = True
    session.commit()
