"""The keys page for callers with scope admin: lists users' keys; forms create, rotate and revoke them."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError
from sqlalchemy.orm import Session

from services.api.deps import AdminDep, FormDep, Route, SessionDep, refuse_first_key
from services.api.key_views import KeyRequest, key_view
from services.dashboard.rendering import page, plain, render
from services.dashboard.words import Word
from services.errors import Refused
from services.users import audit, keys
from services.users.keys import NewKey

router = APIRouter(route_class=Route, include_in_schema=False)
_GRACE_HOURS = 24.0
_ENTRIES_SHOWN = 50
_STATES = {
    "valid": Word("valid", "good", "It lets in."),
    "rotated": Word("rotated", "warn", "Another has taken its place; it lets in until it expires."),
    "expired": Word("expired", "idle", "Its time is over."),
    "revoked": Word("revoked", "bad", "It was ended for good."),
}


@router.get("/ui/keys")
def keys_page(session: SessionDep, caller: AdminDep) -> Response:
    """All keys without their secrets, the form for a new one, and the latest of the audit log."""
    return _page(session, can_make=caller.key_id is not None)


@router.post("/ui/keys")
def make_key(session: SessionDep, caller: AdminDep, sent: FormDep) -> Response:
    """The page again, with the new key's text, this one time; or with what is wrong."""
    refuse_first_key(caller)
    form = {name: sent.get(name, "") for name in ("user", "name", "scope", "expires_days")}
    wanted: dict[str, Any] = {**form, "expires_days": form["expires_days"].strip() or None}
    try:
        asked = KeyRequest.model_validate(wanted)
        made = keys.make_key(session, caller, asked.user, asked.name, asked.scope, asked.expires_days)
    except ValidationError as error:
        found = [(str(item["loc"][0]), str(item["msg"])) for item in error.errors(include_input=False)]
        return _page(session, form=form, errors=found, status=422)
    except Refused as error:
        return _page(
            session, form=form, errors=[(one.field, one.message) for one in error.errors], status=422
        )
    session.commit()
    return _page(session, made=made)


@router.post("/ui/keys/{key_id}/rotate")
@page
def rotate_key(session: SessionDep, caller: AdminDep, key_id: str) -> Response:
    """The page again, with the text of the key that takes the place of another, this one time."""
    made = keys.rotate_key(session, caller, key_id, _GRACE_HOURS)
    session.commit()
    return _page(session, made=made)


@router.post("/ui/keys/{key_id}/revoke")
@page
def revoke_key(session: SessionDep, caller: AdminDep, key_id: str) -> Response:
    """303 to the page, without a key more."""
    keys.revoke_key(session, caller, key_id)
    session.commit()
    return RedirectResponse("/ui/keys", status_code=303)


def _page(
    session: Session,
    *,
    made: NewKey | None = None,
    form: dict[str, str] | None = None,
    errors: list[tuple[str, str]] | None = None,
    can_make: bool = True,
    status: int = 200,
) -> Response:
    return render(
        "keys.html",
        status=status,
        keys=[plain(key_view(row, user)) for row, user in keys.list_keys(session)],
        states=_STATES,
        entries=audit.list_entries(session, _ENTRIES_SHOWN),
        made=made,
        form=form or {"user": "", "name": "", "scope": "submit", "expires_days": "90"},
        errors=errors or [],
        can_make=can_make,
        grace_hours=f"{_GRACE_HOURS:g}",
    )
