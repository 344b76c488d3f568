"""One task's share of a GPU's memory while other tasks use the device too."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from evaluator.errors import DeviceFull
from evaluator.referee.memory.sizes import ShapeNeeds
from evaluator.referee.processes.fleet import Fleet
from evaluator.timing.memory_parts import Held

#: Longest wait for memory held by others. An evaluation may wait once more for the whole device. Together that is
#: less than a batch allows a referee beyond a deadline.
_MOST_WAIT_SECONDS = 300.0


class MoreMemoryNeeded(Exception):
    """An evaluation needs more parts of a GPU's memory than its task has.

    It restarts after the task has released its parts.
    """

    def __init__(self, parts: int) -> None:
        super().__init__(parts)
        self.parts = parts


class TaskMemory:
    """One task's share of a GPU's memory, in parts. Empty on a CPU."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._held: Held | None = None
        self._since_s = 0.0
        #: What the current evaluation takes, as far as it is known.
        self._wanted_bytes = 0

    @property
    def held_s(self) -> float:
        """For how many seconds it has held them."""
        return time.monotonic() - self._since_s if self._held is not None else 0.0

    @property
    def parts(self) -> int:
        """How many parts it has."""
        return self._held.count if self._held is not None else 0

    def take(self, parts: int, make_room: Callable[[], None]) -> None:
        """Waits until it has this many parts. Calls ``make_room`` before it waits.

        Raises:
            DeviceFull: others kept theirs for too long.
        """
        if self.parts >= parts:
            return
        self.give_back()
        self._held = self._fleet.memory_parts.take_now(parts)
        if self._held is None:
            make_room()
            self._held = self._fleet.memory_parts.take(parts, _MOST_WAIT_SECONDS)
        if self._held is None:
            sentence = f"other evaluations have had the GPU's memory for {_MOST_WAIT_SECONDS / 60:.0f} minutes; try again later"
            raise DeviceFull("not_judged", sentence)
        self._since_s = time.monotonic()

    def give_back(self) -> None:
        """Releases all parts, with the memory kept from ended processes: the next holder of these parts counts on
        it.
        """
        held, self._held = self._held, None  # another thread looking for parts may do the same
        if held is not None:
            if self._fleet.keeper is not None:
                self._fleet.keeper.give_back()
            held.close()

    def check(self, needs: Iterable[ShapeNeeds]) -> None:
        """Checks that the parts are enough for an evaluation at these shapes.

        Raises:
            MoreMemoryNeeded: they are not.
        """
        if self._held is None:
            return
        needs = list(needs)
        self._wanted_bytes = max((need.wanted_bytes for need in needs), default=0)
        parts = self._fleet.budget.parts_for(needs)
        if parts > self.parts:
            raise MoreMemoryNeeded(parts)

    def compilers_bytes(self) -> int:
        """What compiling processes may take; 0 on a CPU."""
        budget = self._fleet.budget
        return (
            budget.compilers_bytes(self.parts or budget.parts, self._wanted_bytes) if self._fleet.gpu else 0
        )
