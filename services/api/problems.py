"""Errors as problem documents (RFC 9457): `application/problem+json` with type, title, status, detail, errors.

Each `type` links to a page that explains the problem, see `problem_kinds`. Documents never contain untrusted text (a
candidate's source, a compiler's message): `input` values of validation errors are omitted on purpose.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError
from starlette.exceptions import HTTPException
from starlette.routing import Match

from services.api.problem_kinds import OF_STATUS
from services.db.models import utc_now
from services.db.outages import is_outage
from services.db.trouble import of_storage
from services.errors import QuotaExceeded, Refused, ServiceError

_log = logging.getLogger(__name__)
_BACK_IN_S = "2"  # typical duration of a PostgreSQL restart
# FastAPI's prefixes of field locations; clients know a field by its name alone.
_PLACES = ("body", "query", "path", "header")
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def problem(
    status: int,
    detail: str,
    errors: Sequence[dict[str, str]] | None = None,
    headers: dict[str, str] | None = None,
    more: dict[str, Any] | None = None,
) -> JSONResponse:
    """Return a problem document; `errors` lists fields as {"field", "message"}, `more` holds additional members."""
    body: dict[str, Any] = {
        "type": OF_STATUS[status].type if status in OF_STATUS else "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
    }
    body |= more or {}
    if errors is not None:
        body["errors"] = list(errors)
    return JSONResponse(body, status_code=status, media_type="application/problem+json", headers=headers)


def too_large(limit_bytes: int) -> JSONResponse:
    """Return the 413 for a body over the limit."""
    return problem(413, f"the request body is larger than this service accepts ({limit_bytes} bytes)")


def database_away(error: Exception) -> JSONResponse:
    """Return the 503 for a request that found the database unavailable."""
    words = "a request was cut off: the database is away (%s)"
    _log.warning(words, type(getattr(error, "orig", error)).__name__, extra={"trouble": error})
    detail = of_storage(error) or "the database does not answer; ask again in a moment"
    return problem(503, detail, headers={"Retry-After": _BACK_IN_S})


def install(app: FastAPI) -> None:
    """Install handlers that answer every error of `app` with a problem document."""

    async def service_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ServiceError)
        if isinstance(error, QuotaExceeded):
            return _over_quota(error)
        errors = [asdict(item) for item in error.errors] if isinstance(error, Refused) else None
        return problem(error.status, str(error), errors)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        kind = request.headers.get("content-type", "")
        whole = any(item["loc"] == ("body",) and item["type"] != "missing" for item in error.errors())
        if whole and "json" not in kind.lower():
            sentence = f"the Content-Type is {'another one' if kind else 'missing'}: send application/json"
            return problem(422, sentence, [{"field": "body", "message": sentence}])
        errors = [_field_error(item) for item in error.errors()]
        fields = ", ".join(dict.fromkeys(item["field"] for item in errors))
        return problem(422, f"the request is not valid: {fields}", errors)

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 413:
            return too_large(app.state.settings.max_body_bytes)
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(_allowed(app, request))
        return problem(error.status_code, str(error.detail), headers=headers)

    async def raced(request: Request, error: Exception) -> JSONResponse:
        _log.warning("two requests made the same row", exc_info=error)
        detail = "another request is making the same thing right now; ask again"
        return problem(409, detail, headers={"Retry-After": "1"})

    async def away(request: Request, error: Exception) -> JSONResponse:
        if not isinstance(error, DBAPIError) or not is_outage(error):
            raise error
        return database_away(error)

    async def fault(request: Request, error: Exception) -> JSONResponse:
        # Starlette logs the traceback; the client gets no internals.
        return problem(500, "the service failed; its log says why")

    app.add_exception_handler(ServiceError, service_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(IntegrityError, raced)
    for kind in (OperationalError, InterfaceError, DBAPIError):
        app.add_exception_handler(kind, away)
    app.add_exception_handler(Exception, fault)


def _allowed(app: FastAPI, request: Request) -> list[str]:
    """Return every method of a path. A route knows only its own methods, and a path may have several routes."""
    asked = {"type": "http", "path": request.scope["path"], "root_path": "", "headers": []}
    return [
        method
        for method in _METHODS
        if any(route.matches({**asked, "method": method})[0] is Match.FULL for route in app.routes)
    ]


def _over_quota(error: QuotaExceeded) -> JSONResponse:
    spent, headers = error.spent, {}
    if spent.resets_at is not None:
        headers["Retry-After"] = str(max(1, math.ceil((spent.resets_at - utc_now()).total_seconds())))
    more = {
        "quota": spent.quota,
        "limit": spent.limit,
        "used": spent.used,
        "resets_at": spent.resets_at.isoformat() if spent.resets_at is not None else None,
    }
    return problem(429, str(error), headers=headers, more=more)


def _field_error(item: dict[str, Any]) -> dict[str, str]:
    path = [str(part) for part in item["loc"]]
    if path and path[0] in _PLACES:
        path = path[1:] or path
    if path[-1:] == ["[key]"]:
        path.pop()  # pydantic's marker for an invalid key
    if item["type"] == "json_invalid":
        return {"field": "body", "message": f"is not JSON: {item['ctx']['error']}"}
    if item["type"] == "extra_forbidden":
        return {"field": ".".join(path), "message": "this field is unknown"}
    return {"field": ".".join(path), "message": str(item["msg"]).removeprefix("Value error, ")}
