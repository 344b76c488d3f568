"""The ways in which a row ends. Each writes the final state and, for a job, its event, in the caller's transaction."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from services.db.models import Evaluation, Job, utc_now
from services.db.types import shown_json, shown_text
from services.jobs import events, tally
from services.leaderboard import recording

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
    if state == "succeeded":
        recording.enter(session, job)


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
