"""The kernel's view of an untrusted process: its threads (whether all are stopped, and whether one has run since), its
session, and which of its memory is shared.

**CPU time of a stopped process.** The kernel reports a thread as stopped a moment before it leaves its core. If a
virtual machine's core is taken away in that moment, or an interrupt is served, the time is charged to the thread:
on two such cores 0.5 to 2 ms about once in 5,000 stops, without any code of the process having run. So time alone
is no proof. A thread that really runs after a stop is scheduled onto a core again, and the kernel counts that
(``schedstat``, third figure).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

_MAX_OPEN_FILES = 64
#: Bits of an entry (Documentation/admin-guide/mm/pagemap.rst of Linux).
_PRESENT, _OF_FILE = np.uint64(1 << 63), np.uint64(1 << 61)
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
#: Larger ranges are not inspected, since their entries take 8 bytes a page.
_MOST_BYTES = 8 << 30
#: CPUCLOCK_SCHED of the kernel's clock ids. With the complement of a process id above it, that process's CPU
#: clock.
_CPU_CLOCK_OF_PROCESS = 2


class Threads:
    """The threads of one process.

    Args:
        pid: of the process, as the referee sees it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        #: Open files of its threads, by thread and name, and the thread that last delayed a stop.
        self._files: dict[tuple[str, str], int] = {}
        self._running = ""
        self._cpu_ns_seen = 0
        self._turns_seen: dict[str, int] | None = None

    def all_stopped(self) -> bool:
        """Whether the kernel reports every thread as stopped. The one that still ran last time is checked first.

        Raises:
            ProcessLookupError: the process is gone.
        """
        if (self._running, "stat") in self._files and not self._is_stopped(self._running):
            return False
        for thread in self._every():
            if not self._is_stopped(thread):
                self._running = thread
                return False
        return True

    def begin_rest(self) -> None:
        """All threads are stopped: from now on nothing should run."""
        self._cpu_ns_seen = self._cpu_ns()
        self._turns_seen = self._turns()

    def ran_ns(self) -> int:
        """CPU time in ns used since the rest began or since the last call, by threads that were scheduled again."""
        now_ns = self._cpu_ns()
        grown_ns, self._cpu_ns_seen = max(0, now_ns - self._cpu_ns_seen), now_ns
        if not grown_ns:
            return 0
        before, self._turns_seen = self._turns_seen, self._turns()
        try:
            rested = before is not None and before == self._turns_seen and self.all_stopped()
        except ProcessLookupError:
            rested = False
        return 0 if rested else grown_ns

    def close(self) -> None:
        """Closes open files; safe to call more than once."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _every(self) -> list[str]:
        try:
            return os.listdir(f"/proc/{self._pid}/task")
        except FileNotFoundError:
            raise ProcessLookupError from None

    def _cpu_ns(self) -> int:
        """CPU time of all threads so far; a kernel clock that takes less than a microsecond to read."""
        try:
            return time.clock_gettime_ns((~self._pid << 3) | _CPU_CLOCK_OF_PROCESS)
        except OSError:
            return self._cpu_ns_seen

    def _turns(self) -> dict[str, int] | None:
        """How often each thread was scheduled onto a core so far; None if the kernel does not count.

        Per thread: a thread that ends takes its count along, which could hide in a sum that another one has run.
        """
        try:
            turns = {thread: int(self._read(thread, "schedstat").split()[2]) for thread in self._every()}
        except (OSError, IndexError, ValueError):
            return None
        return turns if all(turns.values()) else None

    def _is_stopped(self, thread: str) -> bool:
        try:
            state = self._read(thread, "stat").rpartition(b")")[2].split(None, 1)[0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        return state in (b"T", b"t")

    def _read(self, thread: str, name: str) -> bytes:
        """Reads a file of /proc.

        Opening it takes longer than reading, and this runs thousands of times, so files stay open.
        """
        key = (thread, name)
        try:
            if key not in self._files:
                self._files[key] = os.open(
                    f"/proc/{self._pid}/task/{thread}/{name}", os.O_RDONLY | os.O_CLOEXEC
                )
            return os.pread(self._files[key], 1024, 0)
        except (FileNotFoundError, ProcessLookupError):
            # That thread is gone. Its number may be reused, so close the descriptor too.
            if key in self._files:
                os.close(self._files.pop(key))
            raise
        finally:
            if len(self._files) > _MAX_OPEN_FILES and key in self._files:
                os.close(self._files.pop(key))


def members_of(session: int) -> list[int]:
    """Process ids of a session, which without a namespace is everything that a role has started; none if unknown."""
    members: list[int] = []
    if session <= 1:
        # Session 0 belongs to the kernel and the init process: never match it.
        return members
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session:
            members.append(int(name))
    return members


def may_be_shared(pid: int, address: int, length_bytes: int) -> bool:
    """Whether any part of a range may be shared with other processes. False only if all of it is surely private.

    The kernel reports for every page whether it belongs to a file, as shared memory does. Reading the list of all
    mappings takes 1 ms, since torch has a thousand of them; this takes 11 us (44 us for 16 MiB).

    Args:
        pid: of a process whose memory the caller may read.
        address: of the first byte.
        length_bytes: of the range.
    """
    if not length_bytes:
        return False
    if length_bytes > _MOST_BYTES:
        return True
    first, last = address // _PAGE_BYTES, (address + length_bytes - 1) // _PAGE_BYTES
    try:
        with open(f"/proc/{pid}/pagemap", "rb", buffering=0) as file:
            found = os.pread(file.fileno(), (last - first + 1) * 8, first * 8)
    except (OSError, OverflowError):
        return True
    if len(found) != (last - first + 1) * 8:
        return True
    # Nothing is known of a page that was never touched or was written to disk.
    return bool((np.frombuffer(found, dtype=np.uint64) & (_PRESENT | _OF_FILE) != _PRESENT).any())


def inside(pid: int, ranges: Sequence[tuple[int, int]], name: str) -> frozenset[int]:
    """Which ranges (address and bytes) are, at least in part, in an anonymous file of that name."""
    if not any(may_be_shared(pid, address, length_bytes) for address, length_bytes in ranges):
        return frozenset()
    label = f"memfd:{name}".encode()
    maps = Path(f"/proc/{pid}/maps").read_bytes().splitlines()
    ends = [line.split(b" ", 1)[0].split(b"-") for line in maps if label in line]
    shared = [(int(low, 16), int(high, 16)) for low, high in ends]
    return frozenset(
        index
        for index, (address, length_bytes) in enumerate(ranges)
        if any(address < high and address + length_bytes > low for low, high in shared)
    )
