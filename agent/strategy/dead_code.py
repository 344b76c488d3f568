"""Takes out of a candidate's functions what cannot matter: texts that nobody reads, branches never taken, names never read.

A statement goes only if leaving it out can neither change a result nor lose or bring an exception.
"""

from __future__ import annotations

import ast
import builtins
from collections import Counter
from collections.abc import Iterable, Iterator

from agent.bundle.sections import bound_names, used_names

Function = ast.FunctionDef | ast.AsyncFunctionDef
BUILTINS = frozenset(dir(builtins))
_LEAVES = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_SUMS = (ast.Add, ast.Sub, ast.Mult)


def units(tree: ast.AST) -> Iterator[tuple[Function, bool]]:
    """Functions that lie in no other function, and whether each is a method."""
    pending: list[tuple[ast.AST, bool]] = [(tree, False)]
    while pending:
        node, in_class = pending.pop()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Function):
                yield child, in_class
            elif not isinstance(child, (ast.expr, ast.Lambda)):
                pending.append((child, in_class or isinstance(child, ast.ClassDef)))


def parameters(node: ast.AST) -> Iterator[ast.arg]:
    """All parameters of a function and of those inside it."""
    return (item for item in ast.walk(node) if isinstance(item, ast.arg))


def bound_inside(node: ast.AST) -> Iterator[str]:
    """Names that code binds anywhere inside, in whatever scope, except by parameters."""
    for item in ast.walk(node):
        if isinstance(item, ast.Name):
            if not isinstance(item.ctx, ast.Load):
                yield item.id
        elif not isinstance(item, ast.expr):
            yield from _bound_by(item)


def _bound_by(item: ast.AST) -> Iterable[str]:
    """Names that a statement or a part of one binds other than by assigning."""
    if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return (item.name,)
    if isinstance(item, (ast.Import, ast.ImportFrom)):
        return [alias.asname or alias.name.partition(".")[0] for alias in item.names]
    if isinstance(item, (ast.Global, ast.Nonlocal)):
        return item.names
    if isinstance(item, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)):
        return (item.name,) if item.name else ()
    return (item.rest,) if isinstance(item, ast.MatchMapping) and item.rest else ()


def untouchable(unit: ast.AST) -> set[str]:
    """Names of a function whose scope is not plain: global, nonlocal, of a class body, an import, an exception, a pattern."""
    found: set[str] = set()
    for node in ast.walk(unit):
        if isinstance(node, ast.ClassDef):
            found.add(node.name)
            for statement in node.body:
                found.update(bound_inside(statement))
        elif isinstance(
            node,
            (
                ast.Global,
                ast.Nonlocal,
                ast.Import,
                ast.ImportFrom,
                ast.ExceptHandler,
                ast.MatchAs,
                ast.MatchStar,
                ast.MatchMapping,
            ),
        ):
            found.update(bound_inside(node))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
            found.add(node.id)
    return found


def surely_harmless(value: ast.expr, known: frozenset[str]) -> bool:
    """Whether evaluating does nothing, costs nothing and cannot fail: constants, known names, sums of numbers, displays."""
    match value:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in known
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(surely_harmless(part, known) for part in parts)
        case ast.Dict(keys=keys, values=values):
            return all(isinstance(key, ast.Constant) for key in keys) and all(
                surely_harmless(part, known) for part in values
            )
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float())):
            return True
        case ast.BinOp(left=left, op=operation, right=right):
            return isinstance(operation, _SUMS) and _is_number(left) and _is_number(right)
        case ast.Lambda(args=arguments):
            return not arguments.defaults and not any(arguments.kw_defaults)
    return False


def _is_number(value: ast.expr) -> bool:
    if isinstance(value, ast.BinOp):
        return isinstance(value.op, _SUMS) and _is_number(value.left) and _is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def without_dead_code(tree: ast.Module, module_names: frozenset[str]) -> None:
    """Change the tree in place.

    Args:
        tree: of the whole file.
        module_names: what is bound at module level once the functions run.
    """
    while True:
        pruner = _Pruner(Counter(_mentions(tree)))
        pruner.visit(tree)
        changed = pruner.changed
        for unit, _ in units(tree):
            changed |= _drop_unread(unit, module_names)
        if not changed:
            return


def drop_main_guard(tree: ast.Module) -> None:
    """A candidate is imported: what it does as a program, nobody runs."""
    for guard in [one for one in tree.body if isinstance(one, ast.If) and not one.orelse]:
        if ast.unparse(guard.test) == "__name__ == '__main__'":
            others = (name for one in tree.body if one is not guard for name in used_names(one))
            if not set(bound_names(guard)) & set(others):
                tree.body.remove(guard)


def _mentions(node: ast.AST) -> Iterator[str]:
    """Every mention of a name, read or bound."""
    for item in ast.walk(node):
        if isinstance(item, ast.Name):
            yield item.id
        elif isinstance(item, ast.arg):
            yield item.arg
        elif not isinstance(item, ast.expr):
            yield from _bound_by(item)


def _truth(test: ast.expr) -> bool | None:
    """What a constant condition says."""
    if isinstance(test, ast.Constant):
        return bool(test.value)
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        inner = _truth(test.operand)
        return None if inner is None else not inner
    return None


class _Pruner(ast.NodeTransformer):
    """Constant conditions, code behind a return, and expressions that are only a constant."""

    def __init__(self, mentions: Counter[str]) -> None:
        self._mentions = mentions
        self.changed = False

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                kept = self._block(block)
                if len(kept) != len(block) or any(
                    one is not two for one, two in zip(kept, block, strict=True)
                ):
                    self.changed = True
                if not kept and name == "body" and not isinstance(node, ast.Module):
                    kept = [ast.Pass()]
                setattr(node, name, kept)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        truth = _truth(node.test)
        chosen, other = (node.body, node.orelse) if truth else (node.orelse, node.body)
        if truth is None or not self._droppable([other]):
            return node
        self.changed = True
        return chosen

    def _block(self, block: list[ast.stmt]) -> list[ast.stmt]:
        kept: list[ast.stmt] = []
        for at, statement in enumerate(block):
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                continue
            if isinstance(statement, ast.Pass) and len(block) > 1:
                continue
            if isinstance(statement, ast.If) and (truth := _truth(statement.test)) is not None:
                chosen, other = (
                    (statement.body, statement.orelse) if truth else (statement.orelse, statement.body)
                )
                if self._droppable(other):
                    kept += chosen
                    continue
            kept.append(statement)
            rest = block[at + 1 :]
            if isinstance(statement, _LEAVES) and rest and self._droppable(rest):
                break
        return kept

    def _droppable(self, nodes: Iterable[ast.AST]) -> bool:
        """Whether nothing else in the file mentions a name that is bound here: without the binding it would mean another."""
        nodes = list(nodes)
        inside: Counter[str] = Counter()
        for node in nodes:
            if any(isinstance(item, (ast.Yield, ast.YieldFrom, ast.Await)) for item in ast.walk(node)):
                return False  # they make a generator of the function, run or not
            inside.update(_mentions(node))
        return all(self._mentions[name] == inside[name] for node in nodes for name in bound_inside(node))


def _drop_unread(unit: Function, module_names: frozenset[str]) -> bool:
    """Assignments and nested functions whose name is read nowhere in the unit."""
    read: set[str] = set()
    for node in ast.walk(unit):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            read.add(node.id)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read.add(node.target.id)
    bound = {name for statement in unit.body for name in bound_inside(statement)}
    if bound <= read:
        return False
    odd = untouchable(unit)
    arguments = {
        argument.arg for argument in (*unit.args.posonlyargs, *unit.args.args, *unit.args.kwonlyargs)
    }
    # A name that is bound somewhere in the function may not be so yet.
    known = (module_names | BUILTINS | arguments) - bound
    dropper = _Dropper(read | odd, frozenset(known))
    unit.body = dropper.block(unit.body) or [ast.Pass()]
    return dropper.changed


class _Dropper(ast.NodeTransformer):
    def __init__(self, needed: set[str], known: frozenset[str]) -> None:
        self._needed = needed
        self._known = known
        self.changed = False

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """The statements that stay."""
        kept = [self.visit(statement) for statement in body if not self._unread(statement)]
        self.changed |= len(kept) != len(body)
        return kept

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if isinstance(node, (ast.expr, ast.ClassDef)):
            return node
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(node, name, self.block(inner) or ([ast.Pass()] if name == "body" else []))
        for handler in getattr(node, "handlers", ()):
            handler.body = self.block(handler.body) or [ast.Pass()]
        return node

    def _unread(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.FunctionDef):
            spec = statement.args
            defaults = [*spec.defaults, *(item for item in spec.kw_defaults if item is not None)]
            return (
                statement.name not in self._needed
                and not statement.decorator_list
                and statement.returns is None
                and not any(
                    argument.annotation for argument in ast.walk(spec) if isinstance(argument, ast.arg)
                )
                and all(surely_harmless(item, self._known) for item in defaults)
            )
        if isinstance(statement, ast.Assign):
            targets, value = statement.targets, statement.value
        elif isinstance(statement, ast.AnnAssign) and statement.value is not None and statement.simple:
            targets, value = [statement.target], statement.value
        else:
            return False
        return surely_harmless(value, self._known) and all(
            isinstance(target, ast.Name) and target.id not in self._needed for target in targets
        )
