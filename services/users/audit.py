"""The audit log of callers' actions. It holds names, prefixes and ids; never secrets, sources or text from a request body."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from sqlalchemy import Table, delete, insert, select
from sqlalchemy.orm import Session

from evaluator.counting import counted
from services.db.models import AuditEntry, utc_now
from services.db.session import Database
from services.db.types import storable_text
from services.users.caller import Caller

FROM_THE_MACHINE = Caller(address="this machine")
_SERVICE = Caller(address="this service")
# Every request that changes something writes an entry: an ORM row would take three times as long.
_NOTE = insert(cast(Table, AuditEntry.__table__)).inline()
_PURGED_AT_ONCE = 5_000  # SQLite allows one writer, and requests wait for it


def note(
    session: Session,
    caller: Caller,
    action: str,
    target: str | None = None,
    *,
    status: int = 200,
    detail: str = "",
) -> None:
    """Add an entry; the caller commits.

    Args:
        session: a session that can write.
        caller: the caller.
        action: the action, in a few words from our code.
        target: the id of the affected object.
        status: the HTTP status of the response.
        detail: a sentence from our code.
    """
    entry = {
        "user_name": caller.user_name,
        "key_prefix": caller.key_prefix,
        "address": _short(caller.address, 64),
        "action": action[:100],
        "target": _short(target, 100),
        "status": status,
        "detail": storable_text(detail)[:500],
    }
    session.execute(_NOTE, entry)


def list_entries(session: Session, limit: int, before: int | None = None) -> list[AuditEntry]:
    """Return entries, newest first; `before` is the id of the last entry already seen."""
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditEntry.id < before)
    return list(session.scalars(query))


def purge(database: Database, days: int) -> int:
    """Delete entries older than `days`, log the deletion, and return the number deleted. 0 days keeps all."""
    if days <= 0:
        return 0
    before = utc_now() - timedelta(days=days)
    old = select(AuditEntry.id).where(AuditEntry.time < before).order_by(AuditEntry.id).limit(_PURGED_AT_ONCE)
    gone = 0
    while True:
        with database.read() as session:
            ids = session.scalars(old).all()
        if not ids:
            return gone
        with database.write() as session:
            # rowcount leaves out entries that another process has deleted in the meantime.
            found = session.execute(
                delete(AuditEntry).where(AuditEntry.id.in_(ids), AuditEntry.time < before)
            )
            count = int(found.rowcount)  # type: ignore[attr-defined]
            if count:
                detail = f"{counted(count, 'entry', 'entries')} from before {before:%Y-%m-%d %H:%M} UTC (kept: {counted(days, 'day')})"
                note(session, _SERVICE, "audit purged", detail=detail)
        gone += count


def _short(text: str | None, length: int) -> str | None:
    return storable_text(text)[:length] if text is not None else None
