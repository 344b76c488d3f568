"""Leases: which worker may work on a row, for how long, and what happens to rows whose worker died.

A worker claims a row with one UPDATE, so two workers can never both win. It extends the lease while it runs, and every
write it makes for the row checks in the same transaction that it still holds the lease. All times are on the database's clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, and_, case, func, or_, select, update
from sqlalchemy.orm import Session, aliased

from services.db.models import Evaluation, Job, User, utc_now
from services.db.types import epoch_seconds
from services.errors import LeaseLost
from services.users.quotas import lock_user

LeasedRow = Job | Evaluation
LeasedModel = type[Job] | type[Evaluation]


@dataclass(frozen=True)
class Lease:
    """The right to work on one row.

    Attributes:
        model: which table.
        row_id: which row.
        owner: the worker's identity.
        attempt: number of this attempt; together with `owner` it identifies the lease.
    """

    model: LeasedModel
    row_id: str
    owner: str
    attempt: int


def claim(
    session: Session, model: LeasedModel, row_id: str, owner: str, lease_seconds: float, max_attempts: int
) -> Lease | None:
    """Claim a queued row, or one whose lease has expired.

    Returns:
        The lease; None if another worker holds the row, it needs no work, it is out of attempts, or its user already has as
        many rows running as allowed.
    """
    lock_user(session, session.scalar(select(model.owner_id).where(model.id == row_id)))
    result = session.execute(
        update(model)
        .where(model.id == row_id, _claimable(model), model.stalled_attempts < max_attempts)
        .values(
            state="running",
            attempt=model.attempt + 1,
            stalled_attempts=model.stalled_attempts + 1,
            lease_owner=owner,
            lease_until=epoch_seconds() + lease_seconds,
            started_at=func.coalesce(model.started_at, utc_now()),
        )
        .execution_options(synchronize_session=False)
    )
    if result.rowcount != 1:  # type: ignore[attr-defined]
        return None
    attempt = session.scalar(select(model.attempt).where(model.id == row_id))
    return Lease(model, row_id, owner, attempt or 0)


def locked_row(session: Session, lease: Lease) -> Any:
    """Return the leased row, locked until the end of the transaction.

    Raises:
        LeaseLost: this worker no longer holds the lease.
    """
    row: Any = session.get(lease.model, lease.row_id, with_for_update=True, populate_existing=True)
    if (
        row is None
        or row.state != "running"
        or (row.lease_owner, row.attempt) != (lease.owner, lease.attempt)
    ):
        raise LeaseLost(f"{lease.model.__tablename__} {lease.row_id}: attempt {lease.attempt} lost its lease")
    return row


def extend(session: Session, lease: Lease, lease_seconds: float) -> bool:
    """Extend the lease; return False if it is lost."""
    result = session.execute(
        update(lease.model)
        .where(_held(lease))
        .values(lease_until=epoch_seconds() + lease_seconds)
        .execution_options(synchronize_session=False)
    )
    return bool(result.rowcount == 1)  # type: ignore[attr-defined]


def wanted(session: Session, lease: Lease) -> str | None:
    """Return why the work should stop ("cancelled" or "lost"), or None to continue."""
    row = session.execute(select(lease.model.cancel_requested).where(_held(lease))).one_or_none()
    if row is None:
        return "lost"
    return "cancelled" if row[0] else None


def release(
    session: Session, lease: Lease, *, stalled: bool = False, faults: int = 0, reason: str = ""
) -> None:
    """Return the row to the queue unfinished.

    Args:
        session: a session in a transaction.
        lease: the lease to release.
        stalled: whether the attempt counts as one in which the worker died; False after a clean shutdown or an outage.
        faults: number of internal faults to add.
        reason: the reason to store in the row; empty keeps the earlier one.
    """
    stalled_before = case((lease.model.stalled_attempts > 0, lease.model.stalled_attempts - 1), else_=0)
    session.execute(
        update(lease.model)
        .where(_held(lease))
        .values(
            state="queued",
            stalled_attempts=lease.model.stalled_attempts if stalled else stalled_before,
            faults=lease.model.faults + faults,
            reason=reason or lease.model.reason,
            lease_owner=None,
            lease_until=None,
        )
        .execution_options(synchronize_session=False)
    )


def owners(session: Session, model: LeasedModel) -> list[str]:
    """Return the workers that hold leases in a table, except leases that were ended."""
    query = select(model.lease_owner).where(model.state == "running", model.lease_until > 0).distinct()
    return [owner for owner in session.scalars(query) if owner is not None]


def expire_leases_of(session: Session, owners: list[str]) -> None:
    """End the leases of workers known to be dead."""
    for model in (Job, Evaluation):
        session.execute(
            update(model)
            .where(model.state == "running", model.lease_owner.in_(owners))
            .values(lease_until=0.0)
            .execution_options(synchronize_session=False)
        )


def any_claimable(session: Session, model: LeasedModel, device: str, max_attempts: int) -> bool:
    """Whether a worker for this device could claim a row."""
    due = and_(_claimable(model), model.device == device, model.stalled_attempts < max_attempts)
    return session.scalar(select(model.id).where(due).limit(1)) is not None


def abandoned(session: Session, model: LeasedModel, max_attempts: int) -> list[LeasedRow]:
    """Return and lock rows without a worker that must be ended: they were cancelled, or are out of attempts."""
    waiting = or_(has_expired(model), model.state == "queued")
    query = select(model).where(waiting, or_(model.cancel_requested, model.stalled_attempts >= max_attempts))
    return list(session.scalars(query.with_for_update(skip_locked=True)))


@cache  # building the condition takes longer than the query
def _claimable(model: LeasedModel) -> ColumnElement[bool]:
    queued = and_(model.state == "queued", _user_may_run(model))
    return and_(or_(queued, has_expired(model)), model.cancel_requested.is_(False))


def has_expired(model: LeasedModel) -> ColumnElement[bool]:
    """Select rows whose worker has let the lease run out."""
    return and_(model.state == "running", model.lease_until < epoch_seconds())


def _user_may_run(model: LeasedModel) -> ColumnElement[bool]:
    """Whether the row's user is below the quota `jobs_running`. Workers are not told of rows that wait for the quota."""
    other = aliased(model)
    running = select(func.count()).where(other.owner_id == model.owner_id, other.state == "running")
    limit = select(User.quotas["jobs_running"].as_integer()).where(User.id == model.owner_id)
    at_most = limit.correlate(model).scalar_subquery()
    return or_(
        model.owner_id.is_(None), at_most.is_(None), running.correlate(model).scalar_subquery() < at_most
    )


def _held(lease: Lease) -> ColumnElement[bool]:
    model = lease.model
    return and_(
        model.id == lease.row_id,
        model.state == "running",
        model.lease_owner == lease.owner,
        model.attempt == lease.attempt,
    )
