"""The protocol between the referee and user processes: operation numbers, variant names, kinds of errors, and requests.

A request is a length, JSON text, and file descriptors beside the first byte. Answers are in :mod:`evaluator.roles.frames`.
"""

from __future__ import annotations

import os
import socket
import struct
from json import dumps, loads
from typing import Any

_LENGTH = struct.Struct("<I")

(
    LOAD,
    DESCRIBE,
    SIZES,
    BUILD,
    IMPORT,
    BIND,
    READY,
    BLOCK,
    ORACLE,
    VARIANT,
    CLOSE,
    EXCHANGE,
    CAPTURE,
    FETCH,
    TOOL,
    PROBE,
    KERNELS,
    MUTE,
    ASKED,
    WAKE,
    KEEP,
    LANDMARKS,
    INSPECT,
    COSTS,
    HAND_OVER,
    RENEW,
    LIMITS,
) = range(1, 28)

#: Variant that returns an output made before: a block of it measures the harness alone.
NULL = "null"
#: Variant that does the minimum of any module: it is called, makes a new tensor and returns it.
LEAST = "least"

#: In the error message of a compiled baseline that would be eager under another name.
NOTHING_COMPILED = "torch.compile compiled nothing of it"

#: A module's answer to changed weights if it uses them; a module that `from_reference` made need not.
RENEWED = b"renewed"

#: Used in place of a precision tier: the module's own result.
OWN_RESULT = "own"
#: The same in its tier instead of full precision, widened.
OWN_IN_TIER = "own in tier"

#: In the message of an error that more shared memory would fix.
TOO_SMALL = "the memory shared with the referee is too small"

#: Prefix of the candidate's own kernels in a profile of its process.
OWN = "kernelwright_own::"

#: First byte of an error payload. :mod:`evaluator.roles.process` has the verdict words.
RUNTIME, MEMORY, CONTRACT, COMPILE = range(4)


class ContractError(Exception):
    """User code breaks the contract of its file format. The message is for the user."""


class BuildError(Exception):
    """A compiler refused the user's source. The message has its output."""


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
