"""Walks a traced graph and gives every node its formula; what an operation means is said in `operations`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from agent.library.match.graph import Argument, Node, Ref, Trace
from agent.library.match.terms import Algebra, Linear, constant

Shape = tuple[int, ...]


class NotRowwise(ValueError):
    """The module has no formula about rows; the message says at which operation."""


@dataclass(frozen=True)
class Value:
    """What a node computes.

    Attributes:
        form: the formula.
        shape: of the tensor as torch has it, () for a number.
    """

    form: Linear
    shape: Shape


class Reader:
    """Formulas of the nodes of one graph.

    Args:
        trace: the graph.
        full_shape: of the tensors whose last dimension is the row.
        handlers: what each operation means.
        several: the handlers of operations with several results, whose shape is no one shape.
    """

    def __init__(
        self, trace: Trace, full_shape: Shape, handlers: Mapping[str, Handler], several: Collection[Handler]
    ) -> None:
        self.trace = trace
        self.handlers = handlers
        self.several = several
        self.full_shape = full_shape
        self.algebra = Algebra(full_shape[-1])
        self.values: dict[int, Value] = {}
        self.uses = Counter(
            used
            for node in trace.nodes
            for used in references((node.arguments, tuple(node.keywords.values())))
        )

    def value(self, output: int) -> Value:
        """The formula of one node."""
        for position in sorted(self._needed(output)):
            node = self.trace.nodes[position]
            try:
                self.values[position] = self._leaf(node) if node.is_leaf else self._operation(node)
            except (OverflowError, ZeroDivisionError, IndexError, TypeError, KeyError) as error:
                raise NotRowwise(f"{node.op}: unexpected arguments ({type(error).__name__})") from error
        return self.values[output]

    def _needed(self, output: int) -> set[int]:
        """The nodes the output depends on; arguments always refer backwards."""
        needed, waiting = set[int](), [output]
        while waiting:
            position = waiting.pop()
            if position not in needed:
                needed.add(position)
                node = self.trace.nodes[position]
                waiting += references((node.arguments, tuple(node.keywords.values())))
        return needed

    def _leaf(self, node: Node) -> Value:
        if node.shape is None:
            raise NotRowwise("an input is no tensor")
        if node.op == "constant":
            if node.value is None:
                raise NotRowwise("the module holds a constant tensor")
            return Value(constant(node.value), ())
        if not node.dtype.startswith(("float", "bfloat")):
            raise NotRowwise(f"a tensor has the dtype {node.dtype}")
        return Value(self.algebra.leaf(f"{node.op} {node.name}", self._kind(node.shape)), node.shape)

    def _kind(self, shape: Shape) -> str:
        length = self.full_shape[-1]
        if shape == self.full_shape:
            return "full"
        if shape and shape[-1] == length and math.prod(shape) == length:
            return "col"
        if shape == (*self.full_shape[:-1], 1):
            return "row"
        raise NotRowwise(f"a tensor of shape {list(shape)} is neither a row vector nor as large as the input")

    def _operation(self, node: Node) -> Value:
        handler = self.handlers.get(node.op)
        if handler is None:
            raise NotRowwise(f"{node.op} is not known")
        if handler in self.several:
            return handler(self, node)
        if node.shape is None:
            raise NotRowwise(f"{node.op} returns no tensor")
        value = handler(self, node)
        if value.shape != node.shape:
            raise NotRowwise(f"{node.op} gives another shape than expected")
        return value

    # -- arguments ---------------------------------------------------------------------------------------------------

    def operand(self, argument: Argument) -> Value:
        """An argument that is a node or a number."""
        if isinstance(argument, Ref):
            return self.values[argument.node]
        return Value(constant(number(argument)), ())

    def tensors(self, node: Node) -> list[Value]:
        """All positional arguments as operands."""
        return [self.operand(argument) for argument in node.arguments]

    def combine(self, values: list[Value], build: Callable[..., Linear]) -> Value:
        """An elementwise function of values that torch broadcasts against each other."""
        shape: Shape = ()
        for value in values:
            shape = broadcast(shape, value.shape)
        for value in values:
            # A reduction without keepdim has one dimension less; against a full tensor it would meet the columns.
            if (
                self.algebra.form_kind(value.form) == "row"
                and value.shape
                and shape[-1:] != (1,)
                and value.shape[-1] != 1
            ):
                if len(value.shape) != len(shape) or value.shape != shape:
                    raise NotRowwise("a row statistic meets the columns")
        return Value(build(*(value.form for value in values)), shape)

    def reduced(self, value: Value, dims: Argument, keep: bool, build: Callable[[Linear], Linear]) -> Value:
        """A reduction over the last dimension of a full tensor."""
        listed = dims if isinstance(dims, tuple) else (dims,)
        rank = len(value.shape)
        if len(listed) != 1 or not isinstance(listed[0], int) or listed[0] % max(rank, 1) != rank - 1:
            raise NotRowwise("a reduction does not run over the last dimension alone")
        if value.shape[-1] != self.full_shape[-1] or self.algebra.form_kind(value.form) not in (
            "full",
            "col",
        ):
            raise NotRowwise("a reduction runs over something else than the row")
        return Value(build(value.form), (*value.shape[:-1], 1) if keep else value.shape[:-1])


def references(argument: Argument) -> list[int]:
    """Positions of the nodes that an argument refers to."""
    if isinstance(argument, Ref):
        return [argument.node]
    return [found for item in argument for found in references(item)] if isinstance(argument, tuple) else []


def number(argument: Argument) -> float:
    """A finite number, or NotRowwise."""
    if isinstance(argument, (bool, int, float)):
        value = float(argument)
        if math.isfinite(value):
            return value
    raise NotRowwise("an argument is no finite number")


def broadcast(left: Shape, right: Shape) -> Shape:
    """The shape that torch broadcasts two shapes to."""
    rank = max(len(left), len(right))
    a, b = (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right
    if any(x != y and 1 not in (x, y) for x, y in zip(a, b, strict=True)):
        raise NotRowwise("shapes do not broadcast")
    return tuple(max(x, y) if 0 not in (x, y) else 0 for x, y in zip(a, b, strict=True))


Handler = Callable[[Reader, Node], Value]
