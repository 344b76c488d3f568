"""Text of `get_inputs`: tensors of the recorded shape, layout, dtype and kind of values."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from evaluator.capture.signature import Leaf, Values
from evaluator.capture.space import SeenSpace

#: Functions of the task file; each is written only if it is used.
HELPERS = {
    "_additive_mask": '''
def _additive_mask(shape, masked, dtype):
    """Minus infinity at a share of the places, zero elsewhere; the first of a row is never masked."""
    mask = torch.zeros(shape).masked_fill_(torch.rand(shape) < masked, -torch.inf)
    mask[..., 0] = 0.0
    return mask.to(dtype)
''',
}


def input_text(index: int, leaf: Leaf, values: Values | None, space: SeenSpace, notes: list[str]) -> str:
    """One tensor as an expression of the dimensions."""
    lengths = [space.length((index, dim), leaf) for dim in range(len(leaf.shape))]
    stored = list(lengths)
    expanded = [dim for dim, size in enumerate(leaf.shape) if size > 1 and leaf.stride[dim] == 0]
    for dim in expanded:
        stored[dim] = "1"
    # Which dimension is outermost in memory; those of length 1 may be anywhere.
    order = sorted(range(len(stored)), key=lambda dim: (-leaf.stride[dim] if stored[dim] != "1" else 0, dim))
    if all(
        leaf.stride[dim] in (0, stride) or stored[dim] == "1"
        for dim, stride in _strides(leaf, range(len(stored)))
    ):
        order = list(range(len(stored)))
    cut = ""
    pitch = _pitch(leaf, order, expanded)
    if pitch is None:
        notes.append(f"input {index + 1} had gaps in memory (strides {leaf.stride}); here it has none")
    elif order and pitch != leaf.shape[order[-1]]:
        if lengths[order[-1]].isdigit():
            cut = f"[..., :{lengths[order[-1]]}]"
            stored[order[-1]] = str(pitch)
        else:
            notes.append(
                f"input {index + 1} was a part of wider rows (strides {leaf.stride}); here it is not"
            )
    text = _drawn(leaf, values, _tuple([stored[dim] for dim in order]))
    if cut or order != sorted(order) or expanded:
        text = f"({text}){cut}"
    if order != sorted(order):
        inverse = sorted(range(len(order)), key=order.__getitem__)
        text += f".permute({', '.join(map(str, inverse))})"
    if expanded:
        text += f".expand({', '.join(lengths)})"
    return text


def _tuple(items: Sequence[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _strides(leaf: Leaf, order: Sequence[int]) -> list[tuple[int, int]]:
    """Each dimension with the stride it would have in this order without gaps."""
    found, stride = [], 1
    for dim in reversed(order):
        found.append((dim, stride))
        stride *= 1 if leaf.stride[dim] == 0 else max(leaf.shape[dim], 1)
    return found


def _pitch(leaf: Leaf, order: Sequence[int], expanded: Sequence[int]) -> int | None:
    """Elements from one innermost row to the next; None if the gaps are of another kind."""
    dims = [dim for dim in order if leaf.shape[dim] > 1 and dim not in expanded]
    if not dims:
        return leaf.shape[order[-1]] if order else 0
    if len(dims) < 2 or dims[-1] != order[-1]:
        return leaf.shape[order[-1]] if leaf.stride[dims[-1]] == 1 else None
    if leaf.stride[dims[-1]] != 1:
        return None
    pitch = expected = leaf.stride[dims[-2]]
    for dim in reversed(dims[:-1]):
        if leaf.stride[dim] != expected:
            return None
        expected *= leaf.shape[dim]
    return pitch


def _drawn(leaf: Leaf, values: Values | None, shape: str) -> str:
    dtype = str(leaf.dtype)
    if dtype == "torch.bool":
        if values is None or 0 < values.zeros < 1:
            if values is not None and values.causal:
                return f"torch.ones({shape}, dtype=torch.bool).{'tril()' if values.mean > 0.5 else 'triu(1)'}"
            return f"torch.rand({shape}) >= {number(values.zeros if values else 0.5)}"
        return f"torch.{'ones' if values.zeros == 0 else 'zeros'}({shape}, dtype=torch.bool)"
    if not (leaf.dtype.is_floating_point or leaf.dtype.is_complex):
        low, high = (int(values.low), int(values.high)) if values else (0, 1)
        return f"torch.randint({low}, {high + 1}, {shape}, dtype={dtype})"
    if values is not None and values.infinite:
        if values.causal:
            return f"torch.full({shape}, -torch.inf, dtype={dtype}).triu(1)"
        return f"_additive_mask({shape}, {number(values.infinite)}, {dtype})"
    made = f"{shape}{dtype_text(leaf.dtype)}"
    if values is None or leaf.dtype.is_complex:
        text = f"torch.randn({made})"
    elif values.low == values.high:
        text = f"torch.full({shape}, {number(values.low)}, dtype={dtype})"
    elif values.low >= 0:
        text = f"torch.rand({made})" + scaled(values.high - values.low, values.low)
    else:
        mean = values.mean if abs(values.mean) > 0.1 * values.spread else 0.0
        text = f"torch.randn({made})" + scaled(values.spread, mean)
    if leaf.dtype.itemsize > 1:
        return text
    return f"({text}).to({dtype})"


def dtype_text(dtype: torch.dtype) -> str:
    """The dtype argument of a random draw. One-byte dtypes cannot be drawn, so they are converted."""
    return "" if dtype is torch.float32 or dtype.itemsize == 1 else f", dtype={dtype}"


def scaled(factor: float, offset: float) -> str:
    """Code that scales a standard draw; empty if the draw is close enough."""
    text = "" if 0.7 < factor < 1.4 else f" * {number(factor)}"
    return text + (f" + {number(offset)}" if offset else "")


def number(value: float) -> str:
    """Three digits: enough for similar values, too few to reveal the user's data."""
    return repr(float(f"{value:.3g}")) if math.isfinite(value) else f'float("{value}")'
