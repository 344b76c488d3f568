"""Ownership of memory entries.

Jobs without a key count as jobs of different people unless the operator sets `KERNELWRIGHT_ONE_USER`.

| job | what is remembered | which jobs may read it |
| --- | --- | --- |
| a catalogue task, nothing added | features, sentences, candidates' sources | all |
| any other, `KERNELWRIGHT_ONE_USER` unset | nothing | none |
| any other, `KERNELWRIGHT_ONE_USER=true` | features and sentences | while that is set, jobs of the same user, or jobs without a user |

Entries that no job may read are not stored. "Nothing added" means no starting kernel, external candidate or batch answers, and
no custom sizes, traffic or space. These are a client's text or figures, and they show up in what a model writes or in the
measurements; batch answers may be any text.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernelbench_tasks import catalog
from services.db.models import Candidate, Evaluation, Job

#: Owner of entries that every job may read.
SHARED = "catalogue"
#: Owner of other entries on a single-person service without keys; with keys it is the user's id.
ONE_USER = "operator"
_ADDED = ("start_from", "shapes", "traffic", "space")


@dataclass(frozen=True)
class Claim:
    """What may be remembered about a job.

    Attributes:
        owner: `SHARED`, `ONE_USER`, or the id of the job's user.
        task_name: the task's name in the catalogue, "" for other tasks: a client may submit a catalogue text under any name.
        with_sources: whether candidates' sources may be kept.
    """

    owner: str
    task_name: str
    with_sources: bool


def claim_of(session: Session, job: Job, *, one_user: bool) -> Claim | None:
    """Return what may be remembered about a job, or None."""
    task = catalog.find_by_sha256(job.task_sha256)
    if task is not None and not _has_additions(session, job):
        return Claim(SHARED, task.name, with_sources=True)
    return Claim(job.owner_id or ONE_USER, "", with_sources=False) if one_user else None


def readable_owners(user_id: str | None, *, one_user: bool) -> tuple[str, ...]:
    """Owners of the entries that a job may read; `user_id` is None for a job without a user."""
    return (SHARED, user_id or ONE_USER) if one_user else (SHARED,)


def _has_additions(session: Session, job: Job) -> bool:
    if any(job.request.get(name) for name in _ADDED):
        return True
    if any(model.get("provider") == "batch" for model in job.request.get("models") or ()):
        return True
    candidate = select(Candidate.number).where(Candidate.job_id == job.id, Candidate.origin == "external")
    evaluation = select(Evaluation.id).where(Evaluation.job_id == job.id)
    return any(session.scalar(query.limit(1)) is not None for query in (candidate, evaluation))
