"""How long a client may take to say what it wants, and to take what it is told.

A connection costs an open file, of which a process has few. Whoever opens hundreds and sends a byte now and then would have
them all, so a request's head and its body each must have come after a while. So would whoever asks and never reads: an answer
that does not fit into the system's buffers would wait for ever, and with it whatever makes it. Nothing of a connection tells
apart a reader who is slow from one who is gone, so what is asked for is some progress: 64 KiB in every such while, or all that is left.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import math
import resource
import termios
import time

import h11
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import H11Protocol

_FILES_KEPT_BACK = 128
_MOST_CONNECTIONS = 4096


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1, which closes a connection whose request's head does not come.

    It also holds a head to 64 KiB, which uvicorn's other protocol, taken where `httptools` is installed, does not. And it
    cuts off a client that takes nothing of its answer.
    """

    head_seconds = 10.0
    answer_seconds = 60.0
    _head_due: asyncio.TimerHandle | None = None
    _next_look: asyncio.TimerHandle | None = None
    _full = False
    _untaken_bytes: float = math.inf

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See uvicorn."""
        super().connection_made(transport)
        self._await_head()
        self._next_look = self.loop.call_later(self.answer_seconds, self._look)

    def pause_writing(self) -> None:
        """See asyncio: what was written and not taken has come to 64 KiB."""
        super().pause_writing()
        self._full = True

    def resume_writing(self) -> None:
        """See asyncio: of that, most was taken."""
        super().resume_writing()
        self._full, self._untaken_bytes = False, math.inf

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
        if self._next_look is not None:
            self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Abort if too little was taken since the last look; a connection that is closed waits to be rid of its rest, too."""
        waits = self._full or self.transport.is_closing()
        untaken_bytes = _untaken_bytes(self.transport) if waits else math.inf
        if untaken_bytes > self._untaken_bytes - HIGH_WATER_LIMIT:
            self.transport.abort()
            return
        self._untaken_bytes = untaken_bytes
        self._next_look = self.loop.call_later(self.answer_seconds, self._look)

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


def _untaken_bytes(transport: asyncio.Transport) -> int:
    """What was written and has not reached the other side: here, and in the system, which keeps megabytes more."""
    sent = array.array("i", [0])
    # the same request as of a terminal: bytes of a socket that nobody has acknowledged (man 7 tcp, SIOCOUTQ)
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, sent)
    return transport.get_write_buffer_size() + sent[0]


def patient(head_seconds: float, answer_seconds: float) -> type[PatientProtocol]:
    """The protocol that waits so long for a head, and once to twice so long for some of an answer to be taken."""
    given = {"head_seconds": head_seconds, "answer_seconds": answer_seconds}
    return type("PatientProtocol", (PatientProtocol,), given)


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
