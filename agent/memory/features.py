"""Features by which memory finds a module: operators, reductions, dtypes and size; never its names or its text."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from evaluator.description import Description

#: Upper limits on the bytes of inputs, outputs and parameters in one call; larger ones are "huge".
SIZE_CLASSES = (
    ("tiny", 1 << 16),
    ("small", 1 << 20),
    ("medium", 1 << 25),
    ("large", 1 << 30),
    ("huge", None),
)
_SIZE_NAMES = tuple(name for name, _ in SIZE_CLASSES)
_MAX_OPERATORS = 200
_MAX_NAME_CHARACTERS = 60

# Data movement without arithmetic: it shows how a module is written, not what it computes.
_PLUMBING = frozenset(
    "view reshape permute transpose t expand clone detach alias unsqueeze squeeze getitem contiguous to to_copy lift_fresh_copy "
    "size shape dim numel chunk split unbind flatten empty empty_like type_as float half bfloat16 register_buffer unsafe_view".split()
)
# Maps the different names that functions and modules use to one name.
_ALIASES = {
    "r_m_s_norm": "rms_norm",
    "addmm": "matmul",
    "mm": "matmul",
    "bmm": "matmul",
    "baddbmm": "matmul",
    "linear": "matmul",
    "einsum": "matmul",
    "max": "amax",
    "min": "amin",
    "re_l_u": "relu",
    "g_e_l_u": "gelu",
    "si_l_u": "silu",
}
_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
}
_NO_OPERATORS = frozenset(
    ("Parameter", "ParameterList", "ModuleList", "ModuleDict", "Sequential", "Identity")
)
_REDUCING = frozenset(
    "sum mean amax amin max min prod var var_mean std norm linalg_vector_norm argmax argmin softmax log_softmax logsumexp any all "
    "sort topk median".split()
)
_SCANNING = frozenset("cumsum cumprod logcumsumexp cummax cummin".split())
_OVER_LAST = frozenset(("layer_norm", "rms_norm"))
_BYTES = {
    "float64": 8,
    "int64": 8,
    "complex64": 8,
    "complex128": 16,
    "float32": 4,
    "int32": 4,
    "bfloat16": 2,
    "float16": 2,
}


@dataclass(frozen=True)
class Features:
    """A module's features.

    Attributes:
        operators: count of each operator that the module's text names, excluding data movement ("mul", "amax", "matmul").
        reductions: "reduce:AXIS" and "scan:AXIS", where AXIS is last, first, inner, several or all.
        dtypes: of inputs and outputs, without `torch.`.
        size_class: a name from `SIZE_CLASSES`, by the bytes that a typical call touches.
    """

    operators: Mapping[str, int] = field(default_factory=dict)
    reductions: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    size_class: str = "medium"

    def to_json(self) -> dict[str, Any]:
        """As a JSON value; equal features give equal values."""
        return {
            "operators": dict(sorted(self.operators.items())),
            "reductions": sorted(self.reductions),
            "dtypes": sorted(self.dtypes),
            "size_class": self.size_class,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Features:
        """The inverse of `to_json`.

        Raises:
            KeyError: if a field is missing.
            ValueError: if the size class is unknown.
        """
        if data["size_class"] not in _SIZE_NAMES:
            raise ValueError(f"size class {data['size_class']!r} is unknown")
        return cls(
            # Rows of older versions count the operators of a graph apart from those of the text.
            {str(name): int(count) for name, count in (data.get("written") or data["operators"]).items()},
            frozenset(map(str, data["reductions"])),
            frozenset(map(str, data["dtypes"])),
            data["size_class"],
        )


def features_of(source: str, description: Description) -> Features:
    """Features of a task.

    Args:
        source: the task's text, which is only parsed; text that is not valid Python yields no operators.
        description: the result of `Referee.describe`.
    """
    written = list(_written(source))
    reductions = set()
    for name, axis in written:
        kind = "reduce" if name in _REDUCING | _OVER_LAST else "scan" if name in _SCANNING else ""
        if kind:
            reductions.add(f"{kind}:{'last' if name in _OVER_LAST else axis}")
    return Features(
        _counted(name for name, _ in written),
        frozenset(reductions),
        _dtypes(description),
        _size_class(description),
    )


def _operator(name: str) -> str:
    plain = name.strip("_")[:_MAX_NAME_CHARACTERS]
    return _ALIASES.get(plain, "convolution" if plain.startswith("conv") else plain)


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).most_common(_MAX_OPERATORS)))


def _axis_word(axes: list[int]) -> str:
    if not axes:
        return "all"
    if len(axes) > 1:
        return "several"
    return {-1: "last", 0: "first"}.get(axes[0], "inner")


def _written(source: str) -> Iterator[tuple[str, str]]:
    """(operator, axis word) of each call and operator inside class Model."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    models = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    for method in (part for model in models for part in model.body if isinstance(part, ast.FunctionDef)):
        for node in ast.walk(method):
            if isinstance(node, ast.BinOp) and type(node.op) in _BINARY and method.name != "__init__":
                yield _BINARY[type(node.op)], "all"
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield from _call(node, node.func, method.name == "__init__")


def _call(node: ast.Call, function: ast.Attribute, in_constructor: bool) -> Iterator[tuple[str, str]]:
    """The operator that a call of `owner.name(...)` computes. In `__init__`, only submodule constructors count."""
    owner, name = function.value, function.attr
    if isinstance(owner, ast.Name) and owner.id == "self":
        return  # submodules are called by user-chosen names
    if name.startswith("__") or (in_constructor and (not name[:1].isupper() or name in _NO_OPERATORS)):
        return
    plain = re.sub(r"_?([123])d$", r"\1d", re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower())
    operator = _operator(plain)
    if operator not in _PLUMBING:
        function_of_torch = isinstance(owner, ast.Name) and owner.id in ("torch", "F")
        yield operator, _axis_word(_written_axes(node, 1 if function_of_torch else 0))


def _written_axes(call: ast.Call, position: int) -> list[int]:
    """The dimensions that a call passes, by keyword or position; empty if they are not literal integers."""
    named = [keyword.value for keyword in call.keywords if keyword.arg in ("dim", "axis")]
    for node in (named or call.args[position : position + 1])[:1]:
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
            return []
        found = value if isinstance(value, (tuple, list)) else (value,)
        return [axis for axis in found if isinstance(axis, int) and not isinstance(axis, bool)]
    return []


def _tensors(description: Description) -> Iterator[Mapping[str, Any]]:
    for value in [*description.inputs, *description.outputs]:
        if "dtype" in value:
            yield value
        yield from value.get("tensors") or ()


def _dtypes(description: Description) -> frozenset[str]:
    return frozenset(str(tensor["dtype"]).removeprefix("torch.") for tensor in _tensors(description))


def _size_class(description: Description) -> str:
    total = 4 * description.parameters
    for tensor in _tensors(description):
        item_bytes = _BYTES.get(str(tensor["dtype"]).removeprefix("torch."), 1)
        total += math.prod(tensor["shape"]) * item_bytes
    return next(name for name, limit in SIZE_CLASSES if limit is None or total < limit)
