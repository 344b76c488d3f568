"""Batch jobs send model requests through files: the job pauses as `waiting` and resumes when answers arrive.

Requests and answers use the format of OpenAI's Batch API. The worker that pauses a job stores the open requests in the
database, where clients fetch them. Answers from clients are stored there too, and the worker that resumes the job writes them
to the job's folder. If the folder is on this machine, answers may also be put into it by hand.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from agent.providers.batch import ANSWERS, ERRORS, REQUESTS, UPLOADED
from agent.redaction import known_secrets, redact
from agent.spec import JobSpec
from services.db.models import Job, Step
from services.db.types import shown_text, upsert
from services.errors import FieldError, NotReady, Refused
from services.jobs import events
from services.jobs.endings import end_job
from services.jobs.read import job_row
from services.jobs.rows import step_value

_REQUESTS, _ANSWERS, _SEEN = "batch.requests", "batch.answers", "batch.seen"
MAX_ANSWERS_CHARACTERS = 64_000_000


def with_folder(spec: JobSpec, folder: Path) -> JobSpec:
    """Return the spec with `folder` set for models of provider "batch" that have none; clients cannot set it."""
    models = tuple(
        replace(one, folder=str(folder)) if one.provider == "batch" and not one.folder else one
        for one in spec.models
    )
    return replace(spec, models=models)


def folder_of(spec: JobSpec) -> Path | None:
    """Return the folder of a job's batch files; None if it uses none."""
    return next((Path(one.folder) for one in spec.models if one.provider == "batch" and one.folder), None)


def lay_out(session: Session, spec: JobSpec) -> None:
    """Write the answers that clients sent to the job's batch folder."""
    folder, answers = folder_of(spec), step_value(session, spec.job_id, _ANSWERS)
    if folder is not None and answers:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / UPLOADED).write_text(answers, encoding="utf-8")


def pause(session: Session, job: Job, spec: JobSpec, reason: str) -> None:
    """Set a job that the caller has locked to `waiting`, and store its open requests for clients."""
    if job.cancel_requested:  # set in the meantime
        end_job(session, job, "cancelled", "cancelled while it waited for answers")
        return
    folder = folder_of(spec)
    job.state = "waiting"
    job.reason = shown_text(
        f"{reason}; then `kernelwright resume {job.id}`, or `kernelwright batch {job.id}` over HTTP"
    )
    job.stalled_attempts = job.faults = 0  # waiting is not a failure
    job.lease_owner = job.lease_until = None
    if folder is not None:
        requests = folder / REQUESTS
        text = requests.read_text(encoding="utf-8") if requests.is_file() else ""
        _keep(session, job.id, _REQUESTS, text)
        _keep(session, job.id, _SEEN, _sizes(folder))
    events.append(session, job.id, "job.waiting", {"reason": job.reason})


def open_requests(session: Session, job_id: str) -> str:
    """Return the requests that wait for answers, one JSON object per line.

    Raises:
        NotFound: no such job.
        NotReady: the job is not waiting for answers.
    """
    if job_row(session, job_id).state != "waiting":
        raise NotReady(f"job {job_id} waits for no answers")
    return str(step_value(session, job_id, _REQUESTS) or "")


def add_answers(session: Session, job_id: str, text: str, *, more: bool = False) -> int:
    """Store answers, resume the job unless `more` will follow, commit, and return the number of answers.

    Answers to requests that this job did not make have no effect.

    Raises:
        NotFound: no such job.
        NotReady: the job is not waiting for answers.
        Refused: a line is not an answer, there is none, or the stored answers would exceed `MAX_ANSWERS_CHARACTERS`.
    """
    job_row(session, job_id)
    job = events.lock_job(session, job_id)
    assert job is not None
    if job.state != "waiting":
        raise NotReady(f"job {job_id} waits for no answers")
    # Not `splitlines`: JSON strings may contain characters that Unicode treats as line ends.
    lines = [line for line in text.split("\n") if line.strip()]
    for number, line in enumerate(lines, start=1):
        if not _is_answer(line):
            message = (
                f"line {number} is no JSON object with a custom_id, as the Batch API's output file has them"
            )
            raise Refused([FieldError("answers", message)])
    # Answers that echo one of our keys must not put it into the database.
    stored = str(step_value(session, job_id, _ANSWERS) or "") + "".join(
        f"{redact(line, known_secrets())}\n" for line in lines
    )
    if not lines or len(stored) > MAX_ANSWERS_CHARACTERS:
        raise Refused([FieldError("answers", "holds no line, or more than this service keeps of a job")])
    _keep(session, job_id, _ANSWERS, stored)
    if not more:
        resume(session, job)
    session.commit()
    if not more:
        events.NEW_WORK.set()
    return len(lines)


def resume(session: Session, job: Job) -> None:
    """Queue a waiting job that the caller has locked."""
    job.state = "queued"
    job.reason = None
    events.append(session, job.id, "job.queued", {"name": job.name, "device": job.device})


def answered_on_disk(session: Session) -> list[str]:
    """Return waiting jobs whose answer files, on this machine, have changed size since the job paused."""
    found = []
    for job_id in session.scalars(select(Job.id).where(Job.state == "waiting")):
        seen = step_value(session, job_id, _SEEN)
        if seen is not None and _sizes(Path(seen["folder"])) != seen:
            found.append(job_id)
    return found


def _is_answer(line: str) -> bool:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and isinstance(value.get("custom_id"), str)


def _sizes(folder: Path) -> dict[str, object]:
    sizes: dict[str, object] = {"folder": str(folder)}
    for name in (ANSWERS, ERRORS):
        try:
            sizes[name] = (folder / name).stat().st_size
        except OSError:
            sizes[name] = 0
    return sizes


def _keep(session: Session, job_id: str, name: str, value: object) -> None:
    """Create or overwrite a step. Unlike the agent's steps, these change while the job waits."""
    kept = {"value": {"value": value}}
    upsert(session, Step, ["job_id", "name"], {"job_id": job_id, "name": name, **kept}, kept)
