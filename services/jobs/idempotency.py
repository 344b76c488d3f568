"""Idempotency keys: repeating a request with the same key creates nothing new."""

from __future__ import annotations

import hashlib
from datetime import timedelta

from sqlalchemy import delete
from sqlalchemy.orm import Session

from services.db.models import IdempotencyKey, utc_now
from services.db.privacy import owner_of
from services.errors import Conflict, FieldError, Refused
from services.jobs.requests import Request

_KEY_LIFETIME = timedelta(hours=24)
_KEY_MAX_CHARACTERS = 200


def earlier(session: Session, verb: str, request: Request, key: str | None) -> str | None:
    """Return the id that the same user's same request created before, or None.

    Raises:
        Refused: the key is not valid.
        Conflict: the key was used before with another request.
    """
    if key is None:
        return None
    if not key or len(key) > _KEY_MAX_CHARACTERS or not key.isprintable():
        message = f"must be 1 to {_KEY_MAX_CHARACTERS} printable characters"
        raise Refused([FieldError("Idempotency-Key", message)])
    session.execute(delete(IdempotencyKey).where(IdempotencyKey.created_at < utc_now() - _KEY_LIFETIME))
    row = session.get(IdempotencyKey, (owner_of(session) or "", key))
    if row is None:
        return None
    if row.body_sha256 != _digest(verb, request):
        raise Conflict("this Idempotency-Key was used before with another request")
    return row.made_id


def remember(session: Session, verb: str, request: Request, key: str | None, made_id: str) -> None:
    """Store the id that a request with a key created; the caller commits."""
    if key is not None:
        owner_id = owner_of(session) or ""
        session.add(
            IdempotencyKey(owner_id=owner_id, key=key, body_sha256=_digest(verb, request), made_id=made_id)
        )


def _digest(verb: str, request: Request) -> str:
    # Without defaults, so that a field added by a later version changes no digest.
    return hashlib.sha256(f"{verb}\n{request.model_dump_json(exclude_defaults=True)}".encode()).hexdigest()
