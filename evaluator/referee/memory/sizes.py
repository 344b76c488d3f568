"""How much device memory a process shares with the referee: what its open shapes need, and no more.

A block of calls rotates over slots, one for the inputs of each call, and keeps the outputs of all of them. What a
call needs beyond that is measured once, when the reference is built. With small tensors a process gets the usual
amount, which fits blocks of many calls. With large tensors it gets what one or two calls need: the number of slots
shrinks, never the shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evaluator.content.pools import TensorInput

#: Enough for graph replays of kernels of a few microseconds to fill a block. Slots are made when they are needed.
MOST_SLOTS = 1024
#: Share of the usual outputs memory for torch's pool of timed calls. The rest is for copies.
_POOL_SHARE = 2 / 3
#: One part in this many of the pool holds a block's outputs: a call allocates more than it returns.
_OUTPUT_PARTS = 2
#: Copies that exist at one time when a call is checked: its own outputs or, for the survival check, those of the
#: two calls before it. For the reference: two float64 results.
_COPIES = {"reference": 5, "others": 2}
#: Calls at a large shape whose gradients are kept at one time: the one that is compared, and the reference's own.
_GRADIENT_COPIES = 2
#: How many tensors, as large as a call's inputs and outputs together, a module may have in the pool beside its
#: outputs.
_TEMPORARIES = 8
#: Most timed calls whose outputs are kept alive beside those of a block, see
#: :mod:`evaluator.referee.checking.kept_alive`.
MOST_KEPT = 4
#: Torch's pool takes pieces of 2 and 20 MiB from it, for each stream.
_LEAST_OUTPUTS_BYTES = 256 << 20
_LEAST_INPUTS_BYTES = 16 << 20
_ALIGNMENT, _GAP_BYTES = 64, 64
#: A referee's regions belong to its reference, its candidate, the control, and one ended process whose memory is
#: kept. Together they may take two thirds of a referee's part of a GPU. The rest is for contexts (0.5 GiB each)
#: and modules' own allocations.
_PROCESSES = 4
_REGIONS_SHARE = 2 / 3
#: A shape is large if its outputs or inputs take more. Its outputs are compared in pieces and not copied, and its
#: baselines are timed in the session's own process.
_LARGE_OUTPUTS_BYTES, _LARGE_INPUTS_BYTES = 256 << 20, 1 << 30
#: Bytes of a float64 expectation of a shape that is not large, in multiples of the float32 output.
_ORACLE = 24
#: For a large shape: pool memory beyond the measured peak (rounding to pieces, and a candidate's temporaries), and
#: room for float64 copies of parts of outputs.
_SPARE_BYTES, _PART_BYTES = 256 << 20, 768 << 20
#: What both have of these, with the referee's own pieces of contents and outputs.
_FIXED_BYTES = 2 * (_SPARE_BYTES + _PART_BYTES) + (3 << 30)
_SPARE_SHARE = {"reference": 0.25, "others": 0.5}
#: Fewest calls in a block at a shape that is not large.
_FEWEST_CALLS = 2
#: For other shapes, the most that temporaries may add by their number alone.
_MOST_TEMPORARIES_BYTES = 1 << 30


@dataclass(frozen=True)
class MemorySize:
    """Bytes of the memory that a process shares with the referee: slots, torch's pool, and copies behind the pool."""

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
        """How many slots of ``each_bytes`` fit."""
        return min(self.inputs_bytes // max(each_bytes, 1), MOST_SLOTS)

    def calls(self, each_bytes: int) -> int:
        """How many timed calls with outputs of ``each_bytes`` can all be kept; at least 1."""
        return max(1, self.pool_bytes // _OUTPUT_PARTS // max(each_bytes, 1))


def split(inputs_bytes: int, outputs_bytes: int) -> MemorySize:
    """Divides a usual outputs amount into pool and copies."""
    pool_bytes = int(outputs_bytes * _POOL_SHARE)
    return MemorySize(inputs_bytes, pool_bytes, outputs_bytes - pool_bytes)


@dataclass(frozen=True)
class ShapeNeeds:
    """The memory that one shape needs.

    Attributes:
        slot_bytes: of one slot.
        outputs_bytes: of the outputs of one call.
        peak_bytes: what a call of the reference takes beside its inputs and weights, including outputs; 0 if not
            measured.
        weights_bytes: of the module.
        gradients_bytes: of those outputs that are gradients. Autograd's own thread allocates them, which does not use the pool,
            so they are copied.
    """

    slot_bytes: int
    outputs_bytes: int
    peak_bytes: int = 0
    weights_bytes: int = 0
    gradients_bytes: int = 0

    @property
    def large(self) -> bool:
        """Whether it is checked in pieces."""
        return self.outputs_bytes > _LARGE_OUTPUTS_BYTES or self.slot_bytes > _LARGE_INPUTS_BYTES

    def fits(self, budget_bytes: int) -> bool:
        """Whether reference and candidate fit side by side. The referee holds the weights once more."""
        return self._both_bytes <= budget_bytes

    @property
    def _both_bytes(self) -> int:
        """Bytes of reference and candidate side by side, and of the referee."""
        both_bytes = 2 * (self.slot_bytes + self.peak_bytes + self.weights_bytes) + self.weights_bytes
        fixed_bytes = _FIXED_BYTES + 2 * _GRADIENT_COPIES * self.gradients_bytes
        return both_bytes + (fixed_bytes if self.large else 0)

    @property
    def wanted_bytes(self) -> int:
        """What an evaluation takes without constraints.

        If a shape is not large, the control has a process too, and the oracle runs at the same time.
        """
        if self.large:
            return self._both_bytes
        reference, other = (self.least(_FEWEST_CALLS, of) for of in ("reference", "others"))
        weights_bytes = _PROCESSES * self.weights_bytes
        return reference.total_bytes + 2 * other.total_bytes + weights_bytes + _ORACLE * self.outputs_bytes

    def most_calls(self, usual_size: MemorySize, each_bytes: int) -> int:
        """Calls in the longest block, equal in every process: one at a large shape, otherwise as many as the usual
        amount holds.

        Args:
            usual_size: see :func:`usual`.
            each_bytes: of the outputs of one call.
        """
        if self.large:
            return 1
        return max(_FEWEST_CALLS, min(usual_size.slots(self.slot_bytes), usual_size.calls(each_bytes)))

    def least(self, calls: int, of: str = "others") -> MemorySize:
        """Memory needed to time blocks of ``calls`` and to check single calls.

        Args:
            calls: of a block.
            of: the ``reference``, or ``others``.
        """
        peak_bytes = max(self.peak_bytes, self.outputs_bytes)
        if self.large:
            pool_bytes = (
                (calls - 1) * self.outputs_bytes + int(peak_bytes * (1 + _SPARE_SHARE[of])) + _SPARE_BYTES
            )
            copies_bytes = _PART_BYTES + calls * _GRADIENT_COPIES * self.gradients_bytes
            return MemorySize(calls * self.slot_bytes, pool_bytes, copies_bytes)
        by_number_bytes = _TEMPORARIES * (self.slot_bytes + self.outputs_bytes)
        measured_bytes = int(peak_bytes * (1 + _SPARE_SHARE[of])) + _SPARE_BYTES * (peak_bytes > _SPARE_BYTES)
        temporaries_bytes = max(min(by_number_bytes, _MOST_TEMPORARIES_BYTES), measured_bytes)
        pool_bytes = _OUTPUT_PARTS * calls * self.outputs_bytes + temporaries_bytes
        pool_bytes += MOST_KEPT * self.outputs_bytes
        copies_bytes = _COPIES[of] * (self.outputs_bytes + (1 << 20)) + calls * self.gradients_bytes
        least = split(_LEAST_INPUTS_BYTES, _LEAST_OUTPUTS_BYTES)
        return least.or_larger(MemorySize(calls * self.slot_bytes, pool_bytes, copies_bytes))


def of_reference(needs: ShapeNeeds, usual_size: MemorySize) -> MemorySize:
    """What the reference's process gets for a shape.

    The usual amount, or more if blocks of two calls need it (of one call at a large shape).
    """
    if needs.large:
        return needs.least(1, "reference")
    return usual_size.or_larger(needs.least(_FEWEST_CALLS, "reference"))


def of_compiler(needs: ShapeNeeds) -> MemorySize:
    """What a compiling process needs for a shape: inputs of one call. Its calls are not timed."""
    return MemorySize(needs.slot_bytes, _LEAST_INPUTS_BYTES, _LEAST_INPUTS_BYTES)


def slot_bytes(tensors: Sequence[TensorInput]) -> int:
    """Bytes of a slot: all inputs of a call, each aligned, with a gap behind it."""
    return sum(-(-t.meta.span_bytes // _ALIGNMENT) * _ALIGNMENT + _GAP_BYTES for t in tensors)


def of_shapes(shapes: Iterable[tuple[ShapeNeeds, int]]) -> MemorySize:
    """What a process needs to time blocks of the given numbers of calls at each of these shapes."""
    size = split(_LEAST_INPUTS_BYTES, _LEAST_OUTPUTS_BYTES)
    for needs, calls in shapes:
        size = size.or_larger(needs.least(calls))
    return size


def usual(total_bytes: int, share_bytes: int, referees: int) -> MemorySize:
    """The least that the reference's process of a task gets if ``referees`` share a GPU.

    Args:
        total_bytes: of the GPU.
        share_bytes: most that either piece may be.
        referees: how many share it, including this one.
    """
    each_bytes = int(total_bytes * _REGIONS_SHARE) // (referees * _PROCESSES * 2)
    return split(min(share_bytes, each_bytes), min(share_bytes, each_bytes))
