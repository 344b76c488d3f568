"""Parses server-sent events from bytes.

Lines end only at CR, LF or CRLF: a candidate's log line may contain other Unicode line separators, where `str.splitlines`
would split an event.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.client.errors import UnexpectedAnswer

MOST_BYTES = 16 << 20  # per event; our services never send more
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the very end may be half of a CRLF


@dataclass(frozen=True)
class ServerEvent:
    """One event: name, data, and the id to resume after. If the server requests a pause, only `retry_ms` is set."""

    name: str = "message"
    data: str = ""
    id: str | None = None
    retry_ms: int | None = None


def events_of(pieces: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Yield the events of a stream; drops an incomplete event at the end.

    Raises:
        UnexpectedAnswer: an event is larger than `MOST_BYTES`.
    """
    fields: dict[str, list[str]] = {}
    size = 0
    for line in _lines(pieces):
        size += len(line)
        if size > MOST_BYTES:
            raise UnexpectedAnswer("the stream of events holds one that is too large")
        if line:
            name, _, value = line.decode("utf-8", "replace").partition(":")
            fields.setdefault(name, []).append(value.removeprefix(" "))
            continue
        yield from _event(fields)
        fields, size = {}, 0


def _event(fields: dict[str, list[str]]) -> Iterator[ServerEvent]:
    retry = fields.get("retry", [""])[-1]
    if retry.isascii() and retry.isdigit() and len(retry) < 8:
        yield ServerEvent(retry_ms=int(retry))
    if "data" in fields:
        yield ServerEvent(
            name=fields.get("event", ["message"])[-1],
            data="\n".join(fields["data"]),
            id=fields["id"][-1] if "id" in fields else None,
        )


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        *whole, rest = _LINE_END.split(rest + piece)
        yield from whole
        if len(rest) > MOST_BYTES:
            raise UnexpectedAnswer("the stream of events holds a line that is too long")
