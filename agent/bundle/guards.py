"""Writes the conditions of a `Domain` as plain Python for the dispatcher of optimized.py.

The descriptions come from the sandbox and are not trusted: every part of the text is checked to be an integer, a known
dtype, a plain value (through `repr`) or an identifier.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.dispatch.domain import Domain, Expression, TensorInput, ValueInput
from agent.errors import AssemblyError

# Names that the dispatcher's functions use; an input or dimension with such a name gets a trailing underscore.
_TAKEN = frozenset(
    {
        "torch",
        "fixed",
        "self",
        "tensor",
        "rest",
        "why",
    }
)
_ALIGNMENT_BYTES = {"cpu": 64, "cuda": 16}


@dataclass(frozen=True)
class Guards:
    """Function bodies and argument lists for the dispatcher template.

    Attributes:
        constructor_names: arguments of `_fixed_dims`.
        constructor_body: body lines of `_fixed_dims`, indented.
        input_body: body lines of `_choose` before the tree, indented.
        dtypes: rows of INPUT_DTYPES, indented.
        tensor_places: expressions of the tensor inputs, joined by commas.
        dims: local variable of each dimension that the body reads.
        alignment_bytes: required alignment of an input's first byte.
    """

    constructor_names: str
    constructor_body: str
    input_body: str
    dtypes: str
    tensor_places: str
    dims: Mapping[str, str]
    alignment_bytes: int


def internal_names(names: Iterable[str], dims: Mapping[str, object]) -> list[str]:
    """Names for the inputs inside the dispatcher; they avoid its own names and the dimensions' names."""
    chosen = []
    for name in names:
        while name in _TAKEN or name in dims:
            name += "_"
        chosen.append(name)
    return chosen


def write_guards(domain: Domain, device: str) -> Guards:
    """Write the conditions of `domain` for a device kind.

    Raises:
        AssemblyError: if the task has no tensor input, or an expression cannot be written.
    """
    if not domain.tensors:
        raise AssemblyError("the task has no tensor input to dispatch on")
    places = [tensor.place for tensor in domain.tensors]
    size_lines, bound = _size_lines(domain)
    return Guards(
        constructor_names=", ".join(_local(item.place) for item in domain.constructor),
        constructor_body=_indent(_constructor_lines(domain)),
        input_body=_indent([*_layout_lines(domain), *size_lines]),
        dtypes=_indent([f"({_comma(f'torch.{name}' for name in row)})," for row in domain.dtypes]),
        tensor_places=", ".join(places),
        dims={dim: _local(dim) for dim in sorted(bound)},
        alignment_bytes=_ALIGNMENT_BYTES.get(device, 64),
    )


def _constructor_lines(domain: Domain) -> list[str]:
    lines: list[str] = []
    bound: dict[str, str] = {}
    for item in domain.constructor:
        name = _local(item.place)
        if item.expression is None:
            lines += [f"if {_not_one_of(name, item.values)}:", "    return None"]
        elif item.expression.plain_dim is not None and item.expression.plain_dim not in bound:
            bound[item.expression.plain_dim] = name
            lines += [f"if {_outside_range(name, item.expression.plain_dim, domain)}:", "    return None"]
    for item in domain.constructor:
        name = _local(item.place)
        if item.expression is None or bound.get(item.expression.plain_dim or "") == name:
            continue
        if not set(item.expression.dims) <= set(bound):
            raise AssemblyError(f"constructor argument {item.place} cannot be checked")
        text = _with_names(item.expression, bound)
        lines += [f"if type({name}) is not int or {name} != {text}:", "    return None"]
    pairs = ", ".join(f"{dim!r}: {name}" for dim, name in bound.items())
    return [*lines, f"return {{{pairs}}}"]


def _layout_lines(domain: Domain) -> list[str]:
    lines: list[str] = []
    for place, kind, length in domain.containers:
        lines += _refuse(
            f"type({place}) is not {kind} or len({place}) != {length}", "an input has another structure"
        )
    lines += [
        f"for tensor in ({_comma(tensor.place for tensor in domain.tensors)}):",
        "    if why := _unjudged_input(tensor):",
        "        return why",
    ]
    for number, tensor in enumerate(domain.tensors):
        if any("complex" in row[number] for row in domain.dtypes):
            lines += _refuse(
                f"{tensor.place}.is_conj()", "an input is conjugated, which its memory does not show"
            )
    if len(domain.dtypes) == 1:  # the common case; twice as fast to check as the set
        pairs = zip(domain.tensors, domain.dtypes[0], strict=True)
        others = " or ".join(f"{tensor.place}.dtype is not torch.{name}" for tensor, name in pairs)
    else:
        others = f"({_comma(f'{tensor.place}.dtype' for tensor in domain.tensors)}) not in INPUT_DTYPES"
    return [*lines, *_refuse(others, "an input has another dtype")]


def _size_lines(domain: Domain) -> tuple[list[str], set[str]]:
    lines: list[str] = []
    if domain.shapes is not None:
        shapes = _comma(f"tuple({tensor.place}.shape)" for tensor in domain.tensors)
        known = ", ".join(repr(shape) for shape in domain.shapes)
        lines += _refuse(f"({shapes}) not in {{{known}}}", "these shapes were not judged")
        return lines, set()
    bound, whole = _bind(domain, lines)
    for index, tensor in enumerate(domain.tensors):
        alike = next((other for other in whole if domain.tensors[other].axes == tensor.axes), None)
        wanted = f"({_shape(tensor, bound)})" if alike is None else f"shape{alike}"
        if index not in whole:
            lines += _refuse(f"shape{index} != {wanted}", "the sizes of the inputs do not belong together")
    for item in domain.values:
        lines += _refuse(_value_condition(item, bound), "a plain argument has another value")
    for dim in sorted(bound):
        lines += _refuse(
            _outside_range(_local(dim), dim, domain, integer=True), f"{dim} lies outside its range"
        )
    fixed = {item.expression.plain_dim for item in domain.constructor if item.expression is not None}
    for dim in sorted(bound & {name for name in fixed if name}):
        lines += _refuse(
            f"{_local(dim)} != fixed[{dim!r}]", f"{dim} does not fit the constructor's arguments"
        )
    return lines, bound


def _bind(domain: Domain, lines: list[str]) -> tuple[set[str], set[int]]:
    """Append to `lines` the code that reads every dimension from an axis, a plain argument or the constructor.

    Returns:
        The dimensions that are now local variables, and the indices of tensors unpacked completely into them.
    """
    for index, tensor in enumerate(domain.tensors):
        lines.append(f"shape{index} = {tensor.place}.shape")
        axes = tensor.axes or ()
        lines += _refuse(f"len(shape{index}) != {len(axes)}", "an input has another number of dimensions")
    wanted = {dim for tensor in domain.tensors for axis in tensor.axes or () for dim in axis.dims}
    wanted |= {dim for item in domain.values if item.expression for dim in item.expression.dims}
    bound: set[str] = set()
    whole: set[int] = set()
    places = []
    for number, tensor in enumerate(domain.tensors):
        axes = tensor.axes or ()
        places += [(axis, f"shape{number}[{index}]") for index, axis in enumerate(axes)]
        plain = [
            axis.plain_dim for axis in axes if axis.plain_dim is not None and axis.plain_dim not in bound
        ]
        if len(set(plain)) == len(axes) and axes:
            lines.append(f"{_comma(_local(dim) for dim in plain)} = shape{number}")
            bound.update(plain)
            whole.add(number)
    for axis, place in places:
        if axis.plain_dim is not None and axis.plain_dim not in bound:
            lines.append(f"{_local(axis.plain_dim)} = {place}")
            bound.add(axis.plain_dim)
    for item in domain.values:
        dim = item.expression.plain_dim if item.expression else None
        if dim is not None and dim not in bound:
            lines += _refuse(f"type({item.place}) is not int", "a plain argument has another value")
            lines.append(f"{_local(dim)} = {item.place}")
            bound.add(dim)
    for item in domain.constructor:
        dim = item.expression.plain_dim if item.expression else None
        if dim is not None and dim in wanted and dim not in bound:
            lines.append(f"{_local(dim)} = fixed[{dim!r}]")
            bound.add(dim)
    while wanted - bound:
        for axis, place in places:
            missing = [dim for dim in axis.dims if dim not in bound]
            if len(missing) == 1 and axis.dims.count(missing[0]) == 1:
                others = [_local(dim) for dim in axis.dims if dim in bound]
                divisor = " * ".join([str(axis.factor), *others])
                lines.append(
                    f"{_local(missing[0])}, rest = divmod({place} - {axis.offset}, max({divisor}, 1))"
                )
                lines += _refuse("rest", "the sizes of the inputs do not belong together")
                bound.add(missing[0])
                break
        else:
            raise AssemblyError(f"dimension {min(wanted - bound)} cannot be read off the inputs")
    return bound, whole


def _shape(tensor: TensorInput, bound: set[str]) -> str:
    return _comma(_with_names(axis, {dim: _local(dim) for dim in bound}) for axis in tensor.axes or ())


def _value_condition(item: ValueInput, bound: set[str]) -> str:
    if item.expression is None:
        return _not_one_of(item.place, item.values)
    text = _with_names(item.expression, {dim: _local(dim) for dim in bound})
    return f"type({item.place}) is not int or {item.place} != {text}"


def _with_names(expression: Expression, names: dict[str, str]) -> str:
    return Expression(
        expression.factor, tuple(names[dim] for dim in expression.dims), expression.offset
    ).text()


def _outside_range(name: str, dim: str, domain: Domain, integer: bool = False) -> str:
    """Condition that holds if `name` is not a legal value of the dimension."""
    declared = domain.dims[dim]
    if "choices" in declared:
        return _not_one_of(name, tuple(declared["choices"]))
    low, high, step = (
        int(declared[key] or 1) if key == "multiple_of" else int(declared[key]) for key in _RANGE
    )
    parts = [] if integer else [f"type({name}) is not int"]
    parts.append(f"not {low} <= {name} <= {high}")
    if step > 1:
        parts.append(f"{name} % {step}")
    return " or ".join(parts)


_RANGE = ("min", "max", "multiple_of")


def _not_one_of(name: str, values: tuple[object, ...]) -> str:
    kinds = sorted({type(value).__name__ for value in values})
    for kind in kinds:
        if kind not in ("bool", "int", "float", "str", "NoneType", "tuple"):
            raise AssemblyError(f"{name} takes a value of kind {kind}")
    if values == (None,):
        return f"{name} is not None"
    if "tuple" in kinds:  # lists of plain values among the constructor's arguments
        return f"_plain({name}) not in ({_comma(repr(value) for value in values)})"
    if len(values) == 1:
        return f"type({name}) is not {kinds[0]} or {name} != {values[0]!r}"
    allowed = _comma(f"({type(value).__name__!r}, {value!r})" for value in values)
    return f"(type({name}).__name__, {name}) not in ({allowed})"


def _refuse(condition: str, reason: str) -> list[str]:
    return [f"if {condition}:", f"    return {reason!r}"]


def _local(name: str) -> str:
    return f"{name}_" if name in _TAKEN else name


def _comma(items: Iterable[str]) -> str:
    """Join items by commas into text that is a tuple inside parentheses, even for one item."""
    listed = list(items)
    return f"{listed[0]}," if len(listed) == 1 else ", ".join(listed)


def _indent(lines: Iterable[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
