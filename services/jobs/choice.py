"""By what a job's winner was chosen, as its worker stored it (`agent.portfolio.ranking`)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from agent.portfolio.ranking import RANKING_STEPS, last_ranking
from services.db.models import Step

_LAST = (
    select(Step.name, Step.value)
    .where(Step.job_id == bindparam("job"), Step.name.startswith(RANKING_STEPS, autoescape=True))
    .order_by(Step.name.desc())
    .limit(1)
)


def choice_of(session: Session, job_id: str) -> dict[str, dict[str, Any]]:
    """Place and figures of each candidate that the choice was among, by sha256; empty before the choice."""
    found = session.execute(_LAST, {"job": job_id}).one_or_none()
    return last_ranking({found.name: found.value["value"]}) if found else {}
