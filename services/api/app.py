"""The application: routes, pages, guard, and the threads that live as long as it does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp

from services.api import problems
from services.api.guard import Guard
from services.api.routes import evaluations, events, health, jobs, leaderboard
from services.api.streams import Lookout
from services.dashboard import boards, exports, pages
from services.db.session import database
from services.db.upgrade import upgrade
from services.observing.metrics import Metrics
from services.observing.requests import Observed
from services.settings import Settings, get_settings
from services.worker.app import app as celery
from services.worker.dispatch import Dispatcher
from services.worker.embedded import EmbeddedWorker

_ABOUT = """Takes a reference PyTorch module and gives back a faster drop-in module, with evidence.

`POST /optimize` starts a job, `POST /evaluate` asks the referee alone. Errors are problem documents (RFC 9457).
There are no keys yet: bind to the loopback address."""


class Application(FastAPI):
    """FastAPI with the guard around everything, its own body limit included (which would answer in plain text), and observed."""

    def build_middleware_stack(self) -> ASGIApp:
        """The observer, the guard, then FastAPI's own layers."""
        settings: Settings = self.state.settings
        guard = Guard(super().build_middleware_stack(), settings.allowed_hosts, settings.max_body_bytes)
        return Observed(guard, self.state.metrics.http)


def create_app(settings: Settings | None = None, *, with_worker: bool = False) -> FastAPI:
    """Make the application.

    Args:
        settings: read from the environment by default.
        with_worker: also run a worker for this machine's device in a thread of this process.
    """
    settings = settings or get_settings()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(upgrade, app.state.database)
        app.state.stopping = asyncio.Event()
        app.state.lookout = Lookout(app.state.database, app.state.stopping)
        dispatcher = Dispatcher(app.state.database, celery, settings.max_attempts)
        worker = EmbeddedWorker(celery, settings.device) if with_worker else None
        if worker:
            worker.start()
        dispatcher.start(queue_is_new=settings.embedded)
        try:
            yield
        finally:
            app.state.stopping.set()
            await run_in_threadpool(dispatcher.stop)
            if worker:
                await run_in_threadpool(worker.stop)

    app = Application(
        title="Kernelwright",
        description=_ABOUT,
        version="0.1.0",
        lifespan=lifespan,
        max_body_size=settings.max_body_bytes,
    )
    app.state.settings = settings
    app.state.database = database(settings.database)
    app.state.metrics = Metrics(app.state.database)
    app.state.celery = celery
    problems.install(app)
    for group in (jobs, events, evaluations, leaderboard, health):
        app.include_router(group.router)
    for part in (exports, boards, pages):
        app.include_router(part.router)
    return app
