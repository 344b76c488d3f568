"""Reads how a reference is called, and writes the conditions of a `Domain` as plain Python for the dispatcher of optimized.py.

The descriptions come from the sandbox and are not trusted: every part of the text is checked to be an integer, a known
dtype, a plain value (through `repr`) or an identifier.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent.dispatch.domain import Domain, Expression, TensorInput, ValueInput
from agent.errors import AssemblyError
from evaluator.devices import is_accelerator

# Names that the dispatcher's functions use; an input or dimension with such a name gets a trailing underscore.
_TAKEN = frozenset(
    {
        "torch",
        "fixed",
        "self",
        "tensor",
        "rest",
        "why",
        *dir(builtins),  # some are called there
        *(f"shape{place}" for place in range(64)),
    }
)
_ALIGNMENT_BYTES = {"cpu": 64, "cuda": 16}


@dataclass(frozen=True)
class Call:
    """How `forward` is called.

    Attributes:
        signature: text after `self` in the definition, with its leading comma.
        names: the arguments after `self`, in order; ("inputs",) if `generic`.
        forwarded: the text that passes every argument on.
        defaults: text of each argument's default, None where it has none.
        generic: whether the definition is rewritten as `*inputs, **named`.
    """

    signature: str
    names: tuple[str, ...]
    forwarded: str
    defaults: tuple[str | None, ...]
    generic: bool

    def names_inside(self, dims: Mapping[str, object]) -> list[str]:
        """The arguments' names inside the dispatcher; they avoid its own names and the dimensions' names."""
        chosen = []
        for name in self.names:
            while not self.generic and (name in _TAKEN or name in dims):
                name += "_"
            chosen.append(name)
        return chosen

    def places(self, dims: Mapping[str, object]) -> list[str]:
        """Python expressions for the inputs inside the dispatcher."""
        return [f"inputs[{index}]" for index in range(64)] if self.generic else self.names_inside(dims)

    def outside(self, places: Iterable[str], dims: Mapping[str, object]) -> list[str]:
        """The same expressions under the names that `forward` gives its arguments."""
        names = dict(zip(self.names_inside(dims), self.names, strict=True))
        parts = [place.partition("[") for place in places]
        return [f"{names[name]}{bracket}{rest}" for name, bracket, rest in parts]


def read_call(task_source: str) -> Call:
    """Parse how the reference's `forward` takes its inputs, without importing it.

    Raises:
        AssemblyError: if the source does not parse or has no class Model.
    """
    try:
        tree = ast.parse(task_source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise AssemblyError(f"the reference does not parse: {error}") from error
    model = next(
        (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"), None
    )
    if model is None:
        raise AssemblyError("the reference does not define class Model at its top level")
    forward = next(
        (node for node in model.body if isinstance(node, ast.FunctionDef) and node.name == "forward"), None
    )
    generic = Call(", *inputs, **named", ("inputs",), "*inputs, **named", (None,), generic=True)
    if forward is None:
        return generic
    arguments = forward.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs:
        return generic
    named = [*arguments.posonlyargs, *arguments.args]
    if not named or len(named) == 1:
        return generic
    names = [argument.arg for argument in named[1:]]
    missing: list[str | None] = [None] * (len(named) - len(arguments.defaults))
    defaults = (missing + [ast.unparse(default) for default in arguments.defaults])[1:]
    text = ast.unparse(arguments)
    return Call(
        signature=text[len(ast.unparse(ast.arguments([], [named[0]], None, [], [], None, []))) :],
        names=tuple(names),
        forwarded=", ".join(names),
        defaults=tuple(defaults),
        generic=False,
    )


@dataclass(frozen=True)
class Guards:
    """Function bodies and argument lists for the dispatcher's template.

    Attributes:
        constructor_names: arguments of `_fixed_dims`.
        constructor_body: body lines of `_fixed_dims`, indented.
        input_names: arguments of `_choose` and `_key_of`.
        input_body: body lines of `_choose` before the tree, indented.
        key_body: body lines of `_key_of`, indented.
        dtypes: rows of INPUT_DTYPES, indented.
        dims: local variable of each dimension that the body reads.
        alignment_bytes: required alignment of an input's first byte.
    """

    constructor_names: str
    constructor_body: str
    input_names: str
    input_body: str
    key_body: str
    dtypes: str
    dims: Mapping[str, str]
    alignment_bytes: int


def write_guards(domain: Domain, call: Call, device: str) -> Guards:
    """Write the conditions of `domain` for a device kind.

    Raises:
        AssemblyError: if the task has no tensor input, or an expression cannot be written.
    """
    if not domain.tensors:
        raise AssemblyError("the task has no tensor input to dispatch on")
    names = call.names_inside(domain.dims)
    extra = dict(list(zip(names, call.defaults, strict=True))[domain.inputs :]) if not call.generic else {}
    structure = [
        (f"type({place}) is not {kind} or len({place}) != {length}", "an input has another structure")
        for place, kind, length in domain.containers
    ]
    if call.generic:
        structure.insert(0, (f"len(inputs) != {domain.inputs}", "an input has another structure"))
    size_lines, bound = _size_lines(domain)
    return Guards(
        constructor_names=", ".join(_local(item.place) for item in domain.constructor),
        constructor_body=_indent(_constructor_lines(domain)),
        input_names=", ".join(names),
        input_body=_indent(
            [
                *_default_lines(extra),
                *(line for one in structure for line in _refuse(*one)),
                *_layout_lines(domain, device),
                *size_lines,
            ]
        ),
        key_body=_indent(_key_lines(domain, device, [condition for condition, _ in structure], extra)),
        dtypes=_indent([f"({_comma(f'torch.{name}' for name in row)})," for row in domain.dtypes]),
        dims={dim: _local(dim) for dim in sorted(bound)},
        alignment_bytes=_ALIGNMENT_BYTES.get(device, 64),
    )


def _default_lines(extra: Mapping[str, str | None]) -> list[str]:
    """Refuse a call if an argument that get_inputs leaves at its default has another value."""
    lines = []
    for name, default in extra.items():
        if default is None:
            raise AssemblyError(f"get_inputs gives no value for forward's argument {name}")
        try:
            value = ast.literal_eval(default)
        except ValueError as error:
            raise AssemblyError(f"the default of forward's argument {name} is not a plain value") from error
        lines += _refuse(
            f"{name} is not None"
            if value is None
            else f"type({name}) is not {type(value).__name__} or {name} != {value!r}",
            f"argument {name} is not at its default",
        )
    return lines


def _key_lines(domain: Domain, device: str, structure: Sequence[str], extra: Iterable[str]) -> list[str]:
    """The body of `_key_of`: all that the sizes' guards and the tree read of a call, or None where another guard refuses it."""
    places = [tensor.place for tensor in domain.tensors]
    plain = [*(item.place for item in domain.values), *extra]
    refused = [*structure, *(f"type({place}) not in (bool, int, float, str, type(None))" for place in plain)]
    unlike = [condition for condition, _ in _tensor_checks(domain, device)]
    key = [f"{place}.{of}" for of in ("shape", "dtype") for place in places]
    key += [f"type({place}), {place}" for place in plain]
    return [
        *(line for condition in refused for line in (f"if {condition}:", "    return None")),
        f"for tensor in ({_comma(places)}):",
        f"    if {' or '.join(unlike)}:",
        "        return None",
        f"return {_comma(key)}",
    ]


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


def _layout_lines(domain: Domain, device: str) -> list[str]:
    dtypes = _comma(f"{tensor.place}.dtype" for tensor in domain.tensors)
    return [
        f"for tensor in ({_comma(tensor.place for tensor in domain.tensors)}):",
        *(f"    {line}" for check in _tensor_checks(domain, device) for line in _refuse(*check)),
        *_refuse(f"({dtypes}) not in INPUT_DTYPES", "an input has another dtype"),
    ]


def _tensor_checks(domain: Domain, device: str) -> list[tuple[str, str]]:
    """What every input is asked at each call: the condition under which it was not judged, and the reason in words."""
    checks = [
        ("type(tensor) is not torch.Tensor", "an input is not a plain tensor"),
        (f"not tensor.is_{device}", "an input is on another device"),
    ]
    if is_accelerator(device):
        checks += [("tensor.get_device() != _place()", "an input is not on the current GPU")]
    layout = "not tensor.is_contiguous() or tensor.data_ptr() % ALIGNMENT_BYTES"
    checks += [(layout, "an input has another layout")]
    if any("complex" in dtype for row in domain.dtypes for dtype in row):
        checks += [("tensor.is_conj()", "an input is conjugated, which its memory does not show")]
    if domain.backward:
        checks += [("tensor.is_inference()", "an input was made under inference_mode")]
    return checks


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
