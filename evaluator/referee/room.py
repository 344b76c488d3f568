"""Device memory that runs out: how much a task's processes get, and whose fault it is when there is not enough."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from evaluator.devices import Device
from evaluator.referee.memory_size import MemorySize, usual
from evaluator.roles.process import RoleProcess

if TYPE_CHECKING:
    from evaluator.referee.lent_memory import Lender

#: What a process may count on, of all memory of a GPU. Who finds less has not asked for too much.
_PART = 1 / 4
_END_SECONDS, _LOOK_SECONDS = 5.0, 0.02


class Room:
    """Who gets how much of one device, whatever number of referees shares it.

    Args:
        device: of the referee.
        referees: how many share it, this one among them.
    """

    def __init__(self, device: Device, referees: int) -> None:
        self.most = MemorySize(device.share_bytes, device.share_bytes)
        self.usual = usual(device.memory_bytes, device.share_bytes, referees)
        self._shared = referees > 1
        self._wide: set[str] = set()

    def of(self, task_sha256: str) -> MemorySize:
        """What the reference's process of a task gets, and no other process of it more."""
        return self.most if task_sha256 in self._wide else self.usual

    def can_tell(self, *, alone: bool) -> bool:
        """Whether what is free once a process is gone says what it could have had.

        Args:
            alone: nobody else computes meanwhile. Other referees of the device give memory back at any moment, and what they
                gave back would be taken for what there had been.
        """
        return alone or not self._shared

    def widen(self, task_sha256: str) -> bool:
        """From the next session on the task gets all that there is for one; False if it has had that."""
        if self.of(task_sha256) == self.most:
            return False
        self._wide.add(task_sha256)
        return True


def had_its_part(lender: Lender, ended: list[RoleProcess]) -> bool:
    """Whether processes that were told that memory had run out have had what they may count on; ends them.

    What is free once they are gone was theirs to take. What they say of it themselves is not asked.
    """
    return _comes_free(lender, ended, lambda free_bytes, total_bytes: free_bytes >= _PART * total_bytes)


def held_most(lender: Lender, process: RoleProcess) -> bool:
    """Whether a process held more than half of the device's memory; ends it."""
    before_bytes, _ = lender.free_bytes()
    return _comes_free(
        lender, [process], lambda free_bytes, total_bytes: free_bytes - before_bytes > total_bytes / 2
    )


def _comes_free(lender: Lender, ended: list[RoleProcess], enough: Callable[[int, int], bool]) -> bool:
    """Ends processes, and says whether what is free then (of all there is) is enough."""
    for process in ended:
        end = process.watch_end()
        process.close()
        _wait(end, process.pid)
    # Contexts' memory comes back a moment after their processes.
    until = time.monotonic() + _END_SECONDS / 10
    while not enough(*lender.free_bytes()):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _wait(end: int, pid: int) -> None:
    """Until a killed process and all of its descendants are gone, or for some seconds."""
    if end >= 0:
        select.select([end], [], [], _END_SECONDS)
        os.close(end)
        return
    until = time.monotonic() + _END_SECONDS
    while os.path.exists(f"/proc/{pid}/task/{pid}/maps") and time.monotonic() < until:
        if not _has_memory(pid):
            return
        time.sleep(_LOOK_SECONDS)


def _has_memory(pid: int) -> bool:
    """Whether a process is more than an entry that nobody has collected yet."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return file.read(2) != b"0 "
    except OSError:
        return False
