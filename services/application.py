"""The application: routes, pages, middleware, and the threads that run as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from services.api import contract, problems
from services.api.authentication import Authentication
from services.api.compression import Compression
from services.api.deps import check_form
from services.api.hosts import HostCheck
from services.api.routes import evaluations, events, health, jobs, keys, leaderboard
from services.api.streams import EventStreams
from services.dashboard import boards, checks, compare, exports, login, pages, reference, runs, workers
from services.dashboard import keys as key_pages
from services.db.session import database
from services.db.upgrade import upgrade
from services.observing.metrics import Metrics
from services.observing.requests import Observed
from services.settings import Settings, get_settings
from services.worker.app import app as celery
from services.worker.app import tell
from services.worker.context import stop_worker, worker_context
from services.worker.dispatch import Dispatcher

_ABOUT = """Takes a reference PyTorch module and gives back a faster drop-in module, with evidence.

`POST /optimize` starts a job, `POST /evaluate` asks the referee alone. Errors are problem documents (RFC 9457); the `type` of each leads to a page that says what to do (`/problems`).
Requests carry a key, `Authorization: Bearer kw_...`; what one user makes, no other sees. Without any key the service answers
its own machine alone."""


# Only for the OpenAPI document: `Authentication` checks keys before routing.
_BEARER = HTTPBearer(auto_error=False, description="a key, `kw_...`; docs/keys.md")


class Application(FastAPI):
    """FastAPI with our middleware outside all of its own layers, which would answer some errors in plain text."""

    def build_middleware_stack(self) -> ASGIApp:
        """Build the layers, outermost first: logs and metrics, host checks, authentication, compression, FastAPI."""
        settings: Settings = self.state.settings
        app: ASGIApp = Compression(super().build_middleware_stack())
        app = Authentication(app, self.state.database, settings)
        app = HostCheck(app, settings.allowed_hosts, settings.max_body_bytes, settings.body_seconds)
        return Observed(app, self.state.metrics)

    def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI document, including the responses of middleware."""
        return contract.completed(super().openapi())


def create_app(settings: Settings | None = None, *, with_worker: bool = False) -> FastAPI:
    """Create the application.

    Args:
        settings: the settings; by default read from the environment.
        with_worker: also run a worker for this machine's device in threads of this process.
    """
    settings = settings or get_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(upgrade, app.state.database)
        app.state.stopping = asyncio.Event()
        app.state.streams = EventStreams(app.state.database, app.state.stopping, settings.streams_per_key)
        dispatcher = Dispatcher(app.state.database, tell, settings.max_lost_workers, settings.audit_days)
        if with_worker:
            worker_context().slots.start()
        dispatcher.start()
        try:
            yield
        finally:
            app.state.stopping.set()
            await run_in_threadpool(dispatcher.stop)
            if with_worker:
                await run_in_threadpool(stop_worker)

    app = Application(
        title="Kernelwright",
        description=_ABOUT,
        version="0.1.0",
        docs_url=None,  # services.dashboard.reference
        redoc_url=None,
        lifespan=lifespan,
        max_body_size=settings.max_body_bytes,
        dependencies=[Depends(check_form), Depends(_BEARER)],
    )
    app.state.settings = settings
    app.state.database = database(settings.database)
    app.state.metrics = Metrics(app.state.database)
    app.state.celery = celery
    app.state.waiting = set()
    problems.install(app)
    api = (jobs, events, evaluations, leaderboard, health, keys)
    shown = (exports, boards, pages, reference, login, key_pages, workers, compare, checks, runs)
    for part in (*api, *shown):
        app.include_router(part.router)
    return app
