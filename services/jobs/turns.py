"""Fair scheduling: which row a worker with a free slot takes next.

Rows whose worker died come first, because they already had their turn. Then comes the user with the fewest running rows on the
device; among equals, the user served longest ago. Of that user's rows the highest priority goes first, then the oldest. However
many rows one user queues, another user's single row gets the next slot, after at most one row of each other user in the same
position. Rows made without a key count as one user's.

Priorities up to `requests.OWN_PRIORITY` order a user's own rows and have no effect on other users; greater ones, which only
admins may set, go ahead of all turns.

Each table and device has separate turns, as workers have separate slots for them. Two workers that look at the same instant may
both pick the same user: that user gets two rows and, with more rows running, waits longer afterwards.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, bindparam, case, func, or_, select
from sqlalchemy.orm import Session

from services.db.models import Turn, User
from services.db.session import Database
from services.db.types import epoch_seconds, upsert
from services.jobs import lease
from services.jobs.lease import Lease, LeasedModel
from services.jobs.requests import OWN_PRIORITY
from services.users.quotas import lock_user

_ORPHANS_AT_ONCE = 8


def take(
    database: Database, model: LeasedModel, device: str, worker: str, lease_seconds: float, max_attempts: int
) -> Lease | None:
    """Claim the next row for a device, or return None if there is none. A call that finds nothing writes nothing.

    Args:
        database: the database that holds the rows.
        model: the table to claim from.
        device: the device that the worker judges on.
        worker: the worker's identity.
        lease_seconds: how long the lease lasts unless it is extended.
        max_attempts: rows with this many attempts without progress are skipped.
    """
    with database.read() as session:
        orphans = session.scalars(_orphans(model, device, max_attempts)).all()
        waiting = session.scalar(_owners_in_turn(model, device), {"passed": ()}) is not None
    for row_id in orphans:
        with database.write() as session:
            held = lease.claim(session, model, row_id, worker, lease_seconds, max_attempts)
        if held is not None:
            return held
    passed: list[str] = []  # users whose rows other workers took or locked in the meantime
    while waiting:
        # Lock one user per transaction: waiting for a second user's lock while holding the first could deadlock.
        with database.write() as session:
            owner = session.scalar(_owners_in_turn(model, device), {"passed": passed})
            if owner is None:
                return None
            lock_user(session, owner or None)
            row_id = session.scalar(
                _next_of(model, device, max_attempts, unowned=not owner), {"owner": owner}
            )
            if row_id is not None:
                held = lease.claim(session, model, row_id, worker, lease_seconds, max_attempts)
                if held is not None:
                    _note(session, model, device, owner)
                    return held
        passed.append(owner)
    return None


@cache  # building the statement takes longer than executing it
def _orphans(model: LeasedModel, device: str, max_attempts: int) -> Select[Any]:
    wanted = _is_wanted(model, device, max_attempts)
    return select(model.id).where(lease.has_expired(model), wanted).limit(_ORPHANS_AT_ONCE)


def _is_wanted(model: LeasedModel, device: str, max_attempts: int) -> ColumnElement[bool]:
    return and_(
        model.device == device, model.cancel_requested.is_(False), model.stalled_attempts < max_attempts
    )


@cache
def _owners_in_turn(model: LeasedModel, device: str) -> Select[Any]:
    """Select the next user with queued rows and room under the quota `jobs_running`; "" for rows without a user.

    Bind parameter `passed`: users to leave out.
    """
    owner = func.coalesce(model.owner_id, "").label("owner")
    waiting = (  # the highest priority of each user with queued rows
        select(owner, func.max(model.priority).label("most"))
        .where(model.state == "queued", model.device == device)
        .group_by(model.owner_id)
        .subquery()
    )
    running = (
        select(
            owner,
            func.count().label("anywhere"),
            func.sum(case((model.device == device, 1), else_=0)).label("here"),
        )
        .where(model.state == "running")
        .group_by(model.owner_id)
        .subquery()
    )
    limit = User.quotas["jobs_running"].as_integer()
    return (
        select(waiting.c.owner)
        .outerjoin(running, running.c.owner == waiting.c.owner)
        .outerjoin(User, User.id == waiting.c.owner)
        .outerjoin(
            Turn, and_(Turn.kind == model.__tablename__, Turn.device == device, Turn.owner == waiting.c.owner)
        )
        .where(
            or_(limit.is_(None), func.coalesce(running.c.anywhere, 0) < limit),
            waiting.c.owner.not_in(bindparam("passed", expanding=True)),
        )
        .order_by(
            case((waiting.c.most > OWN_PRIORITY, waiting.c.most), else_=OWN_PRIORITY).desc(),
            func.coalesce(running.c.here, 0),
            func.coalesce(Turn.served_at, 0.0),
            waiting.c.owner,
        )
        .limit(1)
    )


@cache
def _next_of(model: LeasedModel, device: str, max_attempts: int, *, unowned: bool) -> Select[Any]:
    """Select the first queued row of `owner`, or of no user. PostgreSQL skips a locked row: it is being claimed or cancelled."""
    own = and_(
        model.state == "queued",
        _is_wanted(model, device, max_attempts),
        model.owner_id.is_(None) if unowned else model.owner_id == bindparam("owner"),
    )
    # The highest priority first, then the oldest row: an index answers both lookups, but not an ORDER BY over both columns.
    most = select(func.max(model.priority)).where(own).scalar_subquery()
    first = select(model.id).where(own, model.priority == most).order_by(model.id).limit(1)
    return first.with_for_update(skip_locked=True)


def _note(session: Session, model: LeasedModel, device: str, owner: str) -> None:
    key, now = {"kind": model.__tablename__, "device": device, "owner": owner}, {"served_at": epoch_seconds()}
    upsert(session, Turn, list(key), {**key, **now}, now)
