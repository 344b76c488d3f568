"""Keys, for whoever has one of scope admin. The first key is made on the service's machine, by `kernelwright keys create`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from services.api.deps import AdminDep, Route, SessionDep, refuse_first_key
from services.jobs.views import Page
from services.users import giving, keys
from services.users.views import KeyRequest, KeyView, NewKeyView, RotateRequest, key_view, new_key_view

router = APIRouter(route_class=Route, tags=["keys"])
KeyId = Annotated[str, Path(max_length=64, description="id or prefix of a key")]
_SECRET = {"Cache-Control": "no-store"}


@router.post("/keys", status_code=201)
def make_key(body: KeyRequest, response: Response, session: SessionDep, caller: AdminDep) -> NewKeyView:
    """Make a key. Its text is in this answer and nowhere else."""
    refuse_first_key(caller)
    made = giving.give_key(session, caller, body.user, body.name, body.scope, body.expires_days, body.quotas)
    session.commit()
    response.headers.update({"Location": f"/keys/{made.row.id}", **_SECRET})
    return new_key_view(made)


@router.get("/keys")
def list_keys(session: SessionDep, caller: AdminDep) -> Page[KeyView]:
    """All keys, newest first, without their secrets."""
    found = [key_view(row, user) for row, user in keys.list_keys(session)]
    return Page(
        data=found,
        has_more=False,
        first_id=found[0].id if found else None,
        last_id=found[-1].id if found else None,
    )


@router.get("/keys/{key_id}")
def get_key(key_id: KeyId, session: SessionDep, caller: AdminDep) -> KeyView:
    """One key without its secret."""
    return key_view(*keys.find_key(session, key_id))


@router.post("/keys/{key_id}/rotate", status_code=201)
def rotate_key(
    key_id: KeyId, body: RotateRequest, response: Response, session: SessionDep, caller: AdminDep
) -> NewKeyView:
    """Make a key in the place of another, which stays valid for a while. Its text is in this answer and nowhere else."""
    made = giving.rotate_key(session, caller, key_id, body.grace_hours)
    session.commit()
    response.headers.update({"Location": f"/keys/{made.row.id}", **_SECRET})
    return new_key_view(made)


@router.delete("/keys/{key_id}")
def revoke_key(key_id: KeyId, session: SessionDep, caller: AdminDep) -> KeyView:
    """End a key at once and for good, with the logins made with it; again changes nothing."""
    row, user = giving.revoke_key(session, caller, key_id)
    session.commit()
    return key_view(row, user)
