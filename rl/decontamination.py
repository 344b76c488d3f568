"""Detects evaluation tasks in training data.

Two modules count as the same if their normal forms share nearly all token triples. The normal form covers the code that `Model`
reaches, with locals renamed and without comments, shapes and inputs, so another file name or other sizes cannot hide a copy. Modules
are compared as written, and again by their operations (`rl.formulas`).

Only texts are compared; nothing is run. The comparison recognizes `F.softmax(x, -1)`, `x.softmax(dim=-1)` and `nn.Softmax(-1)(x)` as
equal, but not an operation written out by hand (`e = exp(x - max)`, `e / sum(e)`), `dim=1` for `dim=-1`, or a weight passed as an
argument; `rl.data build` also compares what modules compute (`rl.data.meaning`).
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from agent.strategy.novelty import likeness
from evaluator.counting import counted
from rl.errors import RLError
from rl.formulas import formula

#: Modules that share at least this much are the same. Two catalog tasks that differ in one operation share up to 0.86 as written
#: (token triples) and up to 0.65 by operations: the limit prefers to drop a row too many rather than keep a copy.
SAME = 0.8
_MODEL = re.compile(r"\bModel\b")
_NAMED = 5
_ABOUT_CALLS = frozenset(
    {"get_inputs", "get_init_inputs", "DIMS", "DIRECTION", "PRECISION", "TRAFFIC", "redraw", "oracle"}
)

_Formula = Counter[tuple[str, ...]]


class ContaminatedError(RLError):
    """A data set contains modules that the model is evaluated on."""


@dataclass(frozen=True)
class Overlap:
    """A row of a data set and the evaluation task that it resembles."""

    row: str
    task: str
    share: float


def overlaps(rows: Mapping[str, str], evaluated: Mapping[str, str], same: float = SAME) -> list[Overlap]:
    """Find rows that resemble an evaluation task.

    Args:
        rows: module files to train on, by a name for people.
        evaluated: task files by name.
        same: minimum similarity of modules that count as the same, 0 to 1.
    """
    tasks = {name: _module(source) for name, source in evaluated.items()}
    formulas = {name: _formula(source) for name, source in evaluated.items()}
    found = []
    for row, source in rows.items():
        as_written = likeness(_module(source), tasks)
        mine = _formula(source)
        as_formulas = [(_share(mine, theirs), name) for name, theirs in formulas.items()]
        share, nearest = max([(as_written.share, as_written.sha256), *as_formulas])
        if nearest and share >= same:
            found.append(Overlap(row, nearest, share))
    return found


def refuse_overlaps(rows: Mapping[str, str], evaluated: Mapping[str, str], same: float = SAME) -> None:
    """Raise if any row resembles an evaluation task.

    Raises:
        ContaminatedError: some rows do; the message names rows and tasks.
    """
    found = overlaps(rows, evaluated, same)
    if found:
        raise ContaminatedError(_sentence(found, len(rows)))


def _sentence(found: Iterable[Overlap], rows: int) -> str:
    every = list(found)
    named = ", ".join(f"{one.row} is {one.share:.0%} like {one.task}" for one in every[:_NAMED])
    more = f", and {len(every) - _NAMED} more" if len(every) > _NAMED else ""
    return f"tasks that the model is evaluated on are in {len(every)} of {counted(rows, 'row')}: {named}{more}; leave them out"


def _share(mine: _Formula, theirs: _Formula) -> float:
    return (mine & theirs).total() / ((mine | theirs).total() or 1)


@lru_cache(maxsize=256)
def _formula(source: str) -> _Formula:
    try:
        return formula(_tree(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return Counter()


@lru_cache(maxsize=256)
def _module(source: str) -> str:
    """The module in the form of a candidate, since the normal form keeps only what a candidate's class reaches."""
    try:
        return ast.unparse(_numbered(_tree(source)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _MODEL.sub("ModelNew", source)


def _tree(source: str) -> ast.Module:
    """Parse a module and drop the statements that only describe calls.

    The normal form gives up on files that look up names at run time, as inputs of several dtypes do.
    """
    tree = ast.parse(_MODEL.sub("ModelNew", source))
    tree.body = [one for one in tree.body if not _is_about_calls(one)]
    return tree


def _numbered(tree: ast.Module) -> ast.Module:
    _Attributes(tree).visit(tree)
    return tree


class _Attributes(ast.NodeTransformer):
    """Replaces attribute names of a module by numbers: renaming a weight does not make another module."""

    def __init__(self, tree: ast.AST) -> None:
        self._names: dict[str, str] = {}
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                    self._add(name)
                case ast.Call(
                    func=ast.Attribute(attr="register_buffer" | "register_parameter"),
                    args=[ast.Constant(value=str(name)), *_],
                ):
                    self._add(name)

    def _add(self, name: str) -> None:
        self._names.setdefault(name, f"kept_{len(self._names)}")

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """`self.weight`."""
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "self":
            node.attr = self._names.get(node.attr, node.attr)
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """`register_buffer("weight", ...)`."""
        if isinstance(node.value, str):
            node.value = self._names.get(node.value, node.value)
        return node


def _is_about_calls(statement: ast.stmt) -> bool:
    match statement:
        case ast.FunctionDef(name=name):
            return name in _ABOUT_CALLS
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return name in _ABOUT_CALLS
        case ast.Expr(value=ast.Constant()) | ast.ImportFrom(module="kernelbench_tasks"):
            return True
    return False
