"""Ownership of entries and what other users see; the only leaderboard module that handles owners.

A board shows figures, origins, models and labels to every reader. It never shows a source, a job's name or its owner. It shows
a label that a person typed, and the link to an entry's job, only to readers who may see that job.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.db.models import Candidate, Job, LeaderboardEntry

_MOST_CHARACTERS = 200
_TYPED = "external"


def visible_jobs(session: Session, job_ids: Collection[str]) -> set[str]:
    """Return those of the jobs that the session's user may see.

    Queries the jobs table, whose visibility rules for the session apply here too.
    """
    if not job_ids:
        return set()
    return set(session.scalars(select(Job.id).where(Job.id.in_(job_ids))))


def typed_labels(session: Session, entries: Collection[LeaderboardEntry]) -> dict[str, str]:
    """Labels typed by people, by job, of the entries whose candidates the session's user may see."""
    wanted = [entry.job_id for entry in entries if entry.origin == _TYPED]
    if not wanted:
        return {}
    winner = (Candidate.job_id == LeaderboardEntry.job_id) & (
        Candidate.sha256 == LeaderboardEntry.winner_sha256
    )
    query = select(Candidate.job_id, Candidate.label).join(LeaderboardEntry, winner)
    found = session.execute(query.where(Candidate.job_id.in_(wanted)))
    return {row.job_id: row.label for row in found}


def shown_model(model: str, *, is_folder: bool = False) -> str:
    """A model's name without its folder, which is a path on the operator's machine.

    A name such as `acme/model` stays, unless `is_folder` says that it is a path, too.
    """
    if is_folder or model.startswith(("/", ".", "~")):
        model = model.rstrip("/").rsplit("/", 1)[-1]
    return model[:_MOST_CHARACTERS]


def shown_label(label: str, origin: str, model: str, shown: str) -> str:
    """A candidate's label as other users see it.

    A label that this project made is shown with the model's `shown` name instead of `model`. For an external candidate only the origin is shown,
    since a person typed its label (`typed_labels` returns those).
    """
    if origin == _TYPED:
        return origin
    return (label.replace(model, shown) if model else label)[:_MOST_CHARACTERS]
