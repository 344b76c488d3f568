"""Answers kept from an earlier call: keyed by address, identity, version counter or a sample of the content (E13
to E20).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from evaluator.integrity.rules.base import Hit, Rule, at
from evaluator.integrity.source import Function, Source

_KEY_METHODS = {"get", "setdefault", "pop", "add", "move_to_end", "__getitem__", "__contains__"}
_THROUGH = {"hash", "str", "int", "tuple", "repr", "bytes", "frozenset", "float", "round"}
_SAMPLES = {"item", "tolist", "tobytes", "numpy"}
_REDUCTIONS = {"sum", "mean", "max", "min", "norm", "std", "abs", "any", "all", "amax", "amin", "item"}


def _keys(source: Source, is_key: Callable[[ast.AST], bool], words: str) -> Iterator[Hit]:
    """Places where a value of some kind, or a name that holds it, is looked up or compared with a stored one."""
    held: dict[Function | None, set[str]] = {}
    direct = [node for node in source.nodes if is_key(node)]
    for node in direct:
        end = _outermost(source, node)
        if _is_lookup(source, end):
            yield at(node, words)
        parent = source.parent(end)
        if isinstance(parent, ast.Assign):
            names = {target.id for target in parent.targets if isinstance(target, ast.Name)}
            held.setdefault(source.function_of(node), set()).update(names)
    if not held:
        return
    for node in source.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            if node.id in held.get(source.function_of(node), ()) and _is_lookup(
                source, _outermost(source, node)
            ):
                yield at(node, f"{words}, held in {node.id}")


def _outermost(source: Source, node: ast.AST) -> ast.AST:
    """The whole key that contains a value: through tuples, formatting, hash() and the like."""
    while (parent := source.parent(node)) is not None:
        through_call = (
            isinstance(parent, ast.Call)
            and node in parent.args
            and (source.dotted(parent.func) in _THROUGH or source.dotted(parent.func).startswith("hashlib."))
        )
        digest = isinstance(parent, ast.Attribute) and parent.attr in ("hexdigest", "digest")
        digested = isinstance(parent, ast.Call) and parent.func is node
        if not (through_call or digest or digested or isinstance(parent, _CONTAINERS)):
            return node
        node = parent
    return node


_CONTAINERS = (
    ast.Tuple,
    ast.List,
    ast.Starred,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.GeneratorExp,
    ast.ListComp,
)


def _is_lookup(source: Source, key: ast.AST) -> bool:
    parent = source.parent(key)
    if isinstance(parent, ast.Subscript) and parent.slice is key:
        return True
    if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute) and key in parent.args:
        return parent.func.attr in _KEY_METHODS
    if isinstance(parent, ast.Compare):
        if parent.left is key and any(isinstance(op, (ast.In, ast.NotIn)) for op in parent.ops):
            return True
        if any(isinstance(op, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)) for op in parent.ops):
            others = [side for side in (parent.left, *parent.comparators) if side is not key]
            return any(_is_stored(source, side) for side in others)
    return False


def _is_stored(source: Source, node: ast.AST) -> bool:
    """Something that outlives the call: an attribute of the module, or an element of one."""
    while isinstance(node, ast.Subscript):
        node = node.value
    return isinstance(node, ast.Attribute) and source.dotted(node).startswith(("self.", "ModelNew."))


def _is_pointer(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "data_ptr"
    )


def _is_identity(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"


def _is_sample(node: ast.AST) -> bool:
    """Values of a tensor converted to Python: x.sum().item(), float(x.max() > 3)."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Name) and node.func.id in ("float", "bool", "int") and node.args:
        part = node.args[0].left if isinstance(node.args[0], ast.Compare) else node.args[0]
        return (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr in _REDUCTIONS
        )
    return isinstance(node.func, ast.Attribute) and node.func.attr in _SAMPLES


def _fingerprints(source: Source) -> Iterator[Hit]:
    yield from _keys(source, _is_sample, "values of a tensor as a key")
    for name, node in source.calls:
        last = name.rpartition(".")[2]
        if last in ("equal", "allclose", "array_equal") and source.runs(node):
            sides = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
            if any(_is_stored(source, side) for side in sides):
                yield at(node, f"{last}() with a tensor kept from an earlier call")


def _versions(source: Source) -> Iterator[Hit]:
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "_version":
            yield at(node, "._version")


def _rebinds(source: Source) -> Iterator[Hit]:
    for target, statement in source.assignments():
        if isinstance(target, ast.Attribute) and target.attr in (
            "forward",
            "__call__",
            "__class__",
            "_call_impl",
        ):
            yield at(statement, f"{source.dotted(target)} = ...")
    for name, node in source.calls:
        if name in ("setattr", "object.__setattr__") and len(node.args) > 1:
            given = node.args[1]
            if isinstance(given, ast.Constant) and given.value in ("forward", "__call__", "__class__"):
                yield at(node, f"setattr(..., {given.value!r}, ...)")


def _counts(source: Source) -> Iterator[Hit]:
    for node in source.nodes:
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and source.runs(node):
            if isinstance(node.value, ast.Constant) and _is_stored(source, node.target):
                yield at(node, f"{source.dotted(node.target) or 'a counter'} += {node.value.value!r}")


RULES = (
    Rule(
        "pointer_keyed_cache",
        "warning",
        "something is looked up by a tensor's address",
        lambda source: _keys(source, _is_pointer, "data_ptr() as a key"),
    ),
    Rule(
        "id_keyed_cache",
        "warning",
        "something is looked up by an object's identity",
        lambda source: _keys(source, _is_identity, "id() as a key"),
    ),
    Rule(
        "version_counter",
        "warning",
        "it reads the counter that torch increments when a tensor changes",
        _versions,
    ),
    Rule("content_fingerprint", "warning", "it recognizes contents that it has seen before", _fingerprints),
    Rule(
        "rebinds_forward", "warning", "the method that is called is replaced while the program runs", _rebinds
    ),
    Rule("counts_calls", "warning", "forward() counts how often it is called", _counts),
)
