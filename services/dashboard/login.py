"""The login page: exchanges a key for an opaque session cookie, and ends the session on logout."""

from __future__ import annotations

import hmac
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from starlette.concurrency import run_in_threadpool

from services.api.authentication import CALLER, cookie_of
from services.api.deps import CallerDep, FormDep
from services.dashboard.rendering import render
from services.db.session import Database
from services.users import keys, logins
from services.users.caller import Caller

router = APIRouter(include_in_schema=False)
_FORM_LIFETIME_S = 3600
_LONGEST_KEY = 200


@router.get("/login")
def login_page(
    request: Request, caller: CallerDep, next_path: Annotated[str, Query(alias="next", max_length=2000)] = "/"
) -> Response:
    """The form for a key; a browser that needs none, or is logged in, goes on at once."""
    if caller.scope is not None:
        return RedirectResponse(logins.safe_next(next_path), status_code=303)
    return _form(request, logins.safe_next(next_path))


@router.post("/login")
async def log_in(request: Request, caller: CallerDep, form: FormDep) -> Response:
    """303 to where the person wanted to go, with the cookie; or the form again."""
    wanted = logins.safe_next(form.get("next") or "/")
    text = form.get("key", "").strip()
    bound_to = cookie_of(request.headers, _named(request, logins.FORM_COOKIE)) or ""
    given = form.get("csrf", "").encode("utf-8", "replace")
    if not bound_to or not hmac.compare_digest(given, logins.csrf_of(bound_to).encode()):
        return _form(request, wanted, "This form is too old, or of another site. Try again.", status=403)
    base: Database = request.app.state.database
    try:
        if len(text) > _LONGEST_KEY:
            raise keys.KeyRefused("this key is not known here")
        known, token = await run_in_threadpool(_begin, base, text)
    except keys.KeyRefused as error:
        return _form(request, wanted, f"Not logged in: {error}.", status=401)
    request.scope[CALLER] = Caller(
        known.user_id, known.user_name, known.key_id, known.key_prefix, known.scope, address=caller.address
    )
    response = RedirectResponse(wanted, status_code=303)
    _set(response, request, logins.COOKIE, token, int(logins.LIFETIME.total_seconds()))
    _delete(response, request, logins.FORM_COOKIE)
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    """End the login."""
    token = cookie_of(request.headers, _named(request, logins.COOKIE))
    if token is not None:
        await run_in_threadpool(_end, request.app.state.database, token)
    response = RedirectResponse("/login", status_code=303)
    _delete(response, request, logins.COOKIE)
    return response


def _begin(base: Database, text: str) -> tuple[Caller, str]:
    with base.write() as session:
        known = keys.verify_key(session, text)
        return known, logins.log_in(session, known)


def _end(base: Database, token: str) -> None:
    with base.write() as session:
        logins.log_out(session, token)


def _form(request: Request, wanted: str, problem: str = "", *, status: int = 200) -> Response:
    token = logins.new_token()
    response = render(
        "login.html", status=status, wanted=wanted, problem=problem, form_token=logins.csrf_of(token)
    )
    _set(response, request, logins.FORM_COOKIE, token, _FORM_LIFETIME_S)
    return response


def _set(response: Response, request: Request, name: str, value: str, max_age_s: int) -> None:
    """Set a cookie that scripts cannot read, that cross-site requests do not send, and that stays on TLS if TLS is used."""
    response.set_cookie(_named(request, name), value, max_age=max_age_s, **_attributes(request))


def _delete(response: Response, request: Request, name: str) -> None:
    response.delete_cookie(_named(request, name), **_attributes(request))


def _named(request: Request, name: str) -> str:
    return logins.cookie_name(name, request.url.scheme)


def _attributes(request: Request) -> dict[str, Any]:
    secure = request.url.scheme == "https"
    return {"path": "/", "httponly": True, "samesite": "strict", "secure": secure}
