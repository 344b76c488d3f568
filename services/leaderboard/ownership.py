"""Whose an entry is, and what of it strangers are shown. The only place of the leaderboard that knows about owners.

A board shows figures, origins, models and labels to everybody. It never shows a source, a job's name or its owner, and an
entry leads to its job only for those who may see that job. The service has no accounts yet: everything has the same
owner, and everybody may see every job.
"""

from __future__ import annotations

from collections.abc import Iterable

from services.db.models import Job

_MOST_CHARACTERS = 200


def owner_of(job: Job) -> str:
    """Whose the job is, as it is written into its entry."""
    return ""


def visible_jobs(reader: str | None, owners: Iterable[tuple[str, str]]) -> set[str]:
    """The jobs that a reader may see, of (job id, owner) pairs; `reader` is None where there are no accounts."""
    return {job_id for job_id, owner in owners if reader is None or owner == reader}


def shown_model(model: str) -> str:
    """A model's name without the folder that it lies in, which is a path of the operator's machine."""
    return (
        model.rstrip("/").rsplit("/", 1)[-1][:_MOST_CHARACTERS]
        if model.startswith(("/", ".", "~"))
        else model
    )


def shown_label(label: str, model: str | None) -> str:
    """A candidate's label with its model's name as it is shown."""
    return (label.replace(model, shown_model(model)) if model else label)[:_MOST_CHARACTERS]
