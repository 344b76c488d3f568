"""Answers are compressed, except those whose length would reveal a secret (BREACH).

An attacker who can have a browser request the same page again and again, puts text into it, and sees how long the encrypted
answer is, learns a secret in that page letter by letter, since text that repeats the secret compresses better. Therefore:

- What is at or below `UNCOMPRESSED`, where new keys are shown, is sent as it is.
- The CSRF token on every page of a login is masked by new random bits in each answer (`services.users.logins.masked`).
- The login cookie is `SameSite=Strict`: a page of another site gets no answer that belongs to a login.
"""

from __future__ import annotations

from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

UNCOMPRESSED = ("/keys", "/ui/keys", "/login")
# What fits into one packet anyway; and a third of level 6's time, for answers that are a seventh larger.
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
