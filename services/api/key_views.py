"""API views of keys, users and the audit log. Only `NewKeyView` holds a secret, shown once."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from services.db.models import ApiKey, AuditEntry, User, utc_now
from services.jobs.requests import Line, Request
from services.jobs.views import View, same_fields
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
    """One entry of the audit log: a user did something."""

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
    """Return a key's view for lists."""
    quotas = Quotas.model_validate(user.quotas or {})
    return KeyView(**same_fields(KeyView, row), user=user.name, state=state_of(row), quotas=quotas)


def new_key_view(made: NewKey) -> NewKeyView:
    """Return a new key's view, with its secret text."""
    return NewKeyView(**dict(key_view(made.row, made.user)), key=made.text)


def audit_view(row: AuditEntry) -> AuditView:
    """Return the view of an audit log entry."""
    return AuditView(**same_fields(AuditView, row), user=row.user_name)


def state_of(row: ApiKey) -> KeyState:
    """Return the state of a key now."""
    if row.revoked_at is not None:
        return "revoked"
    if row.expires_at is not None and row.expires_at <= utc_now():
        return "expired"
    return "rotated" if row.replaced_by is not None else "valid"
