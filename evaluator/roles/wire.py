"""Requests from the referee to its roles: a length, JSON text, and file descriptors beside the first byte."""

from __future__ import annotations

import os
import socket
import struct
from json import dumps, loads
from typing import Any

_LENGTH = struct.Struct("<I")
MAX_REQUEST_BYTES = 16 << 20


def send_request(channel: socket.socket, request: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
    """Sends one request; the receiver gets its own copies of the descriptors."""
    body = dumps(request).encode()
    if descriptors:
        socket.send_fds(channel, [_LENGTH.pack(len(body))], list(descriptors))
        channel.sendall(body)
    else:
        channel.sendall(_LENGTH.pack(len(body)) + body)


def receive_request(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Waits for one request; None when the referee has closed the channel."""
    head, descriptors, _, _ = socket.recv_fds(channel, _LENGTH.size, 16, socket.MSG_WAITALL)
    if len(head) < _LENGTH.size:
        for descriptor in descriptors:
            os.close(descriptor)
        return None
    (length,) = _LENGTH.unpack(head)
    parts, missing = [], length
    while missing:
        part = channel.recv(min(missing, 1 << 20))
        if not part:
            return None
        parts.append(part)
        missing -= len(part)
    return loads(b"".join(parts)), descriptors
