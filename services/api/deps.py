"""Dependencies of routes, as annotated types.

Databases and sessions from this module see only what the caller may see (`services.db.privacy`).
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


# Dependencies are coroutines because FastAPI would run each plain function in the thread pool, at every request.
async def get_settings(request: Request) -> Settings:
    """Return the application's settings."""
    return cast(Settings, request.app.state.settings)


async def get_caller(request: Request) -> Caller:
    """Return the caller that `Authentication` identified."""
    return cast(Caller, request.scope[CALLER])


CallerDep = Annotated[Caller, Depends(get_caller)]


# Dependencies call each other directly, because FastAPI resolves each nested dependency again at every request.
async def get_database(request: Request) -> Database:
    """Return the database limited to the caller's rows, for routes that outlive a session (streams)."""
    return cast(Database, request.app.state.database).seen_by((await get_caller(request)).viewer)


DatabaseDep = Annotated[Database, Depends(get_database)]
SettingsDep = Annotated[Settings, Depends(get_settings)]


async def get_session(request: Request) -> AsyncIterator[Session]:
    """Yield a session, read-only for safe methods. Routes commit their writes; everything else is rolled back.

    The session takes a connection at its first query, and `Route` returns it before leaving the thread of that query.
    """
    database = await get_database(request)
    opened: AbstractContextManager[Session]
    opened = database.read() if request.method in SAFE_METHODS else database.uncommitted()
    with opened as session:
        yield session


class Route(APIRoute):
    """A route that closes its session in the thread that used it.

    FastAPI would close the session in a second thread-pool task. While a request waits for that task it holds a connection, and
    all threads may be waiting for connections: sixty concurrent requests would deadlock.
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
    """Check the CSRF token of a state-changing request with a login cookie.

    `services.api.hosts` checks the browser's origin headers; this check also covers browsers that send none.

    Raises:
        Forbidden: neither the header `X-CSRF-Token` nor the form carries this login's token.
    """
    caller = await get_caller(request)
    if caller.csrf is None or request.method in SAFE_METHODS:
        return
    given = request.headers.get("x-csrf-token") or (await form_fields(request)).get("csrf", "")
    if not hmac.compare_digest(unmasked(given), caller.csrf):
        raise Forbidden("this form is not of a page of this login; reload the page and try again")


async def form_fields(request: Request) -> dict[str, str]:
    """Return the fields of a URL-encoded form; of a repeated field the last value."""
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        return {}
    body = (await request.body()).decode("utf-8", errors="replace")
    return {name: values[-1] for name, values in parse_qs(body, keep_blank_values=True).items()}


async def admin_only(caller: CallerDep) -> Caller:
    """Require scope admin. `Authentication` already checks it by path; this check also holds if a route moves.

    Raises:
        Forbidden: the caller lacks scope admin.
    """
    if not caller.may("admin"):
        raise Forbidden("this needs a key of scope admin")
    return caller


def refuse_first_key(caller: Caller) -> None:
    """Refuse to create a key for a caller without one: the first such caller would own the service.

    Raises:
        Forbidden: the caller has no key.
    """
    if caller.key_id is None:
        raise Forbidden(f"there is no key yet; {FIRST_KEY}")


FormDep = Annotated[dict[str, str], Depends(form_fields)]
AdminDep = Annotated[Caller, Depends(admin_only)]
# Closed before the response is sent: the audit log entry of the response needs SQLite's single writer slot.
SessionDep = Annotated[Session, Depends(get_session, scope="function")]
IdempotencyKey = Annotated[
    str | None,
    Header(description="same user, key and body within 24 hours: the same job, made once", max_length=200),
]
Limit = Annotated[int, Query(ge=1, le=100, description="how many at most")]
After = Annotated[
    str | None, Query(min_length=1, max_length=400, description="`next` of the page before, as it came")
]
