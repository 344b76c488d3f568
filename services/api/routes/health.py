"""Liveness, readiness and metrics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from celery import Celery
from fastapi import APIRouter, Request, Response
from sqlalchemy.exc import SQLAlchemyError

from services.api.deps import AdminDep, DatabaseDep, SettingsDep
from services.db.models import Worker
from services.db.session import Database
from services.db.trouble import database_problem, folder_problem, trouble
from services.observing import workers as observed
from services.observing.metrics import CONTENT_TYPE
from services.settings import Settings

router = APIRouter(tags=["health"])


@router.get("/healthz")
def healthz() -> dict[str, str]:
    """The process answers."""
    return {"status": "alive"}


@router.get(
    "/readyz",
    responses={
        503: {"description": "something is missing; the body says what", "content": {"application/json": {}}}
    },
)
def readyz(
    request: Request, response: Response, database: DatabaseDep, settings: SettingsDep
) -> dict[str, Any]:
    """Whether database and data folder can be read and written, the broker answers and a worker's sandbox held; with workers by
    what they can judge."""
    found = readiness(database, request.app.state.celery, settings)
    response.status_code = 200 if found["status"] == "ready" else 503
    return found


def readiness(database: Database, celery: Celery, settings: Settings) -> dict[str, Any]:
    """Return the body of GET /readyz."""
    try:
        with database.read() as session:
            workers = observed.alive(session)
        of_workers = {"sandbox": _sandbox(workers), "workers": _workers(workers)}
    except SQLAlchemyError as error:
        away = {"ok": False, "problem": trouble(error) or type(error).__name__}
        of_workers = {"sandbox": away, "workers": {**away, "capabilities": []}}
    checks = {
        "database": _database(database),
        "data_folder": _folder(settings),
        "broker": _broker(celery, settings),
        **of_workers,
    }
    ready = all(check["ok"] for check in checks.values())
    return {"status": "ready" if ready else "not ready", "checks": checks}


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "metrics"}},
)
def metrics(request: Request, caller: AdminDep) -> Response:
    """Metrics in Prometheus' text format, of all users together: for a key of scope admin."""
    return Response(request.app.state.metrics.text(), media_type=CONTENT_TYPE)


def _database(database: Database) -> dict[str, Any]:
    problem = database_problem(database.engine)
    if problem is not None:
        return {"ok": False, "problem": problem}
    return {"ok": True, "kind": database.engine.dialect.name}


def _folder(settings: Settings) -> dict[str, Any]:
    folder = settings.data_dir.expanduser()
    problem = folder_problem(folder) if folder.exists() else None  # not needed with PostgreSQL
    return {"ok": True} if problem is None else {"ok": False, "problem": problem}


def _broker(celery: Celery, settings: Settings) -> dict[str, Any]:
    if settings.embedded:
        return {"ok": True, "kind": "memory"}
    try:
        with celery.connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, timeout=2, interval_start=0)
    except Exception as error:  # noqa: BLE001 - each transport raises its own types, and all mean the same here
        return {"ok": False, "problem": type(error).__name__}
    return {"ok": True, "kind": settings.broker_url.partition(":")[0]}


def _sandbox(workers: Sequence[Worker]) -> dict[str, Any]:
    shown = [{"device": worker.device, "tier": worker.tier, "problem": worker.problem} for worker in workers]
    usable = [worker for worker in workers if worker.tier is not None and worker.problem is None]
    if usable:
        return {"ok": True, "tier": usable[0].tier, "workers": shown}
    if not workers:
        return {"ok": False, "problem": "no worker is alive", "workers": []}
    if any(worker.problem is None for worker in workers):
        problem = "being checked"
    elif any(worker.tier is not None for worker in workers):
        problem = "no worker's device is well"
    else:
        problem = "no sandbox held"
    return {"ok": False, "problem": problem, "workers": shown}


def _workers(workers: Sequence[Worker]) -> dict[str, Any]:
    found = observed.capabilities(workers)
    shown = {"capabilities": [asdict(one) for one in found]}
    if any(one.ready for one in found):
        return {"ok": True, **shown}
    return {"ok": False, "problem": "no worker is ready", **shown}
