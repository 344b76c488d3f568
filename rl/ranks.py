"""The processes of a run, as started by `accelerate launch` or `torchrun`, and the exchange of their results."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object

Anything = TypeVar("Anything")
#: Ranks wait for the one with the slowest candidates: well above the time limit for a step's rewards.
TIMEOUT_S = 7200


class Ranks:
    """The processes of this run, one or several."""

    def __init__(self) -> None:
        # Trainers later create their own view of the same state with the same devices. Without an explicit `cpu`, accelerate looks for
        # other ranks only on GPUs, and each rank of a CPU run would take itself for the only one.
        self._state = PartialState(cpu=not torch.cuda.is_available(), timeout=timedelta(seconds=TIMEOUT_S))

    @property
    def count(self) -> int:
        """The number of ranks."""
        return int(self._state.num_processes)

    @property
    def number(self) -> int:
        """This rank's number, from 0."""
        return int(self._state.process_index)

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes the files."""
        return self.number == 0

    def share_of(self, total: int) -> int:
        """This rank's share of a total; the shares sum to the total, but each is at least 1."""
        each, rest = divmod(total, self.count)
        return max(1, each + (self.number < rest))

    def wait(self) -> None:
        """Wait until all ranks get here."""
        self._state.wait_for_everyone()

    def all(self, found: list[Anything]) -> list[Anything]:
        """Concatenate the lists of all ranks, in rank order."""
        return list(gather_object(found)) if self.count > 1 else list(found)

    def from_first(self, value: Any) -> Any:
        """Rank 0's value, on all ranks."""
        if self.count == 1:
            return value
        values = [value]
        broadcast_object_list(values, from_process=0)
        return values[0]
