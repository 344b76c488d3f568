"""Candidates of a job without what makes them heavy, for its page and its tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

from sqlalchemy import BindParameter, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from services.db.models import Candidate, Verdict
from services.db.types import among, listed
from services.jobs.choice import choice_of
from services.jobs.tally import LATEST_FIRST, latest

# Put together once; pages ask for them all the time.
_JOB: BindParameter[str] = bindparam("job")
_WHOLE = among(Candidate.sha256, listed("whole", Candidate.sha256))
# A source that has not been counted when it was stored is counted when it is shown.
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
# Verdicts from before there were outlines have none; of the held-out shapes a page shows each.
_IN_FULL = or_(
    among(Verdict.sha256, listed("whole", Verdict.sha256)), Verdict.outline.is_(None), _AT_HELD_OUT
)
_OUTLINES = select(
    Verdict.id, Verdict.sha256, Verdict.phase, case((_IN_FULL, Verdict.body), else_=Verdict.outline)
).where(Verdict.job_id == _JOB)


def outlined_candidates(
    session: Session,
    job_id: str,
    whole: Collection[str] = (),
    most: int | None = None,
    *,
    alone: bool = False,
) -> list[dict[str, Any]]:
    """The candidates of `judged_candidates`."""
    return judged_candidates(session, job_id, whole, most, alone=alone)[0]


def judged_candidates(
    session: Session,
    job_id: str,
    whole: Collection[str] = (),
    most: int | None = None,
    *,
    alone: bool = False,
) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Candidates of a job as GET /candidates/{id} sends them, but for what makes them heavy; and the referee's verdict on the
    job's optimized.py at held-out shapes, once there is one.

    Verdicts come as outlines, and `lines` stands for the source, except for the sources named in `whole`. A job has
    hundreds of candidates, and its page shows the shapes of one.

    Args:
        session: where to look.
        job_id: the job.
        whole: sources of which everything is wanted.
        most: of a job with more candidates, only the fastest and the newest, about as many of each.
        alone: only the candidates in `whole`.
    """
    wanted: Collection[str] | None = whole if alone else None
    if most is not None:
        wanted = _notable(session, job_id, whole, most)
    candidates, found = _OUTLINED, _OUTLINES
    if wanted is not None:
        candidates = candidates.where(among(Candidate.sha256, wanted))
        found = found.where(or_(among(Verdict.sha256, wanted), _AT_HELD_OUT))
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
        _outlined(job_id, row, verdicts.get(row.sha256, nothing), choice.get(row.sha256)) for row in rows
    ], held_out[1]


def _notable(session: Session, job_id: str, whole: Collection[str], most: int) -> set[str] | None:
    """The sources of the fastest and of the newest candidates, or None where there are no more than `most`."""
    newest = select(Candidate.sha256).where(Candidate.job_id == job_id).order_by(Candidate.number.desc())
    found = session.scalars(newest.limit(most + 1)).all()
    if len(found) <= most:
        return None
    speed = func.coalesce(Verdict.traffic_speedup, Verdict.geomean_speedup)
    fastest = (
        select(Verdict.sha256)
        .where(Verdict.job_id == job_id, Verdict.word == "accepted", speed.is_not(None))
        # as pages rank them: who was validated comes before who was only screened
        .order_by((Verdict.phase == "validation").desc(), speed.desc())
        .limit(most // 2)
    )
    return {*found[: most // 2], *session.scalars(fastest), *whole}


def _outlined(job_id: str, row: Any, phases: dict[str, Any], choice: dict[str, Any] | None) -> dict[str, Any]:
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
