"""The normal form of a candidate: one text for all files that differ only in what cannot matter.

Comments, docstrings, layout, code that nothing reaches, the order of definitions and the names of locals, of functions and of
imports do not matter. Whatever might does: two files that could compute something different never share a normal form, except
for their exceptions' line numbers. A file that looks at itself (`eval`, `globals()`, `inspect`) loses its comments and layout alone.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from agent.bundle.sections import bound_names, used_names
from agent.strategy.canonical_names import COMPREHENSIONS, CanonicalNames, in_text_order, own_parameters
from agent.strategy.dead_code import (
    BUILTINS,
    Function,
    drop_main_guard,
    parameters,
    surely_harmless,
    without_dead_code,
)
from agent.strategy.native_text import edits_texts, is_native, squeezed

#: What others read from a candidate: the referee and the tuner.
_ROOTS = ("ModelNew", "TUNABLES")
_LOOKS_AT_ITSELF = frozenset(
    "globals locals vars dir eval exec compile breakpoint __import__ __name__ __file__ __doc__ __dict__ __code__ __globals__"
    " __closure__ __annotations__ __defaults__ __kwdefaults__ __qualname__ __module__ __subclasses__ __init_subclass__ _getframe"
    " co_names f_locals f_globals settrace setprofile".split()
)
_BY_NAME = frozenset({"getattr", "setattr", "hasattr", "delattr"})
_SELF_LOOKING_MODULES = frozenset(
    {
        "ast",
        "builtins",
        "dis",
        "gc",
        "importlib",
        "inspect",
        "linecache",
        "pickle",
        "runpy",
        "subprocess",
        "sys",
        "traceback",
    }
)
_OWN_NAMES = re.compile(r"\b[vgp]\d+_\b")
#: Decorators and base classes that note nothing down elsewhere, and annotations, by full name: they may go with what they adorn.
_PLAIN = frozenset(
    "triton.jit torch.no_grad torch.inference_mode torch.nn.Module torch.autograd.Function torch.Tensor torch.dtype torch.device"
    " triton.language.constexpr staticmethod classmethod property object int float bool str".split()
)
_PLAIN_IMPORTS = frozenset({"torch", "torch.nn", "torch.nn.functional", *sys.stdlib_module_names})
_ACTS = (ast.Call, ast.NamedExpr, ast.Await, ast.Yield, ast.YieldFrom, *COMPREHENSIONS)


def normal_form(source: str) -> str | None:
    """The text that all alike files share, or None for what is no Python."""
    try:
        tree = ast.parse(source)
        drop_main_guard(tree)
        if _looks_at_itself(tree, source):
            return ast.unparse(tree)
        _squeeze_texts(tree)
        statements = _File(tree).normal()
        return "\n".join(ast.unparse(statement) for statement in statements)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _looks_at_itself(tree: ast.Module, source: str) -> bool:
    if _OWN_NAMES.search(source):
        return True
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.FunctionDef(name=name) if (
                name in _LOOKS_AT_ITSELF
            ):
                return True
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in _BY_NAME:
                asked = arguments[1] if len(arguments) > 1 else None
                if not isinstance(asked, ast.Constant) or str(asked.value) in _LOOKS_AT_ITSELF:
                    return True
            case ast.Import(names=names) if any(_top(alias.name) in _SELF_LOOKING_MODULES for alias in names):
                return True
            case ast.ImportFrom(module=module, names=names):
                if _top(module or "") in _SELF_LOOKING_MODULES or any(alias.name == "*" for alias in names):
                    return True
    return False


def _top(module: str) -> str:
    return module.partition(".")[0]


def _squeeze_texts(tree: ast.Module) -> None:
    texts = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and is_native(node.value)
    ]
    if not texts or edits_texts(tree):
        return
    pieces = {
        id(piece) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for piece in ast.walk(node)
    }
    for node in texts:
        if id(node) not in pieces:
            node.value = squeezed(str(node.value))


class _File:
    """A candidate's module-level statements, taken apart into definitions, which have no order, and the rest, which has."""

    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._count_names()
        without_dead_code(tree, frozenset(self._bindings))
        self._count_names()
        self._asked_by_text = {
            word
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and not is_native(node.value)
            for word in re.findall(r"\w+", node.value)
        }

    def _count_names(self) -> None:
        """How often each module-level name is bound; importing the same thing again is no other binding."""
        binders: set[tuple[str, str]] = set()
        self._paths: dict[str, str] = {}
        for statement in self._tree.body:
            for name, path in bound_names(statement).items():
                binders.add((name, path or str(id(statement))))
                if path and isinstance(statement, (ast.Import, ast.ImportFrom)):
                    self._paths[name] = path
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Global):
                binders.update((name, str(id(node))) for name in node.names)
        self._bindings = Counter(name for name, _ in binders)
        self._later = any(
            isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            for statement in self._tree.body
        )

    def normal(self) -> list[ast.stmt]:
        """Statements that act, in order, then the definitions that they or the model reach, in the order reached."""
        body = self._tree.body
        defined: dict[str, ast.stmt] = {}
        acting: list[ast.stmt] = []
        for statement in body:
            if self._is_definition(statement):
                defined.update(dict.fromkeys(bound_names(statement), statement))
            else:
                acting.append(statement)
        if any(not isinstance(one, (ast.Import, ast.ImportFrom)) for one in acting):
            # What an attribute holds may depend on what was done before.
            moved = {
                name: one
                for name, one in defined.items()
                if isinstance(one, (ast.Assign, ast.AnnAssign)) and _reads_state(one)
            }
            defined = {name: one for name, one in defined.items() if name not in moved}
            staying = {id(one) for one in (*acting, *moved.values())}
            acting = [one for one in body if id(one) in staying]
        if "ModelNew" not in self._bindings or not self._in_order(body, defined):
            self._names().rename(body, {})
            return body
        unreached = [
            one
            for one in defined.values()
            if not self._may_go(one, frozenset(self._bindings)) and one not in acting
        ]
        reached = _reached([*acting, *unreached], defined)
        self._names().rename([*acting, *reached.values()], reached)
        imports = [one for one in reached.values() if isinstance(one, (ast.Import, ast.ImportFrom))]
        others = [one for one in reached.values() if not isinstance(one, (ast.Import, ast.ImportFrom))]
        return [*_unique(sorted(imports, key=ast.unparse)), *acting, *_unique(others)]

    def _names(self) -> CanonicalNames:
        return CanonicalNames(
            self._tree, self._bindings, self._paths, {*self._asked_by_text, *_ROOTS}, self._name_of
        )

    def _is_definition(self, statement: ast.stmt) -> bool:
        """Whether a statement does nothing but bind a name, once in the file, to what does not depend on what was done."""
        names = bound_names(statement)
        if not names or any(
            self._bindings[name] > 1 for name in (*names, *_evaluated(statement, self._later))
        ):
            return False
        if isinstance(statement, ast.Import):
            # `import a.b` binds `a`, as does `import a`, and not the same parts of it are there afterwards.
            return all(alias.asname or "." not in alias.name for alias in statement.names)
        if isinstance(statement, ast.ImportFrom):
            return not statement.level and statement.module != "__future__"
        if isinstance(statement, Function):
            return self._plain_function(statement)
        if isinstance(statement, ast.ClassDef):
            return (
                not statement.keywords
                and not statement.decorator_list
                and all(self._name_of(base) in _PLAIN or self._own_class(base) for base in statement.bases)
                and all(self._plain_member(member) for member in statement.body)
            )
        return _plain_assignment(statement)

    def _plain_function(self, function: Function) -> bool:
        spec = function.args
        defaults = [*spec.defaults, *(item for item in spec.kw_defaults if item is not None)]
        return (
            all(self._plain_decorator(decorator) for decorator in function.decorator_list)
            and not any(_acts(item) or _has_state(item) for item in defaults)
            and not any(_acts(item) for item in self._annotations(function))
        )

    def _plain_decorator(self, decorator: ast.expr) -> bool:
        if isinstance(decorator, ast.Call):
            if decorator.args or any(_acts(item.value) for item in decorator.keywords):
                return False
            decorator = decorator.func
        return self._name_of(decorator) in _PLAIN

    def _plain_member(self, member: ast.stmt) -> bool:
        if isinstance(member, Function):
            return self._plain_function(member)
        return isinstance(member, ast.Pass) or (_plain_assignment(member) and not _reads_state(member))

    def _annotations(self, function: Function) -> list[ast.expr]:
        """Those that are evaluated."""
        if self._later:
            return []
        found = [item.annotation for item in own_parameters(function) if item.annotation is not None]
        return [*found, *([function.returns] if function.returns is not None else [])]

    def _name_of(self, node: ast.expr) -> str:
        """`tl.constexpr` as `triton.language.constexpr`; empty for what is no dotted name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        if node.id in self._bindings:
            first = self._paths.get(node.id, "") if self._bindings[node.id] == 1 else ""
        else:
            first = node.id if node.id in BUILTINS else ""
        return ".".join([first, *reversed(parts)]) if first else ""

    def _own_class(self, base: ast.expr) -> bool:
        """Whether a base is a class of this file; what it derives from in turn is looked at where it stands."""
        return isinstance(base, ast.Name) and any(
            isinstance(one, ast.ClassDef) and one.name == base.id and self._is_definition(one)
            for one in self._tree.body
        )

    def _in_order(self, body: Sequence[ast.stmt], defined: Mapping[str, ast.stmt]) -> bool:
        """Whether nothing is asked for before it is there; another order could then bring no error."""
        there: set[str] = set()
        for statement in body:
            plain = any(defined.get(name) is statement for name in bound_names(statement))
            asked = _evaluated(statement, self._later) if plain else _closure(used_names(statement), defined)
            asked -= set(bound_names(statement)) if not plain else set()
            if (asked & set(self._bindings)) - there:
                return False
            there.update(bound_names(statement))
        return True

    def _may_go(self, statement: ast.stmt, known: frozenset[str]) -> bool:
        """Whether a definition that nothing reaches can be left out: it then could not have failed either."""
        names = set(bound_names(statement))
        if names & {*_ROOTS, *self._asked_by_text} or any(name.startswith("__") for name in names):
            return False
        if isinstance(statement, ast.Import):
            return all(alias.name in _PLAIN_IMPORTS for alias in statement.names)
        if isinstance(statement, Function):
            return self._function_may_go(statement, known)
        if isinstance(statement, ast.ClassDef):
            return all(
                self._function_may_go(member, known)
                if isinstance(member, Function)
                else isinstance(member, ast.Pass) or _assigns_harmless(member, known)
                for member in statement.body
            )
        return _assigns_harmless(statement, known)

    def _function_may_go(self, function: Function, known: frozenset[str]) -> bool:
        spec = function.args
        defaults = [*spec.defaults, *(item for item in spec.kw_defaults if item is not None)]
        adorned = [
            *(item for item in function.decorator_list if not isinstance(item, ast.Call)),
            *self._annotations(function),
        ]
        return (
            all(surely_harmless(item, known) for item in defaults)
            and all(isinstance(item, ast.Constant) or self._name_of(item) in _PLAIN for item in adorned)
            and not any(isinstance(item, ast.Call) and item.keywords for item in function.decorator_list)
        )


def _acts(value: ast.AST) -> bool:
    """Whether evaluating an expression calls or binds something; what a lambda does, it does later."""
    if isinstance(value, ast.Lambda):
        return any(
            _acts(item) for item in (*value.args.defaults, *value.args.kw_defaults) if item is not None
        )
    return isinstance(value, _ACTS) or any(_acts(child) for child in ast.iter_child_nodes(value))


def _has_state(value: ast.AST) -> bool:
    return any(isinstance(node, (ast.Attribute, ast.Subscript)) for node in ast.walk(value))


def _plain_assignment(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign):
        return all(isinstance(target, ast.Name) for target in statement.targets) and not _acts(
            statement.value
        )
    return (
        isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and statement.value is not None
        and not _acts(statement)
    )


def _reads_state(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, (ast.Assign, ast.AnnAssign))
        and statement.value is not None
        and _has_state(statement.value)
    )


def _assigns_harmless(statement: ast.stmt, known: frozenset[str]) -> bool:
    return isinstance(statement, ast.Assign) and surely_harmless(statement.value, known)


def _evaluated(statement: ast.stmt, later: bool) -> set[str]:
    """Names that a definition asks for when it is made, not when it is called."""
    if isinstance(statement, Function):
        spec = statement.args
        parts: list[ast.AST] = [
            *statement.decorator_list,
            *spec.defaults,
            *(item for item in spec.kw_defaults if item),
        ]
        if not later:
            parts += [item.annotation for item in parameters(spec) if item.annotation is not None]
            parts += [statement.returns] if statement.returns is not None else []
        return {name for part in parts for name in _names(part)}
    if isinstance(statement, ast.ClassDef):
        found = {name for base in statement.bases for name in _names(base)}
        return found.union(*(_evaluated(member, later) for member in statement.body))
    return set(_names(statement))


def _names(node: ast.AST) -> list[str]:
    return [
        item.id for item in ast.walk(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Load)
    ]


def _closure(names: Iterable[str], defined: Mapping[str, ast.stmt]) -> set[str]:
    """Names and all that their definitions mention: any of it may run."""
    found: set[str] = set()
    pending = list(names)
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            if name in defined:
                pending += used_names(defined[name])
    return found


def _reached(acting: Sequence[ast.stmt], defined: Mapping[str, ast.stmt]) -> dict[str, ast.stmt]:
    """Definitions by name in the order in which the model, then the acting statements mention them, depth first."""
    found: dict[str, ast.stmt] = {}
    pending = [*reversed([*_ROOTS, *(name for one in acting for name in _mentioned(one))])]
    while pending:
        name = pending.pop()
        if name in defined and name not in found:
            found[name] = defined[name]
            pending += reversed(_mentioned(defined[name]))
    return found


def _mentioned(statement: ast.stmt) -> list[str]:
    own = list(bound_names(statement))
    return [*(node.id for node in in_text_order(statement) if isinstance(node, ast.Name)), *own]


def _unique(statements: Iterable[ast.stmt]) -> list[ast.stmt]:
    """Each statement once: one may bind several names."""
    return list({id(statement): statement for statement in statements}.values())
