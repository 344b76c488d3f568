"""A job's event log, as pages or as a resumable stream."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, HTTPException, Query, Request, Response
from fastapi.sse import KEEPALIVE_COMMENT, EventSourceResponse, format_sse_event
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool

from services.api.deps import CallerDep, DatabaseDep
from services.api.streams import EventStreams, Watcher
from services.db.session import Database
from services.errors import FieldError, Refused
from services.jobs import read
from services.jobs.views import EventView, Page, page_of
from services.users.addresses import household

router = APIRouter(tags=["jobs"])
_log = logging.getLogger(__name__)
_PING_EVERY_S = 25.0
_RECONNECT_AFTER_MS = 1000
_MOST_AT_ONCE = 500
_EVENT_ID = re.compile(r"[0-9]{1,18}")


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
    seen = _event_id(last_event_id) if last_event_id else after
    found, settled = await run_in_threadpool(_look, database, job_id, seen)
    if settled and not found:
        return Response(status_code=204)
    stopping: asyncio.Event = request.app.state.stopping
    streams: EventStreams = request.app.state.streams
    whose = caller.key_id or household(caller.address or "")
    if streams.is_full(whose):
        raise HTTPException(429, "too many event streams are open; close some, or ask for events as a list")
    return EventSourceResponse(
        _stream(database, caller.key_id, job_id, seen, streams, stopping, whose),
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


def _event_id(text: str) -> int:
    if not _EVENT_ID.fullmatch(text):
        raise Refused([FieldError("Last-Event-ID", "is no id of an event")])
    return int(text)


def _page(database: Database, job_id: str, after: int, limit: int) -> Page[EventView]:
    with database.read() as session:
        read.job_row(session, job_id)
        return page_of(read.list_events(session, job_id, after, limit + 1), limit)


def _look(database: Database, job_id: str, after: int) -> tuple[list[EventView], bool]:
    with database.read() as session:
        read.job_row(session, job_id)
        # Query this first: if an event arrives between the two queries, the next round sees it.
        settled = read.is_settled(session, job_id)
        return read.list_events(session, job_id, after, _MOST_AT_ONCE), settled


async def _stream(
    database: Database,
    key_id: str | None,
    job_id: str,
    seen: int,
    streams: EventStreams,
    stopping: asyncio.Event,
    whose: str = "",
) -> AsyncIterator[bytes]:
    say_at = time.monotonic() + _PING_EVERY_S
    looks = True
    with streams.watching(job_id, seen, whose, key_id) as watcher:
        yield f"retry: {_RECONNECT_AFTER_MS}\n\n".encode()
        while not stopping.is_set() and not watcher.is_revoked:
            if looks:
                watcher.woken.clear()  # before reading, so an event that arrives during the read wakes the stream again
                try:
                    found, settled = await run_in_threadpool(_look, database, job_id, watcher.seen)
                except SQLAlchemyError as error:
                    _log.warning("a stream ends, its client comes again: %s", type(error).__name__)
                    return
                for event in found:
                    yield format_sse_event(
                        data_str=event.model_dump_json(), event=event.name, id=str(event.id)
                    )
                    watcher.seen, say_at = event.id, time.monotonic() + _PING_EVERY_S
                if settled and not found:
                    return
                if found:
                    continue
            if time.monotonic() >= say_at:
                yield KEEPALIVE_COMMENT
                say_at = time.monotonic() + _PING_EVERY_S
            looks = await _woken(watcher, max(0.0, say_at - time.monotonic()))


async def _woken(watcher: Watcher, seconds: float) -> bool:
    """Wait at most `seconds` for the watcher; return whether it was woken."""
    try:
        await asyncio.wait_for(watcher.woken.wait(), seconds)
    except TimeoutError:
        return False
    return True
