"""A sum or mean over axes of a product's or a convolution's output: both are linear, so what is reduced comes first.

The sum over the columns of a product is a product with the sum of the other operand's columns, that over rows a product with the sum of
the rows. A convolution that is summed along an axis has no such axis any more: each tap sees the sum of the inputs that it meets, and
those sums become channels.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from agent.kernels.rewriting.nodes import (
    add_call,
    arguments_of,
    aten,
    is_written_between,
    only_used,
    operation,
    same_sizes,
    spread,
    value_of,
)

#: Inputs that a tap of a convolution meets along an axis: the first, the end, and the step between them.
Range = tuple[int, int, int]
#: A convolution that is summed gets at most so many channels for each one it had.
_MOST_SUMS = 27


def reduced(graph: torch.fx.Graph, node: torch.fx.Node) -> torch.fx.Node | None:
    """For a sum or mean of a linear operation's output: what gives it from reduced operands."""
    name, value = operation(node), value_of(node)
    if name not in ("sum", "mean") and not name.startswith("adaptive_avg_pool"):
        return None
    whole = value_of(node.args[0])
    if not _is_float32(value) or not isinstance(whole, torch.Tensor) or not whole.dim():
        return None
    given = arguments_of(node)
    kept = bool(given.get("keepdim", True))
    if name.startswith("adaptive"):
        axes = list(range(whole.dim() - int(name[-2]), whole.dim()))
        if not all(_is_single(size) for size in value.shape[axes[0] :]):
            return None
    elif given.get("dim") is None or given.get("dtype") is not None:
        return None
    else:
        axes = sorted({axis % whole.dim() for axis in spread(given["dim"], 1)})
    count = math.prod(whole.shape[axis] for axis in axes)
    if not axes or not isinstance(count, int) or count < 2:
        return None
    made_by, steps = _linear_steps(node.args[0], axes)
    if made_by is None or is_written_between(made_by, node):
        return None
    if not all(_is_float32(value_of(one)) for one in (made_by, *made_by.all_input_nodes)):
        return None
    with graph.inserting_before(node):
        mean = _mean_of_product(graph, made_by, axes) or _mean_of_convolution(graph, made_by, axes)
        if mean is None:
            return None
        for step, place in reversed(steps):
            operands = list(step.args)
            operands[place] = mean
            mean = add_call(graph, step.target, *operands)
        if name == "sum":
            mean = add_call(graph, aten.mul.Tensor, mean, count)
        return mean if kept else add_call(graph, aten.squeeze.dims, mean, axes)


def _linear_steps(node: Any, axes: list[int]) -> tuple[Any, list[tuple[Any, int]]]:
    """What a chain of pointwise operations begins with, if nothing else uses a part of it, and the chain from its end.

    Each step is an operation that commutes with a mean over the axes (products and sums with numbers and with tensors that do not vary
    along the axes, a norm by kept statistics), with the place of the chain among its arguments.
    """
    steps: list[tuple[Any, int]] = []
    while (one := only_used(node)) is not None:
        if operation(one) == "batch_norm" and not arguments_of(one)["training"] and 1 not in axes:
            steps.append((one, 0))
            node = one.args[0]
            continue
        if operation(one) not in ("mul", "div", "add", "sub") or len(one.args) != 2 or one.kwargs:
            return one, steps
        first_alone = operation(one) in ("div", "sub")
        place = next(
            (
                place
                for place in range(1 if first_alone else 2)
                if _varies_alone(one, one.args[place], one.args[1 - place], axes)
            ),
            None,
        )
        if place is None:
            return one, steps
        steps.append((one, place))
        node = one.args[place]
    return None, steps


def _varies_alone(one: Any, chain: Any, other: Any, axes: list[int]) -> bool:
    """Whether an operation's result varies along the axes by this operand alone, which has its size."""
    whole, mine = value_of(one), value_of(chain)
    if not isinstance(mine, torch.Tensor) or mine.dtype != whole.dtype or not same_sizes(mine, whole):
        return False
    value = value_of(other)
    if value is None:
        return isinstance(other, int | float)
    if not isinstance(value, torch.Tensor) or value.dtype != whole.dtype:
        return False
    missing = whole.dim() - value.dim()
    return all(axis < missing or _is_single(value.shape[axis - missing]) for axis in axes)


def _is_float32(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.float32


def _is_single(size: Any) -> bool:
    """A comparison of a symbol would become a condition of the code."""
    return isinstance(size, int) and size == 1


def _mean(graph: torch.fx.Graph, node: torch.fx.Node, axes: list[int]) -> torch.fx.Node:
    return add_call(graph, aten.mean.dim, node, axes, True) if axes else node


def _mean_of_product(graph: torch.fx.Graph, node: Any, axes: list[int]) -> torch.fx.Node | None:
    """The mean over axes of a product of matrices, which stay with one element."""
    name, last = operation(node), value_of(node).dim() - 1
    if name not in ("linear", "mm", "addmm", "matmul", "bmm"):
        return None
    given = arguments_of(node)
    if name == "linear":
        left, right, bias = given["input"], given["weight"], given["bias"]
    elif name == "addmm":
        left, right, bias = given["mat1"], given["mat2"], given["self"]
        if given["beta"] != 1 or given["alpha"] != 1:
            return None
    else:
        (left, right), bias = node.args[:2], None
    dims = value_of(left).dim(), value_of(right).dim()
    is_shared = dims[1] == 2
    if dims[0] != last + 1 or not (is_shared or dims[0] == dims[1] == 3) or last < 1:
        return None
    if bias is not None and [str(size) for size in value_of(bias).shape] != [str(value_of(node).shape[-1])]:
        return None
    if not is_shared and str(value_of(left).shape[0]) != str(value_of(right).shape[0]):
        return None
    rows = [axis for axis in axes if axis != last and (is_shared or axis != 0)]
    left = _mean(graph, left, rows)
    if last in axes:
        # The columns' mean, laid out along the left operand's last axis.
        if name == "linear":
            columns = add_call(graph, aten.mean.dim, right, [0])
        else:
            columns = add_call(graph, aten.mean.dim, right, [-1])
            columns = columns if is_shared else add_call(graph, aten.unsqueeze.default, columns, 1)
        out = add_call(
            graph, aten.sum.dim_IntList, add_call(graph, aten.mul.Tensor, left, columns), [-1], True
        )
        if bias is not None:
            out = add_call(graph, aten.add.Tensor, out, add_call(graph, aten.mean.default, bias))
    elif not rows:
        return None  # of the batch alone: as many products
    elif name == "addmm":
        out = add_call(graph, node.target, bias, left, right)
    else:
        out = add_call(graph, node.target, left, right, *([] if bias is None else [bias]))
    return _mean(graph, out, [axis for axis in axes if axis == 0 and not is_shared])


def _mean_of_convolution(graph: torch.fx.Graph, node: Any, axes: list[int]) -> torch.fx.Node | None:
    """The mean over axes of a convolution's output, which stay with one element."""
    name, made = operation(node), value_of(node)
    count = made.dim() - 2
    if count < 1 or name not in (f"conv{count}d", f"conv_transpose{count}d"):
        return None
    given = arguments_of(node)
    if given["groups"] != 1 or isinstance(given["padding"], str) or not {*axes} - {0}:
        return None
    turned = "output_padding" in given
    x, weight, bias = given["input"], given["weight"], given["bias"]
    forms = {
        key: spread(given[key], count)
        for key in ("stride", "padding", "dilation", "output_padding")
        if key in given
    }
    ranges = [
        _met(turned, taps, size, outputs, *(forms[key][axis] for key in ("stride", "padding", "dilation")))
        for axis, (taps, size, outputs) in enumerate(
            zip(value_of(weight).shape[2:], value_of(x).shape[2:], made.shape[2:], strict=True)
        )
        if axis + 2 in axes
    ]
    sums = math.prod(1 if each is not None and len({*each}) == 1 else len(each or ()) for each in ranges)
    if None in ranges or sums > _MOST_SUMS:
        return None
    if 1 in axes:
        weight = _mean(graph, weight, [1 if turned else 0])
        bias = None if bias is None else _mean(graph, bias, [0])
    spatial = [axis for axis in axes if axis > 1]
    for axis, each in reversed(list(zip(spatial, ranges, strict=True))):
        x = add_call(graph, aten.mul.Tensor, x, 1.0 / made.shape[axis])  # first, lest sums overflow
        x, weight = _without_axis(graph, x, weight, axis, each or [], 0 if turned else 1)
        for values in forms.values():
            del values[axis - 2]
    left = count - len(spatial)
    if left:
        kind = f"conv_transpose{left}d" if turned else f"conv{left}d"
        packet = getattr(aten, kind)
        target = packet.default if not turned or left == 1 else packet.input
        middle = [forms["output_padding"], 1] if turned else []
        rest = [*middle, forms["dilation"]] if turned else [forms["dilation"], 1]
        out = add_call(graph, target, x, weight, bias, forms["stride"], forms["padding"], *rest)
    else:
        matrix = weight if turned else add_call(graph, aten.transpose.int, weight, 0, 1)
        out = add_call(graph, aten.matmul.default, x, matrix)
        out = out if bias is None else add_call(graph, aten.add.Tensor, out, bias)
    for axis in spatial:
        out = add_call(graph, aten.unsqueeze.default, out, axis)
    return _mean(graph, out, [axis for axis in axes if axis == 0])


def _met(
    turned: bool, taps: Any, size: Any, outputs: Any, stride: int, padding: int, dilation: int
) -> list[Range] | None:
    """Which inputs of an axis each tap meets; None if its sizes are no numbers."""
    if not all(isinstance(one, int) for one in (taps, size, outputs, stride, padding, dilation)):
        return None
    found = []
    for tap in range(taps):
        shift = tap * dilation - padding
        if turned:  # output: input * stride + shift
            first, end, step = max(0, -(shift // stride)), min(size, (outputs - 1 - shift) // stride + 1), 1
        else:  # input: output * stride + shift
            first = shift if shift >= 0 else shift % stride
            end, step = min(size, (outputs - 1) * stride + shift + 1), stride
        found.append((first, max(end, first), step))
    return found


def _without_axis(
    graph: torch.fx.Graph, x: Any, weight: Any, axis: int, each: list[Range], channels: int
) -> tuple[torch.fx.Node, torch.fx.Node]:
    """Input and weight of the convolution that is left when an axis is summed.

    Args:
        axis: of both.
        each: what `_met` found.
        channels: axis of the weight's input channels.
    """
    value = value_of(x)
    size, dims = value.shape[axis], value.dim()
    if len({*each}) == 1:
        weight = add_call(graph, aten.sum.dim_IntList, weight, [axis])
        return _sum_of_range(graph, x, axis, each[0], size, dims), weight
    # Sums over the same elements, of which some count as zeros: the compiler makes one pass of them.
    parts = [_sum_of_range(graph, x, axis, one, size, dims) for one in each]
    weights = [add_call(graph, aten.select.int, weight, axis, tap) for tap in range(len(each))]
    return (
        add_call(graph, aten.cat.default, parts, 1),
        add_call(graph, aten.cat.default, weights, channels),
    )


def _sum_of_range(
    graph: torch.fx.Graph, x: torch.fx.Node, axis: int, which: Range, size: int, dims: int
) -> torch.fx.Node:
    first, end, step = which
    if which != (0, size, 1):
        place = graph.call_function(aten.arange.default, (size,), {"device": value_of(x).device})
        with value_of(x).fake_mode:
            place.meta["val"] = aten.arange.default(size, device=value_of(x).device)
        counts = add_call(graph, aten.ge.Scalar, place, first)
        counts = add_call(
            graph, aten.logical_and.default, counts, add_call(graph, aten.lt.Scalar, place, end)
        )
        if step > 1:
            hit = add_call(
                graph, aten.eq.Scalar, add_call(graph, aten.remainder.Scalar, place, step), first % step
            )
            counts = add_call(graph, aten.logical_and.default, counts, hit)
        counts = add_call(graph, aten.view.default, counts, [size, *[1] * (dims - 1 - axis)])
        x = add_call(graph, aten.where.ScalarOther, counts, x, 0.0)
    return add_call(graph, aten.sum.dim_IntList, x, [axis])
