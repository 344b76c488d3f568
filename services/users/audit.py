"""The audit log: who did what when. It holds names, prefixes and ids; never a secret, a source or any text of a request's body."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from services.db.models import AuditEntry
from services.db.types import storable_text
from services.users.caller import Caller

FROM_THE_MACHINE = Caller(address="this machine")


def note(
    session: Session,
    caller: Caller | None,
    action: str,
    target: str | None = None,
    *,
    status: int = 200,
    detail: str = "",
) -> None:
    """Add an entry; the caller commits.

    Args:
        session: a session that can write.
        caller: who; None: nobody that is known.
        action: what, in a word or two of ours.
        target: the id of what it was done to.
        status: how it was answered.
        detail: a sentence of ours.
    """
    caller = caller or Caller()
    session.add(
        AuditEntry(
            user_name=caller.user_name,
            key_prefix=caller.key_prefix,
            address=_short(caller.address, 64),
            action=action[:100],
            target=_short(target, 100),
            status=status,
            detail=storable_text(detail)[:500],
        )
    )


def list_entries(session: Session, limit: int, before: int | None = None) -> list[AuditEntry]:
    """Entries, newest first; `before` is the id of the last one already seen."""
    query = select(AuditEntry).order_by(AuditEntry.id.desc()).limit(limit)
    if before is not None:
        query = query.where(AuditEntry.id < before)
    return list(session.scalars(query))


def _short(text: str | None, length: int) -> str | None:
    return storable_text(text)[:length] if text is not None else None
