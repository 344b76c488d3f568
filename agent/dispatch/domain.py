"""The domain a member was judged on, as conditions that optimized.py can check on every call.

Only the task's code says how its inputs and constructor arguments depend on its dimensions, and that code runs only in
the sandbox. A tool program builds them there at a few sizes (on torch's meta device, without memory). Each axis is then
fitted as a constant, a dimension, `a * dim + b` or `a * dim1 * dim2 + b`. If an axis has no fit, nothing is guessed: the
domain holds only the shapes that were probed.
"""

from __future__ import annotations

import json
import keyword
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent.errors import AssemblyError
from evaluator.description import Description

if TYPE_CHECKING:
    from evaluator.client import Referee
    from evaluator.sources import TaskSource

DTYPES = frozenset(
    "float64 float32 bfloat16 float16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint8 bool complex64 complex128".split()
)
Scalar = bool | int | float | str | None
Dims = Mapping[str, Any]


@dataclass(frozen=True)
class Expression:
    """An integer as a function of the dimensions: `factor * product(dims) + offset`."""

    factor: int
    dims: tuple[str, ...]
    offset: int

    def text(self) -> str:
        """As Python source."""
        if not self.dims:
            return str(self.offset)
        terms = ([str(self.factor)] if self.factor != 1 else []) + list(self.dims)
        return " * ".join(terms) + (f" + {self.offset}" if self.offset else "")

    @property
    def plain_dim(self) -> str | None:
        """The dimension that this expression equals, or None."""
        return self.dims[0] if len(self.dims) == 1 and self.factor == 1 and self.offset == 0 else None


@dataclass(frozen=True)
class TensorInput:
    """A tensor argument of `forward`: the Python expression for it, and its axes (None if they have no fit)."""

    place: str
    axes: tuple[Expression, ...] | None


@dataclass(frozen=True)
class ValueInput:
    """A plain argument of `forward` or the constructor: an expression, or one of a few values."""

    place: str
    expression: Expression | None
    values: tuple[Scalar, ...]


@dataclass(frozen=True)
class Domain:
    """What the members were judged on.

    Attributes:
        dims: legal values of each dimension as the task declares them.
        inputs: how many values `get_inputs` returns.
        tensors: tensor inputs in the order of the call.
        values: plain inputs.
        containers: (place, type name, length) of lists and tuples among the inputs.
        constructor: checked constructor arguments; `place` is the argument's name.
        dtypes: the combinations of input dtypes that occur, in the order of `tensors`.
        shapes: if an axis has no fit, the only shapes allowed; else None.
        elements: total input elements at each probed point, keyed by `dims_key`.
        dtypes_at: dtypes of the tensors at each probed point, keyed by `dims_key`.
        training: whether the judged calls ran in training mode.
        backward: whether the judged calls ran forward and backward.
    """

    dims: Dims
    inputs: int
    tensors: tuple[TensorInput, ...]
    values: tuple[ValueInput, ...]
    containers: tuple[tuple[str, str, int], ...]
    constructor: tuple[ValueInput, ...]
    dtypes: tuple[tuple[str, ...], ...]
    shapes: tuple[tuple[tuple[int, ...], ...], ...] | None
    elements: Mapping[str, int]
    dtypes_at: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    training: bool = False
    backward: bool = False


def dims_key(dims: Dims) -> str:
    """A dictionary key for one assignment of dimensions."""
    return json.dumps(dims, sort_keys=True)


def probe_domain(
    task: TaskSource,
    description: Description,
    shapes: Sequence[Dims],
    arguments: Sequence[str],
    referee: Referee,
) -> Domain:
    """Find the domain by building inputs in the sandbox.

    Args:
        task: the reference; runs in the sandbox only.
        description: `Referee.describe`'s answer, for the declared dimensions.
        shapes: further points to build, for example all judged shapes; their element counts are kept.
        arguments: Python expressions for `forward`'s arguments.

    Raises:
        AssemblyError: if the inputs cannot be built or described.
    """
    dims = dict(description.dims)
    for name in dims:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise AssemblyError(f"dimension {name!r} is not a usable name")
    points = _points(dims, shapes)
    result = referee.run_tool(
        _program(),
        {"task.py": task.source, "points.json": json.dumps(points)},
        deadline_s=120,
    )
    raw = result.outputs.get("probe.json")
    if result.status != "ok" or raw is None:
        raise AssemblyError(f"the task's inputs could not be built to find their domain ({result.status})")
    try:
        found = fit(dims, points, json.loads(raw), arguments)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise AssemblyError(f"the description of the task's inputs makes no sense: {error!r}") from error
    return replace(
        found,
        training=description.training,
        backward=description.direction == "forward_backward",
    )


def fit(dims: Dims, points: Sequence[Dims], found: Any, arguments: Sequence[str]) -> Domain:
    """Fit the probed inputs as functions of the dimensions.

    Args:
        dims: declared dimensions ({"min", "max", "multiple_of"} or {"choices"}).
        points: the assignments that were probed.
        found: the probe program's untrusted output: {"constructor": [...], "inputs": [...]} for each point.
        arguments: see `probe_domain`.

    Raises:
        AssemblyError: if inputs differ in kind between points, or are of a kind the dispatcher cannot check.
        KeyError, TypeError, ValueError, IndexError: if `found` is not what the probe program writes.
    """
    if len(found) != len(points):
        raise ValueError("not one description per point")
    leaves = [_leaves(point["inputs"], arguments) for point in found]
    first = leaves[0]
    if any([leaf[:2] for leaf in other] != [leaf[:2] for leaf in first] for other in leaves):
        raise AssemblyError("the structure of the inputs changes with the dimensions")
    tensors, values, containers = [], [], []
    for index, (place, kind, _) in enumerate(first):
        series = [leaf[index][2] for leaf in leaves]
        if kind == "tensor":
            tensors.append(_tensor(place, series, points))
        elif kind == "value":
            values.append(_value(place, series, dims, points))
        elif kind in ("list", "tuple"):
            containers.append((place, kind, int(series[0])))
        else:
            raise AssemblyError(f"input {place} is of a kind the dispatcher cannot check")
    tensor_series = [[leaf[2] for leaf in other if leaf[1] == "tensor"] for other in leaves]
    constructor = _constructor([point["constructor"] for point in found], dims, points)
    sizes = tuple(dict.fromkeys(tuple(tuple(item["shape"]) for item in one) for one in tensor_series))
    explained = all(tensor.axes is not None for tensor in tensors)
    return Domain(
        dims=dims,
        inputs=len(found[0]["inputs"]),
        tensors=tuple(tensors),
        values=tuple(values),
        containers=tuple(containers),
        constructor=constructor,
        dtypes=tuple(dict.fromkeys(tuple(_dtype(item) for item in one) for one in tensor_series)),
        shapes=None if explained else sizes,
        elements={
            dims_key(point): sum(_count(item["shape"]) for item in one)
            for point, one in zip(points, tensor_series, strict=True)
        },
        dtypes_at={
            dims_key(point): tuple(_dtype(item) for item in one)
            for point, one in zip(points, tensor_series, strict=True)
        },
    )


@cache
def _program() -> str:
    return (Path(__file__).parents[1] / "bundle" / "templates" / "probe_program.py").read_text()


def _points(dims: Dims, shapes: Sequence[Dims]) -> list[dict[str, Any]]:
    """Points to probe, without repeats: the defaults, each dimension varied alone, all varied together, and `shapes`."""
    default = {name: dim["default"] for name, dim in dims.items()}
    points = [default]
    moved = dict(default)
    for number, (name, dim) in enumerate(dims.items()):
        if "choices" in dim:
            others = [value for value in dim["choices"] if value != dim["default"]]
        else:
            step = dim.get("multiple_of") or 1
            low, high = -(-dim["min"] // step) * step, dim["max"] // step * step
            # Each dimension takes a different step, which keeps any two from varying in proportion.
            tries = [low, low + (number + 1) * step, low + (2 * number + 5) * step, dim["default"] - step]
            others = [value for value in tries if low <= value <= high and value != dim["default"]]
        points += [{**default, name: value} for value in others]
        if others:
            moved[name] = others[-1]
    points.append(moved)
    points += [{**default, **shape} for shape in shapes]
    return list({dims_key(point): point for point in points}.values())


def _leaves(inputs: Any, places: Sequence[str]) -> list[tuple[str, str, Any]]:
    """(place, kind, content) of every input, with nested lists flattened."""
    if len(inputs) > len(places):
        raise AssemblyError("get_inputs returns more values than forward takes")
    leaves: list[tuple[str, str, Any]] = []
    for place, item in zip(places, inputs, strict=False):
        kind = item["kind"]
        if kind == "tensor":
            if not item["contiguous"]:
                raise AssemblyError(
                    f"input {place} is not contiguous; the dispatcher cannot check its layout"
                )
            leaves.append((place, kind, item))
        elif kind == "value":
            leaves.append((place, kind, _scalar(item["value"])))
        elif kind in ("list", "tuple"):
            leaves.append((place, kind, len(item["items"])))
            leaves += _leaves(item["items"], [f"{place}[{index}]" for index in range(len(item["items"]))])
        else:
            leaves.append((place, "opaque", None))
    return leaves


def _tensor(place: str, series: Sequence[Mapping[str, Any]], points: Sequence[Dims]) -> TensorInput:
    shapes = [[_size(size) for size in item["shape"]] for item in series]
    if len({len(shape) for shape in shapes}) != 1:
        return TensorInput(place, None)
    axes = [_explain([shape[axis] for shape in shapes], points) for axis in range(len(shapes[0]))]
    explained = [axis for axis in axes if axis is not None]
    return TensorInput(place, tuple(explained) if len(explained) == len(axes) else None)


def _value(place: str, series: Sequence[Scalar], dims: Dims, points: Sequence[Dims]) -> ValueInput:
    distinct = tuple({(type(value), value): value for value in series}.values())
    if len(distinct) > 1 and all(type(value) is int for value in series):
        expression = _explain([value for value in series if isinstance(value, int)], points)
        if expression is not None and expression.dims:
            return ValueInput(place, expression, ())
    if any(value != value for value in distinct):
        raise AssemblyError(f"{place} is not a number")
    return ValueInput(place, None, distinct)


def _constructor(series: Sequence[Any], dims: Dims, points: Sequence[Dims]) -> tuple[ValueInput, ...]:
    names = [item["name"] for item in series[0]]
    checked = []
    for index, name in enumerate(names):
        items = [one[index] for one in series]
        if any(item["name"] != name for item in items) or not name.isidentifier():
            raise AssemblyError("the constructor's arguments change with the dimensions")
        if all(item["kind"] == "value" for item in items):
            checked.append(_value(name, [_scalar(item["value"]) for item in items], dims, points))
        elif all(item["kind"] in ("list", "tuple") for item in items):
            plain = tuple(dict.fromkeys(_nested(item) for item in items))
            checked.append(ValueInput(name, None, plain))  # type: ignore[arg-type]
        else:
            raise AssemblyError(f"constructor argument {name} is of a kind the dispatcher cannot check")
    return tuple(checked)


def _nested(item: Mapping[str, Any]) -> Any:
    """A list of plain values as a nested tuple."""
    if item["kind"] == "value":
        return _scalar(item["value"])
    if item["kind"] not in ("list", "tuple"):
        raise AssemblyError("a constructor argument holds something other than plain values")
    return tuple(_nested(one) for one in item["items"])


def _explain(values: Sequence[int], points: Sequence[Dims]) -> Expression | None:
    if len(set(values)) == 1:
        return Expression(0, (), values[0])
    integral = [name for name in points[0] if all(type(point[name]) is int for point in points)]
    for name in integral:
        if all(point[name] == value for point, value in zip(points, values, strict=True)):
            return Expression(1, (name,), 0)
    for count in (1, 2):
        for names in combinations_with_replacement(integral, count):
            expression = _line([_product(point, names) for point in points], values, names)
            if expression is not None:
                return expression
    return None


def _line(inputs: Sequence[int], outputs: Sequence[int], names: tuple[str, ...]) -> Expression | None:
    """The fit `factor * input + offset` through every pair, or None."""
    pairs = sorted(set(zip(inputs, outputs, strict=True)))
    if len(pairs) < 3 or pairs[0][0] == pairs[-1][0]:  # two points always lie on a line
        return None
    factor, rest = divmod(pairs[-1][1] - pairs[0][1], pairs[-1][0] - pairs[0][0])
    offset = pairs[0][1] - factor * pairs[0][0]
    if rest or factor <= 0 or any(factor * given + offset != value for given, value in pairs):
        return None
    return Expression(factor, names, offset)


def _product(point: Dims, names: Sequence[str]) -> int:
    product = 1
    for name in names:
        product *= point[name]
    return product


def _count(shape: Sequence[int]) -> int:
    count = 1
    for size in shape:
        count *= _size(size)
    return count


def _size(size: object) -> int:
    if type(size) is not int or size < 0:
        raise ValueError(f"{size!r} is no size")
    return size


def _scalar(value: object) -> Scalar:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ValueError(f"{type(value).__name__} is no plain value")


def _dtype(item: Mapping[str, Any]) -> str:
    if item["dtype"] not in DTYPES:
        raise AssemblyError(f"the dispatcher does not know dtype {str(item['dtype'])[:40]!r}")
    return str(item["dtype"])
