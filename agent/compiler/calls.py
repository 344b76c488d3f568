"""Turns the `call` function of an Inductor module into plain torch statements.

Inductor's wrapper allocates buffers, calls kernels and hands what it does not generate to torch. Here it is read as a
syntax tree and printed again with the names of the task: allocations become `torch.empty`, raw views become views,
library calls become torch functions, and each kernel call becomes a call of a Python function of the same name.
A statement or function that is not known here makes the module not extractable; nothing is passed on unread.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.compiler.capture import Variant
from agent.compiler.layout import is_contiguous, is_transposed
from agent.compiler.names import rebuild, variable_names
from agent.errors import ProposalFailed

LIBRARY_CALLS = {
    "mm": "torch.mm",
    "bmm": "torch.bmm",
    "addmm": "torch.addmm",
    "bias_addmm": "torch.addmm",
    "baddbmm": "torch.baddbmm",
    "convolution": "torch.convolution",
    "_mm_plus_mm": "mm_plus_mm",
}
"""`extern_kernels.NAME` and what stands for it; `mm_plus_mm` is printed beside the code that uses it."""

OPERATORS = re.compile(r"(torch\.ops\.)?(aten|mkldnn|prims)\.[\w.]+")

_NOISE = ("assert_size_stride", "assert_alignment", "set_device")


@dataclass(frozen=True)
class KernelCall:
    """One call of a generated kernel.

    Attributes:
        kernel: the name in Inductor's module.
        arguments: Python text of what is passed, the tensors first.
    """

    kernel: str
    arguments: tuple[str, ...]
    base_names: tuple[str, ...]


@dataclass
class Body:
    """The statements of one variant.

    Attributes:
        names: placeholder -> name in the printed code ("symbol:rows" -> "rows").
        lines: the statements, the last one a `return`.
        calls: the kernel calls in order.
        uses_mm_plus_mm: whether `mm_plus_mm` must be printed.
        allocations: contiguous buffers by name: their sizes and dtype.
    """

    names: dict[str, str]
    lines: list[str] = field(default_factory=list)
    calls: list[KernelCall] = field(default_factory=list)
    uses_mm_plus_mm: bool = False
    allocations: dict[str, tuple[tuple[str, ...], str]] = field(default_factory=dict)


def rewrite(
    variant: Variant,
    printers: Mapping[str, Callable[[Sequence[str]], str]],
    device: str,
    scratch: frozenset[str] = frozenset(),
) -> Body:
    """Rewrite a variant's `call`.

    Args:
        variant: what was captured.
        printers: for each kernel of Inductor's module, how to print a call of it with given arguments.
        device: "cpu" or "cuda".
        scratch: buffers that the kernels allocate themselves.

    Raises:
        ProposalFailed: if the function contains anything unknown.
    """
    body = Body(variable_names(variant))
    statements = _call_statements(variant.module)
    writer = _Writer(variant, body, printers, device, scratch)
    for statement in statements:
        writer.statement(statement)
    if not body.lines or not body.lines[-1].startswith("return"):
        raise ProposalFailed("the generated wrapper does not end with a return")
    return body


def scratch_buffers(body: Body) -> frozenset[str]:
    """Contiguous buffers that a single kernel call writes and reads and nothing else mentions."""
    mentions = dict.fromkeys(body.allocations, 0)
    for line in body.lines:
        for node in ast.walk(ast.parse(line)):
            if isinstance(node, ast.Name) and node.id in mentions and isinstance(node.ctx, ast.Load):
                mentions[node.id] += 1
    passed = [argument for call in body.calls for argument in call.arguments]
    return frozenset(name for name, count in mentions.items() if count == 1 and passed.count(name) == 1)


def _call_statements(module: str) -> list[ast.stmt]:
    try:
        tree = ast.parse(module)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ProposalFailed(f"the generated module does not parse: {error}") from error
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "call"]
    if len(found) != 1:
        raise ProposalFailed(f"the generated module has {len(found)} functions named call")
    return _flatten(found[0].body)


def _flatten(statements: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The statements without the `with torch.cuda._DeviceGuard(0)` around them."""
    flat: list[ast.stmt] = []
    for statement in statements:
        if isinstance(statement, ast.With) and "DeviceGuard" in ast.unparse(statement.items[0].context_expr):
            flat += _flatten(statement.body)
        else:
            flat.append(statement)
    return flat


class _Writer:
    """Prints statements one by one and remembers which values are known to be contiguous."""

    def __init__(
        self,
        variant: Variant,
        body: Body,
        printers: Mapping[str, Callable[[Sequence[str]], str]],
        device: str,
        scratch: frozenset[str] = frozenset(),
    ) -> None:
        self.scratch = scratch
        self.variant, self.body, self.printers, self.device = variant, body, printers, device
        self.renames: dict[str, str] = {s.symbol: body.names[f"symbol:{s.name}"] for s in variant.symbols}
        self.shapes: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
        self.base: dict[str, str] = {}
        self.fresh: set[str] = set()  # names of memory that belongs to this call
        self.replaced: set[str] = set()  # names whose memory goes on under another name

    def statement(self, node: ast.stmt) -> None:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            self.assign(node.targets[0], node.value)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            self.call(node.value)
        elif isinstance(node, ast.Delete):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            kept = [
                self.renames.get(name, name)
                for name in names
                if name.startswith("buf") and name not in self.replaced
            ]
            kept = [name for name in kept if name not in self.scratch]
            if kept:
                self.body.lines.append(f"del {', '.join(kept)}")
        elif isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            results = [self.expression(item) for item in node.value.elts]
            if any(isinstance(item, ast.Constant) and item.value is None for item in node.value.elts):
                raise ProposalFailed("the generated wrapper returns None in place of a tensor")
            for item in node.value.elts:
                self.check_fresh(item)
            self.body.lines.append(f"return {rebuild(self.variant.outputs, results)}")
        elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            raise ProposalFailed(
                f"the generated wrapper has an unexpected statement: {ast.unparse(node)[:100]}"
            )

    def assign(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Tuple | ast.List) and isinstance(value, ast.Name) and value.id == "args":
            self.bind_arguments(target.elts)
            return
        if not isinstance(target, ast.Name):
            raise ProposalFailed(f"the generated wrapper assigns to {ast.unparse(target)[:80]}")
        name = target.id
        if isinstance(value, ast.Name) and value.id in self.renames and name in self.symbol_names():
            self.renames[name] = self.renames[value.id]  # s30 = arg0_1
            return
        if isinstance(value, ast.Name) and value.id in self.fresh:
            self.renames[name] = self.renames.get(value.id, value.id)  # buf1 = buf0; del buf0  # reuse
            self.fresh.add(name)
            self.replaced.add(value.id)
            return
        if isinstance(value, ast.Call) and ast.unparse(value.func) in (
            "get_raw_stream",
            "get_raw_cuda_stream",
        ):
            return
        if isinstance(value, ast.Call) and ast.unparse(value.func) == "copy_if_misaligned":
            return  # a kernel that Triton compiles at the call looks at the alignment itself
        if isinstance(value, ast.BinOp | ast.Constant):  # a size made of others, for one or two kernel calls
            text = self.expression(value)
            self.renames[name] = f"({text})" if isinstance(value, ast.BinOp) else text
            return
        self.fresh.add(name) if self.makes_fresh(value) else self.fresh.discard(name)
        text = self.expression(value)
        layout = self.layout_of(value)
        if layout is not None:
            self.shapes[name] = layout
        if (
            text.startswith(("torch.empty(", "torch.empty_like("))
            and layout is not None
            and isinstance(value, ast.Call)
        ):
            self.body.allocations[name] = (layout[0], self.expression(value.args[2]))
        if name not in self.scratch:
            self.body.lines.append(f"{name} = {text}")

    def symbol_names(self) -> set[str]:
        return {symbol.symbol for symbol in self.variant.symbols}

    def bind_arguments(self, targets: Sequence[ast.expr]) -> None:
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        if len(names) != len(self.variant.placeholders):
            raise ProposalFailed(
                f"the generated code takes {len(names)} values, the graph has {len(self.variant.placeholders)}"
            )
        for name, placeholder in zip(names, self.variant.placeholders, strict=True):
            self.renames[name] = self.body.names[placeholder]
            kind, _, index = placeholder.partition(":")
            if kind != "symbol":
                value = (self.variant.arguments if kind == "argument" else self.variant.state)[int(index)]
                self.shapes[self.renames[name]] = (
                    tuple(self.text(size) for size in value.shape),
                    tuple(self.text(size) for size in value.stride),
                )

    def call(self, node: ast.Call) -> None:
        function = ast.unparse(node.func)
        if function == "args.clear" or function.rpartition(".")[2] in _NOISE:
            return
        kernel = function.removesuffix(".run")
        if kernel in self.printers:
            self.kernel_call(kernel, node)
            return
        self.body.lines.append(self.expression(node))

    def kernel_call(self, kernel: str, node: ast.Call) -> None:
        if {keyword_.arg for keyword_ in node.keywords} - {"stream"}:
            raise ProposalFailed(f"{kernel} is called with unexpected keywords")
        arguments = tuple(_bare(self.expression(argument)) for argument in node.args)
        bases = tuple(re.sub(r"\W.*", "", argument) for argument in arguments)
        self.body.calls.append(KernelCall(kernel, arguments, bases))
        self.body.lines.append(self.printers[kernel](arguments))

    def expression(self, node: ast.expr) -> str:
        """Python text of an expression, every function in it known."""
        if isinstance(node, ast.Call):
            return self.function(node)
        if isinstance(node, ast.Name):
            return self.renames.get(node.id, node.id)
        if isinstance(node, ast.Constant):
            return repr(node.value)
        if isinstance(node, ast.Tuple):
            items = [self.expression(item) for item in node.elts]
            return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
        if isinstance(node, ast.List):
            return f"[{', '.join(self.expression(item) for item in node.elts)}]"
        if isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp | ast.IfExp):
            return self.text(ast.unparse(node))
        if isinstance(node, ast.Attribute) and re.fullmatch(r"torch\.\w+|math\.\w+", ast.unparse(node)):
            return ast.unparse(node)
        if (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and isinstance(node.slice, ast.Constant)
        ):
            return f"{self.expression(node.value)}[{node.slice.value!r}]"
        raise ProposalFailed(f"the generated wrapper has an unexpected expression: {ast.unparse(node)[:100]}")

    def function(self, node: ast.Call) -> str:
        name = ast.unparse(node.func)
        if name.startswith("empty_strided"):
            return self.allocation(node)
        if name == "reinterpret_tensor":
            return self.view(node)
        arguments = [self.expression(argument) for argument in node.args]
        arguments += [f"{item.arg}={self.expression(item.value)}" for item in node.keywords if item.arg]
        if name.startswith("extern_kernels.") and name.partition(".")[2] in LIBRARY_CALLS:
            plain = LIBRARY_CALLS[name.partition(".")[2]]
            self.body.uses_mm_plus_mm |= plain == "mm_plus_mm"
            arguments = [a for a in arguments if a not in ("alpha=1", "beta=1")]
            return f"{plain}({', '.join(arguments)})"
        if OPERATORS.fullmatch(name):
            full = name if name.startswith("torch.ops.") else f"torch.ops.{name}"
            return f"{full}({', '.join(arguments)})"
        if name in ("max", "min", "int", "float", "torch.sym_sqrt", "math.sqrt", "device", "torch.device"):
            return f"{name.replace('torch.sym_sqrt', 'math.sqrt')}({', '.join(arguments)})"
        raise ProposalFailed(f"the generated code calls {name}, which has no standalone form here")

    def allocation(self, node: ast.Call) -> str:
        size, stride, dtype = (self.expression(argument) for argument in node.args[:3])
        where = f", device={self.anchor()}.device" if self.device == "cuda" else ""
        if is_contiguous(_items(size), _items(stride)):
            for index, value in enumerate(self.variant.arguments):
                name = self.body.names[f"argument:{index}"]
                if value.kind == "tensor" and self.shapes.get(name) == (_items(size), _items(stride)):
                    if f"torch.{value.dtype}" == dtype:
                        return f"torch.empty_like({name})"  # cheaper to call than torch.empty
            return f"torch.empty({size}, dtype={dtype}{where})"
        return f"torch.empty_strided({size}, {stride}, dtype={dtype}{where})"

    def anchor(self) -> str:
        """An input whose device is where everything happens."""
        for index, value in enumerate(self.variant.arguments):
            if value.kind == "tensor":
                return self.body.names[f"argument:{index}"]
        raise ProposalFailed("forward takes no tensor")

    def view(self, node: ast.Call) -> str:
        """`reinterpret_tensor(base, size, stride, offset)` as a view, a transpose, or `as_strided`."""
        base, size, stride, offset = (self.expression(argument) for argument in node.args)
        sizes, strides = _items(size), _items(stride)
        known = self.shapes.get(base)
        if known is not None and offset == "0" and is_contiguous(*known):
            if is_contiguous(sizes, strides):
                return base if sizes == known[0] else f"{base}.view({', '.join(sizes)})"
            if is_transposed(sizes, strides):
                flipped = (sizes[1], sizes[0])
                return f"{base}.t()" if flipped == known[0] else f"{base}.view({', '.join(flipped)}).t()"
        if offset == "0":
            return f"{base}.as_strided({size}, {stride})"
        return f"{base}.as_strided({size}, {stride}, {base}.storage_offset() + {offset})"

    def layout_of(self, node: ast.expr) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("empty_strided"):
            return _items(self.expression(node.args[0])), _items(self.expression(node.args[1]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "reinterpret_tensor":
            return _items(self.expression(node.args[1])), _items(self.expression(node.args[2]))
        return None

    def makes_fresh(self, value: ast.expr) -> bool:
        """Whether a value's memory belongs to this call: outputs must never alias an input."""
        if isinstance(value, ast.Name):
            return value.id in self.fresh
        if isinstance(value, ast.Subscript):
            return self.makes_fresh(value.value)
        if isinstance(value, ast.Call):
            name = ast.unparse(value.func)
            return self.makes_fresh(value.args[0]) if name == "reinterpret_tensor" else True
        return False

    def check_fresh(self, value: ast.expr) -> None:
        if not self.makes_fresh(value):
            raise ProposalFailed(f"an output is not memory of its own: {ast.unparse(value)[:80]}")

    def text(self, expression: str) -> str:
        """An expression over sizes with the symbols renamed; nothing but arithmetic is let through."""
        try:
            tree = ast.parse(expression, mode="eval")
        except (SyntaxError, ValueError, RecursionError) as error:
            raise ProposalFailed(f"a size does not parse: {expression[:80]}") from error
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                node.id = self.renames.get(node.id, node.id)
                if node.id not in self.renames.values() and node.id not in (
                    "math",
                    "min",
                    "max",
                    "float",
                    "int",
                ):
                    raise ProposalFailed(f"a size mentions {node.id}, which is not a size")
            elif not isinstance(node, _ARITHMETIC):
                raise ProposalFailed(f"a size is not plain arithmetic: {expression[:80]}")
        return ast.unparse(tree)


_ARITHMETIC = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.BoolOp,
    ast.Compare,
    ast.IfExp,
    ast.Constant,
    ast.Call,
    ast.Attribute,
    ast.Load,
    ast.operator,
    ast.unaryop,
    ast.boolop,
    ast.cmpop,
)


def size_text(expression: str, variant: Variant, names: Mapping[str, str]) -> str:
    """A size or guard of a capture with the symbols under their printed names."""
    writer = _Writer(variant, Body(dict(names)), {}, "cpu")
    return writer.text(expression)


def _bare(text: str) -> str:
    """Without parentheses around the whole."""
    return ast.unparse(ast.parse(text, mode="eval")) if text.startswith("(") else text


def _items(text: str) -> tuple[str, ...]:
    """The elements of a printed tuple."""
    tree = ast.parse(text, mode="eval").body
    return tuple(ast.unparse(item) for item in tree.elts) if isinstance(tree, ast.Tuple) else (text,)
