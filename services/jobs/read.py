"""Read-only queries for the API and the pages: rows in, views out.

A job's page and tables show hundreds of candidates, so `judged_candidates` leaves out the large fields.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import BindParameter, bindparam, case, exists, func, or_, select
from sqlalchemy.orm import Session, defer

from agent.portfolio.ranking import RANKING_STEPS, last_ranking
from kernelbench_tasks import catalog
from services.db.ids import is_candidate_id, is_id
from services.db.models import FINAL_STATES, Bundle, Candidate, Evaluation, Event, Job, Step, Verdict, utc_now
from services.errors import NotFound, NotReady
from services.jobs import cursors
from services.jobs.rows import LOOK
from services.jobs.tally import LATEST_FIRST, Tally, latest, tallies
from services.jobs.views import (
    CandidateView,
    EvaluationUrls,
    EvaluationView,
    EventView,
    JobState,
    JobUrls,
    JobView,
    SpendView,
    TaskView,
    same_fields,
)

#: Total source characters in one page of candidates. Concurrent requests for 100 sources of 1 MB each would exhaust memory.
PAGE_CHARACTERS = 4_000_000
# Selects columns, not ORM rows: a log has hundreds of events.
_OF_EVENT = (Event.id, Event.time, Event.name, Event.data)

# Statements built once.
_JOB: BindParameter[str] = bindparam("job")
_LAST_RANKING = (
    select(Step.name, Step.value)
    .where(Step.job_id == _JOB, Step.name.startswith(RANKING_STEPS, autoescape=True))
    .order_by(Step.name.desc())
    .limit(1)
)
_WHOLE = Candidate.sha256.in_(bindparam("whole", expanding=True))
# If `lines` was not stored with the candidate, the reader counts the lines, so it needs the source.
_READ = or_(_WHOLE, Candidate.lines.is_(None))
_OUTLINED = (
    select(
        Candidate.id, Candidate.sha256, Candidate.origin, Candidate.label, Candidate.parent_sha256, Candidate.created_at,
        Candidate.lines, case((_READ, Candidate.source)).label("source"), case((_READ, Candidate.note), else_="").label("note"),
    )
    .where(Candidate.job_id == _JOB)
    .order_by(Candidate.number)
)  # fmt: skip
_AT_HELD_OUT = Verdict.phase == "held_out"
# Read the full body for older verdicts, which have no outline, and for held-out verdicts, because pages show every held-out shape.
_IN_FULL = or_(
    Verdict.sha256.in_(bindparam("whole", expanding=True)), Verdict.outline.is_(None), _AT_HELD_OUT
)
_OUTLINES = select(
    Verdict.id, Verdict.sha256, Verdict.phase, case((_IN_FULL, Verdict.body), else_=Verdict.outline)
).where(Verdict.job_id == _JOB)


def list_jobs(session: Session, limit: int = 20, after: str | None = None) -> list[JobView]:
    """Return jobs, newest first; `after` is the id of the last job already seen.

    Raises:
        Refused: `after` is not an id.
    """
    query = select(Job).options(defer(Job.task_source)).order_by(Job.id.desc()).limit(limit)
    if after is not None:
        if not is_id(after):
            raise cursors.refused()
        query = query.where(Job.id < after)
    return _job_views(session, session.scalars(query).all())


def get_job(session: Session, job_id: str) -> JobView:
    """Return one job.

    Raises:
        NotFound: no such job.
    """
    return _job_views(session, [job_row(session, job_id)])[0]


def job_row(session: Session, job_id: str) -> Job:
    """Return the row of a job.

    Raises:
        NotFound: no such job.
    """
    job = session.get(Job, job_id) if is_id(job_id) else None
    if job is None:
        raise NotFound(f"there is no job {job_id[:40]!r}")
    return job


def task_source(session: Session, job_id: str) -> str:
    """Return the source of a job's reference module. Untrusted.

    Raises:
        NotFound: no such job.
    """
    return job_row(session, job_id).task_source


def list_candidates(session: Session, job_id: str) -> list[CandidateView]:
    """Return all of a job's candidates in order of arrival.

    Raises:
        NotFound: no such job.
    """
    job_row(session, job_id)
    return _candidate_views(session, job_id, None, None)


def _candidate_views(
    session: Session, job_id: str, limit: int | None, after: str | None
) -> list[CandidateView]:
    query = select(Candidate).where(Candidate.job_id == job_id).order_by(Candidate.number).limit(limit)
    if after is not None:
        query = query.where(Candidate.number > _number_after(session, after, job_id))
    rows = session.scalars(query).all()
    verdicts: dict[str, dict[str, Verdict]] = defaultdict(dict)
    found = select(Verdict).options(defer(Verdict.outline)).where(Verdict.job_id == job_id)
    if limit is not None or after is not None:
        found = found.where(Verdict.sha256.in_([row.sha256 for row in rows]))
    for verdict in session.scalars(found):
        verdicts[verdict.sha256][verdict.phase] = verdict
    choice = choice_of(session, job_id)
    return [_candidate_view(row, verdicts.get(row.sha256, {}), choice) for row in rows]


def candidate_page(
    session: Session, job_id: str, limit: int, after: str | None = None
) -> tuple[list[CandidateView], bool]:
    """Return at most `limit` candidates in order of arrival, fewer if their sources are long, and whether more follow.

    Raises:
        NotFound: no such job.
        Refused: `after` is not a candidate of this job.
    """
    job_row(session, job_id)
    lengths = select(func.length(Candidate.source)).where(Candidate.job_id == job_id)
    lengths = lengths.order_by(Candidate.number).limit(limit + 1)
    if after is not None:
        lengths = lengths.where(Candidate.number > _number_after(session, after, job_id))
    found = session.scalars(lengths).all()
    shown, characters = 0, 0
    for length in found[:limit]:
        characters += length
        if shown and characters > PAGE_CHARACTERS:
            break
        shown += 1
    return _candidate_views(session, job_id, shown, after), len(found) > shown


def _number_after(session: Session, candidate_id: str, job_id: str) -> int:
    query = select(Candidate.number).where(Candidate.id == candidate_id, Candidate.job_id == job_id)
    number = session.scalar(query) if is_candidate_id(candidate_id) else None
    if number is None:
        raise cursors.refused()
    return number


def get_candidate(session: Session, candidate_id: str) -> CandidateView:
    """Return one candidate by its id ("<job id>.<first 12 digits of its sha256>").

    Raises:
        NotFound: no such candidate.
    """
    row = None
    if is_candidate_id(candidate_id):
        row = session.scalar(select(Candidate).where(Candidate.id == candidate_id))
    if row is None:
        raise NotFound(f"there is no candidate {candidate_id[:60]!r}")
    found = session.scalars(select(Verdict).where(Verdict.job_id == row.job_id, Verdict.sha256 == row.sha256))
    choice = choice_of(session, row.job_id)
    return _candidate_view(row, {verdict.phase: verdict for verdict in found}, choice)


def find_candidate(session: Session, job_id: str, sha256: str | None) -> CandidateView | None:
    """Return the job's candidate with this source, or None."""
    query = select(Candidate.id).where(Candidate.job_id == job_id, Candidate.sha256 == sha256)
    found = session.scalar(query) if sha256 else None
    return get_candidate(session, found) if found else None


def judged_candidates(
    session: Session,
    job_id: str,
    whole: Collection[str] = (),
    most: int | None = None,
    *,
    alone: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Return a job's candidates without their large fields, and the held-out verdict on its optimized.py if there is one.

    The fields are those of GET /candidates/{id}, but verdicts are outlines and `lines` replaces the source, except for the
    sources named in `whole`. A job has hundreds of candidates, and its page shows the shapes of only one.

    Args:
        session: the session to query.
        job_id: the job.
        whole: sha256 of the sources to return in full.
        most: if the job has more candidates than this, return only the fastest and the newest, about half each.
        alone: return only the candidates in `whole`.
    """
    wanted: Collection[str] | None = whole if alone else None
    if most is not None:
        wanted = _notable(session, job_id, whole, most)
    candidates, found = _OUTLINED, _OUTLINES
    if wanted is not None:
        candidates = candidates.where(Candidate.sha256.in_(wanted))
        found = found.where(or_(Verdict.sha256.in_(wanted), _AT_HELD_OUT))
    given = {"job": job_id, "whole": whole}
    verdicts: dict[str, dict[str, Any]] = defaultdict(dict)
    held_out: tuple[int, dict[str, Any] | None] = (0, None)
    for number, sha256, phase, body in session.execute(found, given):
        verdicts[sha256][phase] = body
        if phase == "held_out" and number > held_out[0]:
            held_out = number, body
    nothing: dict[str, Any] = {}
    choice = choice_of(session, job_id)
    rows = session.execute(candidates, given)
    return [
        _outline(job_id, row, verdicts.get(row.sha256, nothing), choice.get(row.sha256)) for row in rows
    ], held_out[1]


def _notable(session: Session, job_id: str, whole: Collection[str], most: int) -> set[str] | None:
    """Return the sha256 of the fastest and the newest candidates, or None if the job has no more than `most`."""
    newest = select(Candidate.sha256).where(Candidate.job_id == job_id).order_by(Candidate.number.desc())
    found = session.scalars(newest.limit(most + 1)).all()
    if len(found) <= most:
        return None
    speed = func.coalesce(Verdict.traffic_speedup, Verdict.geomean_speedup)
    fastest = (
        select(Verdict.sha256)
        .where(Verdict.job_id == job_id, Verdict.word == "accepted", speed.is_not(None))
        # The pages' ranking: validated candidates before those that were only screened.
        .order_by((Verdict.phase == "validation").desc(), speed.desc())
        .limit(most // 2)
    )
    return {*found[: most // 2], *session.scalars(fastest), *whole}


def _outline(job_id: str, row: Any, phases: dict[str, Any], choice: dict[str, Any] | None) -> dict[str, Any]:
    last = latest(phases)
    findings = (last or {}).get("findings")
    return {
        "id": row.id,
        "job_id": job_id,
        "sha256": row.sha256,
        "origin": row.origin,
        "label": row.label,
        "parent_sha256": row.parent_sha256,
        "source": row.source,
        "note": row.note,
        "lines": row.lines,
        "created_at": row.created_at.isoformat(),
        "state": "judged" if last else "pending",
        "verdict": str(last.get("verdict"))[:32] if last else None,
        "reason": str(last.get("reason") or "") if last else None,
        "findings": findings if isinstance(findings, list) else [],
        **{phase: phases.get(phase) for phase in LATEST_FIRST},
        "choice": choice,
    }


def choice_of(session: Session, job_id: str) -> dict[str, dict[str, Any]]:
    """Return place and figures of each candidate in the final ranking, by sha256; empty before the winner is chosen."""
    found = session.execute(_LAST_RANKING, {"job": job_id}).one_or_none()
    return last_ranking({found.name: found.value["value"]}) if found else {}


def list_events(session: Session, job_id: str, after: int = 0, limit: int = 500) -> list[EventView]:
    """Return a job's events with ids greater than `after`, oldest first; none for an unknown job."""
    query = select(*_OF_EVENT).where(Event.job_id == job_id, Event.id > after).order_by(Event.id).limit(limit)
    return [_event_view(row) for row in session.execute(query)]


def recent_events(
    session: Session, job_id: str, but_not: str, also: str, limit: int
) -> tuple[list[EventView], int]:
    """Return the end of a job's log for its page, oldest first, and the number of events left out.

    The result holds the last `limit` events not named `but_not`, the last event of any name, and the last event named `also`.
    The count excludes events named `but_not`.
    """
    of_job = select(*_OF_EVENT).where(Event.job_id == job_id).order_by(Event.id.desc())
    told = session.execute(of_job.where(Event.name != but_not).limit(limit)).all()
    rest = [session.execute(one.limit(1)).first() for one in (of_job, of_job.where(Event.name == also))]
    found = {row.id: row for row in [*told, *rest] if row is not None}
    count = select(func.count()).where(Event.job_id == job_id, Event.name != but_not)
    return [_event_view(found[number]) for number in sorted(found)], (session.scalar(count) or 0) - len(told)


def _event_view(row: Any) -> EventView:
    return EventView(**row._mapping)


def is_settled(session: Session, job_id: str) -> bool:
    """Whether no more events will come: the job has ended and none of its external candidates waits for a verdict."""
    state = session.scalar(select(Job.state).where(Job.id == job_id))
    waiting = exists().where(Evaluation.job_id == job_id, Evaluation.state.not_in(FINAL_STATES))
    return state in FINAL_STATES and not session.scalar(select(waiting))


def evaluation_row(session: Session, evaluation_id: str, *, lock: bool = False) -> Evaluation:
    """Return the row of an evaluation, if wanted locked until the end of the transaction.

    Raises:
        NotFound: no such evaluation.
    """
    if is_id(evaluation_id):
        row = session.get(Evaluation, evaluation_id, with_for_update=lock, populate_existing=lock)
        if row is not None:
            return row
    raise NotFound(f"there is no evaluation {evaluation_id[:40]!r}")


def get_evaluation(session: Session, evaluation_id: str) -> EvaluationView:
    """Return one evaluation.

    Raises:
        NotFound: no such evaluation.
    """
    row = evaluation_row(session, evaluation_id)
    given: dict[str, Any] = {
        **same_fields(EvaluationView, row),
        "state": _shown_state(row),
        "task": _task_view(row.task_name, row.task_sha256),
        "candidate": {"sha256": row.candidate_sha256, "origin": row.origin, "label": row.label},
        "urls": EvaluationUrls(self=f"/evaluations/{row.id}", cancel=f"/evaluations/{row.id}/cancel"),
    }
    return EvaluationView(**given)


def look_row(session: Session, evaluation_id: str) -> Evaluation:
    """Return the row of a task check (`services.jobs.submit.make_look`).

    Raises:
        NotFound: no such look.
    """
    row = session.get(Evaluation, evaluation_id) if is_id(evaluation_id) else None
    if row is None or row.effort != LOOK:
        raise NotFound(f"there is no check {evaluation_id[:40]!r}")
    return row


def get_bundle(session: Session, job_id: str) -> tuple[str, bytes]:
    """Return file name and content of a job's zip.

    Raises:
        NotFound: no such job.
        NotReady: the job has no bundle: not yet, or never if it has ended.
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
    found = tallies(session, jobs)
    return [_job_view(job, found[job.id]) for job in jobs]


def _job_view(job: Job, tally: Tally) -> JobView:
    base = f"/jobs/{job.id}"
    caps = job.request.get("budget") or {}
    given: dict[str, Any] = {
        **same_fields(JobView, job),
        **dict(tally),
        "state": _shown_state(job),
        "task": TaskView(name=job.task_name, sha256=job.task_sha256, catalog=job.from_catalog),
        "spend": SpendView(
            usd=job.usd,
            tokens=job.tokens,
            seconds=_seconds(job.started_at, job.finished_at),
            **{f"{name}_cap": caps.get(name) for name in ("usd", "tokens", "seconds")},
        ),
        "urls": JobUrls(
            self=base,
            candidates=f"{base}/candidates",
            events=f"{base}/events",
            cancel=f"{base}/cancel",
            bundle=f"{base}/bundle",
            dashboard=f"/ui{base}",
        ),
    }
    return JobView(**given)


def _candidate_view(
    row: Candidate, phases: dict[str, Verdict], choice: Mapping[str, dict[str, Any]]
) -> CandidateView:
    last: Verdict | None = latest(phases)
    bodies: dict[str, dict[str, Any]] = {phase: verdict.body for phase, verdict in phases.items()}
    findings = last.body.get("findings") if last else None
    given: dict[str, Any] = {
        **same_fields(CandidateView, row),
        **{phase: bodies.get(phase) for phase in LATEST_FIRST},
        "state": "judged" if last else "pending",
        "verdict": last.word if last else None,
        "reason": last.reason if last else None,
        "findings": findings if isinstance(findings, list) else [],
        "choice": choice.get(row.sha256),
    }
    return CandidateView(**given)


def _shown_state(row: Job | Evaluation) -> JobState:
    if row.cancel_requested and row.state == "running":
        return "cancelling"
    return row.state  # type: ignore[return-value]  # the column holds one of STATES


def _task_view(name: str, sha256: str) -> TaskView:
    return TaskView(name=name, sha256=sha256, catalog=catalog.find_by_sha256(sha256) is not None)


def _seconds(start: datetime | None, end: datetime | None) -> float:
    return 0.0 if start is None else round(((end or utc_now()) - start).total_seconds(), 3)
