"""Device memory that runs out: what a process may count on, and whether the reference or the candidate took too much."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Iterable

from evaluator.devices import Device
from evaluator.errors import RoleFailure
from evaluator.referee.memory.lending import Lender
from evaluator.referee.memory.sizes import MemorySize, ShapeNeeds, usual
from evaluator.roles.process import RoleProcess
from evaluator.timing.memory_parts import PARTS

#: Of a task's parts of the memory, for processes that compile beside it; where referees share a device (True), less.
_COMPILERS_SHARE = {False: 0.4, True: 0.15}
#: What a process may count on, of all memory of a GPU. Who finds less has not asked for too much.
_PART = 1 / 4
#: Contexts with the code of their kernels: four or five of the first referee, and of each one that shares the device with it.
_CONTEXTS_BYTES, _OTHERS_CONTEXTS_BYTES = 3 << 30, 2 << 30
_END_SECONDS, _LOOK_SECONDS = 5.0, 0.02


class Room:
    """Who gets how much of one device, whatever number of referees shares it.

    Args:
        device: of the referee.
        referees: how many share it, this one among them.
    """

    def __init__(self, device: Device, referees: int) -> None:
        self.usual: MemorySize = usual(device.memory_bytes, device.share_bytes, referees)
        #: For the reference and a candidate side by side; the rest is for the contexts of processes.
        self.budget_bytes = device.memory_bytes - _CONTEXTS_BYTES
        self._shared = referees > 1
        contexts_bytes = min((referees - 1) * _OTHERS_CONTEXTS_BYTES, self.budget_bytes // 2)
        self._part_bytes = (self.budget_bytes - contexts_bytes) // PARTS
        #: Parts of the memory with which a task begins.
        self.parts = max(1, PARTS // (2 if referees == 1 else max(referees, 4)))

    def check(self, needs: ShapeNeeds, where: str) -> None:
        """Refuses a shape at which reference and candidate do not fit on the device side by side.

        Raises:
            RoleFailure: ``task_rejected``, with what it takes.
        """
        if not needs.fits(self.budget_bytes):
            taken_gib, half_gib = (
                value / (1 << 30)
                for value in (
                    needs.slot_bytes + needs.peak_bytes + needs.weights_bytes,
                    self.budget_bytes / 2,
                )
            )
            raise RoleFailure(
                "task_rejected",
                f"at {where} one call takes {taken_gib:.1f} GiB, and reference and candidate need as much side by side on a GPU that "
                f"has {half_gib:.1f} GiB for each: use smaller sizes, or a GPU with more memory",
                role="reference",
            )

    def parts_for(self, needs: Iterable[ShapeNeeds]) -> int:
        """How many parts of the memory an evaluation at these shapes takes, with processes that compile beside it."""
        wanted_bytes = max((need.wanted_bytes for need in needs), default=0)
        return min(PARTS, math.ceil(wanted_bytes / (1 - _COMPILERS_SHARE[self._shared]) / self._part_bytes))

    def compilers_bytes(self, parts: int, wanted_bytes: int) -> int:
        """What processes that compile may take of so many parts, beside an evaluation that takes so much."""
        of_parts = parts * self._part_bytes
        return max(1, int(min(of_parts * _COMPILERS_SHARE[self._shared], of_parts - wanted_bytes)))

    def can_tell(self, *, alone: bool) -> bool:
        """Whether what is free once a process is gone says what it could have had.

        Args:
            alone: nobody else computes meanwhile. Other referees of the device give memory back at any moment, and what they
                gave back would be taken for what there had been.
        """
        return alone or not self._shared


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
