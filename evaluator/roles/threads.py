"""The kernel's view of a process's threads: whether all are stopped, and whether one has run since.

**CPU time of a stopped process.** The kernel reports a thread as stopped a moment before it leaves its core. If a
virtual machine's core is taken away in that moment, or an interrupt is served, the time is charged to the thread:
on two such cores 0.5 to 2 ms about once in 5,000 stops, without any code of the process having run. So time alone
is no proof. A thread that really runs after a stop is scheduled onto a core again, and the kernel counts that
(``schedstat``, third figure).
"""

from __future__ import annotations

import os
import time

_MAX_OPEN_FILES = 64
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
