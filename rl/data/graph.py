"""The traced graph as the sandbox reports it: untrusted JSON, checked here before it is used."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any, TypeAlias

MAX_NODES = 2000
MAX_JSON_BYTES = 4_000_000
_OP = re.compile(r"[A-Za-z_][\w.:]{0,120}")
_DTYPE = re.compile(r"[a-z][a-z0-9_]{1,24}")
#: A parameter's path as Python can write it: `norm.weight`, and `blocks.0.norm.weight` for numbered children.
_PATH = re.compile(r"[A-Za-z_]\w{0,80}(\.\w{1,80}){0,12}", re.ASCII)
_LEAVES = ("input", "parameter", "buffer", "constant")


class BadGraph(ValueError):
    """The report of the tracing program breaks its own format."""


@dataclass(frozen=True)
class Ref:
    """An argument that is the result of an earlier node."""

    node: int


Argument: TypeAlias = "Ref | bool | int | float | str | tuple[Argument, ...] | None"


@dataclass(frozen=True)
class Node:
    """One operation or placeholder.

    Attributes:
        op: "aten.add.Tensor" and the like, or one of input, parameter, buffer, constant.
        name: of a placeholder: position of an input, path of a parameter or buffer.
        arguments: positional arguments; they refer to earlier nodes only.
        keywords: keyword arguments.
        shape: of the result, or None when the result is no single tensor.
        dtype: of the result, without `torch.`.
        value: of a constant that holds one number.
    """

    op: str
    name: str
    arguments: tuple[Argument, ...]
    keywords: dict[str, Argument]
    shape: tuple[int, ...] | None
    dtype: str
    value: float | None = None

    @property
    def is_leaf(self) -> bool:
        """Whether this is a placeholder."""
        return self.op in _LEAVES


@dataclass(frozen=True)
class Trace:
    """The graph at one choice of sizes."""

    nodes: tuple[Node, ...]
    output: int


@dataclass(frozen=True)
class Traced:
    """What the tracing program found.

    Attributes:
        traces: one or two graphs of the same module at different sizes.
        arguments: names of the arguments of forward that hold the inputs, valid identifiers.
        open_ended: forward takes more arguments than these.
    """

    traces: tuple[Trace, ...]
    arguments: tuple[str, ...]
    open_ended: bool


def read_graphs(text: bytes | str) -> Traced:
    """Parse and check the tracing program's report.

    Raises:
        BadGraph: anything unexpected in it; the message says what.
    """
    if len(text) > MAX_JSON_BYTES:
        raise BadGraph("the report is too long")
    try:
        report = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadGraph(f"the report is no JSON: {error}") from error
    _require(isinstance(report, dict), "the report is no object")
    arguments = report.get("arguments")
    _require(isinstance(arguments, list) and len(arguments) <= 64, "arguments are no short list")
    for name in arguments:
        _require(
            isinstance(name, str) and len(name) <= 80 and name.isascii() and name.isidentifier(),
            "bad argument name",
        )
    _require(len(set(arguments)) == len(arguments), "an argument name is repeated")
    traces = report.get("traces")
    _require(isinstance(traces, list) and 1 <= len(traces) <= 2, "there must be one or two traces")
    _require(all(isinstance(trace, dict) for trace in traces), "a trace is no object")
    return Traced(
        tuple(_trace(trace, len(arguments)) for trace in traces),
        tuple(arguments),
        report.get("open_ended") is not False,
    )


def _trace(fields: dict[str, Any], inputs: int) -> Trace:
    listed: Any = fields.get("nodes")
    _require(
        isinstance(listed, list) and 1 <= len(listed) <= MAX_NODES, f"a trace has 1 to {MAX_NODES} nodes"
    )
    nodes = tuple(_node(node, position, inputs) for position, node in enumerate(listed))
    output: Any = fields.get("output")
    _require(_is_index(output, len(nodes)), "the output is no node")
    return Trace(nodes, output)


def _node(fields: Any, position: int, inputs: int) -> Node:
    _require(isinstance(fields, dict), "a node is no object")
    op, name, shape = fields.get("op"), fields.get("name", ""), fields.get("shape")
    _require(isinstance(op, str) and _OP.fullmatch(op) is not None, "bad name of an operation")
    _require(isinstance(name, str), "a node's name is no text")
    if op == "input":
        _require(name.isascii() and name.isdigit() and len(name) <= 2, "an input's name is its position")
        _require(int(name) < inputs, "an input has no argument")
    elif op in ("parameter", "buffer"):
        _require(_PATH.fullmatch(name) is not None, "a parameter's name is no path of identifiers")
    arguments, keywords = fields.get("args"), fields.get("kwargs")
    _require(isinstance(arguments, list) and isinstance(keywords, dict), "a node's arguments are no lists")
    dtype = fields.get("dtype", "")
    _require(dtype == "" or (isinstance(dtype, str) and _DTYPE.fullmatch(dtype) is not None), "bad dtype")
    if shape is not None:
        _require(isinstance(shape, list) and len(shape) <= 16, "a shape is no short list")
        _require(all(_is_index(size, 1 << 48) for size in shape), "a shape holds something else than sizes")
        shape = tuple(shape)
    value = fields.get("value")
    if value is not None:
        _require(_is_number(value) and math.isfinite(value), "a constant's value is no finite number")
        value = float(value)
    return Node(
        op,
        name,
        tuple(_argument(argument, position, 0) for argument in arguments),
        {str(key)[:80]: _argument(argument, position, 0) for key, argument in keywords.items()},
        shape,
        dtype,
        value,
    )


def _argument(value: Any, position: int, depth: int) -> Argument:
    _require(depth < 6, "arguments are nested too deeply")
    if isinstance(value, list):
        _require(len(value) <= 256, "a list of arguments is too long")
        return tuple(_argument(item, position, depth + 1) for item in value)
    if isinstance(value, dict):
        node: Any = value.get("node")
        _require(set(value) == {"node"} and _is_index(node, position), "a node refers to a later one")
        return Ref(node)
    _require(value is None or isinstance(value, (bool, int, float, str)), "bad argument")
    return value[:200] if isinstance(value, str) else value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_index(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit


def _require(condition: object, complaint: str) -> None:
    if not condition:
        raise BadGraph(complaint)
