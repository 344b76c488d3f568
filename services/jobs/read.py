"""Queries for the API and the pages: rows in, views out. Nothing here writes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import exists, select
from sqlalchemy.orm import Session, defer

from kernelbench_tasks import catalog
from services.db.models import FINAL_STATES, Bundle, Candidate, Evaluation, Event, Job, Verdict, utc_now
from services.errors import NotFound, NotReady
from services.jobs.views import (
    BestView,
    CandidateView,
    CountsView,
    EvaluationUrls,
    EvaluationView,
    EventView,
    JobState,
    JobUrls,
    JobView,
    SpendView,
    TaskView,
)

_LATEST_FIRST = ("held_out", "validation", "screen")


def list_jobs(session: Session, limit: int = 20, after: str | None = None) -> list[JobView]:
    """Jobs, newest first; `after` is the id of the last one already seen."""
    query = select(Job).options(defer(Job.task_source)).order_by(Job.id.desc()).limit(limit)
    if after is not None:
        query = query.where(Job.id < after)
    return _job_views(session, session.scalars(query).all())


def get_job(session: Session, job_id: str) -> JobView:
    """One job.

    Raises:
        NotFound: no such job.
    """
    return _job_views(session, [job_row(session, job_id)])[0]


def job_row(session: Session, job_id: str) -> Job:
    """The row of a job.

    Raises:
        NotFound: no such job.
    """
    job = session.get(Job, job_id)
    if job is None:
        raise NotFound(f"there is no job {job_id!r}")
    return job


def task_source(session: Session, job_id: str) -> str:
    """The text of a job's reference module. Untrusted.

    Raises:
        NotFound: no such job.
    """
    return job_row(session, job_id).task_source


def list_candidates(session: Session, job_id: str) -> list[CandidateView]:
    """All candidates of a job in order of arrival.

    Raises:
        NotFound: no such job.
    """
    job_row(session, job_id)
    rows = session.scalars(
        select(Candidate).where(Candidate.job_id == job_id).order_by(Candidate.number)
    ).all()
    verdicts: dict[str, dict[str, Verdict]] = defaultdict(dict)
    for verdict in session.scalars(select(Verdict).where(Verdict.job_id == job_id)):
        verdicts[verdict.sha256][verdict.phase] = verdict
    return [_candidate_view(row, verdicts.get(row.sha256, {})) for row in rows]


def get_candidate(session: Session, candidate_id: str) -> CandidateView:
    """One candidate by its id ("<job id>.<first 12 digits of its sha256>").

    Raises:
        NotFound: no such candidate.
    """
    row = session.scalar(select(Candidate).where(Candidate.id == candidate_id))
    if row is None:
        raise NotFound(f"there is no candidate {candidate_id!r}")
    found = session.scalars(select(Verdict).where(Verdict.job_id == row.job_id, Verdict.sha256 == row.sha256))
    return _candidate_view(row, {verdict.phase: verdict for verdict in found})


def held_out_verdict(session: Session, job_id: str) -> dict[str, Any] | None:
    """The referee's verdict on the job's optimized.py at held-out shapes, once there is one."""
    query = select(Verdict.body).where(Verdict.job_id == job_id, Verdict.phase == "held_out")
    return session.scalar(query.order_by(Verdict.id.desc()).limit(1))


def list_events(session: Session, job_id: str, after: int = 0, limit: int = 500) -> list[EventView]:
    """Events of a job with ids greater than `after`, oldest first. An unknown job has none."""
    query = select(Event).where(Event.job_id == job_id, Event.id > after).order_by(Event.id).limit(limit)
    return [
        EventView(id=row.id, time=row.time, name=row.name, data=row.data) for row in session.scalars(query)
    ]


def is_settled(session: Session, job_id: str) -> bool:
    """Whether no more events are to be expected: the job has ended and no external candidate of it waits."""
    state = session.scalar(select(Job.state).where(Job.id == job_id))
    waiting = exists().where(Evaluation.job_id == job_id, Evaluation.state.not_in(FINAL_STATES))
    return state in FINAL_STATES and not session.scalar(select(waiting))


def get_evaluation(session: Session, evaluation_id: str) -> EvaluationView:
    """One evaluation.

    Raises:
        NotFound: no such evaluation.
    """
    row = session.get(Evaluation, evaluation_id)
    if row is None:
        raise NotFound(f"there is no evaluation {evaluation_id!r}")
    return EvaluationView(
        id=row.id,
        state=_shown_state(row),
        task=_task_view(row.task_name, row.task_sha256),
        candidate={"sha256": row.candidate_sha256, "origin": row.origin, "label": row.label},
        device=row.device,
        effort=row.effort,
        created_at=row.created_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        attempt=row.attempt,
        verdict=row.verdict,
        reason=row.reason,
        result=row.result,
        urls=EvaluationUrls(self=f"/evaluations/{row.id}"),
    )


def get_bundle(session: Session, job_id: str) -> tuple[str, bytes]:
    """File name and content of a job's zip.

    Raises:
        NotFound: no such job.
        NotReady: the job has made no bundle (yet, or ever if it has ended).
    """
    job = job_row(session, job_id)
    bundle = session.get(Bundle, job_id)
    if bundle is not None:
        return bundle.file_name, bundle.content
    if job.state in FINAL_STATES:
        raise NotReady(
            f"job {job_id} ended as {job.state} and made no bundle: {job.reason or 'no reason stored'}"
        )
    raise NotReady(f"job {job_id} is {_shown_state(job)}; the bundle is made at its end")


def _job_views(session: Session, jobs: Sequence[Job]) -> list[JobView]:
    ids = [job.id for job in jobs]
    verdicts: dict[tuple[str, str], dict[str, Verdict]] = defaultdict(dict)
    query = select(Verdict).options(defer(Verdict.body)).where(Verdict.job_id.in_(ids))
    for verdict in session.scalars(query):
        verdicts[verdict.job_id, verdict.sha256][verdict.phase] = verdict
    candidates: dict[str, list[Candidate]] = defaultdict(list)
    rows = (
        select(Candidate)
        .options(defer(Candidate.source))
        .where(Candidate.job_id.in_(ids))
        .order_by(Candidate.number)
    )
    for candidate in session.scalars(rows):
        candidates[candidate.job_id].append(candidate)
    return [_job_view(job, candidates[job.id], verdicts) for job in jobs]


def _job_view(
    job: Job, candidates: Iterable[Candidate], verdicts: dict[tuple[str, str], dict[str, Verdict]]
) -> JobView:
    base = f"/jobs/{job.id}"
    counts: dict[str, int] = defaultdict(int)
    best: tuple[int, float, BestView] | None = None
    winner: BestView | None = None
    for candidate in candidates:
        phases = verdicts.get((job.id, candidate.sha256), {})
        latest = _latest(phases)
        counts["candidates"] += 1
        counts["pending" if latest is None else "accepted" if latest.word == "accepted" else "rejected"] += 1
        shown = _best_view(candidate, phases)
        if candidate.sha256 == job.winner_sha256:
            winner = shown
        if "held_out" in phases:
            continue  # optimized.py itself: it is made of the best and does not compete
        if latest is not None and latest.word == "accepted" and shown.geomean_speedup is not None:
            # a validated figure beats any screened one: visible shapes are what proposers tune for
            rank = ("validation" in phases, shown.traffic_speedup or shown.geomean_speedup)
            if best is None or rank > best[:2]:
                best = (*rank, shown)
    caps = job.request.get("budget") or {}
    return JobView(
        id=job.id,
        name=job.name,
        state=_shown_state(job),
        task=TaskView(name=job.task_name, sha256=job.task_sha256, catalog=job.from_catalog),
        device=job.device,
        created_at=job.created_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        attempt=job.attempt,
        verdict=job.verdict,
        reason=job.reason,
        counts=CountsView(**counts),
        best=best[2] if best else None,
        winner=winner,
        summary=job.summary,
        spend=SpendView(
            usd=job.usd,
            tokens=job.tokens,
            seconds=_seconds(job.started_at, job.finished_at),
            **{f"{name}_cap": caps.get(name) for name in ("usd", "tokens", "seconds")},
        ),
        urls=JobUrls(
            self=base,
            candidates=f"{base}/candidates",
            events=f"{base}/events",
            cancel=f"{base}/cancel",
            bundle=f"{base}/bundle",
            dashboard=f"/ui{base}",
        ),
    )


def _best_view(candidate: Candidate, phases: dict[str, Verdict]) -> BestView:
    # the held-out figure is never shown as a candidate's: it reports, it does not choose
    measured = phases.get("validation") or phases.get("screen")
    return BestView(
        sha256=candidate.sha256,
        label=candidate.label,
        origin=candidate.origin,
        geomean_speedup=measured.geomean_speedup if measured else None,
        ci95=_interval(measured.ci_low, measured.ci_high) if measured else None,
        traffic_speedup=measured.traffic_speedup if measured else None,
        traffic_ci95=_interval(measured.traffic_low, measured.traffic_high) if measured else None,
    )


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)


def _candidate_view(row: Candidate, phases: dict[str, Verdict]) -> CandidateView:
    latest = _latest(phases)
    bodies: dict[str, dict[str, Any]] = {phase: verdict.body for phase, verdict in phases.items()}
    findings = latest.body.get("findings") if latest else None
    return CandidateView(
        id=row.id,
        job_id=row.job_id,
        sha256=row.sha256,
        origin=row.origin,
        label=row.label,
        parent_sha256=row.parent_sha256,
        source=row.source,
        note=row.note,
        created_at=row.created_at,
        state="judged" if latest else "pending",
        verdict=latest.word if latest else None,
        reason=latest.reason if latest else None,
        findings=findings if isinstance(findings, list) else [],
        screen=bodies.get("screen"),
        validation=bodies.get("validation"),
        held_out=bodies.get("held_out"),
    )


def _latest(phases: dict[str, Verdict]) -> Verdict | None:
    return next((phases[phase] for phase in _LATEST_FIRST if phase in phases), None)


def _shown_state(row: Job | Evaluation) -> JobState:
    if row.cancel_requested and row.state == "running":
        return "cancelling"
    return row.state  # type: ignore[return-value]  # the column holds one of STATES


def _task_view(name: str, sha256: str) -> TaskView:
    return TaskView(name=name, sha256=sha256, catalog=catalog.find_by_sha256(sha256) is not None)


def _seconds(start: datetime | None, end: datetime | None) -> float:
    return 0.0 if start is None else round(((end or utc_now()) - start).total_seconds(), 3)
