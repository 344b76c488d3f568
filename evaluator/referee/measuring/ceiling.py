"""Nobody returns tensors in less time than this machine needs to write them.

A time below that is a fault of the measurement or a trick, until explained: results that were made before the clock started,
or memory that looks like more than there is (pages that are mapped again and again). The rate is the referee's own
measurement: the best of a cache and of memory, half as much again allowed. What a call reads is not looked at: nobody has to
read everything.
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
from evaluator.verdict import Finding

_SLACK = 1.5
#: How often a block is looked at again before anybody is accused.
_LOOKS = 7
#: What one core of the host writes at a time (in its own cache, in a shared one, in memory), and how often.
_HOST_WRITES = ((128 << 10, 400), (1 << 20, 60), (32 << 20, 4))
#: The best rate seen by each fleet.
_seen: WeakKeyDictionary[Fleet, float] = WeakKeyDictionary()
_PAGE_BYTES = 4096


def check_written(checker: Checker, calls: int, blocks: list[tuple[int, int]]) -> None:
    """Looks whether the candidate's blocks could have written what they returned.

    Args:
        checker: of the candidate; runs further blocks if there is doubt.
        calls: how long those are.
        blocks: nanoseconds and calls of those that were timed.

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
            f"a call took {took_ns / 1e3:.2f} us with the harness, and merely to write its outputs ({each_bytes} bytes) takes "
            f"{needed_ns / 1e3:.2f} us at {rate / 1e9:.0f} GB/s, the most that this machine was seen to write: they "
            "were not written within the call"
        )
        raise Rejected("cheating", sentence, (Finding("faster_than_memory", "cheat", sentence),))


def faster_than_memory(looks: list[tuple[int, int]], bytes_per_s: float) -> bool:
    """Whether blocks (nanoseconds, bytes that they must have written) beat the best rate of this machine beyond doubt.

    All but one must: a neighbor on the core slows single blocks.
    """
    return sum(elapsed_ns < _least_ns(length, bytes_per_s) for elapsed_ns, length in looks) >= len(looks) - 1


def _least_ns(length_bytes: float, bytes_per_s: float) -> float:
    return length_bytes / (_SLACK * bytes_per_s) * 1e9


def written_bytes(side: Side, block: Block) -> int:
    """Bytes that a block must have written for its outputs to be what they are.

    Memory that several outputs share counts once; that of inputs, and gaps between elements, not at all. On a CPU pages that
    are zero throughout may never have been written: the operating system hands them out like that.
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
    """Bytes of a tensor's elements: fewer than it spans where there are gaps, and than it has where it is expanded."""
    return min(meta.span_bytes, meta.elements * meta.item_bytes)


def _used_share(side: Side, block: Block, inputs: frozenset[int]) -> float:
    """Share of the pages of one call's outputs in which anything but zeros lies."""
    call = secrets.randbelow(block.calls)
    used = pages = 0
    outputs = zip(side.outputs(block, call), block.report.addresses[call], strict=True)
    for index, (span, address) in enumerate(outputs):
        if index in inputs:
            continue
        # Within a page at either end nothing is known.
        whole = span.view(np.uint8)[-address % _PAGE_BYTES :]
        whole = whole[: whole.size // _PAGE_BYTES * _PAGE_BYTES].reshape(-1, _PAGE_BYTES)
        used += int(whole.any(axis=1).sum())
        pages += len(whole)
    return used / pages if pages else 0.0


def write_rate(fleet: Fleet, *, again: bool = False) -> float:
    """Bytes per second that the fleet's device can write at best: measured once by the referee, or once more (``again``)."""
    if again or fleet not in _seen:
        now = fleet.threads * _host_rate() if fleet.keeper is None else fleet.keeper.write_rate()
        _seen[fleet] = max(now, _seen.get(fleet, 0.0))
    return _seen[fleet]


def _host_rate() -> float:
    """Bytes per second that one thread writes at its best. All together write to their own caches as fast, never faster."""
    rates = []
    for length_bytes, tries in _HOST_WRITES:
        memory = ctypes.create_string_buffer(length_bytes)
        rates.append(length_bytes / min(_fill_ns(memory, length_bytes) for _ in range(tries)) * 1e9)
    return max(rates)


def _fill_ns(memory: ctypes.Array[ctypes.c_char], length_bytes: int) -> int:
    started = time.perf_counter_ns()
    ctypes.memset(memory, 1, length_bytes)
    return max(time.perf_counter_ns() - started, 1)
