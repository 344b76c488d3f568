"""Resource limits of one untrusted process."""

from __future__ import annotations

import resource
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits that the kernel enforces on a process and its children.

    Attributes:
        memory_bytes: private writable memory (RLIMIT_DATA) of each process; None if a GPU driver reserves more
            address space than the card has memory.
        processes: processes and threads of the sandbox's user.
        file_bytes: largest file that can be written.
    """

    memory_bytes: int | None = 8 << 30
    processes: int = 256
    file_bytes: int = 1 << 30

    def apply(self) -> None:
        """Applies the limits to this process permanently (hard limits)."""
        if self.memory_bytes is not None:
            _lower(resource.RLIMIT_DATA, self.memory_bytes)
            # Shared anonymous mappings do not count as data, so the address space is limited too. torch's
            # libraries and thread stacks map a few GiB without touching them.
            _lower(resource.RLIMIT_AS, self.memory_bytes + (8 << 30))
        _lower(resource.RLIMIT_NPROC, self.processes)
        _lower(resource.RLIMIT_FSIZE, self.file_bytes)
        _lower(resource.RLIMIT_NOFILE, 1024)
        _lower(resource.RLIMIT_CORE, 0)


def _lower(which: int, value: int) -> None:
    _, hard = resource.getrlimit(which)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(which, (value, value))
