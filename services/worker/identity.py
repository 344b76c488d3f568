"""Who a worker is, in a form that lets another process on the same machine tell that it is dead.

A lease's owner reads "<host>/<boot>-<pid namespace>/<pid>-<start time>". A process that dies by SIGKILL says no farewell;
with this its rows are free at once instead of when the lease runs out.
"""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=1)
def machine() -> str:
    """This machine and pid namespace: where a pid means something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        namespace = os.readlink("/proc/self/ns/pid").strip("pid:[]")
    except OSError:  # no /proc: then nobody's death can be told from here, and leases simply run out
        boot, namespace = "unknown", str(os.getpid())
    return f"{socket.gethostname()}/{boot}-{namespace}"


def own_identity() -> str:
    """The identity of this process."""
    return identity_of(os.getpid())


def identity_of(pid: int) -> str:
    """The identity of a process of this machine."""
    return f"{machine()}/{pid}-{_start_ticks(pid)}"


def is_known_dead(owner: str) -> bool:
    """Whether `owner` ran on this machine and is gone; False when that cannot be known."""
    place, _, process = owner.rpartition("/")
    pid, _, ticks = process.partition("-")
    if place != machine() or not pid.isdigit():
        return False
    found = _start_ticks(int(pid))
    return found is None or str(found) != ticks


def _start_ticks(pid: int) -> int | None:
    """Clock ticks between boot and the start of a process (it tells a pid from its reuse); None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold spaces and brackets
    return None if fields[0] in "ZX" else int(fields[19])
