"""Templates, response headers and the plain form of view models.

All pages of this package go through ``render``, which applies escaping and the content security policy to every one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cache, wraps
from pathlib import Path
from typing import Any

from fastapi import Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment
from markupsafe import Markup
from pydantic import BaseModel

from agent import pages
from evaluator.sources import lines_of_code
from evaluator.verdict import by_size
from services.dashboard import formats, words
from services.errors import Conflict, NotFound, Refused
from services.users.caller import current
from services.users.logins import masked

HERE = Path(__file__).parent
STATIC_TYPES = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "favicon.svg": "image/svg+xml",
}

# No inline scripts or styles, no other hosts, no frames. `same-origin` rather than `no-referrer`: the latter
# makes browsers send `Origin: null` with our own forms, which the origin check would reject.
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_TITLES = {404: "Not found", 409: "Not done", 422: "No such page"}


@cache
def static_file(name: str) -> bytes | None:
    """A static file of the dashboard, or ``None``. Only listed names are served, which prevents path traversal."""
    return (HERE / "static" / name).read_bytes() if name in STATIC_TYPES else None


@cache
def static_url(name: str) -> str:
    """URL of a static file; it changes with the content, so browsers may cache it forever."""
    digest = hashlib.sha256(static_file(name) or b"").hexdigest()[:10]
    return f"/ui/static/{name}?v={digest}"


def _by_size(summary: Mapping[str, Any]) -> str:
    return by_size(summary.get("by_stratum") or {})


@cache
def environment() -> Environment:
    """The template environment: escapes everything and raises on undefined names."""
    names = "speedup interval microseconds seconds dollars count counted percent ratio weight clock clock_short dims breakable px"
    filters: dict[str, Callable[..., Any]] = {name: getattr(formats, name) for name in names.split()}
    filters |= {"lines_of_code": lines_of_code, "by_size": _by_size}
    jinja = pages.environment(HERE / "templates", filters)
    jinja.globals.update(
        words=words,
        elapsed_s=formats.elapsed_s,
        static_url=static_url,
        caller=current.get,
        csrf_field=csrf_field,
    )
    return jinja


def csrf_field() -> Markup:
    """The CSRF field that forms need if the user is logged in; see `services.api.deps.check_form`."""
    caller = current.get()
    token = caller.csrf if caller is not None else None
    return (
        Markup('<input type="hidden" name="csrf" value="{}">').format(masked(token)) if token else Markup("")
    )


def render(template: str, *, status: int = 200, **context: Any) -> Response:
    """Render a page with the security headers."""
    html = environment().get_template(template).render(**context)
    return HTMLResponse(html, status_code=status, headers=PAGE_HEADERS)


def page(endpoint: Callable[..., Response]) -> Callable[..., Response]:
    """Decorate a page endpoint: its errors are shown on an HTML page instead of in a problem document."""

    @wraps(endpoint)
    def shown(*args: Any, **given: Any) -> Response:
        try:
            return endpoint(*args, **given)
        except (NotFound, Conflict, Refused) as error:
            return render("error.html", status=error.status, title=_TITLES[error.status], detail=str(error))

    return shown


def plain(view: BaseModel | Mapping[str, Any]) -> dict[str, Any]:
    """Convert a view model to the JSON object that the API would send."""
    return view.model_dump(mode="json") if isinstance(view, BaseModel) else dict(view)
