"""What must hold of a database when a storm is over (`benchmarks.service_chaos`): each check counts what breaks it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from benchmarks.scripted_service import MODELS
from services.client.client import Client
from services.db.models import FINAL_STATES, Bundle, Candidate, Evaluation, Event, Job, Verdict
from services.db.session import Database

_ENDS = ("job.finished", "job.failed", "job.cancelled")
_PROPOSED = sum(map(len, MODELS.values()))
_DELIVERED = "optimized.py"


def broken(base: Database, client: Client, watched: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """How many rows break each rule; 0 everywhere is what a service that loses nothing has.

    Args:
        base: the database of the service.
        client: of the same service, which must say the same.
        watched: ids of the events that a client saw, for each job that was followed through the storm.
    """
    with base.read() as session:
        found = {
            "rows that have not ended": _count(session, lambda model: model.state.notin_(FINAL_STATES)),
            "rows that ended otherwise than as succeeded": _count(
                session, lambda model: model.state.in_(("failed", "cancelled"))
            ),
            "leases left": _count(
                session, lambda model: or_(model.lease_owner.is_not(None), model.lease_until.is_not(None))
            ),
            **_verdicts(session),
            **_events(session),
        }
        stored = {
            job_id: list(session.scalars(select(Event.id).where(Event.job_id == job_id).order_by(Event.id)))
            for job_id in watched
        }
    found["watched jobs whose stream missed or repeated an event"] = sum(
        list(seen) != stored[job_id] for job_id, seen in watched.items()
    )
    found["jobs of which the API says something else"] = _told_otherwise(base, client)
    return found


def reasons(base: Database) -> dict[str, int]:
    """Why jobs and evaluations ended otherwise than as succeeded."""
    with base.read() as session:
        rows: list[str | None] = []
        for model in (Job, Evaluation):
            rows += session.scalars(select(model.reason).where(model.state.in_(("failed", "cancelled"))))
    return dict(Counter(str(row)[:200] for row in rows).most_common(5))


def _count(session: Session, condition: Any) -> int:
    return sum(
        session.scalar(select(func.count()).select_from(model).where(condition(model))) or 0
        for model in (Job, Evaluation)
    )


def _verdicts(session: Session) -> dict[str, int]:
    key = (Verdict.job_id, Verdict.sha256, Verdict.phase)
    twice = select(*key).group_by(*key).having(func.count() > 1)
    words: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for job_id, sha256, phase, word in session.execute(
        select(Verdict.job_id, Verdict.sha256, Verdict.phase, Verdict.word)
    ):
        words[job_id, sha256][phase] = word
    unjudged = unvalidated = delivered = 0
    per_job: Counter[str] = Counter()
    for job_id, sha256, label in session.execute(select(Candidate.job_id, Candidate.sha256, Candidate.label)):
        per_job[job_id] += label != _DELIVERED
        phases = words.get((job_id, sha256), {})
        unjudged += "screen" not in phases
        delivered += phases.get("held_out") == "accepted"
        unvalidated += (
            label != _DELIVERED and phases.get("screen") == "accepted" and "validation" not in phases
        )
    succeeded = list(session.scalars(select(Job.id).where(Job.state == "succeeded")))
    bundles = session.scalar(select(func.count()).select_from(Bundle)) or 0
    return {
        "verdicts that are there twice": len(session.execute(twice).all()),
        "candidates without a verdict": unjudged,
        "accepted candidates without validation": unvalidated,
        "jobs without all their candidates": sum(per_job[job_id] != _PROPOSED for job_id in succeeded),
        "jobs without their one held-out verdict": abs(len(succeeded) - delivered),
        "jobs without their bundle": abs(len(succeeded) - bundles),
    }


def _events(session: Session) -> dict[str, int]:
    """A job's story is whole: queued first, one event for each thing that is stored, one end, and nothing behind it."""
    told: dict[str, list[tuple[str, dict[str, Any]]]] = defaultdict(list)
    for job_id, name, data in session.execute(
        select(Event.job_id, Event.name, Event.data).order_by(Event.id)
    ):
        told[job_id].append((name, data))
    candidates = {tuple(row) for row in session.execute(select(Candidate.job_id, Candidate.sha256))}
    verdicts = {tuple(row) for row in session.execute(select(Verdict.job_id, Verdict.sha256, Verdict.phase))}
    proposed = Counter(
        (job_id, data["sha256"])
        for job_id, events in told.items()
        for name, data in events
        if name == "candidate.proposed"
    )
    judged = Counter(
        (job_id, data["sha256"], data["phase"])
        for job_id, events in told.items()
        for name, data in events
        if name == "candidate.judged"
    )
    misshapen = bills = 0
    for job in session.scalars(select(Job)):
        names = [name for name, _ in told[job.id]]
        ends = sum(name in _ENDS for name in names)
        whole = names[:1] == ["job.queued"] and ends == (job.state in FINAL_STATES)
        misshapen += not whole or (job.state in FINAL_STATES and names[-1] not in _ENDS)
        spent = [data for name, data in told[job.id] if name == "budget.spent"]
        asked = Counter((data.get("request"), data.get("try") or 0) for data in spent)
        tokens = sum(int(data.get("tokens") or 0) for data in spent)
        bills += job.tokens != tokens or any(times > 1 for times in asked.values())
    return {
        "stories without begin, end or order": misshapen,
        "candidates not told exactly once": sum((proposed - Counter(candidates)).values())
        + len(candidates - set(proposed)),
        "verdicts not told exactly once": sum((judged - Counter(verdicts)).values())
        + len(verdicts - set(judged)),
        "jobs with a wrong bill": bills,
    }


def _told_otherwise(base: Database, client: Client) -> int:
    words: dict[str, Counter[str]] = defaultdict(Counter)
    with base.read() as session:
        states = {row.id: row.state for row in session.execute(select(Job.id, Job.state))}
        by_candidate: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
        for job_id, sha256, phase, word in session.execute(
            select(Verdict.job_id, Verdict.sha256, Verdict.phase, Verdict.word)
        ):
            by_candidate[job_id, sha256][phase] = word
        for job_id, sha256 in session.execute(select(Candidate.job_id, Candidate.sha256)):
            phases = by_candidate[job_id, sha256]
            last = phases.get("held_out") or phases.get("validation") or phases.get("screen") or "pending"
            words[job_id][last] += 1
    shown = {job.id: job for job in client.jobs()}
    wrong = 0
    for job_id, state in states.items():
        job = shown.get(job_id)
        counts = words[job_id]
        wrong += (
            job is None
            or job.state != state
            or job.counts.candidates != sum(counts.values())
            or job.counts.accepted != counts["accepted"]
            or job.counts.pending != counts["pending"]
        )
    return wrong
