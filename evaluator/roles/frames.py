"""Messages across the trust boundary: JSON from the referee to a role, fixed binary frames from a role to the
referee.

A role trusts the referee, so requests are plain JSON with file descriptors. The referee trusts no role, so a reply
is a header of fixed layout and a payload whose every number is checked here before use. Data from a role is never
unpickled, imported or evaluated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

#: ``[call][output]``, uint64.
Addresses = np.ndarray[Any, np.dtype[np.uint64]]

MAGIC = 0x4B575246
MAX_FRAME_BYTES = 1 << 20
_HEADER = struct.Struct("<IHHQI")
_META = struct.Struct("<BBxxxxxx8q8q")
_COUNT = struct.Struct("<IIQ")
_NUMBER = np.dtype("<u8")

STATUS_OK = 0
STATUS_ERROR = 1

#: The index in this tuple is the number on the wire; names are torch's.
DTYPES = (
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
ITEM_BYTES = (4, 8, 2, 2, 8, 4, 2, 1, 1, 1, 8, 16, 2, 4, 8, 1, 1)
MAX_DIMENSIONS = 8
#: With gradients of all parameters there may be many. A report of 384 calls must fit into a frame.
MAX_OUTPUTS = 256


@dataclass(frozen=True)
class CallSpec:
    """How a task is called, in the referee and in a role.

    Attributes:
        training: whether the module is in train mode.
        backward: whether a call is forward and backward. Then the last arguments are upstream gradients.
        differentiable: which outputs (in the order of :func:`evaluator.roles.blocks.flatten`) get an upstream gradient.
        gradients: names of the parameters whose gradients are outputs, after those of the inputs.
        buffers: names of the buffers that start each call with their loaded values and are outputs after it.
    """

    training: bool = False
    backward: bool = False
    differentiable: tuple[int, ...] = ()
    gradients: tuple[str, ...] = ()
    buffers: tuple[str, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> CallSpec:
        """Reads the referee's message."""
        return cls(
            fields["training"],
            fields["backward"],
            tuple(fields["differentiable"]),
            tuple(fields["gradients"]),
            tuple(fields["buffers"]),
        )

    @property
    def plain(self) -> bool:
        """Whether a call is only the module's forward."""
        return not self.backward and not self.buffers


class FrameError(ValueError):
    """The bytes are not a valid frame."""


@dataclass(frozen=True)
class TensorMeta:
    """Description of a strided tensor: dtype name, sizes and strides in elements."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @cached_property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count

    @cached_property
    def item_bytes(self) -> int:
        return ITEM_BYTES[DTYPES.index(self.dtype)]

    @cached_property
    def span_bytes(self) -> int:
        """Bytes from the first element to the end of the last one in memory."""
        if self.elements == 0:
            return 0
        reach = sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (reach + 1) * self.item_bytes

    @cached_property
    def contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= max(size, 1)
        return True


@dataclass(frozen=True)
class BlockReport:
    """What a role claims after a block of calls.

    Attributes:
        metas: one per output tensor, the same for every call of the block.
        addresses: ``addresses[call][output]`` in the role's own memory (CPU) or offsets into its arena (GPU).
        states: chain state after each call.
        structure: digest of the outputs' containers; 0 if not requested.
    """

    metas: tuple[TensorMeta, ...]
    addresses: tuple[tuple[int, ...], ...]
    states: tuple[int, ...]
    structure: int = 0


def encode(operation: int, status: int, sequence: int, payload: bytes) -> bytes:
    """One reply."""
    return _HEADER.pack(MAGIC, operation, status, sequence, len(payload)) + payload


HEADER_BYTES = _HEADER.size


def decode_header(header: bytes, operation: int, sequence: int) -> tuple[int, int]:
    """Checks the header of a reply and returns its status and the length of its payload in bytes.

    Raises:
        FrameError: wrong magic, length, status, operation or sequence number.
    """
    magic, got_operation, status, got_sequence, length = _HEADER.unpack(header)
    if magic != MAGIC or length > MAX_FRAME_BYTES or status not in (STATUS_OK, STATUS_ERROR):
        raise FrameError("malformed frame")
    if got_operation != operation or got_sequence != sequence:
        raise FrameError("frame answers another request")
    return status, length


def encode_meta(meta: TensorMeta) -> bytes:
    """Fixed-size form of a tensor description."""
    padding = (0,) * (MAX_DIMENSIONS - len(meta.shape))
    return _META.pack(
        DTYPES.index(meta.dtype), len(meta.shape), *meta.shape, *padding, *meta.strides, *padding
    )


def decode_meta(data: bytes, offset: int) -> TensorMeta:
    """Reads and checks a tensor description.

    Raises:
        FrameError: unknown dtype, too many dimensions, negative or absurd sizes or strides.
    """
    try:
        values = _META.unpack_from(data, offset)
    except struct.error as error:
        raise FrameError("truncated tensor description") from error
    dtype, dimensions, numbers = values[0], values[1], values[2:]
    if dtype >= len(DTYPES) or dimensions > MAX_DIMENSIONS:
        raise FrameError("unknown dtype or too many dimensions")
    shape = tuple(numbers[:dimensions])
    strides = tuple(numbers[MAX_DIMENSIONS : MAX_DIMENSIONS + dimensions])
    if any(not 0 <= size < 1 << 40 for size in shape) or any(not 0 <= stride < 1 << 40 for stride in strides):
        raise FrameError("sizes or strides out of range")
    meta = TensorMeta(DTYPES[dtype], shape, strides)
    if meta.elements >= 1 << 36 or meta.span_bytes >= 1 << 38:
        raise FrameError("tensor too large")
    return meta


def encode_report(
    metas: tuple[TensorMeta, ...],
    addresses: Addresses | list[list[int]],
    states: list[int],
    structure: int = 0,
) -> bytes:
    """Payload of a finished block; see :class:`BlockReport`. Fast, because the clock is running."""
    numbers = np.column_stack((np.array(states, dtype=_NUMBER), np.asarray(addresses, dtype=_NUMBER)))
    return b"".join(
        (
            _COUNT.pack(len(addresses), len(metas), structure),
            *map(encode_meta, metas),
            numbers.tobytes(),
        )
    )


def decode_report(payload: bytes, calls: int) -> BlockReport:
    """Reads and checks the report of a block of ``calls`` calls.

    Raises:
        FrameError: anything is off, including a wrong number of calls or spare bytes.
    """
    try:
        count, outputs, structure = _COUNT.unpack_from(payload)
    except struct.error as error:
        raise FrameError("truncated report") from error
    if count != calls or not 1 <= outputs <= MAX_OUTPUTS:
        raise FrameError("wrong number of calls or outputs")
    row = struct.Struct(f"<Q{outputs}Q")
    expected = _COUNT.size + outputs * _META.size + count * row.size
    if len(payload) != expected:
        raise FrameError("report has the wrong length")
    offset = _COUNT.size
    metas = []
    for _ in range(outputs):
        metas.append(decode_meta(payload, offset))
        offset += _META.size
    addresses, states = [], []
    for _ in range(count):
        state, *row_addresses = row.unpack_from(payload, offset)
        states.append(state)
        addresses.append(tuple(row_addresses))
        offset += row.size
    return BlockReport(tuple(metas), tuple(addresses), tuple(states), structure)
