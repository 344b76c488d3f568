"""Whose an entry is, and what of it strangers are shown. The only place of the leaderboard that knows about owners.

A board shows figures, origins, models and labels to whoever may read it. It never shows a source, a job's name or its owner,
nor to strangers a label that a person typed, and an entry leads to its job only for those who may see that job.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.db.models import Candidate, Job, LeaderboardEntry

_MOST_CHARACTERS = 200
_TYPED_BY_SOMEBODY = "external"


def owner_of(job: Job) -> str:
    """Whose the job is, as it is written into its entry: its user's id, "" for a job made without a key."""
    return job.owner_id or ""


def visible_jobs(session: Session, job_ids: Collection[str]) -> set[str]:
    """Those of the jobs that whoever this session is for may see.

    Asked of the jobs themselves, so that whatever rule holds for a session's jobs holds here, too.
    """
    if not job_ids:
        return set()
    return set(session.scalars(select(Job.id).where(Job.id.in_(job_ids))))


def typed_labels(session: Session, entries: Collection[LeaderboardEntry]) -> dict[str, str]:
    """Labels that persons typed, by job, of those entries whose candidates whoever this session is for may see."""
    wanted = [entry.job_id for entry in entries if entry.origin == _TYPED_BY_SOMEBODY]
    if not wanted:
        return {}
    winner = (Candidate.job_id == LeaderboardEntry.job_id) & (
        Candidate.sha256 == LeaderboardEntry.winner_sha256
    )
    query = select(Candidate.job_id, Candidate.label).join(LeaderboardEntry, winner)
    found = session.execute(query.where(Candidate.job_id.in_(wanted)))
    return {row.job_id: row.label for row in found}


def shown_model(model: str) -> str:
    """A model's name without the folder that it lies in, which is a path of the operator's machine."""
    return (
        model.rstrip("/").rsplit("/", 1)[-1][:_MOST_CHARACTERS]
        if model.startswith(("/", ".", "~"))
        else model
    )


def shown_label(label: str, origin: str, model: str | None) -> str:
    """A candidate's label as strangers may read it: ours, with its model's name as it is shown; of what a person handed in
    the origin alone, since its label is that person's own words (`typed_labels` has them).
    """
    if origin == _TYPED_BY_SOMEBODY:
        return origin
    return (label.replace(model, shown_model(model)) if model else label)[:_MOST_CHARACTERS]
