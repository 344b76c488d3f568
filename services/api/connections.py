"""Limits on slow clients. Each connection costs a file descriptor, and a process has few.

A request's head and its body must each arrive within a time limit, and the operating system disconnects a client that does not
acknowledge response data.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import time
from collections.abc import Callable
from typing import Any

import h11
import uvicorn
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

_FILES_KEPT_BACK = 128
_MOST_CONNECTIONS = 4096
_GRACE_S = 0.1


class HeadTimeoutProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with a keep-alive timer that runs from the connection until a request's head is complete.

    uvicorn itself stops the timer at the first byte. The h11 protocol also limits a head to 64 KiB; `httptools` does not.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See uvicorn."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _unset_keepalive_if_required(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            super()._unset_keepalive_if_required()


def server_config(app: Callable[..., Any], head_seconds: float, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration; a connection without a complete request head is closed after `head_seconds`."""
    return uvicorn.Config(
        app,
        http=HeadTimeoutProtocol,
        ws="none",
        timeout_keep_alive=head_seconds,  # type: ignore[arg-type]  # passed on to `call_later`, which takes a float
        log_config=None,
        server_header=False,
        **options,
    )


def limit_unread_answers(listener: socket.socket, seconds: float) -> None:
    """Have the operating system close connections of `listener` whose client acknowledges no data for `seconds`."""
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(seconds * 1000))


def with_body_timeout(receive: Receive, seconds: float) -> Receive:
    """Wrap `receive` to wait at most `seconds` for the whole body, and without a limit after it.

    A route may start to read late. What has arrived by then is not too late, so the first message gets a short grace.

    Raises:
        HTTPException: 408, from the awaited call.
    """
    deadline, is_first, is_whole = time.monotonic() + seconds, True, False

    async def receive_in_time() -> Message:
        nonlocal is_first, is_whole
        if is_whole:
            return await receive()
        try:
            left_s = deadline - time.monotonic()
            message = await asyncio.wait_for(receive(), max(left_s, _GRACE_S) if is_first else left_s)
        except TimeoutError:
            headers = {"Connection": "close"}
            raise HTTPException(408, f"the body did not come within {seconds:g} s", headers) from None
        is_first, is_whole = False, not message.get("more_body", False)
        return message

    return receive_in_time


def most_connections() -> int:
    """Return the limit on concurrent connections that leaves the process file descriptors for its own files."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if files == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(16, min(_MOST_CONNECTIONS, files - _FILES_KEPT_BACK))
