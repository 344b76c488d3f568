"""Keeps a few outputs of timed calls alive during timing: the memory of a live tensor must not be reused.

The correctness check sees whether outputs survive two later calls. A ring of several hundred preallocated outputs
passes that check, and a block has fewer calls than the ring. Such a ring saves the cost of allocation, but a
caller that keeps results longer (a list of logits, an autograd graph) finds them overwritten.

So for some blocks the outputs of one call are kept twice: as a copy here, and alive in the process. They stay
until timing at the shape ends or other outputs replace them. Both must then be equal. The process learns which
call it is after the block, and never how long it will be kept. Reusing freed memory is harmless and passes.

Baseline processes keep as many outputs of the same calls, without a comparison. Live outputs change the heap and
make allocation cheaper, so both sides need the same number.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from evaluator.referee.memory.sizes import MOST_KEPT
from evaluator.referee.session.outcome import Rejected
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import CALL_SECONDS, Side
from evaluator.roles.frames import TensorMeta

#: Once all places are taken, one block in this many replaces a kept output.
_REPLACED = 4
#: Fewer outputs are kept if together they exceed this many bytes (on the host, on a device).
_KEPT_BYTES = (64 << 20, 256 << 20)


@dataclass(frozen=True)
class _Draw:
    """For one block: which fraction of its calls precedes the kept one, and which place it takes.

    No place keeps none.
    """

    part: float
    place: int | None


@dataclass(frozen=True)
class _Kept:
    """Outputs of one timed call, as they were at the end of its block."""

    number: int
    block: Block
    call: int
    spans: list[Any]


def most_kept(side: Side, metas: tuple[TensorMeta, ...]) -> int:
    """How many timed calls' outputs of this size a process can keep, besides those of a block.

    On a GPU they take at most a quarter of the pool that is left after a block of that many calls.
    """
    fit = _KEPT_BYTES[side.gpu] // max(sum(meta.span_bytes for meta in metas), 1)
    if side.gpu:
        return min(MOST_KEPT, side.most_calls(metas) // 4, max(fit, 1))
    return max(min(MOST_KEPT, fit), 2)


class KeptOutputs:
    """The outputs kept at one shape, for calls of the candidate and of its rivals.

    Args:
        side: the candidate's.
        shape: where it is timed.
        most: how many are kept in each process; 0 for none.
    """

    def __init__(self, side: Side, shape: OpenShape, most: int) -> None:
        self._side = side
        self._shape = shape
        self._most = most
        self._draws: list[_Draw] = []
        #: For each process: the number of blocks so far, and which output is in which place.
        self._blocks: dict[Side, int] = {}
        self._places: dict[Side, dict[int, _Kept]] = {}
        #: Displaced outputs that have not been compared yet.
        self._displaced: list[_Kept] = []

    @property
    def begun(self) -> bool:
        """Whether outputs are kept from now on."""
        return self._most > 0

    def draw(self, side: Side, calls: int) -> int:
        """Which call of the finished block to check.

        It is the kept call, if there is one, so that it is copied only once.
        """
        draw = self._draw_of(side)
        return secrets.randbelow(calls) if draw.place is None else int(draw.part * calls)

    def _draw_of(self, side: Side) -> _Draw:
        """Equal for blocks of both sides with the same number, so that both heaps look alike."""
        number = self._blocks.setdefault(side, 0)
        while len(self._draws) <= number:
            self._draws.append(_Draw(secrets.randbits(32) / 2**32, self._free_place(len(self._draws))))
        return self._draws[number]

    def _free_place(self, number: int) -> int | None:
        if number < self._most:
            return number
        if self._most < 2 or secrets.randbelow(_REPLACED):
            return None
        # The first one stays until the end.
        return 1 + secrets.randbelow(self._most - 1)

    def note(self, side: Side, block: Block, call: int, spans: list[Any]) -> None:
        """Called after a block with copies of the call's outputs. Keeps them if this block was drawn."""
        place = self._draw_of(side).place
        self._blocks[side] += 1
        if place is None:
            return
        places = self._places.setdefault(side, {})
        displaced = places.get(place)
        if displaced is not None and side is self._side:
            self._displaced.append(displaced)
        elif displaced is not None:
            side.let_go([displaced.number])
        number = side.keep(call)
        places[place] = _Kept(number, block, call, spans if side is self._side else [])

    def compare_displaced(self) -> None:
        """Compares displaced outputs.

        It may query the candidate's process, so call it before one of that process's turns.

        Raises:
            Rejected: an output changed.
        """
        displaced, self._displaced = self._displaced, []
        self._compare(displaced)
        self._side.let_go([kept.number for kept in displaced])

    def finish(self) -> None:
        """Compares everything that is still kept.

        Raises:
            Rejected: an output changed.
        """
        self.compare_displaced()
        self._compare(list(self._places.get(self._side, {}).values()))

    def let_go(self) -> None:
        """Releases all kept outputs."""
        for side in self._places:
            side.let_go()
        self._places = {}

    def _compare(self, all_kept: list[_Kept]) -> None:
        side = self._side
        for kept in all_kept:
            now = side.kept_now(kept.number, kept.block, kept.call, CALL_SECONDS)
            # A process asked for the addresses may return a different number of them.
            pairs = [
                (span, then)
                for index, (span, then) in enumerate(zip(now, kept.spans, strict=False))
                if index not in self._shape.aliased
            ]
            if len(now) != len(kept.spans) or not side.same(
                [span for span, _ in pairs], [then for _, then in pairs]
            ):
                sentence = (
                    f"at {self._shape.where} an output of a timed call was overwritten by a later one, while it was still "
                    "held: results must be fresh tensors, allocated in each call"
                )
                raise Rejected("contract_violation", "output_overwritten", sentence)
