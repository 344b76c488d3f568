"""Records the operators of a reference module with symbolic integers in place of the task's dimensions.

Travels into the sandbox as text beside `capture_program.py`; see there for the idea. The module is constructed and run
on fake tensors only. What comes out is a graph whose placeholders are the symbols, the tensor arguments and the tensors
of the module, plus everything a standalone source must check before it may use the generated code.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import numbers
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges


class NotExtractable(Exception):
    """The module has no standalone form of the kind we write; the message is one sentence for people."""


def prepare_process() -> None:
    """Let modules be constructed with symbolic integers. Changes the process for good: it is thrown away."""
    numbers.Integral.register(
        torch.SymInt
    )  # nn.LayerNorm asks isinstance(normalized_shape, numbers.Integral)
    for name in dir(torch.nn.init):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)
    # Initial values do not matter here, and their bounds would turn sizes into floats.
    torch.nn.init._calculate_fan_in_and_fan_out = lambda tensor: (1, 1)
    real_sqrt = math.sqrt

    def sqrt(value: Any) -> Any:
        return torch.sym_sqrt(value) if isinstance(value, torch.SymInt | torch.SymFloat) else real_sqrt(value)

    math.sqrt = sqrt  # attention scales: math.sqrt(head_dim) would otherwise fix the head dimension


@dataclasses.dataclass
class Symbols:
    """The symbolic dimensions of one attempt, by name."""

    env: ShapeEnv
    described: dict[str, dict[str, Any]] = dataclasses.field(default_factory=dict)
    values: dict[str, torch.SymInt] = dataclasses.field(default_factory=dict)

    def add(self, name: str, hint: int, least: int, most: int, multiple: int) -> Any:
        """Make a symbol and return the dimension's value, `multiple * symbol`; a plain int where there is no choice."""
        source = ConstantSource(name)
        low, high = max(2, -(-least // multiple)), most // multiple  # 0 and 1 are special to the tracer
        units = max(low, hint // multiple)
        if high <= low:
            return hint
        symbol = self.env.create_symbol(units, source, dynamic_dim=DimDynamic.DYNAMIC, constraint_dim=None)
        self.env.var_to_range[symbol] = ValueRanges(low, high)
        unit = self.env.create_symintnode(symbol, hint=units, source=source)
        self.described[name] = {
            "symbol": str(symbol),
            "multiple": multiple,
            "hint": units,
            "min": low,
            "max": high,
            "declared_min": max(1, -(-least // multiple)),
        }
        self.values[name] = unit
        return unit * multiple if multiple > 1 else unit

    def adopt(self, name: str, tensor: torch.Tensor) -> None:
        """Name the symbols of an input that carries its own: `x_size0` for the first dimension of `x`."""
        known = {entry["symbol"] for entry in self.described.values()}
        for axis, size in enumerate(tensor.shape):
            if isinstance(size, torch.SymInt) and str(size.node.expr) not in known:
                known.add(str(size.node.expr))
                label = f"{name}_size{axis}"
                self.described[label] = {
                    "symbol": str(size.node.expr),
                    "multiple": 1,
                    "hint": int(size.node.hint),
                    "min": 2,
                    "max": None,
                    "declared_min": 2,
                }
                self.values[label] = size


@dataclasses.dataclass
class Traced:
    """One recorded forward call."""

    model: torch.nn.Module
    graph: torch.fx.GraphModule
    values: list[Any]
    init: dict[str, Any]
    arguments: list[dict[str, Any]]
    state: list[dict[str, Any]]
    placeholders: list[str]
    output_structure: Any

    @property
    def operators(self) -> list[str]:
        """The operators in order, arithmetic on sizes left out."""
        names = [str(node.target) for node in self.graph.graph.nodes if node.op == "call_function"]
        return [name for name in names if name.startswith("aten.") and not name.startswith("aten.sym_")]


def trace(
    reference: types.ModuleType,
    dims: Mapping[str, Any],
    symbols: Symbols,
    fake_mode: FakeTensorMode,
    device: torch.device,
    own_sizes: bool,
) -> Traced:
    """Build the module and its inputs from `dims` and record the operators of one forward call in eval mode.

    Args:
        reference: the loaded task file.
        dims: a value for each dimension, symbolic or not.
        symbols: the symbols among `dims`; sizes of inputs are added to them with `own_sizes`.
        fake_mode: the mode that every tensor belongs to.
        device: where the module and its inputs would live.
        own_sizes: give each distinct input size above 1 a symbol (for tasks that declare no dimensions).
    """
    init_values = list(reference.get_init_inputs(**accepted(reference.get_init_inputs, dims)))
    with torch.no_grad(), device, fake_mode:
        model = reference.Model(*init_values).eval().requires_grad_(False)
        inputs = list(reference.get_inputs(**accepted(reference.get_inputs, dims)))
    positions = [index for index, value in enumerate(inputs) if isinstance(value, torch.Tensor)]
    names = argument_names(reference.Model, len(inputs))
    if own_sizes:
        for index in positions:
            inputs[index] = with_own_sizes(inputs[index], names[index], fake_mode)
            symbols.adopt(names[index], inputs[index])
    slots = list(state_slots(model))
    dim_names = list(symbols.values)
    structure: list[Any] = []

    def flat_forward(*values: Any) -> list[torch.Tensor]:
        values = values[len(dim_names) :]
        call = list(inputs)
        for position, value in zip(positions, values, strict=False):
            call[position] = value
        with swapped(slots, values[len(positions) :]):
            output = model(*call)
        leaves: list[torch.Tensor] = []
        structure[:] = [output_structure(output, leaves)]
        return leaves

    values = [*symbols.values.values(), *(inputs[i] for i in positions), *(slot.read() for slot in slots)]
    before = attributes_of(model)
    with torch.no_grad(), fake_mode, device:
        graph = make_fx(flat_forward, pre_dispatch=True)(*values)
    if attributes_of(model) != before:
        raise NotExtractable("forward changes attributes of the module, which generated code would not do")
    return Traced(
        model=model,
        graph=graph,
        values=values,
        init=constructor_arguments(reference.Model, init_values),
        arguments=[describe(value) | {"name": name} for name, value in zip(names, inputs, strict=True)],
        state=[describe(slot.read()) | {"path": slot.path, "holder": slot.kind} for slot in slots],
        placeholders=[
            *(f"symbol:{name}" for name in dim_names),
            *(f"argument:{index}" for index in positions),
            *(f"state:{index}" for index in range(len(slots))),
        ],
        output_structure=structure[0],
    )


def mode_matters(model: torch.nn.Module) -> bool:
    """Whether any of its modules looks at `training`."""
    for module in model.modules():
        try:
            if "self.training" in inspect.getsource(type(module)):
                return True
        except (OSError, TypeError):
            return True
    return False


def accepted(function: Callable[..., Any], dims: Mapping[str, Any]) -> dict[str, Any]:
    """The dimensions that a function takes by name."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return dict(dims)
    return {name: dims[name] for name in parameters if name in dims}


def attributes_of(model: torch.nn.Module) -> dict[tuple[str, str], int]:
    """Which object every attribute of every module is."""
    return {
        (prefix, f"{kind}.{key}"): id(value)
        for prefix, module in model.named_modules()
        for kind in ("_parameters", "_buffers", "_modules", "__dict__")
        for key, value in getattr(module, kind).items()
        if key not in ("_parameters", "_buffers", "_modules")
    }


def argument_names(model_class: type, count: int) -> list[str]:
    """Names of `forward`'s positional parameters, made up where it takes `*args`."""
    parameters = list(inspect.signature(model_class.forward).parameters.values())[1:]
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (names + [f"input{index}" for index in range(len(names), count)])[:count]


def constructor_arguments(model_class: type, values: Sequence[Any]) -> dict[str, Any]:
    """What the module was constructed with, defaults included: another configuration is another computation."""
    bound = inspect.signature(model_class).bind(*values)
    bound.apply_defaults()
    described = {name: describe(value) for name, value in bound.arguments.items() if value not in ((), {})}
    for name, value in described.items():
        if value["kind"] in ("opaque", "tensor"):
            raise NotExtractable(f"the constructor's argument {name} is not plain data")
    return described


def with_own_sizes(value: torch.Tensor, name: str, fake_mode: FakeTensorMode) -> torch.Tensor:
    """A fake tensor like `value` with one symbol for each distinct size above 1."""
    kinds = [DimDynamic.DUCK if size > 1 else DimDynamic.STATIC for size in value.shape]
    with _disable_current_modes():
        shell = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    context = StatelessSymbolicContext(dynamic_sizes=kinds)
    fake = fake_mode.from_tensor(shell, symbolic_context=context, source=ConstantSource(name))
    return FakeTensor(fake_mode, fake.to("meta"), value.device)


@dataclasses.dataclass(frozen=True)
class Slot:
    """One tensor of the module: a parameter, a buffer, or a plain attribute that holds a tensor."""

    path: str
    kind: str
    holders: tuple[tuple[dict[str, Any], str], ...]

    def read(self) -> torch.Tensor:
        holder, key = self.holders[0]
        return holder[key]

    def write(self, value: Any) -> None:
        for holder, key in self.holders:
            holder[key] = value


def state_slots(model: torch.nn.Module) -> Iterator[Slot]:
    """The module's tensors, each once: tied ones share a slot."""
    found: dict[int, tuple[str, str, list[tuple[dict[str, Any], str]]]] = {}
    for prefix, module in model.named_modules():
        for kind in ("_parameters", "_buffers", "__dict__"):
            holder = getattr(module, kind)
            for key, value in holder.items():
                if isinstance(value, torch.Tensor):
                    path = f"{prefix}.{key}" if prefix else key
                    found.setdefault(id(value), (path, kind, []))[2].append((holder, key))
    return (Slot(path, kind, tuple(holders)) for path, kind, holders in found.values())


@contextlib.contextmanager
def swapped(slots: Sequence[Slot], values: Sequence[Any]) -> Iterator[None]:
    """Put traced values in the module's slots for the length of one call."""
    before = [slot.read() for slot in slots]
    try:
        for slot, value in zip(slots, values, strict=True):
            slot.write(value)
        yield
    finally:
        for slot, value in zip(slots, before, strict=True):
            slot.write(value)


def describe(value: Any) -> dict[str, Any]:
    """What the candidate must know of an argument, a constructor argument or a tensor of the module."""
    if isinstance(value, torch.Tensor):
        return {
            "kind": "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": value.device.type,
            "shape": [expression(size) for size in value.shape],
            "stride": [expression(s) for s in value.stride()],
        }
    if isinstance(value, torch.SymInt):
        return {"kind": "size", "value": expression(value)}
    if type(value) in (list, tuple) and any(isinstance(item, torch.SymInt) for item in value):
        items = [describe(item) for item in value]
        if all(item["kind"] in ("size", "literal") for item in items):
            return {"kind": "sizes", "type": type(value).__name__, "items": [item["value"] for item in items]}
    literal = literal_text(value)
    return {"kind": "opaque"} if literal is None else {"kind": "literal", "value": literal}


def literal_text(value: Any) -> str | None:
    """Python text of plain data, or None for anything else."""
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
    if isinstance(value, torch.dtype):
        return str(value)
    if type(value) in (list, tuple):
        items = [literal_text(item) for item in value]
        if None in items:
            return None
        body = ", ".join(str(item) for item in items)
        return f"[{body}]" if isinstance(value, list) else f"({body},)" if items else "()"
    if type(value) is dict and all(isinstance(key, str) for key in value):
        texts = {key: literal_text(item) for key, item in value.items()}
        return (
            None if None in texts.values() else "{" + ", ".join(f"{k!r}: {v}" for k, v in texts.items()) + "}"
        )
    return None


def expression(size: Any) -> str:
    """A size as Python text over the symbols."""
    expr = size.node.expr if isinstance(size, torch.SymInt) else sympy.Integer(int(size))
    return str(PythonPrinter().doprint(expr))


def output_structure(output: Any, leaves: list[torch.Tensor]) -> Any:
    """The shape of the return value as JSON, its tensors collected in `leaves`."""
    if isinstance(output, torch.Tensor):
        leaves.append(output)
        return len(leaves) - 1
    if type(output) in (list, tuple):
        return [type(output).__name__, [output_structure(item, leaves) for item in output]]
    if type(output) is dict and all(isinstance(key, str) for key in output):
        return ["dict", [[key, output_structure(item, leaves)] for key, item in output.items()]]
    if output is None:
        return None
    raise NotExtractable(
        f"forward returns a {type(output).__name__}; only tensors, lists, tuples and dicts are rebuilt"
    )


def log(text: str) -> None:
    sys.stderr.write(text + "\n")
