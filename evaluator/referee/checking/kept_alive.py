"""A few outputs of timed calls live on while a shape is timed: memory of a living tensor is nobody's to use again.

That outputs survive two later calls is seen when a module is checked. A ring of some hundreds of outputs made beforehand passes
that, and a block has fewer calls: it saves what allocating takes, and whoever keeps results longer (a list of logits, a graph of
autograd) finds others in them. So of some blocks one call's outputs are kept, here as a copy and in the process alive, until
timing at the shape ends or until others take their place; then both must be alike. Which call it is the process is told when the
block is over, and how long it is kept nobody knows. Who uses memory again that nobody holds does no harm, and passes.

Processes of baselines keep as many outputs of the same calls, unlooked at: a living output keeps the memory before it in the heap,
where it costs less to have it again.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

from evaluator.referee.memory.sizes import MOST_HELD
from evaluator.referee.session.outcome import Rejected, where
from evaluator.referee.sides.block import Block
from evaluator.referee.sides.open_shape import OpenShape
from evaluator.referee.sides.side import Side
from evaluator.roles.frames import TensorMeta
from evaluator.verdict import Finding

_CALL_SECONDS = 60.0
#: As soon as all places are taken, one block in so many gets somebody's place.
_REPLACED = 4
#: Fewer are kept where they are larger than this together (on the host, on a device).
_HELD_BYTES = (64 << 20, 256 << 20)


@dataclass(frozen=True)
class _Draw:
    """Of a block: which part of its calls is before the one that is kept, and in whose place; no place to keep none."""

    part: float
    place: int | None


@dataclass(frozen=True)
class _Kept:
    """Outputs of one timed call, as they were when its block was over."""

    number: int
    block: Block
    call: int
    spans: list[Any]


def most_held(side: Side, metas: tuple[TensorMeta, ...]) -> int:
    """Of how many timed calls a process can keep outputs like these beside those of a block.

    On a GPU they take a quarter at most of what a block of so many calls leaves of the pool.
    """
    fit = _HELD_BYTES[side.gpu] // max(sum(meta.span_bytes for meta in metas), 1)
    if side.gpu:
        return min(MOST_HELD, side.most_calls(metas) // 4, max(fit, 1))
    return max(min(MOST_HELD, fit), 2)


class Holding:
    """Who is kept at one shape, of the candidate's and of its rivals' calls.

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
        #: Of each process: its blocks so far, and who has which place.
        self._blocks: dict[Side, int] = {}
        self._places: dict[Side, dict[int, _Kept]] = {}
        #: Whose place was taken, not looked at yet.
        self._displaced: list[_Kept] = []

    @property
    def begun(self) -> bool:
        """Whether outputs are kept from now on."""
        return self._most > 0

    def draw(self, side: Side, calls: int) -> int:
        """The call of a block that is over which is looked at: the kept one, if it keeps one, so that it need be copied once."""
        draw = self._draw_of(side)
        return secrets.randbelow(calls) if draw.place is None else int(draw.part * calls)

    def _draw_of(self, side: Side) -> _Draw:
        """Alike for the blocks of both sides that have the same number, so that both heaps look alike."""
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
        """A block is over, of which these are copies of the call's outputs: keeps them, if it was drawn so."""
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

    def look(self) -> None:
        """Compares what was displaced. It may ask the candidate's process, so this belongs before one of its own turns.

        Raises:
            Rejected: it is not what it was.
        """
        displaced, self._displaced = self._displaced, []
        self._compare(displaced)
        self._side.let_go([kept.number for kept in displaced])

    def finish(self) -> None:
        """Compares all that is still kept.

        Raises:
            Rejected: something is not what it was.
        """
        self.look()
        self._compare(list(self._places.get(self._side, {}).values()))

    def let_go(self) -> None:
        """Nobody need keep anything any more."""
        for side in self._places:
            side.let_go()
        self._places = {}

    def _compare(self, all_kept: list[_Kept]) -> None:
        side = self._side
        for kept in all_kept:
            now = side.kept_now(kept.number, kept.block, kept.call, _CALL_SECONDS)
            # A process that is asked where they are may name another number of them.
            pairs = [
                (span, then)
                for index, (span, then) in enumerate(zip(now, kept.spans, strict=False))
                if index not in self._shape.aliased
            ]
            if len(now) != len(kept.spans) or not side.same(
                [span for span, _ in pairs], [then for _, then in pairs]
            ):
                sentence = (
                    f"at {where(self._shape)} an output of a timed call was overwritten by a later one, while it was still "
                    "held: results must be fresh tensors, allocated in each call"
                )
                raise Rejected(
                    "contract_violation", sentence, (Finding("output_overwritten", "error", sentence),)
                )
