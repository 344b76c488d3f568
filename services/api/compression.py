"""Answers are compressed, but for those that would tell a secret by their length.

BREACH: who can have a browser ask for the same page again and again, can put text of their own into it, and sees how long the
encrypted answer is, learns a secret of that page letter by letter: text that repeats the secret compresses better. So:

- What shows a key that was just made, and everything else below its addresses, is sent as it is (`AS_IT_IS`).
- The token of forms (CSRF) is on every page of a login. It is masked by new random bits in each answer
  (`services.users.logins.masked`), so that there is nothing that stays the same to be learnt.
- The cookie of a login is `SameSite=Strict`: another site's page gets no answer of a login's at all. Keys go in a header that
  no page of another site can send.

Streams of events are never compressed, or each would wait in a buffer; neither is what is compressed already (bundles).
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.gzip import GZipMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from services.api import answers

#: Addresses, and all below them, whose answers hold a secret beside text that somebody chose.
AS_IT_IS = ("/keys", "/ui/keys", "/login")


class Compressed:
    """ASGI middleware, behind the gate.

    Args:
        app: whose answers are compressed where the client takes gzip.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._compressing = GZipMiddleware(
            app, minimum_size=answers.AT_LEAST_BYTES, compresslevel=answers.LEVEL
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve."""
        path = scope.get("path", "")
        if any(path == one or path.startswith(f"{one}/") for one in AS_IT_IS):
            await self._app(scope, receive, send)
            return
        # most answers are packed where they are made, and pass what packs the others
        with answers.packing(
            scope["type"] == "http" and "gzip" in Headers(scope=scope).get("accept-encoding", "")
        ):
            await self._compressing(scope, receive, send)
