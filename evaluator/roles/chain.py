"""Builds and binds `chain.c`: the digest and the refresh that chain the calls of a timed block, and fill inputs.

The same code runs in the roles (inside the clock) and in the referee (to check a claimed chain). Without a C
compiler, :class:`NumpyChain` does the same arithmetic; it is slower per call, equally for both sides.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

SOURCE = Path(__file__).with_name("chain.c")
_LOOP = SOURCE.with_name("loop.c")
WHOLE_BYTES = 16384
SAMPLES = 256
CHUNK_BYTES = 32
WHEN_BITS = 16
_MASK = (1 << 64) - 1


class Refresh(ctypes.Structure):
    """`refresh_t` of chain.c: addresses in this process, sizes in elements and bytes."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("pool", ctypes.c_void_p),
        ("item_bytes", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("pool_count", ctypes.c_uint64),
        ("stride", ctypes.c_uint64),
        ("keeps_zeros", ctypes.c_uint64),
    ]


class Python(ctypes.Structure):
    """`python_t` of loop.c. The caller that fills it keeps the objects alive."""

    _fields_ = [
        ("tensor_type", ctypes.py_object),
        ("flatten", ctypes.py_object),
        ("span_bytes", ctypes.py_object),
        ("data_ptr", ctypes.py_object),
        ("contract_error", ctypes.py_object),
    ]


Addresses = np.ndarray[Any, np.dtype[np.uint64]]


@dataclass(frozen=True)
class Windows:
    """Addresses of sources, and by how many bytes each is rolled; one of each per content."""

    sources: Addresses
    rolls_bytes: Addresses


def mask_words(length_bytes: int) -> int:
    """How many 64-bit words hold one bit for each chunk of a content."""
    chunks = (length_bytes + CHUNK_BYTES - 1) // CHUNK_BYTES
    return (chunks + 63) // 64


class Chain(Protocol):
    """Digest, refresh and fill over raw memory of this process."""

    def digest(self, address: int, length_bytes: int, state: int) -> int: ...
    def refresh(self, inputs: Any, count: int, state: int) -> None: ...
    def fill(
        self,
        address: int,
        stride_bytes: int,
        windows: Windows,
        others: Windows | None,
        masks: Addresses | None,
        length_bytes: int,
    ) -> None: ...


class CompiledChain:
    """Chain through the shared library built from `chain.c`, and the loop around calls from `loop.c`."""

    def __init__(self, library: str) -> None:
        loaded = ctypes.CDLL(library)
        self.digest = loaded.kw_digest
        self.digest.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
        self.digest.restype = ctypes.c_uint64
        self.refresh = loaded.kw_refresh
        self.refresh.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
        self.refresh.restype = None
        self._fill = loaded.kw_fill
        pointer, number = ctypes.c_void_p, ctypes.c_uint64
        self._fill.argtypes = [pointer, number, number, *[pointer] * 5, number]
        self._fill.restype = None
        # It holds the interpreter's lock, and an exception set there is raised here.
        self.walk = ctypes.PyDLL(library).kw_walk
        thing = ctypes.py_object
        self.walk.argtypes = [
            ctypes.POINTER(Python),
            thing,
            thing,
            pointer,
            number,
            number,
            number,
            thing,
            pointer,
        ]

    def fill(
        self,
        address: int,
        stride_bytes: int,
        windows: Windows,
        others: Windows | None,
        masks: Addresses | None,
        length_bytes: int,
    ) -> None:
        """Writes one rolled source after the other, ``stride_bytes`` apart, with the chunks of ``masks`` from
        ``others``.
        """
        mixed = [others.sources, others.rolls_bytes, masks] if others and masks is not None else [None] * 3
        at = [
            None if array is None else array.ctypes.data
            for array in (windows.sources, windows.rolls_bytes, *mixed)
        ]
        self._fill(address, stride_bytes, windows.sources.size, *at, length_bytes)


def now() -> int:
    """When a call returned, as bits that cannot be predicted; for use without the C loop."""
    return (time.perf_counter_ns() * 0x9E3779B97F4A7C15 & _MASK) >> 48


def stirred(state: int, when: int) -> int:
    """The state with which the digests begin for a call that returned at ``when``."""
    return _mix(state, when)


def marked(state: int, when: int) -> int:
    """The state after a call, from the digests' state and the time when it returned."""
    return state >> WHEN_BITS << WHEN_BITS | when


def when_of(state: int) -> int:
    """When the call returned after which this was the state."""
    return state & ((1 << WHEN_BITS) - 1)


def _mix(state: int, value: int) -> int:
    state = ((state ^ value) * 0x9E3779B97F4A7C15) & _MASK
    return state ^ (state >> 29)


class NumpyChain:
    """The same arithmetic in Python; used only without a C compiler."""

    def digest(self, address: int, length_bytes: int, state: int) -> int:
        data = ctypes.string_at(address, length_bytes)
        lanes = [(state + i) & _MASK for i in range(4)]
        if length_bytes <= WHOLE_BYTES:
            offset = 0
            while offset + 32 <= length_bytes:
                for i in range(4):
                    word = int.from_bytes(data[offset + 8 * i : offset + 8 * i + 8], "little")
                    lanes[i] = _mix(lanes[i], word)
                offset += 32
            for byte in data[offset:]:
                lanes[0] = _mix(lanes[0], byte)
        else:
            stride = length_bytes // SAMPLES
            offset = _mix(state, length_bytes) % (stride - 7)
            for i in range(SAMPLES):
                lanes[i & 3] = _mix(lanes[i & 3], int.from_bytes(data[offset : offset + 8], "little"))
                offset += stride
        return _mix(_mix(lanes[0], lanes[1]), _mix(lanes[2], lanes[3]))

    def refresh(self, inputs: Any, count: int, state: int) -> None:
        if isinstance(inputs, int):
            inputs = (Refresh * count).from_address(inputs)
        for index in range(count):
            entry = inputs[index]
            seed = _mix(state, index + 1)
            if entry.stride == 1:
                self._replace_all(entry, seed)
                continue
            source = seed % entry.pool_count
            for at in range((seed >> 32) % entry.stride, entry.count, entry.stride):
                _replace(entry, at, source)
                source = (source + 1) % entry.pool_count

    @staticmethod
    def _replace_all(entry: Refresh, seed: int) -> None:
        step, at = seed >> 32 | 1, seed & 0xFFFFFFFF
        for place in range(entry.count):
            _replace(entry, place, at * entry.pool_count >> 32)
            at = (at + step) & 0xFFFFFFFF

    def fill(
        self,
        address: int,
        stride_bytes: int,
        windows: Windows,
        others: Windows | None,
        masks: Addresses | None,
        length_bytes: int,
    ) -> None:
        for index in range(windows.sources.size):
            content = _rolled(windows, index, length_bytes)
            if others and masks is not None:
                bits = np.unpackbits(masks[index].view(np.uint8), bitorder="little")
                chosen = np.repeat(bits, CHUNK_BYTES)[:length_bytes] == 1
                content[chosen] = _rolled(others, index, length_bytes)[chosen]
            ctypes.memmove(address + index * stride_bytes, content.ctypes.data, length_bytes)


def _replace(entry: Refresh, at: int, source: int) -> None:
    width = entry.item_bytes
    if entry.keeps_zeros:
        held = ctypes.string_at(entry.data + width * at, width)
        if not any(held[:-1]) and not held[-1] & 0x7F:
            return
    ctypes.memmove(entry.data + width * at, entry.pool + width * source, width)


def _rolled(windows: Windows, index: int, length_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    source = np.frombuffer(ctypes.string_at(int(windows.sources[index]), length_bytes), dtype=np.uint8)
    return np.roll(source, -int(windows.rolls_bytes[index]))


def build(folder: Path, *sources: Path) -> str | None:
    """Compiles the referee's C files (by default chain and loop) into one library in ``folder``, once per content.

    Returns the library's path, None without a compiler. The code is trusted, and compiled before anything
    untrusted runs.
    """
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    sources = sources or (SOURCE, _LOOP)
    text = b"".join(source.read_bytes() for source in sources)
    target = folder / f"{sources[0].stem}-{hashlib.sha256(text).hexdigest()[:16]}.so"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        scratch = target.with_suffix(f".{os.getpid()}.tmp")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(scratch), *map(str, sources)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        os.chmod(scratch, 0o755)
        os.replace(scratch, target)
    return str(target)


def follows(chain: Chain, outputs: list[tuple[int, int]], state: int, claimed: int) -> bool:
    """Whether ``claimed`` can be the state after a call with these outputs (addresses and bytes) that began with
    ``state``.
    """
    when = when_of(claimed)
    state = stirred(state, when)
    for address, length_bytes in outputs:
        state = chain.digest(address, length_bytes, state)
    return marked(state, when) == claimed


@cache
def load(library: str | None) -> Chain:
    """The chain for this process, loaded once, so that a forked child needs no path to it."""
    return CompiledChain(library) if library else NumpyChain()
