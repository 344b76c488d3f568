"""Logs: one line per event with request and job id, as text for people or JSON for a collector.

Context variables carry the ids: asyncio and `run_in_threadpool` propagate them, and code that starts a thread for a job must
run it in a copy of its context. `agent.redaction` masks secrets before formatting. Messages may contain untrusted text, so
line breaks within them are escaped.
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
    """Tag this task's log lines with a request, including the server's own lines after a failure."""
    _request_id.set(request_id)
    _job_id.set(job_id)


@contextmanager
def belonging_to(job_id: str) -> Iterator[None]:
    """Tag log lines within the block with this job or evaluation."""
    token = _job_id.set(job_id)
    try:
        yield
    finally:
        _job_id.reset(token)


class ContextFilter(logging.Filter):
    """Adds the ids of the current context to every record; never drops a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """See `logging.Filter.filter`."""
        record.request_id = _request_id.get()
        record.job_id = _job_id.get()
        return True


class TextFormatter(logging.Formatter):
    """Formats lines for people; `-` stands for no request or job."""

    def __init__(self) -> None:
        super().__init__(_TEXT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        """Format the first line with line breaks escaped; a traceback follows below it."""
        record.message = _one_line(record.message)
        record.shown_request = getattr(record, "request_id", None) or "-"
        record.shown_job = getattr(record, "job_id", None) or "-"
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: time, level, logger, message, request_id, job_id, and any exception or fields."""

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
    """Set the handlers' format and add ids, masking of secrets, and a single report of a full disk."""
    logging.raiseExceptions = (
        False  # on a full disk, logging would print a traceback for every line that it cannot write
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
