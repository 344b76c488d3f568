"""Logs: a line per event, as text for people or as JSON for a collector, each with the request and the job it belongs to.

The ids travel in context variables: asyncio and `run_in_threadpool` hand them on, and whoever starts a thread for a job starts
it in a copy of its context. Secrets are masked before a line is made (`agent.redaction`). What strangers wrote may be in a
message, so a line break within one must not begin a line of its own.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

from agent.redaction import RedactingFilter
from services.db.trouble import OncePerTrouble

LogFormat = Literal["text", "json"]
_TEXT = "%(asctime)s %(levelname)s %(name)s [request=%(shown_request)s job=%(shown_job)s]: %(message)s"
_LONGEST = 16_000
_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)
_job_id: ContextVar[str | None] = ContextVar("job_id", default=None)


def belongs_to(*, request_id: str, job_id: str | None) -> None:
    """From now on this task's lines belong to a request: also what its server says after it has failed."""
    _request_id.set(request_id)
    _job_id.set(job_id)


@contextmanager
def belonging_to(job_id: str) -> Iterator[None]:
    """Lines that are logged within belong to this job, or evaluation."""
    token = _job_id.set(job_id)
    try:
        yield
    finally:
        _job_id.reset(token)


class ContextFilter(logging.Filter):
    """Gives every record the ids of the context that it was logged in; never drops one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        record.request_id = _request_id.get()
        record.job_id = _job_id.get()
        return True


class TextFormatter(logging.Formatter):
    """Lines for people; `-` where there is no request or job."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """The first line, without what ends one; a traceback follows below it."""
        record.message = _one_line(record.message)
        record.shown_request = getattr(record, "request_id", None) or "-"
        record.shown_job = getattr(record, "job_id", None) or "-"
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """A JSON object a line: time, level, logger, message, request_id, job_id, and exception or fields where there are any."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": _shortened(record.getMessage()),
            "request_id": getattr(record, "request_id", None),
            "job_id": getattr(record, "job_id", None),
            **getattr(record, "fields", {}),
        }
        if record.exc_info or record.exc_text:
            line["exception"] = _shortened(record.exc_text or self.formatException(record.exc_info))  # type: ignore[arg-type]
        return json.dumps(line, default=str)


def dress(handlers: Iterable[logging.Handler], log_format: LogFormat) -> None:
    """Have handlers write in this format, with ids, with secrets masked, and with a full disk told once."""
    logging.raiseExceptions = (
        False  # a log on a full disk would write a traceback for each line that it cannot write
    )
    for handler in handlers:
        handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
        for kind in (OncePerTrouble, ContextFilter, RedactingFilter):
            if not any(isinstance(one, kind) for one in handler.filters):
                handler.addFilter(kind())


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… [{len(text) - _LONGEST} more characters]"


def _one_line(text: str) -> str:
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in _shortened(text))
