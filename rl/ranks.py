"""The processes of a run: `accelerate launch` or `torchrun` start several, and what each has found is brought together."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

Anything = TypeVar("Anything")
#: A rank whose candidates are slow to judge holds up all others: well above the time that a step's rewards may take.
TIMEOUT_S = 7200


class Ranks:
    """The processes of this run; one alone is a run, too."""

    def __init__(self) -> None:
        # Trainers make their own view of the same state later, with the same devices. Without being told that there are none, accelerate
        # looks for other ranks on GPUs alone, and each of several would take itself for the only one.
        self._state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(seconds=TIMEOUT_S))

    @property
    def count(self) -> int:
        """How many there are."""
        return int(self._state.num_processes)

    @property
    def number(self) -> int:
        """This one's, from 0."""
        return int(self._state.process_index)

    @property
    def first(self) -> bool:
        """Whether this is the one that writes."""
        return self.number == 0

    def share_of(self, total: int) -> int:
        """This rank's share of a number of things that all use at once: all shares together are the whole, or one each."""
        each, rest = divmod(total, self.count)
        return max(1, each + (self.number < rest))

    def wait(self) -> None:
        """For all to come here."""
        self._state.wait_for_everyone()

    def all(self, found: list[Anything]) -> list[Anything]:
        """What all have found, in the order of ranks."""
        return list(gather_object(found)) if self.count > 1 else list(found)

    def from_first(self, value: Any) -> Any:
        """The first one's value."""
        if self.count == 1:
            return value
        values = [value]
        broadcast_object_list(values, from_process=0)
        return values[0]
