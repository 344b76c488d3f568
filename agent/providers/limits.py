"""An HTTP transport that limits the bytes of a body and the seconds from request to last byte.

httpx applies its timeout to each read, so a server that sends one byte per second, in headers or body, never hits it.
Instead a timer shuts down the connection. Each request gets its own connection; the cost of a handshake is negligible
compared with a completion.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn
from urllib.request import getproxies, proxy_bypass

import httpx

MAX_BODY_BYTES = 8_000_000
"""A completion of 200 000 tokens with escapes is below 2 MB."""
MAX_STREAM_BYTES = 64_000_000
"""The same as a stream, in which each token is an event of up to 400 bytes."""


class BodyTooLong(httpx.ReadError):
    """The server sent more than the byte limit, or a compressed body, whose length is unknown until it is decompressed."""


class LimitedTransport(httpx.BaseTransport):
    """An HTTP transport with limits.

    Args:
        address: base URL of the requests; determines whether the environment's proxy is used.
        timeout_s: seconds from the request to the end of the body.
        max_body_bytes: see `MAX_BODY_BYTES`; streams of events may have `MAX_STREAM_BYTES`.
    """

    def __init__(self, address: str, timeout_s: float, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        url = httpx.URL(address)
        proxy = None if proxy_bypass(url.host) else getproxies().get(url.scheme)
        alone = httpx.Limits(max_keepalive_connections=0)
        self._transport = httpx.HTTPTransport(proxy=proxy, limits=alone)
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.BaseTransport.handle_request`."""
        request.headers["Accept-Encoding"] = "identity"
        deadline = _Deadline(self._timeout_s)
        request.extensions["trace"] = deadline.trace
        try:
            response = self._transport.handle_request(request)
        except BaseException as error:
            deadline.close()
            deadline.explain(error, request)
            raise
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            response.close()
            deadline.close()
            raise BodyTooLong("the body is compressed although that was not allowed", request=request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        is_stream = response.status_code == 200 and "json" not in response.headers.get("Content-Type", "")
        most = MAX_STREAM_BYTES if is_stream else self._max_body_bytes
        response.stream = _Limited(response.stream, request, deadline, most)
        return response

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()


class _Deadline:
    """Shuts down a request's connection at its deadline, even during a read."""

    def __init__(self, timeout_s: float) -> None:
        self._socket: socket.socket | None = None
        self._over = False
        self._lock = threading.Lock()
        self._timer = threading.Timer(timeout_s, self._end)
        self._timer.daemon = True
        self._timer.start()

    def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Trace callback of httpcore: records the connection's socket, or the TLS socket that wraps it."""
        if name.endswith((".connect_tcp.complete", ".start_tls.complete")):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                over = self._over
            if over:
                self._end()

    def _end(self) -> None:
        with self._lock:
            self._over = True
            connection = self._socket
        if connection is not None:
            try:
                # Not SSLSocket.shutdown, which discards the TLS state that the reading thread uses.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
            except OSError:
                return  # already closed

    def explain(self, error: BaseException, request: httpx.Request) -> None:
        """Raise `httpx.ReadTimeout` if this deadline broke the connection."""
        if self._over and isinstance(error, httpx.TransportError):
            raise httpx.ReadTimeout("the answer did not end in time", request=request) from None

    def close(self) -> None:
        """Cancel the timer: the request is over."""
        self._timer.cancel()


class _Limited(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, request: httpx.Request, deadline: _Deadline, most: int):
        self._stream = stream
        self._request = request
        self._deadline = deadline
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        read = 0
        try:
            for chunk in self._stream:
                read += len(chunk)
                if read > self._most:
                    self._fail(
                        BodyTooLong(f"the body is longer than {self._most} bytes", request=self._request)
                    )
                yield chunk
        except httpx.TransportError as error:
            self._deadline.explain(error, self._request)
            raise
        # A body without a length ends with its connection, so a shutdown looks like a normal end.
        self._deadline.explain(httpx.ReadError(""), self._request)

    def _fail(self, error: httpx.TransportError) -> NoReturn:
        self._stream.close()
        raise error

    def close(self) -> None:
        self._deadline.close()
        self._stream.close()
