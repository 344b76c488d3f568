"""Rejects times shorter than this machine needs to write the returned tensors.

Such a time is a measurement error or a trick until explained: results made before the clock started, or memory
that looks larger than it is (pages mapped repeatedly). The rate is the referee's own measurement: the best of
cache and memory, plus a margin of 50 %. Reads are not counted, because a call need not read everything.
"""

from __future__ import annotations

import ctypes
import secrets
import statistics
import time
from weakref import WeakKeyDictionary

import numpy as np

from evaluator.referee.measuring.verify import Checker
from evaluator.referee.processes.fleet import Fleet
from evaluator.referee.session.outcome import Rejected
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.side import Side
from evaluator.roles.frames import TensorMeta

_SLACK = 1.5
#: How often a block is measured again before a candidate is rejected.
_LOOKS = 7
#: How many bytes one core of the host writes at a time (in its own cache, in a shared one, in memory), and how
#: often.
_HOST_WRITES = ((128 << 10, 400), (1 << 20, 60), (32 << 20, 4))
#: The best rate seen by each fleet.
_seen: WeakKeyDictionary[Fleet, float] = WeakKeyDictionary()
_PAGE_BYTES = 4096


def check_written(checker: Checker, calls: int, blocks: list[tuple[int, int]]) -> None:
    """Checks whether the candidate's blocks could have written what they returned.

    Args:
        checker: of the candidate; runs more blocks if in doubt.
        calls: calls in each of those blocks.
        blocks: nanoseconds and calls of the timed blocks.

    Raises:
        Rejected: they could not, and neither could further ones.
    """
    fleet, side = checker.session.fleet, checker.side
    each_bytes = sum(_length_bytes(meta) for meta in checker.shape.output_metas)
    each_ns = statistics.median(elapsed_ns / count for elapsed_ns, count in blocks)
    if each_ns >= _least_ns(each_bytes, write_rate(fleet)):
        return
    looks = []
    for _ in range(_LOOKS):
        block = checker.run(calls)
        looks.append((block.elapsed_ns, written_bytes(side, block)))
        rate = write_rate(fleet, again=True)
    checker.compare_pending()
    if faster_than_memory(looks, rate):
        took_ns = statistics.median(elapsed_ns for elapsed_ns, _ in looks) / calls
        needed_ns = statistics.median(length for _, length in looks) / rate * 1e9 / calls
        sentence = (
            f"a call took {took_ns / 1e3:.2f} us with the harness, and writing its outputs ({each_bytes} bytes) alone takes "
            f"{needed_ns / 1e3:.2f} us at {rate / 1e9:.0f} GB/s, this machine's highest measured rate: they "
            "were not written within the call"
        )
        raise Rejected("cheating", "faster_than_memory", sentence)


def faster_than_memory(looks: list[tuple[int, int]], bytes_per_s: float) -> bool:
    """Whether blocks (nanoseconds, bytes that they must have written) beat this machine's best rate beyond doubt.

    All but one must: a neighbor on the core slows single blocks.
    """
    return sum(elapsed_ns < _least_ns(length, bytes_per_s) for elapsed_ns, length in looks) >= len(looks) - 1


def _least_ns(length_bytes: float, bytes_per_s: float) -> float:
    return length_bytes / (_SLACK * bytes_per_s) * 1e9


def written_bytes(side: Side, block: Block) -> int:
    """Bytes that a block must have written to produce its outputs.

    Memory shared by several outputs counts once. Memory of inputs and gaps between elements do not count. On a
    CPU, all-zero pages may never have been written: the operating system provides them.
    """
    report = block.report
    inputs = side.aliased(block)
    spans = sorted(
        (address, address + _length_bytes(meta))
        for row in report.addresses
        for index, (address, meta) in enumerate(zip(row, report.metas, strict=True))
        if index not in inputs
    )
    total = end = 0
    for first, last in spans:
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total if side.gpu else round(total * _used_share(side, block, inputs))


def _length_bytes(meta: TensorMeta) -> int:
    """Bytes of a tensor's elements, without gaps and without repeats of expanded dimensions."""
    return min(meta.span_bytes, meta.elements * meta.item_bytes)


def _used_share(side: Side, block: Block, inputs: frozenset[int]) -> float:
    """Share of the pages of one call's outputs that contain a nonzero byte."""
    call = secrets.randbelow(block.calls)
    used = pages = 0
    outputs = zip(side.outputs(block, call), block.report.addresses[call], strict=True)
    for index, (span, address) in enumerate(outputs):
        if index in inputs:
            continue
        # Parts of a page at either end cannot be judged.
        whole = span.view(np.uint8)[-address % _PAGE_BYTES :]
        whole = whole[: whole.size // _PAGE_BYTES * _PAGE_BYTES].reshape(-1, _PAGE_BYTES)
        used += int(whole.any(axis=1).sum())
        pages += len(whole)
    return used / pages if pages else 0.0


def write_rate(fleet: Fleet, *, again: bool = False) -> float:
    """The device's best write rate in bytes per second. Measured once per referee, or repeated with ``again``."""
    if again or fleet not in _seen:
        now = fleet.threads * _host_rate() if fleet.keeper is None else fleet.keeper.write_rate()
        _seen[fleet] = max(now, _seen.get(fleet, 0.0))
    return _seen[fleet]


def _host_rate() -> float:
    """Bytes per second that one thread writes at best. Threads with their own caches are never faster each."""
    rates = []
    for length_bytes, tries in _HOST_WRITES:
        memory = ctypes.create_string_buffer(length_bytes)
        rates.append(length_bytes / min(_fill_ns(memory, length_bytes) for _ in range(tries)) * 1e9)
    return max(rates)


def _fill_ns(memory: ctypes.Array[ctypes.c_char], length_bytes: int) -> int:
    started = time.perf_counter_ns()
    ctypes.memset(memory, 1, length_bytes)
    return max(time.perf_counter_ns() - started, 1)
