"""Estimates what a call of a task would take at a shape with fake tensors: nothing is computed or allocated.

Runs in the reference's process and only describes. :mod:`evaluator.referee.session.shape_caps` decides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

#: Limits: seconds for all shapes, and how many operations of one call are followed.
_SECONDS, _MOST_OPERATIONS = 3.0, 1024


class _TooMany(Exception):
    """More operations than are counted."""


class _Count(TorchDispatchMode):
    """Counts operations, their arithmetic and the bytes that they write."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._most = most
        self.operations = 0
        self.flops = 0
        self.written_bytes = 0
        self.largest_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        self.operations += 1
        if self.operations > self._most:
            raise _TooMany
        # A view writes nothing.
        made = _bytes(result) if not func.is_view else 0
        self.written_bytes += made
        self.largest_bytes = max(self.largest_bytes, made)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **(kwargs or {}), out_val=result))
        return result


def answer(model: type[nn.Module], module: ModuleType, request: dict[str, Any]) -> bytes:
    """What a call would take at each of some shapes as JSON, see :func:`of_call`; null where that is unknown."""
    until = time.monotonic() + _SECONDS
    answers = []
    for dims in request["shapes"]:
        init, given = ({name: dims[name] for name in request[key]} for key in ("init_dims", "input_dims"))
        in_time = time.monotonic() < until
        answers.append(_of_shape(model, module, init, given) if in_time else None)
    return json.dumps({"shapes": answers}).encode()


def _of_shape(
    model: type[nn.Module], module: ModuleType, init: dict[str, Any], given: dict[str, Any]
) -> dict[str, int] | None:
    return of_call(
        lambda: model(*module.get_init_inputs(**init)), lambda: module.get_inputs(**given), _MOST_OPERATIONS
    )


def of_call(
    build: Callable[[], nn.Module], inputs: Callable[[], Any], most_operations: int
) -> dict[str, int] | None:
    """Figures of one forward call; None if fake tensors cannot run it.

    Args:
        build: makes the module.
        inputs: makes its inputs.
        most_operations: the count ends at this number, which is then reported.

    Returns:
        ``held_bytes`` (weights, inputs, outputs and the largest intermediate), ``moved_bytes`` (weights, inputs
        and outputs, which any implementation moves), ``written_bytes``, ``flops``, ``operations`` and ``outputs``
        (elements of all of them).
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            model = build()
            given = list(inputs())
            state = _bytes([*model.parameters(), *model.buffers()])
            count = _Count(most_operations)
            outputs: Any = None
            try:
                with count:
                    outputs = model(*given)
            except _TooMany:
                pass
    except Exception:
        # Code that reads values, or that numpy feeds. The sampler then uses the inputs alone.
        return None
    moved = state + _bytes(given) + _bytes(outputs)
    return {
        "held_bytes": moved + count.largest_bytes,
        "moved_bytes": moved,
        "written_bytes": count.written_bytes,
        "flops": count.flops,
        "operations": count.operations,
        "outputs": sum(leaf.numel() for leaf in tree_leaves(outputs) if isinstance(leaf, torch.Tensor)),
    }


def _bytes(value: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))
