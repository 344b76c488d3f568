"""Stores the memory entries of a job when it ends."""

from __future__ import annotations

import logging
from collections.abc import Collection

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from agent.candidates import Candidate, Judged
from agent.knowledge.architectures import architecture_of_cpu, architecture_of_gpu
from agent.memory.features import Features, features_of
from agent.memory.lessons import LESSON_STEPS, JobFacts, entries_of
from agent.strategy.ablation import ABLATED_STEPS
from evaluator.description import Description
from evaluator.verdict import from_json
from services.db import models
from services.db.session import Database
from services.jobs.rows import step_value
from services.memory.ownership import claim_of
from services.memory.store import add_entries

_log = logging.getLogger(__name__)


def remember_job(database: Database, job_id: str, *, one_user: bool, secrets: Collection[str] = ()) -> int:
    """Store the entries of an ended job; return the number of new ones. Idempotent.

    An error here is logged and loses only this job's memory entries: its result is already stored.

    Args:
        database: where the job is stored.
        job_id: the job.
        one_user: see `services.memory.ownership`.
        secrets: values that no entry may contain.
    """
    try:
        with database.read() as session:  # not in the write transaction, which blocks all other writers
            job = session.get(models.Job, job_id)
            claim = claim_of(session, job, one_user=one_user) if job is not None else None
            if job is None or claim is None:
                return 0
            judged = _judged(session, job_id)
            ablated = _ablated(session, job_id)
            facts = JobFacts(
                task_name=claim.task_name,
                task_sha256=job.task_sha256,
                device=job.device,
                architecture=_architecture(job.device, judged),
                features=_features(session, job),
            )
            entries = entries_of(
                facts,
                [one for one in judged if one.candidate.sha256 not in ablated],
                learnt=_learnt(session, job_id),
                with_sources=claim.with_sources,
                secrets=secrets,
            )
        with database.write() as session:
            return add_entries(session, job_id, claim.owner, entries)
    except (SQLAlchemyError, KeyError, TypeError, ValueError, AttributeError):
        _log.exception("job %s left nothing in memory", job_id)
        return 0


def _judged(session: Session, job_id: str) -> list[Judged]:
    query = (
        select(models.Candidate, models.Verdict.body)
        .join(
            models.Verdict,
            (models.Verdict.job_id == models.Candidate.job_id)
            & (models.Verdict.sha256 == models.Candidate.sha256),
        )
        .where(models.Candidate.job_id == job_id, models.Verdict.phase == "screen")
        .order_by(models.Candidate.number)
    )
    return [
        Judged(Candidate(row.source, row.origin, row.label, row.parent_sha256), from_json(body))
        for row, body in session.execute(query)
    ]


def _architecture(device: str, judged: list[Judged]) -> str:
    if device == "cpu":
        return architecture_of_cpu()  # CPU candidates are judged on the worker's machine
    names = (one.verdict.environment.get("device_name") for one in judged)
    return next((architecture_of_gpu(str(name)) for name in names if name), "")


def _features(session: Session, job: models.Job) -> Features:
    description = step_value(session, job.id, "describe")
    plain = description if isinstance(description, dict) else {}
    return features_of(job.task_source, Description.from_json(plain))


def _learnt(session: Session, job_id: str) -> dict[str, list[str]]:
    """Lessons from undoing a winner's changes: the agent's steps `lesson/...`, with sentences from a closed list."""
    query = select(models.Step.value).where(
        models.Step.job_id == job_id, models.Step.name.startswith(LESSON_STEPS, autoescape=True)
    )
    found: dict[str, list[str]] = {}
    for stored in session.scalars(query.order_by(models.Step.name)):
        lesson = stored["value"]
        if isinstance(lesson, dict) and isinstance(lesson.get("sentence"), str):
            found.setdefault(str(lesson.get("after_sha256")), []).append(lesson["sentence"])
    return found


def _ablated(session: Session, job_id: str) -> set[str]:
    """Candidates that are a winner with one change undone, made only for measurement: neither mistakes nor ideas."""
    query = select(models.Step.name).where(
        models.Step.job_id == job_id, models.Step.name.startswith(ABLATED_STEPS, autoescape=True)
    )
    return {name.removeprefix(ABLATED_STEPS) for name in session.scalars(query)}
