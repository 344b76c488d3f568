"""Limits of device memory, and what exceeded them: the reference, the candidate, or other programs."""

from __future__ import annotations

import math
import os
import select
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from evaluator.devices import Device
from evaluator.errors import RoleFailure
from evaluator.referee.memory.sizes import MemorySize, ShapeNeeds, usual
from evaluator.roles.process import RoleProcess
from evaluator.timing.memory_parts import PARTS

if TYPE_CHECKING:  # commands that do not judge load no torch
    from evaluator.referee.memory.lending import Lender

#: Share of a task's memory parts for processes that compile beside it; less if referees share a device (True).
_COMPILERS_SHARE = {False: 0.4, True: 0.15}
#: Share of a GPU's memory that a process can count on. A process that finds less has not asked for too much.
_PART = 1 / 4
#: Contexts with their kernels' code: four or five of the first referee, and of each one that shares the device
#: with it.
_CONTEXTS_BYTES, _OTHERS_CONTEXTS_BYTES = 3 << 30, 2 << 30
_END_SECONDS, _LOOK_SECONDS = 5.0, 0.02


class MemoryBudget:
    """Divides one device's memory, however many referees share it.

    Args:
        device: of the referee.
        referees: how many share it, including this one.
    """

    def __init__(self, device: Device, referees: int) -> None:
        self.usual: MemorySize = usual(device.memory_bytes, device.share_bytes, referees)
        #: For the reference and a candidate side by side. The rest is for the contexts of processes.
        self.budget_bytes = device.memory_bytes - _CONTEXTS_BYTES
        self._shared = referees > 1
        contexts_bytes = min((referees - 1) * _OTHERS_CONTEXTS_BYTES, self.budget_bytes // 2)
        self._part_bytes = (self.budget_bytes - contexts_bytes) // PARTS
        #: Number of memory parts with which a task begins.
        self.parts = max(1, PARTS // (2 if referees == 1 else max(referees, 4)))

    def check(self, needs: ShapeNeeds, where: str) -> None:
        """Refuses a shape at which reference and candidate do not fit on the device side by side.

        Raises:
            RoleFailure: ``task_rejected``, with the bytes it needs.
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
        """How many memory parts an evaluation at these shapes takes, with the processes that compile beside it."""
        wanted_bytes = max((need.wanted_bytes for need in needs), default=0)
        return min(PARTS, math.ceil(wanted_bytes / (1 - _COMPILERS_SHARE[self._shared]) / self._part_bytes))

    def compilers_bytes(self, parts: int, wanted_bytes: int) -> int:
        """Bytes for compiling processes out of ``parts``, beside an evaluation that takes ``wanted_bytes``."""
        of_parts = parts * self._part_bytes
        return max(1, int(min(of_parts * _COMPILERS_SHARE[self._shared], of_parts - wanted_bytes)))

    def can_tell(self, *, alone: bool) -> bool:
        """Whether the free memory after a process has ended shows what it could have had.

        Args:
            alone: no other referee uses the device meanwhile. Others may release memory at any moment, which would
                be mistaken for memory that was free before.
        """
        return alone or not self._shared


def had_its_part(lender: Lender, ended: list[RoleProcess]) -> bool:
    """Whether processes that ran out of memory had the share they can count on. Ends them.

    The memory that is free after they end was available to them. Their own claims do not count.
    """
    return _comes_free(lender, ended, lambda free_bytes, total_bytes: free_bytes >= _PART * total_bytes)


def held_most(lender: Lender, process: RoleProcess) -> bool:
    """Whether a process held more than half of the device's memory. Ends it."""
    before_bytes, _ = lender.free_bytes()
    return _comes_free(
        lender, [process], lambda free_bytes, total_bytes: free_bytes - before_bytes > total_bytes / 2
    )


def _comes_free(lender: Lender, ended: list[RoleProcess], enough: Callable[[int, int], bool]) -> bool:
    """Ends processes, and says whether the memory then free (of the total) is enough."""
    for process in ended:
        end = process.watch_end()
        process.close()
        _wait(end, process.pid)
    # A context's memory is released a moment after its process ends.
    until = time.monotonic() + _END_SECONDS / 10
    while not enough(*lender.free_bytes()):
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _wait(end: int, pid: int) -> None:
    """Waits until a killed process and all of its descendants are gone, for some seconds at most."""
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
    """Whether a process is more than a zombie."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return file.read(2) != b"0 "
    except OSError:
        return False
