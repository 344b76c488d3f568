"""What happened to a job: the stored log, as a page of a list or as a stream that resumes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from starlette.concurrency import run_in_threadpool

from services.api.deps import CallerDep, DatabaseDep
from services.db.session import Database
from services.jobs import read
from services.jobs.views import EventView, Page
from services.users.keys import is_valid

router = APIRouter(tags=["jobs"])
_LOOK_EVERY_S = 0.25
_PING_EVERY_S = 15.0
_RECONNECT_AFTER_MS = 1000
_KEY_ASKED_EVERY_S = 5.0
_MOST_AT_ONCE = 500


@router.get(
    "/jobs/{job_id}/events",
    response_model=Page[EventView],
    responses={
        200: {"content": {"text/event-stream": {}}},
        204: {"description": "as a stream: nothing more will happen; an EventSource then stops reconnecting"},
    },
)
async def list_events(
    job_id: str,
    request: Request,
    database: DatabaseDep,
    caller: CallerDep,
    after: Annotated[int, Query(ge=0, le=2**62, description="id of the last event already seen")] = 0,
    limit: Annotated[int, Query(ge=1, le=_MOST_AT_ONCE)] = 100,
    accept: Annotated[str, Header()] = "application/json",
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response | Page[EventView]:
    """Events, oldest first. With `Accept: text/event-stream` a live stream; `Last-Event-ID` resumes it."""
    if "text/event-stream" not in accept:
        return await run_in_threadpool(_page, database, job_id, after, limit)
    seen = int(last_event_id) if last_event_id and last_event_id.isdecimal() else after
    found, settled = await run_in_threadpool(_look, database, job_id, seen)
    if settled and not found:
        return Response(status_code=204)
    stopping: asyncio.Event = request.app.state.stopping
    return EventSourceResponse(
        _stream(database, caller.key_id, job_id, seen, stopping),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _page(database: Database, job_id: str, after: int, limit: int) -> Page[EventView]:
    with database.read() as session:
        read.job_row(session, job_id)
        found = read.list_events(session, job_id, after, limit + 1)
    shown = found[:limit]
    return Page(
        data=shown,
        has_more=len(found) > limit,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
    )


def _look(database: Database, job_id: str, after: int) -> tuple[list[EventView], bool]:
    with database.read() as session:
        read.job_row(session, job_id)
        # asked first: an event that comes between the two questions is then seen in the next round
        settled = read.is_settled(session, job_id)
        return read.list_events(session, job_id, after, _MOST_AT_ONCE), settled


def _still_valid(database: Database, key_id: str) -> bool:
    with database.read() as session:
        return is_valid(session, key_id)


async def _stream(
    database: Database, key_id: str | None, job_id: str, seen: int, stopping: asyncio.Event
) -> AsyncIterator[bytes]:
    yield f"retry: {_RECONNECT_AFTER_MS}\n\n".encode()
    spoken = asked = time.monotonic()
    while not stopping.is_set():
        if key_id is not None and time.monotonic() - asked > _KEY_ASKED_EVERY_S:
            asked = time.monotonic()
            if not await run_in_threadpool(_still_valid, database, key_id):
                return  # revoked or expired meanwhile; whoever reconnects is told at the gate
        found, settled = await run_in_threadpool(_look, database, job_id, seen)
        for event in found:
            yield format_sse_event(data_str=event.model_dump_json(), event=event.name, id=str(event.id))
            seen, spoken = event.id, time.monotonic()
        if settled and not found:
            return
        if found:
            continue
        if time.monotonic() - spoken > _PING_EVERY_S:
            yield KEEPALIVE_COMMENT
            spoken = time.monotonic()
        try:
            await asyncio.wait_for(stopping.wait(), _LOOK_EVERY_S)
        except TimeoutError:
            pass
