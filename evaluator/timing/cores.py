"""On a GPU machine: one core for the referee and the process whose turn it is, so that a block starts on an awake
core.

A process that is stopped and resumed on another core finds it idle, with cold caches. For a loop of 100 short
launches (0.7 ms), the 10th to 90th percentile of the times went from 733-1108 us to 706-768 us when the referee
and both sides shared one core (H200, 16 virtual cores, 80 blocks each). The referee works on it between the turns
and waits during them, so they do not disturb each other. All other work (compilers, checks of other candidates,
other referees outside their turn) stays off the cores of all devices.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Groups of consecutive cores, one for each device, from the last one down: the first cores get the machine's
#: interrupts.
_GROUP = 2
#: With fewer cores, none is reserved.
_MIN_CORES = 6


@functools.cache
def _allowed() -> tuple[int, ...]:
    """The cores that this process was given, read once before it restricts itself."""
    return tuple(sorted(os.sched_getaffinity(0)))


def core_for(device_index: int) -> int:
    """The core on which a device's measurements run."""
    cores = _allowed()
    return cores[-1 - (_GROUP * device_index) % len(cores)]


def set_apart(device_index: int, devices: int, cores: tuple[int, ...]) -> frozenset[int] | None:
    """The cores left besides those on which devices are timed, or None if there are too few to reserve any.

    Args:
        device_index: of the caller's device.
        devices: how many the machine has. If their cores would be more than half of all, only its own are left
            out.
        cores: all that there are, sorted.
    """
    if len(cores) < _MIN_CORES:
        return None
    count = devices if _GROUP * devices * 2 <= len(cores) else 1
    first = 0 if count > 1 else device_index
    taken = {
        cores[-1 - (_GROUP * index + place) % len(cores)]
        for index in range(first, first + count)
        for place in range(_GROUP)
    }
    return frozenset(cores) - taken


def beside(device_index: int, devices: int) -> frozenset[int] | None:
    """See :func:`set_apart`, for the cores of this process."""
    return set_apart(device_index, devices, _allowed())


def keep_to(cores: frozenset[int] | None) -> None:
    """Restricts the calling thread, and what it starts from now on, to these cores; None changes nothing."""
    if cores is not None:
        os.sched_setaffinity(0, cores)


def pin(pid: int, core: int) -> bool:
    """Keeps a process's main thread on a core and all others on its neighbor; False if that is not permitted.

    The driver's threads only sleep, but each has to run for a moment whenever the process is stopped or resumed.
    """
    return _allow(pid, {core}, {max(core - 1, 0)})


def unpin(pid: int, allowed: frozenset[int] | set[int]) -> bool:
    """Lets all threads of a process run on these cores."""
    return _allow(pid, allowed, allowed)


def _allow(pid: int, main: frozenset[int] | set[int], others: frozenset[int] | set[int]) -> bool:
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            os.sched_setaffinity(int(thread), main if int(thread) == pid else others)
    except OSError:
        return False
    return True


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Runs the calling thread only on this core meanwhile; None changes nothing."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
