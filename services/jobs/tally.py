"""What lists say of a job: how many candidates, which is the best. It is kept with a job that has ended, so that a list of fifty
jobs does not read their thousands of candidates, and worked out anew for all others.
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
    """The tally of each job, by id: the kept one, or worked out from the candidates."""
    found = {job.id: Tally.model_validate(job.tally) for job in jobs if job.tally is not None}
    rest = [job for job in jobs if job.tally is None]
    if not rest:
        return found
    ids = [job.id for job in rest]
    verdicts: dict[tuple[str, str], dict[str, Any]] = defaultdict(dict)
    # Columns and not rows of the models: a running job has hundreds, and lists are asked for all the time.
    for verdict in session.execute(select(*_OF_VERDICT).where(Verdict.job_id.in_(ids))):
        verdicts[verdict.job_id, verdict.sha256][verdict.phase] = verdict
    candidates: dict[str, list[Any]] = defaultdict(list)
    # In the index's own order: for that of the numbers alone SQLite went through every candidate of every job.
    rows = select(*_OF_CANDIDATE).where(Candidate.job_id.in_(ids))
    rows = rows.order_by(Candidate.job_id, Candidate.number)
    for candidate in session.execute(rows):
        candidates[candidate.job_id].append(candidate)
    for job in rest:
        found[job.id] = tally_of(job, candidates[job.id], verdicts)
    return found


def settle(session: Session, job: Job) -> None:
    """Keep the tally of a job that has ended and that the caller has locked."""
    session.flush()
    job.tally = None
    job.tally = tallies(session, [job])[job.id].model_dump(mode="json") if job.state in FINAL_STATES else None


def tally_of(
    job: Job, candidates: Iterable[Any], verdicts: Mapping[tuple[str, str], dict[str, Any]]
) -> Tally:
    """From a job's candidates in order of arrival, and verdicts by (job, source) and phase, as rows with those columns."""
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
            continue  # optimized.py itself: it is made of the best and does not compete
        measured = _measured(phases)
        if last is not None and last.word == "accepted" and measured and measured.geomean_speedup is not None:
            # a validated figure beats any screened one: visible shapes are what proposers tune for
            own = ("validation" in phases, measured.traffic_speedup or measured.geomean_speedup)
            if rank is None or own > rank:
                rank, best = own, _best_view(candidate, phases)
    return Tally(counts=CountsView(**counts), best=best, winner=winner)


def latest(phases: Mapping[str, Any]) -> Any | None:
    """What belongs to the last phase that has something."""
    return next((phases[phase] for phase in LATEST_FIRST if phase in phases), None)


def _measured(phases: Mapping[str, Any]) -> Any | None:
    """The held-out figure is never shown as a candidate's: it reports, it does not choose."""
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
