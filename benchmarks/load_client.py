"""A client that takes next to nothing from the machine on which it measures a service: HTTP/1.1 over kept connections.

A whole client library costs 4 to 5 ms of CPU time a request here (headers into objects, bodies unpacked), which at fifty a
second is as much as a small service's, on the same cores. This one knows what our own service sends and nothing else.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any

# uvicorn closes a connection after 5 s without a request
_KEPT_S = 3.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r", re.IGNORECASE)


@dataclass(frozen=True)
class Answer:
    """Status and length of a body in bytes, as it was transferred."""

    status: int
    body_bytes: int


class LoadClient:
    """Asks one address, over as many connections as there are requests under way.

    Args:
        url: ``http://host:port``.

    Attributes:
        under_way: how many requests have no answer yet.
    """

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self._host, self._port = host, int(port)
        self._head = f"Host: {host}:{port}\r\nAccept: */*\r\nAccept-Encoding: gzip\r\n"
        self.under_way = 0
        self._rested: list[tuple[float, asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, path: str) -> Answer:
        """GET; raises OSError or asyncio.IncompleteReadError where no whole answer comes."""
        return await self._ask(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())

    async def post(self, path: str, body: bytes) -> Answer:
        """POST of JSON; raises as `get`."""
        head = f"POST {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        return await self._ask(head.encode() + body)

    async def _ask(self, request: bytes) -> Answer:
        self.under_way += 1
        try:
            return await self._answer(request)
        finally:
            self.under_way -= 1

    async def _answer(self, request: bytes) -> Answer:
        reader, writer = await self._connection()
        try:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            length, chunked = _LENGTH.search(head), _CHUNKED.search(head)
            if length:
                body_bytes = int(length[1])
                await reader.readexactly(body_bytes)
            else:
                body_bytes = await _chunks_bytes(reader) if chunked else 0
        except BaseException:
            writer.close()
            raise
        self._rested.append((time.monotonic(), reader, writer))
        return Answer(int(head[9:12]), body_bytes)

    async def _connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._rested:
            since, reader, writer = self._rested.pop()
            if time.monotonic() - since < _KEPT_S and not reader.at_eof():
                return reader, writer
            writer.close()
        return await asyncio.open_connection(self._host, self._port, limit=1 << 20)

    def close(self) -> None:
        """Close all connections."""
        while self._rested:
            self._rested.pop()[2].close()

    def __enter__(self) -> LoadClient:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


async def _chunks_bytes(reader: asyncio.StreamReader) -> int:
    found = 0
    while size := int(await reader.readline(), 16):
        await reader.readexactly(size + 2)
        found += size
    await reader.readline()
    return found
