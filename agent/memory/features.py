"""What memory knows a module by: operators, reductions, dtypes and size; never its names or its text."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.library.match.graph import Argument, Node, Ref, Traced

#: Bytes of inputs, outputs and parameters in one call, upper limits; what is larger is "huge".
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

# Movement without arithmetic: how a module is written, not what it computes.
_PLUMBING = frozenset(
    "view reshape permute transpose t expand clone detach alias unsqueeze squeeze getitem contiguous to to_copy lift_fresh_copy "
    "size shape dim numel chunk split unbind flatten empty empty_like type_as float half bfloat16 register_buffer unsafe_view".split()
)
# One name for what graphs, functions and modules call differently.
_ALIASES = {
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "native_batch_norm": "batch_norm",
    "native_batch_norm_legit_no_training": "batch_norm",
    "fused_rms_norm": "rms_norm",
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
    "safe_softmax": "softmax",
}
_BINARY = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "div",
    ast.MatMult: "matmul",
    ast.Pow: "pow",
}
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
    """A module as memory sees it.

    Attributes:
        operators: how often each operator occurs, without movement of data; names such as "mul", "softmax", "matmul".
        reductions: "reduce:AXIS" and "scan:AXIS", where AXIS is last, first, inner, several or all.
        dtypes: of inputs and outputs, without `torch.`.
        size_class: one of `SIZE_CLASSES`, by the bytes that one usual call touches.
    """

    operators: Mapping[str, int] = field(default_factory=dict)
    reductions: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    size_class: str = "medium"

    def to_json(self) -> dict[str, Any]:
        """As a JSON value, the same for equal features."""
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
            KeyError: a field is missing.
            ValueError: the size class is unknown.
        """
        if data["size_class"] not in _SIZE_NAMES:
            raise ValueError(f"size class {data['size_class']!r} is unknown")
        return cls(
            {str(name): int(count) for name, count in data["operators"].items()},
            frozenset(map(str, data["reductions"])),
            frozenset(map(str, data["dtypes"])),
            data["size_class"],
        )


def features_of_graph(traced: Traced, description: Mapping[str, Any]) -> Features:
    """Features by a traced graph; `description` is what `Referee.describe` said of the task."""
    operators: Counter[str] = Counter()
    reductions = set()
    for node in traced.traces[0].nodes:
        name = _operator(node.op.removeprefix("aten.").split(".")[0])
        if node.is_leaf or name in _PLUMBING:
            continue
        operators[name] += 1
        kind = "reduce" if name in _REDUCING | _OVER_LAST else "scan" if name in _SCANNING else ""
        if kind:
            reductions.add(f"{kind}:{_axis(node, name, traced)}")
    return Features(
        _bounded(operators), frozenset(reductions), _dtypes(description), _size_class(description)
    )


def features_of_source(source: str, description: Mapping[str, Any]) -> Features:
    """Features by the names that a module's text uses, for modules that cannot be traced. The text is only parsed.

    Axes are those that calls name as `dim`; text that is no Python gives no operators.
    """
    operators: Counter[str] = Counter()
    reductions = set()
    for name, axis in _called(source):
        if name in _PLUMBING:
            continue
        operators[name] += 1
        kind = "reduce" if name in _REDUCING | _OVER_LAST else "scan" if name in _SCANNING else ""
        if kind:
            reductions.add(f"{kind}:{'last' if name in _OVER_LAST else axis}")
    return Features(
        _bounded(operators), frozenset(reductions), _dtypes(description), _size_class(description)
    )


def _operator(name: str) -> str:
    plain = name.strip("_")[:_MAX_NAME_CHARACTERS]
    return _ALIASES.get(plain, "convolution" if plain.startswith("conv") else plain)


def _bounded(operators: Counter[str]) -> dict[str, int]:
    return dict(sorted(operators.most_common(_MAX_OPERATORS)))


def _axis(node: Node, name: str, traced: Traced) -> str:
    """Which dimensions of its first argument a node reduces or scans over."""
    if name in _OVER_LAST:
        return "last"
    chosen: Argument = node.keywords.get("dim")
    if chosen is None and len(node.arguments) > 1:
        chosen = node.arguments[2] if name == "topk" and len(node.arguments) > 2 else node.arguments[1]
    if name == "linalg_vector_norm":
        chosen = node.arguments[2] if len(node.arguments) > 2 else None
    first = node.arguments[0] if node.arguments else None
    shape = traced.traces[0].nodes[first.node].shape if isinstance(first, Ref) else None
    axes = chosen if isinstance(chosen, tuple) else (chosen,)
    numbers = [axis for axis in axes if isinstance(axis, int) and not isinstance(axis, bool)]
    return _axis_word(numbers, len(shape) if shape else 0)


def _axis_word(axes: list[int], rank: int) -> str:
    if not axes or (rank and len(axes) >= rank and rank > 1):
        return "all"
    if len(axes) > 1:
        return "several"
    axis = axes[0]
    if axis == -1 or (rank and axis == rank - 1):
        return "last"
    return "first" if axis == 0 or (rank and axis == -rank) else "inner"


def _called(source: str) -> Iterator[tuple[str, str]]:
    """(operator, axis word) of the calls and operators inside class Model."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    models = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Model"]
    for node in (inner for model in models for inner in ast.walk(model)):
        if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
            yield _BINARY[type(node.op)], "all"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner, name = node.func.value, node.func.attr
            if isinstance(owner, ast.Call) or (isinstance(owner, ast.Name) and owner.id == "self"):
                continue  # super().__init__(), and modules by the name that their user gave them
            name = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
            name = re.sub(r"_?([123])d$", r"\1d", name)
            if name not in ("parameter", "randn", "rand", "module_list", "sequential"):
                yield _operator(name), _axis_word(_named_axes(node), 0)


def _named_axes(call: ast.Call) -> list[int]:
    for keyword in call.keywords:
        if keyword.arg in ("dim", "axis"):
            try:
                value = ast.literal_eval(keyword.value)
            except (ValueError, RecursionError):
                return [1]
            found = value if isinstance(value, (tuple, list)) else (value,)
            return [axis for axis in found if isinstance(axis, int)]
    return []


def _tensors(description: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for value in [*(description.get("inputs") or ()), *(description.get("outputs") or ())]:
        if "dtype" in value:
            yield value
        yield from value.get("tensors") or ()


def _dtypes(description: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(str(tensor["dtype"]).removeprefix("torch.") for tensor in _tensors(description))


def _size_class(description: Mapping[str, Any]) -> str:
    total = 4 * int(description.get("parameters") or 0)
    for tensor in _tensors(description):
        item_bytes = _BYTES.get(str(tensor["dtype"]).removeprefix("torch."), 1)
        total += math.prod(tensor["shape"]) * item_bytes
    return next(name for name, limit in SIZE_CLASSES if limit is None or total < limit)
