"""Tallies: the summary of a job in lists, with its candidate counts and best candidate.

The tally of an ended job is stored with it, so a list of fifty jobs need not read their thousands of candidates. For other jobs
it is computed on each read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.db.models import FINAL_STATES, Candidate, Job, Verdict
from services.jobs.views import BestView, CountsView, View

LATEST_FIRST = ("held_out", "validation", "screen")
_OF_CANDIDATE = (Candidate.job_id, Candidate.sha256, Candidate.label, Candidate.origin)
_OF_VERDICT = (
    Verdict.job_id, Verdict.sha256, Verdict.phase, Verdict.word, Verdict.geomean_speedup, Verdict.ci_low,
    Verdict.ci_high, Verdict.traffic_speedup, Verdict.traffic_low, Verdict.traffic_high,
)  # fmt: skip


class Tally(View):
    """Counts, the leading candidate and the winner of one job."""

    counts: CountsView
    best: BestView | None
    winner: BestView | None


def tallies(session: Session, jobs: Sequence[Job]) -> dict[str, Tally]:
    """Return the tally of each job by id: the stored one, or one computed from the candidates."""
    found = {job.id: Tally.model_validate(job.tally) for job in jobs if job.tally is not None}
    rest = [job for job in jobs if job.tally is None]
    if not rest:
        return found
    ids = [job.id for job in rest]
    verdicts: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    # Columns, not ORM rows: a running job has hundreds of verdicts, and lists are requested all the time.
    for verdict in session.execute(select(*_OF_VERDICT).where(Verdict.job_id.in_(ids))):
        verdicts[verdict.job_id, verdict.sha256][verdict.phase] = verdict
    candidates: dict[str, list[Any]] = defaultdict(list)
    # In index order: when ordered by number alone, SQLite scanned every candidate of every job.
    rows = select(*_OF_CANDIDATE).where(Candidate.job_id.in_(ids))
    rows = rows.order_by(Candidate.job_id, Candidate.number)
    for candidate in session.execute(rows):
        candidates[candidate.job_id].append(candidate)
    for job in rest:
        found[job.id] = tally_of(job, candidates[job.id], verdicts)
    return found


def settle(session: Session, job: Job) -> None:
    """Store the tally of a job that the caller has locked, or clear it if the job has not ended."""
    session.flush()
    job.tally = None
    job.tally = tallies(session, [job])[job.id].model_dump(mode="json") if job.state in FINAL_STATES else None


def tally_of(
    job: Job, candidates: Iterable[Any], verdicts: Mapping[tuple[str, str], dict[str, Any]]
) -> Tally:
    """Compute a tally from a job's candidates in order of arrival and its verdicts by (job, source) and phase.

    The rows need the columns `_OF_CANDIDATE` and `_OF_VERDICT`.
    """
    counts: dict[str, int] = defaultdict(int)
    rank: tuple[bool, float] | None = None
    best: BestView | None = None
    winner: BestView | None = None
    for candidate in candidates:
        phases = verdicts.get((job.id, candidate.sha256), {})
        last = latest(phases)
        counts["candidates"] += 1
        counts["pending" if last is None else "accepted" if last.word == "accepted" else "rejected"] += 1
        if candidate.sha256 == job.winner_sha256:
            winner = _best_view(candidate, phases)
        if "held_out" in phases:
            continue  # optimized.py itself: it is assembled from the best candidates and does not compete
        measured = _measured(phases)
        if last is not None and last.word == "accepted" and measured and measured.geomean_speedup is not None:
            # A validated figure beats any screened one, because proposers tune for the visible shapes.
            own = ("validation" in phases, measured.traffic_speedup or measured.geomean_speedup)
            if rank is None or own > rank:
                rank, best = own, _best_view(candidate, phases)
    return Tally(counts=CountsView(**counts), best=best, winner=winner)


def latest(phases: Mapping[str, Any]) -> Any | None:
    """Return the value of the latest phase present, or None."""
    return next((phases[phase] for phase in LATEST_FIRST if phase in phases), None)


def _measured(phases: Mapping[str, Any]) -> Any | None:
    """Return the validation or screen verdict. Held-out figures are only reported and never used to choose a candidate."""
    return phases.get("validation") or phases.get("screen")


def _best_view(candidate: Any, phases: dict[str, Any]) -> BestView:
    measured = _measured(phases)
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
