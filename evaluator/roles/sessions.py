"""Who belongs to a session of processes: where there is no namespace, all that a role has started."""

from __future__ import annotations

import os


def members_of(session: int) -> list[int]:
    """Process ids of a session; none of one that is not known yet."""
    members: list[int] = []
    if session <= 1:
        # Session 0 belongs to the kernel and to whoever started this machine: never match it.
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
