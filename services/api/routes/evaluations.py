"""Direct use of the referee: a task and a candidate in, a verdict out."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from starlette.concurrency import run_in_threadpool

from services.api.deps import DatabaseDep, IdempotencyKey, SettingsDep
from services.db.models import FINAL_STATES
from services.db.session import Database
from services.jobs import endings, read, submit
from services.jobs.requests import EvaluateRequest
from services.jobs.views import EvaluationView
from services.settings import Settings

router = APIRouter(tags=["evaluate"])
LONGEST_WAIT_S = 60
# A waiting request polls the database, starting at the shorter interval. At most _MOST_WAITING requests wait at a time; others
# get 202 at once, which the Prefer header allows.
_LOOK_EVERY_S, _LOOK_SELDOM_S = 0.1, 1.0
_MOST_WAITING = 100
_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*(\d{1,6})")


@router.post("/evaluate", status_code=202, responses={200: {"description": "judged within the wait"}})
async def evaluate(
    body: EvaluateRequest,
    request: Request,
    response: Response,
    database: DatabaseDep,
    settings: SettingsDep,
    prefer: Annotated[
        str,
        Header(
            description=f"`wait=N`: answer with the verdict if it comes within N seconds, {LONGEST_WAIT_S} at most"
        ),
    ] = "",
    idempotency_key: IdempotencyKey = None,
) -> EvaluationView:
    """Have one candidate judged. 202 with a place to look at, or 200 with the verdict under `Prefer: wait=N`."""
    view = await run_in_threadpool(_create, database, body, settings, idempotency_key)
    response.headers["Location"] = view.urls.self
    wanted = _WAIT.search(prefer)
    waiting: set[str] = request.app.state.waiting
    if wanted and len(waiting) < _MOST_WAITING:
        seconds = min(int(wanted[1]), LONGEST_WAIT_S)
        response.headers["Preference-Applied"] = f"wait={seconds}"
        token = uuid.uuid4().hex
        waiting.add(token)
        try:
            view = await _judged(database, view, seconds)
        finally:
            waiting.discard(token)
    if view.state in FINAL_STATES:
        response.status_code = 200
    return view


@router.get("/evaluations/{evaluation_id}")
def get_evaluation(evaluation_id: str, database: DatabaseDep) -> EvaluationView:
    """One evaluation; `result` is the referee's whole verdict once `state` is `succeeded`.

    With the effort `look` it is what the form of the pages asks for before a job: the task's description and lint.
    """
    return _look(database, evaluation_id)


@router.post("/evaluations/{evaluation_id}/cancel", status_code=202)
def cancel_evaluation(evaluation_id: str, database: DatabaseDep) -> EvaluationView:
    """Stop an evaluation that is no longer wanted; asking twice, or asking one that has ended, changes nothing."""
    with database.uncommitted() as session:
        endings.cancel_evaluation(session, evaluation_id)
        return read.get_evaluation(session, evaluation_id)


async def _judged(database: Database, view: EvaluationView, seconds: float) -> EvaluationView:
    """Wait until the evaluation ends, for at most `seconds`, and return its latest view."""
    deadline, pause_s = time.monotonic() + seconds, _LOOK_EVERY_S
    while view.state not in FINAL_STATES and time.monotonic() < deadline:
        await asyncio.sleep(min(pause_s, max(0.0, deadline - time.monotonic())))
        pause_s = min(pause_s * 1.1, _LOOK_SELDOM_S)
        view = await run_in_threadpool(_look, database, view.id)
    return view


def _create(database: Database, body: EvaluateRequest, settings: Settings, key: str | None) -> EvaluationView:
    with database.uncommitted() as session:
        made_id = submit.make_evaluation(session, body, settings, key)
        return read.get_evaluation(session, made_id)


def _look(database: Database, evaluation_id: str) -> EvaluationView:
    with database.read() as session:
        return read.get_evaluation(session, evaluation_id)
