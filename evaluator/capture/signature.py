"""The form of one call's arguments: shapes, strides, dtypes, and some statistics of their values.

No tensor is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

#: How many elements of a tensor are inspected for statistics of its values.
_LOOKED_AT = 1 << 16


class CaptureError(Exception):
    """A module cannot be watched or written as a task; the message says why and what to do."""


@dataclass(frozen=True)
class Values:
    """Statistics of a tensor's values, from at most 65536 of its elements.

    Attributes:
        low: smallest finite one.
        high: largest finite one.
        mean: of the finite ones.
        spread: standard deviation of the finite ones.
        zeros: share of elements that are zero (or False).
        infinite: share of elements that are minus infinity, as in additive masks.
        causal: the last two dimensions keep j <= i and mask the rest (False, zero or minus infinity).
    """

    low: float
    high: float
    mean: float
    spread: float
    zeros: float
    infinite: float
    causal: bool


@dataclass(frozen=True)
class Leaf:
    """A tensor among the arguments, in place of the tensor."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    #: Index of the first leaf of the call that is the same tensor object; usually itself.
    same_as: int


@dataclass(frozen=True)
class Foreign:
    """A value that is neither a tensor nor a plain value, named by its type."""

    type_name: str


Signature: TypeAlias = tuple[Any, ...]


def signature_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Signature, list[torch.Tensor]]:
    """A hashable description of a call's arguments, and its tensors in the order of its leaves.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
    """
    tensors: list[torch.Tensor] = []
    found = _describe(args, tensors), _describe(kwargs, tensors)
    return found, tensors


def _describe(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return Foreign(f"tensor of layout {value.layout}")
        same_as = next((at for at, other in enumerate(tensors) if other is value), len(tensors))
        tensors.append(value)
        return Leaf(tuple(value.shape), value.stride(), value.dtype, value.device.type, same_as)
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        # Include the type: 1, 1.0 and True are equal but make different programs.
        return (type(value).__name__, value)
    if type(value) in (tuple, list):
        return (type(value).__name__, *(_describe(item, tensors) for item in value))
    if type(value) is dict:
        return ("dict", *((str(key), _describe(item, tensors)) for key, item in value.items()))
    return Foreign(f"{type(value).__module__}.{type(value).__qualname__}")


def leaves_of(description: Any) -> list[Leaf]:
    """The tensors of a description, in order."""
    if isinstance(description, Leaf):
        return [description]
    if isinstance(description, tuple):
        return [leaf for item in description for leaf in leaves_of(item)]
    return []


def foreign_of(description: Any) -> list[str]:
    """Types of values that no task file can make."""
    if isinstance(description, Foreign):
        return [description.type_name]
    if isinstance(description, tuple):
        return [name for item in description for name in foreign_of(item)]
    return []


def without_sizes(description: Any) -> Any:
    """What two calls of one program have in common: everything but the lengths of dimensions."""
    if isinstance(description, Leaf):
        return ("tensor", len(description.shape), description.dtype, description.device, description.same_as)
    if isinstance(description, tuple):
        return tuple(without_sizes(item) for item in description)
    return description


def rebuild(description: Any, tensors: list[torch.Tensor]) -> Any:
    """The arguments of a description, with these tensors as its leaves; the list is consumed."""
    if isinstance(description, Leaf):
        return tensors.pop(0)
    kind, *items = description
    if kind == "dict":
        return {key: rebuild(item, tensors) for key, item in items}
    if kind in ("tuple", "list"):
        made = [rebuild(item, tensors) for item in items]
        return tuple(made) if kind == "tuple" else made
    return items[0]


def values_of(tensor: torch.Tensor) -> Values:
    """Inspects some of the values; waits for the device."""
    with torch.no_grad():
        flat = tensor.detach().reshape(-1)[:_LOOKED_AT]
        if flat.is_complex():
            flat = torch.view_as_real(flat).reshape(-1)
        seen = flat.to("cpu", torch.float64)
        finite = seen[torch.isfinite(seen)]
        if not finite.numel():
            finite = torch.zeros(1, dtype=torch.float64)
        count = max(seen.numel(), 1)
        return Values(
            low=float(finite.min()),
            high=float(finite.max()),
            mean=float(finite.mean()),
            spread=float(finite.std(correction=0)),
            zeros=int((seen == 0).sum()) / count,
            infinite=int((seen == -math.inf).sum()) / count,
            causal=_is_causal(tensor),
        )


def _is_causal(tensor: torch.Tensor) -> bool:
    if tensor.ndim < 2 or tensor.shape[-1] != tensor.shape[-2] or not 2 <= tensor.shape[-1] <= 256:
        return False
    last = tensor.detach()[(0,) * (tensor.ndim - 2)].cpu()
    below = torch.ones(last.shape, dtype=torch.bool).tril()
    if last.dtype == torch.bool:
        return bool((last == below).all()) or bool((last == ~below).all())
    return bool(((last == -math.inf) == ~below).all())
