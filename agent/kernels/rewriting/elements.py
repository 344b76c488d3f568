"""Text in Triton's language for elements of tensors that views, casts, indices and arithmetic compute from tensors in memory."""

from __future__ import annotations

import math
import operator
import re
from typing import Any

import torch

from agent.kernels.rewriting.nodes import arguments_of, is_operation, operation, value_of

#: Tensors that elements are computed from.
MOST_SOURCES = 4
#: Of whole numbers that are exact in float16.
LARGEST = 2048


class Element:
    """Text in Triton's language that computes elements of a tensor from tensors in memory.

    Of ``parts`` neighbors along a row, each has a text of its own: its place is ``k0`` for the first, ``k1`` for the
    second. The kernel gives ``j``, the place of all of them together, and puts them side by side.

    Args:
        steps: the kernel computes so many places along a row together, from `first` on; None where it computes all.

    Attributes:
        statements: each gives a name to an expression of earlier names and of the parameters of the kernel's function: `row`, `j`,
            `there` and `row_there` (what is inside the tensor), `p0` to `p3`, and `first` if there are steps.
        sources: the tensors in memory, in the order of the pointers.
        within: names of truth values: whether what an index picks is there.
        computes: whether elements are not just those of a view.
        scaled: of names of float32 values: the name of a whole number up to LARGEST, and of what that is multiplied by, which is the
            same for all of a step.
    """

    def __init__(self, parts: int, steps: int | None) -> None:
        self._parts, self._steps = parts, steps
        self.statements: list[str] = []
        self.sources: dict[torch.fx.Node, str] = {}
        self.scaled: dict[str, tuple[str, str]] = {}
        self.within: dict[str, None] = {}
        self.computes = False
        self._names: dict[str, str] = {}
        #: Least and largest of names of whole numbers.
        self._ranges: dict[str, tuple[int, int]] = {}
        #: Names whose values differ among the k of a step.
        self._differ = {"j", "there"}
        #: Names whose values differ among rows.
        self._of_row = {"row", "there", "row_there"}

    def differ(self, results: list[str | None]) -> bool:
        """Whether there are elements, and they differ along a row."""
        return self._differ.issuperset(results)

    def of(self, node: Any, index: list[str]) -> str | None:
        """The name of a node's element at an index of names and numbers; None where it cannot be computed."""
        value = value_of(node)
        if not isinstance(value, torch.Tensor) or not all(isinstance(size, int) for size in value.shape):
            return None
        if node.op == "placeholder":
            return self._loaded(node, value, index)
        given, name = arguments_of(node) if operation(node) else {}, operation(node)
        if name in _OPERATORS:
            return self._binary(node, given, index, value)
        if name in ("to", "_to_copy"):
            source, x = value_of(given["self"]), self.of(given["self"], index)
            exact = value.dtype.is_floating_point or not source.dtype.is_floating_point
            return x and self._cast(x, source.dtype, value.dtype) if exact else None
        if name in ("contiguous", "clone", "detach", "alias"):
            return self.of(given["self"], index)
        if name == "index":
            return self._picked(given, index, value)
        if name == "stack":
            return self._stacked(given["tensors"], given["dim"] % value.dim(), index)
        moved = self._moved(node, name, given, index, value)
        return self.of(*moved) if moved is not None else None

    def _moved(
        self, node: Any, name: str, given: dict[str, Any], index: list[str], value: torch.Tensor
    ) -> tuple[Any, list[str]] | None:
        """Which node holds a view's element, and where."""
        if node.target is operator.getitem and is_operation(node.args[0], "unbind"):
            source, dim = node.args[0].args[0], arguments_of(node.args[0])["dim"]
            dim %= value_of(source).dim()
            return source, [*index[:dim], str(node.args[1]), *index[dim:]]
        before: Any = value_of(given.get("self"))
        if before is None or before.dtype != value.dtype:
            return None
        axes, dim = before.dim(), given.get("dim")
        if name == "unsqueeze":
            dim = int(given["dim"]) % (axes + 1)
            return given["self"], [*index[:dim], *index[dim + 1 :]]
        if name in ("view", "reshape", "flatten", "unflatten", "_unsafe_view", "squeeze"):
            return given["self"], self._again(index, list(value.shape), list(before.shape))
        if name == "expand":
            return given["self"], _broadcast(index, before)
        if name in ("t", "transpose", "permute", "numpy_T"):
            order = (
                list(range(axes))[::-1]
                if name in ("t", "numpy_T")
                else [axis % axes for axis in given.get("dims") or range(axes)]
            )
            if name == "transpose":
                one, two = given["dim0"] % axes, given["dim1"] % axes
                order[one], order[two] = two, one
            return given["self"], [index[order.index(axis)] for axis in range(axes)]
        if name == "select" and isinstance(given["index"], int):
            dim, at = int(given["dim"]) % axes, given["index"] % before.shape[int(given["dim"])]
            return given["self"], [*index[:dim], str(at), *index[dim:]]
        if name == "slice" and given["step"] == 1 and isinstance(given["start"] or 0, int):
            dim = int(given["dim"]) % axes
            first = given["start"] or 0
            first = max(0, first + before.shape[dim]) if first < 0 else first
            index = [*index]
            index[dim] = self._named(f"{self._place(index[dim])} + {first}") if first else index[dim]
            return given["self"], index
        if name == "repeat_interleave" and isinstance(given.get("repeats"), int) and dim is not None:
            index = [*index]
            index[dim % axes] = self._divided(index[dim % axes], given["repeats"])
            return given["self"], index
        return None

    def _named(self, expression: str) -> str:
        """A name for an expression; the same for the same."""
        if expression not in self._names:
            self._names[expression] = f"t{len(self.statements)}"
            for names in (self._differ, self._of_row):
                if names & set(re.findall(r"\w+", expression)):
                    names.add(self._names[expression])
            self.statements.append(f"{self._names[expression]} = {expression}")
        return self._names[expression]

    def _loaded(self, node: Any, value: torch.Tensor, index: list[str]) -> str | None:
        if node not in self.sources and len(self.sources) == MOST_SOURCES:
            return None
        strides = value.stride()
        if (
            value.dtype not in _TRITON_TYPES
            or value.dtype == torch.bool
            or not all(isinstance(step, int) for step in strides)
        ):
            return None
        if sum((size - 1) * step for size, step in zip(value.shape, strides, strict=True)) >= 1 << 31:
            return None  # places are numbers of 32 bits
        pointer = self.sources.setdefault(node, f"p{len(self.sources)}")
        places = [self._place(at) for at in index]
        if any(
            at in self._differ and (step != 1 or not self._is_near(at))
            for at, step in zip(places, value.stride(), strict=True)
        ):
            return None  # bytes that do not lie together are read one by one: six bits in three bytes took longer than in torch
        parts = [
            at if step == 1 else f"{at} * {step}"
            for at, step, size in zip(places, value.stride(), value.shape, strict=True)
            if size > 1 and at != "0"
        ]
        if not self._of_row & set(places):
            parts.append("row * 0")  # the mask has all rows
        mask = "there" if self._differ & set(places) else "row_there"
        return self._known(
            f"tl.load({' + '.join([pointer, *parts])}, mask={mask}, other=0)",
            value.dtype,
            _limits(value.dtype),
        )

    def _is_near(self, place: str) -> bool:
        """Whether neighbors of `j` are at neighboring places or the same."""
        text = next((text for text, name in self._names.items() if name == place), place)
        return re.fullmatch(r"j( // \d+)?", text) is not None

    def _cast(self, x: str, given: torch.dtype, wanted: torch.dtype) -> str | None:
        if given == wanted:
            return x
        if not {given, wanted} <= set(_TRITON_TYPES):
            return None
        self.computes = True
        return self._known(f"{x}.to({_TRITON_TYPES[wanted]})", wanted, self._ranges.get(x))

    def _known(self, expression: str, dtype: torch.dtype, limits: tuple[int, int] | None) -> str:
        """A name for an expression whose whole numbers lie between limits, where all of these are exact in its type."""
        name = self._named(expression)
        most = (-LARGEST, LARGEST) if dtype == torch.float32 else _limits(dtype)
        if limits is not None and most is not None and most[0] <= limits[0] and limits[1] <= most[1]:
            self._ranges[name] = limits
            if dtype == torch.float32:
                self.scaled[name] = name, "1.0"
        return name

    def _binary(self, node: Any, given: dict[str, Any], index: list[str], value: torch.Tensor) -> str | None:
        name = operation(node)
        if given.get("alpha", 1) != 1 or value.dtype not in _TRITON_TYPES or value.dtype == torch.bool:
            return None
        sides, limits, self.computes = list[str](), list[tuple[int, int] | None](), True
        for each in (given["self"], given["other"]):
            if isinstance(each, torch.fx.Node):
                source = value_of(each)
                x = self.of(each, _broadcast(index, source)) if isinstance(source, torch.Tensor) else None
                x = x and self._cast(x, source.dtype, value.dtype)
                if x is None:
                    return None
                sides.append(x)
                limits.append(self._ranges.get(x))
            elif (
                isinstance(each, bool)
                or not isinstance(each, int | float)
                or not math.isfinite(each)
                or (
                    (most := _limits(value.dtype))
                    and not (isinstance(each, int) and most[0] <= each <= most[1])
                )
                or (_OPERATORS[name] in ("<<", ">>") and each >= 8 * value.dtype.itemsize)
            ):
                return None
            else:
                sides.append(repr(float(each)) if value.dtype.is_floating_point else repr(each))
                limits.append((int(each), int(each)) if each == int(each) else None)
        if value.dtype in (
            torch.float16,
            torch.bfloat16,
        ):  # torch computes in float32, numbers too, and rounds once
            sides = [side if side[0] in "-0123456789" else f"{side}.to(tl.float32)" for side in sides]
        # Of the result's type, as torch computes it, whatever a number beside it would make of it.
        expression = f"({f' {_OPERATORS[name]} '.join(sides)}).to({_TRITON_TYPES[value.dtype]})"
        found = self._known(expression, value.dtype, _combined(name, *limits))
        if name == "mul" and value.dtype == torch.float32 and found not in self.scaled:
            for number, scale in (sides, sides[::-1]):
                if number in self.scaled and scale not in self._differ:
                    before = self.scaled[number]
                    # Two scales round twice; one is what the module computes.
                    if before[1] == "1.0":
                        self.scaled[found] = before[0], scale
        return found

    def _stacked(self, tensors: Any, dim: int, index: list[str]) -> str | None:
        """An element of what a stack has at a place that is known."""
        at = self._place(index[dim])
        return self.of(tensors[int(at)], [*index[:dim], *index[dim + 1 :]]) if at.isdigit() else None

    def _picked(self, given: dict[str, Any], index: list[str], value: torch.Tensor) -> str | None:
        """An element where one tensor of whole numbers says; negative ones count from the end."""
        tensors = [(axis, one) for axis, one in enumerate(given["indices"]) if one is not None]
        source = value_of(given["self"])
        if len(tensors) != 1 or source.dtype != value.dtype:
            return None
        axis, which = tensors[0]
        axes, size = value_of(which).dim(), source.shape[axis]
        if value_of(which).dtype not in (torch.int32, torch.int64) or not isinstance(size, int) or not size:
            return None
        at = self.of(which, index[axis : axis + axes])
        if at is None or at in self._differ:  # neighbors would lie anywhere
            return None
        place = self._named(f"tl.where({at} < 0, {at} + {size}, {at})")
        inside = self._named(f"({place} >= 0) & ({place} < {size})")
        self.within[inside], self.computes = None, True
        place = self._named(f"tl.where({inside}, {place}, 0)")
        return self.of(given["self"], [*index[:axis], place, *index[axis + axes :]])

    def _again(self, index: list[str], sizes: list[int], before: list[int]) -> list[str]:
        """The index before a view of other sizes; sizes that are the same on either side stay as they are."""
        first, last = 0, 0
        while first < min(len(sizes), len(before)) and sizes[first] == before[first]:
            first += 1
        while last < min(len(sizes), len(before)) - first and sizes[-1 - last] == before[-1 - last]:
            last += 1
        inner = index[first : len(index) - last]
        flat = "0"
        for at, size in zip(inner, sizes[first : len(sizes) - last], strict=True):
            if size > 1:
                flat = at if flat == "0" else self._joined(flat, size, at)
        found = list[str]()
        middle = before[first : len(before) - last]
        for place, size in reversed(list(enumerate(middle))):
            outermost = all(one == 1 for one in middle[:place])
            found.insert(
                0, "0" if size == 1 or flat == "0" else flat if outermost else self._rest(flat, size)
            )
            if size > 1 and not outermost and flat != "0":
                flat = self._divided(flat, size)
        return [*index[:first], *found, *index[len(index) - last :]]

    # An index along the row of weights stays `k0 // 64` or `k0 % 64` until it is needed, so that they can be put together again.

    def _divided(self, at: str, size: int) -> str:
        return f"{at} // {size}" if at in _ALONG else self._named(f"{self._place(at)} // {size}")

    def _rest(self, at: str, size: int) -> str:
        return f"{at} % {size}" if at in _ALONG else self._named(f"{self._place(at)} % {size}")

    def _joined(self, flat: str, size: int, at: str) -> str:
        """flat * size + at."""
        whole = flat.partition(" ")[0]
        if whole in _ALONG and (flat, at) == (f"{whole} // {size}", f"{whole} % {size}"):
            return whole
        return self._named(f"{self._place(flat)} * {size} + {self._place(at)}")

    def _place(self, at: str) -> str:
        """A name or number for an index."""
        along, operator_, size = (*at.split(" "), "", "")[:3]
        if along not in _ALONG:
            return at
        parts, part, count = self._parts, along[1:], int(size or 1)
        if (
            operator_ == "//" and self._steps and count % self._steps == 0
        ):  # of whole steps: a scale is loaded once for each row
            return self._named(f"first // {count}")
        if operator_ == "//" and count % parts == 0:
            return "j" if count == parts else self._named(f"j // {count // parts}")
        if operator_ == "%" and count == parts:
            return part
        whole = "j" if parts == 1 else self._named(f"j * {parts} + {part}")
        return self._named(f"{whole} {operator_} {count}") if operator_ else whole


def _limits(dtype: torch.dtype) -> tuple[int, int] | None:
    """The least and largest whole number of a type; None for others."""
    if dtype.is_floating_point or dtype == torch.bool:
        return None
    return torch.iinfo(dtype).min, torch.iinfo(dtype).max


def _combined(name: str, one: tuple[int, int] | None, two: tuple[int, int] | None) -> tuple[int, int] | None:
    """Between which an operation's results lie for whole numbers between limits; None where that is not known."""
    if one is None or two is None:
        return None
    if name in ("add", "sub"):
        return (one[0] + two[0], one[1] + two[1]) if name == "add" else (one[0] - two[1], one[1] - two[0])
    if name == "mul":
        corners = [a * b for a in one for b in two]
        return min(corners), max(corners)
    if one[0] < 0 or two[0] < 0:
        return None
    if _OPERATORS[name] == "&":
        return 0, min(one[1], two[1])
    if _OPERATORS[name] == ">>":
        return one[0] >> two[1], one[1] >> two[0]
    if _OPERATORS[name] == "<<":
        return (one[0], one[1] << two[1]) if two[1] < 64 else None
    return 0, (1 << max(one[1], two[1]).bit_length()) - 1


def _broadcast(index: list[str], value: torch.Tensor) -> list[str]:
    """The index of an operand of fewer or shorter dimensions."""
    axes = value.dim()
    return [
        "0" if size == 1 else at for at, size in zip(index[len(index) - axes :], value.shape, strict=True)
    ]


_ALONG = ("k0", "k1", "k2", "k3")
_OPERATORS = {
    "add": "+", "sub": "-", "mul": "*", "__and__": "&", "bitwise_and": "&", "__or__": "|", "bitwise_or": "|",
    "__xor__": "^", "bitwise_xor": "^", "__lshift__": "<<", "bitwise_left_shift": "<<", "__rshift__": ">>", "bitwise_right_shift": ">>",
}  # fmt: skip
_TRITON_TYPES = {
    torch.float32: "tl.float32", torch.float16: "tl.float16", torch.bfloat16: "tl.bfloat16", torch.uint8: "tl.uint8",
    torch.int8: "tl.int8", torch.int16: "tl.int16", torch.int32: "tl.int32", torch.int64: "tl.int64", torch.bool: "tl.int1",
}  # fmt: skip
