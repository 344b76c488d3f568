"""Middleware that gives each HTTP request an id, a log line and metrics."""

from __future__ import annotations

import logging
import re
import time
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.observing.logs import belongs_to
from services.observing.metrics import Metrics

ACCESS_LOG = "kernelwright.access"
HEADER = "X-Request-ID"
_log = logging.getLogger(ACCESS_LOG)
# An id set by a proxy in front. Any other text could forge log lines or fill the log.
_GOOD_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_JOB_IN_PATH = re.compile(r"^(?:/ui)?/jobs/([0-9a-z]{26})(?:/|$)")
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Observed:
    """ASGI middleware around the whole application.

    Args:
        app: the application to observe.
        metrics: counts the requests.
    """

    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        request_id = given if _GOOD_ID.fullmatch(given) else uuid.uuid4().hex
        in_path = _JOB_IN_PATH.match(scope["path"])
        job_id = in_path[1] if in_path else None
        method = scope["method"] if scope["method"] in _METHODS else "other"
        began = time.perf_counter()
        answered: list[tuple[int, float]] = []

        async def send_with_id(message: Message) -> None:
            nonlocal job_id
            if message["type"] == "http.response.start":
                answered.append((message["status"], time.perf_counter() - began))
                headers = MutableHeaders(scope=message)
                headers[HEADER] = request_id
                made = _JOB_IN_PATH.match(headers.get("location", ""))
                job_id = made[1] if made else job_id
            await send(message)

        belongs_to(request_id=request_id, job_id=job_id)  # the server runs each request in its own task
        try:
            with self._metrics.under_way.track_inprogress():
                await self._app(scope, receive, send_with_id)
        finally:
            status, elapsed_s = answered[0] if answered else (500, time.perf_counter() - began)
            # the path template; a raw path would create one label per job
            route = str(getattr(scope.get("route"), "path", None) or "other")
            self._metrics.latency.labels(method, route, str(status)).observe(elapsed_s)
            belongs_to(request_id=request_id, job_id=job_id)  # this request may have created the job
            elapsed_ms = round(elapsed_s * 1e3, 3)
            fields = {"method": method, "route": route, "status": status, "elapsed_ms": elapsed_ms}
            _log.info("%s %s %d in %.1f ms", method, route, status, elapsed_ms, extra={"fields": fields})
