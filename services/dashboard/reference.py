"""Pages about the API: ``/docs`` shows the OpenAPI document, ``/problems`` the targets of problem `type` URIs.

They replace FastAPI's own pages, which load scripts from another host: those would run with the rights of the logged-in user,
and the pages would be empty without internet access.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from services.api.problem_kinds import KINDS, OF_NAME
from services.dashboard.rendering import page, render
from services.errors import NotFound

router = APIRouter(include_in_schema=False)
_BODY = "application/json"
_DEEPEST = 4


@router.get("/docs")
def reference_page(request: Request) -> Response:
    """Every path: what it takes, and how it may answer."""
    document = request.app.openapi()
    schemas = document["components"]["schemas"]
    operations = [
        {
            "method": method.upper(),
            "path": path,
            "summary": operation.get("description", operation.get("summary", "")),
            "parameters": [_field(one["name"], one, one["in"]) for one in operation.get("parameters", ())],
            "fields": list(_fields(_body(operation, schemas), schemas)),
            "examples": [json.dumps(one, indent=2) for one in _body(operation, schemas).get("examples", ())],
            "answers": [
                (status, said.get("description", ""))
                for status, said in sorted(operation["responses"].items())
            ],
        }
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    return render("reference.html", about=document["info"]["description"], operations=operations)


@router.get("/problems")
def problems_page() -> Response:
    """Every kind of problem."""
    return render("problems.html", kinds=KINDS, one=False)


@router.get("/problems/{kind}")
@page
def problem_page(kind: str) -> Response:
    """One kind of problem."""
    if kind not in OF_NAME:
        raise NotFound("no problem of that name is answered here")
    return render("problems.html", kinds=(OF_NAME[kind],), one=True)


def _body(operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of an operation's request body; empty if it has none."""
    schema = operation.get("requestBody", {}).get("content", {}).get(_BODY, {}).get("schema", {})
    found: dict[str, Any] = schemas.get(schema.get("$ref", "").rpartition("/")[2], {})
    return found


def _fields(
    found: dict[str, Any], schemas: dict[str, Any], within: str = "", depth: int = 0
) -> Iterator[dict[str, Any]]:
    """Yield a schema's fields, each followed by those of its nested objects: `traffic[].weight`."""
    for name, schema in found.get("properties", {}).items():
        path = f"{within}{name}"
        yield _field(path, {"schema": schema, "required": name in found.get("required", ())}, "body")
        for reference, step in _references(schema):
            if depth < _DEEPEST:
                yield from _fields(schemas.get(reference, {}), schemas, f"{path}{step}.", depth + 1)


def _references(schema: dict[str, Any], step: str = "") -> Iterator[tuple[str, str]]:
    """Yield the schemas nested in a value with their paths: `[]` for a list, `.NAME` for a mapping."""
    if "$ref" in schema:
        yield schema["$ref"].rpartition("/")[2], step
    for one in schema.get("anyOf", ()):
        yield from _references(one, step)
    for key, further in (("items", "[]"), ("additionalProperties", ".NAME")):
        if isinstance(schema.get(key), dict):
            yield from _references(schema[key], step + further)


def _field(name: str, said: dict[str, Any], place: str) -> dict[str, Any]:
    schema = said.get("schema", {})
    description = said.get("description") or schema.get("description") or ""
    return {
        "name": name,
        "place": place,
        "required": bool(said.get("required")),
        "kind": _kind(schema),
        "description": description,
    }


def _kind(schema: dict[str, Any]) -> str:
    """The type of a value in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(str(one) for one in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("type", "value"))
