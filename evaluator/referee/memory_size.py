"""How much device memory a process shares with the referee: as much as the shapes that are opened in it need, and no more.

A block of calls rotates over slots, one for the inputs of each call, and keeps the outputs of all of them. How many calls
that can be is decided by the reference's process of a task, which gets a fixed amount; processes of candidates and
controls, whose shapes are all known when they start, get what blocks of so many calls need. The largest amount (a device's
share) is for tasks that turn out to need more, see :class:`evaluator.referee.room.Room`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evaluator.content.pools import TensorInput

#: So that replays of kernels of some microseconds fill a block; slots are made when they are needed.
MOST_SLOTS = 1024
#: Of the outputs' memory, what torch's pool for timed calls gets. The rest is for copies.
POOL_SHARE = 2 / 3
#: One part in so many of it holds the outputs of a block: half of the pool, since a call makes more than what it returns.
_OUTPUT_PARTS = 3
#: Copies that are there at one time when a call is checked: its own outputs or, looked at again, those of the two before it.
_COPIES = 2
#: Tensors as large as a call's inputs and outputs together that a module may have in the pool beside what it returns.
_TEMPORARIES = 8
#: Outputs of at most so many timed calls live on beside those of a block, see :mod:`evaluator.referee.held`.
MOST_HELD = 4
#: Torch's pool takes pieces of 2 and 20 MiB from it, for each stream.
_LEAST_OUTPUTS_BYTES = 256 << 20
_LEAST_INPUTS_BYTES = 16 << 20
_ALIGNMENT, _GAP_BYTES = 64, 64
#: A referee's regions are its reference's, its candidate's, the control's and what is kept of a process that has ended: of a
#: referee's part of a GPU they may take two thirds. The rest is for contexts (0.5 GiB each) and what modules allocate.
_PROCESSES = 4
_REGIONS_SHARE = 2 / 3


@dataclass(frozen=True)
class MemorySize:
    """Bytes of the two pieces of memory that a process shares with the referee."""

    inputs_bytes: int
    outputs_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.inputs_bytes + self.outputs_bytes

    def at_most(self, other: MemorySize) -> MemorySize:
        """This, cut to another size."""
        return MemorySize(
            min(self.inputs_bytes, other.inputs_bytes), min(self.outputs_bytes, other.outputs_bytes)
        )

    def serves(self, wanted: MemorySize) -> bool:
        """Whether memory of this size can be used where another one is wanted, without keeping much more than that."""
        enough = self.inputs_bytes >= wanted.inputs_bytes and self.outputs_bytes >= wanted.outputs_bytes
        return enough and self.total_bytes <= 2 * wanted.total_bytes

    # -- what fits -----------------------------------------------------------------------------------------------

    def slots(self, each_bytes: int) -> int:
        """How many slots of so many bytes fit; 0 if none does."""
        return min(self.inputs_bytes // each_bytes, MOST_SLOTS)

    def calls(self, each_bytes: int) -> int:
        """Of how many timed calls with outputs of so many bytes all can be kept; at least one is tried."""
        return max(1, self.outputs_bytes // _OUTPUT_PARTS // max(each_bytes, 1))


@dataclass(frozen=True)
class ShapeNeeds:
    """What one shape takes.

    Attributes:
        slot_bytes: of one slot.
        outputs_bytes: of the outputs of one call.
        calls: of the longest block.
    """

    slot_bytes: int
    outputs_bytes: int
    calls: int

    @property
    def size(self) -> MemorySize:
        """Memory in which blocks of so many calls can be timed, and single ones be checked."""
        temporaries_bytes = _TEMPORARIES * (self.slot_bytes + self.outputs_bytes)
        beside_bytes = temporaries_bytes + MOST_HELD * self.outputs_bytes
        timed_bytes = _OUTPUT_PARTS * self.calls * self.outputs_bytes + int(beside_bytes / POOL_SHARE)
        copied_bytes = int(_COPIES * (self.outputs_bytes + (1 << 20)) / (1 - POOL_SHARE))
        return MemorySize(self.calls * self.slot_bytes, max(timed_bytes, copied_bytes))


def slot_bytes(tensors: Sequence[TensorInput]) -> int:
    """Bytes of a slot: all inputs of a call, each aligned, with a gap behind it."""
    return sum(-(-t.meta.span_bytes // _ALIGNMENT) * _ALIGNMENT + _GAP_BYTES for t in tensors)


def of_shapes(shapes: Iterable[ShapeNeeds], most: MemorySize) -> MemorySize:
    """What a process needs in which these shapes are opened, at most what the reference's process has."""
    sizes = [shape.size for shape in shapes]
    inputs_bytes = max((size.inputs_bytes for size in sizes), default=0)
    outputs_bytes = max((size.outputs_bytes for size in sizes), default=0)
    least = MemorySize(max(inputs_bytes, _LEAST_INPUTS_BYTES), max(outputs_bytes, _LEAST_OUTPUTS_BYTES))
    return least.at_most(most)


def usual(total_bytes: int, share_bytes: int, referees: int) -> MemorySize:
    """What the reference's process of a task gets at first, where so many referees share a GPU.

    Args:
        total_bytes: of the GPU.
        share_bytes: most that either piece may be.
        referees: how many share it, this one among them.
    """
    each_bytes = int(total_bytes * _REGIONS_SHARE) // (referees * _PROCESSES * 2)
    return MemorySize(min(share_bytes, each_bytes), min(share_bytes, each_bytes))
