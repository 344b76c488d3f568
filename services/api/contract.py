"""Completes FastAPI's OpenAPI document with the responses of middleware and error handlers.

They answer with problem documents that FastAPI does not know about. Clients generated from a document without them would
fail on the first 404.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from services.api.authentication import OPEN
from services.users.caller import current

PROBLEM = "application/problem+json"
_WHY = {
    400: "the body cannot be read",
    401: "no key, or none that is valid",
    403: "the key's scope does not reach that far, or the request comes from a page of another site",
    404: "there is nothing of that name, or it is another user's",
    408: "the body came too slowly",
    409: "it contradicts what is there, or what another request is doing right now",
    413: "the body is too large",
    422: "a field is wrong, or asks for what this service does not have; `errors` names it",
    429: "too many requests, or a quota is used up",
    503: "the database does not answer now",
}
_SCHEMA = {
    "title": "Problem",
    "description": "What went wrong (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "description": "which kind of problem, as an address"},
        "title": {"type": "string"},
        "status": {"type": "integer", "minimum": 400, "maximum": 599},
        "detail": {"type": "string", "description": "a sentence for people"},
        "errors": {
            "type": "array",
            "description": "the fields at fault",
            "items": {
                "type": "object",
                "required": ["field", "message"],
                "properties": {"field": {"type": "string"}, "message": {"type": "string"}},
            },
        },
    },
}
_OF_FASTAPI = ("HTTPValidationError", "ValidationError")


def completed(found: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of FastAPI's document with all error responses, and with security only where the current caller needs a key."""
    caller = current.get()
    without_keys = caller is not None and caller.scope == "admin" and caller.key_id is None
    document = copy.deepcopy(found)
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    for name in _OF_FASTAPI:
        schemas.pop(name, None)
    schemas["Problem"] = _SCHEMA
    for path, method, operation in _operations(document):
        if path in OPEN:
            operation["security"] = []
        elif without_keys:  # this service has no keys yet, so it requires none
            operation["security"] = [{}, *operation.get("security", [])]
        for status in _refusals(path, method, operation):
            _describe(operation["responses"], status)
    return document


def _operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def _refusals(path: str, method: str, operation: dict[str, Any]) -> set[int]:
    """Return the error statuses of an operation: those that its route declares, and those of middleware and handlers."""
    found = {403} if path in OPEN else {401, 403, 429, 503}
    found |= {int(status) for status in operation["responses"] if int(status) >= 400}
    if "{" in path:
        found.add(404)
    if "requestBody" in operation:
        found |= {400, 408, 413, 422}
    if method == "post":
        found.add(409)
    return found


def _describe(responses: dict[str, Any], status: int) -> None:
    said = responses.setdefault(str(status), {})
    said.setdefault("description", _WHY.get(status, "it cannot be done"))
    if status == 422:
        said["description"] = _WHY[422]
        said["content"] = {}
    said.setdefault("content", {})[PROBLEM] = {"schema": {"$ref": "#/components/schemas/Problem"}}
