"""Compresses responses, except those whose length would reveal a secret (BREACH).

Suppose an attacker can make a browser request a page repeatedly, inject text into it, and observe the length of the encrypted
response. The attacker then learns a secret in the page letter by letter, since text that repeats the secret compresses better.
Therefore:

- Responses at or below `UNCOMPRESSED`, where new keys are shown, are not compressed.
- The CSRF token in every page of a login is masked with fresh random bits (`services.users.logins.masked`).
- The login cookie is `SameSite=Strict`: requests from other sites' pages get no response that belongs to a login.
"""

from __future__ import annotations

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

UNCOMPRESSED = ("/keys", "/ui/keys", "/login")
# Smaller responses fit into one packet anyway. Level 3 takes a third of level 6's time; responses are a seventh larger.
_LEAST_BYTES, _LEVEL = 1000, 3


class Compression(GZipMiddleware):
    """Starlette's compression, except for `UNCOMPRESSED`."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(app, minimum_size=_LEAST_BYTES, compresslevel=_LEVEL)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Starlette."""
        path = scope.get("path", "")
        secret = any(path == one or path.startswith(f"{one}/") for one in UNCOMPRESSED)
        await (self.app if secret else super().__call__)(scope, receive, send)
