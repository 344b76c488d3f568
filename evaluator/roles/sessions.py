"""The members of a process session: without a namespace, everything that a role has started."""

from __future__ import annotations

import os


def members_of(session: int) -> list[int]:
    """Process ids of a session; none if it is not known yet."""
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
