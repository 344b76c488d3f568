"""Quotas: limits on a user's concurrent, daily and monthly usage, and the usage itself.

The table `usage` counts per day, in the transaction that stores the result: a candidate when it is stored, dollars when a
model's answer is billed, device seconds after each turn on a device. Days and months are in UTC.

Two places enforce quotas. The API refuses a request when nothing is left, or when its budget exceeds what is left. A worker
caps a job's budget at what is left and checks again between candidates, so concurrent jobs stop making candidates when the
quota runs out. Work in progress is finished, so usage may exceed a quota by that much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from agent.spec import Budget
from evaluator.counting import counted
from evaluator.devices import is_accelerator
from services.db.models import Candidate, Evaluation, Job, Usage, User, utc_now
from services.db.types import upsert
from services.errors import QuotaExceeded, Spent
from services.users import audit
from services.users.caller import Caller

_WAITING = ("queued", "waiting")


class Quotas(BaseModel):
    """What a user may use; None: as much as there is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    jobs_queued: int | None = Field(
        default=None, ge=0, le=10**6, description="jobs and evaluations that wait"
    )
    jobs_running: int | None = Field(default=None, ge=1, le=10**6, description="jobs worked on at a time")
    candidates_per_day: int | None = Field(default=None, ge=0, le=10**9)
    candidates_per_month: int | None = Field(default=None, ge=0, le=10**9)
    usd_per_day: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    usd_per_month: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    gpu_seconds_per_day: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    gpu_seconds_per_month: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    cpu_seconds_per_day: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)
    cpu_seconds_per_month: float | None = Field(default=None, ge=0, le=1e9, allow_inf_nan=False)


MEASURES = ("candidates", "usd", "gpu_seconds", "cpu_seconds")
_WORDS = {
    "candidates": "candidates",
    "usd": "US dollars",
    "gpu_seconds": "seconds of GPUs",
    "cpu_seconds": "seconds of CPUs",
}


@dataclass(frozen=True)
class Standing:
    """A user's usage against the daily and monthly quotas."""

    spent: tuple[Spent, ...]

    def left(self, measure: str) -> float | None:
        """Return how much of one of `MEASURES` is left, at least 0; None means no limit."""
        own = [one for one in self.spent if _measure_of(one.quota) == measure]
        return min((max(0.0, one.limit - one.used) for one in own), default=None)

    def exhausted(self, device: str, *, pays: bool) -> Spent | None:
        """Return the exhausted quota that blocks work on a device, or None; if several do, the one that resets last.

        `pays` says whether the work calls models that cost money.
        """
        needed = {
            "candidates",
            "gpu_seconds" if is_accelerator(device) else "cpu_seconds",
            *(("usd",) if pays else ()),
        }
        found = [one for one in self.spent if one.used >= one.limit and _measure_of(one.quota) in needed]
        return max(found, key=lambda one: one.resets_at.timestamp() if one.resets_at else 0.0, default=None)


def quotas_of(session: Session, user_id: str | None) -> Quotas:
    """Return a user's quotas; without a user there are none."""
    stored = session.scalar(select(User.quotas).where(User.id == user_id)) if user_id is not None else None
    return Quotas.model_validate(stored or {})


def set_quotas(session: Session, by: Caller, user: User, quotas: Quotas) -> None:
    """Replace a user's quotas, and note it in the audit log. The caller commits."""
    user.quotas = quotas.model_dump(exclude_none=True)
    shown = ", ".join(f"{name}={value:g}" for name, value in user.quotas.items())
    audit.note(session, by, "quotas set", user.name, detail=shown or "none")


def standing_of(session: Session, user_id: str | None, now: datetime | None = None) -> Standing:
    """Return a user's current usage against the daily and monthly quotas."""
    quotas = quotas_of(session, user_id)
    limits = {name: limit for name, limit in quotas if limit is not None and _measure_of(name) in MEASURES}
    if not limits:
        return Standing(())
    now = now or utc_now()
    today = now.date()
    month = today.replace(day=1)
    used: dict[str, float] = {}
    for first, suffix in ((today, "_per_day"), (month, "_per_month")):
        sums = select(*(func.coalesce(func.sum(getattr(Usage, name)), 0) for name in MEASURES))
        row = session.execute(sums.where(Usage.user_id == user_id, Usage.day >= first)).one()
        used |= {f"{name}{suffix}": float(value) for name, value in zip(MEASURES, row, strict=True)}
    return Standing(
        tuple(Spent(name, float(limit), used[name], _reset(name, now)) for name, limit in limits.items())
    )


def lock_user(session: Session, user_id: str | None) -> None:
    """Lock a user until the end of the transaction, to serialize decisions that count the user's rows.

    Take it before locking a job's row, to avoid deadlocks. On PostgreSQL it is FOR NO KEY UPDATE, which does not block writes of
    rows that refer to the user, such as a worker's usage counts.
    """
    if user_id is not None:
        session.get(User, user_id, with_for_update={"key_share": True})


def add_usage(session: Session, user_id: str | None, **used: float) -> None:
    """Add usage by names in `MEASURES`; without a user it does nothing. The caller commits."""
    if user_id is None or not any(used.values()):
        return
    values = {"user_id": user_id, "day": utc_now().date(), **{name: used.get(name, 0) for name in MEASURES}}
    changed = {name: getattr(Usage, name) + amount for name, amount in used.items()}
    upsert(session, Usage, ["user_id", "day"], values, changed)


def check(
    session: Session,
    user_id: str | None,
    device: str,
    *,
    pays: bool = False,
    budget: Mapping[str, float | None] | None = None,
) -> None:
    """Check that the user's quotas allow one more job, evaluation or candidate.

    Args:
        session: of the request; the caller adds the row in the same transaction.
        user_id: the future owner.
        device: the device it will run on.
        pays: whether it will call paid models.
        budget: the job's own upper limits, by names in `MEASURES`.

    Raises:
        QuotaExceeded: a quota does not allow it; the error says how much was used and when the quota resets.
    """
    if user_id is None:
        return
    lock_user(session, user_id)
    quotas = quotas_of(session, user_id)
    if quotas.jobs_queued is not None:
        waiting = 0
        for model in (Job, Evaluation):
            own = select(func.count()).select_from(model).where(model.owner_id == user_id)
            waiting += session.scalar(own.where(model.state.in_(_WAITING))) or 0
        if waiting >= quotas.jobs_queued:
            raise QuotaExceeded(
                f"{counted(waiting, 'job or evaluation', 'jobs and evaluations')} already waiting, and this user may have {quotas.jobs_queued}",
                Spent("jobs_queued", quotas.jobs_queued, waiting, None),
            )
    standing = standing_of(session, user_id)
    gone = standing.exhausted(device, pays=pays)
    if gone is not None:
        raise QuotaExceeded(f"{_used(gone)}; none are left until {_time(gone)}", gone)
    for measure in MEASURES:
        asked = (budget or {}).get(measure)
        for one in standing.spent:
            if asked is not None and _measure_of(one.quota) == measure and asked > one.limit - one.used:
                left = one.limit - one.used
                message = f"{_used(one)}; a budget of {asked:g} is more than the {left:g} that are left until {_time(one)}"
                raise QuotaExceeded(message, one)


def _used(one: Spent) -> str:
    span = "today" if one.quota.endswith("_per_day") else "this month"
    return (
        f"{one.used:g} of {one.limit:g} {_WORDS[_measure_of(one.quota)]} of this user were used {span} (UTC)"
    )


def _time(one: Spent) -> str:
    return one.resets_at.strftime("%Y-%m-%d %H:%M UTC") if one.resets_at is not None else "something ends"


def _measure_of(quota: str) -> str:
    return quota.partition("_per_")[0]


def _reset(quota: str, now: datetime) -> datetime:
    day: date = now.date()
    if quota.endswith("_per_day"):
        first = day + timedelta(days=1)
    else:
        first = (day.replace(day=28) + timedelta(days=4)).replace(day=1)
    return datetime(first.year, first.month, first.day, tzinfo=now.tzinfo)


def pays_models(request: Mapping[str, Any]) -> bool:
    """Whether a job with this `Job.request` calls paid models; batch answers are paid for by the client that submits them."""
    return any(model.get("provider") != "batch" for model in request.get("models") or ())


def within(session: Session, job: Job, budget: Budget) -> Budget:
    """Return the budget of a job that a worker starts or resumes, capped at what its user has left."""
    standing = standing_of(session, job.owner_id)
    usd, candidates = standing.left("usd"), standing.left("candidates")
    if usd is not None:
        most = job.usd + usd
        budget = replace(budget, usd=most if budget.usd is None else min(budget.usd, most))
    if candidates is not None:
        made = session.scalar(select(func.count()).select_from(Candidate).where(Candidate.job_id == job.id))
        most_candidates = int(candidates) + (made or 0)
        budget = replace(budget, candidates=min(budget.candidates or most_candidates, most_candidates))
    return budget
