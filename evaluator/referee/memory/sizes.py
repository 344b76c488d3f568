"""How much device memory a process shares with the referee: as much as the shapes that are opened in it need, and no more.

A block of calls rotates over slots, one for the inputs of each call, and keeps the outputs of all of them. What a call takes beside
that is measured once, when the reference is built. Where tensors are small a process gets a usual amount, in which blocks of
many calls fit. Where they are large it gets what one or two calls need: the number of slots shrinks, never the shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evaluator.content.pools import TensorInput

#: So that replays of kernels of some microseconds fill a block; slots are made when they are needed.
MOST_SLOTS = 1024
#: Of a usual amount for outputs, what torch's pool for timed calls gets. The rest is for copies.
_POOL_SHARE = 2 / 3
#: One part in so many of the pool holds the outputs of a block: a call makes more than what it returns.
_OUTPUT_PARTS = 2
#: Copies that are there at one time when a call is checked: its own outputs or, looked at again, those of the two before it. Of the
#: reference: two float64 results.
_COPIES = {"reference": 5, "others": 2}
#: Tensors as large as a call's inputs and outputs together that a module may have in the pool beside what it returns.
_TEMPORARIES = 8
#: Outputs of at most so many timed calls live on beside those of a block, see :mod:`evaluator.referee.checking.kept_alive`.
MOST_HELD = 4
#: Torch's pool takes pieces of 2 and 20 MiB from it, for each stream.
_LEAST_OUTPUTS_BYTES = 256 << 20
_LEAST_INPUTS_BYTES = 16 << 20
_ALIGNMENT, _GAP_BYTES = 64, 64
#: A referee's regions are its reference's, its candidate's, the control's and what is kept of a process that has ended: of a
#: referee's part of a GPU they may take two thirds. The rest is for contexts (0.5 GiB each) and what modules allocate.
_PROCESSES = 4
_REGIONS_SHARE = 2 / 3
#: A shape is large whose outputs or inputs take more: its outputs are compared in pieces and not copied, and its baselines are timed in
#: the session's own process.
_LARGE_OUTPUTS_BYTES, _LARGE_INPUTS_BYTES = 256 << 20, 1 << 30
#: What a float64 expectation takes of a shape that is not large, of the float32 output.
_ORACLE = 24
#: Of a large shape: what the pool has beyond the measured peak (rounding to pieces, and a candidate's temporaries), and the place for copies of
#: parts of outputs in float64.
_SPARE_BYTES, _PART_BYTES = 256 << 20, 768 << 20
#: What both have of these, with the referee's own pieces of contents and outputs.
_FIXED_BYTES = 2 * (_SPARE_BYTES + _PART_BYTES) + (3 << 30)
_SPARE_SHARE = {"reference": 0.25, "others": 0.5}
#: What blocks of every shape that is not large hold at least.
_FEWEST_CALLS = 2
#: Of others, at most so much for temporaries by their number alone.
_MOST_TEMPORARIES_BYTES = 1 << 30


@dataclass(frozen=True)
class MemorySize:
    """Bytes of the pieces of memory that a process shares with the referee: slots, torch's pool, and copies behind the pool."""

    inputs_bytes: int
    pool_bytes: int
    copies_bytes: int

    @property
    def outputs_bytes(self) -> int:
        """Pool and copies, which are one piece."""
        return self.pool_bytes + self.copies_bytes

    @property
    def total_bytes(self) -> int:
        return self.inputs_bytes + self.outputs_bytes

    def holds(self, wanted: MemorySize) -> bool:
        """Whether it is at least as large as another size in every part."""
        return (
            self.inputs_bytes >= wanted.inputs_bytes
            and self.pool_bytes >= wanted.pool_bytes
            and self.copies_bytes >= wanted.copies_bytes
        )

    def or_larger(self, other: MemorySize) -> MemorySize:
        """The larger of each part."""
        return MemorySize(
            max(self.inputs_bytes, other.inputs_bytes),
            max(self.pool_bytes, other.pool_bytes),
            max(self.copies_bytes, other.copies_bytes),
        )

    # -- what fits -----------------------------------------------------------------------------------------------

    def slots(self, each_bytes: int) -> int:
        """How many slots of so many bytes fit."""
        return min(self.inputs_bytes // max(each_bytes, 1), MOST_SLOTS)

    def calls(self, each_bytes: int) -> int:
        """Of how many timed calls with outputs of so many bytes all can be kept; at least one is tried."""
        return max(1, self.pool_bytes // _OUTPUT_PARTS // max(each_bytes, 1))


def split(inputs_bytes: int, outputs_bytes: int) -> MemorySize:
    """A usual amount for outputs, divided into pool and copies."""
    pool_bytes = int(outputs_bytes * _POOL_SHARE)
    return MemorySize(inputs_bytes, pool_bytes, outputs_bytes - pool_bytes)


@dataclass(frozen=True)
class ShapeNeeds:
    """What one shape takes.

    Attributes:
        slot_bytes: of one slot.
        outputs_bytes: of the outputs of one call.
        peak_bytes: that a call of the reference takes beside its inputs and weights, outputs among them; 0 if it was not measured.
        weights_bytes: of the module.
    """

    slot_bytes: int
    outputs_bytes: int
    peak_bytes: int = 0
    weights_bytes: int = 0

    @property
    def large(self) -> bool:
        """Whether it is looked at in pieces."""
        return self.outputs_bytes > _LARGE_OUTPUTS_BYTES or self.slot_bytes > _LARGE_INPUTS_BYTES

    def fits(self, budget_bytes: int) -> bool:
        """Whether reference and candidate have room side by side; the referee has the weights once more."""
        return self._both_bytes <= budget_bytes

    @property
    def _both_bytes(self) -> int:
        """Of reference and candidate side by side, and of the referee."""
        both_bytes = 2 * (self.slot_bytes + self.peak_bytes + self.weights_bytes) + self.weights_bytes
        return both_bytes + (_FIXED_BYTES if self.large else 0)

    @property
    def wanted_bytes(self) -> int:
        """What an evaluation takes at ease: of a shape that is not large the control has a process, too, and the oracle computes at once."""
        if self.large:
            return self._both_bytes
        reference, other = (self.least(_FEWEST_CALLS, 0, of) for of in ("reference", "others"))
        weights_bytes = _PROCESSES * self.weights_bytes
        return reference.total_bytes + 2 * other.total_bytes + weights_bytes + _ORACLE * self.outputs_bytes

    def most_calls(self, usual_size: MemorySize, each_bytes: int) -> int:
        """Calls of the longest block, the same in every process: one at a large shape, else as many as a usual amount holds.

        Args:
            usual_size: see :func:`usual`.
            each_bytes: of the outputs of one call.
        """
        if self.large:
            return 1
        return max(_FEWEST_CALLS, min(usual_size.slots(self.slot_bytes), usual_size.calls(each_bytes)))

    def least(self, calls: int, budget_bytes: int, of: str = "others") -> MemorySize:
        """Memory in which blocks of so many calls can be timed, and single ones be checked.

        Args:
            calls: of a block.
            budget_bytes: of the device, for reference and candidate together.
            of: the ``reference``, or ``others``.
        """
        peak_bytes = max(self.peak_bytes, self.outputs_bytes)
        if self.large:
            pool_bytes = (
                (calls - 1) * self.outputs_bytes + int(peak_bytes * (1 + _SPARE_SHARE[of])) + _SPARE_BYTES
            )
            return MemorySize(calls * self.slot_bytes, pool_bytes, _PART_BYTES)
        by_number_bytes = _TEMPORARIES * (self.slot_bytes + self.outputs_bytes)
        measured_bytes = int(peak_bytes * (1 + _SPARE_SHARE[of])) + _SPARE_BYTES * (peak_bytes > _SPARE_BYTES)
        temporaries_bytes = max(min(by_number_bytes, _MOST_TEMPORARIES_BYTES), measured_bytes)
        pool_bytes = _OUTPUT_PARTS * calls * self.outputs_bytes + temporaries_bytes
        pool_bytes += MOST_HELD * self.outputs_bytes
        copies_bytes = _COPIES[of] * (self.outputs_bytes + (1 << 20))
        least = split(_LEAST_INPUTS_BYTES, _LEAST_OUTPUTS_BYTES)
        return least.or_larger(MemorySize(calls * self.slot_bytes, pool_bytes, copies_bytes))


def of_reference(needs: ShapeNeeds, usual_size: MemorySize, budget_bytes: int) -> MemorySize:
    """What the reference's process gets for a shape: the usual amount, and more where blocks of two calls need it (one of a large shape)."""
    if needs.large:
        return needs.least(1, budget_bytes, "reference")
    return usual_size.or_larger(needs.least(_FEWEST_CALLS, budget_bytes, "reference"))


def of_compiler(needs: ShapeNeeds) -> MemorySize:
    """What a process needs that compiles for a shape: inputs of one call; its calls are not timed."""
    return MemorySize(needs.slot_bytes, _LEAST_INPUTS_BYTES, _LEAST_INPUTS_BYTES)


def slot_bytes(tensors: Sequence[TensorInput]) -> int:
    """Bytes of a slot: all inputs of a call, each aligned, with a gap behind it."""
    return sum(-(-t.meta.span_bytes // _ALIGNMENT) * _ALIGNMENT + _GAP_BYTES for t in tensors)


def of_shapes(shapes: Iterable[tuple[ShapeNeeds, int]], budget_bytes: int) -> MemorySize:
    """What a process needs in which blocks of so many calls are timed at each of these shapes."""
    size = split(_LEAST_INPUTS_BYTES, _LEAST_OUTPUTS_BYTES)
    for needs, calls in shapes:
        size = size.or_larger(needs.least(calls, budget_bytes))
    return size


def usual(total_bytes: int, share_bytes: int, referees: int) -> MemorySize:
    """What the reference's process of a task gets at least, where so many referees share a GPU.

    Args:
        total_bytes: of the GPU.
        share_bytes: most that either piece may be.
        referees: how many share it, this one among them.
    """
    each_bytes = int(total_bytes * _REGIONS_SHARE) // (referees * _PROCESSES * 2)
    return split(min(share_bytes, each_bytes), min(share_bytes, each_bytes))
