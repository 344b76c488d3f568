"""Worker identities that let another process on the same machine detect a dead worker.

A lease's owner reads "<host>/<boot>-<pid namespace>/<pid>-<start time>". A process killed by SIGKILL cannot release its
rows; its identity lets another process free them at once instead of waiting for the lease to expire.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def machine() -> str:
    """Identifies this machine and pid namespace, the scope of a pid."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:  # without /proc no death can be detected, and leases expire instead
        boot, namespace = "unknown", str(os.getpid())
    return f"{socket.gethostname()}/{boot}-{namespace}"


def own_identity() -> str:
    """The identity of this process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> str:
    """The identity of a process on this machine."""
    return f"{machine()}/{pid}-{_start_ticks(pid)}"


def is_known_dead(owner: str) -> bool:
    """Whether `owner` ran on this machine and is gone; False if unknown."""
    place, _, process = owner.rpartition("/")
    pid, _, ticks = process.partition("-")
    if place != machine() or not pid.isdigit():
        return False
    found = _start_ticks(int(pid))
    return found is None or str(found) != ticks


def _start_ticks(pid: int) -> int | None:
    """Clock ticks from boot to a process's start, which detect pid reuse; None if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the process name before it may contain spaces and parentheses
    return None if fields[0] in "ZX" else int(fields[19])
