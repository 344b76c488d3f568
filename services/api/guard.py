"""The door, before anybody is asked for a key: by which name one may knock, from which page, and how large a parcel may be.

A service on the loopback address is reachable from every web page that the same person has open, in two ways:

- *Cross-site requests.* A page may POST anywhere. Browsers say where a request comes from (`Sec-Fetch-Site`, `Origin`);
  a request that changes something and comes from another origin is refused. Programs send neither header.
- *DNS rebinding.* A page at evil.example may point its own name to 127.0.0.1 and then is "same origin". Its requests
  carry that name as `Host`; only names that are this service's own are served. An address in digits cannot be rebound.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.api.patience import timed
from services.api.problems import problem, too_large

_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_OWN_SITE = ("same-origin", "none")  # "none" is a person typing an address
_DIGITS = 20  # of a length; Python reads no number of thousands
# For every answer that has no word of its own on it: what one user may see stays in no cache, and whatever a browser is made
# to show of it loads and runs nothing, in nobody's frame.
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
}


class Guard:
    """ASGI middleware, before the gate.

    Args:
        app: what it guards.
        allowed_hosts: names, besides localhost and addresses in digits, under which the service may be called.
        max_body_bytes: larger announced bodies are refused before they are read (unannounced ones: by FastAPI).
        body_seconds: how long a body may take to come.
    """

    def __init__(
        self, app: ASGIApp, allowed_hosts: Collection[str], max_body_bytes: int, body_seconds: float
    ) -> None:
        self._app = app
        self._allowed_hosts = {"localhost", *(host.lower() for host in allowed_hosts)}
        self._max_body_bytes = max_body_bytes
        self._body_seconds = body_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve, or answer with a problem document."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal = self._why_refused(scope["method"], headers)
        if refusal is not None:
            await problem(403, refusal)(scope, receive, send)
            return
        length = headers.get("content-length", "")
        if length.isdecimal() and (len(length) > _DIGITS or int(length) > self._max_body_bytes):
            await too_large(self._max_body_bytes)(scope, receive, send)
            return

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    answered.setdefault(name, value)
            await send(message)

        await self._app(scope, timed(receive, self._body_seconds), send_hardened)

    def _why_refused(self, method: str, headers: Headers) -> str | None:
        host = headers.get("host", "")
        if not self._is_ours(host):
            return (
                "this service does not answer to that Host name; "
                "KERNELWRIGHT_ALLOWED_HOSTS lists names besides localhost"
            )
        if method in _SAFE_METHODS:
            return None
        site = headers.get("sec-fetch-site")
        if site is not None and site not in _OWN_SITE:
            return "requests from pages of other sites are refused"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return "requests from pages of other origins are refused"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self._allowed_hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
