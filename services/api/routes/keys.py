"""Keys and the audit log, for scope admin. `kernelwright keys create` creates the first key, on the service's machine."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query, Response

from services.api.deps import AdminDep, Limit, Route, SessionDep, refuse_first_key
from services.api.key_views import (
    AuditView,
    KeyRequest,
    KeyView,
    NewKeyView,
    RotateRequest,
    audit_view,
    key_view,
    new_key_view,
)
from services.jobs.views import Page, page, page_of
from services.users import audit, keys

router = APIRouter(route_class=Route, tags=["keys"])
KeyId = Annotated[str, Path(max_length=64, description="id or prefix of a key")]
_SECRET = {"Cache-Control": "no-store"}


@router.post("/keys", status_code=201)
def make_key(body: KeyRequest, response: Response, session: SessionDep, caller: AdminDep) -> NewKeyView:
    """Make a key. Its text is in this answer and nowhere else."""
    refuse_first_key(caller)
    made = keys.make_key(session, caller, body.user, body.name, body.scope, body.expires_days, body.quotas)
    session.commit()
    response.headers.update({"Location": f"/keys/{made.row.id}", **_SECRET})
    return new_key_view(made)


@router.get("/keys")
def list_keys(session: SessionDep, caller: AdminDep) -> Page[KeyView]:
    """All keys, newest first, without their secrets."""
    return page([key_view(row, user) for row, user in keys.list_keys(session)], more=False)


@router.get("/keys/{key_id}")
def get_key(key_id: KeyId, session: SessionDep, caller: AdminDep) -> KeyView:
    """One key without its secret."""
    return key_view(*keys.find_key(session, key_id))


@router.post("/keys/{key_id}/rotate", status_code=201)
def rotate_key(
    key_id: KeyId, body: RotateRequest, response: Response, session: SessionDep, caller: AdminDep
) -> NewKeyView:
    """Make a key in the place of another, which stays valid for a while. Its text is in this answer and nowhere else."""
    made = keys.rotate_key(session, caller, key_id, body.grace_hours)
    session.commit()
    response.headers.update({"Location": f"/keys/{made.row.id}", **_SECRET})
    return new_key_view(made)


@router.delete("/keys/{key_id}")
def revoke_key(key_id: KeyId, session: SessionDep, caller: AdminDep) -> KeyView:
    """End a key at once and for good, with the logins made with it; again changes nothing."""
    row, user = keys.revoke_key(session, caller, key_id)
    session.commit()
    return key_view(row, user)


@router.get("/audit")
def list_audit(
    session: SessionDep,
    caller: AdminDep,
    limit: Limit = 50,
    after: Annotated[
        int | None, Query(ge=1, le=2**62, description="id of the last entry already seen")
    ] = None,
) -> Page[AuditView]:
    """Who did what when, newest first."""
    return page_of([audit_view(row) for row in audit.list_entries(session, limit + 1, after)], limit)
