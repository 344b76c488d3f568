"""Converts between the agent's objects and database rows, for the API that creates jobs and the workers that run them."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from agent.spec import JobSpec
from evaluator.sources import lines_of_code
from services.db.models import Candidate, Job, Step, Verdict

#: The effort of an evaluation that only checks its task.
LOOK = "look"
_OUTLINE = ("verdict", "reason", "findings", "summary", "environment", "effort", "elapsed_s")


def step_value(session: Session, job_id: str, name: str) -> Any:
    """Return the stored value of a job's step; None if the step has not finished."""
    row = session.get(Step, (job_id, name))
    return row.value["value"] if row else None


def candidate_row(
    job_id: str,
    sha256: str,
    origin: str,
    label: str,
    source: str,
    *,
    parent_sha256: str | None = None,
    note: str = "",
) -> Candidate:
    """Make the row of a candidate; its id is "<job id>.<first 12 digits of the sha256>"."""
    return Candidate(
        id=f"{job_id}.{sha256[:12]}",
        job_id=job_id,
        sha256=sha256,
        origin=origin,
        label=label[:200],
        parent_sha256=parent_sha256,
        note=note,
        source=source,
        lines=lines_of_code(source),
    )


def proposed_data(row: Candidate) -> dict[str, str | None]:
    """Return the data of the event `candidate.proposed`."""
    return {
        "id": row.id,
        "sha256": row.sha256,
        "origin": row.origin,
        "label": row.label,
        "parent_sha256": row.parent_sha256,
    }


def job_spec(job: Job) -> JobSpec:
    """Return the agent's spec of a job row."""
    task = {"name": job.task_name, "source": job.task_source}
    return JobSpec.from_json({**job.request, "task": task})


def outline_of(body: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict fields that candidate lists need."""
    return {name: body[name] for name in _OUTLINE if name in body}


def verdict_row(job_id: str, sha256: str, phase: str, body: dict[str, Any]) -> Verdict:
    """Make the row of a verdict; its body must already be storable."""
    summary = body.get("summary") or {}
    low, high = _interval(summary)
    traffic = summary.get("traffic") or {}
    traffic_low, traffic_high = _interval(traffic)
    return Verdict(
        job_id=job_id,
        sha256=sha256,
        phase=phase,
        word=str(body["verdict"])[:32],
        reason=str(body.get("reason") or ""),
        geomean_speedup=summary.get("geomean_speedup"),
        ci_low=low,
        ci_high=high,
        traffic_speedup=traffic.get("geomean_speedup"),
        traffic_low=traffic_low,
        traffic_high=traffic_high,
        body=body,
        outline=outline_of(body),
    )


def _interval(figures: dict[str, Any]) -> tuple[float | None, float | None]:
    interval = figures.get("geomean_ci95")
    return (interval[0], interval[1]) if isinstance(interval, list) and len(interval) == 2 else (None, None)
