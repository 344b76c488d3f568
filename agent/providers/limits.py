"""A transport that holds servers to limits: bytes of a body and seconds from request to last byte.

httpx's own timeout is one for each read: a server that sends a byte a second would never meet it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NoReturn
from urllib.request import getproxies, proxy_bypass

import httpx

MAX_BODY_BYTES = 8_000_000
"""A completion of 200 000 tokens with escapes is below 2 MB."""


class BodyTooLong(httpx.ReadError):
    """The server sent more than `MAX_BODY_BYTES`, or a body whose length cannot be told before it is unpacked."""


class LimitedTransport(httpx.BaseTransport):
    """An HTTP transport with limits.

    Args:
        address: where requests go; decides whether the environment's proxy is used.
        timeout_s: seconds from the request to the end of the body.
        max_body_bytes: see `MAX_BODY_BYTES`.
    """

    def __init__(self, address: str, timeout_s: float, max_body_bytes: int = MAX_BODY_BYTES) -> None:
        url = httpx.URL(address)
        proxy = None if proxy_bypass(url.host) else getproxies().get(url.scheme)
        self._transport = httpx.HTTPTransport(proxy=proxy)
        self._timeout_s = timeout_s
        self._max_body_bytes = max_body_bytes

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """See `httpx.BaseTransport.handle_request`."""
        deadline_s = time.monotonic() + self._timeout_s
        request.headers["Accept-Encoding"] = "identity"
        response = self._transport.handle_request(request)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            response.close()
            raise BodyTooLong("the body is compressed although that was not allowed", request=request)
        assert isinstance(response.stream, httpx.SyncByteStream)
        response.stream = _Limited(response.stream, request, deadline_s, self._max_body_bytes)
        return response

    def close(self) -> None:
        """Close all connections."""
        self._transport.close()


class _Limited(httpx.SyncByteStream):
    def __init__(self, stream: httpx.SyncByteStream, request: httpx.Request, deadline_s: float, most: int):
        self._stream = stream
        self._request = request
        self._deadline_s = deadline_s
        self._most = most

    def __iter__(self) -> Iterator[bytes]:
        read = 0
        for chunk in self._stream:
            read += len(chunk)
            if read > self._most:
                self._fail(BodyTooLong(f"the body is longer than {self._most} bytes", request=self._request))
            if time.monotonic() > self._deadline_s:
                self._fail(httpx.ReadTimeout("the body did not end in time", request=self._request))
            yield chunk

    def _fail(self, error: httpx.TransportError) -> NoReturn:
        self._stream.close()
        raise error

    def close(self) -> None:
        self._stream.close()
