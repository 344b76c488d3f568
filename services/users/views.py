"""What the API shows of keys, users and the audit log. None of it holds a secret but `NewKeyView`, once."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from services.db.models import ApiKey, AuditEntry, User, utc_now
from services.jobs.requests import Line, Request
from services.jobs.views import View
from services.users.caller import Scope
from services.users.keys import MAX_DAYS, NewKey
from services.users.quotas import Quotas

KeyState = Literal["valid", "rotated", "expired", "revoked"]


class KeyRequest(Request):
    """Body of POST /keys."""

    user: Line = Field(description="whose key it is; a user of a new name is made")
    name: Line = Field(description="what to call the key")
    scope: Scope = Field(
        default="submit", description="read: look at one's own; submit: also make; admin: everything"
    )
    expires_days: Annotated[float, Field(gt=0, le=MAX_DAYS, allow_inf_nan=False)] | None = Field(
        default=90.0, description="null: it never expires"
    )
    quotas: Quotas | None = Field(default=None, description="of the user, in place of those that it has")


class RotateRequest(Request):
    """Body of POST /keys/{id}/rotate."""

    grace_hours: float = Field(
        default=24.0, ge=0, le=24 * 30, allow_inf_nan=False, description="how long the old key stays valid"
    )


class KeyView(View):
    """A key without its secret. `rotated`: still valid until `expires_at`, and another has taken its place."""

    id: str
    user: str
    name: str
    prefix: str
    scope: str
    state: KeyState
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    replaced_by: str | None
    quotas: Quotas


class NewKeyView(KeyView):
    """A key that was just made. `key` is its secret text: it is not stored, and shown this one time."""

    key: str


class AuditView(View):
    """Somebody did something."""

    id: int
    time: datetime
    user: str | None
    key_prefix: str | None
    address: str | None
    action: str
    target: str | None
    status: int
    detail: str


def key_view(row: ApiKey, user: User) -> KeyView:
    """A key as lists show it."""
    return KeyView(**_fields(row, user))


def new_key_view(made: NewKey) -> NewKeyView:
    """A key as it is shown once."""
    return NewKeyView(**_fields(made.row, made.user), key=made.text)


def audit_view(row: AuditEntry) -> AuditView:
    """An entry of the audit log."""
    return AuditView(
        id=row.id,
        time=row.time,
        user=row.user_name,
        key_prefix=row.key_prefix,
        address=row.address,
        action=row.action,
        target=row.target,
        status=row.status,
        detail=row.detail,
    )


def state_of(row: ApiKey) -> KeyState:
    """Whether a key can be used now."""
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= utc_now():
        return "expired"
    return "rotated" if row.replaced_by is not None else "valid"


def _fields(row: ApiKey, user: User) -> dict[str, object]:
    return {
        "id": row.id,
        "user": user.name,
        "name": row.name,
        "prefix": row.prefix,
        "scope": row.scope,
        "state": state_of(row),
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "revoked_at": row.revoked_at,
        "last_used_at": row.last_used_at,
        "replaced_by": row.replaced_by,
        "quotas": Quotas.model_validate(user.quotas or {}),
    }
