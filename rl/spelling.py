"""One spelling for what torch lets be written in several ways, by the text alone: nothing is run, and the result is to be compared.

Functions, methods and operators become one, names are read through the file's imports, and `dim` and its like are always named.
What is no torch may be respelled, too, as all files are in the same way; what would need types or shapes stays as it is written.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

_NAMESPACES = frozenset({"torch", "torch.nn.functional", "torch.special", "torch.Tensor"})
#: `math.sqrt` of a size and a tensor's root are one formula.
_ROOTS = {"torch": "torch", "math": "torch"}
_SYNONYMS = {
    "absolute": "abs",
    "bmm": "matmul",
    "clip": "clamp",
    "concat": "cat",
    "concatenate": "cat",
    "divide": "div",
    "expit": "sigmoid",
    "mm": "matmul",
    "multiply": "mul",
    "negative": "neg",
    "subtract": "sub",
    "true_divide": "div",
}
#: What arguments behind the first one are called, where both ways of giving them are in use.
_ARGUMENTS = {
    name: arguments.split()
    for names, arguments in (
        ("softmax log_softmax softmin cumsum cumprod logcumsumexp cat stack squeeze unsqueeze glu", "dim"),
        ("sum mean prod amax amin argmax argmin max min median all any logsumexp", "dim keepdim"),
        ("norm", "p dim keepdim"),
        ("normalize", "p dim eps"),
        ("sort argsort", "dim descending"),
        ("topk", "k dim"),
        ("var std", "dim"),
        ("clamp hardtanh", "min max"),
        ("elu celu", "alpha"),
        ("leaky_relu", "negative_slope"),
        ("softplus", "beta threshold"),
        ("layer_norm", "normalized_shape weight bias eps"),
        ("rms_norm", "normalized_shape weight eps"),
        ("add sub mul div matmul", "other"),
        ("pow", "exponent"),
    )
    for name in names.split()
}
#: These take a second tensor as well as a dimension.
_DIM_OR_TENSOR = frozenset({"max", "min"})
_KEYWORDS = {"axis": "dim", "keepdims": "keepdim", "min_val": "min", "max_val": "max"}
_DEFAULTS = frozenset({("keepdim", False), ("descending", False), ("approximate", "none")})
_OPERATORS = {
    "add": ast.Add,
    "sub": ast.Sub,
    "mul": ast.Mult,
    "div": ast.Div,
    "matmul": ast.MatMult,
    "pow": ast.Pow,
}
_POWERS = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2, "reciprocal": -1}
#: Modules without weights, and the function that takes the same arguments behind its first one.
_TWINS = {
    "LogSigmoid": "logsigmoid",
    "LogSoftmax": "log_softmax",
    "LeakyReLU": "leaky_relu",
    **{
        name: name.lower()
        for name in (
            "CELU ELU GELU GLU Hardsigmoid Hardswish Hardtanh Mish ReLU ReLU6 SELU Sigmoid SiLU Softmax Softmin Softplus Softsign"
            " Tanh Tanhshrink"
        ).split()
    },
}


def respelled(tree: ast.Module) -> ast.Module:
    """The module in one spelling; the tree is changed in place.

    Args:
        tree: of a file whose model is called `ModelNew`.
    """
    _Names(tree).visit(tree)
    tree.body.insert(0, ast.Import([ast.alias("torch")]))
    _Calls(_modules(tree)).visit(tree)
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        _name_values(function)
    return ast.fix_missing_locations(tree)


class _Names(ast.NodeTransformer):
    """Whole names instead of imported ones; arguments by number, without annotations."""

    def __init__(self, tree: ast.Module) -> None:
        self._paths = dict(_imported(tree))
        for node in ast.walk(tree):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    self._paths.pop(name, None)
        self._arguments: dict[str, str] = {}

    def visit_Import(self, node: ast.Import) -> ast.AST:
        """Names are whole now."""
        node.names = [one for one in node.names if one.name.partition(".")[0] not in _ROOTS]
        return node if node.names else ast.Pass()

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        """Likewise; annotations are gone, and `__future__` with them."""
        known = not node.level and (node.module or "").partition(".")[0] in {*_ROOTS, "__future__"}
        return ast.Pass() if known and all(one.name != "*" for one in node.names) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """`F`, and arguments."""
        if node.id in self._arguments:
            return ast.Name(self._arguments[node.id], node.ctx)
        return _dotted(self._paths[node.id]) if node.id in self._paths else node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Methods of the model are called by torch, and their arguments by place."""
        node.bases = [self.visit(base) for base in node.bases]
        node.decorator_list = [self.visit(one) for one in node.decorator_list]
        node.body = [
            self._method(member) if isinstance(member, ast.FunctionDef) else self.visit(member)
            for member in node.body
        ]
        return node

    def _method(self, node: ast.FunctionDef) -> ast.FunctionDef:
        spec = node.args
        own = [*spec.posonlyargs, *spec.args, *spec.kwonlyargs]
        outer = self._arguments
        self._arguments = {
            **outer,
            **{one.arg: f"argument_{n}" for n, one in enumerate(own) if one.arg != "self"},
        }
        self.visit(node)
        for one in own:
            one.arg = self._arguments.get(one.arg, one.arg)
        self._arguments = outer
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """`-> torch.Tensor`."""
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        """`x: torch.Tensor`."""
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """`y: torch.Tensor = x`."""
        self.generic_visit(node)
        return ast.Assign([node.target], node.value) if node.value else node


def _imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Import, ast.ImportFrom)):
            continue
        for one in node.names:
            if isinstance(node, ast.ImportFrom):
                whole = f"{node.module}.{one.name}" if not node.level else ""
            else:
                whole = one.name if one.asname else one.name.partition(".")[0]
            root, _, rest = whole.partition(".")
            if root in _ROOTS and one.name != "*":
                yield one.asname or whole.rpartition(".")[2], ".".join(filter(None, [_ROOTS[root], rest]))


class _Calls(ast.NodeTransformer):
    """Calls and operators."""

    def __init__(self, modules: dict[str, ast.Call]) -> None:
        self._modules = modules

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """A module without weights is where it is called."""
        gone = len(node.targets) == 1 and _kept(node.targets[0]) in self._modules
        return ast.Pass() if gone else self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """`x += y`."""
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        return ast.Assign(
            [node.target], _operation(ast.Name(node.target.id, ast.Load()), node.op, node.value)
        )

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """An `__init__` that does nothing is none."""
        self.generic_visit(node)
        node.body = [one for one in node.body if not _is_empty_init(one)] or [ast.Pass()]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """`x * x`."""
        self.generic_visit(node)
        return _operation(node.left, node.op, node.right)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """`F.softmax(x, -1)`, `x.softmax(-1)`, `nn.Softmax(-1)(x)`."""
        module = self._modules.get(_kept(node.func))
        if module is not None:
            node = ast.Call(module, node.args, node.keywords)
        self.generic_visit(node)
        match node:
            case ast.Call(
                func=ast.Call(func=function, args=settings, keywords=named), args=[value], keywords=[]
            ):
                twin = _twin(function)
                return _function(twin, [value, *settings], named) if twin else node
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="torch"), kind]):
                return kind  # a dtype by its name; files that look names up have no normal form
            case ast.Call(func=ast.Name(id="super")):
                return ast.Call(node.func, [], [])
            case ast.Call(func=ast.Attribute(value=receiver, attr=name)) if not name.startswith("__"):
                path = _path(receiver)
                if path in _NAMESPACES:
                    return _function(name, node.args, node.keywords)
                if path.partition(".")[0] != "torch" and path != "self":
                    return _function(name, [receiver, *node.args], node.keywords)
        return node


def _function(name: str, arguments: Sequence[ast.expr], keywords: Iterable[ast.keyword]) -> ast.expr:
    name = name.rstrip("_") or name  # in place or not
    name = _SYNONYMS.get(name, name)
    given = list(arguments)
    named = {_KEYWORDS.get(one.arg or "", one.arg): one.value for one in keywords}
    if "input" in named:
        given.insert(0, named.pop("input"))
    places = _ARGUMENTS.get(name, [])
    if not any(isinstance(one, ast.Starred) for one in given) and len(given) - 1 <= len(places):
        if name not in _DIM_OR_TENSOR or all(map(_is_literal, given[1:])):
            named.update(zip(places, given[1:], strict=False))
            given = given[:1]
    said = {key: _only(value) for key, value in named.items() if not _says_nothing(key, value)}
    match given, list(said):
        case [left], ["other" | "exponent" as other] if name in _OPERATORS:
            return _operation(left, _OPERATORS[name](), said[other])
        case [value], [] if name == "neg":
            return ast.UnaryOp(ast.USub(), value)
        case [value], [] if name in _POWERS:
            return _operation(value, ast.Pow(), ast.Constant(_POWERS[name]))
    ordered = [ast.keyword(key, said[key]) for key in sorted(said, key=str)]
    return ast.Call(_dotted(f"torch.{name}"), given, ordered)


def _operation(left: ast.expr, operator: ast.operator, right: ast.expr) -> ast.expr:
    """An operation; what is divided by a power is multiplied by another one."""
    match operator, right:
        case ast.Mult(), _ if ast.dump(left) == ast.dump(right):
            return ast.BinOp(left, ast.Pow(), ast.Constant(2))
        case ast.Div(), ast.BinOp(left=base, op=ast.Pow(), right=exponent) if _is_number(exponent):
            power = ast.BinOp(base, ast.Pow(), _number(-ast.literal_eval(exponent)))
            is_one = isinstance(left, ast.Constant) and left.value == 1
            return power if is_one else ast.BinOp(left, ast.Mult(), power)
        case ast.Pow(), _ if _is_number(right):
            return ast.BinOp(left, operator, _number(ast.literal_eval(right)))
    return ast.BinOp(left, operator, right)


def _number(value: float) -> ast.expr:
    """2 for 2.0."""
    size = abs(value)
    constant = ast.Constant(int(size) if isinstance(size, float) and size.is_integer() else size)
    return ast.UnaryOp(ast.USub(), constant) if value < 0 else constant


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_literal(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) or _is_number(node)


def _only(value: ast.expr) -> ast.expr:
    """`dim=-1` for `dim=(-1,)`."""
    match value:
        case ast.Tuple(elts=[one]) | ast.List(elts=[one]):
            return one
    return value


def _says_nothing(key: str | None, value: ast.expr) -> bool:
    if not isinstance(value, ast.Constant):
        return False
    return value.value is None or key == "inplace" or (key, value.value) in _DEFAULTS


def _name_values(function: ast.FunctionDef) -> None:
    """Where statements only follow each other, each value has a name of its own, and none if it is read once."""
    if not all(isinstance(one, (ast.Assign, ast.Return, ast.Expr, ast.Pass)) for one in function.body):
        return
    names = _Replaced()
    for number, statement in enumerate(function.body):
        names.visit(statement)
        bound = [one for one in ast.walk(statement) if isinstance(one, ast.Name) and _is_bound(one)]
        for place, one in enumerate(bound):
            names.by_name[one.id] = ast.Name(f"value_{number}_{place}", ast.Load())
            one.id = f"value_{number}_{place}"
    reads = Counter(one.id for one in ast.walk(function) if isinstance(one, ast.Name) and not _is_bound(one))
    values = _Replaced()
    kept = []
    for statement in function.body:
        values.visit(statement)
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if reads[name] == 1:
                values.by_name[name] = value
            case _:
                kept.append(statement)
    function.body = kept or [ast.Pass()]


class _Replaced(ast.NodeTransformer):
    """Other expressions for names that are read."""

    def __init__(self) -> None:
        self.by_name: dict[str, ast.expr] = {}

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """A name that is read."""
        return node if _is_bound(node) else self.by_name.get(node.id, node)


def _is_bound(node: ast.Name) -> bool:
    return not isinstance(node.ctx, ast.Load)


def _modules(tree: ast.Module) -> dict[str, ast.Call]:
    """Modules with a twin by the name on self, where all that is done with them is to call them."""
    found: dict[str, ast.Call] = {}
    called = [_kept(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    every = [_kept(node) for node in ast.walk(tree)]
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target], value=ast.Call(func=function) as made):
                name = _kept(target)
                settings = [*made.args, *(one.value for one in made.keywords)]
                plain = not any(isinstance(one, ast.Name) for each in settings for one in ast.walk(each))
                if name and _twin(function) and plain and every.count(name) == called.count(name) + 1:
                    found[name] = made
    return found


def _twin(function: ast.expr) -> str:
    space, _, name = _path(function).rpartition(".")
    return _TWINS.get(name, "") if space == "torch.nn" else ""


def _is_empty_init(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.FunctionDef)
        and node.name == "__init__"
        and all(isinstance(one, ast.Pass) or _makes_super(one) for one in node.body)
    )


def _makes_super(statement: ast.stmt) -> bool:
    match statement:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr="__init__"),
                args=[],
                keywords=[],
            )
        ):
            return True
    return False


def _kept(node: ast.AST) -> str:
    """`act` of `self.act`."""
    match node:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""


def _path(node: ast.expr) -> str:
    """`torch.nn` of a dotted name, else empty."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=value, attr=name):
            space = _path(value)
            return f"{space}.{name}" if space else ""
    return ""


def _dotted(path: str) -> ast.expr:
    first, *rest = path.split(".")
    node: ast.expr = ast.Name(first, ast.Load())
    for name in rest:
        node = ast.Attribute(node, name, ast.Load())
    return node
