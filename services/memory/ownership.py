"""Whose an entry is. Jobs of two users are two people's; so are two jobs made without a key, unless the operator says otherwise.

| job | what is remembered | who may read it |
| --- | --- | --- |
| a task of the catalogue, nothing added | features, sentences, candidates' sources | every job |
| any other, `KERNELWRIGHT_ONE_USER` unset | nothing | nobody |
| any other, `KERNELWRIGHT_ONE_USER=true` | features and sentences | while that is set, every job of the same user; of a job without one, every other without one |

What nobody may read is not kept. "Nothing added": no kernel to start from, no external candidate, no answers of a batch, no
sizes, traffic or space of one's own. Each of them is somebody's text or figures, and shows in what a model writes or in what
was measured; answers of a batch are whatever a client hands in.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernelbench_tasks import catalog
from services.db.models import Candidate, Evaluation, Job

#: Owner of what everybody may read.
SHARED = "catalogue"
#: Owner of everything else on a service that one person uses without keys; else it is the user's id.
ONE_USER = "operator"
_ADDED = ("start_from", "shapes", "traffic", "space")


@dataclass(frozen=True)
class Claim:
    """What may be remembered of a job.

    Attributes:
        owner: `SHARED`, `ONE_USER`, or the id of the job's user.
        task_name: the catalogue's own name of the task, "" for others: a client may give a catalogue's text any name.
        with_sources: whether candidates' sources may be kept.
    """

    owner: str
    task_name: str
    with_sources: bool


def claim_of(session: Session, job: Job, *, one_user: bool) -> Claim | None:
    """What may be remembered of a job, None if nothing."""
    task = catalog.find_by_sha256(job.task_sha256)
    if task is not None and not _has_additions(session, job):
        return Claim(SHARED, task.name, with_sources=True)
    return Claim(job.owner_id or ONE_USER, "", with_sources=False) if one_user else None


def readable_owners(user_id: str | None, *, one_user: bool) -> tuple[str, ...]:
    """Whose entries a job of a user, or of nobody, may see."""
    return (SHARED, user_id or ONE_USER) if one_user else (SHARED,)


def _has_additions(session: Session, job: Job) -> bool:
    if any(job.request.get(name) for name in _ADDED):
        return True
    if any(model.get("provider") == "batch" for model in job.request.get("models") or ()):
        return True
    candidate = select(Candidate.number).where(Candidate.job_id == job.id, Candidate.origin == "external")
    evaluation = select(Evaluation.id).where(Evaluation.job_id == job.id)
    return any(session.scalar(query.limit(1)) is not None for query in (candidate, evaluation))
