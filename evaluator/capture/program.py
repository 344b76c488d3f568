"""Text of a module's `forward`: the operators that torch.export saw, without the code that called them."""

from __future__ import annotations

import builtins
import keyword
import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils._pytree import tree_leaves

from evaluator.capture.signature import CaptureError, rebuild
from evaluator.capture.space import Place

_RESERVED = {"self", "torch", "nn", "math", "operator", "device", *keyword.kwlist, *dir(builtins)}
#: Torch's own operators; those of other libraries do not exist where the task is judged.
_NAMESPACES = ("aten", "prims", "quantized", "quantized_decomposed")
#: Checks added by export, which fail in the oracle's float64.
_CHECKS = ("_assert_scalar", "_assert_tensor_metadata", "_assert_async", "sym_constrain_range")
_RANDOM = torch.Tag.nondeterministic_seeded


class _Flat(nn.Module):
    """The module as a function of its tensors alone, with all its tensor results in one tuple."""

    def __init__(self, inner: nn.Module, description: Any, same_as: Sequence[int]) -> None:
        super().__init__()
        self.inner = inner
        self._description = description
        self._same_as = same_as

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return call_flat(self.inner, self._description, self._same_as, tensors)


def call_flat(
    module: nn.Module, description: Any, same_as: Sequence[int], tensors: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """Calls a module as in the description, with other tensors.

    Args:
        module: to be called.
        description: of the call's arguments.
        same_as: for each leaf, which of the distinct tensors it is.
        tensors: the distinct ones.

    Raises:
        CaptureError: the module returns something that a task cannot.
    """
    args, kwargs = description
    given = [tensors[index] for index in same_as]
    # The leaves of the positional arguments come first, and rebuild consumes the list.
    results = module(*rebuild(args, given), **rebuild(kwargs, given))
    found = []
    for leaf in tree_leaves(results):
        if isinstance(leaf, torch.Tensor):
            found.append(leaf)
        elif leaf is not None and not isinstance(leaf, (bool, int, float, str, torch.SymInt)):
            raise CaptureError(
                f"the module returns a {type(leaf).__name__}, which holds no tensors that can be found"
            )
    if not found:
        raise CaptureError("the module returns no tensor")
    return tuple(found)


@contextmanager
def _plain(module: nn.Module, *, training: bool) -> Iterator[None]:
    """The module in one mode, without torch's fast paths, during export."""
    modes = {each: each.training for each in module.modules()}
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    module.train(training)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for each, mode in modes.items():
            each.training = mode


def exported(
    module: nn.Module,
    description: Any,
    same_as: Sequence[int],
    tensors: Sequence[torch.Tensor],
    varying: set[Place],
    *,
    training: bool,
) -> tuple[ExportedProgram, list[Place]]:
    """The module as a graph, and which of the varying lengths it treats as fixed after all.

    Raises:
        CaptureError: torch.export cannot follow it.
    """
    shapes = tuple(
        {dim: Dim.AUTO if (index, dim) in varying else Dim.STATIC for dim in range(tensor.ndim)}
        for index, tensor in enumerate(tensors)
    )
    flat = _Flat(module, description, same_as)
    with _plain(flat, training=training):
        try:
            program = export(flat, tuple(tensors), dynamic_shapes=(shapes,))
        except CaptureError:
            raise
        except Exception as error:
            sentence = str(error).strip().partition("\n")[0][:300]
            raise CaptureError(
                f"torch.export cannot follow {type(module).__name__} ({sentence}); capture a part of it instead"
            ) from error
    names = [
        spec.arg.name for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT
    ]
    nodes = {node.name: node for node in program.graph.nodes}
    fixed = [
        (index, dim)
        for index, dim in sorted(varying)
        if not isinstance(nodes[names[index]].meta["val"].shape[dim], torch.SymInt)
    ]
    return program, fixed


def state_of(program: ExportedProgram) -> Iterator[tuple[str, str, torch.Tensor, bool]]:
    """Placeholder, attribute, tensor and whether it is a parameter, for everything that the graph takes from the
    module.

    Tied weights share one attribute.
    """
    seen: dict[int, str] = {}
    taken: set[str] = set()
    for spec in program.graph_signature.input_specs:
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            continue
        target = str(spec.target)
        tensor = program.state_dict[target] if target in program.state_dict else program.constants[target]
        if id(tensor) not in seen:
            name = target.removeprefix("inner.").replace(".", "_")
            name = name if name.isidentifier() and not hasattr(nn.Module, name) else f"state_{name}"
            while name in taken or name in _RESERVED:
                name += "_"
            taken.add(name)
            seen[id(tensor)] = name
        yield spec.arg.name, seen[id(tensor)], tensor, spec.kind is InputKind.PARAMETER


def forward_text(program: ExportedProgram, inputs: Sequence[str]) -> tuple[str, str]:
    """Parameters and body of `forward`, indented by eight spaces.

    Args:
        program: from :func:`exported`.
        inputs: names for the inputs.

    Raises:
        CaptureError: an operator that cannot be written down, or that draws random numbers.
    """
    signature = program.graph_signature
    names: dict[str, str] = {placeholder: f"self.{name}" for placeholder, name, _, _ in state_of(program)}
    given = [spec.arg.name for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    parameters = [f"{name}_" if name in _RESERVED else name for name in inputs]
    names |= dict(zip(given, parameters, strict=True))
    text = _Text(names, parameters)
    graph = program.graph_module.graph
    for node in list(graph.nodes):
        if node.op == "call_function" and any(check in str(node.target) for check in _CHECKS):
            node.replace_all_uses_with(None)
            graph.erase_node(node)
    graph.eliminate_dead_code()
    (output,) = [node for node in graph.nodes if node.op == "output"]
    for node in graph.nodes:
        if node.op == "call_function":
            text.add(node)
        elif node.op not in ("placeholder", "output"):
            raise CaptureError(
                f"the exported graph has a node of the kind {node.op}, which cannot be written down"
            )
    results: list[str] = []
    for spec, value in zip(signature.output_specs, output.args[0], strict=True):
        if spec.kind is OutputKind.BUFFER_MUTATION:
            target = "inner." + str(spec.target).removeprefix("inner.")
            (name,) = {
                names[each.arg.name] for each in signature.input_specs if each.target in (spec.target, target)
            }
            text.lines.append(f"{name}.copy_({text.value(value)})")
        elif spec.kind is OutputKind.USER_INPUT_MUTATION:
            text.lines.append(f"{names[str(spec.target)]}.copy_({text.value(value)})")
        elif spec.kind is OutputKind.USER_OUTPUT:
            results.append(text.value(value))
    text.lines.append(f"return {results[0] if len(results) == 1 else ', '.join(results)}")
    if text.uses_device:
        source = parameters[0] if parameters else next(iter(names.values()))
        text.lines.insert(0, f"device = {source}.device")
    return ", ".join(["self", *parameters]), "\n".join(f"        {line}" for line in text.lines)


class _Text:
    """Lines of a function, one for each node of a graph."""

    def __init__(self, names: dict[str, str], taken: Sequence[str]) -> None:
        self.lines: list[str] = []
        self.uses_device = False
        self._names = names
        self._taken = {*taken, *_RESERVED}

    def add(self, node: torch.fx.Node) -> None:
        """The line of one call."""
        if node.target is torch.ops.aten.dropout.default and node.args[2] is False:
            self._names[node.name] = self.value(node.args[0])
            return
        name = node.name
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        self._names[node.name] = name
        target = node.target
        if target is operator.getitem:
            self.lines.append(f"{name} = {self.value(node.args[0])}[{self.value(node.args[1])}]")
            return
        arguments = [self.value(value) for value in node.args]
        arguments += [
            f"{key}={self.value(value)}"
            for key, value in node.kwargs.items()
            if not (key == "pin_memory" and value is False)
        ]
        self.lines.append(f"{name} = {_callable(target)}({', '.join(arguments)})")

    def value(self, value: Any) -> str:
        """An argument as Python."""
        if isinstance(value, torch.fx.Node):
            return self._names[value.name]
        if isinstance(value, torch.device):
            self.uses_device = True
            return "device"
        if isinstance(value, (list, tuple)):
            items = [self.value(item) for item in value]
            return (
                f"[{', '.join(items)}]"
                if isinstance(value, list)
                else f"({''.join(f'{item}, ' for item in items)})"
            )
        if isinstance(value, slice):
            return f"slice({self.value(value.start)}, {self.value(value.stop)}, {self.value(value.step)})"
        if isinstance(value, float) and not math.isfinite(value):
            return f'float("{value}")'
        if value is None or isinstance(value, (bool, int, float, complex, str)):
            return repr(value)
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
            return str(value)
        raise CaptureError(f"an operator takes a {type(value).__name__}, which cannot be written down")


def _callable(target: Callable[..., Any] | str) -> str:
    if isinstance(target, torch._ops.OpOverload):
        if target.namespace not in _NAMESPACES:
            raise CaptureError(
                f"the module calls {target}, an operator of a library that does not exist where tasks are judged; "
                "capture the parts around it"
            )
        if _RANDOM in target.tags and "attention" not in str(target):
            raise CaptureError(
                f"the module draws random numbers ({target}); write it with training=False, or capture a part without"
            )
        return f"torch.ops.{target}"
    module, name = getattr(target, "__module__", ""), getattr(target, "__name__", "")
    if module in ("_operator", "operator"):
        return f"operator.{name}"
    if module == "math" or (module == "torch" and name.startswith("sym_")):
        return f"{module}.{name}"
    raise CaptureError(f"the module holds {target}, a construct that cannot be written as plain operators")
