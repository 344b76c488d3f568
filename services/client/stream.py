"""Server-sent events out of bytes.

Lines end at CR, LF or CRLF and nowhere else: a log line of a candidate may hold any other separator that Unicode knows, and
`str.splitlines` would cut an event there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from services.client.errors import UnexpectedAnswer

MOST_BYTES = 16 << 20  # of one event; who sends more is no service of ours
_LINE_END = re.compile(rb"\r\n|\n|\r(?!\Z)")  # a CR at the very end may be half of a CRLF


@dataclass(frozen=True)
class ServerEvent:
    """One event: its name, its data, and the id to resume after it. `retry_ms` alone is set where the server asks for a pause."""

    name: str = "message"
    data: str = ""
    id: str | None = None
    retry_ms: int | None = None


def events_of(pieces: Iterable[bytes]) -> Iterator[ServerEvent]:
    """Events of a stream; one that is cut off at the end is left out.

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
