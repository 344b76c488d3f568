"""Numbers the outputs that a process keeps alive, see :mod:`evaluator.referee.checking.kept_alive`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evaluator.referee.sides.block import Block


class KeptCalls:
    """The part of a side that numbers kept outputs. The process learns of it whenever it gets ready."""

    def __init__(self) -> None:
        #: By number: which call of the block that had just ended.
        self.kept: dict[int, int] = {}
        self._last = 0

    def keep(self, call: int) -> int:
        """Has the process keep the outputs of a call of the last block. Returns their number."""
        self._last += 1
        self.kept[self._last] = call
        return self._last

    def let_go(self, numbers: Sequence[int] | None = None) -> None:
        """Lets the process release these outputs (or all)."""
        for number in list(self.kept) if numbers is None else numbers:
            del self.kept[number]

    def outputs(self, block: Block, call: int) -> list[Any]:
        """Private copies of the outputs of one call: flat spans in memory order, in their carrier dtypes."""
        raise NotImplementedError

    def kept_now(self, number: int, block: Block, call: int, deadline_s: float) -> list[Any]:
        """The current values of outputs kept under a number; see :meth:`outputs`."""
        return self.outputs(block, call)
