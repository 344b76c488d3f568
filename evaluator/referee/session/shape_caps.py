"""Which shapes of a task are small and quick enough for the device, as reported by the task's process on fake
tensors.

The report only describes. A process that understates its needs hits the memory and time limits later.
"""

from __future__ import annotations

from typing import Any

from evaluator.devices.base import Caps
from evaluator.errors import ProtocolViolation
from evaluator.referee.sides.open_shape import freeze_dims
from evaluator.roles import protocol
from evaluator.roles.process import RoleProcess
from evaluator.shapes.space import Dims, IntegerDim, Space

_SECONDS = 60.0
_FIGURES = ("held_bytes", "written_bytes", "flops", "operations", "outputs")
#: A gradient takes about twice as long as the forward pass.
_BACKWARD = 3


class ShapeCaps:
    """The shapes of one task.

    Args:
        process: of the task.
        space: its dimensions.
        input_dims, init_dims: the dimensions that each of its functions takes.
        caps: of the device.
        backward: whether a call also computes gradients.
    """

    def __init__(
        self,
        process: RoleProcess,
        space: Space,
        input_dims: list[str],
        init_dims: list[str],
        caps: Caps,
        *,
        backward: bool,
    ) -> None:
        self._process = process
        self._space = space
        self._dims = {"input_dims": input_dims, "init_dims": init_dims}
        self._caps = caps
        self._passes = _BACKWARD if backward else 1
        self._costs: dict[tuple[tuple[str, Any], ...], dict[str, int] | None] = {}
        self._sizes: dict[tuple[tuple[str, Any], ...], int | None] = {}

    def sizes(self, shapes: list[Dims]) -> list[int | None]:
        """Bytes of all inputs, shape by shape; None where fake tensors cannot tell."""
        new = list(
            {freeze_dims(dims): dims for dims in shapes if freeze_dims(dims) not in self._sizes}.values()
        )
        for dims, size in zip(new, self._ask(protocol.SIZES, new) if new else [], strict=True):
            if size is not None and not (type(size) is int and size >= 0):
                raise ProtocolViolation("task_rejected", "the task's process sent no valid sizes")
            self._sizes[freeze_dims(dims)] = size
        return [self._sizes[freeze_dims(dims)] for dims in shapes]

    def small(self, shapes: list[Dims], cap_bytes: int) -> list[bool]:
        """Whether the inputs stay below ``cap_bytes``, shape by shape."""
        return [
            self._guessed_small(dims, cap_bytes) if size is None else size <= cap_bytes
            for dims, size in zip(shapes, self.sizes(shapes), strict=True)
        ]

    def fit(self, shapes: list[Dims], cap_bytes: int, share: float = 1.0) -> list[bool]:
        """Whether a shape is small and its call stays within the device's caps, as far as fake tensors can tell.

        Args:
            shapes: of the task.
            cap_bytes: of all inputs together.
            share: of the caps that a call may take.
        """
        small = self.small(shapes, cap_bytes)
        new = [
            dims
            for dims, is_small in zip(shapes, small, strict=True)
            if is_small and freeze_dims(dims) not in self._costs
        ]
        for dims, figures in zip(new, self._ask(protocol.COSTS, new) if new else [], strict=True):
            self._costs[freeze_dims(dims)] = None if figures is None else _numbers(figures)
        return [
            is_small and self._within(self._costs[freeze_dims(dims)], share)
            for dims, is_small in zip(shapes, small, strict=True)
        ]

    def _within(self, numbers: dict[str, int] | None, share: float) -> bool:
        return numbers is None or self._caps.allow(**numbers, passes=self._passes, share=share)

    def _ask(self, operation: int, shapes: list[Dims]) -> list[Any]:
        answer = self._process.request_json(operation, {"shapes": shapes, **self._dims}, _SECONDS)
        found = answer.get("shapes")
        if not isinstance(found, list) or len(found) != len(shapes):
            raise ProtocolViolation("task_rejected", "the task's process sent no valid sizes")
        return found

    def _guessed_small(self, dims: Dims, cap_bytes: int) -> bool:
        """The fallback if sizes cannot be probed: the product of all integer dimensions stays below a quarter of
        the cap.
        """
        elements = 1
        for name, dim in self._space.items():
            if isinstance(dim, IntegerDim):
                elements *= max(int(dims[name]), 1)
        return elements * 16 <= cap_bytes


def _numbers(figures: Any) -> dict[str, int]:
    try:
        return {name: int(figures[name]) for name in _FIGURES}
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ProtocolViolation("task_rejected", "the task's process sent no valid costs") from None
