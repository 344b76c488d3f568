"""How long a client may take to say what it wants.

A connection costs an open file, of which a process has few. Whoever opens hundreds and sends a byte now and then would have
them all, so a request's head and its body each must have come after a while. How fast an answer is read is not looked at.
"""

from __future__ import annotations

import asyncio
import resource
import time

import h11
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

_FILES_KEPT_BACK = 128
_MOST_CONNECTIONS = 4096


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which closes a connection whose request's head does not come.

    It also holds a head to 64 KiB, which uvicorn's other protocol, taken where `httptools` is installed, does not.
    """

    head_seconds = 10.0
    _head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See uvicorn."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """See uvicorn."""
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._head_came()
        elif self._head_due is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """See uvicorn."""
        self._head_came()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(self.head_seconds, self._give_up)

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _give_up(self) -> None:
        self._head_due = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def patient(head_seconds: float) -> type[PatientProtocol]:
    """The protocol that waits so long for a head."""
    return type("PatientProtocol", (PatientProtocol,), {"head_seconds": head_seconds})


def timed(receive: Receive, seconds: float) -> Receive:
    """`receive` that waits for a body no longer than `seconds` in all; for what follows the body it waits as long as ever.

    Raises:
        HTTPException: 408, out of the awaited call.
    """
    left, whole = seconds, False

    async def receive_in_time() -> Message:
        nonlocal left, whole
        if whole:
            return await receive()
        began = time.monotonic()
        try:
            message = await asyncio.wait_for(receive(), left)
        except TimeoutError:
            headers = {"Connection": "close"}
            raise HTTPException(408, f"the body did not come within {seconds:g} s", headers) from None
        left -= time.monotonic() - began
        whole = not message.get("more_body", False)
        return message

    return receive_in_time


def most_connections() -> int:
    """How many connections there may be at a time, so that the process can still open files for itself."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(16, min(_MOST_CONNECTIONS, files - _FILES_KEPT_BACK))
