"""An answer is made ready in the thread that made what it says: to JSON, and packed.

FastAPI would check a view against its type once more, in a turn of its own in the pool of threads, and then write it as JSON on the event loop, where
starlette packs it as well. A page of candidates is 300 kB: all other requests waited meanwhile. Views are checked as they are made.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from pydantic import BaseModel
from starlette.responses import Response

# A third of level 6's time, of which a list of candidates took 4.5 ms, and answers are a seventh larger.
LEVEL = 3
# What fits into one packet anyway.
AT_LEAST_BYTES = 1000
_PACKED_TYPES = ("text/html", "text/csv", "application/json", "image/svg+xml")
# Of the request that is under way; threads of the pool are given what their request knows.
_may_pack: ContextVar[bool] = ContextVar("may_pack", default=False)


@contextmanager
def packing(allowed: bool) -> Iterator[None]:
    """Within this block `packed` packs, or does nothing."""
    before = _may_pack.set(allowed)
    try:
        yield
    finally:
        _may_pack.reset(before)


def written(view: BaseModel, status_code: int | None) -> Response:
    """A view as the JSON answer that FastAPI would make of it."""
    body = view.model_dump_json(by_alias=True).encode()
    return Response(body, status_code=status_code or 200, media_type="application/json")


def packed(answer: Response) -> Response:
    """The answer, packed in place if its request allows it, it is long, and it is of a kind that gets shorter."""
    kind = answer.headers.get("content-type", "").partition(";")[0]
    # streams and files have no body here
    body = getattr(answer, "body", b"")
    if (
        not _may_pack.get()
        or len(body) < AT_LEAST_BYTES
        or kind not in _PACKED_TYPES
        or "content-encoding" in answer.headers
    ):
        return answer
    answer.body = gzip.compress(body, LEVEL, mtime=0)
    answer.headers["Content-Length"] = str(len(answer.body))
    answer.headers["Content-Encoding"] = "gzip"
    answer.headers.add_vary_header("Accept-Encoding")
    return answer
