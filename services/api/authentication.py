"""Authentication: identifies the caller of each request and checks the caller's scope. Inner layers read the `Caller`.

The middleware wraps the whole application, so a new route is closed until it is listed here as open:

- *No key was ever made.* The service accepts requests only from this machine and gives them full access. It refuses other
  addresses and requests that came through a proxy.
- *Keys exist.* Every route except those in `OPEN` and below `OPEN_BELOW` needs a key, as `Authorization: Bearer kw_...` or
  through a login cookie. Paths at and below `ADMIN` need scope `admin`; elsewhere safe methods (and /logout) need `read` and
  all others `submit`. Row visibility is not decided here but in every database session (`services.db.privacy`).

Changes and refusals are written to the audit log before the response is sent.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from http.cookies import CookieError, SimpleCookie
from urllib.parse import quote

from limits import parse_many
from sqlalchemy import update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.hosts import SAFE_METHODS
from services.api.problems import database_away, problem
from services.db.models import ApiKey, utc_now
from services.db.session import Database
from services.settings import Settings
from services.users import audit, keys, logins
from services.users.addresses import came_through_a_proxy, household, is_loopback
from services.users.caller import OPERATOR, Caller, current
from services.users.caller import Scope as KeyScope
from services.users.rates import Rates

CALLER = "kernelwright.caller"
OPEN = frozenset({"/healthz", "/login", "/favicon.ico", "/problems"})
OPEN_BELOW = ("/ui/static/", "/problems/")
ADMIN = ("/keys", "/audit", "/ui/keys", "/metrics")
UNCOUNTED = "/healthz"
FIRST_KEY = (
    "`kernelwright keys create NAME --user YOU --scope admin` on the service's machine makes the first key"
)
_REFUSALS_NOTED = parse_many("20/minute")
_REFUSALS_NOTED_IN_ALL = parse_many("300/minute")
_NOTED_STATUSES = (401, 403, 429)
# Names of actions in the audit log; other requests are logged by method and path.
_ACTIONS = {
    "POST /optimize": "job submitted",
    "POST /ui/submit": "job submitted",
    "POST /ui/check": "task looked at",
    "POST /evaluate": "evaluation submitted",
    "POST /evaluations/{evaluation_id}/cancel": "evaluation cancelled",
    "POST /jobs/{job_id}/candidates": "candidate submitted",
    "POST /jobs/{job_id}/batch": "answers submitted",
    "POST /jobs/{job_id}/cancel": "job cancelled",
    "POST /ui/jobs/{job_id}/cancel": "job cancelled",
    "POST /login": "login",
    "POST /logout": "logout",
}
_NOTED_BY_THEMSELVES = ADMIN  # these routes write their audit entry in the transaction of the change
_log = logging.getLogger(__name__)


class _Refusal(Exception):
    def __init__(
        self, status: int, detail: str, caller: Caller, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.detail, self.caller, self.headers = status, detail, caller, headers or {}


class Authentication:
    """ASGI middleware.

    Args:
        app: the wrapped application.
        database: the database that holds the keys.
        settings: supplies the rate limits and the broker URL; a Redis broker also counts requests.
    """

    def __init__(self, app: ASGIApp, database: Database, settings: Settings) -> None:
        self._app = app
        self._database = database
        self._rates = Rates(settings.broker_url)
        self._of_key = parse_many(settings.rate_limit)
        self._without_key = parse_many(settings.rate_limit_without_key)
        self._has_keys = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with a problem document; browsers are redirected to the login page."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # the service speaks only HTTP
            return
        headers = Headers(scope=scope)
        try:
            found = await run_in_threadpool(self._admit, scope, headers)
        except SQLAlchemyError as error:
            await database_away(error)(scope, receive, send)
            return
        except _Refusal as refusal:
            answer = _answer(refusal, scope, headers)
            if answer.status_code in _NOTED_STATUSES:  # a redirect to the login page is no refusal
                noted = scope, refusal.caller, refusal.status, refusal.detail
                await run_in_threadpool(self._note_refusal, *noted)
            await answer(scope, receive, send)
            return
        scope[CALLER] = found
        before = current.set(found)
        try:
            await self._app(scope, receive, self._noting(scope, found, send))
        finally:
            current.reset(before)

    def _admit(self, scope: Scope, headers: Headers) -> Caller:
        """Identify the caller, count the request, and check the scope.

        Raises:
            _Refusal: the request is not allowed.
        """
        path, address = scope["path"], scope["client"][0] if scope.get("client") else ""
        if path == UNCOUNTED and (self._has_keys or is_loopback(address)):
            return Caller(address=address)  # a liveness check must not depend on the database
        why: str | None = None
        with self._database.read() as session:
            if not self._has_keys:
                self._has_keys = keys.any_key(session)  # never becomes false again
            if not self._has_keys:
                return self._admit_operator(address, headers)
            caller, row = Caller(address=address), None
            try:
                caller, row = self._identify(session, headers, caller, scope.get("scheme", "http"))
            except keys.KeyRefused as error:
                why = str(error)
        self._count(caller)
        if why is None and caller.key_id is None and not _is_open(path):
            why = "this service needs a key: send `Authorization: Bearer kw_...`"
        if why is not None:
            raise _Refusal(401, why, caller)
        needed = _needed_scope(scope["method"], path)
        if not _is_open(path) and not caller.may(needed):
            raise _Refusal(403, f"this needs a key of scope {needed}; yours is {caller.scope}", caller)
        if row is not None and keys.should_note_use(row.last_used_at):
            self._note_use(row.id)
        return caller

    def _admit_operator(self, address: str, headers: Headers) -> Caller:
        if not is_loopback(address) or came_through_a_proxy(headers.keys()):
            detail = f"without keys this service answers its own machine alone; {FIRST_KEY}"
            raise _Refusal(403, detail, Caller(address=address))
        caller = replace(OPERATOR, address=address)
        self._count(caller)
        return caller

    def _identify(
        self, session: Session, headers: Headers, unknown: Caller, scheme: str
    ) -> tuple[Caller, ApiKey | None]:
        """Return the caller that a header or a cookie identifies; `unknown` without either.

        Raises:
            KeyRefused: the header is malformed or its key is not valid.
        """
        given = headers.getlist("authorization")
        if given:
            kind, _, text = given[0].partition(" ")
            if len(given) > 1 or kind.lower() != "bearer":
                raise keys.KeyRefused("send one key, as `Authorization: Bearer kw_...`")
            caller = keys.verify_key(session, text.strip(" "))
            return replace(caller, address=unknown.address), session.get(ApiKey, caller.key_id)
        token = cookie_of(headers, logins.cookie_name(logins.COOKIE, scheme))
        if token is None:
            return unknown, None
        try:
            row = logins.verify_login(session, token)
        except keys.KeyRefused:
            return unknown, None  # treated like a browser without the cookie: it gets the login page
        caller = keys.caller_of(session, row)
        return replace(caller, address=unknown.address, csrf=logins.csrf_of(token)), row

    def _count(self, caller: Caller) -> None:
        """Count a request; raise `_Refusal` if it exceeds a rate limit."""
        where = household(caller.address or "")
        if caller.scope is not None:
            limits, whose = self._of_key, caller.key_id or f"address {where}"
        else:
            limits, whose = self._without_key, f"no key, address {where}"
        wait_s = self._rates.take(limits, whose)
        if wait_s > 0:
            shown = "; ".join(str(limit) for limit in limits)
            detail = f"too many requests: {shown} are allowed; ask again in {wait_s:.0f} s"
            raise _Refusal(429, detail, caller, {"Retry-After": f"{wait_s:.0f}"})

    def _note_use(self, key_id: str) -> None:
        with self._database.write() as session:
            session.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=utc_now()))

    def _noting(self, scope: Scope, caller: Caller, send: Send) -> Send:
        """Wrap `send` to write the audit log before the first byte of the response."""

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start" and (
                scope["method"] not in SAFE_METHODS or message["status"] in _NOTED_STATUSES
            ):
                await run_in_threadpool(self._note_answer, scope, caller, message)
            await send(message)

        return noting

    def _note_answer(self, scope: Scope, caller: Caller, message: Message) -> None:
        status = message["status"]
        if status in _NOTED_STATUSES:
            self._note_refusal(scope, caller, status, "")
            return
        below_admin = any(_is_below(scope["path"], one) for one in _NOTED_BY_THEMSELVES)
        if status >= 400 or below_admin:
            return
        path = getattr(scope.get("route"), "path", None) or "unknown"
        action = f"{scope['method']} {path}"
        # Drop the query, which holds user input.
        location = Headers(raw=message["headers"]).get("location", "").partition("?")[0]
        target = (
            next(iter(scope.get("path_params", {}).values()), None) or location.rpartition("/")[2] or None
        )
        if path in ("/login", "/logout"):
            target = None
            caller = scope[CALLER]  # the user who just logged in
        self._note(caller, _ACTIONS.get(action, action), target, status)

    def _note_refusal(self, scope: Scope, caller: Caller, status: int, detail: str) -> None:
        """Log a refusal, limited per address and overall: a flood of refused requests must not fill the database."""
        if (
            self._rates.take(_REFUSALS_NOTED_IN_ALL, "refusals") > 0
            or self._rates.take(_REFUSALS_NOTED, f"refusals {household(caller.address or '')}") > 0
        ):
            return
        path = getattr(scope.get("route"), "path", None)
        method = scope["method"] if scope["method"].isalpha() else "?"
        self._note(caller, f"refused: {method[:16]} {path or 'at the gate'}", None, status, detail)

    def _note(self, caller: Caller, action: str, target: str | None, status: int, detail: str = "") -> None:
        try:
            with self._database.write() as session:
                audit.note(session, caller, action, target, status=status, detail=detail)
        except SQLAlchemyError:
            _log.exception("the audit log could not be written: %s", action)


def cookie_of(headers: Headers, name: str) -> str | None:
    """Return the value of a cookie, or None."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return None
    return found.value if found is not None else None


def _answer(refusal: _Refusal, scope: Scope, headers: Headers) -> Response:
    wants_page = scope["method"] == "GET" and "text/html" in headers.get("accept", "")
    if refusal.status == 401 and wants_page and "authorization" not in headers:
        query = scope.get("query_string", b"").decode("latin-1")
        wanted = scope["path"] + (f"?{query}" if query else "")
        return RedirectResponse(f"/login?next={quote(wanted, safe='')}", status_code=303)
    found = dict(refusal.headers)
    if refusal.status == 401:
        found["WWW-Authenticate"] = 'Bearer realm="kernelwright"'
    return problem(refusal.status, refusal.detail, headers=found)


def _needed_scope(method: str, path: str) -> KeyScope:
    if any(_is_below(path, one) for one in ADMIN):
        return "admin"
    return "read" if method in SAFE_METHODS or path == "/logout" else "submit"


def _is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_BELOW)


def _is_below(path: str, prefix: str) -> bool:
    return path == prefix or path.startswith(f"{prefix}/")
