"""Creates and revokes keys; each change writes its audit entry in the same transaction. Callers commit."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy.orm import Session

from services.db.models import ApiKey, User
from services.users import audit, keys
from services.users.caller import Caller
from services.users.keys import NewKey
from services.users.quotas import Quotas, as_json


def give_key(
    session: Session,
    by: Caller,
    user_name: str,
    name: str,
    scope: str,
    expires_days: float | None,
    quotas: Quotas | None = None,
) -> NewKey:
    """Create a key for a user, and set the user's quotas if given. Raises as `keys.make_key` does."""
    lifetime = timedelta(days=expires_days) if expires_days is not None else None
    made = keys.make_key(session, user_name, name, scope, lifetime)
    detail = f"for {made.user.name}, scope {made.row.scope}"
    audit.note(session, by, "key made", made.row.prefix, detail=detail)
    if quotas is not None:
        set_quotas(session, by, made.user, quotas)
    return made


def rotate_key(session: Session, by: Caller, named: str, grace_hours: float) -> NewKey:
    """Replace a key with a new one. Raises as `keys.rotate_key` does."""
    made = keys.rotate_key(session, named, timedelta(hours=grace_hours))
    audit.note(session, by, "key rotated", made.replaces, detail=f"{made.row.prefix} takes its place")
    return made


def revoke_key(session: Session, by: Caller, named: str) -> tuple[ApiKey, User]:
    """Revoke a key. Raises as `keys.revoke_key` does."""
    row, user = keys.revoke_key(session, named)
    audit.note(session, by, "key revoked", row.prefix, detail=f"of {user.name}")
    return row, user


def set_quotas(session: Session, by: Caller, user: User, quotas: Quotas) -> None:
    """Replace a user's quotas."""
    user.quotas = as_json(quotas)
    shown = ", ".join(f"{name}={value:g}" for name, value in user.quotas.items())
    audit.note(session, by, "quotas set", user.name, detail=shown or "none")
