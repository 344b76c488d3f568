"""``/docs``: the OpenAPI document as a page of ours.

The pages that FastAPI offers load their scripts from another host. Whoever is logged in would run those with their own rights
here, and a machine without the internet would show nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from services.dashboard.rendering import render

router = APIRouter(include_in_schema=False)
_BODY = "application/json"


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
            "fields": list(_fields(operation.get("requestBody", {}), schemas)),
            "answers": [
                (status, said.get("description", ""))
                for status, said in sorted(operation["responses"].items())
            ],
        }
        for path, item in document["paths"].items()
        for method, operation in item.items()
    ]
    return render("reference.html", about=document["info"]["description"], operations=operations)


def _fields(body: dict[str, Any], schemas: dict[str, Any]) -> Iterator[dict[str, Any]]:
    named = body.get("content", {}).get(_BODY, {}).get("schema", {}).get("$ref", "").rpartition("/")[2]
    found = schemas.get(named, {})
    for name, schema in found.get("properties", {}).items():
        yield _field(name, {"schema": schema, "required": name in found.get("required", ())}, "body")


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
