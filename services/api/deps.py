"""What routes ask for, as annotated types.

A database or a session from here sees what the caller may see (`services.db.privacy`).
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from inspect import iscoroutinefunction
from typing import Annotated, Any, cast
from urllib.parse import parse_qs

from fastapi import Depends, Header, Query, Request
from fastapi.routing import APIRoute
from sqlalchemy.orm import Session

from services.api.authentication import CALLER, FIRST_KEY
from services.api.hosts import SAFE_METHODS
from services.db.session import Database
from services.errors import Forbidden
from services.settings import Settings
from services.users.caller import Caller
from services.users.logins import unmasked


# These are coroutines since plain functions would each take a turn in the pool of threads, at every request.
async def get_settings(request: Request) -> Settings:
    """The settings that the application was made with."""
    return cast(Settings, request.app.state.settings)


async def get_caller(request: Request) -> Caller:
    """The caller, as `Authentication` found out."""
    return _caller(request)


def _caller(request: Request) -> Caller:
    return cast(Caller, request.scope[CALLER])


CallerDep = Annotated[Caller, Depends(get_caller)]


# They ask each other as functions: what FastAPI works out for a request, it does step by step at each.
async def get_database(request: Request) -> Database:
    """The database as the caller may see it, for routes that outlive a session (streams)."""
    return cast(Database, request.app.state.database).seen_by(_caller(request).viewer)


DatabaseDep = Annotated[Database, Depends(get_database)]
SettingsDep = Annotated[Settings, Depends(get_settings)]


async def get_session(request: Request) -> AsyncIterator[Session]:
    """A session that can write exactly when the method may; a route that writes commits, the rest is rolled back.

    It takes a connection at its first query, and `Route` has it given back before the thread of that query is left.
    """
    database = await get_database(request)
    opened: AbstractContextManager[Session]
    opened = database.read() if request.method in SAFE_METHODS else database.uncommitted()
    with opened as session:
        yield session


class Route(APIRoute):
    """A route that closes its session in the thread that used it.

    FastAPI would use a second turn in the pool of threads before it closes the session. While a request waits for that thread
    it holds a connection, and the threads may all wait for connections: sixty requests at a time would stop each other.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        super().__init__(path, endpoint if iscoroutinefunction(endpoint) else _closing(endpoint), **options)


def _closing(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(endpoint)
    def closing(**given: Any) -> Any:
        try:
            return endpoint(**given)
        finally:
            for one in given.values():
                if isinstance(one, Session):
                    one.close()

    return closing


async def check_form(request: Request) -> None:
    """Refuse what a browser sends with a login's cookie unless it comes from a page of ours (CSRF).

    `services.api.hosts` looks at what the browser says of the origin; this also holds for browsers that say nothing.

    Raises:
        Forbidden: the form, or the header `X-CSRF-Token`, does not carry what our pages give to this login.
    """
    caller = _caller(request)
    if caller.csrf is None or request.method in SAFE_METHODS:
        return
    given = request.headers.get("x-csrf-token") or (await form_fields(request)).get("csrf", "")
    if not hmac.compare_digest(unmasked(given), caller.csrf):
        raise Forbidden("this form is not of a page of this login; reload the page and try again")


async def form_fields(request: Request) -> dict[str, str]:
    """The fields of a form as browsers send it; of a field that is sent twice the last."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    body = (await request.body()).decode("utf-8", errors="replace")
    return {name: values[-1] for name, values in parse_qs(body, keep_blank_values=True).items()}


async def admin_only(caller: CallerDep) -> Caller:
    """A caller with scope admin. `Authentication` has seen to that; a route that moves elsewhere is still held to it.

    Raises:
        Forbidden: the caller has less.
    """
    if not caller.may("admin"):
        raise Forbidden("this needs a key of scope admin")
    return caller


def refuse_first_key(caller: Caller) -> None:
    """A caller without a key makes none over HTTP: the first one to do so would own the service.

    Raises:
        Forbidden: the caller has shown no key.
    """
    if caller.key_id is None:
        raise Forbidden(f"there is no key yet; {FIRST_KEY}")


FormDep = Annotated[dict[str, str], Depends(form_fields)]
AdminDep = Annotated[Caller, Depends(admin_only)]
# Closed before the answer is sent: what is told of the answer (the audit log) needs SQLite's one place for writers.
SessionDep = Annotated[Session, Depends(get_session, scope="function")]
IdempotencyKey = Annotated[
    str | None,
    Header(description="same user, key and body within 24 hours: the same job, made once", max_length=200),
]
Limit = Annotated[int, Query(ge=1, le=100, description="how many at most")]
After = Annotated[
    str | None, Query(min_length=1, max_length=400, description="`next` of the page before, as it came")
]
