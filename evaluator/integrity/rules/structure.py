"""What the module is made of: the reference itself (E55), library calls (E52), the compiler, exact sizes (E56)."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from evaluator.integrity.rules.base import Hit, Rule, at, calls_to, method_calls
from evaluator.integrity.source import Function, Source

#: Operations that compute; excludes those that allocate, query or make views.
_COMPUTE = frozenset(
    """abs add addbmm addcmul addmm addmv amax amin baddbmm bmm cat clamp conv1d conv2d conv3d cos cross cumprod cumsum
    div dot dropout einsum erf exp fft gelu inner layer_norm log log_softmax logsumexp lstm matmul max maximum mean
    min minimum mm mul multi_head_attention_forward mv native_layer_norm norm outer pow prod relu relu_ rms_norm rsqrt
    scaled_dot_product_attention sigmoid silu sin softmax sort sqrt std sub sum tanh tensordot topk tril triu var
    var_mean where""".split()
)
#: Names that other objects also have, so a method call with such a name proves nothing.
_AMBIGUOUS = frozenset(("add", "max", "min", "sum", "sort", "cat", "where", "pow", "index"))
_COMPILER = re.compile(r"^torch\.(?:compile|_dynamo\.|_inductor\.|jit\.(?:script|trace)|export\.)")
_GRAPHS = frozenset(
    {
        "torch.cuda.CUDAGraph",
        "torch.cuda.graph",
        "torch.cuda.graphs.graph",
        "torch.cuda.make_graphed_callables",
    }
)


def _library(source: Source) -> Iterator[Hit]:
    layers = _layers(source)
    for name, node in source.calls:
        function = source.function_of(node)
        if not source.runs(node) or function is None or source.is_kernel(function):
            continue
        last = name.rpartition(".")[2]
        named = name.startswith(("torch.nn.functional.", "torch.ops.aten."))
        if named or (name.startswith("torch.") and last in _COMPUTE):
            yield at(node, f"{name}()")
        elif name.startswith("self.") and name[5:] in layers:
            yield at(node, f"{name}(), a layer of torch.nn")
        elif isinstance(node.func, ast.Attribute) and last in _COMPUTE - _AMBIGUOUS:
            if not name.startswith(("triton.", "tl.", "math.", "numpy.", "torch.", "super.")):
                yield at(node, f".{last}()")
    for part in source.nodes:
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult) and source.runs(part):
            yield at(part, "@")


def _layers(source: Source) -> set[str]:
    """Attributes of the module that are layers of torch.nn."""
    found = set()
    for target, statement in source.assignments():
        if isinstance(target, ast.Attribute) and isinstance(statement, ast.Assign):
            value = statement.value
            if isinstance(value, ast.Call) and source.dotted(value.func).startswith("torch.nn."):
                last = source.dotted(value.func).rpartition(".")[2]
                if last not in ("Parameter", "ParameterList", "Module", "Buffer"):
                    found.add(source.dotted(target).removeprefix("self."))
    return found


def _inherits(source: Source) -> Iterator[Hit]:
    new = source.classes.get("ModelNew")
    for base in new.bases if new is not None else ():
        if new is not None and source.dotted(base).rpartition(".")[2] == "Model":
            yield at(new, f"class ModelNew({source.dotted(base)})")
    for name, node in source.calls:
        if name == "Model" and new is not None and _class_of(source, node) is new:
            yield at(node, "builds a Model inside ModelNew")
    for target, statement in source.assignments():
        if isinstance(target, ast.Name) and target.id == "ModelNew":
            yield at(statement, "ModelNew = ...")


def _class_of(source: Source, node: ast.AST | None) -> ast.AST | None:
    while node is not None and not isinstance(node, ast.ClassDef):
        node = source.parent(node)
    return node


def _sizes(source: Source) -> Iterator[Hit]:
    """Tests of forward() that compare a size with a number above 1."""
    held: dict[Function | None, set[str]] = {}
    for target, statement in source.assignments():
        value = getattr(statement, "value", None)
        if (
            isinstance(target, ast.Name)
            and source.runs(statement)
            and value is not None
            and _is_size(value, set())
        ):
            held.setdefault(source.function_of(statement), set()).add(target.id)
    for node in source.nodes:
        if not (isinstance(node, ast.Compare) and source.runs(node)):
            continue
        if not any(isinstance(op, (ast.Eq, ast.NotEq, ast.In, ast.NotIn)) for op in node.ops):
            continue
        sides = [node.left, *node.comparators]
        names = held.get(source.function_of(node), set())
        numbers = [n for side in sides for n in _numbers(side)]
        if any(_is_size(side, names) for side in sides) and any(n > 1 for n in numbers):
            yield at(node, f"a size is compared with {max(numbers)}")


def _is_size(node: ast.AST, names: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.Tuple):
        return any(_is_size(one, names) for one in node.elts)
    if isinstance(node, ast.Subscript):
        return _is_size(node.value, names)
    if isinstance(node, ast.Attribute):
        return node.attr == "shape"
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            return node.func.attr in ("size", "numel")
        return (
            isinstance(node.func, ast.Name)
            and node.func.id == "tuple"
            and any(_is_size(a, names) for a in node.args)
        )
    return False


def _numbers(node: ast.AST) -> list[int]:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return [node.value]
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return [number for one in node.elts for number in _numbers(one)]
    if isinstance(node, ast.Call):  # torch.Size([...])
        return [number for one in node.args for number in _numbers(one)]
    return []


def _values(source: Source) -> Iterator[Hit]:
    """Branches on a tensor's values: `if x.max() < 4`."""
    looks = frozenset(
        ("item", "tolist", "any", "all", "max", "min", "amax", "mean", "std", "abs", "count_nonzero")
    )
    for node in source.nodes:
        if isinstance(node, (ast.If, ast.IfExp, ast.While)) and source.runs(node):
            function = source.function_of(node)
            if function is not None and source.is_kernel(function):
                continue
            for part in ast.walk(node.test):
                if (
                    isinstance(part, ast.Call)
                    and isinstance(part.func, ast.Attribute)
                    and part.func.attr in looks
                ):
                    yield at(node, f"a branch on .{part.func.attr}()")
                    break


def _compiler(source: Source) -> Iterator[Hit]:
    for name, node in source.calls:
        if _COMPILER.match(name):
            yield at(node, f"{name}()")
    for part in source.nodes:
        if isinstance(part, (ast.FunctionDef, ast.ClassDef)):
            for mark in part.decorator_list:
                if _COMPILER.match(source.dotted(mark)):
                    yield at(part, f"@{source.dotted(mark)}")


def _graphs(source: Source) -> Iterator[Hit]:
    yield from calls_to(source, _GRAPHS)
    yield from method_calls(source, frozenset({"capture_begin", "replay"}))


RULES = (
    Rule("inherits_reference", "info", "it is made from the reference itself", _inherits),
    Rule("library_call", "info", "forward() calls operations of a library", _library),
    Rule("hard_coded_shape", "warning", "forward() tests for exact sizes", _sizes),
    Rule("inspects_values", "warning", "forward() branches on values of its inputs", _values),
    Rule("uses_compiler", "info", "it uses torch's compiler", _compiler),
    Rule("uses_cuda_graph", "info", "it captures a CUDA graph", _graphs),
)
