"""What lists say of a job: how many candidates, which is the best. Kept with a job that has ended, so that a list of
fifty jobs does not read their thousands of candidates; worked out anew while anything can still change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, case, func, or_, select
from sqlalchemy.orm import Session, aliased

from services.db.models import FINAL_STATES, Candidate, Job, Verdict
from services.db.types import among
from services.jobs.views import BestView, CountsView, View

LATEST_FIRST = ("held_out", "validation", "screen")
_held_out, _validation, _screen = _of_phase = [aliased(Verdict, name=phase) for phase in LATEST_FIRST]
_last_word = func.coalesce(*(verdict.word for verdict in _of_phase))


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
    best, winner = dict[str, BestView](), dict[str, BestView]()
    counts = dict.fromkeys((job.id for job in rest), CountsView())
    for row in session.execute(_of_jobs(list(counts))):
        if row.place == 1 and row.competes:
            best[row.job_id] = _best_view(row)
        if row.has_won:
            winner[row.job_id] = _best_view(row)
        counts[row.job_id] = CountsView(
            candidates=row.candidates,
            accepted=row.accepted,
            rejected=row.candidates - row.accepted - row.pending,
            pending=row.pending,
        )
    for job in rest:
        found[job.id] = Tally(counts=counts[job.id], best=best.get(job.id), winner=winner.get(job.id))
    return found


def settle(session: Session, job: Job) -> None:
    """Keep the tally of a job that has ended and that the caller has locked."""
    session.flush()
    job.tally = None
    job.tally = tallies(session, [job])[job.id].model_dump(mode="json") if job.state in FINAL_STATES else None


def _of_jobs(ids: Sequence[str]) -> Select[Any]:
    """For each job its best candidate and its winner, and with each of them how many there are.

    The database counts and ranks: a running job may have a thousand candidates, and lists are asked for all the time.
    """
    # The held-out figure is never shown as a candidate's: it reports, it does not choose.
    figures = {
        name: case((_validation.id.is_not(None), getattr(_validation, name)), else_=getattr(_screen, name))
        for name in ("geomean_speedup", "ci_low", "ci_high", "traffic_speedup", "traffic_low", "traffic_high")
    }
    # What has a held-out verdict is optimized.py itself: it is made of the best and does not compete.
    competes = and_(_held_out.id.is_(None), _last_word == "accepted", figures["geomean_speedup"].is_not(None))
    best_first = (
        _first(competes),
        # A validated figure beats any screened one: visible shapes are what proposers tune for.
        _first(_validation.id.is_not(None)),
        func.coalesce(func.nullif(figures["traffic_speedup"], 0.0), figures["geomean_speedup"]).desc(),
        Candidate.number,
    )
    job_id = Candidate.job_id
    ranked = select(
        job_id, Candidate.sha256, Candidate.label, Candidate.origin,
        *(figure.label(name) for name, figure in figures.items()),
        competes.label("competes"),
        (Candidate.sha256 == Job.winner_sha256).label("has_won"),
        func.row_number().over(partition_by=job_id, order_by=best_first).label("place"),
        func.count().over(partition_by=job_id).label("candidates"),
        func.sum(case((_last_word == "accepted", 1), else_=0)).over(partition_by=job_id).label("accepted"),
        func.sum(case((_last_word.is_(None), 1), else_=0)).over(partition_by=job_id).label("pending"),
    ).join(Job, Job.id == job_id)  # fmt: skip
    for phase, verdict in zip(LATEST_FIRST, _of_phase, strict=True):
        same = and_(verdict.job_id == Candidate.job_id, verdict.sha256 == Candidate.sha256)
        ranked = ranked.outerjoin(verdict, and_(same, verdict.phase == phase))
    rows = ranked.where(among(Candidate.job_id, ids)).subquery()
    return select(rows).where(or_(rows.c.place == 1, rows.c.has_won))


def _first(condition: ColumnElement[bool]) -> ColumnElement[int]:
    """To sort by: where the condition holds before where it does not, or is not known."""
    return case((condition, 0), else_=1)


def latest(phases: Mapping[str, Any]) -> Any | None:
    """What belongs to the last phase that has something."""
    return next((phases[phase] for phase in LATEST_FIRST if phase in phases), None)


def _best_view(row: Any) -> BestView:
    return BestView(
        sha256=row.sha256,
        label=row.label,
        origin=row.origin,
        geomean_speedup=row.geomean_speedup,
        ci95=_interval(row.ci_low, row.ci_high),
        traffic_speedup=row.traffic_speedup,
        traffic_ci95=_interval(row.traffic_low, row.traffic_high),
    )


def _interval(low: float | None, high: float | None) -> tuple[float, float] | None:
    return None if low is None or high is None else (low, high)
