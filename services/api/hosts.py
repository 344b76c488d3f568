"""Checks before authentication: the request's host name and the origin of the page that sent it.

Any web page open in a user's browser can reach a service on the loopback address, in two ways:

- *Cross-site requests.* A page may POST anywhere. Browsers send the origin of a request (`Sec-Fetch-Site`, `Origin`); the
  check refuses state-changing requests from other origins. Other clients send neither header.
- *DNS rebinding.* A page at evil.example may point its own name to 127.0.0.1 and is then "same origin". Its requests
  carry that name as `Host`, so the check accepts only this service's names. An IP address cannot be rebound, so every IP
  address is accepted, which Starlette's `TrustedHostMiddleware` cannot express.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.connections import with_body_timeout
from services.api.problems import problem, too_large

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_OWN_SITE = ("same-origin", "none")  # "none": the user typed the address
# Defaults for responses that do not set them: no cache stores the response, and a browser loads and runs nothing from it.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


class HostCheck:
    """ASGI middleware; it also limits how long a body may take and sets the headers of `_HEADERS`.

    Args:
        app: the wrapped application.
        allowed_hosts: accepted host names, besides localhost and IP addresses.
        max_body_bytes: a body with a larger Content-Length is refused before it is read (FastAPI refuses the others).
        body_seconds: time limit for a request's body.
    """

    def __init__(
        self, app: ASGIApp, allowed_hosts: Collection[str], max_body_bytes: int, body_seconds: float
    ) -> None:
        self._app = app
        self._allowed_hosts = {"localhost", *(host.lower() for host in allowed_hosts)}
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with a problem document."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._refusal(scope["method"], headers)
        if refusal is not None:
            await problem(403, refusal)(scope, receive, send)
            return
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._max_body_bytes:
            await too_large(self._max_body_bytes)(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, with_body_timeout(receive, self._body_seconds), send_with_headers)

    def _refusal(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if not self._is_served(host):
            return (
                "this service does not answer to that Host name; "
                "KERNELWRIGHT_ALLOWED_HOSTS lists names besides localhost"
            )
        if method in SAFE_METHODS:
            return None
        if headers.get("sec-fetch-site", "none") not in _OWN_SITE:
            return "requests from pages of other sites are refused"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "requests from pages of other origins are refused"
        return None

    def _is_served(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._allowed_hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False
